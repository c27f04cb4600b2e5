"""MLPerf's logging: `:::MLLOG {json}` lines among the trainer's other output.

A training loss is in `tracked_stats` (a mapping) or under a key such as `train_loss`; the step is
in the line's metadata, as `step` or `step_num`. Where it has only `samples_count`, rows are counted
by that, and a note says so. Other ranks repeat the lines of the first.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.errors import ReadError
from trimtab.readers.base import Sample, TextLines
from trimtab.readers.jsonl import flatten, parse_object
from trimtab.readers.table import LogTable
from trimtab.record import RunRecord
from trimtab.vocabulary import canonical, normalise

__all__ = ["MllogReader"]

_LINE = re.compile(r":::MLL(?:OG)?\s*(\{.*)")
_LOSS_EVENT = rb':::MLL(?:OG)? [^\n]{0,400}"(?:tracked_stats|[a-z_]*loss[a-z_]*)"'
_STEP_KEYS = ("step", "step_num", "iteration", "iter_num", "global_step")
_SAMPLE_KEYS = ("samples_count", "samples_num", "samples")
_EPOCH_KEYS = ("epoch_num", "epoch_count", "epoch")
_LOSS_QUALITY = ("gpt", "llama", "mixtral", "flux")
"""Benchmarks whose `eval_accuracy` is a validation loss: their target is a log-perplexity."""


class MllogReader:
    """Reads MLPerf logs."""

    name = "mllog"
    looks_for = 'MLPerf lines (`:::MLLOG {"key": "tracked_stats", ...}`)'

    def sniff(self, sample: Sample) -> float:
        """Return 0.93 where a line with a loss occurs, however deep in the file."""
        if sample.is_binary:
            return 0.0
        return 0.93 if sample.contains(_LOSS_EVENT) else 0.0

    def read(self, path: Path) -> RunRecord:
        """Read the file.

        Raises:
            ReadError: No line holds a loss.
        """
        lines = TextLines(path)
        parse = _Parse(LogTable(str(path), self.name))
        for number, line in enumerate(lines, 1):
            match = _LINE.search(line) if ":::MLL" in line else None
            event = parse_object(match[1]) if match is not None else None
            if event is not None:
                parse.see(event, number)
        if parse.table.num_rows == 0:
            raise ReadError(f"{path}: no MLPerf line with a loss; looked for {self.looks_for}")
        parse.table.notes.extend([*parse.notes(), *lines.notes()])
        parse.table.bad.clear()
        return parse.table.to_record(columnar=False)


@dataclass
class _Parse:
    table: LogTable
    batch_size: float = 0.0
    benchmark: str = ""
    counts_samples: bool = False
    seen: set[str] = field(default_factory=set)
    """Lines so far, without their time: what other ranks repeat."""

    def notes(self) -> list[str]:
        """Say what the rows are counted by, where that is no step."""
        if not self.counts_samples:
            return []
        size = f"; {self.batch_size:g} samples make a step" if self.batch_size else ""
        return [f"rows are counted by samples{size}"]

    def see(self, event: dict[str, object], number: int) -> None:
        key, value = event.get("key"), event.get("value")
        if key == "global_batch_size" and isinstance(value, int | float) and value > 0:
            self.batch_size = float(value)
        elif key == "submission_benchmark":
            self.benchmark = str(value).lower()
        if not isinstance(key, str) or value is None:
            return
        values = {k: v for k, v in self._values(key, value) if v is not None}
        metadata = event.get("metadata")
        place = self._place(metadata if isinstance(metadata, dict) else {})
        # Not the whole event: its time differs from rank to rank.
        shown = repr((sorted(values.items(), key=str), place))
        # A number without a place is a setting or a result of the whole run.
        if not values or shown in self.seen or not (place or isinstance(value, dict)):
            return
        self.seen.add(shown)
        for name, cell in [*place, *values.items()]:
            if name != "samples_seen" or "val_loss" not in values:  # a late one is no restart
                self.table.put(name, cell, number)
        self.table.end_row()

    def _values(self, key: str, value: object) -> Iterator[tuple[str, object]]:
        """Yield the signals of an event."""
        if isinstance(value, dict):
            for name, cell in flatten(value):
                if _is_number(cell) and name not in _STEP_KEYS:
                    yield name, cell
        elif _is_number(value):
            is_quality = key in ("eval_accuracy", "eval_error", "eval_loss", "validation_loss")
            if is_quality and ("loss" in key or self.benchmark.startswith(_LOSS_QUALITY)):
                yield "val_loss", value
            elif canonical(key) is not None or "loss" in normalise(key).split():
                yield key, value

    def _place(self, metadata: dict[str, object]) -> list[tuple[str, object]]:
        for names, kind in (
            (_STEP_KEYS, "step"),
            (_SAMPLE_KEYS, "samples"),
            (_EPOCH_KEYS, "epoch"),
        ):
            at = next((metadata[n] for n in names if _is_number(metadata.get(n))), None)
            if at is None:
                continue
            if kind == "samples":
                self.counts_samples = True
                return [("step", at), ("samples_seen", at)]
            return [(kind, at)]
        return []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
