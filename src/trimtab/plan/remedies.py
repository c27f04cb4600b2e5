"""What a remedy is, as data: what it changes, what it costs, how to undo it, where it helped.

The table itself is `REMEDIES` in `remedy_table`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trimtab.detectors.stand_in import Training
from trimtab.errors import ConfigError
from trimtab.plan.plan import PlannedRemedy

__all__ = ["Evidence", "Remedy", "When", "only_failed"]

When = Literal["mid-run", "from scratch", "unsure"]


@dataclass(frozen=True)
class Evidence:
    """One run in which a remedy was used."""

    run: str
    source: str
    """Where it can be read."""
    note: str = ""
    """What came of it, a few words."""
    language: bool = False
    """Whether it is the pre-training of a language model, which says little of other training."""

    def __str__(self) -> str:
        """Return it as one clause."""
        return (
            f"{self.run}: {self.note} ({self.source})"
            if self.note
            else f"{self.run} ({self.source})"
        )


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One kind of change."""

    id: str
    title: str
    changes: str
    """What it sets."""
    cost: str
    """What is paid for it; never empty."""
    undo: str
    when: When
    """Whether it may be made during a run."""
    needs: tuple[str, ...] = ()
    """Traits of a run without which it has nothing to act on; see `trimtab.plan.traits`."""
    unfit: tuple[Training, ...] = ()
    """Kinds of training that it has nothing to offer: an agent makes its data itself."""
    labels: tuple[str, ...] = ()
    """What must be known of it besides its cost: "may mask", "evidence: delays only?"."""
    worked: tuple[Evidence, ...] = ()
    failed: tuple[Evidence, ...] = ()
    """Runs in which it did not help, or harmed."""

    def __post_init__(self) -> None:
        """Refuse a remedy that claims to be free or cannot be explained."""
        for name in ("id", "title", "changes", "cost", "undo"):
            if not getattr(self, name).strip():
                raise ConfigError(f"remedy {self.id!r} has no {name}; every remedy states one")

    def planned(
        self,
        why: str,
        values: Mapping[str, float | str | bool | None] | None = None,
        *,
        flags: str = "",
        foreign: bool = False,
    ) -> PlannedRemedy:
        """Return this remedy as a step of a plan.

        Args:
            why: What it rests on, for people.
            values: What to set.
            flags: How to set it in the trainer's own words.
            foreign: Whether the run is no language model, so that theirs are no evidence.
        """
        return PlannedRemedy(
            remedy=self.id,
            values=dict(values or {}),
            why=why,
            cost=self.cost,
            undo=self.undo,
            when=self.when,
            flags=flags,
            labels=self.labels,
            worked=tuple(str(e) for e in self.worked if not (foreign and e.language)),
            failed=tuple(str(e) for e in self.failed if not (foreign and e.language)),
        )


def only_failed(remedy: Remedy) -> bool:
    """Tell whether all that is known of a remedy is that it did not help."""
    return bool(remedy.failed) and not remedy.worked
