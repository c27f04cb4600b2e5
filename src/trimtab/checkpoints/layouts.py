"""How each trainer lays its checkpoints out, and what of that lies in a folder.

One table, `LAYOUTS`: what an entry is called, which small files name the newest one, and what a
whole checkpoint holds. No pickle is ever loaded: of a Lightning file the step is read from the
opcodes, and nothing of it is run.

A checkpoint is called whole by what its layout shows: it is not empty, its files are not, its
shards are all there, the trainer's own mark of the end is there, and the pointer reaches it. That
its numbers are right is shown by hashes alone, which only trimtab writes.
"""

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from typing import Literal, cast, get_args

from trimtab.checkpoints.manifest import inspect_folder
from trimtab.checkpoints.stated_step import step_in_checkpoint
from trimtab.errors import ReadError
from trimtab.plan.rollback import Grade

__all__ = [
    "ASIDE",
    "LAYOUTS",
    "PLACES",
    "CheckpointLayout",
    "Framework",
    "LayoutRule",
    "Pointer",
    "SavedStep",
    "find_layout",
    "look_at",
]

Framework = Literal[
    "trimtab",
    "megatron-deepspeed",
    "megatron-lm",
    "deepspeed",
    "huggingface",
    "lightning",
    "dcp",
    "other",
]
"""`other`: read and listed, but nobody knows how its trainer finds the newest, so that nothing of
it is moved."""

ASIDE = "aside"
"""Folder of what rollbacks moved; nothing in it is looked at."""
PLACES = ("checkpoints", "checkpoint", "ckpt", "ckpts", "weights")
"""Names of folders of checkpoints, looked into first."""

_MAX_DEPTH = 3
"""Folders below the given one that are searched; Lightning's lie deepest."""
_MAX_FOLDERS = 2_000
_MAX_ENTRIES = 100_000
"""Most entries of a folder, or files of a checkpoint, that are looked at."""
_POINTER_BYTES = 4096
_MAX_DIGITS = 15


@dataclass(frozen=True, kw_only=True)
class LayoutRule:
    """How one trainer names its checkpoints, and how it finds the newest."""

    name: str
    """As `inspect` names it."""
    framework: Framework = "other"
    entry: str
    """Of the whole name of a checkpoint; the group is its step. No group that matched: the step
    stands inside."""
    kinds: tuple[Literal["folder", "file"], ...] = ("folder",)
    pointers: tuple[str, ...] = ()
    """Of the whole name of a file, or a link, that names the newest checkpoint; the first that is
    there is the one that the trainer follows."""
    needs_pointer: bool = False
    """Whether only the pointer tells this layout from another."""
    copies: str = ""
    """Of the whole name of a file that is a copy of the newest checkpoint."""
    holds: tuple[str, ...] = ()
    """Names, one of which a whole checkpoint holds; none: there is no such mark."""
    states: tuple[str, ...] = ()
    """Files beside the checkpoints, each a copy of the file of that name in the newest one."""


LAYOUTS: tuple[LayoutRule, ...] = (
    # The iteration file tells it from plain DeepSpeed: Megatron writes it, DeepSpeed does not.
    LayoutRule(
        name="megatron-deepspeed",
        framework="megatron-deepspeed",
        entry=r"global_step(\d+)(?:_universal)?",
        pointers=(r"latest_checkpointed_iteration\.txt", r"latest", r"latest_\w+"),
        needs_pointer=True,
    ),
    LayoutRule(
        name="deepspeed",
        framework="deepspeed",
        entry=r"global_step(\d+)(?:_universal)?",
        pointers=(r"latest", r"latest_\w+"),
    ),
    LayoutRule(
        name="megatron",
        framework="megatron-lm",
        entry=r"iter_(\d+)",
        pointers=(r"latest_checkpointed_iteration\.txt", r"latest(?:_\w+)?(?:\.txt)?"),
        holds=(".metadata", "metadata.json", "common.pt", "mp_rank_*"),
    ),
    LayoutRule(
        name="hf-trainer",
        framework="huggingface",
        entry=r"checkpoint-(\d+)",
        pointers=(r"latest(?:-checkpoint)?",),
        holds=("trainer_state.json",),
        states=("trainer_state.json",),
    ),
    LayoutRule(
        name="torchtitan",
        framework="dcp",
        entry=r"step-(\d+)",
        pointers=(r"latest_checkpointed_iteration\.txt", r"latest(?:\.txt)?"),
        holds=(".metadata", ".metadata.json", "model.pt", "model_and_optim"),
    ),
    LayoutRule(
        name="olmo",
        framework="dcp",
        entry=r"(?:global_)?step[-_]?(\d+)(?:-unsharded)?",
        pointers=(r"latest_checkpointed_iteration\.txt", r"latest(?:\.txt)?"),
    ),
    LayoutRule(
        name="lightning",
        framework="lightning",
        entry=r"(?:.*\bstep[=_-](\d+).*|(?!last\b).*)\.ckpt",
        kinds=("file", "folder"),
        copies=r"last(?:-v\d+)?\.ckpt",
    ),
    LayoutRule(name="fairseq", entry=r"checkpoint_\d+_(\d+)(?:-shard\d+)?\.pt", kinds=("file",)),
    LayoutRule(name="metaseq", entry=r"checkpoint_(\d+)(?:-\w+)?\.pt", kinds=("file",)),
    LayoutRule(
        name="files",
        entry=(
            r".*?(?:step|iter|iteration|ckpt|checkpoint|model|state)[-_=.]?(\d+)(?:[-_.]\w+)*"
            r"\.(?:pt|pth|ckpt|bin|safetensors|npz|tar|pkl|msgpack)"
        ),
        kinds=("file",),
    ),
    LayoutRule(name="folders", entry=r".*?(?:step|iter|ckpt|checkpoint)[-_=.]?(\d+)"),
)
"""The first that fits an entry of a folder is the folder's; trimtab's own comes before them all."""

