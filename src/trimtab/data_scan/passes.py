"""The cheap passes: each looks at a whole block and adds to the counts of the source."""

import itertools

import numpy as np
import zstandard
from numpy.typing import NDArray

from trimtab.data_scan.block import BLOCK_BYTES, DataBlock, Elements
from trimtab.data_scan.disorder import disorder
from trimtab.data_scan.runs import MAX_SPAN, MIN_RUN_BYTES, find_runs
from trimtab.data_scan.source_counts import SourceCounts

__all__ = ["NOT_JUDGED", "PASSES", "RATIO_STEPS"]

_BACKSLASH = 92
_CELL_BITS = 11
_CELL_SHARE = 0.2
"""Share of backslashes in a stretch of 2 KiB that no text has: LaTeX sources reach about 0.05."""
_RUN_OF_ESCAPES = 64
_PIECE_BYTES = 8192
_SHORTEST_PIECE = 1024
"""Shorter pieces compress badly whatever they hold, and are not judged."""
_NOISE = 0.72
"""Random bytes compress to 1, base64 to 0.76; prose of 2 KiB and more to 0.4 to 0.55."""
_SHORTEST_NOISE = 2048
RATIO_STEPS = 200
NOT_JUDGED = 255
_BYTES_PER_TOKEN = 4
_MAX_TOKEN_COUNTED = 1 << 22
_MAX_LENGTHS = 200_000


def count(block: DataBlock, account: SourceCounts) -> None:
    """Sizes, lengths of documents, how often each byte or token occurs."""
    account.size_bytes += block.size_bytes
    account.num_elements += len(block.data)
    account.num_unreadable += block.num_unreadable
    lengths = np.diff(block.doc_starts)
    account.num_docs += len(lengths)
    if account.unit == "document" or block.doc_starts is not block.starts:
        values, times = np.unique(lengths, return_counts=True)
        for value, number in zip(values.tolist(), times.tolist(), strict=True):
            if value in account.lengths or len(account.lengths) < _MAX_LENGTHS:
                account.lengths[value] = account.lengths.get(value, 0) + number
    for origin, length in zip(block.origins, block.lengths.tolist(), strict=False):
        account.add_of_origin(origin, "units", 1)
        account.add_of_origin(origin, "bytes", length)
    if account.unit == "document":
        account.hit("empty-documents", block, _blank(block))
        account.hit("giant-documents", block, np.flatnonzero(block.lengths >= 1_000_000))
    if not len(block.data):
        return
    low, high = int(block.data.min()), int(block.data.max())
    if not block.is_text and (low < 0 or (account.vocab is not None and high >= account.vocab)):
        _out_of_range(block, account)
    account.totals["lowest"] = min(account.totals.get("lowest", low), low)
    account.totals["highest"] = max(account.totals.get("highest", high), high)
    if low >= 0 and high < _MAX_TOKEN_COUNTED:
        if high >= len(account.counts):
            more = np.zeros(high + 1 - len(account.counts), np.int64)
            account.counts = np.append(account.counts, more)
        for start in range(0, len(block.data), BLOCK_BYTES):  # bincount makes int64 of its input
            part = block.data[start : start + BLOCK_BYTES]
            account.counts += np.bincount(part, minlength=len(account.counts))


def _blank(block: DataBlock) -> NDArray[np.int64]:
    """Return the units that hold nothing, or nothing but blanks."""
    empty = block.lengths == 0
    first, last = block.starts[:-1], block.starts[1:] - 1
    seen = np.flatnonzero(~empty)
    blank = seen[(block.data[first[seen]] <= 32) & (block.data[last[seen]] <= 32)]
    for unit in blank.tolist():
        empty[unit] = not block.data[block.starts[unit] : block.starts[unit + 1]].tobytes().strip()
    return np.flatnonzero(empty)


def _out_of_range(block: DataBlock, account: SourceCounts) -> None:
    bad = block.data < 0
    if account.vocab is not None:
        bad |= block.data >= account.vocab
    places = np.flatnonzero(bad)
    account.add_total("tokens_out_of_range", len(places))
    account.hit("token-range", block, *block.first_in_units(places))


