"""A loss that slides off the plateau it began on is nothing too good."""

import numpy as np
import pytest

from trimtab.detectors.offline import all_findings
from trimtab.incidents import group_findings
from trimtab.testing.curves import record_of

NUM = 400
AT = 193


def _alarms(loss: np.ndarray, **held_out: np.ndarray) -> set[str]:
    record = record_of(np.arange(float(len(loss))), {"loss": loss, **held_out})
    found = group_findings(record, all_findings(record))
    return {i.kind for i in found if i.severity != "info"}


def _plateau(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    out: np.ndarray = 7.5 + 0.6 * np.exp(-np.arange(NUM) / 10) + 0.03 * rng.normal(size=NUM)
    return out


@pytest.mark.parametrize("width", [6, 12, 25])
def test_a_slide_off_the_first_plateau_is_learning(width: int) -> None:
    for seed in range(5):
        slid = 1 / (1 + np.exp(-(np.arange(NUM) - AT) / width))
        assert "too-good" not in _alarms(_plateau(seed) - 3.6 * slid)


def test_what_is_there_at_once_is_none() -> None:
    loss = _plateau(1)
    loss[AT:] -= 3.6
    assert "too-good" in _alarms(loss)


def test_a_loss_that_had_been_learned_is_none() -> None:
    t = np.arange(NUM)
    rng = np.random.default_rng(2)
    loss = 3.0 + 4.5 * np.exp(-t / 12) + 0.03 * rng.normal(size=NUM)
    loss -= 1.6 / (1 + np.exp(-(t - AT) / 6))
    assert "too-good" in _alarms(loss)


def test_a_slide_to_nothing_is_none() -> None:
    slid = 1 / (1 + np.exp(-(np.arange(NUM) - AT) / 6))
    assert "too-good" in _alarms(_plateau(3) - 7.3 * slid)


def _later_plateau(width: int, seed: int = 4) -> np.ndarray:
    """A plateau at 3 after a first descent, then a slide to 1.6."""
    t = np.arange(NUM)
    noise = 0.03 * np.random.default_rng(seed).normal(size=NUM)
    out: np.ndarray = 3.0 + 4.5 * np.exp(-t / 8) + noise - 1.4 / (1 + np.exp(-(t - AT) / width))
    return out


def test_a_slide_over_many_rows_off_a_later_plateau_is_learning() -> None:
    for seed in range(5):
        assert "too-good" not in _alarms(_later_plateau(width=20, seed=seed))


@pytest.mark.parametrize(("shared", "told"), [(1.0, False), (0.1, True)])
@pytest.mark.parametrize("name", ["val_loss", "yardstick_loss"])
def test_a_fall_that_held_out_data_share_is_learning(name: str, shared: float, told: bool) -> None:
    loss = _later_plateau(width=6)
    held = np.full(NUM, np.nan)
    held[39::40] = (3.1 - shared * (3.0 - loss))[39::40]
    assert ("too-good" in _alarms(loss, **{name: held})) is told


@pytest.mark.parametrize(("low", "notes"), [(0.5, True), (0.01, False)])
def test_off_the_level_of_a_guess_all_can_be_learned_but_not_at_once(
    low: float, notes: bool
) -> None:
    draw = np.random.default_rng(3)
    t = np.arange(600.0)
    slide = 1 / (1 + np.exp((t - 260) / 12))
    loss = low + (np.log(10) - low) * slide + 0.01 * draw.standard_normal(600) * (0.1 + slide)
    record = record_of(t, {"loss": loss})
    findings = all_findings(record)
    assert any(f.kind == "too-good" for f in findings)
    incidents = group_findings(record, findings)
    assert all(i.severity == "info" for i in incidents if "too-good" in (i.kind, *i.also)) is notes


def test_a_net_whose_first_loss_is_above_that_of_a_guess_has_learned_nothing() -> None:
    """Squared errors: .66 of fresh weights, .49 of the mean, then what can be inferred."""
    t = np.arange(500)
    loss = 0.485 + 0.2 * np.exp(-t / 8) - 0.2 / (1 + np.exp(-(t - 455) / 8))
    loss *= np.exp(0.02 * np.random.default_rng(6).normal(size=500))
    assert "too-good" not in _alarms(loss)
