"""The guard's next step after a rollback: which short branch to try, which one to keep.

One pure function of a `Situation`. The branch with the fewest expected steps lost comes first
(`ways`), unless the policy gives an order of its own: what worked in an incident of the same kind
and what the evidence names are likely, and a branch that is expected to cost more than the trouble
is not tried. The unchanged replay comes first where neither the data nor the rate is suspected: it
shows whether there is anything to fix. A branch that holds is kept, and no more costly one is tried
after it, except stronger cuts of the rate, as long as they are clearly better, and bf16 where fp32
held. A rate is never raised.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from trimtab.diagnosis.probes import DataProbe, TrialResult
from trimtab.plan.expected_steps import WeighedWay, now_or_later, told
from trimtab.plan.policy import Policy
from trimtab.plan.trials import ARM_BY_ID, DEFAULT_ORDER, SettingPutBack, Trial, in_order

__all__ = [
    "CONTROL",
    "STANDSTILL",
    "Commit",
    "GiveUp",
    "GoBack",
    "NextStep",
    "Situation",
    "Trial",
    "Wait",
    "data_limit",
    "is_ordered",
    "next_step",
    "now_or_wait",
    "ways",
]

CONTROL = Trial(name="as it was")
"""What changes nothing."""
STANDSTILL = Trial(name="with no update", lr_factor=1e-9, stands_still=True)
"""What shows whether updates made a leap of the loss at all."""
_NOTHING = 0.2
"""Weight of that nothing helps, beside those of the arms. Ours."""
_WORKED, _SUSPECT, _REPLAY = 4.0, 1.5, 1.2
"""Weights of an arm in place of its prior: one that worked in an incident of the kind, one that the
evidence names, the replay where nothing else is suspected. Ours."""
_LATER = (0.7, 0.8)
"""What the next of those that worked, or are named, weighs of the one before. Ours."""
_STEADYING = ("put-back", "other-data", "lower-lr", "lower-clip")
"""Arms that are asked where the data is to blame and may not be left out: what steadies an update
may pass over it. A lower rate once: that deeper ones hold where it fails was never seen. Ours."""
_WINDOW = 3
"""Batches that make a window of bad data, beside spikes that return. Ours."""
_OUTLIERS, _NO_OUTLIERS = 0.8, 0.16
"""Weight of leaving data out where batches stood out, and where none did. Ours."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """Continue from the restore point with the changes of this trial."""

    trial: Trial
    reason: str
    given_up: str = ""
    """Why recovery pauses with it; empty: it held, and recovery goes on."""


@dataclass(frozen=True, kw_only=True)
class GoBack:
    """No trial held here: go further back, probe again and start the trials over."""

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
    """Leave the run as it is and only advise from now on."""

    reason: str
    hopeless: bool = False
    """Whether the run can only go on with NaN."""


NextStep = Trial | Commit | GoBack | Wait | GiveUp


@dataclass(frozen=True, kw_only=True)
class Situation:
    """All that the decision depends on."""

    kind: str
    """Kind of the incident."""
    nonfinite: bool
    """Whether a loss or gradient was not finite."""
    saturating: bool = False
    """Whether attention saturated first: the work of a rate that is several times too high."""
    lr_needed: float = 1.0
    """Factor that brings the first updates of a run to the size of sound ones; 1: none is known."""
    returning: bool = False
    """Whether it is one of several spikes, of which the earlier ones healed by themselves."""
    lr_now: float
    """Learning rate in force at the onset."""
    lr_restore: float
    """Learning rate in force at the restore point, or just before its jump."""
    lr_jump_step: int | None = None
    """First step at a rate that jumped; None where it did not jump from one step to the next."""
    lr_scheduled: bool = False
    """Whether a schedule gives the rate, whose shape goes on after a jump."""
    lr_returned: bool = False
    """Whether the script has put a rate that jumped back by itself."""
    lr_rising: bool = False
    """Whether the scheduled rate was still rising at the onset, without a jump."""
    lr_proven: bool = True
    """Whether `lr_restore` had worked for a while; not where it rose with the run, as in a warm-up.
    """
    policy: Policy
    probe: DataProbe | None = None
    """Losses of the batches ahead of the restore point, where they were computed."""
    window: tuple[int, int] | None = None
    """Sample ids fed from the first sign to the detection; left out where the probe finds nothing.
    """
    trials: tuple[TrialResult, ...] = ()
    """Trials already run from this restore point, in order."""
    recurrences: int = 0
    """Rollbacks of this trouble that were committed and failed."""
    rollbacks: int = 0
    """Rollbacks committed so far in the run."""
    begun: bool = False
    """Whether it was gone back to the restore point already: without a trial that was for nothing.
    """
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
    failures: int = 0
    """Recoveries in a row that did not hold."""
    worked: tuple[str, ...] = ()
    """Arms that worked in an earlier incident of this kind, the latest first."""
    low_precision: str = ""
    """fp16 or bf16 where the forward pass runs in it; empty: in the weights' own type."""
    clip: float | None = None
    """Clipping threshold in force; None: no clipping."""
    usual_norm: float | None = None
    """Median of the gradient norm before the trouble."""
    beta2: float | None = None
    eps: float | None = None
    """Settings of the optimizer in force; None: it has no such."""
    older_state: bool = False
    """Whether a healthy state lies far enough before the restore point to try the same data on."""
    trial_steps: int = 0
    """Steps spent on branches for this incident."""
    changed: tuple[SettingPutBack, ...] = ()
    """Settings that changed after the restore point without being announced; oldest first."""
    may_skip: bool = True
    """Whether samples may be left out without asking."""
    step: int = 0
    last_action_step: int | None = None
    """Step from which the last committed action continued; None: there was none."""
    calm_steps: int = 0
    """Steps from the restore point that were calm, and may be replayed to measure how far this job
    repeats itself; 0: none, or that is known."""
    calm_replays: int = 0
    """Replays of those so far."""
    branch_steps: int = 48
    """Steps of a branch."""
    stake_steps: float = 10_000.0
    """Steps from the restore point to the end of the run: lost where nothing is done."""
    back_steps: float = 0.0
    """What going back costs before the first branch: steps undone, and the look at the data."""
    lasted: int = 0
    """Steps for which the trouble lasts."""
    heals: float = 0.0
    """Chance that it passes by itself, by its diagnosis."""
    due: bool = True
    """Whether it is not waited for any longer."""
    low_window: tuple[int, int] | None = None
    """Samples on which the loss was too low to be true, right up to the trouble; None: it was not."""
    leaps: bool = False
    """Whether the loss leaps from one step to the next, again in the unchanged replay, bit for bit, or
    a cut of the rate did not hold; and no batch stands out: what data and settings do not explain."""


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
    spent = s.trial_steps >= s.policy.trial_budget_steps
    control = by_name.get(CONTROL.name)
    if control is not None and control.bitwise is not True and s.calm_steps and not spent:
        # How it went says nothing before it is known how far this job repeats itself.
        return Trial(name=f"calm steps again, {s.calm_replays + 1}", calm_steps=s.calm_steps)
    if s.leaps and _may_ask(s, "no-update") and STANDSTILL.name not in by_name and not spent:
        # Where the loop itself makes it, whatever else is tried is for nothing.
        return STANDSTILL
    worth = {w.name: w.lost < s.stake_steps for w in ways(s)} if s.trials else {}
    held: list[tuple[Trial, TrialResult]] = []
    if s.policy.bisect == "always":
        asked = next((t for t in _questions(s, by_name) if t.name not in by_name), None)
        if asked is not None and not spent:
            return asked
    for trial in _ladder(s):
        result = by_name.get(trial.name)
        # No stronger cut is compared where attention saturates: a branch of 48 steps favors high
        # rates in the warm-up and low ones later, whatever is better in the end (docs/log.md).
        if held and (
            s.saturating
            or s.returning
            or not s.lr_proven
            or (s.lr_rising and _lr_rose(s))  # held at the rate that it rose from: sound there
            or not _worth_comparing(held[-1][0], trial)
        ):
            break
        if result is None:
            if spent:
                break
            weighed = not held and not is_ordered(s) and s.policy.bisect != "always"
            weighed = weighed and not trial.over_limit
            if weighed and not worth.get(_arm_of(trial), True):
                continue  # it is expected to cost more than it recovers
            return trial
        # It separates causes and can never be kept, so whether it held does not end the search.
        if trial.only_asks:
            continue
        if held and not (result.held and _preferred(trial, result, held[-1][1], s.policy)):
            break
        if result.held:
            held.append((trial, result))
            # Only a cut and fp32 have a further variant that may be better, or cheaper.
            if "lower-lr" not in trial.arms and trial.precision != "fp32":
                break
    if held:
        # The last that held: each one was added because it was clearly better than the one before.
        trial, result = held[-1]
        return Commit(trial=trial, reason=_why(s, trial, result))
    return _nothing_held(s, spent=spent)


