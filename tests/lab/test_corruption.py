"""Damage to data: which samples, what it does to them, and that it repeats."""

from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.errors import ConfigError
from trimtab.lab.corruption import Corruption, CorruptionKind

KINDS = get_args(CorruptionKind)
TEXT = b'def greet(name):\n    return "hello, " + name  # a line \\ of code\n' * 2


def _rows(num_rows: int) -> NDArray[np.uint8]:
    return np.tile(np.frombuffer(TEXT, dtype=np.uint8), (num_rows, 1))


def _damaged(kind: CorruptionKind, num_rows: int = 8) -> NDArray[np.uint8]:
    corruption = Corruption(kind=kind, first_sample=0, num_samples=num_rows)
    return corruption.apply(_rows(num_rows), np.arange(num_rows), seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_window_is_damaged_and_the_input_is_kept(kind: CorruptionKind) -> None:
    rows = _rows(10)
    corruption = Corruption(kind=kind, first_sample=103, num_samples=4)
    damaged = corruption.apply(rows, np.arange(100, 110), seed=0)
    changed = (damaged != rows).any(axis=1)
    assert changed.tolist() == [False] * 3 + [True] * 4 + [False] * 3
    assert np.array_equal(rows, _rows(10))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_damaged_alike_in_any_batch(kind: CorruptionKind) -> None:
    corruption = Corruption(kind=kind, first_sample=0, num_samples=32, fraction=0.5)
    together = corruption.apply(_rows(32), np.arange(32), seed=3)
    alone = [corruption.apply(_rows(1), np.array([i]), seed=3)[0] for i in reversed(range(32))]
    assert np.array_equal(together, np.stack(alone[::-1]))


def test_fraction_is_the_share_of_damaged_samples() -> None:
    corruption = Corruption(kind="xor", first_sample=0, num_samples=2000, fraction=0.25)
    damaged = corruption.apply(_rows(2000), np.arange(2000), seed=0)
    share = (damaged != _rows(2000)).any(axis=1).mean()
    assert share == pytest.approx(0.25, abs=0.04)  # four standard deviations of a binomial


def test_seed_changes_the_damage() -> None:
    corruption = Corruption(kind="random", first_sample=0, num_samples=1)
    first = corruption.apply(_rows(1), np.array([0]), seed=0)
    assert not np.array_equal(first, corruption.apply(_rows(1), np.array([0]), seed=1))


def test_kinds_do_what_they_say() -> None:
    rows = _rows(8)
    assert len(np.unique(_damaged("random"))) > 200
    assert all(len(np.unique(row)) == 1 for row in _damaged("repeat"))
    assert np.array_equal(np.sort(_damaged("shuffle")), np.sort(rows))
    assert np.array_equal(_damaged("xor"), 255 - rows)
    artifact = _damaged("artifact")
    assert np.array_equal(artifact[:, :13], rows[:, :13])
    assert set(np.unique(artifact[:, 13:])) == set(rb"\u0")
    # Escaped four times, a newline has 1, 2, 4, 8 backslashes and a quote 1, 3, 7, 15.
    escaped = _damaged("escape")[0].tobytes()
    assert escaped.startswith(b"def greet(name):" + b"\\" * 8 + b"n    return " + b"\\" * 15 + b'"')


@pytest.mark.parametrize(
    ("setting", "value"), [("kind", "rot13"), ("num_samples", 0), ("fraction", 0.0)]
)
def test_impossible_settings_are_refused(setting: str, value: object) -> None:
    settings: dict[str, object] = {"kind": "random", "first_sample": 0, "num_samples": 1}
    with pytest.raises(ConfigError, match=f"{setting} is "):
        Corruption(**(settings | {setting: value}))  # type: ignore[arg-type]
