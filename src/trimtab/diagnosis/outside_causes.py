"""Causes outside the dynamics of the loss: throughput, order of data, logging.

Each has evidence only for the kinds of incident that it can explain. For all others it is
practically excluded, so it takes no share from the causes of a spike.
"""

from trimtab.diagnosis import evidence as e
from trimtab.diagnosis.cause_entry import CauseEntry
from trimtab.diagnosis.evidence import EvidenceRule

__all__ = ["OUTSIDE"]


def _only_for(*kinds: str) -> EvidenceRule:
    # e^-6 is 1/400: a prior of 0.02 falls below the 1 % under which a cause is not listed.
    return EvidenceRule(
        "another-kind", e.other_kind(*kinds), -6.0, "it explains no incident of this kind"
    )


OUTSIDE: tuple[CauseEntry, ...] = (
    CauseEntry(
        id="input-or-network",
        title="waiting for data, storage or the network",
        modes=("F34",),
        prior=0.02,
        rules=(
            EvidenceRule(
                "slow", e.of_kind("slowdown", "stall", "hang"), 2.0, "steps became slow or stopped"
            ),
            EvidenceRule(
                "data-time",
                lambda f: max(f.data_share or 0.0, 0.0) * e.no_sign("data-waits")(f),
                2.5,
                "the time that waits for data grew by {f.data_share:.0%} of what a step grew by",
            ),
            EvidenceRule(
                "data-waits", e.sign("data-waits"), 2.5, "slow rows wait for data, as the log says"
            ),
            EvidenceRule(
                "data-time-as-before",
                lambda f: (
                    e.yes(f.data_share is not None and f.data_share < 0.1)
                    * e.no_sign("data-waits")(f)
                ),
                -0.7,
                "the logged time that waits for data is as before",
            ),
            EvidenceRule(
                "calm",
                e.clock_alone,
                0.7,
                "nothing in this incident is about the loss or the gradients",
            ),
            EvidenceRule(
                "non-finite",
                e.of_kind("non-finite", "unrecovered-spike", "divergence"),
                -1.5,
                "the loss went wrong too, which a wait does not explain",
            ),
            _only_for("slowdown", "stall", "hang"),
        ),
        look_alikes=("hardware-fault", "planned-pause"),
        test="time data loading, computation and collectives apart on every rank for 20 steps",
        remedies=("widen-input", "watch-pace"),
    ),
    CauseEntry(
        id="planned-pause",
        title="a planned pause: checkpoint, validation or compilation",
        modes=("F34", "F35"),
        prior=0.015,
        rules=(
            EvidenceRule(
                "short", e.of_kind("stall"), 3.2, "single slow steps, and the old pace after them"
            ),
            EvidenceRule(
                "slower-for-good",
                e.of_kind("slowdown", "hang"),
                -2.0,
                "the old pace did not come back",
            ),
            _only_for("slowdown", "stall", "hang"),
        ),
        look_alikes=("input-or-network",),
        test="lay the slow steps beside the save and validation intervals",
        remedies=("watch-pace",),
    ),
    CauseEntry(
        id="repeated-data",
        title="data seen before: a sampler that started anew, an epoch, or duplicates",
        modes=("F15", "F16", "F17", "F28"),
        prior=0.025,
        rules=(
            EvidenceRule("repeats", e.of_kind("repeated-data"), 2.5, "data was fed twice"),
            EvidenceRule(
                "same-batch",
                e.sign("same-batch"),
                3.0,
                "by their content the same few batches come again and again",
            ),
            EvidenceRule(
                "no-scatter",
                e.sign("noise-gone"),
                2.0,
                "rows scatter no more, as those of one batch do not",
            ),
            EvidenceRule(
                "too-good", e.of_kind("too-good"), 2.0, "the loss is lower than learning explains"
            ),
            EvidenceRule(
                "just-resumed",
                e.just_resumed,
                0.9,
                "the onset lies {f.resume_rows} rows after a restart",
            ),
            EvidenceRule(
                "no-restart",
                e.long_after_resume,
                -0.4,
                "no restart lies near the onset, so it would be an epoch or duplicates",
            ),
            EvidenceRule(
                "unrecovered", e.unrecovered, -2.0, "the loss rose; data seen before lowers it"
            ),
            _only_for("repeated-data", "too-good", "resume-jump", "shift", "plateau"),
            EvidenceRule(
                "rose", e.of_kind("spike"), -3.0, "the loss rose; data seen before lowers it"
            ),
            EvidenceRule(
                "not-low",
                e.other_kind("repeated-data", "too-good", "resume-jump"),
                -1.5,
                "there is no sign that the loss was too low",
            ),
        ),
        look_alikes=("code-or-resume-change", "bad-data-window"),
        test="compare the sample ids fed around the onset with all that were fed before",
        remedies=("restore-data-order", "roll-back", "skip-data"),
    ),
    CauseEntry(
        id="converged",
        title="converged: what is left is the noise floor of this model, data and rate",
        modes=("F24",),
        prior=0.005,
        rules=(
            EvidenceRule(
                "floor",
                e.sign("converged"),
                4.5,
                "the whole curve is an exponential fall to a floor",
            ),
            EvidenceRule(
                "stall",
                e.sign("late-stall"),
                -1.0,
                "the rows before promised a fall that did not come",
            ),
            EvidenceRule("up", e.unrecovered, -1.5, "the loss rose; it did not only stand still"),
            EvidenceRule("zero", e.sign("zero-loss"), -9.0, "a loss of exactly 0 is not measured"),
            _only_for("plateau"),
        ),
        look_alikes=("updates-too-small", "schedule-effect"),
        test="cut the learning rate to a tenth for some hundred steps: a noise floor falls with it",
        remedies=("lower-lr",),
    ),
    CauseEntry(
        id="updates-too-small",
        title="updates too small to learn: scale at its floor, weight decay, rate or epsilon",
        modes=("F06", "F11", "F25", "F36"),
        prior=0.02,
        rules=(
            EvidenceRule("plateau", e.of_kind("plateau"), 2.2, "the loss is flat"),
            EvidenceRule(
                "stall",
                e.sign("late-stall"),
                1.5,
                "the fall that the rows before promised did not come",
            ),
            EvidenceRule(
                "skipped",
                e.of_kind("skipped-steps", "scale-collapse"),
                1.0,
                "updates are skipped, so weights stay as they are",
            ),
            EvidenceRule(
                "low-rate",
                e.low_rate,
                0.6,
                "the learning rate had fallen to {f.lr_peak_share:.0%} of its peak",
            ),
            EvidenceRule("full-rate", e.full_rate, -0.4, "the learning rate was at its peak"),
            EvidenceRule("up", e.unrecovered, -1.5, "the loss rose; it did not only stand still"),
            _only_for("plateau", "skipped-steps", "frozen-signal"),
        ),
        look_alikes=("learning-rate-too-high", "code-or-resume-change", "fp16-range"),
        test=(
            "log the update norm over the weight norm for 20 steps: about 0.001 is usual, near 0"
            " means nothing is learned"
        ),
        remedies=("weight-decay", "bf16", "loss-scaler-reset", "adam-eps", "roll-back"),
    ),
    CauseEntry(
        id="not-wired",
        title="a signal that is logged but not measured",
        modes=("F36",),
        prior=0.01,
        rules=(
            EvidenceRule("frozen", e.of_kind("frozen-signal"), 3.0, "the signal repeats one value"),
            EvidenceRule("zero", e.sign("zero-loss"), 1.6, "a loss of exactly 0 is not measured"),
            EvidenceRule(
                "others-moved",
                lambda f: e.yes(bool(f.kinds & e.MALIGNANT)),
                -1.0,
                "the loss went wrong at the same time",
            ),
            _only_for("frozen-signal"),
        ),
        look_alikes=("updates-too-small",),
        test="compute the signal by hand for one step and compare it with the one logged",
        remedies=("repair-logging",),
    ),
    CauseEntry(
        id="schedule-effect",
        title="the schedule: norms follow the learning rate down",
        modes=("F24", "F37"),
        prior=0.005,
        rules=(
            EvidenceRule("drift", e.of_kind("grad-drift"), 2.5, "the grad norm rises slowly"),
            EvidenceRule(
                "low-rate",
                e.low_rate,
                1.0,
                "the learning rate had fallen to {f.lr_peak_share:.0%} of its peak",
            ),
            EvidenceRule("full-rate", e.full_rate, -1.5, "the learning rate was at its peak"),
            EvidenceRule("up", e.unrecovered, -2.0, "the loss did not come back"),
            _only_for("grad-drift", "activation-reversal"),
        ),
        look_alikes=("learning-rate-too-high",),
        test=(
            "compare the grad norm with sqrt(2 x weight decay / learning rate) x the weight norm"
            " under the schedule: what follows that curve is caused by the schedule"
        ),
        remedies=("patience", "lower-lr"),
    ),
)
