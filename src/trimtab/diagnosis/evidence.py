"""Rules of evidence: a feature of the incident, how much it weighs, and what to say about it.

A rule's strength is a number from 0 (silent) to 1; times its weight it moves the log-odds of a
cause, up for a positive weight and down for a negative one. The weights are ours, set by hand so
that single features stay modest and experiments outweigh them, and checked on simulated faults.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.diagnosis.features import Features
from trimtab.diagnosis.history import warm_up_label
from trimtab.kinds import KINDS

__all__ = ["EvidenceRule", "only_for"]

MALIGNANT = frozenset({"unrecovered-spike", "divergence", "non-finite"})
STATE_KINDS = frozenset(
    {
        *MALIGNANT,
        "spike",
        "shift",
        "drift",
        "batch-outlier",
        "scale-collapse",
        "grad-explosion",
        "grad-spike",
        "grad-drift",
        "activation-reversal",
        "skipped-steps",
        "resume-jump",
        "behind-reference",
        "setting-jump",
        "signal-abnormal",
        "precision-overflow",
        "precision-underflow",
    }
)
"""Kinds that concern the loss or the gradients, not only the clock or the data."""
PACE_KINDS = frozenset(k.name for k in KINDS if k.topic == "pace")
"""Kinds that concern the clock only."""
JOINT = 3.0
"""Rise of the grad norm beside a falling loss scale from which it is not flat, ratio."""
JUMP = 1.5
"""Rise of the learning rate in force that counts as a jump, ratio; the guard's default too."""
SHORT_ROWS = 50
"""A spike over within this many rows counts as short; BLOOM's took about 30 steps."""


@dataclass(frozen=True)
class EvidenceRule:
    """One piece of evidence."""

    name: str
    strength: Callable[[Features], float]
    """From 0, silent, to 1."""
    weight: float
    """Log-odds at full strength, nats; negative: evidence against."""
    text: str
    """What to say; `{f}` is the features."""

    def say(self, f: Features) -> str:
        """Return the sentence with this run's numbers."""
        return self.text.format(f=f)


def yes(condition: bool | None) -> float:  # noqa: FBT001
    """Return 1 for true, 0 for false and for unknown."""
    return 1.0 if condition else 0.0


def clipped_hard(f: Features) -> float:
    """Nearly every row clipped, and hard: evidence from 3 clips on, full at 10."""
    if f.clip_share is None or f.clip_ratio is None or f.clip_share < 0.9 or f.clip_ratio < 3:
        return 0.0
    # A ratio of 10 clips is full evidence: each step is scaled down tenfold (see `excerpt`).
    return min(1.0, math.log10(f.clip_ratio))


def batch_nonfinite(f: Features) -> float:
    """The batch of the onset held NaN or Inf before its step, as none before it did."""
    return yes(f.batch_nonfinite > 0)


def scale_fell_alone(f: Features) -> float:
    """The loss scale fell by 3 halvings or more while the grad norm stayed flat."""
    if f.scale_halvings is None or f.scale_halvings < 3 or f.gnorm_before_scale is None:
        return 0.0
    if (f.gnorm_with_scale or 0.0) >= JOINT or (f.gnorm_rise or 0.0) >= JOINT:
        return 0.0
    # Five halvings are what `scale_collapse` calls critical.
    return yes(f.gnorm_before_scale < 1.5) * min(1.0, f.scale_halvings / 5)


def scale_fell_after_norm(f: Features) -> float:
    """The loss scale fell, and the grad norm had risen first."""
    if f.scale_halvings is None or f.scale_halvings < 1 or f.gnorm_before_scale is None:
        return 0.0
    return yes(f.gnorm_before_scale >= 1.5)


def scale_fell_with_norm(f: Features) -> float:
    """The loss scale fell while the grad norm rose by 3 times or more, neither before the other."""
    if f.scale_halvings is None or f.scale_halvings < 1 or scale_fell_after_norm(f):
        return 0.0
    return yes(f.norm_with_scale >= JOINT)


def scale_still(f: Features) -> float:
    """The loss scale is logged for 50 rows or more and did not fall before the onset."""
    return yes(f.scale_halvings is not None and f.scale_halvings < 1 and f.rows_seen >= SHORT_ROWS)


def jumped(f: Features) -> float:
    """The learning rate in force jumped: evidence from a factor of 1.5 on, full at 3."""
    if f.lr_jump is None or f.lr_jump < JUMP:
        return 0.0
    # Far behind it other things may have happened: half the evidence from 256 rows on.
    near = 1.0 if f.lr_jump_lead <= 128 else max(0.5, 128 / f.lr_jump_lead)
    return near * min(1.0, math.log(f.lr_jump) / math.log(3.0))


