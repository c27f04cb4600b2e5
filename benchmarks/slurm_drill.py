"""The drill under a real SLURM: faults in a supervised job that `sbatch` started.

Needs a running SLURM on this machine (`sinfo`); nothing here installs or configures one. The job is
that of the drill, one process per host of the allocation, host 0 logs and saves.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from trimtab.chronicle.journal import Event, read_journal
from trimtab.errors import ChronicleError

__all__ = ["SLURM_FAULTS", "SlurmDrilled", "SlurmFault", "has_slurm", "slurm_drill", "slurm_text"]

JOB = Path(__file__).parent / "drill" / "job.py"
_SETTLED_S = 10.0
"""Until what is left of a job on its host is gone; SLURM itself waits two minutes. A job that is
launched before that fails there, and is held."""
_POLICY = """\
[supervise]
first_backoff_s = 0.2
look_every_s = 0.2
judge_every_s = 0.5
stop_grace_s = 5.0
[policy]
mode = "act"
"""


@dataclass(frozen=True, kw_only=True)
class SlurmFault:
    """A fault, and the right answer to it."""

    name: str
    what: str
    heals: bool = True
    steps: int = 400
    options: tuple[str, ...] = ()
    """Of sbatch."""
    planted: str = ""
    """The fault of the job; empty: it comes from SLURM."""
    num_hosts: int = 1
    returns: bool = False
    """Whether the job must come back through the queue."""


SLURM_FAULTS = (
    SlurmFault(name="none", what="nothing happens"),
    SlurmFault(name="kill", what="SIGKILL to the task", planted="kill"),
    SlurmFault(name="stop", what="SIGSTOP to the task", planted="stop"),
    SlurmFault(name="network", what="ConnectionResetError, once", planted="network"),
    SlurmFault(name="damaged", what="newest checkpoint cut off, then SIGKILL", planted="damaged"),
    SlurmFault(name="nan", what="loss is NaN at the full rate", planted="nan"),
    SlurmFault(name="oom", what="out of GPU memory", planted="oom", heals=False),
    SlurmFault(name="code", what="KeyError that never heals", planted="code", heals=False),
    SlurmFault(
        name="node",
        what="uncorrectable ECC on one of two hosts, with a spare in the allocation",
        planted="node",
        num_hosts=2,
    ),
    SlurmFault(
        name="no-spare",
        what="uncorrectable ECC on the only host of the allocation",
        planted="node",
        returns=True,
    ),
    SlurmFault(name="term", what="SIGTERM to the batch process, as by --signal", returns=True),
    SlurmFault(name="gone", what="the host goes down", returns=True),
    SlurmFault(
        name="limit",
        what="time limit of 1 minute, --signal=B:TERM@20",
        steps=3600,
        options=("--time=1", "--signal=B:TERM@20"),
        returns=True,
    ),
)
"""`limit` takes minutes: SLURM counts them."""


@dataclass(frozen=True, kw_only=True)
class SlurmDrilled:
    """What became of a fault."""

    fault: str
    right: bool
    detected_s: float | None
    """From the fault to the first line of the journal about it."""
    recovered_s: float | None
    """From the last step before the fault to the first after it."""
    lost_steps: int | None
    starts: int
    returns: int
    """Times the job came back through the queue."""
    how: str


def has_slurm() -> bool:
    """Whether a SLURM answers on this machine with a host that is idle."""
    if shutil.which("sbatch") is None or shutil.which("scontrol") is None:
        return False
    return "idle" in _slurm("sinfo", "-h", "-o", "%T", limit_s=10.0)


def _slurm(*argv: str, limit_s: float = 30.0) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def slurm_drill(faults: Sequence[SlurmFault], *, limit_s: float = 240.0) -> list[SlurmDrilled]:
    """Submit a job for each fault and wait for its end.

    Cost: 15 to 60 s each; those that come back through the queue take as long as SLURM lets them
    wait, two minutes by default.
    """
    found = []
    for fault in faults:
        with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as root:
            found.append(_one(fault, Path(root), limit_s))
        sys.stderr.write(f"{fault.name}: {found[-1].how}\n")
    return found


def _one(fault: SlurmFault, root: Path, limit_s: float) -> SlurmDrilled:
    folder, run = root / "job", root / "run"
    folder.mkdir()
    (root / "policy.toml").write_text(_POLICY)
    srun = ["srun", "--kill-on-bad-exit=1", "--unbuffered", "-N", str(max(fault.num_hosts - 1, 1))]
    job = [sys.executable, str(JOB), str(folder), "--steps", str(fault.steps), "--lr", "1e-3"]
    if fault.planted == "node":
        job = [sys.executable, "-c", _NODE_JOB, str(JOB), *job[2:]]
    elif fault.planted:
        job += ["--fault", fault.planted]
    own = [sys.executable, "-m", "trimtab", "supervise", "--run", str(run), "--slurm", "requeue"]
    own += ["--policy", str(root / "policy.toml"), "--checkpoints", str(folder), "--", *srun, *job]
    script = root / "job.sh"
    script.write_text("#!/bin/bash\nexec " + " ".join(map(_quoted, own)) + "\n")
    argv = ["sbatch", "--parsable", "--requeue", "--open-mode=append", "-N", str(fault.num_hosts)]
    argv += ["-o", str(root / "output"), *fault.options, str(script)]
    job_id = _slurm(*argv).strip()
    if not job_id.isdecimal():
        return _told(fault, folder, run, "sbatch refused", None)
    try:
        planted_at = None
        if fault.name in ("term", "gone"):
            planted_at = _plant(fault.name, job_id, folder)
        state = _await(job_id, limit_s, hurried=fault.returns)
    finally:
        _slurm("scancel", job_id)
        for host in _slurm("sinfo", "-h", "-N", "-o", "%N").split():
            _slurm("scontrol", "update", f"NodeName={host}", "State=RESUME")
        _await_gone(job_id)
    return _told(fault, folder, run, state, planted_at)


_NODE_JOB = """\
import os, runpy, sys
from pathlib import Path
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
import job
host = os.environ.get("SLURMD_NODENAME", "?")
happen = job._happen
def fails(name, folder, step):
    if step != 210:
        return
    bad = folder / "bad"
    if not bad.exists():
        bad.write_text(host)
        (folder / "happened").write_text(f"{job.time.time():.4f} {step}")
    if bad.read_text() == host:
        print(f"{host} kernel: NVRM: Xid (PCI:0000:3b:00): 95, pid=1, Uncontained", flush=True)
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
job._happen = fails
job.main()
"""
"""The drill's job on hosts of which one is bad: always that on which the fault came first."""


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _plant(name: str, job_id: str, folder: Path) -> float | None:
    """Wait until the job trains, then do what SLURM or a host would do."""
    deadline = time.monotonic() + 60
    while not (folder / "checkpoint-100.pt").exists():
        if time.monotonic() > deadline:
            return None
        time.sleep(0.1)
    now = time.time()
    if name == "term":
        _slurm("scancel", "--batch", "--signal=TERM", job_id)
    else:
        host = _slurm("squeue", "-h", "-j", job_id, "-o", "%N").strip()
        _slurm("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=drill")
    return now