_OWN = LayoutRule(
    name="trimtab", framework="trimtab", entry=r"step-(\d{8,})", holds=("manifest.json",)
)


@dataclass(frozen=True, kw_only=True)
class SavedStep:
    """One checkpoint on disk."""

    step: int
    """Last step whose update it holds."""
    path: Path
    complete: bool
    """Whether nothing shows that it is not whole."""
    why_not: str = ""
    """Why it is not whole; empty: it is."""
    grade: Grade | Literal[""] = ""
    """healthy, suspect or poisoned, where trimtab graded it; empty: nobody did."""


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """A file or a link that names a checkpoint."""

    path: Path
    step: int | None
    """Step that it names; None: it names none (`release`, say)."""
    text: str
    """What stands in it; of a link, where it leads."""
    is_link: bool = False

    def renamed(self, step: int) -> str:
        """Return what it has to say to name another step; the rest of the text stays."""
        found = _number_in(self.text)
        if found is None:
            return self.text
        digits = str(step)
        # iter_0007000 stays seven digits wide; a bare 7000 and global_step7000 have no width
        width = len(found[1]) if found[1].startswith("0") else 0
        return f"{self.text[: found.start(1)]}{digits.zfill(width)}{self.text[found.end(1) :]}"


@dataclass(frozen=True, kw_only=True)
class CheckpointLayout:
    """The checkpoints of a folder."""

    framework: Framework
    name: str
    """As `inspect` names the layout."""
    folder: Path
    """Where the checkpoints lie."""
    checkpoints: tuple[SavedStep, ...]
    """Oldest first; several entries may be of one step."""
    pointers: tuple[Pointer, ...] = ()
    copies: tuple[Path, ...] = ()
    """Files that are copies of the newest checkpoint, such as `last.ckpt`."""
    unknown: tuple[Path, ...] = ()
    """Checkpoints whose step neither their name nor their content says."""
    layout: LayoutRule = field(repr=False)

    @property
    def current_step(self) -> int | None:
        """What the pointer names; without one, the newest whole checkpoint; None: there is none."""
        named = [p.step for p in self.pointers if p.step is not None]
        if named:
            return named[0]
        whole = [c.step for c in self.checkpoints if c.complete]
        return max(whole, default=None)

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps of which there is a checkpoint, rising."""
        return tuple(sorted({c.step for c in self.checkpoints}))

    def of_step(self, step: int) -> tuple[SavedStep, ...]:
        """Return the entries of one step."""
        return tuple(c for c in self.checkpoints if c.step == step)


def find_layout(path: Path) -> CheckpointLayout | None:
    """Return the checkpoints in a run's folder, or in its folder of checkpoints.

    The folder itself is looked at, then `checkpoints/` and its like, then the folders below, three
    deep at most; the nearest that holds a checkpoint is taken. Links are not followed.

    Returns:
        What was found; None where nothing is named as a checkpoint is.

    Raises:
        ReadError: It is no folder, a folder cannot be listed, or two folders that are equally near
            hold checkpoints.
    """
    if not path.is_dir():
        raise ReadError(f"{path}: is not a folder; give the folder of a run or of its checkpoints")
    waiting = [path]
    num_seen = 0
    for _ in range(_MAX_DEPTH + 1):
        seen = [x for folder in waiting if (x := look_at(folder)) is not None]
        found = [x for x in seen if x.framework != "other"]
        named = [x for x in found if x.folder.name in PLACES]
        if len(named) == 1 or len(found) == 1:
            return (named or found)[0]
        if found:
            names = ", ".join(str(x.folder) for x in found[:5])
            raise ReadError(
                f"{path}: {len(found)} folders hold checkpoints ({names}); give the one to use"
            )
        waiting = [sub for folder in waiting for sub in _folders_in(folder)]
        num_seen += len(waiting)
        if num_seen > _MAX_FOLDERS:
            return None
    return None


def _folders_in(folder: Path) -> Iterator[Path]:
    for entry in _listed(folder):
        hidden = entry.name.startswith(".") or entry.name == ASIDE
        if not hidden and entry.is_dir(follow_symlinks=False):
            yield folder / entry.name


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(islice(entries, _MAX_ENTRIES), key=lambda e: e.name)
    except OSError as error:
        raise ReadError(
            f"{folder}: cannot be listed ({error.strerror}); check its rights"
        ) from error


def look_at(folder: Path) -> CheckpointLayout | None:
    """Return the checkpoints in a folder itself; None where there is none.

    Raises:
        ReadError: It cannot be listed.
    """
    entries = _listed(folder)
    own = [e for e in entries if _matches(_OWN, e)]
    if any((folder / e.name / "manifest.json").is_file() for e in own):
        return _made(folder, _OWN, entries)
    for layout in LAYOUTS:
        if not any(_matches(layout, e) for e in entries):
            continue
        if not layout.needs_pointer or any(
            re.fullmatch(layout.pointers[0], e.name) for e in entries
        ):
            made = _made(folder, layout, entries)
            if made is not None:
                return made
    return None


def _matches(layout: LayoutRule, entry: os.DirEntry[str]) -> re.Match[str] | None:
    """Return the match of an entry's name; links count as what they lead to."""
    found = re.fullmatch(layout.entry, entry.name, re.ASCII | re.DOTALL)
    try:
        kind = "folder" if entry.is_dir() else "file"
    except OSError:
        return None
    if kind not in layout.kinds or found is None or len(found[1] or "") > _MAX_DIGITS:
        return None
    return found


