"""The runs under some directories, kept as they are now: found, read, judged, read again.

One loop looks at the sizes and times of files; what changed is read again, and judged after that.
Everything is bounded: runs, bytes of rows on disk, readers at once, and the share of the time that
goes into a run that grows.
"""

import asyncio
import hashlib
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import numpy as np

from trimtab.masking import masked_text
from trimtab.readers.folders import FolderCount, files_under, runs_under
from trimtab.report.overview import shortened_together
from trimtab.serve.appended import Appended, ReadMark, read_appended
from trimtab.serve.curves import Curves
from trimtab.serve.jobs import JudgedRun, ReadRun, judge_source, read_source
from trimtab.text import plain

__all__ = ["MAX_RUNS", "Library", "Run"]

T = TypeVar("T")
Given = TypeVarTuple("Given")

MAX_RUNS = 2_000
"""Runs that are listed; of more the first by name."""
LOOK_S = 0.5
"""Seconds between two looks at a run that changed in the last hour."""
QUIET_LOOK_S = 5.0
"""The same for all others; and for new runs."""
_RECENT_S = 3_600.0
_READING_SHARE, _WHOLE_SHARE = 0.5, 0.02
"""Largest share of the time that a growing run is being read whole: a log that takes 4 s to read is
read every 8 s. The second one where what is appended can be read alone meanwhile."""
_JUDGING_SHARE = 0.1
MAX_CACHE_BYTES = 4 << 30
"""Rows on disk; the runs that nobody looked at for longest are dropped and read again on demand."""


@dataclass
class Source:
    """A file or directory that holds one run, seldom several."""

    path: Path
    signature: object = None
    changed_at: float = 0.0
    looked_at: float = 0.0
    read_after: float = 0.0
    """Not to be read again before this time, of the monotonic clock."""
    judge_after: float = 0.0
    reading: bool = False
    judging: bool = False
    stale_rows: bool = True
    """It changed since it was last looked into."""
    stale_whole: bool = False
    """What was appended was read alone since it was last read whole."""
    mark: ReadMark | None = None
    """Where that begins."""
    stale_verdict: bool = True
    version: int = 0
    read_s: float = 0.0
    runs: list[str] = field(default_factory=list)


@dataclass
class Run:
    """One run, as it is known now."""

    id: str
    name: str
    source: Source
    title: str = ""
    read: ReadRun | None = None
    judged: JudgedRun | None = None
    rows_version: int = 0
    verdict_version: int = 0
    used_at: float = 0.0
    size_bytes: int = 0
    appended: Appended | None = None
    """Rows that were written since it was read whole."""

    def listed(self) -> dict[str, object]:
        """Return the line of the list as JSON values."""
        read, judged = self.read, self.judged
        error = (read.error if read else "") or (judged.error if judged else "")
        state = "error" if error else "reading" if read is None else "ready"
        if state == "ready" and judged is None:
            state = "judging"
        facts = read.facts if read else {}
        return {
            "id": self.id,
            "title": self.title,
            "state": state,
            "error": error,
            "rows": facts.get("rows"),
            "step": facts.get("last_step"),
            "loss": facts.get("last_loss"),
            "axis": facts.get("axis", "step"),
            "format": facts.get("format", ""),
            "changed": self.source.changed_at or None,
            "verdict": judged.verdict if judged else "",
            "standing": judged.standing if judged else "",
            "said": judged.said if judged else "",
            "incidents": list(judged.incidents) if judged else [],
            "saved": judged.saved if judged else "",
            "cost": judged.cost if judged else "",
            "read_s": round(self.source.read_s, 2),
            "version": self.rows_version,
        }


