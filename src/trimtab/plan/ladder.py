"""The guard's next step after it has gone back: which short branch to try, which one to keep.

One pure function of a `Situation`. The order is fixed: an unchanged replay where a value was not
finite out of nothing; then without the suspect data; only then at a lower learning rate. A rate is
never raised.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trimtab.diagnosis.probes import DataProbe, TrialResult
from trimtab.errors import PlanError
from trimtab.plan.policy import Policy

__all__ = ["Commit", "GiveUp", "GoBack", "NextStep", "Situation", "Trial", "Wait", "next_step"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Run a short branch from the restore point."""

    name: str
    skip: tuple[int, int] | None = None
    """First and last sample id to leave out, both included."""
    lr_factor: float = 1.0
    """Factor on the learning rate that the schedule asks for; never above 1."""
    lr_from_step: int | None = None
    """First step at which the factor holds: that of the rate's jump; None: from the restore point."""

    def __post_init__(self) -> None:
        """Refuse a raise."""
        if not 0 < self.lr_factor <= 1:
            raise PlanError(
                f"trial {self.name!r} has learning-rate factor {self.lr_factor}, expected above 0 "
                "and at most 1: a rate is never raised"
            )


@dataclass(frozen=True, kw_only=True)
class Commit:
    """Go on from the restore point with what this trial changed."""

    trial: Trial
    reason: str


@dataclass(frozen=True, kw_only=True)
class GoBack:
    """Nothing held here: go further back, probe again and start the trials over."""

    times: int
    """Multiple of the first rollback distance to go back from the first sign."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Do nothing yet."""

    until_step: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """Leave the run as it is and only advise from here on."""

    reason: str


NextStep = Trial | Commit | GoBack | Wait | GiveUp


@dataclass(frozen=True, kw_only=True)
class Situation:
    """All that the decision depends on."""

    kind: str
    """Kind of the incident."""
    nonfinite: bool
    """Whether a loss or gradient was not finite."""
    lr_now: float
    """Learning rate in force at the onset."""
    lr_restore: float
    """Learning rate in force at the restore point, or just before its jump."""
    lr_jump_step: int | None = None
    """First step at a rate that jumped; None where it did not jump from one step to the next."""
    policy: Policy
    probe: DataProbe | None = None
    """Losses of the batches ahead of the restore point, where they were computed."""
    window: tuple[int, int] | None = None
    """Sample ids fed from the first sign to the detection; left out where the probe finds nothing."""
    trials: tuple[TrialResult, ...] = ()
    """Trials already run from this restore point, in order."""
    recurrences: int = 0
    """Rollbacks of this trouble that were committed and failed."""
    rollbacks: int = 0
    """Rollbacks committed so far in the run."""
    depth: int = 0
    """How often this incident has gone further back already."""
    older_restore_point: bool = True
    """Whether there is anything further back to go to."""
    wasted_share: float = 0.0
    """Steps off the final lineage so far, as a share of the effective steps."""
    planned_samples: int | None = None
    """Samples of the whole run; None: no limit on skipping can be judged."""
    skipped_samples: int = 0
    """Samples left out so far."""
    step: int = 0
    last_action_step: int | None = None
    """Step from which the last committed action went on; None: there was none."""


def next_step(s: Situation) -> NextStep:
    """Return what the guard does next.

    Example:
        >>> s = Situation(kind="spike", nonfinite=False, lr_now=1e-3, lr_restore=1e-3,
        ...               policy=Policy(mode="act"), window=(640, 703))
        >>> next_step(s).name
        'without samples 640-703'
    """
    blocked = _blocked(s)
    if blocked is not None:
        return blocked
    by_name = {t.name: t for t in s.trials}
    held: list[tuple[Trial, TrialResult]] = []
    for trial in _ladder(s):
        result = by_name.get(trial.name)
        if held and not _worth_comparing(held[-1][0], trial):
            break
        if result is None:
            return trial
        if held and not (result.held and _better(result, held[-1][1], s.policy)):
            break
        if result.held:
            held.append((trial, result))
            if trial.lr_factor == 1.0:
                break
    if held:
        trial, result = held[-1]
        return Commit(trial=trial, reason=_why(s, trial, result))
    return _nothing_held(s)


