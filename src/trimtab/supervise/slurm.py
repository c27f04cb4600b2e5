"""A supervisor inside a SLURM job: what the job is, and how it comes back.

The supervisor is the batch process (`exec trimtab supervise … -- srun …`), so SLURM's warning
before the time limit (`--signal=B:TERM@120`) reaches it: the command gets SIGTERM and time to
save, and then the job is put back into the queue, or the next one of a chain is submitted. A host
that must be left out and cannot be spared inside the allocation is excluded on the way.

SLURM does the work; this module decides and tells it. `scontrol`, `sbatch` and the environment are
the only doors.
"""

import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from trimtab.chronicle.journal import Event, append_once, read_journal
from trimtab.errors import ChronicleError, ConfigError

__all__ = [
    "COME_BACK",
    "ComeBack",
    "SlurmJob",
    "come_back",
    "expand_hosts",
    "is_requeued",
    "next_move",
    "signal_steps",
    "srun_status",
]

ComeBack = Literal["never", "requeue", "chain"]
COME_BACK: Final = ("never", "requeue", "chain")
_MOST_WITHOUT_STEP = 3
"""Times a job comes back without a new step before it stays away. Ours, as for restarts."""
_COMMAND_S = 60.0
_MOST_HOSTS = 100_000
_HAD_NO_ROOM = re.compile(
    r"node configuration is not available|More processors requested|Unable to create step"
    r"|Hostlist is empty|Requested nodes are busy|Invalid node name"
    r"|node count specification invalid",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """The job that this process runs in."""

    job_id: str
    hosts: tuple[str, ...]
    restart_count: int
    """How often it was requeued."""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> "SlurmJob | None":
        """Return the job; None outside of one.

        Example:
            >>> SlurmJob.of_environment({"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]"})
            SlurmJob(job_id='77', hosts=('n1', 'n2'), restart_count=0)
        """
        job_id = environment.get("SLURM_JOB_ID", "")
        if not re.fullmatch(r"\d{1,12}(?:_\d{1,9})?", job_id):
            return None
        count = environment.get("SLURM_RESTART_COUNT", "0")
        return cls(
            job_id=job_id,
            hosts=expand_hosts(environment.get("SLURM_JOB_NODELIST", "")),
            restart_count=int(count) if count.isdecimal() and len(count) < 10 else 0,
        )


def is_requeued(environment: Mapping[str, str]) -> bool:
    """Whether this job ran before: its first start goes on from a checkpoint."""
    job = SlurmJob.of_environment(environment)
    chained = environment.get("TRIMTAB_CHAINED_FROM", "")
    return job is not None and (job.restart_count > 0 or bool(chained))


def expand_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list as SLURM writes it.

    Raises:
        ConfigError: It names more than 100,000 hosts, or is no such list.

    Example:
        >>> expand_hosts("n[08-10,12],gpu7")
        ('n08', 'n09', 'n10', 'n12', 'gpu7')
    """
    found: list[str] = []
    for name, inside, tail in re.findall(r"([^,\[\]\s]*)(?:\[([^\]]*)\])?([^,\[\]\s]*)", text):
        if not inside:
            found += [name + tail] if name + tail else []
            continue
        for part in inside.split(","):
            first, _, last = part.partition("-")
            last = last or first
            if not (first.isdecimal() and last.isdecimal() and len(last) < 10):
                raise ConfigError(f"{text!r} is no list of hosts; expected such as n[1-3,7],m4")
            if int(last) - int(first) + len(found) >= _MOST_HOSTS:
                raise ConfigError(f"{text!r} names more than {_MOST_HOSTS} hosts")
            width = len(first)
            found += [f"{name}{i:0{width}d}{tail}" for i in range(int(first), int(last) + 1)]
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Move:
    """What to do with the job when the supervisor is done."""

    comes_back: bool
    why: str
    exclude: tuple[str, ...] = ()
    """Hosts to leave out."""
    position: float = 0.0
    """The highest step reached."""


def next_move(events: Sequence[Event], status: int, *, cancelled: bool) -> Move:
    """Return whether a job should come back, from the supervisor's journal.

    It does where SLURM ended it in the midst of training (SIGTERM: time limit, preemption), and
    where the host that must be left out was needed. What no start heals stays away, and so does
    what made no new step in three comings.

    Args:
        events: Of the journal, to the end of this job.
        status: That the supervisor ends with.
        cancelled: Whether a person cancelled the job.
    """
    reached = [e.data.get("last_step") for e in events]
    position = max((float(s) for s in reached if isinstance(s, int | float)), default=0.0)
    last = next((e for e in reversed(events) if e.event in ("end", "gave-up", "restart")), None)
    if status == 0:
        return Move(comes_back=False, why="the command is done", position=position)
    if cancelled:
        return Move(comes_back=False, why="the job was cancelled", position=position)
    came = [e.data.get("position") for e in events if e.event == "note" and e.data.get("came_back")]
    if came[-_MOST_WITHOUT_STEP:] == [position] * _MOST_WITHOUT_STEP:
        why = f"{_MOST_WITHOUT_STEP} times in the queue again without a new step"
        return Move(comes_back=False, why=why, position=position)
    if last is not None and last.event == "end":  # a signal ended it: the status is not 0
        return Move(comes_back=True, why="SLURM ended it before it was done", position=position)
    if last is not None and last.event == "gave-up":
        excluded = last.data.get("excluded")
        hosts = tuple(map(str, excluded)) if isinstance(excluded, list) else ()
        line = f"{last.data.get('line')} {last.data.get('why')}"
        if hosts and (last.data.get("who") == "node" or _HAD_NO_ROOM.search(line)):
            why = f"{', '.join(hosts)} left out, and too few hosts are left in this allocation"
            return Move(comes_back=True, why=why, exclude=hosts, position=position)
    return Move(comes_back=False, why="no start would heal it", position=position)


def come_back(how: ComeBack, folder: Path, status: int, environment: Mapping[str, str]) -> str:
    """Put the job of this process back into the queue where that helps, and say what was done.

    Args:
        how: `requeue` the same job, or submit the next of a `chain`; `never` does nothing.
        folder: The supervisor's, with its journal.
        status: That the supervisor ends with.
        environment: Of this process.

    Returns:
        One line for a person; empty where this is no SLURM job or nothing was asked for.

    A scheduler that refuses is told in that line: the exit status stays that of the command.
    """
    job = SlurmJob.of_environment(environment)
    if how == "never" or job is None:
        return ""
    journal = folder / "journal.jsonl"
    try:
        events = read_journal(journal)[0]
    except ChronicleError as error:
        return f"SLURM job {job.job_id} stays away: {error}"
    move = next_move(events, status, cancelled=_is_cancelled(job))
    if not move.comes_back:
        return f"SLURM job {job.job_id} stays away: {move.why}"
    text = f"SLURM job {job.job_id} comes back ({how}): {move.why}"
    try:
        # First: SLURM ends this process when it takes the job back.
        _note_return(journal, move, text)
    except ChronicleError as error:
        text += f"; {error}"
    # SLURM ends a job that it takes back by SIGTERM, and this process is part of it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    trouble = _carry_out(how, job, move)
    return f"SLURM job {job.job_id} could not come back: {trouble}" if trouble else text


def _carry_out(how: ComeBack, job: SlurmJob, move: Move) -> str:
    """Tell SLURM; return what it refused, empty where it did it."""
    if how == "chain":
        fields = _fields(job)
        script = fields.get("Command", "")
        if not script or script == "(null)":
            return "it has no script; submit it with sbatch FILE"
        argv = ["sbatch", f"--dependency=afterany:{job.job_id}"]
        argv += [f"--export=ALL,TRIMTAB_CHAINED_FROM={job.job_id}"]
        if move.exclude:
            argv.append(f"--exclude={','.join(move.exclude)}")
        return _tell([*argv, *script.split()])
    trouble = _tell(["scontrol", "requeue", job.job_id])
    if move.exclude and not trouble:
        # A running job may not be changed, so this comes second. Were this process gone before it,
        # the job would come back with the host, and leave it out again: no hold can stay behind.
        before = _fields(job).get("ExcNodeList", "(null)")
        hosts = [*expand_hosts("" if before == "(null)" else before), *move.exclude]
        names = ",".join(dict.fromkeys(hosts))
        trouble = _tell(["scontrol", "update", f"JobId={job.job_id}", f"ExcNodeList={names}"])
    return trouble


def _note_return(journal: Path, move: Move, text: str) -> None:
    append_once(
        journal,
        "note",
        attempt="0.0",
        step=int(move.position),
        author="supervisor",
        text=text,
        came_back=True,
        position=move.position,
    )


_LOST_NODE = re.compile(
    r"^srun: error: Node failure on |^slurmstepd-\S+: error: \*\*\* \S+ \S+ ON \S+ CANCELLED AT"
    r" \S+ DUE TO NODE FAILURE"
)


def srun_status(code: int | None, lines: Sequence[str]) -> int | None:
    """Return the exit code of a command; 1 for srun's 0 after a node failed.

    srun of SLURM 22.05 ends with status 0 where the controller takes a node down under it.

    Args:
        code: As `subprocess` gives it.
        lines: The last lines of the output.
    """
    return 1 if code == 0 and any(_LOST_NODE.match(line) for line in lines[-20:]) else code


def signal_steps(argv: Sequence[str], signum: int, environment: Mapping[str, str]) -> bool:
    """Send a signal to the tasks of a command that srun runs, and tell whether that was done.

    srun itself answers SIGTERM by killing its tasks at once: they would not save.

    Args:
        argv: The supervised command.
        signum: What the supervisor was sent.
        environment: Of this process.
    """
    job = SlurmJob.of_environment(environment)
    if job is None or Path(argv[0]).name != "srun":
        return False
    # Without --batch and --full a signal goes to the steps, and not to this batch process.
    return not _tell(["scancel", f"--signal={signum}", job.job_id])


def _is_cancelled(job: SlurmJob) -> bool:
    return _fields(job).get("JobState", "RUNNING") in ("CANCELLED", "COMPLETED", "FAILED")


def _fields(job: SlurmJob) -> dict[str, str]:
    """Return what scontrol says of the job."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "job", "-o", job.job_id],
            capture_output=True,
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    text = done.stdout.decode("utf-8", "replace")
    return dict(re.findall(r"(\w+)=(\S+)", text))


def _tell(argv: Sequence[str]) -> str:
    """Run a command of SLURM; return what it complains about, empty where it did it."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_COMMAND_S, check=False)
    except FileNotFoundError:
        return f"there is no {argv[0]} here"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{argv[0]}: {error}"
    said = done.stderr.decode("utf-8", "replace").strip()
    return (said or f"{argv[0]} ended with status {done.returncode}") if done.returncode else ""
