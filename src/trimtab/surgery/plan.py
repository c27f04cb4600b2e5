"""What a rollback would do to a run, as data: each move, pointer and log; nothing is touched.

The order of the steps keeps a killed rollback harmless: curves are archived and cut first, then the
pointers are set back, and only then later checkpoints go aside, the newest first. A job that were
started in between would load the target, or a checkpoint that is still whole.
"""

import getpass
import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.checkpoints.layouts import (
    ASIDE,
    PLACES,
    CheckpointLayout,
    Pointer,
    SavedStep,
    find_layout,
)
from trimtab.checkpoints.manifest import verify
from trimtab.checkpoints.sidecar import SUFFIX, verify_stamped
from trimtab.checkpoints.stated_step import step_in_checkpoint, step_in_state
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ActError, ReadError
from trimtab.plan.rollback import RollbackCandidate
from trimtab.surgery.damage import damage_in
from trimtab.surgery.event_files import EventCut, cut_file, is_event_file
from trimtab.surgery.operations import Operation, content_hash, hash_of, inside
from trimtab.surgery.records import RollbackRecord, last_record, records_of, written_by
from trimtab.surgery.running import fresh_writes, guard_holds, open_for_writing
from trimtab.surgery.suggest import Suggestion, suggest
from trimtab.surgery.wandb_copy import clean_copy
from trimtab.text import number

__all__ = ["RollbackPlan", "plan_rollback", "plan_undo", "root_of"]

_SPARE_BYTES = 1 << 20
_MAX_DEPTH = 8
"""Folders below the run that are searched for logs."""


@dataclass(frozen=True, kw_only=True)
class RollbackPlan:
    """A rollback, or its undoing, before it is done."""

    run: Path
    """As given."""
    root: Path
    """Folder that gets `aside/` and the journal."""
    framework: str
    folder: Path
    """Of the checkpoints."""
    to_step: int
    from_step: int | None
    """What the pointer names now."""
    target: Path | None
    """The checkpoint to go back to."""
    grade: str = ""
    verified: bool = False
    """Whether the target matches the hashes that trimtab kept of it."""
    operations: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    blocked_by: tuple[str, ...] = ()
    """Why it would be refused now."""
    suggestion: Suggestion | None = None
    candidates: tuple[RollbackCandidate, ...] = ()
    """Checkpoints ranked as targets, best first, where no step was given."""
    events: tuple[tuple[str, int, int], ...] = ()
    """Of each event file that is cut: its path, records that stay, records that leave."""
    size_bytes: int = 0
    """Disk space that it takes."""
    why: str = ""
    by: str = ""
    git_commit: bool = False
    undo: bool = False
    num_before: int = 0
    """Rollbacks of the run when this was planned."""
    resumed: RollbackRecord | None = None
    """The rollback that is gone on with, or undone."""

    @property
    def archive(self) -> str:
        """Folder of the copies of event files, relative to the root; empty: there is none."""
        places = [o.path for o in self.operations if o.role == "archive"]
        return os.path.commonpath([os.path.dirname(p) for p in places]) if places else ""  # noqa: PTH120


def root_of(run: Path) -> tuple[Path, CheckpointLayout | None]:
    """Return the folder that holds `aside/` and the journal of a run, and its checkpoints.

    It is the folder given, links resolved; the run directory of a guard where the folder given is
    its `checkpoints/`; and the folder of checkpoints where an earlier rollback was kept there.

    Raises:
        ReadError: It is no folder, or holds several folders of checkpoints.
    """
    given = Path(os.path.realpath(run))
    layout = find_layout(given)
    parent = RunDirectory(given.parent)
    above = given.name in PLACES and not (given / ASIDE).exists()
    # the guard that saved them, or a rollback of the run, lives in the folder above
    if above and (parent.journal.is_file() or records_of(parent.root)):
        return parent.root, layout
    below = given if layout is None or (given / ASIDE).exists() else layout.folder
    if records_of(below):
        return below, layout
    # a rollback of the run, when its folder of checkpoints is given by another name than usual
    if not records_of(given) and any(
        parent.root / r.folder == given for r in records_of(parent.root)
    ):
        return parent.root, layout
    return given, layout


