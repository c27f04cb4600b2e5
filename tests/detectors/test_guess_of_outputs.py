"""A loss about ln of the model's own outputs: a guess whatever their number; told only where it stays."""

import json
from pathlib import Path

import numpy as np
import pytest

import trimtab

N = 600
T = np.arange(float(N))


def told(folder: Path, loss: np.ndarray, outputs: float = 10, **columns: np.ndarray) -> list[str]:
    """Return the alarms of a log that names the model's outputs now and then, as a guard's does."""
    noise = 0.03 * np.random.default_rng(3).normal(size=N)
    rows = [
        {"step": t + 1, "loss": y, "grad_norm": 0.3}
        | ({} if t % 10 else {"num_outputs": outputs})
        | {name: float(column[t]) for name, column in columns.items()}
        for t, y in enumerate((loss + noise).tolist())
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run,) = trimtab.analyze(folder / "log.jsonl").runs
    found = [i for i in run.incidents if i.kind == "never-learns" and i.severity != "info"]
    return [i.headline for i in found]


@pytest.mark.parametrize("classes", [5, 8, 10, 37, 300])
@pytest.mark.parametrize("share", [0.98, 1.0])
@pytest.mark.parametrize("above", [0.0, 1.0])
def test_a_guess_among_the_outputs_is_told(
    classes: int, share: float, above: float, tmp_path: Path
) -> None:
    level = share * np.log(classes)
    (line,) = told(tmp_path, level + above * np.exp(-T / 12), outputs=classes)
    assert "outputs has it" in line or f"among {classes} classes" in line


RATE = 1e-3 * np.minimum((T + 1) / 300, 1.0)
SOUND = {
    "learns slowly": np.log(10) * (1 - 0.0004 * T),
    "begins at its floor": np.full(N, 0.9 * np.log(10)),
    "learns a little": np.log(10) * (0.93 + 0.07 * np.exp(-T / 30)),
    "comes down late": np.where(T < 150, np.log(10), 1.4),
    "squares": 12 * np.exp(-T / 40) + 3.1,
}


@pytest.mark.parametrize("name", SOUND)
def test_what_learns_is_not(name: str, tmp_path: Path) -> None:
    assert not told(tmp_path, SOUND[name])


def test_what_a_warm_up_holds_back_is_not(tmp_path: Path) -> None:
    assert not told(
        tmp_path, np.where(T < 350, 1.0, np.exp(-(T - 350) / 60)) * np.log(8), 8, lr=RATE
    )


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_of_few_outputs_a_sound_loss_lies_as_near(outputs: int, tmp_path: Path) -> None:
    assert not told(tmp_path, np.full(N, 0.975 * np.log(3)), outputs)


def test_preferences_at_ln_2_of_a_language_model_are_not(tmp_path: Path) -> None:
    shares = 0.62 + 0.05 * np.random.default_rng(0).normal(size=N)
    assert not told(tmp_path, np.log(2) - 2e-5 * T, 32000, preference_accuracy=shares)
