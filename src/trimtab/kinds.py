"""The closed lists of the public JSON format: kinds of findings, severities, verdicts of a run.

`KINDS` is the table of kinds. A detector uses only kinds of this list; grouping asks which of
several kinds names an episode (`rank`) and how a headline calls it (`title`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from trimtab.vocabulary import Severity

__all__ = [
    "KINDS",
    "KIND_BY_NAME",
    "RUN_VERDICTS",
    "SEVERITIES",
    "Kind",
    "Nature",
    "RunVerdict",
    "Topic",
    "severity_rank",
    "worst_verdict",
]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""From harmless to urgent; the last two are alarms."""

RunVerdict = Literal["healthy", "not-judged", "incident", "ended-badly"]

RUN_VERDICTS: tuple[RunVerdict, ...] = ("healthy", "not-judged", "incident", "ended-badly")
"""From best to worst. `incident`: an alarm stands that is neither resolved nor dismissed.
`not-judged`: too little was logged for the absence of alarms to mean anything."""

Topic = Literal["learning", "data", "logging", "pace", "signals"]

Nature = Literal["system", "numeric"]


def severity_rank(severity: str) -> int:
    """Return the position of a severity in `SEVERITIES`.

    A name that is not a severity ranks below all: logs and journals can be edited by hand.
    """
    return SEVERITIES.index(severity) if severity in SEVERITIES else -1


