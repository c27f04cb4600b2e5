"""The log of a supervised command takes the attempts of its supervisor's journal."""

import json
from pathlib import Path

import pytest

from trimtab.readers import read_run


def supervised(folder: Path, steps: list[int], *events: dict[str, object]) -> Path:
    """Return a supervisor's folder with a log of these steps."""
    lines = [{"event": "start", "attempt": "0.0", "launch": "supervise-1", "logs": []}, *events]
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "output.log").write_text("".join(f"step {s} loss {2 + 1 / s:.4f}\n" for s in steps))
    return folder


def attempt(number: int, **more: object) -> dict[str, object]:
    """Return the event of an attempt."""
    name = {"attempt": f"{number}.0", "number": f"{number}.0", "supervised": True}
    return {"event": "attempt", **name, **more}


def test_by_launches_gives_rows_to_the_start_that_printed_them(tmp_path: Path) -> None:
    folder = supervised(
        tmp_path,
        [*range(1, 51), *range(41, 61), *range(61, 81)],
        attempt(1),
        {"event": "restart", "attempt": "1.0", "last_step": 50.0},
        attempt(2, parent="1.0", parent_step=40),
        {"event": "restart", "attempt": "2.0", "last_step": None},  # it came to no step
        attempt(3, parent="2.0", parent_step=40),
        {"event": "restart", "attempt": "3.0", "last_step": 60.0},
        attempt(4, parent="3.0", parent_step=60, why="killed", settings={"lr": "0.1"}),
    )
    record = read_run(folder)
    told = [(a.number, a.parent, a.parent_step, a.end_row) for a in record.attempts]
    assert told == [("1.0", None, None, 50), ("3.0", "1.0", 40.0, 70), ("4.0", "3.0", 60.0, 90)]
    assert (record.attempts[2].why, record.attempts[2].settings) == ("killed", {"lr": "0.1"})


@pytest.mark.parametrize("steps", [[*range(1, 31), *range(1, 31)], [*range(60, 99)]])
def test_by_launches_leaves_a_log_that_does_not_fit_as_it_is(
    tmp_path: Path, steps: list[int]
) -> None:
    folder = supervised(
        tmp_path,
        steps,
        attempt(1),
        {"event": "restart", "attempt": "1.0", "last_step": 45.0},
        attempt(2, parent="1.0", parent_step=40),
    )
    assert read_run(folder).num_rows == len(steps)
