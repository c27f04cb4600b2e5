"""Adam configured to act like SGD (beta1 0, a large eps): does it, and with which rate?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.errors import ConfigError

__all__ = ["FakeSgd", "check_fake_sgd"]

_GAP = 0.01


@dataclass(frozen=True, kw_only=True)
class FakeSgd:
    """How near Adam's step is to SGD's."""

    gap: float
    """Largest relative difference of the two updates: sqrt(v) / (sqrt(v) + eps)."""
    rate: float
    """Learning rate of the SGD step that it stands for: lr / eps."""
    warnings: tuple[str, ...]

    @property
    def effective(self) -> bool:
        """Whether it is SGD to 1 %."""
        return not self.warnings


def check_fake_sgd(
    wanted: Mapping[str, float], in_force: Mapping[str, float], *, grad_rms: float
) -> FakeSgd:
    """Return whether Adam with these settings takes SGD's steps.

    Adam's step is lr g / (sqrt(v) + eps) with beta1 = 0; for eps >> sqrt(v) it is (lr / eps) g.
    Blind to single elements whose gradient is far above the RMS.

    Args:
        wanted: beta1, eps and lr as requested.
        in_force: The same as the optimizer holds them, read after the load: a checkpoint brings its
            own back.
        grad_rms: Root mean square of a gradient element.

    Raises:
        ConfigError: A setting is missing.

    Example:
        >>> requested = {"beta1": 0.0, "eps": 100.0, "lr": 1.0}
        >>> check_fake_sgd(requested, requested, grad_rms=1e-3).effective
        True
        >>> in_force = {**requested, "eps": 1e-8}
        >>> check_fake_sgd(requested, in_force, grad_rms=1e-3).warnings[0].split(":")[0]
        'eps is 1e-08 in force and not 100'
    """
    for side, values in (("requested", wanted), ("in force", in_force)):
        missing = [k for k in ("beta1", "eps", "lr") if k not in values]
        if missing:
            raise ConfigError(f"settings {side}: no {', '.join(missing)}")
    warnings = [
        f"{k} is {in_force[k]:g} in force and not {wanted[k]:g}: not effective, loading a"
        " checkpoint brought the old one back"
        for k in ("eps", "beta1", "lr")
        # abs_tol for beta1 = 0, to which no relative distance exists.
        if not math.isclose(in_force[k], wanted[k], rel_tol=1e-9, abs_tol=1e-15)
    ]
    eps = in_force["eps"]
    gap = grad_rms / (grad_rms + eps) if grad_rms + eps > 0 else math.nan
    if in_force["beta1"] != 0:
        warnings.append(f"beta1 is {in_force['beta1']:g}: steps are averaged, SGD's are not")
    # Not `>`: a NaN gap must warn, too.
    if not gap <= _GAP:
        warnings.append(
            f"eps {eps:g} is not large beside gradients of {grad_rms:.3g}: the step is off by up to"
            f" {gap:.0%}"
        )
    rate = in_force["lr"] / eps if eps > 0 else math.inf
    return FakeSgd(gap=gap, rate=rate, warnings=tuple(warnings))
