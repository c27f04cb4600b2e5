"""Samples read at once are those read line by line, for any rows."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.readers import read_run, rundir

VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.integers(-(2**40), 2**40),
    st.sampled_from(["NaN", "Infinity", "-Infinity"]),
    st.none(),
)
ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["loss", "grad_norm", "step_time_s", "my own", "lr", "train_loss"]),
        VALUES,
        max_size=5,
    ),
    min_size=1,
    max_size=8,
)
GAPS = st.lists(st.integers(-1, 5), min_size=8, max_size=8)


@settings(max_examples=60, deadline=None)
@given(ROWS, GAPS, st.booleans())
def test_the_fast_way_and_the_slow_one_agree(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, object]],
    gaps: list[int],
    torn: bool,
) -> None:
    folder = tmp_path_factory.mktemp("run")
    (folder / "signals").mkdir()
    steps = np.cumsum(gaps).tolist()
    lines = [json.dumps({"step": s, **r}) for s, r in zip(steps, rows, strict=False)]
    text = "\n".join(lines) + ('\n{"step": 99, "lo' if torn else "\n")
    (folder / "signals" / "1.0.jsonl").write_text(text)
    fast = read_run(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rundir, "MAX_PLAIN_BYTES", -1)
        slow = read_run(folder)
    assert fast.step.tolist() == slow.step.tolist()
    assert [a.number for a in fast.attempts] == [a.number for a in slow.attempts]
    assert set(fast.columns) == set(slow.columns)
    for name, column in slow.columns.items():
        assert np.array_equal(fast.columns[name].present, column.present)
        assert np.array_equal(fast.columns[name].values, column.values, equal_nan=True)
    assert fast.notes == slow.notes
    assert dict(fast.unread) == dict(slow.unread)
    assert dict(fast.keys) == dict(slow.keys)


def test_a_plain_file_takes_the_fast_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "signals").mkdir()
    rows = [json.dumps({"step": s, "loss": "NaN" if s == 3 else 2.0}) for s in range(1, 6)]
    (tmp_path / "signals" / "1.0.jsonl").write_text("\n".join(rows) + "\n")
    monkeypatch.setattr(rundir, "read_samples", None)
    assert np.isnan(read_run(tmp_path).columns["loss"].values[2])
