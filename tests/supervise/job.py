"""A small training loop as anybody writes one, with a fault on request; run as a command.

    python job.py FOLDER --steps 60 --fault kill@30

A fault that heals happens once: a file in FOLDER remembers it.
"""

import argparse
import faulthandler
import fcntl
import json
import math
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--sleep", type=float, default=0.004)
    parser.add_argument("--fault", default="")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deaf", action="store_true", help="ignore the rate of the command")
    parser.add_argument("--stacks", action="store_true")
    options = parser.parse_args()
    if options.stacks:
        faulthandler.register(signal.SIGUSR1)
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    alone = (folder / "alone").open("w")
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (folder / "twice").write_text("another job runs in this folder")
    step = load()
    with (folder / "starts").open("a") as file:
        file.write(f"{os.getpid()} {step} {os.environ.get('TRIMTAB_ATTEMPT')}\n")
    kept: list[bytearray] = []
    while step < options.steps:
        step += 1
        time.sleep(options.sleep)
        name, _, at = options.fault.partition("@")
        broken = name == "bad-state" and step >= int(at) and options.lr >= 1e-3
        if step % options.every == 0:
            target = folder / f"checkpoint-{step}.pt"
            weights = [step * 0.5, 3.0 * broken]
            target.write_text(json.dumps({"step": step, "weights": weights}))
        rate = 1e-3 if options.deaf else options.lr
        loss = 2.0 + math.exp(-step / 50) + 0.01 * math.sin(7.0 * step)
        if broken or (name == "bad-data" and step >= int(at) and options.seed == 1):
            loss += 3.0
        if name == "leak":
            kept.append(bytearray(b"x") * (1 << 20))
        if name == "nan" and step >= int(at) and options.lr >= 1e-3:
            loss = math.nan
        if name == "raise" and step >= int(at) and options.lr >= 1e-3:
            raise RuntimeError(f"Loss is not finite (loss=nan) at step {step}. Stopping training.")
        sys.stdout.write(f"step {step} loss {loss:.5f} lr {rate:g}\n")
        sys.stdout.flush()
        if name and step == int(at):
            happen(name, folder, step)
    (folder / "done").write_text(str(step))
    sys.stdout.write("training finished\n")


def load() -> int:
    """Return the step that the checkpoint given holds."""
    path = os.environ.get("TRIMTAB_RESUME_CHECKPOINT")
    if not path:
        return 0
    try:
        return int(json.loads(Path(path).read_text())["step"])
    except ValueError as error:
        raise RuntimeError("PytorchStreamReader failed reading zip archive") from error


def happen(name: str, folder: Path, step: int) -> None:
    """Let the fault happen; those that heal only once."""
    once = folder / "happened"
    if name == "code":
        raise KeyError("attention_mask")
    if once.exists() and name != "always-killed":
        return
    once.write_text(name)
    if name in ("kill", "always-killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif name == "wait":
        time.sleep(600)
    elif name == "work":
        began = time.monotonic()
        while time.monotonic() < began + 4:
            pass
    elif name == "pause":  # until the test has seen what it waits for
        while not (folder / "go").exists():
            time.sleep(0.02)
    elif name == "network":
        raise ConnectionResetError("[Errno 104] Connection reset by peer")
    elif name == "oom":
        sys.stderr.write(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        )
        raise SystemExit(1)
    elif name == "damaged":
        (folder / f"checkpoint-{step}.pt").write_text("{")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
