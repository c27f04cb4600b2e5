"""Simulated loss and gradient-norm curves with faults planted at known steps.

The quiet curve falls as a power law under a warm-up and cosine schedule; its noise is Gaussian,
autocorrelated or heavy-tailed. A fault is added on top, so that the same seed without it is the
healthy twin. Nothing here is fitted to a real run: it is for contracts, not for figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.record import Column, RecordBuilder, RunRecord
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = [
    "CurveKind",
    "Fault",
    "FaultKind",
    "NoiseKind",
    "lm_curve",
    "make_noise",
    "make_quiet",
    "record_of",
    "simulate_run",
]

FaultKind = Literal[
    "spike", "slow-spike", "unrecovered-spike", "shift", "drift", "nan", "inf", "scale-collapse"
]
NoiseKind = Literal["gaussian", "ar1", "t3", "none"]
CurveKind = Literal["flat", "lm"]
Floats = NDArray[np.float64]

_STEADY = {"loss_scale": 65536.0, "lr": 3e-4, "nonfinite": 0.0, "skipped": 0.0}
"""Signals that stand still in quiet runs."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault."""

    kind: FaultKind
    step: int
    """First step at which the loss (or, for a scale collapse, the loss scale) is wrong."""
    size: float = 1.0
    """Height in nats per token; for a drift, nats per token and 1000 steps."""
    duration_steps: int = 5
    """Steps that a spike takes to rise and fall, a collapse to reach the floor, NaN to last."""
    lead_steps: int = 2
    """By how many steps the grad norm moves before the loss."""
    norm_factor: float = 20.0
    """By how much the grad norm grows at the worst."""


def lm_curve(num_rows: int) -> Floats:
    """Return the loss of a made-up language model: 2 + 9 exp(-t/150) + 1.2 (1 + t/400)^-0.6."""
    t = np.arange(num_rows, dtype=np.float64)
    return np.asarray(2 + 9 * np.exp(-t / 150) + 1.2 * (1 + t / 400) ** -0.6, dtype=np.float64)


def make_noise(
    num_steps: int, kind: NoiseKind, rng: np.random.Generator, *, phi: float = 0.9
) -> Floats:
    """Return noise of mean 0 and standard deviation 1 (of the stationary law).

    ar1: x[t] = phi x[t-1] + sqrt(1 - phi^2) e[t]. t3: Student's t with 3 degrees of freedom,
    divided by its standard deviation sqrt(3).
    """
    if kind == "none":
        return np.zeros(num_steps)
    if kind == "t3":
        return np.asarray(rng.standard_t(3, num_steps) / np.sqrt(3.0), dtype=np.float64)
    white = rng.standard_normal(num_steps)
    if kind == "gaussian":
        return white
    noise = np.empty(num_steps)
    level = white[0] if num_steps else 0.0
    for t in range(num_steps):
        level = phi * level + np.sqrt(1.0 - phi * phi) * white[t] if t else white[0]
        noise[t] = level
    return noise


def make_quiet(
    signal: str,
    num_rows: int,
    seed: int,
    *,
    noise: NoiseKind = "gaussian",
    curve: CurveKind = "flat",
) -> Floats:
    """Return float64 [num_rows] of a healthy run.

    Noise .02 for losses, .15 in the log for norms.
    """
    if signal in _STEADY:
        return np.full(num_rows, _STEADY[signal])
    made = make_noise(num_rows, noise, np.random.default_rng(seed))
    if SIGNAL_BY_NAME[signal].scale == "log":
        return np.asarray(np.exp(0.15 * made), dtype=np.float64)
    level = lm_curve(num_rows) if curve == "lm" else np.full(num_rows, 2.5)
    return np.asarray(level + 0.02 * made, dtype=np.float64)


