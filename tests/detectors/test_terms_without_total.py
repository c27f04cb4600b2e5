"""Terms of a loss whose total nobody logs: each is judged, whatever the order of the columns."""

from pathlib import Path

import numpy as np
import pytest

from trimtab import analyze

N = 100
T = np.arange(N)
TERMS = ("train/box_loss", "train/cls_loss", "train/dfl_loss")


def _write(path: Path, *, reverse: bool, **added: np.ndarray) -> Path:
    rng = np.random.default_rng(5)
    values = {
        key: low + (high - low) * np.exp(-T / 25) + 0.01 * rng.standard_normal(N)
        for key, high, low in zip(TERMS, (3, 4, 2.5), (1, 0.8, 1.1), strict=True)
    }
    for term, more in added.items():
        values[f"train/{term}_loss"] += more
    keys = sorted(values, reverse=reverse)
    lines = [",".join(("epoch", *keys))]
    lines += [",".join(map(str, (i + 1, *(round(values[k][i], 5) for k in keys)))) for i in T]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("reverse", [False, True])
def test_each_term_is_judged_in_any_order_of_columns(tmp_path: Path, reverse: bool) -> None:
    climbs = {"cls": np.where(T > 60, (T - 60) * 0.03, 0.0)}
    steps = {"dfl": np.where(T > 60, 0.8, 0.0)}
    for name, added in (("climbs", climbs), ("steps", steps)):
        found = analyze(_write(tmp_path / f"{name}.csv", reverse=reverse, **added))
        assert found.verdict == "incident", name
        assert 58 <= found.incidents[0].incident.onset <= 75


@pytest.mark.parametrize("reverse", [False, True])
def test_terms_that_fall_are_silent(tmp_path: Path, reverse: bool) -> None:
    found = analyze(_write(tmp_path / "sound.csv", reverse=reverse))
    assert found.verdict == "healthy"
    assert found.runs[0].record.keys["loss"] == TERMS[0]


def test_a_term_that_is_no_number_is_told(tmp_path: Path) -> None:
    lost = np.where(T > 60, np.nan, 0.0)
    found = analyze(_write(tmp_path / "nan.csv", reverse=False, cls=lost))
    assert found.verdict in ("incident", "ended-badly")
