"""Forms of public logs that were once not read, or read without their time."""

import json
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run


def test_the_time_of_an_ultralytics_table_counts_seconds_since_the_run_began(
    tmp_path: Path,
) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "results.csv"
    lines = ["epoch,time,train/box_loss,metrics/mAP50-95(B),val/box_loss,lr/pg0"]
    for epoch in range(1, 61):
        at = 24.2 * epoch + 40_000 * (epoch > 40)
        loss = 0.4 + np.exp(-epoch / 12) + rng.normal(0, 0.005)
        lines.append(f"{epoch},{at:.2f},{loss:.5f},{0.9 - loss / 3:.5f},{loss + 0.05:.5f},0.001")
    path.write_text("\n".join(lines) + "\n")
    told = trimtab.analyze(path)
    assert told.runs[0].record.keys["wall_time_s"] == "time"
    assert any("nothing was logged for 11" in i.incident.findings[0].text for i in told.incidents)


def test_two_lists_of_a_run_that_explodes_are_read_as_its_losses(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    train = 19 * np.exp(-np.arange(100) / 10) + 0.5 + rng.normal(0, 0.05, 100)
    train[74:] = 7.9e4 / np.arange(1, 27) ** 3 + 6
    path = tmp_path / "loss_history.json"
    path.write_text(json.dumps({"train": list(train), "val": list(1.1 * train)}))
    told = trimtab.analyze(path)
    assert told.verdict == "incident"
    assert 72 <= told.incidents[0].incident.onset <= 75


def test_rewards_of_agents_are_counted_by_the_time_steps_of_the_line_before(tmp_path: Path) -> None:
    lines = []
    for n in range(40):
        lines += [
            f" Scenario UAV Algo mappo Exp check updates {n}/1000 episodes, total num timesteps"
            f" {300 * (n + 1)}/300000, FPS 38.",
            "",
            f"  average reward: {-195 + 3 * n}.0458",
            "",
        ]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines))
    record = read_run(path)
    assert record.axis == "step"
    assert record.step[:3].tolist() == [300.0, 600.0, 900.0]
    assert "reward" in record.columns


def test_the_bar_of_openrlhf_is_read_by_its_rewards_and_not_by_a_divergence(tmp_path: Path) -> None:
    """`pg`, `rm`, `glen`, `cri`: loss of the policy, reward, length of the answers, critic."""
    rng, lines = np.random.default_rng(0), []
    for n in range(1, 301):
        length = 330 + rng.normal(0, 6) if n < 130 else 9 + rng.normal(0, 1)
        lines.append(
            f"Train epoch [1/1]:   0%|          | {n}/300 [pg={rng.normal(0, 0.01):.4f},"
            f" rm={-1 + n / 150 + rng.normal(0, 0.05):.3f}, glen={length:.1f},"
            f" kl={0.02 + n / 9000 + rng.normal(0, 0.002):.4f}, act_lr=5e-7, cri=0.14]"
        )
    path = tmp_path / "ppo.log"
    path.write_text("\n".join(lines) + "\n")
    told = trimtab.analyze(path)
    keys = told.runs[0].record.keys
    assert "loss" not in keys
    assert (keys["reward"], keys["completion_length"]) == ("rm", "glen")
    assert any(i.incident.kind == "policy-collapse" for i in told.incidents)


