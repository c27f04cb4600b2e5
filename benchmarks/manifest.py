"""Reads a folder of labelled logs: `manifest.jsonl`, one run a line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from trimtab.errors import ReadError
from trimtab.kinds import KIND_BY_NAME
from trimtab.text import is_number

__all__ = [
    "CORE",
    "EXTRA",
    "NEGATIVE",
    "UNJUDGED",
    "Label",
    "LabelledRun",
    "family_of_kind",
    "read_manifest",
]

CORE = ("spike", "divergence", "grad", "nonfinite", "scale", "plateau", "too_good")
EXTRA = ("resume", "throughput", "log")
NEGATIVE = ("clean", "clean_loss", "heavy_tail_negative")
UNJUDGED = ("ambiguous", "no_loss", "not_a_run")
OTHER_VERDICTS = ("incident", "epoch_staircase")
CONFIDENCES = ("high", "medium", "low")

_OWN_KINDS = {
    "spike": "spike",
    "unrecovered-spike": "divergence",
    "divergence": "divergence",
    "shift": "divergence",
    "drift": "divergence",
    "plateau": "plateau",
    "too-good": "too_good",
    "memorised": "too_good",
    "non-finite": "nonfinite",
    "scale-collapse": "scale",
    "skipped-steps": "scale",
    "grad-explosion": "grad",
    "grad-spike": "grad",
    "grad-drift": "grad",
    "slowdown": "throughput",
    "stall": "throughput",
    "hang": "throughput",
    "resume-jump": "resume",
    "repeated-data": "resume",
    "frozen-signal": "log",
    "batch-outlier": "log",
}
"""Family of each kind of trimtab; the kinds that are missing here are of no family."""

_LABEL_KINDS = {
    "spike": ("loss_spike_fast", "loss_spike_slow", "warmup_spike"),
    "divergence": (
        "loss_spike_nonrecovering",
        "slow_divergence",
        "level_shift",
        "unstable",
        "chronic_instability",
    ),
    "nonfinite": ("nan_loss", "nan_grad", "nonfinite_grad_norm"),
    "scale": ("loss_scale_drop", "skipped_iterations"),
    "plateau": (),
    "too_good": ("suspiciously_low_loss", "epoch_staircase"),
    "resume": (
        "restart_new_run",
        "repeated_steps",
        "resume_lr_jump",
        "loss_jump_at_checkpoint",
        "data_boundary_shift",
        "objective_shift",
    ),
    "log": (
        "frozen_metric",
        "missing_loss_sentinel",
        "batch_outlier",
        "init_overshoot",
        "clip_freq_change",
    ),
}
"""Finer kinds that labels may use, by family; besides them `grad_norm_*` and `throughput_*`."""

_FAMILY_OF_LABEL = {kind: family for family, kinds in _LABEL_KINDS.items() for kind in kinds}

LASTING = frozenset(
    {
        "slow_divergence",
        "level_shift",
        "unstable",
        "chronic_instability",
        "plateau",
        "suspiciously_low_loss",
        "epoch_staircase",
        "grad_norm_drift",
        "throughput_slowdown",
        "missing_loss_sentinel",
        "frozen_metric",
        "objective_shift",
        "data_boundary_shift",
        "clip_freq_change",
        "divergence",
        "shift",
        "drift",
        "too-good",
        "grad-drift",
        "slowdown",
        "frozen-signal",
    }
)
"""Labels of a condition: without a recovery it lasts to the end of the log."""

BREAKING = frozenset(
    {
        "loss_spike_nonrecovering",
        "slow_divergence",
        "unstable",
        "chronic_instability",
        "nan_loss",
        "missing_loss_sentinel",
        "frozen_metric",
        "unrecovered-spike",
        "divergence",
        "frozen-signal",
    }
)
"""Labels after which, without a recovery, the run is broken: what is said later proves nothing."""

NOISY = frozenset({"unstable", "chronic_instability"})
"""Divergence made of spikes: a spike names it rightly."""

Span = tuple[float, float]


def family_of_kind(kind: str) -> str:
    """Return the family of a kind of trimtab's own list; "other" where it has none."""
    return _OWN_KINDS.get(kind, "other")


@dataclass(frozen=True, kw_only=True)
class Label:
    """One labelled event; times in the unit of its run."""

    kind: str
    family: str
    confidence: str
    onset: float
    peak: float | None = None
    recovery: float | None = None
    """None: not inside the log."""
    rows: Span | None = None
    """First and last train-loss record, where steps restart and times alone would not tell."""
    also: tuple[Span, ...] = ()
    """Further places of the same event, as times."""
    also_rows: tuple[Span, ...] = ()
    repeats_another: bool = False
    """A second name for an event that has its label: not counted again."""

    @property
    def span(self) -> Span:
        """Onset to recovery, else to the peak, else the onset alone."""
        return make_span(self.onset, self.recovery, self.peak)

    @property
    def open_ended(self) -> bool:
        """Whether it is a condition that lasts to the end of the log."""
        return self.kind in LASTING and self.recovery is None

    @property
    def breaks(self) -> bool:
        """Whether the run is broken from here on."""
        return self.kind in BREAKING and self.recovery is None

    @property
    def counts(self) -> bool:
        """Whether it is among the labels of the headline: core family, high confidence."""
        return self.family in CORE and self.confidence == "high"


