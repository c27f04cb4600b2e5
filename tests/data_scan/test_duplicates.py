"""Exact and near duplicates, what a cleaning step inserted, and the plan of epochs."""

import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.logs.prose import prose
from tests.data_scan.data import (
    CLEAN,
    scan_one,
    scan_texts,
    tokens,
    write_jsonl,
    write_megatron,
)
from trimtab.data_scan import ScanResult, scan
from trimtab.data_scan.duplicates import HashCounter
from trimtab.data_scan.epochs import EpochPlan, plan_epochs
from trimtab.data_scan.findings import DataFinding, figures
from trimtab.errors import ConfigError


def changed(text: str, words: int, seed: int) -> str:
    """Return the text with some of its words replaced."""
    rng, parts = random.Random(seed), text.split(" ")
    for place in rng.sample(range(len(parts)), words):
        parts[place] = "replaced"
    return " ".join(parts)


def test_exact_duplicates_are_all_but_the_first(tmp_path: Path) -> None:
    found = scan_texts(tmp_path, [*CLEAN, CLEAN[5], CLEAN[5], "short", CLEAN[9], "short"])[
        "exact-duplicates"
    ]
    assert found.ranges == ((300, 301), (303, 304))
    assert found.values["exact_duplicates"] == 4


def test_exact_duplicates_are_found_across_sources(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", CLEAN[:100])
    write_jsonl(tmp_path / "b.jsonl", [*CLEAN[100:150], *CLEAN[:10]])
    found = [f for f in scan([str(tmp_path)]).findings if f.rule == "exact-duplicates"]
    assert [(Path(f.where).name, f.ranges) for f in found] == [("b.jsonl", ((50, 59),))]


@pytest.mark.covers("S206")
def test_the_share_of_near_duplicates_is_reported(tmp_path: Path) -> None:
    texts = prose(400, seed=1, mean_words=600)
    long = [t for t in texts if len(t) > 2500][:100]
    texts += [changed(t, 2, i) for i, t in enumerate(long)]
    result = scan_one(write_jsonl(tmp_path / "d.jsonl", texts))
    share = figures(result.sources[0])["share_near_duplicates"]
    (found,) = [f for f in result.findings if f.rule == "near-duplicates"]
    assert found.severity == "warning"
    assert 90 <= found.count <= 100
    assert min(int(e["id"]) for e in found.examples) >= 400
    assert share == pytest.approx(0.2, abs=0.04)


def test_texts_that_share_a_third_are_no_near_duplicates(tmp_path: Path) -> None:
    head = CLEAN[0][:1000]
    assert "near-duplicates" not in scan_texts(
        tmp_path, [head + t[:2000] for t in prose(200, seed=2)]
    )


def test_documents_of_one_character_are_not_each_others_near_duplicates(tmp_path: Path) -> None:
    assert "near-duplicates" not in scan_texts(
        tmp_path, [*CLEAN, *("abcdefgh"[i] * (2000 + i) for i in range(8))]
    )


def test_duplicates_of_token_documents_are_told_as_samples(tmp_path: Path) -> None:
    docs = [tokens(1000, seed=i) for i in range(40)]
    docs[30] = docs[4]
    result = scan_one(write_megatron(tmp_path / "d", docs), context=100)
    found = {f.rule: f for f in result.findings}["exact-duplicates"]
    assert found.ranges == ((300, 309),)


def test_the_table_stays_bounded_and_its_share_stays_right() -> None:
    rng, seen = np.random.default_rng(0), HashCounter(capacity=1000)
    hashes = rng.integers(0, 1 << 62, 20_000)
    counted = again = 0
    for value in np.concatenate((hashes, hashes[:5000])).tolist():
        before = seen.add(value)
        counted += before >= 0
        again += before > 0
    assert len(seen.times) <= 1000
    late = [seen.add(v) for v in hashes[5000:10_000].tolist()]
    assert set(late) <= {-1, 1}  # counted always or never
    assert again > 0


def compare(
    folder: Path, before: list[str], after: list[str]
) -> tuple[ScanResult, dict[str, DataFinding]]:
    for name, texts in (("before", before), ("after", after)):
        (folder / name).mkdir()
        write_jsonl(folder / name / "d.jsonl", texts)
    result = scan([], before=str(folder / "before"), after=str(folder / "after"))
    return result, {f.rule: f for f in result.findings}


QUOTED = [t.replace("the", '"the"') for t in CLEAN]


@pytest.mark.covers("S204")
def test_deduplication_that_inserts_escapes_is_an_error_and_shows_them(tmp_path: Path) -> None:
    kept = [t for i, t in enumerate(QUOTED) if i % 3]
    after = [t.replace('"', '\\"') if i % 40 == 0 else t for i, t in enumerate(kept)]
    result, found = compare(tmp_path, QUOTED, after)
    inserted = sum(t.count("\\") for t in after)
    rewritten = sum(a != b for a, b in zip(kept, after, strict=True))
    values = found["inserted"].values
    assert found["inserted"].severity == "error"
    assert (values["rewritten"], values["inserted_backslashes"], values["inserted_bytes"]) == (
        rewritten,
        inserted,
        inserted,
    )
    assert {g["ngram"]: (g["before"], g["after"]) for g in values["ngrams"]}['\\"'] == (0, inserted)
    assert '\\"' in found["inserted"].examples[0]["text"]
    assert result.difference is not None
    assert result.difference.num_new == 0


def test_insertions_that_removals_outweigh_are_still_found(tmp_path: Path) -> None:
    before = [t.replace('"', '\\"') for t in QUOTED[:200]] + QUOTED[200:]
    after = before[150:250] + [t.replace('"', '\\"') for t in before[250:]]
    assert sum(t.count("\\") for t in after) < sum(t.count("\\") for t in before)
    _, found = compare(tmp_path, before, after)
    assert found["inserted"].values["rewritten"] == 50


def test_deduplication_that_only_removes_gives_no_finding(tmp_path: Path) -> None:
    _, found = compare(tmp_path, [*QUOTED, *QUOTED[:50]], QUOTED[10:])
    assert found == {}


def test_plain_text_is_compared_by_lines(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("\n".join(QUOTED))
    (tmp_path / "a.txt").write_text("\n".join(QUOTED[20:]).replace('"', '\\"'))
    result = scan([], before=str(tmp_path / "b.txt"), after=str(tmp_path / "a.txt"))
    assert result.findings[0].values["inserted_backslashes"] == sum(
        t.count('"') for t in QUOTED[20:]
    )


def test_tokens_cannot_be_compared(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", tokens(5000))
    result = scan([], before=str(tmp_path / "a.npy"), after=str(tmp_path / "a.npy"))
    assert "compare text" in result.errors[0]["error"]


@pytest.mark.covers("S58")
def test_the_plan_says_epoch_two_where_opt_was_said_to_cross_into_it() -> None:
    opt = plan_epochs(93_000 * 2**21, 300_000_000_000, 2**21)
    assert opt is not None
    assert opt.ledger is not None
    assert opt.starts == (93_000,)
    assert (opt.ledger.epoch_at(92_999), opt.ledger.epoch_at(93_000)) == (1, 2)


@pytest.mark.covers("S207")
def test_more_tokens_than_the_corpus_has_warn_with_the_step(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", tokens(100_000))
    within = scan_one(tmp_path / "d.npy", plan_tokens=100_000, tokens_per_step=1000)
    (found,) = scan_one(tmp_path / "d.npy", plan_tokens=250_000, tokens_per_step=1000).findings
    assert within.findings == ()
    assert (found.rule, found.severity) == ("epochs", "warning")
    assert (found.values["epochs"], found.values["epoch_starts"]) == (2.5, [100, 200])


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ConfigError, match="plan_tokens is -1"):
        plan_epochs(10, -1, None)
    assert plan_epochs(10, 20, None) == EpochPlan(
        corpus_tokens=10, plan_tokens=20, tokens_per_step=None
    )
