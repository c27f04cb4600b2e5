"""Runs damaged inputs in limited processes, and keeps totals by seed.

Every input is one number of a seed: the same number gives the same input again. A process forked
for a chunk of inputs runs them one after the other; the parent watches the clock and restarts it
behind an input that ends it. A failure is a death by a signal, an exception, more than
`LIMIT_S` seconds or more than `LIMIT_BYTES` of memory.
"""

import contextlib
import json
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

__all__ = ["LIMIT_BYTES", "LIMIT_S", "Failure", "FuzzTotals", "Trial", "fuzz"]

LIMIT_S = 10.0
"""Seconds that one input may take."""
LIMIT_BYTES = 1 << 30
"""Resident memory by which one input may grow the process."""
CHUNK = 500
_BACKSTOP_BYTES = 3 << 30
"""Address space beyond what the process has, so that a bomb fails before the machine does."""
_LEAST_CPU_S = 5.0
"""Of its own time: on a machine that is busy with others, an input waits and is not slow."""
_HUNG_S = 90.0
"""An input that takes so long is ended, whatever it is at."""
_SAVE_EVERY_S = 5.0
_PROGRESS = struct.Struct("<qdqq")
"""Input under way, when it began, inputs that were read, inputs that were refused."""


class OverTimeError(BaseException):
    """One input took longer than `LIMIT_S`; no `except Exception` may take it for its own."""


class Trial(Protocol):
    """One kind of input: how it is made, and what must hold of it."""

    def input(self, rng: random.Random, folder: Path) -> None:
        """Write the next input into an empty folder."""

    def examine(self, folder: Path) -> bool:
        """Read it; True where it was read, False where it was refused as it should be."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Inputs that failed in one way at one place."""

    what: str
    """`died`, `exception`, `time` or `memory`."""
    where: str
    """Kind of exception and place in the code, or the signal."""
    first: int
    """Number of the first such input."""
    saved: str
    """Folder that holds it."""
    count: int = 1


@dataclass
class FuzzTotals:
    """What became of the inputs of one harness and seed."""

    what: str
    seed: int
    num_run: int = 0
    num_read: int = 0
    """Inputs that were read in spite of their damage."""
    num_refused: int = 0
    """Inputs that were refused with one sentence."""
    seconds: float = 0.0
    chunks: list[int] = field(default_factory=list)
    """Chunks that are done."""
    failures: dict[str, Failure] = field(default_factory=dict)

    @property
    def num_failed(self) -> int:
        """Inputs that failed."""
        return sum(f.count for f in self.failures.values())


def fuzz(
    what: str,
    make: Callable[[Path], Trial],
    *,
    num: int,
    seed: int = 0,
    jobs: int = 1,
    out: Path | None = None,
    say: Callable[[str], None] = lambda _line: None,
    only: int | None = None,
) -> FuzzTotals:
    """Run `num` inputs of a seed, or go on where the totals in `out` end.

    Args:
        what: Name of the harness; part of the seed of each input.
        make: Makes the trial; the folder is for its seeds.
        num: Inputs in all; with `out`, whole chunks of them.
        seed: Seed of the inputs.
        jobs: Processes at a time.
        out: JSON file of the totals; failing inputs are saved in `OUT.failures/`.
        say: Told about progress.
        only: Run this one input, in this process, and let it raise.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_memory_folder()) as scratch:
        place = Path(scratch)
        (place / "seeds").mkdir()
        trial = make(place / "seeds")
        if only is not None:
            with _input(trial, what, seed, only, place / "one") as folder:
                return _alone(trial, FuzzTotals(what, seed), folder)
        return _Campaign(what, seed, trial, place, out, say).run(num, max(jobs, 1))


def _alone(trial: Trial, totals: FuzzTotals, folder: Path) -> FuzzTotals:
    read = trial.examine(folder)
    totals.num_run, totals.num_read, totals.num_refused = 1, int(read), int(not read)
    return totals


def _memory_folder() -> str | None:
    """Return a folder in memory where there is one: an input is a file for a moment."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextlib.contextmanager
