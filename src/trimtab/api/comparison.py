"""`trimtab.compare`: two runs side by side, or one before and after a change."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.divergence import FirstDifference
from trimtab.analysis.impact import Impact, measure_impact
from trimtab.analysis.selection import split_attempt
from trimtab.analysis.settings_diff import (
    SettingChange,
    flat_config,
    setting_changes,
    stated_settings,
)
from trimtab.analysis.side_by_side import OF_LEARNED, Comparison, Side, compare_sides, make_side
from trimtab.analysis.source import read_source
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ConfigError, ReadError
from trimtab.readers import read_run
from trimtab.record import RunRecord
from trimtab.report.overview import shortened
from trimtab.report.side_page import render_page
from trimtab.report.side_text import SideText
from trimtab.report.terminal import rendered_text
from trimtab.signals import derive
from trimtab.text import finite_json, is_number
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = ["RunComparison", "compare"]

Source = Any  # runs come as paths, records, frames or mappings; `read_source` tells them apart
"""A path, a run record, a pandas or polars frame, or a mapping of columns."""


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """What differs between two runs, or before and after a change of one."""

    a: str
    """The first run as given."""
    b: str | None
    """The second one; None where a run is compared with itself before a change."""
    sides: Comparison | None
    """Losses, means and settings at equal positions; None where there is one run."""
    impact: Impact | None
    """Before and after a change; None where no change is known."""
    settings: tuple[SettingChange, ...] = ()
    """Canonical settings in which the two configs differ."""
    with_configs: bool = False
    """Whether two configs were given."""
    last: Side
    """The run that the change lies in, and the second of two."""
    title: str
    others: tuple[Comparison, ...] = ()
    """Further runs, each beside the first one."""
    other_names: tuple[str, ...] = ()
    """Those runs as given."""

    @property
    def ranking(self) -> tuple[tuple[str, float | None], ...]:
        """(run, how far its loss ends above that of the first), the best first; None: not finite.

        Of the signal that `ranked_by` names. Each at the steps that it has in common with the
        first; runs with none are left out, and of losses without a good direction all are.
        """
        if self.sides is None or not self.ranked_by:
            return ()
        gaps = [(self.sides.a.label, 0.0)]
        down = SIGNAL_BY_NAME[self.ranked_by.split("/")[0]].bad == "down"
        lost: list[str] = []
        for c in (self.sides, *self.others):
            ends = {e.signal: e.b - e.a for e in c.ends}
            gap = c.end_gap if self.ranked_by == "loss" else ends[self.ranked_by]
            if gap is None:
                continue
            if (c.loss_worse == "b" and c.worse_by is None) or not math.isfinite(gap):
                lost.append(c.b.label)
            else:
                gaps.append((c.b.label, gap))
        ranked = sorted(gaps, key=lambda pair: -pair[1] if down else pair[1])
        return (*ranked, *((name, None) for name in lost))

    @property
    def ranked_by(self) -> str:
        """The signal that runs are ranked by: held out or a reward where all have it, or the loss.

        Empty where none says which is better.
        """
        if self.sides is None:
            return ""
        every = (self.sides, *self.others)
        common = [e.signal for e in self.sides.ends if e.signal.split("/")[0] not in OF_LEARNED]
        lost = {e.signal for c in every for e in c.ends if not math.isfinite(e.a)}
        of_all = set(common).intersection(*({e.signal for e in c.ends} for c in every)) - lost
        no_loss = any(c.of_agent or c.of_players or c.scale is not None for c in every)
        return next((n for n in common if n in of_all), "" if no_loss else "loss")

    def to_dict(self) -> dict[str, object]:
        """Return the document of `trimtab compare --json`."""
        document: dict[str, object] = {"schema": 1, "a": self.a, "b": self.b}
        if self.sides is not None:
            document |= _sides_to_json(self.sides)
            document["others"] = [
                {"a": self.a, "b": name, **_sides_to_json(other)}
                for name, other in zip(self.other_names, self.others, strict=True)
            ]
            document["ranking"] = [{"run": run, "gap": gap} for run, gap in self.ranking]
            document["ranked_by"] = self.ranked_by or None
        document["impact"] = None if self.impact is None else _impact_to_json(self.impact)
        if self.with_configs:
            document["settings"] = [{"key": c.key, "a": c.a, "b": c.b} for c in self.settings]
        return {key: finite_json(value) for key, value in document.items()}

    def to_html(self) -> str:
        """Return the comparison as one page that opens offline, as `--html` writes it."""
        return render_page(self.sides, self.impact, self.last, title=self.title, others=self.others)

    def __str__(self) -> str:
        """Return what `trimtab compare` prints, as plain text."""
        return rendered_text(self.__rich__(), width=100)

    def __rich__(self) -> SideText:
        """Return what rich prints."""
        return SideText(
            self.sides, self.impact, self.settings, title=self.title, others=self.others
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return f"<pre>{escape(str(self))}</pre>"


def _two_files(configs: object) -> tuple[Path, Path]:
    given = tuple(configs) if isinstance(configs, list | tuple) else ()
    if len(given) != 2 or not all(isinstance(c, str | os.PathLike) for c in given):
        raise ConfigError(
            f"configs is {configs!r}; give two paths, of the first and the second run"
        )
    return Path(given[0]), Path(given[1])


def compare(
    a: Source,
    b: Source | None = None,
    *more: Source,
    by: Literal["step", "tokens"] = "step",
    at: float | None = None,
    window_steps: float = 500.0,
    configs: tuple[str | os.PathLike[str], str | os.PathLike[str]] | None = None,
) -> RunComparison:
    """Compare two runs at equal steps or tokens, or one run before and after a change.

    Args:
        a: A log, a run directory, a run record, a frame, or a mapping of columns. `PATH@1.0` is
            attempt 1.0 of a log.
        b: The other; None: `a` before and after `at`.
        more: Further runs; each is set beside `a`, too.
        by: What is equal.
        at: First step under a change; None: where an attempt of `b` continues its parent.
        window_steps: Steps to look at on either side of it.
        configs: Config files of both, to compare too.

    Raises:
        ReadError: One of them cannot be read, or holds several runs.
        ConfigError: An argument is impossible, or there is nothing to compare.
    """
    if by not in ("step", "tokens"):
        raise ConfigError(f"by is {by!r}; choose step or tokens")
    for name, value in (("window", window_steps), ("at", at)):
        if value is not None and not is_number(value):
            raise ConfigError(f"{name} {value!r}: not a number of steps; give one")
    if not window_steps > 0:
        raise ConfigError(f"window {window_steps:g}: must be above 0")
    files = (None, None) if configs is None else _two_files(configs)
    if more and b is None:
        raise ConfigError("further runs need a second one; give b, or leave them out")
    read = [_side(a, files[0])]
    if b is not None:
        read += [_side(b, files[1]), *(_side(source, None) for source in more)]
    first, *rest = _told_apart([side for side, _, _ in read])
    second = rest[0] if rest else None
    names = [name for _, name, _ in read]
    name_a, name_b = names[0], names[1] if rest else None
    attempt = read[1 if rest else 0][2]
    last = second or first
    sides = None if second is None else compare_sides(first, second, by=by)
    impact = _impact(last, attempt, at=at, window_steps=window_steps)
    if sides is None and impact is None:
        raise ConfigError(
            f"{name_a}: nothing to compare; give a second run, or a step (--at STEP) for before"
            " and after"
        )
    of_both = f"{first.label} and {last.label}"
    return RunComparison(
        a=name_a,
        b=name_b,
        sides=sides,
        impact=impact,
        settings=() if configs is None else setting_changes(Path(configs[0]), Path(configs[1])),
        with_configs=configs is not None,
        last=last,
        title=of_both if second is not None else f"{first.label}, before and after",
        others=tuple(compare_sides(first, other, by=by) for other in rest[1:]),
        other_names=tuple(names[2:]),
    )


def _side(source: Source, config: Path | None) -> tuple[Side, str, str]:
    """Return one side, its source as given, and the attempt that was named."""
    if isinstance(source, str | os.PathLike):
        given = os.fspath(source)
        path, attempt = split_attempt(given)
        record = read_run(path)
    else:
        ((path, found),) = read_source(source)
        if isinstance(found, ReadError):
            raise found
        given, attempt, record = path or "columns", "", found
    record = derive(record)
    chosen = None
    if attempt:
        numbers = [a.number for a in record.attempts]
        if attempt not in numbers:
            raise ConfigError(f"{path}: has no attempt {attempt}; there are {', '.join(numbers)}")
        chosen = record.attempts[numbers.index(attempt)]
    settings = stated_settings(record, chosen)
    launched = RunDirectory(Path(path)).settings
    if path and launched.is_file():
        own = chosen or (record.attempts[-1] if record.attempts else None)
        settings.update(flat_config(launched))
        # A later attempt may have been launched on other ranks, say.
        settings.update({} if own is None else own.settings)
    if config is not None:
        settings.update(flat_config(config))
    label = shortened(path or "columns", limit=40) + (f"@{attempt}" if attempt else "")
    return make_side(label, record, settings, attempt=attempt), given, attempt


def _told_apart(sides: Sequence[Side]) -> list[Side]:
    """Return the sides under the names of their files, or longer ones where those are alike."""
    short = [side.label.rsplit("/", 1)[-1] for side in sides]
    if all(short) and len({*short}) == len(short):
        return [replace(s, label=name) for s, name in zip(sides, short, strict=True)]
    labels = [side.label for side in sides]
    return [
        replace(s, label=f"{s.label} ({'abcdefghijklmnopqrstuvwxyz'[n % 26]})")
        if labels.count(s.label) > 1
        else s
        for n, s in enumerate(sides)
    ]


def _impact(side: Side, attempt: str, *, at: float | None, window_steps: float) -> Impact | None:
    """Return before and after: at the step given, or where the attempt continues its parent."""
    record, rows, given = side.record, side.record.lineage_rows(), at
    if attempt:
        own = record.attempts[record.attempt_index(attempt)]
        start = record.step[own.first_row] if own.first_row < own.end_row else np.inf
        at = at if at is not None else _continues(record, own.parent, own.parent_step, float(start))
        rows = np.concatenate([_ancestor_rows(record, attempt, float(start)), side.rows])
    if at is None:
        return None
    found = measure_impact(record, rows, at=float(at), window_steps=window_steps)
    empty = not min(found.num_before, found.num_after)
    return None if empty and given is None else found


def _continues(
    record: RunRecord, parent: str | None, parent_step: float | None, start: float
) -> float | None:
    """Return the first step of an attempt that has a parent in the same log."""
    known = {a.number for a in record.attempts}
    if parent not in known or not np.isfinite(start):
        return None
    return start if parent_step is None else min(start, parent_step + 1)


def _ancestor_rows(record: RunRecord, attempt: str, before: float) -> NDArray[np.intp]:
    """Return the rows of an attempt's parent up to where the attempt began."""
    own = record.attempts[record.attempt_index(attempt)]
    for i, a in enumerate(record.attempts):
        if a.number == own.parent:
            part = record.rows_of(i)
            rows = np.arange(part.start, part.stop)
            return rows[record.step[rows] < before]
    return np.zeros(0, dtype=np.intp)