def plan_rollback(
    run: str | os.PathLike[str],
    to: int | None = None,
    *,
    archive: str = "",
    why: str = "",
    git_commit: bool = False,
    analyse: bool | None = None,
) -> RollbackPlan:
    """Return what a rollback of a run would do; nothing is touched.

    Args:
        run: The run's folder, or its folder of checkpoints.
        to: Step of the checkpoint to go back to; None: the one that the logs suggest.
        archive: Name of the folder that gets the copies of the event files; empty: made of the step
            and the incident.
        why: Reason, for the journal.
        git_commit: Whether to commit the archive with git.
        analyse: Whether to look at the run's logs; None: only where no step is given.

    Returns:
        The plan. Where an earlier rollback was not finished, it is the rest of that one.

    Raises:
        ReadError: It is no folder, or holds no checkpoint that is known.
        ActError: There is no checkpoint of that step, it would reach out of the run, a link stands
            in the way, or another rollback of it was not finished.
    """
    given = Path(run)
    root, _ = root_of(given)
    # before anything is looked at: what another process does meanwhile is found by their number
    num_before = len(records_of(root))
    last = last_record(root)
    if last is not None and last.pending():
        return _resumed(given, root, last, to)
    root, layout = root_of(given)
    if layout is None:
        raise ReadError(_nothing_found(given, root))
    for name in (ASIDE, "journal.jsonl", "journal.head", ".lock"):
        if (root / name).is_symlink():
            raise ActError(f"{root / name}: is a link; a rollback writes only in the run itself")
    trees = _event_files(root, layout, records_of(root))
    found = None
    if to is None or analyse:
        found = suggest(root, layout, records_of(root), archives=trees.archives)
    step = _step_wanted(layout, to, found, given, root)
    target = _target(layout, step)
    grade, verified, warnings = _trust(target, layout)
    if found is not None and found.first_sign is not None and step > found.first_sign:
        warnings.append(
            f"step {step} lies after the first sign of trouble at {number(found.first_sign)}"
        )
    warnings += [
        f"{p.path.name} names no step that can be read and is left as it is: a trainer that reads"
        " it may not find the checkpoint; mend it by hand"
        for p in layout.pointers
        if p.step is None
    ]
    operations, events, notes = _operations(root, layout, step, target, trees, archive, found)
    size = sum(o.size_bytes for o in operations)
    plan = RollbackPlan(
        run=given,
        root=root,
        framework=layout.framework,
        folder=layout.folder,
        to_step=step,
        from_step=layout.current_step if layout.current_step is not None else layout.steps[-1],
        target=target.path,
        grade=grade,
        verified=verified,
        operations=operations,
        warnings=tuple(warnings),
        notes=(*notes, *(found.notes if found else ())),
        suggestion=found,
        candidates=found.candidates if found else (),
        events=events,
        size_bytes=size,
        why=" ".join(why.split()),
        by=_user(),
        git_commit=git_commit,
        num_before=num_before,
    )
    return _with_blocks(plan)


def plan_undo(run: str | os.PathLike[str]) -> RollbackPlan:
    """Return what it takes to undo the newest rollback of a run; nothing is touched.

    Raises:
        ReadError: It is no folder.
        ActError: There is no rollback to undo.
    """
    given = Path(run)
    root, layout = root_of(given)
    record = last_record(root)
    if record is None:
        raise ActError(f"{given}: has no rollback to undo; nothing was done")
    plan = _of_record(given, root, record)
    went_on = []
    if layout is not None and record.state == "applied":
        went_on = [c for c in layout.checkpoints if c.step > record.to_step]
    blocks = [
        f"{c.path.name} was made since; move the new checkpoints away first" for c in went_on[:1]
    ]
    if record.pending():  # what was half done is always taken back
        blocks = []
    return _with_blocks(
        replace(plan, undo=True, operations=tuple(reversed(record.operations))), more=blocks
    )


# -- which checkpoint -----------------------------------------------------------------------


def _nothing_found(given: Path, root: Path) -> str:
    for name in PLACES:
        link = root / name
        if link.is_symlink():
            return (
                f"{link}: is a link, and a rollback changes only what lies in the run itself; give"
                f" {os.path.realpath(link)}"
            )
    return (
        f"{given}: holds no checkpoints that are known (global_stepN, iter_N, checkpoint-N, step-N,"
        " *.ckpt), three folders deep; give the folder of the run or of its checkpoints"
    )


def _aside_of(root: Path, step: int) -> RollbackRecord | None:
    """Return the newest rollback that moved a checkpoint of a step aside, where it stands."""
    for record in reversed(records_of(root)):
        moved = [o.path for o in record.operations if o.do == "move" and o.role == "checkpoint"]
        names = (re.findall(r"\d+", Path(path).name) for path in moved)
        if record.state != "undone" and any(n and int(n[-1]) == step for n in names):
            return record
    return None


