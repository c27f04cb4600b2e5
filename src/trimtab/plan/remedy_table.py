"""The table of remedies, with the public runs in which each helped or did not.

Sources: the OPT-175B logbook and notes (facebookresearch/metaseq), the BigScience chronicles and
lessons learned (bigscience-workshop/bigscience), the GLM-130B training log (THUDM/GLM-130B), the
IDEFICS-80B chronicles (huggingface/m4-logs), the PaLM paper (arXiv:2204.02311), the Marin 32B
retrospective (marin-community), and the papers named.
"""

from collections.abc import Mapping

from trimtab.plan.domain_remedies import DOMAIN_REMEDIES
from trimtab.plan.outside_remedies import OUTSIDE_REMEDIES
from trimtab.plan.remedies import Evidence, Remedy

__all__ = ["REMEDIES", "REMEDY_BY_ID"]


def _ev(run: str, source: str, note: str = "") -> Evidence:
    """Return a run of this table, all of which are of language models."""
    return Evidence(run, source, note, language=True)


_OPT = "OPT-175B logbook"
_TR8 = "BigScience tr8-104B chronicles"
_LESSONS = "BigScience lessons learned"
_GLM = "GLM-130B training log"
_M4 = "IDEFICS-80B chronicles"
_PALM = "PaLM paper"
_MARIN = "Marin 32B retrospective"
_BLOOM = "BLOOM chronicles"

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        id="roll-back",
        title="roll back to a healthy checkpoint before the first sign",
        changes="weights, optimizer, scheduler, scaler, random states and data position",
        cost="the steps since that checkpoint are given up",
        undo="newer checkpoints are moved aside, not deleted; move them back",
        when="mid-run",
        worked=(
            _ev(
                "PaLM-540B",
                _PALM,
                "about 100 steps back, with the data left out, at some 20 spikes",
            ),
            _ev("OPT-175B", _OPT, "when it went far enough back"),
        ),
        failed=(
            _ev("tr8-104B", _TR8, "to 6210 with another seed: failed again, sooner"),
            _ev("OPT-175B close restarts", _OPT, "close to the explosion they exploded again"),
        ),
    ),
    Remedy(
        id="roll-back-further",
        title="roll back further",
        changes="the same, from an older checkpoint",
        cost="more steps are given up; what else was learned since is lost too",
        undo="newer checkpoints are moved aside, not deleted; move them back",
        when="mid-run",
        worked=(
            _ev("OPT-175B", _OPT, "some spikes were passed only after a long way back"),
            _ev("IDEFICS-80B", _M4, "done repeatedly"),
        ),
    ),
    Remedy(
        id="lower-lr",
        title="lower the learning rate",
        changes="the learning rate in force, by a factor that the scheduler cannot undo",
        cost="slower learning while it lasts",
        undo=(
            "take the factor away in steps, and only after a review: raising it back failed"
            " elsewhere"
        ),
        when="mid-run",
        worked=(
            _ev("OPT-175B", _OPT, "each time the run began to diverge"),
            _ev("OPT-66B", _OPT, "the same"),
            _ev("104B exp 11", _LESSONS, "6e-5 to 3e-5, together with a smaller init"),
            _ev("GLM-130B", _GLM, "halved its minimum"),
            _ev("IDEFICS-80B", _M4, "by a quarter, then by half; doubling it back was a mistake"),
        ),
        failed=(_ev("104B exp 7-10", _TR8, "6e-5 down to 1e-5 only postponed it"),),
    ),
    Remedy(
        id="restore-lr",
        title="bring the learning rate back to what was in force",
        changes="the learning rate in force, to its value at the restore point",
        cost="none in learning if the rise was a mistake; if it was meant, the schedule is behind",
        undo="take the factor away",
        when="mid-run",
    ),
    Remedy(
        id="skip-data",
        unfit=("agent",),
        title="leave the suspect samples out",
        changes="the data order: the named sample ids are never fed",
        cost="that data is not learned from; keep the total small",
        undo="feed the samples later from a healthy state",
        when="mid-run",
        worked=(
            _ev("PaLM-540B", _PALM, "200-500 batches at each of about 20 spikes; none came back"),
            _ev("GLM-130B", _GLM, "40701-40900 left out"),
            _ev("104B exp 12 first skip", _TR8, "13251-14000 left out; held until about 17 000"),
        ),
        failed=(
            _ev("104B exp 12 later skips", _TR8, "did not hold"),
            _ev("tr8-104B", _TR8, "a new seed, hence other data, only moved the spike"),
        ),
    ),
    Remedy(
        id="skip-update",
        title="skip the update of a step whose gradient stands out",
        changes="single steps: weights and optimizer state stay as they were",
        cost="the step's data is spent; too many skips stop learning unnoticed",
        undo="raise the threshold",
        when="mid-run",
        worked=(_ev("OLMo 2", "OLMo-core SkipStep", "in production"),),
        failed=(_ev("OPT-175B", _OPT, "skipping on grad norm above 1.0 did not save runs 11.x"),),
    ),
    Remedy(
        id="lower-clip",
        title="clip gradients tighter",
        changes="the clip norm",
        cost=(
            "evidence is mixed, it may only delay; a clip below the usual norm scales every step"
            " down"
        ),
        labels=("evidence: delays only?",),
        undo="raise the clip again",
        when="mid-run",
        worked=(
            _ev(
                "OPT-175B",
                _OPT,
                "2.5 to 1.5 to 1.0 to 0.3: helped or delayed, they could not tell; without any clip"
                " it failed",
            ),
        ),
        failed=(_ev("Marin 32B", _MARIN, "no big difference"),),
    ),
    Remedy(
        id="adam-beta2",
        unfit=("agent", "game"),
        title="lower Adam's beta2 to 0.95",
        changes="the memory of the second moment",
        cost="slower but more stable; the moments need a while to follow",
        undo="set it back",
        when="unsure",
        needs=("second-moment",),
        worked=(_ev("BLOOM-176B", _BLOOM, "0.95 from the start; one spike in the whole run"),),
        failed=(
            _ev("104B", _LESSONS, "0.999 to 0.95 listed under what did not work"),
            _ev(
                "OPT-175B",
                _OPT,
                "the checkpoint's value was loaded back, so the change never took force",
            ),
        ),
    ),
    Remedy(
        id="adam-eps",
        title="change Adam's epsilon",
        changes="the floor under the second moment",
        cost=(
            "a larger one freezes tensors with tiny gradients, a smaller one amplifies their noise"
        ),
        undo="set it back",
        when="unsure",
        needs=("second-moment",),
        worked=(_ev("OLMo 2", "OLMo 2 report", "smaller: the grad norm settled sooner"),),
        failed=(_ev("OPT-175B", _OPT, "1e-8 to 1e-6: no effect seen, with a bug present"),),
    ),
    Remedy(
        id="init-std",
        title="initialize with std sqrt(2 / (5 x hidden size))",
        changes="the scale of the initial weights",
        cost="a restart from step 0",
        undo="another restart from step 0",
        when="from scratch",
        needs=("language-model",),
        worked=(
            _ev("104B exp 11", _LESSONS, "0.02 to 0.006 made the difference"),
            _ev("BLOOM-176B", _BLOOM, "0.0048"),
        ),
    ),
    Remedy(
        id="embedding-layernorm",
        title="add a LayerNorm after the embedding",
        changes="the architecture",
        cost="a restart from step 0, and an architecture that others must support",
        undo="another restart from step 0",
        when="from scratch",
        needs=("language-model",),
        worked=(_ev("104B and BLOOM", _LESSONS, "helped against spikes that do not heal"),),
        failed=(
            _ev("tr8b-104B", "BigScience tr8b chronicles", "diverged at about 14 000 with it"),
        ),
    ),
    Remedy(
        id="embedding-gradient-shrink",
        title="shrink the gradient of the embedding",
        changes="the embedding's gradient, by 0.1",
        cost="embeddings learn more slowly",
        undo="set the factor back to 1, slowly",
        when="mid-run",
        needs=("language-model",),
        worked=(
            _ev(
                "GLM-130B",
                _GLM,
                "0.1 from the start; taken back to 1 at about 6 000, spikes at 33 700 and 35 200,"
                " then 0.1 again",
            ),
        ),
    ),
    Remedy(
        id="bf16",
        title="train in bf16, gradients summed in fp32",
        changes="the number format; no loss scale any more",
        cost="hardware that has it; fewer digits than fp16, more memory for fp32 sums",
        undo="go back to fp16 with a fresh loss scale",
        when="unsure",
        needs=("loss-scale",),
        worked=(
            _ev("BLOOM-176B", _BLOOM, "one spike in the whole run"),
            _ev("OPT", _OPT, "in hindsight"),
        ),
    ),
    Remedy(
        id="loss-scaler-reset",
        title="reset the loss scaler",
        changes="the loss scale and its counters",
        cost="some skipped steps while it finds its level",
        undo="load the saved scaler",
        when="mid-run",
        needs=("loss-scale",),
        worked=(_ev("OPT-175B", "OPT paper", "helped in some restarts"),),
    ),
    Remedy(
        id="stable-attention-scaling",
        title="scale queries and keys before their product",
        changes="the order of operations in attention; the mathematics stay the same",
        cost="a change of code; another kernel may be slower",
        undo="change the code back",
        when="mid-run",
        needs=("attention",),
        failed=(
            _ev("tr8-104B try 3", _TR8, "failed in the same way"),
            _ev("OPT-175B 11.10", _OPT, "failed too"),
        ),
    ),
    Remedy(
        id="qk-norm",
        title="normalise queries and keys",
        changes="the architecture: a norm on queries and keys of every head",
        cost="some step time; in mid-run a re-warm-up of about 1 000 steps",
        undo="go back to a checkpoint without it",
        when="unsure",
        needs=("attention",),
        worked=(
            _ev(
                "Marin 32B",
                _MARIN,
                "put in at 80 000 with a re-warm-up; cured what nothing else did",
            ),
        ),
    ),
    Remedy(
        id="z-loss",
        title="add a z-loss on the output logits",
        changes="the loss: 1e-4 x log(Z)^2",
        cost="a small pull on the logits; fast spikes are not touched",
        undo="set its weight to 0",
        when="mid-run",
        needs=("language-model",),
        worked=(
            _ev("PaLM-540B", _PALM, "1e-4 throughout"),
            _ev("Marin 32B", _MARIN, "stopped growth of the output layer"),
        ),
    ),
    Remedy(
        id="optimizer-reset",
        title="reset the optimizer's moments",
        changes="Adam's moments, to zero, with a learning-rate warm-up after it",
        cost="a spike right after it is likely; warm the learning rate up again",
        undo="load the saved optimizer state",
        when="unsure",
        needs=("moments",),
        failed=(
            _ev("104B", _TR8, "huge spike even with a hundred steps at rate 0"),
            _ev("Marin 32B", _MARIN, "relapsed"),
            _ev("OPT-175B", _OPT, "swapping to SGD made a plateau"),
        ),
    ),
    Remedy(
        id="longer-warm-up",
        title="warm the learning rate up for longer",
        changes="the schedule",
        cost="a restart from step 0, and slower learning at first",
        undo="another restart from step 0",
        when="from scratch",
        worked=(_ev("advice of Conglong Li", _TR8, "gradients are largest where the ramp ends"),),
        failed=(_ev("104B", _LESSONS, "did not help"),),
    ),
    Remedy(
        id="sequence-length-warm-up",
        title="start with short sequences",
        changes="the length of training sequences at first",
        cost="may mask the fault it is meant to cure",
        labels=("may mask",),
        undo="train at full length",
        when="from scratch",
        needs=("language-model",),
        worked=(_ev("GPT-2 1.5B", "arXiv:2108.06084", "larger batches and rates stayed stable"),),
        failed=(_ev("104B", _LESSONS, "did not help"),),
    ),
    Remedy(
        id="double-batch",
        title="double the batch",
        changes="the tokens of each update",
        cost=(
            "twice the tokens for each update: the same corpus gives half the updates, and each"
            " token teaches less"
        ),
        undo="halve it again",
        when="mid-run",
        failed=(_ev("OPT-175B", _OPT, "not much difference, and less efficient per sample"),),
    ),
    Remedy(
        id="width-depth-ratio",
        title="change the ratio of width to depth",
        changes="the architecture",
        cost="a restart from step 0",
        undo="another restart from step 0",
        when="from scratch",
        failed=(_ev("104B", _LESSONS, "did not help"),),
    ),
    Remedy(
        id="ramp-data-mix",
        title="change the data mix gradually",
        changes="the shares of the sources, over many steps",
        cost="the new mix arrives later",
        undo="go back to the old shares",
        when="mid-run",
        worked=(
            _ev("GLM-130B", _GLM, "a ramp and a re-warm-up, after an abrupt change had diverged"),
        ),
    ),
    Remedy(
        id="restore-settings",
        title="bring back the settings, versions and state of before",
        changes="settings, versions or loaded state, to those in force at the save",
        cost="a restart; what the change was meant to fix stays as it was",
        undo="make the change again, alone and watched",
        when="mid-run",
        worked=(
            _ev("OPT-175B", _OPT, "an accidental library update was found in the activation norms"),
        ),
    ),
    Remedy(
        id="put-back",
        title="put the changed setting back",
        changes="the setting that changed without being announced, to its value before",
        cost="the steps since the change, where the run goes back to before it",
        undo="guard.undo('put-back', why=...), or set it again and announce it: guard.expect(...)",
        when="mid-run",
    ),
    Remedy(
        id="as-reference",
        title="set what differs as the reference run has it",
        changes="the settings in which the run differs from its reference",
        cost="what the difference was meant to try; a restart, where the run cannot catch up",
        undo="set them as they were",
        when="mid-run",
    ),
    Remedy(
        id="exclude-node",
        title="leave the faulty node out",
        changes="the list of nodes",
        cost="a restart with fewer or spare nodes",
        undo="put the node back after a test",
        when="mid-run",
        worked=(
            _ev("OPT-175B", _OPT, "hosts were cycled throughout"),
            _ev("BLOOM-176B", _BLOOM, "a slow node found by elimination"),
        ),
    ),
    Remedy(
        id="patience",
        title="go on and watch",
        changes="nothing",
        cost="the steps until it is clear, if it does not heal",
        undo="roll back to before the first sign",
        when="mid-run",
        worked=(
            _ev("BLOOM-176B", _BLOOM, "back within about 30 steps"),
            _ev("104B exp 11", _LESSONS, "back after about 2 000 steps"),
        ),
        failed=(
            _ev("104B other spikes", _LESSONS, "more often than not a huge spike did not heal"),
        ),
    ),
    *OUTSIDE_REMEDIES,
    *DOMAIN_REMEDIES,
)

REMEDY_BY_ID: Mapping[str, Remedy] = {r.id: r for r in REMEDIES}
