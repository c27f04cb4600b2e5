"""The features of an incident: the evidence for or against causes, as numbers, before weighing.

A feature that the log cannot answer is None, and no rule counts None. What the log does not
state but its trainer does unless told (clip 1.0) is assumed and says so.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.stand_in import Training, training_of
from trimtab.diagnosis.config_signs import ConfigSign
from trimtab.diagnosis.history import (
    JUMP_LOOKBACK_ROWS,
    JUMP_SEEN_ROWS,
    EarlierIncidents,
    Recurrence,
    comes_back,
    find_lr_jump,
    find_recurrence,
    find_warm_up_end,
)
from trimtab.diagnosis.plain_signs import plain_signs
from trimtab.diagnosis.probes import DataProbe, TrialResult
from trimtab.diagnosis.turns import held_out_goes_on, stepped_up, turned_at_once
from trimtab.incidents import Incident
from trimtab.record import RunRecord
from trimtab.signals.clip import clip_of, states_no_clip
from trimtab.signals.robust import mad_sigma
from trimtab.signals.spans import (
    Span,
    finite_values,
    has_value_other_than,
    highest,
    last_finite,
    last_rows,
    lineage_spans,
    median_spacing,
    num_rows_of,
    positive_peak,
    rising_start,
)
from trimtab.vocabulary import canonical

__all__ = ["Features", "incident_features"]

ASSUMED_CLIP = 1.0
"""Clip norm where nothing states one; nothing rests on it unless the trainer clips by default."""

# As many as a trial's expectation takes (docs/log.md): longer ones lag behind a falling loss.
_LEVEL_ROWS = 64
_AVERAGED_STEPS = 5
_AGAIN = 1.05
"""Over a rate that was in force: that rate again, as `lr_change` has it."""
_EDGE_ROWS = 3
_WINDOW_ROWS = 5
"""A top of fewer rows has no shape."""
_SEEN_ROWS = 4096
_BY_CHANCE = 4.0
"""Spreads of single rows that the highest of a stretch may lie above them. Ours."""
_LEAST_NOISE_ROWS = 8
_JUST_BEFORE, _STIRRED, _DENSE = 4, 4.0, 2.0
"""Losses before a value that is not finite, spreads of single rows that none of them passes,
and steps of a row up to which a climb between two rows would show. Ours."""
# Norms are heavy-tailed: twice the median is usual for single steps of a sound run.
_OUTSTANDING = 3.0


_LASTING = ("divergence", "unrecovered-spike")


@dataclass(frozen=True, kw_only=True)
class Features:
    """What is known of one incident. None: the log does not say."""

    kinds: frozenset[str]
    """Kind of the incident and those that came with it."""
    severity: str
    axis: str
    """What positions count: step, epoch or row."""
    onset: float
    row_steps: float | None = None
    """Median distance of rows, steps; above 5 a row is likely a mean and shapes blur."""
    rows_seen: int = 0
    """Rows that led to the onset."""
    batch_odd: str = ""
    """What a statistic of the batches, known before their step, said of the episode; empty:
    nothing."""
    reference_setting: str = ""
    """What differs from the reference run that it is judged by, for people; empty: nothing known.
    """
    changed_setting: str = ""
    """Which setting the log shows at another value, for people; empty: none."""
    batch_nonfinite: float = 0.0
    """Values of the batch of the onset that are NaN or Inf, where none were before; 0: none, or not
    known."""
    has_integers: bool | None = None
    """Whether the batches hold whole numbers, such as labels."""
    signs: frozenset[str] = frozenset()
    """Detectors whose findings make the incident; those of one kind of training
    (`trimtab.detectors.domain_signs`) by the sign's own name, too."""
    training: Training = ""
    """What is trained, where the log shows it: an agent, or two nets against each other."""
    sign_texts: str = ""
    """What they said, for people."""

    data_share: float | None = None
    """How much of what a step became slower by is waiting for data, from 0 to 1; None: not logged.
    """
    clip: float = ASSUMED_CLIP
    clip_assumed: bool = True
    clip_off: bool = False
    """Whether the log or the config states that nothing is clipped."""
    clip_share: float | None = None
    """Share of the rows before the onset whose grad norm was above the clip."""
    clip_ratio: float | None = None
    """Median grad norm before the onset, in clips."""
    clip_rows: int = 0
    gnorm_rise: float | None = None
    """Highest grad norm of the incident over the median before it."""
    gnorm_lead_rows: int | None = None
    """Rows by which the grad norm stood out before the loss did; negative: after it."""

    lr_onset: float | None = None
    """Learning rate in force at the onset."""
    lr_peak_share: float | None = None
    """The same as a share of the highest so far."""
    lr_jump: float | None = None
    """How many times the old rate the new one was; 1.0: looked, and found no jump."""
    lr_before_jump: float | None = None
    lr_jump_step: float | None = None
    lr_jump_rows: int | None = None
    """Rows from the jump to the onset."""
    lr_jump_lead: int = 0
    """Rows from the jump to the first sign; 0 where that came before it."""
    warm_up_ratio: float | None = None
    """Position of the onset over that of the end of warm-up."""
    warm_up_unit: str = "steps"

    recurrence: Recurrence | None = None
    same_attempt_rows: int | None = None
    """Rows since the last incident of the same attempt ended."""
    resume_rows: int | None = None
    """Rows from the restart to the onset; None for an attempt without a parent."""
    settings_changed: tuple[str, ...] = ()
    """Settings, data apart, in which the attempt differs from its parent."""

    has_loss_scale: bool = False
    scale_halvings: float | None = None
    """How far the loss scale was below its highest before the onset, in factors of two."""
    gnorm_before_scale: float | None = None
    """Grad norm before the scale fell for good over its median earlier; 1 is flat."""
    gnorm_with_scale: float | None = None
    """Highest grad norm while the scale fell over its median before that; 1 is flat."""
    nonfinite_first: str = ""
    """loss, grads or both: which was not finite first; empty: all finite."""
    terms_finite: bool = False
    """Whether the terms of that loss are logged in that row, and are finite."""
    nonfinite_rows: int = 0
    """Rows of the attempt from the onset on whose loss is not finite."""
    nonfinite_alone: bool = False
    """Whether each of them stands alone: the next rows are finite and at the old level."""
    inf_first: bool = False
    """Whether the first loss that is not finite is Inf, not NaN."""
    hidden_nan: bool = False
    """Whether the loss is printed as 0 while the grad norm is not finite."""
    num_ranks: int | None = None
    """Processes of the run; None: not stated."""
    rank_apart: str = ""
    """The rank or host of which the log says that it differs from others; empty: of none."""
    calm_before: bool | None = None
    """Whether loss and grad norm were at their usual level in the row before the onset."""

    turn: float | None = None
    """How many times its lowest validation came to by the next evaluation, for good; None: it rose
    over several, or not."""
    turn_of_both: bool = False
    """Whether the training loss left its course there, too."""
    held_out_goes_on: bool = False
    """Validation is as good after such a step as before it."""
    stepped_up: float | None = None
    """How many times its level one row took the loss to, where it then stands or falls; None: it did
    not."""
    held_out: bool = False
    """Whether the loss is that of validation, which is judged where no train loss is logged."""
    abrupt: bool | None = None
    """Whether half of the rise of the loss came in its first row."""
    rise_rows: int | None = None
    """Rows from the onset to 90 % of the highest loss."""
    height: float | None = None
    """Highest loss of the incident over its level before, in its own unit."""
    num_rows: int | None = None
    """Rows from onset to end; None while it lasts."""
    lasting_rows: int | None = None
    """Rows from the onset to the end of the attempt; None where it is over."""
    core_rows: int | None = None
    """Rows from the onset to the last of those that stand above half the height in one stretch."""
    core_last_row: int | None = None
    """The last of them, as a row of the record."""
    flat_top: bool | None = None
    """Whether those rows stand at one height between sharp edges; None: cannot be told."""
    recovered: bool = False
    rows_after: int | None = None
    """Rows of the attempt after the end; None while it lasts."""
    never_finite: bool = False
    began_anew: bool = False
    """From the onset on the loss does again what it did in the first rows of the log."""
    had_learned: bool = False
    """The loss had come down far before the onset."""
    live_norms: bool = False
    """Gradients stay finite all the while."""
    updates_before: float | None = None
    """Updates before the first row of a run that was never finite; None: next to none, or not so.
    Infinite: how many is not known, and they were many."""
    summed_norms: int | None = None
    """First rows of the attempt in which the grad norm grew as a sum does; None: it did not."""
    pass_order: float | None = None
    """Correlation of the loss with that of the same place one pass before, where it is smooth
    within a pass; None: not so, or not known."""
    fed_again_from: float | None = None
    """Step of the resume that fed data again."""
    uniform_loss: float | None = None
    uniform_over: int | None = None
    """Classes among which a loss that stays constant is that of a uniform guess."""
    blow_up: float | None = None
    """First sign of the last critical incident before this one in its attempt."""
    moments_left: float | None = None
    """Of Adam's second moments, over the least that updates leave, where it is less."""
    precursors: tuple[str, ...] = ()
    """Signals other than the loss that moved before it."""

    probe: DataProbe | None = None
    trials: tuple[TrialResult, ...] = field(default=())
    config: tuple[ConfigSign, ...] = ()
    """What a check of the config says that bears on causes."""

    @property
    def assumed(self) -> str:
        """How the clip is known, for people."""
        return f"clip {self.clip:g}" + (" assumed" if self.clip_assumed else "")

    @property
    def clip_text(self) -> str:
        """How hard the gradients were clipped before the onset, for people."""
        if self.clip_rows == 1:
            rows = "the row before the onset was clipped, its"
        else:
            rows = (
                f"{self.clip_share or 0:.0%} of the {self.clip_rows} rows before the onset were"
                " clipped, median"
            )
        return f"{rows} grad norm {self.clip_ratio or 0:.3g} x the clip ({self.assumed})"

    @property
    def precursor_names(self) -> str:
        """The precursors, for people."""
        return ", ".join(self.precursors)

    @property
    def changed_names(self) -> str:
        """The changed settings, for people."""
        return ", ".join(self.settings_changed)

    @property
    def averaged(self) -> bool:
        """Whether a row is likely a mean over several steps."""
        return self.row_steps is not None and self.row_steps >= _AVERAGED_STEPS

    @property
    def norm_with_scale(self) -> float:
        """How far the grad norm rose while the loss scale fell; 1.0 where that is not known."""
        return max(self.gnorm_with_scale or 1.0, self.gnorm_rise or 1.0)

    @property
    def control(self) -> TrialResult | None:
        """The trial that changed nothing, if one was run."""
        alone = (t for t in self.trials if not t.changed)
        return next((t for t in alone if not t.skipped and not t.cuts_rate), None)

    @property
    def skip_alone(self) -> TrialResult | None:
        """The trial that left data out and changed nothing else, if one was run."""
        alone = (t for t in self.trials if not t.changed)
        return next((t for t in alone if t.skipped and not t.cuts_rate), None)

    def tried(self, arm: str) -> TrialResult | None:
        """The trial that changed one thing, by its id in `trimtab.plan.trials`, if one was run."""
        return next((t for t in self.trials if t.changed == (arm,)), None)

    @property
    def cuts(self) -> tuple[TrialResult, ...]:
        """The trials that lowered the learning rate."""
        return tuple(t for t in self.trials if t.cuts_rate)

    @property
    def cut_held(self) -> TrialResult | None:
        """The mildest cut that held, if one did."""
        held = [t for t in self.cuts if t.held]
        # The mildest cut that held says the most: the rate was too high by that much at least.
        return max(held, key=lambda t: (t.lr_limit or 0.0, t.lr_factor)) if held else None