def _blocked(s: Situation) -> NextStep | None:
    policy = s.policy
    if s.trials or s.begun:
        return None
    since = None if s.last_action_step is None else s.step - s.last_action_step
    # non-finite values are exempt: waiting would only spread them through the state
    if since is not None and since < policy.cooldown_steps and not s.nonfinite:
        until = s.step - since + policy.cooldown_steps
        return Wait(
            until_step=until,
            reason=f"the last action was {since} steps ago; cool-down until step {until}",
        )
    # the limits are checked before the first trial only: a case that has begun is finished
    if s.rollbacks >= policy.max_rollbacks:
        return GiveUp(
            reason=f"{s.rollbacks} rollbacks so far, the policy allows {policy.max_rollbacks}"
        )
    if s.failures >= policy.max_failures:
        return GiveUp(
            reason=(
                f"{s.failures} recoveries in a row did not hold, the policy allows"
                f" {policy.max_failures}"
            )
        )
    if s.wasted_share >= policy.max_wasted_share:
        return GiveUp(
            reason=(
                "going back would bring what is given up or spent on trials to"
                f" {s.wasted_share:.0%} of the effective steps, the policy allows"
                f" {policy.max_wasted_share:.0%}"
            )
        )
    now, later = now_or_wait(s)
    if not s.due and later.lost < now.lost:
        until = s.step + max(policy.patience_steps, 1)
        return Wait(until_step=until, reason=f"{told((later, now))} ({later.text})")
    return None