def _sides_to_json(c: Comparison) -> Mapping[str, object]:
    widest = c.widest
    return {
        "by": c.by,
        "axis": c.axis,
        "common": None if c.common is None else list(c.common),
        "end_gap": c.end_gap,
        "widest_gap": None if widest is None else {"at": widest.position, "gap": widest.gap},
        "gaps": [{"at": g.position, "a": g.a, "b": g.b, "gap": g.gap} for g in c.gaps],
        "slopes": None if c.slopes is None else {"a": c.slopes[0], "b": c.slopes[1]},
        "slope_ratio": c.slope_ratio,
        "means": {m.signal: {"a": m.a, "b": m.b} for m in c.means},
        "changed": [{"key": x.key, "a": x.a, "b": x.b} for x in c.changed],
        "warnings": list(c.warnings),
        "notes": list(c.notes),
        "verdict": c.verdict or None,
        "worse": c.worse,
        "worse_by": c.worse_by,
        "apart_from": c.apart_from,
        "noise": c.noise,
        "to_target": None
        if c.to_target is None
        else {**asdict(c.to_target), "ratio": c.to_target.ratio},
        "unit": c.unit or None,
        "pace": None if c.pace is None else asdict(c.pace),
        "not_compared": list(c.not_compared),
        "scale": None if c.scale is None else asdict(c.scale),
        "apart": [
            {"signal": x.signal, "a": x.a, "b": x.b, "since": x.since, "worse": x.worse}
            for x in c.apart
        ],
        "first_difference": _first_to_json(c.first_difference),
    }


def _first_to_json(first: FirstDifference | None) -> Mapping[str, object] | None:
    if first is None:
        return None
    return {
        "identical_until": first.identical_until,
        "identical_rows": first.identical_rows,
        "common_rows": first.num_rows,
        "at": first.at,
        "what": first.what,
        "signals": [
            {"signal": s.signal, "a": s.a, "b": s.b, "ratio": s.ratio} for s in first.signals
        ],
        "later": [{"signal": name, "at": at} for name, at in first.later],
    }


def _impact_to_json(impact: Impact) -> Mapping[str, object]:
    return {
        "at": impact.at,
        "window_steps": impact.window_steps,
        "rows_before": impact.num_before,
        "rows_after": impact.num_after,
        "table": [
            {"signal": r.signal, "measure": r.measure, "before": r.before, "after": r.after}
            for r in impact.rows
        ],
        "signs": [{"sign": s.name, "state": s.state, "text": s.text} for s in impact.signs],
        "verdict": impact.verdict,
    }
