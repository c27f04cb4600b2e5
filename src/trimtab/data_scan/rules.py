"""The rules of the scan, as data.

What is said, from which share on, why, by whom it is known, what to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["RULES", "DataRule"]


@dataclass(frozen=True, kw_only=True)
class DataRule:
    """One rule."""

    name: str
    says: str
    why: str
    source: str
    instead: str
    warning_share: float = 0.0
    """Share of the units from which on it is a warning; below, a remark."""
    error_share: float | None = None
    """Share from which on it is an error; None: it never is."""
    skip: bool = False
    """Whether leaving the units out is the remedy."""
    totals: tuple[str, ...] = ()
    """Counts of the source that belong to it."""

    def severity(self, share: float) -> Literal["error", "warning", "info"]:
        """Return how much a share matters."""
        if self.error_share is not None and share >= self.error_share:
            return "error"
        return "warning" if share >= self.warning_share else "info"


_OPT = "OPT-175B logbook (2021)"
_BLOOM = "BigScience, OSCAR sample (2022)"
_OLMO = "OLMo 2, arXiv:2501.00656, section 3.1"
_SKIP = (
    "leave them out: --write-skip FILE, then guard.skip_list(FILE); and mend the step that made"
    " them"
)

_ALL = (
    DataRule(
        name="escapes",
        says="backslashes dominate",
        why=(
            "one batch of them is a spike, many teach the model to print them: the loss looks"
            " better than it is"
        ),
        source=(
            f"{_OPT}: deduplication added backslashes, the loss fell too low; {_BLOOM}: 6,318"
            " records with long runs"
        ),
        instead=_SKIP,
        error_share=0.001,
        skip=True,
        totals=("backslashes", "escape_runs"),
    ),
    DataRule(
        name="repeats",
        says="one n-gram repeated 32 times or more",
        why="long repeats cause gradient spikes at the same samples from any state",
        source=f"{_OLMO}: such sequences are masked",
        instead=_SKIP,
        warning_share=0.0001,
        error_share=0.005,
        skip=True,
        totals=("repeat_runs", "repeat_elements"),
    ),
    DataRule(
        name="low-entropy",
        says="far more repetitive than the rest of the source",
        why=(
            "what compresses well is predicted well: a loss that is too good, then a spike when it"
            " ends"
        ),
        source=(
            "trimtab's lab: zlib ratio of the batch, 0.57 to 0.37, at step 0 of an artefact window"
        ),
        instead=_SKIP,
        warning_share=0.001,
        error_share=0.05,
        skip=True,
    ),
    DataRule(
        name="incompressible",
        says="hardly compresses: random bytes, base64 or binary",
        why="a window of noise lifted the loss from 2.0 to 12.2 in one step",
        source="trimtab's lab: bad window of random bytes",
        instead=_SKIP,
        error_share=0.005,
        skip=True,
    ),
    DataRule(
        name="one-token",
        says="one token fills more than half",
        why="padding, a broken tokenizer or an artefact; its targets are free",
        source=f"{_OPT}; {_OLMO}",
        instead=_SKIP,
        error_share=0.005,
        skip=True,
    ),
    DataRule(
        name="markup",
        says="HTML markup, not text",
        why="templates repeat on every page of a site, and are learnt instead of the text",
        source="C4, arXiv:1910.10683, section 2.2; MassiveText, arXiv:2112.11446, appendix A",
        instead="extract the text first (trafilatura, resiliparse), then deduplicate",
        warning_share=0.01,
        totals=("closing_tags",),
    ),
    DataRule(
        name="exact-duplicates",
        says="came before, byte for byte",
        why=(
            "a small part repeated often costs more than its share: 0.1 % repeated 100 times made"
            " an 800M model as good as one of half its size"
        ),
        source="Hernandez et al. 2022, arXiv:2205.10487; Lee et al. 2022, arXiv:2107.06499",
        instead="deduplicate, or plan the repeats; --write-skip FILE leaves all but the first out",
        warning_share=0.01,
        skip=True,
        totals=("exact_duplicates",),
    ),
    DataRule(
        name="near-duplicates",
        says="nearly the same as one before (MinHash, similarity about 0.85 and more)",
        why=(
            "subsets that were repeated on purpose, as in the Pile, are repeated whether you plan"
            " it or not"
        ),
        source=(
            "The Pile, arXiv:2101.00027, table 1 (epochs); OPT, arXiv:2205.01068: Pile dropped in"
            " part, MinhashLSH at 0.95"
        ),
        instead="deduplicate (datatrove, text-dedup), or plan the repeats",
        warning_share=0.05,
        totals=("near_duplicates",),
    ),
    DataRule(
        name="same-beginning",
        says="begin with the same 64 bytes as twenty and more before",
        why=(
            "the head of a template, a menu or a licence is learnt by heart, and hides near"
            " duplicates that are short"
        ),
        source=(
            "Lee et al. 2022, arXiv:2107.06499, section 4; MassiveText, arXiv:2112.11446,"
            " appendix A"
        ),
        instead=(
            "look at the examples; take out what all have in common, if it is no prompt that is"
            " meant"
        ),
        warning_share=1.1,
    ),
    DataRule(
        name="replacement-characters",
        says="U+FFFD: decoded with errors replaced",
        why="what was there is lost, and the character is learnt in its place",
        source="Unicode 15, section 5.22",
        instead="decode the originals with their own encoding",
        warning_share=0.005,
        totals=("replacement-characters",),
    ),
    DataRule(
        name="nul-bytes",
        says="NUL bytes",
        why="binary data, or UTF-16 read as bytes",
        source="RFC 8259, section 7; Unicode 15, section 23.1",
        instead=_SKIP,
        warning_share=0.001,
        error_share=0.05,
        skip=True,
        totals=("nul-bytes",),
    ),
    DataRule(
        name="mojibake",
        says="UTF-8 decoded as Latin-1 or Windows-1252",
        why="accents and quotes become two or three letters each",
        source="ftfy documentation (Speer)",
        instead="ftfy.fix_text, or decode as UTF-8",
        warning_share=0.005,
        totals=("mojibake",),
    ),
    DataRule(
        name="invalid-utf-8",
        says="no valid UTF-8",
        why="tokenizers drop or replace such bytes, each in its own way",
        source="RFC 3629",
        instead="decode the originals with their own encoding",
        warning_share=0.001,
        error_share=0.05,
    ),
    DataRule(
        name="double-escaped",
        says=r"JSON escapes written out (\n, \", \u00e9)",
        why=(
            "a step encoded what was encoded; escaping doubled the length of a sample and the first"
            " estimate of the damage"
        ),
        source=f"{_BLOOM}: 2M samples estimated, about 1M after unescaping; {_OPT}",
        instead="decode once more (json.loads) and scan again",
        warning_share=0.001,
        error_share=0.05,
        skip=True,
    ),
    DataRule(
        name="empty-documents",
        says="empty, or nothing but blanks",
        why="they weigh in a mixture by number, and give only end-of-text",
        source="MassiveText, arXiv:2112.11446, appendix A: fewer than 50 words are dropped",
        instead=_SKIP,
        warning_share=0.01,
        skip=True,
    ),
    DataRule(
        name="empty-source",
        says="holds nothing",
        why="a shard that was never written is one that the mixture lacks",
        source="RFC 8259; Megatron-LM, indexed_dataset.py",
        instead="look at the step that wrote it; take the file away, if it is meant to be empty",
    ),
    DataRule(
        name="giant-documents",
        says="a million bytes or more",
        why="dumps and logs; of OSCAR's backslash records 3,835 were about 1M characters long",
        source=_BLOOM,
        instead="look at the examples; cut or leave out what is no text",
        warning_share=0.001,
    ),
    DataRule(
        name="cut-at-one-length",
        says="many documents end at the same length",
        why="an earlier step cut them there: they end in mid-sentence, without their end",
        source=_BLOOM,
        instead="look for a limit in the steps before",
        warning_share=0.0,
    ),
    DataRule(
        name="unreadable",
        says="could not be read",
        why="they count as empty; a torn shard ends the epoch early or shifts every later id",
        source="RFC 8259",
        instead="make the shard anew",
        warning_share=0.0,
        error_share=0.05,
    ),
    DataRule(
        name="token-range",
        says="token ids without a row in the embedding",
        why="an index out of range: a device-side assert, or silently another row",
        source="torch.nn.Embedding documentation",
        instead="tokenise with the tokenizer of the model, or raise the vocabulary",
    ),
    DataRule(
        name="token-overflow",
        says="ids may have been cut to 16 bits",
        why="above 65,535 they wrap around and stand for other tokens",
        source="Megatron-LM, indexed_dataset.py: uint16 below 65,500 entries only",
        instead="write the tokens as int32",
    ),
    DataRule(
        name="epochs",
        says="data comes again",
        why=(
            "up to four times costs little, more costs more each time; the loss falls at each"
            " boundary and says nothing"
        ),
        source=f"Muennighoff et al. 2023, arXiv:2305.16264; {_OPT}: second epoch near step 93k",
        instead="plan it: lower --plan-tokens, or more data",
    ),
    DataRule(
        name="inserted",
        says="the step before inserted something",
        why="a step that only takes away cannot make anything more frequent",
        source=f"{_OPT}: deduplication added escapes",
        instead="compare the writer's escaping on both sides (json.dumps twice, repr, csv quoting)",
    ),
)

RULES: Mapping[str, DataRule] = {rule.name: rule for rule in _ALL}
"""By name."""
