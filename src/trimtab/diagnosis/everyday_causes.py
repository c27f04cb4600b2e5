"""Causes of everyday trouble: settings, validation, data fed too often, a start that fails.

Most have one plain sign, a detector that speaks of nothing else; without it they are practically
excluded, and with it they stand above causes that a spike could have.
"""

from collections.abc import Callable

from trimtab.diagnosis import evidence as e
from trimtab.diagnosis import sentences as say
from trimtab.diagnosis.cause_entry import CauseEntry
from trimtab.diagnosis.evidence import EvidenceRule
from trimtab.diagnosis.features import CHANGED_SIGNS, Features

__all__ = ["EVERYDAY"]

# As in `plain_causes`: rare, so that other incidents lose nothing, and lifted by its sign alone.
_RARE = 0.002
_SURE = 11.0
_ABSENT = -8.0


def _plain(*detectors: str, says: str) -> tuple[EvidenceRule, ...]:
    """Return the two rules of a cause with one plain sign."""
    return (
        EvidenceRule("sign", e.sign(*detectors), _SURE, says),
        EvidenceRule("no-sign", e.no_sign(*detectors), _ABSENT, "nothing in the log shows it"),
    )


def _unless_turned(strength: Callable[[Features], float]) -> Callable[[Features], float]:
    """Return a strength that is silent where validation turned at once."""
    return lambda f: strength(f) * (1 - e.turned_at_once(f))


_AT_ONCE = (
    "validation came to {f.turn:.3g} x its lowest by the next evaluation and stays: nobody overfits"
    " between two"
)


def _score_lost(f: Features) -> float:
    """Return 1 where a held-out score was lost and nothing else went wrong with it."""
    return e.yes("score-lost" in f.signs and f.kinds <= {"signal-abnormal"})


def _moved_at_once(f: Features) -> float:
    """Return 1 where a signal beside the loss moved in one row for good, and the loss did not."""
    alone = f.kinds <= {"grad-drift", "signal-abnormal", "policy-collapse", "shift"}
    return e.yes("lasting" in f.signs and alone and f.severity != "critical")


def _more_broke(f: Features) -> float:
    """Return 1 where what training itself computes is not finite, or a held-out score is lost."""
    return e.yes(bool(f.nonfinite_first) or "score-lost" in f.signs or "error-lost" in f.signs)


def _never(_: Features) -> float:
    return 0.0


def _turned(f: Features) -> float:
    """Return 1 where nothing but validation is logged, and it climbs row by row to the end."""
    climbs = f.held_out and bool(e.gradual(f)) and f.lasting_rows is not None
    return e.yes(climbs and not f.nonfinite_first)


def _with_score(
    *detectors: str, says: str, other: Callable[[Features], float] = _never
) -> tuple[EvidenceRule, ...]:
    """Return the rules of a cause of which a lost score is a sign, too; `other`: one more sign."""
    plain = e.no_sign(*detectors)
    return (
        EvidenceRule("sign", e.sign(*detectors), _SURE, says),
        EvidenceRule("score", _score_lost, _SURE, "{f.sign_texts}"),
        EvidenceRule(
            "no-sign",
            lambda f: plain(f) * (1 - _score_lost(f)) * (1 - other(f)),
            _ABSENT,
            "nothing in the log shows it",
        ),
    )


_ZERO = "the loss jumped to exactly 0 and stays there"
# Less than other plain signs: two causes and a line of code that logs nothing share it.
_ZERO_RULES = (
    EvidenceRule("sign", e.sign("zero-loss"), 7.0, _ZERO),
    EvidenceRule("no-sign", e.no_sign("zero-loss"), _ABSENT, "nothing in the log shows it"),
)

_STANDS = ("held-out-still", "held-out-worst")

