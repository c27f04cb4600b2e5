"""Logs of a run that began without trimtab, of every kind, as one lineage."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from trimtab.chronicle.adopt import Adopted, adopt
from trimtab.chronicle.lineage import Lineage, lineage_of
from trimtab.cli import main
from trimtab.errors import ReadError

MEGATRON = (
    " iteration {step:8d}/  140000 | consumed samples: {samples:12d} | elapsed time per iteration"
    " (ms): {ms:.1f} | learning rate: {lr:.3E} | global batch size:  1024 | lm loss: {loss:.6E} |"
    " loss scale: 1.0 | grad norm: 0.210 | num zeros: 0.0 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |"
)


def megatron(first: int, last: int, *, seed: int, every: int = 10, **arguments: object) -> str:
    """Return a log of a launch: its arguments, then records."""
    rng = np.random.default_rng(seed)
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    for step in range(first, last + 1, every):
        loss = 2.2 + 6 * math.exp(-step / 3000) + 0.02 * rng.standard_normal()
        ms = 30_000 + 100 * rng.standard_normal()
        lines.append(MEGATRON.format(step=step, samples=step * 1024, ms=ms, lr=1e-4, loss=loss))
    return "\n".join(lines) + "\n"


def tree(found: Adopted) -> Lineage:
    return lineage_of(found.events, found.record)


def opt_logs(folder: Path) -> Path:
    """54 launches over 140 k steps, as the OPT notes tell: 11.x fails, 12.x goes through."""
    folder.mkdir(parents=True)
    names = [f"11.{i}" for i in range(11)] + [f"12.{i}" for i in range(43)]
    ends = np.linspace(140_000 / 43, 140_000, 43).astype(int) // 100 * 100
    start = 0
    for index, name in enumerate(names):
        old = name.startswith("11.")
        if name == "12.0":
            start = 0
        last = (index + 1) * 600 if old else int(ends[index - 11])
        clip = 2.5 if old else 0.3 if index - 11 >= 16 else 1.0
        text = megatron(
            start + 100, last + 300, seed=index, every=100, clip_grad=clip, hidden_size=12288,
            num_layers=96, lr=3e-4 if old else 1.2e-4, activation="gelu" if old else "relu",
        )  # fmt: skip
        if index in (3, 20, 30):
            text += "RuntimeError: CUDA error: an illegal memory access was encountered\n"
        (folder / f"175B_run{name}.log").write_text(text)
        start = last
    return folder


@pytest.mark.slow
@pytest.mark.covers("S145")
def test_the_table_of_runs_of_the_opt_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = opt_logs(tmp_path / "logs")
    out = tmp_path / "run"
    files = sorted(str(p) for p in logs.iterdir())  # not in their order: 11.10 before 11.2
    assert main(["adopt", *files, "--out", str(out), "--no-incidents"]) == 0
    capsys.readouterr()
    assert main(["chronicle", str(out)]) == 0
    text = capsys.readouterr().out
    table = text.split("## Attempts\n")[1].split("\n## ")[0]
    numbers = [line.split("|")[1].strip(" †") for line in table.splitlines() if line[:3] == "| 1"]
    assert numbers == [f"11.{i}" for i in range(11)] + [f"12.{i}" for i in range(43)]
    assert "| 12.16 | 12.15 @ 52000 | 52100-55600 | rollback | clip 1.0 → 0.3 |" in table
    assert "| 12.0 | scratch |" in table
    assert "Same as 12.15, but: clip 1.0 → 0.3" in text
    assert "| CUDA error | 3 | the machine |" in text
    assert "52 restarts" in text
    assert "43 of 54 attempts on the main line" in text


def test_a_requeued_job_has_all_its_launches_in_one_file(tmp_path: Path) -> None:
    log = tmp_path / "slurm-4711.out"
    log.write_text(
        megatron(10, 1000, seed=1, seed_of="x", clip_grad=1.0)
        + " loaded checkpoint from /x at iteration 900\n"
        + megatron(910, 2000, seed=2)
    )
    found = tree(adopt([log]))
    assert [(a.number, a.parent, a.parent_step) for a in found.attempts] == [
        ("1.0", None, None), ("1.1", "1.0", 900.0),
    ]  # fmt: skip
    assert found.attempts[0].lost_steps == 100


def state(last: int, losses: list[float]) -> str:
    history = [
        {"step": s, "epoch": s / 100, "loss": losses[s], "learning_rate": 1e-4}
        for s in range(1, last + 1)
    ]
    return json.dumps({"log_history": history, "global_step": last, "max_steps": 500})


def test_trainer_states_repeat_the_rows_before_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first = (4.0 - np.arange(301) / 100 + 0.01 * rng.standard_normal(301)).tolist()
    again = [*first[:201], *(np.asarray(first[201:]) - 0.05).tolist(), *([0.9, 0.8, 0.7] * 40)]
    for name, text in (("a.json", state(300, first)), ("b.json", state(400, again))):
        (tmp_path / name).write_text(text)
    found = tree(adopt([tmp_path / "a.json", tmp_path / "b.json"]))
    assert [(a.number, a.parent, a.parent_step) for a in found.attempts] == [
        ("1.0", None, None), ("1.1", "1.0", 200.0),
    ]  # fmt: skip
    assert (found.attempts[1].first_step, found.attempts[1].last_step) == (201, 400)


def test_an_older_copy_of_a_log_is_no_attempt(tmp_path: Path) -> None:
    whole = megatron(10, 2000, seed=1)
    (tmp_path / "main.log").write_text(whole)
    (tmp_path / "main.log.bak").write_text("".join(whole.splitlines(keepends=True)[:100]))
    found = adopt([tmp_path])
    assert [a.number for a in found.record.attempts] == ["1.0"]
    assert found.record.num_rows == 200
    assert "copies of others" in " ".join(found.notes)


def test_a_restart_that_repeats_the_losses_is_no_copy(tmp_path: Path) -> None:
    text = megatron(10, 1000, seed=1)
    slower = text.replace("(ms): 3", "(ms): 4")
    (tmp_path / "1.log").write_text(text)
    (tmp_path / "2.log").write_text("\n".join(slower.splitlines()[60:]))
    found = tree(adopt([tmp_path]))
    assert [a.parent_step for a in found.attempts] == [None, 600.0]


def test_another_shape_is_a_new_family_and_an_ablation_is_aside(tmp_path: Path) -> None:
    for name, size, first, last in (
        ("1-big.log", 1024, 10, 900),
        ("2-ablation-small.log", 256, 10, 400),
        ("3-big.log", 1024, 710, 1500),
        ("4-wide.log", 2048, 10, 3000),
    ):
        log = megatron(first, last, seed=size + first, hidden_size=size, num_layers=8)
        (tmp_path / name).write_text(log)
    found = tree(adopt([tmp_path]))
    told = [(a.number, a.kind, a.parent) for a in found.attempts]
    assert told == [
        ("1.0", "start", None),
        ("2.0", "ablation", None),
        ("2.1", "restart", "1.0"),
        ("3.0", "start", None),
    ]
    assert found.main_line == ("3.0",)


def test_settings_of_a_wandb_run_lie_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for number, lr in enumerate((0.001, 0.0005)):
        files = tmp_path / f"part-{number}" / "files"
        files.mkdir(parents=True)
        rows = [
            f"{s},{3 - s / 100 - number / 7}" for s in range(1 + 80 * number, 101 + 80 * number)
        ]
        (files.parent / "log.csv").write_text("\n".join(["step,loss", *rows]))
        (files / "config.yaml").write_text(
            f"learning_rate:\n  value: {lr}\nper_device_train_batch_size:\n  value: 8\n"
        )
        (files / "wandb-metadata.json").write_text(
            json.dumps({"git": {"commit": "abc1234def"}, "host": "box", "gpu": "H100"})
        )
    found = tree(adopt([tmp_path]))
    assert [a.settings.get("lr") for a in found.attempts] == ["0.001", "0.0005"]
    assert [d.name for d in found.attempts[1].differs] == ["lr"]
    assert found.attempts[1].fact("commit") == "abc1234def"


def test_the_machine_that_a_log_states(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(
        "SLURM_JOB_NODELIST=r7i3n[2-9]\n| NVIDIA-SMI 525.60 Driver Version: 525.60.13 CUDA Version:"
        " 12.0 |\ngit commit: 0123abcd9876\n" + megatron(10, 900, seed=1)
    )
    a = tree(adopt([log])).attempts[0]
    assert (a.fact("hosts"), a.fact("driver"), a.fact("commit")) == (
        "r7i3n[2-9]", "525.60.13", "0123abcd9876",
    )  # fmt: skip


def test_what_cannot_be_adopted_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("nothing here\n")
    with pytest.raises(ReadError, match="no log that counts steps"):
        adopt([tmp_path / "notes.txt"])
    log = tmp_path / "a.log"
    log.write_text(megatron(10, 500, seed=1))
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").write_text("mine")
    assert main(["adopt", str(log), "--out", str(full)]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert (full / "x").read_text() == "mine"


def test_an_adopted_run_is_read_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text(megatron(10, 3000, seed=1))
    assert main(["adopt", str(log), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "run"), "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)["runs"][0]
    assert judged["rows"] == 300
    assert main(["journal", "check", str(tmp_path / "run"), "--json"]) == 0


def test_a_launch_that_crashed_without_an_alarm_is_not_said_to_have_worked(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    end = "RuntimeError: CUDA error: device-side assert triggered\n"
    log.write_text(megatron(10, 3000, seed=1) + end)
    (attempt,) = tree(adopt([log])).attempts
    assert attempt.ended_by
    assert attempt.outcome == "unclear"
    assert "ended by" in attempt.outcome_why
