"""One trouble being dealt with: what was seen, what was tried, and what that says. Numbers only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from trimtab.diagnosis.probes import DataProbe, TrialResult
from trimtab.guard.state.decisions import lr_factor
from trimtab.signals.robust import mad_sigma

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trimtab.guard.recovery.branch import InForce
    from trimtab.guard.state.training_state import Snapshot
    from trimtab.incidents import Incident
    from trimtab.plan.trial_results import Repeat, TrialRow
    from trimtab.plan.trials import Trial
    from trimtab.record import RunRecord

__all__ = [
    "Case",
    "LrJump",
    "Phase",
    "Verification",
    "conclude_trial",
    "find_lr_jump",
    "lr_at",
    "lr_rise",
    "onset_sample",
    "outliers",
    "probe_sample",
    "summarise_probe",
    "trial_is_lost",
]

_RISE_STEPS = 16
"""Steps before the onset over which the rate is compared."""
_RISE = 1.02
"""Rise over them from which it counts as rising, ratio; schedules that fall or stay are below 1."""

_UNLIKE = 1.15
"""Median of the probed batches that were trained on well, over the level of the run, from which the
state is not what the run had."""
_NOISE_SHARE = 0.1
"""Most that the noise of a trial's losses may lift what counts as held, share of the level."""
_PROVEN_ROWS = 32
"""Rows before a rise from which the rate that it rose from counts as one that worked."""

Phase = Literal["calm", "probe", "trial"]


@dataclass(frozen=True)
class LrJump:
    """A rise of the learning rate in force from one step to the next."""

    step: int
    """First step at the new rate."""
    before: float
    """What the schedule before it would have given there."""
    after: float


@dataclass
class Case:
    """One trouble being dealt with."""

    incident: Incident
    record: RunRecord
    seen_step: int
    """Step at which it was acted on."""
    seen_sample: int
    """Sample id that came next then."""
    base: Snapshot
    lr_now: float
    lr_restore: float
    level: float
    """Loss before the trouble, nats per token."""
    sigma: float
    before: InForce
    """What the guard had decided before the case."""
    lr_jump: LrJump | None
    recurrences: int
    first_sign: int
    """Step of the earliest sign, an earlier spike that healed among them."""
    lr_rising: bool = False
    """Whether the scheduled rate was still rising at the onset, without a jump."""
    lr_sound: float | None = None
    """The rate that it rose from; None: it did not, or none was proven before."""
    returning: bool = False
    """Whether it is one of several spikes, of which the earlier ones healed."""
    beta2: float | None = None
    eps: float | None = None
    """Settings of the optimizer before the case; None: it has no such."""
    worked: tuple[str, ...] = ()
    """Arms that worked in an earlier incident of this kind, the latest first."""
    depth: int = 0
    probe_samples: list[tuple[int, int, float]] = field(default_factory=list)
    probe: DataProbe | None = None
    trials: list[TrialResult] = field(default_factory=list)
    tried: dict[str, Trial] = field(default_factory=dict)
    """Every trial that was started, by name."""
    ends: dict[str, Snapshot] = field(default_factory=dict)
    """States at the end of the last two trials that held, by name: to go on from, if one is kept.
    """
    trial: Trial | None = None
    rows: list[TrialRow] = field(default_factory=list)
    """One for each trial that ended, from this restore point."""
    control: dict[int, float] = field(default_factory=dict)
    """Losses by step of what changed nothing, from this restore point: as recorded, or replayed."""
    repeat: Repeat = ""
    """How the unchanged replay compared with the record."""
    low_precision: str = ""
    """fp16 or bf16 where the forward pass runs in it and can be run in another."""
    trial_steps: int = 0
    """Steps spent on trials, over all restore points."""
    from_step: int = 0
    """Step of the state that the trial began from."""
    expect: tuple[float, float] = (math.nan, math.nan)
    """Level and spread of the loss that the trial should come back to."""
    losses: list[float] = field(default_factory=list)
    alarmed: bool = False
    broken_steps: int = 0
    """Last steps of the trial in a row whose gradient was not finite."""


