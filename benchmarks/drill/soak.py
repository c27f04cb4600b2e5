"""A long run in short: a small job with a hundred random faults, whose end must be as without them.

The job trains a linear model with numpy, so that a checkpoint that was not loaded whole, a step
that was trained twice or left out shows in the last bit of the weights.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from trimtab.chronicle.journal import read_journal
from trimtab.errors import ChronicleError
from trimtab.supervise.processes import TOKEN_NAME, terminate

__all__ = ["SOAK_FAULTS", "Soaked", "soak", "soak_text"]

JOB = Path(__file__).with_name("soak_job.py")
SOAK_FAULTS = ("kill", "stop", "wait", "network", "disk", "damaged", "abort", "supervisor")
"""What happens; `supervisor`: the supervisor itself is killed with SIGKILL and started again."""
_SAVE_EVERY = 10
_STRIDE = 15
"""Mean distance of two faults, steps."""
_POLICY = """\
[supervise]
first_backoff_s = 0.05
look_every_s = 0.1
judge_every_s = 0
hang_after_s = 1.5
stop_grace_s = 1.0
"""


@dataclass(frozen=True, kw_only=True)
class Soaked:
    """What became of the run."""

    seed: int
    planted: dict[str, int]
    """Faults by name."""
    happened: int
    restarts: int
    supervisors: int
    """Starts of the supervisor."""
    finished: bool
    num_steps: int
    trained: int
    """Steps executed; more than `num_steps` by what was trained again."""
    longest_loss: int
    """Most steps trained again after one fault."""
    loss: float | None
    clean_loss: float
    same_bits: bool
    """Whether the weights equal those of the run without faults, bit for bit."""
    twice: bool
    """Whether two commands ran at once."""
    said: str
    """What the supervisor said last, where the run did not finish."""
    took_s: float


def soak(num_faults: int, *, seed: int, limit_s: float = 1800.0) -> Soaked:
    """Run a job with random faults under `trimtab supervise`.

    Args:
        num_faults: How many.
        seed: Of their kinds and places.
        limit_s: A run that takes longer is ended, and did not finish.

    Cost: about 3 s a fault on two cores.
    """
    chance = random.Random(seed)
    steps = sorted(chance.sample(range(12, 12 + _STRIDE * num_faults), num_faults))
    plan = {step: chance.choice(SOAK_FAULTS) for step in steps}
    num_steps = steps[-1] + 20
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as root:
        clean, job = Path(root) / "clean", Path(root) / "job"
        for folder in (clean, job):
            folder.mkdir()
        command = [sys.executable, str(JOB)]
        subprocess.run(
            [*command, str(clean), str(num_steps), "0"], check=True, stdout=subprocess.DEVNULL
        )
        (job / "plan.json").write_text(json.dumps(plan))
        (Path(root) / "policy.toml").write_text(_POLICY)
        began = time.monotonic()
        starts, status = _supervised(Path(root), [*command, str(job), str(num_steps)], limit_s)
        return _told(Path(root), seed, plan, num_steps, starts, status, time.monotonic() - began)


def _supervised(root: Path, command: list[str], limit_s: float) -> tuple[int, int | None]:
    """Start the supervisor as often as it is killed; return how often, and its last status."""
    own = [sys.executable, "-m", "trimtab", "supervise", "--run", str(root / "run")]
    own += ["--policy", str(root / "policy.toml"), "--checkpoints", str(root / "job"), "--"]
    deadline = time.monotonic() + limit_s
    starts = 0
    token = f"soak-{os.getpid()}"
    with (root / "output").open("wb") as file:
        try:
            while time.monotonic() < deadline:
                starts += 1
                environment = {**os.environ, TOKEN_NAME: token}
                process = subprocess.Popen(
                    [*own, *command], stdout=file, stderr=file, env=environment
                )
                (root / "job" / "supervisor").write_text(str(process.pid))
                try:
                    status = process.wait(max(deadline - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    process.terminate()
                    process.wait(30)
                    break
                if status != -9:
                    return starts, status
            return starts, None
        finally:
            terminate(token, 0, grace_s=1.0)


def _told(
    root: Path,
    seed: int,
    plan: dict[int, str],
    num_steps: int,
    starts: int,
    status: int | None,
    took_s: float,
) -> Soaked:
    job = root / "job"
    steps = [int(line) for line in (job / "steps").read_text().split()]
    back = [steps[i - 1] - steps[i] + 1 for i in range(1, len(steps)) if steps[i] <= steps[i - 1]]
    ends = [folder / "end.json" for folder in (root / "clean", job)]
    clean, own = (json.loads(p.read_text()) if p.exists() else {} for p in ends)
    try:
        events = read_journal(root / "run" / "journal.jsonl")[0]
    except ChronicleError:
        events = ()
    return Soaked(
        seed=seed,
        planted=dict(sorted(Counter(plan.values()).items())),
        happened=len(list(job.glob("happened-*"))),
        restarts=sum(e.event == "restart" for e in events),
        supervisors=starts,
        finished=status == 0 and bool(own),
        num_steps=num_steps,
        trained=len(steps),
        longest_loss=max(back, default=0),
        loss=own.get("loss"),
        clean_loss=clean["loss"],
        same_bits=own == clean,
        twice=(job / "twice").exists(),
        said="" if status == 0 else _said(root / "output"),
        took_s=took_s,
    )


def _said(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(max(output.stat().st_size - 20_000, 0))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join([line for line in lines if line.startswith(("trimtab", "  "))][-8:])


def soak_text(found: Soaked) -> str:
    """Return what a person reads."""
    planted = ", ".join(f"{count} {name}" for name, count in found.planted.items())
    share = found.num_steps / max(found.trained, 1)
    end = "finished" if found.finished else "DID NOT FINISH"
    loss = "–" if found.loss is None else f"{found.loss:.17g}"
    same = "equal in every bit to" if found.same_bits else "DIFFERS from"
    return "\n".join(
        (
            f"seed {found.seed} · {found.happened} of {sum(found.planted.values())} faults"
            f" happened · {end} in {found.took_s:.0f} s",
            f"  faults: {planted}",
            f"  final loss {loss}, {same} the run without faults ({found.clean_loss:.17g})",
            f"  {found.restarts} restarts of the job, {found.supervisors} starts of the"
            f" supervisor, two jobs at once: {'YES' if found.twice else 'never'}",
            f"  {found.num_steps} steps, {found.trained} trained ({share:.1%} were needed); most"
            f" trained again after one fault: {found.longest_loss}",
            *(f"  {line}" for line in found.said.splitlines()),
        )
    )
