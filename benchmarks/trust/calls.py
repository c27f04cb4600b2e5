"""Counts the calls that trimtab makes of the system, and makes chosen ones fail.

`Layer` stands in for the functions of `os`, `io`, `fcntl` and for the copies of tensors, in a
process of its own. A call counts where trimtab is on the stack, also through torch or `shutil`, and
it is about a file below the folder of the case or of /proc. It is named by the function and by the
line of trimtab that it comes from. Errors are raised where the system would raise them: below the
buffers of a file, so that a full disk shows at `flush` or `close`.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import trimtab

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["ERRORS", "OUT_OF_MEMORY", "Call", "Fault", "Kill", "Lasting", "Layer", "fits"]

Kind = Literal["open", "create", "read", "write", "sync", "names", "change", "lock", "memory"]
Lasting = Literal["once", "window", "lasting"]

ERRORS = ("ENOSPC", "EIO", "ESTALE", "EDQUOT", "EMFILE", "ENOMEM", "EROFS", "EINTR")
OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "CpuAllocator")
"""What Python, CUDA and torch on the CPU raise where there is no memory."""

_PACKAGE = f"{Path(trimtab.__file__).resolve().parent}{os.sep}"
_SLOW_S = 0.3
_TIMES = {"SLOW": 8, "EINTR": 20}
"""How often at most these come, so that a case ends: the buffers of a file try again for ever."""

_WRITES: tuple[Kind, ...] = ("create", "write")
_CHANGES: tuple[Kind, ...] = ("create", "write", "change")
_OPENS: tuple[Kind, ...] = ("open", "create", "names")
_ALL: tuple[Kind, ...] = ("open", "create", "read", "write", "sync", "names", "change", "lock")
_SPREAD: dict[str, tuple[Kind, ...]] = {
    "ENOSPC": _WRITES,
    "EDQUOT": _WRITES,
    "EROFS": _CHANGES,
    "EIO": _ALL,
    "ESTALE": _ALL,
    "EMFILE": _OPENS,
    "ENOMEM": (),
    "EINTR": (),
    "SHORT": ("write",),
    "SLOW": (),
    **dict.fromkeys(OUT_OF_MEMORY, ("memory",)),
}
"""Which kinds of calls fail too while a fault lasts; the call site itself always does."""


def fits(error: str, kind: str) -> bool:
    """Whether an error can be raised by a kind of call."""
    if kind == "memory" or error in OUT_OF_MEMORY:
        return kind == "memory" and error in OUT_OF_MEMORY
    return kind == "write" if error == "SHORT" else True


@dataclass(frozen=True)
class Call:
    """One call as it was counted."""

    site: str
    """Function, file, line and name of the caller."""
    kind: Kind
    ordinal: int
    """Among the calls of this site, from 0."""
    step: int
    """Steps that the run had done; -1 before its loop."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What fails, from which call on, and for how long."""

    site: str
    ordinal: int
    error: str
    lasting: Lasting
    window: int = 6
    """Steps, or calls where a process has no steps, after which a window is over."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The change on disk at which the process is killed."""

    ordinal: int
    """Among the calls that change something, from 0."""
    torn: bool
    """Whether a write is cut in half first; any other call is made first, then killed."""


