"""What is known of kinds of incident beyond this log, as data: looks, runs, look-alikes.

The tables are `KIND_NOTES` and `LOOK_ALIKES`; remedies with their runs are in
`trimtab.plan.remedy_table`, what the sources disagree on in `trimtab.plan.conflicts`.
"""

from dataclasses import dataclass

__all__ = ["KindNote", "LookAlike", "PublicRun"]


@dataclass(frozen=True)
class PublicRun:
    """One public run in which it happened."""

    run: str
    source: str
    """Where it can be read."""
    note: str
    """What was seen, with numbers where the source prints them."""

    def __str__(self) -> str:
        """Return it as one clause."""
        return f"{self.run}: {self.note} ({self.source})"


@dataclass(frozen=True, kw_only=True)
class KindNote:
    """How a kind of incident looks, beyond its meaning in `trimtab.kinds`."""

    kind: str
    looks: str
    first: str
    """What moves first, and how long before; empty where nothing is known to."""
    seen: tuple[PublicRun, ...] = ()
    signs: tuple[str, ...] = ()
    """Detectors of which each by itself makes an incident of this kind, where the kind is made of
    nothing else: what they speak for are its causes."""


@dataclass(frozen=True, kw_only=True)
class LookAlike:
    """Two things that look the same in a loss curve, and what tells them apart."""

    one: str
    """Id of a kind or of a cause."""
    other: str
    how: str
    """The evidence, cheapest first."""
    source: str = ""
    """Who separated them that way; empty: follows from what the two are."""
