"""Differences between a run and its parent, and a search for the one that caused a failure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Change", "ChangeSet", "Lint", "Narrowing", "change_set"]

_LR_KEYS = ("lr", "learning_rate", "learning-rate", "max_lr", "peak_lr")
_OPTIMIZER_KEYS = ("optimizer", "optimizer_type", "optim", "optimizer.type", "optimizer.name")


@dataclass(frozen=True)
class Change:
    """One key; None: not stated on that side."""

    key: str
    was: str | None
    now: str | None

    def __str__(self) -> str:
        """Return it as a clause."""
        was, now = ("not stated" if x is None else x for x in (self.was, self.now))
        return f"{self.key} {was} to {now}"


@dataclass(frozen=True)
class Lint:
    """A warning about changes that have misled people."""

    id: str
    text: str


@dataclass(frozen=True)
class ChangeSet:
    """All that differs between a run and its parent."""

    changes: tuple[Change, ...]
    parent: Mapping[str, str] = field(default_factory=dict)

    @property
    def lints(self) -> tuple[Lint, ...]:
        """Return the warnings to consider before the launch."""
        return tuple(self._lints())

    def _lints(self) -> Iterator[Lint]:
        if len(self.changes) > 1:
            keys = ", ".join(c.key for c in self.changes)
            yield Lint(
                "several-changes",
                f"{len(self.changes)} keys differ from the parent ({keys}): if it goes well, or"
                " fails, it cannot be told which one did it; vary one thing, or bisect",
            )
        keys_changed = {c.key.lower().lstrip("-") for c in self.changes}
        optimizer = next((c for c in self.changes if _is(c.key, _OPTIMIZER_KEYS)), None)
        if optimizer is not None and not any(_is(k, _LR_KEYS) for k in keys_changed):
            yield Lint(
                "optimizer-without-lr",
                f"the optimizer changes ({optimizer}) and the learning rate does not: a rate that"
                " suits Adam is mostly far too small for SGD (OPT-175B's plateau), and the other"
                " way round far too large",
            )

    def applied(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the parent's settings with these of the changes made."""
        settings = dict(self.parent)
        for c in self.changes:
            if c.key in keys:
                if c.now is None:
                    settings.pop(c.key, None)
                else:
                    settings[c.key] = c.now
        return settings

    def narrowing(self) -> "Narrowing":
        """Return a schedule of runs that finds the change to blame."""
        return Narrowing(keys=tuple(c.key for c in self.changes))


def change_set(parent: Mapping[str, str], child: Mapping[str, str]) -> ChangeSet:
    """Return what differs; numbers that are equal count as equal.

    Example:
        >>> change_set({"lr": "6e-5", "seed": "1"}, {"lr": "0.00006", "seed": "2"}).changes
        (Change(key='seed', was='1', now='2'),)
    """
    keys = sorted({*parent, *child})
    found = (Change(k, parent.get(k), child.get(k)) for k in keys)
    return ChangeSet(tuple(c for c in found if not _same(c.was, c.now)), dict(parent))


def _same(a: str | None, b: str | None) -> bool:
    if a == b:
        return True
    try:
        # Settings are text, and 6e-5 and 0.00006 are one setting, printed by two launchers.
        return a is not None and b is not None and float(a) == float(b)
    except ValueError:
        return False


def _is(key: str, names: Sequence[str]) -> bool:
    return key.lower().lstrip("-").replace("-", "_") in [n.replace("-", "_") for n in names]


@dataclass
class Narrowing:
    """Find the change to blame among many: run with half of them, and repeat.

    All together are known to fail, none of them is known to work. As long as one change alone may
    do it, a half that goes well blames the other half: n changes need ⌈log2 n⌉ runs. A change that
    is left over so is run alone; where that goes well, the fault needs several changes at once, and
    the result is that set.

    Example:
        >>> runs = Narrowing(keys=("clip", "lr", "seed", "wd"))
        >>> while runs.next_run:
        ...     runs.report(failed="seed" in runs.next_run)
        >>> runs.blamed, runs.num_runs
        (('seed',), 2)

    References:
        Zeller & Hildebrandt (2002), Simplifying and isolating failure-inducing input: ddmin.
    """

    keys: tuple[str, ...]
    num_runs: int = 0
    # As sets, so that a run is known however its keys are ordered when it comes up again.
    _known: dict[frozenset[str], bool] = field(default_factory=dict)

    @property
    def next_run(self) -> tuple[str, ...]:
        """Keys to change in the next run; empty once it is known."""
        return next(iter(self.schedule()), ())

    @property
    def blamed(self) -> tuple[str, ...]:
        """The smallest set that is known to fail."""
        return self._narrowed()[0]

    def schedule(self) -> tuple[tuple[str, ...], ...]:
        """Return the runs that can be launched now, side by side."""
        return self._narrowed()[1]

    def report(self, *, failed: bool) -> None:
        """Record how the next run went."""
        self._known[frozenset(self.next_run)] = failed
        self.num_runs += 1

    def _narrowed(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """Return the set that is known to fail, and the runs that would make it smaller."""
        left = self.keys
        while len(left) > 1:
            half = left[: len(left) // 2]
            failed = self._known.get(frozenset(half))
            if failed is None:
                return left, (half,)
            left = half if failed else left[len(half) :]
        alone = len(self.keys) < 2 or self._known.get(frozenset(left))
        if alone is not False:
            return left, (left,) if alone is None else ()
        current, num_parts = self.keys, 2
        while len(current) > 1:
            bounds = [round(i * len(current) / num_parts) for i in range(num_parts + 1)]
            parts = [current[a:b] for a, b in pairwise(bounds)]
            others = [tuple(k for k in current if k not in part) for part in parts]
            # Of two parts each is the complement of the other, so the complements add no run.
            runs = parts if num_parts == 2 else [*parts, *others]
            failing = next((r for r in runs if self._known.get(frozenset(r))), None)
            if failing is not None:
                # ddmin: a failing part is halved anew, a failing complement keeps its finer parts.
                num_parts = 2 if failing in parts else max(num_parts - 1, 2)
                current = failing
                continue
            unknown = tuple(r for r in runs if frozenset(r) not in self._known)
            if unknown or num_parts >= len(current):
                return current, unknown
            num_parts = min(2 * num_parts, len(current))
        return current, ()
