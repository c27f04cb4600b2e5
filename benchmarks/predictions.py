"""Predictions of trimtab or of a published rule: one line per run, the form that is scored."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from benchmarks.manifest import Span, family_of_kind, make_span
from benchmarks.peers.alarms import find_alarms
from benchmarks.peers.contract import Peer
from trimtab.analysis.assemble import make_account
from trimtab.analysis.json_form import run_to_json
from trimtab.detectors.sensitivity import Sensitivity
from trimtab.record import RunRecord

__all__ = ["Claim", "Prediction", "claims_of", "predict", "predict_peer", "write_predictions"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One incident as predicted; times on the axis of the log."""

    kind: str
    severity: str
    onset: float
    peak: float | None = None
    end: float | None = None
    onset_row: int | None = None
    end_row: int | None = None
    confidence: float | None = None
    """None for rules that state none."""
    alarm: int | None = None
    """Claims with the same number are kinds of one incident, and one alarm; None: its own."""

    @property
    def family(self) -> str:
        """Family of its kind."""
        return family_of_kind(self.kind)

    @property
    def alarms(self) -> bool:
        """Whether it asks somebody to look."""
        return self.severity != "info"

    @property
    def span(self) -> Span:
        """Onset to end, else to the peak, else the onset alone."""
        return make_span(self.onset, self.end, self.peak)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """All that is said of one run."""

    id: str
    rows: int | None = None
    """Train-loss records read; None where the log could not be read."""
    error: str | None = None
    claims: tuple[Claim, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return the prediction line."""
        keys: tuple[str, ...] = (
            "kind",
            "onset",
            "peak",
            "end",
            "onset_row",
            "end_row",
            "severity",
            "confidence",
        )
        keys += ("alarm",) if any(c.alarm is not None for c in self.claims) else ()
        return {
            "id": self.id,
            "rows": self.rows,
            "error": self.error,
            "incidents": [{k: getattr(c, k) for k in keys} for c in self.claims],
        }


def predict(name: str, record: RunRecord, *, sensitivity: Sensitivity | None = None) -> Prediction:
    """Return what `trimtab inspect --json` says of a record, cut down to a prediction."""
    account = make_account(record, sensitivity=sensitivity, self_test=False)
    told = run_to_json(account, path=record.source)
    claims = tuple(c for n, i in enumerate(told["incidents"]) for c in claims_of(i, n))
    return Prediction(id=name, rows=told["rows"], claims=claims)


def claims_of(told: Mapping[str, Any], number: int) -> tuple[Claim, ...]:
    """Return a claim for each kind of an incident, at its own place; one alarm together."""
    whole = {k: told[k] for k in ("kind", "onset", "peak", "end", "onset_row", "end_row")}
    return tuple(
        Claim(
            kind=part["kind"],
            severity=told["severity"],
            onset=part["onset"],
            peak=part["peak"],
            end=part["end"],
            onset_row=part["onset_row"],
            end_row=part["end_row"],
            confidence=told["confidence"],
            alarm=number,
        )
        for part in [whole, *told["kinds"][1:]]
    )


def predict_peer(name: str, record: RunRecord, peer: Peer) -> Prediction | None:
    """Return what a published rule says of a record; every mark is a warning.

    None where the log lacks what the rule needs: it then says nothing, and had no chance to.
    """
    alarms = find_alarms(peer, record)
    if alarms is None:
        return None
    claims = tuple(
        Claim(
            kind=a.kind,
            severity="warning",
            onset=float(record.step[a.onset_row]),
            end=float(record.step[a.end_row]),
            onset_row=record.loss_row(a.onset_row),
            end_row=record.loss_row(a.end_row),
        )
        for a in alarms
    )
    return Prediction(id=name, rows=record.num_loss_rows, claims=claims)


def write_predictions(path: Path, predictions: Iterable[Prediction]) -> None:
    """Write one JSON line per run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for prediction in predictions:
            file.write(orjson.dumps(prediction.to_json(), option=orjson.OPT_APPEND_NEWLINE))
