"""Damaged Arrow and Parquet files are one line of error each; the other files keep their results."""

import json
import os
import random
import signal
from pathlib import Path

import pytest

from tests.data_scan.data import CLEAN, scan_one, write_jsonl
from trimtab.data_scan import scan, table_process
from trimtab.data_scan.table_process import TableLimits

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

TEXTS = CLEAN[:40]


def arrow(path: Path, texts: list[str] | None = None) -> Path:
    table = pa.table({"text": TEXTS if texts is None else texts})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)
    return path


def with_offset(path: Path, value: int) -> Path:
    """Set the 20th offset of the text column, an int32 [41], to a value."""
    raw = bytearray(arrow(path).read_bytes())
    ends = [0]
    for text in TEXTS:
        ends.append(ends[-1] + len(text.encode()))
    offsets = b"".join(end.to_bytes(4, "little") for end in ends)
    at = raw.index(offsets)
    raw[at + 80 : at + 84] = value.to_bytes(4, "little")
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("value", [0x7FFF_FFFF, 0x7000_0000, 0xFFFF_FFFF, 0])
def test_an_offset_that_points_outside_is_an_error_and_no_death(tmp_path: Path, value: int) -> None:
    path = with_offset(tmp_path / "d.arrow", value)
    (error,) = scan_one(path).errors
    assert error["error"].startswith(f"{path}: cannot be read as a table (")
    assert "\n" not in error["error"]


def kill_at_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the reading process from outside at each answer, as a fault in a library does."""
    head = table_process.TableReader.head

    def killed(reader: table_process.TableReader) -> dict[str, object]:
        found = head(reader)
        if "ready" not in found:
            os.kill(reader.process.pid, signal.SIGSEGV)
            reader.process.wait()
            reader.ready.clear()
            while os.read(reader.out, 1 << 16):
                pass
            return head(reader)
        return found

    monkeypatch.setattr(table_process.TableReader, "head", killed)


def test_a_file_that_ends_the_reading_process_is_one_line_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, other = arrow(tmp_path / "a.arrow"), write_jsonl(tmp_path / "c.jsonl", TEXTS)
    bad = arrow(tmp_path / "b.arrow")
    assert scan_one(good).errors == ()
    with monkeypatch.context() as patch:
        kill_at_first_answer(patch)
        result = scan([str(bad), str(other)])
    (error,) = result.errors
    assert error["error"] == (
        f"{bad}: pyarrow died reading it (signal 11, SIGSEGV); the file is damaged; write it"
        " again, or leave it out"
    )
    assert [s.num_units for s in result.sources] == [40]
    again = scan([str(good), str(other)])
    assert again.errors == ()
    assert [s.num_units for s in again.sources] == [40, 40]


def test_the_reading_process_is_used_again(tmp_path: Path) -> None:
    paths = [str(arrow(tmp_path / f"{i}.arrow")) for i in range(5)]
    scan(paths[:1])
    (reader,) = [r for r in table_process.IDLE_READERS if r.owner == os.getpid()]
    assert scan(paths).errors == ()
    assert [r for r in table_process.IDLE_READERS if r.owner == os.getpid()] == [reader]


def test_a_reading_process_that_ended_while_it_waited_is_started_again(tmp_path: Path) -> None:
    path = arrow(tmp_path / "d.arrow")
    scan_one(path)
    for reader in table_process.IDLE_READERS:
        os.kill(reader.process.pid, signal.SIGKILL)
        reader.process.wait()
    result = scan_one(path)
    assert result.errors == ()
    assert result.sources[0].num_units == 40


@pytest.mark.slow
def test_a_table_that_unpacks_beyond_measure_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_process, "LEAST_MEMORY_BYTES", 400 << 20)
    path = tmp_path / "bomb.parquet"
    table = pa.table({"text": ["a" * (1 << 20)] * 300})
    parquet.write_table(table, path, compression="zstd", use_dictionary=False, row_group_size=300)
    assert path.stat().st_size < 1 << 20
    (error,) = scan_one(path, duplicates=False).errors
    assert "takes more than" in error["error"]
    assert "MiB of memory" in error["error"]


def test_a_table_that_takes_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = arrow(tmp_path / "d.arrow")
    scan_one(path)
    for reader in table_process.IDLE_READERS:  # it answers no more
        os.kill(reader.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(table_process, "LEAST_WAIT_S", 0.2)
    (error,) = scan_one(path).errors
    assert "pyarrow read it for more than 0 s without an end" in error["error"]
    monkeypatch.undo()
    assert scan_one(path).errors == ()


def test_limits_rise_with_the_size_of_the_file() -> None:
    small, large = TableLimits(1000), TableLimits(1 << 32)
    assert 8 <= small.wait_s < 9
    assert small.memory_bytes < 1 << 30
    assert large.wait_s > 1000
    assert large.memory_bytes == 8 << 30


def test_text_that_is_no_utf_8_is_a_finding_and_no_damage(tmp_path: Path) -> None:
    raw = arrow(tmp_path / "d.arrow", ["plain", "caf\u00e9 \u00e9t\u00e9", "end"]).read_bytes()
    (tmp_path / "d.arrow").write_bytes(raw.replace("\u00e9".encode(), b"\xff\xfe"))
    result = scan_one(tmp_path / "d.arrow")
    assert result.errors == ()
    assert "invalid-utf-8" in {f.rule for f in result.findings}


def test_a_module_beside_the_data_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reader in list(table_process.IDLE_READERS):
        table_process.IDLE_READERS.remove(reader)
        reader.kill()
    (tmp_path / "json.py").write_text("raise SystemExit('ran')")
    monkeypatch.chdir(tmp_path)
    assert scan_one(arrow(tmp_path / "d.arrow")).errors == ()


def test_damaged_tables_of_every_kind_are_errors_or_are_read(tmp_path: Path) -> None:
    table = pa.table({"text": TEXTS, "source": ["ab"[i % 2] for i in range(len(TEXTS))]})
    parquet.write_table(table, tmp_path / "d.parquet", row_group_size=11)
    seeds = [arrow(tmp_path / "d.arrow"), tmp_path / "d.parquet"]
    for number in range(120):
        rng = random.Random(number)
        seed = seeds[number % 2]
        raw = bytearray(seed.read_bytes())
        for _ in range(3):
            at = rng.choice((rng.randrange(len(raw)), rng.randrange(len(raw) - 600, len(raw))))
            raw[at] = rng.choice((0, 0x7F, 0xFF))
        path = tmp_path / f"x{seed.suffix}"
        path.write_bytes(raw)
        result = scan_one(path, duplicates=False)
        for error in result.errors:
            assert "\n" not in error["error"]
            assert error["error"].startswith(str(path))
        json.dumps([e["error"] for e in result.errors])
