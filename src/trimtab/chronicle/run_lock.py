"""One run directory, one writer: a lock, and a token by which a process sees that it lost it.

`.lock` in the run directory is held with `flock` for as long as a guard is open, and so is the
journal itself, which nobody removes by hand. The lock names the process that holds it and a token
of its own. A killed process leaves the file behind but not the lock. A process that is forked from
the holder releases its copy at once, so that it cannot keep the lock after the guard has closed.

Where a file system has no locks, or has them for one machine only (some network file systems), the
time of `.lock` is the heartbeat of its holder: it is refreshed every few seconds, and a process on
another machine watches it for some beats before it takes the run over. What no lock can prevent is
found afterwards: `check` compares the token and the file before each write, and the process that
lost the run writes nothing more.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import threading
import time
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue

from trimtab.chronicle.journal import read_journal
from trimtab.chronicle.rundir import RunDirectory
from trimtab.durable import make_folder
from trimtab.errors import ChronicleError, OwnerLost

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["RunLock"]

BEAT_S = 3.0
"""How often the holder refreshes the time of its lock."""
WATCHED_BEATS = 4
"""Beats of silence after which a holder on another machine counts as gone."""
SILENT_S = 900.0
"""A lock not refreshed for so long, by this machine's clock, is not watched any more."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_HELD: weakref.WeakSet[RunLock] = weakref.WeakSet()


@dataclass(frozen=True, kw_only=True)
class _Holder:
    """Who holds, or held, a lock; as far as its file says."""

    pid: int = 0
    host: str = ""
    token: str = ""
    started: str = ""
    """Start of the process by its machine's own count: a process id is used again."""
    released: bool = False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.host else "its process is not known"

    @property
    def lives_here(self) -> bool:
        """Whether it is a process of this machine that is alive."""
        if self.host != platform.node() or self.pid <= 0:
            return False
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            pass
        except (OSError, OverflowError):
            return False
        return not self.started or self.started == _start_of(self.pid)


class _Descriptors:
    """What is open for one lock; closed once, also where the lock is garbage-collected."""

    def __init__(self, lock: int) -> None:
        self.lock = lock
        self.journal: int | None = None
        self.record = b""
        """What stands in the lock file."""
        # A queue, because a finalizer may run anywhere, also within the thread that waits.
        self.stop_beating: SimpleQueue[None] = SimpleQueue()
        self.pid = os.getpid()

    def close(self) -> None:
        if self.pid == os.getpid():  # a forked process has no such thread
            self.stop_beating.put(None)
            with contextlib.suppress(OSError, ValueError):
                if self.record and os.pread(self.lock, len(self.record), 0) == self.record:
                    left = json.dumps({**json.loads(self.record), "released": True})
                    os.pwrite(self.lock, left.encode() + b"\n", 0)
        for descriptor in (self.lock, self.journal):
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)