@dataclass
class Layer:
    """The stand-ins of one process."""

    root: Path
    fault: Fault | None = None
    kill: Kill | None = None
    recording: bool = False
    calls: list[Call] = field(default_factory=list)
    step: int = -1
    """Set by the loop of the case."""
    fired_at: int | None = None
    """Step at which the fault first showed."""
    hit: set[str] = field(default_factory=set)
    """Sites that failed."""
    num_changes: int = 0
    paused: bool = False
    """Whether calls pass uncounted: those of the harness itself."""
    _counts: Counter[str] = field(default_factory=Counter)
    _fired_count: int = 0
    _ended: bool = False
    _num_hits: int = 0

    def install(self) -> None:
        """Stand in for the functions, to the end of the process."""
        real = _Real()
        root = os.path.realpath(self.root)
        counted = _Counted(self, real, root)
        for name, kind in _OF_PATHS.items():
            setattr(os, name, counted.by_path(name, getattr(os, name), kind))
        for name, kind in _OF_DESCRIPTORS.items():
            if hasattr(os, name):
                setattr(os, name, counted.by_descriptor(name, getattr(os, name), kind))
        os.open = counted.opening(os.open)
        os.write = counted.writing("os.write", os.write)
        os.pwrite = counted.writing("os.pwrite", os.pwrite)
        fcntl.flock = counted.by_descriptor("flock", fcntl.flock, "lock")
        stand_in = counted.open_file()
        builtins.open = stand_in
        io.open = stand_in
        if "torch" in sys.modules:
            tensor = sys.modules["torch"].Tensor
            tensor.to = counted.allocating("Tensor.to", tensor.to)
            tensor.clone = counted.allocating("Tensor.clone", tensor.clone)

    def seen(self, function: str, kind: Kind, *, inside: bool) -> str | None:
        """Count a call; return the name of the error it is to fail with."""
        if self.paused:
            return None
        caller = _caller(sys._getframe(2))
        if caller is None or not (inside or self._everywhere(kind)):
            return None
        site = f"{function} {caller}"
        if not inside:  # only where a process has no descriptors left
            return self._spread(site, kind)
        ordinal = self._counts[site]
        self._counts[site] += 1
        if self.recording:
            self.calls.append(Call(site, kind, ordinal, self.step))
        fault = self.fault
        if fault is None:
            return None
        if self.fired_at is None and site == fault.site and ordinal == fault.ordinal:
            self.fired_at = self.step
            self.hit.add(site)
            return fault.error
        return self._spread(site, kind)

    def due(self) -> bool:
        """Count a change on disk; return whether the process dies at it."""
        if self.paused or (self.kill is None and not self.recording):
            return False
        self.num_changes += 1
        return self.kill is not None and self.num_changes - 1 == self.kill.ordinal

    def _everywhere(self, kind: Kind) -> bool:
        fault = self.fault
        return fault is not None and fault.error == "EMFILE" and kind in ("open", "create")

    def _spread(self, site: str, kind: Kind) -> str | None:
        """Return the error of a fault that goes on after its first call."""
        fault = self.fault
        if fault is None or self.fired_at is None or fault.lasting == "once" or self._ended:
            return None
        self._fired_count += 1
        if fault.lasting == "window":
            passed = self._fired_count if self.step < 0 else self.step - self.fired_at
            if passed >= fault.window:
                self._ended = True
                return None
        if site != fault.site and kind not in _SPREAD[fault.error]:
            return None
        self._num_hits += 1
        if self._num_hits > _TIMES.get(fault.error, self._num_hits):
            return None
        self.hit.add(site)
        return fault.error


_OF_PATHS: dict[str, Kind] = {
    "replace": "change",
    "rename": "change",
    "mkdir": "create",
    "rmdir": "change",
    "unlink": "change",
    "remove": "change",
    "truncate": "change",
    "stat": "names",
    "lstat": "names",
    "scandir": "names",
    "listdir": "names",
}
_OF_DESCRIPTORS: dict[str, Kind] = {
    "read": "read",
    "pread": "read",
    "fsync": "sync",
    "fdatasync": "sync",
    "fstat": "names",
    "ftruncate": "change",
    "sendfile": "write",
    "copy_file_range": "write",
}


class _Real:
    """The functions that stay, for the stand-ins' own use."""

    def __init__(self) -> None:
        self.readlink = os.readlink
        self.write = os.write

    def path_of(self, descriptor: int) -> str:
        try:
            return self.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            return ""


