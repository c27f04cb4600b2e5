"""Trainers that no reader was written for: their lines, printed by our own code, come back."""

from pathlib import Path

import numpy as np
import pytest

from tests.readers.foreign import RECORDS, Foreign
from tests.readers.foreign_files import FILES
from tests.readers.foreign_fresh import FRESH
from tests.readers.foreign_language import LANGUAGE
from tests.readers.foreign_vision import OTHERS
from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.record import RunRecord

NAMELESS = {"seq2seq tutorial"}
"""Nothing on their lines says loss; they are refused."""
FORMATS = {**LANGUAGE, **OTHERS, **FILES, **FRESH}


def check(record: RunRecord, foreign: Foreign) -> None:
    """Fail where a record is not what was printed."""
    loss = record.columns["loss"]
    np.testing.assert_allclose(loss.logged(), [r.loss for r in RECORDS], rtol=2e-4)
    assert record.axis == foreign.axis
    assert len(record.attempts) == 1
    places = record.step[loss.present]
    if foreign.axis == "step":
        assert places.tolist() == [foreign.first + foreign.gap * r.i for r in RECORDS]
    elif foreign.axis == "epoch":
        assert np.all(np.diff(places) > 0)
    for name, wanted in (("grad_norm", foreign.norm), ("lr", foreign.lr)):
        if wanted:
            expected = [getattr(r, "norm" if name == "grad_norm" else name) for r in RECORDS]
            np.testing.assert_allclose(record.columns[name].logged(), expected, rtol=2e-2)
    val = record.columns.get("val_loss")
    if foreign.num_val is not None:
        got = np.zeros(0) if val is None else val.logged()
        assert len(got) == foreign.num_val
        assert all(min(abs(v - r.val) for r in RECORDS) < 2e-3 for v in got.tolist())


@pytest.mark.parametrize("name", sorted(NAMELESS))
def test_numbers_without_a_name_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "out.log"
    path.write_text(FORMATS[name].text())
    with pytest.raises(ReadError):
        read_run(path)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in NAMELESS])
def test_what_was_printed_comes_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / FORMATS[name].file
    path.write_text(FORMATS[name].text(), encoding="utf-8", newline="")
    check(read_run(path), FORMATS[name])