def incident_features(
    record: RunRecord,
    incident: Incident,
    *,
    earlier: Sequence[Incident] = (),
    probe: DataProbe | None = None,
    trials: Sequence[TrialResult] = (),
    config: Sequence[ConfigSign] = (),
) -> Features:
    """Return what the record says about one incident.

    Args:
        record: What the run logged.
        incident: The episode; its rows are rows of `record`.
        earlier: Incidents that came before it, in any attempt of the record.
        probe: Losses of upcoming batches, where a live run was asked.
        trials: Short branches already run, in order.
        config: What a check of the config says that bears on causes.
    """
    # Indexed once here; each of the functions below would pass over all incidents otherwise.
    earlier = EarlierIncidents.of(earlier)
    attempt = record.attempt_index(incident.attempt)
    before = lineage_spans(record, attempt, incident.onset_row)
    during = (incident.onset_row, _last_row(record, incident, attempt) + 1)
    values: dict[str, object] = {
        "kinds": frozenset((incident.kind, *incident.also)),
        "severity": incident.severity,
        "axis": record.axis,
        "onset": incident.onset,
        "rows_seen": num_rows_of(before),
        "batch_odd": _said_by(incident, "batch"),
        "reference_setting": _said_by(incident, "reference-setting"),
        "changed_setting": next(filter(None, (_said_by(incident, d) for d in CHANGED_SIGNS)), ""),
        **_of_batch(record, incident, before),
        **_signs(record, incident),
        "training": training_of(record),
        "row_steps": _row_steps(record, attempt, during[1] - 1),
        "recurrence": find_recurrence(record, incident, earlier),
        "same_attempt_rows": _since_last(incident, earlier),
        "precursors": _precursors(incident),
        "probe": probe,
        "trials": tuple(trials),
        "config": tuple(config),
        "num_ranks": _num_ranks(record),
        "rank_apart": _rank_apart(record, incident),
        "held_out": canonical(record.keys.get("loss", "loss")) == "val_loss",
    }
    values.update(_moments_lost(record, before, during))
    values.update(_clip(record, before))
    values.update(_learning_rate(record, before, incident))
    values.update(_restart(record, attempt, incident))
    collapse = "scale-collapse" in (incident.kind, *incident.also)
    # In a collapse the fall is the incident itself: up to the lowest point, not the recovery.
    fell = (during[0], min(during[1], incident.peak_row + 1))
    values.update(_loss_scale(record, (*before, fell) if collapse else before))
    values.update(_nonfinite(record, during))
    values.update(_nonfinite_rows(record, attempt, incident, before))
    values.update(_shape(record, before, during, incident))
    values.update(_core(record, attempt, before, during))
    if _TURNS & {f.detector for f in incident.findings}:
        values.update(turned_at_once(record, _span(record, attempt)))
    values["stepped_up"] = stepped_up(record, before, during)
    if values["stepped_up"] is not None:
        values["held_out_goes_on"] = held_out_goes_on(record, before, during)
    values["data_share"] = _data_share(record, before, during)
    values.update(plain_signs(record, incident, before=before, during=during, earlier=earlier))
    return Features(**values)  # type: ignore[arg-type]


