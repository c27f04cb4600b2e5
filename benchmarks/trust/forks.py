"""Cases in children forked from this process: one each, watched, with what they printed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Ended", "run_alone", "run_cases", "scratch_folder"]

Case = TypeVar("Case")
Result = dict[str, object]


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    result: Result | None
    """What its work returned; None where it did not come to that."""
    status: int
    """0, an exit code, or a signal as a negative number."""
    timed_out: bool
    out: str
    err: str
    seconds: float


@dataclass
class _Child(Generic[Case]):
    case: Case
    folder: Path
    pid: int
    since: float


def scratch_folder() -> Path:
    """Return a new folder for cases, in memory where the system has one for that."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="trimtab-trust-", dir=place))


def run_cases(
    cases: Iterable[Case],
    work: Callable[[Case, Path], Result],
    *,
    root: Path,
    jobs: int = 1,
    timeout_s: float = 60,
) -> Iterator[tuple[Case, Ended]]:
    """Run each case in a child of its own, in a folder of its own; give them as they end.

    Args:
        cases: Taken one by one.
        work: Is given a case and its folder, in the child.
        root: Folders of cases are made here, and removed.
        jobs: Children at a time.
        timeout_s: A child that takes longer is killed.
    """
    waiting, running, number = iter(cases), list[_Child[Case]](), 0
    exhausted = False
    try:
        while running or not exhausted:
            while not exhausted and len(running) < jobs:
                try:
                    case = next(waiting)
                except StopIteration:
                    exhausted = True
                    break
                running.append(_start(case, work, root / f"case-{number}"))
                number += 1
            for child in list(running):
                ended = _look(child, timeout_s)
                if ended is not None:
                    running.remove(child)
                    yield child.case, ended
            time.sleep(0.003)
    finally:
        for child in running:
            _kill(child.pid)
            os.waitpid(child.pid, 0)


def run_alone(work: Callable[[Path], Result], folder: Path, *, timeout_s: float = 60) -> Ended:
    """Run one piece of work in a child, in a folder that is kept."""
    child = _start(None, lambda _case, place: work(place), folder)
    while True:
        ended = _look(child, timeout_s, keep=True)
        if ended is not None:
            return ended
        time.sleep(0.002)


def _start(case: Case, work: Callable[[Case, Path], Result], folder: Path) -> _Child[Case]:
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return _Child(case, folder, pid, time.monotonic())
    code = 70
    with contextlib.suppress(BaseException):
        os.setpgid(0, 0)  # so that what it starts is killed with it
        _redirect(folder)
        report = os.open(folder / ".result", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        write, close = os.write, os.close  # before the case replaces them
        try:
            text = json.dumps(work(case, folder)).encode()
            while text:
                text = text[write(report, text) :]
            code = 0
        except BaseException:  # noqa: BLE001 - a child must not come out of here
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        close(report)
    os._exit(code)


def _redirect(folder: Path) -> None:
    for number, name in ((1, ".out"), (2, ".err")):
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)


def _look(child: _Child[Case], timeout_s: float, *, keep: bool = False) -> Ended | None:
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    late = time.monotonic() - child.since > timeout_s
    if not pid:
        if not late:
            return None
        _kill(child.pid)
        pid, status = os.waitpid(child.pid, 0)
    result = None
    with contextlib.suppress(OSError, ValueError):
        result = json.loads((child.folder / ".result").read_bytes())
    ended = Ended(
        result,
        os.waitstatus_to_exitcode(status),
        late,
        _text(child.folder / ".out"),
        _text(child.folder / ".err"),
        time.monotonic() - child.since,
    )
    if not keep:
        shutil.rmtree(child.folder, ignore_errors=True)
    return ended


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    """End a child, and what it started."""
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(pid, signal.SIGKILL)