def now_or_wait(s: Situation) -> tuple[WeighedWay, WeighedWay]:
    """Return going back now and waiting once more, with the steps that each is expected to cost."""
    first = next(iter(ways(s)), None)
    branch = 0.0 if first is None else (1 - first.chance) * s.branch_steps
    return now_or_later(
        cost=s.back_steps + branch,
        wait_steps=max(s.policy.patience_steps, 1),
        heals=s.heals,
        lasted=s.lasted,
        action="go back",
    )


def ways(s: Situation) -> tuple[WeighedWay, ...]:
    """Return the arms that are left, by the steps that trying each next is expected to cost.

    An arm that holds loses what keeping it costs, as a share of what is at stake; one that does not
    loses its branch, and leaves the trouble as it was.
    """
    known = {t.name for t in s.trials}
    left = [a for a in _arms(s) if any(t.name not in known for t in _trials(s, a))]
    whole = sum(_weight(s, a) for a in left) + _NOTHING
    return tuple(
        WeighedWay(
            name=arm,
            chance=_weight(s, arm) / whole,
            # what may not be kept shows a cause, and leaves the trouble as it was
            then=(1.0 if _is_over_limit(s, arm) else _keeping(s, arm)) * s.stake_steps,
            otherwise=s.branch_steps + s.stake_steps,
        )
        for arm in left
    )


def data_limit(s: Situation) -> str:
    """Return why outlying data is not skipped; empty where nothing stands out or it may be.

    Where a branch without that data held, this is what stands in the way of a recovery.
    """
    refused = _refused_range(s)
    if refused is None or s.planned_samples is None:
        return ""
    first, last = refused
    share = (s.skipped_samples + last - first + 1) / s.planned_samples
    told = f"samples {first}-{last} stand out, and leaving them out would make {share:.0%} of the"
    if _blames_data(s):
        told = (
            f"the limit on data is what stands in the way: without samples {first}-{last} the run"
            f" holds, and leaving them out would make {share:.0%} of the"
        )
    needed = math.ceil(1000 * share) / 1000
    raised = f"raise it to {needed:g}" if needed <= 1 else "raise it"
    return (
        f"{told} planned data, the policy allows max_skip_share = {s.policy.max_skip_share:g};"
        f" {raised}, or call guard.skip_samples({first}, {last}, why=...)"
    )


def _refused_range(s: Situation) -> tuple[int, int] | None:
    """Return the samples that stand out and are more than may be left out; None: there are none."""
    wanted = _wanted_range(s)
    # without a known length no share can be computed, so nothing is refused
    return wanted if _outliers(s) and wanted is not None and _skip_range(s) is None else None


def _is_over_limit(s: Situation, arm: str) -> bool:
    return arm == "other-data" and _refused_range(s) is not None


