"""A run that starts again and again from one checkpoint."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab import analyze
from trimtab.detectors.restart_loop import restart_loop_findings
from trimtab.readers import read_run
from trimtab.record import RunRecord


def _text(epochs: list[int]) -> str:
    """What a script appends to one file, however often it is started."""
    lines = (
        f"Epoch {e}/50, Train Loss: {0.01 / e:.6f}, Val Loss: {0.012 / e:.6f}\n" for e in epochs
    )
    return "".join(lines)


LOOP = [*range(6, 16), 13, 14, 13, 13, 14, 13, 14, 13, 13, 14, 15, 13, 14, 13, 14, 15, 16]


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], RunRecord]:
    def reads(text: str) -> RunRecord:
        path = tmp_path / "train.log"
        path.write_text(text)
        return read_run(path)

    return reads


def test_epochs_that_begin_again_at_a_checkpoint_are_attempts_and_a_loop(
    read: Callable[[str], RunRecord],
) -> None:
    record = read(_text(LOOP))
    assert record.axis == "epoch"
    assert len(record.attempts) >= 5
    (found,) = restart_loop_findings(record)
    assert found.severity == "warning"
    assert "it starts again from epoch 13" in found.text


def test_starts_from_the_beginning_and_resumes_that_get_farther_are_no_loop(
    read: Callable[[str], RunRecord],
) -> None:
    folds = [e for n in (9, 12, 8, 11, 10, 12) for e in range(1, n)]
    assert not restart_loop_findings(read(_text(folds)))
    farther = [*range(1, 9), *range(7, 15), *range(13, 22), *range(20, 30), *range(28, 40)]
    assert not restart_loop_findings(read(_text(farther)))


def test_a_loop_is_told_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(_text(LOOP))
    found = analyze(path)
    assert found.verdict == "incident"
    (incident,) = [i for i in found.incidents if i.severity != "info"]
    assert incident.causes[0].cause == "ends-again"
    assert [r.remedy for r in incident.plan.remedies] == ["read-its-end"]


def test_starts_that_all_end_where_the_first_ended_are_a_note(
    read: Callable[[str], RunRecord],
) -> None:
    """One bad batch ends each of them; branches may go as far as their trunk, too."""
    (found,) = restart_loop_findings(read(_text([*range(1, 16), *[*range(13, 16)] * 5])))
    assert found.severity == "info"
    beyond = [*range(1, 16), *[*range(13, 20)] * 5]
    assert not restart_loop_findings(read(_text(beyond)))
