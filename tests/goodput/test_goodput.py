"""Where the hours went: known logs, exact sums, and what cannot be told."""

import json
import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.cli import main
from trimtab.goodput import Mark, account_for, goodput, goodput_text

JOB = Path(__file__).parent.parent / "supervise" / "job.py"
BEGAN = datetime(2026, 3, 1, 22, 0, tzinfo=UTC)
DONE = "successfully saved checkpoint at iteration"


def line(second: float, text: str) -> str:
    """Return a line as Megatron prints it."""
    return f"[{BEGAN + timedelta(seconds=second):%Y-%m-%d %H:%M:%S.%f}] {text}"


def steps(first: int, last: int, at: float, took: float = 10.0) -> list[str]:
    """Return the rows of steps."""
    return [
        line(at + took * i, f"iteration {step}/ 1000 | lm loss: {9 - step / 1000:.4f} | lr: 1e-4")
        for i, step in enumerate(range(first, last + 1), 1)
    ]


def night() -> list[str]:
    """Return a night of 100 s start, 40 steps with a save of 30 s, a crash, and the rest."""
    rows = [line(0, "> initializing torch distributed ..."), *steps(1, 20, 100)]
    rows += [line(300, "saving checkpoint at iteration 20"), line(330, f"{DONE} 20")]
    rows += steps(21, 30, 330)
    rows += [line(435, "Traceback (most recent call last):"), line(435, "RuntimeError: NCCL")]
    rows += [line(500, "> initializing torch distributed ..."), *steps(21, 40, 560)]
    # One silence of 300 s, nothing says why, and one step of 14 s.
    rows += [*steps(41, 41, 1060), *steps(42, 42, 1070, 14.0), *steps(43, 60, 1084)]
    return rows


