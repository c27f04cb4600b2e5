"""Remedies outside the dynamics of the loss: input, order of data, logging, updates."""

from trimtab.plan.remedies import Evidence as Ev
from trimtab.plan.remedies import Remedy

__all__ = ["OUTSIDE_REMEDIES"]

OUTSIDE_REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        id="guard-the-loss",
        title="guard the loss: skip batches without labels, keep logs and divisions away from 0",
        changes=(
            "the code of the loss: divide by max(labels, 1), add an epsilon within a log or a root,"
            " compute it in fp32"
        ),
        cost="a change of code at the next restart",
        undo="take the guard out",
        when="mid-run",
    ),
    Remedy(
        id="announce-it",
        title="look at what the script does at that step; if it is meant, announce it",
        changes="nothing where it is meant: guard.expect(...) ahead of it; else the script",
        cost="nothing; the steps since, if it was not meant",
        undo="take the announcement out",
        when="mid-run",
    ),
    Remedy(
        id="widen-input",
        title="give the input more workers, memory or a faster disk",
        changes="workers of the data loader, its prefetch, or where the data lies",
        cost="host memory and processor time",
        undo="set the workers back",
        when="mid-run",
    ),
    Remedy(
        id="restore-data-order",
        title="bring the order of data back and name what was fed",
        changes="the position of the sampler at a restart, and its seed",
        cost="a restart; what was learned from repeated data stays",
        undo="start the sampler as before",
        when="mid-run",
        worked=(
            Ev(
                "Marin 32B", "Marin 32B retrospective", "another shuffle cured a shift near 190 000"
            ),
        ),
    ),
    Remedy(
        id="shuffle-data",
        title="shuffle the samples anew at each pass, across labels and sources",
        changes="the sampler, or a shuffle buffer that is larger than one label or source is long",
        cost="a restart; no steps are lost",
        undo="feed the samples in the old order",
        when="mid-run",
    ),
    Remedy(
        id="keep-best",
        title="stop there: keep the checkpoint of the best validation",
        changes="which checkpoint is kept; nothing in training",
        cost="the steps after that checkpoint, which made the model worse on other data",
        undo="go on from the last checkpoint, which stays",
        when="mid-run",
    ),
    Remedy(
        id="regularize",
        title="in the next run: more data, augmentation, dropout, weight decay or a smaller model",
        changes="what the model can learn by heart",
        cost="a new run",
        undo="train as before",
        when="from scratch",
    ),
    Remedy(
        id="fewer-passes",
        title="stop before the data is learned by heart, or train on more data",
        changes="the number of passes over the data, or the data",
        cost="the steps after the checkpoint that is kept",
        undo="go on from the last checkpoint",
        when="mid-run",
    ),
    Remedy(
        id="mend-labels",
        title="count the labels that are not masked in a batch, and mend what masks them",
        changes="the code or the settings that build the labels: template, truncation, padding",
        cost="a restart; the steps since the onset taught nothing",
        undo="build the labels as before",
        when="mid-run",
    ),
    Remedy(
        id="check-first-batch",
        title="start again, and watch the first batch go forward (trimtab.guard.find_overflow)",
        changes=(
            "nothing yet: find_overflow(model, forward) names the modules by how near their outputs"
            " come to the largest number of the format, and the first that is not finite"
        ),
        cost="two forward passes; nothing has been learned that could be lost",
        undo="start without the check",
        when="mid-run",
    ),
    Remedy(
        id="start-in-fp32",
        title="start again in fp32 with plain kernels for ten steps, from the same initial weights",
        changes=(
            "the number format, and the kernels: plain attention, none that is compiled or fused"
        ),
        cost="ten slow steps; nothing has been learned that could be lost",
        undo="go back to the old format once the cause is found",
        when="mid-run",
    ),
    Remedy(
        id="watch-pace",
        title="go on, and note which steps are slow",
        changes="nothing",
        cost="the time that slow steps take until it is clear why",
        undo="look at the input, the nodes and the network at once",
        when="mid-run",
    ),
    Remedy(
        id="weight-decay",
        title="set weight decay to the usual 0.1, off for norms and biases",
        changes="the pull of the weights toward 0, by parameter group",
        cost="a larger one shrinks weights faster than they learn; a smaller one lets norms grow",
        undo="set it back",
        when="unsure",
        worked=(
            Ev("OPT-175B", "OPT-175B logbook", "0.1 from run 12 on, as in GPT-3"),
            Ev("OLMo 2", "OLMo 2 report", "off for embeddings: fewer spikes of the grad norm"),
        ),
        failed=(Ev("OPT-175B run 2", "OPT-175B logbook", "0.01 to 0.1, and the loss stood still"),),
    ),
    Remedy(
        id="repair-logging",
        title="repair what the log measures",
        changes="the line of code that logs the signal",
        cost="a change of code at the next restart; the past stays unknown",
        undo="take the line out",
        when="mid-run",
        worked=(
            Ev(
                "OPT-175B",
                "OPT-175B logbook",
                "position embeddings were found frozen by a gradient that stayed 0",
            ),
        ),
    ),
    Remedy(
        id="read-its-end",
        title="find what ends each start (trimtab inspect on its console output), and save more often",
        changes="what ends the run: memory, a time limit, a batch, a node",
        cost="minutes; each further start costs the steps since the checkpoint again",
        undo="nothing to undo",
        when="mid-run",
    ),
    Remedy(
        id="free-memory",
        title="find what is kept, and restart from a checkpoint before memory is used up",
        changes=(
            "the line that keeps tensors from step to step: losses gathered with their graph, a"
            " cache without a bound, workers that copy the data"
        ),
        cost="a restart; no steps are lost",
        undo="nothing to undo",
        when="mid-run",
    ),
)
