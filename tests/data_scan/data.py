"""Data with and without faults, in every form that the scan reads."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.logs.prose import prose
from trimtab.data_scan import ScanResult, ScanSettings, scan
from trimtab.data_scan.findings import DataFinding
from trimtab.data_scan.sources import ReadSettings

CLEAN = prose(300, seed=0)


def write_jsonl(path: Path, texts: Iterable[str]) -> Path:
    path.write_text("".join(json.dumps({"id": "x", "text": t}) + "\n" for t in texts))
    return path


def scan_one(path: Path, **settings: object) -> ScanResult:
    reading = {k: settings.pop(k) for k in ("field", "context", "dtype") if k in settings}
    return scan([str(path)], ScanSettings(reading=ReadSettings(**reading), **settings))  # type: ignore[arg-type]


def scan_texts(folder: Path, texts: Sequence[str]) -> dict[str, DataFinding]:
    result = scan_one(write_jsonl(folder / "data.jsonl", texts))
    assert result.errors == ()
    return {f.rule: f for f in result.findings}


def write_megatron(
    stem: Path, documents: Sequence[NDArray[np.integer]], *, code: int = 8, cut_bytes: int = 0
) -> Path:
    """Write .bin and .idx by the documented layout, independently of the reader."""
    dtype: np.dtype[Any] = np.dtype({4: "<i4", 8: "<u2", 5: "<i8"}[code])
    raw = b"".join(d.astype(dtype).tobytes() for d in documents)
    stem.with_suffix(".bin").write_bytes(raw[: len(raw) - cut_bytes])
    sizes = np.array([len(d) for d in documents], "<i4")
    pointers = (
        np.concatenate(([0], np.cumsum(sizes.astype("<i8"))[:-1])).astype("<i8") * dtype.itemsize
    )
    head = b"MMIDIDX\x00\x00" + (1).to_bytes(8, "little") + bytes([code])
    head += len(sizes).to_bytes(8, "little") + (len(sizes) + 1).to_bytes(8, "little")
    docs = np.arange(len(sizes) + 1, dtype="<i8")
    stem.with_suffix(".idx").write_bytes(
        head + sizes.tobytes() + pointers.tobytes() + docs.tobytes()
    )
    return stem.with_suffix(".idx")


def tokens(number: int, *, seed: int = 0, vocab: int = 50_000) -> NDArray[np.int64]:
    """Return token ids by Zipf's law."""
    return np.minimum(np.random.default_rng(seed).zipf(1.2, number), vocab - 1).astype(np.int64)
