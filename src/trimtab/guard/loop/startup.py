"""The first thing a guard does: start a run, or go on with the one that is there."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from trimtab.chronicle.journal import read_journal
from trimtab.chronicle.journal_check import JournalCheck, check_journal
from trimtab.chronicle.journal_head import head_path, read_head
from trimtab.chronicle.launch import write_launch
from trimtab.detectors.judge import judge_record
from trimtab.errors import ChronicleError, TrimtabError
from trimtab.guard.loop.run_traits import traits
from trimtab.guard.recording.environment import embedding_dropout, layout, reproducibility
from trimtab.guard.recording.fault_barrier import to_stderr
from trimtab.guard.state.external_checkpoint import go_on_from
from trimtab.guard.state.resume import Resumed, Resumption
from trimtab.readers.rundir import read_run_directory
from trimtab.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trimtab.guard.state.training_state import StateDict
    from trimtab.guard.step.run_context import RunContext

__all__ = ["begin"]


def begin(
    parts: RunContext,
    *,
    steps: int | None,
    is_old: bool,
    say: Callable[[str], None],
    loaded_step: int | None = None,
    companion: Mapping[str, object] | None = None,
    start_over: bool = False,
) -> StateDict | None:
    """Start or go on, and say so; return the random states to go on with, None for a new run.

    Raises:
        ReadError: The run that is there cannot be gone on with, and `start_over` is not given.
    """
    state, recorder, store = parts.state, parts.recorder, parts.points.store
    settings = {
        "trimtab": __version__,
        "mode": parts.policy.mode,
        "clip": parts.optimizer_step.clip,
        "steps": steps,
        **reproducibility(),
        **embedding_dropout(parts.training.bare_model),
        **_sizes(parts),
    }
    recorder.settings(settings)
    if parts.ranks.chief:
        recorder.live.read_past(parts.policy.past_runs)
    # The first rank looks for all: a shared file system may show files to the others later.
    if is_old and parts.ranks.agree(lambda: not recorder.directory.journal.stat().st_size):
        store.note(
            "the run's journal is gone: what was decided since the newest checkpoint is not known"
        )
    if is_old:
        _check_journal(parts, start_over=start_over)
    if recorder.live.unread:
        store.note(
            f"the rows so far cannot be taken in: {recorder.live.unread}; the run goes on from its"
            " checkpoint, and its findings count rows from here on"
        )
    resumed = _resume(
        parts, is_old=is_old, loaded_step=loaded_step, companion=companion, start_over=start_over
    )
    store.clear_leftovers()
    # After the resume, which brings the decision on the number format.
    parts.precision.enforce()
    if is_old and parts.ranks.chief:
        _tell_what_was_left(parts)
    if resumed.rng is not None:
        _go_on(parts, resumed, steps=steps, say=say)
        return resumed.rng
    if is_old:
        state.decisions.begin_major(_next_major(parts))
    why = f"started over: {resumed.given_up}" if resumed.given_up else _why_from_zero(parts)
    state.begin_attempt(
        parent=None,
        parent_step=None,
        why=why if is_old else "start",
        trial=False,
        settings=_sizes(parts),
    )
    if is_old:
        _tell_from_zero(parts, resumed)
    recorder.event(
        "start",
        step=0,
        settings={**settings, "policy": asdict(parts.policy)},
        environment=_environment(parts),
    )
    say(f"recording to {recorder.directory.root} (mode {parts.policy.mode})")
    return None


def _check_journal(parts: RunContext, *, start_over: bool) -> None:
    """Refuse to go on with a journal that lacks a decision.

    Of an empty one only the head tells that decisions are lost; a run that starts over needs none.

    Raises:
        ChronicleError: It lacks one, or cannot be read.
    """
    journal = parts.recorder.directory.journal

    def look() -> JournalCheck | None:
        return check_journal(journal) if journal.stat().st_size else None

    def is_emptied() -> bool:
        return not journal.stat().st_size and bool(read_head(journal)[0])

    if not start_over and parts.ranks.agree(is_emptied):
        root = journal.parent
        raise ChronicleError(
            f"{journal}: is gone or empty, and {head_path(journal).name} says that decisions stood"
            f" in it; bring it back from a copy (trimtab journal check {root} --repair looks in the"
            " second place), or give start_over=True to begin at step 0"
        )
    check = parts.ranks.agree(look)
    if check is not None and check.refuses:
        raise ChronicleError(check.refuses)
    for text in check.notes if check is not None else ():
        parts.points.store.note(text)


def _tell_from_zero(parts: RunContext, resumed: Resumed) -> None:
    """Say why a run that is there begins at step 0 again; what was consented to is an action."""
    recorder, store = parts.recorder, parts.points.store
    num_found = store.num_found()
    text = f"none of {num_found} checkpoints is whole and healthy: starting from step 0"
    if resumed.given_up:
        recorder.event(
            "action",
            step=0,
            remedy="start-over",
            values={"confirmed": True},
            why=resumed.given_up,
            kept_attempt=recorder.attempt,
            standing=parts.state.standing(),
        )
        text = f"starting over from step 0 by start_over=True, given up: {resumed.given_up}"
    elif not num_found:
        text = "no checkpoint of this run is there to go on from: starting from step 0"
    for line in (text, *resumed.notes):
        recorder.event("note", step=0, author="trimtab", text=line)
        if parts.ranks.chief:
            to_stderr(f"trimtab: {line}")


def _resume(
    parts: RunContext,
    *,
    is_old: bool,
    loaded_step: int | None,
    companion: Mapping[str, object] | None,
    start_over: bool,
) -> Resumed:
    """Load what the run goes on from: another trainer's checkpoint, ours, or nothing."""
    resumption = Resumption(
        parts.state,
        parts.points,
        judgement=parts.judgement,
        ranks=parts.ranks,
        recorder=parts.recorder,
    )
    if loaded_step is None:
        return resumption.resume(start_over=start_over) if is_old else Resumed()
    return go_on_from(
        parts.state,
        loaded_step,
        companion,
        judgement=parts.judgement,
        ranks=parts.ranks,
        store=parts.points.store,
        resumption=resumption,
    )


