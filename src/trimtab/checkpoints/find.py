"""The checkpoints in a folder, as `inspect`, a watch and a restart list them."""

from dataclasses import dataclass
from pathlib import Path

from trimtab.checkpoints.layouts import LAYOUTS, PLACES, look_at
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ReadError
from trimtab.plan.rollback import CheckpointInfo, Grade

__all__ = ["CheckpointFolder", "find_checkpoints", "own_checkpoints"]


@dataclass(frozen=True, kw_only=True)
class CheckpointFolder:
    """What lies in a folder of checkpoints."""

    path: Path
    layout: str
    """Name in `LAYOUTS`, or `trimtab`."""
    checkpoints: tuple[CheckpointInfo, ...]
    """Oldest first; of several shards of one step, one."""
    left_out: tuple[str, ...] = ()
    """Names of entries that are not whole, with the reason."""


def find_checkpoints(folder: Path) -> CheckpointFolder:
    """Return the checkpoints in a folder, or in its `checkpoints/` and its like.

    A run directory of trimtab is looked at with its own grades.

    Raises:
        ReadError: It is no folder, or nothing in it is named as a checkpoint is.
    """
    if not folder.is_dir():
        raise ReadError(f"{folder}: not a folder; give the folder that holds the checkpoints")
    for place in (folder, *(folder / name for name in PLACES)):
        found = _listed(place) if place.is_dir() else None
        if found is not None:
            return found
    shown = ", ".join(f"{x.name} ({x.entry})" for x in LAYOUTS[1:6])
    raise ReadError(
        f"{folder}: holds no checkpoint that can be named by its step; looked for {shown} and"
        " others"
    )


def own_checkpoints(root: Path) -> CheckpointFolder | None:
    """Return the checkpoints of a run directory; None for anything else."""
    place = RunDirectory(root).checkpoints
    found = _listed(place) if place.is_dir() else None
    return found if found is not None and found.layout == "trimtab" else None


def _listed(place: Path) -> CheckpointFolder | None:
    found = look_at(place)
    if found is None:
        return None
    # of our own, one without a grade has lost it; of others, nobody ever graded any
    ungraded: Grade = "suspect" if found.framework == "trimtab" else "healthy"
    whole: dict[int, CheckpointInfo] = {}
    for saved in found.checkpoints:
        if saved.complete:
            info = CheckpointInfo(
                step=saved.step, grade=saved.grade or ungraded, path=str(saved.path)
            )
            whole.setdefault(saved.step, info)
    return CheckpointFolder(
        path=place,
        layout=found.name,
        checkpoints=tuple(whole.values()),
        left_out=tuple(f"{c.path.name}: {c.why_not}" for c in found.checkpoints if c.why_not),
    )
