import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from trimtab.chronicle.journal import EVENTS, Journal, read_journal
from trimtab.errors import ChronicleError


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "run" / "journal.jsonl"
    journal = Journal(path)
    for step, name in enumerate(EVENTS):
        journal.append(
            name,
            attempt="1.0",
            step=step,
            text="ä \u2028 \n",
            figures={"loss": 2.5},
            steps=np.arange(2),
        )
    events, torn = read_journal(path)
    assert torn == 0
    assert [e.event for e in events] == list(EVENTS)
    assert [e.step for e in events] == list(range(len(EVENTS)))
    assert events[0].data["text"] == "ä \u2028 \n"
    assert events[0].data["figures"] == {"loss": 2.5}
    assert events[0].t.endswith("+00:00")
    journal.close()


def test_a_byte_that_is_no_utf_8_is_written_as_its_escape(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("note", attempt="1.0", step=1, text="a\udcff.txt \\n")
    assert read_journal(journal.path)[0][0].data["text"] == "a\\udcff.txt \\n"


def test_an_event_is_one_line_and_on_disk_when_append_returns(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("note", attempt="1.0", step=1, text="line\nbreak")
    assert path.read_bytes().count(b"\n") == 1
    assert json.loads(path.read_bytes())["text"] == "line\nbreak"
    journal.close()


@pytest.mark.parametrize(
    "torn", ['{"t": "2024", "event": "no', "\udcff", "[1, 2]", '{"t": 1}', "null"]
)
def test_a_torn_last_line_is_counted_left_alone_and_starts_no_trouble(
    tmp_path: Path, torn: str
) -> None:
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    first.append("note", attempt="1.0", step=1)
    first.close()
    broken = path.read_bytes() + torn.encode("utf-8", "surrogateescape")
    path.write_bytes(broken)
    assert [e.step for e in read_journal(path)[0]] == [1]
    second = Journal(path)
    second.append("note", attempt="1.0", step=2)
    second.close()
    assert path.read_bytes().startswith(broken)
    events, num_torn = read_journal(path)
    assert [e.step for e in events] == [1, 2]
    assert num_torn == 1


def write_many(path: Path, who: int, count: int) -> None:
    journal = Journal(path)
    for step in range(count):
        journal.append("note", attempt=str(who), step=step, text="x" * 500)
    journal.close()


@pytest.mark.slow
def test_two_processes_append_without_mixing_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(path, who, 100)) for who in (0, 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [w.exitcode for w in writers] == [0, 0]
    events, torn = read_journal(path)
    assert torn == 0
    for who in ("0", "1"):
        assert [e.step for e in events if e.attempt == who] == list(range(100))


def test_an_unknown_event_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    with pytest.raises(ChronicleError, match="'party' is not one of start, resume"):
        journal.append("party", attempt="1.0", step=1)
    assert path.read_bytes() == b""
    journal.close()


def test_non_finite_numbers_keep_the_line_json(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("finding", attempt="1.0", step=1, value=float("nan"), score=float("inf"))
    journal.close()

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(path.read_text(), parse_constant=refuse)["value"] == "nan"


def test_what_cannot_be_opened_or_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ChronicleError, match="cannot be opened for writing"):
        Journal(tmp_path / "file" / "journal.jsonl")
    with pytest.raises(ChronicleError, match="cannot be read"):
        read_journal(tmp_path / "none.jsonl")


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:7]))
    journal.append("note", attempt="1.0", step=1, text="x" * 100)
    journal.append("note", attempt="1.0", step=2)
    journal.close()
    events, torn = read_journal(path)
    assert ([e.step for e in events], torn) == ([1, 2], 0)


def test_after_a_failed_write_the_next_event_starts_on_a_new_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("note", attempt="1.0", step=1)

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    write = os.write
    calls = 0

    def full(fd: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(28, "No space left on device")
        return write(fd, bytes(data)[:7])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        patch.setattr(os, "ftruncate", refuse)  # else nothing of the line is left
        for step in (2, 3):
            with pytest.raises(ChronicleError, match="No space left"):
                journal.append("note", attempt="1.0", step=step)
    journal.append("note", attempt="1.0", step=4)
    journal.close()
    events, torn = read_journal(path)
    assert ([e.step for e in events], torn) == ([1, 4], 1)


def test_what_is_not_json_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for bad in (object(), {1, 2}, deep):
        with pytest.raises(ChronicleError, match="cannot be written as JSON"):
            journal.append("note", attempt="1.0", step=1, text=bad)
    assert path.read_bytes() == b""
    journal.append("note", attempt="1.0", step=2)
    journal.close()
    assert [e.step for e in read_journal(path)[0]] == [2]


@pytest.mark.parametrize(
    "step", ["Infinity", "NaN", "1" + "0" * 400, "1" * 5000, "[" * 100_000, '{"a":' * 100_000]
)
def test_a_step_that_is_no_number_is_a_torn_line(tmp_path: Path, step: str) -> None:
    path = tmp_path / "journal.jsonl"
    line = '{"t": "x", "event": "note", "attempt": "%s", "step": %s}\n'
    path.write_text(line % ("1.0", step) + line % ("1" * 5000, 1) + line % ("1.0", 7))
    events, torn = read_journal(path)
    assert ([e.step for e in events], torn) == ([7], 2)
