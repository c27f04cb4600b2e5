"""What is drawn: panels of signals over one step axis, cut into stretches of attempts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.account import RunAccount
from trimtab.analysis.ordering import letters
from trimtab.analysis.resolution import left_behind
from trimtab.record import Column, RunRecord, axis_word
from trimtab.report.downsample import extreme_rows
from trimtab.report.wording import capital
from trimtab.text import number, plain, signal_label
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = [
    "SPECS",
    "Band",
    "Panel",
    "PanelLabels",
    "Stretch",
    "bands",
    "in_nats",
    "make_panels",
    "step_range",
    "unit_of",
]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """How one signal is drawn."""

    name: str
    title: str
    scale: str = "linear"
    main: bool = False
    """Shown even where the log has no such signal."""


SPECS = (
    Spec(name="loss", title="Loss", main=True),
    Spec(name="grad_norm", title="Gradient norm", scale="log", main=True),
    Spec(name="activation_norm", title="Activation norm", scale="log", main=True),
    Spec(name="loss_scale", title="Loss scale", scale="log", main=True),
    Spec(name="lr", title="Learning rate"),
    Spec(name="clip_frequency", title="Clip frequency"),
    Spec(name="adam_v_l1", title="Adam variance, L1 norm", scale="log"),
    Spec(name="adam_v_max", title="Adam variance, largest element", scale="log"),
    Spec(name="attention_logit_max", title="Largest attention logit", scale="log"),
    Spec(name="update_norm", title="Update norm", scale="log"),
    Spec(name="step_time_s", title="Step time", scale="log"),
    Spec(name="throughput", title="Throughput", scale="log"),
)
"""Loss first, then the other main signals, then what was recorded of the rest. A signal that an
incident names and that is not here gets a panel behind them."""

LOG_RANGE = 30
"""A loss whose top is this many times its lower decile, or a learning rate its median, is drawn on
a log scale. Ours: a language model falls from 11 to 2, a memorising one from 5 to 0.01."""

LANGUAGE = (
    "megatron",
    "torchtitan",
    "fairseq",
    "trimtab",
    "maxtext",
    "olmo",
    "nanogpt",
    "llm.c",
    "transformer-xl",
    "deepspeed",
)
"""Formats of trainers of language models, whose loss is in nats per token."""

POINTS = 20_000
"""Points per signal in the page; a log with fewer rows is there whole. Ours: keeps 150 k steps at
about 3 MB."""

DETAIL_ROWS = 1_000
"""Rows kept whole on either side of an alarm's first sign, onset, peak and end."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Consecutive rows of one attempt, all on or all off the final lineage."""

    attempt: int
    live: bool
    """On the final lineage."""
    trial: bool
    """Of a trial that was not kept."""
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    """NaN and Inf are as logged."""


class PanelLabels(TypedDict):
    """What a page says of a plot, beside its rows."""

    name: str
    title: str
    unit: str
    scale: str
    note: str
    mark: tuple[float, float] | None
    strip: str
    lost: bool
    perplexity: bool


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot."""

    name: str
    title: str
    unit: str
    scale: str
    stretches: tuple[Stretch, ...]
    dots: tuple[Stretch, ...] = ()
    """Sparse values drawn as points: validation loss."""
    note: str = ""
    """One clause for the reader; where the largest value is, or that nothing was recorded."""
    mark: tuple[float, float] | None = None
    """(step, value) of an annotated point."""
    perplexity: bool = False
    """Whether exp(loss) means something: the loss is in nats per token, as far as is known."""

    def labels(self) -> "PanelLabels":
        """Return what a page says of it, as JSON values; all but its rows."""
        return {
            "name": plain(self.name),
            "title": self.title,
            "unit": self.unit,
            "scale": self.scale,
            "note": self.note,
            "mark": self.mark,
            "strip": self.strip,
            "lost": self.lost,
            "perplexity": self.perplexity,
        }

    @property
    def empty(self) -> bool:
        """Whether nothing was recorded."""
        return not self.stretches

    @property
    def lost(self) -> bool:
        """Whether something was recorded, and nothing of it is finite."""
        found = (*self.stretches, *self.dots)
        return bool(found) and not any(np.isfinite(s.y).any() for s in found)

    @property
    def strip(self) -> str:
        """What is said in one line instead of a plot: not recorded, or one value throughout."""
        if any(np.isfinite(s.y).any() for s in self.dots):
            return ""
        if self.empty:
            return "not recorded"
        if self.lost:
            return "NaN or Inf throughout"
        first = self.stretches[0].y[0]
        same = all((s.y == first).all() for s in self.stretches)
        if self.name == "loss" or not same or sum(len(s.y) for s in self.stretches) < 2:
            return ""
        return f"{number(float(first))} throughout"


@dataclass(frozen=True, kw_only=True)
class Band:
    """One incident on the axis; positions on the record's axis."""

    letter: str
    severity: str
    attempt: int
    """Index into the record's attempts; -1 where it has none of that number."""
    precursor: float | None
    onset: float
    peak: float
    end: float
    """Last step of the incident, of its attempt where it never ended."""
    headline: str
    left: bool
    """On a branch that was given up."""
    lasts: bool
    """It had not ended when its attempt did."""
    signals: tuple[str, ...]
    """Where it was seen; it is shaded fully there and faintly elsewhere."""
    precursor_signal: str | None
    """Where its first sign was seen."""


