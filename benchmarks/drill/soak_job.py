"""The job of the soak: a linear model in numpy that saves whole states, with planned faults.

    python soak_job.py FOLDER STEPS [SECONDS_A_STEP]

`FOLDER/plan.json` holds step -> fault; each happens once.
"""

import fcntl
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SAVE_EVERY = 10
WIDTH = 64


def main() -> None:
    """Train, and let happen what is planned."""
    folder, num_steps = Path(sys.argv[1]), int(sys.argv[2])
    pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.02
    alone = (folder / "alone").open("w")
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (folder / "twice").write_text("another job runs in this folder")
    plan_file = folder / "plan.json"
    plan = json.loads(plan_file.read_text()) if plan_file.exists() else {}
    step, weights, speed = _load()
    target = np.random.default_rng(0).normal(size=WIDTH)
    loss = 0.0
    while step < num_steps:
        step += 1
        time.sleep(pause)
        rng = np.random.default_rng([1, step])
        data = rng.normal(size=(8, WIDTH))
        wrong = data @ weights - data @ target
        loss = float(np.mean(wrong**2)) + 0.01 * float(rng.normal()) ** 2
        speed = 0.9 * speed + data.T @ wrong / 8
        weights = weights - 0.005 * speed
        fault = plan.get(str(step), "")
        once = folder / f"happened-{step}"
        now = bool(fault) and not once.exists()
        if now:
            once.write_text(fault)
        with (folder / "steps").open("a") as file:
            file.write(f"{step}\n")
        sys.stdout.write(f"step {step} loss {loss:.6f} lr 0.005\n")
        sys.stdout.flush()
        if now:
            _happen(fault, folder, step)
        if step % SAVE_EVERY == 0:
            _save(folder, step, weights, speed)
    (folder / "end.json").write_text(json.dumps({"loss": loss, "weights": weights.tolist()}))


def _save(
    folder: Path, step: int, weights: NDArray[np.float64], speed: NDArray[np.float64]
) -> None:
    partial = folder / "partial"
    state = {"step": step, "weights": weights.tolist(), "speed": speed.tolist()}
    partial.write_text(json.dumps(state))
    partial.replace(folder / f"checkpoint-{step}.pt")
    for old in range(step - 100, step - 60, SAVE_EVERY):
        (folder / f"checkpoint-{old}.pt").unlink(missing_ok=True)


def _load() -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
    """Return the state of the checkpoint that the supervisor names; without one the first."""
    path = os.environ.get("TRIMTAB_RESUME_CHECKPOINT")
    if not path:
        return 0, np.zeros(WIDTH), np.zeros(WIDTH)
    try:
        state = json.loads(Path(path).read_text())
    except ValueError as error:
        raise RuntimeError(f"PytorchStreamReader failed reading zip archive: {path}") from error
    return int(state["step"]), np.array(state["weights"]), np.array(state["speed"])


def _happen(fault: str, folder: Path, step: int) -> None:
    if fault == "supervisor":
        os.kill(int((folder / "supervisor").read_text()), signal.SIGKILL)
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "wait":
        time.sleep(3600)
    elif fault == "network":
        raise ConnectionResetError("[Errno 104] Connection reset by peer")
    elif fault == "abort":
        os.abort()
    elif fault == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
        try:
            (folder / "partial").write_text("x" * 9000)
        except OSError as error:
            raise OSError(28, "No space left on device", "checkpoint") from error
    elif fault == "damaged":
        newest = step // SAVE_EVERY * SAVE_EVERY
        if newest > SAVE_EVERY:
            (folder / f"checkpoint-{newest}.pt").write_text("{")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
