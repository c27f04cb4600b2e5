"""What a killed run has left on disk, as it is held against an unbroken one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.checkpoints.manifest import newest_healthy
from trimtab.chronicle.journal import Event, read_journal
from trimtab.detectors.judge import judge_record
from trimtab.readers.rundir import read_run_directory

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["committed", "events_so_far", "findings_told", "in_trouble", "losses", "newest_lost"]

Claim = tuple[str, int, str]


def losses(run: Path) -> dict[float, float]:
    """Return the loss of every step of the lineage that stayed, as the run wrote it down."""
    record = read_run_directory(run)
    rows = record.lineage_rows()
    values = record.columns["loss"].values[rows]
    return dict(zip(record.step[rows].tolist(), values.tolist(), strict=True))


def committed(run: Path) -> bytes:
    """Return the whole lines of the journal: what a run has said for good."""
    path = run / "journal.jsonl"
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def events_so_far(run: Path) -> tuple[Event, ...]:
    """Return the events of the journal; none where there is no journal yet."""
    path = run / "journal.jsonl"
    return read_journal(path)[0] if path.exists() else ()


def in_trouble(run: Path) -> bool:
    """Whether the last word of a run is that it goes back, or tries something."""
    last = [e for e in events_so_far(run) if e.event in ("attempt", "decision", "action")][-1:]
    return any(e.data.get("trial") or e.event == "decision" for e in last)


def newest_lost(run: Path) -> bool:
    """Whether the newest checkpoint that the run told of is not there; no incident came since."""
    told = [
        e.step
        for e in events_so_far(run)
        if e.event == "checkpoint" and e.data.get("grade") == "healthy"
    ]
    newest = newest_healthy(run / "checkpoints")
    return (newest.step if newest else 0) < max(told, default=0)


def findings_told(run: Path) -> tuple[list[Claim], list[Claim]]:
    """Return the findings that were told live, and those of the record as it lies on disk."""
    live = [
        (e.data["kind"], e.data["row"], e.data["text"])
        for e in events_so_far(run)
        if e.event == "finding"
    ]
    return live, [(f.kind, f.row, f.text) for f in judge_record(read_run_directory(run))]
