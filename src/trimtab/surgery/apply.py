"""A rollback done, or taken back: locked, written down before it begins, verified at the end.

The record of every step is on disk before the first of them. Whatever kills the process, the next
`apply_rollback` of a new plan finds the record and does what is left, and `undo_rollback` takes
back what was done.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trimtab.checkpoints.layouts import look_at
from trimtab.chronicle.journal import Event, append_once, read_journal
from trimtab.chronicle.run_lock import RunLock
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ActError, ChronicleError, ReadError
from trimtab.surgery.git_archive import commit_archive
from trimtab.surgery.operations import carry_out, check_undo, inside, take_back
from trimtab.surgery.plan import RollbackPlan, plan_undo
from trimtab.surgery.records import RollbackRecord, last_record, records_of, save_record, written_by
from trimtab.surgery.running import WATCH_S, fresh_writes, open_for_writing

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["apply_rollback", "undo_rollback"]


def apply_rollback(
    plan: RollbackPlan, *, locked: bool = False, watch_s: float = WATCH_S
) -> RollbackRecord:
    """Do what a plan says, or the rest of it.

    Args:
        plan: Of `plan_rollback`.
        locked: Whether the caller holds the lock of the run (`RunLock`).
        watch_s: How long to watch files that were written moments ago; 0: not at all.

    Returns:
        What was done; it is in the journal. Where the run is at that step and nothing has to be
        done, the rollback that brought it there, or one with the number 0, which is not on disk.

    Raises:
        ActError: The run is in use, something was changed since it was planned, or the disk
            refuses. What is half done is finished by a rerun, or taken back by `undo_rollback`.
    """
    if plan.undo:
        return undo_rollback(plan.run, locked=locked, why=plan.why, by=plan.by)
    _refuse_blocked(plan)
    if not plan.operations and plan.resumed is None:
        return _nothing_to_do(plan)
    with _held(plan.root, plan.folder, locked=locked):
        record = _begun(plan, watch_s)
        with _half_done(record):
            for operation in record.operations:
                carry_out(record.root, record.kept, operation)
            _verify(record)
            if record.git_commit and record.archive and not record.commit:
                commit, note = commit_archive(record.root, record.archive, record.to_step)
                record = save_record(record, commit=commit, written=(note,) if note else ())
            _write_journal(record, "applied")
            return save_record(record, state="applied")


def undo_rollback(
    run: str | os.PathLike[str],
    *,
    number: int | None = None,
    locked: bool = False,
    why: str = "",
    by: str = "",
) -> RollbackRecord:
    """Undo the newest rollback of a run: every file is again what it was, where it was.

    Args:
        run: The run's folder, or its folder of checkpoints.
        number: Of the rollback that is meant (`RollbackRecord.number`); another one is refused.
        locked: Whether the caller holds the lock of the run (`RunLock`).
        why: Reason, for the journal; default: that of the rollback.
        by: Who undoes it; default: who did it.

    Raises:
        ReadError: It is no folder.
        ActError: There is nothing to undo, the run is in use or went on, or the disk refuses.
    """
    plan = plan_undo(run)
    newest = plan.resumed.number if plan.resumed is not None else 0
    if number not in (None, newest):
        raise ActError(f"{run}: rollback {number} is not the newest, which is {newest}")
    _refuse_blocked(plan)
    with _held(plan.root, plan.folder, locked=locked):
        record = last_record(plan.root)
        if record is None or plan.resumed is None or record.id != plan.resumed.id:
            raise ActError(f"{plan.run}: was changed by another rollback just now; look again")
        against = list(check_undo(record.root, record.kept, record.operations))
        if against:
            raise ActError(f"{plan.run}: cannot be undone: {'; '.join(against[:3])}")
        with _half_done(record):
            record = save_record(record, state="undoing")
            for operation in reversed(record.operations):
                take_back(record.root, record.kept, operation)
            told = replace(record, why=why or record.why, by=by or record.by)
            _write_journal(told, "undone")
            return save_record(record, state="undone")


def _nothing_to_do(plan: RollbackPlan) -> RollbackRecord:
    """Return the rollback that brought the run to where it is; one that is not on disk if none."""
    last = last_record(plan.root)
    if last is not None and last.to_step == plan.to_step:
        return last
    return RollbackRecord(
        root=plan.root,
        number=0,
        id="",
        state="applied",
        framework=plan.framework,
        folder=plan.folder.relative_to(plan.root).as_posix(),
        to_step=plan.to_step,
        from_step=plan.from_step,
    )


def _refuse_blocked(plan: RollbackPlan) -> None:
    if plan.blocked_by:
        raise ActError(f"{plan.run}: {'; '.join(plan.blocked_by)}. Nothing was done")


@contextlib.contextmanager
def _held(root: Path, folder: Path, *, locked: bool) -> Iterator[None]:
    """Hold the run and its folder of checkpoints, which may have been given as a run itself.

    Raises:
        ActError: A guard or another rollback holds one of them.
    """
    with contextlib.ExitStack() as stack:
        if not locked:
            try:
                lock = RunLock(root)
            except ChronicleError as error:
                raise ActError(f"{error}. Nothing was done") from error
            stack.callback(lock.release)
        stack.enter_context(_folder_lock(folder))
        yield


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ActError(
            f"{folder}: cannot be opened ({error.strerror}); nothing was done"
        ) from error
    try:
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ActError(f"{folder}: another rollback is at work; wait for it") from error
        except OSError:  # no locks on this file system
            pass
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _half_done(record: RollbackRecord) -> Iterator[None]:
    """Say what to do with a rollback that stops in the middle.

    Raises:
        ActError: It stopped.
    """
    rest = (
        f". The rollback to {record.to_step} is half done: run the same command again to finish it,"
        " or trimtab rollback --undo to take it back"
    )
    try:
        yield
    except ActError as error:
        raise ActError(f"{error}{rest}") from error
    except (ChronicleError, ReadError) as error:
        raise ActError(f"{error}{rest}") from error
    except OSError as error:
        where = error.filename or record.root
        raise ActError(f"{where}: {error.strerror or error}{rest}") from error


def _begun(plan: RollbackPlan, watch_s: float) -> RollbackRecord:
    """Return the record to work through: the one that is pending, or a new one, on disk.

    Raises:
        ActError: Something else was begun meanwhile, or a job is writing.
    """
    last = last_record(plan.root)
    if last is not None and last.pending():
        if plan.resumed is None or plan.resumed.id != last.id or last.state != "applying":
            raise ActError(f"{plan.run}: another rollback was begun just now; look again")
        return last
    if plan.resumed is not None:
        raise ActError(f"{plan.run}: was finished or undone just now; look again")
    earlier = records_of(plan.root)
    if len(earlier) != plan.num_before:
        raise ActError(f"{plan.run}: another rollback was done since this one was planned")
    opened = open_for_writing(plan.root)
    grown, _ = fresh_writes(plan.root, watch_s=watch_s, ours=written_by(earlier))
    if opened or grown:
        raise ActError(
            f"{plan.run}: a job is running: {opened or grown}; stop it first. Nothing was done"
        )
    record = RollbackRecord(
        root=plan.root,
        number=max((r.number for r in earlier), default=0) + 1,
        id=secrets.token_hex(8),
        state="applying",
        framework=plan.framework,
        folder=plan.folder.relative_to(plan.root).as_posix(),
        to_step=plan.to_step,
        from_step=plan.from_step,
        why=plan.why,
        by=plan.by,
        operations=plan.operations,
        notes=plan.notes,
        git_commit=plan.git_commit,
    )
    try:
        return save_record(record)
    except OSError as error:
        raise ActError(
            f"{record.kept}: cannot be written ({error.strerror}); nothing was done"
        ) from error


def _verify(record: RollbackRecord) -> None:
    """Look at the folder as the trainer will.

    Raises:
        ActError: A pointer does not name the step, or a later checkpoint is still there.
    """
    folder = record.root if record.folder == "." else inside(record.root, record.folder)
    layout = look_at(folder)
    if layout is None:
        raise ActError(f"{folder}: no checkpoint is found there after the rollback")
    if record.to_step not in layout.steps:
        raise ActError(f"{folder}: the checkpoint of step {record.to_step} is gone")
    for pointer in layout.pointers:
        if pointer.step not in (None, record.to_step):
            raise ActError(f"{pointer.path}: reads {pointer.text!r} after the rollback")
    later = [c.path.name for c in layout.checkpoints if c.step > record.to_step]
    if later:
        raise ActError(f"{folder}: {later[0]} is there after the rollback")


def _write_journal(record: RollbackRecord, state: str) -> None:
    """Append the record to the journal, unless it is there."""
    journal = RunDirectory(record.root).journal
    events: tuple[Event, ...] = ()
    if journal.is_file():
        events, _ = read_journal(journal)
    told = {"id": record.id, "state": state}
    if any(
        e.event == "rollback" and {k: e.data.get(k) for k in told} == told for e in reversed(events)
    ):
        return
    numbers = [e.attempt for e in events if e.event == "attempt"]
    of_role = {
        role: [o for o in record.operations if o.role == role]
        for role in ("checkpoint", "pointer", "log", "copy")
    }
    append_once(
        journal,
        "rollback",
        attempt=numbers[-1] if numbers else "",
        step=record.to_step,
        id=record.id,
        state=state,
        to_step=record.to_step,
        from_step=record.from_step,
        framework=record.framework,
        why=record.why,
        by=record.by,
        moved=[
            {"from": _text(o.path), "to": _text(o.to)}
            for o in of_role["checkpoint"]
            if o.do == "move"
        ],
        pointers=[{"path": _text(o.path), "told": _text(o.told)} for o in of_role["pointer"]],
        archive=_text(record.archive),
        logs_cut=[_text(o.path) for o in of_role["log"]],
        copies=[_text(o.path) for o in of_role["copy"]],
        commit=record.commit,
        record=_text((record.kept / "record.json").relative_to(record.root).as_posix()),
    )


def _text(name: str) -> str:
    """Return a file's name as text; bytes that are none are written out."""
    return name.encode("utf-8", "backslashreplace").decode()
