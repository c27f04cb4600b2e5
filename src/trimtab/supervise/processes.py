"""The processes of a supervised command: started, found again, ended, none left behind.

The command runs in a session of its own, and its process waits for a word before it becomes the
command (`gate`): until then the supervisor has written down who it is. All that it starts carries a
token in its environment, so that workers in further sessions (torchrun's) are found, too, and also
by a supervisor that takes a run over from one that was killed; where the environment was dropped,
session and parents tell (`members`). The read ends of the output's pipes stay open in the command
itself: where the supervisor is killed, no write fails, and the next one opens them again.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import ConfigError
from trimtab.supervise import gate as gate_module
from trimtab.supervise.gate import PROCESS_NAME

__all__ = [
    "FOLDER_NAME",
    "TOKEN_NAME",
    "Child",
    "ChildId",
    "Found",
    "adopt",
    "become_subreaper",
    "find_command",
    "is_alive",
    "is_stopped",
    "kill_session",
    "members",
    "name_of",
    "reap",
    "spawn",
    "start_ticks",
    "terminate",
    "worked_s",
    "written_bytes",
]

TOKEN_NAME = "TRIMTAB_SUPERVISED"
"""Environment variable by which the processes of a command are found."""
FOLDER_NAME = "TRIMTAB_SUPERVISE_DIR"
"""Environment variable that names the folder of the supervisor."""
_PIPE_BYTES = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class ChildId:
    """What it takes to find a command again."""

    pid: int
    started: str
    """Start of the process by the kernel's count: a process id is used again."""
    token: str
    pipes: tuple[int, int]
    """Descriptors of the read ends of stdout and stderr, as they are numbered in the command."""


@dataclass(frozen=True, kw_only=True)
class Child:
    """A command that runs."""

    id: ChildId
    streams: tuple[int, int]
    """Our read ends of its stdout and stderr."""


