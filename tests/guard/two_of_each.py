"""A job with two optimizers, two schedulers and two workers, killed where it is told to."""

import faulthandler
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

from trimtab.guard import Guard
from trimtab.plan.policy import Policy

STEPS = 40


class Augmented(Dataset[Tensor]):
    """Items with noise that workers draw."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Tensor:
        item = torch.full((8,), index / 60)
        item[0] += torch.rand(())
        item[1] += random.random()
        return item


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.a = nn.Linear(8, 16)
        self.b = nn.Linear(16, 8)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.dropout(torch.tanh(self.a(self.norm(x)))))
        return out


def make(folder: Path, seed: int) -> tuple[Guard, nn.Module, list[Any]]:
    torch.manual_seed(seed)
    random.seed(seed)
    model = Net()
    matrices = [model.a.weight, model.b.weight]
    rest = [p for p in model.parameters() if all(p is not m for m in matrices)]
    muon = torch.optim.Muon(matrices, lr=2e-3)
    adamw = torch.optim.AdamW(rest, lr=1e-3)
    schedulers = [
        lr_scheduler.CosineAnnealingLR(muon, STEPS),
        lr_scheduler.LambdaLR(adamw, lambda done: min(1.0, (done + 1) / 10)),
    ]
    guard = Guard(
        model,
        [muon, adamw],
        scheduler=schedulers,
        data=DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=2),
        clip=1.0,
        steps=STEPS,
        run=folder,
        mode="act",
        policy=Policy(checkpoint_every_steps=4, snapshot_every_steps=3),
        say=lambda _: None,
    )
    return guard, model, [muon, adamw, *schedulers]


def train(
    folder: Path, log: Path, *, kill_step: int | None = None, kill_after_s: float | None = None
) -> None:
    """Train to the end, or to the kill; write the loss of each step, and the state at the end."""
    # an unlike seed: all that decides the future must come from the checkpoint, once there is one
    saved = any(folder.glob("checkpoints/step-*/manifest.json"))
    guard, model, parts = make(folder, seed=11 if saved else 3)
    if kill_after_s is not None:
        threading.Timer(kill_after_s, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    with log.open("a") as file:
        for batch in guard:
            loss = (model(batch) - batch).square().mean()
            guard.backward(loss)
            if guard.step_number + 1 == kill_step:
                os.kill(os.getpid(), signal.SIGKILL)
            guard.step()
            file.write(f"{guard.step_number} {float(loss.detach()).hex()}\n")
            file.flush()
    torch.save(
        {"model": model.state_dict(), "parts": [p.state_dict() for p in parts]},
        log.with_suffix(".pt"),
    )


if __name__ == "__main__":
    folder, log, step, seconds = sys.argv[1:]
    faulthandler.dump_traceback_later(100, exit=True)
    train(
        Path(folder),
        Path(log),
        kill_step=int(step) or None,
        kill_after_s=float(seconds) or None,
    )
