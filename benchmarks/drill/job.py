"""The job of the drill: a loop of steps on one or several ranks, with a fault on request."""

import argparse
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

STEP_S = 0.02
SAVE_EVERY = 20


def main() -> None:
    """Train; rank 0 logs and saves, the last rank gets the fault."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--fault", default="")
    parser.add_argument("--at", type=int, default=210)
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    together = _join() if world > 1 else lambda: None
    folder = options.folder
    step = _load(folder)
    while step < options.steps:
        step += 1
        time.sleep(STEP_S)
        together()
        if rank == 0:
            if step % SAVE_EVERY == 0:
                _save(folder, step)
            bad = options.fault == "nan" and step >= options.at and options.lr >= 1e-3
            loss = math.nan if bad else 2.0 + math.exp(-step / 50) + 0.01 * math.sin(7.0 * step)
            sys.stdout.write(f"step {step} loss {loss:.5f} lr {options.lr:g}\n")
            sys.stdout.flush()
            with (folder / "steps").open("a") as file:
                file.write(f"{time.time():.4f} {step}\n")
        if step == options.at and rank == world - 1:
            _happen(options.fault, folder, step)
    together()  # a rank that leaves early would break the last step of the others
    time.sleep(0.5)
    if rank == 0:
        (folder / "done").write_text(str(step))


def _join() -> Callable[[], object]:
    import torch  # no part of the base install
    from torch import distributed

    distributed.init_process_group("gloo")
    value = torch.ones(1)
    return lambda: distributed.all_reduce(value)


def _save(folder: Path, step: int) -> None:
    data = json.dumps({"step": step, "weights": [0.5] * 4000})
    partial = folder / "partial"
    partial.write_text(data)
    partial.replace(folder / f"checkpoint-{step}.pt")


def _load(folder: Path) -> int:
    """Return where to go on: as the supervisor says, else at the newest checkpoint."""
    named = os.environ.get("TRIMTAB_RESUME_CHECKPOINT")
    steps = [int(p.stem.partition("-")[2]) for p in folder.glob("checkpoint-*.pt")]
    if not named and not steps:
        return 0
    path = Path(named) if named else folder / f"checkpoint-{max(steps)}.pt"
    try:
        return int(json.loads(path.read_text())["step"])
    except ValueError as error:
        raise RuntimeError(f"PytorchStreamReader failed reading zip archive: {path}") from error


def _happen(name: str, folder: Path, step: int) -> None:
    once = folder / "happened"
    if name and not once.exists():
        once.write_text(f"{time.time():.4f} {step}")
    elif name != "code":
        return
    if name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif name == "wait":
        time.sleep(3600)
    elif name == "network":
        raise ConnectionResetError("[Errno 104] Connection reset by peer")
    elif name == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            (folder / "partial").write_text("x" * 9000)
        except OSError as error:
            raise OSError(28, "No space left on device", "checkpoint") from error
    elif name == "damaged":
        newest = max(int(p.stem.partition("-")[2]) for p in folder.glob("checkpoint-*.pt"))
        (folder / f"checkpoint-{newest}.pt").write_text("{")
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "oom":
        raise MemoryError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    elif name == "code":
        raise KeyError("attention_mask")


if __name__ == "__main__":
    main()
