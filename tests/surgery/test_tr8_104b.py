"""The tr8-104B story on a fake cluster folder: four tries, rollbacks to 6210, 6210 and 3000."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.surgery.cluster import OURS, age, log_events, megatron_rows, save, steps_of, tree
from trimtab.chronicle.journal import read_journal
from trimtab.cli import main
from trimtab.surgery import find_layout

if TYPE_CHECKING:
    from pathlib import Path


def rollback(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    capsys.readouterr()
    code = main(["rollback", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def events(run: Path) -> list[Path]:
    return sorted((run / "tensorboard").glob("events*"))


@pytest.mark.slow
@pytest.mark.covers("S103", "S104", "S105", "S106", "S107", "S108")
def test_four_tries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "tr8-104B"
    board = run / "tensorboard"
    # Try 1: seed 42, from iteration 0; the loss jumps at 7010
    log_events(board, megatron_rows(10, 6210, blow_up=7010), suffix=".first")
    first = log_events(board, megatron_rows(6220, 7220, blow_up=7010), suffix=".second")
    for step in (3000, 4000, 6000, 6210, 7000, 7200):
        save(run, step, text="seed 42")
    age(run)
    os.utime(first, (1.71e9, 1.71e9))  # the one file that is newer than the checkpoint
    before = tree(run)
    seven = tree(run / "checkpoints" / "global_step7000")

    code, plan = rollback(capsys, run, "--to", 6210, "--archive", "tb-7k-glitch")
    assert code == 0
    assert tree(run) == before  # a dry run touches nothing
    assert plan["framework"] == "megatron-deepspeed"
    assert plan["from_step"] == 7200
    assert plan["moves"][:2] == [
        {"from": "tensorboard/" + first.name, "to": "aside/" + first.name, "what": "log"},
        {
            "from": "checkpoints/global_step7200",
            "to": "aside/global_step7200",
            "what": "checkpoint",
        },
    ]
    assert {p["path"] for p in plan["pointers"]} == {
        "checkpoints/latest",
        "checkpoints/latest_checkpointed_iteration.txt",
    }

    flags = ("--apply", "--archive", "tb-7k-glitch", "--why", "seed 42 to 43")
    code, done = rollback(capsys, run, "--to", 6210, *flags)
    assert code == 0
    assert done["applied"]
    assert (run / "checkpoints" / "latest").read_text() == "global_step6210"
    assert (run / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "6210"
    assert tree(run / "aside" / "global_step7000") == seven
    assert steps_of(board) == list(range(10, 6211, 10))
    assert not first.exists()
    assert len(list(board.glob("events*"))) == 1
    assert steps_of(board / "tb-7k-glitch")[-1] == 7220
    assert tree(board / "tb-7k-glitch") == {
        k.removeprefix("tensorboard/"): v for k, v in before.items() if "/events" in k
    }

    # Try 2: seed 43; the loss goes from 6.3 to 9 at 6930
    log_events(board, megatron_rows(6220, 7000, blow_up=6930, shift=0.03), suffix=".third")
    save(run, 6900, text="seed 43")
    age(run)
    code, done = rollback(capsys, run, "--to", 6210, "--apply")
    assert code == 0
    assert done["archive"].startswith("tensorboard/tb-6930-")  # named by the incident
    assert steps_of(board) == list(range(10, 6211, 10))
    assert steps_of(board / "tb-7k-glitch")[-1] == 7220  # an older archive is no log

    # Try 3: seed 43, another self-attention, SAVE_INTERVAL=300; fails in the same way
    log_events(board, megatron_rows(6220, 7000, blow_up=6930, shift=-0.03), suffix=".fourth")
    for step in (6510, 6810):
        save(run, step, text="baddbmm")
    age(run)
    assert main(["inspect", str(run), "--json"]) == 0  # the journal beside them is no log
    code, plan = rollback(capsys, run)  # which step is best?
    assert code == 0
    ranked = [c["step"] for c in plan["candidates"]]
    assert [s for s in ranked if s in (3000, 4000, 6000)] == [3000, 4000, 6000]
    assert plan["to_step"] == 3000
    assert plan["incident"]
    assert sum("did not hold" in note for note in plan["notes"]) == 2
    code, done = rollback(capsys, run, "--to", 3000, "--apply", "--why", "adam-beta2 0.95")
    assert code == 0

    # Try 4: beta2 0.95 from 3000
    log_events(board, megatron_rows(3010, 3500, blow_up=9000), suffix=".fifth")
    save(run, 3300, text="beta2 0.95")
    assert (run / "checkpoints" / "latest").read_text() == "global_step3300"
    layout = find_layout(run)
    assert layout is not None
    assert layout.steps == (3000, 3300)
    assert steps_of(board) == list(range(10, 3501, 10))
    samples = steps_of(board, "lm-loss-training/lm loss vs samples")
    assert samples == [30 * s for s in range(10, 3501, 10)]
    aside = sorted(p.name for p in (run / "aside").glob("global*"))
    steps = (4000, 6000, 6210, 6510, 6810, 6900, 7000, 7200)
    assert aside == [f"global_step{s}" for s in steps]
    told = [e for e in read_journal(run / "journal.jsonl")[0] if e.event == "rollback"]
    assert [(e.data["from_step"], e.step, e.data["why"]) for e in told] == [
        (7200, 6210, "seed 42 to 43"),
        (6900, 6210, "a test"),
        (6810, 3000, "adam-beta2 0.95"),
    ]


def test_undo_three_times_brings_back_every_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    log_events(run / "tensorboard", megatron_rows(10, 700, blow_up=9000), suffix=".a")
    for step in (100, 200, 300, 400, 500, 600, 700):
        save(run, step)
    age(run)
    before = tree(run)
    times = {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.is_file()}
    for step in (500, 300, 200):
        assert rollback(capsys, run, "--to", step, "--apply")[0] == 0
    assert len(steps_of(run / "tensorboard")) == 20
    for _ in range(3):
        code, done = rollback(capsys, run, "--undo")
        assert code == 0
        assert done["undone"]
    assert tree(run, without=OURS) == before
    assert {p: p.stat().st_mtime_ns for p in times} == times
    code, error = rollback(capsys, run, "--undo")
    assert code == 2
    assert "no rollback to undo" in error["errors"][0]["error"]