def step_range(record: RunRecord) -> tuple[float, float]:
    """Return the limits that all panels share; never of zero width."""
    if not record.num_rows:
        return (0.0, 1.0)
    low, high = float(record.step.min()), float(record.step.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def bands(account: RunAccount) -> tuple[Band, ...]:
    """Return the incidents as bands, in the order of the axis."""
    record = account.record
    found = []
    for letter, ia in zip(letters(account), account.incidents, strict=True):
        inc = ia.incident
        end = inc.end if inc.end is not None else _attempt_end(record, inc.attempt, inc.peak)
        found.append(
            Band(
                letter=letter,
                severity="info" if ia.dismissed else inc.severity,
                attempt=next(
                    (i for i, a in enumerate(record.attempts) if a.number == inc.attempt), -1
                ),
                precursor=inc.precursor,
                onset=inc.onset,
                peak=inc.peak,
                end=max(end, inc.onset),
                headline=inc.headline,
                left=left_behind(record, inc),
                lasts=inc.end is None,
                signals=_shown(inc.signals),
                precursor_signal=(
                    None if inc.precursor_signal is None else _shown((inc.precursor_signal,))[0]
                ),
            )
        )
    return tuple(sorted(found, key=lambda b: (b.onset, b.peak, b.attempt)))


def _shown(signals: Sequence[str]) -> tuple[str, ...]:
    """Return the panels on which signals are drawn."""
    panels = {"clipped": "clip_frequency", "val_loss": "loss"}
    return tuple(dict.fromkeys(panels.get(name, name) for name in signals))


def _attempt_end(record: RunRecord, attempt: str, fallback: float) -> float:
    try:
        rows = record.rows_of(record.attempt_index(attempt))
    except KeyError:
        return fallback
    return float(record.step[rows][-1]) if rows.stop > rows.start else fallback


def make_panels(account: RunAccount, *, points: int = POINTS) -> tuple[Panel, ...]:
    """Return the panels to draw: the main four always, others where something was recorded.

    Those with nothing to see, one value throughout or none at all, stand behind the others, but not
    those that were never finite.

    Args:
        account: The run.
        points: About how many points each signal may have; extremes and the surroundings of
            alarms are never left out.
    """
    record = account.record
    live = np.zeros(record.num_rows, dtype=np.bool_)
    live[record.lineage_rows()] = True
    keep = _detail_rows(account)
    panels, language = [], in_nats(record)
    for spec in (*SPECS, *_named(account)):
        column = _column(record, spec.name)
        stretches = (
            tuple(_stretches(record, column, live, keep, points)) if column is not None else ()
        )
        if not stretches and not spec.main:
            continue
        dots: tuple[Stretch, ...] = ()
        if spec.name == "loss" and "val_loss" in record.columns:
            dots = tuple(_stretches(record, record.columns["val_loss"], live, keep, points))
        note, mark = _annotation(record, spec, column)
        panels.append(
            Panel(
                name=spec.name,
                title=spec.title,
                unit=_unit(spec.name, language=language) + (" · ○ validation" if dots else ""),
                scale=_scale(spec, stretches),
                stretches=stretches,
                dots=dots,
                note=note if stretches else "not recorded",
                mark=mark,
                perplexity=language and spec.name == "loss",
            )
        )
    return tuple(sorted(panels, key=lambda p: bool(p.strip) and not p.lost))


def _named(account: RunAccount) -> Iterator[Spec]:
    """Yield how to draw signals that alarms name and that no panel is meant for."""
    known = {spec.name for spec in SPECS}
    alarms = (ia.incident for ia in account.incidents if ia.incident.severity != "info")
    for name in dict.fromkeys(_shown([s for incident in alarms for s in incident.signals])):
        if name not in known and name in account.record.columns:
            signal = SIGNAL_BY_NAME.get(name)
            scale = "linear" if signal is None else signal.scale
            label = signal_label(name)
            title = label if label in name else capital(label)
            yield Spec(name=name, title=plain(title, limit=60), scale=scale)


_OF_LOSS = frozenset(
    ("loss", "val_loss", "loss_step_std", "sample_loss_max", "yardstick_loss", "yardstick_rise")
)
"""Signals in the unit of the loss."""


def _unit(name: str, *, language: bool) -> str:
    if name == "loss":
        return "nats/token · right: perplexity" if language else "as logged"
    return unit_of(name, language=language)


def unit_of(name: str, *, language: bool) -> str:
    """Return the unit of a signal; of what is measured in the loss's only where that is known."""
    signal = SIGNAL_BY_NAME.get(name)
    if signal is None or signal.unit == "1" or (name in _OF_LOSS and not language):
        return ""
    return signal.unit


def in_nats(record: RunRecord) -> bool:
    """Tell whether the loss is one in nats per token.

    The log is of a language model, the values fit.
    """
    column = record.columns.get("loss")
    y = np.zeros(0) if column is None else column.values[column.finite_rows(slice(None))]
    tells = record.format in LANGUAGE or "tokens_seen" in record.columns
    return tells and len(y) > 0 and float(y.min()) >= 0 and float(np.median(y)) < 20


def _column(record: RunRecord, name: str) -> Column | None:
    column = record.columns.get(name)
    if column is not None and column.present.any():
        return column
    flags = record.columns.get("clipped")
    if name == "clip_frequency" and flags is not None and flags.present.any():
        return _running_mean(flags)
    return None


def _running_mean(flags: Column) -> Column:
    """Return the running mean of the clip flags, NaN flags left out."""
    usable = flags.present & np.isfinite(flags.values)
    total = np.cumsum(np.where(usable, flags.values, 0.0))
    mean = total / np.maximum(np.cumsum(usable), 1)
    return Column(np.where(usable, mean, np.nan), usable)


def _detail_rows(account: RunAccount) -> NDArray[np.bool_]:
    keep = np.zeros(account.record.num_rows, dtype=np.bool_)
    for ia in account.incidents:
        if ia.incident.severity == "info":
            continue
        inc = ia.incident
        for row in (inc.first_row, inc.onset_row, inc.peak_row, inc.end_row):
            if row is not None:
                keep[max(0, row - DETAIL_ROWS) : row + DETAIL_ROWS] = True
    return keep


def _stretches(
    record: RunRecord, column: Column, live: NDArray[np.bool_], keep: NDArray[np.bool_], points: int
) -> Iterator[Stretch]:
    share = points / max(int(column.present.sum()), 1)
    for index, attempt in enumerate(record.attempts):
        rows = np.arange(attempt.first_row, attempt.end_row)
        rows = rows[column.present[rows]]
        for part, is_live in _parts(rows, live):
            y = column.values[part]
            drawn = extreme_rows(y, budget=max(64, math.ceil(share * len(part))), keep=keep[part])
            yield Stretch(
                attempt=index,
                live=is_live,
                trial=attempt.trial and not is_live,
                x=record.step[part][drawn],
                y=y[drawn],
            )


def _parts(
    rows: NDArray[np.intp], live: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[np.intp], bool]]:
    """Cut rows where they leave or join the final lineage.

    A dead part starts at its last live row.
    """
    if not len(rows):
        return
    flags = live[rows]
    cuts = [0, *(np.flatnonzero(np.diff(flags)) + 1).tolist(), len(rows)]
    for first, end in pairwise(cuts):
        is_live = bool(flags[first])
        yield rows[first if is_live else max(first - 1, 0) : end], is_live


