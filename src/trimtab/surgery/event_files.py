"""TensorBoard's event files without what was logged after a step.

Whole records are left out and the others are kept byte for byte, so every length and checksum that
stays is the one that the trainer wrote. A record is judged by the step in it. What has no step (the
file's version, settings, graphs) stays. A session mark with a later step, by which TensorBoard
drops older rows of that step on (`purge_step`), leaves with the rows it stood for.

Some tags count something else than steps (`lm loss vs samples`, a value per epoch). They are told
by their name, or because their numbers do not lie between the steps logged right before and after
them; they are cut where the steps around them are cut.
"""

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ReadError
from trimtab.readers.protobuf import BYTES, VARINT, WireError, fields, signed
from trimtab.readers.tfrecord import find_frames

__all__ = ["EventCut", "cut_events", "cut_file", "is_event_file"]

_COUNTS_ELSE = re.compile(
    r"\bvs\.?[ _-]+(?!(?:train[ _-]?)?(?:steps?|iters?|iterations?|updates?)\b)\w+", re.IGNORECASE
)
_FEW = 0.5
"""Share of a tag's numbers that lie between the steps around them, below which it counts something
else. Ours."""
_HEAD_BYTES, _TAIL_BYTES = 12, 4
_STEP, _SUMMARY, _VALUE, _TAG = 2, 5, 1, 1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class EventCut:
    """What of an event file stays."""

    spans: tuple[tuple[int, int], ...]
    """Bytes that stay, from and up to."""
    num_records: int
    num_removed: int
    first_removed: int | None
    """Smallest step that leaves."""
    last_step: int | None
    """Largest step in the file, of tags that count steps."""
    has_rows: bool
    """Whether anything but the file's version stays."""
    other_axis: tuple[str, ...]
    """Tags that count something else than steps."""
    notes: tuple[str, ...] = ()

    def pieces(self, path: Path) -> Iterator[bytes]:
        """Yield the bytes that stay."""
        with path.open("rb") as file:
            for start, end in self.spans:
                file.seek(start)
                while start < end and (chunk := file.read(min(_CHUNK_BYTES, end - start))):
                    start += len(chunk)
                    yield chunk


def is_event_file(name: str) -> bool:
    """Whether TensorBoard takes a file of this name for one of its own."""
    return "tfevents" in name and not name.endswith((".partial", ".profile-empty"))


def cut_file(path: Path, step: int) -> EventCut:
    """Return what of an event file stays when all after `step` leaves.

    Raises:
        ReadError: It cannot be read.

    Cost: the file is mapped, not loaded; some 10 microseconds a record.
    """
    try:
        status = path.stat()
        return _cut_once(path, step, status.st_size, status.st_mtime_ns, status.st_ino)
    except OSError as error:
        raise ReadError(f"{path}: cannot be read ({error.strerror}); check its rights") from error


@lru_cache(maxsize=4)
def _cut_once(path: Path, step: int, size: int, _mtime_ns: int, _inode: int) -> EventCut:
    if size == 0:
        return cut_events(b"", step)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return cut_events(data, step)


def cut_events(data: bytes | mmap.mmap, step: int) -> EventCut:
    """Return what stays of the bytes of an event file when all after `step` leaves."""
    frames = find_frames(data)  # type: ignore[arg-type]  # a map reads as bytes do
    starts, ends = frames.start.tolist(), (frames.start + frames.size).tolist()
    heads = [_step_and_tag(data[a:b]) for a, b in zip(starts, ends, strict=True)]
    removed, others, last = _removed(heads, step)
    spans: list[tuple[int, int]] = []
    at = 0
    for record in np.flatnonzero(removed).tolist():
        spans.append((at, starts[record] - _HEAD_BYTES))
        at = ends[record] + _TAIL_BYTES
    with_step = [k for k, (s, _) in enumerate(heads) if s]
    torn_leaves = bool(frames.torn and with_step and removed[with_step[-1]])
    end = ends[-1] + _TAIL_BYTES if torn_leaves else len(data)
    spans.append((at, end))
    notes = [f"{frames.lost_bytes} damaged bytes stay as they are"] if frames.lost_bytes else []
    gone = [heads[k][0] for k in np.flatnonzero(removed).tolist() if heads[k][1] not in others]
    stay = [k for k in range(len(heads)) if not removed[k]]
    return EventCut(
        spans=tuple((a, b) for a, b in spans if a < b),
        num_records=len(heads),
        num_removed=int(removed.sum()),
        first_removed=min(gone, default=None),
        last_step=last,
        has_rows=any(heads[k][0] or heads[k][1] for k in stay) or bool(frames.lost_bytes),
        other_axis=tuple(sorted(others)),
        notes=tuple(notes),
    )


def _step_and_tag(record: bytes) -> tuple[int, str]:
    """Return the step of an event, 0 where it states none, and the tag of its first value."""
    step, tag = 0, ""
    try:
        for part in fields(record):
            if part.number == _STEP and part.kind == VARINT:
                step = signed(part.value)
            elif part.number == _SUMMARY and part.kind == BYTES and not tag:
                tag = _first_tag(record, part.start, part.end)
    except WireError:
        return 0, ""
    return step, tag


def _first_tag(record: bytes, start: int, end: int) -> str:
    for value in fields(record, start, end):
        if value.number == _VALUE and value.kind == BYTES:
            for part in fields(record, value.start, value.end):
                if part.number == _TAG and part.kind == BYTES:
                    return record[part.start : part.end].decode("utf-8", "replace")
    return ""


def _removed(
    heads: list[tuple[int, str]], step: int
) -> tuple[NDArray[np.bool_], frozenset[str], int | None]:
    """Return which records leave (bool [n]), the tags that count something else, the last step."""
    steps = np.array([s for s, _ in heads], dtype=np.int64)
    by_tag: dict[str, list[int]] = {}
    for place, (_, tag) in enumerate(heads):
        if tag:
            by_tag.setdefault(tag, []).append(place)
    others = _other_axis({t: np.array(p) for t, p in by_tag.items()}, steps)
    counts_steps = np.array([tag not in others for _, tag in heads], dtype=np.bool_)
    # A tag without steps around it at all stays: nothing says where it has to be cut.
    around = np.zeros(len(heads), dtype=np.int64)
    places = np.flatnonzero(counts_steps & (steps > 0))
    if len(places):
        before = np.searchsorted(places, np.arange(len(heads)), side="right") - 1
        around = np.where(before >= 0, steps[places[np.maximum(before, 0)]], 0)
    last = int(steps[places].max()) if len(places) else None
    return np.where(counts_steps, steps, around) > step, others, last


def _other_axis(by_tag: dict[str, NDArray[np.int64]], steps: NDArray[np.int64]) -> frozenset[str]:
    named = {tag for tag in by_tag if _COUNTS_ELSE.search(tag)}
    rest = {tag: places for tag, places in by_tag.items() if tag not in named}
    if not rest:
        return frozenset(named)
    main = rest[max(rest, key=lambda t: (len(rest[t]), t))]
    known = steps[main]
    others = set(named)
    for tag, places in rest.items():
        after = np.searchsorted(main, places, side="left")
        before = np.searchsorted(main, places, side="right") - 1
        low = np.where(before >= 0, known[np.maximum(before, 0)], 0)
        high = np.where(after < len(main), known[np.minimum(after, len(main) - 1)], 1 << 62)
        falls = high < low  # the trainer went back there: either side may be meant
        low, high = np.where(falls, high, low), np.where(falls, low, high)
        between = (steps[places] >= low) & (steps[places] <= high)
        if between.mean() < _FEW:
            others.add(tag)
    return frozenset(others)
