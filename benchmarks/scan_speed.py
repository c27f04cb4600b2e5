"""Measures the speed of the data scan on one core, on made-up prose and tokens."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.logs.prose import prose
from trimtab.data_scan import ScanSettings, scan
from trimtab.data_scan.sources import ReadSettings

__all__ = ["ScanSpeed", "measure_scan", "scan_text"]

_DOCUMENTS = 2_000
_COPIES = 4
_TOKENS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class ScanSpeed:
    """One kind of source; speeds in MB of the file per second of one core's time."""

    kind: str
    size_bytes: int
    cheap_mb_per_s: float
    """All passes but duplicates; the best of three."""
    all_mb_per_s: float


def measure_scan(*, say: Callable[[str], None]) -> tuple[ScanSpeed, ...]:
    """Measure plain text, JSON lines and 16-bit tokens."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for path in _write(Path(folder)):
            say(f"scan: {path.suffix[1:]}")
            size = path.stat().st_size
            cheap = min(_seconds(path, duplicates=False) for _ in range(3))
            whole = min(_seconds(path, duplicates=True) for _ in range(2))
            found.append(
                ScanSpeed(
                    kind=path.stem,
                    size_bytes=size,
                    cheap_mb_per_s=size / cheap / 1e6,
                    all_mb_per_s=size / whole / 1e6,
                )
            )
    return tuple(found)


def _write(folder: Path) -> list[Path]:
    texts = [t for t in prose(_DOCUMENTS, seed=100) for _ in range(_COPIES)]
    text, lines, tokens = folder / "text.txt", folder / "jsonl.jsonl", folder / "tokens.npy"
    text.write_text("\n\n".join(texts))
    lines.write_text("".join(json.dumps({"text": f"{i} {t}"}) + "\n" for i, t in enumerate(texts)))
    ids = np.random.default_rng(100).zipf(1.2, _TOKENS)
    np.save(tokens, np.minimum(ids, 49_999).astype(np.uint16))
    return [text, lines, tokens]


def _seconds(path: Path, *, duplicates: bool) -> float:
    began = time.process_time()
    scan([str(path)], ScanSettings(reading=ReadSettings(), duplicates=duplicates))
    return time.process_time() - began


def scan_text(speeds: tuple[ScanSpeed, ...]) -> str:
    """Return the figures as a table."""
    lines = ["data scan, MB per second of one core   cheap passes   with duplicates"]
    lines += [
        f"  {s.kind:<8} {s.size_bytes / 1e6:5.0f} MB {'':<19}{s.cheap_mb_per_s:>12.0f}  "
        f" {s.all_mb_per_s:>15.0f}"
        for s in speeds
    ]
    return "\n".join(lines)