def _blocked(s: Situation) -> NextStep | None:
    policy = s.policy
    if s.trials:
        return None
    since = None if s.last_action_step is None else s.step - s.last_action_step
    if since is not None and since < policy.cooldown_steps and not s.nonfinite:
        until = s.step - since + policy.cooldown_steps
        return Wait(
            until_step=until,
            reason=f"the last action was {since} steps ago; cool-down until step {until}",
        )
    if s.rollbacks >= policy.max_rollbacks:
        return GiveUp(
            reason=f"{s.rollbacks} rollbacks so far, the policy allows {policy.max_rollbacks}"
        )
    if s.wasted_share >= policy.max_wasted_share:
        return GiveUp(
            reason=f"{s.wasted_share:.0%} of the effective steps were given up or spent on trials, "
            f"the policy allows {policy.max_wasted_share:.0%}"
        )
    return None


def _ladder(s: Situation) -> Iterator[Trial]:
    """Yield every trial of this restore point, in order."""
    if s.nonfinite and not _outliers(s):
        yield Trial(name="as it was")
    skip = _skip_range(s)
    if skip is not None:
        yield Trial(name=f"without samples {skip[0]}-{skip[1]}", skip=skip)
    also = skip if _outliers(s) else None
    for factor, label in _factors(s):
        name = label if also is None else f"without samples {also[0]}-{also[1]}, {label}"
        yield Trial(name=name, skip=also, lr_factor=factor, lr_from_step=s.lr_jump_step)


def _factors(s: Situation) -> Iterator[tuple[float, str]]:
    """Yield the learning-rate factors, mildest first, with what to call them."""
    base = 1.0
    ratio = s.lr_now / s.lr_restore if s.lr_restore > 0 else math.nan
    if s.policy.lr_jump_ratio < ratio < math.inf:  # a rate next to 0 is none to go back to
        base = 1.0 / ratio
        yield base, f"LR back to {s.lr_restore:.3g} (x {base:.3g})"
    for factor in s.policy.lr_factors:
        yield base * factor, f"LR x {base * factor:.3g}"


def _outliers(s: Situation) -> bool:
    return s.probe is not None and s.probe.num_outliers > 0


def _skip_range(s: Situation) -> tuple[int, int] | None:
    """Return the samples to leave out: those that stood out, else those of the window."""
    skip = s.window
    p = s.probe
    if (
        p is not None
        and p.num_outliers
        and p.first_sample is not None
        and p.last_sample is not None
    ):
        skip = (p.first_sample, p.last_sample)
    if skip is None or s.planned_samples is None:
        return skip
    would_skip = s.skipped_samples + skip[1] - skip[0] + 1
    return skip if would_skip <= s.policy.max_skip_share * s.planned_samples else None


def _worth_comparing(kept: Trial, trial: Trial) -> bool:
    """Tell whether a stronger cut is worth a trial once a milder one held.

    Not once the rate is back at that of the restore point: it was sound there.
    """
    return not kept.name.split(", ")[-1].startswith("LR back") and trial.lr_factor < kept.lr_factor


def _better(stronger: TrialResult, milder: TrialResult, policy: Policy) -> bool:
    return stronger.loss < milder.loss * (1.0 - policy.better_by)


def _why(s: Situation, trial: Trial, result: TrialResult) -> str:
    failed = [t.name for t in s.trials if not t.held]
    text = (
        f"{s.kind}: {trial.name} held for {result.steps} steps "
        f"(loss {result.loss:.4g}, expected {result.expected_loss:.4g})"
    )
    milder = [t for t in s.trials if t.held and t.name != trial.name]
    weaker = [t for t in milder if t.lr_factor > trial.lr_factor]
    stronger = [t for t in milder if t.lr_factor < trial.lr_factor]
    if weaker:
        text += f", and was better than {weaker[-1].name} ({weaker[-1].loss:.4g})"
    if stronger:
        text += f"; {stronger[0].name} was not better by {s.policy.better_by:.1%} ({stronger[0].loss:.4g})"
    return text + (f"; failed: {', '.join(failed)}" if failed else "")


def _nothing_held(s: Situation) -> NextStep:
    tried = ", ".join(t.name for t in s.trials) or "nothing"
    if not s.older_restore_point:
        return GiveUp(reason=f"no trial held (tried: {tried}) and nothing lies further back")
    if s.depth + s.rollbacks + 1 > s.policy.max_rollbacks:
        return GiveUp(
            reason=f"no trial held (tried: {tried}) after going further back {s.depth} times, "
            f"the policy allows {s.policy.max_rollbacks} rollbacks"
        )
    times = 2 ** (s.depth + 1 + s.recurrences)
    return GoBack(
        times=times, reason=f"no trial held (tried: {tried}); going back {times} times as far"
    )