def _said_by(incident: Incident, detector: str) -> str:
    return next((f.text for f in incident.findings if f.detector == detector), "")


CHANGED_SIGNS = ("setting-change", "unannounced-change", "loss-count", "most-frozen")
"""Detectors that see a setting at another value."""
_TURNS = frozenset(
    {"overfitting", "overfitting-few-rows", "memorised", "by-heart", "evaluation-jump"}
)
"""Detectors that compare validation with the training loss."""


def _span(record: RunRecord, attempt: int) -> Span:
    return record.attempts[attempt].first_row, record.attempts[attempt].end_row


def _signs(record: RunRecord, incident: Incident) -> dict[str, object]:
    told = {
        f.detector.removeprefix("sign-"): f.text.removesuffix(", lasting")
        for f in incident.findings
        if f.detector.startswith("sign-") or f.detector == "runaway"
    }
    if not told and training_of(record) == "agent" and incident.kind in _LASTING:
        # What an agent's loss is fitted to comes from its policy.
        told["agent-loss"] = "the loss of an agent rose and stayed"
    # As a note: a rate that came back to one in force before is no sign of a raised one, and a loss
    # that slides off a plateau none of leaked targets.
    detectors = frozenset(
        f.detector
        for f in incident.findings
        if f.severity != "info" or f.detector not in ("lr-change", "too-low")
    )
    lower = any(
        f.detector == "reference-setting" and f.signal == "lr" and f.direction == "down"
        for f in incident.findings
    )
    return {
        "signs": detectors | frozenset(told) | frozenset(["rate-below-reference"] * lower),
        "sign_texts": "; ".join(list(told.values())[:2]),
    }


