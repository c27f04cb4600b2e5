"""Several kinds of text in one source are no fault.

Short templates, empty documents and wrong ids are found and placed.
"""

import json
import random
import sysconfig
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
from trimtab.cli import main
from trimtab.data_scan import scan
from trimtab.data_scan.findings import figures

HANZI = (
    "训练大型语言模型时,损失可能会突然上升。我们需要找到原因并恢复训练。"
    "数据质量对稳定性影响很大,特别是重复的内容。"
)


def code(number: int) -> list[str]:
    """Return sources of the standard library, each another one."""
    return [
        p.read_text() for p in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:number]
    ]


def chinese(number: int) -> list[str]:
    rng = random.Random(1)
    return ["".join(rng.choices(HANZI, k=800)) for _ in range(number)]


def tables(number: int) -> list[str]:
    rng = random.Random(2)
    head = "# Table\n\n| a | b |\n|---|---|\n"
    return [
        head + "\n".join(f"| {rng.random():.4f} | {rng.randint(0, 9999)} |" for _ in range(60))
        for _ in range(number)
    ]


@pytest.mark.parametrize("share_of_code", [5, 20, 100])
def test_code_tables_and_chinese_beside_prose_are_no_outliers(
    tmp_path: Path, share_of_code: int
) -> None:
    mixed = [*CLEAN, *prose(300, seed=3), *code(share_of_code), *chinese(150), *tables(60)]
    assert "low-entropy" not in scan_texts(tmp_path, mixed)


def test_prose_with_a_little_code_or_much_is_no_outlier(tmp_path: Path) -> None:
    for number in (4, 60):
        assert "low-entropy" not in scan_texts(tmp_path, [*CLEAN, *code(number)])


def test_what_is_planted_in_a_mixture_is_found(tmp_path: Path) -> None:
    planted = [
        "\n".join(f"row {i % 7} of the table, nothing else {n}" for i in range(300))
        for n in range(6)
    ]
    found = scan_texts(tmp_path, [*CLEAN, *code(60), *chinese(100), *planted])["low-entropy"]
    assert found.ranges == ((460, 465),)


def test_short_templates_are_found_and_shorter_ones_said_to_be_left_out(tmp_path: Path) -> None:
    pages = [
        f"Product {i * 7919 % 10007}: price {i * 31 % 997} USD. Add to cart. Free shipping on"
        f" orders over 50. Customers also viewed item {i * 17 % 4001}. Sign in to see the rating."
        " All rights reserved by the shop that you are visiting now, and by no other."
        for i in range(400)
    ]
    heads = [
        "Sign in to your account. Cookie policy. All rights reserved. Add to cart. "
        + " ".join(t.split()[:60])
        for t in prose(100, seed=5)
    ]
    tiny = [f"{i} is short" for i in range(30)]
    result = scan_one(write_jsonl(tmp_path / "d.jsonl", [*CLEAN, *pages, *heads, *tiny]))
    found = {f.rule: f for f in result.findings}
    assert found["near-duplicates"].count > 200
    assert all(
        a >= 300 and b < 700
        for a, b in _ranges(result.sources[0].tallies["near-duplicates"].ranges)
    )
    assert (found["same-beginning"].severity, found["same-beginning"].count) == ("info", 80)
    assert result.notes == (
        "30 documents are shorter than 128 bytes and were not looked at for near duplicates",
    )


def _ranges(ranges: list[list[int]]) -> list[tuple[int, int]]:
    return [(a, b) for a, b in ranges]


def test_short_documents_that_differ_are_no_near_duplicates(tmp_path: Path) -> None:
    short = [t[at : at + 220] for t in prose(300, seed=8) for at in range(0, len(t) - 220, 220)]
    assert len(short) > 2000
    assert "near-duplicates" not in scan_texts(tmp_path, short)


def test_column_and_message_agree(tmp_path: Path) -> None:
    texts = ["", "", *CLEAN, *CLEAN[:50], *(f"tiny {i}" for i in range(100))]
    texts += [t.replace(" the ", " that ", 1) for t in CLEAN[100:140]]
    result = scan_one(write_jsonl(tmp_path / "d.jsonl", texts))
    row, found = figures(result.sources[0]), {f.rule: f for f in result.findings}
    for rule, field in (
        ("exact-duplicates", "share_exact_duplicates"),
        ("near-duplicates", "share_near_duplicates"),
    ):
        assert row[field] == pytest.approx(found[rule].values["share"])
        assert f"({row[field]:.2%})" in found[rule].message


