"""Runs trimtab and every published rule on simulated runs: detections and false alarms.

The loss is that of `testing.curves.lm_curve` with noise of standard deviation 0.02: independent,
autocorrelated (AR(1), 0.9) or heavy-tailed (Student's t, 3 degrees of freedom). The grad norm is
log-normal, exp(0.5 N(0, 1)), and knows nothing of the event: a rule that looks at it alone can only
be lucky, which the healthy twin takes away. The event begins at row 4000; the log ends 1000 rows
later, so whatever is said is said by then.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.alarms import find_alarms
from benchmarks.peers.contract import Floats, Peer
from benchmarks.peers.table import PEERS
from trimtab.detectors.offline import all_findings
from trimtab.incidents import group_findings
from trimtab.record import RunRecord
from trimtab.signals import derive
from trimtab.testing.curves import NoiseKind, lm_curve, make_noise, record_of

__all__ = [
    "CLEAN_ROWS",
    "EVENTS",
    "EVENT_ROW",
    "NOISES",
    "Caught",
    "NoiseResult",
    "make_run",
    "measure_noise",
]

EVENT_ROW = 4000
WINDOW_ROWS = 1000
_EVENT_ROWS = EVENT_ROW + WINDOW_ROWS + 1
CLEAN_ROWS = 20_000
NOISES: tuple[NoiseKind, ...] = ("gaussian", "ar1", "t3")
NOISE_LEVEL = 0.02

Event = Callable[[Floats, Floats], Floats]


def _one_row(loss: Floats, after: Floats) -> Floats:
    return np.asarray(np.where(after == 0, 1.5 * loss, loss))


def _spike(loss: Floats, after: Floats) -> Floats:
    """Rise to twice the level in 5 rows, and fall back over 60."""
    height = np.interp(after, [0, 4, 64], [0.0, 1.0, 0.0], left=0.0, right=0.0)
    return np.asarray(loss * (1 + height), dtype=np.float64)


def _shift(loss: Floats, after: Floats) -> Floats:
    return np.asarray(loss + np.select([after >= 150, after >= 0], [0.03, 0.06]))


def _drift(loss: Floats, after: Floats) -> Floats:
    return np.asarray(loss + 0.0005 * np.clip(after, 0, None))


def _too_good(loss: Floats, after: Floats) -> Floats:
    return np.asarray(np.where(after >= 0, 0.7 * loss, loss))


EVENTS: Mapping[str, Event] = {
    "one row +50 %": _one_row,
    "65 rows, peak 2x": _spike,
    "+.06, then +.03": _shift,
    "drift .0005/row": _drift,
    "-30 %": _too_good,
}
"""By name: from the healthy loss and rows after the onset to the loss with the event."""


@dataclass(frozen=True, kw_only=True)
class SimulatedAlarm:
    """When an alarm was raised, and the rows it speaks of."""

    kind: str
    said_row: int
    onset_row: int
    end_row: int


@dataclass(frozen=True, kw_only=True)
class Caught:
    """One event type under one law of noise."""

    num_runs: int
    num_caught: int
    delay_rows: float | None
    """Median from the onset to the row at which it was said, among those caught."""


@dataclass(frozen=True, kw_only=True)
class NoiseResult:
    """One system under one law of noise."""

    system: str
    noise: NoiseKind
    false_per_20k: float
    """Alarms on healthy runs of 20,000 rows, mean over seeds."""
    events: Mapping[str, Caught]


def make_run(
    noise: NoiseKind, seed: int, *, event: str | None = None, num_rows: int = CLEAN_ROWS
) -> RunRecord:
    """Return a run; without an event it is the healthy twin, row by row, of the one with it."""
    drawn, drawn_norm = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    loss = lm_curve(num_rows) + NOISE_LEVEL * make_noise(num_rows, noise, drawn)
    if event is not None:
        loss = EVENTS[event](loss, np.arange(num_rows, dtype=np.float64) - EVENT_ROW)
    norm = np.exp(0.5 * drawn_norm.standard_normal(num_rows))
    return record_of(np.arange(1.0, num_rows + 1.0), {"loss": loss, "grad_norm": norm})


def measure_noise(
    *,
    seeds: Sequence[int],
    say: Callable[[str], None],
    peers: Sequence[Peer] = PEERS,
    noises: Sequence[NoiseKind] = NOISES,
    clean_rows: int = CLEAN_ROWS,
) -> tuple[NoiseResult, ...]:
    """Return what each system catches and falsely says, trimtab first, law by law.

    Args:
        seeds: One healthy run and one run per event for each, and each law.
        say: Is told of each seed as it is done.
        peers: The rules to set beside trimtab; those that need other signals are left out.
        noises: Laws of the noise.
        clean_rows: Length of the healthy runs; false alarms are told per 20,000 rows.

    Cost: about 45,000 rows per seed and law, for each system.
    """
    fed = [p for p in peers if set(p.needs) <= {"loss", "grad_norm"}]
    results: list[NoiseResult] = []
    for noise in noises:
        healthy: dict[str, int] = {}
        delays: dict[str, dict[str, list[int]]] = {}
        for done, seed in enumerate(seeds, 1):
            twin = _all_alarms(make_run(noise, seed, num_rows=clean_rows), fed)
            for name, alarms in twin.items():
                healthy[name] = healthy.get(name, 0) + len(alarms)
            for event in EVENTS:
                found = _all_alarms(make_run(noise, seed, event=event, num_rows=_EVENT_ROWS), fed)
                for name, alarms in found.items():
                    delay = _delay(alarms, {(a.kind, a.onset_row) for a in twin[name]})
                    told = delays.setdefault(name, {e: [] for e in EVENTS})[event]
                    told += [] if delay is None else [delay]
            say(f"noise {noise}: seed {seed} ({done}/{len(seeds)})")
        per_20k = CLEAN_ROWS / (clean_rows * len(seeds))
        results += [
            NoiseResult(
                system=name,
                noise=noise,
                false_per_20k=num_false * per_20k,
                events={e: _caught(delays[name][e], len(seeds)) for e in EVENTS},
            )
            for name, num_false in healthy.items()
        ]
    return tuple(results)


def _caught(delays: Sequence[int], num_runs: int) -> Caught:
    delay = float(np.median(delays)) if delays else None
    return Caught(num_runs=num_runs, num_caught=len(delays), delay_rows=delay)


def _delay(alarms: Sequence[SimulatedAlarm], twins: set[tuple[str, int]]) -> int | None:
    """Return after how many rows the event was said.

    None if only what the twin has, too, was said.
    """
    said = [
        a.said_row - EVENT_ROW
        for a in alarms
        if a.end_row >= EVENT_ROW and a.said_row >= EVENT_ROW and (a.kind, a.onset_row) not in twins
    ]
    return min(said) if said else None


def _all_alarms(record: RunRecord, peers: Sequence[Peer]) -> dict[str, list[SimulatedAlarm]]:
    """Return the alarms of each system by name."""
    found = _own_alarms(record)
    for peer in peers:
        found[peer.name] = [
            SimulatedAlarm(
                kind=a.kind, said_row=a.onset_row, onset_row=a.onset_row, end_row=a.end_row
            )
            for a in find_alarms(peer, record) or ()
        ]
    return found


def _own_alarms(record: RunRecord) -> dict[str, list[SimulatedAlarm]]:
    """Return trimtab's alarms, hindsight included, and the same with its notes (`info`)."""
    record = derive(record)
    findings = all_findings(record)
    alarms: list[SimulatedAlarm] = []
    with_notes: list[SimulatedAlarm] = []
    for incident in group_findings(record, findings):
        keys = {f.key for f in incident.findings}
        told = [f for f in findings if f.key in keys]
        kind, onset, last = incident.kind, incident.onset_row, incident.end_row
        end = record.num_rows - 1 if last is None else last
        with_notes.append(
            SimulatedAlarm(
                kind=kind, said_row=min(f.row for f in told), onset_row=onset, end_row=end
            )
        )
        loud = [f.row for f in told if f.severity != "info"]
        if incident.severity != "info":
            said = min(loud, default=with_notes[-1].said_row)
            alarms.append(SimulatedAlarm(kind=kind, said_row=said, onset_row=onset, end_row=end))
    return {"trimtab": alarms, "trimtab, notes too": with_notes}
