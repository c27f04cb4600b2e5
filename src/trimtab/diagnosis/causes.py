"""The table of causes, as data: how common each is, the evidence for and against it, what to try.

Failure modes keep the numbers F01-F37 of the documentation. Priors are ours;
the tables state them against each other, and here they are made to add up to 1.
"""

from collections.abc import Mapping
from dataclasses import replace

from trimtab.diagnosis import evidence as e
from trimtab.diagnosis import sentences as say
from trimtab.diagnosis.cause_entry import CauseEntry
from trimtab.diagnosis.domain_causes import DOMAIN_CAUSES
from trimtab.diagnosis.everyday_causes import EVERYDAY
from trimtab.diagnosis.evidence import EvidenceRule
from trimtab.diagnosis.nonfinite_causes import NONFINITE
from trimtab.diagnosis.outside_causes import OUTSIDE
from trimtab.diagnosis.plain_causes import PLAIN

__all__ = ["CAUSES", "CAUSE_BY_ID", "UNKNOWN", "CauseEntry"]

UNKNOWN = "unknown"


# A slow step or a full disk has none of these causes, however common they are otherwise.
_NOT_LOSS_BUT_GUESSES = EvidenceRule(
    "another-kind", e.shows_nothing, -5.0, "the loss and the gradients show nothing"
)
_NOT_LOSS = EvidenceRule(
    "another-kind", e.other_kind(*e.STATE_KINDS), -5.0, "the loss and the gradients show nothing"
)

