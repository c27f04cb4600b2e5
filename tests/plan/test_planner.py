"""Plans for the tr8-104B incident and for synthetic ones."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from trimtab import analyze
from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.diagnosis.diagnose import Cause, Diagnosis, diagnose
from trimtab.incidents import Incident
from trimtab.plan.plan import Plan, PlannedRemedy
from trimtab.plan.planner import make_plan, small_init_std, suggest_clip
from trimtab.plan.remedy_table import REMEDY_BY_ID
from trimtab.plan.rollback import CheckpointInfo
from trimtab.record import RecordBuilder, RunRecord
from trimtab.testing.tr8_104b import as_record
from trimtab.vocabulary import Severity

CHRONICLE = [CheckpointInfo(step=s) for s in (6000, 4000, 3000)]


def tr8(**facts: float) -> RunRecord:
    """The tr8-104B lines, as a Megatron log that also states `facts`."""
    return dataclasses.replace(as_record(), format="megatron", facts=facts)


FIRST = Incident(
    kind="unrecovered-spike",
    attempt="1.0",
    severity="critical",
    onset_row=1,
    onset=7010,
    peak_row=1,
    peak=7010,
    signals=("loss",),
    headline="",
)
SECOND = Incident(
    kind="unrecovered-spike",
    attempt="2.0",
    severity="critical",
    precursor_row=3,
    precursor=6900,
    onset_row=5,
    onset=6920,
    peak_row=7,
    peak=6940,
    signals=("loss", "grad_norm"),
    headline="",
)


def plan_tr8(checkpoints: list[CheckpointInfo] | None = None, **facts: float) -> Plan:
    record = tr8(**facts)
    diagnosis = diagnose(record, SECOND, earlier=[FIRST])
    return make_plan(record, SECOND, diagnosis, earlier=[FIRST], checkpoints=checkpoints or [])


def step_of(plan: Plan, remedy: str) -> PlannedRemedy:
    return next(r for r in plan.remedies if r.remedy == remedy)


def led_by(cause: str, share: float = 0.6, *others: tuple[str, float]) -> Diagnosis:
    pairs = [(cause, share), *others]
    pairs.append(("unknown", 1 - sum(c for _, c in pairs)))
    causes = [Cause(cause=c, title=c, confidence=p, evidence=()) for c, p in pairs]
    return Diagnosis(causes=tuple(causes), next_test="ask")


def test_tr8_goes_further_back_than_what_failed_and_halves_the_rate() -> None:
    plan = plan_tr8()
    assert [r.remedy for r in plan.remedies[:2]] == ["roll-back-further", "lower-lr"]
    back = plan.remedies[0]
    assert back.values == {"before_step": 3700}  # 4 x the 800 steps that failed, before 6900
    assert "resumed at 6210 and failed sooner" in back.why
    lower = plan.remedies[1]
    assert lower.values == {"lr": 3e-5, "factor": 0.5}
    assert lower.flags == "--override-opt_param-scheduler --lr 3e-05"
    assert any("OPT-175B" in text for text in lower.worked)


def test_tr8_prefers_the_candidates_of_the_chronicle_in_its_order() -> None:
    back = step_of(plan_tr8(CHRONICLE), "roll-back-further")
    assert back.values["to_step"] == 3000
    listed = back.why.split("candidates: ")[1]
    assert listed.index("3000") < listed.index("4000") < listed.index("6000")
    assert back.flags == "--load CHECKPOINTS --ckpt-step 3000"


def test_advice_for_next_time_says_what_it_needs() -> None:
    init = step_of(plan_tr8(), "init-std")
    assert init.when == "from scratch"
    assert init.values["std"] == "sqrt(2 / (5 x hidden size))"
    assert "hidden size" in init.why
    known = step_of(plan_tr8(hidden_size=11600, init_method_std=0.02), "init-std")
    assert known.values["std"] == pytest.approx(0.00587)
    assert "0.02 is 3.41 x that" in known.why
    assert known.flags == "--init-method-std 0.00587"
    fine = plan_tr8(hidden_size=11600, init_method_std=0.006)
    assert "init-std" not in {r.remedy for r in fine.remedies}


def test_what_can_be_done_now_comes_before_what_needs_a_new_start() -> None:
    when = [r.when for r in plan_tr8().remedies]
    assert when == sorted(when, key=["mid-run", "unsure", "from scratch"].index)


@pytest.mark.covers("S121")
def test_clip_from_the_runs_own_stable_norm() -> None:
    assert suggest_clip(np.full(50, 0.2)) == 0.3
    assert suggest_clip(np.array([np.nan, np.inf])) is None


def test_small_init() -> None:
    assert small_init_std(11600) == pytest.approx(0.0058722, rel=1e-5)


def run_with_jump(norm: float = 0.2) -> tuple[RunRecord, Incident]:
    builder = RecordBuilder("x", "jsonl")
    for i in range(1, 301):
        builder.add(
            i,
            {
                "loss": 3.0,
                "lr": 1e-4 if i < 290 else 1e-3,
                "grad_norm": norm,
                "samples_seen": 8.0 * i,
            },
        )
    found = Incident(
        kind="divergence",
        attempt="1.0",
        severity="critical",
        onset_row=294,
        onset=295,
        peak_row=298,
        peak=299,
        signals=("loss",),
        headline="",
    )
    return builder.build(), found


def test_a_jump_is_taken_back_to_the_rate_before_it() -> None:
    record, found = run_with_jump()
    plan = make_plan(record, found, led_by("learning-rate-jump"))
    assert step_of(plan, "restore-lr").values == {"lr": 1e-4, "factor": 0.1}
    assert step_of(plan, "roll-back").values == {"before_step": 295.0}
    assert "lower-clip" not in {r.remedy for r in plan.remedies}  # no clip is known of
    plan = make_plan(
        dataclasses.replace(record, facts={"clip": 1.0}), found, led_by("learning-rate-jump")
    )
    assert step_of(plan, "lower-clip").values == {"clip": 0.3}
    assert plan.next_test == "ask"


def test_a_tighter_clip_is_not_advised_where_it_would_be_a_looser_one() -> None:
    record, found = run_with_jump(norm=20.0)
    plan = make_plan(record, found, led_by("learning-rate-jump"))
    assert "lower-clip" not in {r.remedy for r in plan.remedies}


def test_data_is_left_out_where_it_is_suspected() -> None:
    record, found = run_with_jump()
    plan = make_plan(record, found, led_by("bad-data-window", 0.5, ("learning-rate-too-high", 0.2)))
    skip = step_of(plan, "skip-data")
    assert skip.values == {
        "first_step": 295,
        "last_step": 299,
        "first_sample": 8 * 294,
        "last_sample": 8 * 299 - 1,
    }
    assert "lower-lr" in {r.remedy for r in plan.remedies}  # the second suspect's first remedy
    clear = make_plan(
        record, found, led_by("learning-rate-too-high", 0.7, ("bad-data-window", 0.05))
    )
    assert "skip-data" not in {r.remedy for r in clear.remedies}


def test_samples_are_named_by_their_ids_behind_those_that_were_left_out() -> None:
    record, found = run_with_jump()
    (only,) = record.attempts
    settings = {"skip_samples": f"80-{80 + 1215}"}
    record = dataclasses.replace(record, attempts=(dataclasses.replace(only, settings=settings),))
    plan = make_plan(record, found, led_by("bad-data-window", 0.5))
    skip = step_of(plan, "skip-data")
    assert skip.values["first_sample"] == 8 * 294 + 1216
    assert skip.values["last_sample"] == 8 * 299 - 1 + 1216


def test_a_benign_spike_is_left_alone() -> None:
    record, found = run_with_jump()
    plan = make_plan(record, found, led_by("benign-noise"))
    assert [r.remedy for r in plan.remedies] == ["patience"]


def test_a_slowdown_does_not_cost_any_training() -> None:
    record, _ = run_with_jump()
    slow = Incident(
        kind="slowdown",
        attempt="1.0",
        severity="warning",
        onset_row=200,
        onset=201,
        peak_row=220,
        peak=221,
        signals=("step_time_s",),
        headline="",
    )
    plan = make_plan(record, slow, diagnose(record, slow))
    proposed = {r.remedy for r in plan.remedies}
    assert proposed == {
        "widen-input",
        "exclude-node",
        "watch-pace",
    }  # nothing goes back or slows down
    assert "on every rank" in plan.next_test
    alone = tuple(dataclasses.replace(a, settings={"world_size": "1"}) for a in record.attempts)
    record = dataclasses.replace(record, attempts=alone)
    plan = make_plan(record, slow, diagnose(record, slow))
    assert {r.remedy for r in plan.remedies} == {"widen-input", "watch-pace"}


def test_a_second_cut_is_deeper() -> None:
    builder = RecordBuilder("x", "jsonl")
    for i in range(1, 101):
        builder.add(i, {"loss": 3.0, "lr": 1e-3})
    builder.start_attempt(number="1.1", parent_step=50)
    for i in range(51, 101):
        builder.add(i, {"loss": 3.0, "lr": 5e-4})
    first = dataclasses.replace(FIRST, attempt="1.0", onset_row=89, onset=90)
    again = dataclasses.replace(FIRST, attempt="1.1", onset_row=139, onset=90)
    plan = make_plan(builder.build(), again, led_by("learning-rate-too-high"), earlier=[first])
    assert step_of(plan, "lower-lr").values["factor"] == 0.25


def test_every_step_of_a_plan_has_cost_and_undo() -> None:
    record, found = run_with_jump()
    for cause in (
        "learning-rate-too-high",
        "fp16-range",
        "poisoned-optimizer-state",
        "hardware-fault",
        "unknown",
    ):
        plan = make_plan(record, found, led_by(cause))
        assert plan.remedies
        assert all(r.cost and r.undo and r.why for r in plan.remedies)


@pytest.mark.parametrize(("rows_after", "first"), [(400, "patience"), (10, "roll-back")])
def test_what_healed_long_ago_is_gone_back_for_last(rows_after: int, first: str) -> None:
    builder = RecordBuilder("x", "jsonl")
    for step in range(1, 205 + rows_after):
        builder.add(step, {"loss": 5.0 if 200 <= step <= 203 else 2.0, "grad_norm": 0.4})
    spike = Incident(
        kind="spike",
        attempt="1.0",
        severity="warning",
        onset_row=199,
        onset=200,
        peak_row=200,
        peak=201,
        end_row=203,
        end=204,
        signals=("loss",),
        headline="",
    )
    plan = make_plan(builder.build(), spike, led_by("bad-data-window"))
    named = [r.remedy for r in plan.remedies]
    assert named[0] == first
    assert named[-1 if first == "patience" else 0] == "roll-back"


def _sign(record: RunRecord, row: int, signal: str, severity: Severity) -> Finding:
    return finding_at(
        record,
        detector="test",
        kind="grad-spike" if signal == "grad_norm" else "scale-collapse",
        signal=signal,
        severity=severity,
        row=row,
        onset_row=row,
        value=2.0,
        expected=1.0,
        score=10.0,
        closed=False,
        text=f"{signal} moved",
    )


def test_a_note_of_long_before_is_no_place_to_go_back_to() -> None:
    builder = RecordBuilder("x", "jsonl")
    for step in range(1, 3001):
        builder.add(step, {"loss": 3.0 if step > 2900 else 2.0, "grad_norm": 0.4})
    record = builder.build()
    far = _sign(record, 400, "loss_scale", "info")
    near = _sign(record, 2880, "grad_norm", "warning")
    spike = dataclasses.replace(
        FIRST,
        attempt="1.0",
        onset_row=2900,
        onset=2901,
        peak_row=2900,
        peak=2901,
        end_row=None,
        end=None,
        precursor_row=400,
        precursor=401,
        precursor_signal="loss_scale",
        findings=(far, near),
    )
    plan = make_plan(record, spike, led_by("learning-rate-too-high"))
    assert step_of(plan, "roll-back").values["before_step"] == 2881
    assert "401" in step_of(plan, "roll-back").why  # it is said, and not followed
    alone = dataclasses.replace(spike, findings=(far,))
    plan = make_plan(record, alone, led_by("learning-rate-too-high"))
    assert step_of(plan, "roll-back").values["before_step"] == 2901
    told = dataclasses.replace(spike, findings=(_sign(record, 400, "loss_scale", "warning"), near))
    plan = make_plan(record, told, led_by("learning-rate-too-high"))
    assert step_of(plan, "roll-back").values["before_step"] == 401


def test_a_named_setting_is_put_back_first_and_no_restart_is_spoken_of(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "step": step,
            "loss": float(1.5 + rng.normal(0, 0.03) + (0.9 if step >= 200 else 0.0)),
            "weight_decay": 10.0 if step >= 200 else 0.01,
        }
        for step in range(1, 401)
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    plan = analyze(log).incidents[0].plan
    first = plan.remedies[0]
    assert (first.remedy, dict(first.values)) == ("put-back", {"weight decay": 0.01})
    assert first.why.startswith("weight decay back to 0.01 (it is 10 since 20")
    assert "roll-back" in [r.remedy for r in plan.remedies[1:]]
    assert not any("restart" in REMEDY_BY_ID[r.remedy].title for r in plan.remedies)


def failed_again(*, resumed_at: int, first: int = 1) -> Plan:
    """Plan for a run that fell over at step 240, went back, and fell over again."""
    builder = RecordBuilder("x", "megatron")
    for i in range(first, 261):
        builder.add(i, {"loss": 3.0 if i < 240 else 9.0})
    builder.start_attempt(number="2.0", parent="1.0", parent_step=resumed_at)
    for i in range(resumed_at + 1, 261):
        builder.add(i, {"loss": 3.0 if i < 239 else 9.0})
    record = builder.build()

    def fell(attempt: str, onset: int) -> Incident:
        row = int(np.flatnonzero(record.step == onset)[0 if attempt == "1.0" else 1])
        return Incident(
            kind="divergence",
            attempt=attempt,
            severity="critical",
            onset_row=row,
            onset=onset,
            peak_row=row + 4,
            peak=onset + 4,
            signals=("loss",),
            headline="",
        )

    return make_plan(
        record, fell("2.0", 239), led_by("poisoned-optimizer-state"), earlier=[fell("1.0", 240)]
    )


def test_going_further_back_names_one_step_and_starts_over_where_nothing_lies_so_far_back() -> None:
    back = step_of(failed_again(resumed_at=199), "roll-back-further")
    assert back.values == {"before_step": 75.0}  # 4 x the 41 steps that failed
    assert "resumed at 199 and failed sooner" in back.why
    over = step_of(failed_again(resumed_at=60), "roll-back-further")
    assert over.values == {"start_over": True}
    assert "nothing of this run lies that far back" in over.why
    assert over.flags == ""
    excerpt = step_of(failed_again(resumed_at=199, first=150), "roll-back-further")
    assert excerpt.values == {"before_step": 75.0}  # what lies before an excerpt is not known
