"""Text of many trainers, printed by our own code: loss, axis and places come back from each."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import find_reader, read_run
from trimtab.readers.freetext.reader import TextReader

N = 60
LOSS = [round(8 * math.exp(-i / 30) + 2 + 0.05 * math.sin(i * 7), 4) for i in range(N)]
NORM = [round(1 + 0.3 * math.sin(i * 5), 3) for i in range(N)]
BAR = "\u2588"

Line = Callable[[int, float, float], str]
"""One record from its number, loss and grad norm."""


def held_out(i: int, text: str) -> str:
    return f"\n{text}" if i % 20 == 19 else ""


STEPS: dict[str, tuple[Line, float, float]] = {
    "lines under a step line": (
        lambda i, x, g: (
            f"2024-05-01 10:{i:02d}:00.123\tnode:0\ttrain:816\tINFO\t[step={i + 1}/7000,epoch=0]\n"
            f"    optim/total_grad_norm={g}\n    train/CrossEntropyLoss={x}\n"
            f"    throughput/total_tokens={i * 4194304:,}\n    Peak GPU Memory (MB)=30,000"
        ),
        1,
        N,
    ),
    "colon, two kinds of line": (
        lambda i, x, g: (
            (f"step {i}: train loss {x + 0.5}, val loss {x + 1}\n" if i % 20 == 0 else "")
            + f"iter {i}: loss {x}, time {120 + i}.12ms, mfu 12.3%"
        ),
        0,
        N - 1,
    ),
    "table of one pair a line": (
        lambda i, x, g: (
            "------------------------------\n| time/           |        |\n"
            f"|    iterations   | {i + 1}   |\n|    total_timesteps | {2048 * (i + 1)} |\n"
            f"| train/          |        |\n|    entropy_loss | -1.4   |\n|    loss  | {x} |\n"
            "|    value_loss   | 44     |\n------------------------------"
        ),
        2048,
        2048 * N,
    ),
    "colours and an eta": (
        lambda i, x, g: (
            f"[05/01 10:00:{i:02d} events]: \x1b[32m eta: 0:43:17  iter: {20 * i + 19}  "
            f"total_loss: {x}  loss_cls: 0.3  time: 0.5  lr: 0.0002  max_mem: 4000M"
        ),
        19,
        20 * N - 1,
    ),
    "short words": (
        lambda i, x, g: (
            f"[2019-05-01 10:00:{i:02d}] Ep. 1 : Up. {1000 * (i + 1)} : Sen. {63040 * i:,} : "
            f"Cost {x} * {1234567 + i:,} : Time 45.04s : 9145.67 words/s : gNorm {g}"
        ),
        1000,
        1000 * N,
    ),
    "semicolons, no word loss": (
        lambda i, x, g: (
            f"[2021-05-01 10:00:{i:02d},123 INFO] Step {50 * (i + 1)}/100000; acc:   3.40; "
            f"xent: {x}; lr: 0.00001; 2000/1900 tok/s; {30 * i:6.0f} sec"
        ),
        50,
        50 * N,
    ),
    "loss before the step": (
        lambda i, x, g: f"INFO:lib:loss = {x}, step = {100 * i} (12.3 sec)\nINFO:lib:step/sec: 8.1",
        0,
        100 * (N - 1),
    ),
    "the loss twice": (
        lambda i, x, g: (
            f"I0501 10:00:{i:02d}.123 12345 solver.cpp:228] Iteration {100 * i}, loss = {x}\nI0501"
            f" 10:00:{i:02d}.123 12345 solver.cpp:244]     output #0: loss = {x} (* 1 = {x} loss)"
        ),
        0,
        100 * (N - 1),
    ),
    "names behind the numbers": (
        lambda i, x, g: f" {i + 1}: {x}, {x} avg loss, 0.001 rate, 0.5 seconds, {64 * i} images",
        1,
        N,
    ),
    "suffixes": (
        lambda i, x, g: (
            f"05/01/2024 10:00:{i:02d} [INFO|DP=0|TP=0]: iteration: {i + 1} / 100 |"
            f" consumed_tokens: {32.8 * i:.1f}K | elapsed_time_per_iteration_ms: 1.2K | lm_loss:"
            f" {x} | grad_norm: {g}"
        ),
        1,
        N,
    ),
    "iter and step": (
        lambda i, x, g: (
            f"Epoch 1 | iter {4 * (i + 1)} step {i + 1} | loss train: {x}, val: n/a | "
            "iter time: 100.12 ms (step) remaining time: 1:02:03"
        ),
        1,
        N,
    ),
    "a bar with a step in front": (
        lambda i, x, g: (
            f"1|{i + 1}|Loss: {x}: {i:3d}%|{BAR * (i // 10)}     | {i + 1}/1000 [00:01<15:17,"
            " 1.3it/s]\r"
        ),
        1,
        N,
    ),
    "a bar with values": (
        lambda i, x, g: (
            f"train:  {i}%|{BAR * (i // 10)}   | {i + 1}/1000 [00:12<15:17, 1.2it/s, loss={x}]\r"
        ),
        1,
        N,
    ),
    "global step in words": (
        lambda i, x, g: (
            f"[2022-05-01 10:00:{i:02d},123] [    INFO] - global step {10 * (i + 1)}, epoch: 0, "
            f"batch: {10 * i}, loss: {x}, ips: 40.1 sequences/sec, learning rate: 1.0e-05"
        ),
        10,
        10 * N,
    ),
    "loss is": (
        lambda i, x, g: f"epoch: 1 step: {i + 1}, loss is {x}\nper step time: 123.1 ms",
        1,
        N,
    ),
    "train_inner": (
        lambda i, x, g: (
            f"2022-05-01 10:00:{i:02d} | INFO | train_inner | epoch 001:  {100 * (i + 1)} / 20000 "
            f"loss={x}, nll_loss={x - 1}, wps=10000, num_updates={100 * (i + 1)}, gnorm={g}"
            + held_out(i, f"2022 | INFO | valid | epoch 001 | loss {x + 1} | num_updates {100 * i}")
        ),
        100,
        100 * N,
    ),
    "train_inner in JSON": (
        lambda i, x, g: (
            f'[2022-05-01 10:00:{i:02d},123][train_inner][INFO] - {{"epoch": 1, "update":'
            f' 0.0{i:02d}, "loss": "{x}", "num_updates": "{i + 1}", "gnorm": "{g}", "loss_scale":'
            ' "2"}'
        ),
        1,
        N,
    ),
    "dict": (
        lambda i, x, g: (
            f"I0501 10:00:00.1 1254 train.py:181] Step {i}: {{'loss': {x}, 'gnorm': {g}}}"
        ),
        0,
        N - 1,
    ),
    "printed tensors": (
        lambda i, x, g: f"Step {i} | Loss: tensor({x}, device='cuda:0', grad_fn=<NllLoss>)",
        0,
        N - 1,
    ),
    "dict over lines": (
        lambda i, x, g: (
            f"{{'accuracy': 0.1,\n 'gradient_norm': {g},\n 'loss': {x},\n 'step': {i}}}\n"
        ),
        0,
        N - 1,
    ),
    "nested JSON behind a prefix": (
        lambda i, x, g: (
            f'INFO:root:{{"step": {i}, "train": {{"loss": {x}}}, "valid": {{"loss": {x + 1}}}}}'
        ),
        0,
        N - 1,
    ),
    "a counter without a name": (lambda i, x, g: f"[{i + 1}/5000] {x} loss", 1, N),
    "header over fixed width": (
        lambda i, x, g: (
            ("  step   train loss   lr\n-----------------------\n" if i == 0 else "")
            + f"{i:6d}   {x:10.4f}   1e-4"
        ),
        0,
        N - 1,
    ),
    "Markdown table": (
        lambda i, x, g: (
            ("| Step | Training Loss | Validation Loss |\n|---|---|---|\n" if i == 0 else "")
            + f"| {i} | {x} | {'No log' if i % 5 else x + 1} |"
        ),
        0,
        N - 1,
    ),
    "validation on its own lines": (
        lambda i, x, g: f"[train] step {i} loss {x}" + held_out(i, f"[eval] step {i} loss {x + 1}"),
        0,
        N - 1,
    ),
    "torchtitan": (
        lambda i, x, g: (
            f"[rank0]:[titan] 2026-05-11 05:48:46,996 - root - INFO - \x1b[31mstep: {1000 * i:,} "
            f" \x1b[32mloss:  {x}  \x1b[34mgrad_norm:  {g}  \x1b[36mmemory: 13.38GiB(42.66%)  tps:"
            " 71,734"
        ),
        0,
        1000 * (N - 1),
    ),
    "llm.c": (
        lambda i, x, g: (
            f"step {i + 1:4d}/19560 | loss {x:8.4f} (+0.1z)| norm {g:7.3f} (+nanz)| lr 1.14e-04 | "
            "3588.26 ms | 37.6% bf16 MFU | 145992 tok/s"
        ),
        1,
        N,
    ),
    "llm.c main.log": (
        lambda i, x, g: f"s:{i} trl:{x} lr:0.000171 norm:{g}" + held_out(i, f"s:{i} tel:{x + 1}"),
        0,
        N - 1,
    ),
    "maxtext": (
        lambda i, x, g: (
            f"I0317 10:00:15.412527 125344476638336 metric_logger.py:181] completed step: {i}, "
            f"seconds: 0.434, Tokens/s/device: 9447.649, total_weights: 30851, loss: {x}"
        ),
        0,
        N - 1,
    ),
    "transformer-xl": (
        lambda i, x, g: (
            f"| epoch   3 step {200 * i:8d} | {20 * i:6d} batches | lr 0.000242 | ms/batch 382.06 |"
            f" loss {x:5.4f} | ppl    37.256"
            + held_out(i, f"| Eval  {i} at step {200 * i} | time: 12.1s | valid loss  {x + 1} |")
        ),
        0,
        200 * (N - 1),
    ),
    "deepspeed-chat": (
        lambda i, x, g: (
            f"epoch: 0|step: {i}|ppo_ep: 1|act_loss: {x}|cri_loss: 0.07|unsuper_loss: 0.0"
        ),
        0,
        N - 1,
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_and_losses_come_back(tmp_path: Path, name: str) -> None:
    line, first, last = STEPS[name]
    path = tmp_path / "log"
    path.write_text(
        "\n".join(line(i, x, g) for i, (x, g) in enumerate(zip(LOSS, NORM, strict=True))) + "\n"
    )
    for record in (read_run(path), TextReader().read(path)):
        loss = record.columns["loss"]
        assert record.axis == "step"
        np.testing.assert_allclose(loss.logged(), LOSS)
        assert (record.step[loss.present][0], record.step[loss.present][-1]) == (first, last)
        if "grad_norm" in record.columns:
            np.testing.assert_allclose(record.columns["grad_norm"].logged(), NORM)
        if "val_loss" in record.columns:
            held = record.columns["val_loss"].logged()
            assert all(min(abs(v - x - 1) for x in LOSS) < 1e-9 for v in held)


EPOCHS: dict[str, Line] = {
    "epoch line, then values": lambda i, x, g: (
        f"Epoch {i + 1}/60\n1875/1875 [=====] - 4s 2ms/step - loss: {x} - acc: 0.9 - val_loss:"
        f" {x + 1}"
    ),
    "Train: 0 [ 50/1000]": lambda i, x, g: (
        f"Train: {i // 20} [{(i % 20) * 50:4d}/1000 ({5 * (i % 20):3.0f}%)]  Loss: {x} ({x})  "
        "Time: 0.512s, 250.2/s  (0.512s,  250.00/s)  LR: 1.000e-03"
        + held_out(i, f"Test: [   0/19]  Time: 2.1 (2.1)  Loss:  {x + 1} ({x + 1})")
    ),
    "Epoch [1][50/1000]": lambda i, x, g: (
        f"2021-05-01 10:00:{i:02d},123 - det - INFO - Epoch"
        f" [{i // 20 + 1}][{(i % 20 + 1) * 50}/1000]\tlr: 1.978e-03, eta: 1 day, 0:12:34, memory:"
        f" 3903, loss_bbox: 0.2, loss: {x}, grad_norm: {g}"
    ),
    "Epoch[0] Batch [50]": lambda i, x, g: (
        f"INFO:root:Epoch[{i // 20}] Batch [{(i % 20) * 50}]\tSpeed: 1234.5"
        f" samples/sec\tcross-entropy={x}"
    ),
    "Epoch: [3/90] in a bar": lambda i, x, g: (
        f"Epoch: [{i // 20}/90] Loss: {x} Acc: 14.6%:   7%|{BAR * (i % 20)}  | {i % 20}/20"
        " [00:02<00:29]\r"
    ),
    "1epoch:train:1-100batch": lambda i, x, g: (
        "(trainer:732) INFO:"
        f" {i // 20 + 1}epoch:train:{(i % 20) * 100 + 1}-{(i % 20) * 100 + 100}batch:"
        f" iter_time=1.1e-04, loss_ctc=90.1, loss_att=50.2, loss={x}, grad_norm={g}"
    ),
    "epoch header": lambda i, x, g: (
        ("epoch     train_loss  valid_loss  accuracy  time\n" if i == 0 else "")
        + f"{i}         {x}    {x + 1:.4f}    0.8123    01:2{i % 10}"
    ),
    "summary lines": lambda i, x, g: (
        f"Epoch {i + 1}/60 | Train Loss: {x} | Val Loss: {x + 1} | 12.3s"
    ),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_epochs_and_losses_come_back(tmp_path: Path, name: str) -> None:
    line = EPOCHS[name]
    path = tmp_path / "log"
    path.write_text(
        "\n".join(line(i, x, g) for i, (x, g) in enumerate(zip(LOSS, NORM, strict=True))) + "\n"
    )
    record = TextReader().read(path)
    assert record.axis == "epoch"
    np.testing.assert_allclose(record.columns["loss"].logged(), LOSS)
    assert len(record.attempts) == 1
    steps = record.step[record.columns["loss"].present]
    assert np.all(np.diff(steps) > 0)
    per_epoch = np.bincount(steps.astype(int))
    assert set(per_epoch[per_epoch > 0].tolist()) in ({1}, {20})


@pytest.mark.parametrize(
    ("name", "format_name"),
    [
        ("train_inner", "fairseq"),
        ("train_inner in JSON", "fairseq"),
        ("torchtitan", "torchtitan"),
        ("llm.c", "llm.c"),
        ("llm.c main.log", "llm.c"),
        ("maxtext", "maxtext"),
        ("colon, two kinds of line", "nanogpt"),
        ("transformer-xl", "transformer-xl"),
        ("deepspeed-chat", "deepspeed-chat"),
        ("lines under a step line", "olmo"),
        ("table of one pair a line", "stable-baselines3"),
        ("short words", "text"),
    ],
)
def test_formats_with_a_name_are_told(tmp_path: Path, name: str, format_name: str) -> None:
    line = STEPS[name][0]
    path = tmp_path / "log"
    path.write_text("\n".join(line(i, x, 1.0) for i, x in enumerate(LOSS)) + "\n")
    reader = find_reader(path)
    assert reader.name == format_name
    notes = [n for n in reader.read(path).notes if "without a name" in n]
    assert bool(notes) == (format_name == "text")


@pytest.mark.parametrize(
    "taken",
    ["19s 76ms/step", "19s", "3min", "12 ms", "250 us/sample", "7 it/s", "80%", "512MB", "2 h"],
)
def test_a_number_with_a_unit_is_no_place_in_the_epoch(tmp_path: Path, taken: str) -> None:
    # Keras prints the seconds of an epoch where others print the batch; they rise and fall.
    number, *unit = taken.split(" ", 1) if " " in taken else (taken,)
    digits = "".join(c for c in number if c.isdecimal())
    text = "".join(
        f"Epoch {i}/80\n{int(digits) + (7 * i) % 5}{number[len(digits) :]}"
        f"{''.join(f' {u}' for u in unit)} - loss: {3 - 0.1 * i:.4f} - acc: 0.5\n"
        for i in range(1, 16)
    )
    path = tmp_path / "some log"
    path.write_text(text)
    record = read_run(path)
    assert (record.axis, record.step.tolist()) == ("epoch", list(range(1, 16)))


def test_a_count_a_second_is_no_time(tmp_path: Path) -> None:
    path = tmp_path / "some log"
    path.write_text(
        "".join(f"step {i} loss {3 - i / 99:.3f} global_step/sec: 2.5\n" for i in range(20))
    )
    assert "step_time_s" not in read_run(path).columns


@pytest.mark.parametrize("key", ["total_step", "outer_iter", "Episode", "fed round", "Generation"])
def test_a_count_that_rises_is_the_step_where_none_is_better(tmp_path: Path, key: str) -> None:
    # MobileFaceNet's trainer prints `epoch 0, total_step 24050, total loss is 47.09`.
    path = tmp_path / "some log"
    at = [24050 + 50 * i for i in range(9)]
    line = (
        "epoch 0, {key} {n}, total loss is {x:.2f} , inference loss is {x:.2f}, accuracy is 0.1\n"
    )
    path.write_text("".join(line.format(key=key, n=n, x=47 - n / 9999) for n in at))
    assert (read_run(path).axis, read_run(path).step.tolist()) == ("step", at)
    # A step of its own goes before it, and one that stands still counts nothing.
    path.write_text(
        "".join(line.format(key=f"step {i}, {key}", n=n, x=3 - i / 9) for i, n in enumerate(at * 2))
    )
    assert read_run(path).step.tolist() == list(range(18))
    path.write_text("".join(line.format(key=key, n=9000, x=3 - i / 9) for i in range(18)))
    assert read_run(path).axis != "step"


def test_an_excerpt_that_begins_below_its_first_header(tmp_path: Path) -> None:
    # Keras prints the epoch above its line; the excerpt starts in between.
    text = "Epoch 63/100\n" + "".join(
        f"4/4 [=====] - 0s {4 + i % 2}ms/step - loss: 0.00{64 - i} - mae: 0.05\nEpoch {65 + i}/100\n"
        for i in range(9)
    )
    path = tmp_path / "some log"
    path.write_text(text.partition("\n")[2].rpartition("Epoch")[0])
    assert (read_run(path).axis, read_run(path).step.tolist()) == ("epoch", list(range(64, 73)))


def _keras(num: int, *, held_out: bool) -> list[str]:
    lines = []
    for k in range(1, num + 1):
        loss = 0.4 + 2 * 0.8**k
        lines.append(f"Epoch {k}/{num}")
        bar = (
            f"1250/1250 [======] - 33s 24ms/step - loss: {loss:.4f} - accuracy: {1 - loss / 4:.4f}"
        )
        lines.append(bar + (f" - val_loss: {loss + 0.1:.4f}" if held_out else ""))
    return lines


def test_the_last_report_of_keras_is_no_row_of_training(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    report = "313/313 [======] - 3s 8ms/step - loss: 0.9068 - accuracy: 0.7209"
    path.write_text("\n".join([*_keras(15, held_out=True), report]) + "\n")
    record = read_run(path)
    assert (record.axis, record.num_loss_rows) == ("epoch", 15)
    assert record.columns["loss"].logged()[-1] < 0.6
    assert any("1 bar of evaluations left out" in note for note in record.notes)


def test_bars_of_another_total_behind_each_epoch_are_held_out(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    lines = []
    for k, line in enumerate(_keras(15, held_out=False)):
        lines.append(line)
        if k % 2:
            lines.append(f"313/313 [======] - 3s 8ms/step - loss: {0.6 + 2 * 0.8**k:.4f}")
    path.write_text("\n".join(lines) + "\n")
    record = read_run(path)
    assert (record.axis, record.num_loss_rows) == ("epoch", 15)
    assert len(record.columns["val_loss"].logged()) == 15
    # A later run on more data has another total too, in one piece.
    path.write_text("\n".join([*_keras(9, held_out=False), *lines[1:2]]) + "\n")
    assert read_run(path).num_loss_rows >= 9


def test_a_bar_that_an_epoch_heads_is_training_whatever_its_total(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    last = ["Epoch 1/1", "200/200 [======] - 3s 8ms/step - loss: nan - accuracy: 0.1000"]
    path.write_text("\n".join([*_keras(15, held_out=True), *last]) + "\n")
    record = read_run(path)
    assert np.isnan(record.columns["loss"].logged()[-1])
    reports = [f"{n}/{n} [======] - 3s 8ms/step - loss: 0.9{n} - accuracy: 0.7" for n in (40, 313)]
    for held_out in (True, False):
        path.write_text("\n".join([*_keras(15, held_out=held_out), *reports]) + "\n")
        record = read_run(path)
        assert record.num_loss_rows == 15
        assert any("2 bars of evaluations left out" in note for note in record.notes)


def test_two_evaluations_behind_each_epoch_are_held_out_by_the_first(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    lines = []
    for k, line in enumerate(_keras(12, held_out=False)):
        lines.append(line)
        if k % 2:
            lines.append(f"40/40 [======] - 3s 8ms/step - loss: {0.6 + 2 * 0.8**k:.4f}")
            lines.append("313/313 [======] - 3s 8ms/step - loss: 0.9068")
    path.write_text("\n".join(lines) + "\n")
    record = read_run(path)
    assert (record.axis, record.num_loss_rows) == ("epoch", 12)
    assert record.columns["val_loss"].logged()[0] == pytest.approx(0.6 + 2 * 0.8)


def test_names_joined_to_their_values(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    lines = [f"step_{78540 + 20 * i}:\tloss_{-4.1 - i / 100:.9f}" for i in range(20)]
    lines[12] = "step_78780:\tloss_4191.683593750"
    lines[15] = "step_78840:\tloss_nan"
    path.write_text("\n".join(lines) + "\n")
    record = read_run(path)
    assert (record.axis, record.num_loss_rows) == ("step", 20)
    assert record.step[:2].tolist() == [78540.0, 78560.0]
    losses = record.columns["loss"].values
    assert losses[[0, 12]].tolist() == [-4.1, 4191.68359375]
    assert math.isnan(losses[15])