class RunLock:
    """Holds a run directory until `release` or the end of the process."""

    def __init__(self, root: Path) -> None:
        """Take the lock; the directory is made where it does not exist.

        Raises:
            ChronicleError: Another guard holds it, or the directory cannot be written.
        """
        _refuse_url(root)
        self._root, self._directory = root, RunDirectory(root)
        self.path = self._directory.lock
        self.token = secrets.token_hex(8)
        self.lost = ""
        """Who took the run from this process; empty: nobody."""
        self.notes: list[str] = []
        """What a person should read of how the lock was taken."""
        journal: int | None = None
        try:
            make_folder(root)
            is_there = self.path.exists() or self.path.is_symlink()
            # The journal first: a `.lock` that was removed by hand is not made anew while the
            # trainer that lost it goes on.
            journal = self._lock_journal()
            if not is_there:
                self._ask_journal(locked=journal is not None)
            descriptor = self._take()
        except OSError as error:
            _close(journal)
            raise ChronicleError(
                f"{root}: cannot be written ({error.strerror}); choose another run directory"
            ) from error
        except BaseException:
            _close(journal)
            raise
        self._open: _Descriptors | None = _Descriptors(descriptor)
        self._open.journal = journal
        _HELD.add(self)
        _watch_forks()
        # a lock that was garbage-collected must not hold the directory: a retry in this process
        # would be refused
        self._finalizer = weakref.finalize(self, self._open.close)
        self._sign()

    @property
    def identity(self) -> dict[str, object]:
        """Who holds it, for the journal."""
        return {
            "pid": os.getpid(),
            "host": platform.node(),
            "owner": self.token,
            "started": _start_of(os.getpid()),
        }

    def check(self) -> None:
        """Make sure that this process still holds the run; costs two system calls.

        Raises:
            OwnerLost: Another process took it: nothing more may be written.
            ChronicleError: The run directory is gone.
        """
        if self.lost:
            raise OwnerLost(self.lost)
        held = self._open
        if held is None:
            return
        try:
            there, own = self.path.stat(), os.fstat(held.lock)
            changed = (there.st_ino, there.st_dev) != (own.st_ino, own.st_dev) or (
                os.pread(held.lock, len(held.record), 0) != held.record
            )
        except FileNotFoundError:
            self._take_again(held)
            return
        except OSError:  # the disk does not answer: what is written next will say so
            return
        if changed:
            self._lose()

    def hold_journal(self) -> None:
        """Hold the journal, too, once it is there.

        Raises:
            ChronicleError: Another guard holds it.
        """
        if self._open is not None and self._open.journal is None:
            self._open.journal = self._lock_journal()

    def take_notes(self) -> list[str]:
        """Return what a person should read of how the lock was taken, once."""
        notes, self.notes = self.notes, []
        return notes

    def release(self) -> None:
        """Release the lock; the file stays."""
        if self._open is not None:
            self._finalizer()
            self._open = None

    # -- taken ------------------------------------------------------------------------------

    def _lock_journal(self) -> int | None:
        """Return a descriptor that holds the journal; None without a journal, or without locks."""
        if not self._directory.journal.is_file():
            return None
        descriptor = os.open(self._directory.journal, os.O_RDWR)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise self._refusal(_read_holder(self.path) or self._owner_in_journal()) from error
        except OSError:  # no locks on this file system
            os.close(descriptor)
            return None
        return descriptor

    def _take(self) -> int:
        """Return a descriptor that holds the lock file.

        Raises:
            ChronicleError: Another guard holds it.
            OSError: It cannot be opened.
        """
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            descriptor, is_new = os.open(self.path, flags | os.O_EXCL, 0o644), True
        except FileExistsError:
            descriptor, is_new = os.open(self.path, flags, 0o644), False
        try:
            before = _Holder() if is_new else _parse_holder(os.pread(descriptor, 4096, 0))
            locks = fcntl is not None
            if fcntl is not None:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise self._refusal(before) from error
                except OSError:
                    locks = False  # no locks on this file system
            if not is_new and not before.released:
                self._outwait(before, locks=locks)
            if locks or is_new:
                return descriptor
            return self._replace_stale(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def _replace_stale(self, descriptor: int) -> int:
        """Put a lock file of one's own in place of a stale one: its holder, if any, sees that."""
        mine = self.path.with_name(f"{self.path.name}.{self.token}")
        new = os.open(mine, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            mine.replace(self.path)
        except OSError:
            os.close(new)
            with contextlib.suppress(OSError):
                mine.unlink()
            raise
        os.close(descriptor)
        return new

    def _outwait(self, before: _Holder, *, locks: bool) -> None:
        """Make sure that the last holder, which did not release the lock, is gone.

        Raises:
            ChronicleError: It is not.
        """
        if before.host == platform.node() and before.host:
            # Locks of this machine are known to this machine: none means that it is dead.
            if not locks and before.lives_here:
                raise self._refusal(before)
            return
        if locks and not before.token:  # a version without a heartbeat
            return
        seen = _beat_of(self.path)
        if seen is None or time.time() - seen[1] / 1e9 > SILENT_S:
            return
        for _ in range(WATCHED_BEATS):
            time.sleep(BEAT_S)
            if _beat_of(self.path) != seen:
                raise self._refusal(_read_holder(self.path) or before)
        self.notes.append(
            f"{self._root}: taken over from {before}, which did not close it and has shown no"
            f" sign of life for {WATCHED_BEATS * BEAT_S:g} s"
        )

    def _ask_journal(self, *, locked: bool) -> None:
        """Ask the journal who held the run, where the lock file is gone.

        Raises:
            ChronicleError: A process that is alive.
        """
        owner = self._owner_in_journal()
        if owner is None or owner.released:
            return
        if not locked and owner.lives_here:
            raise self._refusal(owner)
        if owner.host != platform.node():
            self.notes.append(
                f"{self._root}: its .lock was removed, and {owner} has not closed the run. If it"
                " still runs, stop it: it writes nothing more here from its next event on"
            )

    def _owner_in_journal(self) -> _Holder | None:
        try:
            events, _ = read_journal(self._directory.journal)
        except ChronicleError:
            return None
        owners = [e for e in events if e.event == "owner"]
        if not owners:
            return None
        ended = any(e.event == "end" and e.writer == owners[-1].writer for e in events)
        return _holder(owners[-1].data, released=ended)

    def _refusal(self, holder: _Holder | None) -> ChronicleError:
        error = ChronicleError(
            f"{self._root}: another guard is writing to this run directory"
            f" ({holder or _Holder()}); wait for it or stop it (in the same process: call its"
            " close()), or choose another directory"
        )
        error.holder = str(holder or _Holder())
        return error

    # -- held -------------------------------------------------------------------------------

    def _sign(self) -> None:
        """Write down who holds the lock, and begin to beat."""
        held = self._open
        assert held is not None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        record = json.dumps({**self.identity, "since": since}).encode() + b"\n"
        with contextlib.suppress(OSError):  # a full disk: the lock holds, but names nobody
            os.ftruncate(held.lock, 0)
            os.pwrite(held.lock, record, 0)
            held.record = os.pread(held.lock, len(record), 0)
        with contextlib.suppress(OSError, RuntimeError):
            # A descriptor of its own: it holds no lock, and only the thread closes it.
            beating = os.open(self.path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
            threading.Thread(
                target=_beat, args=(beating, held.stop_beating), name="trimtab-lock", daemon=True
            ).start()

    def _take_again(self, held: _Descriptors) -> None:
        """Take a lock file that was removed by hand again, unless another process was faster.

        Raises:
            OwnerLost: It was.
            ChronicleError: The run directory is gone.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            self._lose()
            return
        except OSError as error:
            raise ChronicleError(
                f"{self._root}: the run directory is gone ({error.strerror}) while this process"
                " writes to it; put it back"
            ) from error
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                self._lose()
            except OSError:
                pass  # no locks on this file system
        held.stop_beating.put(None)
        held.stop_beating = SimpleQueue()
        os.close(held.lock)
        held.lock = descriptor
        self.notes.append(f"{self.path}: was removed by hand, and is taken again")
        self._sign()

    def _lose(self) -> None:
        holder = _read_holder(self.path) or _Holder()
        self.lost = (
            f"{self._root}: {holder} took this run directory; nothing more is written to it by"
            f" process {os.getpid()}, and training goes on unguarded. Stop one of the two"
        )
        raise OwnerLost(self.lost)


def _refuse_url(root: Path) -> None:
    """Refuse an object store: it has neither locks nor files that grow.

    Raises:
        ChronicleError: The path is a URL.
    """
    found = _URL.match(root.as_posix())
    if found is not None:
        raise ChronicleError(
            f"{root.as_posix()}: is a URL ({found[1]}), and a run directory needs a file system:"
            " files that grow and locks; give a local or a network folder, and copy the run to the"
            " store when it is done"
        )


def _beat(descriptor: int, stop: SimpleQueue[None]) -> None:
    """Refresh the time of a file until told to stop."""
    try:
        while True:
            try:
                stop.get(timeout=BEAT_S)
            except Empty:
                with contextlib.suppress(OSError):
                    os.utime(descriptor)
            else:
                return
    finally:
        os.close(descriptor)


def _beat_of(path: Path) -> tuple[int, int] | None:
    """Return which file stands there and when it was refreshed, past the cache of a network."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        return found.st_ino, found.st_mtime_ns
    finally:
        os.close(descriptor)


def _release_all() -> None:
    """Close the copies of a forked process; the process that took the lock keeps it."""
    for lock in list(_HELD):
        lock.release()


@cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=_release_all)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _start_of(pid: int) -> str:
    """Return when a process of this machine was started, in ticks; empty where none can tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return ""


def _read_holder(path: Path) -> _Holder | None:
    try:
        holder = _parse_holder(path.read_bytes()[:4096])
    except OSError:
        return None
    return holder if holder.host else None


def _parse_holder(raw: bytes) -> _Holder:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return _Holder()
    return _holder(data, released=isinstance(data, dict) and data.get("released") is True)


def _holder(data: object, *, released: bool) -> _Holder:
    try:
        assert isinstance(data, dict)
        return _Holder(
            pid=int(data["pid"]),
            host=str(data["host"]),
            token=str(data.get("owner", "")),
            started=str(data.get("started", "")),
            released=released,
        )
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError):
        return _Holder()