def _input(trial: Trial, what: str, seed: int, number: int, folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    trial.input(random.Random(f"{what}/{seed}/{number}"), folder)
    yield folder


@dataclass
class _Worker:
    """One process and the chunk it is at."""

    pid: int
    chunk: int
    end: int
    progress: mmap.mmap
    folder: Path
    pipe: int
    """Where the process writes its failure, if any."""
    num_read: int
    """Of the chunk, by the processes before this one."""
    num_refused: int
    num_failed: int

    def seen(self) -> tuple[int, float, int, int]:
        number, began, read, refused = _PROGRESS.unpack_from(self.progress)
        return int(number), float(began), int(read), int(refused)

    def is_hung(self) -> bool:
        """Whether it has been at one input for too long."""
        began = self.seen()[1]
        return time.monotonic() - began > _HUNG_S and self.seen()[1] == began > 0


class _Campaign:
    """All inputs of one harness and seed."""

    def __init__(
        self,
        what: str,
        seed: int,
        trial: Trial,
        place: Path,
        out: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self._what, self._seed, self._trial, self._place = what, seed, trial, place
        self._out, self._say = out, say
        self.totals = _load(out, what, seed)
        self._saved_at = time.monotonic()

    def run(self, num: int, jobs: int) -> FuzzTotals:
        if self._out is not None:
            num = -(-num // CHUNK) * CHUNK  # a chunk is done or not: totals count nothing twice
        done = set(self.totals.chunks)
        todo = [c for c in range(-(-num // CHUNK)) if c not in done]
        workers: list[_Worker] = []
        began, before = time.monotonic(), self.totals.seconds
        try:
            while todo or workers:
                while todo and len(workers) < jobs:
                    chunk = todo.pop(0)
                    first, end = chunk * CHUNK, min((chunk + 1) * CHUNK, num)
                    workers.append(self._start(chunk, first, end, (0, 0, 0)))
                time.sleep(0.02)
                workers = [w for old in workers for w in self._watch(old)]
                self.totals.seconds = before + time.monotonic() - began
                self._save()
        finally:
            for worker in workers:
                with contextlib.suppress(OSError):  # waited for already
                    os.kill(worker.pid, signal.SIGKILL)
                    os.waitpid(worker.pid, 0)
            self._save(now=True)
        return self.totals

    def _start(self, chunk: int, first: int, end: int, so_far: tuple[int, int, int]) -> _Worker:
        progress = mmap.mmap(-1, _PROGRESS.size)
        progress[:] = _PROGRESS.pack(first, time.monotonic(), 0, 0)
        folder = self._place / f"chunk-{chunk}"
        receives, sends = os.pipe()
        with warnings.catch_warnings():
            # Only threads of libraries that wait for work exist here; the child uses none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(receives)
            code = 3
            try:
                code = self._inputs(first, end, progress, folder, sends)
            finally:
                os._exit(code)
        os.close(sends)
        return _Worker(pid, chunk, end, progress, folder, receives, *so_far)

    def _inputs(self, first: int, end: int, progress: mmap.mmap, folder: Path, failed: int) -> int:
        """Run inputs one after the other, in the child; ends at the first that fails."""
        began_cpu = [0.0]
        _limit(began_cpu)
        counts = [0, 0]
        base = _resident_peak()
        for number in range(first, end):
            # Copied whole: `pack_into` zeroes the place first, and the parent may look just then.
            progress[:] = _PROGRESS.pack(number, time.monotonic(), counts[1], counts[0])
            try:
                with _input(self._trial, self._what, self._seed, number, folder) as made:
                    began_cpu[0] = time.process_time()
                    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
                    counts[self._trial.examine(made)] += 1
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is a failure
                signal.setitimer(signal.ITIMER_REAL, 0)
                _tell(failed, _kind(error), _where(error), error)
                return 1
            if _resident_peak() - base > LIMIT_BYTES:
                _tell(failed, "memory", f"grew by {(_resident_peak() - base) >> 20} MiB", None)
                return 1
        progress[:] = _PROGRESS.pack(end, time.monotonic(), counts[1], counts[0])
        shutil.rmtree(folder, ignore_errors=True)
        return 0

    def _watch(self, worker: _Worker) -> list[_Worker]:
        """Return what runs on of a worker: itself, one behind a failed input, or nothing."""
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if not pid:
            if not worker.is_hung():
                return [worker]
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)
        number, _, read, refused = worker.seen()
        if not pid:
            self._fail(worker, number, "time", "in code that no signal interrupts", "")
        elif os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            self._fail(worker, number, "died", name, "")
        elif os.WEXITSTATUS(status):
            kind, where, trace = _told(worker.pipe)
            self._fail(worker, number, kind, where, trace)
        os.close(worker.pipe)
        read, refused = read + worker.num_read, refused + worker.num_refused
        failed = worker.num_failed + (number < worker.end)
        if number + 1 < worker.end:
            return [self._start(worker.chunk, number + 1, worker.end, (read, refused, failed))]
        self.totals.num_read += read
        self.totals.num_refused += refused
        self.totals.num_run += read + refused + failed
        self.totals.chunks.append(worker.chunk)
        self._say(
            f"fuzz {self._what} seed {self._seed}: {self.totals.num_run:,} run,"
            f" {self.totals.num_read:,} read, {self.totals.num_failed:,} failed"
        )
        return []

    def _fail(self, worker: _Worker, number: int, what: str, where: str, trace: str) -> None:
        key = f"{what} {where}"
        known = self.totals.failures.get(key)
        if known is not None:
            self.totals.failures[key] = Failure(**{**asdict(known), "count": known.count + 1})
            return
        saved = ""
        if self._out is not None:
            target = self._out.with_suffix(".failures") / f"{self._what}-{self._seed}-{number}"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(worker.folder, target, symlinks=True)
            if trace:
                (target / "traceback.txt").write_text(trace, errors="backslashreplace")
            saved = str(target)
        failure = Failure(what=what, where=where, first=number, saved=saved)
        self.totals.failures[key] = failure
        self._say(f"fuzz {self._what}: input {number}: {key}; saved in {saved or 'no place'}")

    def _save(self, *, now: bool = False) -> None:
        if self._out is None or not (now or time.monotonic() - self._saved_at > _SAVE_EVERY_S):
            return
        self._saved_at = time.monotonic()
        _store(self._out, self.totals)


def _limit(began_cpu: list[float]) -> None:
    """Bound the time and the memory of this process, and be quiet.

    `began_cpu` holds the process time at which the input under way began.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        if time.process_time() - began_cpu[0] > _LEAST_CPU_S:
            raise OverTimeError(f"still at it after {LIMIT_S:g} s")
        signal.setitimer(signal.ITIMER_REAL, 1.0)

    signal.signal(signal.SIGALRM, stop)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + _BACKSTOP_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)


def _resident_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _kind(error: BaseException) -> str:
    if isinstance(error, OverTimeError):
        return "time"
    return "memory" if isinstance(error, MemoryError) else "exception"


def _where(error: BaseException) -> str:
    """Return the exception and the innermost place in this project, which tells failures apart."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/trimtab/" in f.filename] or list(frames)
    last = own[-1] if own else None
    place = f"{Path(last.filename).name}:{last.name}:{last.lineno}" if last else "?"
    if isinstance(error, AssertionError):
        place += f" ({str(error)[:80]})"
    return f"{type(error).__name__} {place}"


def _tell(pipe: int, kind: str, where: str, error: BaseException | None) -> None:
    trace = "".join(traceback.format_exception(error)) if error is not None else ""
    told = json.dumps([kind, where, trace[-20_000:]]).encode()
    os.write(pipe, told[:60_000] if len(told) <= 60_000 else json.dumps([kind, where, ""]).encode())


def _told(pipe: int) -> tuple[str, str, str]:
    try:
        kind, where, trace = json.loads(os.read(pipe, 65_536))
    except ValueError:
        return "died", "without a word", ""
    return str(kind), str(where), str(trace)


def _load(out: Path | None, what: str, seed: int) -> FuzzTotals:
    known = _stored(out).get(f"{what}/{seed}") if out is not None else None
    if known is None:
        return FuzzTotals(what, seed)
    failures = {key: Failure(**told) for key, told in known.pop("failures").items()}
    return FuzzTotals(**known, failures=failures)


def _stored(out: Path) -> dict[str, dict[str, Any]]:
    return json.loads(out.read_text()) if out.exists() else {}


def _store(out: Path, totals: FuzzTotals) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    stored = {**_stored(out), f"{totals.what}/{totals.seed}": asdict(totals)}
    beside = out.with_suffix(".tmp")
    beside.write_text(json.dumps(stored, indent=1))
    beside.replace(out)
