"""Choosing a reader, directories, trimtab's own run directory, and clear errors."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.errors import ReadError
from trimtab.readers import READERS, Reader, read, read_each, read_run
from trimtab.readers.base import TextLines, take_sample
from trimtab.record import RunRecord
from trimtab.testing import tr8_104b

JSONL = '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n'


def lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def make_run(root: Path) -> Path:
    signals = root / "signals"
    signals.mkdir(parents=True)
    first: list[dict[str, object]] = [
        {"step": s, "loss": 3.0 - s / 10, "step_time_s": 0.5} for s in range(1, 9)
    ]
    first[6]["loss"] = "NaN"
    first[7]["grad_norm"] = None
    (signals / "1.0.jsonl").write_text(lines(first))
    (signals / "1.2.jsonl").write_text(lines([{"step": 5, "loss": 2.6}]))
    (signals / "1.10.jsonl").write_text(lines([{"step": 6, "loss": 2.5}, {"step": 7, "loss": 2.4}]))
    events: list[dict[str, object]] = [
        {"t": "", "event": "start", "attempt": "1.0", "step": 0},
        {
            "t": "",
            "event": "attempt",
            "attempt": "1.0",
            "step": 0,
            "number": "1.0",
            "parent": None,
            "parent_step": None,
            "why": "launched",
            "trial": False,
        },
        {
            "t": "",
            "event": "attempt",
            "attempt": "1.2",
            "step": 4,
            "number": "1.2",
            "parent": "1.0",
            "parent_step": 4,
            "why": "half the LR",
            "trial": True,
        },
        {
            "t": "",
            "event": "attempt",
            "attempt": "1.10",
            "step": 5,
            "number": "1.10",
            "parent": "1.0",
            "parent_step": 5,
            "why": "skip the window",
            "trial": False,
        },
    ]
    (root / "journal.jsonl").write_text(lines(events) + '{"t": "", "event": "att')
    (root / "run.toml").write_text('name = "x"\nclip_grad = 0.5\n[optimizer]\nlr = 1e-3\n')
    return root


def test_a_run_directory_is_one_record_with_its_lineage(tmp_path: Path) -> None:
    record = read_run(make_run(tmp_path / "run"))
    assert record.format == "trimtab"
    assert [(a.number, a.parent, a.parent_step, a.trial) for a in record.attempts] == [
        ("1.0", None, None, False),
        ("1.2", "1.0", 4.0, True),
        ("1.10", "1.0", 5.0, False),
    ]
    assert record.attempts[1].why == "half the LR"
    assert record.step[record.lineage_rows()].tolist() == [1, 2, 3, 4, 5, 6, 7]
    loss = record.columns["loss"]
    assert loss.present.all()
    assert [i for i, v in enumerate(loss.values) if v != v] == [6]
    assert "grad_norm" not in record.columns
    assert record.facts == {"clip": 0.5, "lr": 1e-3}


@pytest.mark.parametrize("is_there", [True, False])
def test_rows_before_an_attempt_whose_rows_were_lost_stay_on_the_lineage(
    is_there: bool, tmp_path: Path
) -> None:
    root = make_run(tmp_path / "run")
    lost = root / "signals" / "1.2.jsonl"
    lost.write_text("") if is_there else lost.unlink()
    journal = root / "journal.jsonl"
    journal.write_text(
        journal.read_text().replace(
            '"parent": "1.0", "parent_step": 5', '"parent": "1.2", "parent_step": 5'
        )
    )
    record = read_run(root)
    assert [(a.number, a.parent, a.parent_step) for a in record.attempts] == [
        ("1.0", None, None),
        ("1.10", "1.0", 4.0),
    ]
    assert record.step[record.lineage_rows()].tolist() == [1, 2, 3, 4, 6, 7]


def test_samples_without_a_journal_are_read_in_order(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "journal.jsonl").unlink()
    record = read_run(run)
    assert [a.number for a in record.attempts] == ["1.0", "1.2", "1.10"]
    assert any("no journal.jsonl" in note for note in record.notes)


def test_torn_samples_are_counted_and_wrong_ones_are_errors(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    file = run / "signals" / "1.10.jsonl"
    file.write_text(file.read_text() + '{"step": 8, "lo')
    assert "1 sample line torn in mid-write and left out" in read_run(run).notes
    file.write_text('{"step": "x", "loss": 1.0}\n')
    with pytest.raises(ReadError, match=r"1\.10\.jsonl:1: step is 'x', expected a number"):
        read_run(run)


@pytest.mark.parametrize("number", ["../../outside", "{}/outside", "1" * 5000, "x", "1.0\n", ""])
def test_an_attempt_cannot_lead_out_of_the_run_directory(tmp_path: Path, number: str) -> None:
    run = make_run(tmp_path / "a" / "run")
    (tmp_path / "a" / "outside.jsonl").write_text(JSONL)
    event: dict[str, object] = {"event": "attempt", "attempt": number}
    event["number"] = number.format(tmp_path / "a")
    (run / "journal.jsonl").write_text(lines([event]))
    record = read_run(run)
    assert [a.number for a in record.attempts] == ["1.0", "1.2", "1.10"]
    assert any("1 attempt left out whose number is not like 1.0" in n for n in record.notes)


def test_links_to_samples_are_not_followed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "outside.jsonl").write_text(JSONL)
    (run / "signals" / "1.2.jsonl").unlink()
    (run / "signals" / "1.2.jsonl").symlink_to(tmp_path / "outside.jsonl")
    record = read_run(run)
    assert [a.number for a in record.attempts] == ["1.0", "1.10"]
    assert "signals/1.2.jsonl is a link, which is not followed" in record.notes
    (run / "signals").rename(tmp_path / "elsewhere")
    (run / "signals").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ReadError, match="no samples in signals"):
        read_run(run)


@pytest.mark.parametrize(
    "wild", ["Infinity", "NaN", "1" + "0" * 400, "1" * 5000, "[" * 100_000, '{"a":' * 100_000]
)
def test_wild_numbers_and_nesting_are_left_out(tmp_path: Path, wild: str) -> None:
    run = make_run(tmp_path / "run")
    samples = run / "signals" / "1.10.jsonl"
    samples.write_text(samples.read_text() + f'{{"step": {wild}, "loss": 1.0}}\n')
    journal = run / "journal.jsonl"
    event = '{"event": "attempt", "number": "1.10", "parent": "1.0", "parent_step": %s}\n'
    journal.write_text(event % wild)
    (run / "run.toml").write_text(f"clip_grad = {wild}\n")
    record = read_run(run)
    assert record.num_rows == 11
    assert all(a.parent_step is None for a in record.attempts)
    assert "clip" not in record.facts
    assert any("left out" in note for note in record.notes)


def test_deep_nesting_in_run_toml_is_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "run.toml").write_text("a = " + "[" * 3000 + "]" * 3000 + "\n")
    assert any(n.startswith("run.toml cannot be read") for n in read_run(run).notes)


def test_a_run_without_samples_says_so(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text("")
    with pytest.raises(ReadError, match="no samples in signals"):
        read(tmp_path)


def test_a_directory_holds_runs_logs_and_other_files(tmp_path: Path) -> None:
    make_run(tmp_path / "b")
    (tmp_path / "a.log").write_text(tr8_104b.print_log())
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "metrics").write_text(JSONL)
    (tmp_path / "readme.txt").write_text("Some words about it.\n")
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 10)
    (tmp_path / ".hidden").write_text(JSONL)
    assert [r.format for r in read(tmp_path)] == ["megatron", "trimtab", "jsonl"]
    outcomes = {Path(path).name: outcome for path, outcome in read_each(tmp_path)}
    assert list(outcomes) == ["a.log", "b", "metrics"]
    assert isinstance(outcomes["b"], RunRecord)
    assert isinstance(outcomes["metrics"], RunRecord)
    assert "2 other files" in outcomes["metrics"].notes[-1]
    with pytest.raises(ReadError, match="holds 3 logs"):
        read_run(tmp_path)


def test_a_directory_without_logs_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words\n")
    (tmp_path / "b.txt").write_text("more words\n")
    with pytest.raises(ReadError, match="no log among 2 files; looked for a trimtab run"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, r"cannot be read \(No such file or directory\)"),
        (lambda p: p.write_bytes(b""), "empty; nothing has been logged yet"),
        (lambda p: p.write_bytes(b" \n\n"), "empty; nothing has been logged yet"),
        (lambda p: p.write_bytes(bytes(range(256)) * 50), "binary data of no known format"),
        (lambda p: p.write_bytes(b"\x1f\x8b" + bytes(range(256))), "compressed data is damaged"),
        (
            lambda p: p.write_text("step by step\nall is lost\n"),
            "no records .* looked for jsonl",
        ),
        (lambda p: p.write_text("{}\n{}\n"), "no known signal; looked for a loss"),
        (lambda p: p.write_text('{"a": 1}\n{"a": 2}\n'), "no known signal; looked for a loss"),
    ],
)
def test_a_bad_file_is_one_clear_error(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(ReadError, match=message) as caught:
        read_run(path)
    assert str(path) in str(caught.value)


def test_utf16_as_windows_shells_write_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(JSONL, encoding="utf-16")
    assert read_run(path).num_rows == 2


def test_built_in_readers_are_readers() -> None:
    assert all(isinstance(reader, Reader) for reader in READERS)
    assert len({reader.name for reader in READERS}) == len(READERS)


def test_a_pipe_is_refused_and_not_waited_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(ReadError, match="not a regular file but a pipe"):
            read(path)


def test_a_path_no_disk_takes_is_a_clear_error() -> None:
    for name in ("a\0b", "n" * 5000):
        with pytest.raises(ReadError, match="cannot be read"):
            take_sample(Path(name))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here that fails on read")
def test_a_disk_that_fails_on_read_is_a_clear_error() -> None:
    with pytest.raises(ReadError, match=r"/proc/self/mem: cannot be read \(Input/output error\)"):
        take_sample(Path("/proc/self/mem"))
    with pytest.raises(ReadError, match="Input/output error"):
        list(TextLines(Path("/proc/self/mem")))


def test_an_iteration_of_5000_digits_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log"
    good = tr8_104b.print_log()
    path.write_text(good)
    rows = read_run(path).num_rows
    wild = [f" iteration {'9' * n}/ {'9' * n} | lm loss: 2.0E+00 |\n" for n in (400, 5000)]
    path.write_text(good + "".join(wild))
    assert read_run(path).num_rows == rows


def test_read_of_a_hugging_face_folder_is_one_run_without_errors(tmp_path: Path) -> None:
    rows = [{"step": s, "epoch": s / 100, "loss": 3.0 - s / 400} for s in range(10, 310, 10)]
    for step in (100, 200, 300):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        history = [r for r in rows if r["step"] <= step]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
        for name in ("model.safetensors", "optimizer.pt", "config.json", "training_args.bin"):
            (folder / name).write_bytes(b"\x80\x02}q\x00.")
    found = list(read_each(tmp_path))
    ((_, record),) = found
    assert isinstance(record, RunRecord)
    assert record.num_rows == 30


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("[00:01] ep=0 it={i} | L={loss:.2f}", "ep, it, L"),
        ("it={i:05d} | ctc {loss:.2f} | |g| 0.5 | eta 3e-4", "it, ctc, eta"),
    ],
)
def test_the_keys_of_a_log_that_nobody_knows_are_named(
    tmp_path: Path, line: str, keys: str
) -> None:
    path = tmp_path / "own.txt"
    lines = [line.format(i=i, loss=9.5 + i % 3) for i in range(40)]  # nothing falls
    path.write_text("\n".join(lines))
    with pytest.raises(ReadError, match=rf"--columns .*keys with numbers: {keys}\); looked for"):
        read_run(path)
