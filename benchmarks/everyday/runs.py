"""Made-up runs: a healthy curve with everything that trainers log, on which a fault is put.

The loss falls as a power law from ln V under a warm-up and a usual schedule. Its noise comes mostly
from the data, so that data fed twice repeats it, and is Gaussian, autocorrelated or heavy-tailed.
The parameters that rules are tuned with (seeds below 100) and those that figures are made with
(seeds from 100 on) differ in sizes, places, vocabularies and noise, so that no rule can fit them.

A run can be made without noise: the reference test takes its shapes from the difference of two.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "Law", "MadeRun", "law_of", "make_healthy"]

Floats = NDArray[np.float64]
Rng = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Law:
    """Ranges from which the parameters of a run are drawn."""

    vocabularies: tuple[int, ...]
    floor: tuple[float, float]
    """Loss that the curve comes down to, nats."""
    exponent: tuple[float, float]
    noise: tuple[float, float]
    """Standard deviation of the loss of a row, nats."""
    noises: tuple[str, ...]
    place: tuple[float, float]
    """Where a fault begins, as a share of the rows."""
    size: tuple[float, float]
    """Factor on the size of a fault."""
    schedules: tuple[str, ...]
    spacings: tuple[int, ...]
    """Steps from row to row."""


TUNING = Law(
    vocabularies=(32_000, 50_257),
    floor=(1.7, 2.3),
    exponent=(0.35, 0.55),
    noise=(0.015, 0.04),
    noises=("gaussian", "ar1"),
    place=(0.45, 0.6),
    size=(0.9, 1.3),
    schedules=("cosine", "constant"),
    spacings=(1, 10),
)
JUDGING = Law(
    vocabularies=(32_768, 50_304, 128_256),
    floor=(1.4, 2.8),
    exponent=(0.3, 0.65),
    noise=(0.01, 0.05),
    noises=("gaussian", "ar1", "t4"),
    place=(0.4, 0.7),
    size=(0.7, 1.6),
    schedules=("cosine", "wsd", "linear"),
    spacings=(1, 5, 20, 100),
)


def law_of(seed: int) -> Law:
    """Return the parameters of a seed: below 100 for tuning, from 100 on for figures."""
    return TUNING if seed < 100 else JUDGING


@dataclass
class MadeRun:
    """One made-up run; a fault changes its columns in place."""

    num_rows: int
    rng: Rng
    """Of parameters; the noise has a generator of its own, so both twins have the same noise."""
    law: Law
    step: Floats
    columns: dict[str, Floats]
    """By the name that `formats` writes; NaN is a logged NaN."""
    present: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Rows in which a signal was logged; absent: all."""
    sigma: float = 0.0
    """Noise of the loss, nats; kept where the run is made without noise."""
    dependence: float = 0.0
    """Lag-one correlation of the noise."""
    noise: Floats = field(default_factory=lambda: np.zeros(0))
    """What the noise adds to the loss, nats."""
    mean: Floats = field(default_factory=lambda: np.zeros(0))
    """The loss without noise."""
    chance: float = 0.0
    """ln V."""
    warm_up_rows: int = 0
    seam: int | None = None
    """Row at which a second attempt resumes from `seam_back` rows before; None: one attempt."""
    seam_back: int = 0

    @property
    def quiet(self) -> bool:
        """Whether the run is made without noise."""
        return not self.noise.any()

    def place(self) -> int:
        """Draw where a fault begins."""
        low, high = self.law.place
        return int(self.num_rows * self.rng.uniform(low, high))

    def size(self) -> float:
        """Draw the factor on the size of a fault."""
        return float(self.rng.uniform(*self.law.size))

    def draw(self, low: float, high: float) -> float:
        """Draw a parameter."""
        return float(self.rng.uniform(low, high))

    def with_mean(self, mean: Floats) -> None:
        """Give the run another loss under the same noise."""
        self.mean = mean
        self.columns["loss"] = mean + self.noise

    def add(self, shape: Floats, first_row: int) -> None:
        """Add a shape to the loss from a row on; what lies beyond the end is cut off."""
        mean = self.mean.copy()
        part = mean[first_row : first_row + len(shape)]
        part += shape[: len(part)]
        self.with_mean(mean)

    def resume(self, row: int) -> None:
        """Let a second attempt begin at a row, a few rows back in steps."""
        back = max(2, self.num_rows // 50)
        self.seam, self.seam_back = row, back
        gap = self.step[1] - self.step[0]
        self.step[row:] -= back * gap


def _unit_noise(kind: str, num: int, rng: Rng, phi: float) -> Floats:
    if kind == "t4":
        return np.asarray(rng.standard_t(4, num) / math.sqrt(2.0))
    white = rng.standard_normal(num)
    if kind == "gaussian":
        return white
    noise = np.empty(num)
    level = white[0]
    for t in range(num):
        level = phi * level + math.sqrt(1 - phi * phi) * white[t] if t else level
        noise[t] = level
    return noise


_SCHEDULES: dict[str, Callable[[Floats], Floats]] = {
    "constant": lambda u: np.ones_like(u),
    "cosine": lambda u: 0.1 + 0.45 * (1 + np.cos(np.pi * u)),
    "linear": lambda u: 1 - 0.98 * u,
    "wsd": lambda u: np.minimum(1.0, 0.02 + (1 - u) / 0.15),
}


def make_healthy(seed: int, num_rows: int, *, noise: bool = True) -> MadeRun:
    """Return a healthy run.

    Args:
        seed: Below 100 it draws from the law of tuning, from 100 on from that of judging.
        num_rows: Its length.
        noise: False: every signal is its own mean.
    """
    law, rng = law_of(seed), np.random.default_rng([seed, num_rows, 1])
    loud = np.random.default_rng([seed, num_rows, 2])
    t = np.arange(num_rows, dtype=np.float64)
    chance = math.log(float(rng.choice(law.vocabularies)))
    floor = float(rng.uniform(*law.floor))
    tau = max(2.0, num_rows * float(rng.uniform(0.004, 0.02)))
    mean = floor + (chance - floor) * (1 + t / tau) ** -float(rng.uniform(*law.exponent))
    sigma = float(rng.uniform(*law.noise))
    kind, phi = str(rng.choice(law.noises)), float(rng.uniform(0.4, 0.7))
    warm_up = max(3, int(num_rows * rng.uniform(0.01, 0.04)))
    u = np.clip((t - warm_up) / max(num_rows - 1 - warm_up, 1), 0, 1)
    peak = float(10 ** rng.uniform(-4, -2.7))
    schedule = str(rng.choice(law.schedules))
    lr = peak * _SCHEDULES[schedule](u) * np.minimum(1.0, (t + 1) / warm_up)
    scale = 1.0 if noise else 0.0
    spread = scale * sigma * _unit_noise(kind, num_rows, loud, phi)
    norm = rng.uniform(0.2, 1.0) * (1 + 3 * np.exp(-t / tau))
    every = max(1, num_rows // 40)
    return MadeRun(
        num_rows=num_rows,
        rng=rng,
        law=law,
        step=(t + 1) * float(rng.choice(law.spacings)),
        columns={
            "loss": mean + spread,
            "grad_norm": norm * np.exp(scale * 0.15 * loud.standard_normal(num_rows)),
            "lr": lr,
            "val_loss": mean + 0.05 + scale * sigma / 4 * loud.standard_normal(num_rows),
            "throughput": 4e5 * np.exp(scale * 0.01 * loud.standard_normal(num_rows)),
        },
        present={"val_loss": (t + 1) % every == 0},
        sigma=sigma,
        dependence=phi if kind == "ar1" else 0.0,
        noise=spread,
        mean=mean,
        chance=chance,
        warm_up_rows=warm_up,
    )
