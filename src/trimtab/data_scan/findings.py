"""From counts to findings: what was found, why it matters, its source, and what to do."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab.data_scan.difference import CleaningDifference
from trimtab.data_scan.epochs import EpochPlan
from trimtab.data_scan.passes import NOT_JUDGED, RATIO_STEPS
from trimtab.data_scan.rules import DataRule, data_rules
from trimtab.data_scan.source_counts import MAX_EXAMPLES, Example, SourceCounts, Tally
from trimtab.signals.robust import mad_sigma

__all__ = ["DataFinding", "Figures", "corpus_tokens", "figures", "judge"]

Severity = Literal["error", "warning", "info"]
Figures: TypeAlias = dict[str, Any]
"""A row of the table as JSON holds it: counts, shares, names; docs/formats.md lists the fields."""
_ORDER = {"error": 0, "warning": 1, "info": 2}
BYTES_PER_TOKEN = 4
"""Typical for English under common tokenizers; only used to estimate the tokens of text."""
OUTLIER_SPREADS = 8.0
OUTLIER_DISTANCE = 0.15
"""A piece is an outlier below median - max(8 robust spreads, 0.15): an artefact in half of a batch
moved the ratio by 3.5 to 9 spreads in trimtab's own lab, prose of one source stays within 0.1."""
SOUND_RATIO = {"text": 0.12, "tokens": 0.20}
"""An outlier is also below this: in a mixture the median says little. Nothing in Python's standard
library as text is below 0.12, nor are Chinese, tables of numbers or LaTeX; the artefacts of our
tests are below 0.08. Two bytes a token hold more: ids of prose come to 0.75."""
_FEWEST_JUDGED = 20


@dataclass(frozen=True, kw_only=True)
class DataFinding:
    """What one rule says of one source, or of all (`where` is then empty)."""

    rule: str
    severity: Severity
    message: str
    values: Mapping[str, Any]
    why: str
    source: str
    instead: str
    where: str = ""
    count: int = 0
    """Units hit."""
    examples: tuple[Example, ...] = ()
    ranges: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    """[first, last] of the units hit, where leaving them out is the remedy."""


def judge(
    accounts: Sequence[SourceCounts],
    *,
    vocab: int | None,
    epochs: EpochPlan | None,
    difference: CleaningDifference | None,
) -> tuple[DataFinding, ...]:
    """Return all findings, most severe first, then by how much is hit."""
    found: list[DataFinding] = []
    for account in accounts:
        if _holds_nothing(account):
            found.append(_of_nothing(account))
        found += _of_units(account)
        found += _of_lengths(account)
        found += _of_tokens(account, vocab)
    found += _of_epochs(epochs, accounts)
    if difference is not None:
        found += _of_difference(difference)
    return tuple(sorted(found, key=lambda f: (_ORDER[f.severity], -f.count, f.rule, f.where)))


def corpus_tokens(accounts: Iterable[SourceCounts]) -> tuple[int, bool]:
    """Return the tokens of all sources, and whether some are estimated from bytes of text."""
    total, estimated = 0, False
    for account in accounts:
        text = account.unit == "document" or account.kind == "text"
        total += account.num_elements // BYTES_PER_TOKEN if text else account.num_elements
        estimated |= text and account.num_elements > 0
    return total, estimated


def figures(account: SourceCounts) -> Figures:
    """Return the row of a source in the table; shares are of its units or documents."""
    totals, units = account.totals, max(account.num_units, 1)
    counts = account.counts[account.counts > 0] / max(account.counts.sum(), 1)

    def share(rule: str) -> float:
        return account.tallies[rule].num_units / units if rule in account.tallies else 0.0

    return {
        "path": account.path,
        "kind": account.kind,
        "unit": account.unit,
        "context": account.context,
        "units": account.num_units,
        "documents": account.num_docs,
        "elements": account.num_elements,
        "bytes": account.size_bytes,
        "unreadable": account.num_unreadable,
        "compression": (
            account.compressed_bytes / account.judged_bytes if account.judged_bytes else None
        ),
        "entropy_bits": float(-(counts * np.log2(counts)).sum()) if len(counts) else None,
        "share_escapes": share("escapes"),
        "share_repeats": share("repeats"),
        "share_markup": share("markup"),
        "share_exact_duplicates": _ratio(totals, "exact_duplicates", "docs_hashed"),
        "share_near_duplicates": (
            totals["near_duplicates"] / max(account.num_docs, 1)
            if "near_duplicates" in totals
            else None
        ),
        "origins": [
            _of_origin(name, counts)
            for name, counts in sorted(account.origins.items(), key=lambda o: -o[1].get("units", 0))
        ],
        "notes": list(account.notes),
    }