EVERYDAY: tuple[CauseEntry, ...] = (
    CauseEntry(
        id="overfitting",
        title="overfitting: the training set is learned beyond what it says of other data",
        modes=("F16", "F28"),
        prior=_RARE,
        rules=(
            *_with_score(
                "overfitting",
                "overfitting-few-rows",
                "score-sinks",
                says="validation has turned and gets worse while the training loss falls",
                other=_turned,
            ),
            EvidenceRule(
                "turned",
                _turned,
                7.5,
                "validation climbs over {f.rise_rows} rows, not in one, and no train loss is"
                " logged beside it",
            ),
            EvidenceRule(
                "never", e.sign("never-validates"), -9.0, "validation was never below a guess"
            ),
            EvidenceRule("turned-at-once", e.turned_at_once, -5.0, _AT_ONCE),
        ),
        look_alikes=("memorised-data", "repeated-data"),
        test=(
            "evaluate the checkpoint of the lowest validation and the last one on a held-out set"
            " that was never looked at"
        ),
        remedies=("keep-best", "regularize"),
        go_back="never",
    ),
    CauseEntry(
        id="evaluation-differs",
        title="the evaluation differs from training: mode, normalization, labels, or what it reads",
        modes=("F28", "F36"),
        prior=_RARE,
        rules=(
            *_with_score(
                "evaluation-jump",
                "never-validates",
                says="validation leaves the training loss as no learning does: "
                "at once or from the start",
                other=e.sign("evaluation-never-finite", "held-out-drop", *_STANDS),
            ),
            EvidenceRule(
                "turned-at-once",
                lambda f: e.yes(f.turn_of_both),
                -5.0,
                "the training loss left its course at the same place",
            ),
            EvidenceRule(
                "held-out-drop",
                e.sign("held-out-drop"),
                _SURE,
                "validation fell far below the training loss at once: its data came into training,"
                " or the evaluation is of another set or another loss",
            ),
            EvidenceRule(
                "stands",
                e.sign(*_STANDS),
                _SURE,
                "the training loss moves and what is evaluated does not: a copy of the weights that"
                " is not brought up to date, or labels of another kind",
            ),
            EvidenceRule(
                "never-finite",
                e.sign("evaluation-never-finite"),
                _SURE,
                "the training loss is a number, and no evaluation has ever given one",
            ),
        ),
        look_alikes=("overfitting", "code-or-resume-change"),
        test=(
            "run the evaluation on a part of the training set: its loss should be that of training;"
            " if not, compare the mode, the normalization and the labels of the two"
        ),
        remedies=("restore-settings", "patience"),
        go_back="never",
    ),
    CauseEntry(
        id="memorised-data",
        title="the training data is learned by heart: too many passes over too little data",
        modes=("F15", "F16", "F28"),
        prior=_RARE,
        rules=(
            EvidenceRule(
                "sign",
                e.sign("by-heart", "memorised"),
                _SURE,
                "the training loss is far below what unseen data of the kind costs",
            ),
            # Steps say nothing of how low the loss is.
            EvidenceRule(
                "stairs",
                e.sign("staircase"),
                _SURE,
                "the loss steps down at each new pass over the data, and stays there",
            ),
            EvidenceRule(
                "no-sign",
                e.no_sign("by-heart", "memorised", "staircase"),
                _ABSENT,
                "nothing in the log shows it",
            ),
            EvidenceRule("turned-at-once", e.turned_at_once, -5.0, _AT_ONCE),
        ),
        look_alikes=("overfitting", "leaked-targets", "repeated-data"),
        test="count the passes over each sample, and compare the loss on samples never trained on",
        remedies=("fewer-passes", "roll-back", "weight-decay"),
        go_back="never",
    ),
    CauseEntry(
        id="leaked-targets",
        title="not what was to be learned: targets in the input, or a changed loss",
        modes=("F16", "F28"),
        prior=_RARE,
        rules=(
            EvidenceRule(
                "sign",
                e.sign("too-low", "drop", "held-out-solved"),
                _SURE,
                "the loss came down within few rows, or to nothing, and the log shows no cut of the rate",
            ),
            EvidenceRule("turned-at-once", e.turned_at_once, _SURE, _AT_ONCE),
            EvidenceRule(
                "no-sign",
                _unless_turned(e.no_sign("too-low", "drop", "held-out-solved")),
                _ABSENT,
                "nothing in the log shows it",
            ),
            EvidenceRule(
                "repeats", e.of_kind("repeated-data"), -3.0, "losses show data that was fed twice"
            ),
            EvidenceRule(
                "other-kind",
                _unless_turned(e.other_kind("too-good")),
                -9.0,
                "the loss did not come down for long",
            ),
            EvidenceRule(
                "by-heart",
                _unless_turned(e.of_kind("memorised")),
                -9.0,
                "the training data is learned by heart",
            ),
            EvidenceRule("non-finite", e.of_kind("non-finite"), -9.0, "it is NaN, not low"),
        ),
        look_alikes=("repeated-data", "memorised-data", "code-or-resume-change"),
        test="decode a batch from after the fall and compare its targets with its inputs",
        remedies=("roll-back", "restore-settings"),
    ),
    CauseEntry(
        id="setting-changed",
        title="a setting of the run was changed, and nobody announced it",
        modes=("F27", "F29"),
        prior=_RARE,
        rules=(
            EvidenceRule(
                "sign", e.sign(*CHANGED_SIGNS), _SURE, "the log shows it: {f.changed_setting}"
            ),
            # What was put back and held needs no other sign.
            EvidenceRule(
                "no-sign",
                lambda f: (
                    e.no_sign(*CHANGED_SIGNS)(f)
                    * (1 - e.put_back_held(f))
                    * (1 - _moved_at_once(f))
                ),
                _ABSENT,
                "nothing in the log shows it",
            ),
            EvidenceRule(
                "moved-at-once",
                lambda f: e.no_sign(*CHANGED_SIGNS)(f) * _moved_at_once(f),
                8.0,
                "from one row to the next and for good, beside a calm loss: learning does no such"
                " thing, a batch, a clip, a way of adding up, other data or another weight does",
            ),
            EvidenceRule(
                "put-back-alone",
                lambda f: e.no_sign(*CHANGED_SIGNS)(f) * e.put_back_held(f),
                6.0,
                "no other change was needed",
            ),
            EvidenceRule("put-back-held", e.put_back_held, 4.0, say.PUT_BACK_HELD),
            EvidenceRule("put-back-failed", e.put_back_failed, -4.0, say.PUT_BACK_FAILED),
            EvidenceRule("batch-scale", e.sign("batch-scale"), -9.0, say.BATCH_SCALE),
        ),
        look_alikes=("code-or-resume-change", "learning-rate-jump"),
        test="compare the settings of the launch, and of a resume, with those of the run before",
        remedies=("restore-settings", "roll-back"),
    ),
    CauseEntry(
        id="ends-again",
        title="something outside the loss ends the run soon after each start",
        modes=("F29",),
        prior=_RARE,
        rules=_plain(
            "restart-loop",
            says="it goes on from one checkpoint again and again, and comes no farther",
        ),
        look_alikes=("code-or-resume-change",),
        test="read the last lines that each start wrote, its exit status, and the scheduler's record",
        remedies=("read-its-end",),
        go_back="never",
    ),
    CauseEntry(
        id="differs-from-reference",
        title="a logged setting that differs from that of the reference run",
        modes=("F27", "F29"),
        prior=_RARE,
        rules=(
            # Likely, not sure: the data may differ as well, and says nothing.
            EvidenceRule("sign", e.sign("reference-setting"), 6.0, "{f.reference_setting}"),
            EvidenceRule(
                "no-sign", e.no_sign("reference-setting"), _ABSENT, "nothing in the log shows it"
            ),
        ),
        look_alikes=("code-or-resume-change", "bad-data-window"),
        test="run some hundred steps with that one setting as the reference has it",
        remedies=("as-reference",),
        go_back="never",
    ),
    CauseEntry(
        id="loss-rescaled",
        title="the loss is on another scale: summed in place of averaged, or times a factor",
        modes=("F27", "F29"),
        prior=_RARE,
        rules=(
            EvidenceRule(
                "sign",
                e.sign("loss-rescaled"),
                _SURE,
                "loss and gradient norm grew by the same factor in one row, and stay so",
            ),
            EvidenceRule(
                "held-out-goes-on",
                lambda f: e.yes(f.held_out_goes_on and "loss-rescaled" not in f.signs),
                _SURE,
                "one row took the training loss to {f.stepped_up:.3g} x its level, for good, and"
                " validation is as good as before: the weights are",
            ),
            EvidenceRule(
                "no-sign",
                lambda f: e.no_sign("loss-rescaled")(f) * e.yes(not f.held_out_goes_on),
                _ABSENT,
                "nothing in the log shows it",
            ),
        ),
        look_alikes=("setting-changed", "code-or-resume-change"),
        test="compare the reduction of the loss, and what it is divided by, with those of before",
        remedies=("restore-settings",),
        go_back="never",
    ),
    CauseEntry(
        id="data-order",
        title="the order of the data: sorted, not shuffled, or one bad stretch in each pass",
        modes=("F14", "F17"),
        prior=_RARE,
        rules=(
            EvidenceRule(
                "sign",
                e.sign("equal-distances", "one-order"),
                _SURE,
                "the loss rises again and again at equal distances",
            ),
            EvidenceRule(
                "pass",
                e.in_one_order,
                _SURE,
                "the losses of a pass are those of the pass before (correlation"
                " {f.pass_order:.2f}), and neighbors are alike",
            ),
            EvidenceRule(
                "no-sign",
                lambda f: e.no_sign("equal-distances", "one-order")(f) * (1 - e.in_one_order(f)),
                _ABSENT,
                "nothing in the log shows it",
            ),
        ),
        look_alikes=("bad-data-window", "one-data-set"),
        test="print the labels or sources of the samples around two of the rises, in the order fed",
        remedies=("shuffle-data",),
        go_back="never",
    ),
    CauseEntry(
        id="no-warm-up",
        title="no warm-up: the first updates at the full learning rate",
        modes=("F04", "F10", "F23"),
        prior=_RARE,
        rules=(
            *_plain(
                "rough-start-cold",
                says="the rate is at its peak from the first row, and the loss climbed at once",
            ),
            # Weighs as much as most of the sign: an experiment against what only looks so.
            EvidenceRule("cuts-failed", e.cuts_failed, -7.0, say.CUTS_FAILED),
        ),
        look_alikes=("learning-rate-too-high", "warm-up-end"),
        test="start again with a linear warm-up over one per cent of the steps",
        remedies=("longer-warm-up", "lower-lr"),
        go_back="never",
    ),
    CauseEntry(
        id="gradients-not-zeroed",
        title="gradients add up from step to step: they are not set to zero between updates",
        modes=("F36",),
        prior=_RARE,
        rules=(
            EvidenceRule(
                "summed",
                e.norms_sum_up,
                12.0,
                "over the first {f.summed_norms} rows the grad norm grew row by row, as a sum does",
            ),
            EvidenceRule(
                "no-sign",
                lambda f: 1 - e.norms_sum_up(f),
                _ABSENT,
                "the norms do not grow as sums do",
            ),
        ),
        look_alikes=("no-warm-up", "learning-rate-too-high"),
        test="print the gradient of one parameter before each backward pass: it is 0 or None",
        remedies=("restore-settings", "lower-lr"),
        go_back="never",
    ),
    CauseEntry(
        id="no-gradient",
        title=(
            "no gradient reaches the weights: frozen parameters, dead units, a detached loss, or"
            " underflow"
        ),
        modes=("F36",),
        prior=_RARE,
        rules=_plain(
            "never-learns-gradient",
            "zero-grad-norm",
            "no-gradient",
            "layer-no-gradient",
            "unmoved",
            "few-rows-same-evaluation",
            says="nothing moves weights: gradients of exactly 0, or losses that repeat",
        ),
        look_alikes=("rate-at-zero", "not-wired"),
        test="print the gradient norm of each parameter after one backward pass",
        remedies=("check-first-batch", "restore-settings"),
        go_back="never",
    ),
    CauseEntry(
        id="all-masked",
        title="no label counts: all of them are masked, so that the loss is an empty sum",
        modes=("F14", "F36"),
        prior=_RARE,
        rules=_ZERO_RULES,
        look_alikes=("hidden-overflow", "not-wired"),
        test="count the labels that are not masked in the batches of these rows: 0 is the fault",
        remedies=("mend-labels", "roll-back"),
    ),
    CauseEntry(
        id="hidden-overflow",
        title="overflow or underflow: NaN that the trainer prints as 0, or a loss below the format",
        modes=("F06", "F18"),
        prior=_RARE,
        rules=_ZERO_RULES,
        look_alikes=("all-masked", "fp16-range"),
        test="compute the loss of one of these batches by hand, in fp32 and in the run's format",
        remedies=("roll-back", "bf16", "loss-scaler-reset"),
    ),
    CauseEntry(
        id="rate-at-zero",
        title="the learning rate is next to 0: the scheduler is not stepped, or has ended",
        modes=("F25", "F27"),
        prior=_RARE,
        rules=_plain(
            "never-learns-rate",
            "rate-ended",
            "barely-warm",
            says="the learning rate is next to nothing for what is to be learned",
        ),
        look_alikes=("updates-too-small", "no-gradient"),
        test="print the scheduler's step count and last rate beside the optimizer's",
        remedies=("restore-lr", "restore-settings"),
        go_back="never",
    ),
    CauseEntry(
        id="rate-too-low",
        title="the learning rate is far too low",
        modes=("F25",),
        prior=_RARE,
        rules=_plain(
            "creeps",
            says="the loss falls in a straight line, by next to nothing, from the first row on",
        ),
        look_alikes=("rate-at-zero", "chance-from-start"),
        test="run the first hundred steps at ten times the rate: the loss bends where it was too low",
        remedies=("raise-lr",),
        go_back="never",
    ),
    CauseEntry(
        id="chance-from-start",
        title="the model only guesses: labels, inputs, loss or rate keep it from learning",
        modes=("F36",),
        prior=_RARE,
        rules=(
            *_plain(
                "never-learns-chance",
                "guessing",
                "hardly-moved",
                "few-rows-flat",
                "few-rows-one-answer",
                "few-rows-stuck",
                "score-zero",
                says="the loss is that of a guess, or has not left where it began",
            ),
            EvidenceRule(
                "broken",
                e.of_kind("non-finite"),
                -6.0,
                "what is NaN gives one answer to everything",
            ),
            EvidenceRule(
                "had-learned",
                lambda f: e.yes(f.had_learned),
                -9.0,
                "it had learned before",
            ),
        ),
        look_alikes=("no-gradient", "uniform-output", "updates-too-small"),
        test="train on one batch alone: a model that is wired comes near 0 within 200 steps",
        remedies=("check-first-batch", "lower-lr"),
        go_back="never",
    ),
    CauseEntry(
        id="part-not-trained",
        title=(
            "one part of the loss is not trained: its head is not in the optimizer, its labels are"
            " wrong, or its weight is too small"
        ),
        modes=("F36",),
        prior=_RARE,
        rules=_plain(
            "worse-part",
            "part-at-chance",
            says="one part is that of a guess, or worse than at the start",
        ),
        look_alikes=("one-data-set", "no-gradient"),
        test="compare the parameters that this part's loss reaches with those of the optimizer",
        remedies=("check-first-batch", "restore-settings"),
        go_back="never",
    ),
    CauseEntry(
        id="one-data-set",
        title="one data set of the mix went wrong: its source, its weight or its tokenization",
        modes=("F14", "F28"),
        prior=_RARE,
        rules=_plain("set-apart", says="the loss of one data set left those of the others"),
        look_alikes=("bad-data-window",),
        test="decode samples of that set from before and after the onset",
        remedies=("skip-data", "restore-settings"),
        go_back="never",
    ),
    CauseEntry(
        id="memory-kept",
        title="memory is not given back: something keeps what each step makes",
        modes=("F35",),
        prior=_RARE,
        rules=_plain("memory-grows", says="the memory in use grows from stretch to stretch"),
        look_alikes=("input-or-network",),
        test="take a snapshot of the heap at two steps and compare what has grown between them",
        remedies=("free-memory",),
        go_back="never",
    ),
    CauseEntry(
        id="metric-broken",
        title="what computes that number broke; the training itself did not",
        modes=("F36",),
        prior=_RARE,
        rules=(
            *_plain("other-stopped", says="it was a number in each row, and is none since"),
            EvidenceRule(
                "more-broke",
                _more_broke,
                -12.0,
                "the gradient norm is not finite either, or a held-out score is lost",
            ),
        ),
        look_alikes=("undefined-loss",),
        test="compute the number by hand on one batch of the onset",
        remedies=("repair-logging",),
        go_back="never",
    ),
)
