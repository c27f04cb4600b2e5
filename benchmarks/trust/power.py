"""Cuts the power of real runs, on a model of the disk, and goes on from what is left.

Every change that a run makes to its files is recorded (`power_tape`); from the operations the
states are made that a disk may be in after a cut (`power_disk`). From each the run is gone on with,
in a process forked from one that has torch loaded, and the end is compared with that of the
unbroken run. Recordings and results are kept in a folder: a measurement that was stopped goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.trust.power_disk import Cut, Disk, Tree, differences, every_cut, write_tree
from benchmarks.trust.power_runs import RUNS, End, Run, go_on, run_directory
from benchmarks.trust.power_tape import ROOT, Operation, Tape
from trimtab.chronicle.journal import Journal
from trimtab.errors import TrimtabError
from trimtab.plan.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["Judged", "Recording", "cut_power", "holds", "power_table", "promised", "record"]

_LONGEST_S = 300.0
"""A run that takes longer to go on and end hangs."""
_LOST = "runs"
"""What of the disk is gone where it is lost."""


@dataclass(frozen=True)
class Recording:
    """One run as it was recorded, unbroken."""

    run: Run
    operations: Sequence[Operation]
    end: End
    files: Mapping[str, bytes]
    """Journal and rows at the end, by their path on the disk: a promise is a beginning of them."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What came of one state."""

    run: str
    key: str
    how: str
    done: int
    verdict: str
    """kept, refused or lost; no run is judged by anything else."""
    problems: tuple[str, ...] = ()


@dataclass
class Promised:
    """What a run had promised before a cut."""

    beginnings: dict[str, int] = field(default_factory=dict)
    """Bytes that each file must begin with, by its path on the disk."""
    checkpoint_step: int = 0
    """Step of the newest healthy checkpoint that it told of."""
    doubted: frozenset[int] = frozenset()
    """Steps of checkpoints that it called suspect or poisoned."""
    skips: tuple[tuple[int, int], ...] = ()


def record(run: Run, folder: Path) -> Recording:
    """Record a run in this process, whose functions of the system stay replaced.

    Raises:
        AssertionError: Not all that was written was recorded.
    """
    disk = folder / "disk"
    disk.mkdir()
    tape = Tape(disk)
    tape.install()
    _note_promises(tape, disk)
    torch.set_num_threads(1)
    end = go_on(run, disk, stops=run.stops)
    made = Disk(tape.operations)
    missed = differences(made.tree(Cut(len(tape.operations), "kept")), disk)
    assert not missed, f"{run.name}: not all was recorded: {missed[:5]}"
    root = run_directory(disk)
    files = {
        path.relative_to(disk).as_posix(): path.read_bytes()
        for path in (root / "journal.jsonl", *(root / "signals").glob("*.jsonl"))
    }
    return Recording(run, tape.operations, end, files)


def _note_promises(tape: Tape, disk: Path) -> None:
    """Mark on the tape what is promised, when the call that promises it has returned."""
    append = Journal.append
    root = run_directory(disk)

    def appended(self: Journal, event: str, *, attempt: str, step: int, **data: object) -> None:
        append(self, event, attempt=attempt, step=step, **data)
        if self.path == root / "journal.jsonl":
            kept = {k: data[k] for k in ("path", "grade", "standing") if k in data}
            tape.mark(event=event, step=step, size=self.path.stat().st_size, data=kept)

    Journal.append = appended  # type: ignore[method-assign]


def _rows_written(operations: Sequence[Operation]) -> dict[int, tuple[str, int, int]]:
    """Return, of each write of rows, the file, its size then, and the rows so far."""
    folders, files = set[int](), dict[int, str]()
    found: dict[int, tuple[str, int, int]] = {}
    num_rows: Counter[int] = Counter()
    root = run_directory(Path())
    nodes = {ROOT: Path()}
    for i, o in enumerate(operations):
        if o.kind == "make":
            nodes[o.node] = nodes[o.folder] / o.name
            if nodes[o.node] == root / "signals":
                folders.add(o.node)
            elif o.folder in folders and o.name.endswith(".jsonl"):
                files[o.node] = nodes[o.node].as_posix()
        elif o.kind == "write" and o.node in files:
            num_rows[o.node] += o.data.count(b"\n")
            found[i] = files[o.node], o.offset + len(o.data), num_rows[o.node]
    return found


