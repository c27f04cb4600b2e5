"""Contradictions between published sources, as data: the claims, and how trimtab reads them."""

from dataclasses import dataclass

__all__ = ["CONFLICTS", "Conflict", "SourceClaim"]


@dataclass(frozen=True)
class SourceClaim:
    """The claim of one source."""

    source: str
    says: str


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """One disagreement."""

    id: str
    subject: str
    positions: tuple[SourceClaim, ...]
    reading: str
    """What trimtab makes of it, and why."""
    about: tuple[str, ...] = ()
    """Ids of kinds, causes and remedies that it bears on."""


_TR8 = "BigScience tr8-104B chronicles"
_LESSONS = "BigScience lessons learned"
_OPT = "OPT-175B logbook"
_NOTES = "a third party's notes on OPT-175B"
_TALK = "S. Zhang's talk on OPT"

CONFLICTS: tuple[Conflict, ...] = (
    Conflict(
        id="beta2",
        subject="Adam's beta2 of 0.95 against instability",
        positions=(
            SourceClaim(_TR8, "advisers had seen it steady losses like this one"),
            SourceClaim(_LESSONS, "listed among what did not help the 104B model"),
            SourceClaim(
                _OPT, "a change in mid-run never took force: the checkpoint's value came back"
            ),
        ),
        reading="worth setting from the start, as nearly all recipes since do; no cure in mid-run",
        about=("adam-beta2", "poisoned-optimizer-state", "warm-up-end"),
    ),
    Conflict(
        id="weight-decay-1.0",
        subject="weight decay of OPT-175B's run 12",
        positions=(
            SourceClaim(_NOTES, "went to 1.0"),
            SourceClaim(_TALK, "set to match GPT-3, whose value is 0.1"),
            SourceClaim(_OPT, "0.1 in the settings"),
        ),
        reading=(
            "1.0 is a slip for 0.1: ten times the usual decay would stop learning, and two sources"
            " closer to the run say 0.1"
        ),
        about=("weight-decay", "updates-too-small", "plateau"),
    ),
    Conflict(
        id="6k-or-7k",
        subject='where the tr8-104B run broke: "6K" or 7 000',
        positions=(
            SourceClaim(
                _TR8, "the text dates the glitch to 6K, and a drift of the loss scale to 4.7K"
            ),
            SourceClaim(
                f"{_TR8}, log lines",
                "the printed steps of the first failure are 7 000 and 7 010, of the second 6 910 to"
                " 6 940",
            ),
        ),
        reading=(
            "the log lines count; the lead of the loss scale is then about 2 200 steps, 1 300 by"
            " the text"
        ),
        about=("unrecovered-spike", "scale-collapse", "warm-up-end"),
    ),
    Conflict(
        id="stable-attention",
        subject="scaling queries and keys before their product",
        positions=(
            SourceClaim("trainers since", "taken over widely as a matter of course"),
            SourceClaim(_TR8, "try 3 with it failed in the same way"),
            SourceClaim(_OPT, "11.10 with it, from BigScience's change, failed too"),
        ),
        reading=(
            "harmless in exact arithmetic and good for fp16's range; it cured neither run, so do"
            " not wait for it"
        ),
        about=("stable-attention-scaling", "fp16-range"),
    ),
    Conflict(
        id="clip-0.3",
        subject="whether clipping at 0.3 helped OPT-175B",
        positions=(
            SourceClaim(_OPT, "lowered 2.5, 1.5, 1.0, 0.3 alongside other changes"),
            SourceClaim(_TALK, "helped, or only put it off: they could not tell"),
            SourceClaim("Marin 32B retrospective", "a tighter clip made no big difference"),
        ),
        reading=(
            "a delay at least; combine it with a lower learning rate, and compare with the"
            " unchanged run"
        ),
        about=("lower-clip", "learning-rate-too-high"),
    ),
    Conflict(
        id="opt-peak-rate",
        subject="peak learning rate of OPT-175B's run 12",
        positions=(
            SourceClaim(_OPT, "1.2e-4"),
            SourceClaim("OPT code, table of models", "3e-5"),
            SourceClaim("GPT-3 paper", "6e-5 for that size"),
            SourceClaim(_NOTES, "1.2e-4, lowered whenever the loss began to diverge"),
        ),
        reading=(
            "1.2e-4 at the start, and much less in force later; look at the rate as it was, not at"
            " the table"
        ),
        about=("lower-lr", "learning-rate-too-high"),
    ),
    Conflict(
        id="z-loss-size",
        subject="weight of the z-loss",
        positions=(
            SourceClaim("PaLM paper", "1e-4"),
            SourceClaim("OLMo 2 report", "1e-4"),
            SourceClaim("OLMo-core, configuration", "1e-5"),
        ),
        reading="either is small; 1e-4 is the better tested",
        about=("z-loss",),
    ),
    Conflict(
        id="olmo2-13b-rate",
        subject="peak learning rate of OLMo 2 13B",
        positions=(
            SourceClaim("OLMo 2 report", "9e-4"),
            SourceClaim("OLMo, configuration file", "3e-4"),
        ),
        reading="open",
        about=("learning-rate-too-high",),
    ),
    Conflict(
        id="patience",
        subject="whether to wait for a huge spike to heal",
        positions=(
            SourceClaim(_LESSONS, "one healed after some 2 000 steps, more often they did not"),
            SourceClaim("BLOOM chronicles", "its one spike healed in 30 steps"),
            SourceClaim(
                "IDEFICS-80B chronicles", "waited for hours in vain where drift came before"
            ),
        ),
        reading="wait where nothing drifted before; roll back where it did",
        about=("patience", "spike", "unrecovered-spike", "benign-noise"),
    ),
    Conflict(
        id="llama3-gpu-share",
        subject="share of GPU faults among Llama 3's interruptions",
        positions=(
            SourceClaim("Llama 3 paper, text", "30.1 %"),
            SourceClaim("Llama 3 paper, counts of its table", "148 of 419, which is 35.3 %"),
        ),
        reading="the counts",
        about=("hardware-fault", "exclude-node"),
    ),
)