def _step_wanted(
    layout: CheckpointLayout, to: int | None, found: Suggestion | None, given: Path, root: Path
) -> int:
    if to is not None:
        if to in layout.steps:
            return to
        aside = _aside_of(root, to)
        if aside is not None:
            raise ActError(
                f"{given}: the checkpoint of step {to} lies aside since rollback {aside.number}, to"
                f" step {aside.to_step}; bring it back with trimtab rollback"
                f" {shlex.quote(str(given))} --undo. Nothing was done"
            )
        raise ActError(
            f"{given}: has no checkpoint of step {to}; there are {_listed(layout.steps)}. Nothing"
            " was done"
        )
    if found is not None and found.target is not None:
        return found.target
    reason = "; ".join(found.notes) if found is not None and found.notes else "nothing to go by"
    raise ActError(
        f"{given}: no step to go back to can be suggested ({reason}); give it with --to, one of"
        f" {_listed(layout.steps)}"
    )


def _listed(steps: Sequence[int]) -> str:
    if len(steps) > 12:
        return f"{', '.join(map(str, steps[:4]))}, …, {', '.join(map(str, steps[-6:]))}"
    return ", ".join(map(str, steps))


def _target(layout: CheckpointLayout, step: int) -> SavedStep:
    there = layout.of_step(step)
    return next((c for c in there if c.complete), there[0])


def _trust(target: SavedStep, layout: CheckpointLayout) -> tuple[str, bool, list[str]]:
    """Return the grade of the target, whether its hashes are right, and what stands against it."""
    name = target.path.name
    told: list[str] = []
    if target.path.is_symlink():
        raise ActError(f"{target.path}: is a link; the target must lie in the run itself")
    if not target.complete:
        told.append(f"{name} does not look whole: {target.why_not}")
    if target.grade in ("suspect", "poisoned"):
        told.append(f"{name} is graded {target.grade}")
    elif not target.grade:
        told.append(f"{name} is not graded: nobody judged the run up to there")
    verified = False
    if layout.framework == "trimtab":
        why = verify(target.path)
    elif target.path.with_name(target.path.name + SUFFIX).is_file():
        why = verify_stamped(target.path)
    else:
        why = damage_in(target.path)
        told.append(
            f"{name} {'is damaged: ' + why if why else 'cannot be verified: no hashes of it exist'}"
        )
        return target.grade, False, told
    verified = not why
    if why and target.complete:
        told.append(f"{name} is damaged: {why}")
    return target.grade, verified, told


# -- what is done ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _EventTrees:
    """The event files of a run."""

    files: tuple[Path, ...]
    archives: tuple[Path, ...]
    """Folders with copies of older curves, which are left as they are."""
    wandb: tuple[Path, ...]
    links: tuple[Path, ...]


def _event_files(
    root: Path, layout: CheckpointLayout, records: Sequence[RollbackRecord]
) -> _EventTrees:
    archives = {root / r.archive for r in records if r.archive and r.state != "undone"}
    entries = {c.path for c in layout.checkpoints}
    by_folder: dict[Path, set[str]] = {}
    files: list[Path] = []
    wandb: list[Path] = []
    links: list[Path] = []
    for folder, names in _walk(root, 0, skip={*archives, *entries, root / ASIDE}):
        events = {n for n in names if is_event_file(n)}
        regular = {n for n in events if not (folder / n).is_symlink()}
        links += [folder / n for n in sorted(events - regular)]
        if regular:
            above = set().union(*(by_folder.get(p, set()) for p in folder.parents))
            if regular & above:  # `mkdir tb-7k-glitch; cp events* tb-7k-glitch`
                archives.add(folder)
                continue
            by_folder[folder] = regular
            files += [folder / n for n in sorted(regular)]
        wandb += [
            folder / n
            for n in sorted(names)
            if n.endswith(".wandb")
            and not (folder / n).is_symlink()
            and not folder.name.startswith("upto-")
        ]
    return _EventTrees(
        files=tuple(files), archives=tuple(sorted(archives)), wandb=tuple(wandb), links=tuple(links)
    )


