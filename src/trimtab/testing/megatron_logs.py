"""Prints a record as Megatron text, with the traps of the real format as options.

The record is in trimtab's units: true grad norm, seconds, `skipped` as 0 or 1 of the row's steps.
What comes out is what the trainer would have printed: `readers.megatron` must give the record back.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trimtab.record import RunRecord

__all__ = ["MegatronStyle", "print_lines", "print_log"]

_RULE = "-" * 96


@dataclass(frozen=True, kw_only=True)
class MegatronStyle:
    """Which of Megatron's descendants prints, and which traps are set."""

    layout: Literal["megatron-deepspeed", "megatron-lm"] = "megatron-deepspeed"
    """Megatron-LM's later versions print a time stamp, throughput and params norm."""
    total_steps: int = 159576
    """Planned length of the run, after the slash."""
    norm_times_loss_scale: bool = True
    """Print the grad norm multiplied by the loss scale, as Megatron-DeepSpeed does in fp16."""
    norm_not_wired: bool = False
    """Print 0.000 for every grad norm."""
    reprint_norm_on_skip: bool = True
    """On a skipped step, print the norm of the step before again; else leave the field out."""
    count_skips: bool = True
    """Whether the counter of skipped iterations moves; older DeepSpeed versions leave it at 0."""
    time_in_seconds: bool = False
    """Print seconds per iteration instead of milliseconds."""
    rank_prefixes: tuple[str, ...] = ("",)
    """Print every record once behind each of these, such as `[default7]:` and ` 0: `."""
    rank_lag_rows: int = 0
    """By how many records each further rank lags behind the one before."""
    rules: bool = True
    """Rules of dashes around validation lines."""
    elide_after: frozenset[float] = field(default_factory=frozenset)
    """Steps after which `[...]` stands."""
    announce_restarts: bool = True
    """Print what a launch prints (arguments, checkpoint loaded) before each later attempt."""
    progress_bars: bool = False
    """Print a progress bar with carriage returns before each record."""


def print_log(record: RunRecord, style: MegatronStyle | None = None) -> str:
    """Return the whole log as text."""
    return "".join(f"{line}\n" for line in print_lines(record, style))


def print_lines(record: RunRecord, style: MegatronStyle | None = None) -> Iterator[str]:
    """Yield the lines of the log, without their ends."""
    style = style or MegatronStyle()
    for index, attempt in enumerate(record.attempts):
        if style.announce_restarts and (index or attempt.settings):
            yield from _launch(record, index)
        printed: list[list[str]] = []
        for row in range(attempt.first_row, attempt.end_row):
            printed.append(list(_row_lines(record, row, style)))
        yield from _interleave(printed, style)


def _launch(record: RunRecord, index: int) -> Iterator[str]:
    attempt = record.attempts[index]
    yield "------------------------ arguments ------------------------"
    for name, value in attempt.settings.items():
        yield f"  {name} {'.' * max(3, 48 - len(name))} {value}"
    yield "-------------------- end of arguments ---------------------"
    step = attempt.parent_step
    if step is None and index:
        step = record.step[attempt.first_row] - 1
    if step is not None:
        yield f"  successfully loaded checkpoint from checkpoints at iteration {step:.0f}"


def _interleave(rows: list[list[str]], style: MegatronStyle) -> Iterator[str]:
    """Yield the lines of all rows, each once per rank, later ranks behind."""
    last = len(style.rank_prefixes) - 1
    for now in range(len(rows) + last * style.rank_lag_rows):
        for rank, prefix in enumerate(style.rank_prefixes):
            row = now - rank * style.rank_lag_rows
            if 0 <= row < len(rows):
                yield from (f"{prefix}{line}" for line in rows[row])


def _row_lines(record: RunRecord, row: int, style: MegatronStyle) -> Iterator[str]:
    step = float(record.step[row])
    if style.progress_bars:
        done = int(100 * step / style.total_steps)
        yield (
            f"\rtraining: {done}%|{'#' * (done // 10):10}|\rtraining:"
            f" {done}%|{'#' * (done // 10):10}|"
        )
    if _get(record, "loss", row) is not None or _get(record, "lr", row) is not None:
        yield _record_line(record, row, style)
    validation = _get(record, "val_loss", row)
    if validation is not None:
        yield from _validation_lines(step, validation, _get(record, "perplexity", row), style)
    if step in style.elide_after:
        yield " [...]"


def _validation_lines(
    step: float, loss: float, perplexity: float | None, style: MegatronStyle
) -> Iterator[str]:
    if perplexity is None:
        perplexity = float(np.exp(min(20.0, loss)))
    line = (
        f" validation loss at iteration {step:.0f} | lm loss value: {loss:.6E} | "
        f"lm loss PPL: {perplexity:.6E} |"
    )
    yield from (_RULE, line, _RULE) if style.rules else (line,)


def _record_line(record: RunRecord, row: int, style: MegatronStyle) -> str:
    fields = [f" iteration {record.step[row]:8.0f}/{style.total_steps:8d}"]
    if style.layout == "megatron-lm":
        fields[0] = " [2024-01-01 00:00:00.000000] " + fields[0].lstrip()
    _put(fields, "consumed samples: {:12.0f}", _get(record, "samples_seen", row))
    seconds = _get(record, "step_time_s", row)
    if style.time_in_seconds:
        _put(fields, "elapsed time per iteration (s): {:.4f}", seconds)
    elif seconds is not None:
        _put(fields, "elapsed time per iteration (ms): {:.1f}", seconds * 1e3)
    if style.layout == "megatron-lm":
        fields.append("throughput per GPU (TFLOP/s/GPU): 100.0")
    _put(fields, "learning rate: {:.3E}", _get(record, "lr", row))
    _put(fields, "global batch size: {:5.0f}", _get(record, "batch_size", row))
    _put(fields, "lm loss: {:.6E}", _get(record, "loss", row))
    _put(fields, "loss scale: {:.1f}", _get(record, "loss_scale", row))
    _put(fields, "grad norm: {:.3f}", _printed_norm(record, row, style))
    _put(fields, "num zeros: {:.1f}", _get(record, "num_zeros", row))
    skipped = (_get(record, "skipped", row) or 0.0) if style.count_skips else 0.0
    _put(fields, "number of skipped iterations: {:3.0f}", skipped)
    _put(fields, "number of nan iterations: {:3.0f}", _get(record, "nonfinite", row) or 0.0)
    return " | ".join(fields) + " |"


def _printed_norm(record: RunRecord, row: int, style: MegatronStyle) -> float | None:
    if style.norm_not_wired:
        return 0.0
    first = record.attempts[int(record.attempt[row])].first_row
    while row >= first:
        norm = _get(record, "grad_norm", row)
        if norm is not None:
            scale = _get(record, "loss_scale", row) if style.norm_times_loss_scale else None
            return norm * (scale or 1.0)
        if not style.reprint_norm_on_skip or not _get(record, "skipped", row):
            return None
        row -= 1
    return None


def _put(fields: list[str], template: str, value: float | None) -> None:
    if value is not None:
        fields.append(template.format(value))


def _get(record: RunRecord, name: str, row: int) -> float | None:
    column = record.columns.get(name)
    if column is None or not column.present[row]:
        return None
    return float(column.values[row])