def promised(recording: Recording, cut: Cut) -> Promised:
    """Return what had been promised when the power went."""
    if recording.run.loses_disk:
        return Promised()
    found, every = Promised(), Policy(**recording.run.policy).sync_rows_every_steps
    journal = run_directory(Path()).as_posix() + "/journal.jsonl"
    grades: dict[int, str] = {}
    rows: dict[str, list[tuple[int, int]]] = {}
    written = _rows_written(recording.operations)
    marks = [(i, o.told) for i, o in enumerate(recording.operations) if o.kind == "mark"]
    for i, o in enumerate(recording.operations[: cut.done]):
        if i in written:
            path, size, number = written[i]
            own = rows.setdefault(path, [])
            own.append((size, number))
            old = [size for size, n in own if n <= number - every]
            found.beginnings[path] = max(*old[-1:], 0, found.beginnings.get(path, 0))
        if o.kind == "mark":
            found.beginnings[journal] = o.told["size"]
            found.beginnings.update({path: own[-1][0] for path, own in rows.items()})
            _grade(grades, o.told)
            standing = o.told["data"].get("standing")
            if isinstance(standing, dict):
                found.skips = tuple((a, b) for a, b in standing.get("skips", ()))
    found.doubted = frozenset(s for s, g in grades.items() if g in ("suspect", "poisoned"))
    told_of = {s for s, g in grades.items() if g == "healthy"}
    # What was being set aside when the power went may be gone from its place already.
    for _, told in (m for m in marks if m[0] >= cut.done):
        if told["event"] == "checkpoint" and told["data"]["grade"] == "healthy":
            break
        _grade(grades, told)
    still = {s for s in told_of if grades.get(s) == "healthy"}
    found.checkpoint_step = max(still, default=0)
    return found


def _grade(grades: dict[int, str], told: Mapping[str, Any]) -> None:
    if told["event"] == "checkpoint":
        name = Path(told["data"]["path"]).name.partition(".")[0]
        grades[int(name.removeprefix("step-"))] = told["data"]["grade"]


def _problems(recording: Recording, cut: Cut, end: End, disk: Path) -> list[str]:
    """Name what was promised and is not there."""
    run, whole, told = recording.run, recording.end, promised(recording, cut)
    found = []
    for name, size in told.beginnings.items():
        path = disk / name
        data = path.read_bytes() if path.exists() else b""
        if not data.startswith(recording.files[name][:size]):
            found.append(f"{Path(name).name} lost what was promised")
    if end.began_at < told.checkpoint_step:
        where = "step 0" if not end.began_at else "an older checkpoint than was promised"
        found.append(f"resumed from {where}")
    if end.began_at in told.doubted:
        found.append("resumed from a checkpoint that was called suspect or poisoned")
    if not set(told.skips) <= set(end.skipped_at_first):
        found.append("data that was left out is fed again")
    if any(end.losses[step] != whole.losses.get(step) for step in end.losses):
        found.append("other losses than the unbroken run")
    missing = len(set(whole.losses) - set(end.losses))
    if missing > Policy(**run.policy).sync_rows_every_steps and not run.loses_disk:
        found.append("more rows are gone than one interval of syncs")
    if end.state != whole.state or end.skipped != whole.skipped:
        found.append("another state at the end than the unbroken run")
    if end.faults:
        found.append(f"a fault of trimtab's own: {end.faults[0][:100]}")
    return found