def _await(job_id: str, limit_s: float, *, hurried: bool) -> str:
    """Wait for the end of the job and return its last state.

    SLURM lets a job that came back wait for two minutes; where `hurried` it may begin at once.
    """
    deadline = time.monotonic() + limit_s
    state, began = "", 0.0
    while time.monotonic() < deadline:
        text = _slurm("scontrol", "show", "job", "-o", job_id)
        words = dict(w.split("=", 1) for w in text.split() if "=" in w)
        state = words.get("JobState", "")
        if state in ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", ""):
            return state or "gone"
        waits = hurried and state == "PENDING" and words.get("Reason") == "BeginTime"
        began = (began or time.monotonic()) if waits else 0.0
        if waits and time.monotonic() - began > _SETTLED_S:
            _slurm("scontrol", "update", f"JobId={job_id}", "StartTime=now")
        time.sleep(0.5)
    return f"time is up, {state.lower()}"


def _await_gone(job_id: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _slurm("squeue", "-h", "-j", job_id).strip():
        time.sleep(0.3)


def _told(
    fault: SlurmFault, folder: Path, run: Path, state: str, planted_at: float | None
) -> SlurmDrilled:
    log = folder / "steps"
    lines = log.read_text().splitlines() if log.exists() else ["0.0 0"]
    steps = [(float(a), int(b)) for a, b in (line.split() for line in lines)]
    events: tuple[Event, ...] = ()
    with contextlib.suppress(ChronicleError):
        events = read_journal(run / "journal.jsonl")[0]
    back = [i for i in range(1, len(steps)) if steps[i][1] <= steps[i - 1][1]]
    gaps = [(steps[i][0] - steps[i - 1][0], i) for i in range(1, len(steps))]
    at = planted_at
    if at is None and (folder / "happened").exists():
        at = float((folder / "happened").read_text().split()[0])
    about = [e for e in events if e.event in ("hang", "decision", "restart", "gave-up", "end")]
    told = [datetime.fromisoformat(e.t).timestamp() for e in about]
    after = [t - at for t in told if at is not None and t >= at]
    starts = sum(e.event == "start" for e in events) + sum(e.event == "restart" for e in events)
    returns = sum(e.event == "note" and bool(e.data.get("came_back")) for e in events)
    came = returns > 0 or (fault.name == "gone" and sum(e.event == "start" for e in events) > 1)
    done = (folder / "done").exists() and state == "COMPLETED"
    right = done and came == fault.returns if fault.heals else not done and starts == 1
    last = about[-1] if about else None
    what = "no event" if last is None else f"{last.event}: {last.data.get('class', '')}"
    return SlurmDrilled(
        fault=fault.name,
        right=right,
        detected_s=min(after) if after else None,
        recovered_s=max(gaps)[0] if back and gaps else None,
        lost_steps=steps[back[0] - 1][1] - steps[back[0]][1] + 1 if back else None,
        starts=starts,
        returns=returns,
        how=f"{what}, {state.lower()}",
    )


def slurm_text(found: Sequence[SlurmDrilled]) -> str:
    """Return the table, with version and date."""
    rows = [("fault", "right", "detected s", "recovered s", "lost", "starts", "queued", "end")]
    for d in found:
        rows.append(
            (
                d.fault,
                "yes" if d.right else "NO",
                "–" if d.detected_s is None else f"{d.detected_s:.1f}",
                "–" if d.recovered_s is None else f"{d.recovered_s:.1f}",
                "–" if d.lost_steps is None else str(d.lost_steps),
                str(d.starts),
                str(d.returns),
                d.how,
            )
        )
    widths = (10, 6, 11, 12, 6, 7, 7, 0)
    lines = ["".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    version = _slurm("sinfo", "--version").strip() or "no slurm"
    right = sum(d.right for d in found)
    lines.append(f"{right} of {len(found)} right · {version} · {datetime.now(UTC):%Y-%m-%d}")
    return "\n".join(lines)
