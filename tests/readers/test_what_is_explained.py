"""Readers compete by how much of a file they explain; forms that used to be lost are read."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.logs.wandb_logs import encode_wandb_log
from trimtab.readers import read, read_run
from trimtab.record import RunRecord

_NUM = 60
_LOSS = [3.0 - 0.02 * i for i in range(_NUM)]
_STEPS = "".join(f"Step: {i} | Loss: {x:.4f} | KL: 0.0{i}\n" for i, x in enumerate(_LOSS, 1))


def read_text(tmp_path: Path, text: str | bytes, name: str = "out.log") -> RunRecord:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_run(path)


def logged(record: RunRecord) -> list[float]:
    return [float(x) for x in record.columns["loss"].logged()]


@pytest.mark.parametrize(
    "extra",
    [
        "Config: {'loss': 0.5, 'lr': 0.1, 'steps': 60}\n",
        "{'train_runtime': 12.0, 'train_loss': 0.42, 'epoch': 3.0}\n",
        " iteration 1/ 60 | lm loss: 1.0E+00 | grad norm: 1.0 |\n",
        ':::MLLOG {"key": "tracked_stats", "value": {"train_loss": 1.0}, "metadata": {"step": 1}}\n',
    ],
    ids=["config", "summary", "megatron", "mlperf"],
)
@pytest.mark.parametrize("first", [True, False])
def test_one_line_of_another_format_takes_no_file(
    tmp_path: Path, extra: str, *, first: bool
) -> None:
    record = read_text(tmp_path, extra + _STEPS if first else _STEPS + extra)
    assert record.num_loss_rows == _NUM
    assert record.axis == "step"


def test_a_record_of_few_of_the_lines_says_so(tmp_path: Path) -> None:
    # Prose never repeats a wording, so nobody reads it: only the dicts are records.
    words = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(600)]
    prose = "".join(
        f"the {w} loss of run {w} was about {i}.5 in {w}\n" for i, w in enumerate(words)
    )
    dicts = "".join(f"{{'loss': {x:.3f}, 'epoch': {i}.0}}\n" for i, x in enumerate(_LOSS))
    record = read_text(tmp_path, dicts + prose)
    assert record.num_loss_rows == _NUM
    assert any("% of" in note and "name a loss" in note for note in record.notes)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("form", ["text", "jsonl", "csv", "json"])
def test_utf_16_is_read(tmp_path: Path, form: str, encoding: str) -> None:
    rows = [{"step": i, "loss": x} for i, x in enumerate(_LOSS)]
    text = {
        "text": _STEPS,
        "jsonl": "".join(json.dumps(r) + "\r\n" for r in rows),
        "csv": "step,loss\r\n" + "".join(f"{r['step']},{r['loss']}\r\n" for r in rows),
        "json": json.dumps({"log_history": rows}),
    }[form]
    assert read_text(tmp_path, text.encode(encoding)).num_loss_rows == _NUM


@pytest.mark.parametrize("num_nuls", [1, 5000, 200_000])
def test_nuls_in_front_are_left_out(tmp_path: Path, num_nuls: int) -> None:
    assert read_text(tmp_path, b"\0" * num_nuls + _STEPS.encode()).num_loss_rows == _NUM


def test_lines_of_many_columns_are_read(tmp_path: Path) -> None:
    names = ",".join(["step", "loss", *(f"layers.{j}.attention.output.norm" for j in range(1500))])
    rows = (f"{i},{x}," + ",".join([f"{x:.17f}"] * 1500) for i, x in enumerate(_LOSS))
    record = read_text(tmp_path, names + "\n" + "\n".join(rows) + "\n", "wide.csv")
    np.testing.assert_allclose(logged(record), _LOSS)


def test_json_lines_of_many_columns_are_read(tmp_path: Path) -> None:
    wide = {f"layers.{j}.attention.output.norm": 0.123456789 for j in range(1500)}
    lines = "".join(json.dumps({**wide, "step": i, "loss": x}) + "\n" for i, x in enumerate(_LOSS))
    np.testing.assert_allclose(logged(read_text(tmp_path, lines, "wide.jsonl")), _LOSS)


@pytest.mark.parametrize(
    "line",
    [
        "INFO - Stage 1, Epoch 1, Batch {i}, Training Loss (avg over last 100): {x:.4f}",
        "Epoch 0, Step {i}, total used time {i}.5 (s), avg loss so far is {x:.5f}",
        "step {i}: average training loss over the last 50 steps: {x:.4f}",
        "batch {i} mean loss for this epoch = {x:.4f}",
        "iter {i} loss (running mean): {x:.4f}",
    ],
)
def test_phrases_for_averaged_losses(tmp_path: Path, line: str) -> None:
    text = "".join(line.format(i=i, x=x) + "\n" for i, x in enumerate(_LOSS, 1))
    record = read_text(tmp_path, text)
    np.testing.assert_allclose(logged(record), _LOSS, atol=1e-3)
    assert any("mean over records before" in note for note in record.notes)


def test_a_line_number_of_a_source_file_is_no_loss(tmp_path: Path) -> None:
    warnings = "".join(f"[WARNING] loss_scaler.py:188 overflow at {i}.5\n" for i in range(200))
    assert read_text(tmp_path, warnings + _STEPS).num_loss_rows == _NUM


@pytest.mark.parametrize(
    "line",
    [
        "(epoch: {e}, iters: {i}, time: 0.857, data: 0.929) D_A: 0.2 G_A: {x:.3f} cycle_A: 1.7"
        " idt_A: 0.5 D_B: 0.1 G_B: 0.2 cycle_B: 1.2 idt_B: 0.7 ",
        "(epoch: {e}, iters: {i}, time: 0.1, data: 0.0) G_GAN: {x:.3f} G_L1: 9.4 D_real: 0.5"
        " D_fake: 0.6 ",
        "[{e}/25][{i}/60] Loss_D: 0.9{i} Loss_G: {x:.3f} D(x): 0.9 D(G(z)): 0.1 / 0.02",
        "[Epoch {e}/200] [Batch {i}/60] [D loss: 0.6{i}] [G loss: {x:.3f}]",
        "epoch {e} iter {i} errD: 0.5{i} errG: {x:.3f}",
    ],
)
def test_of_adversarial_losses_the_generators_is_read(tmp_path: Path, line: str) -> None:
    text = "".join(line.format(i=i, x=x, e=1) + "\n" for i, x in enumerate(_LOSS, 1))
    record = read_text(tmp_path, text)
    np.testing.assert_allclose(logged(record), _LOSS, atol=6e-4)
    # The others are named: as a signal of their own, or in a note.
    named = "discriminator_loss" in record.columns
    assert named or any("only NaN and Inf are told" in note for note in record.notes)


def test_a_column_of_costs_is_a_loss(tmp_path: Path) -> None:
    text = "iteration,cost\n" + "".join(f"{i},{x}\n" for i, x in enumerate(_LOSS))
    np.testing.assert_allclose(logged(read_text(tmp_path, text, "cost.csv")), _LOSS)


@pytest.mark.parametrize("key", ["grad_norm_total", "train/global_gradient_norm", "GradNorm"])
def test_other_names_of_the_gradient_norm(tmp_path: Path, key: str) -> None:
    text = f"step,loss,{key}\n" + "".join(f"{i},{x},1.5\n" for i, x in enumerate(_LOSS))
    assert "grad_norm" in read_text(tmp_path, text, "run.csv").columns


@pytest.mark.parametrize("key", ["loss_rank0", "rank_0/loss", "loss (rank 0)", "train/loss_rank0"])
def test_ranks_in_keys(tmp_path: Path, key: str) -> None:
    other = key.replace("0", "1")
    lines = (json.dumps({"step": i, key: x, other: 9.0}) for i, x in enumerate(_LOSS))
    record = read_text(tmp_path, "\n".join(lines) + "\n", "ranks.jsonl")
    np.testing.assert_allclose(logged(record), _LOSS)
    assert record.keys["rank 1/loss"] == other
    assert not record.unread


def test_summaries_of_epochs_are_no_records(tmp_path: Path) -> None:
    lines = []
    for epoch in range(6):
        lines += [
            f"epoch: {epoch}, batch_id: {100 * j}, AUC:0.8, loss:{_LOSS[10 * epoch + j]:.5f}, ips: 9"
            for j in range(10)
        ]
        lines.append(f"epoch: {epoch} done, AUC: 0.87, loss:9.00000, epoch time: 1105.58 s")
    np.testing.assert_allclose(logged(read_text(tmp_path, "\n".join(lines) + "\n")), _LOSS)


def test_a_step_of_several_numbers(tmp_path: Path) -> None:
    lines = [
        'DLLL {"type": "LOG", "step": "PARAMETER", "data": {"seed": 1}}',
        *(
            f'DLLL {{"type": "LOG", "step": [{1 + i // 20}, {1 + i % 20}, 20], '
            f'"data": {{"train_loss": {x}}}}}'
            for i, x in enumerate(_LOSS)
        ),
        'DLLL {"type": "LOG", "step": [], "data": {"train_loss": 1.5}}',
    ]
    record = read_text(tmp_path, "\n".join(lines) + "\n", "nvlog.json")
    np.testing.assert_allclose(logged(record), _LOSS)
    assert record.axis == "epoch"
    assert len(record.attempts) == 1


@pytest.mark.parametrize("shift", [10, 5, 40])
def test_two_writers_of_one_file(tmp_path: Path, shift: int) -> None:
    lines = []
    for i, x in enumerate(_LOSS):
        lines.append(json.dumps({"step": 10 * i, "loss": x}))
        lines.append(json.dumps({"step": max(0, 10 * i - shift), "loss": x + 0.5}))
    record = read_text(tmp_path, "\n".join(lines) + "\n", "two.jsonl")
    assert len(record.attempts) == 1
    np.testing.assert_allclose(logged(record), _LOSS)
    assert any("several processes" in note for note in record.notes)


def test_restarts_are_not_taken_for_writers(tmp_path: Path) -> None:
    steps = [*range(40), *range(20, 60), *range(50, 90)]
    lines = (json.dumps({"step": s, "loss": 3.0 - s / 100}) for s in steps)
    record = read_text(tmp_path, "\n".join(lines) + "\n", "run.jsonl")
    assert (len(record.attempts), record.num_loss_rows) == (3, 120)


def notebook(*outputs: list[dict[str, object]]) -> str:
    cells = [{"cell_type": "code", "source": [], "outputs": list(out)} for out in outputs]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def table(rows: range) -> dict[str, object]:
    names = "<th>Step</th><th>Training Loss</th><th>completions / max_terminated_length</th>"
    body = "".join(f"<tr><td>{i}</td><td>{3 - i / 999:.6f}</td><td>1</td></tr>" for i in rows)
    html = f"<div><progress></progress>[9/9]</div><table><tr>{names}</tr>{body}</table>"
    return {"output_type": "display_data", "data": {"text/html": [html], "text/plain": ["<IPy>"]}}


def stream(text: str) -> dict[str, object]:
    return {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}


def test_tables_of_a_notebook_are_a_run_a_cell(tmp_path: Path) -> None:
    noise = stream("Fused CE Loss [bsz=2][qlen=638]\n" * 40)
    text = notebook([stream("hello\n")], [table(range(10, 410, 10)), noise], [table(range(10, 80))])
    path = tmp_path / "train.ipynb"
    path.write_text(text)
    assert [r.num_loss_rows for r in read(path)] == [40, 70]


def test_text_of_a_notebook(tmp_path: Path) -> None:
    text = notebook([stream(_STEPS)], [stream("done\n")])
    assert read_text(tmp_path, text, "train.ipynb").num_loss_rows == _NUM


def test_a_run_that_goes_on_in_the_next_cell_is_one(tmp_path: Path) -> None:
    text = notebook([table(range(10, 210, 10))], [table(range(210, 410, 10))])
    assert read_text(tmp_path, text, "train.ipynb").num_loss_rows == 40


def test_evaluations_alone_are_rows_of_their_own(tmp_path: Path) -> None:
    text = "".join(f"{{'eval_loss': {x}, 'epoch': {i}.0}}\n" for i, x in enumerate(_LOSS))
    record = read_text(tmp_path, text)
    assert record.columns["val_loss"].present.sum() == _NUM


def test_a_callback_that_logs_beside_its_trainer_is_no_attempt(tmp_path: Path) -> None:
    # Lightning's CSV: the trainer counts from 0, the guard's callback from 1 and writes first.
    lines = ["epoch,step,train_loss,trimtab/grad_norm"]
    for i, x in enumerate(_LOSS):
        lines += [f",{i + 1},,{1 + i / 100}", f"0,{i},{x},"]
    record = read_text(tmp_path, "\n".join(lines) + "\n", "metrics.csv")
    assert len(record.attempts) == 1
    np.testing.assert_allclose(logged(record), _LOSS)
    assert record.columns["grad_norm"].present.sum() == _NUM


def test_rows_beside_the_losses_do_not_hide_a_restart(tmp_path: Path) -> None:
    lines = []
    for i in [*range(40), *range(20, 60)]:
        lines += [{"step": i + 1, "grad_norm": 1.0}, {"step": i, "loss": 3.0 - i / 100}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    record = read_text(tmp_path, text, "run.jsonl")
    assert (len(record.attempts), record.num_loss_rows) == (2, 80)


def test_attempts_appended_to_one_run_of_wandb(tmp_path: Path) -> None:
    steps = [*range(0, 400, 10), *range(200, 600, 10)]
    rows = [
        {"_step": i, "train/global_step": s, "train/loss": 3.0 - s / 1000}
        for i, s in enumerate(steps)
    ]
    path = tmp_path / "run-abc.wandb"
    path.write_bytes(encode_wandb_log(rows))
    record = read_run(path)
    assert (len(record.attempts), record.num_loss_rows) == (2, 80)
    assert record.step[record.attempts[1].first_row] == 200