def jumped_at_resume(f: Features) -> float:
    """The learning rate in force jumped in the first rows of a restart."""
    if not jumped(f) or f.resume_rows is None or f.lr_jump_rows is None:
        return 0.0
    return yes(0 <= f.resume_rows - f.lr_jump_rows <= 1)


def jumped_after_resume(f: Features) -> float:
    """The learning rate in force jumped after a restart, not at it."""
    if not jumped(f) or f.resume_rows is None or f.lr_jump_rows is None:
        return 0.0
    return yes(f.resume_rows - f.lr_jump_rows > 1)


def no_jump(f: Features) -> float:
    """The learning rate is logged and did not jump."""
    return yes(f.lr_jump is not None and f.lr_jump < JUMP)


def near_warm_up_end(f: Features) -> float:
    """The onset lies just after the end of warm-up."""
    return yes(f.warm_up_ratio is not None and warm_up_label(f.warm_up_ratio, 1.0) != "")


def away_from_warm_up_end(f: Features) -> float:
    """The end of warm-up is known and lies elsewhere."""
    return yes(f.warm_up_ratio is not None and warm_up_label(f.warm_up_ratio, 1.0) == "")


def recurs_sooner(f: Features) -> float:
    """An earlier attempt failed at a later step."""
    return yes(f.recurrence is not None and f.recurrence.sooner_by > 0)


def failed_on_other_data(f: Features) -> float:
    """An earlier attempt failed too, on other data."""
    return yes(f.recurrence is not None and f.recurrence.other_data)


def failed_on_same_data(f: Features) -> float:
    """An earlier attempt failed within 2 % of the same step, on the same data."""
    r = f.recurrence
    # `is False`: None means that the log does not say which data was fed.
    same = r is not None and r.other_data is False and abs(r.sooner_by) <= 0.02 * max(1.0, f.onset)
    return yes(same)


def abrupt(f: Features) -> float:
    """Half of the rise came in one row, and rows are single steps."""
    # A mean over ten steps turns every rise into one of a single row.
    return yes(f.abrupt and not f.averaged)


def gradual(f: Features) -> float:
    """The loss climbed over 3 rows or more."""
    # `is False`: an unknown shape is no evidence of a gradual one.
    return yes(f.abrupt is False and (f.rise_rows or 0) >= 3)


def short_and_over(f: Features) -> float:
    """The loss came back within 50 rows."""
    return yes(f.recovered and f.num_rows is not None and f.num_rows <= SHORT_ROWS)


def unrecovered(f: Features) -> float:
    """The loss did not come back."""
    return yes(bool(f.kinds & MALIGNANT) and not f.recovered)


def stays(f: Features) -> float:
    """The loss stays up for hundreds of rows, to the end of what is logged."""
    return unrecovered(f) * yes((f.lasting_rows or 0) >= 200)


def norm_led(f: Features) -> float:
    """The grad norm stood out at least 2 rows before the loss."""
    return yes(f.gnorm_lead_rows is not None and f.gnorm_lead_rows >= 2)


def norm_with_loss(f: Features) -> float:
    """The grad norm stood out in the row of the onset or one off."""
    return yes(f.gnorm_lead_rows is not None and abs(f.gnorm_lead_rows) <= 1)


def inner_precursor(f: Features) -> float:
    """Update norm, activations or attention logits moved before the loss."""
    # They move with the state of the model; a bad batch shows in the loss at the same step.
    inner = {"update_norm", "activation_norm", "attention_logit_max", "attention_entropy"}
    return yes(bool(inner & set(f.precursors)))


def moment_precursor(f: Features) -> float:
    """Adam's second moment moved before the loss."""
    return yes(bool({"adam_v_l1", "adam_v_max"} & set(f.precursors)))


def just_resumed(f: Features) -> float:
    """The onset lies within 5 rows of a restart."""
    return yes(f.resume_rows is not None and f.resume_rows <= 5)


def long_after_resume(f: Features) -> float:
    """The onset lies more than 50 rows after the last restart, or there was none."""
    return yes(f.resume_rows is None or f.resume_rows > SHORT_ROWS)


def sudden_nonfinite(f: Features) -> float:
    """A value was not finite although the row before was as usual."""
    return yes(f.nonfinite_first != "" and f.calm_before)


def sudden_on_one_rank(f: Features) -> float:
    """A value was suddenly not finite, and the log names a rank or host that differs."""
    return sudden_nonfinite(f) * yes(f.rank_apart != "")


