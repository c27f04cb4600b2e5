"""Each pass speaks of its fault and of nothing in clean text."""

import base64
import json
import pydoc
import pydoc_data.topics
from pathlib import Path

import numpy as np
import pytest

from tests.data_scan.data import CLEAN, scan_one, scan_texts, tokens, write_jsonl
from trimtab.data_scan.rules import data_rules

NOISE = base64.b64encode(np.random.default_rng(1).bytes(9000)).decode()


def spoilt(number: int, text: str) -> list[str]:
    """Return clean texts with some of them replaced, evenly spread."""
    step = len(CLEAN) // number
    return [text if i % step == 3 else t for i, t in enumerate(CLEAN)]


@pytest.mark.covers("S57")
def test_backslash_windows_in_one_percent_of_the_data_are_an_error_and_named(
    tmp_path: Path,
) -> None:
    found = scan_texts(tmp_path, spoilt(3, "\\" * 9000))["escapes"]
    assert (found.severity, found.count) == ("error", 3)
    assert found.ranges == ((3, 3), (103, 103), (203, 203))
    assert [e["id"] for e in found.examples] == [3, 103, 203]
    assert found.examples[0]["text"].startswith("\\\\\\")


@pytest.mark.covers("S57")
def test_clean_text_gives_no_finding_at_all(tmp_path: Path) -> None:
    assert scan_texts(tmp_path, CLEAN) == {}


