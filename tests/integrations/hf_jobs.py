"""Trainings with Hugging Face's Trainer in processes of their own: under torchrun, or to be killed.

    python -m tests.integrations.hf_jobs FOLDER NAME [NAME ...]

Each name is a job of `JOBS`, run one after another. What a job gives is in FOLDER/NAME-RANK.pt: the
loss of every step as a hexadecimal float, the weights whole, what the guard did.
"""

import math
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import GPT2LMHeadModel, Trainer

from tests.integrations.hf_lab import BATCH, fit, gpt2, guard_settings
from trimtab.integrations.huggingface.trainer import GuardedTrainer


@dataclass(frozen=True)
class Job:
    """One training."""

    steps: int = 30
    guard: str = ""
    """Mode; empty: none."""
    out: str = "straight"
    """Output directory, in the folder."""
    fault: str = ""
    kill_step: int = 0
    nan_step: int = 0
    """Step at which the last rank's loss is NaN."""
    resume: Any = None
    policy: dict[str, Any] = field(default_factory=lambda: {"checkpoint_every_steps": 10})
    arguments: dict[str, Any] = field(default_factory=dict)


_SAVES = {"save_strategy": "steps", "save_steps": 10}

JOBS = {
    "plain": Job(out="plain"),
    "straight": Job(guard="observe"),
    "killed": Job(guard="observe", out="broken", kill_step=17),
    "resumed": Job(guard="observe", out="broken"),
    "killed-own": Job(guard="observe", out="own", kill_step=17, arguments=_SAVES, policy={}),
    "resumed-own": Job(guard="observe", out="own", resume=True, arguments=_SAVES, policy={}),
    "adopted": Job(guard="observe", out="unguarded", resume=True, arguments=_SAVES),
    "killed-plain": Job(out="unguarded", kill_step=17, arguments=_SAVES),
    "resumed-plain": Job(out="plain-resumed", resume=True, arguments=_SAVES),
    "data": Job(280, guard="act", out="data", fault="data", nan_step=101),
    "lr": Job(240, guard="act", out="lr", fault="lr"),
}


def whole(state: dict[str, Any]) -> dict[str, Any]:
    """Return weights with shards gathered; all ranks must call."""
    return {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in state.items()}


def train(folder: Path, name: str, job: Job) -> None:
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    losses: dict[int, str] = {}

    class Noting(GuardedTrainer if job.guard else Trainer):  # type: ignore[misc]
        """Writes every loss down, and is killed where it is told to."""

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            step = self.state.global_step + 1
            if step == job.kill_step and rank == world - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            guard = getattr(self, "guard", None)
            if guard is None or not guard.probing:
                losses[step] = float(loss.detach()).hex()
            bad = step == job.nan_step and rank == world - 1
            return loss * math.nan if bad else loss

    model: Any = gpt2()
    if (
        folder / "base"
    ).is_dir():  # sharded as it is loaded, as the Trainer does FSDP2 on any device
        from transformers.distributed.configuration_utils import DistributedConfig

        model = GPT2LMHeadModel.from_pretrained(
            folder / "base",
            distributed_config=DistributedConfig(
                fsdp_size=world, fsdp_plan={"transformer.h.*": "free_full_weight"}
            ),
        )
    guarded = guard_settings(job.guard, **job.policy) if job.guard else None
    found = fit(
        folder / job.out,
        guard=guarded,
        fault=job.fault,
        model=model,
        base=Noting,
        max_steps=job.steps,
        per_device_train_batch_size=BATCH // world,
        resume=job.resume,
        num_samples=600 * BATCH,
        **job.arguments,
    )
    guard = found.trainer.guard if job.guard else None
    out = {
        "losses": losses,
        "weights": whole(found.trainer.model_wrapped.state_dict()),
        "step": found.trainer.state.global_step,
        "actions": [] if guard is None else [a["remedy"] for a in guard.actions],
        "skips": [] if guard is None else list(guard.skipped_samples),
    }
    torch.save(out, folder / f"{name}-{rank}.pt")


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        train(folder, name, JOBS[name])
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
