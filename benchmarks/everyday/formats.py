"""Made-up runs as logs of trainers: CSV, JSON lines as W&B exports them, HF's state, Megatron text."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.everyday.runs import MadeRun

__all__ = ["FORMATS", "formats_of", "write_log"]

_WANDB = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/learning_rate",
    "val_loss": "val/loss",
    "throughput": "tokens_per_second",
}
_HF = {"lr": "learning_rate", "val_loss": "eval_loss"}


def _rows(run: MadeRun) -> Iterator[tuple[float, dict[str, float]]]:
    for i in range(run.num_rows):
        yield (
            float(run.step[i]),
            {
                name: float(values[i])
                for name, values in run.columns.items()
                if name not in run.present or run.present[name][i]
            },
        )


def _csv(run: MadeRun, path: Path) -> None:
    names = list(run.columns)
    lines = [",".join(["step", *names])]
    for step, row in _rows(run):
        cells = [_number(row[n], 6) if n in row else "" for n in names]
        lines.append(",".join([f"{step:.0f}", *cells]))
    path.write_text("\n".join(lines) + "\n")


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}g}"


def _jsonl(run: MadeRun, path: Path) -> None:
    with path.open("w") as file:
        for step, row in _rows(run):
            told = {_WANDB.get(n, n): v for n, v in row.items()}
            file.write(json.dumps({"_step": int(step), **told}) + "\n")


def _trainer_state(run: MadeRun, path: Path) -> None:
    history: list[Mapping[str, float]] = []
    last = float(run.step[-1])
    for step, row in _rows(run):
        place = {"epoch": round(row.get("epoch", step / last * 3), 4), "step": int(step)}
        # Trainer rounds the loss to four decimals and logs evaluations as rows of their own.
        train = {_HF.get(n, n): v for n, v in row.items() if not n.startswith("val_loss")}
        if "loss" in train and math.isfinite(train["loss"]):
            train["loss"] = round(train["loss"], 4)
        history.append({**train, **place})
        checks = {
            f"eval_{n[4:].replace('loss/', '')}": v for n, v in row.items() if n[:4] == "val_"
        }
        for name, value in checks.items():
            key = name if name == "eval_loss" else f"{name}_loss"
            history.append({key: value, **place})
    state = {
        "best_metric": None,
        "epoch": history[-1]["epoch"],
        "global_step": int(last),
        "log_history": history,
        "max_steps": int(last),
    }
    path.write_text(json.dumps(state, indent=1))


def _megatron(run: MadeRun, path: Path) -> None:
    lines: list[str] = []
    gap = float(run.step[1] - run.step[0])
    consumed: dict[float, float] = {}
    for step, row in _rows(run):
        batch = row.get("batch_size", 64.0)
        # Counted on from the row before in steps: another batch size changes no past sample.
        consumed[step] = consumed.get(step - gap, (step - gap) * batch) + gap * batch
        seen = row.get("samples_seen", consumed[step])
        cells = [
            f" iteration {step:8.0f}/{run.step[-1]:8.0f}",
            f" consumed samples: {seen:12.0f}",
            f" elapsed time per iteration (ms): {1000 * 4e5 / row['throughput']:.1f}",
            f" learning rate: {row['lr']:.6E}",
            f" global batch size: {batch:5.0f}",
            f" lm loss: {row['loss']:.6E}",
            f" loss scale: {row.get('loss_scale', 1.0):.1f}",
            f" grad norm: {row['grad_norm']:.3f}",
            " number of skipped iterations:   0",
            " number of nan iterations:   0 |",
        ]
        lines.append(" |".join(cells))
        if "val_loss" in row:
            lines.append("-" * 60)
            lines.append(
                f" validation loss at iteration {step:.0f} | lm loss value: {row['val_loss']:.6E} |"
                f" lm loss PPL: {math.exp(min(row['val_loss'], 20)):.6E} | "
            )
            lines.append("-" * 60)
    path.write_text("\n".join(lines) + "\n")


FORMATS: Mapping[str, tuple[str, Callable[[MadeRun, Path], None]]] = {
    "csv": ("log.csv", _csv),
    "jsonl": ("history.jsonl", _jsonl),
    "hf": ("trainer_state.json", _trainer_state),
    "megatron": ("train.log", _megatron),
}
"""Name -> (file name, writer)."""

_MEGATRON = frozenset({"loss", "grad_norm", "lr", "val_loss", "throughput", "loss_scale",
                       "batch_size", "samples_seen"})  # fmt: skip


def formats_of(run: MadeRun) -> tuple[str, ...]:
    """Return three formats that can hold what a run logs.

    A state of HF's Trainer is rewritten as a whole on a resume, so it shows no seam; Megatron
    prints no further columns.
    """
    third = "hf" if run.seam is None else "megatron"
    if third == "megatron" and not set(run.columns) <= _MEGATRON:
        return ("csv", "jsonl")
    return ("csv", "jsonl", third)


def write_log(run: MadeRun, name: str, folder: Path) -> Path:
    """Write a run in a format and return the file."""
    file, write = FORMATS[name]
    path = folder / file
    write(run, path)
    return path
