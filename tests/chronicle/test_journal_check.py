"""A journal that lacks a line or holds a damaged one says so; one that was only torn is fine."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.chronicle.journal import (
    HARMLESS,
    NOT_IN_HEAD,
    Journal,
    append_once,
    read_event,
    read_journal,
)
from trimtab.chronicle.journal_check import check_journal, check_lines
from trimtab.chronicle.journal_head import head_path, read_head
from trimtab.errors import ChronicleError

STORY = [
    "attempt",
    "start",
    "owner",
    "finding",
    "incident",
    "decision",
    "action",
    "finding",
    "finding",
    "checkpoint",
    "outcome",
    "note",
    "action",
    "finding",
    "end",
]


def write_story(path: Path) -> Path:
    """A run of two processes, and a dismissal between them."""
    for half in (STORY[:8], STORY[8:]):
        journal = Journal(path)
        for step, event in enumerate(half):
            journal.append(event, attempt="1.0", step=step, why="because it was so")
        journal.close()
        append_once(path, "dismiss", attempt="1.0", step=3, why="fine")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_story(tmp_path / "journal.jsonl")


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def number_of(path: Path, event: str, *, last: bool = False) -> int:
    """The place of an event's line, from 0."""
    events = [e.event for e in read_journal(path)[0]]
    return len(events) - 1 - events[::-1].index(event) if last else events.index(event)


def test_a_whole_journal_is_fine(path: Path) -> None:
    check = check_journal(path)
    assert (check.problems, check.notes, check.torn, check.refuses) == ((), (), 0, "")
    assert check.num_lines == check.num_events == len(STORY) + 2
    assert [(w.num_lines, w.trainer) for w in check.writers] == [
        (8, True),
        (1, False),
        (7, True),
        (1, False),
    ]


def test_each_line_says_who_wrote_it_and_what_stood_before(path: Path) -> None:
    first, second = (json.loads(line) for line in lines_of(path)[:2])
    assert (first["seq"], second["seq"], first["after"]) == (1, 2, "00000000")
    assert first["writer"] == second["writer"]
    assert list(first)[-4:] == ["writer", "seq", "after", "crc"]


def flip(line: bytes) -> bytes:
    middle = len(line) // 2
    return line[:middle] + bytes([line[middle] ^ 4]) + line[middle + 1 :]


def zeros(line: bytes) -> bytes:
    middle = len(line) // 2
    return line[:middle] + b"\0" * 16 + line[middle + 16 :]


def lost(line: bytes) -> bytes:
    del line
    return b""


@pytest.mark.parametrize("damage", [flip, zeros, lost])
@pytest.mark.parametrize("event", sorted(set(STORY) - set(HARMLESS)))
def test_a_decision_that_is_damaged_or_lost_refuses(
    path: Path, event: str, damage: Callable[[bytes], bytes]
) -> None:
    lines = lines_of(path)
    at = number_of(path, event)
    lines[at] = damage(lines[at])
    path.write_bytes(b"".join(lines))
    check = check_journal(path)
    assert check.refuses.startswith(f"{path}:{at + 1}: ")
    assert f"trimtab journal check {path.parent}" in check.refuses


def test_a_damaged_finding_is_told_and_does_not_refuse(path: Path) -> None:
    lines = lines_of(path)
    at = number_of(path, "finding")
    lines[at] = flip(lines[at])
    path.write_bytes(b"".join(lines))
    check = check_journal(path)
    assert [(p.kind, p.line) for p in check.problems] == [("damaged", at + 1)]
    assert check.refuses == ""
    assert read_journal(path)[1] == 1
    lines[at] = b""  # what is gone altogether may have been anything
    path.write_bytes(b"".join(lines))
    assert check_journal(path).refuses


