"""Limits of the scan: whatever a file says of itself, reading it takes bounded memory and time."""

import io
import json
import lzma
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.data_scan.data import CLEAN, scan_one, tokens, write_jsonl
from trimtab.data_scan import ScanSettings, read_text, scan
from trimtab.data_scan.state import load_state, save_state
from trimtab.errors import ReadError


def npy(path: Path, shape: str, *, descr: str = "'<u2'") -> Path:
    head = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    raw = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode()
    path.write_bytes(raw + tokens(500).astype("<u2").tobytes())
    return path


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (
            "(4611686018427387904, 4)",
            "its header asks for 36893488147419103232",
        ),  # 2**64: wraps to 0
        ("(501,)", "its header asks for 1002"),
        ("(-1,)", "says that it has the shape"),
        ("(0x, ]", "its header is damaged"),
        ("(" * 40, "its header is damaged"),
        ("'", "its header is damaged"),
    ],
)
def test_a_numpy_header_is_compared_with_the_file(tmp_path: Path, shape: str, says: str) -> None:
    (error,) = scan_one(npy(tmp_path / "d.npy", shape)).errors
    assert says in error["error"]
    assert "\n" not in error["error"]


def test_a_row_that_would_fill_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.data_scan.read_tokens.MAX_DOC_BYTES", 500)
    (error,) = scan_one(npy(tmp_path / "d.npy", "(2, 250)")).errors + (
        scan_one(npy(tmp_path / "e.npy", "(1, 500)")).errors
    )
    assert "save it as one dimension" in error["error"]


def test_an_archive_of_arrays_is_refused_with_what_to_do(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", a=tokens(50))
    (error,) = scan_one(tmp_path / "d.npz").errors
    assert "save the tokens with numpy.save as .npy" in error["error"]


def test_a_long_record_of_many_values_is_unreadable_and_a_long_text_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_text, "LONG_RECORD_BYTES", 1000)
    monkeypatch.setattr(read_text, "MOST_VALUES", {(b"{",): 100, (b"1,",): 1000})
    lines = [
        json.dumps({"text": "so, it, goes, 1, 2. " * 100}),
        '{"text": "x", "a": [' + "{}," * 500 + "{}]}",
        '{"text": "x", "a": [' + "1," * 5000 + "1]}",
    ]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    result = scan_one(tmp_path / "d.jsonl")
    found = {f.rule: f for f in result.findings}
    assert result.errors == ()
    assert found["unreadable"].count == 2
    assert result.sources[0].num_elements == 2000


def test_an_xz_that_asks_for_gigabytes_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]
    lines = b'{"text": "abc"}\n' * 100
    raw = lzma.compress(lines, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6}])
    (tmp_path / "small.jsonl.xz").write_bytes(raw)
    assert scan_one(tmp_path / "small.jsonl.xz").errors == ()
    (tmp_path / "d.jsonl.xz").write_bytes(lzma.compress(lines, filters=filters))
    (error,) = scan_one(tmp_path / "d.jsonl.xz").errors
    assert "Memory usage limit" in error["error"]


def test_a_sparse_member_of_a_tar_is_unreadable(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "d.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("0.txt", "1.txt"):
            info = tarfile.TarInfo(name)
            raw = CLEAN[0].encode()
            if name == "1.txt":
                info.pax_headers = {
                    "GNU.sparse.major": "1",
                    "GNU.sparse.minor": "0",
                    "GNU.sparse.name": "1.txt",
                    "GNU.sparse.realsize": str(1 << 27),
                }
                raw = b"0\n".ljust(512, b"\0")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    result = scan_one(tmp_path / "d.tar")
    assert result.errors == ()
    assert {f.rule: f for f in result.findings}["unreadable"].count == 1


def test_headers_of_a_tar_that_describe_headers_end(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2
    one = info.tobuf(tarfile.GNU_FORMAT) + b"a\0".ljust(512, b"\0")
    (tmp_path / "d.tar").write_bytes(one * 3000)
    (error,) = scan_one(tmp_path / "d.tar").errors
    assert "cannot be read as a tar shard" in error["error"]


@pytest.mark.parametrize("spoil", ["bomb", "cut", "pickle", "text", "fields"])
def test_a_damaged_state_is_refused(tmp_path: Path, spoil: str) -> None:
    data = write_jsonl(tmp_path / "d.jsonl", CLEAN[:5])
    path = tmp_path / "state.npz"
    stat = data.stat()
    of = [repr(ScanSettings()), [[str(data), stat.st_size, stat.st_mtime_ns]]]
    save_state(path, {"schema": 2, "accounts": [{}], "of": of})
    raw = path.read_bytes()
    if spoil == "bomb":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("json.npy", bytes(1 << 22))
    elif spoil == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    elif spoil == "pickle":
        np.savez(path, json=np.array([{}], dtype=object))
    elif spoil == "text":
        path.write_text("state")
    with pytest.raises(ReadError, match="state"):
        scan([str(data)], state_path=path, resume=True)
    if spoil != "fields":
        with pytest.raises(ReadError, match="damaged one"):
            load_state(path)