def escapes(block: DataBlock, account: SourceCounts) -> None:
    """Stretches of text that backslashes dominate, and long runs of them."""
    if not block.is_text:
        return
    positions = np.flatnonzero(block.data == _BACKSLASH)
    if len(positions) < _RUN_OF_ESCAPES:
        return
    account.add_total("backslashes", len(positions))
    cells = positions >> _CELL_BITS
    hot = positions[np.bincount(cells)[cells] >= _CELL_SHARE * (1 << _CELL_BITS)]
    gaps = np.flatnonzero(np.diff(positions) != 1) + 1
    first = np.concatenate(([0], gaps))
    long = np.flatnonzero(np.diff(np.append(first, len(positions))) >= _RUN_OF_ESCAPES)
    runs = positions[first[long]]
    account.add_total("escape_runs", len(runs))
    units = np.flatnonzero(block.per_unit(hot) >= (1 << _CELL_BITS) // 8)
    units = np.union1d(units, block.unit_at(runs))
    seen = np.sort(np.concatenate((hot, runs)))
    account.hit("escapes", block, units, seen[np.searchsorted(seen, block.starts[units])])


def repeats(block: DataBlock, account: SourceCounts) -> None:
    """Runs of one n-gram."""
    if block.is_text:
        runs = find_runs(
            block.data, block.starts, min_length=MIN_RUN_BYTES, max_span=MAX_SPAN * _BYTES_PER_TOKEN
        )
    else:
        runs = find_runs(block.data, block.starts)
    if not len(runs.starts):
        return
    account.add_total("repeat_runs", len(runs.starts))
    account.add_total("repeat_elements", int((runs.ends - runs.starts).sum()))
    account.hit("repeats", block, *block.first_in_units(runs.starts))


def compression(block: DataBlock, account: SourceCounts) -> None:
    """How well each piece of at most 8 KiB compresses; the worst of a unit is kept."""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=False)
    raw = memoryview(block.data.tobytes())
    width = block.data.itemsize
    worst = np.full(len(block.ids), NOT_JUDGED, np.uint8)
    noisy: dict[int, int] = {}
    edges = (block.starts * width).tolist()
    for unit, (start, end) in enumerate(itertools.pairwise(edges)):
        for at in range(start, end, _PIECE_BYTES):
            size = min(end - at, _PIECE_BYTES)
            if size < _SHORTEST_PIECE:
                continue
            packed = len(compressor.compress(raw[at : at + size]))
            account.compressed_bytes += packed
            account.judged_bytes += size
            if block.origins:
                account.add_of_origin(block.origins[unit], "compressed", packed)
                account.add_of_origin(block.origins[unit], "judged", size)
            worst[unit] = min(worst[unit], packed * RATIO_STEPS // size)
            if block.is_text and packed >= _NOISE * size and size >= _SHORTEST_NOISE:
                noisy.setdefault(unit, at)
    units, places = np.array(list(noisy), np.int64), np.array(list(noisy.values()), np.int64)
    account.hit("incompressible", block, units, places)
    known = account.ratio_low
    if (
        len(known) and len(block.ids) and int(block.ids[0]) < len(known)
    ):  # goes on with the last unit
        known[-1] = min(known[-1], int(worst[0]))
        worst = worst[1:]
    known.extend(worst.tobytes())


def dominance(block: DataBlock, account: SourceCounts) -> None:
    """Samples of which one token makes up more than half."""
    size = account.context
    if block.is_text or not size:
        return
    whole = np.flatnonzero(block.lengths == size)
    if not len(whole):
        return
    first = int(block.starts[whole[0]])
    rows = block.data[first : first + len(whole) * size].reshape(-1, size)
    middle = np.partition(rows, size // 2, axis=1)[
        :, size // 2
    ]  # what fills more than half is the median
    share = (rows == middle[:, None]).mean(axis=1)
    account.hit("one-token", block, whole[share > 0.5])


def markup(block: DataBlock, account: SourceCounts) -> None:
    """Documents that are HTML: closing tags, five or more, and one per 250 bytes."""
    if not block.is_text:
        return
    opens = np.flatnonzero(block.data == ord("<"))
    if not len(opens):
        return
    opens = opens[opens < len(block.data) - 2]
    after, letter = block.data[opens + 1], block.data[opens + 2] | 32
    closing = opens[(after == ord("/")) & (letter >= ord("a")) & (letter <= ord("z"))]
    if len(closing) < 5:
        return
    account.add_total("closing_tags", len(closing))
    number = block.per_unit(closing)
    units = np.flatnonzero((number >= 5) & (number * 250 >= block.lengths))
    account.hit("markup", block, units, closing[np.searchsorted(closing, block.starts[units])])


def encoding(block: DataBlock, account: SourceCounts) -> None:
    """U+FFFD, NUL, bytes that are no UTF-8, text decoded wrongly, JSON escaped twice."""
    if not block.is_text:
        return
    raw = block.data.tobytes()
    for rule, marks in _MARKS.items():
        found = [_places(block.data, raw, mark) for mark in marks]
        places = np.sort(np.concatenate(found)) if len(found) > 1 else found[0]
        if len(places):
            account.add_total(rule, len(places))
            account.hit(rule, block, *block.first_in_units(places))
    if not raw.isascii():
        _invalid(block, raw, account)
    if b"\\" in raw:
        _double_escaped(block, account)


_MARKS: dict[str, tuple[bytes, ...]] = {
    "replacement-characters": ("�".encode(),),
    "nul-bytes": (b"\0",),
    "mojibake": (b"\xc3\x83\xc2", b"\xc3\xa2\xe2\x82\xac", b"\xc3\x82\xc2"),
}
"""Mojibake: the UTF-8 of "Ã" and a C1 or Latin-1 sign, of "â€" and of "Â" and one, which decoding
UTF-8 as Latin-1 or Windows-1252 makes of accents, quotes and spaces; no language writes them."""


def _places(data: Elements, raw: bytes, mark: bytes) -> NDArray[np.int64]:
    """Return the positions of a mark.

    Vectorized, since a loop of `bytes.find` is slow where the mark is common.
    """
    if raw.find(mark) < 0:
        return np.zeros(0, np.int64)
    hit = data[: len(data) - len(mark) + 1] == mark[0]
    for i, byte in enumerate(mark[1:], 1):
        hit &= data[i : len(data) - len(mark) + 1 + i] == byte
    return np.flatnonzero(hit).astype(np.int64)


def _invalid(block: DataBlock, raw: bytes, account: SourceCounts) -> None:
    """Units that are no UTF-8; a window of text may cut a character at its edges."""
    try:
        raw.decode("utf-8")
        return
    except UnicodeDecodeError:
        pass
    slack = 0 if account.unit == "document" else 3
    edges = block.starts.tolist()
    units, at = [], []
    for unit, (start, end) in enumerate(itertools.pairwise(edges)):
        while slack and start < end and raw[start] & 0xC0 == 0x80 and start - edges[unit] < slack:
            start += 1
        try:
            raw[start:end].decode("utf-8")
        except UnicodeDecodeError as error:
            if slack and error.reason == "unexpected end of data":
                continue
            units.append(unit)
            at.append(start + error.start)
    account.hit("invalid-utf-8", block, np.array(units, np.int64), np.array(at, np.int64))


def _double_escaped(block: DataBlock, account: SourceCounts) -> None:
    r"""Units with `\n`, `\"` or `\u00e9` written out, more often than they have lines.

    16 or more, and one per 200 bytes.
    """
    data = block.data
    places = np.flatnonzero(data[:-1] == _BACKSLASH)
    after = data[places + 1]
    literal = places[(after == ord("n")) | (after == ord('"')) | (after == ord("u"))]
    if len(literal) < 16:
        return
    number = block.per_unit(literal)
    lines = block.per_unit(np.flatnonzero(data == ord("\n")))
    units = np.flatnonzero((number >= 16) & (number * 200 >= block.lengths) & (number > lines))
    account.hit(
        "double-escaped", block, units, literal[np.searchsorted(literal, block.starts[units])]
    )


PASSES = (count, escapes, repeats, compression, disorder, dominance, markup, encoding)