def _walk(folder: Path, depth: int, skip: set[Path]) -> Iterator[tuple[Path, set[str]]]:
    """Yield each folder with the names of its files, those above before those below."""
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError as error:
        raise ReadError(
            f"{folder}: cannot be listed ({error.strerror}); check its rights"
        ) from error
    yield folder, {e.name for e in entries if not e.is_dir(follow_symlinks=False)}
    for entry in entries:
        below = folder / entry.name
        inner = entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
        if inner and below not in skip and depth < _MAX_DEPTH:
            yield from _walk(below, depth + 1, skip)


def _operations(
    root: Path,
    layout: CheckpointLayout,
    step: int,
    target: SavedStep,
    trees: _EventTrees,
    archive: str,
    found: Suggestion | None,
) -> tuple[tuple[Operation, ...], tuple[tuple[str, int, int], ...], tuple[str, ...]]:
    """Return the steps in their order, what is cut, and what is to be said."""
    notes: list[str] = []
    cuts = {f: cut_file(f, step) for f in trees.files}
    cut = {f: c for f, c in cuts.items() if c.num_removed}
    steps: list[Operation] = []
    taken: set[str] = set()
    if cut:
        name = _archive_name(layout, step, archive, found)
        steps += _archived(root, trees.files, name)
        steps += [_cut_step(root, f, c, step, taken) for f, c in cut.items()]
    notes += _event_notes(root, cuts, trees)
    steps += _clean_copies(root, trees.wandb, step, notes)
    steps += _pointer_steps(root, layout, step, target, taken, notes)
    steps += _checkpoint_steps(root, layout, step, taken)
    events = tuple(
        (_name(root, f), c.num_records - c.num_removed, c.num_removed) for f, c in cut.items()
    )
    return tuple(steps), events, tuple(notes)


def _name(root: Path, path: Path) -> str:
    if not path.is_relative_to(root):
        raise ActError(f"{path}: lies outside the run {root}; nothing was done")
    name = path.relative_to(root).as_posix()
    inside(root, name)
    return name


def _archive_name(layout: CheckpointLayout, step: int, given: str, found: Suggestion | None) -> str:
    if given and (given in (".", "..") or "/" in given or "\0" in given or len(given) > 100):
        raise ActError(f"--archive {given!r}: give the name of a folder, without /")
    if given:
        return given
    if found is not None and found.onset is not None:
        return f"tb-{int(found.onset)}-{found.kind}"
    left = layout.current_step
    return f"tb-{left}-before-rollback-to-{step}" if left else f"tb-before-rollback-to-{step}"


def _archived(root: Path, files: Sequence[Path], name: str) -> Iterator[Operation]:
    top = Path(os.path.commonpath([f.parent for f in files]))
    place, number_ = top / name, 1
    while os.path.lexists(place):  # an earlier archive is never written into
        number_ += 1
        place = top / f"{name}-{number_}"
    for file in files:
        kept = place / file.relative_to(top)
        yield Operation(
            do="write",
            role="archive",
            path=_name(root, kept),
            after=hash_of(file),
            how="copy",
            source=_name(root, file),
            size_bytes=file.stat().st_size,
        )


def _cut_step(root: Path, file: Path, cut: EventCut, step: int, taken: set[str]) -> Operation:
    name = _name(root, file)
    leaves = f"{cut.num_removed} of {cut.num_records} events leave"
    if not cut.has_rows:
        return Operation(
            do="move", role="log", path=name, to=_aside(root, file.name, taken), told="all after it"
        )
    return Operation(
        do="write",
        role="log",
        path=name,
        before=hash_of(file),
        after=content_hash(cut.pieces(file)),
        how="events",
        source=name,
        step=step,
        size_bytes=file.stat().st_size,
        told=leaves,
    )


def _event_notes(root: Path, cuts: dict[Path, EventCut], trees: _EventTrees) -> Iterator[str]:
    for file, cut in cuts.items():
        for note in cut.notes:
            yield f"{_name(root, file)}: {note}"
    others = sorted({tag for cut in cuts.values() for tag in cut.other_axis})
    if others:
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if others[3:] else "")
        yield f"{shown}: cut where the steps around them are cut, since they count something else"
    for folder in trees.archives:
        yield f"{_name(root, folder)}: holds copies of earlier curves, left as it is"
    for link in trees.links:
        yield f"{_name(root, link)}: is a link, left as it is"