def _blames_data(s: Situation) -> bool:
    """Whether the run held without data that may not be left out."""
    asked = {t.name for t in _data(s) if t.over_limit}
    return any(t.held and t.name in asked for t in s.trials)


def _may_ask(s: Situation, arm: str) -> bool:
    return arm in s.policy.arms and s.policy.bisect != "never"


def _ladder(s: Situation) -> Iterator[Trial]:
    """Yield every trial of this restore point, in order."""
    for arm in _arms(s):
        yield from _trials(s, arm)


def _trials(s: Situation, arm: str) -> Iterator[Trial]:
    return iter((CONTROL,)) if arm == "replay" else _TRIALS[arm](s)


def _arms(s: Situation) -> tuple[str, ...]:
    """Return the arms that may be asked, in order: by their sums, or as the policy orders them."""
    bisect, arms = s.policy.bisect, s.policy.arms
    if bisect == "never":
        asked = ("replay",) if _unexplained(s) else ()
        arms = tuple(a for a in arms if a in (*_CHEAP, *asked))
    if _blames_data(s):
        arms = tuple(a for a in arms if a in _STEADYING)
    if is_ordered(s):
        return in_order(arms, first=(*s.worked, *_suspected(s)))

    # all arms have the same branch and stake, so that what is common to their sums is left out
    def recovered(arm: str) -> float:
        if arm == "replay" and bisect == "always":
            return math.inf
        kept = (1 - _keeping(s, arm)) * s.stake_steps
        return _weight(s, arm) * (s.branch_steps + kept)

    return tuple(sorted(arms, key=recovered, reverse=True))


def is_ordered(s: Situation) -> bool:
    """Whether the policy gives an order of its own."""
    return s.policy.arms != tuple(a for a in DEFAULT_ORDER if a in s.policy.arms)


def _arm_of(trial: Trial) -> str:
    """Return the arm that a trial is of: a cut may leave data out as well."""
    return trial.arms[-1]


def _weight(s: Situation, arm: str) -> float:
    """Return how likely an arm is the answer, beside the others."""
    suspected = _suspected(s)
    if arm == "replay" and not _unexplained(s):  # what is suspected is asked first
        return ARM_BY_ID[arm].prior
    if arm in s.worked:
        return float(_WORKED * _LATER[0] ** s.worked.index(arm))
    if arm in suspected:
        return float(_SUSPECT * _LATER[1] ** suspected.index(arm))
    if arm == "replay":
        return _REPLAY
    if arm == "other-data" and _accused(s):
        return _OUTLIERS
    if arm == "other-data" and s.probe is not None and s.policy.bisect == "when-stuck":
        return _NO_OUTLIERS
    return ARM_BY_ID[arm].prior


def _keeping(s: Situation, arm: str) -> float:
    """Return what keeping an arm costs; where fp32 holds in an fp16 run, bf16 is kept."""
    way_out = arm == "fp32" and s.low_precision == "fp16" and "bf16" in s.policy.arms
    return ARM_BY_ID["bf16" if way_out else arm].cost


def _questions(s: Situation, known: Mapping[str, TrialResult]) -> Iterator[Trial]:
    """Yield the branches that separate causes; none after an unchanged replay that held."""
    arms = in_order(s.policy.arms, first=("replay",))
    if "replay" in arms:
        yield CONTROL
    # It does not happen again, so there is no difference between causes left to see.
    if CONTROL.name in known and known[CONTROL.name].held:
        return
    for arm in arms:
        if arm in ("other-data", "other-state", "fp32"):
            yield from _TRIALS[arm](s)


_CHEAP = ("put-back", "other-data", "lower-lr")


def _unexplained(s: Situation) -> bool:
    """Tell whether there is no evidence against the data or the rate."""
    if _outliers(s) or s.saturating or s.returning or _still_changed(s) or s.low_window:
        return False
    if s.lr_returned or s.changed:  # over by itself: does it happen again at all?
        return True
    # A probe that was made and found nothing excludes the data; without one it is still suspected.
    looked = s.probe is not None and s.policy.bisect != "never"
    return s.nonfinite or looked


