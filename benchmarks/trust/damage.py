"""Damaged run directories: every part of every file, then the run is resumed.

A run that was killed on its way is copied, one thing in it is damaged, and the same script is
started again. It must go on with the same data to the same weights, or refuse with a sentence.
Other data, a start at step 0 and a traceback are failures.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from benchmarks.trust.forks import Ended, Result, run_alone, run_cases
from benchmarks.trust.totals import spread
from benchmarks.trust.training import BATCH, Outcome, Plan, train
from trimtab.chronicle.journal import Journal
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "CLASSES",
    "FAILURES",
    "DamageCase",
    "StoppedRun",
    "cases",
    "evenly",
    "measure",
    "prepare",
    "summary",
]

CLASSES = ("as-unbroken", "refused", "other-data", "step-0", "crashed", "traceback", "hang")
FAILURES = frozenset(CLASSES[2:])

_ROLLED = Plan(name="rolled-back", steps=100, bad_steps=(46, 53), save_every=6)
PLANS: dict[str, tuple[Plan, int]] = {
    plan.name: (plan, until)
    for plan, until in (
        (Plan(name="calm", steps=36, save_every=5), 23),
        (_ROLLED, 90),
        (replace(_ROLLED, name="in-trial", steps=90), 64),
        (replace(_ROLLED, name="second-place", copies=True), 90),
        (replace(_ROLLED, name="decided", save_every=40), 0),
        (Plan(name="by-hand", steps=40, save_every=10), 26),
    )
}
"""What is trained, and the step after which it is killed; 0: once an action is in the journal, and
before the checkpoint that holds it."""

_BY_HAND = {22: 30, 23: 33, 24: 35}
"""In the run of that name: step after which a person leaves out the batch of a later step."""

_EDITS: dict[str, Callable[[bytes, int, random.Random], bytes]] = {
    "bit": lambda data, at, draw: _with(data, at, bytes([data[at] ^ 1 << draw.randrange(8)])),
    "zero-16": lambda data, at, _: _with(data, at, bytes(16)),
    "zero-512": lambda data, at, _: _with(data, at, bytes(512)),
    "cut": lambda data, at, _: data[:at],
    "noise-64": lambda data, at, draw: _with(data, at, draw.randbytes(64)),
}
_OWN = shutil.ignore_patterns(".result", ".out", ".err")


@dataclass(frozen=True)
class StoppedRun:
    """A run that was killed on its way, and how it goes on undamaged."""

    name: str
    folder: Path
    expected: dict[str, list[object]]
    """By step: the sample id and the loss of the lineage that stays."""
    weights: str
    started_at: int


@dataclass(frozen=True)
class DamageCase:
    """One thing that is damaged."""

    stopped: str
    what: str
    """The edit, and where in the file."""
    path: str
    """Below the folder of the run and its copies."""
    at: int
    edit: str
    seed: int
    other: str = ""
    """Swapped with this one."""

    @property
    def name(self) -> str:
        """What results are kept under."""
        more = f" with {self.other}" if self.other else ""
        return f"{self.stopped} | {self.path} | {self.what}{more} | seed {self.seed}"


def prepare(root: Path) -> dict[str, StoppedRun]:
    """Train each run to where it is killed, and on to its end without damage."""
    runs = {}
    for name, (plan, until) in PLANS.items():
        straight = run_alone(lambda f, p=plan: _train(p, f), root / f"straight-{name}")  # type: ignore[misc]
        killed = run_alone(lambda f, p=plan, u=until: _train(p, f, u), root / name)  # type: ignore[misc]
        assert killed.status == 0, killed.err
        assert straight.result is not None, straight.err
        stopped = StoppedRun(
            name,
            root / name,
            cast("dict[str, list[object]]", straight.result["lineage"]),
            str(straight.result["weights"]),
            0,
        )
        on = run_alone(lambda f, w=stopped: _resume(w, None, f), root / f"on-{name}")  # type: ignore[misc]
        assert on.result is not None, on.err
        assert on.result["ended"] == "done", on.err
        started = cast("int", on.result["started_at"])
        runs[name] = replace(stopped, started_at=started)
        found, why = _class_of(runs[name], on)
        assert found == "as-unbroken", f"{name}: {found} {why}"
        assert started > 0, name
        for left in (root / f"straight-{name}", root / f"on-{name}"):
            shutil.rmtree(left)
    return runs


def cases(runs: dict[str, StoppedRun], seed: int) -> list[DamageCase]:
    """Return every case of a seed."""
    return [case for stopped in runs.values() for case in _cases(stopped, seed)]


def evenly(of_seed: Sequence[DamageCase], number: int | None, seed: int) -> list[DamageCase]:
    """Return so many cases, of each kind of file and edit in turn."""
    return spread(of_seed, number, seed, of=lambda case: (_file_kind(case.path), case.edit))


def measure(
    runs: dict[str, StoppedRun], chosen: Sequence[DamageCase], *, jobs: int
) -> Iterator[tuple[DamageCase, dict[str, object]]]:
    """Run cases; give a row for each as it ends."""

    def work(case: DamageCase, folder: Path) -> Result:
        return _resume(runs[case.stopped], case, folder)

    root = next(iter(runs.values())).folder.parent
    for case, ended in run_cases(chosen, work, root=root, jobs=jobs):
        found, why = _class_of(runs[case.stopped], ended)
        yield (
            case,
            {
                "case": case.name,
                "kind": case.stopped,
                "file": _file_kind(case.path),
                "edit": case.edit,
                "seed": case.seed,
                "class": found,
                "why": why,
                "seconds": round(ended.seconds, 3),
            },
        )


def summary(rows: Sequence[dict[str, object]]) -> str:
    """Return the table: outcomes by kind of file."""
    files = sorted({str(row["file"]) for row in rows})
    count = Counter((row["file"], row["class"]) for row in rows)
    lines = [f"{'damaged':<26}" + "".join(f"{name:>13}" for name in CLASSES)]
    for file in files:
        lines.append(f"{file:<26}" + "".join(f"{count[file, name]:>13}" for name in CLASSES))
    total = Counter(row["class"] for row in rows)
    lines.append(f"{'all ' + str(len(rows)):<26}" + "".join(f"{total[n]:>13}" for n in CLASSES))
    return "\n".join(lines)


# -- what is damaged ------------------------------------------------------------------------


def _cases(stopped: StoppedRun, seed: int) -> Iterator[DamageCase]:
    files = sorted(
        p
        for top in (stopped.folder / "run", stopped.folder / "copies")
        for p in top.rglob("*")
        if p.is_file()
    )
    for path in files:
        name = str(path.relative_to(stopped.folder))
        data, draw = path.read_bytes(), random.Random(f"{stopped.name} {name} {seed}")
        yield DamageCase(stopped.name, "deleted", name, 0, "delete", seed)
        yield DamageCase(stopped.name, "emptied", name, 0, "empty", seed)
        for region, low, high in _regions(data, path.suffix):
            for edit in ("bit", "zero-16") if region.startswith("field") else _EDITS:
                # A share, not a place: the times of a run are not as long when it is made again.
                what = f"{edit} in {region}"
                place = random.Random(f"{stopped.name} {name} {what} {seed}").random()
                at = low + int(place * (high - low))
                yield DamageCase(stopped.name, what, name, at, edit, seed)
        if path.suffix == ".jsonl":
            for number, start in enumerate(_line_starts(data)):
                if path.name != "journal.jsonl" and draw.random() > 0.05:
                    continue
                for edit in ("line-doubled", "line-lost", "line-zeroed"):
                    yield DamageCase(stopped.name, f"{edit} {number}", name, start, edit, seed)
        others = [p for p in files if p != path and p.suffix == path.suffix]
        if others:
            other = str(draw.choice(others).relative_to(stopped.folder))
            yield DamageCase(stopped.name, "swapped", name, 0, "swap", seed, other)
    folders = sorted(stopped.folder.glob("*/checkpoints/step-*")) + sorted(
        stopped.folder.glob("copies/*/checkpoints/step-*")
    )
    for folder in folders:
        name = str(folder.relative_to(stopped.folder))
        yield DamageCase(stopped.name, "deleted", name, 0, "delete", seed)
        for other_folder in folders:
            if other_folder > folder:
                other = str(other_folder.relative_to(stopped.folder))
                yield DamageCase(stopped.name, "swapped", name, 0, "swap", seed, other)
    for name in ("run/checkpoints", "run/signals"):
        yield DamageCase(stopped.name, "deleted", name, 0, "delete", seed)


def _regions(data: bytes, suffix: str) -> Iterator[tuple[str, int, int]]:
    """Yield the parts of a file by name, with their first byte and the one after the last."""
    size = len(data)
    if not size:
        return
    yield "head", 0, min(size, 64)
    yield "middle", size // 3, max(size * 2 // 3, size // 3 + 1)
    yield "tail", max(size - 64, 0), size
    if suffix not in (".json", ".jsonl"):
        return
    starts = _line_starts(data) if suffix == ".jsonl" else [0]
    seen: Counter[str] = Counter()
    for start in starts:
        end = data.find(b"\n", start) if suffix == ".jsonl" else size
        for key, low, high in _fields(data, start, end if end >= 0 else size):
            seen[key] += 1
            if seen[key] <= (3 if suffix == ".jsonl" else 1):  # some of each field
                yield f"field {key} ({seen[key]})", low, high


def _fields(data: bytes, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Yield the values of a JSON text by key, with the bytes that they take."""
    at = start
    while True:
        low = data.find(b'":', at, end)
        if low < 0:
            return
        opening = data.rfind(b'"', start, low)
        key = data[opening + 1 : low].decode(errors="replace")
        high = min(
            (p for p in (data.find(c, low + 3, end) for c in (b",", b"}", b"\n")) if p >= 0),
            default=end,
        )
        value = low + 2 + (data[low + 2 : low + 3] == b" ")
        if high > value:
            yield key, value, high
        at = low + 2


