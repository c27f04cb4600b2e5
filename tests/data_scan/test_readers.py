"""The same documents in every form give the same units.

Damaged and hostile files give a clear error.
"""

import gzip
import io
import json
import lzma
import tarfile
from pathlib import Path

import numpy as np
import pytest
import zstandard

from tests.data_scan.data import CLEAN, scan_one, tokens, write_jsonl, write_megatron
from trimtab.data_scan import ScanResult, read_text, scan
from trimtab.data_scan.findings import figures

BAD = 17
TEXTS = ["\\" * 9000 if i == BAD else t for i, t in enumerate(CLEAN)]


def assert_finds_the_bad_document(result: ScanResult) -> None:
    assert result.errors == ()
    (source,) = result.sources
    assert (source.num_units, source.num_docs) == (len(TEXTS), len(TEXTS))
    assert {f.rule: f.ranges for f in result.findings}["escapes"] == ((BAD, BAD),)
    assert source.num_elements == sum(len(t.encode()) for t in TEXTS)


@pytest.mark.parametrize("packed", ["", ".gz", ".zst", ".xz"])
def test_json_lines_plain_and_compressed(tmp_path: Path, packed: str) -> None:
    raw = write_jsonl(tmp_path / "d.jsonl", TEXTS).read_bytes()
    packers = {
        "": lambda raw: raw,
        ".gz": gzip.compress,
        ".zst": zstandard.compress,
        ".xz": lzma.compress,
    }
    path = tmp_path / f"d.jsonl{packed}"
    path.write_bytes(packers[packed](raw))
    assert_finds_the_bad_document(scan_one(path))


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"content": 0}, None),
        ({"meta": "m", "story": 0}, None),
        ({"a": {"b": 0}, "text": "no"}, "a.b"),
    ],
)
def test_the_text_field_is_found_or_named(
    tmp_path: Path, record: dict[str, object], field: str | None
) -> None:
    def put(value: object, text: str) -> object:
        if isinstance(value, dict):
            return {k: put(v, text) for k, v in value.items()}
        return text if value == 0 else value

    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(put(record, t)) + "\n" for t in TEXTS))
    assert_finds_the_bad_document(scan_one(path, field=field))


