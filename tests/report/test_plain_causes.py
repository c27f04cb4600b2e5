"""Logs whose cause one plain sign gives away: read, judged, explained and planned as a whole."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.source import read_account
from trimtab.plan.traits import traits_of
from trimtab.record import RecordBuilder

Rows = list[dict[str, float]]


def account(tmp_path: Path, rows: Rows) -> RunAccount:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_account(str(path))


def healthy(n: int, *, first: int = 1, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    return [
        {
            "step": first + i,
            "loss": float(2 + 2 * math.exp(-i / 300) + 0.02 * rng.standard_normal()),
            "grad_norm": float(0.4 * math.exp(0.1 * rng.standard_normal())),
        }
        for i in range(n)
    ]


def remedies(told: IncidentAccount) -> list[str]:
    return [r.remedy for r in told.plan.remedies]


def alarms(told: RunAccount) -> list[IncidentAccount]:
    return [ia for ia in told.incidents if ia.incident.severity != "info"]


def test_a_run_that_never_was_finite_is_started_again_with_checks(tmp_path: Path) -> None:
    nan = float("nan")
    rows: Rows = [
        {"step": i, "loss": nan, "grad_norm": nan, "lr": 1e-6 * min(i, 100)} for i in range(1, 400)
    ]
    (told,) = alarms(account(tmp_path, rows))
    assert told.diagnosis.top.cause == "never-finite"
    assert {c.cause for c in told.diagnosis.causes} == {"never-finite", "unknown"}
    assert remedies(told) == ["check-first-batch", "start-in-fp32"]
    assert "fp32" in told.plan.next_test


def test_a_run_that_was_finite_before_is_not_told_so(tmp_path: Path) -> None:
    rows = healthy(300) + [{"step": s, "loss": float("nan")} for s in range(301, 400)]
    told = alarms(account(tmp_path, rows))[0]
    assert told.diagnosis.share("never-finite") == 0
    assert remedies(told)[0] == "roll-back"


def test_data_fed_again_after_a_resume_is_its_own_cause(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    hard = 0.1 * rng.standard_normal(1200)  # how hard each batch is
    rows = [{"step": i + 1, "loss": float(2.0 + hard[i])} for i in range(600)]
    again = [
        {"step": 601 + i, "loss": float(1.2 + hard[i])} for i in range(300)
    ]  # the first batches again
    new = [{"step": 901 + i, "loss": float(2.0 + hard[900 + i])} for i in range(300)]
    back = rows[:500] + [{**r, "step": int(r["step"]) - 100} for r in again + new]
    told = [
        ia for ia in alarms(account(tmp_path, rows + back[500:])) if "resume" in ia.incident.kind
    ]
    assert told
    for ia in told:
        assert ia.diagnosis.top.cause == "data-order-not-restored"
        assert remedies(ia) == ["restore-data-order"]
        assert "bad-data-window" not in {c.cause for c in ia.diagnosis.causes}


def test_a_loss_that_stands_at_the_logarithm_of_the_classes_is_a_dead_model(tmp_path: Path) -> None:
    rows = healthy(500)
    rows += [{"step": 501 + i, "loss": 90.0 - i, "grad_norm": 40.0} for i in range(10)]
    rows += [{"step": 511 + i, "loss": math.log(113), "grad_norm": 0.4} for i in range(400)]
    told = [ia for ia in account(tmp_path, rows).incidents if ia.incident.kind == "frozen-signal"]
    assert told
    top = told[0].diagnosis.top
    assert top.cause == "uniform-output"
    assert "4.727 = ln 113" in top.evidence[0]
    first = told[0].plan.remedies[0]
    assert first.remedy == "roll-back"
    assert (
        float(str(first.values["before_step"])) <= 501
    )  # not where it stands still: where it blew up


def test_a_loss_frozen_elsewhere_is_not_a_dead_model(tmp_path: Path) -> None:
    rows = healthy(500) + [{"step": 501 + i, "loss": 4.6, "grad_norm": 0.4} for i in range(400)]
    told = [ia for ia in account(tmp_path, rows).incidents if ia.incident.kind == "frozen-signal"]
    assert told[0].diagnosis.top.cause != "uniform-output"


def test_a_spike_that_healed_long_ago_is_watched_first_and_gone_back_for_last(
    tmp_path: Path,
) -> None:
    rows = healthy(1500)
    for i, up in ((700, 2.0), (701, 3.0), (702, 1.5)):
        rows[i]["loss"] += up
        rows[i]["grad_norm"] *= 20
    told = [ia for ia in alarms(account(tmp_path, rows)) if "loss" in ia.incident.signals]
    assert told
    for ia in told:
        assert remedies(ia)[0] == "patience"
        assert "roll-back" not in remedies(ia)[:-1]
        assert "since then without trouble" in ia.plan.remedies[0].why


def test_advice_for_language_models_needs_one(tmp_path: Path) -> None:
    rows = healthy(600)
    for i in range(400, 600):
        rows[i]["loss"] += 0.02 * (i - 399)
        rows[i]["grad_norm"] *= 1 + 0.1 * (i - 399)
    for row in rows:
        row["grad_norm"] *= 30
    plain = {r for ia in alarms(account(tmp_path, rows)) for r in remedies(ia)}
    spoken = {
        r
        for ia in alarms(
            account(tmp_path, [{**row, "tokens_seen": row["step"] * 4096} for row in rows])
        )
        for r in remedies(ia)
    }
    language = {"qk-norm", "embedding-layernorm", "init-std", "loss-scaler-reset", "bf16"}
    assert plain
    assert not plain & language
    assert spoken & language


@pytest.mark.parametrize(
    ("keys", "settings", "wanted"),
    [
        ({"loss": "critic/loss"}, {}, set()),
        ({"loss": "lm loss"}, {}, {"language-model"}),
        ({"loss": "loss"}, {"fp16": "True"}, {"loss-scale"}),
        ({"loss": "loss"}, {"fp16": "False", "bf16": "True"}, set()),
        ({"loss": "loss"}, {"seq_length": "2048"}, {"language-model"}),
    ],
)
def test_traits_are_read_off_keys_and_settings(
    keys: dict[str, str], settings: dict[str, str], wanted: set[str]
) -> None:
    builder = RecordBuilder("x", "csv")
    builder.start_attempt(number="1.0", settings=settings)
    builder.add(1, {"loss": 1.0})
    builder.keys.update(keys)
    assert traits_of(builder.build()) == wanted


def test_a_slow_step_has_no_cause_in_the_loss(tmp_path: Path) -> None:
    rows = [{**row, "step_time_s": 1.0 + 0.01 * (i % 3)} for i, row in enumerate(healthy(800))]
    for row in rows[500:]:
        row["step_time_s"] *= 2
    told = [ia for ia in account(tmp_path, rows).incidents if ia.incident.kind == "slowdown"]
    assert told
    for ia in told:
        assert "benign-noise" not in {c.cause for c in ia.diagnosis.causes}
        assert "patience" not in remedies(ia)
        assert not any(
            "BLOOM" in text and "back within" in text for r in ia.plan.remedies for text in r.worked
        )