def test_a_document_of_blanks_is_empty(tmp_path: Path) -> None:
    texts = [" \n\t " if i in (3, 4) else "" if i == 9 else t for i, t in enumerate(CLEAN)]
    texts[20] = "  indented at both ends  "
    assert scan_texts(tmp_path, texts)["empty-documents"].ranges == ((3, 4), (9, 9))


def test_empty_and_repeated_documents_of_tokens(tmp_path: Path) -> None:
    docs = [tokens(900, seed=i) for i in range(60)]
    for i in (0, 20, 21, 59):
        docs[i] = docs[i][:0]
    for i in (30, 31, 32):
        docs[i] = docs[5]
    result = scan_one(write_megatron(tmp_path / "d", docs), context=500)
    found = {f.rule: f for f in result.findings}
    assert result.sources[0].num_docs == 60
    assert (found["empty-documents"].severity, found["empty-documents"].count) == ("warning", 4)
    assert "4 documents of 60" in found["empty-documents"].message
    assert "from 3 documents of 60" in found["exact-duplicates"].message


def test_empty_documents_of_tokens_are_counted_over_the_edges_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.data_scan.read_tokens.BLOCK_BYTES", 1 << 12)
    docs = [tokens(0 if i % 3 == 1 else 700 + 13 * i, seed=i) for i in range(90)]
    source = scan_one(write_megatron(tmp_path / "d", docs), context=256).sources[0]
    assert (source.num_docs, source.lengths[0]) == (90, 30)


def test_a_token_out_of_range_is_counted_and_placed(tmp_path: Path) -> None:
    ids = tokens(2048 * 60)
    ids[[2048 * 7 + 5, 2048 * 7 + 9, 2048 * 31]] = 60_000
    np.save(tmp_path / "t.npy", ids.astype(np.uint16))
    (found,) = scan_one(tmp_path / "t.npy", vocab=50_000).findings
    assert "3 tokens in 2 of 60 samples, the first in sample 7 at token 5;" in found.message
    assert [(e["id"], e["offset"]) for e in found.examples] == [(7, 5), (31, 0)]


def test_a_table_by_what_documents_say_they_are_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"text": t, "meta": {"source": "web"}} for t in CLEAN[:200]]
    lines += [{"text": t, "meta": {"source": "wiki"}} for t in CLEAN[:40]]
    lines += [{"text": "\\" * 9000, "meta": {"source": "web"}}, {"text": CLEAN[250], "meta": {}}]
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = {o["name"]: o for o in figures(scan_one(path).sources[0])["origins"]}
    assert {n: r["units"] for n, r in rows.items()} == {"web": 201, "wiki": 40, "": 1}
    assert rows["wiki"]["share_exact_duplicates"] == 1.0
    assert (rows["web"]["share_exact_duplicates"], rows["web"]["share_escapes"]) == (0.0, 1 / 201)
    assert rows["wiki"]["bytes"] == sum(len(t.encode()) for t in CLEAN[:40])
    main(["scan", str(path)])
    told = capsys.readouterr().out
    assert "\n  wiki " in told
    assert "\n  (no source) " in told


def test_the_field_of_the_origin_can_be_named_and_many_origins_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(
        "".join(
            json.dumps({"text": t, "url": f"u{i}", "kind": "ab"[i % 2]}) + "\n"
            for i, t in enumerate(CLEAN)
        )
    )
    assert figures(scan_one(path).sources[0])["origins"] == []
    from trimtab.data_scan import ScanSettings
    from trimtab.data_scan.sources import ReadSettings

    def by(name: str) -> dict[str, int]:
        rows = figures(scan([str(path)], ScanSettings(reading=ReadSettings(by=name))).sources[0])[
            "origins"
        ]
        return {r["name"]: r["units"] for r in rows}

    assert by("kind") == {"a": 150, "b": 150}
    assert by("url")["(others)"] == 200


def test_columns_never_run_into_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.txt").write_text("ab" * 3_000_000)
    main(["scan", str(tmp_path / "d.txt")])
    row = capsys.readouterr().out.splitlines()[1]
    assert "100.00%" in row
    assert len(row.split()) == 10


def test_a_document_longer_than_what_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.data_scan.duplicates._COMPARED_BYTES", 20_000)
    long = " ".join(CLEAN)[:200_000]
    found = scan_texts(
        tmp_path, [*CLEAN[:20], long, long[:-1000] + "another end", *prose(20, seed=9)]
    )
    assert found["near-duplicates"].count == 1
