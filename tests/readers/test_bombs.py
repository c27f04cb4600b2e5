"""A small compressed file that unpacks to very much ends in one clear error and little memory."""

import bz2
import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from trimtab.errors import ReadError
from trimtab.readers import read_each, read_run

LINE = b'{"step": 1, "loss": 2.0}\n'
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, 6),
    "xz": lambda data: lzma.compress(data, preset=0),
    "zst": lambda data: zstandard.ZstdCompressor().compress(data),
    "bz2": lambda data: bz2.compress(data, 1),
}


@pytest.mark.parametrize("form", PACKERS)
@pytest.mark.parametrize("start", [LINE, b"", b"\x18\x00\x00\x00\x00\x00\x00\x00\xa3\x7fK\x22"])
def test_a_bomb_is_one_error_that_names_it(form: str, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"log.{form}"
    path.write_bytes(PACKERS[form](start + b"a" * (70 << 20)))
    assert path.stat().st_size < 1 << 19
    tracemalloc.start()
    try:
        ((name, outcome),) = read_each(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert name == str(path)
    assert isinstance(outcome, ReadError)
    assert str(outcome).startswith(f"{path}: unpacks to more than 100 times its size")
    assert "unpack it and give the result" in str(outcome)
    assert peak < 8 * 70 << 20


@pytest.mark.parametrize("form", PACKERS)
def test_a_log_that_packs_well_is_read(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"log.{form}"
    path.write_bytes(
        PACKERS[form](b"".join(b'{"step": %d, "loss": 2.0}\n' % i for i in range(9000)))
    )
    assert read_run(path).num_rows == 9000