def _of_batch(record: RunRecord, incident: Incident, before: Sequence[Span]) -> dict[str, object]:
    """Return what the batches held by their own statistics."""
    broken, whole = (record.columns.get(n) for n in ("batch_nonfinite", "batch_integers"))
    values: dict[str, object] = {}
    if broken is not None and broken.present[incident.onset_row]:
        now = float(broken.values[incident.onset_row])
        # NaN may stand for what is missing, and the model know it.
        past = last_finite(record, "batch_nonfinite", before, _LEVEL_ROWS)[1]
        values["batch_nonfinite"] = now if not past.any() else 0.0
    if whole is not None and whole.present[incident.onset_row]:
        values["has_integers"] = bool(whole.values[incident.onset_row] > 0)
    return values


def _row_steps(record: RunRecord, attempt: int, last_row: int) -> float | None:
    return median_spacing(record, record.attempts[attempt].first_row, last_row + 1)


def _last_row(record: RunRecord, incident: Incident, attempt: int) -> int:
    last = record.attempts[attempt].end_row - 1
    return last if incident.end_row is None else min(last, incident.end_row)


def _level(values: NDArray[np.float64]) -> float | None:
    return float(np.median(values[-_LEVEL_ROWS:])) if len(values) else None


def _since_last(incident: Incident, earlier: Sequence[Incident]) -> int | None:
    end = EarlierIncidents.of(earlier).last_end(incident.attempt, incident.onset_row)
    return None if end is None else incident.onset_row - end


