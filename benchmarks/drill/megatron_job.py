"""Megatron-LM played: its log lines, its checkpoints and its flags around a small linear model.

The rate of the checkpoint stays in force unless `--override-opt_param-scheduler` is given, as
there; `--iterations-to-skip` consumes the data and makes no update.
"""

import argparse
import json
import math
import os
import signal
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

WIDTH = 48
CLASSES = 16


def main() -> None:
    """Train as `pretrain_gpt.py` logs it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--train-iters", type=int, default=400)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--load", type=Path)
    parser.add_argument("--save-interval", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--override-opt_param-scheduler", action="store_true")
    parser.add_argument("--iterations-to-skip", type=int, nargs="+", default=[])
    parser.add_argument("--fault", default="")
    parser.add_argument("--fault-at", type=int, default=130)
    args = parser.parse_args()
    step, weights, rate = 0, np.zeros((WIDTH, CLASSES)), args.lr
    pointer = args.load / "latest_checkpointed_iteration.txt" if args.load else None
    if pointer is not None and pointer.exists():
        step = int(pointer.read_text())
        state = json.loads((args.load / f"iter_{step:07d}" / "mp_rank_00.json").read_text())
        weights = np.array(state["weights"])
        rate = args.lr if args.override_opt_param_scheduler else state["lr"]
    once = args.save.parent / "happened"
    truth = np.random.default_rng(0).normal(size=(WIDTH, CLASSES)) * 0.6
    while step < args.train_iters:
        step += 1
        began = time.monotonic()
        rng = np.random.default_rng([1, step])
        data = rng.normal(size=(32, WIDTH))
        labels = (data @ truth + rng.gumbel(size=(32, CLASSES))).argmax(1)
        if args.fault == "data" and args.fault_at <= step < args.fault_at + 24:
            data, labels = data * 12.0, np.full(32, step % 7)
            once.touch()
        loss, gradient = _loss(weights, data, labels)
        norm = float(np.linalg.norm(gradient))
        if step not in args.iterations_to_skip:
            weights = weights - rate * gradient
        time.sleep(0.1)
        _log(step, args.train_iters, loss, norm, rate, time.monotonic() - began)
        if step == args.fault_at and args.fault in ("crash", "hang", "nan") and not once.exists():
            once.touch()
            if args.fault == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            elif args.fault == "hang":
                time.sleep(3600)
            weights = weights * math.nan
        if step % args.save_interval == 0:
            _save(args.save, step, weights, rate)
    rng = np.random.default_rng(9)
    data = rng.normal(size=(4096, WIDTH))
    labels = (data @ truth + rng.gumbel(size=(4096, CLASSES))).argmax(1)
    loss = _loss(weights, data, labels)[0]
    (args.save.parent / "result.json").write_text(json.dumps({"loss": loss}))


def _loss(
    weights: NDArray[np.float64], data: NDArray[np.float64], labels: NDArray[np.int64]
) -> tuple[float, NDArray[np.float64]]:
    logits = data @ weights
    logits = logits - logits.max(1, keepdims=True)
    shares = np.exp(logits)
    shares /= shares.sum(1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(np.maximum(shares[rows, labels], 1e-30)).mean())
    if not np.isfinite(shares).all():
        loss = math.nan
    shares[rows, labels] -= 1
    return loss, data.T @ shares / len(labels)


def _log(step: int, total: int, loss: float, norm: float, rate: float, took_s: float) -> None:
    print(
        f" iteration {step:8d}/{total:8d} | consumed samples: {32 * step:12d} |"
        f" elapsed time per iteration (ms): {took_s * 1e3:.1f} | learning rate: {rate:.6E} |"
        f" global batch size: {32:5d} | lm loss: {loss:.6E} | loss scale: 1.0 |"
        f" grad norm: {norm:.3f} | number of skipped iterations: {0:3d} |"
        f" number of nan iterations: {int(math.isnan(loss)):3d} |",
        flush=True,
    )


def _save(folder: Path, step: int, weights: NDArray[np.float64], rate: float) -> None:
    print(f"saving checkpoint at iteration {step:7d} to {folder}", flush=True)
    place = folder / f"iter_{step:07d}"
    place.mkdir(parents=True, exist_ok=True)
    state = {"weights": weights.tolist(), "lr": rate}
    (place / "mp_rank_00.json").write_text(json.dumps(state))
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


if __name__ == "__main__":
    main()
