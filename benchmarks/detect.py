"""Scores trimtab and every published rule on the same labelled logs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.manifest import LabelledRun, read_manifest
from benchmarks.peers.contract import Peer
from benchmarks.peers.table import PEERS
from benchmarks.predictions import Prediction, predict, predict_peer
from benchmarks.reliability import Bin, reliability
from benchmarks.scoring import RunScore, score_run, totals
from trimtab.errors import ReadError
from trimtab.readers import read
from trimtab.record import RunRecord
from trimtab.signals import derive

__all__ = ["Detection", "System", "detect", "read_labelled"]

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class System:
    """trimtab, or one peer: what it said, and the figures of that."""

    name: str
    predictions: tuple[Prediction, ...]
    scores: tuple[RunScore, ...]
    unfed: frozenset[str] = frozenset()
    """Runs whose log lacks what the rule needs: it is silent there."""

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The figures of `scoring.totals` on all runs."""
        return totals(self.scores)

    @cached_property
    def figures_fed(self) -> dict[str, Any]:
        """The figures on the runs that have what the rule needs."""
        return totals([s for s in self.scores if s.run.id not in self.unfed])


@dataclass(frozen=True, kw_only=True)
class Detection:
    """All systems on one folder of labelled logs; trimtab comes first."""

    runs: tuple[LabelledRun, ...]
    systems: tuple[System, ...]

    @property
    def own(self) -> System:
        """What trimtab said."""
        return self.systems[0]

    @property
    def reliability(self) -> tuple[Bin, ...]:
        """Confidence as trimtab stated it against what came true."""
        return reliability(self.own.scores)


def detect(folder: Path, *, say: Say, peers: Sequence[Peer] = PEERS) -> Detection:
    """Read each run once, and let trimtab and the peers judge it.

    Args:
        folder: Holds `manifest.jsonl` and the logs that it names.
        say: Is told of each run as it is done.
        peers: The rules to set beside trimtab.

    Raises:
        ReadError: The manifest cannot be used. A log that cannot be read is a prediction with an
            error.
    """
    runs = read_manifest(folder)
    own: list[Prediction] = []
    theirs: list[list[Prediction | None]] = [[] for _ in peers]
    for run, found in read_labelled(folder, runs):
        if isinstance(found, ReadError):
            failed = Prediction(id=run.id, error=str(found))
            own.append(failed)
            for said in theirs:
                said.append(failed)
        else:
            own.append(predict(run.id, found))
            derived = derive(found)
            for peer, said in zip(peers, theirs, strict=True):
                said.append(predict_peer(run.id, derived, peer))
        say(f"{len(own)}/{len(runs)} {run.id}")
    systems = [_system("trimtab", runs, own)]
    for peer, said in zip(peers, theirs, strict=True):
        systems.append(_system(peer.name, runs, said, rows=[p.rows for p in own]))
    return Detection(runs=runs, systems=tuple(systems))


def read_labelled(
    folder: Path, runs: Iterable[LabelledRun]
) -> Iterable[tuple[LabelledRun, RunRecord | ReadError]]:
    """Yield each run with its record, or with why there is none.

    A store with several runs gives the one with the most train-loss records.
    """
    for run in runs:
        try:
            yield run, max(read(folder / run.path), key=lambda r: r.num_loss_rows)
        except ReadError as error:
            yield run, error


def _system(
    name: str,
    runs: Sequence[LabelledRun],
    said: Sequence[Prediction | None],
    *,
    rows: Sequence[int | None] = (),
) -> System:
    """Score what one system said; where it was not fed it is silent, on a run that was read."""
    whole = tuple(
        p or Prediction(id=run.id, rows=rows[i])
        for i, (run, p) in enumerate(zip(runs, said, strict=True))
    )
    return System(
        name=name,
        predictions=whole,
        scores=tuple(score_run(run, p) for run, p in zip(runs, whole, strict=True)),
        unfed=frozenset(run.id for run, p in zip(runs, said, strict=True) if p is None),
    )
