"""Restarts that a line of the text states, while the steps go on."""

from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run

NUM, SEAM, EACH = 300, 180, 4

STATED = [
    "=== starting, resume=True from step 720 ===",
    "Resuming training from checkpoint out/last.pt",
    "Resuming from checkpoint: ./checkpoints/ckpt_step720.pt",
    "[INFO] resumed at step 720",
    "restarted from checkpoint-720",
    "Continuing training from global step 720",
    "=> loaded checkpoint 'runs/b64/model.pt' (step 720)",
    "Restored checkpoint out/ckpt-720.pt",
    "Rolling back to step 720",
    "INFO | fairseq.trainer | Loaded checkpoint out/last.pt (epoch 11 @ 720 updates)",
]
NOT_STATED = [
    "=== starting, resume=False from step 0 ===",
    "saved checkpoint out/ckpt-720.pt",
    "Loaded best checkpoint out/ckpt-720.pt",
    "Loading checkpoint shards 720 of 900",
    "no checkpoint to resume from",
    "Resuming training",
    "loaded checkpoint out/ckpt-400.pt",
    "continuing with batch 720",
]


def text(line: str, *, rise: float = 0.0, rate: float = 1.0, every: int = 0) -> str:
    noise = np.random.default_rng(0).normal(0, 0.02, NUM)
    rows = np.arange(NUM)
    loss = 1.5 + 2 * np.exp(-rows / 40) + noise + np.where(rows >= SEAM, rise, 0.0)
    lr = 1e-3 * np.where(rows >= SEAM, rate, 1.0)
    lines = ["=== starting, resume=False from step 0 ==="]
    for i in range(NUM):
        if i == SEAM or (every and i % every == 0):
            lines.append(line)
        lines.append(f"step={(i + 1) * EACH} loss={loss[i]:.4f} lr={lr[i]:.6f}")
    return "\n".join(lines) + "\n"


def write(tmp_path: Path, log: str) -> Path:
    path = tmp_path / "train.log"
    path.write_text(log)
    return path


@pytest.mark.parametrize("line", STATED)
def test_a_line_that_states_a_restart_begins_an_attempt(tmp_path: Path, line: str) -> None:
    record = read_run(write(tmp_path, text(line)))
    assert [a.first_row for a in record.attempts] == [0, SEAM]
    assert record.attempts[1].parent_step == (720 if "720" in line else None)
    assert line in record.attempts[1].why


@pytest.mark.parametrize("line", NOT_STATED)
def test_other_lines_begin_none(tmp_path: Path, line: str) -> None:
    assert len(read_run(write(tmp_path, text(line))).attempts) == 1


def test_what_each_evaluation_loads_is_no_restart(tmp_path: Path) -> None:
    log = text("Resuming training from checkpoint out/last.pt", every=2)
    assert len(read_run(write(tmp_path, log)).attempts) == 1


def test_a_loss_that_jumps_there_is_told_with_the_rate_that_changed(tmp_path: Path) -> None:
    found = trimtab.analyze(write(tmp_path, text(STATED[0], rise=0.6, rate=4.0)))
    jump = next(i for i in found.incidents if i.kind == "resume-jump")
    assert jump.severity in ("warning", "critical")
    assert any("learning rate 0.001 → 0.004" in f.text for f in jump.incident.findings)


def test_a_warm_up_that_begins_anew_is_told_with_the_rate_it_leads_to(tmp_path: Path) -> None:
    rows = np.arange(NUM)
    since = np.clip(rows - SEAM, 0, None)
    lr = np.where(rows < SEAM, 1e-3, 1e-3 * np.clip((since + 1) / 5, 0.2, 4.0))
    lines = text(STATED[0]).splitlines()
    row = 0
    for place, line in enumerate(lines):
        if line.startswith("step="):
            lines[place] = f"{line.rpartition(' ')[0]} lr={lr[row]:.6f}"
            row += 1
    found = trimtab.analyze(write(tmp_path, "\n".join(lines) + "\n"))
    said = [f.text for i in found.incidents if i.kind == "resume-jump" for f in i.incident.findings]
    assert any("0.001 → 0.0002, then up to 0.004, beyond the 0.001 of before" in s for s in said)
