"""The processes of a supervised command: started, found again, ended, none left behind.

The command runs in a session of its own. All that it starts carries a token in its environment, so
that workers in further sessions (torchrun's) are found, too, and also by a supervisor that takes a
run over from one that was killed. The read ends of the output's pipes stay open in the command
itself: where the supervisor is killed, no write fails, and the next one opens them again.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import ConfigError

__all__ = [
    "TOKEN_NAME",
    "Child",
    "ChildId",
    "adopt",
    "become_subreaper",
    "is_alive",
    "members",
    "reap",
    "spawn",
    "start_ticks",
    "terminate",
    "written_bytes",
]

TOKEN_NAME = "TRIMTAB_SUPERVISED"
"""Environment variable by which the processes of a command are found."""
_PIPE_BYTES = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36
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
) -> Child:
    """Start a command; `on_end` is called from another thread with its exit code.

    Raises:
        FileNotFoundError: There is no such command.
        PermissionError: It may not be run.
        OSError: It cannot be started for another reason.
    """
    pipes = [os.pipe() for _ in range(2)]
    try:
        for read_end, _ in pipes:
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(read_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        process = subprocess.Popen(
            list(argv),
            stdout=pipes[0][1],
            stderr=pipes[1][1],
            env={**environment, TOKEN_NAME: token},
            pass_fds=(pipes[0][0], pipes[1][0]),
            start_new_session=True,
        )
    except BaseException:
        for read_end, _ in pipes:
            os.close(read_end)
        raise
    finally:
        for _, write_end in pipes:
            os.close(write_end)
    threading.Thread(target=lambda: on_end(process.wait()), daemon=True).start()
    ids = (pipes[0][0], pipes[1][0])
    child_id = ChildId(pid=process.pid, started=start_ticks(process.pid), token=token, pipes=ids)
    return Child(id=child_id, streams=ids)


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


def start_ticks(pid: int) -> str:
    """Return when a process was started, in ticks since boot; empty where it is gone."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def is_alive(pid: int, started: str) -> bool:
    """Tell whether that very process runs; one that ended and was not waited for does not."""
    fields = _stat(pid)
    return len(fields) > 19 and fields[19] == started and fields[0] not in "ZX"


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name: the first is its state."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def members(token: str) -> list[int]:
    """Return the processes of a command that live, by the token in their environment.

    Cost: reads /proc once, about 20 ms on a host with a thousand processes.
    """
    wanted = f"{TOKEN_NAME}={token}".encode()
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry.name}/environ").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if wanted in environment.split(b"\0"):
            fields = _stat(int(entry.name))
            if fields and fields[0] not in "ZX":
                found.append(int(entry.name))
    return sorted(found)


def written_bytes(token_members: Sequence[int]) -> int:
    """Return how many bytes processes wrote so far, to files and pipes; 0 where not told."""
    total = 0
    for pid in token_members:
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{pid}/io").read_text("utf-8")
            total += int(text.split("wchar:")[1].split()[0])
    return total


def terminate(token: str, main: int, *, grace_s: float) -> int:
    """End every process of a command: SIGTERM, then SIGKILL to what is left after the grace.

    A stopped process is continued, since it would not see the signal.

    Returns:
        How many processes had to be killed.

    Raises:
        ConfigError: Some live on, in a state in which no signal reaches them.
    """
    alive = members(token)
    for signum in (signal.SIGTERM, signal.SIGCONT):
        _send(alive, signum)
    deadline = time.monotonic() + grace_s
    while (alive := members(token)) and time.monotonic() < deadline:
        reap(main)
        time.sleep(_POLL_S)
    killed = len(alive)
    deadline = time.monotonic() + 10.0
    while alive and time.monotonic() < deadline:
        _send(alive, signal.SIGKILL)
        reap(main)
        time.sleep(_POLL_S)
        alive = members(token)
    reap(main)
    if alive:
        raise ConfigError(
            f"processes {', '.join(map(str, alive[:8]))} do not end on SIGKILL: they wait in the"
            " kernel, for a device or a file system; restart the host, or leave it out"
        )
    return killed


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
