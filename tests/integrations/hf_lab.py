"""A tiny GPT-2 on real text for Hugging Face's Trainer and Accelerate, with faults to plant."""

import json
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from tests.guard.tiny import DEVICE
from trimtab.integrations.huggingface.trainer import GuardedTrainer, GuardSettings
from trimtab.lab.text import Text, load_text
from trimtab.plan.policy import Policy

CONTEXT = 32
STEPS = 280
BATCH = 8
PEAK_LR = 4e-3
BAD_SAMPLES = range(159 * BATCH, 171 * BATCH)
"""Of a fault in the data, in the order in which they are fed: steps 160 to 171."""
LR_STEP, LR_FACTOR = 140, 100.0


@cache
def text() -> Text:
    return load_text(max_bytes=1_000_000)


class Windows(Dataset[dict[str, Tensor]]):
    """Windows of real text; those of `bad` are random bytes."""

    def __init__(self, data: Any, num: int, bad: range = range(0), *, seed: int = 0) -> None:
        self.starts = np.random.default_rng(seed).integers(0, len(data) - CONTEXT, num)
        self.data, self.bad = data, bad

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = self.starts[index]
        row = self.data[start : start + CONTEXT].astype(np.int64)
        if index in self.bad:
            row = np.random.default_rng(index).integers(0, 256, CONTEXT)
        tokens = torch.from_numpy(row)
        return {"input_ids": tokens, "labels": tokens}


def hugging(num: int, bad: range = range(0), *, shards: int = 0) -> Any:
    """The same windows as an HF dataset; with `shards`, as its iterable one, which has a state."""
    datasets = pytest.importorskip("datasets")
    windows = Windows(text().train, num, bad)
    rows = [windows[i]["input_ids"].tolist() for i in range(num)]
    found = datasets.Dataset.from_dict({"input_ids": rows, "labels": rows})
    return found.to_iterable_dataset(num_shards=shards) if shards else found


def gpt2(
    dropout: float = 0.1, *, width: int = 32, layers: int = 1, seed: int = 0
) -> GPT2LMHeadModel:
    """Seeds torch's global generator."""
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256,
            n_positions=CONTEXT,
            n_embd=width,
            n_layer=layers,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
        )
    )


def schedule(optimizer: torch.optim.Optimizer, fault: str = "") -> LambdaLR:
    """A short warm-up; a fault in the rate multiplies it from `LR_STEP` on."""

    def factor(done: int) -> float:
        wrong = LR_FACTOR if fault == "lr" and done + 1 >= LR_STEP else 1.0
        return min(1.0, (done + 1) / 20) * wrong

    return LambdaLR(optimizer, factor)


def validation(model: nn.Module) -> float:
    """Nats per token on held-out text, eval mode; NaN where a weight is not finite."""
    if not all(bool(p.isfinite().all()) for p in model.parameters()):
        return math.nan
    model.eval()
    held_out = Windows(text().validation, 512)
    rows = torch.stack([held_out[i]["input_ids"] for i in range(512)])
    with torch.no_grad():
        return float(model(input_ids=rows, labels=rows).loss)


@contextmanager
def quiet() -> Iterator[None]:
    """The trainers' own warnings are not ours."""
    with warnings.catch_warnings():
        for module in ("transformers", "accelerate", "torch", "peft"):
            warnings.filterwarnings("ignore", module=rf"{module}\..*")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield


class Losses(TrainerCallback):
    """What the Trainer logged, and the step it logged it at."""

    def __init__(self) -> None:
        self.logs: list[tuple[int, dict[str, Any]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        own = {k: v for k, v in logs.items() if "runtime" not in k and "per_second" not in k}
        self.logs.append((state.global_step, own))

    def by_step(self, name: str = "loss") -> dict[int, float]:
        return {step: logs[name] for step, logs in self.logs if name in logs}


def guard_settings(mode: str = "act", **policy: Any) -> GuardSettings:
    settings = {"checkpoint_in_background": False, "snapshot_every_steps": 10, **policy}
    return GuardSettings(mode=mode, policy=Policy(**settings), say=lambda _line: None)  # type: ignore[arg-type]


@dataclass
class Fit:
    """What came of a training."""

    trainer: Any
    log: Losses
    out: Path

    @property
    def weights(self) -> dict[str, Tensor]:
        return dict(self.trainer.model.state_dict())


def spoiled(base: type[Trainer], fault: str) -> type[Trainer]:
    """A Trainer class whose loss is NaN at step 101 and 102 where the fault is `nan`."""

    class Spoiled(base):  # type: ignore[misc, valid-type]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            return loss * math.nan if self.state.global_step in (100, 101) else loss

    return Spoiled if fault == "nan" else base


def fit(
    out: Path,
    *,
    guard: GuardSettings | None = None,
    fault: str = "",
    model: nn.Module | None = None,
    base: type[Trainer] | None = None,
    num_samples: int = 2 * STEPS * BATCH,
    resume: Any = None,
    callbacks: tuple[TrainerCallback, ...] = (),
    eval_windows: int = 0,
    own_schedule: bool = True,
    data: Any = None,
    **arguments: Any,
) -> Fit:
    """Train with the real Trainer; without `guard`, with transformers' own class.

    Args:
        out: Output directory.
        guard: Settings of the guard.
        fault: data, lr, nan, or none.
        model: Default: a tiny GPT-2.
        base: Trainer class; default: by `guard`.
        num_samples: Length of the dataset.
        resume: For `train`.
        callbacks: Of the Trainer.
        eval_windows: Windows to evaluate on.
        own_schedule: Whether optimizer and schedule are handed over.
        data: To train on; default: `Windows`.
        arguments: TrainingArguments.
    """
    with quiet():
        settings = {
            "max_steps": STEPS,
            "per_device_train_batch_size": BATCH,
            "logging_steps": 1,
            "use_cpu": DEVICE == "cpu",
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "learning_rate": PEAK_LR,
            "seed": 1,
            "train_sampling_strategy": "sequential",
            **arguments,
        }
        model = model or gpt2()
        optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], lr=PEAK_LR
        )
        own: dict[str, Any] = (
            {"optimizers": (optimizer, schedule(optimizer, fault))} if own_schedule else {}
        )
        guarded: dict[str, Any] = {} if guard is None else {"guard": guard}
        kind = spoiled(base or (Trainer if guard is None else GuardedTrainer), fault)
        log = Losses()
        bad = BAD_SAMPLES if fault == "data" else range(0)
        trainer = kind(
            model=model,
            args=TrainingArguments(output_dir=str(out), **settings),
            train_dataset=Windows(text().train, num_samples, bad) if data is None else data,
            callbacks=[log, *callbacks],
            eval_dataset=Windows(text().validation, eval_windows) if eval_windows else None,
            **own,
            **guarded,
        )
        trainer.train(resume_from_checkpoint=resume)
    return Fit(trainer, log, out)


def rows_of(out: Path, attempt: str = "1.0") -> list[dict[str, Any]]:
    lines = (out / "trimtab" / "signals" / f"{attempt}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in lines.splitlines()]
