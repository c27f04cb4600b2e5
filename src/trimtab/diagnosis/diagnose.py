"""Incident -> ranked causes with evidence.

Each cause of the table starts from its prior; every rule with evidence moves its log-odds; a
softmax makes shares that add up to 1. A log alone seldom separates causes, so without an experiment
no cause gets more than 0.75; the share above that, or below 0.01, goes to "unknown".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.diagnosis.causes import CAUSES, UNKNOWN, CauseEntry
from trimtab.diagnosis.config_signs import ConfigSign, config_weight
from trimtab.diagnosis.experiments import Experiment, cheapest_between
from trimtab.diagnosis.features import Features, incident_features
from trimtab.diagnosis.probes import DataProbe, TrialResult
from trimtab.incidents import Incident
from trimtab.record import RunRecord

__all__ = ["Cause", "DataProbe", "Diagnosis", "TrialResult", "diagnose", "rank_causes"]

LOG_ALONE_CAP = 0.75
"""Most that a cause gets without an experiment. Ours."""
EXPERIMENT_CAP = 0.97
"""Most that a cause ever gets. Ours."""
# Nats: a rule that moves the odds by less than 5 % is not worth a clause.
_SILENT = 0.05
_LEAST_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One candidate explanation."""

    cause: str
    """Id in the table of causes, such as `learning-rate-too-high`; `unknown` is allowed."""
    title: str
    """The cause in words."""
    confidence: float
    """Share of belief; the causes of one diagnosis sum to 1."""
    evidence: tuple[str, ...]
    """Evidence for it, one clause each, with this run's numbers."""
    against: tuple[str, ...] = ()
    """Evidence against it, one clause each."""
    test: str = ""
    """Cheapest test that would confirm or exclude it."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Ranked causes of one incident."""

    causes: tuple[Cause, ...]
    next_test: str = ""
    """Cheapest test that separates the top two."""
    experiment: str = ""
    """Its id in the table of experiments; empty where the table lacks it."""

    @property
    def top(self) -> Cause:
        """The leading cause."""
        return self.causes[0]

    def share(self, cause: str) -> float:
        """Return the confidence of the cause with this id; 0 where it is not among the causes."""
        return sum(c.confidence for c in self.causes if c.cause == cause)


def diagnose(
    record: RunRecord,
    incident: Incident,
    *,
    earlier: Sequence[Incident] = (),
    probe: DataProbe | None = None,
    trials: Sequence[TrialResult] = (),
    config: Sequence[ConfigSign] = (),
) -> Diagnosis:
    """Return the ranked causes of one incident.

    Args:
        record: What the run logged.
        incident: The episode; its rows are rows of `record`.
        earlier: Incidents that came before it, in any attempt of the record.
        probe: Losses of upcoming batches under the healthy state, where they were computed.
        trials: Short branches already run, in order.
        config: What a check of the run's config found.
    """
    features = incident_features(
        record, incident, earlier=earlier, probe=probe, trials=trials, config=config
    )
    return rank_causes(features, before=incident.first_step)


def rank_causes(features: Features, *, before: float) -> Diagnosis:
    """Return the causes of the table, most likely first.

    Args:
        features: What is known of the incident.
        before: Step that tests should start before.
    """
    judged = [_judge(entry, features) for entry in CAUSES]
    # less the highest, so that exp cannot overflow; the shares do not change
    highest = max(score for score, _, _ in judged)
    weights = [math.exp(score - highest) for score, _, _ in judged]
    shares = [w / sum(weights) for w in weights]
    # a log shows what happened together, an experiment what depends on what
    cap = EXPERIMENT_CAP if features.trials or features.probe else LOG_ALONE_CAP
    shares = _settled(shares, cap)
    causes = [
        Cause(
            cause=entry.id,
            title=entry.title,
            confidence=share,
            evidence=speaks_for,
            against=against,
            test=entry.test,
        )
        for entry, share, (_, speaks_for, against) in zip(CAUSES, shares, judged, strict=True)
        if share > 0
    ]
    causes.sort(key=lambda c: -c.confidence)
    test = _next_test(causes, features, cap)
    return Diagnosis(
        causes=tuple(causes),
        next_test="" if test is None else test.instructions(before),
        experiment="" if test is None else test.id,
    )


def _judge(entry: CauseEntry, f: Features) -> tuple[float, tuple[str, ...], tuple[str, ...]]:
    score = math.log(entry.prior)
    spoken: list[tuple[float, str]] = []
    for rule in entry.rules:
        moved = rule.weight * rule.strength(f)
        score += moved
        # weak rules still count in the score, but a list of evidence should be short
        if abs(moved) >= _SILENT:
            spoken.append((moved, rule.say(f)))
    for sign in f.config:
        moved = config_weight(sign, entry.id)
        score += moved
        if moved:
            spoken.append((moved, f"the config: {sign.message}"))
    spoken.sort(key=lambda pair: -abs(pair[0]))
    speaks_for = tuple(text for moved, text in spoken if moved > 0)
    return score, speaks_for, tuple(text for moved, text in spoken if moved < 0)


def _settled(shares: list[float], cap: float) -> list[float]:
    """Return the shares; whatever exceeds the cap or is below 1 % goes to "unknown"."""
    unknown = next(i for i, entry in enumerate(CAUSES) if entry.id == UNKNOWN)
    # Not scaled up to 1 again: what the cap takes is doubt, and no other cause has earned it.
    kept = [min(s, cap) if s >= _LEAST_SHARE else 0.0 for s in shares]
    kept[unknown] = 0.0
    kept[unknown] = max(0.0, 1.0 - sum(kept))
    return kept


def _next_test(causes: Sequence[Cause], f: Features, cap: float) -> Experiment | None:
    """Return the cheapest test between the top two that are not unknown; None when it is settled.

    With a single candidate it is the test between that and any cause not thought of.
    """
    named = [c for c in causes if c.cause != UNKNOWN]
    settled = cap == EXPERIMENT_CAP
    # After an experiment a leader near the cap needs no further one; a log alone never settles it.
    if not named or (settled and (len(named) < 2 or named[0].confidence >= 0.9 * cap)):
        return None
    other = UNKNOWN if len(named) < 2 else named[1].cause
    return cheapest_between(named[0].cause, other, kinds=f.kinds)
