"""What torchrun starts in `test_elastic`: each rank trains under DDP.

One dies in mid-incident, once.

Arguments: the folder, and the steps. Run as a script, so nothing here is imported by a test.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.guard.crowd import Job, build, loss_of
from tests.guard.inner import inner
from trimtab.guard import Guard
from trimtab.plan.policy import Policy

BAD = range(90 * 8, 100 * 8)
"""Sample ids of the last rank's bad data."""


def main(folder: Path, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    crew = build(Job("ddp", steps, lr=1e-2), rank, world)
    guard = Guard(
        crew.model,
        crew.optimizer,
        data=crew.loader,
        scheduler=crew.scheduler,
        clip=1.0,
        steps=steps,
        run=folder / "run",
        mode="act",
        say=lambda _line: None,
        policy=Policy(
            checkpoint_every_steps=10, snapshot_every_steps=5, checkpoint_in_background=False
        ),
    )
    marker = folder / "died"
    for batch in guard:
        first = inner(guard).fed[-1].first
        if first in BAD and rank == world - 1:
            batch = torch.randint(
                0, 13, batch.shape, generator=torch.Generator().manual_seed(first)
            )
        guard.backward(loss_of(crew, batch))
        guard.step()
        if rank == 1 and guard.phase == "trial" and not marker.exists():
            marker.write_text(f"{guard.step_number} {os.environ['TORCHELASTIC_RESTART_COUNT']}")
            os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