def worst_verdict(verdicts: Iterable[RunVerdict]) -> RunVerdict:
    """Return the worst of several verdicts; `not-judged` where there are none."""
    return max(verdicts, key=RUN_VERDICTS.index, default="not-judged")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind."""

    name: str
    """As in the JSON; never renamed within a schema."""
    title: str
    """As headlines say it."""
    meaning: str
    """One line for people."""
    severity: Severity
    """Severity where the finding has no reason for another."""
    topic: Topic = "learning"
    """What it is about; findings of different topics are different incidents."""
    rank: int
    """Which kind names an incident when several belong to it: the lowest, then the earliest."""

    @property
    def nature(self) -> Nature:
        """`system`: the machine, its pace or its logging; `numeric`: the training itself."""
        return "system" if self.topic in ("pace", "logging") else "numeric"


KINDS: tuple[Kind, ...] = (
    Kind(
        name="non-finite",
        title="non-finite values",
        meaning="a loss, norm or scale is NaN or Inf",
        severity="critical",
        rank=0,
    ),
    Kind(
        name="scale-collapse",
        title="loss scale fell",
        meaning="the fp16 loss scale falls again and again, or stays at its floor",
        severity="critical",
        rank=1,
    ),
    Kind(
        name="unrecovered-spike",
        title="loss spike that did not recover",
        meaning="the loss left its level within a few rows and did not come back",
        severity="critical",
        rank=2,
    ),
    Kind(
        name="divergence",
        title="loss is diverging",
        meaning="the loss keeps rising",
        severity="critical",
        rank=3,
    ),
    Kind(
        name="spike",
        title="loss spike",
        meaning="the loss left its level within a few rows and came back, or may yet",
        severity="warning",
        rank=4,
    ),
    Kind(
        name="shift",
        title="lasting shift of the loss",
        meaning="a level changed for good within a short time",
        severity="warning",
        rank=5,
    ),
    Kind(
        name="drift",
        title="slow drift of the loss",
        meaning="a level moves the wrong way over a long time",
        severity="warning",
        rank=6,
    ),
    Kind(
        name="repeated-data",
        title="the same data again",
        meaning="losses or sample counters show data that the run has had before",
        severity="warning",
        topic="data",
        rank=7,
    ),
    Kind(
        name="resume-jump",
        title="a resume does not go on as it was",
        meaning=(
            "what a resumed attempt logs differs from where it resumed: loss, learning rate, batch"
            " size or data"
        ),
        severity="warning",
        rank=8,
    ),
    Kind(
        name="skipped-steps",
        title="optimizer steps skipped",
        meaning="many steps in a row, or a large share of them, changed no weight",
        severity="warning",
        rank=9,
    ),
    Kind(
        name="frozen-signal",
        title="a signal stands still",
        meaning="a signal that should move repeats one value, or is mostly missing",
        severity="warning",
        topic="logging",
        rank=10,
    ),
    Kind(
        name="hang",
        title="no progress",
        meaning="no row came for many times the usual step time",
        severity="critical",
        topic="pace",
        rank=11,
    ),
    Kind(
        name="slowdown",
        title="steps became slower",
        meaning="the step time rose for good",
        severity="warning",
        topic="pace",
        rank=12,
    ),
    Kind(
        name="stall",
        title="a slow step",
        meaning="a few steps took far longer than usual, then the pace came back",
        severity="info",
        topic="pace",
        rank=13,
    ),
    Kind(
        name="batch-outlier",
        title="one outlying row",
        meaning="one row stands out, and nothing follows from it",
        severity="info",
        rank=14,
    ),
    Kind(
        name="overfitting",
        title="validation gets worse while training improves",
        meaning=(
            "the validation loss has turned and rises, or a held-out score sinks from its best, and"
            " training still improves"
        ),
        severity="warning",
        rank=14,
    ),
    Kind(
        name="held-out-worse",
        title="worse on the fixed batches",
        meaning=(
            "the guard's fixed batches, read in eval mode, have got worse whatever the training"
            " loss does"
        ),
        severity="warning",
        rank=14,
    ),
    Kind(
        name="memorised",
        title="training data learned by heart",
        meaning="the training loss comes to nearly nothing, as of data that was fed many times",
        severity="warning",
        rank=14,
    ),
    Kind(
        name="never-learns",
        title="nothing is learned",
        meaning=(
            "from the first row on the loss stays where guessing or a stopped update leaves it, or"
            " no gradient reaches most of the weights"
        ),
        severity="warning",
        rank=14,
    ),
    Kind(
        name="setting-jump",
        title="a setting jumped",
        meaning="the learning rate, weight decay, batch or a decay rate left its schedule",
        severity="warning",
        rank=14,
    ),
    Kind(
        name="plateau",
        title="loss stands still",
        meaning="the loss no longer falls although it should",
        severity="warning",
        rank=15,
    ),
    Kind(
        name="too-good",
        title="loss too good",
        meaning="a loss is lower than learning explains, in training or held out",
        severity="warning",
        rank=15,
    ),
    Kind(
        name="grad-explosion",
        title="grad norm exploded",
        meaning="the gradient norm stands at many times its level",
        severity="warning",
        rank=15,
    ),
    Kind(
        name="grad-spike",
        title="grad norm spike",
        meaning="the gradient norm left its level for a few rows",
        severity="warning",
        rank=15,
    ),
    Kind(
        name="grad-drift",
        title="grad norm drifts",
        meaning="the gradient norm rises, or falls away, over a long time",
        severity="info",
        rank=15,
    ),
    Kind(
        name="activation-reversal",
        title="activation norm turned upwards",
        meaning="the activation norm fell and now rises again",
        severity="warning",
        rank=15,
    ),
    Kind(
        name="grokking",
        title="sudden understanding",
        meaning="training and validation loss drop together long after the training set is learned",
        severity="info",
        rank=15,
    ),
    Kind(
        name="behind-reference",
        title="worse than the reference run",
        meaning=(
            "at equal steps the loss lies above that of the run it is judged by, or what is held"
            " out is worse, beyond noise"
        ),
        severity="warning",
        rank=16,
    ),
    Kind(
        name="policy-collapse",
        title="the policy degenerates",
        meaning=(
            "entropy, length, divergence or reward of a trained policy leave the range in which"
            " it can learn"
        ),
        severity="warning",
        topic="signals",
        rank=16,
    ),
    Kind(
        name="reward-hacking",
        title="reward without merit",
        meaning="the training reward rises or spreads while what it should stand for does not",
        severity="warning",
        topic="signals",
        rank=16,
    ),
    Kind(
        name="router-collapse",
        title="the router of the experts degenerates",
        meaning="the router's entropy, logits or balancing loss leave their range",
        severity="warning",
        topic="signals",
        rank=16,
    ),
    Kind(
        name="expert-imbalance",
        title="experts unevenly used",
        meaning="tokens crowd at few experts, others get none, or tokens are dropped",
        severity="warning",
        topic="signals",
        rank=16,
    ),
    Kind(
        name="precision-overflow",
        title="values leave the number format's range",
        meaning="low precision overflows, saturates or falls back to a higher one",
        severity="warning",
        topic="signals",
        rank=16,
    ),
    Kind(
        name="precision-underflow",
        title="values vanish in the number format",
        meaning="gradients or updates become zero in low precision",
        severity="warning",
        topic="signals",
        rank=16,
    ),
    Kind(
        name="signal-abnormal",
        title="a signal beside the loss is abnormal",
        meaning="a signal that leads or explains the loss left its own past for good",
        severity="warning",
        rank=17,
    ),
)
"""All kinds, the most telling first."""

KIND_BY_NAME: Mapping[str, Kind] = {k.name: k for k in KINDS}