def _clean_copies(
    root: Path, logs: Sequence[Path], step: int, notes: list[str]
) -> Iterator[Operation]:
    for log in logs:
        copy = clean_copy(log, step)
        if not copy.num_removed:
            continue
        place = log.parent.with_name(f"upto-{step}-{log.parent.name}") / log.name
        if os.path.lexists(place.parent):
            notes.append(f"{_name(root, place.parent)}: is there already, left as it is")
            continue
        after = hashlib.sha256(copy.data).hexdigest()
        yield Operation(
            do="write",
            role="copy",
            path=_name(root, place),
            after=after,
            how="wandb",
            source=_name(root, log),
            step=step,
            size_bytes=len(copy.data),
            told=f"{copy.num_rows} rows up to the step, {copy.num_removed} left out",
        )
        run_id = log.stem.removeprefix("run-")
        sent = not log.parent.name.startswith("offline-")
        notes.append(
            f"W&B run {run_id}: its own log stays as it is; wandb sync {_name(root, place.parent)}"
            " sends the copy without the later rows"
            + (
                f". It was logged online: fork it there with fork_from='{run_id}?_step={step}'"
                if sent
                else ""
            )
        )


def _pointer_steps(
    root: Path,
    layout: CheckpointLayout,
    step: int,
    target: SavedStep,
    taken: set[str],
    notes: list[str],
) -> Iterator[Operation]:
    names = {c.path.name for c in layout.of_step(step)}
    for pointer in layout.pointers:
        if pointer.step is None:
            notes.append(f"{pointer.path.name}: names no step, left as it is")
        elif pointer.step != step:
            yield _pointed(root, pointer, step, names, target, taken, notes)
    for copy in layout.copies:
        yield from _copied(root, copy, target.path, step, taken, notes)
    notes += [f"{p.name}: its step is not known, left as it is" for p in layout.unknown]
    for name in layout.layout.states:
        state, wanted = layout.folder / name, target.path / name
        if state.is_symlink() or not state.is_file() or not wanted.is_file():
            continue
        later = step_in_state(state)
        if later is not None and later > step:
            yield _rewritten(root, state, wanted, "pointer", f"of step {later}, then {step}")


def _pointed(
    root: Path,
    pointer: Pointer,
    step: int,
    names: set[str],
    target: SavedStep,
    taken: set[str],
    notes: list[str],
) -> Operation:
    text = pointer.renamed(step)
    name = _name(root, pointer.path)
    if pointer.is_link and text not in names:  # epoch=2-step=6900.ckpt: the epoch changes, too
        text = target.path.name
    leads = text.strip()
    if pointer.is_link and len(Path(pointer.text).parts) != 1:
        raise ActError(
            f"{pointer.path}: is a link to {pointer.text}, not to a checkpoint beside it; nothing"
            " was done"
        )
    if not leads.isdecimal() and leads not in names:
        notes.append(f"{name}: would name {leads}, which is not there, and goes aside")
        return Operation(
            do="move", role="pointer", path=name, to=_aside(root, pointer.path.name, taken)
        )
    told = f"{pointer.text.strip()} becomes {leads}"
    if pointer.is_link:
        return Operation(
            do="relink", role="pointer", path=name, before=pointer.text, after=text, told=told
        )
    raw = text.encode("utf-8", "surrogateescape")
    return Operation(
        do="write",
        role="pointer",
        path=name,
        before=hash_of(pointer.path),
        after=hashlib.sha256(raw).hexdigest(),
        how="text",
        text=text,
        told=told,
    )


def _copied(
    root: Path, copy: Path, target: Path, step: int, taken: set[str], notes: list[str]
) -> Iterator[Operation]:
    """Set a copy of the newest checkpoint back, such as `last.ckpt`."""
    held = step_in_checkpoint(copy)
    if copy.is_dir() or target.is_dir():  # sharded: too large to copy; the trainer makes it anew
        if held is None or held > step:
            notes.append(f"{copy.name}: goes aside; name {target.name} when the run is resumed")
            yield Operation(
                do="move",
                role="pointer",
                path=_name(root, copy),
                to=_aside(root, copy.name, taken),
            )
        return
    if held is not None and held <= step:
        return
    if hash_of(copy) != hash_of(target):
        told = f"of step {'unknown' if held is None else held}, becomes a copy of {target.name}"
        yield _rewritten(root, copy, target, "pointer", told)


def _rewritten(root: Path, path: Path, source: Path, role: str, told: str) -> Operation:
    return Operation(
        do="write",
        role="pointer" if role == "pointer" else "copy",
        path=_name(root, path),
        before=hash_of(path),
        after=hash_of(source),
        how="copy",
        source=_name(root, source),
        size_bytes=source.stat().st_size,
        told=told,
    )


