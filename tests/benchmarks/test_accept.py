"""The acceptance table: what is judged, by which measure, and what is not run twice."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import accept as table
from benchmarks.accept import AcceptanceRow, accept, judge, summarise
from tests.guard.small_lab import SOUND, bad_data, bad_lr
from trimtab.errors import ConfigError
from trimtab.lab import run
from trimtab.lab.scenarios import get_scenario

pytestmark = pytest.mark.torch

WRONG_RATE = bad_lr(100, 10.0)
WRONG_DATA = bad_data(100, 10)


@pytest.mark.parametrize(
    ("scenario", "off", "act", "verdict"),
    [
        (WRONG_RATE, 3.0, 2.05, "ok"),  # .95 of the gap, 2.5 % above
        (WRONG_RATE, 3.0, 2.07, "falls short"),  # .93 of the gap, 3.5 % above
        (WRONG_RATE, 2.1, 2.02, "falls short"),  # 1 % above, .8 of the gap
        (WRONG_RATE, 3.0, 1.9, "ok"),  # better than the twin
        (WRONG_RATE, math.nan, 2.05, "ok"),
        (WRONG_RATE, math.nan, math.nan, "falls short"),
        (WRONG_DATA, 3.0, 2.019, "ok"),
        (WRONG_DATA, 3.0, 2.021, "falls short"),
        (WRONG_DATA, 3.0, 1.97, "falls short"),  # too good is not the twin either
        (WRONG_DATA, 3.0, math.nan, "falls short"),
    ],
)
def test_verdict_by_kind_of_fault(scenario: Any, off: float, act: float, verdict: str) -> None:
    assert judge(scenario, 2.0, off, act) == verdict


def _row(**changes: Any) -> AcceptanceRow:
    row = AcceptanceRow(
        scenario="a",
        expect="recovers",
        seed=0,
        reference_loss=2.0,
        off_loss=3.0,
        act_loss=2.0,
        wasted_steps=0.1,
        actions=(),
        verdict="ok",
    )
    return dataclasses.replace(row, **changes)


def test_summary_counts_what_was_to_be_saved_and_what_was_to_be_left_alone() -> None:
    rows = [
        _row(),
        _row(wasted_steps=0.4),
        _row(wasted_steps=0.0, verdict="sound without", act_loss=None),
        _row(expect="untouched", wasted_steps=0.0),
    ]
    summary = summarise(rows)
    assert summary["recovered"] == summary["judged"] == 2
    assert (summary["sound_without"], summary["left_alone"], summary["sound"]) == (1, 1, 1)
    assert summary["median_wasted_steps"] == pytest.approx(0.25)
    assert not summary["accepted"]  # for the steps that were wasted
    assert summarise([_row(), _row(verdict="falls short")])["accepted"] is False
    assert summarise([_row()])["accepted"] is True
    assert summarise([])["median_wasted_steps"] is None


def test_public_form_has_null_for_what_diverged() -> None:
    row = _row(off_loss=math.nan, act_loss=2.1).to_json()
    assert (row["ratio_off"], row["ratio_act"], row["gap_closed"]) == (None, 1.05, 1.0)
    assert _row(act_loss=2.25).to_json()["gap_closed"] == 0.75
    assert _row(off_loss=2.01, act_loss=None).to_json()["gap_closed"] is None


@pytest.mark.slow
def test_guarded_runs_are_judged_and_the_others_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tmp_path / "words.txt"
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(4, (60_000,), generator=generator).tolist()
    words.write_text("".join(("loss ", "spike ", "step ", "rate\n")[i] for i in drawn))
    short: dict[str, Any] = {"steps": 120, "warmup_steps": 20}
    scenarios = [
        dataclasses.replace(SOUND, **short),
        dataclasses.replace(bad_data(90, 12), name="data", **short),
        dataclasses.replace(
            bad_data(90, 12),
            name="mild",
            corruption=None,
            lr_fault=bad_lr(1, 1.01).lr_fault,
            **short,
        ),
    ]
    plain = run.run_unguarded
    seen: list[str] = []

    def run_unguarded(scenario: Any, *rest: Any, **named: Any) -> Any:
        seen.append(scenario.name)
        return plain(scenario, *rest, **named)

    monkeypatch.setattr(table, "run_unguarded", run_unguarded)
    out = tmp_path / "out"
    first = accept(scenarios, [0], out, text_path=words)
    assert [r.verdict for r in first][0::2] == ["ok", "sound without"]
    assert first[1].act_loss is not None
    assert seen == ["data", "data", "mild"]  # both have one twin
    again = accept(scenarios[1:2], [0], out, text_path=words)
    assert again == first[1:2]
    assert len(seen) == 3
    (out / "small-0" / "journal.jsonl").unlink()
    with pytest.raises(ConfigError, match="is no earlier run"):
        accept(scenarios[:1], [0], out, text_path=words)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bitflip-weight", "rate-no-clip"])
def test_a_flipped_bit_and_a_rate_that_saturates_attention_are_recovered(
    name: str, tmp_path: Path
) -> None:
    (row,) = accept([get_scenario(name)], [0], tmp_path)
    assert row.verdict == "ok"
    assert row.off_loss is not None
    assert row.reference_loss is not None
    assert row.off_loss > 1.05 * row.reference_loss
    assert len(row.actions) == 1
