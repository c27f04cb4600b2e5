"""Where every process of a hung command stands, and which of them stands elsewhere."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Stack", "odd_ones", "take_stacks"]

_PY_SPY_S = 10.0
_ANSWER_S = 1.0
_MAX_PROCESSES = 64
_FRAMES = 12
_FAULTHANDLER = re.compile(r'^\s*File "([^"]+)", line (\d+) in (\S+)', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Where one process stands."""

    pid: int
    rank: int | None
    """`RANK` or `SLURM_PROCID` of its environment."""
    state: str
    """One letter as the kernel gives it: R runs, S sleeps, D waits in the kernel, T is stopped."""
    frames: tuple[str, ...] = ()
    """Innermost first; empty where neither py-spy nor a handler of the program told."""
    waits_in: str = ""
    """Function of the kernel that it waits in, where readable."""

    @property
    def place(self) -> str:
        """What processes at the same place share: the innermost frame without its line number."""
        if self.state == "T":
            return "stopped by a signal"
        inner = next(iter(self.frames), "") or self.waits_in
        return re.sub(r":\d+$", "", inner) or f"state {self.state}"

    @property
    def name(self) -> str:
        """The rank, or the process where it has none."""
        return f"rank {self.rank}" if self.rank is not None else f"process {self.pid}"


def take_stacks(pids: Sequence[int], printed: Callable[[], bytes]) -> tuple[Stack, ...]:
    """Return where processes stand.

    py-spy is used where it is installed. Else a process that handles SIGUSR1 is sent one: programs
    register `faulthandler` there, which prints the stacks to stderr. A process that does not handle
    the signal would be killed by it and is left alone.

    Args:
        pids: The processes; at most 64 are looked at.
        printed: Gives what the command printed so far.
    """
    found: list[Stack] = []
    for pid in list(pids)[:_MAX_PROCESSES]:
        state = _field(pid, 0)
        if not state or not (state == "T" or _is_python(pid)):
            continue
        frames = _by_py_spy(pid) or (() if state == "T" else _by_signal(pid, printed))
        stack = Stack(pid=pid, rank=_rank(pid), state=state, frames=frames, waits_in=_wchan(pid))
        found.append(stack)
    # Helper processes (data workers, the launcher) have no rank of their own.
    ranked = [s for s in found if s.rank is not None]
    per_rank = {s.rank: s for s in reversed(ranked)}
    stopped = tuple(s for s in found if s.rank is None and s.state == "T")
    return (*sorted(per_rank.values(), key=lambda s: s.rank or 0), *stopped) or tuple(found)


def odd_ones(stacks: Sequence[Stack]) -> tuple[Stack, ...]:
    """Return the processes that stand elsewhere than most: the cause is likely there.

    A stopped process is odd by itself. Empty where no place is shared by more than half.
    """
    stopped = tuple(s for s in stacks if s.state == "T")
    if stopped:
        return stopped
    places = Counter(s.place for s in stacks)
    if not places or len(stacks) < 2:
        return ()
    place, count = places.most_common(1)[0]
    return tuple(s for s in stacks if s.place != place) if 2 * count > len(stacks) else ()


def _field(pid: int, index: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        return text.rpartition(")")[2].split()[index]
    except (OSError, IndexError):
        return ""


def _is_python(pid: int) -> bool:
    try:
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False


def _rank(pid: int) -> int | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    values = dict(entry.split(b"=", 1) for entry in environment if b"=" in entry)
    for name in (b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK"):
        if values.get(name, b"").isdigit():
            return int(values[name])
    return None


def _wchan(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/wchan").read_text("utf-8").strip()
    except OSError:
        return ""
    return "" if text == "0" else text


def _by_py_spy(pid: int) -> tuple[str, ...]:
    tool = shutil.which("py-spy")
    if tool is None:
        return ()
    try:
        done = subprocess.run(
            [tool, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=_PY_SPY_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.findall(r"^    (\S+) \(([^)]+)\)$", done.stdout, re.MULTILINE)
    return tuple(f"{function} ({place})" for function, place in found[:_FRAMES])


def _by_signal(pid: int, printed: Callable[[], bytes]) -> tuple[str, ...]:
    if not _handles(pid, signal.SIGUSR1):
        return ()
    before = len(printed())
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + _ANSWER_S
    text = ""
    while time.monotonic() < deadline:
        time.sleep(0.05)
        text = printed()[before:].decode("utf-8", "replace")
        if _FAULTHANDLER.search(text) and text.endswith("\n"):
            break
    main = text.rpartition("Current thread")[2] or text
    return tuple(f"{f[2]} ({Path(f[0]).name}:{f[1]})" for f in _FAULTHANDLER.findall(main))[
        :_FRAMES
    ]


def _handles(pid: int, signum: int) -> bool:
    """Tell whether a process has a handler of its own for a signal."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
        return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (signum - 1) & 1)
    return False
