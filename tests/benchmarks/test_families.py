"""The table of families: what counts as recovered or harmed, and runs that are alike."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.families.cases import CASES
from benchmarks.families.models import FAMILIES
from benchmarks.families.run import train_case
from benchmarks.families.table import all_work, summary, table_text

pytestmark = pytest.mark.torch


def row(name: str, verdict: str, *, wasted: float = 0.0, right: bool = False) -> dict[str, object]:
    case = CASES[name]
    return {
        "name": name,
        "fault": case.fault,
        "verdict": verdict,
        "wasted": wasted,
        "cause_right": right,
    }


def test_summary_counts_what_shows_and_bounds_what_is_harmed() -> None:
    rows = [
        row("data-noise", "recovered", wasted=0.1, right=True),
        row("rate-x10", "no alarm"),
        row("rate-x10", "does not show"),
        *[row("nothing", "left alone") for _ in range(299)],
        row("rate-drop", "cost steps", wasted=0.2),
    ]
    found = summary(rows)
    assert (found["faults"], found["recovered"], found["no alarm"]) == (2, 1, 1)
    assert (found["do not show"], found["first cause right"]) == (1, 1)
    assert (found["changes"], found["harmed"], found["cost steps"]) == (300, 0, 1)
    # 1 - 0.05^(1/300): none harmed of 300
    assert found["harmed, upper 95 % bound"] == pytest.approx(0.00994, abs=1e-4)
    text = table_text(rows)
    assert "data-noise" in text
    assert "does not show" not in text


def test_every_case_names_families_that_there_are() -> None:
    assert {f for c in CASES.values() for f in c.families} == set(FAMILIES)
    assert len(FAMILIES) >= 10
    faults = [w for w in all_work([0]) if CASES[w[1]].fault]
    assert len(faults) >= 60
    assert len(all_work([0])) - len(faults) >= 40


@pytest.mark.slow
def test_train_case_gives_the_same_model_with_a_guard_that_has_nothing_to_do(
    tmp_path: Path,
) -> None:
    family = replace(FAMILIES["dpo"], steps=12, warmup_steps=4)
    plain = train_case(family, None, 0, "off", tmp_path / "off")
    for mode in ("observe", "act"):
        guarded = train_case(family, CASES["nothing"], 0, mode, tmp_path / "run")
        assert (guarded.loss, guarded.start) == (plain.loss, plain.start)
        assert (guarded.wasted, guarded.actions, guarded.alarmed) == (0.0, (), False)