def _suspected(s: Situation) -> tuple[str, ...]:
    """Return arms to ask first by what the incident is: fp16's own way to fail."""
    overflow = s.nonfinite or s.kind in ("scale-collapse", "skipped-steps")
    fp16 = (
        s.low_precision == "fp16" and not s.saturating
    )  # an fp16 run's search for its scale overflows
    if fp16 and overflow and not _outliers(s) and s.policy.bisect != "never":
        # bf16 only behind fp32: alone it cannot tell the range from the precision of the format.
        return ("replay", "fp32", "bf16")
    # What is known to differ from the healthy run is put back before anything else is tried; a
    # setting not as long as the data stands out as well.
    if _is_named(s):
        return ("put-back", "lower-lr")
    over = not _still_changed(s)
    if over and (s.changed or s.lr_returned) and not _outliers(s):
        return ("replay", "put-back", "lower-lr")
    # Data of another scale that is also accused may be anything: rescaled, it is trained on.
    only_data = s.changed and all(c.name.startswith("batch[") for c in s.changed)
    if only_data and _outliers(s) and _refused_range(s) is None:
        return ("other-data", "put-back")
    if s.changed or (_lr_rose(s) and not _outliers(s)):
        return ("put-back", "lower-lr") if _lr_rose(s) else ("put-back",)
    if s.low_window and not _outliers(s):  # easy data, taken in: what comes after it costs more
        return ("other-data",)
    return ("lower-lr",) if s.saturating or (s.returning and not _accused(s)) else ()


def _is_named(s: Situation) -> bool:
    """Tell whether the record names a jump of the rate that still stands.

    Behind it a batch or two stand out by chance, and going back undoes the jump: whatever is tried
    would hold, and data be left out for good.
    """
    return s.lr_jump_step is not None and _lr_rose(s) and not s.lr_returned


def _still_changed(s: Situation) -> bool:
    """Tell whether a setting or the rate still is what it changed to."""
    return (_lr_rose(s) and not s.lr_returned) or any(not c.ended for c in s.changed)


def _data(s: Situation) -> Iterator[Trial]:
    skip = _skip_range(s)
    if skip is not None:
        yield Trial(name=f"without samples {skip[0]}-{skip[1]}", skip=skip)
        return
    refused = _refused_range(s)
    if refused is not None and s.policy.bisect != "never":
        name = f"without samples {refused[0]}-{refused[1]} (only to see: more than may be left out)"
        yield Trial(name=name, skip=refused, over_limit=True)


def _cuts(s: Situation) -> Iterator[Trial]:
    # data that stood out stays skipped in the cuts: a cut alone would have to survive it
    also = _skip_range(s) if _outliers(s) and s.may_skip else None
    plans = [(also, *how) for how in _factors(s)]
    if _blames_data(s):
        plans = plans[:1]
    if also is not None and _is_named(s):  # what is named is tried with all the data first
        plans.insert(0, (None, *plans[0][1:]))
    for also, factor, label in plans:
        # Under a rising schedule a factor would be overtaken, and the rate is held instead; one
        # that is too high from the start is so in its warm-up, too.
        limit = s.lr_now * factor if s.lr_rising and s.lr_needed == 1 else None
        share, sound = 1.0, None
        if limit is not None:
            label, factor = f"LR held at {limit:.3g}", 1.0
        elif _lr_rose(s):
            # The value is held, and no factor: the script may put its rate back itself. Before a
            # rise without a jump, as a warm-up is, its rate is as low by itself, and ends nothing.
            limit, jumped = s.lr_now * factor, s.lr_jump_step is not None
            sound = s.lr_restore if jumped else None
            share, factor = (factor if s.lr_scheduled and jumped else 1.0), 1.0
        name = label if also is None else f"without samples {also[0]}-{also[1]}, {label}"
        yield Trial(
            name=name,
            skip=also,
            lr_factor=factor,
            lr_limit=limit,
            lr_share=share,
            lr_sound=sound,
            lr_from_step=s.lr_jump_step,
        )


def _in_fp32(s: Situation) -> Iterator[Trial]:
    if s.low_precision:
        yield Trial(name="in fp32", precision="fp32")


def _in_bf16(s: Situation) -> Iterator[Trial]:
    """bf16 has fp16's cost and fp32's range; it is not tried where fp32 failed."""
    asked = next((t for t in s.trials if t.name == "in fp32"), None)
    # where fp32 failed the number format is not to blame, and bf16 would fail as well
    if s.low_precision == "fp16" and (asked is None or asked.held):
        yield Trial(name="in bf16", precision="bf16")


def _older_state(s: Situation) -> Iterator[Trial]:
    if s.older_state:
        yield Trial(name="the same data from an older state", older_state=True)


