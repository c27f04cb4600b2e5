"""What fails again and again is told in full once, and then counted."""

import errno
from pathlib import Path

import pytest

from tests.guard.tiny import guard_of, make, train_guarded
from trimtab.guard.recording.fault_barrier import Edge

pytestmark = pytest.mark.torch


class Journal:
    def fault(self, part: str, error: str, *, why: str) -> None: ...

    def rearmed(self, part: str, *, since_step: int, why: str) -> None: ...


def test_a_part_that_comes_and_goes_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    step = 0
    edge = Edge(Journal(), alone=True, step=lambda: step)
    failing = True

    def write() -> None:
        if failing:
            raise OSError(errno.ENOSPC, "No space left")

    for step in range(400):
        failing = step % 100 < 50
        faults = edge.begin_step()
        edge.run("rows", write, retried=True)
        edge.hear(faults)
        edge.end_step()
    lines = capsys.readouterr().err.splitlines()
    assert sum("a fault of its own (rows)" in line for line in lines) == 1
    assert sum("degraded since step 0 (disk full)" in line for line in lines) == 1
    assert [line for line in lines if "2 times by now (disk full)" in line]
    assert [line for line in lines if "4 times by now (disk full)" in line]
    assert not [line for line in lines if "3 times" in line]
    assert len(lines) == 6


def test_lines_name_what_is_degraded_in_full_once(tmp_path: Path) -> None:
    said: list[str] = []
    s = make()
    guard = guard_of(s, tmp_path / "run", mode="observe", steps=30, say=said.append)

    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left")

    guard._recorder.write_rows = write  # type: ignore[method-assign]
    notes = (5, 10, 15)

    def note(guard: object, _batch: object) -> None:
        if guard.step_number in notes:  # type: ignore[attr-defined]
            guard._loop._messages.note("something")  # type: ignore[attr-defined]

    train_guarded(s, guard, on_batch=note)
    clauses = [line.split(" · ")[1:] for line in said if "something" in line]
    assert len(clauses) == 3
    assert "rows since step" in clauses[0][-1]
    assert "disk full" in clauses[0][-1]
    assert all("degraded" in c[-1] and "disk full" not in c[-1] for c in clauses[1:])
    assert "disk full" in said[-1]  # the end is told in full
