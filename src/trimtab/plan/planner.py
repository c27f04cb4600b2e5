"""Causes -> plan: which remedies, in which order, with which values."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.diagnosis.causes import CAUSE_BY_ID, UNKNOWN
from trimtab.diagnosis.diagnose import Diagnosis
from trimtab.diagnosis.evidence import (
    SHORT_ROWS,
    cuts_failed,
    pace_alone,
    probe_clean,
    short_and_over,
    skip_failed,
)
from trimtab.diagnosis.experiments import step_text
from trimtab.diagnosis.features import Features, incident_features
from trimtab.diagnosis.history import believed_sign
from trimtab.diagnosis.probes import DataProbe, TrialResult
from trimtab.incidents import Incident
from trimtab.plan.flags import TRAPS, dialect, flags_for, located
from trimtab.plan.next_test import next_test_flags, suspect_row
from trimtab.plan.plan import Plan, PlannedRemedy
from trimtab.plan.remedies import only_failed
from trimtab.plan.remedy_table import REMEDY_BY_ID
from trimtab.plan.rollback import CheckpointInfo, RollbackChoice, choose_target
from trimtab.plan.traits import is_foreign, open_traits, traits_of
from trimtab.record import RunRecord

__all__ = ["make_plan", "small_init_std", "suggest_clip"]

Values = Mapping[str, float | str | bool | None]

_STATE_KINDS = frozenset(
    {
        "spike",
        "unrecovered-spike",
        "divergence",
        "shift",
        "drift",
        "non-finite",
        "scale-collapse",
        "grad-explosion",
        "resume-jump",
        "batch-outlier",
    }
)
"""Kinds that leave the weights in doubt: what to go back for."""
_SECOND_SHARE = 0.12
"""From this share on a cause that does not lead has its first remedy planned too. Ours."""
# Ours: remedies of unlikely causes would hide the others.
_MOST = 7
_ORDER = {"mid-run": 0, "unsure": 1, "from scratch": 2}


def suggest_clip(grad_norm: NDArray[np.float64]) -> float | None:
    """Return a clip from the run's own stable grad norm: 1.5 times its median.

    OPT's late runs stood at about 0.2 and clipped at 0.3.

    Example:
        >>> suggest_clip(np.array([0.19, 0.2, 0.21, np.nan]))
        0.3
    """
    finite = grad_norm[np.isfinite(grad_norm) & (grad_norm > 0)]
    return float(f"{1.5 * np.median(finite):.2g}") if len(finite) else None


def small_init_std(hidden_size: float) -> float:
    """Return sqrt(2 / (5 hidden_size)), the initial std that steadied 104B.

    Example:
        >>> round(small_init_std(11600), 5)
        0.00587

    References:
        Nguyen & Salazar (2019), Transformers without Tears, arXiv:1910.05895.
    """
    return math.sqrt(2.0 / (5.0 * hidden_size))


@dataclass(frozen=True)
class _Case:
    record: RunRecord
    incident: Incident
    features: Features
    choice: RollbackChoice
    framework: str
    foreign: bool
    """Whether the run is no language model, so that theirs are no evidence."""


def make_plan(
    record: RunRecord,
    incident: Incident,
    diagnosis: Diagnosis,
    *,
    earlier: Sequence[Incident] = (),
    checkpoints: Sequence[CheckpointInfo] = (),
    framework: str = "",
    probe: DataProbe | None = None,
    trials: Sequence[TrialResult] = (),
) -> Plan:
    """Return what to do about one incident, in the order to do it.

    Args:
        record: What the run logged.
        incident: The episode.
        diagnosis: Its ranked causes.
        earlier: Incidents that came before it, in any attempt of the record.
        checkpoints: What could be gone back to; without any, the plan says before which step.
        framework: Whose flags to give; empty: that of the log's format.
        probe: Losses of upcoming batches, where a live run was asked: no remedy contradicts it.
        trials: Short branches already run; a remedy that failed there is not planned again.
    """
    features = incident_features(record, incident, earlier=earlier, probe=probe, trials=trials)
    choice = _rollback(diagnosis, incident, features, checkpoints)
    has = traits_of(record, framework)
    foreign = is_foreign(record, has)
    case = _Case(record, incident, features, choice, framework or record.format, foreign)
    remedies: dict[str, PlannedRemedy] = {}
    may_have = open_traits(record) - has
    for name in _own_cure_first(_wanted(diagnosis, incident, features), diagnosis, incident):
        # a remedy for Adam's beta2 says nothing to a run under SGD, and so on
        if not (has | may_have).issuperset(REMEDY_BY_ID[name].needs):
            continue
        if features.training in REMEDY_BY_ID[name].unfit and "language-model" not in has:
            continue
        if name == "exclude-node" and _one_rank(record):
            continue
        if name == "adam-beta2" and _beta2_is_low(record):
            continue
        if _ruled_out(name, features):
            continue
        planned = _planned(case, name, diagnosis)
        if planned is not None:
            open_ = [_IF_OPEN[need] for need in REMEDY_BY_ID[name].needs if need in may_have]
            if open_:
                planned = replace(planned, why="; ".join(filter(None, (open_[0], planned.why))))
            # two causes may want one remedy; the more likely cause gave it first
            remedies.setdefault(planned.remedy, planned)
    # sorting is stable: within one time of use the order of the causes stays; what is known to have
    # failed and nothing else comes after all others
    ordered = sorted(
        remedies.values(), key=lambda r: (only_failed(REMEDY_BY_ID[r.remedy]), _ORDER[r.when])
    )[:_MOST]
    return Plan(
        remedies=tuple(ordered),
        next_test=diagnosis.next_test,
        next_test_flags=next_test_flags(
            record,
            incident,
            features,
            choice,
            experiment=diagnosis.experiment,
            framework=case.framework,
        ),
    )


_IF_OPEN: Mapping[str, str] = {
    "second-moment": "if the optimizer is Adam or a relative of it, which the log does not say",
    "moments": "if the optimizer keeps moments, which the log does not say",
}
"""What is said of a remedy whose need is neither shown nor ruled out."""

_SETTINGS_BACK = "restore-settings"


def _own_cure_first(
    wanted: Sequence[str], diagnosis: Diagnosis, incident: Incident
) -> Sequence[str]:
    """Put a setting that is known to have changed back first: it outlives a rollback."""
    cures = CAUSE_BY_ID[diagnosis.top.cause].remedies
    if cures[:1] != (_SETTINGS_BACK,) or not _changed_settings(incident):
        return wanted
    return [_SETTINGS_BACK, *(name for name in wanted if name != _SETTINGS_BACK)]


def _changed_settings(incident: Incident) -> tuple[Finding, ...]:
    """Return the changes of settings that an incident shows by name, with the value before."""
    found: dict[str, Finding] = {}
    for f in incident.findings:
        if f.detector in _SETTING_DETECTORS and f.signal in _SETTING_NAMES:
            found.setdefault(f.signal, f)
    return tuple(found.values())


_SETTING_DETECTORS = ("setting-change", "unannounced-change")
_SETTING_NAMES: Mapping[str, str] = {
    "weight_decay": "weight decay",
    "beta1": "beta1",
    "beta2": "beta2",
    "adam_eps": "Adam's epsilon",
    "momentum": "momentum",
    "clip_limit": "clip",
    "dropout": "dropout",
    "batch_size": "batch size",
    "trainable_parameters": "trained parameters",
    "eval_modules": "modules in eval mode",
}
"""Settings that can be put back to a value, as people name them."""


def _ruled_out(name: str, f: Features) -> bool:
    """Whether a probe or a branch has shown that a remedy does not help here."""
    if name == "skip-data":
        return bool(probe_clean(f) or skip_failed(f))
    # No lower rate held, down to the lowest tried: the plan would be to fail once more.
    return name == "lower-lr" and bool(cuts_failed(f)) and _lowest_cut(f) <= _LOWEST_CUT


_LOWEST_CUT = 0.1
"""Factor on the learning rate below which a further cut is no remedy. Ours."""


def _lowest_cut(f: Features) -> float:
    return min((t.lr_factor for t in f.cuts), default=1.0)


_LOW_BETA2 = 0.95
"""What `adam-beta2` lowers it to."""


def _beta2_is_low(record: RunRecord) -> bool:
    """Whether the run logs a beta2 that is as low already."""
    column = record.columns.get("beta2")
    known = np.array([]) if column is None else column.values[np.isfinite(column.values)]
    return bool(len(known)) and float(known[-1]) <= _LOW_BETA2


def _one_rank(record: RunRecord) -> bool:
    """Whether the run states that it is one process, so there is no other node to move to."""
    sizes = (a.settings.get("world_size") for a in record.attempts)
    # Exactly one: a run that was one process at first and many later has other nodes.
    return {size for size in sizes if size is not None} == {"1"}


def _rollback(
    diagnosis: Diagnosis, incident: Incident, f: Features, checkpoints: Sequence[CheckpointInfo]
) -> RollbackChoice:
    again = f.recurrence
    return choose_target(
        checkpoints,
        _first_sign(diagnosis, incident, f),
        0 if again is None else again.count,
        failed_distance=None if again is None else again.failed_distance,
        resumed_at=None if again is None else again.resumed_at,
        sooner=again is not None and again.sooner_by > 0,
    )


def _first_sign(diagnosis: Diagnosis, incident: Incident, f: Features) -> float:
    """Return the step to go back before.

    Where an earlier incident damaged the weights, that is its first sign.
    """
    spoilt = CAUSE_BY_ID[diagnosis.top.cause].go_back == "always"
    return f.blow_up if spoilt and f.blow_up is not None else believed_sign(incident)[0]


def _wanted(diagnosis: Diagnosis, incident: Incident, f: Features) -> list[str]:
    """Return the ids of remedies: all of the leading cause, the first new one of each other.

    Rollback comes first unless the leading cause says otherwise, and last where the run has
    recovered by itself.
    """
    top = CAUSE_BY_ID[diagnosis.top.cause]
    pace = pace_alone(f) > 0
    # a note needs no cure, whatever its causes would suggest
    if incident.severity == "info" or top.id == "benign-noise":
        return ["watch-pace" if pace else "patience"]
    if top.go_back == "never":
        return list(top.remedies)
    wanted = ["roll-back"]
    if top.id == UNKNOWN and f.recovered:
        wanted.append("patience")
    elif top.id != UNKNOWN:
        wanted += top.remedies
    for cause in diagnosis.causes:
        if cause.cause not in (UNKNOWN, top.id) and cause.confidence >= _SECOND_SHARE:
            # Going back is planned once, with the distance of the whole incident.
            own = [r for r in CAUSE_BY_ID[cause.cause].remedies if not r.startswith("roll-back")]
            wanted += own[:1]
    back = [r for r in wanted if r.startswith("roll-back")]
    if f.never_finite:  # there is nothing to go back to
        back, wanted = [], [r for r in wanted if r not in back]
    others = [r for r in wanted if r not in back]
    if top.go_back != "always" and not f.kinds & _STATE_KINDS:
        return others or ["watch-pace" if pace else "patience"]
    # going back would cost steps that the run has already won back by itself
    if _healed(f):
        return ["patience", *(r for r in others if r != "patience"), *back]
    return wanted


def _healed(f: Features) -> bool:
    """Tell whether the loss came back soon, with enough rows after it to be sure."""
    return short_and_over(f) > 0 and (f.rows_after or 0) >= SHORT_ROWS


def _planned(case: _Case, name: str, diagnosis: Diagnosis) -> PlannedRemedy | None:
    build = _BUILDERS.get(name)
    built = None if build is None else build(case)
    if built is None and name in _NEED_VALUES:
        return None
    built = built or (name, {}, _because(name, diagnosis))
    remedy, values, why = built
    # what begins anew loads nothing
    flags = "" if values.get("start_over") else flags_for(case.framework, remedy, values)
    if values.get("checkpoint"):
        flags = located(flags, str(values["checkpoint"]))
    trap = TRAPS.get((dialect(case.framework), remedy), "") if flags else ""
    return REMEDY_BY_ID[remedy].planned(
        "; ".join(filter(None, (why, trap))), values, flags=flags, foreign=case.foreign
    )


def _because(name: str, diagnosis: Diagnosis) -> str:
    for cause in diagnosis.causes:
        if name in CAUSE_BY_ID[cause.cause].remedies:
            return f"{cause.title} ({cause.confidence:.2f})"
    return ""


Built = tuple[str, Values, str] | None


def _roll_back(case: _Case) -> Built:
    choice, again = case.choice, case.features.recurrence
    why = [f"the first sign is at {step_text(choice.before)}"]
    best = _best_reward(case.record, case.incident)
    if best is not None:
        later = ", after it" if best > case.incident.onset else ""
        why.append(f"the reward was highest about {step_text(best)}{later}")
    passed = believed_sign(case.incident)[1]
    if passed is not None:
        why.append(
            f"the note on {case.incident.precursor_signal or 'another signal'} at"
            f" {step_text(passed)} is too far back to be one"
        )
    if again is not None and choice.further_back_than is not None:
        stated = "resumed at" if again.resume_stated else "resumed at or before"
        when = "sooner" if again.sooner_by > 0 else "again"
        why.append(
            f"attempt {case.incident.attempt} {stated} {step_text(choice.further_back_than)} and"
            f" failed {when}, so go further back"
        )
    elif again is not None:
        why.append(
            f"attempt {case.incident.attempt} had gone back before and failed; the log does not say"
            " how far: go at least twice that"
        )
    values: dict[str, float | str | bool | None] = {}
    if choice.target is not None:
        values["to_step"] = choice.target.step
        if choice.target.path:
            values["checkpoint"] = choice.target.path
    elif choice.candidates:
        why.append("no checkpoint given lies before it")
    if choice.target is None:
        before = choice.before if again is None else choice.at_most
        if choice.further_back_than is not None:
            before = min(before, choice.further_back_than)
        if before <= _first_state(case.record):
            values["start_over"] = True
            why.append("nothing of this run lies that far back")
        else:
            values["before_step"] = before
    if len(choice.candidates) > 1:
        shown = (f"{c.checkpoint.step} ({c.score:.2f})" for c in choice.candidates[:5])
        why.append(f"candidates: {', '.join(shown)}")
    return ("roll-back" if again is None else "roll-back-further"), values, "; ".join(why)


def _best_reward(record: RunRecord, incident: Incident) -> float | None:
    """Return about which step the reward was highest, before an incident or after it; None without.

    Of the newest rows before it, which a record that grows has whole, and of all rows since.
    """
    column = record.columns.get("reward")
    attempt = record.rows_of(record.attempt_index(incident.attempt))
    if column is None or incident.kind == "never-learns":
        return None
    first = max(attempt.start, incident.first_row - _REWARD_ROWS)
    before = column.finite_rows(slice(first, incident.first_row))
    if len(before) < _FEWEST_REWARDS:
        return None
    parts = np.array_split(before, _FEWEST_REWARDS)
    after = column.finite_rows(slice(incident.first_row, attempt.stop))
    # As long as those before, so that no lucky row counts for more.
    parts += (
        np.array_split(after, len(after) // len(parts[-1])) if len(after) >= len(parts[-1]) else []
    )
    best = max(parts, key=lambda part: float(np.mean(column.values[part])))
    return float(record.step[best[len(best) // 2]])


_FEWEST_REWARDS, _REWARD_ROWS = 8, 2048


def _first_state(record: RunRecord) -> float:
    """Return the step before which the run has no state; 0 where the log begins in mid-run."""
    steps = np.unique(record.step[np.isfinite(record.step)])
    if not len(steps):
        return 0.0
    spacing = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
    return float(steps[0]) if steps[0] <= max(spacing, 1.0) else 0.0


def _lower_lr(case: _Case) -> Built:
    f = case.features
    # a half was tried and failed, so the next cut is a quarter of the schedule
    factor = 0.25 if _was_lowered(case) else 0.5
    if cuts_failed(f):
        factor = 0.5 * min(_lowest_cut(f), 2 * factor)
    if f.lr_onset is None or not f.lr_peak_share:
        return "lower-lr", {"factor": factor}, "the log states no learning rate"
    # Trainers take the peak of the schedule as their flag, so the cut is stated in those terms.
    peak = f.lr_onset / f.lr_peak_share
    why = f"{f.lr_onset:.3g} was in force at the onset"
    if f.lr_peak_share < 0.99:
        why += f", {factor * f.lr_onset:.3g} with this peak in place of {peak:.3g}"
    if factor < 0.5:
        why += "; a smaller cut was tried before"
    return "lower-lr", {"lr": float(f"{factor * peak:.4g}"), "factor": factor}, why


def _was_lowered(case: _Case) -> bool:
    """Tell whether this attempt ran at a lower rate than the one that failed before it."""
    again, column = case.features.recurrence, case.record.columns.get("lr")
    if again is None or column is None or case.features.lr_onset is None:
        return False
    old = column.values[again.previous.onset_row]
    # 0.8, since a schedule that decays lowers the rate a little between two attempts, too.
    return bool(np.isfinite(old) and case.features.lr_onset < 0.8 * old)


def _restore_lr(case: _Case) -> Built:
    f = case.features
    if f.lr_before_jump is None or not f.lr_jump:
        return None
    values = {"lr": float(f"{f.lr_before_jump:.4g}"), "factor": float(f"{1 / f.lr_jump:.4g}")}
    return "restore-lr", values, f"it rose {f.lr_jump:.3g} x at {step_text(f.lr_jump_step or 0.0)}"


def _skip_data(case: _Case) -> Built:
    record, incident = case.record, case.incident
    # A row that stands for all data, or of which no step is known, names no batch to leave out.
    all_data = record.axis == "epoch" and not bool(np.any(record.step % 1.0 > 0))
    if (all_data or record.axis == "row") and case.features.probe is None:
        return None
    own = record.attempts[record.attempt_index(incident.attempt)]
    first = incident.onset_row
    last = suspect_row(incident, case.features)
    # The peak of an open incident may lie behind the rows that are in the record by now.
    last = min(max(last, first), own.end_row - 1)
    begins = float(record.step[first])
    if first > own.first_row:
        # A row may stand for several steps: the suspect ones begin right after the row before. An
        # epoch has no next one: the position of the row before is the bound.
        begins = float(record.step[first - 1]) + (1.0 if record.axis in ("step", "row") else 0.0)
    values: dict[str, float | str | bool | None] = {
        "first_step": begins,
        "last_step": float(record.step[last]),
    }
    probe = case.features.probe
    if probe is not None and probe.first_sample is not None and probe.last_sample is not None:
        values |= {
            "first_sample": float(probe.first_sample),
            "last_sample": float(probe.last_sample),
        }
        return "skip-data", values, "the batches that stand out under the healthy state"
    seen = record.columns.get("samples_seen")
    if (
        seen is not None
        and first > own.first_row
        and seen.present[first - 1]
        and seen.present[last]
    ):
        # `samples_seen` counts, ids begin at 0: n samples seen are the ids 0 to n - 1, if none of
        # them has been left out.
        skipped = _left_out(record, own.number)
        values["first_sample"] = _id_of(float(seen.values[first - 1]), skipped)
        values["last_sample"] = _id_of(float(seen.values[last] - 1), skipped)
    return (
        "skip-data",
        values,
        "the data of the window from the onset on, if the next test says it is to blame",
    )


def _left_out(record: RunRecord, number: str | None) -> str:
    """Return the ranges of samples that an attempt and those before it leave out, in words."""
    by_number = {a.number: a for a in record.attempts}
    ranges: list[str] = []
    while number in by_number:
        own = by_number.pop(number)
        ranges.append(str(own.settings.get("skip_samples", "")))
        number = own.parent
    return " ".join(ranges)


def _id_of(count: float, skipped: str) -> float:
    """Return the id of the sample behind so many, where ranges such as `4000-5215` were left out."""
    ranges = sorted((int(a), int(b)) for a, b in re.findall(r"(\d{1,15})-(\d{1,15})", skipped))
    for first, last in ranges:
        if count >= first:
            count += last - first + 1
    return count


def _lower_clip(case: _Case) -> Built:
    f = case.features
    if f.clip_ratio is None:
        return None
    clip = suggest_clip(np.array([f.clip_ratio * f.clip]))
    if clip is None or clip >= f.clip:
        return None
    return (
        "lower-clip",
        {"clip": clip},
        (
            f"1.5 x the median grad norm before the onset ({f.clip_ratio * f.clip:.3g}); now"
            f" {f.assumed}"
        ),
    )


def _init_std(case: _Case) -> Built:
    facts = case.record.facts
    hidden, std = facts.get("hidden_size"), facts.get("init_method_std")
    if not hidden:
        text = "sqrt(2 / (5 x hidden size))"
        return "init-std", {"std": text}, "the log does not state the hidden size; put it in"
    target = small_init_std(hidden)
    # 1.2 as in the config rule L01, which is satisfied up to there.
    if std is not None and std <= 1.2 * target:
        return None
    why = f"sqrt(2 / (5 x {hidden:g}))" + (f"; {std:g} is {std / target:.3g} x that" if std else "")
    return "init-std", {"std": float(f"{target:.3g}")}, why


def _patience(case: _Case) -> Built:
    f = case.features
    if not _healed(f):
        return None
    return (
        "patience",
        {},
        (
            f"it was over within {f.num_rows} row{'s' * (f.num_rows != 1)}, and {f.rows_after} went"
            " by since"
        ),
    )


def _restore_order(case: _Case) -> Built:
    resumed = case.features.fed_again_from
    if resumed is None:
        return None
    why = (
        f"resume once more from the checkpoint that the resume at {step_text(resumed)} loaded, with"
        " the sampler's position restored, or continue with data that was not fed yet; the loss"
        " before the rise was that of memorized data, so the rise itself needs no cure"
    )
    return "restore-data-order", {}, why


def _settings_back(case: _Case) -> Built:
    """Name the settings and their values before; without a name what was changed is to be found."""
    changes = _changed_settings(case.incident)
    if not changes:
        return None
    told = [
        f"{_SETTING_NAMES[f.signal]} back to {f.expected:g} (it is {f.value:g} since"
        f" {step_text(f.onset)})"
        for f in changes
    ]
    values = {_SETTING_NAMES[f.signal]: float(f.expected) for f in changes}
    return "put-back", values, ", ".join(told)


def _as_reference(case: _Case) -> Built:
    found = [f for f in case.incident.findings if f.detector == "reference-setting"]
    values = {_SETTING_NAMES[f.signal]: float(f.expected) for f in found if f.signal != "lr"}
    for f in found:
        if f.signal == "lr":  # its schedule goes on
            values["factor of lr"] = float(f.expected / f.value)
    return ("as-reference", values, "; ".join(f.text for f in found)) if found else None


_BUILDERS = {
    "as-reference": _as_reference,
    _SETTINGS_BACK: _settings_back,
    "patience": _patience,
    "restore-data-order": _restore_order,
    "roll-back": _roll_back,
    "roll-back-further": _roll_back,
    "lower-lr": _lower_lr,
    "restore-lr": _restore_lr,
    "skip-data": _skip_data,
    "lower-clip": _lower_clip,
    "init-std": _init_std,
}
_NEED_VALUES = frozenset(_BUILDERS) - {"patience", "restore-data-order", _SETTINGS_BACK}
"""Remedies that are nothing without values to set."""
