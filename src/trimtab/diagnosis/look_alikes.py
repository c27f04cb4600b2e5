"""Pairs that look alike in a loss curve, and the evidence that separates them, cheapest first."""

from trimtab.diagnosis.knowledge import LookAlike

__all__ = ["LOOK_ALIKES", "look_alikes_of"]

LOOK_ALIKES: tuple[LookAlike, ...] = (
    LookAlike(
        one="bad-data-window",
        other="learning-rate-too-high",
        how=(
            "feed the suspect batches to an earlier state: if they pass there, the state was needed"
            " too. Feed other batches to the sick state: if it fails on them, the data is not to"
            " blame. Another seed that only moves the spike speaks for state or settings"
        ),
        source="PaLM paper, section 5.1; OPT-175B logbook; BigScience tr8-104B chronicles",
    ),
    LookAlike(
        one="hardware-fault",
        other="bad-data-window",
        how=(
            "replay the same state and batch with the same kernels: a result that changes is a"
            " passing fault of hardware, one that stays wrong on one device only is a lasting"
            " fault, one that is the same everywhere is correct, so data or optimizer"
        ),
        source="Megatron-LM, rerun state machine",
    ),
    LookAlike(
        one="fp16-range",
        other="learning-rate-too-high",
        how=(
            "in the log: the loss scale halves while the true grad norm is flat means range, the"
            " grad norm rises first means dynamics. By test: the same steps in fp32 or bf16; if"
            " they diverge too, leave fp16 alone"
        ),
        source="BigScience tr8-104B chronicles",
    ),
    LookAlike(
        one="spike",
        other="unrecovered-spike",
        how=(
            "drift of the loss for 30 rows or more before it, a large update norm during it, or 100"
            " rows above the old level speak for one that stays; a spike out of calm with a small"
            " clipped update mostly heals. Width says more than height"
        ),
        source="K2-65B and K2-V2 reports; IDEFICS-80B chronicles",
    ),
    LookAlike(
        one="spike",
        other="batch-outlier",
        how=(
            "one row and the trend goes on with a smooth validation loss: a batch. Several rows, or"
            " the grad norm with it: an event"
        ),
    ),
    LookAlike(
        one="poisoned-optimizer-state",
        other="bad-data-window",
        how=(
            "the update over its expected size stands out in a few tensors while the grad norm is"
            " below the clip: the moments. It stands out in all, and single samples have high"
            " losses: the data"
        ),
        source="Stable and low-precision training for CLIP, arXiv:2304.13013",
    ),
    LookAlike(
        one="scale-collapse",
        other="grad-explosion",
        how=(
            "order of onsets: scale first and grad norm flat is cause, grad norm first and scale"
            " after it is consequence"
        ),
        source="OPT-175B logbook; GLM-130B training log",
    ),
    LookAlike(
        one="grad-drift",
        other="schedule-effect",
        how=(
            "under decoupled weight decay the grad norm over the weight norm tends to sqrt(2 x"
            " decay / rate), so it grows as the rate falls; what is left after that curve is a"
            " drift. OPT-66B's 0.20 to 0.25 could be either"
        ),
        source="AdamC, arXiv:2506.02285; S. Zhang's talk on OPT",
    ),
    LookAlike(
        one="too-good",
        other="grokking",
        how=(
            "validation falls too: understanding. Validation stays or is not measured, and few"
            " tokens or n-grams make up the targets: an artifact of the data. A step down exactly"
            " at an epoch's end: repeated data"
        ),
        source="OPT-175B logbook; Machine Learning Engineering, loss patterns",
    ),
    LookAlike(
        one="repeated-data",
        other="too-good",
        how=(
            "the same sample ids within one epoch: the sampler. None, and the loss is low from the"
            " start: leaked or degenerate data"
        ),
        source="Machine Learning Engineering, loss patterns",
    ),
    LookAlike(
        one="resume-jump",
        other="repeated-data",
        how=(
            "up at the restart means that state or settings were lost, down means that data is fed"
            " again. Compare learning rate, betas and the optimizer's step with the save, then the"
            " sample ids"
        ),
        source="OPT-175B logbook; Machine Learning Engineering, loss patterns",
    ),
    LookAlike(
        one="code-or-resume-change",
        other="benign-noise",
        how=(
            "a deterministic restart repeats the losses of the steps that it does again, to 0.1 %."
            " A larger difference has a cause: BLOOM's were tied weights that were not reduced and"
            " a wrong weight-decay group"
        ),
        source="BLOOM chronicles",
    ),
    LookAlike(
        one="plateau",
        other="scale-collapse",
        how=(
            "update over weight norm: near 0 with the scale at its floor means that nothing is"
            " learned. Usual, with shrinking weights: weight decay. A 125M model that fails under"
            " the same layout too: a bug"
        ),
        source="OPT-175B logbook; S. Zhang's talk on OPT",
    ),
    LookAlike(
        one="plateau",
        other="learning-rate-too-high",
        how=(
            "lay it beside a smaller model at the same step: one that is a whole nat better means"
            " that the large one learns nothing useful"
        ),
        source="BigScience tr8-104B chronicles",
    ),
    LookAlike(
        one="slowdown",
        other="hardware-fault",
        how=(
            "stack traces or step times by rank: ranks that stand out and share a group point to a"
            " node or a link; all waiting for input points to data or storage. One benchmark alone"
            " can miss it: several nodes slow by a little add up"
        ),
        source="ByteRobust, arXiv:2509.16293; BLOOM chronicles",
    ),
    LookAlike(
        one="hang",
        other="planned-pause",
        how=(
            "the pause falls together with saves or validations, and ends: planned. Collectives"
            " that time out: hung"
        ),
        source="BLOOM chronicles",
    ),
    LookAlike(
        one="learning-rate-too-high",
        other="warm-up-end",
        how=(
            "position: in three documented runs the trouble came at 1.16 to 1.21 times the end of"
            " warm-up. The largest element of Adam's second moment peaks with the rate where the"
            " ramp is to blame"
        ),
        source="BigScience tr8-104B and tr1-13B chronicles",
    ),
    LookAlike(
        one="learning-rate-jump",
        other="learning-rate-too-high",
        how="the rate in force before the onset: it rose, or it had been there for long",
    ),
)


def look_alikes_of(name: str) -> tuple[LookAlike, ...]:
    """Return the pairs that a kind or a cause is one of."""
    return tuple(pair for pair in LOOK_ALIKES if name in (pair.one, pair.other))