def _precursors(incident: Incident) -> tuple[str, ...]:
    names = [
        f.signal
        for f in incident.findings
        # The rate is set, not moved by the run: its jumps have features of their own.
        if f.signal not in ("loss", "lr", "val_loss") and f.onset_row < incident.onset_row
    ]
    return tuple(dict.fromkeys(names))


def _clip(record: RunRecord, before: Sequence[Span]) -> dict[str, object]:
    clip, assumed = clip_of(record)
    if clip is None:
        # No norm is above a clip that is not there, or of which nothing is known.
        return {"clip_off": states_no_clip(record)}
    norms = last_finite(record, "grad_norm", before, _LEVEL_ROWS)[1]
    values: dict[str, object] = {"clip": clip, "clip_assumed": assumed, "clip_rows": len(norms)}
    if len(norms):
        values["clip_share"] = float((norms > clip).mean())
        values["clip_ratio"] = float(np.median(norms) / clip)
    return values


def _learning_rate(
    record: RunRecord, before: Sequence[Span], incident: Incident
) -> dict[str, object]:
    onset = (incident.onset_row, incident.onset_row + 1)
    spans = (*before, onset)
    values: dict[str, object] = {}
    if record.columns.get("lr") is not None:
        values.update(_rates(record, spans, incident))
        rows, lr = rising_start(record, "lr", spans)
        end = find_warm_up_end(lr)
        step = 0.0 if end is None else float(record.step[rows[end]])
        if step > 0:
            values["warm_up_ratio"] = float(incident.onset / step)
    # What the log states wins over what the curve of the rate suggests.
    return {**values, **_stated_warm_up(record, incident)}


def _rates(record: RunRecord, spans: Sequence[Span], incident: Incident) -> dict[str, object]:
    peak = highest(record, "lr", spans)
    if peak is None or peak <= 0:
        return {}
    # No more rows than a jump is sought in: what lies before them changes nothing. What grew for
    # long before it was an incident began with its first sign.
    lead = min(incident.onset_row - incident.first_row, _MOST_LEAD)
    rows, lr = last_finite(record, "lr", spans, JUMP_SEEN_ROWS + lead)
    values: dict[str, object] = {
        "lr_onset": float(lr[-1]),
        "lr_peak_share": float(lr[-1] / peak),
    }
    # A jump needs slopes before it to compare with.
    if len(lr) > 3:
        step = np.asarray(record.step[rows], dtype=np.float64)
        jump = find_lr_jump(step, lr, rows=JUMP_LOOKBACK_ROWS + lead)
        if jump is not None and jump.after <= _AGAIN * peak:
            before = last_finite(record, "lr", spans, record.num_rows)[1][: jump.index - len(lr)]
            if comes_back(before) and jump.after <= _AGAIN * float(before.max()):
                jump = None  # one of the ways of its schedule
        values["lr_jump"] = 1.0 if jump is None else jump.ratio
        if jump is not None:
            values["lr_before_jump"] = jump.before
            values["lr_jump_step"] = float(step[jump.index])
            values["lr_jump_rows"] = int(incident.onset_row - rows[jump.index])
            values["lr_jump_lead"] = max(0, int(incident.first_row - rows[jump.index]))
    return values


def _data_share(record: RunRecord, before: Sequence[Span], during: Span) -> float | None:
    """Return the share of the rise of a step's time that the wait for data has; None: not known."""
    moved: list[float] = []
    for name in ("data_time_s", "step_time_s"):
        if name not in record.columns:
            return None
        old = last_finite(record, name, before, _LEVEL_ROWS)[1]
        new = finite_values(record, name, *during)[:_LEVEL_ROWS]
        if len(old) < _LEAST_NOISE_ROWS or not len(new):
            return None
        moved.append(float(np.median(new) - np.median(old)))
    return min(max(moved[0] / moved[1], 0.0), 1.0) if moved[1] > 0 else None


