"""Causes of simulated faults and of the tr8-104B incident."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trimtab.diagnosis.causes import CAUSE_BY_ID, CAUSES, UNKNOWN
from trimtab.diagnosis.diagnose import (
    DataProbe,
    Diagnosis,
    TrialResult,
    diagnose,
    rank_causes,
)
from trimtab.diagnosis.experiments import EXPERIMENTS, cheapest_between
from trimtab.diagnosis.features import Features, incident_features
from trimtab.incidents import Incident
from trimtab.plan.remedy_table import REMEDY_BY_ID
from trimtab.record import RecordBuilder, RunRecord
from trimtab.testing.tr8_104b import as_record

N, AT = 700, 600
BAD = DataProbe(
    num_batches=48,
    num_outliers=6,
    first_sample=4800,
    last_sample=4847,
    median_loss=3.1,
    worst_loss=8.9,
)
CLEAN = DataProbe(num_batches=48, num_outliers=0, median_loss=3.1, worst_loss=3.3)


def trial(name: str, *, held: bool, skipped: bool = False, lr_factor: float = 1.0) -> TrialResult:
    return TrialResult(
        name=name,
        held=held,
        loss=3.1 if held else 7.0,
        expected_loss=3.1,
        steps=48,
        skipped=skipped,
        lr_factor=lr_factor,
    )


@dataclass
class Sim:
    """A healthy run of 700 rows to plant a fault in: loss, grad norm, learning rate, loss scale."""

    loss: NDArray[np.float64]
    norm: NDArray[np.float64]
    lr: NDArray[np.float64]
    scale: NDArray[np.float64] | None = None

    @classmethod
    def healthy(cls, seed: int) -> "Sim":
        rng = np.random.default_rng(seed)
        t = np.arange(1, N + 1)
        loss = 3 + 3 * np.exp(-t / 150) + 0.03 * rng.standard_normal(N)
        norm = 0.4 * np.exp(0.1 * rng.standard_normal(N))
        cosine = 5e-4 * (1 + np.cos(np.pi * np.clip((t - 100) / 1000, 0, 1)))
        return cls(loss, norm, np.where(t <= 100, 1e-3 * t / 100, cosine))

    def record(self, *, resume_at: int | None = None, **facts: float) -> RunRecord:
        builder = RecordBuilder("sim", "jsonl")
        for i in range(N):
            if i == resume_at:
                builder.start_attempt(number="1.1", parent_step=i)
            row = {"loss": self.loss[i], "grad_norm": self.norm[i], "lr": self.lr[i]}
            if self.scale is not None:
                row["loss_scale"] = self.scale[i]
            builder.add(i + 1, row)
        builder.facts.update(facts)
        return builder.build()


def incident(
    onset: int,
    kind: str = "unrecovered-spike",
    *,
    end: int | None = None,
    attempt: str = "1.0",
    step: float = 0,
) -> Incident:
    return Incident(
        kind=kind,
        attempt=attempt,
        severity="critical" if end is None else "warning",
        onset_row=onset,
        onset=step or onset + 1,
        peak_row=onset,
        peak=onset + 1,
        end_row=end,
        end=None if end is None else end + 1,
        signals=("loss",),
        headline="",
    )


def lr_jump(seed: int) -> tuple[RunRecord, Incident]:
    sim = Sim.healthy(seed)
    sim.lr[AT:] *= 12
    sim.loss[AT + 3 :] += np.minimum(4, 0.15 * np.arange(N - AT - 3))
    sim.norm[AT + 2 :] *= 6
    return sim.record(), incident(AT + 6, "divergence")


def data_window(seed: int) -> tuple[RunRecord, Incident]:
    sim = Sim.healthy(seed)
    sim.loss[AT : AT + 20] += 3
    sim.loss[AT + 20 :] += 0.6
    sim.norm[AT : AT + 20] *= 5
    return sim.record(), incident(AT)


def too_high(seed: int) -> tuple[RunRecord, Incident]:
    sim = Sim.healthy(seed)
    sim.norm *= 40
    sim.norm[AT:] *= np.linspace(1, 8, N - AT)
    sim.loss[AT:] += np.linspace(0, 3, N - AT)
    return sim.record(clip=1.0), incident(AT + 8, "divergence")


def fp16(seed: int) -> tuple[RunRecord, Incident]:
    sim = Sim.healthy(seed)
    sim.scale = np.full(N, 65536.0)
    sim.scale[AT - 40 :] = np.maximum(1.0, 65536.0 / 2 ** ((np.arange(N - AT + 40)) // 5))
    sim.norm[AT : AT + 5] = np.inf
    return sim.record(), incident(AT, "scale-collapse")


def benign(seed: int) -> tuple[RunRecord, Incident]:
    sim = Sim.healthy(seed)
    sim.loss[AT : AT + 4] += [0.2, 0.6, 0.4, 0.2]
    sim.norm[AT - 1 : AT + 3] *= 4
    return sim.record(), incident(AT, "spike", end=AT + 4)


def hardware(seed: int) -> tuple[RunRecord, Incident]:
    sim = Sim.healthy(seed)
    sim.loss[AT:] = np.nan
    sim.norm[AT:] = np.nan
    named = "rank 17 on node-003: loss NaN, finite on all others"
    return dataclasses.replace(sim.record(), notes=(named,)), incident(AT, "non-finite")


def resumed(seed: int) -> tuple[RunRecord, Incident]:
    sim = Sim.healthy(seed)
    sim.loss[AT:] += 0.8
    return sim.record(resume_at=AT), incident(AT, "resume-jump", attempt="1.1")


FAULTS = {
    "learning-rate-jump": lr_jump,
    "bad-data-window": data_window,
    "learning-rate-too-high": too_high,
    "fp16-range": fp16,
    "benign-noise": benign,
    "hardware-fault": hardware,
    "code-or-resume-change": resumed,
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cause", FAULTS)
def test_a_planted_fault_leads_on_the_log_alone(cause: str, seed: int) -> None:
    record, found = FAULTS[cause](seed)
    diagnosis = diagnose(record, found)
    assert diagnosis.top.cause == cause
    assert diagnosis.top.confidence <= 0.75  # a log alone is no proof
    assert diagnosis.next_test


def check_sum(diagnosis: Diagnosis) -> None:
    assert sum(c.confidence for c in diagnosis.causes) == pytest.approx(1.0, abs=1e-12)
    shares = [c.confidence for c in diagnosis.causes]
    assert shares == sorted(shares, reverse=True)
    assert UNKNOWN in {c.cause for c in diagnosis.causes}


@pytest.mark.parametrize("cause", FAULTS)
def test_shares_add_up_and_texts_are_whole(cause: str) -> None:
    record, found = FAULTS[cause](0)
    trials = (trial("a", held=False, skipped=True), trial("b", held=True, lr_factor=0.5))
    for probe in (None, BAD, CLEAN):
        for tried in ((), trials):
            diagnosis = diagnose(record, found, probe=probe, trials=tried)
            check_sum(diagnosis)
            text = " ".join(t for c in diagnosis.causes for t in (*c.evidence, *c.against))
            assert "None" not in text
            assert "{" not in text


def test_unknown_leads_when_nothing_speaks() -> None:
    silent = Features(
        kinds=frozenset({"shift"}), severity="warning", axis="step", onset=10, resume_rows=20
    )
    diagnosis = rank_causes(silent, before=10)
    assert diagnosis.top.cause == UNKNOWN
    assert diagnosis.top.confidence < 0.5
    check_sum(diagnosis)


def test_outlying_batches_mean_data_whatever_the_curve_says() -> None:
    record, found = too_high(0)
    assert diagnose(record, found).top.cause == "learning-rate-too-high"
    assert diagnose(record, found, probe=BAD).top.cause == "bad-data-window"


def test_trials_decide_between_data_and_rate() -> None:
    record, found = data_window(0)
    held = diagnose(record, found, probe=BAD, trials=[trial("skip", held=True, skipped=True)])
    assert held.top.cause == "bad-data-window"
    assert held.top.confidence > 0.95
    assert held.next_test == ""

    failed = [trial("skip", held=False, skipped=True), trial("half", held=True, lr_factor=0.5)]
    rate = diagnose(record, found, probe=CLEAN, trials=failed)
    assert rate.top.cause == "learning-rate-too-high"
    assert rate.top.confidence > 0.8

    record, found = lr_jump(0)
    jump = diagnose(record, found, probe=CLEAN, trials=failed)
    assert jump.top.cause == "learning-rate-jump"
    assert jump.top.confidence > 0.8


def test_a_fault_that_does_not_reproduce_is_hardware() -> None:
    record, found = hardware(0)
    clean = dataclasses.replace(trial("as it was", held=True), bitwise=True)
    diagnosis = diagnose(record, found, probe=CLEAN, trials=[clean])
    assert diagnosis.top.cause == "hardware-fault"
    assert diagnosis.top.confidence > 0.9


def test_the_loss_scale_is_cause_or_consequence() -> None:
    record, found = fp16(0)
    alone = diagnose(record, found).share("fp16-range")
    sim = Sim.healthy(0)
    sim.scale = np.where(np.arange(N) < AT - 40, 65536.0, 4096.0)
    sim.norm[AT - 60 :] *= 5
    after = diagnose(sim.record(), found).share("fp16-range")
    assert after < alone


def test_bf16_logs_of_megatron_print_a_scale_of_one() -> None:
    sim = Sim.healthy(0)
    sim.scale = np.ones(N)
    assert not incident_features(sim.record(), incident(AT)).has_loss_scale


def test_the_warm_up_end_counts_only_near_it() -> None:
    sim = Sim.healthy(0)
    record = sim.record()
    near = incident_features(record, incident(118))
    far = incident_features(record, incident(400))
    assert near.warm_up_ratio == pytest.approx(1.19)
    assert far.warm_up_ratio == pytest.approx(4.01)
    assert diagnose(record, incident(118)).share("warm-up-end") > 0.1
    assert diagnose(record, incident(400)).share("warm-up-end") == 0


def tr8() -> tuple[RunRecord, Incident, Incident]:
    return as_record(), incident(1, step=7010), incident(5, attempt="2.0", step=6920)


def test_tr8_second_try() -> None:
    record, first, second = tr8()
    features = incident_features(record, second, earlier=[first])
    assert features.clip_assumed
    assert features.clip_share == 1.0
    assert features.clip_ratio == pytest.approx(22, abs=0.1)
    diagnosis = diagnose(record, second, earlier=[first])
    top = diagnosis.top
    assert top.cause == "learning-rate-too-high"
    assert 0.5 < top.confidence <= 0.75
    assert diagnosis.share("bad-data-window") < diagnosis.share("fp16-range")
    told = " / ".join(top.evidence)
    assert "clip 1 assumed" in told
    assert "seed 42 -> 43" in told


def test_a_clip_that_the_log_states_is_not_assumed() -> None:
    record, found = too_high(0)
    assert not incident_features(record, found).clip_assumed
    assert "assumed" not in " ".join(diagnose(record, found).top.evidence)


@given(
    clip_ratio=st.none() | st.floats(min_value=0, max_value=1e4),
    lr_jump=st.none() | st.floats(min_value=1, max_value=100),
    abrupt=st.none() | st.booleans(),
    halvings=st.none() | st.floats(min_value=0, max_value=30),
    kind=st.sampled_from(
        ["spike", "divergence", "non-finite", "slowdown", "scale-collapse", "plateau"]
    ),
)
def test_any_features_make_a_diagnosis(
    clip_ratio: float | None,
    lr_jump: float | None,
    abrupt: bool | None,
    halvings: float | None,
    kind: str,
) -> None:
    features = Features(
        kinds=frozenset({kind}),
        severity="warning",
        axis="step",
        onset=500,
        clip_share=1.0,
        clip_ratio=clip_ratio,
        clip_rows=10,
        lr_jump=lr_jump,
        lr_before_jump=1e-4,
        lr_jump_step=490,
        lr_jump_rows=10,
        abrupt=abrupt,
        height=1.0,
        scale_halvings=halvings,
    )
    diagnosis = rank_causes(features, before=490)
    check_sum(diagnosis)
    assert all(c.confidence <= 0.75 for c in diagnosis.causes if c.cause != UNKNOWN)


def test_the_table_of_causes_is_whole() -> None:
    assert sum(c.prior for c in CAUSES) == pytest.approx(1.0)
    for cause in CAUSES:
        assert cause.remedies
        assert all(r in REMEDY_BY_ID for r in cause.remedies)
        assert all(other in CAUSE_BY_ID for other in cause.look_alikes)
        assert cause.test
        names = [r.name for r in cause.rules]
        assert len(set(names)) == len(names)


def test_every_pair_of_causes_has_a_test_between_them() -> None:
    ids = [c.id for c in CAUSES if c.id != UNKNOWN]
    for i, one in enumerate(ids):
        for other in ids[i + 1 :]:
            test = cheapest_between(one, other)
            assert test is not None
            assert test.separates(one, other)
    assert all(set(x.predicts) <= set(CAUSE_BY_ID) for x in EXPERIMENTS)


@pytest.mark.parametrize("height", [1.0, 0.7, 12.0])
def test_rate_of_a_schedule_with_restarts_is_no_jump_unless_it_was_never_so_high(
    height: float,
) -> None:
    sim = Sim.healthy(0)
    t = np.arange(N)
    sim.lr = 1e-3 * (0.501 + 0.5 * np.cos(np.pi * (t % 200) / 200))
    sim.lr[AT:] = height * 1e-3
    features = incident_features(sim.record(), incident(AT + 50))
    assert (features.lr_jump == 1.0) is (height <= 1)