def simulate_run(
    *,
    num_steps: int = 2000,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    noise: NoiseKind = "gaussian",
    noise_level: float = 0.02,
    level: float | None = None,
    warmup_steps: int = 100,
    first_step: int = 1,
) -> RunRecord:
    """Return a run with loss, grad_norm, lr, loss_scale, skipped and step_time_s.

    Args:
        num_steps: Length; one row per step.
        seed: Of the noise; the same seed with other faults has the same noise.
        faults: Planted one after the other.
        noise: Law of the noise of loss and log grad norm.
        noise_level: Standard deviation of the loss noise, nats per token.
        level: A constant loss instead of the falling curve.
        warmup_steps: Linear warm-up of the learning rate; its peak is 3e-4, its end a tenth.
        first_step: Step of the first row.
    """
    rng = np.random.default_rng(seed)
    t = np.arange(num_steps, dtype=np.float64)
    loss = 2.5 + 7.5 * (1.0 + t / 20.0) ** -0.6 if level is None else np.full(num_steps, level)
    columns = {
        "loss": loss + noise_level * make_noise(num_steps, noise, rng),
        "grad_norm": 0.4 * np.exp(0.15 * make_noise(num_steps, noise, rng)),
        "lr": _schedule(t, warmup_steps),
        "loss_scale": np.full(num_steps, 65536.0),
        "skipped": np.zeros(num_steps),
        "step_time_s": 1.0 + 0.01 * np.abs(rng.standard_normal(num_steps)),
    }
    for fault in faults:
        _plant(columns, fault, fault.step - first_step)
    return record_of(t + first_step, columns, source=f"simulated run, seed {seed}")


def record_of(
    steps: Sequence[float] | Floats, columns: Mapping[str, Floats], *, source: str = "simulated"
) -> RunRecord:
    """Return a record of whole columns by canonical name; steps that fall start an attempt."""
    builder = RecordBuilder(source, "simulated")
    whole = {
        n: Column(np.asarray(v, np.float64), np.ones(len(v), np.bool_)) for n, v in columns.items()
    }
    builder.extend(np.asarray(steps, dtype=np.float64), whole)
    return builder.build()


def _schedule(t: Floats, warmup_steps: int) -> Floats:
    peak = 3e-4
    progress = np.clip((t - warmup_steps) / max(1, len(t) - warmup_steps), 0.0, 1.0)
    cosine = 0.1 * peak + 0.45 * peak * (1.0 + np.cos(np.pi * progress))
    return np.where(t < warmup_steps, peak * (t + 1) / max(1, warmup_steps), cosine)


def _plant(columns: dict[str, Floats], fault: Fault, at: int) -> None:
    """Change the columns in place; `at` is the row of the onset."""
    n = len(columns["loss"])
    after = np.arange(n, dtype=np.float64) - at
    since = np.clip(after, 0.0, None)
    on = after >= 0
    if fault.kind in ("nan", "inf"):
        word = np.nan if fault.kind == "nan" else np.inf
        columns["loss"][on & (after < fault.duration_steps)] = word
        return
    if fault.kind == "scale-collapse":
        halvings = np.clip(np.floor(since) + 1, 0, fault.duration_steps) * on
        columns["loss_scale"] *= 0.5**halvings
        columns["skipped"][on & (after < fault.duration_steps)] = 1.0
        return
    columns["loss"] += fault.size * _shape(fault, after)
    ahead = after + fault.lead_steps
    rises = _shape(fault, ahead) if fault.kind not in ("shift", "drift") else _bump(ahead, 3.0)
    columns["grad_norm"] *= 1.0 + (fault.norm_factor - 1.0) * np.clip(rises, 0.0, 1.0)


def _shape(fault: Fault, after: Floats) -> Floats:
    """Return the added loss as a share of `size`, by steps after the onset."""
    width = float(max(1, fault.duration_steps))
    since = np.clip(after, 0.0, None)
    on = after >= 0
    if fault.kind == "spike":
        return _bump(after, width)
    if fault.kind == "slow-spike":
        return np.where(on, np.exp(-since / (20.0 * width)), 0.0)
    if fault.kind == "unrecovered-spike":
        return np.where(on, 0.4 + 0.6 * np.exp(-since / width), 0.0)
    if fault.kind == "shift":
        return on.astype(np.float64)
    return since / 1000.0


def _bump(after: Floats, width: float) -> Floats:
    """Return a tooth: 1 at the onset, down to 0 over `width` steps."""
    return np.where(after >= 0, np.clip(1.0 - after / width, 0.0, 1.0), 0.0)
