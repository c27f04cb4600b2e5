"""Series of values, each with its own name and steps -> rows.

Trackers export one line per value (`step,metric,value`), or one list per metric (`{"loss": [[1,
2.5], ...]}`, `{"name": "loss", "x": [...], "y": [...]}`). The rows are those of the training loss.
Values of other series at the same step join them; values between two rows get a row of their own.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from trimtab.readers.freetext.keys import is_held_out
from trimtab.readers.numbers import BadNumberError, parse_step
from trimtab.readers.table import LogTable
from trimtab.readers.tags import might_be_loss, signal_of_tag
from trimtab.vocabulary import normalise

__all__ = ["LongForm", "fill_series", "main_series", "numbers_of", "series_of"]

StepValues = Sequence[tuple[float, object]]
"""(step, value) in the order of the file."""

_NAME_KEYS = ("metric", "metric name", "metricname", "key", "tag", "variable", "name", "measure")
_VALUE_KEYS = ("value", "metric value", "metricvalue", "y", "val")
_STEP_KEYS = ("step", "steps", "x", "iteration", "iterations", "iter", "global step", "epoch")
_CONTEXT_KEYS = ("context", "metric context", "subset", "split", "phase")
_MIN_PAIRS = 2


class LongForm:
    """Collects rows of `step, name of a metric, value`."""

    def __init__(
        self, name_key: str, value_key: str, step_key: str | None, context_key: str | None
    ) -> None:
        """Start with no values; the keys are those of the file."""
        self.name_key, self.value_key, self.step_key = name_key, value_key, step_key
        self.context_key = context_key
        self.series: dict[str, list[tuple[float, object]]] = {}

    @staticmethod
    def told_by(keys: Iterable[str]) -> "LongForm | None":
        """Return a collector if rows with these keys hold one value each, else None."""
        by_name = {normalise(k.replace(".", " ")): k for k in keys}
        name = next((by_name[k] for k in _NAME_KEYS if k in by_name), None)
        value = next((by_name[k] for k in _VALUE_KEYS if k in by_name), None)
        step = next((by_name[k] for k in _STEP_KEYS if k in by_name), None)
        # A wide table may have a column `name` or `value`; one that is called loss decides.
        if name is None or value is None or any(signal_of_tag(k) == "loss" for k in by_name):
            return None
        context = next((by_name[k] for k in _CONTEXT_KEYS if k in by_name), None)
        return LongForm(name, value, step, context)

    def add(self, row: Mapping[str, object]) -> None:
        """Take one value; one without a name or a whole step is left out."""
        name, value = row.get(self.name_key), row.get(self.value_key)
        if not isinstance(name, str) or value is None:
            return
        if self.context_key and is_held_out(str(row.get(self.context_key))):
            name = f"val/{name}"
        mine = self.series.setdefault(name, [])
        try:
            # Without a step each series counts its own values.
            step = parse_step(row.get(self.step_key)) if self.step_key else float(len(mine))
        except BadNumberError:
            return
        if step is not None:
            mine.append((step, value))


def series_of(part: object) -> StepValues | None:
    """Return the (step, value) pairs that a part of a JSON document is, None for another part.

    Pairs `[step, value]`; triples `[time, step, value]` as TensorBoard exports them; or two lists
    of one length under `steps` and `values`, or `x` and `y`.
    """
    if isinstance(part, dict):
        by_name = {normalise(k): v for k, v in part.items() if isinstance(v, list)}
        steps = next((by_name[k] for k in _STEP_KEYS if k in by_name), None)
        values = next((by_name[k] for k in ("values", *_VALUE_KEYS) if k in by_name), None)
        if steps is None or values is None or len(steps) != len(values):
            return None
        pairs = [list(pair) for pair in zip(steps, values, strict=True)]
    elif isinstance(part, list) and all(isinstance(p, list) for p in part):
        pairs = part
    else:
        return None
    widths = {len(p) for p in pairs}
    if len(pairs) < _MIN_PAIRS or widths not in ({2}, {3}):
        return None
    result: list[tuple[float, object]] = []
    # The last two of two or three: TensorBoard's triples begin with the time.
    for *_, step, value in pairs:
        if not isinstance(step, int | float) or not isinstance(value, int | float | str | None):
            return None
        try:
            result.append((float(step), value))
        except OverflowError:  # a whole number of more than 308 digits
            return None
    return result


def numbers_of(part: object) -> StepValues | None:
    """Return (place, value) of a list of numbers, from 0; None for another part.

    What `print(losses)` and `json.dump(losses)` write. NaN and Inf stay, None is missing.
    """
    if not isinstance(part, list) or len(part) < _MIN_PAIRS:
        return None
    if not all(p is None or (isinstance(p, int | float) and not isinstance(p, bool)) for p in part):
        return None
    return [(float(i), value) for i, value in enumerate(part)]


def main_series(series: Mapping[str, Sequence[object]]) -> str:
    """Return the key of the series that gives the rows: the loss, else the longest."""
    return max(series, key=lambda k: (signal_of_tag(k) == "loss", might_be_loss(k), len(series[k])))


def fill_series(
    table: LogTable, series: Mapping[str, StepValues], *, counted_by: str = "step"
) -> None:
    """Put series into a table, row by row, with their steps under a key; empty: without."""
    wanted = {k: v for k, v in series.items() if len(v) and table.role(k) != "nothing"}
    if not wanted:
        return
    main = main_series(wanted)
    rows: list[tuple[float, dict[str, object]]] = [(s, {main: v}) for s, v in wanted.pop(main)]
    # The highest step so far: steps fall at a restart, and a search by halves needs them in order.
    reached = list(accumulate((step for step, _ in rows), max))
    waiting: dict[tuple[str, float], deque[object]] = {}
    for name, values in wanted.items():
        for step, value in values:
            waiting.setdefault((name, step), deque()).append(value)
    for step, row in rows:
        for name in wanted:
            # A queue: after a restart a step has a second value, for its second row.
            queue = waiting.get((name, step))
            if queue:
                row[name] = queue.popleft()
    between: dict[int, list[tuple[float, dict[str, object]]]] = {}
    for (name, step), queue in sorted(waiting.items(), key=lambda item: item[0][1]):
        at = bisect_right(reached, step)
        between.setdefault(at, []).extend((step, {name: value}) for value in queue)
    line = 0
    for at in range(len(rows) + 1):
        for step, row in (*between.get(at, ()), *rows[at : at + 1]):
            line += 1
            if counted_by:
                table.put(counted_by, step, line)
            for name, value in row.items():
                table.put(name, value, line)
            table.end_row()