def _scale(spec: Spec, stretches: Sequence[Stretch]) -> str:
    """Return the scale on which a reader can see something; logs only where all is positive."""
    if not stretches:
        return spec.scale
    y = np.concatenate([s.y[np.isfinite(s.y)] for s in stretches])
    if not len(y) or y.min() < 0 or y.max() <= 0:
        return "linear"
    decile = float(np.quantile(y[y > 0], 0.1))
    low = {"loss": decile, "lr": float(np.median(y))}.get(spec.name, math.inf)
    wide = float(y.max()) / max(low, 1e-300) > LOG_RANGE
    return "log" if wide else spec.scale


def _annotation(
    record: RunRecord, spec: Spec, column: Column | None
) -> tuple[str, tuple[float, float] | None]:
    if column is None or spec.name not in ("adam_v_l1", "adam_v_max", "lr"):
        return "", None
    top = _argmax(record, column)
    if top is None:
        return "", None
    step, value = top
    axis = axis_word(record)
    if spec.name == "lr":
        return f"peak {number(value)} at {axis} {number(step)}", (step, value)
    text = f"largest {number(value)} at {axis} {number(step)}"
    lr = _argmax(record, record.columns["lr"]) if "lr" in record.columns else None
    if lr is None:
        return f"{text}; no learning rate recorded to compare with", (step, value)
    distance = step - lr[0]
    side = "at" if distance == 0 else ("after" if distance > 0 else "before")
    where = (
        "at the LR peak"
        if distance == 0
        else f"{number(abs(distance))} {axis}s {side} the LR peak ({number(lr[0])})"
    )
    return f"{text}, {where}", (step, value)


def _argmax(record: RunRecord, column: Column) -> tuple[float, float] | None:
    """Return (step, value) of the first largest finite value on the final lineage."""
    rows = record.lineage_rows()
    rows = rows[column.present[rows] & np.isfinite(column.values[rows])]
    if not len(rows):
        return None
    row = int(rows[int(column.values[rows].argmax())])
    return float(record.step[row]), float(column.values[row])