def _of_origin(name: str, counts: Mapping[str, int]) -> Figures:
    """Return the row of the documents that say they are from one origin."""
    units = max(counts.get("units", 0), 1)
    shares = {
        "escapes": "escapes",
        "repeats": "repeats",
        "markup": "markup",
        "exact_duplicates": "exact-duplicates",
        "near_duplicates": "near-duplicates",
    }
    judged = counts.get("judged", 0)
    return {
        "name": name,
        "units": counts.get("units", 0),
        "bytes": counts.get("bytes", 0),
        "compression": counts.get("compressed", 0) / judged if judged else None,
        **{f"share_{field}": counts.get(rule, 0) / units for field, rule in shares.items()},
    }


def _ratio(totals: Mapping[str, int], part: str, whole: str) -> float | None:
    return totals.get(part, 0) / totals[whole] if totals.get(whole) else None


def _of_units(account: SourceCounts) -> Iterator[DataFinding]:
    tallies = {**account.tallies, **_outliers(account)}
    if account.num_unreadable:
        yield _finding(data_rules()["unreadable"], account, account.num_unreadable, (), ())
    for name, tally in tallies.items():
        if name != "token-range":
            ranges = tuple((a, b) for a, b in tally.ranges)
            yield _finding(data_rules()[name], account, tally.num_units, tally.examples, ranges)


def _finding(
    rule: DataRule,
    account: SourceCounts,
    count: int,
    examples: Sequence[Example],
    ranges: tuple[tuple[int, int], ...],
) -> DataFinding:
    share = count / max(account.num_units, 1)
    units = f"{account.unit}s" if count != 1 else account.unit
    docs = account.totals.get(rule.name.replace("-", "_"), 0)  # samples are hit by whole documents
    more = (
        f", from {docs:,} documents of {account.num_docs:,}"
        if docs and account.unit == "sample" and account.kind != "text"
        else ""
    )
    return DataFinding(
        rule=rule.name,
        severity=rule.severity(share),
        message=f"{rule.says}: {count:,} {units} of {account.num_units:,} ({share:.2%}){more}",
        values={
            "share": share,
            "units": account.num_units,
            "unit": account.unit,
            **{k: account.totals[k] for k in rule.totals if k in account.totals},
        },
        why=rule.why,
        source=rule.source,
        instead=rule.instead,
        where=account.path,
        count=count,
        examples=tuple(examples),
        ranges=ranges if rule.skip else (),
    )


def _outliers(account: SourceCounts) -> dict[str, Tally]:
    """Return the units with a piece that compresses far better than the source's others."""
    ratios = np.frombuffer(bytes(account.ratio_low), np.uint8)
    judged = ratios[ratios != NOT_JUDGED].astype(np.float64) / RATIO_STEPS
    if not len(judged):
        return {}
    floor = 0.05
    if len(judged) >= _FEWEST_JUDGED:
        middle = float(np.median(judged))
        spread = mad_sigma(judged, center=middle)
        text = account.unit == "document" or account.kind == "text"
        below = middle - max(OUTLIER_SPREADS * spread, OUTLIER_DISTANCE)
        floor = max(floor, min(below, SOUND_RATIO["text" if text else "tokens"]))
    known = ratios != NOT_JUDGED
    low = np.flatnonzero(known & (ratios < floor * RATIO_STEPS))
    return {"low-entropy": _tally(low, ratios)} if len(low) else {}


def _tally(units: NDArray[np.int64], ratios: NDArray[np.uint8]) -> Tally:
    tally = Tally()
    tally.add(units.tolist())
    tally.examples = [
        {
            "id": int(u),
            "offset": 0,
            "text": f"compresses to {ratios[u] / RATIO_STEPS:.2f} of its size",
        }
        for u in units[:MAX_EXAMPLES]
    ]
    return tally


def _holds_nothing(account: SourceCounts) -> bool:
    """Whether a source has no token, or no byte of text but blanks."""
    text = account.unit == "document" or account.kind == "text"
    return not (
        account.counts.sum() - account.counts[list(b" \t\n\r\v\f")].sum()
        if text
        else account.num_elements
    )


def _of_nothing(account: SourceCounts) -> DataFinding:
    """Return that a source holds no document, or only empty ones."""
    rule = data_rules()["empty-source"]
    return DataFinding(
        rule=rule.name,
        severity="warning",
        message=(
            f"{rule.says}: {account.num_docs or 'no'}"
            f" document{'s' * (account.num_docs != 1)}{' without text' * (account.num_docs > 0)}"
            if account.unit == "document"
            else f"{rule.says}: 0 {'bytes of text' if account.kind == 'text' else 'tokens'}"
        ),
        values={"documents": account.num_docs},
        why=rule.why,
        source=rule.source,
        instead=rule.instead,
        where=account.path,
    )