def test_a_backslash_window_amid_a_long_document_is_found_where_it_is(tmp_path: Path) -> None:
    text = "\n".join(CLEAN[:100])
    at = len(text) // 2
    path = tmp_path / "data.txt"
    path.write_text(text[:at] + r"\"\n" * 800 + text[at:])
    (found,) = [f for f in scan_one(path).findings if f.rule == "escapes"]
    assert (at // 8192) in range(found.ranges[0][0], found.ranges[-1][1] + 1)
    assert found.count <= 2


def test_latex_and_code_do_not_count_as_escapes(tmp_path: Path) -> None:
    latex = (
        r"\begin{align} \alpha &= \frac{1}{2} \beta x_{i} \label{eq:1} \end{align} which is shown"
        r" above. "
    )
    assert "escapes" not in scan_texts(tmp_path, [t + "\n" + latex * 5 for t in CLEAN])


def test_prose_of_the_standard_library_gives_no_error_and_no_warning(tmp_path: Path) -> None:
    topics = sorted(
        {t for t in pydoc_data.topics.topics.values() if len(t) > 200}
    )  # some come twice
    docs = [d for name in dir(str) if (d := pydoc.getdoc(getattr(str, name)))]
    found = scan_texts(tmp_path, [*topics, "\n\n".join(docs)])
    assert {f.rule for f in found.values() if f.severity != "info"} == set()


def test_source_code_of_the_standard_library_is_no_repeat_and_no_noise(tmp_path: Path) -> None:
    import argparse
    import subprocess

    texts = [Path(m.__file__ or "").read_text() for m in (pydoc, argparse, subprocess, json)]
    assert {f.rule for f in scan_texts(tmp_path, texts).values() if f.severity != "info"} == set()


CASES = {
    "repeats": (3, "to be or not " * 200, "error"),
    "low-entropy": (
        3,
        "\n".join(f"row {i % 7} of the table, nothing else" for i in range(400)),
        "warning",
    ),
    "incompressible": (3, NOISE, "error"),
    "markup": (6, "<ul>" + "<li><a href='/'>Home</a></li>" * 30 + "</ul>", "warning"),
    "replacement-characters": (3, CLEAN[0] + " caf� na�ve", "warning"),
    "nul-bytes": (3, CLEAN[0].replace(" ", "\0", 40), "warning"),
    "mojibake": (3, CLEAN[0] + " cafÃ© â€™", "warning"),
    "invalid-utf-8": (3, CLEAN[0] + "\ud800", "warning"),
    "double-escaped": (3, json.dumps({"a": CLEAN[0], "b": CLEAN[1]}) * 2, "warning"),
    "empty-documents": (6, "", "warning"),
    "giant-documents": (1, " ".join(CLEAN)[:200_000] + " ".join(reversed(CLEAN)) * 2, "warning"),
}


@pytest.mark.parametrize("rule", CASES)
def test_each_fault_is_found_where_it_is_and_only_there(tmp_path: Path, rule: str) -> None:
    number, text, severity = CASES[rule]
    marked = [
        text + (f" {i}" if text else "") if t is text else t
        for i, t in enumerate(spoilt(number, text))
    ]
    found = scan_texts(tmp_path, marked)
    assert rule in found
    assert (found[rule].count, found[rule].severity) == (number, severity)
    assert {e["id"] for e in found[rule].examples} <= {
        i for i, t in enumerate(marked) if t.startswith(text)
    }


def test_noise_and_rulers_that_are_short_are_no_repeat(tmp_path: Path) -> None:
    assert scan_texts(tmp_path, [t + "\n" + "-" * 79 + "\n" + " " * 60 + "x" for t in CLEAN]) == {}


def test_many_documents_cut_at_one_length(tmp_path: Path) -> None:
    found = scan_texts(tmp_path, [t[:3000] for t in CLEAN])["cut-at-one-length"]
    assert found.values["length"] == 3000
    assert found.count == sum(len(t) >= 3000 for t in CLEAN)


def test_a_sample_with_one_token_in_more_than_half_of_it(tmp_path: Path) -> None:
    ids = tokens(2048 * 100)
    ids[2048 * 7 : 2048 * 7 + 2048 : 3] = 9  # a third: not yet
    half = np.arange(2048) % 5 < 3
    ids[2048 * 50 : 2048 * 51][half] = 9
    np.save(tmp_path / "t.npy", ids.astype(np.uint16))
    found = {f.rule: f for f in scan_one(tmp_path / "t.npy").findings}["one-token"]
    assert (found.ranges, found.severity) == (((50, 50),), "error")


@pytest.mark.parametrize(
    ("vocab", "expected"), [(50_000, None), (49_999, "token-range"), (100_000, "token-overflow")]
)
def test_token_ids_against_the_vocabulary(tmp_path: Path, vocab: int, expected: str | None) -> None:
    ids = tokens(2048 * 60)
    ids[12345] = 49_999
    np.save(tmp_path / "t.npy", ids.astype(np.uint16))
    found = scan_one(tmp_path / "t.npy", vocab=vocab).findings
    assert [f.rule for f in found] == ([expected] if expected else [])
    if expected == "token-range":
        assert found[0].severity == "error"
        assert found[0].values["tokens"] == int((ids >= vocab).sum())


def test_negative_token_ids_are_an_error_without_a_vocabulary(tmp_path: Path) -> None:
    ids = tokens(2048 * 30)
    ids[5] = -1
    np.save(tmp_path / "t.npy", ids.astype(np.int32))
    assert [f.rule for f in scan_one(tmp_path / "t.npy").findings] == ["token-range"]


@pytest.mark.covers("S205")
def test_entropy_compression_markup_and_duplicates_are_listed_by_source(tmp_path: Path) -> None:
    pages = [
        f"<div><p>{t[:200]}</p><p>{i}</p></div><b></b><i></i><em></em>"
        for i, t in enumerate(CLEAN[:60])
    ]
    write_jsonl(tmp_path / "a.jsonl", CLEAN)
    write_jsonl(tmp_path / "b.jsonl", [*pages, *pages[:30]])
    (tmp_path / "c.txt").write_text("abab" * 10_000)
    from trimtab.data_scan import scan
    from trimtab.data_scan.findings import figures

    a, b, c = (figures(s) for s in scan([str(tmp_path)]).sources)
    assert 3 < a["entropy_bits"] < 5
    assert c["entropy_bits"] == pytest.approx(1.0)  # two letters, evenly
    assert 0.3 < a["compression"] < 0.6
    assert c["compression"] < 0.02
    assert (a["share_markup"], b["share_markup"]) == (0.0, 1.0)
    assert (a["share_exact_duplicates"], b["share_exact_duplicates"]) == (0.0, pytest.approx(1 / 3))


def test_every_rule_says_why_by_whom_and_what_to_do() -> None:
    for rule in data_rules().values():
        assert rule.says
        assert rule.why
        assert rule.source
        assert rule.instead


def test_findings_are_ordered_by_severity(tmp_path: Path) -> None:
    texts = spoilt(3, "\\" * 9000)
    texts[10] = ""
    found = list(scan_texts(tmp_path, texts).values())
    rank = ["error", "warning", "info"]
    assert [f.severity for f in found] == sorted((f.severity for f in found), key=rank.index)