@dataclass
class Verification:
    """A kept remedy that is being watched."""

    remedy: str
    until_step: int
    level: float
    sigma: float
    step: int = 0
    """Step from which it is kept."""
    losses: list[float] = field(default_factory=list)
    alarmed: bool = False

    def conclude(self, *, tolerance: float) -> tuple[str, dict[str, float]]:
        """Return worked, did not or unclear, with the figures it rests on."""
        tail = np.array(self.losses[-32:])
        mean = float(tail.mean()) if len(tail) else math.nan
        error = float(tail.std()) / math.sqrt(len(tail)) if len(tail) else math.nan
        worse = mean - self.level
        size, significant = worse > tolerance * self.level, worse > 3 * max(error, 1e-9)
        failed = self.alarmed or (len(tail) > 0 and not math.isfinite(mean))
        if failed or (size and significant and len(tail) >= 8):
            verdict = "did not"
        else:
            verdict = "unclear" if size or len(tail) < 8 else "worked"
        return verdict, {"loss": mean, "expected": self.level, "standard_error": error}


def outliers(case: Case, *, margin: int) -> list[bool]:
    """Return which probed batches stand out from the ones that were trained on without trouble.

    By 6 sigma, or three in a row by 3.5: small batches are noisy, and bad data comes in windows.
    None that was fed more than `margin` batches before the onset: it was trained on, and nothing
    came of it. None at all where it is the state that is odd: the batches that were trained on
    without trouble are far above the level of the run, or those that stand out are strewn, less
    than every third.
    """
    losses = [loss for *_, loss in case.probe_samples]
    trained = [
        x for first, _, x in case.probe_samples if first < onset_sample(case) and math.isfinite(x)
    ]
    centre = float(np.median(trained)) if len(trained) >= 5 else case.level
    spread = mad_sigma(np.array(trained), center=centre) if len(trained) >= 5 else case.sigma
    noise, least = max(spread, case.sigma), 0.04 * centre
    far = [abs(x - centre) for x in losses]
    alone = [not math.isfinite(x) or x > max(6 * noise, least) for x in far]
    near = [not math.isfinite(x) or x > max(3.5 * noise, least) for x in far]
    if centre > _UNLIKE * case.level:
        return [False] * len(losses)
    marks = [mark or _in_a_row(near, i) for i, mark in enumerate(alone)]
    marks = [
        mark and first >= onset_sample(case) - margin * (last - first + 1)
        for mark, (first, last, _) in zip(marks, case.probe_samples, strict=True)
    ]
    hits = [i for i, mark in enumerate(marks) if mark]
    dense = (
        any(_in_a_row(marks, i) for i in hits) or 3 * len(hits) > hits[-1] - hits[0]
        if hits
        else True
    )
    return marks if dense else [False] * len(losses)


def _in_a_row(marks: list[bool], place: int, *, count: int = 3) -> bool:
    """Return whether a mark is one of so many without a gap."""
    starts = range(max(place - count + 1, 0), place + 1)
    return any(all(marks[i : i + count]) and len(marks[i : i + count]) == count for i in starts)


def onset_sample(case: Case) -> int:
    """Return the first sample id of the batch at the incident's onset."""
    column = case.record.columns.get("samples_seen")
    row = case.incident.onset_row
    if column is None or not column.present[row]:
        return case.seen_sample
    before = case.base.payload["counters"]["samples"]
    return case.base.sample_id + int(column.values[row] - _step_samples(case)) - int(before)


def _step_samples(case: Case) -> float:
    """Return the samples of the step at the onset, of all ranks."""
    column = case.record.columns.get("batch_size")
    return float(column.values[case.incident.onset_row]) if column is not None else 1.0


def probe_sample(case: Case, *, margin: int) -> int:
    """Return the sample id to begin a probe near.

    What lies further before the onset cannot be to blame.

    As many batches again as may be suspected are looked at before them, to compare with.
    """
    return onset_sample(case) - 2 * margin * int(_step_samples(case))


