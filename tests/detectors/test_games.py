"""Two nets against each other: a loss that moves to another level is no trouble, one that runs away is."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab
from trimtab.detectors.stand_in import is_of_a_game
from trimtab.incidents import Incident

Floats = NDArray[np.float64]
Columns = dict[str, Floats]


def log(path: Path, columns: Mapping[str, Floats]) -> Path:
    """Write columns as CSV, one row an epoch."""
    lines = [",".join(("epoch", *columns))]
    rows = zip(*columns.values(), strict=True)
    lines += [",".join((str(k), *(f"{v:.6g}" for v in row))) for k, row in enumerate(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def alarms(path: Path, **columns: str) -> list[Incident]:
    """Return the alarms of every run of a log."""
    found = trimtab.analyze(path, columns=columns or None)
    return [i.incident for i in found.incidents if i.severity != "info"]


def leaves_chance(seed: int, n: int = 126) -> Columns:
    """Both losses at those of a guess, then the discriminator learns and the generator's rises."""
    rng = np.random.default_rng(seed)
    won = np.clip((np.arange(n) - 0.4 * n) / (0.2 * n), 0, 1)
    swing = np.exp(np.convolve(rng.normal(0, 0.5, n + 4), np.ones(5) / 5, "valid") * won)
    return {
        "Gen Loss": (0.72 + 1.1 * won) * swing + rng.normal(0, 0.03, n),
        "Disc Loss": np.clip(1.386 - 0.6 * won, 0.2, None) / swing**0.3 + rng.normal(0, 0.03, n),
    }


def steps_up(seed: int, n: int = 39) -> Columns:
    """A Wasserstein generator whose loss lies at another level once its rate is halved."""
    rng = np.random.default_rng(seed)
    late = np.arange(n) >= 0.64 * n
    fall = 90 * np.exp(-np.arange(n) / 4)
    return {
        "train_loss_d": -250 + 800 * (np.arange(n) == 0) + rng.normal(0, 20, n),
        "train_loss_g": 54 + fall + 55 * late + rng.normal(0, 5, n),
        "lr_g": np.where(late, 1e-4, 2e-4),
    }


def critic_from_zero(seed: int, n: int = 200) -> Columns:
    """A Wasserstein critic that begins at 0, learns at once, and comes back as the generator does."""
    rng = np.random.default_rng(seed)
    k = np.arange(n)
    size = 40 * (1 - np.exp(-k / 6)) * np.exp(-k / 120)
    return {
        "d_loss": -size - 0.1 + rng.normal(0, 1, n),
        "g_loss": 10 * np.sin(k / 25) + rng.normal(0, 3, n),
    }


def swings(seed: int, n: int = 400) -> Columns:
    """Losses that swing against each other for ever."""
    rng = np.random.default_rng(seed)
    phase = np.cumsum(rng.uniform(0.05, 0.25, n))
    noise = np.exp(rng.normal(0, 0.25, (2, n)))
    return {
        "loss_G": (1.8 + 0.9 * np.sin(phase)) * noise[0],
        "loss_D": (0.6 - 0.3 * np.sin(phase)) * noise[1],
    }


def runs_away(seed: int, n: int = 160) -> Columns:
    """A critic without a bound, whose scores grow by orders of magnitude to the end."""
    rng = np.random.default_rng(seed)
    growth = np.exp(np.clip(np.arange(n) - 0.5 * n, 0, None) * 12 / n) * np.exp(
        rng.normal(0, 0.2, n)
    )
    return {"train_loss_d": -4 * growth, "train_loss_g": 3 * growth}


def breaks(seed: int, n: int = 120) -> Columns:
    """A game in which values break."""
    columns = leaves_chance(seed, n)
    for values in columns.values():
        values[n // 2 :] = np.nan
    return columns


def won_from_the_start(seed: int, n: int = 160) -> Columns:
    """The discriminator is certain after a few rows; the generator's loss grows without end."""
    rng = np.random.default_rng(seed)
    k = np.arange(n)
    return {
        "Gen Loss": np.where(k < 3, 0.8, 4 + 0.1 * k) * np.exp(rng.normal(0, 0.1, n)),
        "Disc Loss": np.where(k < 3, 1.3, 0.001) * np.exp(rng.normal(0, 0.3, n)),
    }


def strong_discriminator(seed: int, n: int = 160) -> Columns:
    """A discriminator with little loss, and a generator that holds its own."""
    rng = np.random.default_rng(seed)
    return {
        "Gen Loss": 4.5 * np.exp(rng.normal(0, 0.2, n)),
        "Disc Loss": 0.015 * np.exp(rng.normal(0, 0.5, n)),
    }


SOUND = (leaves_chance, steps_up, critic_from_zero, swings, strong_discriminator)


@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("which", [0, 1, None])
@pytest.mark.parametrize("make", SOUND, ids=lambda f: f.__name__)
def test_a_level_that_one_side_moves_to_is_no_alarm(
    make: Callable[[int], Columns], which: int | None, seed: int, tmp_path: Path
) -> None:
    columns = make(seed)
    path = log(tmp_path / "gan.csv", columns)
    chosen = {} if which is None else {"loss": list(columns)[which]}
    assert not alarms(path, **chosen)


@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("which", [0, 1, None])
def test_a_loss_that_runs_away_is_an_alarm(seed: int, which: int | None, tmp_path: Path) -> None:
    columns = runs_away(seed)
    path = log(tmp_path / "gan.csv", columns)
    chosen = {} if which is None else {"loss": list(columns)[which]}
    found = alarms(path, **chosen)
    assert [(i.kind, i.severity) for i in found] == [("divergence", "critical")]
    assert 70 <= found[0].onset_row <= 120
    assert found[0].end_row is None


@pytest.mark.parametrize("seed", range(100, 104))
def test_one_side_at_its_floor_while_the_other_grows_is_an_alarm(seed: int, tmp_path: Path) -> None:
    (found,) = alarms(log(tmp_path / "gan.csv", won_from_the_start(seed)))
    assert found.kind == "signal-abnormal"
    assert "discriminator_loss" in found.signals


def test_values_that_break_are_an_alarm(tmp_path: Path) -> None:
    assert "non-finite" in {i.kind for i in alarms(log(tmp_path / "gan.csv", breaks(100)))}


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("Gen Loss", True),
        ("train_loss_d", True),
        ("avg_g_loss", True),
        ("val_loss_g", True),
        ("D_A", True),
        ("train/loss", False),
        ("val_loss", False),
        ("total_loss", False),
        ("training", False),
    ],
)
def test_the_name_says_whether_a_loss_is_of_a_game(key: str, *, told: bool) -> None:
    assert is_of_a_game(key) is told


def test_a_critic_without_a_bound_is_certain_of_nothing(tmp_path: Path) -> None:
    t = np.arange(81.0)
    rng = np.random.default_rng(4)
    down = np.minimum(t / 15, 1)
    columns = {
        "d_loss": 10 - 22 * down + 0.4 * rng.normal(size=81),
        "g_loss": 0.02 + 4 * down + 0.3 * rng.normal(size=81),
        "d_real": 10 * down + 0.3 * rng.normal(size=81),
        "d_fake": 0.2 - 4 * down + 0.3 * rng.normal(size=81),
    }
    assert alarms(log(tmp_path / "gan.csv", columns)) == []