def flat_top(f: Features) -> float:
    """The loss stood at one height between sharp edges, by its own shape or as a detector says."""
    return max(yes(f.flat_top is True and not f.averaged), sign("flat-window")(f))


def nonfinite_alone(f: Features) -> float:
    """Each loss that is not finite stands alone among finite ones at the old level."""
    return yes(f.nonfinite_alone)


def loss_nonfinite_first(f: Features) -> float:
    """The loss was not finite before or with the gradients."""
    return yes(f.nonfinite_first in ("loss", "both"))


def inf_first(f: Features) -> float:
    """The first loss that was not finite was Inf."""
    return yes(f.inf_first)


def hidden_nan(f: Features) -> float:
    """The loss is printed as 0 while the grad norm is not finite."""
    return yes(f.hidden_nan)


def probe_found(f: Features) -> float:
    """Upcoming batches stood out under the healthy state."""
    return yes(f.probe is not None and f.probe.num_outliers > 0)


def probe_clean(f: Features) -> float:
    """Upcoming batches were looked at, and none stood out."""
    return yes(f.probe is not None and f.probe.num_outliers == 0)


def skip_held(f: Features) -> float:
    """Leaving data out, and nothing else, held."""
    return yes(f.skip_alone is not None and f.skip_alone.held)


def skip_failed(f: Features) -> float:
    """Leaving data out, and nothing else, did not hold."""
    return yes(f.skip_alone is not None and not f.skip_alone.held)


def cut_held_without_skip(f: Features) -> float:
    """A lower learning rate held; in full where leaving data out had failed."""
    if f.cut_held is None:
        return 0.0
    # Any change of the rate also changes which weights meet the batch, so without the failed skip a
    # bad batch is not excluded.
    return 1.0 if skip_failed(f) else 0.5


def cuts_failed(f: Features) -> float:
    """Every cut that was tried failed."""
    return yes(bool(f.cuts) and f.cut_held is None)


def control_held(f: Features) -> float:
    """The replay that changed nothing held: not reproducible."""
    return yes(f.control is not None and f.control.held)


def control_held_exactly(f: Features) -> float:
    """The replay that changed nothing held, in a job that repeats calm steps far more closely.

    Nothing where that is not known of the job: a clean replay is inconclusive then.
    """
    return yes(bool(control_held(f)) and f.control is not None and f.control.counts)


def control_held_apart(f: Features) -> float:
    """The replay that changed nothing held, and a rank or host differed from the others."""
    return control_held_exactly(f) * yes(f.rank_apart != "")


def exact_machine(f: Features) -> float:
    """Replays of calm steps repeat each other bit for bit, or far closer than the trouble is."""
    return yes(f.control is not None and f.control.counts)


def no_control(f: Features) -> float:
    """No replay that changed nothing was run."""
    return yes(f.control is None)


def control_failed(f: Features) -> float:
    """The replay that changed nothing failed again: reproducible.

    Nothing in a job whose calm steps differ by as much, or by an unknown amount.
    """
    control = f.control
    known = control is not None and (control.counts or control.bitwise is None)
    return yes(known and control is not None and not control.held)


def fp32_held(f: Features) -> float:
    """The same steps went well in fp32."""
    return yes((t := f.tried("fp32")) is not None and t.held)


def fp32_failed(f: Features) -> float:
    """The same steps failed in fp32, too."""
    return yes((t := f.tried("fp32")) is not None and not t.held)


def stepped_up(f: Features) -> float:
    """One row took the loss to many times its level, the norm with it, and nothing spoke before.

    Half the evidence where norm or rate is not logged. A norm that rises by far more than the loss
    is that of weights that broke.
    """
    if f.stepped_up is None or f.training or f.precursors or jumped(f) or norm_led(f):
        return 0.0
    if not f.kinds & _OF_THE_LOSS or f.nonfinite_first:
        return 0.0
    if f.gnorm_rise is not None and not 1.3 <= f.gnorm_rise <= 1.5 * f.stepped_up:
        return 0.0
    return 1.0 if f.gnorm_rise is not None and f.lr_jump is not None else 0.5


def turned_at_once(f: Features) -> float:
    """Validation turned between two evaluations, five times as high, or training left its course.

    Three times are enough where it did. Validation that only jumps, and goes on as before, is of
    another evaluation.
    """
    if f.turn is None:
        return 0.0
    rises_on = bool(f.signs & {"overfitting", "overfitting-few-rows", "memorised", "by-heart"})
    return yes(f.turn_of_both or (f.turn >= 5 and rises_on))


