"""Causes of everyday faults: what a log shows of rates, windows, NaN, clips and configs."""

import dataclasses
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.diagnosis.test_diagnose import AT, BAD, CLEAN, N, Sim, incident, trial
from trimtab.analysis.explain import explain
from trimtab.diagnosis.causes import CAUSES
from trimtab.diagnosis.diagnose import Diagnosis, diagnose
from trimtab.diagnosis.features import incident_features
from trimtab.incidents import Incident
from trimtab.plan.planner import make_plan
from trimtab.plan.remedy_table import REMEDY_BY_ID
from trimtab.record import RecordBuilder, RunRecord

SEEDS = range(3)


def named(diagnosis: Diagnosis) -> list[str]:
    return [c.cause for c in diagnosis.causes if c.cause != "unknown"]


def text_of(diagnosis: Diagnosis) -> str:
    return " / ".join(t for c in diagnosis.causes for t in (*c.evidence, *c.against))


def nonfinite(sim: Sim, onset: int = AT, **facts: float) -> tuple[RunRecord, Incident]:
    return sim.record(resume_at=None, **facts), incident(onset, "non-finite")


# -- the loss scale --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_joint_explosion_is_not_the_range_of_fp16(seed: int) -> None:
    """Norm, loss and scale go within five rows of each other, as OPT's did."""
    sim = Sim.healthy(seed)
    sim.scale = np.where(np.arange(N) < AT - 2, 4.0, 2.0 ** -np.arange(N).clip(0, AT + 6) / 1)
    sim.scale = np.full(N, 4.0)
    sim.scale[AT - 2 :] = np.maximum(2.0**-12, 4.0 / 2.0 ** np.arange(N - AT + 2))
    sim.norm[AT - 2 : AT + 10] *= 55
    sim.loss[AT:] += 3
    found = diagnose(sim.record(), incident(AT, "scale-collapse"))
    assert "flat" not in text_of(found)
    assert found.top.cause != "fp16-range"
    assert "55" in text_of(found) or "rose" in text_of(found)


# -- remedies --------------------------------------------------------------------------------


