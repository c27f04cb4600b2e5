"""Lists of one document that are counted by steps of their own.

`{"train_steps": [100, 200, ...], "train_losses": [...], "valid_steps": [400, 800, ...],
"valid_losses": [...]}`: a list belongs to the steps whose name shares a word with it, or that alone
have its length. Held-out values without steps, and half as many as losses or fewer, lie evenly
between them: an evaluation follows each so many records.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimtab.readers.tags import is_validation_word
from trimtab.vocabulary import normalise

__all__ = ["Placed", "placed"]

_STEP_WORDS = frozenset(
    ["step", "steps", "iter", "iters", "iteration", "iterations", "update", "updates", "it"]
)
_EPOCH_WORDS = frozenset({"epoch", "epochs"})
_OF_TRAINING = frozenset({"train", "training", "global", "current"})
_LEAST_SPARSE = 2
"""Losses per held-out value from which those without steps are spread. Ours."""


@dataclass(frozen=True)
class Placed:
    """Lists with the steps of their values."""

    axis: str
    """`step` or `epoch`; empty where nothing counts them but their place."""
    series: dict[str, list[tuple[float, object]]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Count:
    axis: str
    words: frozenset[str]
    """What its name says beside that it counts."""
    steps: list[float]


def placed(columns: Mapping[str, Sequence[object]], loss: str) -> Placed | None:
    """Return the lists by their steps; None where row by row, as they stand, they belong together.

    Args:
        columns: By key, the lists of numbers of a document.
        loss: The key of them that is the training loss, or leads in its place.

    Example:
        >>> found = placed(
        ...     {"steps": [1, 2, 3, 4], "loss": [4.0, 3, 2, 1], "val_steps": [2, 4], "val": [3, 2]},
        ...     "loss",
        ... )
        >>> found.series["val"]
        [(2.0, 3), (4.0, 2)]
    """
    counts = {k: c for k, values in columns.items() if (c := _count(k, values)) is not None}
    num = len(columns[loss])
    main = _of(loss, num, counts, None)
    others = {k: c for k, c in counts.items() if main is not None and c.axis == main.axis}
    if main is None:
        # Of losses that nothing counts, the steps of evaluations may say the places.
        others = {k: c for k, c in counts.items() if num / 2 <= c.steps[-1] <= num}
        from_one = any(c.steps[-1] == num for c in others.values())
        main = _Count(
            "step" if others else "", frozenset(), [float(i + from_one) for i in range(num)]
        )
    series: dict[str, list[tuple[float, object]]] = {}
    notes: list[str] = []
    moved = False
    for key, values in columns.items():
        if key in counts:
            continue
        own = _of(key, len(values), others, main)
        steps = main.steps if own is None else own.steps
        if own is None and num >= _LEAST_SPARSE * len(values) > 1 and _is_held_out(key):
            notes.append(f"{key}: {len(values)} values for {num} losses, taken as evenly spread")
            steps = [main.steps[(i + 1) * num // len(values) - 1] for i in range(len(values))]
        moved = moved or steps[: len(values)] != main.steps[: len(values)]
        series[key] = list(zip(steps, values, strict=False))
    return Placed(main.axis, series, tuple(notes)) if moved else None


def _words(key: str) -> frozenset[str]:
    """Return the words of a key, one for all names of validation."""
    words = re.split(r"[^a-z0-9]+", normalise(key))
    return frozenset(
        "val" if is_validation_word(w) and not w.startswith("test") else w for w in words if w
    )


def _is_held_out(key: str) -> bool:
    return any(map(is_validation_word, _words(key)))


def _count(key: str, values: Sequence[object]) -> _Count | None:
    words = _words(key)
    named = words & (_STEP_WORDS | _EPOCH_WORDS)
    if len(named) != 1:
        return None
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    try:
        steps = [float(v) for v in numbers]
    except OverflowError:  # a whole number of more than 308 digits
        return None
    # Times of a step, and settings such as the steps of a warm-up, do not rise by whole numbers.
    if len(steps) != len(values) or not all(s.is_integer() for s in steps):
        return None
    if len(steps) < 2 or steps[-1] <= steps[0]:
        return None
    return _Count("epoch" if named <= _EPOCH_WORDS else "step", words - named, steps)


def _of(key: str, num: int, counts: Mapping[str, _Count], main: _Count | None) -> _Count | None:
    """Return the steps of a list of so many values; None where nothing says which."""
    fitting = [c for c in counts.values() if len(c.steps) == num]
    words = _words(key)
    shared = [c for c in fitting if c.words & words]
    if shared:
        return shared[0]
    if main is not None and num == len(main.steps):
        return main
    plain = [c for c in fitting if c.words <= _OF_TRAINING] if main is None else fitting
    return plain[0] if len(plain) == 1 or (plain and main is None) else None
