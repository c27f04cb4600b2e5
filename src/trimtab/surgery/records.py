"""What was planned and how far it got: one file for each rollback, written before anything else.

`RUN/aside/rollback-0001/record.json` holds every step and a state:

    applying  steps are being done: a rerun goes on with them, `undo` takes back what was done
    applied   done; the journal has the record
    undoing   steps are being taken back: `undo` goes on with it
    undone    all is as it was

It is replaced in one rename, and carries its own hash: a file that trimtab did not write moves
nothing.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trimtab.checkpoints.layouts import ASIDE
from trimtab.durable import make_folder, write_whole
from trimtab.errors import ActError
from trimtab.surgery.operations import Operation, operation_from_json, operation_to_json

__all__ = ["RollbackRecord", "State", "last_record", "records_of", "save_record", "written_by"]

State = Literal["applying", "applied", "undoing", "undone"]

_STATES = ("applying", "applied", "undoing", "undone")
_NAME = re.compile(r"rollback-(\d{4,})", re.ASCII)
_MAX_BYTES = 1 << 27
_SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class RollbackRecord:
    """One rollback, planned, done or taken back."""

    root: Path
    """The run."""
    number: int
    """From 1, in the order of the run."""
    id: str
    state: State
    framework: str
    folder: str
    """Of the checkpoints, relative to the run."""
    to_step: int
    from_step: int | None
    why: str = ""
    by: str = ""
    operations: tuple[Operation, ...] = ()
    notes: tuple[str, ...] = ()
    git_commit: bool = False
    """Whether the archive is to be committed."""
    commit: str = ""
    """The commit that holds it."""
    written: tuple[str, ...] = field(default=())
    """What was learned while it was done, such as that git refused."""

    @property
    def kept(self) -> Path:
        """Folder of what belongs to this rollback."""
        return self.root / ASIDE / f"rollback-{self.number:04d}"

    @property
    def archive(self) -> str:
        """Folder of the copies of event files, relative to the run; empty: there is none."""
        places = [o.path for o in self.operations if o.role == "archive"]
        return places[0].rpartition("/")[0] if places else ""

    def pending(self) -> bool:
        """Whether it was begun and not finished."""
        return self.state in ("applying", "undoing")


def save_record(record: RollbackRecord, **changes: object) -> RollbackRecord:
    """Write a record down, with changes; it is on disk when this returns.

    Raises:
        OSError: The disk refuses.
    """
    changed = replace(record, **changes)  # type: ignore[arg-type]
    data = {
        "schema": _SCHEMA,
        "id": changed.id,
        "number": changed.number,
        "state": changed.state,
        "framework": changed.framework,
        "folder": changed.folder,
        "to_step": changed.to_step,
        "from_step": changed.from_step,
        "why": changed.why,
        "by": changed.by,
        "git_commit": changed.git_commit,
        "commit": changed.commit,
        "notes": list(changed.notes),
        "written": list(changed.written),
        "operations": [operation_to_json(o) for o in changed.operations],
    }
    make_folder(changed.kept)
    text = json.dumps({**data, "sha256": _own_hash(data)}, indent=1)
    write_whole(changed.kept / "record.json", text.encode())
    return changed


def _own_hash(data: dict[str, object]) -> str:
    fields = {k: v for k, v in data.items() if k != "sha256"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def records_of(root: Path) -> tuple[RollbackRecord, ...]:
    """Return the rollbacks of a run, oldest first.

    Raises:
        ActError: One of them cannot be read, or is not what was written.
    """
    aside = root / ASIDE
    if aside.is_symlink():
        raise ActError(f"{aside}: is a link; a rollback keeps what it moves in the run itself")
    try:
        names = sorted(p.name for p in aside.iterdir()) if aside.is_dir() else []
    except OSError as error:
        raise ActError(f"{aside}: cannot be listed ({error.strerror}); check its rights") from error
    found: list[RollbackRecord] = []
    for name in names:
        match = _NAME.fullmatch(name)
        path = aside / name / "record.json"
        if match is not None and path.exists() and not path.is_symlink():
            found.append(_read(root, path, int(match[1])))
    return tuple(sorted(found, key=lambda r: r.number))


def last_record(root: Path) -> RollbackRecord | None:
    """Return the newest rollback of a run that is not undone; None where there is none."""
    standing = [r for r in records_of(root) if r.state != "undone"]
    return standing[-1] if standing else None


def written_by(records: Iterable[RollbackRecord]) -> frozenset[str]:
    """Return the files that rollbacks of a run wrote, relative to it."""
    return frozenset(o.path for r in records for o in r.operations if o.do == "write")


def _read(root: Path, path: Path, number: int) -> RollbackRecord:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ActError("is too large")
        data = json.loads(path.read_bytes())
        if data["schema"] != _SCHEMA:
            raise ActError(f"is of schema {data['schema']!r:.20}, which this version does not know")
        if data["sha256"] != _own_hash(data) or data["state"] not in _STATES:
            raise ActError("does not match its own hash")
        return RollbackRecord(
            root=root,
            number=number,
            id=str(data["id"]),
            state=data["state"],
            framework=str(data["framework"]),
            folder=str(data["folder"]),
            to_step=int(data["to_step"]),
            from_step=None if data["from_step"] is None else int(data["from_step"]),
            why=str(data["why"]),
            by=str(data["by"]),
            git_commit=bool(data["git_commit"]),
            commit=str(data["commit"]),
            notes=tuple(str(n) for n in data["notes"]),
            written=tuple(str(n) for n in data["written"]),
            operations=tuple(operation_from_json(o) for o in data["operations"]),
        )
    except ActError as error:
        raise ActError(f"{path}: {error}; nothing is moved by it. Look at it") from error
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ActError(
            f"{path}: cannot be read ({type(error).__name__}); nothing is moved by it. Look at it"
        ) from error
