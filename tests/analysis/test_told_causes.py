"""What a run is told of at its end: the sign, since when, and causes that fit its own history."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab
from trimtab.analysis.account import IncidentAccount

RATE_CAUSES = {"no-warm-up", "learning-rate-too-high", "warm-up-end", "learning-rate-jump"}


def written(path: Path, loss: NDArray[np.float64], **more: NDArray[np.float64]) -> Path:
    columns = {"step": np.arange(1.0, len(loss) + 1), "loss": loss, **more}
    rows = zip(*(c.tolist() for c in columns.values()), strict=True)
    lines = [",".join(columns), *(",".join(f"{x:.8g}" for x in row) for row in rows)]
    path.write_text("\n".join(lines))
    return path


def alarms(path: Path) -> list[IncidentAccount]:
    return [i for i in trimtab.analyze(path).incidents if i.incident.severity != "info"]


def causes(account: IncidentAccount) -> list[str]:
    return [c.cause for c in account.diagnosis.causes]


@pytest.fixture(scope="module")
def garbage() -> NDArray[np.float64]:
    """A run that learns for 200 rows, is fed wrong targets for 30, and comes back."""
    t = np.arange(400.0)
    loss = 1.45 + 1.75 * np.exp(-t / 40) + 0.02 * np.random.default_rng(5).standard_normal(400)
    loss[200:230] = 3.3 + 1.6 * np.exp(-np.arange(30.0) / 6)
    loss[230:260] += 1.4 * np.exp(-np.arange(30.0) / 8)
    return loss


def test_a_rise_after_a_long_descent_is_a_spike_with_bad_data_among_its_causes(
    tmp_path: Path, garbage: NDArray[np.float64]
) -> None:
    log = written(tmp_path / "log.csv", garbage, lr=np.full(400, 3e-3))
    (one,) = alarms(log)
    assert one.incident.kind == "spike"
    assert abs(one.incident.onset - 201) <= 1
    assert "no-warm-up" not in causes(one)
    assert "bad-data-window" in causes(one)[:3]
    # The way back to the level before is the end of the spike, and nothing too good.
    assert "too-good" not in one.incident.also
    assert "leaked-targets" not in causes(one)
    assert "restore-settings" not in {r.remedy for r in one.plan.remedies}


def test_a_climb_in_the_first_rows_is_still_told_of_the_missing_warm_up(tmp_path: Path) -> None:
    noise = 0.02 * np.random.default_rng(6).standard_normal(400)
    loss = 3.2 + 1.9 * np.exp(-(((np.arange(400.0) - 20) / 15) ** 2)) + noise
    (one, *_) = alarms(written(tmp_path / "log.csv", loss, lr=np.full(400, 3e-3)))
    assert causes(one)[0] == "no-warm-up"


def test_trials_that_failed_at_lower_rates_speak_against_every_rate_cause(tmp_path: Path) -> None:
    t = np.arange(400.0)
    loss = 1.5 + 1.7 * np.exp(-t / 40) + 0.02 * np.random.default_rng(7).standard_normal(400)
    loss[200:] = 3.5 + 0.02 * loss[200:]

    def shares(name: str, *journal: dict[str, object]) -> dict[str, float]:
        (tmp_path / name / "signals").mkdir(parents=True)
        rows = [
            {"step": i + 1, "loss": x, "lr": 3e-3, "grad_norm": 0.3 + 0.9 * (i >= 200)}
            for i, x in enumerate(loss.tolist())
        ]
        (tmp_path / name / "signals" / "1.0.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
        start = {"event": "attempt", "attempt": "1.0", "step": 0, "number": "1.0", "why": "start"}
        lines = ({"t": "2026-01-01T00:00:00+00:00", **e} for e in (start, *journal))
        (tmp_path / name / "journal.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        )
        (one, *_) = alarms(tmp_path / name)
        assert one.incident.onset == 201
        return {c.cause: c.confidence for c in one.diagnosis.causes if c.cause in RATE_CAUSES}

    trial: dict[str, object] = {
        "event": "attempt",
        "attempt": "1.1",
        "step": 180,
        "number": "1.1",
        "parent": "1.0",
        "parent_step": 180,
        "trial": True,
        "why": "trial: LR x 0.1",
        "tag": "lower-lr",
        "settings": {"lr_factor": "0.1"},
        "skip": None,
    }
    outcome: dict[str, object] = {
        "event": "outcome",
        "attempt": "1.1",
        "step": 220,
        "trial": True,
        "verdict": "did not",
        "figures": {"loss": 3.6, "expected": 1.5, "steps": 40},
        "text": "trial failed",
    }
    before, after = shares("alone"), shares("tried", trial, outcome)
    assert before["learning-rate-too-high"] > 0.05
    assert sum(after.values()) < 0.5 * sum(before.values())


def test_a_loss_of_exactly_zero_is_told_as_that_since_its_first_row(tmp_path: Path) -> None:
    t = np.arange(200.0)
    loss = 2.6 + 1.4 * np.exp(-t / 40) + 0.02 * np.random.default_rng(8).standard_normal(200)
    loss[81:] = 0.0
    one, *others = alarms(written(tmp_path / "log.csv", loss, lr=np.full(200, 1e-4)))
    assert one.incident.onset == 82
    assert one.incident.headline.startswith("loss became exactly 0 · since step 82")
    assert {"all-masked", "hidden-overflow", "not-wired"} <= set(causes(one))
    assert "updates-too-small" not in causes(one)
    assert not {o.incident.kind for o in others} & {"plateau", "too-good", "memorised"}


def test_a_loss_that_rises_and_stays_up_is_borne_out_by_its_rows(tmp_path: Path) -> None:
    t = np.arange(800.0)
    rng = np.random.default_rng(9)
    loss = 3.0 + 3.0 * np.exp(-t / 180) + 0.04 * rng.standard_normal(800)
    loss += 3.0 * np.clip((t - 500) / 150, 0, 1)
    norm = 0.5 * np.exp(0.1 * rng.standard_normal(800)) * np.where(t > 495, 8, 1)
    log = tmp_path / "log.csv"
    written(log, loss, norm=norm, rate=np.full(800, 3e-4))
    text = log.read_text().replace("step,loss,norm,rate", "Iter,Tr. Loss,|grad|,LearnRate", 1)
    log.write_text(text)
    one, *_ = alarms(log)
    assert one.incident.kind == "divergence"
    assert not any("bear it out" in f.text for f in one.incident.findings)
    lower = [r for r in one.plan.remedies if r.remedy == "lower-lr"]
    assert lower[0].values["lr"] == pytest.approx(1.5e-4)


def test_stairs_of_every_pass_are_told_with_the_first_and_a_remedy_for_it(tmp_path: Path) -> None:
    t = np.arange(200)
    noise = 0.02 * np.random.default_rng(10).standard_normal(200)
    loss = 2.2 - 0.3 * (t // 40) - 0.05 * (t % 40) / 40 + noise
    one, *_ = alarms(written(tmp_path / "log.csv", loss, lr=np.full(200, 1e-4)))
    assert one.incident.kind == "memorised"
    assert "every 40 rows, 4 times" in one.incident.headline
    assert abs(one.incident.onset - 41) <= 2
    assert one.plan.remedies[0].remedy == "fewer-passes"
