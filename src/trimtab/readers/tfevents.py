"""TensorBoard event files: records of scalars -> one series per tag, thousands of events at once.

Events are grouped by length. For each length the layout of the first event (`tfevents_layout`) is
applied to all; those that fit are read as columns, and the first that does not fit gives the next
layout. Rare lengths are read one by one. The checksum of every event used is checked; by the
linearity of the CRC that costs a look-up per byte that differs.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.crc32c import byte_effects, crc32c_rows, masked
from trimtab.readers.protobuf import WireError
from trimtab.readers.tfevents_layout import EventLayout, lay_out, scalars_of
from trimtab.readers.tfrecord import Frames, find_frames

__all__ = ["EventFile", "EventSeries", "parse_events"]

_CHUNK_ROWS = 1 << 14
_MAX_LAYOUTS = 128
"""Layouts tried per length, before events are read one by one."""
_RARE = 4
"""Lengths with no more events than this are read one by one."""
_LONG_BYTES = 4096
"""Longer events (images, histograms, graphs) are read one by one: only their heads are looked at.
"""


@dataclass(frozen=True)
class EventSeries:
    """One tag of a file, in file order."""

    place: NDArray[np.int64]
    """int64 [n], which record of the file each comes from."""
    step: NDArray[np.int64]
    """int64 [n]."""
    wall_s: NDArray[np.float64]
    """float64 [n], seconds since 1970."""
    value: NDArray[np.float64]
    """float64 [n]."""


@dataclass(frozen=True)
class EventFile:
    """What one event file holds."""

    series: dict[str, EventSeries]
    session_starts: list[tuple[int, int]]
    """(record, step) where the file says that a session starts."""
    num_records: int
    num_bad: int
    """Events left out for a wrong checksum or a broken message."""
    torn: bool
    lost_bytes: int
    other_tags: Mapping[str, int]
    """Tags of scalars that were not wanted, and how many values each has."""


def parse_events(data: bytes, wanted: Callable[[str], bool] = bool) -> EventFile:
    """Return the scalars of an event file whose tag is wanted."""
    frames = find_frames(data)
    collector = _Collector(data, frames, wanted)
    small = len(frames.size) and int(frames.size.max()) < 1 << 16
    keys = frames.size.astype(np.uint16) if small else frames.size  # 16 bits: a radix sort
    order = np.argsort(keys, kind="stable")
    sizes = frames.size[order]
    edges = np.flatnonzero(np.diff(sizes)) + 1
    for records in np.split(order, edges) if len(order) else []:
        collector.read_length(records, int(frames.size[records[0]]))
    return collector.result()


@dataclass
class _Pieces:
    place: list[NDArray[np.int64]] = field(default_factory=list)
    step: list[NDArray[np.int64]] = field(default_factory=list)
    wall_s: list[NDArray[np.float64]] = field(default_factory=list)
    value: list[NDArray[np.float64]] = field(default_factory=list)

    def joined(self) -> EventSeries:
        series = EventSeries(
            np.concatenate(self.place),
            np.concatenate(self.step),
            np.concatenate(self.wall_s),
            np.concatenate(self.value),
        )
        if np.all(np.diff(series.place) >= 0):
            return series
        order = np.argsort(series.place, kind="stable")
        return EventSeries(
            series.place[order], series.step[order], series.wall_s[order], series.value[order]
        )


class _Fit:
    """A layout with what is needed to lay it over many events of its length."""

    def __init__(self, data: bytes, layout: EventLayout) -> None:
        self.layout = layout
        self.first = np.frombuffer(data, np.uint8)
        self.mask = layout.mask(len(data))
        self.loose = np.flatnonzero(self.mask != 0xFF)
        self.crc = crc32c_rows(self.first[None])[0]

    def fits(self, rows: NDArray[np.uint8]) -> NDArray[np.bool_]:
        odd: NDArray[np.bool_] = np.any((rows ^ self.first) & self.mask, axis=1)
        return ~odd

    def checksums(self, rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
        effects = byte_effects(len(self.first))
        crc = np.full(len(rows), self.crc, dtype=np.uint32)
        for at in self.loose.tolist():
            crc ^= effects[at][rows[:, at] ^ self.first[at]]
        return masked(crc)

    def steps(self, rows: NDArray[np.uint8]) -> NDArray[np.int64]:
        step = np.zeros(len(rows), dtype=np.uint64)
        for k, at in enumerate(range(self.layout.step_at, self.layout.step_end)):
            step |= (rows[:, at] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
        return step.view(np.int64)

    def column(self, rows: NDArray[np.uint8], at: int, kind: str) -> NDArray[np.float64]:
        size = np.dtype(kind).itemsize
        return np.ascontiguousarray(rows[:, at : at + size]).view(kind)[:, 0].astype(np.float64)


class _Collector:
    """Reads group after group of events of one length."""

    def __init__(self, data: bytes, frames: Frames, wanted: Callable[[str], bool]) -> None:
        self.data = data
        self.view = np.frombuffer(data, np.uint8)
        self.frames = frames
        self.wanted = wanted
        self.known: dict[str, bool] = {}
        self.num_others: Counter[str] = Counter()
        self.pieces: dict[str, _Pieces] = {}
        self.session_starts: list[tuple[int, int]] = []
        self.num_bad = 0

    def result(self) -> EventFile:
        return EventFile(
            {tag: p.joined() for tag, p in self.pieces.items()},
            sorted(self.session_starts),
            len(self.frames.start),
            self.num_bad,
            self.frames.torn,
            self.frames.lost_bytes,
            dict(self.num_others),
        )

    def read_length(self, records: NDArray[np.int64], size: int) -> None:
        if len(records) <= _RARE or size > _LONG_BYTES:
            self._one_by_one(records)
            return
        windows = np.lib.stride_tricks.sliding_window_view(self.view, size)
        layouts: list[_Fit] = []
        for first in range(0, len(records), _CHUNK_ROWS):
            chunk = records[first : first + _CHUNK_ROWS]
            rows = windows[self.frames.start[chunk]]
            self._read_chunk(chunk, rows, layouts)

    def _read_chunk(
        self, records: NDArray[np.int64], rows: NDArray[np.uint8], layouts: list[_Fit]
    ) -> None:
        tried = 0
        while len(records):
            if tried == len(layouts) and not self._learn(rows[0].tobytes(), layouts):
                self._one_by_one(records if tried >= _MAX_LAYOUTS else records[:1])
                if tried >= _MAX_LAYOUTS:
                    return
                records, rows = records[1:], rows[1:]
                continue
            fit = layouts[tried]
            tried += 1
            fits = fit.fits(rows)
            if fits.all():
                self._take(fit, records, rows)
                return
            if fits.any():
                self._take(fit, records[fits], rows[fits])
                records, rows = records[~fits], rows[~fits]

    def _learn(self, data: bytes, layouts: list[_Fit]) -> bool:
        """Add the layout of an event; False where it has none or there are enough."""
        if len(layouts) >= _MAX_LAYOUTS:
            return False
        try:
            layout = lay_out(data)
        except WireError:
            return False
        if layout.starts_session or any(not s.kind for s in layout.slots):
            return False
        layouts.append(_Fit(data, layout))
        return True

    def _take(self, fit: _Fit, records: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
        slots = [s for s in fit.layout.slots if self._is_wanted(s.tag, len(records))]
        if not slots:
            return
        ends = self.frames.start[records] + len(fit.first)
        stored = self.view[ends[:, None] + np.arange(4)].view("<u4")[:, 0]
        good = fit.checksums(rows) == stored
        if not good.all():
            self.num_bad += int((~good).sum())
            records, rows = records[good], rows[good]
        steps = fit.steps(rows)
        wall = (
            fit.column(rows, fit.layout.wall, "<f8")
            if fit.layout.wall >= 0
            else np.zeros(len(rows))
        )
        for slot in slots:
            self._add(slot.tag, records, steps, wall, fit.column(rows, slot.at, slot.kind))

    def _is_wanted(self, tag: str, num: int = 1) -> bool:
        known = self.known.get(tag)
        if known is None:
            known = self.known[tag] = self.wanted(tag)
        if not known:
            self.num_others[tag] += num
        return known

    def _add(
        self,
        tag: str,
        records: NDArray[np.int64],
        steps: NDArray[np.int64],
        wall: NDArray[np.float64],
        values: NDArray[np.float64],
    ) -> None:
        pieces = self.pieces.setdefault(tag, _Pieces())
        pieces.place.append(records)
        pieces.step.append(steps)
        pieces.wall_s.append(wall)
        pieces.value.append(values)

    def _one_by_one(self, records: NDArray[np.int64]) -> None:
        for record in records.tolist():
            start = int(self.frames.start[record])
            end = start + int(self.frames.size[record])
            try:
                self._read_one(record, self.data[start:end], self.data[end : end + 4])
            except WireError:
                self.num_bad += 1

    def _read_one(self, record: int, data: bytes, stored: bytes) -> None:
        layout = lay_out(data)
        found = [(t, v) for t, v in scalars_of(data, layout) if self._is_wanted(t)]
        if not (found or layout.starts_session):
            return
        row = np.frombuffer(data, np.uint8)[None]
        if int(masked(crc32c_rows(row))[0]) != int.from_bytes(stored, "little"):
            self.num_bad += 1
            return
        step, wall = layout.step(data), layout.wall_time(data)
        if layout.starts_session:
            self.session_starts.append((record, step))
        place = np.array([record])
        for tag, value in found:
            self._add(tag, place, np.array([step]), np.array([wall]), np.array([value]))