def _go_on(
    parts: RunContext, resumed: Resumed, *, steps: int | None, say: Callable[[str], None]
) -> None:
    """Open the attempt that a resumed run goes on in; where nothing is left to do, say so."""
    state, recorder = parts.state, parts.recorder
    step, number = state.counters.step, str(resumed.attempt)
    done = steps is not None and step >= steps
    decisions = state.decisions
    decisions.begin_minor(max(decisions.minor, _next_minor(parts, decisions.major)))
    if not done:
        number = f"{decisions.major}.{decisions.minor}"
    recorder.attempt = number
    for text in resumed.notes:
        say(text)
        recorder.event("note", step=step, author="trimtab", text=text)
    if done:  # no attempt is begun where nothing is left to do
        say(f"nothing left to do: {step} of {steps} steps done")
        return
    recorder.event(
        "resume",
        step=step,
        checkpoint=resumed.checkpoint,
        from_attempt=resumed.attempt,
        load_s=round(resumed.load_s, 3),
        hashes="agree" if resumed.checkpoint else None,
        passed_over=list(resumed.passed_over),
        environment=_environment(parts),
    )
    state.begin_attempt(
        parent=resumed.attempt,
        parent_step=step,
        why="resumed after a stop",
        trial=False,
        settings=_sizes(parts),
    )
    say(f"resumed at step {step} from {resumed.checkpoint} (attempt {number})")


def _environment(parts: RunContext) -> dict[str, object]:
    """Return versions, flags, machine and code of this launch; the first rank writes the code."""
    recorder = parts.recorder
    told = write_launch(recorder.directory.root, recorder.attempt) if parts.ranks.chief else {}
    return {**told, **reproducibility()}


def _sizes(parts: RunContext) -> dict[str, object]:
    """Return how the ranks share the work, the samples that one takes at once, and the traits."""
    found: dict[str, object] = dict(
        layout(parts.optimizer_step.parameters, parts.ranks.count, parts.holders.num_stages)
    )
    found |= traits(parts.training.bare_model, parts.training.optimizer)
    size = parts.data.shape["batch_size"]
    return found | ({} if size is None else {"local_batch_size": size})


def _tell_what_was_left(parts: RunContext) -> None:
    """Journal what the last row says, where the run was killed before all of it was written.

    A row is written before its findings, and the findings of a row before the next row: only the
    last row can lack some. Judged from the record, as `trimtab inspect` would; one pass over it.
    """
    try:
        record = read_run_directory(parts.recorder.directory.root)
        events, _ = read_journal(parts.recorder.directory.journal)
        last = record.attempts[-1]
        if any(e.event == "fault" and e.attempt == last.number for e in events):
            return  # the judge had stood down, and says nothing more
        told = {_claim(e.data) for e in events if e.event == "finding"}
        findings = judge_record(record, parts.judgement.judge)
        found = [f for f in findings if f.row == record.num_rows - 1]
    except TrimtabError:  # no rows yet, or not to be read: the run goes on without
        return
    parts.recorder.attempt = last.number
    for finding in found:
        claim = {
            "row": finding.row,
            "kind": finding.kind,
            "signal": finding.signal,
            "text": finding.text,
        }
        if _claim(claim) not in told:
            parts.recorder.finding(finding, step=int(record.step[-1]))


def _claim(data: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(str(data.get(key)) for key in ("row", "kind", "signal", "text"))


def _attempt_numbers(parts: RunContext) -> list[tuple[int, int]]:
    return parts.ranks.agree(lambda: _numbers_on_disk(parts))


def _numbers_on_disk(parts: RunContext) -> list[tuple[int, int]]:
    folder = parts.recorder.directory.signals
    names = [p.stem for p in folder.glob("*.jsonl")] if folder.is_dir() else []
    numbers = [n.split(".") for n in names]
    return [
        (int(a), int(b))
        for a, b in (n for n in numbers if len(n) == 2)
        if a.isdigit() and b.isdigit()
    ]


def _why_from_zero(parts: RunContext) -> str:
    """Return why a run that is there begins at step 0 again."""
    events, _ = parts.ranks.agree(lambda: read_journal(parts.recorder.directory.journal))
    actions = [e.data for e in events if e.event == "action"]
    if actions and actions[-1].get("remedy") == "start-over":
        return f"started over: {actions[-1].get('why', '')}"
    return "started again: there was no checkpoint to go on from"


def _next_major(parts: RunContext) -> int:
    return max((a for a, _ in _attempt_numbers(parts)), default=0) + 1


def _next_minor(parts: RunContext, major: int) -> int:
    return max((b for a, b in _attempt_numbers(parts) if a == major), default=-1) + 1
