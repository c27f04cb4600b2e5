"""Rollbacks and undos killed with SIGKILL at random lines: nothing may be lost, all can be finished.

Each case copies a small run, forks a process that rolls it back (or undoes a rollback), and kills it
before a random line of the code that writes, moves, locks or journals. What is left is gone
on with, and killed again up to three times, before it is finished or taken back. Then the folder
must be, byte for byte, that of an unbroken rollback, or of no rollback at all, and the journal must
hold each record once.
"""

import hashlib
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np

from benchmarks.logs.event_logs import write_event_file
from benchmarks.logs.wandb_logs import encode_wandb_log
from trimtab.chronicle.journal import read_journal
from trimtab.chronicle.journal_check import check_journal
from trimtab.errors import TrimtabError
from trimtab.surgery import apply_rollback, plan_rollback, undo_rollback

__all__ = ["KillFigures", "kills_text", "measure_kills"]

_TRACED = (
    "/surgery/apply.py",
    "/surgery/operations.py",
    "/surgery/records.py",
    "/durable.py",
    "/chronicle/journal",
    "/chronicle/run_lock.py",
)
"""Code that writes, moves, locks or journals; a kill while it plans leaves nothing behind."""
_MOST_KILLS = 3
_TO = 300
_OURS = ("journal.jsonl", "journal.head", ".lock")
_FIRST_SEED = 100

Tree = Mapping[str, str]


@dataclass(kw_only=True)
class KillFigures:
    """What came of it."""

    kills: int = 0
    by_action: dict[str, int] = field(default_factory=dict)
    finished: int = 0
    taken_back: int = 0
    lines: dict[str, int] = field(default_factory=dict)
    """Lines at which a process could be killed, by run and action."""
    failures: list[str] = field(default_factory=list)


def measure_kills(num: int, *, seed: int = _FIRST_SEED, folder: Path | None = None) -> KillFigures:
    """Kill until there were `num` kills.

    Args:
        num: Kills.
        seed: Of the random choices.
        folder: Where to work; None: a temporary folder.
    """
    figures = KillFigures()
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        cases = [_Case(Path(place), name, make) for name, make in _RUNS.items()]
        for case in cases:
            figures.lines |= {f"{case.name} {what}": n for what, n in case.lines.items()}
        number = 0
        while figures.kills < num:
            case = cases[number % len(cases)]
            case.play(rng, figures, number)
            number += 1
    return figures


class _Case:
    """One run, with what it is before, after a rollback, and after its undoing."""

    def __init__(self, place: Path, name: str, make: Callable[[Path], None]) -> None:
        self.name = name
        self.place = place / name
        self.template = self.place / "template"
        make(self.template)
        _age(self.template)
        self.before = _tree(self.template)
        self.lines: dict[str, int] = {}
        whole = self._copy("whole")
        self.lines["apply"] = self._count(_apply, whole)
        self.after = _tree(whole)
        self.lines["undo"] = self._count(_undo, whole)
        if _without_aside(_tree(whole)) != self.before:
            raise AssertionError(f"{name}: undoing a whole rollback does not bring back the run")

    def _copy(self, name: str) -> Path:
        run = self.place / name
        shutil.copytree(self.template, run, symlinks=True)
        return run

    def _count(self, action: Callable[[Path], None], run: Path) -> int:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            tracer = _Tracer(kill_at=0)
            _in_child(action, run, tracer, then=lambda: os.write(writer, b"%d" % tracer.seen))
        os.close(writer)
        text = os.read(reader, 100)
        os.close(reader)
        os.waitpid(child, 0)
        return int(text)

    def play(self, rng: random.Random, figures: KillFigures, number: int) -> None:
        """Kill one rollback, or the undoing of one, and see what is left."""
        run = self._copy(f"case-{number}")
        what = rng.choice(("apply", "undo"))
        if what == "undo":
            _apply(run)
        try:
            for _ in range(rng.randint(1, _MOST_KILLS)):
                action = _apply if what == "apply" else _undo
                if not _killed(action, run, rng.randrange(1, self.lines[what] + 1)):
                    break
                figures.kills += 1
                figures.by_action[what] = figures.by_action.get(what, 0) + 1
                if what == "apply" and rng.random() < 0.3:
                    what = "undo"
            self._finish(run, what, rng, figures)
            self._check_journal(run)
        except (TrimtabError, AssertionError) as error:
            figures.failures.append(f"seed case {number} {self.name} {what}: {error}")
        shutil.rmtree(run)

    def _finish(self, run: Path, what: str, rng: random.Random, figures: KillFigures) -> None:
        state = _state(run)
        if what == "apply" and (state in ("", "undone") or rng.random() < 0.5):
            _apply(run)
        elif state not in ("", "undone"):
            _undo(run)
        done = _tree(run)
        if _state(run) == "applied":
            figures.finished += 1
            assert done == self.after, f"differs: {_difference(done, self.after)}"
        else:
            figures.taken_back += 1
            left = _without_aside(done)
            assert left == self.before, f"differs: {_difference(left, self.before)}"

    def _check_journal(self, run: Path) -> None:
        journal = run / "journal.jsonl"
        if not journal.exists():
            assert _state(run) in ("", "undone")
            return
        check = check_journal(journal)
        assert not check.problems, check.problems
        told = [
            (e.data["id"], e.data["state"])
            for e in read_journal(journal)[0]
            if e.event == "rollback"
        ]
        assert len(told) == len(set(told)), f"told twice: {told}"
        records = [json.loads(p.read_bytes()) for p in run.glob("aside/*/record.json")]
        for record in records:
            assert (record["id"], record["state"]) in told, f"not told: {record['state']}"


