"""What a verdict rests on, and how it fails a command."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import trimtab
from trimtab.analysis.account import RunAccount
from trimtab.analysis.assemble import make_account
from trimtab.analysis.verdict import Ending
from trimtab.cli import main
from trimtab.cli.watch_digest import digest
from trimtab.report.html import render_html
from trimtab.report.overview import overview_line
from trimtab.report.terminal import terminal_text
from trimtab.testing.curves import record_of, simulate_run


@pytest.fixture(scope="module")
def calm() -> RunAccount:
    """A run without an incident."""
    return make_account(simulate_run(num_steps=1500, seed=1))


def write_log(path: Path, rows: int, *, spike: bool = False) -> Path:
    """Write a CSV log; at its middle a spike of 40 rows, if wanted."""
    rng = np.random.default_rng(rows)
    loss = 2 + 3 / (1 + np.arange(rows) / 40) + 0.02 * rng.standard_normal(rows)
    if spike:
        loss[rows // 2 : rows // 2 + 40] += 3.0
    lines = [f"{s},{value:.4f}" for s, value in enumerate(loss)]
    path.write_text("step,train_loss\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "spike", "fails"),
    [
        (2000, False, ()),
        (2000, True, ("warning", "not-judged")),
        (7, False, ("not-judged",)),
    ],
)
def test_fail_on_takes_each_word(
    tmp_path: Path, rows: int, spike: bool, fails: tuple[str, ...]
) -> None:
    log = write_log(tmp_path / "run.csv", rows, spike=spike)
    for word in ("warning", "ended-badly", "not-judged"):
        assert main(["inspect", str(log), "--fail-on", word]) == int(word in fails), word
    assert main(["inspect", str(log)]) == 0


def test_a_run_that_ended_badly_fails_whatever_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "signals").mkdir()
    event = '{"t": "2026-01-01T00:00:00Z", "event": "start", "attempt": "1.0", "step": 0}\n'
    (tmp_path / "journal.jsonl").write_text(event, encoding="utf-8")
    rows = "".join(json.dumps({"step": s, "loss": 3 - s / 1000}) + "\n" for s in range(1, 200))
    (tmp_path / "signals" / "1.0.jsonl").write_text(rows, encoding="utf-8")
    (tmp_path / "verdict.json").write_text(
        '{"schema": 1, "state": "given-up", "reason": "every batch is NaN"}', encoding="utf-8"
    )
    for word in ("warning", "critical", "ended-badly", "not-judged"):
        assert main(["inspect", str(tmp_path), "--fail-on", word]) == 1
    assert "every batch is NaN" in capsys.readouterr().out
    main(["inspect", str(tmp_path), "--json"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["verdict"] == "ended-badly"
    assert run["ending"]["why"] == "every batch is NaN"


def test_an_ending_is_told_first_everywhere(calm: RunAccount) -> None:
    crash = Ending(
        why="the log ends in a crash: oom_gpu",
        crash_class="oom_gpu",
        line="torch.OutOfMemoryError: CUDA out of memory.",
        who_must_act="config",
        do="take a smaller batch",
        rank=3,
    )
    ended = RunAccount(record=calm.record, incidents=(), tested=calm.tested, ending=crash, path="x")
    assert ended.verdict == "ended-badly"
    lines = terminal_text(ended, width=140).splitlines()
    assert "oom_gpu" in lines[1]
    assert "rank 3" in lines[1]
    assert "to act: the author of the config · take a smaller batch" in lines[2]
    assert "CUDA out of memory" in lines[3]
    assert "healthy" not in terminal_text(ended)
    assert overview_line(ended, path="x").severity == "critical"
    page = render_html(ended, title="t")
    assert "oom_gpu" in page
    assert "Healthy" not in page


@pytest.mark.parametrize(
    ("ending", "crash_class"),
    [
        (
            "[rank3]: Traceback (most recent call last):\n"
            '[rank3]:   File "/app/train.py", line 88, in <module>\n'
            "[rank3]:     loss.backward()\n"
            "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
            "oom_gpu",
        ),
        ("", ""),
    ],
)
def test_a_log_that_ends_in_a_crash_is_never_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, crash_class: str
) -> None:
    rng = np.random.default_rng(4)
    log = tmp_path / "train.log"
    lines = [
        f"step {s} | loss {2 + 3 / (1 + s / 40) + 0.02 * rng.standard_normal():.4f} | lr 0.0003\n"
        for s in range(1200)
    ]
    log.write_text("".join(lines) + ending, encoding="utf-8")
    assert main(["inspect", str(log), "--fail-on", "critical"]) == int(bool(ending))
    text = " ".join(capsys.readouterr().out.split())
    run = cast("list[dict[str, Any]]", trimtab.analyze(log).to_dict()["runs"])[0]
    if not ending:
        assert run["verdict"] == "healthy"
        return
    assert run["verdict"] == "ended-badly"
    assert run["ending"]["crash_class"] == crash_class
    assert run["ending"]["rank"] == 3
    assert "CUDA out of memory" in text
    assert "healthy" not in text


def test_keys_that_no_signal_took_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    log = tmp_path / "run.jsonl"
    rows = [
        {"step": s, "loss": 2.5 + 0.02 * rng.standard_normal(), "odd/thing": s % 7}
        for s in range(1200)
    ]
    log.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    judgement = trimtab.analyze(log).judgement
    assert judgement.unread == {"odd/thing": 1200}
    said = " ".join(terminal_text(trimtab.analyze(log).runs[0]).split())
    assert "keys not understood, judged by their shape alone: 'odd/thing'" in said


def test_signals_that_nothing_judges_are_named() -> None:
    rng = np.random.default_rng(0)
    t = np.arange(1, 1201.0)
    record = record_of(
        t,
        {
            "loss": 2.5 + 0.02 * rng.standard_normal(len(t)),
            "num_zeros": 3 + 0.1 * rng.standard_normal(len(t)),
            "tokens_seen": 1024 * t,
        },
    )
    account = make_account(record)
    judgement = account.judgement
    assert judgement.signals_not_judged == ("num_zeros",)
    assert "read but not judged: num zeros" in judgement.not_judged
    assert "read but not judged: num zeros" in " ".join(terminal_text(account).split())
    assert "num_zeros" not in judgement.rests_on.signals
    assert "loss" in judgement.rests_on.signals


def test_the_page_says_what_the_verdict_rests_on(calm: RunAccount) -> None:
    page = render_html(calm, title="t")
    assert "What the verdict rests on: healthy" in page
    assert "self-test" in page


def test_verdict_of_several_runs_is_the_worst_with_its_reason(tmp_path: Path) -> None:
    write_log(tmp_path / "a.csv", 2000)
    write_log(tmp_path / "b.csv", 7)
    found = trimtab.analyze(tmp_path)
    assert found.verdict == "not-judged"
    assert found.judgement.why == "7 train losses, fewer than 8"
    assert "self-test" in repr(trimtab.analyze(tmp_path / "a.csv"))


def test_a_loss_of_nothing_but_zeros_is_not_judged() -> None:
    t = np.arange(300.0)
    zeros = {"loss": np.zeros(300)}
    assert make_account(record_of(t, zeros)).judgement.verdict == "not-judged"
    assert "exactly 0 in every row" in make_account(record_of(t, zeros)).judgement.why
    rewarded = zeros | {"reward": np.linspace(0, 1, 300)}
    assert "exactly 0" not in make_account(record_of(t, rewarded)).judgement.why


def test_a_newest_attempt_of_zeros_is_not_judged() -> None:
    rng = np.random.default_rng(3)
    loss = np.concatenate(
        (2 * np.exp(-np.arange(60) / 20) + 0.01 * rng.normal(size=60), np.zeros(30))
    )
    step = np.concatenate((np.arange(60.0), np.arange(30.0)))
    analysis = trimtab.analyze({"step": step, "loss": loss})
    assert analysis.verdict == "not-judged"
    assert "in every row of the newest attempt" in analysis.runs[0].judgement.why


def test_a_held_out_score_is_validation_without_its_loss() -> None:
    loss = 2 * np.exp(-np.arange(60.0) / 20) + 0.1
    judged = trimtab.analyze({"loss": loss, "val_acc": 0.9 - 0.4 * loss / 2}).runs[0].judgement
    assert "no validation loss is logged" in judged.not_judged


@pytest.mark.slow
def test_without_trouble_is_said_only_where_no_later_row_is_as_high() -> None:
    rng = np.random.default_rng(0)
    t = np.arange(12_000.0)
    loss = 2.5 + 1.5 * np.exp(-t / 4000) + 0.01 * rng.standard_normal(len(t))
    loss[3000:3040] += 2.0

    def told(values: object) -> str:
        run = make_account(record_of(t, {"loss": np.asarray(values)}), self_test=False)
        first = min((i for i in run.incidents if i.severity != "info"), key=lambda i: i.onset)
        return " ".join(r.why for r in first.plan.remedies)

    assert "since then without trouble" in told(loss)
    loss[6000:11_000:100] += 1.8  # fifty rows, far apart: none is an incident of its own
    assert "without trouble" not in told(loss)
    assert "50 rows of them half as far up or more" in told(loss)


_TRACE = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 26, in <module>\n'
    "    push(metrics)\n"
    "ConnectionError: telemetry host unreachable\n"
)


def _bar(first: int, last: int) -> str:
    return "".join(
        f"\r {s // 2}%|███    | {s}/200 [00:{s % 60:02d}<00:05,  9.5it/s, loss={6 - s / 50:.3f}]"
        for s in range(first, last + 1)
    )


def _logged(*parts: tuple[int, int] | str) -> str:
    return "".join(
        p
        if isinstance(p, str)
        else "".join(f"step {s}/120 | loss {6 - s / 50:.4f} | lr 0.001\n" for s in range(*p))
        for p in parts
    )


_PUSHED = _TRACE + "WARNING: telemetry failed, ignored\n"


@pytest.mark.parametrize(
    ("text", "badly"),
    [
        # A crash, a restart and 80 redraws of one bar; one redraw as the bar is closed is none.
        (_bar(0, 70) + "\n" + _TRACE + _bar(0, 80) + "\n", False),
        (_bar(0, 70) + "\n" + _TRACE + _bar(71, 71) + "\n", True),
        # Handled each time before, and the program has more to say; or only the launcher has.
        (_logged((1, 60), _PUSHED, (60, 121), _PUSHED, "bye\n"), False),
        (_logged((1, 60), _PUSHED, (60, 121), _TRACE), True),
        (_logged((1, 60), _TRACE, (60, 121), _TRACE, "ERROR: rank 0 exited with code 1\n"), True),
        # A restart goes through the same rows again: what ended the run once may have twice.
        (_logged((1, 60), _TRACE, (40, 60), _TRACE, "wandb: Synced 4 files\n"), True),
        (_logged((1, 121), _PUSHED, "bye\n"), True),
    ],
)
def test_an_ending_is_what_stands_at_the_end(tmp_path: Path, text: str, badly: bool) -> None:
    log = tmp_path / "train.log"
    log.write_text(text, encoding="utf-8")
    assert (trimtab.analyze(log).verdict == "ended-badly") is badly


def _in_other_words(first: int, last: int) -> str:
    """Rows whose loss the crash classifier has no word for."""
    rows = (f"it {s:>5}/600 | ce {6 - s / 150:.4f} | lr 1e-3\n" for s in range(first, last, 5))
    return "".join(rows)


_DONE = "done, saved model.pt\n"


@pytest.mark.parametrize(
    ("behind", "badly"),
    [
        (_in_other_words(595, 601) + _DONE, False),
        (_in_other_words(595, 601) + "    eval @ 600: val_ce 1.9\n" + _DONE + "bye\n", False),
        (_in_other_words(595, 601) + "2026-01-01 10:00:00 Finished.\n", False),
        # Another rank has printed on; the end is that of the launcher; no row follows at all.
        (_in_other_words(595, 601), True),
        (_in_other_words(595, 601) + _DONE + "ERROR: rank 3 exited with code 1\n", True),
        (_in_other_words(595, 601) + "done with epoch 3\n", True),
        (_in_other_words(585, 595) + _DONE, True),
        (_DONE, True),
    ],
)
def test_rows_and_an_ordinary_end_behind_a_fault_mean_that_it_was_caught(
    tmp_path: Path, behind: str, badly: bool
) -> None:
    log = tmp_path / "train.log"
    log.write_text(_in_other_words(5, 595) + _TRACE + behind, encoding="utf-8")
    assert (trimtab.analyze(log).verdict == "ended-badly") is badly


_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.mark.parametrize(
    ("again", "told"), [(_in_other_words(300, 601), True), (_in_other_words(400, 601), False)]
)
def test_how_an_earlier_attempt_ended_is_a_note(tmp_path: Path, again: str, told: bool) -> None:
    log = tmp_path / "train.log"
    log.write_text("\nhello\n" + _in_other_words(5, 400) + _OOM + again, encoding="utf-8")
    run = trimtab.analyze(log).runs[0]
    notes = [n for n in run.notes if "earlier attempt" in n]
    assert run.ending is None
    assert len(notes) == told
    assert all("oom_gpu" in n and "CUDA out of memory" in n and "line 82" in n for n in notes)


_PLOT = (
    "12:00:01: Unable to plot network architecture:\n"
    "12:00:02: module 'torch.onnx' has no attribute '_optimize_trace'\n"
)


def _epochs(first: int, last: int) -> str:
    return "".join(
        f"12:{e:02d}:03: Epoch {e}\n12:{e:02d}:04: train_loss {0.6 / (e + 1):.4f}\n"
        f"12:{e:02d}:05: val_loss {0.7 / (e + 1):.4f}\n12:{e:02d}:06: Pseudo dice [0.{e + 1}]\n"
        for e in range(first, last)
    )


@pytest.mark.parametrize(
    ("text", "badly"),
    [
        # nnU-Net warns so before its first epoch; its rows have no step.
        (_PLOT + _epochs(0, 2), False),
        (_PLOT + _epochs(0, 12), False),
        (_epochs(0, 6) + _PLOT + _epochs(6, 12), False),
        (_epochs(0, 12) + _PLOT, True),
        (_epochs(0, 12) + _PLOT + _epochs(12, 13), True),
    ],
)
def test_what_rows_of_any_axis_follow_is_no_ending(tmp_path: Path, text: str, badly: bool) -> None:
    log = tmp_path / "train.log"
    log.write_text(text, encoding="utf-8")
    assert (trimtab.analyze(log).verdict == "ended-badly") is badly


def test_rows_with_nan_are_an_incident_and_no_crash(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    rows = _logged((1, 60)) + "".join(
        f"step {s}/120 | loss nan | lr 0.001\n" for s in range(60, 90)
    )
    log.write_text(rows, encoding="utf-8")
    analysis = trimtab.analyze(log)
    assert analysis.verdict == "incident"
    log.write_text(rows + "Traceback (most recent call last):\nValueError: bad box\n", "utf-8")
    ended = trimtab.analyze(log).runs[0]
    assert (ended.verdict, ended.ending and ended.ending.crash_class) == ("ended-badly", "numeric")
    assert ended.ending is not None
    assert ended.ending.line == "ValueError: bad box"


@pytest.mark.parametrize(
    ("status", "verdict"), [({"status": 0}, "healthy"), ({"status": 1}, "ended-badly")]
)
def test_an_ending_in_the_journal_outweighs_the_text(
    tmp_path: Path, status: dict[str, int], verdict: str
) -> None:
    run = tmp_path / "a" / "run"
    run.mkdir(parents=True)
    (run / "output.log").write_text(_logged((1, 40), _TRACE), encoding="utf-8")
    common = {"t": "2026-01-01T00:00:00+00:00", "attempt": "1.0", "step": 0}
    events: list[dict[str, object]] = [
        {"event": "start", "launch": "supervise-1", "argv": ["x"], "logs": []},
        {"event": "attempt", "number": "1.0", "supervised": True},
        {"event": "end", "first_step": 1, "last_step": 39, **status},
    ]
    journal = "".join(json.dumps(common | e) + "\n" for e in events)
    (run / "journal.jsonl").write_text(journal, encoding="utf-8")
    assert trimtab.analyze(run).verdict == verdict
    assert trimtab.analyze(tmp_path).verdict == verdict
    words = digest(str(run)).splitlines()[0]
    assert ("somebody must act" in words) is (verdict == "ended-badly")
