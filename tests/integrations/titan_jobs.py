"""torchtitan trainings in processes of their own: under torchrun, or to be killed.

    python -m tests.integrations.titan_jobs FOLDER TP NAME [NAME ...]

What a job gives is in FOLDER/NAME-RANK.pt: logged losses as hexadecimal floats, weights whole,
actions.
"""

import logging
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.integrations.titan_lab import STEPS, fit


@dataclass(frozen=True)
class Job:
    """One training."""

    steps: int = 30
    guard: str = ""
    out: str = "straight"
    fault: str = ""
    kill_step: int = 0
    checkpoint: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=lambda: {"checkpoint_every_steps": 10})


_SAVES = {"enable": True, "interval": 10, "last_save_model_only": False}

JOBS = {
    "plain": Job(out="plain"),
    "straight": Job(guard="observe"),
    "killed": Job(guard="act", out="broken", kill_step=17),
    "resumed": Job(guard="act", out="broken"),
    "killed-plain": Job(out="unguarded", kill_step=17, checkpoint=_SAVES),
    "adopted": Job(guard="act", out="unguarded", checkpoint=_SAVES),
    "data": Job(STEPS, guard="act", out="data", fault="data", policy={}),
    "nan": Job(STEPS, guard="act", out="nan", fault="nan", policy={}),
    "lr": Job(STEPS, guard="act", out="lr", fault="lr", policy={}),
    "twin": Job(STEPS, out="twin"),
}


def train(folder: Path, tp: int, name: str, job: Job) -> None:
    rank = int(os.environ.get("RANK", 0))

    def before(trainer: Any) -> None:
        own = trainer.forward_backward_step

        def killed(**given: Any) -> Any:
            if trainer.step == job.kill_step:
                os.kill(os.getpid(), signal.SIGKILL)
            return own(**given)

        if job.kill_step and rank == int(os.environ.get("WORLD_SIZE", 1)) - 1:
            trainer.forward_backward_step = killed

    found = fit(
        folder / job.out,
        steps=job.steps,
        guard=job.guard,
        fault=job.fault,
        policy=job.policy,
        tp=tp,
        before=before,
        checkpoint=job.checkpoint,
    )
    guard = getattr(found.trainer, "guard", None)
    out = {
        "losses": found.losses,
        "weights": found.weights,
        "validation": found.validation,
        "step": found.trainer.step,
        "actions": [] if guard is None else [a["remedy"] for a in guard.actions],
    }
    torch.save(out, folder / f"{name}-{rank}.pt")


def main(folder: Path, tp: int, names: list[str]) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    for name in names:
        train(folder, tp, name, JOBS[name])
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
