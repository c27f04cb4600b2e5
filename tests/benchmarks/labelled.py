"""A few labelled runs as a manifest would name them, and predictions about them."""

import json
from pathlib import Path
from typing import Any

from benchmarks.manifest import LabelledRun, read_manifest
from benchmarks.predictions import Claim, Prediction


def label(kind: str, onset: float, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "onset": onset, "confidence": "high", **more}


def line(name: str, verdict: str, records: int = 1000, **more: Any) -> dict[str, Any]:
    """One line: steps 0, 10, 20 ..., so that the slack is 10 records, or 100 steps."""
    return {
        "id": name,
        "verdict": verdict,
        "local_path": f"{name}.jsonl",
        "n_records": records,
        "n_steps": records,
        "unit_per_record": 10.0,
        "x_first": 0.0,
        "x_last": 10.0 * records,
        "incidents": [],
        **more,
    }


def write_manifest(folder: Path, *lines: dict[str, Any]) -> Path:
    text = "".join(json.dumps(x) + "\n" for x in lines)
    (folder / "manifest.jsonl").write_text(text, encoding="utf-8")
    return folder


def runs_of(folder: Path, *lines: dict[str, Any]) -> tuple[LabelledRun, ...]:
    return read_manifest(write_manifest(folder, *lines))


def claim(kind: str, onset: float, **more: Any) -> Claim:
    return Claim(**{"kind": kind, "onset": onset, "severity": "warning", **more})


def said(name: str, *claims: Claim, rows: int | None = 1000) -> Prediction:
    return Prediction(id=name, rows=rows, claims=claims)