_MOST_LEAD = 4096
"""Rows from a first sign to the onset within which the rate is looked through. Ours."""


def _stated_warm_up(record: RunRecord, incident: Incident) -> dict[str, object]:
    samples, steps = record.facts.get("lr_warmup_samples"), record.facts.get("lr_warmup_iters")
    column = record.columns.get("samples_seen")
    if samples and column is not None and column.present[incident.onset_row]:
        seen = float(column.values[incident.onset_row])
        return {"warm_up_ratio": seen / samples, "warm_up_unit": "samples"}
    return {"warm_up_ratio": incident.onset / steps} if steps else {}


def _restart(record: RunRecord, attempt: int, incident: Incident) -> dict[str, object]:
    own = record.attempts[attempt]
    if own.parent is None:
        return {}
    rows = incident.onset_row - own.first_row
    spacing = _row_steps(record, attempt, own.end_row - 1)
    if own.parent_step is not None and spacing:  # an excerpt may begin long after the restart
        rows = max(rows, round((incident.onset - own.parent_step) / spacing))
    values: dict[str, object] = {"resume_rows": rows}
    parents = [a for a in record.attempts if a.number == own.parent]
    if parents:
        old = parents[0].settings
        # An attempt that states none of them has not changed them.
        stated = old if old.keys() & own.settings.keys() else {}
        keys = sorted(k for k in {*stated, *own.settings} if old.get(k) != own.settings.get(k))
        # A seed is data: `Recurrence.data_change` names it.
        values["settings_changed"] = tuple(k for k in keys if "seed" not in k)
    return values


_LOST_ROWS = 20
"""Rows before an onset in which lost moments bear on it: they are read every tenth step. Ours."""


def _moments_lost(record: RunRecord, before: Sequence[Span], during: Span) -> dict[str, object]:
    column = record.columns.get("adam_v_left")
    if column is None:
        return {}
    rows = np.concatenate([last_rows(before, _LOST_ROWS), np.arange(during[0], during[1])])
    told = rows[column.present[rows] & np.isfinite(column.values[rows])]
    return {"moments_left": float(column.values[told].min())} if len(told) else {}


def _loss_scale(record: RunRecord, before: Sequence[Span]) -> dict[str, object]:
    whole = ((0, record.num_rows),)
    if not has_value_other_than(record, "loss_scale", whole, 1.0):  # bf16 runs print a constant 1
        return {}
    found = positive_peak(record, "loss_scale", before)
    if found is None:
        return {"has_loss_scale": True}
    top, peak, last, now = found
    with np.errstate(over="ignore"):  # a scale that ran down to a denormal: as many as can be said
        halvings = float(np.log2(np.float64(peak) / now))
    values: dict[str, object] = {"has_loss_scale": True, "scale_halvings": halvings}
    if halvings >= 1 and top != last:
        until = [(first, min(stop, top + 1)) for first, stop in before]
        # Only up to the peak of the scale: norms after it may be what the collapse did.
        early = last_finite(record, "grad_norm", until, 8 + _LEVEL_ROWS)[1]
        near, far = early[-8:], early[:-8]
        if len(near) and len(far) >= 8:
            usual = float(np.median(far))
            values["gnorm_before_scale"] = float(np.median(near) / usual)
            falling = finite_values(record, "grad_norm", top, last + 1)
            if len(falling):
                values["gnorm_with_scale"] = float(falling.max() / usual)
    return values


def _nonfinite(record: RunRecord, during: Span) -> dict[str, object]:
    first: dict[str, int] = {}
    rows = slice(*during)
    for name, label in (("loss", "loss"), ("grad_norm", "grads")):
        column = record.columns.get(name)
        if column is not None:
            # An absent value is stored as NaN; only one that was logged counts as non-finite.
            bad = np.flatnonzero(column.present[rows] & ~np.isfinite(column.values[rows]))
            if len(bad):
                first[label] = int(bad[0])
    if not first:
        return {}
    both = len(first) == 2 and len(set(first.values())) == 1
    return {
        "nonfinite_first": "both" if both else min(first, key=lambda k: first[k]),
        "terms_finite": "loss" in first and _terms_finite(record, during[0] + first["loss"]),
    }


