"""Excerpts whose first row stands behind a heading that was cut off."""

from pathlib import Path

import pytest

from trimtab.readers import read_run

FIRST, LAST = 21, 45


def epoch(e: int, loss: float) -> list[str]:
    return [
        f"Epoch {e}/100",
        f" - 12s - loss: {loss:.4f} - acc: 0.5 - val_loss: {loss + 0.3:.4f}",
    ]


def lines(first: int = FIRST, last: int = LAST) -> list[str]:
    return [line for e in range(first, last + 1) for line in epoch(e, 3 / (1 + 0.05 * e))]


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("last", [FIRST + 2, LAST])
def test_the_rows_belong_to_the_heading_above(tmp_path: Path, end: int, last: int) -> None:
    # With `end` the excerpt stops behind a heading, as where it is copied while it runs.
    text = lines(last=last)[1:] + [f"Epoch {last + 1}/100"] * end
    path = tmp_path / "keras.log"
    path.write_text("\n".join(text) + "\n")
    record = read_run(path)
    assert record.step.tolist() == list(range(FIRST, last + 1))


@pytest.mark.parametrize("first", [1, FIRST])
def test_a_line_that_tells_of_an_end_belongs_to_the_rows_above(tmp_path: Path, first: int) -> None:
    text = [
        line
        for e in range(first, first + 20)
        for line in (f"loss: {3 / (1 + 0.05 * e):.4f}", f"Epoch {e} finished")
    ]
    path = tmp_path / "run.log"
    path.write_text("\n".join(text) + "\n")
    assert read_run(path).step.tolist() == list(range(first, first + 20))


def test_a_whole_log_with_its_counts_behind_stays_as_it_is(tmp_path: Path) -> None:
    text = [line for e in range(1, 20) for line in (f"loss: {3 / e:.4f}", f"Epoch {e}/19")]
    path = tmp_path / "run.log"
    path.write_text("\n".join(text) + "\n")
    assert read_run(path).step.tolist() == list(range(1, 20))