def test_a_remedy_that_only_failed_ranks_below_all_others() -> None:
    sim = Sim.healthy(0)
    sim.scale = np.full(N, 65536.0)
    sim.scale[AT - 40 :] = np.maximum(1.0, 65536.0 / 2 ** ((np.arange(N - AT + 40)) // 5))
    builder = RecordBuilder("run.log", "megatron")
    for i in range(N):
        builder.add(
            i + 1, {"loss": sim.loss[i], "grad_norm": sim.norm[i], "loss_scale": sim.scale[i]}
        )
    record, found = builder.build(), incident(AT, "scale-collapse")
    plan = make_plan(record, found, diagnose(record, found))
    only_failed = [not REMEDY_BY_ID[r.remedy].worked and bool(r.failed) for r in plan.remedies]
    assert any(only_failed)
    assert only_failed == sorted(only_failed)
    (entry,) = explain("fp16-range")
    helps = dict(entry.said)["what may help"]
    ids = [line.split(":")[0] for line in helps]
    assert ids.index("stable-attention-scaling") == len(ids) - 1


def test_attention_is_advised_only_where_there_is_attention() -> None:
    def plan_of(*keys: str, log_format: str = "csv") -> set[str]:
        builder = RecordBuilder("run.log", log_format)
        builder.keys.update({k: k for k in keys})
        for i in range(1, 301):
            builder.add(i, {"loss": 3.0, "grad_norm": 30.0, "lr": 1e-3})
        record = builder.build()
        record = dataclasses.replace(record, facts={"clip": 1.0})
        found = incident(200, "divergence")
        causes = diagnose(record, found)
        assert causes.top.cause == "learning-rate-too-high"
        return {r.remedy for r in make_plan(record, found, causes).remedies}

    assert "qk-norm" in plan_of(log_format="megatron")
    assert "qk-norm" in plan_of("num_attention_heads")
    assert "qk-norm" not in plan_of("train_loss")
    assert "qk-norm" not in plan_of("lstm_hidden", "tokens_per_batch")
    assert "embedding-layernorm" in plan_of("lstm_hidden", "tokens_per_batch")


def test_no_word_of_clipping_where_nothing_is_clipped() -> None:
    sim = Sim.healthy(0)
    sim.norm *= 40
    sim.loss[AT:] += np.linspace(0, 3, N - AT)
    said = diagnose(sim.record(clip=0.0), incident(AT + 8, "divergence"))
    assert "clip" not in text_of(said)
    record = sim.record()
    (own,) = record.attempts
    own = dataclasses.replace(own, settings={"max_grad_norm": "None"})
    record = dataclasses.replace(record, attempts=(own,))
    assert "clip" not in text_of(diagnose(record, incident(AT + 8, "divergence")))
    plan = make_plan(record, incident(AT + 8, "divergence"), said)
    assert "lower-clip" not in {r.remedy for r in plan.remedies}


def test_data_of_a_log_in_epochs_is_named_in_epochs_as_logged() -> None:
    builder = RecordBuilder("run.csv", "csv")
    builder.axis = "epoch"
    for i in range(1, 401):
        bad = 200 <= i < 220
        builder.add(i / 100, {"loss": 6.0 if bad else 2.0, "grad_norm": 2.0 if bad else 0.4})
    record = builder.build()
    assert record.axis == "epoch"
    found = dataclasses.replace(incident(199, "spike", end=219), onset=2.0, peak=2.0, end=2.2)
    plan = make_plan(record, found, diagnose(record, found))
    skip = next(r for r in plan.remedies if r.remedy == "skip-data")
    first, last = skip.values["first_step"], skip.values["last_step"]
    assert isinstance(first, float)
    assert isinstance(last, float)
    assert 1.98 <= first <= 2.0
    assert first <= last <= 2.2


def test_advice_does_not_contradict_the_probe() -> None:
    sim = Sim.healthy(0)
    sim.loss[AT : AT + 20] += 3
    record, found = sim.record(), incident(AT)
    tried = [
        trial("skip", held=False, skipped=True),
        trial("half", held=False, lr_factor=0.5),
        trial("quarter", held=False, lr_factor=0.25),
    ]
    causes = diagnose(record, found, probe=CLEAN, trials=tried)
    plan = make_plan(record, found, causes, probe=CLEAN, trials=tried)
    remedies = {r.remedy: r for r in plan.remedies}
    assert "skip-data" not in remedies
    if "lower-lr" in remedies:
        factor = remedies["lower-lr"].values["factor"]
        assert isinstance(factor, float)
        assert factor < 0.25
    named_it = make_plan(record, found, diagnose(record, found, probe=BAD), probe=BAD)
    skip = next(r for r in named_it.remedies if r.remedy == "skip-data")
    assert (skip.values["first_sample"], skip.values["last_sample"]) == (4800, 4847)


# -- rates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [20, 150, 250])
def test_a_raised_rate_is_a_cause_however_late_the_loss_follows(rows: int) -> None:
    sim = Sim.healthy(0)
    sim.lr[:] = np.where(np.arange(N) < AT - rows, 1e-3, 3e-3)
    sim.loss[AT:] += np.linspace(0, 2, N - AT)
    found = diagnose(sim.record(), incident(AT + 4, "divergence"))
    assert found.top.cause == "learning-rate-jump"
    assert "rose 3 x" in text_of(found)


def test_a_jump_after_a_resume_is_the_rates_doing_not_the_resumes() -> None:
    """Attempt 1.1 resumes from before the jump and meets the same jump ten rows later."""
    sim = Sim.healthy(0)
    builder = RecordBuilder("sim", "jsonl")

    def add(first: int, last: int) -> None:
        for i in range(first, last):
            jumped = i >= AT
            builder.add(
                i + 1,
                {
                    "loss": sim.loss[i] + (0.2 * (i - AT) if jumped else 0.0),
                    "grad_norm": sim.norm[i] * (5 if jumped else 1),
                    "lr": sim.lr[i] * (12 if jumped else 1),
                },
            )

    add(0, AT + 30)
    builder.start_attempt(number="1.1", parent_step=AT - 2)
    add(AT - 2, AT + 30)
    first = incident(AT + 3, "divergence", step=AT + 4)
    again = incident(AT + 30 + 5, "divergence", attempt="1.1", step=AT + 4)
    found = diagnose(builder.build(), again, earlier=[first])
    assert found.top.cause == "learning-rate-jump"
    assert found.share("code-or-resume-change") < 0.1


# -- windows of data -------------------------------------------------------------------------


def window(seed: int, rows: int = 25) -> tuple[RunRecord, Incident]:
    sim = Sim.healthy(seed)
    sim.loss[AT : AT + rows] += 1.5
    sim.norm[AT : AT + rows] *= 3
    return sim.record(), incident(AT, "spike", end=AT + rows - 1)


def organic(seed: int, rows: int = 25) -> tuple[RunRecord, Incident]:
    sim = Sim.healthy(seed)
    tail = np.arange(N - AT)
    sim.norm[AT - 1 : AT + 4] *= 8
    sim.loss[AT:] += 1.5 * np.minimum(1, (tail + 1) / 3) * np.exp(-np.maximum(0, tail - 2) / 8)
    return sim.record(), incident(AT, "spike", end=AT + rows - 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_window_has_a_flat_top_and_sharp_edges(seed: int) -> None:
    found = diagnose(*window(seed))
    assert found.top.cause == "bad-data-window"
    assert "25 rows" in text_of(found)
    healed = diagnose(*organic(seed))
    assert healed.top.cause == "benign-noise"


def test_a_window_is_named_whole_and_recovery_is_no_part_of_it() -> None:
    record, found = window(0)
    plan = make_plan(record, found, diagnose(record, found))
    skip = next(r for r in plan.remedies if r.remedy == "skip-data")
    assert (skip.values["first_step"], skip.values["last_step"]) == (AT + 1, AT + 25)
    assert f"{AT + 1}" in plan.next_test_flags
    assert f"{AT + 25}" in plan.next_test_flags
    # the recovery of a healed spike may take thousands of rows; its data is not to blame
    record, found = organic(0)
    long = dataclasses.replace(found, end_row=N - 10, end=N - 9)
    causes = Diagnosis(causes=diagnose(*window(0)).causes)
    skip = next(r for r in make_plan(record, long, causes).remedies if r.remedy == "skip-data")
    last = skip.values["last_step"]
    assert isinstance(last, float)
    assert last <= AT + 15


# -- NaN -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_nan_in_one_process_is_no_hardware_fault(seed: int) -> None:
    sim = Sim.healthy(seed)
    sim.loss[AT:] = np.nan
    sim.norm[AT:] = np.nan
    record, found = nonfinite(sim)
    said = diagnose(record, found)
    assert said.share("hardware-fault") < 0.05
    assert "masked-batch" in named(said)
    assert "undefined-loss" in named(said)
    assert "exclude-node" not in {r.remedy for r in make_plan(record, found, said).remedies}


def test_nan_on_one_rank_of_many_may_be_its_node() -> None:
    sim = Sim.healthy(0)
    sim.loss[AT:] = np.nan
    sim.norm[AT:] = np.nan
    record, found = nonfinite(sim)
    (own,) = record.attempts
    own = dataclasses.replace(own, settings={"world_size": "64"})
    record = dataclasses.replace(
        record, attempts=(own,), notes=(*record.notes, "rank 17 on node-003: loss NaN, others not")
    )
    assert diagnose(record, found).share("hardware-fault") > 0.2


@pytest.mark.parametrize("seed", SEEDS)
def test_lone_nan_rows_with_the_run_going_on_are_masked_batches(seed: int) -> None:
    sim = Sim.healthy(seed)
    sim.loss[[AT, AT + 23, AT + 61]] = np.nan
    record = sim.record()
    found = dataclasses.replace(incident(AT, "non-finite", end=AT), severity="critical")
    said = diagnose(record, found)
    assert said.top.cause == "masked-batch"
    assert "single rows (3 in all)" in text_of(said)


@pytest.mark.parametrize("seed", SEEDS)
def test_inf_in_the_loss_first_is_a_log_of_zero(seed: int) -> None:
    sim = Sim.healthy(seed)
    sim.loss[AT] = np.inf
    sim.loss[AT + 1 :] = np.nan
    sim.norm[AT:] = np.nan
    said = diagnose(*nonfinite(sim))
    assert said.top.cause == "undefined-loss"


def test_a_loss_of_zero_beside_a_norm_of_nan_is_a_hidden_nan() -> None:
    sim = Sim.healthy(0)
    sim.loss[AT:] = 0.0
    sim.norm[AT:] = np.nan
    said = diagnose(*nonfinite(sim))
    assert said.top.cause in ("undefined-loss", "masked-batch")
    assert "logging_nan_inf_filter" in text_of(said)


def test_a_clean_replay_alone_is_no_hardware_fault() -> None:
    sim = Sim.healthy(0)
    sim.loss[AT:] = np.nan
    sim.norm[AT:] = np.nan
    record, found = nonfinite(sim)
    clean = trial("as it was", held=True)
    loose = diagnose(record, found, probe=CLEAN, trials=[clean])
    assert loose.top.cause == "not-reproducible"
    assert loose.share("hardware-fault") < 0.2
    exact = dataclasses.replace(clean, bitwise=True)
    once = diagnose(record, found, probe=CLEAN, trials=[exact])
    assert once.top.cause == "happened-once"  # the script may have done it as well
    assert once.share("hardware-fault") < 0.3
    blurred = dataclasses.replace(clean, bitwise=False)
    assert diagnose(record, found, trials=[blurred]).share("hardware-fault") < 0.05
    measured = diagnose(record, found, trials=[dataclasses.replace(blurred, beyond_noise=True)])
    assert measured.top.cause == "happened-once"


# -- the table -------------------------------------------------------------------------------


def test_priors_add_up_and_every_cause_has_a_remedy_and_a_test() -> None:
    assert sum(c.prior for c in CAUSES) == pytest.approx(1.0)
    for cause in CAUSES:
        assert cause.test
        assert cause.remedies
        assert all(r in REMEDY_BY_ID for r in cause.remedies)


def test_features_of_rows_that_are_not_there_are_unknown() -> None:
    record = Sim.healthy(0).record()
    f = incident_features(record, incident(0, "spike", end=3))
    assert f.flat_top in (None, False)
    assert f.core_rows is None or f.core_rows >= 1
    assert not math.isnan(f.onset)


def test_ids_are_unique() -> None:
    ids = [c.id for c in CAUSES]
    assert len(set(ids)) == len(ids)


def test_nothing_rests_on_a_clip_that_nobody_stated() -> None:
    sim = Sim.healthy(0)
    sim.norm *= 40
    sim.loss[AT:] += np.linspace(0, 3, N - AT)
    said = diagnose(sim.record(), incident(AT + 8, "divergence"))
    assert "clip" not in text_of(said)


def test_gradients_that_add_up_are_told_by_norms_that_only_grow() -> None:
    row = np.arange(N)
    sim = Sim.healthy(0)
    sim.norm = np.asarray(1.6 + 0.8 * row, dtype=np.float64)
    sim.loss[AT:] += np.linspace(0, 3, N - AT)
    assert diagnose(sim.record(), incident(AT + 8, "divergence")).top.cause == (
        "gradients-not-zeroed"
    )
    sim.norm = np.asarray(
        1.6 * 1.15**row, dtype=np.float64
    )  # what explodes does most of it at the end
    assert diagnose(sim.record(), incident(AT + 8, "divergence")).share("gradients-not-zeroed") == 0


def test_losses_that_come_again_with_each_pass_are_the_order_of_the_data() -> None:
    row = np.arange(400)
    rng = np.random.default_rng(7)
    wave = 2.5 + 0.8 * np.sin(2 * np.pi * row / 80)

    def first(loss: NDArray[np.float64]) -> str:
        builder = RecordBuilder("run.jsonl", "jsonl")
        for i in row.tolist():
            builder.add(i, {"loss": float(loss[i]), "epochs_seen": i / 80})
        return diagnose(builder.build(), incident(60, "divergence")).top.cause

    assert first(wave + 0.05 * rng.standard_normal(400)) == "data-order"
    again = np.tile(2.5 + 0.3 * rng.standard_normal(80), 5)  # one order, but neighbors unlike
    assert first(again) != "data-order"


@pytest.mark.parametrize(("norm", "cause"), [(0.0, "masked-batch"), (np.nan, "never-finite")])
def test_first_batches_without_labels_come_before_number_formats(norm: float, cause: str) -> None:
    builder = RecordBuilder("run.jsonl", "jsonl")
    for i in range(1, 41):
        builder.add(i, {"loss": np.nan, "grad_norm": norm})
    found = dataclasses.replace(incident(0, "non-finite"), onset_row=0)
    assert diagnose(builder.build(), found).top.cause == cause
