"""Entropy that is used up: no alarm where the reward rises with it, an alarm where it does not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab
from trimtab.analysis.account import IncidentAccount

Floats = NDArray[np.float64]
ROWS = 400
AT: Floats = np.arange(ROWS, dtype=np.float64) / ROWS


def told(
    path: Path, seed: int, reward: Floats, entropy: Floats, noise: float
) -> IncidentAccount | None:
    """Return what is said of a policy of a log with these levels; None: nothing."""
    rng = np.random.default_rng(seed)
    reward = reward + noise * rng.normal(size=ROWS)
    entropy = entropy * np.exp(0.05 * rng.normal(size=ROWS))
    loss = 0.02 * rng.normal(size=ROWS)
    rows = zip(range(ROWS), loss, reward, entropy, strict=True)
    lines = [
        "step,loss,reward,policy_entropy",
        *(f"{a},{b:.5g},{c:.5g},{d:.5g}" for a, b, c, d in rows),
    ]
    path.write_text("\n".join(lines) + "\n")
    alarms = [a for a in trimtab.analyze(path).incidents if a.severity != "info"]
    return next((a for a in alarms if a.incident.kind == "policy-collapse"), None)


def spent(rate: float) -> Floats:
    """Entropy that is used up as the policy becomes sure."""
    return 0.02 + 1.3 * np.exp(-rate * AT)


def solved() -> Floats:
    """A reward that rises to what can be had, as its policy becomes sure."""
    return 6 + 13 * (1 - np.exp(-5 * AT))


def rises_to_its_bound() -> Floats:
    return np.minimum(500.0, 20 + 1600 * AT)


def stops_at_once() -> Floats:
    """A reward that rises until the entropy is lost, and stands from there on."""
    return 6 + 13 * np.minimum(AT, 0.45)


def lost_at_once() -> Floats:
    return np.where(AT < 0.45, 1.0, 0.05 + 0.95 * np.exp(-60 * np.maximum(AT - 0.45, 0)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rate", [4.0, 6.0, 12.0])
def test_a_policy_that_becomes_sure_of_what_is_rewarded_is_no_alarm(
    rate: float, seed: int, tmp_path: Path
) -> None:
    assert told(tmp_path / "log.csv", seed, solved(), spent(rate), 1.0) is None
    assert told(tmp_path / "low.csv", seed, solved() - 30, spent(rate), 0.3) is None


def test_a_reward_at_its_bound_rises_no_more(tmp_path: Path) -> None:
    assert told(tmp_path / "log.csv", 0, rises_to_its_bound(), spent(4), 0.0) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("reward", [stops_at_once, lambda: np.full(ROWS, 6.0), lambda: 20 - 9 * AT])
def test_entropy_that_is_used_up_for_nothing_is_told(
    reward: Callable[[], Floats], seed: int, tmp_path: Path
) -> None:
    found = told(tmp_path / "log.csv", seed, reward(), lost_at_once(), 0.3)
    assert found is not None
    assert found.diagnosis.top.cause == "entropy-collapse"
    assert told(tmp_path / "slow.csv", seed, 20 - 9 * AT, spent(6), 0.3) is not None


def test_where_the_reward_was_highest_is_said_of_the_whole_log(tmp_path: Path) -> None:
    reward = np.where(AT < 0.45, 6 + 13 * AT, 8.0) + np.where(AT > 0.9, 9.0, 0.0)
    found = told(tmp_path / "log.csv", 0, reward, lost_at_once(), 0.3)
    assert found is not None
    (back,) = (r for r in found.plan.remedies if r.remedy == "roll-back")
    said = back.why.partition("highest about ")[2]
    assert int(said.split(",")[0]) > 0.9 * ROWS
    assert "after it" in said
