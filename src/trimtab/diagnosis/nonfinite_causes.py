"""Causes of a non-finite loss without any dynamics: the batch, the formula, a passing fault.

A log alone seldom separates them from each other; it does separate them from a rate that is too
high, which stirs the norms first, and from hardware, which has to differ from rank to rank.
"""

from trimtab.diagnosis import evidence as e
from trimtab.diagnosis import sentences as say
from trimtab.diagnosis.cause_entry import CauseEntry
from trimtab.diagnosis.evidence import EvidenceRule, only_for
from trimtab.diagnosis.features import Features

__all__ = ["NONFINITE"]

_ALONE = EvidenceRule(
    "alone",
    e.nonfinite_alone,
    3.0,
    "not finite in single rows ({f.nonfinite_rows} in all), with finite ones at the old level right"
    " after each: single batches, not the weights",
)
_HIDDEN = (
    "the loss is printed as 0 while the grad norm is not finite: the Trainer of transformers prints"
    " NaN so (logging_nan_inf_filter)"
)
_TERMS = (
    "the terms of the loss in that row are finite: their sum, or a term that is not logged, is not"
)
_SUDDEN = "{f.nonfinite_first} not finite although the row before was as usual"
_LOSS_FIRST = "the loss itself was not finite, and nothing that is logged before it"
_SUDDEN_WEIGHT = 1.6
"""Nats. A rate that is too high and weights that overflow stir the norms first; a batch or a
formula does not. Chosen on generator seeds 0-2, checked on stated causes."""


def _held_out_alone(f: Features) -> float:
    """Validation turned non-finite, and neither the training loss nor a norm did."""
    return e.yes(bool(_OF_VALIDATION(f)) and not _OF_TRAINING(f))


def _stood(f: Features) -> bool | None:
    """Whether all went well while the weights stood still; None: that was not tried."""
    asked = f.tried("no-update")
    return None if asked is None else asked.held


_OF_VALIDATION = e.sign("lost-validation", "evaluation-never-finite", "validation-never-finite")
_OF_TRAINING = e.sign("non-finite")