def _tighter_clip(s: Situation) -> Iterator[Trial]:
    if s.clip is None:
        return
    factor = 0.5
    # 1.5 times the usual norm, as `suggest_clip`: a clip far above the norms would never act.
    if s.usual_norm is not None and 0 < 1.5 * s.usual_norm < factor * s.clip:
        factor = 1.5 * s.usual_norm / s.clip
    yield Trial(name=f"clip at {factor * s.clip:.3g}", clip_factor=factor)


def _lower_beta2(s: Situation) -> Iterator[Trial]:
    if s.beta2 is not None and s.beta2 > 0.95:
        yield Trial(name="beta2 0.95", settings=(("beta2", 0.95),))


def _higher_eps(s: Situation) -> Iterator[Trial]:
    if s.eps is not None and s.eps > 0:
        # The round-off of the product would show in names and in the journal.
        eps = float(f"{100 * s.eps:.3g}")
        yield Trial(name=f"eps {eps:.3g}", settings=(("eps", eps),))


def _reset_moments(s: Situation) -> Iterator[Trial]:
    if s.beta2 is not None:
        steps = max(s.policy.trial_steps // 2, 1)
        yield Trial(name=f"moments reset, re-warmed over {steps} steps", rewarm_steps=steps)


def _put_back(s: Situation) -> Iterator[Trial]:
    if s.changed:
        shown = ", ".join(c.shown for c in s.changed[:3])
        more = f" and {len(s.changed) - 3} more" if len(s.changed) > 3 else ""
        yield Trial(name=f"{shown}{more}", put_back=s.changed)


def _standstill(_: Situation) -> Iterator[Trial]:
    """Nothing: it is asked at once, behind a replay that repeats, or not at all."""
    return iter(())


_TRIALS: Mapping[str, Callable[[Situation], Iterator[Trial]]] = {
    "no-update": _standstill,
    "put-back": _put_back,
    "other-data": _data,
    "lower-lr": _cuts,
    "fp32": _in_fp32,
    "bf16": _in_bf16,
    "other-state": _older_state,
    "lower-clip": _tighter_clip,
    "adam-beta2": _lower_beta2,
    "adam-eps": _higher_eps,
    "optimizer-reset": _reset_moments,
}
"""By id; `replay` is yielded by `_ladder` itself."""


def _lr_rose(s: Situation) -> bool:
    ratio = s.lr_now / s.lr_restore if s.lr_restore > 0 else math.nan
    return s.policy.lr_jump_ratio < ratio < math.inf  # a rate next to 0 is none to go back to


def _factors(s: Situation) -> Iterator[tuple[float, str]]:
    """Yield the learning-rate factors, mildest first, with what to call them."""
    unproven = s.lr_rising and not s.lr_proven
    # After a jump the old rate is known to be sound, so it goes before any factor.
    if s.lr_needed < 1 and s.lr_jump_step is None:
        # The nearest on a scale of ratios: how far it is too high is known to a factor of two.
        near = min(s.policy.lr_factors, key=lambda f: abs(math.log(f / s.lr_needed)))
        yield near, f"LR x {near:.3g}"
        return
    # Here one deep cut beats the mildest that holds (docs/log.md).
    if (s.saturating or s.returning or unproven) and s.lr_jump_step is None:
        policy = s.policy
        mildest = policy.lr_factor_returning
        if s.saturating or unproven:
            mildest = policy.lr_factor_rising if unproven else policy.lr_factor_saturating
        for factor in [f for f in policy.lr_factors if f <= mildest] or policy.lr_factors[-1:]:
            yield factor, f"LR x {factor:.3g}"
        return
    base = 1.0
    if _lr_rose(s):
        # after a jump the old rate comes first: it is known to have worked
        base = s.lr_restore / s.lr_now
        yield base, f"LR back to {s.lr_restore:.3g} (x {base:.3g})"
        if s.lr_returned:  # no lower one: at this rate the script trains on by itself
            return
    for factor in s.policy.lr_factors:
        yield base * factor, f"LR x {base * factor:.3g}"


def _outliers(s: Situation) -> bool:
    return s.probe is not None and s.probe.num_outliers > 0


def _accused(s: Situation) -> bool:
    """Tell whether the data is accused: where spikes return, by more than a hard batch or two.

    A rate that is too high spikes at hard batches first, and at others without them.
    """
    return _outliers(s) and (
        not s.returning or (s.probe is not None and s.probe.num_outliers >= _WINDOW)
    )


def _skip_range(s: Situation) -> tuple[int, int] | None:
    """Return the samples to leave out, where so much may be left out."""
    skip = _wanted_range(s)
    if skip is None or s.planned_samples is None:
        return skip
    would_skip = s.skipped_samples + skip[1] - skip[0] + 1
    return skip if would_skip <= s.policy.max_skip_share * s.planned_samples else None


def _wanted_range(s: Situation) -> tuple[int, int] | None:
    """Return the samples to leave out: those that stood out, else those of the window."""
    skip = s.low_window or s.window
    p = s.probe
    if (
        p is not None
        and p.num_outliers
        and p.first_sample is not None
        and p.last_sample is not None
    ):
        skip = (p.first_sample, p.last_sample)
    if skip is not None and s.recurrences:  # leaving out so much did not help: twice as much
        skip = (skip[0], skip[0] + (skip[1] - skip[0] + 1) * 2**s.recurrences - 1)
    return skip


def _worth_comparing(kept: Trial, trial: Trial) -> bool:
    """Tell whether a stronger cut is worth a trial once a milder one held.

    Not once the rate is back at that of the restore point: it was sound there. Where fp32 held,
    bf16 may do as well, for less.
    """
    if kept.precision or trial.precision:
        return kept.precision == "fp32" and trial.precision == "bf16"
    # By name: a `Trial` carries no other mark of it.
    back = kept.name.split(", ")[-1].startswith("LR back")
    return not back and _strength(trial) < _strength(kept)


def _strength(trial: Trial | TrialResult) -> tuple[float, float]:
    """Return what grows smaller with a stronger cut of the rate."""
    return (math.inf if trial.lr_limit is None else trial.lr_limit), trial.lr_factor


def _preferred(trial: Trial, result: TrialResult, kept: TrialResult, policy: Policy) -> bool:
    return trial.precision == "bf16" or _better(result, kept, policy)


def _better(stronger: TrialResult, milder: TrialResult, policy: Policy) -> bool:
    unit = abs(milder.loss) if milder.unit is None else milder.unit
    return milder.loss - stronger.loss > policy.better_by * unit


def _why(s: Situation, trial: Trial, result: TrialResult) -> str:
    failed = [t.name for t in s.trials if not t.held]
    text = (
        f"{s.kind}: {trial.name} held for {result.steps} steps "
        f"(loss {result.loss:.4g}, expected {result.expected_loss:.4g})"
    )
    milder = [t for t in s.trials if t.held and t.name != trial.name and not t.only_asks]
    weaker = [t for t in milder if _strength(t) > _strength(trial)]
    stronger = [t for t in milder if _strength(t) < _strength(trial)]
    if weaker:
        text += f", and was better than {weaker[-1].name} ({weaker[-1].loss:.4g})"
    if stronger:
        text += (
            f"; {stronger[0].name} was not better by {s.policy.better_by:.1%}"
            f" ({stronger[0].loss:.4g})"
        )
    return text + (f"; failed: {', '.join(failed)}" if failed else "")


def _nothing_held(s: Situation, *, spent: bool) -> NextStep:
    tried = ", ".join(t.name for t in s.trials if not (t.held and t.only_asks)) or "nothing"
    refused = data_limit(s)
    if refused:  # an older state would meet the same data
        other = "other " * _blames_data(s)
        return GiveUp(reason=f"no {other}trial held (tried: {tried}); {refused}")
    if spent:
        return GiveUp(
            reason=(
                f"no trial held (tried: {tried}) in {s.trial_steps} steps of trials, the policy "
                f"allows {s.policy.trial_budget_steps} for an incident"
            )
        )
    if not s.older_restore_point:
        return GiveUp(reason=f"no trial held (tried: {tried}) and nothing lies further back")
    if s.depth + s.rollbacks + 1 > s.policy.max_rollbacks:
        return GiveUp(
            reason=(
                f"no trial held (tried: {tried}) after going further back {s.depth} times, "
                f"the policy allows {s.policy.max_rollbacks} rollbacks"
            )
        )
    # Doubled each time, as OPT's and BigScience's restarts had to go (see `rollback`).
    times = 2 ** (s.depth + 1 + s.recurrences)
    return GoBack(
        times=times, reason=f"no trial held (tried: {tried}); going back {times} times as far"
    )
