"""The fault matrix: every call of the input and output layer, made to fail in every way.

A run without a fault is recorded first. Each call site of it is then crossed with each error and
with how long it lasts; a seed draws at which call of the site it begins. What is true of a run is
known to the harness (what was planted, what was judged, written, saved), and is held against what
the run says of itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import re
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from benchmarks.trust.calls import ERRORS, OUT_OF_MEMORY, Call, Fault, Layer, fits
from benchmarks.trust.commands import COMMANDS, run_command
from benchmarks.trust.forks import Ended, Result, run_alone, run_cases
from benchmarks.trust.totals import spread
from benchmarks.trust.training import Outcome, Plan, train
from trimtab.checkpoints.manifest import list_checkpoints, verify
from trimtab.chronicle.journal import Journal
from trimtab.detectors.judge import Judge
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["CLASSES", "KINDS", "FaultCase", "Matrix", "classify", "evenly", "measure", "prepare"]

BAD = (46, 53)
_OBSERVE = Plan(
    name="observe", steps=70, mode="observe", bad_steps=BAD, save_every=10, background=True
)
_ACT = Plan(name="act", steps=85, bad_steps=BAD, save_every=10)
_RESUME = replace(_ACT, name="resume", copies=True)
PLANS = {plan.name: plan for plan in (_OBSERVE, _ACT, _RESUME)}
RESUMED_AT = 25
KINDS = (*PLANS, *COMMANDS)

CLASSES = (
    "absorbed",
    "recovered-and-told",
    "told-degraded",
    "refused",
    "silent",
    "lost",
    "crashed-training",
    "traceback",
    "hang",
    "not-reached",
)
"""How a case ends; from `silent` to `hang` it is a failure."""

OWN_FILES = shutil.ignore_patterns(".result", ".out", ".err")
"""What the harness writes into the folder of a case."""

FAILURES = frozenset(("silent", "lost", "crashed-training", "traceback", "hang"))

_TOLD = re.compile(
    r"degraded|not judged|not saved|not recorded|not written|cannot be written"
    r"|(?<!expected steps )\blost\b|\bfault",
    re.I,
)
_PASSED_OVER = re.compile(r"cannot be|could not be|damaged|not whole|passed over|unreadable", re.I)


@dataclass(frozen=True)
class FaultCase:
    """One fault in one kind of run; `fault` is None in a run without one."""

    kind: str
    fault: Fault | None
    seed: int
    number: int = 0
    """Among the runs without a fault."""

    @property
    def name(self) -> str:
        """What results are kept under."""
        if self.fault is None:
            return f"{self.kind} | clean #{self.number} | seed {self.seed}"
        f = self.fault
        return f"{self.kind} | {f.site} #{f.ordinal} | {f.error} {f.lasting} | seed {self.seed}"


@dataclass
class Kind:
    """A kind of run as it goes without a fault."""

    name: str
    base: Path | None
    """Folder that cases start from a copy of; None: an empty one."""
    calls: list[Call]
    truth: Result
    sites: dict[str, list[Call]] = field(default_factory=dict)


@dataclass
class Matrix:
    """All kinds, recorded."""

    kinds: dict[str, Kind]
    root: Path

    def cases(self, seed: int) -> list[FaultCase]:
        """Return every case of a seed."""
        return [case for kind in self.kinds.values() for case in _cases(kind, seed)]

    def clean(self, number: int, seed: int) -> list[FaultCase]:
        """Return so many runs without a fault."""
        names = [name for name in self.kinds if name in PLANS]
        return [
            FaultCase(names[i % len(names)], None, seed, i) for i in range(number if names else 0)
        ]


def prepare(root: Path, kinds: Sequence[str] = KINDS) -> Matrix:
    """Record each kind of run without a fault.

    Raises:
        AssertionError: One does not end as it must.
    """
    matrix = Matrix({}, root)
    bases = {name: _base(root / f"base-{name}", name) for name in kinds if name not in PLANS}
    for name in kinds:
        base = bases.get(name)
        if name == "resume":
            base = root / "base-resume"
            begun = run_alone(lambda folder: _train_base(folder, _RESUME, RESUMED_AT), base)
            assert begun.status == 0, begun.err
        folder = root / f"record-{name}"
        kind = Kind(name, base, [], {})
        ended = run_alone(lambda f, k=kind: _live(k, None, f), folder)  # type: ignore[misc]
        assert ended.result is not None, ended.err
        shutil.rmtree(folder)
        calls = cast("list[list[Any]]", ended.result.pop("calls"))
        kind.calls = [Call(*row) for row in calls]
        kind.truth = ended.result
        for call in kind.calls:
            kind.sites.setdefault(call.site, []).append(call)
        if name not in PLANS:
            kind.truth |= {"out": ended.out, "again": _again(kind, root)}
        else:
            assert not _problems(kind, ended.result), _problems(kind, ended.result)
        matrix.kinds[name] = kind
    return matrix


def evenly(of_seed: Sequence[FaultCase], number: int | None, seed: int) -> list[FaultCase]:
    """Return so many cases, of each call site and each duration of a fault in turn."""

    def group(case: FaultCase) -> tuple[str, str, str]:
        assert case.fault is not None
        return case.kind, case.fault.site, case.fault.lasting

    return spread(of_seed, number, seed, of=group)


def measure(
    matrix: Matrix, cases: Sequence[FaultCase], *, jobs: int
) -> Iterator[tuple[FaultCase, dict[str, object]]]:
    """Run cases; give a row for each as it ends."""

    def work(case: FaultCase, folder: Path) -> Result:
        return _live(matrix.kinds[case.kind], case.fault, folder)

    for case, ended in run_cases(cases, work, root=matrix.root, jobs=jobs):
        yield case, classify(matrix.kinds[case.kind], case, ended)


def _cases(kind: Kind, seed: int) -> Iterator[FaultCase]:
    for site, calls in sorted(kind.sites.items()):
        for error in (*ERRORS, "SHORT", "SLOW", *OUT_OF_MEMORY):
            if not fits(error, calls[0].kind):
                continue
            for lasting in ("once", "window", "lasting"):
                draw = random.Random(f"{site} {error} {lasting} {seed}")
                fault = Fault(
                    site=site,
                    ordinal=draw.choice(calls[: len(calls) * 9 // 10 or 1]).ordinal,
                    error=error,
                    lasting=lasting,
                )
                yield FaultCase(kind.name, fault, seed)


# -- in the child ---------------------------------------------------------------------------


def _live(kind: Kind, fault: Fault | None, folder: Path) -> Result:
    """Run a case and return what is true of it."""
    if kind.base is not None:
        shutil.copytree(kind.base, folder, dirs_exist_ok=True, ignore=OWN_FILES)
    layer = Layer(folder, fault=fault, recording=fault is None)
    if kind.name not in PLANS:
        return run_command(kind.name, folder, layer)
    return _train(PLANS[kind.name], folder, layer)


def _train_base(folder: Path, plan: Plan, until: int) -> Result:
    outcome = Outcome()
    train(plan, folder, outcome, until=until)
    return {"said": outcome.said}


def _train(plan: Plan, folder: Path, layer: Layer) -> Result:
    truth: Result = {"ended": "done", "in_loop": False, "error": ""}
    outcome, watched = Outcome(), _Watched(folder / "run", layer)
    watched.watch()
    layer.install()
    try:
        train(plan, folder, outcome, before_step=watched.before, after_step=watched.after)
    except TrimtabError as error:
        truth |= {"ended": "refused", "error": str(error)}
    except BaseException as error:  # noqa: BLE001 - what it raised is the result
        truth |= {"ended": "raised", "error": f"{type(error).__name__}: {error}"}
    layer.paused = True
    digest = hashlib.sha256(json.dumps(outcome.losses).encode()).hexdigest()
    truth |= {
        "in_loop": outcome.in_loop,
        "started_at": outcome.started_at,
        "steps": outcome.steps,
        "losses": digest,
        "weights": outcome.weights,
        "said": outcome.said,
        "fired_at": layer.fired_at,
        "hit": sorted(layer.hit),
        "calls": [[c.site, c.kind, c.ordinal, c.step] for c in layer.calls],
    }
    return truth | watched.truth()


class _Watched:
    """What the harness sees of a run from outside."""

    def __init__(self, run: Path, layer: Layer) -> None:
        self.run, self.layer = run, layer
        self.judged = self.updates = 0
        self.tried: set[tuple[str, int]] = set()
        """Events that were to be written."""
        self.journal = _bytes(run / "journal.jsonl")
        self.lost: list[str] = []
        self.committed: set[int] = set()
        self.actions = 0
        self._look()
        self.before_start = sorted(self.committed)

    def watch(self) -> None:
        """Count acts of judging, and events on their way to the journal."""
        update, many, append = Judge.update, Judge.update_rows, Journal.append
        seen = self

        def counted(self: Judge, *arguments: Any, **named: Any) -> Any:
            found = update(self, *arguments, **named)
            seen.judged += 1
            return found

        def counted_many(self: Judge, state: Any, rows: Any) -> Any:
            found = many(self, state, rows)
            seen.judged += len(rows.steps) if hasattr(rows, "steps") else 0
            return found

        def tried(self: Journal, event: str, **data: Any) -> None:
            seen.tried.add((event, int(data["step"])))
            append(self, event, **data)

        Judge.update = counted  # type: ignore[method-assign]
        Judge.update_rows = counted_many  # type: ignore[method-assign]
        Journal.append = tried  # type: ignore[method-assign]

    def before(self, _step: int, guard: Any) -> None:
        """Take note of the batch that is trained on next."""
        self.updates += guard.phase != "probe"

    def after(self, step: int, guard: Any) -> None:
        """Take note of what is on disk after a step."""
        self.layer.paused = True
        self.layer.step = step
        self.actions = len(guard.actions)
        self._look()
        self.layer.paused = False

    def _look(self) -> None:
        now = _bytes(self.run / "journal.jsonl")
        whole = self.journal[: self.journal.rfind(b"\n") + 1]
        if not now.startswith(whole) and "journal lines" not in self.lost:
            self.lost.append("journal lines")
        self.journal = now
        with contextlib.suppress(OSError):
            for path in (self.run / "checkpoints").iterdir():
                step = re.fullmatch(r"step-(\d+)", path.name)
                if step and (path / "manifest.json").exists():
                    self.committed.add(int(step[1]))

    def truth(self) -> Result:
        """Return what is there at the end."""
        self._look()
        checkpoints = list_checkpoints(self.run / "checkpoints")
        aside = self.run / "aside"
        events = _events(self.journal)
        rows = sum(_num_rows(path) for path in (self.run / "signals").glob("*.jsonl"))
        return {
            "judged": self.judged,
            "updates": self.updates,
            "rows": rows,
            "events": sorted(events),
            "unwritten": sorted(t for t in self.tried - events if t[0] != "fault"),
            "before_start": self.before_start,
            "committed": sorted(self.committed),
            "kept": [c.step for c in checkpoints if not verify(c.path)],
            "graded": [[c.step, str(c.grade)] for c in checkpoints],
            "aside": sorted(p.name for p in aside.iterdir()) if aside.is_dir() else [],
            "lost": self.lost,
            "actions": self.actions,
            "incidents": sum(name == "incident" for name, _ in events),
            "verdict": _document(self.run / "verdict.json"),
        }


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _document(path: Path) -> object:
    try:
        return json.loads(_bytes(path))
    except ValueError:
        return None


def _events(journal: bytes) -> set[tuple[str, int]]:
    found = set()
    for line in journal.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            data = json.loads(line)
            found.add((str(data["event"]), int(data["step"])))
    return found


def _num_rows(path: Path) -> int:
    number = 0
    for line in _bytes(path).splitlines():
        with contextlib.suppress(ValueError):
            number += "step" in json.loads(line)
    return number


# -- judged by the harness ------------------------------------------------------------------


def classify(kind: Kind, case: FaultCase, ended: Ended) -> dict[str, object]:
    """Return the row of a case: its class, and what speaks for it."""
    row: dict[str, object] = {"case": case.name, "kind": kind.name, "seed": case.seed}
    fault, truth = case.fault, ended.result
    if fault is not None:
        row |= {"site": fault.site, "error": fault.error, "lasting": fault.lasting}
    row["seconds"] = round(ended.seconds, 3)
    if truth is None:
        why = "timed out" if ended.timed_out else f"status {ended.status}"
        return row | {"class": "hang", "why": f"{why}: {_last(ended.err)}"}
    row |= {"fired": truth["fired_at"], "hit": truth["hit"]}
    if kind.name in PLANS:
        found, why = _class_of_run(kind, truth, ended)
        row |= _recovery(kind, truth, fault)
    else:
        found, why = _class_of_command(kind, truth, ended)
    if fault is not None and not truth["hit"]:
        found = "not-reached"
    return row | {"class": found, "why": why}


def _class_of_run(kind: Kind, truth: Result, ended: Ended) -> tuple[str, str]:
    error = str(truth["error"])
    kept = cast("list[int]", truth["kept"])
    gone = [s for s in cast("list[int]", truth["before_start"]) if s not in kept]
    if truth["lost"] or (gone and not truth["in_loop"]):
        return "lost", f"{truth['lost']}, checkpoints {gone}; {error}"
    if truth["ended"] != "done":
        if truth["in_loop"]:
            return "crashed-training", error
        return ("refused", error) if truth["ended"] == "refused" else ("traceback", error)
    if "Traceback (most recent call last)" in ended.err:
        return "traceback", _last(ended.err)
    lost = _lost(kind, truth)
    if lost:
        return "lost", lost
    if kind.name == "observe" and truth["losses"] != kind.truth["losses"]:
        return "crashed-training", "other losses than without a fault"
    problems, told = "; ".join(_problems(kind, truth)), _told(truth)
    shown = ended.err + "\n".join(cast("list[str]", truth["said"]))
    if truth["started_at"] != kind.truth["started_at"] and not _PASSED_OVER.search(shown):
        return "silent", f"began at step {truth['started_at']}: {shown[:200]}"
    if problems:
        return ("told-degraded" if told else "silent"), f"{problems} | {told or _last_line(truth)}"
    return ("recovered-and-told" if told or _TOLD.search(shown) else "absorbed"), told


def _lost(kind: Kind, truth: Result) -> str:
    """Return what was committed and is gone."""
    committed, kept = cast("list[int]", truth["committed"]), cast("list[int]", truth["kept"])
    usual = cast("list[str]", kind.truth["aside"])
    aside = [n for n in cast("list[str]", truth["aside"]) if n not in usual]
    early = [n for n in aside if int(re.sub(r"\D", "", n)[:8] or 0) < BAD[0] - 10]
    if early:
        return f"moved aside: {', '.join(early)}"
    wanted = min(len(committed), PLANS[kind.name].kept)
    sound = [s for s in kept if s < BAD[0]] if truth["started_at"] == 0 else kept
    if kind.truth["started_at"] and not truth["started_at"]:
        return f"began at step {truth['started_at']}, {kind.truth['started_at']} was saved"
    if kind.name == "observe" and any(s < BAD[0] for s in committed) and not sound:
        expected = [s for s in cast("list[int]", kind.truth["kept"]) if s < BAD[0]]
        if expected:
            return f"every checkpoint from before the incident (committed {committed})"
    if len(kept) < wanted and not aside:
        return f"committed checkpoints: {committed}, on disk {kept}"
    return ""


def _problems(kind: Kind, truth: Result) -> list[str]:
    """Return in what a run was not protected, or what is not on record."""
    number = cast("Callable[[str], int]", lambda name: int(cast("int", truth[name])))
    usual = kind.truth or truth
    found = []
    if number("judged") < number("updates"):
        found.append(f"judged {number('judged')} of {number('updates')} steps")
    base = 0 if kind.name != "resume" else RESUMED_AT
    if number("rows") < number("updates") + base:
        found.append(f"{number('updates') + base - number('rows')} rows not on disk")
    if truth["unwritten"]:
        events = cast("list[list[object]]", truth["unwritten"])
        found.append(f"{len(events)} events not in the journal: {[list(e) for e in events[:3]]}")
    if not number("incidents"):
        found.append("the planted incident was not found")
    if PLANS[kind.name].mode == "act" and not number("actions"):
        found.append("the planted incident was not recovered from")
    kept = cast("list[int]", truth["kept"])
    if max(kept, default=0) < max(cast("list[int]", usual["kept"]), default=0):
        found.append(f"newest checkpoint {max(kept, default=0)}")
    verdict = truth["verdict"]
    if not isinstance(verdict, dict) or verdict.get("state") != "done":
        found.append("verdict.json is missing or of an earlier moment")
    return found


def _last_line(truth: Result) -> str:
    said = cast("list[str]", truth["said"])
    return said[-1].partition("; trimtab report")[0] if said else ""


def _told(truth: Result) -> str:
    """Return where a run says that it was not protected; empty: nowhere."""
    last, verdict = _last_line(truth), truth["verdict"]
    if _TOLD.search(last):
        return f"last line: {last}"
    if not isinstance(verdict, dict):
        return ""
    judged = verdict.get("judged")
    if isinstance(judged, dict) and judged.get("steps", 0) < judged.get("of", 0):
        return f"verdict.json: judged {judged}"
    for what in ("degraded", "faults"):
        if verdict.get(what):
            return f"verdict.json: {what}: {verdict[what]}"
    return f"verdict.json: {verdict['verdict']}" if verdict.get("verdict") == "not-judged" else ""


def _recovery(kind: Kind, truth: Result, fault: Fault | None) -> dict[str, object]:
    """Return whether a fault that was over before the incident kept it from being recovered."""
    fired = truth["fired_at"]
    if fault is None or fault.lasting == "lasting" or not isinstance(fired, int):
        return {}
    if not truth["in_loop"] or fired + fault.window >= BAD[0]:
        return {}
    done = truth["actions"] if PLANS[kind.name].mode == "act" else truth["incidents"]
    return {"transient_recovered": bool(done)}


def _class_of_command(kind: Kind, truth: Result, ended: Ended) -> tuple[str, str]:
    text = ended.out + ended.err
    if truth["ended"] == "raised" or "Traceback (most recent call last)" in text:
        return "traceback", str(truth["error"]) or _last(ended.err)
    if truth["code"] != kind.truth["code"]:
        return "refused", f"exit status {truth['code']}: {_last(ended.err) or _last(ended.out)}"
    changed = _changed(str(kind.truth["out"]), str(kind.truth["again"]), ended.out)
    whole = truth["written"] == kind.truth["written"]
    if not changed and whole:
        return "absorbed", ""
    what = changed or f"written: {truth['written']}"
    if re.search(r"cannot be|could not|unreadable|not read|left out|skipped|torn", text, re.I):
        return "told-degraded", what
    return "silent", what


def _changed(usual: str, again: str, now: str) -> str:
    """Return the first line that differs, where it is the same in two runs without a fault."""
    first, second, found = (_untimed(text).splitlines() for text in (usual, again, now))
    fixed = {line for line in first if line in set(second)}
    gone = [line for line in first if line in fixed and line not in set(found)]
    return f"not printed: {gone[0].strip()[:100]}" if gone else ""


def _untimed(text: str) -> str:
    return re.sub(r"\b[\d.]+ ?(ms|s|min)\b", "a while", text)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


# -- the other commands ------------------------------------------------------------------------


def _base(folder: Path, command: str) -> Path:
    """Make what a command is run on."""
    plan = replace(_ACT, save_every=40)
    made = run_alone(lambda f: _train_base(f, plan, plan.steps), folder)
    assert made.status == 0, made.err
    COMMANDS[command].prepare(folder)
    return folder


def _again(kind: Kind, root: Path) -> str:
    folder = root / f"again-{kind.name}"
    ended = run_alone(lambda f: _live(kind, None, f), folder)
    shutil.rmtree(folder)
    return ended.out


def summary(rows: Sequence[dict[str, object]], matrix: Matrix | None) -> str:
    """Return the table: classes by kind of run, coverage, recoveries of transient faults."""
    kinds = [k for k in KINDS if any(r["kind"] == k for r in rows)]
    lines = [f"{'':<20}" + "".join(f"{k:>11}" for k in kinds) + f"{'all':>9}"]
    of_faults = [r for r in rows if "site" in r]
    count = Counter((r["kind"], r["class"]) for r in of_faults)
    for name in CLASSES:
        numbers = [count[kind, name] for kind in kinds]
        lines.append(f"{name:<20}" + "".join(f"{n:>11}" for n in numbers) + f"{sum(numbers):>9}")
    if matrix is not None:
        for kind in kinds:
            sites = set(matrix.kinds[kind].sites) if kind in matrix.kinds else set()
            hit = {
                s
                for r in of_faults
                if r["kind"] == kind
                for s in cast("list[str]", r.get("hit", []))
            }
            lines.append(f"call sites of {kind}: {len(hit & sites)} of {len(sites)} made to fail")
    transient = [r["transient_recovered"] for r in of_faults if "transient_recovered" in r]
    if transient:
        good = sum(bool(t) for t in transient)
        lines.append(
            f"faults over before the incident: it was found and recovered from in {good} of"
            f" {len(transient)} ({good / len(transient):.1%})"
        )
    clean = [r for r in rows if "site" not in r]
    bad = [r for r in clean if r["class"] != "absorbed"]
    lines.append(f"runs without a fault: {len(clean)}, {len(bad)} of them say degraded or fail")
    return "\n".join(lines)