NONFINITE: tuple[CauseEntry, ...] = (
    CauseEntry(
        id="masked-batch",
        title="a batch in which no label counts: the mean of its loss is 0 / 0",
        modes=("F14", "F19"),
        prior=0.02,
        rules=(
            _ALONE,
            EvidenceRule("sudden", e.sudden_nonfinite, _SUDDEN_WEIGHT, _SUDDEN),
            EvidenceRule("loss-first", e.loss_nonfinite_first, 0.8, _LOSS_FIRST),
            EvidenceRule("hidden", e.hidden_nan, 0.6, _HIDDEN),
            # As much as `never-finite` has for the same rows: a format breaks gradients, too.
            EvidenceRule(
                "from-start",
                e.unlabeled_from_start,
                10.0,
                "no loss was ever finite while no gradient broke, as where each label is masked"
                " (-100) or none is left after truncation",
            ),
            EvidenceRule("batch-nonfinite", e.batch_nonfinite, -4.0, say.BATCH_NONFINITE),
            EvidenceRule(
                "no-labels",
                lambda f: e.yes(f.has_integers is False),
                -4.0,
                "the batches hold no whole numbers, so no labels that could be masked",
            ),
            EvidenceRule("inf", e.inf_first, -3.0, "the first was Inf, and 0 / 0 is NaN"),
            EvidenceRule("terms", lambda f: e.yes(f.terms_finite), -3.0, _TERMS),
            EvidenceRule(
                "grads-first",
                lambda f: e.yes(f.nonfinite_first == "grads"),
                -1.5,
                "the loss was still finite when the gradients were not",
            ),
            EvidenceRule("probe-found", e.probe_found, 1.5, say.PROBE_FOUND),
            EvidenceRule("skip-held", e.skip_held, 2.5, say.SKIP_HELD),
            EvidenceRule("skip-failed", e.skip_failed, -2.0, say.SKIP_FAILED),
            EvidenceRule("control-held", e.control_held_exactly, -2.0, say.CONTROL_HELD),
            only_for("non-finite"),
        ),
        look_alikes=("undefined-loss", "bad-data-window"),
        test="count the labels that are not masked in each batch around the onset: 0 is the fault",
        remedies=("guard-the-loss", "skip-update", "roll-back"),
    ),
    CauseEntry(
        id="undefined-loss",
        title="the loss is not defined there: a log of 0, a division by 0, or a bug in it",
        modes=("F19", "F31"),
        prior=0.02,
        rules=(
            EvidenceRule(
                "inf",
                e.inf_first,
                3.0,
                "the first loss that was not finite was Inf: -log 0 or x / 0",
            ),
            EvidenceRule("sudden", e.sudden_nonfinite, _SUDDEN_WEIGHT, _SUDDEN),
            EvidenceRule("loss-first", e.loss_nonfinite_first, 0.8, _LOSS_FIRST),
            EvidenceRule("hidden", e.hidden_nan, 1.0, _HIDDEN),
            EvidenceRule("terms", lambda f: e.yes(f.terms_finite), 2.5, _TERMS),
            EvidenceRule(
                "grads-first",
                lambda f: e.yes(f.nonfinite_first == "grads" and not f.has_loss_scale),
                1.0,
                "the loss was finite and its gradients were not: the derivative of a root, a log or"
                " a norm at 0",
            ),
            EvidenceRule("batch-nonfinite", e.batch_nonfinite, -4.0, say.BATCH_NONFINITE),
            EvidenceRule("control-failed", e.control_failed, 1.0, say.CONTROL_FAILED),
            EvidenceRule("fp32-failed", e.fp32_failed, 0.5, say.FP32_FAILED),
            EvidenceRule("control-held", e.control_held_exactly, -2.0, say.CONTROL_HELD),
            only_for("non-finite"),
        ),
        look_alikes=("masked-batch", "fp16-range"),
        test="evaluate the terms of the loss of that batch one by one in fp32, and backward",
        remedies=("guard-the-loss", "roll-back"),
    ),
    CauseEntry(
        id="undefined-held-out",
        title=(
            "the loss of validation is not defined there while training goes on: a batch without"
            " labels, a label beyond the classes, or the number format of evaluation"
        ),
        modes=("F19", "F31"),
        prior=0.02,
        rules=(
            EvidenceRule(
                "held-out-alone",
                _held_out_alone,
                5.0,
                "what is held out is not finite; the training loss is, and went on",
            ),
            EvidenceRule(
                "training-too",
                lambda f: e.yes(not _held_out_alone(f)),
                -6.0,
                "no validation alone turned non-finite",
            ),
            only_for("non-finite"),
        ),
        look_alikes=("undefined-loss", "masked-batch"),
        go_back="never",
        test=(
            "evaluate the held-out batches one by one in fp32 and name those whose loss is not"
            " finite; look at their labels, lengths and masks"
        ),
        remedies=("guard-the-loss",),
    ),
    CauseEntry(
        id="happened-once",
        title=(
            "unknown: something that happened once outside of data, state and settings (the"
            " script's own change, or the machine)"
        ),
        modes=("F18",),
        prior=0.045,
        rules=(
            EvidenceRule("control-held", e.control_held_exactly, 3.0, say.CONTROL_HELD),
            EvidenceRule("control-failed", e.control_failed, -6.0, say.CONTROL_FAILED),
            EvidenceRule("no-replay", e.no_control, -8.0, "nothing was replayed"),
            EvidenceRule(
                "apart",
                lambda f: e.yes(f.rank_apart != ""),
                -2.0,
                "the log names {f.rank_apart}, which differs from the others",
            ),
        ),
        look_alikes=("hardware-fault", "not-reproducible"),
        test=(
            "look for what the script changes by its own count of steps (batches, rates, weights);"
            " then replay the same micro-batch on another node: only what is computed differently"
            " there is hardware"
        ),
        remedies=("roll-back", "patience"),
    ),
    CauseEntry(
        id="own-doing",
        title="the loop itself sets weights, targets or labels anew at that step",
        modes=("F18",),
        prior=0.03,
        rules=(
            EvidenceRule(
                "leaps-alike",
                lambda f: e.yes(_stood(f) is False),
                7.0,
                "the loss leaps there as well while the weights stand still, and stays",
            ),
            EvidenceRule(
                "by-updates",
                lambda f: e.yes(_stood(f) is True),
                -6.0,
                "while the weights stand still the loss does not leap: updates make it",
            ),
            EvidenceRule(
                "not-asked",
                lambda f: e.yes(_stood(f) is None and not e.stepped_up(f)),
                -8.0,
                "nothing was replayed with weights that stand still",
            ),
            EvidenceRule(
                "stepped-up",
                e.stepped_up,
                4.0,
                "one row took the loss to {f.stepped_up:.3g} x its level, nothing spoke before, and"
                " it went on from there: other labels are asked for, or the loss is another",
            ),
        ),
        look_alikes=("happened-once", "code-or-resume-change"),
        go_back="never",
        test=(
            "look for what the script does by its own count of steps: pruning, weights set anew, a"
            " target network, labels, the terms of the loss"
        ),
        remedies=("announce-it",),
    ),
    CauseEntry(
        id="not-reproducible",
        title="it did not come back: sums in another order, or a passing fault",
        modes=("F18",),
        prior=0.03,
        rules=(
            EvidenceRule("control-held", e.control_held, 4.5, say.CONTROL_HELD),
            EvidenceRule(
                "exact",
                e.exact_machine,
                -4.0,
                "replays of calm steps agree bit for bit, or far better than this, so it is not"
                " the order of sums",
            ),
            EvidenceRule("control-failed", e.control_failed, -6.0, say.CONTROL_FAILED),
            EvidenceRule("no-replay", e.no_control, -8.0, "nothing was replayed"),
        ),
        look_alikes=("hardware-fault", "benign-noise"),
        test=(
            "replay the same steps three times on this node and once on another: what fails here"
            " alone is the node, what fails now and then everywhere is the order of sums"
        ),
        remedies=("roll-back", "patience"),
    ),
)