@dataclass(frozen=True, kw_only=True)
class LabelledRun:
    """One line of the manifest."""

    id: str
    path: str
    verdict: str
    repo: str
    group: str
    labels: tuple[Label, ...]
    records: int
    """Train-loss records."""
    has_loss: bool
    rows_accept: tuple[int, ...]
    unit: float
    """Spacing of the axis per record."""
    first: float
    last: float
    sampled: bool
    """The labels are the clearest of many: what is not labelled is not false."""

    @property
    def slack_rows(self) -> float:
        """How far an alarm may lie beside a label, in records."""
        return max(3.0, 0.01 * self.records)

    @property
    def slack(self) -> float:
        """The same on the axis of the run."""
        return self.slack_rows * self.unit

    @property
    def must_be_read(self) -> bool:
        """Whether the read rate counts it."""
        return self.has_loss and self.verdict not in ("no_loss", "not_a_run")


def make_span(start: float, *ends: float | None) -> Span:
    """Return the interval from `start` to the first end that is known; never backwards."""
    known = [e for e in ends if e is not None]
    return start, max(start, known[0]) if known else start


def read_manifest(folder: Path) -> tuple[LabelledRun, ...]:
    """Return the labelled runs of a folder, in the order of its manifest.

    Raises:
        ReadError: There is no manifest, or a line of it cannot be used.
    """
    path = folder / "manifest.jsonl"
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ReadError(
            f"{path}: {error.strerror}; give a folder with manifest.jsonl (docs/formats.md)"
        ) from error
    runs: dict[str, LabelledRun] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        run = _run(line, f"{path}:{number}")
        if run.id in runs:
            raise ReadError(f"{path}:{number}: id {run.id!r} was there before; rename one of them")
        if not (folder / run.path).resolve().is_relative_to(folder.resolve()):
            raise ReadError(
                f"{path}:{number}: local_path {run.path!r} leaves the folder; put the log inside"
            )
        runs[run.id] = run
    if not runs:
        raise ReadError(f"{path}: no runs in it; write one JSON line per log (docs/formats.md)")
    return tuple(runs.values())


def _run(line: bytes, where: str) -> LabelledRun:
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ReadError(f"{where}: no JSON ({error}); one object per line") from error
    if not isinstance(data, dict):
        raise ReadError(f"{where}: expected an object, got {type(data).__name__}")
    for key in ("id", "local_path", "verdict"):
        if not isinstance(data.get(key), str):
            raise ReadError(f"{where}: {key} is {data.get(key)!r}, expected text")
    verdict = data["verdict"]
    if verdict not in (*NEGATIVE, *UNJUDGED, *OTHER_VERDICTS):
        known = ", ".join((*OTHER_VERDICTS, *NEGATIVE, *UNJUDGED))
        raise ReadError(f"{where}: verdict {verdict!r} is unknown; one of {known}")
    steps = _number(data, "n_steps", where)
    records = _number(data, "n_records", where)
    count = int(records or steps or 0)
    unit = _number(data, "unit_per_record", where) or 1.0
    first = _number(data, "x_first", where) or 0.0
    last = _number(data, "x_last", where)
    labels = data.get("incidents") or []
    return LabelledRun(
        id=data["id"],
        path=data["local_path"],
        verdict=verdict,
        repo=str(data.get("repo") or data["id"]),
        group=str(data.get("group") or data["id"]),
        labels=tuple(_label(lab, f"{where}, incident {i}") for i, lab in enumerate(labels)),
        records=count,
        has_loss=(steps if records is None else records) != 0,
        rows_accept=tuple(int(n) for n in data.get("rows_accept") or [steps or count]),
        unit=unit,
        first=first,
        last=first + count * unit if last is None else last,
        sampled=bool(data.get("sample_labels")),
    )


def _label(data: Any, where: str) -> Label:
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise ReadError(f"{where}: expected an object with a kind")
    onset = _number(data, "onset", where)
    if onset is None:
        raise ReadError(f"{where}: onset is missing; every label needs one")
    confidence = data.get("confidence", "high")
    if confidence not in CONFIDENCES:
        raise ReadError(f"{where}: confidence {confidence!r}; one of {', '.join(CONFIDENCES)}")
    row = _number(data, "onset_row", where)
    return Label(
        kind=data["kind"],
        family=_family_of_label(data["kind"], where),
        confidence=confidence,
        onset=onset,
        peak=_number(data, "peak", where),
        recovery=_number(data, "recovery", where),
        rows=None if row is None else make_span(row, _number(data, "end_row", where)),
        also=_places(data.get("also"), where),
        also_rows=_places(data.get("also_rows"), where),
        repeats_another=bool(data.get("same_event")),
    )


def _family_of_label(kind: str, where: str) -> str:
    if kind in _FAMILY_OF_LABEL:
        return _FAMILY_OF_LABEL[kind]
    for start, family in (("grad_norm_", "grad"), ("throughput_", "throughput")):
        if kind.startswith(start):
            return family
    if kind in KIND_BY_NAME:
        return family_of_kind(kind)
    raise ReadError(f"{where}: kind {kind!r} is unknown; docs/formats.md lists them")


def _places(given: Sequence[Any] | None, where: str) -> tuple[Span, ...]:
    places: list[Span] = []
    for place in given or ():
        ends = place if isinstance(place, list) else [place]
        if not ends or not all(is_number(e) for e in ends):
            raise ReadError(f"{where}: place {place!r}, expected a number or [first, last]")
        places.append(make_span(float(ends[0]), *(float(e) for e in ends[1:2])))
    return tuple(places)


def _number(data: Mapping[str, Any], key: str, where: str) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if not is_number(value):
        raise ReadError(f"{where}: {key} is {value!r}, expected a finite number or null")
    return float(value)
