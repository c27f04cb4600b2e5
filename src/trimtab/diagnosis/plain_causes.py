"""Causes with one unmistakable sign; without the sign they are practically excluded."""

from trimtab.diagnosis import evidence as e
from trimtab.diagnosis.cause_entry import CauseEntry
from trimtab.diagnosis.evidence import EvidenceRule

__all__ = ["PLAIN"]

PLAIN: tuple[CauseEntry, ...] = (
    CauseEntry(
        id="never-finite",
        title="never finite: number format, initialization, first batch or a kernel",
        modes=("F06", "F18", "F30"),
        # Rare, so that other incidents lose nothing to it: the sign lifts it by e^12 = 160,000,
        # above every other cause.
        prior=0.002,
        rules=(
            EvidenceRule(
                "never-finite",
                e.never_finite,
                12.0,
                "no finite loss was ever logged, so no update on finite numbers was made: "
                "neither the learning rate nor a later state can be to blame",
            ),
            EvidenceRule(
                "broken-unseen",
                e.broken_unseen,
                6.0,
                "no finite loss was ever logged; the updates before the first row are not seen",
            ),
            EvidenceRule("was-finite", e.was_finite, -8.0, "the run had finite values before"),
            EvidenceRule(
                "live-norms",
                lambda f: e.yes(f.live_norms),
                -8.0,
                "the gradients stayed finite all the while, so the weights did",
            ),
        ),
        look_alikes=("fp16-range", "hardware-fault"),
        test=(
            "feed the first batch forward through fresh weights in fp32 and find the first module"
            " whose output is not finite"
        ),
        remedies=("check-first-batch", "start-in-fp32"),
        go_back="never",
    ),
    CauseEntry(
        id="data-order-not-restored",
        title="the resume did not restore the order of data, so it was fed again",
        modes=("F17",),
        prior=0.002,
        rules=(
            EvidenceRule(
                "fed-again",
                e.fed_again,
                12.0,
                "losses or counters show that data was fed again after the resume at"
                " {f.fed_again_from:.0f}",
            ),
            EvidenceRule(
                "no-sign", e.not_fed_again, -8.0, "nothing shows data fed again after a resume"
            ),
        ),
        look_alikes=("repeated-data", "code-or-resume-change", "bad-data-window"),
        test="compare the sample ids fed after the resume with all that were fed before",
        remedies=("restore-data-order",),
        go_back="never",
    ),
    CauseEntry(
        id="uniform-output",
        title="a dead model: it gives one answer to everything, or the uniform distribution",
        modes=("F36",),
        prior=0.002,
        rules=(
            EvidenceRule(
                "uniform",
                e.uniform,
                12.0,
                "the loss is constant at {f.uniform_loss:.4g} = ln {f.uniform_over}: all classes "
                "get the same probability, so nothing of the input reaches the output",
            ),
            EvidenceRule(
                "one-answer",
                e.sign("flat-above"),
                6.0,
                "the loss does not scatter from batch to batch any more, and stands above its lowest",
            ),
            EvidenceRule(
                "no-sign",
                lambda f: e.not_uniform(f) * e.no_sign("flat-above")(f),
                -8.0,
                "the loss is not that of a uniform distribution",
            ),
        ),
        look_alikes=("not-wired", "updates-too-small"),
        test=(
            "feed two different batches forward: the same logits for both mean that the model is"
            " dead"
        ),
        remedies=("roll-back", "lower-lr"),
        go_back="always",
    ),
)
