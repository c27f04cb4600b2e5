"""The table of tests that separate causes, cheapest first.

A test separates two causes when it would come out differently under each. OPT-175B and BigScience
did these by hand (other data, fp32, an earlier checkpoint); Megatron-LM's rerun state machine does
the unchanged replay.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from trimtab.detectors.domain_signs import SIGN_BY_ID
from trimtab.diagnosis.domain_causes import DOMAIN_CAUSES

__all__ = ["EXPERIMENTS", "EXPERIMENT_BY_ID", "Experiment", "cheapest_between", "step_text"]


def step_text(position: float) -> str:
    """Return a position as it can be typed: a step in full, never 1.5e+06.

    Example:
        >>> step_text(1234567.0), step_text(0.25)
        ('1234567', '0.25')
    """
    return f"{position:.0f}" if float(position).is_integer() else f"{position:g}"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One test."""

    id: str
    text: str
    """What to do and how to read it; `{before}` is the step to start before."""
    cost: str
    otherwise: str
    """Outcome under every cause that `predicts` does not name."""
    predicts: Mapping[str, str] = field(default_factory=dict)
    """Outcome by cause, where it differs from `otherwise`."""
    kinds: frozenset[str] = frozenset()
    """Kinds of incident that it makes sense for; empty: all."""

    def instructions(self, before: float) -> str:
        """Return the instructions, with the step to start before filled in."""
        return self.text.format(before=step_text(before))

    def separates(self, one: str, other: str) -> bool:
        """Tell whether the outcome differs between two causes."""
        return self.predicts.get(one, self.otherwise) != self.predicts.get(other, self.otherwise)


_DOMAIN_KINDS = frozenset(sign.kind for sign in SIGN_BY_ID.values())

EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        id="logged-settings",
        text=(
            "lay the logged rate, weight decay, batch and losses by data set beside what was"
            " intended from {before} on: the one that differs is the cause"
        ),
        cost="minutes, no GPU",
        otherwise="as intended",
        predicts={
            "setting-changed": "a setting differs",
            "loss-rescaled": "what the loss is divided by differs",
            "rate-at-zero": "the rate is 0",
            "rate-too-low": "the rate is lower",
            "no-warm-up": "the rate begins at its peak",
            "one-data-set": "one set differs",
            "differs-from-reference": "as intended, but not as the reference has it",
        },
    ),
    Experiment(
        id="last-lines",
        text=(
            "read the last lines that each start before {before} and since wrote, its exit status"
            " and the scheduler's record: an error, a limit or a kill there ends it"
        ),
        cost="minutes, no GPU",
        otherwise="it was ended on purpose",
        predicts={"ends-again": "an error, a limit or a kill"},
        kinds=frozenset({"resume-jump"}),
    ),
    Experiment(
        id="seen-and-unseen",
        text=(
            "compute the loss in eval mode on samples of the training set and on samples never"
            " trained on: seen near 0 means learned by heart, unseen above its lowest means"
            " overfitting, both low means that targets leak or the loss changed, seen far above the"
            " training loss means that the evaluation differs from training"
        ),
        cost="some forward passes",
        otherwise="both as before",
        predicts={
            "memorised-data": "seen near 0",
            "overfitting": "unseen rises",
            "leaked-targets": "both low",
            "evaluation-differs": "seen far above the training loss",
        },
    ),
    Experiment(
        id="one-batch",
        text=(
            "train on one batch alone for 200 steps: no weight moves means no gradient, a loss that"
            " stays means labels or inputs (one part of it: that part's head), one that comes near"
            " 0 means rate or data"
        ),
        cost="200 steps of one batch",
        otherwise="the loss comes near 0",
        predicts={
            "no-gradient": "no weight moves",
            "chance-from-start": "the loss stays",
            "part-not-trained": "one part stays",
        },
    ),
    Experiment(
        id="first-forward",
        text=(
            "feed the first batch forward through fresh weights, in fp32 and in the run's number"
            " format, and find the first module whose output is not finite: input that is not"
            " finite means data, fp32 alone finite means the format, neither means initialization"
            " or a kernel"
        ),
        cost="two forward passes",
        otherwise="finite",
        predicts={"never-finite": "not finite"},
    ),
    Experiment(
        id="two-batches",
        text=(
            "feed two different batches forward: the same logits for both mean that the model is"
            " dead, other logits that the logged loss is not the model's"
        ),
        cost="two forward passes",
        otherwise="logits differ",
        predicts={"uniform-output": "logits are the same"},
    ),
    Experiment(
        id="compare-settings",
        text=(
            "compare settings, versions and the loss at the first resumed step with those at the"
            " save: a difference means the restart changed something"
        ),
        cost="minutes, no GPU",
        otherwise="same",
        predicts={"code-or-resume-change": "differs"},
    ),
    Experiment(
        id="data-ledger",
        text=(
            "compare the sample ids fed from {before} on with all that were fed before: repeats"
            " mean the data order, and so does one order in each pass"
        ),
        cost="minutes, no GPU",
        otherwise="no repeats",
        predicts={
            "repeated-data": "repeats",
            "data-order-not-restored": "repeats at the resume",
            "data-order": "the same order in each pass",
        },
        kinds=frozenset(
            {
                "repeated-data",
                "too-good",
                "resume-jump",
                "shift",
                "plateau",
                "unrecovered-spike",
                "spike",
            }
        ),
    ),
    Experiment(
        id="predicted-norm",
        text=(
            "compare the grad norm with sqrt(2 x weight decay / learning rate) x the weight norm:"
            " what follows that curve is caused by the schedule"
        ),
        cost="minutes, no GPU",
        otherwise="leaves the curve",
        predicts={"schedule-effect": "follows the curve"},
        kinds=frozenset({"grad-drift", "activation-reversal"}),
    ),
    Experiment(
        id="save-times",
        text=(
            "compare the slow steps with the save and validation intervals: if they fall together,"
            " the pause was planned"
        ),
        cost="minutes, no GPU",
        otherwise="apart",
        predicts={"planned-pause": "together"},
        kinds=frozenset({"slowdown", "stall", "hang"}),
    ),
    Experiment(
        id="zero-loss",
        text=(
            "take one batch from {before} on, count its labels that are not masked, and compute"
            " its loss in fp32: no label means masking, NaN or Inf means overflow, a usual loss"
            " means that nothing was logged"
        ),
        cost="one forward pass",
        otherwise="a usual loss",
        predicts={"all-masked": "no label", "hidden-overflow": "not finite"},
        kinds=frozenset({"frozen-signal"}),
    ),
    Experiment(
        id="by-hand",
        text=(
            "compute the signal by hand for one step: if it differs from the one logged, the signal"
            " is not wired"
        ),
        cost="one step",
        otherwise="agrees",
        predicts={"not-wired": "differs"},
        kinds=frozenset({"frozen-signal"}),
    ),
    Experiment(
        id="metric-by-hand",
        text=(
            "compute the number by hand on one batch of the onset: a usual value means that what"
            " computes it in the run broke"
        ),
        cost="one step",
        otherwise="no number, either",
        predicts={"metric-broken": "a usual value"},
        kinds=frozenset({"signal-abnormal"}),
    ),
    Experiment(
        id="heap",
        text=(
            "take a snapshot of the heap at two steps some hundred apart and compare: what has"
            " grown between them is what is kept"
        ),
        cost="minutes",
        otherwise="nothing has grown",
        predicts={"memory-kept": "something has grown with the steps"},
        kinds=frozenset({"signal-abnormal"}),
    ),
    Experiment(
        id="step-times",
        text=(
            "time data loading, computation and collectives apart on every rank for 20 steps: all"
            " ranks waiting for input means data or storage, one late rank means its node"
        ),
        cost="20 steps",
        otherwise="nothing waits",
        predicts={"input-or-network": "input is late", "hardware-fault": "one rank is late"},
        kinds=frozenset({"slowdown", "stall", "hang"}),
    ),
    Experiment(
        id="update-size",
        text=(
            "log the update norm over the weight norm for 20 steps: about 0.001 is usual, near 0"
            " means that nothing is learned"
        ),
        cost="one scalar a step, 20 steps",
        otherwise="usual",
        predicts={"updates-too-small": "near zero"},
        kinds=frozenset({"plateau", "skipped-steps", "frozen-signal", "scale-collapse"}),
    ),
    Experiment(
        id="count-labels",
        text=(
            "count the labels that are not masked in each batch from {before} to the onset: none in"
            " one of them means 0 / 0 in the mean of its loss; some in all of them means the"
            " formula of the loss, so evaluate its terms one by one in fp32"
        ),
        cost="minutes, no GPU",
        otherwise="all batches have labels",
        predicts={"masked-batch": "a batch without labels"},
        kinds=frozenset({"non-finite"}),
    ),
    Experiment(
        id="standstill",
        text=(
            "load a state before {before} and do the steps once more at a rate next to 0: where the"
            " loss rises as well, no update made it"
        ),
        cost="some dozens of steps",
        otherwise="the loss does not rise",
        predicts={"own-doing": "it rises as before, and stays"},
        kinds=frozenset({"spike", "unrecovered-spike", "shift", "divergence"}),
    ),
    Experiment(
        id="held-out-terms",
        text=(
            "evaluate the held-out batches one by one in fp32 with the newest weights: those whose"
            " loss is not finite have no label, one beyond the classes, or an empty input; none in"
            " fp32 means the number format of evaluation"
        ),
        cost="one evaluation",
        otherwise="all finite, in the format of evaluation, too",
        predicts={"undefined-held-out": "some are not finite"},
        kinds=frozenset({"non-finite"}),
    ),
    Experiment(
        id="loss-terms",
        text=(
            "evaluate the terms of the loss of the batch at the onset one by one in fp32, forward"
            " and backward, and find the first that is not finite"
        ),
        cost="one step",
        otherwise="finite in fp32",
        predicts={"undefined-loss": "one term is not finite"},
        kinds=frozenset({"non-finite"}),
    ),
    Experiment(
        id="data-losses",
        text=(
            "compute the loss of the batches around the onset, forward only, under a state from"
            " before {before}: outliers mean bad data"
        ),
        cost="one forward pass per batch",
        otherwise="no outliers",
        predicts={"bad-data-window": "outliers"},
    ),
    Experiment(
        id="wait",
        text="train 50 more steps: a benign spike returns to its trend",
        cost="50 steps, lost if it does not heal",
        otherwise="stays",
        predicts={"benign-noise": "heals"},
    ),
    Experiment(
        id="replay",
        text=(
            "replay the steps from before {before}, unchanged, and calm ones three times: if the"
            " first go well and the others agree far more closely, it happened once"
        ),
        cost="as many steps as from there to the onset",
        otherwise="fails again",
        predicts={"hardware-fault": "goes well", "happened-once": "goes well"},
    ),
    Experiment(
        id="old-rate",
        text=(
            "replay from before {before} at the learning rate that was in force before its rise: if"
            " that goes well, the rise was to blame"
        ),
        cost="about 50 steps",
        otherwise="fails again",
        predicts={"learning-rate-jump": "goes well"},
    ),
    Experiment(
        id="half-rate",
        text=(
            "replay from before {before} at half the learning rate: if that goes well and the same"
            " steps at the full rate fail, it is the rate"
        ),
        cost="about 50 steps, twice",
        otherwise="fails again",
        predicts={
            "learning-rate-too-high": "goes well",
            "learning-rate-jump": "goes well",
            "warm-up-end": "goes well",
        },
    ),
    Experiment(
        id="tenth-rate",
        text=(
            "go on from {before} at a tenth of the learning rate for some hundred steps: a floor"
            " that is the noise of the updates falls with it"
        ),
        cost="some hundred steps",
        otherwise="the level stays",
        predicts={"converged": "the level falls"},
        kinds=frozenset({"plateau"}),
    ),
    Experiment(
        id="other-precision",
        text="200 steps in fp32 or bf16 from before {before}: if they fail too, it is not fp16",
        cost="200 steps, slower in fp32",
        otherwise="fails again",
        predicts={"fp16-range": "goes well"},
    ),
    Experiment(
        id="moments",
        text=(
            "log the largest element of Adam's second moment over the warm-up: it peaks with the"
            " learning rate if the warm-up is to blame"
        ),
        cost="one scalar a step, from the next restart on",
        otherwise="no peak",
        predicts={"warm-up-end": "peaks with the rate"},
    ),
    Experiment(
        id="replay-elsewhere",
        text=(
            "replay the steps from before {before} three times on this node and once on another:"
            " what fails on this node alone is its hardware"
        ),
        cost="four times the steps from there to the onset",
        otherwise="the same everywhere",
        predicts={"hardware-fault": "fails on one node", "not-reproducible": "fails now and then"},
    ),
    Experiment(
        id="earlier-state",
        text=(
            "replay the same data from a checkpoint before the first event of the series: if that"
            " goes well, the state was to blame"
        ),
        cost="as many steps as from there to the onset",
        otherwise="fails again",
        predicts={"poisoned-optimizer-state": "goes well"},
    ),
    *(
        Experiment(
            id=f"look-for-{cause.id}",
            text=cause.test,
            cost="minutes to an hour",
            otherwise="not so",
            predicts={cause.id: "shows it"},
            kinds=_DOMAIN_KINDS,
        )
        for cause in DOMAIN_CAUSES
    ),
)
"""Cheapest first."""

EXPERIMENT_BY_ID: Mapping[str, Experiment] = {x.id: x for x in EXPERIMENTS}


def cheapest_between(one: str, other: str, *, kinds: Set[str] | None = None) -> Experiment | None:
    """Return the cheapest test that would come out differently under two causes; None if none.

    Args:
        one: A cause.
        other: Another.
        kinds: Kinds of the incident; tests that make no sense for any of them are passed over.
            None: all tests.
    """
    fitting = (x for x in EXPERIMENTS if kinds is None or not x.kinds or x.kinds & kinds)
    return next((x for x in fitting if x.separates(one, other)), None)