@pytest.mark.parametrize("event", sorted(set(STORY) - set(NOT_IN_HEAD)))
def test_a_file_that_ends_after_a_lost_decision_is_found_by_the_head(
    tmp_path: Path, event: str
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for name in ("attempt", "finding", "start", event):
        journal.append(name, attempt="1.0", step=1)
    journal.close()
    lines = lines_of(path)
    for cut in (len(lines[-1]), 1, 20):
        path.write_bytes(b"".join(lines)[:-cut])
        check = check_journal(path)
        if cut == 1:  # only the line end
            assert not check.refuses
        else:
            assert "the end of the file is lost" in check.refuses


def test_a_torn_last_line_is_fine_then_and_after_the_next_event(path: Path) -> None:
    whole = path.read_bytes()
    line = lines_of(path)[number_of(path, "finding")]
    path.write_bytes(whole + line[:50])
    check = check_journal(path)
    assert (check.torn, check.refuses) == (1, "")
    journal = Journal(path)
    journal.append("resume", attempt="1.0", step=9)
    journal.close()
    assert path.read_bytes().startswith(whole + line[:50] + b"\n")
    check = check_journal(path)
    assert (check.torn, check.problems) == (1, ())
    path.write_bytes(path.read_bytes().replace(line[:50] + b"\n", line[:49] + b"\n"))
    assert check_journal(path).refuses


@pytest.mark.parametrize("can_cut", [True, False])
def test_a_failed_append_leaves_no_gap_and_a_torn_line_only_where_it_cannot_be_cut_off(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, can_cut: bool
) -> None:
    import os

    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    journal = Journal(path)
    journal.append("resume", attempt="1.0", step=9)
    write, calls = os.write, [0]

    def full(fd: int, data: bytes) -> int:
        calls[0] += 1
        if calls[0] > 1:
            raise OSError(28, "No space left on device")
        return write(fd, bytes(data)[:7])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        if not can_cut:
            patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(ChronicleError, match="No space left"):
            journal.append("action", attempt="1.0", step=9)
    journal.append("action", attempt="1.0", step=9)
    journal.close()
    check = check_journal(path)
    assert (check.torn, check.problems) == (0 if can_cut else 1, ())


def test_the_lines_of_a_writer_that_are_all_gone_are_missed(path: Path) -> None:
    lines = lines_of(path)
    del lines[number_of(path, "dismiss")]
    path.write_bytes(b"".join(lines))
    assert "removed or changed" in check_journal(path).refuses


def test_all_lines_of_the_first_process_lost_but_a_piece_are_missed(path: Path) -> None:
    lines = lines_of(path)
    after = number_of(path, "dismiss") + 1
    for length in range(1, len(lines[0]) - 1):
        path.write_bytes(lines[0][:length] + b"\n" + b"".join(lines[after:]))
        assert check_journal(path).refuses


def test_a_line_twice_is_told(path: Path) -> None:
    lines = lines_of(path)
    at = number_of(path, "action")
    path.write_bytes(b"".join([*lines[: at + 1], lines[at], *lines[at + 1 :]]))
    assert "again or too late" in check_journal(path).refuses


def test_two_trainers_are_told_and_a_command_beside_a_trainer_is_not(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    first = Journal(path)
    first.append("attempt", attempt="1.0", step=0)
    append_once(path, "dismiss", attempt="1.0", step=0)
    first.append("action", attempt="1.0", step=1)
    assert first.trouble == ""
    assert check_journal(path).problems == ()
    second = Journal(path)
    second.append("attempt", attempt="1.1", step=1)
    first.append("action", attempt="1.0", step=2)
    assert f"another trainer (writer {second.writer})" in first.trouble
    second.append("action", attempt="1.1", step=3)
    assert f"another trainer (writer {first.writer})" in second.trouble
    check = check_journal(path)
    assert {p.kind for p in check.problems} == {"two trainers"}
    assert "two trainers wrote at the same time" in check.refuses


def test_a_journal_that_was_removed_while_it_is_open_takes_no_event(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append("attempt", attempt="1.0", step=0)
    path.unlink()
    with pytest.raises(ChronicleError, match="was removed or replaced"):
        journal.append("action", attempt="1.0", step=1)


def test_an_old_journal_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    line = '{"t": "x", "event": "%s", "attempt": "1.0", "step": 1, "why": "so"}\n'
    old = line % "attempt" + (line % "action")[:40] + "\n" + line % "action"
    path.write_text(old)
    check = check_journal(path)
    assert (check.torn, check.problems, check.notes) == (1, (), ())
    journal = Journal(path)
    journal.append("resume", attempt="1.0", step=2)
    journal.close()
    assert check_journal(path).refuses == ""
    assert path.read_bytes().startswith(old.encode())
    path.write_bytes(path.read_bytes().replace(b'"why": "so"}\n', b'"why": "go"}\n'))
    assert check_journal(path).refuses  # the line before the first sealed one is witnessed
    path.write_text(old.replace('"action", "attempt": "1.0"', '"action", "at\0\0\0\0": "1.0"'))
    assert "4 zero bytes" in check_journal(path).refuses


def test_a_missing_or_damaged_head_is_a_note(path: Path) -> None:
    head = head_path(path)
    raw = head.read_bytes()
    assert len(read_head(path)[0]) == 2
    head.write_bytes(flip(raw))
    assert "journal.head: is damaged" in check_journal(path).notes[0]
    head.unlink()
    check = check_journal(path)
    assert "journal.head: is missing" in check.notes[0]
    assert check.refuses == ""


def test_a_folder_in_place_of_the_journal_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ChronicleError, match="cannot be read"):
        check_journal(tmp_path)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_story(tmp_path_factory.mktemp("story") / "journal.jsonl")


@st.composite
def damages(draw: st.DrawFn, size: int) -> Callable[[bytes], bytes]:
    """One fault of a disk or a hand: bytes flipped, zeroed, lost, repeated, or cut off."""
    first = draw(st.integers(0, size - 1))
    length = draw(st.integers(1, draw(st.sampled_from([1, 16, 300, 4096]))))
    filler = draw(st.binary(min_size=1, max_size=8))
    kind = draw(st.sampled_from(["flip", "zero", "fill", "drop", "twice", "cut"]))
    bit = 1 << draw(st.integers(0, 7))

    def damage(raw: bytes) -> bytes:
        before, hit, rest = raw[:first], raw[first : first + length], raw[first + length :]
        return {
            "flip": before + bytes([raw[first] ^ bit]) + raw[first + 1 :],
            "zero": before + b"\0" * len(hit) + rest,
            "fill": before + (filler * len(hit))[: len(hit)] + rest,
            "drop": before + rest,
            "twice": before + hit + hit + rest,
            "cut": before,
        }[kind]

    return damage


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_no_damage_hides_a_decision(story: Path, data: st.DataObject) -> None:
    raw = story.read_bytes()
    damaged = data.draw(damages(len(raw)))(raw)
    head, unclear = read_head(story)
    check = check_lines(story, damaged, head=head, unclear=unclear)
    if check.refuses:
        return
    left = set(damaged.split(b"\n"))
    lost = [line for line in raw.splitlines() if line not in left]
    last = raw.splitlines()[-1]
    for line in lost:
        event = read_event(line)
        assert event is not None
        # of the last line what is not in the head may be torn, which nothing can tell from damage
        assert event.event in (NOT_IN_HEAD if line == last else HARMLESS), event


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_journal_or_one_sentence(story: Path, raw: bytes) -> None:
    check = check_lines(story, raw, head=(), unclear="")
    assert check.num_lines >= check.num_events


def test_a_last_line_of_which_a_power_cut_left_the_second_half_is_torn(path: Path) -> None:
    journal = Journal(path)
    journal.append("note", attempt="1.0", step=90, text="never returned")
    journal.close()
    raw = path.read_bytes()
    start = raw.rindex(b"\n", 0, -1) + 1
    path.write_bytes(raw[:start] + bytes(60) + raw[start + 60 :])
    check = check_journal(path)
    assert (check.refuses, check.torn) == ("", 1)
    head_path(path).unlink()
    assert "zero bytes" in check_journal(path).refuses  # nothing says whether a decision was there


def test_a_damaged_last_line_that_tells_of_a_checkpoint_is_not_torn(path: Path) -> None:
    journal = Journal(path)
    journal.append("checkpoint", attempt="1.0", step=90, path="step-00000090", grade="healthy")
    journal.close()
    raw = path.read_bytes()
    start = raw.rindex(b"\n", 0, -1) + 1
    path.write_bytes(raw[:start] + bytes(60) + raw[start + 60 :])
    assert "the line holds 60 zero bytes" in check_journal(path).refuses


def test_an_emptied_journal_whose_head_names_a_decision_is_refused(path: Path) -> None:
    path.write_bytes(b"")
    assert "the end of the file is lost" in check_journal(path).refuses