def _checkpoint_steps(
    root: Path, layout: CheckpointLayout, step: int, taken: set[str]
) -> Iterator[Operation]:
    for saved in sorted(layout.checkpoints, key=lambda c: (-c.step, c.path.name)):
        if saved.step <= step:
            continue
        if saved.path.is_symlink():
            raise ActError(
                f"{saved.path}: is a link to {os.path.realpath(saved.path)}; a rollback moves only"
                " what lies in the run itself. Nothing was done"
            )
        beside = saved.path.with_name(saved.path.name + SUFFIX)
        for path in (saved.path, beside):
            if path == saved.path or path.is_file():
                yield Operation(
                    do="move",
                    role="checkpoint",
                    path=_name(root, path),
                    to=_aside(root, path.name, taken),
                    told=saved.why_not,
                )


def _aside(root: Path, name: str, taken: set[str]) -> str:
    """Return a place in `aside/` that is free, and will not be given again."""
    place, number_ = f"{ASIDE}/{name}", 1
    while place in taken or os.path.lexists(root / place):
        number_ += 1
        place = f"{ASIDE}/{name}.{number_}"
    taken.add(place)
    return place


# -- what stands against it -----------------------------------------------------------------


def _with_blocks(plan: RollbackPlan, more: Sequence[str] = ()) -> RollbackPlan:
    """Return the plan with what would be refused now, and what was written moments ago."""
    blocks = list(more)
    holder = guard_holds(plan.root)
    if holder:
        blocks.append(f"{holder} holds the run; stop it first")
    opened = open_for_writing(plan.root)
    if opened:
        blocks.append(f"a job is running: {opened}; stop it first")
    blocks += _elsewhere(plan)
    try:
        free = shutil.disk_usage(plan.root).free
        read_only = bool(os.statvfs(plan.root).f_flag & os.ST_RDONLY)
    except OSError:
        free, read_only = 1 << 62, False
    if read_only:
        blocks.append(f"{plan.root} lies on a file system that is mounted read-only; mount it rw")
    elif not plan.undo and plan.size_bytes + _SPARE_BYTES > free:
        blocks.append(
            f"{plan.size_bytes} bytes are needed and {free} are free; free space on the disk of"
            f" {plan.root}"
        )
    _, told = fresh_writes(plan.root, watch_s=0, ours=written_by(records_of(plan.root)))
    warnings = plan.warnings
    if told:
        warnings = (*warnings, f"{told}: make sure that the job is stopped on every node")
    return replace(plan, blocked_by=tuple(blocks), warnings=warnings)


def _elsewhere(plan: RollbackPlan) -> Iterator[str]:
    device = plan.root.stat().st_dev
    for operation in plan.operations:
        path = plan.root / operation.path
        place = path if os.path.lexists(path) else path.parent
        if os.path.lexists(place) and place.lstat().st_dev != device:
            yield (
                f"{operation.path} lies on another file system than the run, so it cannot be moved"
                f" in one step; give {path.parent} as the run"
            )
            return


def _of_record(given: Path, root: Path, record: RollbackRecord) -> RollbackPlan:
    return RollbackPlan(
        run=given,
        root=root,
        framework=record.framework,
        folder=root / record.folder,
        to_step=record.to_step,
        from_step=record.from_step,
        target=None,
        operations=record.operations,
        notes=record.notes,
        why=record.why,
        by=record.by,
        git_commit=record.git_commit,
        resumed=record,
    )


def _resumed(given: Path, root: Path, record: RollbackRecord, to: int | None) -> RollbackPlan:
    """Return the rest of a rollback that was not finished.

    Raises:
        ActError: It is being undone, or went to another step.
    """
    if record.state == "undoing":
        raise ActError(
            f"{given}: the rollback to {record.to_step} is half undone; finish that with"
            " trimtab rollback --undo"
        )
    if to is not None and to != record.to_step:
        raise ActError(
            f"{given}: a rollback to {record.to_step} was not finished; finish it with"
            f" --to {record.to_step} --apply, or take it back with --undo"
        )
    plan = _of_record(given, root, record)
    note = f"goes on with rollback {record.number}, which was not finished"
    return _with_blocks(replace(plan, notes=(note, *plan.notes)))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a name for this user
        return f"uid {os.getuid()}"
