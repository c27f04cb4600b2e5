"""Who supervises, and what: a small file by which the next supervisor finds a command again."""

import contextlib
import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from trimtab.chronicle.journal import as_written
from trimtab.durable import write_whole
from trimtab.errors import ChronicleError
from trimtab.supervise.processes import ChildId, find_command, is_alive

__all__ = ["Holder", "boot_id", "left_behind", "orphan", "write_holder"]

FILE_NAME = "supervise.json"
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The command as it runs now."""

    host: str
    boot: str
    """Boot of the host: after one no process is left."""
    attempt: int
    child: ChildId
    argv: tuple[str, ...]
    """As it was given, without secrets; empty: not known."""
    loaded: tuple[int, str] | None
    failures: int


def boot_id() -> str:
    """Return the id of this boot; empty where the system has none."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    return ""


def write_holder(folder: Path, holder: Holder | None) -> None:
    """Write who runs; None: nothing runs any more.

    Raises:
        OSError: It cannot be written.
    """
    path = folder / FILE_NAME
    if holder is None:
        path.unlink(missing_ok=True)
        return
    # The token of the child would be masked, too.
    data = {**asdict(holder), "argv": as_written(holder.argv)}
    write_whole(path, json.dumps(data).encode() + b"\n")


def _read_holder(folder: Path) -> Holder | None:
    """Return what the last supervisor wrote; None where it left nothing that can be read."""
    try:
        with (folder / FILE_NAME).open("rb") as file:
            data = json.loads(file.read(_MAX_BYTES))
        child = data["child"]
        return Holder(
            host=str(data["host"]),
            boot=str(data["boot"]),
            attempt=int(data["attempt"]),
            child=ChildId(
                pid=int(child["pid"]),
                started=str(child["started"]),
                token=str(child["token"]),
                pipes=(int(child["pipes"][0]), int(child["pipes"][1])),
            ),
            argv=tuple(map(str, data["argv"])),
            loaded=None if data["loaded"] is None else (int(data["loaded"][0]), data["loaded"][1]),
            failures=int(data["failures"]),
        )
    except (OSError, ValueError, ArithmeticError, LookupError, TypeError, RecursionError):
        return None


def orphan(holder: Holder | None) -> bool:
    """Tell whether the command of another supervisor still runs on this host."""
    if holder is None or holder.host != platform.node() or holder.boot != boot_id():
        return False
    return holder.child.pid != os.getpid() and is_alive(holder.child.pid, holder.child.started)


def left_behind(folder: Path) -> Holder | None:
    """Return the command of this folder that runs, or ran when its supervisor was killed.

    What a supervisor could not write down, on a full disk, the processes tell themselves.

    Raises:
        ChronicleError: The supervisor that started it lives.
    """
    holder = _read_holder(folder)
    seen = find_command(folder)
    if seen is None:
        return holder
    if is_alive(*seen.supervisor):
        raise ChronicleError(
            f"{folder}: process {seen.supervisor[0]} supervises a command there"
            f" (process {seen.child.pid}), and one command has one supervisor; wait for it, or"
            " give another --run"
        )
    if holder is not None and holder.child.pid == seen.child.pid:
        return holder
    return Holder(
        host=platform.node(),
        boot=boot_id(),
        attempt=seen.attempt,
        child=seen.child,
        argv=(),
        loaded=None,
        failures=0,
    )
