"""Generates broken logs: small logs of every format, and mutations of them.

Whatever bytes a file has, reading gives records in order or a `ReadError` that names the file: no
other exception, no hang, no more memory than the file explains.
"""

import bz2
import gzip
import json
import lzma
import random
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import zstandard

from benchmarks.logs.event_logs import encode_event, write_event_file
from benchmarks.logs.wandb_logs import encode_wandb_log
from trimtab.errors import ReadError
from trimtab.readers import read_each
from trimtab.record import RunRecord
from trimtab.testing.curves import simulate_run
from trimtab.testing.megatron_logs import MegatronStyle, print_log

__all__ = ["HungError", "examine", "mutated", "seed_logs"]

TIME_LIMIT_S = 20.0
"""For one small file; reading one takes about a millisecond."""

_TOKENS = (
    b"nan",
    b"NaN",
    b"-inf",
    b"Infinity",
    b"null",
    b"None",
    b"1e308",
    b"-1e999",
    b"1e-999",
    b"9" * 400,
    b"0x1p3",
    b"1_000",
    b"1,234.5",
    b"12/294",
    b"-0",
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xf0\x9f",
    b"\r",
    b"\n",
    b"\r\n",
    b"\n\n\n",
    b"\t",
    b"|",
    b"||",
    b":",
    b"=",
    b",",
    b";",
    b'"',
    b"'",
    b"{",
    b"}",
    b"[",
    b"]",
    b"{" * 50,
    b"[" * 2000,
    b"#",
    b"# Try 2\n",
    b"[...]",
    b"\x1b[1m",
    b"loss",
    b"step",
    b"epoch",
    b"lr",
    b"grad_norm",
    b"iteration",
    b"step: ",
    b"loss: ",
    b"18446744073709551616",
    b"\xe2\x88\x92",
    b"\xd9\xa3",
)
_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


class HungError(Exception):
    """A file was still being read when its time was up."""


def seed_logs(folder: Path) -> dict[str, bytes]:
    """Return one small sound log per format, by a name; `folder` is used for the making."""
    run = simulate_run(num_steps=12)
    names = ("loss", "grad_norm", "lr", "loss_scale")
    rows = [
        {"step": i + 1, **{n: round(float(run.columns[n].values[i]), 5) for n in names}}
        for i in range(12)
    ]
    text = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    logs = {
        "jsonl": text,
        "jsonl nested": "".join(f"{json.dumps({'train': r, 'n': [1]})}\n" for r in rows).encode(),
        "csv": _table(rows, ",").encode(),
        "semicolons": _table(rows, ";").replace(".", ",").encode(),
        "megatron": print_log(run).encode(),
        "megatron ranks": _megatron_ranks(run).encode(),
        "events": _events(folder, run),
        "wandb": encode_wandb_log([{"_step": r["step"], **r} for r in rows], output_lines=1),
        "trainer state": json.dumps({"log_history": rows, "global_step": 12}).encode(),
        "columns": json.dumps({n: [r[n] for r in rows] for n in ("step", *names)}).encode(),
        "sqlite": _database(folder, rows),
    }
    logs |= {name: _lines(rows, make).encode() for name, make in _TEXT.items()}
    logs |= _documents(rows)
    logs |= {
        "gzip": gzip.compress(text),
        "xz": lzma.compress(text),
        "zstd": zstandard.ZstdCompressor().compress(text),
        "bzip2": bz2.compress(text),
        "utf-16": text.decode().encode("utf-16"),
    }
    return logs


