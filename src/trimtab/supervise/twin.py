"""A changed command tried beside, for two rows, before a real restart relies on its flags.

It loads the same checkpoint, writes to a folder of its own and is ended after two rows (plain text
is known by some more): that shows
that the flags are taken, and at which step and rate it goes on. The devices are free then: the
command before was ended. What stands in `resume.toml` as `twin` keeps a framework's saves apart.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.durable import make_folder
from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.readers.folders import files_under
from trimtab.record import RunRecord
from trimtab.supervise.ending import ending_of
from trimtab.supervise.processes import FOLDER_NAME, TOKEN_NAME, terminate
from trimtab.supervise.progress import Seen
from trimtab.supervise.resume import LaunchFlags, Restore, with_flag

__all__ = ["Tried", "try_beside", "twin_command"]

_ROWS = 2
_LOOK_S = 0.2
_LAST_BYTES = 1 << 16
_BOUND = "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,15);os.execvp(sys.argv[1],sys.argv[1:])"
"""Becomes the command, which gets SIGTERM when the supervisor dies: nobody else knows of it."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What a twin showed."""

    first: Seen | None = None
    """Its first row; None: it showed none."""
    refused: str = ""
    """Why it ended before its second row; empty: it did not."""
    unseen: str = ""
    """Why nothing was shown; empty: something was."""


def twin_command(
    argv: Sequence[str], framework: LaunchFlags | None, restore: Restore | None, own: Path
) -> tuple[str, ...] | str:
    """Return the command with its saves in another folder, or why it has to stay untried.

    The checkpoint is linked into that folder where the framework looks for it there; one that is a
    single file is copied.

    Raises:
        OSError: The folder cannot be made.
    """
    if framework is None or not framework.twin:
        return "no flag that keeps its saves apart is known"
    if restore is None:
        return "it loads no checkpoint"
    parent = Path(restore.path).absolute()
    told = {"own": str(own), "name": parent.name, "step": str(restore.step)}
    for flag, template in framework.twin.items():
        argv = with_flag(argv, flag, template.format(**told), framework.style)
    if framework.twin_parent:
        place = Path(framework.twin_parent.format(**told))
        make_folder(place.parent)
        if framework.one_file:
            shutil.copyfile(parent, place)
        else:
            place.symlink_to(parent, target_is_directory=parent.is_dir())
    for name, text in framework.twin_files.items():
        (own / name).write_text(text.format(**told), encoding="utf-8")
    return tuple(argv)


def try_beside(
    argv: Sequence[str],
    own: Path,
    *,
    parent: Path,
    environment: Mapping[str, str],
    limit_s: float,
    grace_s: float,
    aborted: Callable[[], bool],
) -> Tried:
    """Run a twin until its second row.

    Args:
        argv: From `twin_command`.
        own: Its folder.
        parent: The checkpoint that it loads: it must be as it was before.
        environment: Of the command.
        limit_s: Time that it gets.
        grace_s: Time between SIGTERM and SIGKILL at its end.
        aborted: Whether something else has to be done at once.

    Raises:
        ConfigError: A process of it cannot be ended.
    """
    before = _signature(parent)
    log = own / "output.log"
    token = secrets.token_hex(8)
    given = {k: v for k, v in environment.items() if k != FOLDER_NAME}
    given |= {TOKEN_NAME: token, "TRIMTAB_TWIN": "1", "WANDB_MODE": "disabled"}
    try:
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOUND, *argv],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=given,
                start_new_session=True,
            )
    except OSError as error:
        return Tried(unseen=f"it cannot be started ({error.strerror})")
    try:
        told = _watched(process, log, limit_s, aborted)
    finally:
        terminate(token, process.pid, grace_s=grace_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
    if _signature(parent) != before:
        return Tried(refused=f"it wrote to {parent}, the checkpoint that it loads")
    return told


def _watched(
    process: "subprocess.Popen[bytes]", log: Path, limit_s: float, aborted: Callable[[], bool]
) -> Tried:
    deadline = time.monotonic() + limit_s
    size = 0
    while True:
        code = process.poll()
        if log.stat().st_size != size:
            size = log.stat().st_size
            record = _record(log)
            if record is not None and record.num_rows >= _ROWS:
                return Tried(first=_first(record))
        if code is not None:
            if code == 0:
                return Tried(unseen="it was done before its second row")
            ending = ending_of(_last_lines(log), code)
            return Tried(refused=ending.line or ending.why)
        if aborted():
            return Tried(unseen="a signal came")
        if time.monotonic() > deadline:
            return Tried(unseen=f"it came to no second row within {limit_s:.0f} s")
        time.sleep(_LOOK_S)


def _record(log: Path) -> RunRecord | None:
    try:
        return read_run(log)
    except ReadError:
        return None


def _first(record: RunRecord) -> Seen:
    rate = record.columns.get("lr")
    known = [] if rate is None else rate.finite_rows(slice(0, record.num_rows)).tolist()
    step = float(record.step[0])
    return Seen(
        step=step,
        position=step,
        rate=float(rate.values[known[0]]) if rate is not None and known else None,
        counted=record.axis != "step",
    )


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _LAST_BYTES, 0))
        return file.read().decode("utf-8", "replace").splitlines()


def _signature(place: Path) -> object:
    with contextlib.suppress(OSError):
        files = [place] if place.is_file() else sorted(files_under(place))
        return [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return None