_ENTRIES: tuple[CauseEntry, ...] = (
    CauseEntry(
        id="learning-rate-too-high",
        title="learning rate, or initialization, too high for this width",
        modes=("F04", "F05", "F07", "F12", "F13", "F23", "F24", "F27"),
        prior=0.144,
        rules=(
            EvidenceRule(
                "stepped-up",
                e.stepped_up,
                -1.5,
                "one row took it to {f.stepped_up:.3g} x its level, and it climbed no further",
            ),
            EvidenceRule(
                "below-reference",
                e.sign("rate-below-reference"),
                -6.0,
                "its rate is lower than that of the run that it is judged by",
            ),
            EvidenceRule("clipped-hard", e.clipped_hard, 1.4, say.CLIPPED),
            EvidenceRule("recurs-sooner", e.recurs_sooner, 0.5, say.SOONER),
            EvidenceRule("other-data", e.failed_on_other_data, 0.6, say.OTHER_DATA),
            EvidenceRule("warm-up-end", e.near_warm_up_end, 0.6, say.NEAR),
            EvidenceRule(
                "gradual", e.gradual, 0.5, "the loss climbed over {f.rise_rows} rows, not in one"
            ),
            EvidenceRule("norm-led", e.norm_led, 0.5, say.LED),
            EvidenceRule(
                "inner-precursor",
                e.inner_precursor,
                0.7,
                "{f.precursor_names} spoke before the loss",
            ),
            EvidenceRule(
                "norm-before-scale",
                e.scale_fell_after_norm,
                0.6,
                "the grad norm had risen {f.gnorm_before_scale:.2g} x before the loss scale fell",
            ),
            EvidenceRule(
                "norm-with-scale",
                e.scale_fell_with_norm,
                0.8,
                "the grad norm rose {f.norm_with_scale:.3g} x while the loss scale fell",
            ),
            EvidenceRule("unrecovered", e.unrecovered, 0.4, "the loss did not come back"),
            EvidenceRule(
                "beyond-peak",
                e.sign("rate-beyond-peak", "rate-climb"),
                5.0,
                "the rate has climbed far beyond its earlier peak",
            ),
            EvidenceRule(
                "rough-start",
                e.sign("rough-start-warm"),
                3.5,
                "the loss climbed above where it began within the first rows",
            ),
            EvidenceRule(
                "broken-unseen",
                e.broken_unseen,
                3.0,
                "the loss was lost within the updates before the first row, from fresh weights",
            ),
            EvidenceRule(
                "worse-than-a-guess",
                e.sign("guessing-worse"),
                5.0,
                "the loss wanders above that of a guess: updates are too large to settle there",
            ),
            EvidenceRule(
                "rewritten",
                e.sign("rewritten"),
                4.0,
                "the first updates write the weights anew",
            ),
            EvidenceRule("sudden", e.sudden_nonfinite, -1.2, "nothing had stirred before"),
            # e^4 = 55: an experiment outweighs any single sign in the log.
            EvidenceRule("cut-held", e.cut_held_without_skip, 4.0, say.CUT_HELD),
            EvidenceRule("cuts-failed", e.cuts_failed, -2.0, say.CUTS_FAILED),
            EvidenceRule(
                "jump",
                e.jumped,
                -1.2,
                "it was sound until the learning rate in force rose {f.lr_jump:.3g} x",
            ),
            EvidenceRule("short", e.short_and_over, -0.8, say.SHORT),
            # The rate was the same there, and the run went well.
            EvidenceRule("skip-held", e.skip_held, -3.0, say.SKIP_HELD),
            EvidenceRule("probe-found", e.probe_found, -1.5, say.PROBE_FOUND),
            EvidenceRule("control-held", e.control_held_exactly, -2.0, say.CONTROL_HELD),
            _NOT_LOSS_BUT_GUESSES,
        ),
        look_alikes=("learning-rate-jump", "warm-up-end", "fp16-range", "bad-data-window"),
        test=(
            "replay from before the first sign at half the learning rate, beside a replay that only"
            " leaves the data out"
        ),
        remedies=(
            "roll-back",
            "lower-lr",
            "lower-clip",
            "init-std",
            "embedding-layernorm",
            "qk-norm",
            "adam-beta2",
        ),
    ),
    CauseEntry(
        id="learning-rate-jump",
        title="the learning rate in force was raised",
        modes=("F27", "F29"),
        prior=0.036,
        rules=(
            EvidenceRule("jump", e.jumped, 4.0, say.JUMPED),
            EvidenceRule(
                "at-resume", e.jumped_at_resume, 1.5, "it rose as the attempt resumed, and stayed"
            ),
            EvidenceRule(
                "logged", e.sign("lr-change"), 5.0, "the log shows the rate jump within a row"
            ),
            EvidenceRule("no-jump", e.no_jump, -4.0, "the learning rate in force did not jump"),
            EvidenceRule(
                "cut-held", lambda f: e.jumped(f) * e.cut_held_without_skip(f), 4.0, say.CUT_HELD
            ),
            EvidenceRule("cuts-failed", e.cuts_failed, -2.0, say.CUTS_FAILED),
            EvidenceRule("skip-held", e.skip_held, -3.0, say.SKIP_HELD),
            EvidenceRule("probe-found", e.probe_found, -1.5, say.PROBE_FOUND),
            EvidenceRule("control-held", e.control_held_exactly, -2.0, say.CONTROL_HELD),
            _NOT_LOSS,
        ),
        look_alikes=("learning-rate-too-high", "code-or-resume-change"),
        test="replay from before the jump at the learning rate that was in force there",
        remedies=("roll-back", "restore-lr", "lower-clip"),
    ),
    CauseEntry(
        id="bad-data-window",
        title="a window of bad data",
        modes=("F14", "F30"),
        prior=0.144,
        rules=(
            EvidenceRule(
                "abrupt",
                e.abrupt,
                0.9,
                "half of the rise of {f.height:.3g} came in its first row",
            ),
            EvidenceRule(
                "norm-with-loss", e.norm_with_loss, 0.4, "grad norm and loss stood out together"
            ),
            EvidenceRule("short", e.short_and_over, 0.4, say.SHORT),
            EvidenceRule("flat-top", e.flat_top, 2.2, say.FLAT_TOP),
            EvidenceRule(
                "outlier",
                lambda f: e.of_kind("batch-outlier")(f) * (1.0 - e.stays(f)),
                0.8,
                "a single batch stood out of its neighbors",
            ),
            EvidenceRule(
                "stays",
                e.stays,
                -2.0,
                "the loss has stayed up for {f.lasting_rows} rows, and a window of data ends",
            ),
            EvidenceRule(
                "batch-odd",
                lambda f: e.yes(f.batch_odd != ""),
                1.5,
                "the batches were unlike the others before their step: {f.batch_odd}",
            ),
            EvidenceRule(
                "same-data",
                e.failed_on_same_data,
                0.6,
                "attempt {f.recurrence.previous.attempt} failed at the same place on the same data",
            ),
            EvidenceRule(
                "own-data",
                lambda f: e.yes(f.training == "agent"),
                -3.0,
                "an agent makes its data itself",
            ),
            EvidenceRule("batch-nonfinite", e.batch_nonfinite, 7.0, say.BATCH_NONFINITE),
            EvidenceRule("batch-scale", e.sign("batch-scale"), 6.0, say.BATCH_SCALE),
            EvidenceRule("probe-found", e.probe_found, 4.0, say.PROBE_FOUND),
            EvidenceRule("skip-held", e.skip_held, 4.0, say.SKIP_HELD),
            EvidenceRule("probe-clean", e.probe_clean, -3.0, say.PROBE_CLEAN),
            EvidenceRule("skip-failed", e.skip_failed, -3.0, say.SKIP_FAILED),
            EvidenceRule("other-data", e.failed_on_other_data, -1.2, say.OTHER_DATA),
            EvidenceRule("norm-led", e.norm_led, -0.7, say.LED),
            EvidenceRule("jump", e.jumped, -1.0, say.JUMPED),
            EvidenceRule(
                "non-finite",
                lambda f: e.sudden_nonfinite(f) * (1 - e.batch_nonfinite(f)),
                -0.7,
                "odd data lifts a loss; it seldom makes it NaN by itself",
            ),
            EvidenceRule(
                "clipped-hard", e.clipped_hard, -0.2, "it was in trouble before: " + say.CLIPPED
            ),
            EvidenceRule("control-held", e.control_held_exactly, -2.0, say.CONTROL_HELD),
            _NOT_LOSS,
        ),
        look_alikes=("benign-noise", "learning-rate-too-high", "hardware-fault"),
        test=(
            "compute the loss of the batches around the onset under a state from before the first"
            " sign, forward only"
        ),
        remedies=("roll-back", "skip-data", "skip-update"),
    ),
    CauseEntry(
        id="fp16-range",
        title="fp16 range: overflow or underflow",
        modes=("F06", "F31"),
        prior=0.081,
        rules=(
            EvidenceRule(
                "scale-fell-alone",
                e.scale_fell_alone,
                2.4,
                "the loss scale fell by {f.scale_halvings:.0f} halvings while the grad norm stayed"
                " flat ({f.norm_with_scale:.2g} x)",
            ),
            EvidenceRule(
                "norm-with-scale",
                e.scale_fell_with_norm,
                -1.3,
                "the grad norm rose {f.norm_with_scale:.3g} x while the loss scale fell",
            ),
            EvidenceRule("collapse", e.of_kind("scale-collapse"), 1.2, "the loss scale collapsed"),
            EvidenceRule(
                "overflow-first",
                lambda f: e.yes(f.has_loss_scale and f.nonfinite_first == "grads"),
                1.0,
                "gradients overflowed while the loss was finite",
            ),
            EvidenceRule(
                "fp16-run",
                # The prior is over runs of all formats; in fp16 this cause is likelier.
                lambda f: e.yes(f.has_loss_scale),
                1.0,
                "the run is fp16, and this log does not separate its range from its dynamics",
            ),
            EvidenceRule(
                "no-scale",
                lambda f: e.yes(not f.has_loss_scale),
                -2.5,
                "no loss scale is logged, so the run is probably not fp16",
            ),
            EvidenceRule(
                "scale-still", e.scale_still, -0.3, "the loss scale did not fall before the onset"
            ),
            EvidenceRule(
                "norm-before-scale",
                e.scale_fell_after_norm,
                -1.3,
                "the grad norm had risen {f.gnorm_before_scale:.2g} x before the loss scale fell",
            ),
            EvidenceRule("cut-held", e.cut_held_without_skip, -1.5, say.CUT_HELD),
            EvidenceRule("skip-held", e.skip_held, -2.0, say.SKIP_HELD),
            EvidenceRule("probe-found", e.probe_found, -1.5, say.PROBE_FOUND),
            EvidenceRule("fp32-held", e.fp32_held, 4.5, say.FP32_HELD),
            EvidenceRule("fp32-failed", e.fp32_failed, -4.0, say.FP32_FAILED),
            EvidenceRule("control-held", e.control_held_exactly, -2.0, say.CONTROL_HELD),
            _NOT_LOSS,
        ),
        look_alikes=("learning-rate-too-high", "hardware-fault"),
        test=(
            "200 steps in fp32 or bf16 from before the first sign: if they fail too, it is not fp16"
        ),
        remedies=("roll-back", "bf16", "loss-scaler-reset", "stable-attention-scaling", "lower-lr"),
    ),
    CauseEntry(
        id="warm-up-end",
        title="the end of the learning-rate warm-up",
        modes=("F04", "F10"),
        prior=0.045,
        rules=(
            EvidenceRule("near", e.near_warm_up_end, 1.8, say.NEAR),
            EvidenceRule(
                "moments", e.moment_precursor, 0.8, "Adam's second moment rose before the loss"
            ),
            EvidenceRule(
                "peak",
                lambda f: e.near_warm_up_end(f) * e.yes((f.lr_peak_share or 0) > 0.9),
                0.3,
                "the learning rate was at {f.lr_peak_share:.0%} of its peak",
            ),
            EvidenceRule("away", e.away_from_warm_up_end, -3.0, say.NEAR),
            EvidenceRule(
                "unknown-end",
                lambda f: e.yes(f.warm_up_ratio is None),
                -1.0,
                "the log does not show where the warm-up ended",
            ),
            EvidenceRule("jump", e.jumped, -1.5, say.JUMPED),
            EvidenceRule("skip-held", e.skip_held, -3.0, say.SKIP_HELD),
            EvidenceRule(
                "cut-held",
                lambda f: e.near_warm_up_end(f) * e.cut_held_without_skip(f),
                3.0,
                say.CUT_HELD,
            ),
            EvidenceRule("cuts-failed", e.cuts_failed, -1.5, say.CUTS_FAILED),
            EvidenceRule("short", e.short_and_over, -0.4, say.SHORT),
            EvidenceRule("control-held", e.control_held_exactly, -2.0, say.CONTROL_HELD),
            _NOT_LOSS,
        ),
        look_alikes=("learning-rate-too-high",),
        test=(
            "log the largest element of Adam's second moment: it peaks with the learning rate if"
            " the warm-up is to blame"
        ),
        remedies=("roll-back", "lower-lr", "longer-warm-up", "adam-beta2"),
    ),
    CauseEntry(
        id="poisoned-optimizer-state",
        title="optimizer moments poisoned by an earlier event",
        modes=("F10", "F11"),
        prior=0.045,
        rules=(
            EvidenceRule(
                "after-another",
                lambda f: e.yes(f.same_attempt_rows is not None and f.same_attempt_rows <= 200),
                1.3,
                "an earlier incident of this attempt ended {f.same_attempt_rows} rows before",
            ),
            EvidenceRule(
                "moments", e.moment_precursor, 1.2, "Adam's second moment stood out before the loss"
            ),
            EvidenceRule(
                "lost",
                lambda f: e.yes(f.moments_left is not None),
                6.0,
                "Adam's second moments had shrunk to {f.moments_left:.2g} of the least that"
                " updates alone can leave: they were lost or loaded otherwise",
            ),
            EvidenceRule(
                "small-norm",
                lambda f: e.yes("update_norm" in f.precursors and (f.clip_ratio or 9) < 1),
                0.9,
                "the update norm rose while the grad norm stayed below the clip",
            ),
            EvidenceRule(
                "same-place",
                lambda f: e.yes(f.recurrence is not None and (f.resume_rows or 99) <= 20),
                0.7,
                "the trouble came back {f.resume_rows} rows after the restart",
            ),
            EvidenceRule("skip-held", e.skip_held, -2.5, say.SKIP_HELD),
            EvidenceRule("cut-held", e.cut_held_without_skip, -1.0, say.CUT_HELD),
            EvidenceRule("probe-found", e.probe_found, -1.0, say.PROBE_FOUND),
            EvidenceRule("older-held", e.older_state_held, 2.0, say.OLDER_HELD),
            EvidenceRule("older-failed", e.older_state_failed, -2.5, say.OLDER_FAILED),
            _NOT_LOSS,
        ),
        look_alikes=("learning-rate-too-high", "bad-data-window"),
        test=(
            "replay from a checkpoint before the first event of the series; if that goes well, the"
            " state was to blame"
        ),
        remedies=("roll-back-further", "optimizer-reset", "adam-beta2", "adam-eps"),
    ),
    CauseEntry(
        id="hardware-fault",
        title="a hardware fault (silent corruption, or a node in trouble)",
        modes=("F18", "F19", "F22", "F34"),
        prior=0.045,
        rules=(
            EvidenceRule(
                "sudden",
                e.sudden_on_one_rank,
                2.4,
                "{f.nonfinite_first} not finite although the row before was as usual, and the log"
                " names {f.rank_apart}",
            ),
            EvidenceRule(
                "rank-apart",
                e.sign("rank-apart"),
                3.0,
                "one rank leaves the others, so what differs is on its side",
            ),
            # NaN of one process, or of all, is as well one of the data or of the code.
            EvidenceRule(
                "no-rank",
                lambda f: e.yes(f.nonfinite_first != "" and f.rank_apart == ""),
                -2.0,
                "no rank or host is known to differ from the others",
            ),
            # A script that changed something once does not repeat it either: that the same steps
            # go well says hardware only where a rank or host differs from the others.
            EvidenceRule("control-held-apart", e.control_held_apart, 6.0, say.CONTROL_HELD),
            EvidenceRule(
                "slow", e.of_kind("slowdown", "stall", "hang"), 1.5, "steps became slow or stopped"
            ),
            EvidenceRule(
                "many-ranks",
                e.slow_of_many,
                0.7,
                "of {f.num_ranks} processes the slowest sets the pace",
            ),
            EvidenceRule("control-failed", e.control_failed, -4.0, say.CONTROL_FAILED),
            EvidenceRule(
                "recurs",
                lambda f: e.yes(f.recurrence is not None),
                -1.0,
                "attempt {f.recurrence.previous.attempt} failed in the same way",
            ),
            EvidenceRule("probe-found", e.probe_found, -2.0, say.PROBE_FOUND),
            EvidenceRule("skip-held", e.skip_held, -1.5, say.SKIP_HELD),
            EvidenceRule("cut-held", e.cut_held_without_skip, -1.5, say.CUT_HELD),
        ),
        look_alikes=("bad-data-window", "fp16-range"),
        test=(
            "replay the same micro-batch on another node: what is computed differently there is"
            " hardware"
        ),
        remedies=("roll-back", "exclude-node"),
    ),
    CauseEntry(
        id="code-or-resume-change",
        title="a change of code, settings or state at a restart",
        modes=("F17", "F21", "F22", "F29", "F33", "F35"),
        prior=0.054,
        rules=(
            EvidenceRule(
                "just-resumed",
                e.just_resumed,
                1.8,
                "the onset lies {f.resume_rows} rows after a restart",
            ),
            EvidenceRule(
                "resume-jump",
                e.of_kind("resume-jump"),
                2.0,
                "the curve did not continue where it had been left",
            ),
            EvidenceRule(
                "settings",
                lambda f: e.yes(bool(f.settings_changed) and not e.long_after_resume(f)),
                0.7,
                "changed with the restart: {f.changed_names}",
            ),
            EvidenceRule(
                "began-anew",
                lambda f: e.yes(f.began_anew),
                8.0,
                "the loss is back at that of the first rows and comes down as it did there: the"
                " weights are those of an untrained model, no checkpoint was loaded",
            ),
            EvidenceRule("repeated", e.of_kind("repeated-data"), 1.5, "data was fed twice"),
            EvidenceRule("no-restart", e.long_after_resume, -2.5, "no restart lies near the onset"),
            EvidenceRule(
                "jump-later",
                e.jumped_after_resume,
                -4.0,
                "it was sound after the restart until " + say.JUMPED,
            ),
            EvidenceRule("skip-held", e.skip_held, -2.0, say.SKIP_HELD),
            EvidenceRule("probe-found", e.probe_found, -1.0, say.PROBE_FOUND),
        ),
        look_alikes=("learning-rate-jump", "bad-data-window"),
        test=(
            "compare settings, versions and the first loss in force after the load with those at"
            " the save; replay ten steps across the restart"
        ),
        remedies=("roll-back", "restore-settings"),
    ),
    CauseEntry(
        id="benign-noise",
        title="a benign spike that heals by itself",
        modes=("F01", "F02", "F26"),
        prior=0.108,
        rules=(
            EvidenceRule("pace", e.pace_alone, -8.0, "the clock spoke, not the loss"),
            EvidenceRule("short", e.short_and_over, 2.0, say.SHORT),
            EvidenceRule("flat-top", e.flat_top, -1.5, say.FLAT_TOP),
            EvidenceRule(
                "minor", lambda f: e.yes(f.severity == "info"), 1.0, "it is small for this run"
            ),
            EvidenceRule(
                "grokking", e.of_kind("grokking"), 2.0, "train and validation loss fell together"
            ),
            EvidenceRule("unrecovered", e.unrecovered, -4.0, "the loss did not come back"),
            EvidenceRule("non-finite", e.of_kind("non-finite"), -2.0, "noise is never NaN or Inf"),
            EvidenceRule(
                "recurs",
                lambda f: e.yes(f.recurrence is not None),
                -1.5,
                "attempt {f.recurrence.previous.attempt} failed too",
            ),
            EvidenceRule(
                "pre-drift",
                lambda f: e.yes(len(f.precursors) >= 2),
                -0.5,
                "several signals had drifted before",
            ),
            EvidenceRule("jump", e.jumped, -1.0, say.JUMPED),
            EvidenceRule(
                "lasts",
                lambda f: e.yes(f.num_rows is None and not f.kinds & e.MALIGNANT),
                -0.7,
                "it lasts to the end of the log",
            ),
            EvidenceRule("control-failed", e.control_failed, -1.5, say.CONTROL_FAILED),
            EvidenceRule("probe-found", e.probe_found, -1.5, say.PROBE_FOUND),
        ),
        look_alikes=("bad-data-window",),
        test="go on for 50 steps and see whether the loss comes back to its trend",
        remedies=("patience",),
    ),
    *OUTSIDE,
    *PLAIN,
    *NONFINITE,
    *DOMAIN_CAUSES,
    *EVERYDAY,
    CauseEntry(
        id=UNKNOWN,
        title="unknown",
        modes=(),
        prior=0.192,
        rules=(),
        look_alikes=(),
        test=(
            "replay the steps from before the first sign, unchanged; then without the data; then at"
            " half the learning rate"
        ),
        remedies=("patience", "roll-back"),
    ),
)

_WHOLE = sum(c.prior for c in _ENTRIES)
CAUSES: tuple[CauseEntry, ...] = tuple(replace(c, prior=c.prior / _WHOLE) for c in _ENTRIES)
"""All of them, with priors that add up to 1."""

CAUSE_BY_ID: Mapping[str, CauseEntry] = {c.id: c for c in CAUSES}