def _terms_finite(record: RunRecord, row: int) -> bool:
    """Whether two terms of the loss or more are logged in a row, and all of them are finite."""
    terms = [
        column.values[row]
        for name, column in record.columns.items()
        if (name.startswith("loss/") or name in ("recon_loss", "latent_kl")) and column.present[row]
    ]
    return len(terms) > 1 and bool(np.isfinite(terms).all())


def _nonfinite_rows(
    record: RunRecord, attempt: int, incident: Incident, before: Sequence[Span]
) -> dict[str, object]:
    """Return how the loss is not finite from the onset to the end of the attempt."""
    column = record.columns.get("loss")
    if column is None or "non-finite" not in (incident.kind, *incident.also):
        return {}
    stop = min(record.attempts[attempt].end_row, incident.onset_row + _SEEN_ROWS)
    rows = np.arange(incident.onset_row, stop)
    loss = column.values[rows[column.present[rows]]]
    bad = np.flatnonzero(~np.isfinite(loss))
    values: dict[str, object] = {"hidden_nan": _hidden_nan(record, rows, before)}
    if not len(bad):
        return values
    values["nonfinite_rows"] = len(bad)
    values["inf_first"] = bool(np.isinf(loss[bad[0]]))
    quiet = last_finite(record, "loss", before, _LEVEL_ROWS)[1]
    after = loss[bad[-1] + 1 :][:_LEVEL_ROWS]
    runs = np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1)
    if len(after) >= 2 and len(quiet) >= 8 and max(len(r) for r in runs) <= 2:
        limit = float(np.median(quiet) + 6 * max(mad_sigma(quiet), 1e-12))
        values["nonfinite_alone"] = bool(np.median(after) <= limit)
    return values


def _hidden_nan(record: RunRecord, rows: NDArray[np.intp], before: Sequence[Span]) -> bool:
    """Whether the loss is exactly 0 in every row while the grad norm is not finite.

    The Trainer of transformers prints NaN so (`logging_nan_inf_filter`).
    """
    loss, norm = record.columns.get("loss"), record.columns.get("grad_norm")
    if loss is None or norm is None or len(rows) < 2:
        return False
    both = rows[loss.present[rows] & norm.present[rows]]
    quiet = last_finite(record, "loss", before, _LEVEL_ROWS)[1]
    zero = len(both) > 1 and bool((loss.values[both[1:]] == 0).all())
    return zero and not np.isfinite(norm.values[both]).any() and bool((quiet != 0).any())


def _num_ranks(record: RunRecord) -> int | None:
    stated = [a.settings["world_size"] for a in record.attempts if "world_size" in a.settings]
    try:
        return max(int(s) for s in stated) if stated else None
    except ValueError:
        return None


_RANK = re.compile(r"\b(?:on )?(?:rank|host|node)s?[ =:]?\s?[\w.-]*\d[\w.-]*", re.I)


def _rank_apart(record: RunRecord, incident: Incident) -> str:
    """Return the rank or host that notes of the log or findings name beside NaN, Inf or a sum."""
    texts = (*record.notes, *(f.text for f in incident.findings))
    named = (m[0] for t in texts if _ODD.search(t) for m in [_RANK.search(t)] if m)
    return next(named, "")


_ODD = re.compile(r"\b(?:nan|inf|not finite|checksum|differs|others)\b", re.I)


def _core(
    record: RunRecord, attempt: int, before: Sequence[Span], during: Span
) -> dict[str, object]:
    """Return the rows in which the loss stands above half its height, and whether they are flat.

    A stretch of other data lifts the loss at once, holds it at one height and lets it fall at once;
    a spike of the optimizer's making decays.
    """
    column = record.columns.get("loss")
    quiet = last_finite(record, "loss", before, _LEVEL_ROWS)[1]
    level = _level(quiet)
    if column is None or level is None:
        return {}
    stop = min(record.attempts[attempt].end_row, during[1] + _EDGE_ROWS)
    rows = np.arange(during[0], stop)
    rows = rows[column.present[rows] & np.isfinite(column.values[rows])]
    inside = rows < during[1]
    loss = column.values[rows] - level
    height = float(loss[inside].max(initial=0.0))
    if height <= 0:
        return {}
    high = np.flatnonzero(inside & (loss >= 0.5 * height))
    gaps = np.flatnonzero(np.diff(high) > _EDGE_ROWS)
    high = high[: int(gaps[0]) + 1] if len(gaps) else high
    first, last = int(high[0]), int(high[-1])
    core = loss[first : last + 1]
    values: dict[str, object] = {
        "core_rows": int(rows[last] - during[0]) + 1,
        "core_last_row": int(rows[last]),
    }
    if len(core) < _WINDOW_ROWS or last + 1 >= len(loss):
        return values
    half = len(core) // 2
    ends = abs(float(np.median(core[:half]) - np.median(core[half:])))
    spread = float(np.quantile(core, 0.9) - np.quantile(core, 0.1))
    # The noise of the run itself widens the top, too.
    noise = 3 * mad_sigma(quiet) if len(quiet) >= 8 else 0.0
    values["flat_top"] = bool(
        first <= 1
        and ends <= 0.2 * height + noise / 3
        and spread <= 0.35 * height + noise
        and core[0] - (loss[first - 1] if first else 0.0) >= 0.4 * height
        and core[-1] - loss[last + 1] >= 0.4 * height
    )
    return values


