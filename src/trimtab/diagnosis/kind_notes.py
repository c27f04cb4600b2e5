"""How each kind of incident looks and where it was seen; one note a kind.

Sources are public: chronicles and logbooks of the runs named, and papers. Grad norms of
BigScience's fp16 runs are divided by the loss scale, which their logs do not do.
"""

from collections.abc import Mapping

from trimtab.diagnosis.domain_notes import DOMAIN_NOTES
from trimtab.diagnosis.knowledge import KindNote, PublicRun

__all__ = ["KIND_NOTES", "KIND_NOTE_BY_NAME"]

_BLOOM = "BLOOM chronicles"
_TR8 = "BigScience tr8-104B chronicles"
_OPT = "OPT-175B logbook"
_TALK = "S. Zhang's talk on OPT"
_GLM = "GLM-130B training log"
_MARIN = "Marin 32B retrospective"
_BOOK = "Machine Learning Engineering, loss patterns"

KIND_NOTES: tuple[KindNote, ...] = (
    KindNote(
        kind="spike",
        looks=(
            "the grad norm rises, the loss follows within a few steps, and both come back to the"
            " old trend"
        ),
        first="the grad norm, by 1 to 4 steps",
        seen=(
            PublicRun(
                "BLOOM-176B",
                _BLOOM,
                "steps 31215 to 31250: grad norm 0.24 to 960, loss 2.20 to 5.10, back after about"
                " 30 steps; the norm stood out 4 steps before the loss's peak",
            ),
            PublicRun("PaLM-540B", "PaLM paper", "about 20 spikes at irregular places"),
            PublicRun(
                "104B exp 11",
                _TR8,
                "step 11447: grad norm 0.2 to 4.0 one step before the loss went 3.11 to 7.71; about"
                " 2 000 steps to come back",
            ),
        ),
    ),
    KindNote(
        kind="unrecovered-spike",
        looks=(
            "a spike after which the loss settles above its old trend, or climbs on; often several"
            " signals had drifted for long before"
        ),
        first="drift of the loss or of inner norms; update-norm spikes in one run",
        seen=(
            PublicRun(
                "tr8-104B",
                _TR8,
                "loss 6.37 to 10.24 near step 6 900; the true grad norm had been 23 to 69 all"
                " along, at a clip of 1",
            ),
            PublicRun("Marin 32B", _MARIN, "loss 1.96 to 2.02, settled at 1.975 near step 80 000"),
            PublicRun(
                "IDEFICS-80B", "IDEFICS-80B chronicles", "spikes after long drift did not heal"
            ),
        ),
    ),
    KindNote(
        kind="divergence",
        looks=(
            "the slope of the loss turns upwards and stays so, without a single step that"
            " stands out"
        ),
        first=(
            "slow growth of grad norm, or an activation norm that turns upwards, hundreds of steps"
            " before"
        ),
        seen=(
            PublicRun("104B", "BigScience lessons learned", "several set-ups diverged slowly"),
            PublicRun("OPT-66B", _TALK, "one run diverged without a spike and was started anew"),
        ),
    ),
    KindNote(
        kind="shift",
        looks="the level of a signal changes within a short time and stays",
        first="mostly nothing; look for a restart, a new data mix or an epoch at that place",
        seen=(
            PublicRun(
                "Marin 32B", _MARIN, "training loss shifted near step 190 000, validation did not"
            ),
        ),
    ),
    KindNote(
        kind="drift",
        looks="a level moves the wrong way by a little in each thousand steps",
        first="it is itself a first sign",
        seen=(PublicRun("OPT-66B", _TALK, "grad norm 0.20 to 0.25 over weeks"),),
    ),
    KindNote(
        kind="plateau",
        signs=("plateau", "late-stall", "converged", "rate-ended"),
        looks="the loss is flat while the learning rate is not near its end",
        first="a growing gap to a smaller model or to an earlier run at the same step",
        seen=(
            PublicRun("OPT-175B run 2", _OPT, "loss flat after weight decay went from 0.01 to 0.1"),
            PublicRun("tr8-104B", _TR8, "loss 6.3 at about 6 000 steps where 13B had had 4.5"),
            PublicRun(
                "IDEFICS-80B", "IDEFICS-80B chronicles", "nothing learned over the last steps"
            ),
        ),
    ),
    KindNote(
        kind="too-good",
        signs=("too-low", "drop", "held-out-drop", "held-out-solved", "memorised"),
        looks="the training loss falls below what the size and the data allow, with a smooth curve",
        first="the share of repeated n-grams among the targets, from the first hundred steps on",
        seen=(
            PublicRun(
                "OPT-175B",
                _OPT,
                "a change of the data pipeline added escape characters, and the loss became"
                " very low",
            ),
        ),
    ),
    KindNote(
        kind="non-finite",
        looks="NaN or Inf in a loss, norm or scale; within one step it is on all ranks",
        first="in fp16 the loss scale; on a broken node nothing",
        seen=(
            PublicRun("104B exp 12", _TR8, "NaN 285 steps after grad norms of up to 50"),
            PublicRun("GLM-130B", _GLM, "after the data mix was changed at 22 800"),
        ),
    ),
    KindNote(
        kind="scale-collapse",
        looks=(
            "the fp16 loss scale halves again and again, steps are skipped, and at the floor the"
            " run continues without learning"
        ),
        first="the scale itself: 30 steps in one run, 1 300 to 2 200 in another",
        seen=(
            PublicRun("tr8b-104B", "BigScience tr8b chronicles", "1 048 576 to 32 768 in 7 steps"),
            PublicRun("GLM-130B", _GLM, "scale fell at 33 710, loss exploded at 33 740"),
            PublicRun("OPT-175B", _TALK, "2 to 4 when healthy, toward 0 in each crash"),
        ),
    ),
    KindNote(
        kind="skipped-steps",
        looks="the counter of skipped steps grows, and the grad norm printed stays what it was",
        first="the loss scale",
        seen=(
            PublicRun(
                "tr8b-104B",
                "BigScience tr8b chronicles",
                "17061 to 17065: the same grad norm printed five times",
            ),
        ),
    ),
    KindNote(
        kind="grad-explosion",
        looks="the grad norm is at tens of times its level and every step is clipped hard",
        first="it leads the loss",
        seen=(
            PublicRun("OPT-175B 11.x", _OPT, "a few hundred updates after each restart"),
            PublicRun("tr8-104B", _TR8, "grad norms 8 to 107 around step 7 000, at a clip of 1"),
        ),
    ),
    KindNote(
        kind="grad-spike",
        looks="the grad norm leaves its level for a few rows; the loss need not follow",
        first="in one run update norms rose before it",
        seen=(PublicRun("Marin 32B", _MARIN, "the grad norm spiked after the loss had"),),
    ),
    KindNote(
        kind="grad-drift",
        looks="the grad norm rises slowly at a flat or falling learning rate",
        first="weeks before anything else",
        seen=(PublicRun("OPT-66B", _TALK, "0.20 to 0.25 toward the end"),),
    ),
    KindNote(
        kind="activation-reversal",
        looks=(
            "the norm of the last hidden state, which should rise and then fall with the rate,"
            " rises again"
        ),
        first="it leads the loss by hundreds of steps and jumps with it",
        seen=(PublicRun("OPT-175B and OPT-66B", _TALK, "watched as the surest sign of trouble"),),
    ),
    KindNote(
        kind="slowdown",
        looks="the step time rises and stays; the loss shows nothing",
        first="mostly nothing",
        seen=(
            PublicRun(
                "BLOOM-176B", _BLOOM, "149 to 140 TFLOPs; the node was found by leaving nodes out"
            ),
        ),
    ),
    KindNote(
        kind="stall",
        looks=(
            "a few steps take many times as long, at even distances where saves or validations are"
            " the reason"
        ),
        first="",
    ),
    KindNote(
        kind="hang",
        looks="no row any more, and no error until a collective times out",
        first="",
        seen=(
            PublicRun("BLOOM-176B", _BLOOM, "validation hung three times; 18, 6 and 11 hours lost"),
        ),
    ),
    KindNote(
        kind="resume-jump",
        looks="the first rows after a restart do not continue the curve",
        first="settings in force at the first step after the load",
        seen=(
            PublicRun(
                "OPT-175B",
                _OPT,
                "betas came back from the checkpoint, so a planned change never took force",
            ),
            PublicRun(
                "BLOOM-176B", _BLOOM, "bumps at restarts came from tied weights and a decay group"
            ),
        ),
    ),
    KindNote(
        kind="repeated-data",
        looks="a loss too low after a restart, with a jump up when new data comes; or one that scatters no"
        " more",
        first="sample ids, at the first batch after the load",
        seen=(
            PublicRun("a Lightning run", _BOOK, "the sampler began anew at each restart"),
            PublicRun("OPT-175B", _TALK, "data repeated from about step 93 000 on"),
        ),
    ),
    KindNote(
        kind="frozen-signal",
        looks="one value, over and over",
        first="",
        seen=(
            PublicRun("tr1-13B", "BigScience tr1-13B chronicles", "grad norm printed as 0.000"),
            PublicRun("OPT-175B", _OPT, "position embeddings whose gradient stayed 0"),
        ),
    ),
    KindNote(
        kind="grokking",
        looks="training and validation loss fall together, suddenly, away from any epoch boundary",
        first="",
        seen=(PublicRun("a small run", _BOOK, "4 to 2.5 within 480 samples"),),
    ),
    KindNote(
        kind="batch-outlier",
        looks="one row stands out; the next is as before",
        first="",
    ),
    KindNote(
        kind="behind-reference",
        looks=(
            "two runs of one recipe lie on each other, then one stays above by more than the noise"
            " of either; or it lies above from the first rows on and never shows an event"
        ),
        first="the first logged setting or counter that differs: `trimtab compare` names it",
        seen=(
            PublicRun(
                "tr8-104B",
                _TR8,
                "6.3 at step 6 000, where the 13B run had stood at 4.5 with the same data",
            ),
        ),
    ),
    *DOMAIN_NOTES,
    KindNote(
        kind="overfitting",
        signs=("overfitting", "overfitting-few-rows", "score-sinks"),
        looks=(
            "the validation loss turns and rises over several validations, or a held-out score"
            " sinks, and the training loss falls on"
        ),
        first="a gap between the two that widens",
    ),
    KindNote(
        kind="memorised",
        signs=("by-heart", "staircase"),
        looks=(
            "the training loss comes to hundredths of a nat, often by a step down at each pass over"
            " the data"
        ),
        first="steps of the loss at multiples of the epoch",
    ),
    KindNote(
        kind="never-learns",
        signs=(
            "never-learns-chance",
            "never-learns-gradient",
            "never-learns-rate",
            "guessing",
            "no-gradient",
            "unmoved",
            "hardly-moved",
            "barely-warm",
            "creeps",
            "never-validates",
        ),
        looks=(
            "the loss stays at ln k, as a guess among k classes has it, or the gradient norm or the"
            " rate is 0 in every row"
        ),
        first="the first fifty rows themselves",
    ),
    KindNote(
        kind="setting-jump",
        signs=("setting-change", "unannounced-change", "lr-change", "loss-rescaled"),
        looks=(
            "a logged setting leaves its value or its schedule from one row to the next; the loss"
            " may follow hundreds of rows later"
        ),
        first="it is itself a first sign",
        seen=(
            PublicRun("OPT-175B run 2", _OPT, "loss flat after weight decay went from 0.01 to 0.1"),
        ),
    ),
    KindNote(
        kind="held-out-worse",
        looks=(
            "the same few batches, read in eval mode, get worse from reading to reading, while the"
            " training loss may go on as before"
        ),
        first="the reading itself; the training loss may never show it",
    ),
)

KIND_NOTE_BY_NAME: Mapping[str, KindNote] = {n.kind: n for n in KIND_NOTES}
