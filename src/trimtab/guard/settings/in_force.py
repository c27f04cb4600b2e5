"""What the guard holds against the script's own settings, in words for people and for files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.guard.state.decisions import lr_factor, lr_holds_at, lr_limit

if TYPE_CHECKING:
    from trimtab.guard.state.decisions import Decisions

__all__ = ["in_force"]


def in_force(decisions: Decisions, step: int) -> tuple[str, ...]:
    """Return one sentence for each change of a setting that stands; empty where none does.

    Args:
        decisions: Of the run.
        step: The one to come: a rate may be held from some step on only.

    Example:
        >>> from trimtab.guard.state.decisions import Decisions
        >>> in_force(Decisions(lr_cuts=[(0, 0.5)], clip_factor=0.25), 7)
        ('learning rate x 0.5', 'clip x 0.25')
    """
    d = decisions
    told: list[str] = []
    factor = lr_factor(d.lr_cuts, step)
    if factor != 1.0:
        told.append(f"learning rate x {factor:.3g}")
    for _, _, value, share, sound in lr_holds_at(d.lr_holds, step):
        how = f" (the schedule's x {share:.3g})" if share != 1.0 else ""
        told.append(
            f"learning rate held at {value:.3g}{how} until the script asks for {sound:.3g} or less"
        )
    limit = lr_limit(d.lr_limits, step)
    if limit < float("inf"):
        told.append(f"learning rate at most {limit:.3g}")
    if d.clip_factor != 1.0:
        told.append(f"clip x {d.clip_factor:.3g}")
    told += [f"{name} = {value:.3g}" for name, value in d.optimizer_settings.items()]
    if d.precision:
        told.append(f"forward pass in {d.precision}")
    told += [_held(name, values) for name, values in d.held_settings.items()]
    return tuple(told)


def _held(name: str, values: list[float]) -> str:
    if name == "loss.factor":
        return f"loss divided by {values[0]:.3g} where the script multiplies it so"
    if name.startswith("batch") and len(values) == 4:
        return f"{name} brought back to mean {values[0]:.3g}, spread {values[1]:.3g}"
    if name.endswith(".training"):
        modes = " or ".join(m for m, v in (("train", 1.0), ("eval", 0.0)) if v in values)
        return f"{name.removesuffix('.training')} modules kept in {modes} mode, as they were before"
    return f"{name} held at {' '.join(sorted({f'{v:.6g}' for v in values}))}"