def _shape(
    record: RunRecord, before: Sequence[Span], during: Span, incident: Incident
) -> dict[str, object]:
    values: dict[str, object] = {
        "recovered": (
            incident.end_row is not None
            and incident.shape != "unrecovered"
            and not {"unrecovered-spike", "divergence"} & {incident.kind, *incident.also}
        ),
        "num_rows": None if incident.end_row is None else incident.end_row - incident.onset_row + 1,
    }
    if incident.end_row is None:
        values["lasting_rows"] = during[1] - during[0]
    quiet_loss = last_finite(record, "loss", before, _LEVEL_ROWS)[1]
    quiet_norm = last_finite(record, "grad_norm", before, _LEVEL_ROWS)[1]
    loss = finite_values(record, "loss", *during)
    norm = finite_values(record, "grad_norm", *during)
    level, norm_level = _level(quiet_loss), _level(quiet_norm)
    if level is not None and len(loss):
        height = float(loss.max() - level)
        values["height"] = height
        # What is no higher than the rows before were by chance has neither risen nor a shape.
        chance = _BY_CHANCE * _row_noise(quiet_loss)
        if height > chance:
            # A climb that had begun before the onset must not make the last step look abrupt.
            just_before = float(np.median(quiet_loss[-3:]))
            values["abrupt"] = bool(loss[0] - max(level, just_before) >= 0.5 * height)
            values["rise_rows"] = int(np.argmax(loss >= level + 0.9 * height))
    if norm_level and len(norm):
        values["gnorm_rise"] = float(norm.max() / norm_level)
    if len(quiet_norm) >= 8 and norm_level:
        values["gnorm_lead_rows"] = _gnorm_lead(record, before, during, norm_level)
        recent = quiet_norm[-1] <= 2.0 * norm_level
        values["calm_before"] = bool(recent and not _precursors(incident))
    elif level is not None and len(quiet_loss) >= _LEAST_NOISE_ROWS and _is_dense(record, before):
        # Without norms the losses just before say it: what diverges climbs first.
        stirred = quiet_loss[-_JUST_BEFORE:].max() - level > _STIRRED * _row_noise(quiet_loss)
        values["calm_before"] = bool(not stirred and not _precursors(incident))
    return values


def _is_dense(record: RunRecord, before: Sequence[Span]) -> bool:
    """Whether a row stands for so few steps that a climb takes rows."""
    steps = record.step[last_rows(before, _LEVEL_ROWS)]
    with np.errstate(over="ignore", invalid="ignore"):
        gaps = np.diff(steps)
    return record.axis == "step" and len(steps) > 1 and float(np.median(gaps)) <= _DENSE


def _row_noise(values: NDArray[np.float64]) -> float:
    """Return the spread of single rows around their trend; 0 where too few say."""
    few = len(values) < _LEAST_NOISE_ROWS
    return 0.0 if few else float(mad_sigma(np.diff(values)) / np.sqrt(2))


def _gnorm_lead(
    record: RunRecord, before: Sequence[Span], during: Span, level: float
) -> int | None:
    """Return the rows from the first grad norm above 3 times its level to the onset of the loss.

    None where the norm never exceeds that.
    """
    column = record.columns["grad_norm"]
    # No further back: a single high norm of long ago is no lead.
    led = last_rows(before, 16)
    rows = np.concatenate([led, np.arange(during[0], min(during[1], during[0] + 64))])
    high = column.present[rows] & (column.values[rows] > _OUTSTANDING * level)
    if not high.any():
        return None
    return len(led) - int(np.argmax(high))