def _line_starts(data: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        found = data.find(b"\n", at)
        at = len(data) if found < 0 else found + 1
    return starts


def _damage(folder: Path, case: DamageCase) -> None:
    path = folder / case.path
    if case.edit == "delete":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif case.edit == "swap":
        aside, other = folder / "swapped-aside", folder / case.other
        path.rename(aside)
        other.rename(path)
        aside.rename(other)
    elif case.edit == "empty":
        path.write_bytes(b"")
    else:
        data = path.read_bytes()
        draw = random.Random(case.name)
        if case.edit in _EDITS:
            changed = _EDITS[case.edit](data, case.at, draw)
        else:
            end = data.find(b"\n", case.at) + 1 or len(data)
            line = data[case.at : end]
            parts = {"line-doubled": line * 2, "line-lost": b"", "line-zeroed": bytes(len(line))}
            changed = data[: case.at] + parts[case.edit] + data[end:]
        path.write_bytes(changed)


def _with(data: bytes, at: int, new: bytes) -> bytes:
    """Return data with bytes replaced; no longer than it was."""
    return (data[:at] + new + data[at + len(new) :])[: len(data)]


# -- in the child ---------------------------------------------------------------------------


def _train(plan: Plan, folder: Path, killed_after: int | None = None) -> Result:
    outcome, append = Outcome(), Journal.append

    def decided(self: Journal, event: str, **data: Any) -> None:
        append(self, event, **data)
        if event == "action":
            os._exit(0)

    if killed_after == 0:
        Journal.append = decided  # type: ignore[method-assign]

    def after(step: int, guard: Any) -> None:
        if plan.name == "by-hand" and step in _BY_HAND:
            first = _BY_HAND[step] * BATCH
            guard.skip_samples(first, first + BATCH - 1, why="seen to be bad")
        if step == killed_after:
            os._exit(0)  # as a kill: nothing is closed

    train(plan, folder, outcome, after_step=after)
    return _truth(outcome) | {"ended": "done"}


def _resume(stopped: StoppedRun, case: DamageCase | None, folder: Path) -> Result:
    shutil.copytree(stopped.folder, folder, dirs_exist_ok=True, ignore=_OWN)
    if case is not None:
        _damage(folder, case)
    outcome = Outcome()
    ended: Result = {"ended": "done", "error": ""}
    try:
        train(PLANS[stopped.name][0], folder, outcome)
    except TrimtabError as error:
        ended = {"ended": "refused", "error": str(error)}
    except BaseException as error:  # noqa: BLE001 - what it raised is the result
        ended = {"ended": "raised", "error": f"{type(error).__name__}: {error}"}
    return ended | _truth(outcome)


def _truth(outcome: Outcome) -> Result:
    return {
        "lineage": {str(step): [first, loss] for step, first, loss in outcome.losses},
        "weights": outcome.weights,
        "started_at": outcome.started_at,
        "in_loop": outcome.in_loop,
        "said": outcome.said,
    }


# -- judged by the harness ------------------------------------------------------------------


def _class_of(stopped: StoppedRun, ended: Ended) -> tuple[str, str]:
    truth = ended.result
    if truth is None:
        why = "timed out" if ended.timed_out else f"status {ended.status}"
        return "hang", f"{why}: {ended.err[-200:]}"
    error = str(truth["error"]).replace("\n", " ")
    if truth["ended"] == "refused" and not truth["in_loop"]:
        return "refused", error
    if truth["ended"] != "done":
        return ("crashed" if truth["in_loop"] else "traceback"), error
    if "Traceback (most recent call last)" in ended.err:
        return "traceback", ended.err[-200:]
    said = " / ".join(cast("list[str]", truth["said"])[:2] + ended.err.splitlines()[:2])
    if stopped.started_at and not truth["started_at"]:
        return "step-0", said
    lineage = cast("dict[str, list[object]]", truth["lineage"])
    for step, seen in sorted(lineage.items(), key=lambda item: int(item[0])):
        if stopped.expected.get(step) != seen:
            return (
                "other-data",
                f"step {step}: {seen}, expected {stopped.expected.get(step)}; {said}",
            )
    if lineage and truth["weights"] != stopped.weights:
        return "other-data", f"other weights; {said}"
    if not lineage:
        return "other-data", f"nothing was trained; {said}"
    return "as-unbroken", f"from step {truth['started_at']}"


def _file_kind(path: str) -> str:
    """Return a file without its numbers, for the table."""
    parts = Path(path).parts
    place = "copies: " if parts[0] == "copies" else ""
    name = parts[-1]
    if "step-" in path and not name.startswith("step-"):
        return f"{place}checkpoint/{name}"
    if name.startswith("step-"):
        return f"{place}checkpoint"
    return place + ("signals" if "signals" in parts else name)
