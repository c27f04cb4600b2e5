"""Text without a row of training: rewards alone are read, and a crash before the first row is told."""

from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.errors import ReadError


def test_a_job_that_died_before_its_first_row_is_told_by_its_crash(tmp_path: Path) -> None:
    path = tmp_path / "slurm-1.out"
    path.write_text(
        "loading checkpoint shards\nTraceback (most recent call last):\n"
        '  File "train.py", line 8, in <module>\n    main()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    with pytest.raises(ReadError, match=r"no row of training, and its end .*\(oom_gpu\): torch"):
        trimtab.read(path)


def test_a_job_that_died_after_one_bar_is_told_by_its_crash(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_text(
        "loading, the loss is cross entropy of 2 classes\n  1%|          | 2/187 [00:09<14:50]\nTraceback (most recent call last):\n"
        '  File "train.py", line 8, in <module>\n    main()\n'
        "AssertionError: Torch not compiled with CUDA enabled\n"
    )
    with pytest.raises(ReadError, match=r"no r\w+ of training, and its end .*: AssertionError"):
        trimtab.read(path)


def test_rewards_beside_a_counter_are_a_record(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "ppo.txt"
    lines = [f"Frame {2560 * k}. reward: {1500 + 100 * rng.normal():.3f}" for k in range(1, 30)]
    path.write_text("\n".join(lines) + "\n")
    (record,) = trimtab.read(path)
    assert record.num_rows == 29
    assert record.axis == "step"
    assert "reward" in record.columns


def test_a_score_in_the_last_line_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    lines = [f"epoch {k} loss {2 * 0.9**k + 0.1:.4f}" for k in range(1, 41)]
    path.write_text("\n".join([*lines, "F1 score:  0.9282"]) + "\n")
    assert trimtab.analyze(path).verdict != "ended-badly"


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize(
    ("end", "crash"),
    [
        ('Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    step()\n'
         "RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_error"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "oom_gpu"),
    ],
)  # fmt: skip
def test_what_ends_a_run_behind_its_rows_is_told(
    form: str, end: str, crash: str, tmp_path: Path
) -> None:
    loss = [round(2 * 0.98**k + 0.1, 4) for k in range(120)]
    row = '{{"step": {k}, "loss": {v}}}' if form == "jsonl" else "{k},{v}"
    rows = [row.format(k=k, v=v) for k, v in enumerate(loss)]
    head = [] if form == "jsonl" else ["step,loss"]
    path = tmp_path / f"log.{form}"
    path.write_text("\n".join([*head, *rows]) + "\n")
    assert trimtab.analyze(path).verdict != "ended-badly"
    path.write_text("\n".join([*head, *rows, end]) + "\n")
    found = trimtab.analyze(path)
    assert found.verdict == "ended-badly"
    assert crash in found.runs[0].judgement.why
