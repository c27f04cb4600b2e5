"""The first thing a guard does: start a run, or go on with the one that is there."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trimtab.chronicle.journal import read_journal
from trimtab.detectors.judge import judge_record
from trimtab.errors import TrimtabError
from trimtab.guard.loop.fault_barrier import to_stderr
from trimtab.guard.recording.environment import layout, reproducibility
from trimtab.guard.state.external_checkpoint import go_on_from
from trimtab.readers.rundir import read_run_directory
from trimtab.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trimtab.guard.step.engine import Engine

__all__ = ["begin"]


def begin(
    engine: Engine,
    *,
    steps: int | None,
    is_old: bool,
    say: Callable[[str], None],
    loaded_step: int | None = None,
    companion: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Start or go on, and say so; return the random states to go on with, None for a new run."""
    settings = {
        "trimtab": __version__,
        "mode": engine.policy.mode,
        "clip": engine.clip,
        "steps": steps,
        **reproducibility(),
        **_sizes(engine),
    }
    engine.recorder.settings(settings)
    if engine.ranks.chief:
        engine.recorder.live.read_past(engine.policy.past_runs)
    if is_old and engine.ranks.agree(lambda: not engine.directory.journal.stat().st_size):
        engine.store.notes.append(
            "the run's journal is gone: what was decided since the newest checkpoint is not known"
        )
    rng: dict[str, Any] | None
    if loaded_step is not None:
        rng = go_on_from(engine, loaded_step, companion)
    else:
        rng = engine.resume() if is_old else None
    engine.precision.want(engine.decisions.precision)
    if is_old and engine.ranks.chief:
        _tell_what_was_left(engine)
    major = engine.decisions.major
    if rng is not None:
        loaded = engine.resumed[-1][1]
        parent, folder = loaded["from_attempt"], loaded["checkpoint"]
        step, number = engine.counters.step, str(parent)
        done = steps is not None and step >= steps
        engine.decisions.minor = max(engine.decisions.minor, _next_minor(engine, major))
        if not done:
            number = f"{major}.{engine.decisions.minor}"
        engine.recorder.attempt = number
        for event, data in engine.resumed:
            if event == "note":
                say(str(data["text"]))
            if not (done and event == "resume"):  # no attempt is begun where nothing is left to do
                engine.recorder.event(event, step=step, **data)
        if done:
            say(f"nothing left to do: {step} of {steps} steps done")
            return rng
        engine.begin_attempt(
            parent=parent,
            parent_step=step,
            why="resumed after a stop",
            trial=False,
            settings=_sizes(engine),
        )
        say(f"resumed at step {step} from {folder} (attempt {number})")
        return rng
    if is_old:
        engine.decisions.major, engine.decisions.minor = _next_major(engine), 0
    engine.begin_attempt(
        parent=None,
        parent_step=None,
        why=_why_from_zero(engine) if is_old else "start",
        trial=False,
        settings=_sizes(engine),
    )
    num_found = engine.store.num_found()
    if num_found:
        text = f"none of {num_found} checkpoints is whole and healthy: starting from step 0"
        engine.recorder.event("note", step=0, author="trimtab", text=text)
        if engine.ranks.chief:
            to_stderr(f"trimtab: {text}")
    engine.recorder.event(
        "start",
        step=0,
        settings={**settings, "policy": asdict(engine.policy)},
        environment=reproducibility(),
    )
    say(f"recording to {engine.directory.root} (mode {engine.policy.mode})")
    return None


def _sizes(engine: Engine) -> dict[str, Any]:
    """Return how the ranks share the work, and the samples that one takes at once, where known."""
    found: dict[str, Any] = dict(layout(engine.parameters, engine.ranks.count))
    size = engine.data.shape["batch_size"] if engine.data is not None else None
    return found | ({} if size is None else {"local_batch_size": size})


def _tell_what_was_left(engine: Engine) -> None:
    """Journal what the last row says, where the run was killed before all of it was written.

    A row is written before its findings, and the findings of a row before the next row: only the
    last row can lack some. Judged from the record, as `trimtab inspect` would; one pass over it.
    """
    try:
        record = read_run_directory(engine.directory.root)
        events, _ = read_journal(engine.directory.journal)
        last = record.attempts[-1]
        if any(e.event == "fault" and e.attempt == last.number for e in events):
            return  # the judge had stood down, and says nothing more
        told = {_claim(e.data) for e in events if e.event == "finding"}
        found = [f for f in judge_record(record, engine.judge) if f.row == record.num_rows - 1]
    except TrimtabError:  # no rows yet, or not to be read: the run goes on without
        return
    engine.recorder.attempt = last.number
    for finding in found:
        claim = {
            "row": finding.row,
            "kind": finding.kind,
            "signal": finding.signal,
            "text": finding.text,
        }
        if _claim(claim) not in told:
            engine.recorder.finding(finding, step=int(record.step[-1]))


def _claim(data: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(str(data.get(key)) for key in ("row", "kind", "signal", "text"))


def _attempt_numbers(engine: Engine) -> list[tuple[int, int]]:
    return engine.ranks.agree(lambda: _numbers_on_disk(engine))


def _numbers_on_disk(engine: Engine) -> list[tuple[int, int]]:
    folder = engine.directory.signals
    names = [p.stem for p in folder.glob("*.jsonl")] if folder.is_dir() else []
    parts = [n.split(".") for n in names]
    return [
        (int(a), int(b))
        for a, b in (p for p in parts if len(p) == 2)
        if a.isdigit() and b.isdigit()
    ]


def _why_from_zero(engine: Engine) -> str:
    """Return why a run that is there begins at step 0 again."""
    events, _ = engine.ranks.agree(lambda: read_journal(engine.directory.journal))
    actions = [e.data for e in events if e.event == "action"]
    if actions and actions[-1].get("remedy") == "start-over":
        return f"started over: {actions[-1].get('why', '')}"
    return "started again: there was no checkpoint to go on from"


def _next_major(engine: Engine) -> int:
    return max((a for a, _ in _attempt_numbers(engine)), default=0) + 1


def _next_minor(engine: Engine, major: int) -> int:
    return max((b for a, b in _attempt_numbers(engine) if a == major), default=-1) + 1
