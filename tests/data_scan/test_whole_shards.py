"""A shard that is not whole is an error and never counted as whole.

What in a directory is no shard is told.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.data_scan.data import CLEAN, scan_one, tokens, write_jsonl, write_megatron
from trimtab.cli import main
from trimtab.data_scan import ScanSettings, scan
from trimtab.data_scan.sources import ReadSettings

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
    "bz2": bz2.compress,
}
RAW = "".join(json.dumps({"text": t}) + "\n" for t in CLEAN).encode()


def refused(path: Path) -> str:
    """Return the one error, after making sure that no skip list came of it."""
    skip = path.with_name("skip.json")
    assert main(["scan", str(path), "--write-skip", str(skip), "--quick"]) == 2
    assert not skip.exists()
    (error,) = scan_one(path).errors
    return error["error"]


@pytest.mark.parametrize("form", PACK)
@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_a_shard_that_was_cut_is_an_error(tmp_path: Path, form: str, kind: str) -> None:
    packed = PACK[form](RAW)
    path = tmp_path / f"d.{kind}.{form}"
    path.write_bytes(packed[: len(packed) // 2])
    assert "ends in the middle of the" in refused(path)
    path.write_bytes(packed[:-2])
    assert "ends in the middle of the" in refused(path)


@pytest.mark.parametrize("form", PACK)
def test_a_shard_with_something_behind_its_end_is_an_error(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"d.jsonl.{form}"
    path.write_bytes(PACK[form](RAW) + b"garbage")
    assert "lies behind the end of the stream" in refused(path)


def test_a_wrong_checksum_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress(RAW)
    path = tmp_path / "d.jsonl.gz"
    path.write_bytes(packed[:-8] + bytes(8))
    assert "the gzip stream is damaged" in refused(path)


@pytest.mark.parametrize("form", PACK)
def test_several_streams_one_behind_the_other_are_one_shard(tmp_path: Path, form: str) -> None:
    half = RAW.index(b"\n", len(RAW) // 2) + 1
    path = tmp_path / f"d.jsonl.{form}"
    path.write_bytes(PACK[form](RAW[:half]) + PACK[form](RAW[half:]))
    result = scan_one(path)
    assert result.errors == ()
    assert result.sources[0].num_units == len(CLEAN)
    assert result.sources[0].num_elements == sum(len(t.encode()) for t in CLEAN)


@pytest.mark.parametrize("form", PACK)
def test_a_bomb_is_refused_in_every_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr("trimtab.data_scan.unpack.MAX_SMALL_BYTES", 1 << 20)
    path = tmp_path / f"d.txt.{form}"
    path.write_bytes(PACK[form](bytes(1 << 23)))
    assert "over 100 times as many" in refused(path)


def tar_of(names: list[str]) -> bytes:
    buffer = io.BytesIO()
    info = tarfile.TarInfo()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for i, name in enumerate(names):
            info = tarfile.TarInfo(name)
            raw = CLEAN[i].encode()
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


def test_a_torn_tar_is_an_error(tmp_path: Path) -> None:
    path, whole = tmp_path / "d.tar", tar_of([f"{i:03}.txt" for i in range(50)])
    path.write_bytes(whole[: len(whole) // 2 + 100])
    assert "cannot be read as a tar shard behind sample" in refused(path)


def test_a_tar_that_says_it_is_longer_than_it_is_ends_at_once(tmp_path: Path) -> None:
    info = tarfile.TarInfo("0.jpg")
    info.size = 1 << 43  # to skip this in steps of 10 KiB takes hours
    (tmp_path / "d.tar").write_bytes(info.tobuf() + bytes(100_000))
    assert "ends in the middle of a member" in refused(tmp_path / "d.tar")


def test_two_tars_in_one_file_are_an_error_since_readers_leave_the_second_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "d.tar").write_bytes(tar_of(["0.txt"]) + tar_of(["1.txt"]))
    assert "lies behind the end of the archive" in refused(tmp_path / "d.tar")


def test_a_tar_without_the_mark_of_its_end_is_told(tmp_path: Path) -> None:
    whole = tar_of(["0.txt", "1.txt"])
    (tmp_path / "d.tar").write_bytes(whole.rstrip(b"\0") + bytes(-len(whole.rstrip(b"\0")) % 512))
    result = scan_one(tmp_path / "d.tar")
    assert result.errors == ()
    assert "no mark of its end" in result.sources[0].notes[0]
    (tmp_path / "d.tar").write_bytes(whole)
    assert scan_one(tmp_path / "d.tar").sources[0].notes == []


def test_of_a_source_that_was_not_read_to_its_end_nothing_is_said_as_of_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.data_scan.read_text.BLOCK_BYTES", 1 << 16)
    path = tmp_path / "d.jsonl.gz"
    path.write_bytes(gzip.compress(RAW)[:-9])
    assert main(["scan", str(path)]) == 2
    told = capsys.readouterr().out
    assert "was not read to its end" in told
    assert told.splitlines()[-3] != "nothing found"
    assert main(["scan", str(tmp_path / "none.jsonl")]) == 2
    assert capsys.readouterr().out.strip() == ""


def test_links_that_lead_nowhere_are_errors_and_what_is_no_file_is_told(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", CLEAN[:20])
    (tmp_path / "b.jsonl").symlink_to("gone.jsonl")
    (tmp_path / "c.jsonl").symlink_to("c.jsonl")
    (tmp_path / "up").symlink_to("..")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.txt").symlink_to("/dev/zero")
    result = scan([str(tmp_path)])
    assert [Path(e["path"]).name for e in result.errors] == ["b.jsonl", "c.jsonl"]
    assert "a shard is missing" in result.errors[0]["error"]
    told = {Path(n.partition(": ")[0]).name: n for n in result.notes}
    assert "not followed" in told["up"]
    assert "a pipe, socket or device" in told["pipe.jsonl"]
    assert "a pipe, socket or device" in told["zero.txt"]
    assert [s.num_units for s in result.sources] == [20]


def test_a_pipe_is_named_as_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.jsonl")
    assert "not a regular file but a pipe" in scan([str(tmp_path / "p.jsonl")]).errors[0]["error"]


@pytest.mark.parametrize("name", ["d.jsonl", "d.txt", "d.jsonl.gz"])
@pytest.mark.parametrize("text", ["", "\n\n \n"])
def test_a_source_that_holds_nothing_is_a_warning(tmp_path: Path, name: str, text: str) -> None:
    raw = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    found = {f.rule: f for f in scan_one(tmp_path / name).findings}
    assert found["empty-source"].severity == "warning"
    assert "holds nothing" in found["empty-source"].message


def test_an_index_without_sequences_holds_nothing(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "d", [tokens(0)])
    assert [f.rule for f in scan_one(path).findings][:1] == ["empty-source"]


def test_a_named_field_that_no_record_has_is_an_error_and_the_others_are_named(
    tmp_path: Path,
) -> None:
    path = write_jsonl(tmp_path / "d.jsonl", CLEAN[:20])
    (error,) = scan_one(path, field="body").errors
    assert "no text field 'body'; there are id, text" in error["error"]
    path.write_text(path.read_text() + '{"body": "it has it"}\n')
    assert scan([str(path)], ScanSettings(reading=ReadSettings(field="body"))).errors == ()
