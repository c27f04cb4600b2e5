"""What of an output is a new step, and what only comes again."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trimtab.supervise import progress as progress_of
from trimtab.supervise.processes import worked_s
from trimtab.supervise.progress import LogProgress, OutputProgress, last_told, section_of
from trimtab.supervise.streams import Output

TRAINED = [f'{{"step": {s}, "loss": {3 - 0.01 * s:.2f}, "lr": 0.001}}' for s in range(1, 31)]


def steps_seen(looks: list[list[str]]) -> list[float | None]:
    """Return the step that each look finds."""
    output = Output(None, size_bytes=1 << 20)
    progress = OutputProgress(output)
    found: list[float | None] = []
    for lines in looks:
        output.add("".join(f"{line}\n" for line in lines).encode())
        seen = progress.look()
        found.append(None if seen is None else seen.step)
    progress.close()
    return found


def row(step: int, loss: float, epoch: str = "") -> str:
    """Return a row of a log."""
    return f'{{"step": {step}, "loss": {loss}, "lr": 0.001{epoch}}}'


def test_progress_is_no_row_that_comes_again_with_another_loss() -> None:
    again = [[row(30, 2.70 + 0.01 * (n % 2))] for n in range(9)]
    assert steps_seen([TRAINED, *again]) == [30.0] + [None] * 9
    two = [[row(29 + n % 2, 2.8 + 0.01 * n)] for n in range(5)]
    assert steps_seen([TRAINED, *two]) == [30.0] + [None] * 5


def test_progress_is_a_count_that_begins_anew_and_climbs() -> None:
    back = [[row(s, 2.5 + 0.01 * s)] for s in (20, 21, 22, 23)]
    assert steps_seen([TRAINED, *back]) == [30.0, None, None, 22.0, 23.0]
    epochs = [
        [row(s, 2.5 / (e + 1) + s / 1e3, f', "epoch": {e}') for s in (50, 100)] for e in (1, 2)
    ]
    assert None not in steps_seen(epochs)


@pytest.mark.parametrize(
    "trained", [TRAINED, [f"step {s} loss {3 - s / 100:.3f}" for s in range(1, 31)]]
)
def test_progress_is_no_line_of_a_monitor(trained: list[str]) -> None:
    told = [
        [f"[monitor] iteration {n + 30} gpu 0 util {n % 7}% mem 40.1 loss nan"] for n in range(1, 5)
    ]
    assert steps_seen([trained, *told]) == [30.0] + [None] * 4


def test_worked_s_counts_children_that_ended() -> None:
    before = worked_s(os.getpid())
    code = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
    assert worked_s(os.getpid()) - before >= 0.2


def test_a_folder_that_holds_too_much_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_of, "MOST_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("no log")
    log = LogProgress(tmp_path)
    assert log.look(1.0) is None
    assert log.trouble.startswith(f"{tmp_path}: more than 3 files in it; give the log")
    monkeypatch.setattr(progress_of, "LISTED_S", -1.0)
    monkeypatch.setattr(progress_of, "MOST_FILES", 9)
    assert log.look(1e9) is None
    assert "takes more than" in log.trouble


def test_a_pipe_or_a_device_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        log = LogProgress(path)
        assert log.look(1.0) is None
        assert log.appeared
        assert log.trouble == f"{path}: a pipe or a device, which is not read; give a file"


def test_progress_is_a_bar_that_only_returns_the_carriage() -> None:
    output = Output(None, size_bytes=1 << 20)
    progress = OutputProgress(output)
    found = []
    for step in range(41):  # as tqdm with set_postfix: each step twice, and no end of a line
        for loss in (3 - step / 50, 2.98 - step / 50):
            bar = f"\r {step:3}%|██  | {step}/150 [00:07<00:08,  9.71it/s, loss={loss:.3f}]"
            output.add(bar.encode())
        seen = progress.look()
        found.append(None if seen is None else seen.step)
    hung = [progress.look() for _ in range(2)]
    progress.close()
    assert found[10:] == list(range(10, 41))
    assert hung == [None, None]


def test_last_told_is_a_count_that_came_to_its_whole_and_stays_there() -> None:
    def told(lines: list[str], step: float, counted: bool = False, from_zero: bool = False) -> Any:
        return last_told(lines, step, counted=counted, from_zero=from_zero)

    rows = [f"step {s}/120 | loss 2.1" for s in range(100, 121)]
    assert told([*rows, "saved"], 120) == 120
    assert told(rows[:-1], 119) is None
    assert told(rows[:-1], 119, from_zero=True) == 120
    bars = [f"{s}%|##| {s}/60 [00:12<00:00,  5.40it/s]" for s in range(50, 61)]
    bars[5:5] = [f"{s}/13 [00:00<00:00]" for s in range(1, 14)]
    assert told(bars, 30, counted=True) == 60  # Hugging Face: a row of losses for two steps
    assert told(bars[:-1], 30, counted=True) is None
    assert told([" iteration      500/     500 | lm loss: 2.0"], 500) == 500
    batches = [f"{s}/9 [00:00<00:00, loss=2.1]" for s in range(1, 10)]
    assert told(["Epoch 1/3", *batches], 9) is None
    assert told([f"Epoch 2/3: {line}" for line in batches], 9) is None
    assert told([*batches, *batches], 9) is None


def test_section_of_knows_the_end_by_a_line_with_others_behind_it() -> None:
    done = ["{'train_runtime': '12.1', 'train_loss': '5.4'}", "100%|##| 60/60 [00:12<00:00]"]
    assert section_of(done) == "end"
    assert section_of([*done, "step 3 loss 2.1 lr 0.1"]) == ""
    assert section_of([*done, "0/60 [00:00<?]"]) == ""
