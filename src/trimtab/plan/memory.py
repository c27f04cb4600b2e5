"""Remedies that worked in earlier incidents, from the events of a run; they are tried first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trimtab.plan.plan import Plan
from trimtab.plan.trials import Trial

__all__ = ["ARM_REMEDIES", "prefer", "remedy_of", "what_worked"]

ARM_REMEDIES: Mapping[str, str] = {
    "put-back": "put-back",
    "other-data": "skip-data",
    "lower-lr": "lower-lr",
    "fp32": "fp32",
    "bf16": "bf16",
    "lower-clip": "lower-clip",
    "adam-beta2": "adam-beta2",
    "adam-eps": "adam-eps",
    "optimizer-reset": "optimizer-reset",
}
"""Remedy of the table by the arm that tried it."""

_ARMS = {remedy: arm for arm, remedy in ARM_REMEDIES.items()}


def remedy_of(trial: Trial) -> str:
    """Return what keeping a trial is called.

    Example:
        >>> trial = Trial(name="x", skip=(0, 7), lr_factor=0.5)
        >>> remedy_of(trial), remedy_of(Trial(name="as it was"))
        ('roll-back+skip-data+lower-lr', 'roll-back')
    """
    return "+".join(["roll-back", *(ARM_REMEDIES[a] for a in trial.arms if a in ARM_REMEDIES)])


def what_worked(events: Iterable[tuple[str, Mapping[str, object]]]) -> dict[str, tuple[str, ...]]:
    """Return the arms that worked, by kind of incident, the latest first.

    An arm counts from the outcome that verified it until it fails in a later incident of the same
    kind.

    Args:
        events: (event, fields) of a journal, in order.

    Example:
        >>> what_worked([("incident", {"kind": "spike"}),
        ...              ("action", {"remedy": "roll-back+lower-lr"}),
        ...              ("outcome", {"remedy": "roll-back+lower-lr", "verdict": "worked"})])
        {'spike': ('lower-lr',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    kind, acted_on = "", ""
    for event, data in events:
        remedy = str(data.get("remedy", ""))
        if event == "incident":
            kind = str(data.get("kind", ""))
        # Kept until the outcome: other incidents may be seen before that comes.
        elif event == "action" and remedy.startswith("roll-back"):
            acted_on = kind
        # The outcome of a trial says that a branch held, not that the run did.
        elif event == "outcome" and not data.get("trial") and remedy.startswith("roll-back"):
            arms = tuple(_ARMS[r] for r in remedy.split("+") if r in _ARMS) or ("replay",)
            others = tuple(a for a in found.get(acted_on, ()) if a not in arms)
            if data.get("verdict") == "worked":
                found[acted_on] = arms + others
            elif data.get("verdict") == "did not":
                found[acted_on] = others
    return {k: arms for k, arms in found.items() if k and arms}


def prefer(plan: Plan, worked: Sequence[str]) -> Plan:
    """Return a plan that begins with the remedies that worked in earlier incidents of the kind."""
    names = [ARM_REMEDIES.get(arm, "roll-back") for arm in worked]
    first = [
        replace(r, why="; ".join(filter(None, ("worked in the last incident of this kind", r.why))))
        for name in names
        for r in plan.remedies
        if r.remedy == name or (name == "lower-lr" and r.remedy == "restore-lr")
    ]
    ids = {r.remedy for r in first}
    return replace(
        plan, remedies=tuple(first) + tuple(r for r in plan.remedies if r.remedy not in ids)
    )