def test_tables(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"id": list(range(len(TEXTS))), "text": TEXTS})
    parquet.write_table(table, tmp_path / "d.parquet", row_group_size=70)
    with (
        pa.OSFile(str(tmp_path / "f.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as out,
    ):
        out.write_table(table, max_chunksize=90)
    with (
        pa.OSFile(str(tmp_path / "s.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table, max_chunksize=90)
    for name in ("d.parquet", "f.arrow", "s.arrow"):
        assert_finds_the_bad_document(scan_one(tmp_path / name))
    (error,) = scan_one(tmp_path / "d.parquet", field="story").errors
    assert "no text column 'story'; it has id (int64), text; name one of text" in error["error"]


def test_tables_with_nulls_keep_their_numbers(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [None if i % 10 == 0 else t for i, t in enumerate(TEXTS)]
    parquet.write_table(pa.table({"text": texts}), tmp_path / "d.parquet")
    result = scan_one(tmp_path / "d.parquet")
    found = {f.rule: f for f in result.findings}
    assert (found["unreadable"].count, found["escapes"].ranges) == (30, ((BAD, BAD),))


def test_tables_without_pyarrow_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    (error,) = scan_one(tmp_path / "d.parquet").errors
    assert "needs the 'data' extra" in error["error"]


def make_tar(path: Path, members: list[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, raw in members:
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return path


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_webdataset_shards_count_samples_by_their_key(tmp_path: Path, mode: str) -> None:
    members = []
    for i, text in enumerate(TEXTS):
        members.append((f"shard/{i:05d}.jpg", b"\xff\xd8" + bytes(100)))
        if i % 2:
            members.append((f"shard/{i:05d}.txt", text.encode()))
        else:
            members.append((f"shard/{i:05d}.json", json.dumps({"text": text}).encode()))
    path = make_tar(tmp_path / ("d.tar" if mode == "w" else "d.tar.gz"), members, mode)
    assert_finds_the_bad_document(scan_one(path))
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]  # nothing was extracted


def test_hostile_member_names_go_nowhere_and_are_harmless(tmp_path: Path) -> None:
    name = "../../../" + "x\x1b[31m" + "/0.txt"
    path = make_tar(tmp_path / "d.tar", [(name, b"\\" * 9000)])
    result = scan_one(path)
    assert {f.rule for f in result.findings if f.severity == "error"} >= {"escapes", "repeats"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.tar"]


def test_a_tar_header_that_asks_for_gigabytes_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 28
    raw = info.tobuf(tarfile.GNU_FORMAT)
    path = tmp_path / "d.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(raw)
        for _ in range(40):
            file.write(bytes(1 << 20))
    (error,) = scan_one(path).errors
    assert "no honest tar file" in error["error"]


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_text, "MAX_DOC_BYTES", 1000)
    (tmp_path / "d.jsonl").write_text('{"text": "' + "a" * 5000)
    assert "a line is longer than" in scan_one(tmp_path / "d.jsonl").errors[0]["error"]


def test_what_is_no_json_keeps_its_number_and_is_counted(tmp_path: Path) -> None:
    lines = [json.dumps({"text": t}) for t in TEXTS[:60]]
    lines[3], lines[4], lines[5] = "{torn", "[" * 100_000, '{"text": "fine", "score": NaN}'
    (tmp_path / "d.jsonl").write_text("\n".join(lines) + "\n\n")
    result = scan_one(tmp_path / "d.jsonl")
    found = {f.rule: f for f in result.findings}
    assert found["unreadable"].count == 2
    assert found["escapes"].ranges == ((BAD, BAD),)


@pytest.mark.parametrize("code", [4, 8])
def test_megatron_files_of_both_widths(tmp_path: Path, code: int) -> None:
    docs = [tokens(n, seed=n) for n in (5000, 1, 700, 30_000, 90)]
    docs[3][20_000:22_048] = 7
    write_megatron(tmp_path / "d", docs, code=code)
    for name in ("d.idx", "d.bin", ""):
        result = scan_one(tmp_path / name, context=1024)
        (source,) = result.sources
        assert (source.num_docs, source.num_units) == (5, -(-35_791 // 1024))
        hit = ((5701 + 20_000) // 1024, (5701 + 22_047) // 1024)
        assert {f.rule: f.ranges for f in result.findings}["repeats"] == (hit,)
        assert source.num_elements == 35_791


def test_megatron_files_of_many_blocks_count_every_token_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.data_scan.read_tokens.BLOCK_BYTES", 1 << 13)
    docs = [tokens(n, seed=n) for n in (700, 3000, 20_000, 5, 5, 9000, 700)]
    docs[6] = docs[0]
    write_megatron(tmp_path / "d", docs)
    source = scan_one(tmp_path / "d.idx", context=512).sources[0]
    total = sum(map(len, docs))
    assert source.num_elements == total
    assert source.counts.tolist() == np.bincount(np.concatenate(docs), minlength=256).tolist()
    assert source.num_units == -(-total // 512) == len(source.ratio_low)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda raw: b"TNTIDX\x00\x00" + raw[8:], "not a Megatron index"),
        (lambda raw: raw[:17] + bytes([6]) + raw[18:], "expected version 1 and integer tokens"),
        (lambda raw: raw[:18] + (1 << 50).to_bytes(8, "little") + raw[26:], "do not fit into it"),
        (lambda raw: raw[:34] + (999).to_bytes(4, "little") + raw[38:], "do not lie end to end"),
        (lambda raw: raw[:20], "not a Megatron index"),
    ],
)
def test_a_damaged_index_is_refused_with_the_reason(
    tmp_path: Path, spoil: object, message: str
) -> None:
    index = write_megatron(tmp_path / "d", [tokens(500), tokens(600)])
    index.write_bytes(spoil(index.read_bytes()))  # type: ignore[operator]
    assert message in scan_one(index).errors[0]["error"]


def test_a_token_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    index = write_megatron(tmp_path / "d", [tokens(500), tokens(600)], cut_bytes=10)
    assert "the copy is not whole" in scan_one(index).errors[0]["error"]


def test_numpy_files_of_rows_count_rows(tmp_path: Path) -> None:
    rows = tokens(40 * 777).reshape(40, 777)
    rows[9] = 5
    np.save(tmp_path / "d.npy", rows.astype(np.int32))
    result = scan_one(tmp_path / "d.npy")
    assert (result.sources[0].num_units, result.sources[0].context) == (40, 777)
    assert {f.rule: f.ranges for f in result.findings}["one-token"] == ((9, 9),)


def test_numpy_files_of_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "expected integer tokens" in scan_one(tmp_path / "d.npy").errors[0]["error"]


def test_raw_tokens_need_a_dtype_unless_their_header_tells(tmp_path: Path) -> None:
    ids = tokens(10_000).astype("<u2")
    ids.tofile(tmp_path / "d.bin")
    assert "say what they are" in scan_one(tmp_path / "d.bin").errors[0]["error"]
    assert scan_one(tmp_path / "d.bin", dtype="<u2").sources[0].num_elements == 10_000
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(ids)
    (tmp_path / "e.bin").write_bytes(header.tobytes() + ids.tobytes())
    source = scan_one(tmp_path / "e.bin").sources[0]
    assert (source.num_elements, int(source.counts.sum())) == (10_000, 10_000)


def test_one_bad_path_does_not_stop_the_others(tmp_path: Path) -> None:
    good = write_jsonl(tmp_path / "d.jsonl", CLEAN[:50])
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    result = scan(
        [str(tmp_path / "none"), str(good), str(tmp_path / "empty"), str(tmp_path / "link")]
    )
    assert [e["error"].split(";")[0].rpartition(": ")[2] for e in result.errors] == [
        "does not exist",
        "holds no file",
        "is a link that leads nowhere",
    ]
    assert figures(result.sources[0])["units"] == 50
