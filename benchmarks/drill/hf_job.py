"""Hugging Face's Trainer as its example scripts call it, on bytes of Python's own sources.

    python hf_job.py --output_dir OUT --max_steps 240 ... [--fault data]

The loop is the Trainer's. A fault that heals happens once: a file beside OUT remembers it.
"""

import json
import os
import signal
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

CONTEXT = 32
WINDOW = 24
"""Steps of bad data."""


@dataclass
class DrillArguments:
    """What is not the Trainer's."""

    fault: str = field(default="")
    at: int = field(default=120)
    start_from: str = field(default="")


class Windows(Dataset[dict[str, Tensor]]):
    """Windows of text; those of `bad` are random bytes."""

    def __init__(self, num: int, seed: int) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        names = ("argparse.py", "ast.py", "datetime.py", "inspect.py", "pydoc.py", "typing.py")
        text = b"".join((folder / name).read_bytes() for name in names if (folder / name).exists())
        self.text = np.frombuffer(text, dtype=np.uint8)
        self.starts = np.random.default_rng(seed).integers(0, len(text) - CONTEXT, num)
        self.bad: set[int] = set()

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = self.starts[index]
        row = self.text[start : start + CONTEXT].astype(np.int64)
        if index in self.bad:
            row = np.random.default_rng(index).integers(0, 256, CONTEXT)
        tokens = torch.from_numpy(row)
        return {"input_ids": tokens, "labels": tokens}


class Faults(TrainerCallback):
    """Lets the fault happen at its step."""

    def __init__(self, name: str, at: int, once: Path) -> None:
        self.name, self.at, self.once = name, at, once

    def on_step_end(
        self,
        args: TrainingArguments,  # noqa: ARG002 - as the Trainer names it
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **given: object,
    ) -> None:
        """Take the time of a step, and let the fault happen."""
        time.sleep(0.25)  # a start costs some tens of steps, as in a run of days
        if state.global_step != self.at or self.once.exists():
            return
        self.once.write_text(str(time.time()))
        if self.name == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.name == "hang":
            time.sleep(3600)
        elif self.name == "nan":
            model = given["model"]
            assert isinstance(model, torch.nn.Module)
            with torch.no_grad():
                next(model.parameters()).fill_(torch.nan)


def main() -> None:
    """Train, evaluate, write the loss down."""
    parser = HfArgumentParser([DrillArguments, TrainingArguments])  # type: ignore[list-item]
    drill, args = parser.parse_args_into_dataclasses()
    torch.manual_seed(0)
    if drill.start_from:
        model = GPT2LMHeadModel.from_pretrained(drill.start_from)
    else:
        config = GPT2Config(
            vocab_size=256,
            n_positions=CONTEXT,
            n_embd=48,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
        model = GPT2LMHeadModel(config)
    out = Path(args.output_dir)
    train = Windows(args.max_steps * args.per_device_train_batch_size, 1)
    trainer = Trainer(
        model,
        args,
        train_dataset=train,
        eval_dataset=Windows(256, 2),
        callbacks=[Faults(drill.fault, drill.at, out.parent / "happened")],
    )
    if drill.fault == "data":
        # The window lies in the order that the Trainer's sampler draws from its seed as given.
        order = torch.randperm(
            len(train), generator=torch.Generator().manual_seed(args.seed)
        ).tolist()
        size = args.per_device_train_batch_size
        train.bad = set(order[drill.at * size : (drill.at + WINDOW) * size])
        (out.parent / "happened").touch()
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    loss = trainer.evaluate()["eval_loss"]
    (out.parent / "result.json").write_text(json.dumps({"loss": loss}))


if __name__ == "__main__":
    main()