def _judge(recording: Recording, cut: Cut, tree: Tree) -> tuple[str, list[str]]:
    """Go on from a state, in this process; return the verdict and what is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="trimtab-power-"))
    try:
        write_tree(tree, folder)
        try:
            end = go_on(recording.run, folder)
        except TrimtabError as error:
            return "refused", [f"refused: {str(error).replace(str(folder), '')[:200]}"]
        problems = _problems(recording, cut, end, folder)
        return ("lost" if problems else "kept"), problems
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- many of them ---------------------------------------------------------------------------


def cut_power(
    out: Path,
    *,
    states: int,
    seed: int = 0,
    jobs: int = 1,
    runs: Sequence[Run] = RUNS,
    say: Callable[[str], None] = lambda _line: None,
) -> list[Judged]:
    """Judge so many states of the runs, or take what was judged before; return all of them.

    Args:
        out: Folder that keeps recordings and results.
        states: States in all, over the runs by their weight.
        seed: Draws the samples, and the states that are judged of all there are.
        jobs: Processes at a time.
        runs: What is recorded.
        say: Shows one line to the user.
    """
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.jsonl"
    known = {(j.run, j.key): j for j in _read(results)}
    total, found = sum(run.weight for run in runs), []
    with results.open("a", encoding="utf-8") as file:
        for run in runs:
            recording = _recorded(run, out)
            share = -(-states * run.weight // total)
            chosen = _choose(recording, share, seed)
            todo = [c for c in chosen if (run.name, c[0].key) not in known]
            say(f"{run.name}: {len(chosen)} states, {len(todo)} to be judged")
            for judged in _forked(recording, todo, jobs):
                known[run.name, judged.key] = judged
                file.write(json.dumps(judged.__dict__) + "\n")
                file.flush()
                if judged.verdict != "kept":
                    say(f"{run.name} {judged.key} {judged.how}: {'; '.join(judged.problems)}")
            found += [known[run.name, cut.key] for cut, _ in chosen]
    return found


def _read(path: Path) -> Iterator[Judged]:
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:  # it was stopped in mid-write
            continue
        yield Judged(**{**row, "problems": tuple(row["problems"])})


def _recorded(run: Run, out: Path) -> Recording:
    """Return the recording of a run that is kept, or make it in a process of its own."""
    path = out / f"{run.name}.recording"
    if not path.exists():
        child = os.fork()
        if child == 0:
            try:
                with tempfile.TemporaryDirectory(prefix="trimtab-power-") as folder:
                    data = pickle.dumps(record(run, Path(folder)))
                    partial = path.with_suffix(".partial")
                    partial.write_bytes(data)
                    partial.rename(path)
            except BaseException:  # noqa: BLE001 - the parent says that it failed
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            raise RuntimeError(f"{run.name}: cannot be recorded; see above")
    recording: Recording = pickle.loads(path.read_bytes())
    return recording


def _choose(recording: Recording, number: int, seed: int) -> list[tuple[Cut, Tree]]:
    """Return so many states that differ in what is found or in what was promised.

    Samples of long stretches and the cuts that are enumerated in full come in turns.
    """
    disk = Disk(recording.operations)
    steps = ((i, o.told.get("step", -1)) for i, o in enumerate(recording.operations) if o.told)
    first = next((i for i, s in steps if s >= recording.run.cuts_from_step), 0)
    cuts = list(every_cut(disk, seed=seed, first=first if recording.run.cuts_from_step else 0))
    rng = random.Random(seed)
    rng.shuffle(cuts)
    # One of the few that are enumerated in full, one of the many samples, and so on.
    in_full = [c for c in cuts if c.how != "sample"]
    samples = [c for c in cuts if c.how == "sample"]
    both = zip(in_full, samples, strict=False)
    rest = in_full[len(samples) :] + samples[len(in_full) :]
    cuts = [cut for pair in both for cut in pair] + rest
    seen: set[bytes] = set()
    chosen = []
    for cut in cuts:
        tree = disk.tree(cut)
        if recording.run.loses_disk:
            tree = {n: d for n, d in tree.items() if n.partition("/")[0] != _LOST}
        what = hashlib.sha256(repr(promised(recording, cut)).encode())
        for name, data in sorted(tree.items()):
            what.update(f"{name} {None if data is None else len(data)} ".encode() + (data or b""))
        if what.digest() not in seen:
            seen.add(what.digest())
            chosen.append((cut, tree))
        if len(chosen) == number:
            break
    return chosen


def _forked(recording: Recording, todo: Sequence[tuple[Cut, Tree]], jobs: int) -> Iterator[Judged]:
    """Judge each state in a process forked from this one."""
    torch.set_num_threads(1)
    waiting, at_work = list(todo)[::-1], dict[int, tuple[Cut, int, float]]()
    while waiting or at_work:
        while waiting and len(at_work) < jobs:
            cut, tree = waiting.pop()
            reads, writes = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reads)
                _child(recording, cut, tree, writes)
            os.close(writes)
            at_work[child] = (cut, reads, time.monotonic())
        child, _ = os.waitpid(-1, os.WNOHANG)
        for number, (_, _, since) in at_work.items():
            if time.monotonic() - since > _LONGEST_S:
                os.kill(number, signal.SIGKILL)
        if child not in at_work:
            time.sleep(0.005)
            continue
        cut, reads, _ = at_work.pop(child)
        with os.fdopen(reads, "rb") as pipe:
            answer = pipe.read()
        verdict, problems = json.loads(answer or b'["lost", ["the process died or hung"]]')
        yield Judged(
            run=recording.run.name,
            key=cut.key,
            how=cut.how,
            done=cut.done,
            verdict=verdict,
            problems=tuple(problems),
        )


def _child(recording: Recording, cut: Cut, tree: Tree, writes: int) -> None:
    """Judge one state, answer through the pipe, and end the process."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, sys.stderr.fileno() if hasattr(sys.stderr, "fileno") else 2)
    try:
        answer = _judge(recording, cut, tree)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the run did not go on
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        answer = ("lost", [f"did not go on: {text[:300]}"])
    os.write(writes, json.dumps(answer).encode())
    os._exit(0)


def holds(judged: Judged) -> bool:
    """Whether nothing was lost; where the run directory is gone too, a refusal is as promised."""
    may_refuse = any(r.loses_disk for r in RUNS if r.name == judged.run)
    return judged.verdict == "kept" or (may_refuse and judged.verdict == "refused")


def power_table(judged: Sequence[Judged], runs: Sequence[Run] = RUNS) -> str:
    """Return the table of what was kept, and each problem with a state that shows it."""
    head = f"{'run':<48} {'states':>7} {'kept':>7} {'refused':>8} {'lost':>6}"
    lines = [head]
    for run in runs:
        own = [j for j in judged if j.run == run.name]
        count = Counter(j.verdict for j in own)
        lines.append(
            f"{run.title:<48} {len(own):>7} {count['kept']:>7} {count['refused']:>8}"
            f" {count['lost']:>6}"
        )
    count = Counter(j.verdict for j in judged)
    lines.append(
        f"{'all':<48} {len(judged):>7} {count['kept']:>7} {count['refused']:>8} {count['lost']:>6}"
    )
    how = Counter(j.how for j in judged)
    lines.append("cuts: " + ", ".join(f"{n} {name}" for name, n in sorted(how.items())))
    problems = Counter((j.run, p) for j in judged for p in j.problems)
    for (name, problem), number in problems.most_common():
        shown = next(j.key for j in judged if j.run == name and problem in j.problems)
        lines.append(f"{number:>5} x {name} (such as {shown}): {problem}")
    return "\n".join(lines)