def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    token: str,
    on_end: Callable[[int | None], None],
    remember: Callable[[ChildId], None],
) -> Child:
    """Start a command; `on_end` is called from another thread with its exit code.

    Args:
        argv: The command.
        environment: Its environment.
        token: Marks its processes.
        on_end: Takes the exit code as `subprocess` gives it.
        remember: Is called with the process while it waits for the word to begin. Where this
            process is killed meanwhile, the command never runs.

    Raises:
        FileNotFoundError: There is no such command.
        PermissionError: It may not be run.
        OSError: It cannot be started for another reason.
    """
    outputs = [os.pipe() for _ in range(2)]
    go, errors = os.pipe(), os.pipe()
    ids = (outputs[0][0], outputs[1][0])
    theirs = [outputs[0][1], outputs[1][1], go[0], errors[1]]
    ours = [*ids, go[1], errors[0]]
    try:
        for read_end in ids:
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(read_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        known = (*ids, os.getpid(), start_ticks(os.getpid()))
        gate = [sys.executable, "-I", "-S", str(Path(gate_module.__file__))]
        process = subprocess.Popen(
            [*gate, str(go[0]), str(errors[1]), *map(str, known), *argv],
            stdout=outputs[0][1],
            stderr=outputs[1][1],
            env={**environment, TOKEN_NAME: token},
            pass_fds=(*ids, go[0], errors[1]),
            start_new_session=True,
        )
    except BaseException:
        _close(ours)
        raise
    finally:
        _close(theirs)
    started = start_ticks(process.pid)
    child_id = ChildId(pid=process.pid, started=started, token=token, pipes=ids)
    try:
        remember(child_id)
        os.write(go[1], b"+")
        _close([go[1]])
        trouble = os.read(errors[0], 16)
        _close([errors[0]])
    except BaseException:
        process.kill()
        process.wait()
        raise
    if trouble:
        process.wait()
        _close(ids)
        code = int(trouble)
        raise OSError(code, os.strerror(code), argv[0])
    threading.Thread(target=lambda: on_end(process.wait()), daemon=True).start()
    return Child(id=child_id, streams=ids)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A command that runs, as its own process tells."""

    child: ChildId
    attempt: int
    supervisor: tuple[int, str]
    """Process that started it, and the start of that."""


def find_command(folder: Path) -> Found | None:
    """Return the command that a supervisor of a folder started and that lives; None: none is seen.

    Nothing on disk is needed: the command's own environment names folder, process and pipes. One
    that cleared its environment is found by what the supervisor wrote down alone.
    """
    place = str(folder.absolute())
    for pid, known in _environments():
        words = known.get(PROCESS_NAME, "").split()
        if known.get(FOLDER_NAME) != place or len(words) != 5 or words[0] != str(pid):
            continue
        started = start_ticks(pid)
        if not is_alive(pid, started):
            continue
        with contextlib.suppress(ValueError):
            token, attempt = known.get(TOKEN_NAME, ""), int(known.get("TRIMTAB_ATTEMPT", "1"))
            pipes = (int(words[1]), int(words[2]))
            child = ChildId(pid=pid, started=started, token=token, pipes=pipes)
            return Found(child=child, attempt=attempt, supervisor=(int(words[3]), words[4]))
    return None


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Yield what the environment of each process that may be read says of a supervisor."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry.name}/environ").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if b"TRIMTAB_" not in environment:
            yield int(entry.name), {}
            continue
        pairs = (e.partition(b"=") for e in environment.split(b"\0") if e.startswith(b"TRIMTAB_"))
        yield int(entry.name), {os.fsdecode(k): os.fsdecode(v) for k, _, v in pairs}


def adopt(child: ChildId, on_end: Callable[[int | None], None]) -> Child | None:
    """Take over a command that another supervisor started; None where its output is out of reach.

    Its exit code cannot be known: `on_end` is called with None.
    """
    opened: list[int] = []
    try:
        for number in child.pipes:
            opened.append(os.open(f"/proc/{child.pid}/fd/{number}", os.O_RDONLY))
        handle = os.pidfd_open(child.pid)
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        return None
    threading.Thread(target=_wait_for, args=(handle, on_end), daemon=True).start()
    return Child(id=child, streams=(opened[0], opened[1]))


def _wait_for(handle: int, on_end: Callable[[int | None], None]) -> None:
    select.select([handle], [], [])
    os.close(handle)
    on_end(None)


def become_subreaper() -> None:
    """Have orphans of the command handed to this process, so that it can end them; Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _is_subreaper() -> bool:
    answer = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def start_ticks(pid: int) -> str:
    """Return when a process was started, in ticks since boot; empty where it is gone."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def is_alive(pid: int, started: str) -> bool:
    """Tell whether that very process runs; one that ended and was not waited for does not."""
    fields = _stat(pid)
    return len(fields) > 19 and fields[19] == started and fields[0] not in "ZX"


def is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped by a signal and does nothing until it is continued."""
    return _stat(pid)[:1] == ["T"]


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name: the first is its state."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def members(token: str, main: int = 0) -> list[int]:
    """Return the processes of a command that live.

    A process is one of them by the token in its environment, by the session or the process group of
    the command, as an orphan that was handed to us, or as a descendant of any of these: `env -i`
    and `sudo` drop the environment, a daemon leaves its session, neither leaves all.

    Args:
        token: As given to `spawn`.
        main: Process of the command, which leads its session; 0 where it ended long ago, since the
            number may be another's by now.

    Cost: reads /proc once, about 20 ms on a host with a thousand processes.
    """
    own = os.getpid()
    stats = {pid: fields for pid, fields in _all_stats() if pid != own}
    found = {pid for pid, known in _environments() if known.get(TOKEN_NAME) == token}
    for pid, fields in stats.items():
        parent, group, session = map(int, fields[1:4])
        # A process that we started for ourselves stays in our session.
        orphaned = parent == own and session != os.getsid(0) and _is_subreaper()
        if orphaned or (main and main in (pid, group, session)):
            found.add(pid)
    while more := {p for p, f in stats.items() if int(f[1]) in found} - found:
        found |= more
    return sorted(pid for pid in found if pid in stats and stats[pid][0] not in "ZX")


def _all_stats() -> Iterator[tuple[int, list[str]]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and len(fields := _stat(int(entry.name))) > 19:
            yield int(entry.name), fields


def name_of(pid: int) -> str:
    """Return the name of a process; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def written_bytes(token_members: Sequence[int]) -> int:
    """Return how many bytes processes wrote so far, to files and pipes; 0 where not told."""
    total = 0
    for pid in token_members:
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{pid}/io").read_text("utf-8")
            total += int(text.split("wchar:")[1].split()[0])
    return total


def worked_s(pid: int) -> float:
    """Return how long threads of a process used a processor or stood in line for one, seconds.

    On a loaded machine what works gets little of a processor, so the wait for it counts. So does
    the work of children that ended: an evaluation may be many short processes. 0 where the process
    is gone, or the kernel keeps no such account.
    """
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for thread in os.scandir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # it has just ended
                text = Path(thread.path, "schedstat").read_text("utf-8")
                total += sum(map(int, text.split()[:2]))
    of_children = sum(map(int, _stat(pid)[13:15])) / os.sysconf("SC_CLK_TCK")
    return total / 1e9 + of_children


def terminate(token: str, main: int, *, grace_s: float) -> int:
    """End every process of a command: SIGTERM, then SIGKILL to what is left after the grace.

    A stopped process is continued, since it would not see the signal.

    Args:
        token: As given to `spawn`.
        main: Process of the command; 0 where it ended long ago.
        grace_s: Time between the two signals, seconds.

    Returns:
        How many processes had to be killed.

    Raises:
        ConfigError: Some live on, in a state in which no signal reaches them.
    """
    alive = members(token, main)
    for signum in (signal.SIGTERM, signal.SIGCONT):
        _send(alive, signum)
    deadline = time.monotonic() + grace_s
    while (alive := members(token, main)) and time.monotonic() < deadline:
        reap(main)
        time.sleep(_POLL_S)
    killed = len(alive)
    deadline = time.monotonic() + 10.0
    while alive and time.monotonic() < deadline:
        _send(alive, signal.SIGKILL)
        reap(main)
        time.sleep(_POLL_S)
        alive = members(token, main)
    reap(main)
    if alive:
        raise ConfigError(
            f"processes {', '.join(map(str, alive[:8]))} do not end on SIGKILL: they wait in the"
            " kernel, for a device or a file system; restart the host, or leave it out"
        )
    return killed


def kill_session(token: str, main: int) -> None:
    """Kill what a process of our own started, while the command runs: other orphans are its.

    Args:
        token: In the environment of that process, as for `spawn`.
        main: It led a session, and was not waited for, or just now.
    """
    for _ in range(3):  # what began between the look and the signal
        found = {pid for pid, known in _environments() if known.get(TOKEN_NAME) == token}
        found |= {pid for pid, f in _all_stats() if main in map(int, f[2:4]) and f[0] not in "ZX"}
        if not found:
            return
        _send(sorted(found), signal.SIGKILL)
        time.sleep(_POLL_S)
        reap(main)


def _send(pids: Sequence[int], signum: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signum)


def reap(main: int) -> None:
    """Wait for orphans of the command that were handed to us and ended.

    Args:
        main: The command's own process, which is waited for elsewhere.
    """
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text("utf-8")
    except OSError:
        return
    for pid in map(int, text.split()):
        if pid != main and (_stat(pid) or ["?"])[0] == "Z":
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
