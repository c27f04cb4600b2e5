"""Decide whether a printed grad norm is still multiplied by the fp16 loss scale.

Megatron-DeepSpeed prints DeepSpeed's norm of the scaled gradients (seen in the public logs of
bigscience-workshop/bigscience: dividing makes every line consistent); Megatron-LM unscales first.
The lines look alike, so the values have to decide.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ScalingDecision", "decide_scaling", "scale_slope"]

_MIN_CHANGES = 3
_PLATEAU_ROWS = 5
# A factor of 30: below it both readings are norms that a model may have.
_CLEAR_DECADES = 1.5


@dataclass(frozen=True)
class ScalingDecision:
    """Whether the printed norm is multiplied by the loss scale, and how that was decided."""

    scaled: bool
    why: str
    note: str = ""
    """What to tell people where nothing is divided out."""


def decide_scaling(
    norm: NDArray[np.float64],
    scale: NDArray[np.float64],
    attempt: NDArray[np.int32],
    *,
    prints_true_norm: bool = False,
) -> ScalingDecision:
    """Decide by three kinds of evidence, the strongest first.

    1. Slope. Where the loss scale changes, a multiplied norm changes with it: the median of
       d log norm / d log scale over at least 3 changes is near 1 (multiplied) or near 0 (true).
       A run that explodes while its scale is being halved also gives a low slope, so "true" is
       believed only where the magnitude does not clearly contradict it.
    2. Layout. Fields that only Megatron-LM's later versions print: the norm is the true one.
    3. Magnitude. Norms of language models lie within a few decades of 1. If the printed norm and
       the divided one differ by 1.5 decades in their distance from 1, the nearer one is believed.

    Otherwise it cannot be decided; the norm stays as printed and the note says so.
    Blind spot: in the one step in which the scale has just been doubled the printed scale is not
    yet the one that multiplied the norm, so the quotient is half the true norm there.

    Args:
        norm: float64 [n_rows], as printed, skipped steps left out.
        scale: float64 [n_rows], loss scale above 1.
        attempt: int32 [n_rows]; changes of scale are sought within an attempt only.
        prints_true_norm: Whether the layout is that of a trainer known to print the true norm.
    """
    slope, num_changes = scale_slope(norm, scale, attempt)
    gain, how_large = _magnitude(norm, scale)
    if num_changes >= _MIN_CHANGES:
        how = f"over {num_changes} changes of the loss scale its log-log slope is {slope:.2f}"
        # Half-way between the two cases would be 0.5; a quarter on either side is left undecided.
        if slope > 0.75:
            return ScalingDecision(scaled=True, why=how)
        # a low slope alone does not do: a run that explodes while its scale falls has one too
        if slope < 0.25 and gain < _CLEAR_DECADES:
            return ScalingDecision(scaled=False, why=how, note=f"taken as the true one: {how}")
    # the layout comes after the slope: forks print the same lines with another norm
    if prints_true_norm:
        how = "the layout is Megatron-LM's own, which prints the true norm"
        return ScalingDecision(scaled=False, why=how, note=f"taken as printed: {how}")
    if gain >= _CLEAR_DECADES:
        return ScalingDecision(scaled=True, why=f"{how_large}; only the latter is plausible")
    if gain <= -_CLEAR_DECADES:
        how = f"{how_large}; only the former is plausible"
        return ScalingDecision(scaled=False, why=how, note=f"taken as the true one: {how}")
    # left as printed: a wrong factor would be worse than none
    doubt = "it cannot be told whether the printed one is multiplied by the loss scale"
    return ScalingDecision(
        scaled=False, why=how_large, note=f"{doubt} ({how_large}); it is left as printed"
    )


def _magnitude(norm: NDArray[np.float64], scale: NDArray[np.float64]) -> tuple[float, str]:
    """Return by how many decades dividing brings the median norm nearer to 1, and the figures."""
    good = np.isfinite(norm) & (norm > 0) & np.isfinite(scale)
    if not good.any():
        return 0.0, "no finite norm"
    printed = float(np.median(norm[good]))
    divided = float(np.median(norm[good] / scale[good]))
    gain = float(abs(np.log10(printed)) - abs(np.log10(divided)))
    return gain, f"median {printed:.4g} as printed, {divided:.3g} divided"


def scale_slope(
    norm: NDArray[np.float64], scale: NDArray[np.float64], attempt: NDArray[np.int32]
) -> tuple[float, int]:
    """Return the median of d log norm / d log scale over the changes of scale, and their number.

    Each side of a change is the median of up to 5 finite norms at that scale.
    """
    good = np.isfinite(norm) & (norm > 0) & np.isfinite(scale) & (scale > 0)
    log_norm, log_scale = np.log(norm[good]), np.log(scale[good])
    run_ends = np.flatnonzero((np.diff(log_scale) != 0) | (np.diff(attempt[good]) != 0)) + 1
    bounds = [0, *run_ends.tolist(), len(log_scale)]
    slopes: list[float] = []
    for left, here, right in zip(bounds, bounds[1:], bounds[2:], strict=False):
        change = log_scale[here] - log_scale[here - 1]
        if change == 0 or attempt[good][here] != attempt[good][here - 1]:
            continue
        # Few rows: the farther from the change, the more the norm moves by itself.
        before = np.median(log_norm[max(left, here - _PLATEAU_ROWS) : here])
        after = np.median(log_norm[here : min(right, here + _PLATEAU_ROWS)])
        slopes.append(float((after - before) / change))
    return (float(np.median(slopes)), len(slopes)) if slopes else (0.0, 0)