class Library:
    """All runs; used from one event loop."""

    def __init__(self, roots: Sequence[Path], *, cache: Path | None = None) -> None:
        """Keep where to look; `start` begins.

        Args:
            roots: Run directories, logs, or directories of them.
            cache: Where rows are kept; None: a temporary directory, removed by `stop`.
        """
        self.roots = tuple(roots)
        self.runs: dict[str, Run] = {}
        self.left_out = 0
        """Runs beyond `MAX_RUNS`."""
        self._sources: dict[Path, Source] = {}
        self._cache = cache
        self._listeners: list[Callable[[dict[str, object]], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._readers: ProcessPoolExecutor | None = None
        self._judges: ProcessPoolExecutor | None = None
        self._opened: dict[str, tuple[str, Curves]] = {}
        self._wanted: set[str] = set()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._others: set[int | None] = set()
        """Processes of whoever embeds this, which are not ours to end."""
        self._stopped = False

    async def start(self) -> None:
        """Find the runs and begin to read them."""
        if self._cache is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="trimtab-serve-")
            self._cache = Path(self._temporary.name)
        self._new_pools()
        await self._find()
        self._spawn(self._follow())

    def _new_pools(self) -> None:
        if self._readers is None:
            self._others = {child.pid for child in multiprocessing.active_children()}
        # spawn: a fork of a process with threads may stand still
        context = multiprocessing.get_context("spawn")
        self._readers = ProcessPoolExecutor(2, mp_context=context)
        self._judges = ProcessPoolExecutor(1, mp_context=context)

    async def stop(self) -> None:
        """End the readers and remove what was written."""
        self._stopped = True
        # a process at work would be waited for at the end, and judging a long run takes a minute
        for child in multiprocessing.active_children():
            if child.pid not in self._others:
                child.terminate()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in (self._readers, self._judges):
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        self._opened.clear()
        if self._temporary is not None:
            self._temporary.cleanup()

    def listen(self, listener: Callable[[dict[str, object]], None]) -> Callable[[], None]:
        """Call a function at each change; return what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def end(self) -> None:
        """Tell all who listen that nothing more comes."""
        self._tell({"kind": "end"})

    def curves(self, run: Run) -> Curves | None:
        """Return the rows of a run; None while they are not read, and then they soon are."""
        run.used_at = time.monotonic()
        if run.read is None or not run.read.folder:
            if run.read is None:
                self._wanted.add(run.id)
            return None
        held = self._opened.get(run.id)
        if held is None or held[0] != run.read.folder:
            try:
                held = run.read.folder, Curves.open(Path(run.read.folder))
            except OSError:
                run.read, run.source.stale_rows = None, True
                return None
            self._opened[run.id] = held
        return held[1] if run.appended is None else held[1].with_appended(run.appended)

    def listed(self) -> list[dict[str, object]]:
        """Return all runs as JSON values, those that ask for action first."""
        return [run.listed() for run in sorted(self.runs.values(), key=lambda r: r.title)]

    def _tell(self, event: dict[str, object]) -> None:
        for listener in list(self._listeners):
            listener(event)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _find(self) -> None:
        paths, left_out = await asyncio.to_thread(_sources_under, self.roots)
        self.left_out = left_out
        fresh = [p for p in paths if p not in self._sources]
        gone = self._sources.keys() - set(paths)
        for path in gone:
            source = self._sources[path]
            if source.reading or source.judging:
                continue  # at the next look
            del self._sources[path]
            for key in source.runs:
                if (run := self.runs.pop(key, None)) is not None:
                    self._forget(run)
        for path in fresh:
            self._sources[path] = source = Source(path=path)
            self._add(source, str(path))
        if fresh or gone:
            self._name()
            self._tell({"kind": "list"})

    def _add(self, source: Source, name: str) -> Run:
        key = hashlib.blake2s(name.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
        if key not in self.runs:
            self.runs[key] = Run(id=key, name=name, source=source)
            source.runs.append(key)
        return self.runs[key]

    def _name(self) -> None:
        """Name the runs by what tells them apart."""
        roots = [str(root.absolute()) for root in self.roots]
        runs = list(self.runs.values())
        names = []
        for run in runs:
            name = str(Path(run.name).absolute())
            base = max((r for r in roots if name.startswith(r + "/")), key=len, default="")
            named = name[len(base) + 1 :] if base else Path(name).name
            names.append(masked_text(plain(named, limit=300)))
        for run, title in zip(runs, shortened_together(names, limit=80), strict=True):
            run.title = title

    async def _follow(self) -> None:
        found_at = time.monotonic()
        while not self._stopped:
            now = time.monotonic()
            if now - found_at >= QUIET_LOOK_S:
                found_at = now
                await self._find()
            for source in list(self._sources.values()):
                recent = time.time() - source.changed_at < _RECENT_S
                if now - source.looked_at >= (LOOK_S if recent else QUIET_LOOK_S) * 0.9:
                    source.looked_at = now
                    await self._look(source)
            self._begin(now)
            await asyncio.sleep(LOOK_S / 2)

    async def _look(self, source: Source) -> None:
        signature, changed_at = await asyncio.to_thread(_signature, source.path)
        if signature != source.signature:
            source.signature, source.changed_at = signature, changed_at
            source.stale_rows = source.stale_verdict = True

    def _begin(self, now: float) -> None:
        """Begin what is due; those that somebody looks at come first."""
        wanted = {self.runs[i].source.path for i in self._wanted if i in self.runs}
        order = sorted(
            (s for s in self._sources.values() if s.signature is not None),
            key=lambda s: (s.path not in wanted, -s.changed_at),
        )
        reading = sum(s.reading for s in order)
        judging = sum(s.judging for s in order)
        for source in order:
            alone = source.stale_rows and source.mark is not None
            stale = source.stale_rows or source.stale_whole
            if stale and not source.reading and (alone or now >= source.read_after):
                if reading < 2:
                    reading += 1
                    source.reading, source.stale_rows = True, False
                    self._spawn(self._read_appended(source) if alone else self._read(source))
            elif (
                source.stale_verdict
                and not source.reading
                and not source.judging
                and source.version
                and now >= source.judge_after
                and judging < 1
            ):
                judging += 1
                source.judging, source.stale_verdict = True, False
                self._spawn(self._judge(source))

    async def _read_appended(self, source: Source) -> None:
        assert source.mark is not None
        try:
            found = await self._run(self._readers, read_appended, source.mark)
        finally:
            source.reading = False
        source.stale_whole = True
        if found is None:  # the rest is not as what stands before it
            source.mark = None
            return
        for run in (self.runs[i] for i in source.runs):
            if run.read is not None:
                run.read = replace(run.read, facts=_with_appended(run, found))
                run.appended = found
                run.rows_version += 1
                self._tell({"kind": "rows", "id": run.id, "version": run.rows_version})

    async def _read(self, source: Source) -> None:
        assert self._cache is not None
        source.stale_whole, source.mark = False, None
        begun = time.monotonic()
        version = source.version + 1
        own = hashlib.blake2s(str(source.path).encode("utf-8", "surrogateescape"), digest_size=6)
        folder = self._cache / f"{own.hexdigest()}-{version}"
        try:
            found = await self._run(self._readers, read_source, str(source.path), str(folder))
        finally:
            source.reading = False
        if found is None:
            found = (
                ReadRun(name=str(source.path), error="the process that read it ended; too large?"),
            )
        source.version = version
        source.read_s = time.monotonic() - begun
        source.mark = found[0].mark if len(found) == 1 else None
        share = _READING_SHARE if source.mark is None else _WHOLE_SHARE
        source.read_after = time.monotonic() + source.read_s * (1 / share - 1)
        old = {run.read.folder for i in source.runs if (run := self.runs[i]).read is not None}
        self._take(source, found)
        for path in old - {r.folder for r in found} - {""}:
            shutil.rmtree(path, ignore_errors=True)
        self._trim()

    def _take(self, source: Source, found: Sequence[ReadRun]) -> None:
        names = {r.name for r in found}
        if str(source.path) not in names:  # its runs have names of their own
            for key in [i for i in source.runs if self.runs[i].name not in names]:
                del self.runs[key]
                source.runs.remove(key)
        for read in found:
            run = self._add(source, read.name)
            run.read, run.appended = read, None
            run.rows_version += 1
            run.size_bytes = _size(read.folder)
            self._wanted.discard(run.id)
        self._name()
        for i in source.runs:
            self._tell({"kind": "rows", "id": i, "version": self.runs[i].rows_version})

    async def _judge(self, source: Source) -> None:
        assert self._cache is not None
        begun = time.monotonic()
        ids = {self.runs[i].name: (i, self.runs[i].title) for i in source.runs}
        folder = self._cache / "pages"
        try:
            found = await self._run(self._judges, judge_source, str(source.path), ids, str(folder))
        finally:
            source.judging = False
        took = time.monotonic() - begun
        source.judge_after = time.monotonic() + took * (1 / _JUDGING_SHARE - 1)
        by_name = {j.name: j for j in found or ()}
        for i in source.runs:
            run = self.runs[i]
            lost = JudgedRun(name=run.name, error="the process that judged it ended; too large?")
            run.judged = by_name.get(run.name, run.judged if found is not None else lost)
            run.verdict_version += 1
            self._tell({"kind": "verdict", "id": i})

    async def _run(
        self, pool: ProcessPoolExecutor | None, work: Callable[[*Given], T], *given: *Given
    ) -> T | None:
        """Return what a job gives; None where its process ended."""
        assert pool is not None
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work, *given)
        except BrokenProcessPool:
            if not self._stopped:
                self._new_pools()
            return None

    def _forget(self, run: Run) -> None:
        """Drop the rows of a run."""
        if run.read is not None and run.read.folder:
            shutil.rmtree(run.read.folder, ignore_errors=True)
        self._opened.pop(run.id, None)
        run.size_bytes = 0

    def _trim(self) -> None:
        """Drop the rows of runs that nobody looked at for longest, until the rest has room."""
        total = sum(run.size_bytes for run in self.runs.values())
        for run in sorted(self.runs.values(), key=lambda r: r.used_at):
            if total <= MAX_CACHE_BYTES:
                return
            if run.read is not None and run.read.folder and run.size_bytes:
                total -= run.size_bytes
                self._forget(run)


def _with_appended(run: Run, found: Appended) -> dict[str, object]:
    assert run.read is not None
    facts = run.read.facts
    before = 0 if run.appended is None else run.appended.num_rows
    told = {"rows": int(str(facts["rows"])) - before + found.num_rows, "last_step": found.step}
    _, loss = found.rows.get("loss", (np.zeros(0), np.zeros(0)))
    finite = loss[np.isfinite(loss)]
    return {**facts, **told, **({"last_loss": float(finite[-1])} if len(finite) else {})}


def _sources_under(roots: Sequence[Path]) -> tuple[list[Path], int]:
    found: dict[Path, None] = {}
    for root in roots:
        if root.is_dir():
            inside = (run.source for run in runs_under(root, FolderCount()))
            found |= dict.fromkeys(path for path in inside if not _leads_out(path, root))
        else:
            found[root] = None
    paths = list(found)
    return paths[:MAX_RUNS], max(len(paths) - MAX_RUNS, 0)


def _leads_out(path: Path, root: Path) -> bool:
    """Tell whether a link leads out of the folder that is served: what lies there was not given."""
    return path.is_symlink() and not path.resolve().is_relative_to(root.resolve())


_NO_ROWS = frozenset({".pt", ".pth", ".safetensors", ".distcp", ".lock"})


def _signature(path: Path) -> tuple[object, float]:
    """Return what changes when a source does, and when it last did; an empty one where it is gone.

    Checkpoints are left out: they are many files, and say nothing of rows.
    """
    try:
        if not path.is_dir():
            s = path.stat()
            return (s.st_ino, s.st_size, s.st_mtime_ns), s.st_mtime
        stats = []
        for here in (path, path / "signals", path / "signals" / "layers"):
            if here == path and (path / "signals").is_dir():
                files = [f for f in here.iterdir() if f.is_file()]
            elif here == path:
                files = list(files_under(path))
            else:
                files = list(here.iterdir()) if here.is_dir() else []
            for file in files:
                if file.suffix not in _NO_ROWS and file.is_file():
                    s = file.stat()
                    stats.append((str(file), s.st_size, s.st_mtime_ns))
        newest = max((ns for _, _, ns in stats), default=0) / 1e9
        return tuple(sorted(stats)), newest
    except OSError:
        return (), 0.0


def _size(folder: str) -> int:
    try:
        return sum(f.stat().st_size for f in Path(folder).iterdir()) if folder else 0
    except OSError:
        return 0
