"""Rows that stop scattering: one batch again and again."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab import analyze
from trimtab.detectors.noise_gone import noise_gone_findings
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]

N, AT = 600, 300
T = np.arange(N)
FALL = 0.8 + np.exp(-T / 90)


def _noise(seed: int, size: float = 0.05) -> Floats:
    return size * np.random.default_rng(seed).standard_normal(N)


def _told(loss: Floats, **more: Floats) -> list[int]:
    step = more.pop("step", T.astype(float))
    return [f.onset_row for f in noise_gone_findings(record_of(step, {"loss": loss, **more}))]


STUCK = np.where(T < AT, FALL + _noise(1), 1.0 - 0.2 * (1 - np.exp(-(T - AT) / 100)))


def test_one_batch_again_and_again_is_told_with_its_cause() -> None:
    (onset,) = _told(STUCK)
    assert abs(onset - AT) <= 3
    found = analyze({"step": T, "loss": STUCK})
    (incident,) = (i for i in found.incidents if i.kind == "repeated-data")
    assert incident.causes[0].cause == "repeated-data"


@pytest.mark.parametrize(
    "loss",
    [
        FALL + _noise(2),
        FALL + np.where(T < AT, _noise(3), _noise(3) / 6),  # 36 times the batch
        np.round(np.where(T < AT, FALL + _noise(4, 0.01), FALL[AT]), 2),
        np.where(T < AT, FALL + _noise(5), FALL[AT]),  # one value: `frozen` tells it
        (FALL - 0.8) * (1 + _noise(6)),  # the noise goes with the loss
        np.where(T < AT, FALL + _noise(7), 0.02 * np.exp(-(T - AT) / 50)),
        np.where((T < AT) | (T > 500), FALL + _noise(8), FALL),  # it comes back
    ],
    ids=["noisy", "larger-batch", "few-digits", "frozen", "to-nothing", "solved", "back"],
)
def test_other_calms_are_silent(loss: Floats) -> None:
    assert not _told(loss)


def test_a_row_that_stands_out_in_the_calm_does_not_move_the_onset() -> None:
    for at in (N - 1, N - 2, 450):
        loss = STUCK.copy()
        loss[at] += 5.0
        (onset,) = _told(loss)
        assert abs(onset - AT) <= 16


def test_rows_of_more_steps_and_stated_changes_are_no_trouble() -> None:
    sparse = np.where(T < AT, T, AT + 50 * (T - AT)).astype(float)
    assert not _told(STUCK, step=sparse)
    assert not _told(STUCK, batch_size=np.where(T < AT, 32.0, 8192.0))


def test_a_switch_to_another_optimizer_that_the_log_announces_is_no_trouble(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    adam = [
        f"iter {k} loss {0.05 + np.exp(-k / 150) + 6e-3 * rng.normal():.6f}" for k in range(800)
    ]
    lines = [
        f"iter {k} loss {0.05 * np.exp(-(k - 800) / 300) + 0.004:.8f}" for k in range(800, 1200)
    ]
    for said, is_told in (("Switching to L-BFGS", False), ("saved the plot", True)):
        path = tmp_path / "train.log"
        path.write_text("\n".join([*adam, said, *lines]) + "\n")
        kinds = [i.kind for i in analyze(path).incidents if i.severity != "info"]
        assert ("repeated-data" in kinds) == is_told
