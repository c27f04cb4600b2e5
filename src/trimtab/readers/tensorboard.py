"""TensorBoard event files: one file, or all files of one directory, which are one run.

Each launch of a trainer opens a new file, so a later file with a training loss is a new attempt,
whether it continues where the last one ended or begins further back. A file written at the same
time as another, with the same steps, is another rank's and is left out.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trimtab.errors import ReadError
from trimtab.readers.base import Sample
from trimtab.readers.numbers import counted
from trimtab.readers.series import WHEN, Start, TagSeries, WantedTags, record_of_series
from trimtab.readers.tags import choose_tags, is_validation_word
from trimtab.readers.tfevents import EventFile, EventSeries, parse_events
from trimtab.readers.tfrecord import starts_like_tfrecord
from trimtab.readers.whole import read_whole
from trimtab.record import RunRecord

__all__ = ["TensorBoardReader", "event_files_among"]

_NAME_PART = "tfevents"
_VERSION = b"brain.Event:"


class TensorBoardReader:
    """Reads event files."""

    name = "tensorboard"
    looks_for = "TensorBoard event files"

    def sniff(self, sample: Sample) -> float:
        """Return 0.98 where the file starts with a record and its checksum and holds events."""
        framed = starts_like_tfrecord(sample.raw)
        if _VERSION in sample.raw[:64]:
            return 0.98 if framed else 0.6
        return 0.5 if framed else 0.0

    def read(self, path: Path) -> RunRecord:
        """Read one file.

        Raises:
            ReadError: It holds no scalar that is known.
        """
        return self.read_files([path], str(path))

    def read_files(self, paths: Sequence[Path], source: str) -> RunRecord:
        """Read the files of one run; one that cannot be read is named in a note.

        Raises:
            ReadError: None of them can be read, or they hold no scalar that is known.
        """
        notes: list[str] = []
        files: list[_File] = []
        errors: list[ReadError] = []
        wanted = WantedTags()
        for path in paths:
            try:
                data, cut = read_whole(path)
                files.append(_File(path, _parse(data, path, wanted), cut))
            except ReadError as error:
                errors.append(error)
                notes.append(f"left out: {error}")
        if not files:
            raise errors[0]
        for file in files:
            notes.extend(_damage(file, several=len(files) > 1))
        tags = sorted({t for f in files for t in (*f.events.series, *f.events.other_tags)})
        kept = _without_other_ranks(sorted(files, key=lambda f: f.begin_s), notes)
        series, starts = _joined(kept)
        unread: Counter[str] = Counter()
        for file in kept:
            unread.update(file.events.other_tags)
        return record_of_series(
            source, self.name, series, starts=starts, notes=notes, tags_seen=tags, unread=unread
        )


def event_files_among(entries: Iterable[Path]) -> list[Path]:
    """Return the event files among the entries of a directory, by their names."""
    return [e for e in entries if _NAME_PART in e.name and e.is_file()]


@dataclass
class _File:
    path: Path
    events: EventFile
    cut: bool
    """Whether its compressed data breaks off."""

    @property
    def begin_s(self) -> float:
        """Wall time of the first scalar."""
        firsts = [float(s.wall_s[0]) for s in self.events.series.values() if len(s.wall_s)]
        return min(firsts, default=np.inf)

    def lead(self) -> EventSeries | None:
        """Return the series of the training loss, None where there is none."""
        chosen, _ = choose_tags({t: s.value for t, s in self.events.series.items()})
        tag = chosen.get("loss")
        return None if tag is None else self.events.series[tag]


def _parse(data: bytes, path: Path, wanted: WantedTags) -> EventFile:
    """Return the content of a file; tags in a directory such as `eval/` get that prefix."""
    folder = path.resolve().parent.name
    if not is_validation_word(folder):
        return parse_events(data, wanted)
    events = parse_events(data, lambda tag: wanted(f"{folder}/{tag}"))
    return replace(events, series={f"{folder}/{t}": s for t, s in events.series.items()})


def _damage(file: _File, *, several: bool) -> list[str]:
    events = file.events
    where = f"{file.path.name}: " if several else ""
    notes: list[str] = []
    if events.num_bad:
        notes.append(f"{where}{counted(events.num_bad, 'event')} with a wrong checksum left out")
    if events.lost_bytes:
        notes.append(f"{where}damaged; {counted(events.lost_bytes, 'byte')} could not be read")
    if file.cut:
        notes.append(f"{where}the compressed file breaks off; what came before was read")
    elif events.torn:
        notes.append(f"{where}the last event was torn in mid-write and left out")
    return notes


def _without_other_ranks(files: Sequence[_File], notes: list[str]) -> list[_File]:
    """Leave out files that log the same losses' steps at the same time as one before."""
    kept: list[_File] = []
    for file in files:
        lead = file.lead()
        twin = next((k for k in kept if lead is not None and _is_other_rank(lead, k.lead())), None)
        if twin is None:
            kept.append(file)
        else:
            notes.append(
                f"{file.path.name}: logs the steps of {twin.path.name} at the same time, as another"
                " rank does; left out"
            )
    return kept


def _is_other_rank(one: EventSeries, other: EventSeries | None) -> bool:
    if other is None or not len(one.step):
        return False
    begin = max(one.wall_s[0], other.wall_s[0])
    end = min(one.wall_s[-1], other.wall_s[-1])
    shorter = min(one.wall_s[-1] - one.wall_s[0], other.wall_s[-1] - other.wall_s[0])
    common = len(np.intersect1d(one.step, other.step))
    fewer = min(len(one.step), len(other.step))
    return bool(end - begin > 0.5 * shorter > 0 and common > 0.5 * fewer)


def _joined(files: Sequence[_File]) -> tuple[dict[str, TagSeries], list[Start]]:
    """Return the series over all files in a row, and where attempts start."""
    pieces: dict[str, list[TagSeries]] = {}
    starts: list[Start] = []
    base = 0
    for number, file in enumerate(files):
        for tag, s in file.events.series.items():
            place = (s.place + base).astype(np.float64)
            pieces.setdefault(tag, []).append(TagSeries(place, s.step.astype(np.float64), s.value))
        if (lead := file.lead()) is not None:
            place = (lead.place + base).astype(np.float64)
            written = TagSeries(place, lead.step.astype(np.float64), lead.wall_s)
            pieces.setdefault(WHEN, []).append(written)
        if number and file.lead() is not None:
            starts.append(Start(base, f"a new event file begins: {file.path.name}"))
        for record, step in file.events.session_starts:
            starts.append(Start(base + record, f"a session starts at step {step}"))
        base += file.events.num_records
    return {tag: _concatenated(parts) for tag, parts in pieces.items()}, starts


def _concatenated(parts: Sequence[TagSeries]) -> TagSeries:
    if len(parts) == 1:
        return parts[0]
    order, step, value = (
        np.concatenate([getattr(p, name) for p in parts]) for name in ("order", "step", "value")
    )
    return TagSeries(order, step, value)