def _made(
    folder: Path, layout: LayoutRule, entries: Sequence[os.DirEntry[str]]
) -> CheckpointLayout | None:
    pointers = tuple(_pointers(folder, layout, entries))
    newest = next((p.step for p in pointers if p.step is not None), None)
    saved: list[SavedStep] = []
    unknown: list[Path] = []
    for entry in entries:
        found = _matches(layout, entry)
        if found is None or any(p.path.name == entry.name for p in pointers):
            continue
        path = folder / entry.name
        step = int(found[1]) if found[1] else step_in_checkpoint(path)
        if step is not None:
            saved.append(_saved(path, step, layout, newest))
        else:
            unknown.append(path)
    copies = tuple(
        folder / e.name
        for e in entries
        if layout.copies and re.fullmatch(layout.copies, e.name) and not e.is_symlink()
    )
    if not saved:
        return None
    return CheckpointLayout(
        framework=layout.framework,
        name=layout.name,
        folder=folder,
        checkpoints=tuple(sorted(saved, key=lambda c: (c.step, c.path.name))),
        pointers=pointers,
        copies=copies,
        unknown=tuple(unknown),
        layout=layout,
    )


def _saved(path: Path, step: int, layout: LayoutRule, newest: int | None) -> SavedStep:
    if layout is _OWN:
        found = inspect_folder(path, hashes=False)
        grade = "" if found.checkpoint is None or found.why else found.checkpoint.grade
        why = "" if found.condition == "whole" else found.why
        return SavedStep(step=step, path=path, complete=not why, why_not=why, grade=grade)
    why = "; ".join(_problems(path, layout))
    if not why and newest is not None and step > newest:
        why = f"newer than {newest}, which the pointer names: still being written, or given up"
    return SavedStep(
        step=step, path=path, complete=not why, why_not=why, grade=_graded_beside(path)
    )


def _graded_beside(path: Path) -> Grade | Literal[""]:
    """Return the grade in the file that trimtab keeps beside another trainer's checkpoint."""
    try:
        data = json.loads(path.with_name(f"{path.name}.trimtab.json").read_bytes()[: 1 << 24])
    except (OSError, ValueError, RecursionError):
        return ""
    grade = data.get("grade") if isinstance(data, dict) else None
    return cast("Grade", grade) if grade in get_args(Grade) else ""


# -- pointers -------------------------------------------------------------------------------


