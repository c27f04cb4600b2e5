"""Simulates a dynamic fp16 loss scaler, healthy or losing headroom.

Scale and skipped steps per row.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["simulate_scaler", "tr8_104b_twin"]

Floats = NDArray[np.float64]


def simulate_scaler(
    headroom: Floats, seed: int, *, window_steps: int = 1000, spread: float = 0.4
) -> tuple[Floats, Floats]:
    """Return loss scale and skip flags, float64 [n] each.

    A step overflows where log2(scale) > headroom[t] + spread * e[t], e ~ Student's t with 5 degrees
    of freedom; the scale halves and the step is skipped. After `window_steps` clean steps it
    doubles.

    Args:
        headroom: float64 [n], log2 of the largest scale that the gradients of a usual step bear.
        seed: Of the noise.
        window_steps: Clean steps before the scale is doubled: Megatron's 1000, DeepSpeed's too.
        spread: How much steps differ, octaves.
    """
    limit = headroom - spread * np.abs(np.random.default_rng(seed).standard_t(5, len(headroom)))
    scale, skipped = np.empty(len(headroom)), np.zeros(len(headroom))
    level, clean = float(np.floor(headroom[0])) - 1.0 if len(headroom) else 0.0, 0
    for t, most in enumerate(limit.tolist()):
        scale[t] = 2.0**level
        clean += 1
        if level > most:
            level, clean, skipped[t] = level - 1.0, 0, 1.0
        elif clean == window_steps:
            level, clean = level + 1.0, 0
    return scale, skipped


def tr8_104b_twin(seed: int, *, num_steps: int = 7400) -> dict[str, Floats]:
    """Return loss, loss_scale and skipped of a run like BigScience's tr8-104B, float64 [n] each.

    The scale begins to sink at step 4,700, an octave in 250 steps (our guess: the chronicle shows a
    picture), and the loss explodes at 7,000 (6.4 to 14 in ten steps), as the chronicle says of the
    first try; all else is simulated.
    """
    rng = np.random.default_rng(seed)
    t = np.arange(num_steps, dtype=np.float64)
    loss = 6.2 + 4.5 * np.exp(-t / 600.0) + 0.03 * rng.standard_normal(num_steps)
    loss = loss + np.where(t >= 7000, np.clip((t - 7000) / 10.0, 0.0, 1.0) * 7.6, 0.0)
    scale, skipped = simulate_scaler(14.5 - np.clip((t - 4700) / 250.0, 0.0, None), seed + 1)
    return {"loss": loss, "loss_scale": scale, "skipped": skipped}
