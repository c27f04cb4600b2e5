"""Run the drill: each fault under each launcher, with and without the supervisor."""

import importlib.util
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from benchmarks.drill.faults import DrillFault
from trimtab.chronicle.journal import read_journal
from trimtab.errors import ChronicleError
from trimtab.supervise.processes import TOKEN_NAME, terminate
from trimtab.version import __version__

__all__ = ["LAUNCHERS", "Drilled", "drill", "drill_text", "versions"]

JOB = Path(__file__).with_name("job.py")
_RANKS = (
    *("--nnodes", "1", "--nproc-per-node", "2"),
    *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"),
)
_TORCHRUN = ("-m", "torch.distributed.run", *_RANKS)
_NVRX = ("-m", "nvidia_resiliency_ext.fault_tolerance.launcher", *_RANKS)

LAUNCHERS = ("python", "torchrun", "torchrun alone", "nvrx alone")
"""The first two run under `trimtab supervise`; the others are torchrun's agent and the launcher of
NVIDIA's resiliency extension, each with 3 restarts, as the job calls nothing of either."""

_POLICY = """\
[supervise]
first_backoff_s = 0.2
look_every_s = 0.2
judge_every_s = 0.5
[policy]
mode = "act"
"""


@dataclass(frozen=True, kw_only=True)
class Drilled:
    """What became of one fault."""

    fault: str
    launcher: str
    right: bool
    """Whether the run reached its end, or was not started again, as the fault asks for."""
    detected_s: float | None
    """From the fault to the first line of the journal about it; None: nobody said anything."""
    recovered_s: float | None
    """From the fault to the first step after it; None: there was none."""
    lost_steps: int | None
    """Steps that were trained again; None: it did not go on."""
    step_s: float
    """Median time of a step before the fault."""
    how: str
    """The last event of the journal, or the exit status."""


def drill(
    faults: Sequence[DrillFault], launchers: Sequence[str], *, limit_s: float = 60.0
) -> list[Drilled]:
    """Plant each fault under each launcher.

    Args:
        faults: What to plant.
        launchers: Some of `LAUNCHERS`.
        limit_s: A run that goes on longer is ended, and counts as not answered.

    Cost: 10 to 60 s each.
    """
    found = []
    for fault in faults:
        for launcher in launchers:
            with tempfile.TemporaryDirectory(prefix="drill-", ignore_cleanup_errors=True) as root:
                found.append(_one(fault, launcher, Path(root), limit_s))
            sys.stderr.write(f"{fault.name} · {launcher}: {found[-1].how}\n")
    return found


def _one(fault: DrillFault, launcher: str, root: Path, limit_s: float) -> Drilled:
    folder, run, policy = root / "job", root / "run", root / "policy.toml"
    folder.mkdir()
    policy.write_text(_POLICY)
    job = [str(JOB), str(folder), "--fault", fault.name, "--lr", "1e-3"]
    own = [sys.executable, "-m", "trimtab", "supervise", "--run", str(run)]
    own += ["--policy", str(policy), "--checkpoints", str(folder), "--", sys.executable]
    argv = {
        "python": [*own, *job],
        "torchrun": [*own, *_TORCHRUN, *job],
        "torchrun alone": [sys.executable, *_TORCHRUN, "--max-restarts", "3", *job],
        "nvrx alone": [sys.executable, *_NVRX, "--max-restarts", "3", *job],
    }[launcher]
    status = _run(argv, root / "output", limit_s)
    return _told(fault, launcher, folder, run, status)


def _run(argv: Sequence[str], output: Path, limit_s: float) -> int | None:
    """Return the exit status; None where the time was up."""
    token = secrets.token_hex(8)
    with output.open("wb") as file:
        environment = {**os.environ, TOKEN_NAME: token, "GLOO_SOCKET_IFNAME": "lo"}
        process = subprocess.Popen(argv, stdout=file, stderr=file, env=environment)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # a supervisor hands it on and waits for its command
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return None
        finally:
            terminate(token, process.pid, grace_s=1.0)


def _told(fault: DrillFault, launcher: str, folder: Path, run: Path, status: int | None) -> Drilled:
    log = folder / "steps"
    lines = log.read_text().splitlines() if log.exists() else ["0.0 0"]  # it never began
    steps = [(float(line.split()[0]), int(line.split()[1])) for line in lines]
    at = _fault_time(folder, steps)
    before = [(t, s) for t, s in steps if t <= at]
    back = next((i for i in range(1, len(steps)) if steps[i][1] <= steps[i - 1][1]), None)
    lost = None if back is None else steps[back - 1][1] - steps[back][1] + 1
    starts = 1 + sum(steps[i][1] <= steps[i - 1][1] for i in range(1, len(steps)))
    done = (folder / "done").exists() and status == 0
    stopped = starts == 1 and status not in (0, None)
    try:
        events = read_journal(run / "journal.jsonl")[0]
    except ChronicleError:
        events = ()
    about = [e for e in events if e.event in ("hang", "decision", "restart", "gave-up")]
    told = [datetime.fromisoformat(e.t).timestamp() - at for e in about]
    last = f"{about[-1].event}: {about[-1].data.get('class', '')}" if about else "no event"
    return Drilled(
        fault=fault.name,
        launcher=launcher,
        right=done if fault.right == "heals" else stopped,
        detected_s=told[0] if told else None,
        recovered_s=None if back is None else steps[back][0] - at,
        lost_steps=lost,
        step_s=statistics.median([b[0] - a[0] for a, b in pairwise(before)] or [0.0]),
        how=f"{last}, status {'none: time is up' if status is None else status}",
    )


def _fault_time(folder: Path, steps: Sequence[tuple[float, int]]) -> float:
    """Return when the fault happened; one in the numbers shows in the step at which it begins."""
    try:
        return float((folder / "happened").read_text().split()[0])
    except OSError:
        return steps[-1][0]


def drill_text(found: Sequence[Drilled], *, began: float) -> str:
    """Return the table of the drill, with versions and date."""
    lines = [_line("fault", "launcher", "right", "detected s", "recovered s", "lost", "end")]
    lines += [
        _line(
            d.fault,
            d.launcher,
            "yes" if d.right else "NO",
            _s(d.detected_s),
            _s(d.recovered_s),
            "–" if d.lost_steps is None else str(d.lost_steps),
            d.how,
        )
        for d in found
    ]
    right = {name: [d.right for d in found if d.launcher == name] for name in LAUNCHERS}
    counts = " · ".join(f"{n}: {sum(r)} of {len(r)} right" for n, r in right.items() if r)
    took = time.time() - began
    packages = ("torch", *["nvidia-resiliency-ext"] * bool(right["nvrx alone"]))
    return "\n".join(lines) + f"\n{counts} · {took:.0f} s\n{versions(*packages)}"


def versions(*packages: str) -> str:
    """Return what a drill was run with, and when."""
    there = (n for n in packages if importlib.util.find_spec(n.replace("-", "_")) is not None)
    installed = [f"{n} {version(n)}" for n in there]
    today = datetime.now(UTC).date().isoformat()
    python = platform.python_version()
    return " · ".join([f"trimtab {__version__}", f"Python {python}", *installed, today])


def _s(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f}"


def _line(*cells: str) -> str:
    widths = (9, 15, 6, 11, 12, 6)
    return "".join(c.ljust(w) for c, w in zip(cells, widths, strict=False)) + cells[-1]