def _pointers(
    folder: Path, layout: LayoutRule, entries: Iterable[os.DirEntry[str]]
) -> Iterator[Pointer]:
    """Yield the pointers of a folder, the one that the trainer follows first."""
    names = {e.name: e for e in entries}
    seen: set[str] = set()
    patterns = (*layout.pointers, layout.copies) if layout.copies else layout.pointers
    for pattern in patterns:
        for name, entry in names.items():
            if name in seen or not re.fullmatch(pattern, name):
                continue
            pointer = _pointer(folder / name, is_link=entry.is_symlink())
            # last.ckpt is a pointer only where it is a link
            if pointer is not None and (pointer.is_link or pattern != layout.copies):
                seen.add(name)
                yield pointer


def _pointer(path: Path, *, is_link: bool) -> Pointer | None:
    try:
        if is_link:
            text = os.readlink(path)  # noqa: PTH115 - the text as it stands, not a path made of it
            found = _number_in(Path(text).name)
            return Pointer(path=path, step=_int(found), text=text, is_link=True)
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            raw = file.read(_POINTER_BYTES + 1)
    except OSError:
        return None
    if len(raw) > _POINTER_BYTES:
        return None
    text = raw.decode("utf-8", "surrogateescape")
    # a path to an artifact and its like hold numbers, too, and are no pointer
    named = re.fullmatch(r"\s*[A-Za-z_-]*\d+(?:[-_][A-Za-z]+)*\s*", text)
    return Pointer(path=path, step=_int(_number_in(text)) if named else None, text=text)


def _number_in(text: str) -> re.Match[str] | None:
    """Return the last number of a text, as its group."""
    return re.search(r"([0-9]+)(?=[^0-9]*$)", text)


def _int(found: re.Match[str] | None) -> int | None:
    return int(found[1]) if found is not None and len(found[1]) <= _MAX_DIGITS else None


# -- whole ----------------------------------------------------------------------------------

_RANK = re.compile(r"rank_(\d+(?:_\d+)*)")
_PART = re.compile(r"(.*?)(\d+)-of-(\d+)(.*)")


def _problems(path: Path, layout: LayoutRule) -> Iterator[str]:
    """Yield what shows that a checkpoint is not whole."""
    try:
        if not path.is_dir():
            if path.stat().st_size == 0:
                yield "empty"
            return
        names = dict(islice(_files(path), _MAX_ENTRIES))
    except OSError as error:
        yield f"cannot be read ({error.strerror})"
        return
    if not names:
        yield "empty"
        return
    empty = sorted(n for n, size in names.items() if size == 0 and "." in Path(n).name)
    if empty:
        yield f"{empty[0]} is empty" + (f", and {len(empty) - 1} more" if empty[1:] else "")
    tops = {n.partition("/")[0] for n in names}
    if layout.holds and not any(_held(h, tops) for h in layout.holds):
        yield f"has no {' or '.join(layout.holds)}"
    yield from _missing_ranks(names)
    yield from _missing_parts(names)


def _held(wanted: str, names: Iterable[str]) -> bool:
    if wanted.endswith("*"):
        return any(n.startswith(wanted[:-1]) for n in names)
    return wanted in names


def _files(folder: Path, inside: str = "") -> Iterator[tuple[str, int]]:
    """Yield path and size of each file below a folder; links are not followed."""
    with os.scandir(folder / inside) as entries:
        for entry in entries:
            name = f"{inside}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _files(folder, f"{name}/")
            else:
                yield name, entry.stat(follow_symlinks=False).st_size


def _missing_ranks(names: Mapping[str, int]) -> Iterator[str]:
    """Yield the shard that is missing where ranks are numbered: they fill a grid from zero on."""
    grids: dict[str, set[tuple[int, ...]]] = {}
    for name in names:
        found = _RANK.findall(name)
        if found:
            rank = tuple(int(x) for text in found for x in text.split("_"))
            grids.setdefault(_RANK.sub("rank_N", name), set()).add(rank)
    for shape, ranks in sorted(grids.items()):
        sizes = [max(axis) + 1 for axis in zip(*ranks, strict=False)]
        same = {len(r) for r in ranks} == {len(sizes)}
        if same and len(ranks) < prod(sizes) <= _MAX_ENTRIES:
            yield f"{len(ranks)} of {prod(sizes)} shards {shape} are there"
            return


def _missing_parts(names: Mapping[str, int]) -> Iterator[str]:
    """Yield what is missing of files numbered as 00001-of-00005."""
    parts: dict[tuple[str, int], set[int]] = {}
    for name in names:
        found = _PART.fullmatch(name)
        if found is not None and len(found[3]) <= 6:
            parts.setdefault((found[1] + found[4], int(found[3])), set()).add(int(found[2]))
    for (_, total), there in sorted(parts.items()):
        if len(there) < total:
            yield f"{len(there)} of {total} parts are there"
            return
