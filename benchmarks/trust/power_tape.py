"""Records what a process does to the files below a folder: every change, in order, with bytes.

`Tape.install` stands in for the functions of `os` and `io` through which Python, torch and `shutil`
write, to the end of the process; it needs no tool of the system. That nothing was missed is checked
and not assumed: the operations applied to an empty disk must give the folder as it is, byte for
byte (`power_disk.differences`). A sync that was missed would only make the test harder.
"""

from __future__ import annotations

import builtins
import io
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ROOT", "Kind", "Operation", "Tape"]

ROOT = 1
"""Number of the folder that is watched."""

Kind = Literal["make", "rename", "remove", "write", "truncate", "sync", "mark"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One change, or one sync, or a mark: what the run had promised by then."""

    kind: Kind
    node: int = 0
    """The file or folder that it is done to, or that a name stands for."""
    folder: int = 0
    name: str = ""
    to_folder: int = 0
    to_name: str = ""
    offset: int = 0
    """Of a write, bytes; of a truncation, the new size."""
    data: bytes = b""
    is_folder: bool = False
    told: Mapping[str, Any] = field(default_factory=dict)
    """Of a mark."""


class Tape:
    """The operations of one process below one folder."""

    def __init__(self, root: Path) -> None:
        """Watch a folder that exists and is empty; it is on disk already, as number `ROOT`."""
        self.operations: list[Operation] = []
        status = root.stat()
        self._inside = f"{root.resolve()}/"
        self._nodes = {(status.st_dev, status.st_ino): ROOT}
        self._lock = threading.RLock()
        self._next = ROOT + 1

    def mark(self, **told: object) -> None:
        """Note what the run promises from here on."""
        with self._lock:
            self.operations.append(Operation("mark", told=told))

    def install(self) -> None:
        """Stand in for the functions, to the end of the process."""
        self._install_open()
        self._install_descriptors()
        self._install_names()

    # -- where something is -----------------------------------------------------------------

    def _path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return the absolute path where it lies below the root."""
        if isinstance(path, int):
            return None
        name = os.fsdecode(path)
        if dir_fd is not None:
            name = f"{Path(f'/proc/self/fd/{dir_fd}').readlink()}/{name}"
        name = os.path.abspath(name)  # noqa: PTH100 - a link itself may be meant
        return name if name.startswith(self._inside) else None

    def _place(self, path: str) -> tuple[int, str]:
        """Return the number of the folder that holds a path, and the name in it."""
        folder, name = os.path.split(path)
        status = os.stat(folder)  # noqa: PTH116
        return self._nodes[status.st_dev, status.st_ino], name

    def _node(self, status: os.stat_result) -> int | None:
        return self._nodes.get((status.st_dev, status.st_ino))

    def _node_of(self, descriptor: int) -> int | None:
        return self._node(os.fstat(descriptor))

    def _made(self, path: str, *, is_folder: bool = False) -> None:
        status = os.lstat(path)
        node, self._next = self._next, self._next + 1
        self._nodes[status.st_dev, status.st_ino] = node
        folder, name = self._place(path)
        self._add("make", node, folder=folder, name=name, is_folder=is_folder)

    def _add(self, kind: Kind, node: int, **more: Any) -> None:
        self.operations.append(Operation(kind, node, **more))

    # -- the stand-ins ----------------------------------------------------------------------

    def _opened(self, path: str | None, opens: Callable[[], Any], *, empties: bool) -> Any:
        """Open a file for writing; note where that makes or empties it."""
        if path is None:
            return opens()
        with self._lock:
            before = os.stat(path) if os.path.lexists(path) else None  # noqa: PTH116
            found = opens()
            if before is None:
                self._made(path)
            elif empties and before.st_size:
                node = self._node(before)
                assert node is not None, f"{path}: was there before the tape"
                self._add("truncate", node)
            return found

    def _wrote(self, descriptor: int, data: Any, num_bytes: int, end: int) -> None:
        """Note a write whose last byte lies before `end`."""
        node = self._node_of(descriptor)
        if node is not None and num_bytes:
            whole = bytes(memoryview(data).cast("B")[:num_bytes])
            self._add("write", node, offset=end - num_bytes, data=whole)

    def _install_open(self) -> None:
        tape, real, real_os = self, io.open, os.open

        class File(io.FileIO):
            def write(self, data: Any, /) -> int:
                with tape._lock:
                    num_bytes = super().write(data)
                    tape._wrote(self.fileno(), data, num_bytes, self.tell())
                return num_bytes

            def truncate(self, size: int | None = None, /) -> int:
                with tape._lock:
                    size = super().truncate(size)
                    node = tape._node_of(self.fileno())
                    if node is not None:
                        tape._add("truncate", node, offset=size)
                return size

        def opened(
            file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **named: Any
        ) -> Any:
            path = tape._path(file)
            ours = isinstance(file, int) and tape._node_of(file) is not None
            if (path is None and not ours) or not set(mode) & set("wxa+"):
                return real(file, mode, buffering, *rest, **named)
            raw_mode = mode.replace("b", "").replace("t", "")
            closes = {"closefd": named.pop("closefd")} if "closefd" in named else {}
            raw = tape._opened(path, lambda: File(file, raw_mode, **closes), empties="w" in mode)
            if buffering == 0:
                return raw
            whole: IO[bytes] = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return whole if "b" in mode else io.TextIOWrapper(whole, *rest, **named)

        def os_opened(
            path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
        ) -> int:
            makes = flags & (os.O_CREAT | os.O_TRUNC)
            descriptor: int = tape._opened(
                tape._path(path, dir_fd) if makes else None,
                lambda: real_os(path, flags, mode, dir_fd=dir_fd),
                empties=bool(flags & os.O_TRUNC),
            )
            return descriptor

        io.open = opened
        builtins.open = opened
        os.open = os_opened

    def _install_descriptors(self) -> None:
        write, pwrite, sync, truncate = os.write, os.pwrite, os.fsync, os.ftruncate
        send = os.sendfile

        def wrote(fd: int, data: Any, /) -> int:
            with self._lock:
                num_bytes = write(fd, data)
                if self._node_of(fd) is not None:
                    self._wrote(fd, data, num_bytes, os.lseek(fd, 0, os.SEEK_CUR))
            return num_bytes

        def pwrote(fd: int, data: Any, offset: int, /) -> int:
            with self._lock:
                num_bytes = pwrite(fd, data, offset)
                self._wrote(fd, data, num_bytes, offset + num_bytes)
            return num_bytes

        def sent(out_fd: int, in_fd: int, offset: int, count: int, **more: Any) -> int:
            with self._lock:
                num_bytes = send(out_fd, in_fd, offset, count, **more)
                if self._node_of(out_fd) is not None:
                    data = os.pread(in_fd, num_bytes, offset)
                    self._wrote(out_fd, data, num_bytes, os.lseek(out_fd, 0, os.SEEK_CUR))
            return num_bytes

        def synced(fd: Any, /) -> None:
            descriptor = fd if isinstance(fd, int) else fd.fileno()
            with self._lock:
                sync(descriptor)
                node = self._node_of(descriptor)
                if node is not None:
                    self._add("sync", node)

        def truncated(fd: int, length: int, /) -> None:
            with self._lock:
                truncate(fd, length)
                node = self._node_of(fd)
                if node is not None:
                    self._add("truncate", node, offset=length)

        os.write, os.pwrite, os.sendfile = wrote, pwrote, sent  # type: ignore[assignment]
        os.fsync, os.fdatasync = synced, synced  # type: ignore[assignment]
        os.ftruncate = truncated

    def _install_names(self) -> None:
        def removing(real: Callable[..., None]) -> Callable[..., None]:
            def removed(path: Any, *, dir_fd: int | None = None) -> None:
                where = self._path(path, dir_fd)
                with self._lock:
                    named = None if where is None else self._named(where)
                    real(path, dir_fd=dir_fd)
                    if named is not None:
                        node, folder, name = named
                        self._add("remove", node, folder=folder, name=name)

            return removed

        def renaming(real: Callable[..., None]) -> Callable[..., None]:
            def renamed(source: Any, target: Any, **named: Any) -> None:
                before, after = self._path(source), self._path(target)
                with self._lock:
                    found = None if before is None else self._named(before)
                    real(source, target, **named)
                    if found is not None:
                        assert after is not None, f"{target}: is outside of what is watched"
                        (node, folder, name), (to, to_name) = found, self._place(after)
                        self._add(
                            "rename", node, folder=folder, name=name, to_folder=to, to_name=to_name
                        )

            return renamed

        make = os.mkdir

        def made(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            where = self._path(path, dir_fd)
            with self._lock:
                make(path, mode, dir_fd=dir_fd)
                if where is not None:
                    self._made(where, is_folder=True)

        os.mkdir = made
        os.unlink, os.remove, os.rmdir = map(removing, (os.unlink, os.remove, os.rmdir))
        os.rename, os.replace = map(renaming, (os.rename, os.replace))

    def _named(self, path: str) -> tuple[int, int, str] | None:
        """Return the number of what a path names, of its folder, and its name there."""
        if not os.path.lexists(path):
            return None
        node = self._node(os.lstat(path))
        assert node is not None, f"{path}: was there before the tape"
        return node, *self._place(path)