def put_back_held(f: Features) -> float:
    """The same steps went well with what had changed put back."""
    return yes((t := f.tried("put-back")) is not None and t.held)


def put_back_failed(f: Features) -> float:
    """The same steps failed with what had changed put back, too."""
    return yes((t := f.tried("put-back")) is not None and not t.held)


def older_state_held(f: Features) -> float:
    """The same data went well from an older state."""
    return yes((t := f.tried("other-state")) is not None and t.held)


def older_state_failed(f: Features) -> float:
    """The same data failed from an older state, too."""
    return yes((t := f.tried("other-state")) is not None and not t.held)


_OF_THE_LOSS = frozenset({"spike", "unrecovered-spike", "divergence", "shift", "drift"})


def never_finite(f: Features) -> float:
    """No finite loss or grad norm was ever logged, from the first updates on."""
    return yes(f.never_finite and f.updates_before is None)


def broken_unseen(f: Features) -> float:
    """No finite loss was ever logged, but many updates were made before the first row."""
    return yes(f.updates_before is not None)


def was_finite(f: Features) -> float:
    """The run logged finite values."""
    return yes(not f.never_finite)


def fed_again(f: Features) -> float:
    """Losses or counters show that a resume fed data again."""
    return yes(f.fed_again_from is not None)


def not_fed_again(f: Features) -> float:
    """Nothing shows that a resume fed data again."""
    return yes(f.fed_again_from is None)


def norms_sum_up(f: Features) -> float:
    """From the first row on the grad norm grew as a sum does."""
    return yes(f.summed_norms is not None)


def in_one_order(f: Features) -> float:
    """Losses that come again with each pass, smooth within it, in an incident of the loss."""
    return yes(f.pass_order is not None) * yes(bool(f.kinds & _OF_THE_LOSS))


def unlabeled_from_start(f: Features) -> float:
    """No loss was ever finite, and no gradient broke before or with the first of them."""
    return never_finite(f) * yes(f.nonfinite_first == "loss")


def uniform(f: Features) -> float:
    """The loss stays constant at the logarithm of the number of classes."""
    return yes(f.uniform_over is not None)


def not_uniform(f: Features) -> float:
    """The loss does not stay constant at the logarithm of the number of classes."""
    return yes(f.uniform_over is None)


def pace_alone(f: Features) -> float:
    """The incident is about the clock and nothing else."""
    return yes(bool(f.kinds) and f.kinds <= PACE_KINDS)


def slow_of_many(f: Features) -> float:
    """The clock alone is odd, in a run of 64 processes or more."""
    return pace_alone(f) * yes((f.num_ranks or 1) >= 64)


def clock_alone(f: Features) -> float:
    """No kind of the incident is about the loss or the gradients."""
    return yes(not f.kinds & STATE_KINDS)


def low_rate(f: Features) -> float:
    """The learning rate in force was below a third of its highest."""
    return yes(f.lr_peak_share is not None and f.lr_peak_share < 1 / 3)


def full_rate(f: Features) -> float:
    """The learning rate in force was within a tenth of its highest."""
    return yes(f.lr_peak_share is not None and f.lr_peak_share > 0.9)


def shows_nothing(f: Features) -> float:
    """The loss and the gradients show nothing, and the loss does not lie above that of a guess."""
    return yes(not f.kinds & STATE_KINDS and "guessing-worse" not in f.signs)


def other_kind(*kinds: str) -> Callable[[Features], float]:
    """Return a strength that is 1 when the incident is none of these kinds."""
    wanted = frozenset(kinds)
    return lambda f: yes(not (f.kinds & wanted))


def only_for(*kinds: str) -> EvidenceRule:
    """Return the rule that practically excludes a cause for incidents of no such kind."""
    # e^-6 is 1/400: a prior of 0.02 falls below the 1 % under which a cause is not listed.
    return EvidenceRule(
        "another-kind", other_kind(*kinds), -6.0, "it explains no incident of this kind"
    )


def of_kind(*kinds: str) -> Callable[[Features], float]:
    """Return a strength that is 1 when the incident is one of these kinds."""
    wanted = frozenset(kinds)
    return lambda f: yes(bool(f.kinds & wanted))


def sign(*detectors: str) -> Callable[[Features], float]:
    """Return a strength that is 1 when one of these detectors speaks in the incident."""
    wanted = frozenset(detectors)
    return lambda f: yes(bool(f.signs & wanted))


def no_sign(*detectors: str) -> Callable[[Features], float]:
    """Return a strength that is 1 when none of these detectors speaks in the incident."""
    wanted = frozenset(detectors)
    return lambda f: yes(not f.signs & wanted)
