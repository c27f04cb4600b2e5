"""Causes that post-mortems, chronicles and issues state, and what the ranking says of each.

`stated.toml` holds for each event what its log showed, as features, and the causes that the source
states. The features are ranked as those of a log are. The log loss is set against base rates: the
share that each cause has among the other events, with one more counted for every cause.

The signatures were re-typed by those who write the rules of evidence, so the figure says how the
rules hold together with what is publicly known, not how they do on logs that nobody had seen.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

from trimtab.diagnosis.causes import CAUSES
from trimtab.diagnosis.diagnose import Diagnosis, rank_causes
from trimtab.diagnosis.features import Features
from trimtab.diagnosis.history import Recurrence
from trimtab.diagnosis.probes import TrialResult
from trimtab.errors import ConfigError
from trimtab.incidents import Incident
from trimtab.kinds import KIND_BY_NAME

__all__ = ["Stated", "StatedScore", "read_stated", "score_stated", "summary"]

_IDS = frozenset(c.id for c in CAUSES)
_FIELDS = frozenset(f.name for f in fields(Features))


@dataclass(frozen=True, kw_only=True)
class Stated:
    """One event of a public source."""

    run: str
    saw: str
    """What the log or the launch showed, in words."""
    kinds: tuple[str, ...]
    severity: str
    signature: Mapping[str, Any]
    cause: tuple[str, ...]
    """Ids that say what the source states; the first says it best."""
    said: str
    source: str
    assumed: tuple[str, ...] = ()
    """Keys of the signature whose number the source does not print."""

    def features(self) -> Features:
        """Return what the log showed as features of an incident."""
        known: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in self.signature.items()
        }
        known.setdefault("height", 1.0)  # printed, never weighed
        return Features(
            kinds=frozenset(self.kinds),
            severity=self.severity,
            axis="step",
            onset=1000.0,
            rows_seen=200,
            recurrence=_recurrence(known),
            trials=_trials(known),
            **known,
        )


def _recurrence(known: dict[str, Any]) -> Recurrence | None:
    sooner = known.pop("again_sooner_by", None)
    other = known.pop("again_other_data", None)
    if sooner is None:
        return None
    previous = Incident(
        kind="unrecovered-spike",
        attempt="1.0",
        severity="critical",
        onset_row=0,
        onset=1000.0 + sooner,
        peak_row=0,
        peak=1000.0 + sooner,
        signals=("loss",),
        headline="",
    )
    return Recurrence(
        count=1,
        previous=previous,
        sooner_by=float(sooner),
        resumed_at=None,
        resume_stated=False,
        failed_distance=None,
        other_data=other,
        data_change="seed" if other else "",
    )


def _trials(known: dict[str, Any]) -> tuple[TrialResult, ...]:
    """Return the branches that the source reports: data left out, fp32, the same again."""
    found = []
    if known.pop("skip_alone", False):
        found.append(_trial("without the data", skipped=True))
    if known.pop("fp32_held", False):
        found.append(_trial("in another format", changed=("fp32",)))
    control = known.pop("control", "")
    if control:
        found.append(_trial("as it was", bitwise=True if control == "exact" else None))
    return tuple(found)


def _trial(
    name: str, *, skipped: bool = False, changed: tuple[str, ...] = (), bitwise: bool | None = None
) -> TrialResult:
    """Return a branch that held."""
    return TrialResult(
        name=name,
        held=True,
        loss=2.0,
        expected_loss=2.0,
        steps=50,
        skipped=skipped,
        changed=changed,
        bitwise=bitwise,
    )


def read_stated() -> tuple[Stated, ...]:
    """Return the events of `stated.toml`.

    Raises:
        ConfigError: A kind, a cause or a key of a signature is not known.
    """
    text = (files("benchmarks.causes") / "stated.toml").read_text("utf-8")
    found = []
    for row in tomllib.loads(text)["stated"]:
        stated = Stated(
            run=row["run"],
            saw=row["saw"],
            kinds=tuple(row["kinds"]),
            severity=row.get("severity", "critical"),
            signature=row["signature"],
            cause=tuple(row["cause"]),
            said=row["said"],
            source=row["source"],
            assumed=tuple(row.get("assumed", ())),
        )
        extra = {"again_sooner_by", "again_other_data", "skip_alone", "fp32_held", "control"}
        wrong = (
            [k for k in stated.kinds if k not in KIND_BY_NAME]
            + [c for c in stated.cause if c not in _IDS]
            + [k for k in stated.signature if k not in _FIELDS | extra]
        )
        if wrong:
            raise ConfigError(f"stated.toml: {stated.run}: {', '.join(wrong)} not known")
        found.append(stated)
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class StatedScore:
    """One event with what the ranking says."""

    stated: Stated
    diagnosis: Diagnosis
    rank: int | None
    """Place of the first stated cause, from 1; None where it is not listed."""
    share: float
    """Confidence given to the stated causes together."""
    base: float
    """The same by base rates of the other events."""


def score_stated(events: Sequence[Stated]) -> list[StatedScore]:
    """Return each event with its diagnosis."""
    scores = []
    for event in events:
        diagnosis = rank_causes(event.features(), before=990.0)
        ids = [c.cause for c in diagnosis.causes if c.cause != "unknown"]
        ranks = [ids.index(c) + 1 for c in event.cause if c in ids]
        others = [e for e in events if e is not event]
        weight = {c.id: 1.0 for c in CAUSES}
        for other in others:
            for name in other.cause:
                weight[name] += 1.0 / len(other.cause)
        whole = sum(weight.values())
        scores.append(
            StatedScore(
                stated=event,
                diagnosis=diagnosis,
                rank=min(ranks, default=None),
                share=sum(diagnosis.share(c) for c in event.cause),
                base=sum(weight[c] for c in event.cause) / whole,
            )
        )
    return scores


def summary(scores: Sequence[StatedScore]) -> dict[str, float]:
    """Return hit rates of the first cause and the first three, and the log losses, nats."""
    n = len(scores)
    first = sum(s.rank == 1 for s in scores)
    low, high = wilson(first, n)
    return {
        "events": n,
        "runs_with_assumed_numbers": sum(bool(s.stated.assumed) for s in scores),
        "first": first / n,
        "first_low": low,
        "first_high": high,
        "in_three": sum(s.rank is not None and s.rank <= 3 for s in scores) / n,
        "log_loss": sum(-math.log(max(s.share, 1e-3)) for s in scores) / n,
        "log_loss_base": sum(-math.log(max(s.base, 1e-3)) for s in scores) / n,
    }


def wilson(hits: int, number: int, z: float = 1.645) -> tuple[float, float]:
    """Return the 90 % interval of a share by Wilson's formula; 0 to 1 for no event.

    Example:
        >>> [round(x, 2) for x in wilson(9, 10)]
        [0.65, 0.98]
    """
    if not number:
        return 0.0, 1.0
    p, q = hits / number, z * z / number
    middle = (p + q / 2) / (1 + q)
    half = z * math.sqrt(p * (1 - p) / number + q / (4 * number)) / (1 + q)
    return max(0.0, middle - half), min(1.0, middle + half)