def kills_text(figures: KillFigures) -> str:
    """Return the figures for people."""
    by = ", ".join(f"{n} of {what}" for what, n in sorted(figures.by_action.items()))
    lines = [
        f"{figures.kills} kills ({by}); then {figures.finished} rollbacks finished,"
        f" {figures.taken_back} taken back",
        f"failures: {len(figures.failures)}",
        *(f"  {text}" for text in figures.failures[:20]),
        *(f"  {name}: killed at one of {n} lines" for name, n in figures.lines.items()),
    ]
    return "\n".join(lines)


# -- the process that is killed -------------------------------------------------------------


class _Tracer:
    """Counts the lines that run in the code under test, and ends the process before one."""

    def __init__(self, *, kill_at: int) -> None:
        self.kill_at = kill_at
        self.seen = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> "_Tracer | None":
        if event == "call":
            name = frame.f_code.co_filename
            return self if any(part in name for part in _TRACED) else None
        if event == "line":
            self.seen += 1
            if self.seen == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def _killed(action: Callable[[Path], None], run: Path, kill_at: int) -> bool:
    """Run an action in a process of its own; return whether it was killed."""
    child = os.fork()
    if child == 0:
        _in_child(action, run, _Tracer(kill_at=kill_at))
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _in_child(
    action: Callable[[Path], None],
    run: Path,
    tracer: _Tracer,
    then: Callable[[], object] = lambda: None,
) -> None:
    code = 1
    try:
        sys.settrace(tracer)
        action(run)
        sys.settrace(None)
        then()
        code = 0
    except TrimtabError:
        pass  # such as: nothing to undo yet
    finally:
        os._exit(code)


def _apply(run: Path) -> None:
    apply_rollback(plan_rollback(run, _TO), watch_s=0)


def _undo(run: Path) -> None:
    undo_rollback(run)


def _state(run: Path) -> str:
    record = run / "aside" / "rollback-0001" / "record.json"
    return str(json.loads(record.read_bytes())["state"]) if record.exists() else ""


# -- folders --------------------------------------------------------------------------------


def _tree(root: Path) -> Tree:
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name in _OURS or name.endswith(("record.json", "record.json.partial")):
            continue
        if path.is_symlink():
            found[name] = os.fspath(path.readlink())
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _without_aside(tree: Tree) -> Tree:
    return {k: v for k, v in tree.items() if not k.startswith("aside/")}


def _difference(found: Tree, wanted: Tree) -> str:
    names = [k for k in {*found, *wanted} if found.get(k) != wanted.get(k)]
    return ", ".join(sorted(names)[:5])


def _age(root: Path) -> None:
    for path in root.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1.7e9, 1.7e9))


# -- runs -----------------------------------------------------------------------------------


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _megatron_deepspeed(run: Path) -> None:
    for step in (100, 200, 300, 400, 500):
        for rank in range(2):
            name = f"checkpoints/global_step{step}/mp_rank_{rank:02d}_model_states.pt"
            _put(run / name, f"weights {step} {rank}".encode())
    _put(run / "checkpoints/latest", b"global_step500")
    _put(run / "checkpoints/latest_checkpointed_iteration.txt", b"500\n")
    board = run / "tensorboard"
    board.mkdir()
    for first, last in ((10, 250), (260, 500)):
        steps = np.arange(first, last + 1, 10, dtype=np.int64)
        loss = {"lm loss": 5.0 - steps / 500}
        write_event_file(board / f"events.out.tfevents.{first}.node", loss, steps)
    history = [{"_step": s, "train/loss": 5.0 - s / 500} for s in range(10, 501, 10)]
    _put(run / "wandb/offline-run-20260102_030405-a1/run-a1.wandb", encode_wandb_log(history))


def _lightning(run: Path) -> None:
    for step in (100, 300, 500):
        _lightning_file(run / f"checkpoints/epoch={step // 100}-step={step}.ckpt", step)
    _lightning_file(run / "checkpoints/last.ckpt", 500)


def _lightning_file(path: Path, step: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"global_step": step}, protocol=2))


def _hugging_face(run: Path) -> None:
    for step in (100, 300, 500):
        state = json.dumps({"global_step": step}).encode()
        _put(run / f"checkpoint-{step}/trainer_state.json", state)
    _put(run / "trainer_state.json", json.dumps({"global_step": 500}).encode())
    (run / "latest").symlink_to("checkpoint-500")


_RUNS: Mapping[str, Callable[[Path], None]] = {
    "megatron-deepspeed": _megatron_deepspeed,
    "lightning": _lightning,
    "huggingface": _hugging_face,
}
