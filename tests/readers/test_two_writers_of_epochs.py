"""Two processes that write into one file, each in an epoch of its own."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run

FORMS = {
    "text": "(epoch: {e}, iters: {i}, time: 0.08) loss: {x} lr: 0.0002",
    "csv": "{e},{i},{x}",
    "jsonl": '{{"epoch": {e}, "iter": {i}, "loss": {x}}}',
}


def write(tmp_path: Path, form: str, rows: list[tuple[int, int, float]]) -> Path:
    path = tmp_path / "log"
    head = ["epoch,batch,loss"] if form == "csv" else []
    lines = [FORMS[form].format(e=e, i=i, x=x) for e, i, x in rows]
    path.write_text("\n".join([*head, *lines]) + "\n")
    return path


def before() -> list[tuple[int, int, float]]:
    return [(1, 400 * k, round(9 - 0.1 * k, 3)) for k in range(1, 25)]


@pytest.mark.parametrize("form", FORMS)
def test_the_writer_that_goes_on_is_read(tmp_path: Path, form: str) -> None:
    mine = [(2, 400 * k + 32, round(6 - 0.05 * k, 3)) for k in range(8)]
    other = [(1, 400 * (k + 1), 20.0 + k) for k in range(8)]
    turns = [row for pair in zip(mine, other, strict=True) for row in pair]
    record = read_run(write(tmp_path, form, [*before(), *turns]))
    assert record.columns["loss"].logged().tolist() == [x for _, _, x in [*before(), *mine]]
    assert len(record.attempts) == 1
    assert any("several processes wrote" in note and "8 rows" in note for note in record.notes)


@pytest.mark.parametrize("form", FORMS)
def test_a_job_that_crashes_again_and_again_is_none(tmp_path: Path, form: str) -> None:
    once = [(1, 400, 9.0), (1, 800, 8.5), (2, 32, 8.0)]
    rows = [(e, i, x + 0.01 * n) for n in range(8) for e, i, x in once]
    record = read_run(write(tmp_path, form, rows))
    assert not any("several processes wrote" in note for note in record.notes)
    np.testing.assert_allclose(record.columns["loss"].logged(), [x for _, _, x in rows])