def test_each_second_of_a_night_has_its_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(night()) + "\n")
    assert main(["goodput", str(log), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    want = {
        "training": 600,
        "init": 100,
        "checkpoint": 30,
        "recomputed": 100,
        "restart": 130,
        "hang": 300,
        "slow": 4,
    }
    got = {k: round(v, 6) for k, v in told["seconds"].items() if v}
    assert got == {k: pytest.approx(v) for k, v in want.items()}
    assert math.fsum(told["seconds"].values()) == told["wall_s"] == 1264.0
    assert told["effective"] == pytest.approx(600 / 1264)
    main(["goodput", str(log)])
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "effective 47.5 % of 21 m 04 s; most was lost to hangs"


@pytest.mark.covers("S230")
def test_evaluating_less_often_is_suggested_with_what_it_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = steps(1, 20, 0)
    rows += [line(200, "running evaluation at iteration 20"), *steps(21, 40, 240)]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    assert main(["goodput", str(tmp_path / "train.log")]) == 0
    # 40 s of 430: from the row of step 1 to that of step 40.
    assert "do: evaluate half as often: that saves 4.7 % of the time" in capsys.readouterr().out


@pytest.mark.covers("S23")
@pytest.mark.parametrize(("took", "warned"), [(12.0, True), (2.0, False)])
def test_the_share_of_evaluation_is_told_with_a_warning_above_2_percent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], took: float, warned: bool
) -> None:
    log, rows = tmp_path / "train.log", [line(0, "> initializing torch distributed ...")]
    for part in range(5):
        at = part * (200 + took)
        rows += steps(20 * part + 1, 20 * part + 20, at)
        rows += [line(at + 200, "running evaluation"), line(at + 200 + took, "validation loss 2.5")]
    log.write_text("\n".join(rows) + "\n")
    share = 5 * took / (5 * took + 1000)
    assert main(["goodput", str(log), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seconds"]["evaluation"] / told["wall_s"] == pytest.approx(share, abs=0.002)
    assert (told["evaluation_above"] is not None) == warned
    main(["goodput", str(log)])
    text = capsys.readouterr().out
    assert f"{100 * share:.2f} %" in text
    assert ("warning: evaluation takes" in text) == warned


@pytest.mark.parametrize(
    "form",
    [
        "{0:%m/%d/%Y %H:%M:%S} - INFO - step {1} loss 2.5",
        "I{0:%m%d %H:%M:%S}.{0:%f} 77 train.cc:1] step={1}, loss=2.5",
        "{0:%H:%M:%S} | epoch 1 | step {1} | loss 2.5",
        '{{"_timestamp": {2}, "step": {1}, "loss": 2.5}}',
        '{{"elapsed_time": "{3}:{4:02d}:{5:02d}", "current_steps": {1}, "loss": 2.5}}',
    ],
)
def test_times_are_read_as_trainers_print_them_also_over_midnight(
    tmp_path: Path, form: str
) -> None:
    log = tmp_path / "train.log"
    late = BEGAN + timedelta(seconds=6900)
    rows = []
    for i in range(60):
        at, run = late + timedelta(seconds=10 * i), 10 * i
        rows.append(form.format(at, i + 1, at.timestamp(), run // 3600, run // 60 % 60, run % 60))
    log.write_text("\n".join(rows) + "\n")
    found = goodput([log])
    assert found.wall_s == pytest.approx(590)
    assert found.effective == pytest.approx(1.0)
    assert found.usual_step_s == pytest.approx(10)


def test_a_clock_of_whole_seconds_makes_no_step_slow(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    rows = [f"{BEGAN + timedelta(seconds=int(0.7 * i))} step {i} loss 2.5" for i in range(400)]
    log.write_text("\n".join(rows) + "\n")
    found = goodput([log])
    assert found.effective is not None
    assert found.effective > 0.99


def test_times_that_jump_by_centuries_are_left_out_and_told(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    rows = steps(1, 60, 0)
    log.write_text("\n".join([*rows[:50], *(r.replace("2026", "2326") for r in rows[50:])]) + "\n")
    found = goodput([log])
    assert found.wall_s == pytest.approx(490)
    (told,) = found.untold
    assert "10 times lie 300 years" in told


def test_steps_counted_anew_in_each_epoch_are_not_trained_twice(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "\n".join(
            line(10 * (20 * epoch + i), f"epoch {epoch} - iter {i}/20 - loss 2.5 - lr: 0.1")
            for epoch in range(1, 4)
            for i in range(1, 21)
        )
    )
    assert goodput([log]).seconds["training"] == 590


def test_what_a_log_without_times_cannot_tell_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, timed = tmp_path / "bare.log", tmp_path / "timed.jsonl"
    bare.write_text("".join(f"step {i} loss {3 - i / 100:.3f}\n" for i in range(50)))
    rows = [{"step": i, "loss": 2.5, "step_time_s": 9.0 if i == 30 else 1.0} for i in range(50)]
    timed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["goodput", str(bare)])
    assert "cannot be told" in capsys.readouterr().out.splitlines()[0]
    main(["goodput", str(bare), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["effective"], told["wall_s"], told["timed"]) == (None, None, False)
    by_steps = goodput([timed])
    assert not by_steps.timed
    assert by_steps.seconds["slow"] == pytest.approx(8.0)
    assert "cannot be told" in goodput_text(by_steps)
    assert main(["goodput", str(tmp_path / "none.log")]) == 2
    assert "none.log: there is no such file" in capsys.readouterr().err


@pytest.mark.slow
def test_a_supervised_run_is_accounted_for_from_its_journal_alone(tmp_path: Path) -> None:
    policy, run = tmp_path / "p.toml", tmp_path / "run"
    policy.write_text("[supervise]\nfirst_backoff_s = 0.2\nlook_every_s = 0.05\n")
    argv = [sys.executable, "-m", "trimtab", "supervise", "--run", str(run)]
    argv += ["--policy", str(policy), "--checkpoints", str(tmp_path / "job"), "--"]
    argv += [sys.executable, str(JOB), str(tmp_path / "job"), "--fault", "kill@35"]
    argv += ["--sleep", "0.02"]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    found = goodput([run])
    assert found.num_starts == 2
    assert math.fsum(found.seconds.values()) == found.wall_s
    assert found.seconds["restart"] >= 0.2
    assert 0 < found.seconds["recomputed"] < found.seconds["training"]
    assert found.seconds["hang"] == 0


KINDS = st.sampled_from(["start", "step", "begin", "end", "section", "stop", "back"])
MARKS = st.lists(
    st.builds(
        Mark,
        at=st.floats(-1e9, 2e9),
        kind=KINDS,
        step=st.none() | st.floats(0, 1e6),
        cause=st.sampled_from(["", "checkpoint", "evaluation", "hang", "numeric", "done"]),
        took_s=st.none() | st.floats(0, 1e6),
        slow_s=st.floats(0, 1e3),
        data_s=st.none() | st.floats(0, 1e3),
    ),
    max_size=30,
)


@settings(max_examples=50)
@given(MARKS)
def test_causes_sum_to_the_wall_time_whatever_is_known(marks: list[Mark]) -> None:
    found = account_for(marks)
    # to the microsecond: a double of seconds since 1970 holds no more
    assert math.fsum(found.seconds.values()) == pytest.approx(found.wall_s, abs=1e-6)
    # The rounding of sums of times since 1970 is the only negative that may occur.
    assert min(found.seconds.values()) >= -1e-5