def _hf_beside_deepspeed(*, pauses: bool) -> str:
    """Rows of the Trainer with what DeepSpeed prints between; from the 300th on every step overflows."""
    rng, lines, at, scale = np.random.default_rng(0), [], 0.0, 65536
    for n in range(1, 401):
        at += 31 + (500 if pauses and n > 200 and n % 7 == 0 else 0)
        when = f"[2025-02-26 {int(at // 3600):02d}:{int(at // 60) % 60:02d}:{int(at) % 60:02d}]"
        skipped = 0
        if not pauses and n > 300:
            lines.append(
                f"{when} [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping"
                f" step. Attempted loss scale: {scale}, reducing to {max(scale // 2, 1)}"
            )
            scale, skipped = max(scale // 2, 1), 10 * (n - 300)
        lines += [
            f"{when} [INFO] [logging.py:96:log_dist] [Rank 0] step={10 * n}, skipped={skipped},"
            " lr=[0.00000017], mom=[(0.9, 0.999)]",
            f"{{'loss': {1.4 + np.exp(-n / 90) + rng.normal(0, 0.05):.4f}, 'grad_norm': 1.4,"
            f" 'learning_rate': 1e-05, 'epoch': {n / 134:.2f}}}",
        ]
    return "\n".join(lines) + "\n"


def test_what_deepspeed_says_between_the_trainers_rows_belongs_to_them(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(_hf_beside_deepspeed(pauses=False))
    told = trimtab.analyze(path)
    record = told.runs[0].record
    assert (record.axis, record.step[1]) == ("step", 20.0)
    assert {"loss_scale", "skipped", "wall_time_s"} <= record.columns.keys()
    scale = next(i for i in told.incidents if i.incident.kind == "scale-collapse")
    assert scale.severity == "critical"


def test_rows_that_begin_to_wait_each_few_steps_are_a_slowdown(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(_hf_beside_deepspeed(pauses=True))
    (slow,) = [i for i in trimtab.analyze(path).incidents if i.severity != "info"]
    assert slow.incident.kind == "slowdown"
    assert 1900 <= slow.incident.onset <= 2100


def test_an_accuracy_called_by_its_set_alone_is_a_score_though_it_sinks_later(
    tmp_path: Path,
) -> None:
    lines = []
    for n in range(200):
        val = 0.245 if n == 0 else 0.88 - 0.4 * np.exp(-n / 3) - n / 5000
        lines.append(
            f"Epoch: {n:03d}, Loss: {0.24 + 1.2 * np.exp(-n / 40):.4f}, Train: {min(0.25 + n, 0.98):.4f},"
            f" Val: {val:.4f}, Test: {val - 0.03:.4f}"
        )
    path = tmp_path / "gcn.log"
    path.write_text("\n".join(lines) + "\n")
    keys = read_run(path).keys
    assert "val_loss" not in keys
    assert keys["eval_score"] == "val"


def test_the_validation_of_a_loss_may_leave_the_word_out(tmp_path: Path) -> None:
    rows = ["| epoch | bpr_loss | val_bpr | ndcg@10 |", "|---|---|---|---|"]
    for n in range(60):
        low = 0.02 + 0.6 * np.exp(-n / 6)
        rows.append(f"| {n} | {low:.4f} | {0.66 + n / 250 + 0.03 * np.exp(-n / 3):.4f} | 0.13 |")
    path = tmp_path / "train.md"
    path.write_text("\n".join(rows) + "\n")
    told = trimtab.analyze(path)
    assert told.runs[0].record.keys["val_loss"] == "val_bpr"
    assert any(i.incident.kind == "overfitting" for i in told.incidents)


def test_a_total_of_tasks_without_the_word_loss_is_the_loss(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), []
    for n in range(60):
        terms = {
            k: float(a * np.exp(-n / 9) + 0.1 + rng.normal(0, 0.01)) for k, a in _TASKS.items()
        }
        rows.append({"epoch": n, "train": terms, "total": sum(terms.values())})
    path = tmp_path / "history.json"
    path.write_text(json.dumps({"config": {"lr": 0.001}, "history": rows}))
    assert read_run(path).keys["loss"] == "total"


_TASKS = {"digit": 2.2, "parity": 0.6, "ink": 4.0}


def test_skipped_steps_of_deepspeed_are_a_total(tmp_path: Path) -> None:
    """Three steps that the scaler skips at the start stand in each line to the end."""
    lines = _hf_beside_deepspeed(pauses=True).replace("skipped=0", "skipped=3")
    path = tmp_path / "train.log"
    path.write_text(lines)
    assert read_run(path).columns["skipped"].logged().max() == 0
    assert not [i for i in trimtab.analyze(path).incidents if i.incident.kind == "skipped-steps"]


def test_what_deepspeed_says_on_the_line_of_a_bar_is_read(tmp_path: Path) -> None:
    lines = _hf_beside_deepspeed(pauses=False).splitlines()
    path = tmp_path / "train.log"
    path.write_text(
        "\n".join(f" 3%|x| 1/9 [00:01<]{x}" if "OVER" in x else x for x in lines) + "\n"
    )
    assert "loss_scale" in read_run(path).columns


def test_a_total_of_nets_or_of_an_agent_is_no_loss(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), np.arange(120)
    one, two = 1 + rows / 100 + rng.normal(0, 0.05, 120), 0.5 + rng.normal(0, 0.05, 120)
    for names in ("loss_G,loss_D", "policy_loss,value_loss"):
        path = tmp_path / "log.csv"
        table = np.stack([rows, one, two, one + two], axis=1)
        np.savetxt(
            path, table, delimiter=",", header=f"step,{names},total", comments="", fmt="%.5f"
        )
        assert read_run(path).keys["loss"] != "total"


@pytest.mark.parametrize("of_day", ["10:{m:02d} PM", "10:{m:02d} am", "10:{m:02d}:05 P.M."])
def test_values_in_front_of_their_names_behind_a_time_of_day(tmp_path: Path, of_day: str) -> None:
    lines = [
        f"Epoch {e} @ {of_day.format(m=e)} : {3 / (1 + e):.4f} C.E. Loss, {50 + e}.25% Accuracy"
        for e in range(40)
    ]
    path = tmp_path / "train.out"
    path.write_text("\n".join(lines))
    record = read_run(path)
    assert (record.keys["loss"], record.axis, record.step[-1]) == ("c.e. loss", "epoch", 39)
    assert record.columns["accuracy"].logged().tolist() == [50.25 + e for e in range(40)]


def test_a_share_in_front_of_another_name_is_none_of_its_values(tmp_path: Path) -> None:
    lines = [f"step {n} loss {3 / (1 + n):.4f} at {n + 1}% lr, {n + 2}% batches" for n in range(40)]
    path = tmp_path / "train.out"
    path.write_text("\n".join(lines))
    record = read_run(path)
    assert "lr" not in record.columns
    assert record.step.tolist() == list(range(40))
