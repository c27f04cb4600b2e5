"""The first thing a guard does: start a run, or go on with the one that is there."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trimtab.guard.edge import to_stderr
from trimtab.guard.intake import environment
from trimtab.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.engine import Engine

__all__ = ["begin"]


def begin(
    engine: Engine, *, steps: int | None, is_old: bool, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Start or go on, and say so; return the random states to go on with, None for a new run."""
    settings = {
        "trimtab": __version__,
        "mode": engine.policy.mode,
        "clip": engine.clip,
        "steps": steps,
        **environment(),
    }
    engine.recorder.settings(settings)
    rng = engine.resume() if is_old else None
    major = engine.decisions.major
    if rng is not None:
        loaded = engine.resumed[-1][1]
        parent, folder = str(loaded["from_attempt"]), loaded["checkpoint"]
        step, number = engine.counters.step, parent
        done = steps is not None and step >= steps
        if not done:
            engine.decisions.minor = max(engine.decisions.minor, _next_minor(engine, major))
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
            parent=parent, parent_step=step, why="resumed after a stop", trial=False
        )
        say(f"resumed at step {step} from {folder} (attempt {number})")
        return rng
    if is_old:
        engine.decisions.major, engine.decisions.minor = _next_major(engine), 0
    engine.begin_attempt(parent=None, parent_step=None, why="start", trial=False)
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
        environment=environment(),
    )
    say(f"recording to {engine.directory.root} (mode {engine.policy.mode})")
    return None


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


def _next_major(engine: Engine) -> int:
    return max((a for a, _ in _attempt_numbers(engine)), default=0) + 1


def _next_minor(engine: Engine, major: int) -> int:
    return max((b for a, b in _attempt_numbers(engine) if a == major), default=-1) + 1