def _documents(rows: list[dict[str, float]]) -> dict[str, bytes]:
    """Return notebooks, pages, exports and lines behind a prefix."""
    head = "<tr><th>Step</th><th>Training Loss</th></tr>"
    body = "".join(f"<tr><td>{r['step']}</td><td>{r['loss']}</td></tr>" for r in rows)
    page = f"<table>{head}{body}</table>"
    cells = [
        {"outputs": [{"data": {"text/html": [page]}}]},
        {"outputs": [{"name": "stdout", "text": [f"step {r['step']} loss {r['loss']}" + "\n"]}
                     for r in rows]},
    ]  # fmt: skip
    long = "".join(f"{r['step']},{n},{r[n]}\n" for r in rows for n in ("loss", "lr"))
    dlll = (
        f'DLLL {{"type": "LOG", "step": [1, {r["step"]}, 9], "data": {{"train_loss": {r["loss"]}}}}}'
        for r in rows
    )
    two = (json.dumps({**r, "step": r["step"] + 10 * k}) for r in rows for k in (3, 0))
    return {
        "notebook": json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}).encode(),
        "page": f"<html><body>{page}</body></html>".encode(),
        "long form": f"step,metric,value\n{long}".encode(),
        "dlll": "\n".join(dlll).encode(),
        "two writers": "\n".join(two).encode(),
        "frame": json.dumps({"columns": ["step", "loss"],
                             "data": [[r["step"], r["loss"]] for r in rows]}).encode(),
        "nuls": b"\0" * 600 + _lines(rows, _TEXT["key value"]).encode(),
        "utf-16 text": _lines(rows, _TEXT["nanogpt"]).encode("utf-16-le"),
    }  # fmt: skip


def mutated(data: bytes, rng: random.Random, others: tuple[bytes, ...] = ()) -> bytes:
    """Return a log with one to six damages.

    Flipped bits, cuts, repeats, odd values, foreign parts.
    """
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        rng.choice(_DAMAGES)(made, rng)
        if others and rng.random() < 0.05:
            other = rng.choice(others)
            at = rng.randrange(len(other) + 1)
            made[rng.randrange(len(made) + 1) :] = other[at:]
    return bytes(made[:20_000])


def examine(path: Path) -> list[RunRecord]:
    """Read a file and check what must hold of it; return its records.

    Raises:
        AssertionError: A record or an error is not as it must be.
        HungError: It took longer than `TIME_LIMIT_S`; only in the main thread of a process.
    """
    records: list[RunRecord] = []
    with _time_limit():
        for _, outcome in read_each(path):
            if isinstance(outcome, ReadError):
                said = str(outcome)
                assert str(path) in said, f"the error does not name the file: {said!r}"
                assert "\n" not in said, f"the error has several lines: {said!r}"
                # One file loses no other, but a fault of ours stays one.
                assert "a fault of trimtab's own" not in said, said[-300:]
                assert len(said) < 2000, f"the error has {len(said)} characters: {said[:100]!r} ..."
            else:
                _check_record(outcome)
                records.append(outcome)
    return records


def _check_record(record: RunRecord) -> None:
    assert record.num_rows > 0, "a record without rows"
    assert np.isfinite(record.step).all(), "a step is not finite"
    for index in range(len(record.attempts)):
        steps = record.step[record.rows_of(index)]
        assert np.all(np.diff(steps) > 0), f"attempt {index} does not rise"
    for name, column in record.columns.items():
        assert len(column.values) == len(column.present) == record.num_rows, name
        assert column.present.any(), f"{name} is never there"
        assert np.isnan(column.values[~column.present]).all(), f"{name} has a value that is absent"


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise HungError(f"still reading after {TIME_LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _flip(made: bytearray, rng: random.Random) -> None:
    if made:
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)


def _cut(made: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(made) + 1)
    del made[at : at + rng.choice((1, 3, 20, 200, len(made)))]


def _repeat(made: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(made) + 1)
    made[at:at] = made[at : at + rng.choice((1, 20, 300))] * rng.choice((1, 2, 10))


def _insert(made: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(made) + 1)
    made[at:at] = rng.choice(_TOKENS)


def _renumber(made: bytearray, rng: random.Random) -> None:
    places = list(_NUMBER.finditer(made))
    if places:
        first, end = rng.choice(places).span()
        made[first:end] = rng.choice(_TOKENS)


def _swap_lines(made: bytearray, rng: random.Random) -> None:
    lines = bytes(made).split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    made[:] = b"\n".join(lines)


_DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _cut,
    _repeat,
    _insert,
    _renumber,
    _swap_lines,
)

_TEXT: dict[str, str] = {
    "nanogpt": "iter {step}: loss {loss}, time 15.2ms, lr {lr}, mfu 30.1%",
    "key value": "step={step} loss={loss} lr={lr} grad_norm={grad_norm}",
    "torchtitan": (
        "\x1b[31mstep: {step} \x1b[32mloss: {loss} \x1b[33mmemory: 3.1GiB(9.8%) tps: 71,734\x1b[39m"
    ),
    "llm.c": (
        "step {step}/12 | loss {loss} (+nanz)| norm {grad_norm} (+nanz)| lr {lr} | 51.2 ms | 10%"
        " bf16 MFU"
    ),
    "fairseq": (
        "2024-01-01 00:00:00 | INFO | train_inner | epoch 001: {step} / 12 loss={loss},"
        " gnorm={grad_norm}, lr={lr}"
    ),
    "hf stdout": (
        "{{'loss': {loss}, 'grad_norm': {grad_norm}, 'learning_rate': {lr}, 'epoch': 0.{step:02d}}}"
    ),
    "tqdm": "\r{step}/12 [00:10<09:10, 1.1it/s, loss={loss}]",
    "mllog": (
        ':::MLLOG {{"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key":'
        ' "train_loss", "value": {loss}, "metadata": {{"step_num": {step}}}}}'
    ),
    "markdown": "| {step} | {loss} | {lr} |",
    "averaged": "INFO - Epoch 1, Batch {step}, Training Loss (avg over last 100): {loss}",
    "gan": "(epoch: 1, iters: {step}, time: 0.8, data: 0.9) D_A: {lr} G_A: {loss} cycle_A: 1.7",
    "keras": "{step}/12 [=====>....] - ETA: 0s - loss: {loss} - accuracy: 0.9 - val_loss: 2.5",
    "detr": "Epoch: [0]  [{step}/12]  eta: 0:01:02  lr: {lr}  loss: {loss} ({loss})  max mem: 99",
    "paddle": "epoch: 0, batch_id: {step}, AUC:0.8, loss:{loss}, avg_batch_cost: 0.1 sec",
    "spaces": "{step:>8} {loss:>12} {lr:>12}",
    "yolo": "{step:>7}/12 1.93G 0.07 0.1 0 {loss} 29 416 0.1 0.4 0.1 0.03 0.07 0.06 {lr}",
}


def _lines(rows: list[dict[str, float]], template: str) -> str:
    head = "| step | loss | lr |\n|---|---|---|\n" if template.startswith("| {") else ""
    head = head or (
        "    step         loss           lr\n" if template.startswith("{step:>8}") else ""
    )
    return head + "".join(f"{template.format(**row)}\n" for row in rows)


def _table(rows: list[dict[str, float]], delimiter: str) -> str:
    lines = [delimiter.join(rows[0]), *(delimiter.join(map(str, r.values())) for r in rows)]
    return "\n".join(lines) + "\n"


def _megatron_ranks(run: RunRecord) -> str:
    prefixes = ("[default0]:", "[default7]:")
    style = MegatronStyle(layout="megatron-lm", rank_prefixes=prefixes, progress_bars=True)
    return print_log(run, style)


def _events(folder: Path, run: RunRecord) -> bytes:
    path = folder / "events.out.tfevents.1"
    columns = {n: run.columns[n].values for n in ("loss", "lr")}
    write_event_file(path, columns, np.arange(1, run.num_rows + 1))
    return path.read_bytes() + encode_event(99, [("loss", 1.0), ("x", 2.0)], form="tensor")


def _database(folder: Path, rows: list[dict[str, float]]) -> bytes:
    path = folder / "store.db"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as store:
        store.execute("PRAGMA page_size = 512")
        store.execute("CREATE TABLE metrics (key TEXT, value REAL, step BIGINT)")
        store.executemany("INSERT INTO metrics VALUES ('loss', :loss, :step)", rows)
        store.commit()
    return path.read_bytes()
