"""Losses that repeat digit for digit: told where the weights stand still, and nowhere else."""

from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.detectors.contract import Finding
from trimtab.detectors.unmoved import unmoved_findings
from trimtab.testing.curves import record_of

RNG = np.random.default_rng(0)
PASS = 1.5 + 0.07 * RNG.standard_normal(17)


def found(loss: np.ndarray, **columns: np.ndarray) -> tuple[Finding, ...]:
    return unmoved_findings(record_of(np.arange(float(len(loss))), {"loss": loss, **columns}))


@pytest.mark.parametrize("num", [34, 62, 2000])
def test_losses_that_repeat_exactly_are_of_weights_that_stand_still(num: int) -> None:
    loss = np.concatenate((1.6 + 0.05 * RNG.standard_normal(6), np.resize(PASS, num)))
    (told,) = found(loss)
    assert (told.kind, told.severity, told.onset_row) == ("never-learns", "warning", 6)
    assert f"every 17 rows, {num - 17} rows so far" in told.text
    (told,) = found(loss, lr=np.zeros(len(loss)))
    assert told.severity == "info"


@pytest.mark.parametrize(
    "loss",
    [
        np.resize(PASS, 24),  # not yet half of a pass again
        np.resize(PASS, 200) * (1 - 1e-9 * np.arange(200)),  # it learns, if next to nothing
        np.resize(PASS, 200) + np.append(np.zeros(199), 1e-7),
        np.full(300, 0.6931),  # told as what stands still
        np.round(0.4 + 0.05 * np.random.default_rng(4).standard_normal(4000), 1),
        np.resize([0.1, 0.2], 400),
        np.zeros(0),
    ],
)
def test_others_are_silent(loss: np.ndarray) -> None:
    assert not found(loss)


def test_three_last_digits_in_turn_are_no_proof() -> None:
    assert not found(np.resize([0.01, 0.02, 0.03], 60))
    assert found(np.resize([0.0123, 0.0241, 0.0307], 60))


LINE = "Epoch {}, Step {}, Loss: {:.4f}: {}%"


@pytest.mark.parametrize("again", [5, 6])
def test_few_rows_are_enough_where_they_repeat_many_digits(again: int, tmp_path: Path) -> None:
    losses = 1.1 + 0.15 * np.random.default_rng(2).standard_normal(8)
    rows = [(1 + i // 8, i % 8, losses[i % 8], i) for i in range(8 + again)]
    (tmp_path / "log.txt").write_text("\n".join(LINE.format(*row) for row in rows) + "\n")
    (run,) = trimtab.analyze(tmp_path / "log.txt").runs
    told = [i.kind for i in run.incidents if i.severity == "warning"]
    assert told == (["never-learns"] if again >= 6 else [])


def test_few_rows_that_fall_and_come_again_may_be_written_twice() -> None:
    falls = np.round(np.linspace(2.4, 1.1, 8), 4)
    assert not found(np.append(falls, falls[:7]))
    assert not found(np.append([0.1, 0.3, 0.2, 0.4, 0.1, 0.3, 0.2, 0.4], np.resize([0.1, 0.3], 6)))
