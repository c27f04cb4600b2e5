"""Advice to agents, to games of two nets and to small supervised runs keeps to what they are."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab
from trimtab.analysis.account import IncidentAccount

Floats = NDArray[np.float64]
ROWS = 200
STEPS: Floats = np.arange(ROWS, dtype=np.float64)


def advice(path: Path, columns: dict[str, Floats]) -> IncidentAccount:
    """Return the first incident of a log with these columns."""
    lines = [",".join(columns)]
    lines += [",".join(f"{v:.6g}" for v in row) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return trimtab.analyze(path).incidents[0]


def risen_loss(seed: int) -> Floats:
    """A loss that rises to four times its level and stays."""
    rng = np.random.default_rng(seed)
    return np.where(np.arange(ROWS) < 120, 1.5, 6.0) * np.exp(0.1 * rng.normal(size=ROWS))


def agent(seed: int, *, lost: bool) -> dict[str, Floats]:
    """An agent whose loss rises; `lost`: after its reward fell for good."""
    rng = np.random.default_rng(seed)
    k = np.arange(ROWS)
    level = 400 * (1 - np.exp(-k / 15)) - (600.0 * (k >= 100) if lost else 0)
    return {"episode": STEPS, "reward": level + rng.normal(0, 40, ROWS), "loss": risen_loss(seed)}


def game(seed: int) -> dict[str, Floats]:
    """A game that runs away."""
    rng = np.random.default_rng(seed)
    size = np.exp(np.clip(np.arange(ROWS) - 100, 0, None) / 12 + 0.2 * rng.normal(size=ROWS))
    return {"epoch": STEPS, "loss_D": 3 * size, "loss_G": 4 * size}


def classifier(seed: int) -> dict[str, Floats]:
    """A small classifier whose loss rises."""
    loss = risen_loss(seed)
    return {"epoch": STEPS, "loss": loss, "val_accuracy": np.where(loss > 3, 0.8, 0.9)}


OTHERS: dict[str, Callable[[], dict[str, Floats]]] = {
    "agent": lambda: agent(100, lost=False),
    "lost-agent": lambda: agent(100, lost=True),
    "game": lambda: game(100),
    "classifier": lambda: classifier(100),
}
LARGE = ("PaLM", "OPT-", "104B", "BLOOM", "GLM-130B", "IDEFICS")


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS.keys())
def test_runs_of_large_language_models_are_no_evidence_for_others(
    make: Callable[[], dict[str, Floats]], tmp_path: Path
) -> None:
    found = advice(tmp_path / "log.csv", make())
    assert found.plan.remedies
    said = [text for r in found.plan.remedies for text in (*r.worked, *r.failed)]
    assert not [text for text in said if any(name in text for name in LARGE)]


def test_they_are_for_a_run_that_nothing_shows_to_be_another(tmp_path: Path) -> None:
    found = advice(tmp_path / "log.csv", {"step": STEPS, "loss": risen_loss(100)})
    assert any("OPT-175B" in text for r in found.plan.remedies for text in r.worked)


@pytest.mark.parametrize("lost", [False, True])
def test_an_agent_is_told_to_bound_its_updates_and_to_leave_no_data_out(
    tmp_path: Path, *, lost: bool
) -> None:
    found = advice(tmp_path / "log.csv", agent(100, lost=lost))
    names = [r.remedy for r in found.plan.remedies]
    assert found.diagnosis.top.cause == "policy-update-too-large"
    assert names[:3] == ["roll-back", "lower-lr", "bound-updates"]
    assert not {"skip-data", "adam-beta2"} & set(names)
    assert found.diagnosis.share("bad-data-window") < 0.05
    assert "the reward was highest about" in found.plan.remedies[0].why


def test_a_game_that_runs_away_is_told_to_balance_its_nets(tmp_path: Path) -> None:
    found = advice(tmp_path / "log.csv", game(100))
    assert found.diagnosis.top.cause == "discriminator-too-strong"
    assert found.plan.remedies[0].remedy in ("weaken-discriminator", "roll-back")
    assert "adam-beta2" not in {r.remedy for r in found.plan.remedies}
