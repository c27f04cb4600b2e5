"""Formats of many trainers: the right records, axis and signals, alone and amid other output."""

from pathlib import Path

import numpy as np
import pytest

from tests.readers.wider_formats import FORMATS, NUM, RECORDS
from trimtab.readers import read


@pytest.mark.parametrize("name", FORMATS)
def test_records_axis_and_signals(tmp_path: Path, name: str) -> None:
    wider = FORMATS[name]
    path = tmp_path / name
    path.write_text(wider.text(), newline="")
    (record,) = read(path)
    assert record.num_loss_rows == NUM
    wanted = [r["loss"] for r in RECORDS]
    np.testing.assert_allclose(record.columns["loss"].logged(), wanted, rtol=6e-2)
    assert wider.axis in (None, record.axis)
    assert len(record.attempts) == 1
    assert not wider.norm or "grad_norm" in record.columns
    assert not wider.lr or "lr" in record.columns
    if wider.num_val is not None:
        val = record.columns.get("val_loss")
        assert (0 if val is None else int(val.present.sum())) == wider.num_val


def test_there_are_many() -> None:
    assert len(FORMATS) >= 60