class _Counted:
    """Makes the stand-ins of a layer."""

    def __init__(self, layer: Layer, real: _Real, root: str) -> None:
        self._layer, self._real, self._root = layer, real, root

    def _inside(self, path: object, dir_fd: int | None = None) -> bool:
        if isinstance(path, int):
            text = self._real.path_of(path)
        else:
            text = os.fsdecode(path)  # type: ignore[arg-type]
            if dir_fd is not None:
                text = f"{self._real.path_of(dir_fd)}/{text}"
            elif not text.startswith("/"):
                text = f"{Path.cwd()}/{text}"
        return text.startswith((self._root, "/proc/"))

    def by_path(self, name: str, real: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
        layer = self._layer
        changes = kind in _CHANGES

        def call(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            inside = self._inside(path, named.get("dir_fd"))
            error = layer.seen(f"os.{name}", kind, inside=inside)
            if error is not None:
                _fail(error, path)
            if changes and inside and layer.due():
                if layer.kill is not None and layer.kill.torn:
                    _die()
                real(path, *arguments, **named)
                _die()
            return real(path, *arguments, **named)

        return call

    def by_descriptor(self, name: str, real: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
        layer = self._layer

        def call(descriptor: Any, *arguments: Any, **named: Any) -> Any:
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            inside = self._inside(number)
            error = layer.seen(f"os.{name}", kind, inside=inside)
            if error is not None:
                _fail(error, None)
            if kind == "sync" and inside and layer.due():
                _die()
            return real(descriptor, *arguments, **named)

        return call

    def opening(self, real: Callable[..., int]) -> Callable[..., int]:
        layer = self._layer

        def call(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            kind: Kind = "create" if flags & os.O_CREAT else "open"
            error = layer.seen("os.open", kind, inside=self._inside(path, dir_fd))
            if error is not None:
                _fail(error, path)
            return real(path, flags, mode, dir_fd=dir_fd)

        return call

    def writing(self, name: str, real: Callable[..., int]) -> Callable[..., int]:
        layer = self._layer

        def call(descriptor: int, data: Any, *rest: Any) -> int:
            inside = self._inside(descriptor)
            error = layer.seen(name, "write", inside=inside)
            if error == "SHORT":
                data = bytes(data)[: max(len(data) // 2, 1)]
            elif error is not None:
                _fail(error, None)
            if inside and layer.due():
                if layer.kill is not None and layer.kill.torn:
                    data = bytes(data)[: len(data) // 2]
                real(descriptor, data, *rest)
                _die()
            return real(descriptor, data, *rest)

        return call

    def allocating(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        layer = self._layer

        def call(tensor: Any, *arguments: Any, **named: Any) -> Any:
            if name == "Tensor.clone" or named.get("copy"):
                error = layer.seen(name, "memory", inside=True)
                if error is not None:
                    _fail(error, None)
            return real(tensor, *arguments, **named)

        return call

    def open_file(self) -> Callable[..., Any]:
        """Return a stand-in for `open` whose files fail below their buffers."""
        layer, real_open, inside_of = self._layer, io.open, self._inside

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                error = layer.seen("file.write", "write", inside=True)
                if error == "SHORT":
                    data = bytes(data)[: max(len(data) // 2, 1)]
                elif error is not None:
                    _fail(error, None)
                if layer.due():
                    if layer.kill is not None and layer.kill.torn:
                        data = bytes(data)[: len(data) // 2]
                    super().write(data)
                    _die()
                return super().write(data)

            def readinto(self, buffer: Any) -> int:
                self._read()
                return super().readinto(buffer)

            def readall(self) -> bytes:
                self._read()
                return super().readall()

            def read(self, size: int | None = -1, /) -> bytes:
                self._read()
                return super().read(-1 if size is None else size)

            def _read(self) -> None:
                error = layer.seen("file.read", "read", inside=True)
                if error is not None:
                    _fail(error, None)

        def stand_in(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,  # noqa: FBT001, FBT002 - as in the standard library
            opener: Any = None,
        ) -> Any:
            rest = (buffering, encoding, errors, newline, closefd, opener)
            if layer.paused or isinstance(file, int) or _caller(sys._getframe(1)) is None:
                return real_open(file, mode, *rest)
            inside = inside_of(file)
            error = layer.seen("open", "open" if mode[:1] == "r" else "create", inside=inside)
            if error is not None:
                _fail(error, file)
            if not inside:
                return real_open(file, mode, *rest)
            return _buffered(
                File(os.fspath(file), mode.replace("b", "").replace("t", "")),
                mode,
                encoding,
                errors,
                newline,
            )

        return stand_in


def _buffered(
    raw: io.FileIO, mode: str, encoding: str | None, errors: str | None, newline: str | None
) -> Any:
    buffer: Any
    if "+" in mode:
        buffer = io.BufferedRandom(raw)
    elif mode[:1] == "r" or "r" in mode:
        buffer = io.BufferedReader(raw)
    else:
        buffer = io.BufferedWriter(raw)
    return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline)


def _caller(frame: FrameType | None) -> str | None:
    """Return the innermost line of trimtab on the stack."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_PACKAGE):
            place = code.co_filename[len(_PACKAGE) :]
            return f"{place}:{frame.f_lineno} {code.co_qualname}"
        frame = frame.f_back
    return None


def _fail(error: str, path: object) -> None:
    """Raise an error as the system would; a slow call only takes its time."""
    if error == "SLOW":
        time.sleep(_SLOW_S)
        return
    if error == "MemoryError":
        raise MemoryError
    if error == "OutOfMemoryError":
        raise sys.modules["torch"].OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    if error == "CpuAllocator":
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2 GB")
    if error == "SHORT":
        return
    number = getattr(errno, error)
    raise OSError(number, os.strerror(number), *([] if path is None else [os.fspath(path)]))  # type: ignore[call-overload]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