def _of_lengths(account: SourceCounts) -> Iterator[DataFinding]:
    """Yield empty token documents, and many documents cut at the same length."""
    docs = sum(account.lengths.values())
    if account.unit == "sample" and (empty := account.lengths.get(0)):
        rule = data_rules()["empty-documents"]
        yield DataFinding(
            rule=rule.name,
            severity=rule.severity(empty / docs),
            message=(
                f"{rule.says}: {empty:,} documents of {docs:,} ({empty / docs:.2%}) have no tokens"
            ),
            values={"documents": empty, "share": empty / docs},
            why=rule.why,
            source=rule.source,
            instead="rebuild the index without them",
            where=account.path,
            count=empty,
        )
    long = {length: n for length, n in account.lengths.items() if length >= 256}
    if not long or docs < 100:
        return
    length, number = max(long.items(), key=lambda item: (item[1], item[0]))
    longest = max(long)
    rule = data_rules()["cut-at-one-length"]
    if number >= max(20, 0.02 * docs) and length >= longest * 0.999 and len(account.lengths) > 1:
        elements = "bytes" if account.unit == "document" else "tokens"
        yield DataFinding(
            rule=rule.name,
            severity=rule.severity(number / docs),
            message=(
                f"{rule.says}: {number:,} of {docs:,} have {length:,} {elements}, and none is"
                " longer"
            ),
            values={"length": length, "documents": number, "share": number / docs},
            why=rule.why,
            source=rule.source,
            instead=rule.instead,
            where=account.path,
            count=number,
        )


def _of_tokens(account: SourceCounts, vocab: int | None) -> Iterator[DataFinding]:
    """Yield token ids that the embedding has no row for."""
    if account.unit == "document" or account.kind == "text" or "highest" not in account.totals:
        return
    low, high = account.totals["lowest"], account.totals["highest"]
    if low < 0 or (vocab is not None and high >= vocab):
        rule = data_rules()["token-range"]
        bad, tally = account.totals["tokens_out_of_range"], account.tallies["token-range"]
        rows = f", the vocabulary has {vocab}" if vocab is not None else ""
        first = tally.examples[0]
        message = (
            f"{rule.says}: {bad:,} tokens in {tally.num_units:,} of {account.num_units:,} samples,"
            f" the first in sample {first['id']} at token {first['offset']}; ids go from {low} to"
            f" {high}{rows}"
        )
        yield DataFinding(
            rule=rule.name,
            severity="error",
            message=message,
            values={
                "lowest": low,
                "highest": high,
                "vocab": vocab,
                "tokens": bad,
                "samples": tally.num_units,
            },
            why=rule.why,
            source=rule.source,
            instead=rule.instead,
            where=account.path,
            count=bad,
            examples=tuple(tally.examples),
        )
    elif vocab is not None and vocab > 1 << 16 and low >= 0 and high < 1 << 16:
        rule = data_rules()["token-overflow"]
        yield DataFinding(
            rule=rule.name,
            severity="warning",
            message=f"{rule.says}: no id above {high}, though the vocabulary has {vocab}",
            values={"highest": high, "vocab": vocab},
            why=rule.why,
            source=rule.source,
            instead=rule.instead,
            where=account.path,
        )


def _of_epochs(plan: EpochPlan | None, accounts: Iterable[SourceCounts]) -> Iterator[DataFinding]:
    if plan is None or plan.epochs <= 1:
        return
    rule = data_rules()["epochs"]
    about = "about " if corpus_tokens(accounts)[1] else ""
    begins = f"; epoch 2 begins at step {plan.starts[0]:,}" if plan.starts else ""
    yield DataFinding(
        rule=rule.name,
        severity="warning",
        message=(
            f"{rule.says}: {plan.plan_tokens:,} tokens are {about}{plan.epochs:.2f} times the"
            f" corpus{begins}"
        ),
        values={
            "epochs": plan.epochs,
            "corpus_tokens": plan.corpus_tokens,
            "plan_tokens": plan.plan_tokens,
            "tokens_per_step": plan.tokens_per_step,
            "epoch_starts": list(plan.starts),
        },
        why=rule.why,
        source=rule.source,
        instead=rule.instead,
    )


def _of_difference(difference: CleaningDifference) -> Iterator[DataFinding]:
    grown = difference.after.grown(difference.before)
    if not grown and not difference.num_rewritten:
        return
    rule = data_rules()["inserted"]
    shown = [
        {"ngram": ngram.decode("utf-8", "backslashreplace"), "before": then, "after": now}
        for ngram, then, now in grown
    ]
    what = [f"{difference.num_rewritten:,} documents rewritten"] if difference.num_rewritten else []
    if difference.inserted_bytes:
        what.append(
            f"{difference.inserted_bytes:,} bytes longer, {difference.inserted_backslashes:,}"
            " backslashes"
        )
    if grown:
        what.append(f"{shown[0]['ngram']!s} {grown[0][1]:,} → {grown[0][2]:,} times")
    yield DataFinding(
        rule=rule.name,
        severity="error",
        message=f"{rule.says}: {'; '.join(what)}",
        values={
            "documents_before": difference.num_before,
            "documents_after": difference.num_after,
            "same": difference.num_same,
            "rewritten": difference.num_rewritten,
            "new": difference.num_new,
            "inserted_bytes": difference.inserted_bytes,
            "inserted_backslashes": difference.inserted_backslashes,
            "ngrams": shown,
        },
        why=rule.why,
        source=rule.source,
        instead=rule.instead,
        count=difference.num_rewritten,
        examples=tuple(difference.examples),
    )