def summarise_probe(case: Case, *, margin: int) -> DataProbe:
    """Return what the probed batches say together."""
    hits = [
        s for s, mark in zip(case.probe_samples, outliers(case, margin=margin), strict=True) if mark
    ]
    finite = [x for *_, x in case.probe_samples if math.isfinite(x)]
    return DataProbe(
        num_batches=len(case.probe_samples),
        num_outliers=len(hits),
        first_sample=hits[0][0] if hits else None,
        last_sample=hits[-1][1] if hits else None,
        median_loss=float(np.median(finite)) if finite else math.nan,
        worst_loss=max((x for *_, x in hits), default=max(finite, default=math.nan)),
    )


def trial_is_lost(case: Case) -> bool:
    """Whether the last losses of a trial are so far up that going on would tell nothing more."""
    if len(case.losses) < 16:
        return False
    recent = [x for x in case.losses[-8:] if math.isfinite(x)]
    level, sigma = case.expect
    limit = level + max(8 * sigma, 0.15 * level)
    return not recent or float(np.median(recent)) > limit


def conclude_trial(case: Case, trial: Trial, *, tolerance: float) -> TrialResult:
    """Return whether a trial that has ended held: quiet, finite, and back at the level before."""
    tail = np.array(case.losses[-max(len(case.losses) // 2, 8) :])
    end = float(tail.mean()) if np.isfinite(tail).all() else math.nan
    level, sigma = case.expect
    error = float(tail.std()) / math.sqrt(len(tail)) if len(tail) > 1 else sigma
    noise = 3 * max(error, sigma / math.sqrt(len(tail)))
    limit = level * (1 + tolerance) + min(noise, _NOISE_SHARE * level)
    held = not case.alarmed and math.isfinite(end) and end <= limit
    return TrialResult(
        name=trial.name,
        held=held,
        loss=end,
        expected_loss=level,
        steps=len(case.losses),
        skipped=trial.skip is not None,
        lr_factor=trial.lr_factor,
        lr_limit=trial.lr_limit,
        changed=tuple(a for a in trial.arms if a not in ("replay", "other-data", "lower-lr")),
    )


def find_lr_jump(incident: Incident) -> LrJump | None:
    """Return the jump of the rate in force that led to the incident, where there was one."""
    for f in incident.findings:
        if f.signal == "lr" and f.onset <= incident.onset and f.expected > 0:
            return LrJump(step=int(f.onset), before=f.expected, after=f.value)
    return None


def lr_at(record: RunRecord, step: float, cuts: Sequence[tuple[int, float]]) -> float:
    """Return the scheduled rate at the newest row at or before `step` on the last attempt's
    lineage."""
    rows = record.lineage_rows()
    column = record.columns.get("lr")
    if column is None:
        return math.nan
    rows = rows[(record.step[rows] <= step) & column.present[rows]]
    if not len(rows):
        return math.nan
    return float(column.values[rows[-1]]) / lr_factor(cuts, float(record.step[rows[-1]]))


def lr_rise(
    record: RunRecord, onset: float, cuts: Sequence[tuple[int, float]]
) -> tuple[bool, float | None]:
    """Return whether the scheduled rate was still rising at `onset`.

    And the rate that it rose from.

    That rate is None where the rise began with the run, as a warm-up does: none was proven before
    it.
    """
    rows = record.lineage_rows()
    column = record.columns.get("lr")
    if column is None:
        return False, None
    rows = rows[(record.step[rows] <= onset) & column.present[rows]]
    steps = record.step[rows]
    rates = [float(x) / lr_factor(cuts, s) for x, s in zip(column.values[rows], steps, strict=True)]
    if len(rates) < 2 or not 0 < _RISE * lr_at(record, onset - _RISE_STEPS, cuts) < rates[-1]:
        return False, None
    first = len(rates) - 1
    while first and rates[first - 1] < rates[first]:
        first -= 1
    return True, rates[first] if first >= _PROVEN_ROWS else None
