"""What a disk may hold after the power was cut: all states that the recorded operations allow.

Only a sync makes something last: of a file, its bytes and its size; of a folder, the names in it. A
rename between two folders lasts once both are synced. All else is pending, and any part of it may
be there, in any order: what is there of some pending operations after a cut amid any order of them
is a subset of them, so subsets are what is enumerated. Two limits of real disks hold: a sector of
512 bytes is written whole, and never goes back to what it held before. Nothing is assumed of a
journal of the file system.

A pending write may also be there in part (some of its sectors), or only as the file's new size,
with zeros where its bytes belong.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Literal

from benchmarks.trust.power_tape import ROOT, Operation

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Cut", "Disk", "Fate", "Tree", "differences", "every_cut", "write_tree"]

SECTOR_BYTES = 512
SAMPLES_PER_WINDOW = 50
_MOST_IN_FULL = 4

Fate = Literal["lost", "kept", "size"] | tuple[int, ...]
"""What became of a pending operation; of a write also: only its size, or these of its sectors."""

Fates = tuple[tuple[int, Fate], ...]

Tree = Mapping[str, bytes | None]
"""Each path below the root, with its bytes; None: a folder."""


@dataclass(frozen=True)
class Cut:
    """One moment at which the power goes, and what became of what was pending."""

    done: int
    """Operations that had returned."""
    how: Literal["lost", "kept", "subset", "torn", "sample"]
    fates: Fates = ()
    """By the number of the operation; what is not named is lost, or kept where `how` is so."""

    @property
    def key(self) -> str:
        """What names it among the cuts of one recording."""
        return hashlib.sha256(repr((self.done, self.how, self.fates)).encode()).hexdigest()[:16]


@dataclass
class Disk:
    """The operations of one recording, and until when each was pending."""

    operations: Sequence[Operation]
    durable_from: list[float] = field(default_factory=list)
    """Number of the sync that made each last; infinity: none did."""

    def __post_init__(self) -> None:
        """Find the sync of each; what is done to something that is gone for good is not pending."""
        replaced = _replaced(self.operations)
        lasting: dict[int, float] = {}
        """Of each file or folder: its next sync, or from when on it is gone, if that is sooner."""
        gone: dict[int, float] = {}
        found: list[float] = []
        for i in range(len(self.operations) - 1, -1, -1):
            o = self.operations[i]
            if o.kind == "sync":
                lasting[o.node] = min(i, gone.get(o.node, math.inf))
            places = {
                "write": (o.node,),
                "truncate": (o.node,),
                "make": (o.folder,),
                "remove": (o.folder,),
                "rename": (o.folder, o.to_folder),
            }.get(o.kind, ())
            found.append(max((lasting.get(p, math.inf) for p in places), default=-1))
            dead = o.node if o.kind == "remove" else replaced.get(i)
            if dead is not None:
                gone[dead] = lasting[dead] = found[-1]
        self.durable_from = found[::-1]

    def pending(self, done: int) -> list[int]:
        """Return what a cut after so many operations may take."""
        return [i for i in range(done) if self.durable_from[i] >= done]

    def tree(self, cut: Cut) -> Tree:
        """Return what is found after a cut."""
        fates: dict[int, Fate] = dict.fromkeys(
            self.pending(cut.done), "kept" if cut.how == "kept" else "lost"
        )
        fates.update(cut.fates)
        later = _sectors_later(self.operations, fates)
        folders: dict[int, dict[str, int]] = {ROOT: {}}
        files: dict[int, bytearray] = {}
        for i, o in enumerate(self.operations[: cut.done]):
            fate = fates.get(i, "kept")
            if o.kind == "make":  # without its name it is there, but is not found
                if o.is_folder:
                    folders[o.node] = {}
                else:
                    files[o.node] = bytearray()
            if o.kind == "write":
                _write(files[o.node], o, fate, later.get(i, frozenset()))
            elif fate == "lost" and not (o.kind == "truncate" and later.get(i)):
                continue
            elif o.kind == "truncate":
                content = files[o.node]
                del content[o.offset :]
                content.extend(bytes(o.offset - len(content)))
            elif o.kind in ("make", "remove", "rename"):
                _name(folders, o)
        tree: dict[str, bytes | None] = {}
        for name, node in folders[ROOT].items():
            _walk(name, node, folders, files, tree)
        return tree

    def told(self, done: int) -> list[Mapping[str, object]]:
        """Return what was promised before a cut."""
        return [o.told for o in self.operations[:done] if o.kind == "mark"]


def _replaced(operations: Sequence[Operation]) -> dict[int, int]:
    """Return the file that each rename put another in place of."""
    names: dict[tuple[int, str], int] = {}
    found: dict[int, int] = {}
    for i, o in enumerate(operations):
        if o.kind == "make":
            names[o.folder, o.name] = o.node
        elif o.kind in ("remove", "rename"):
            names.pop((o.folder, o.name), None)
        if o.kind == "rename":
            if (o.to_folder, o.to_name) in names:
                found[i] = names[o.to_folder, o.to_name]
            names[o.to_folder, o.to_name] = o.node
    return found


def _name(folders: dict[int, dict[str, int]], o: Operation) -> None:
    if o.kind == "make":
        folders[o.folder][o.name] = o.node
        return
    if folders[o.folder].get(o.name) == o.node:
        del folders[o.folder][o.name]
    if o.kind == "rename":
        folders[o.to_folder][o.to_name] = o.node


def _sectors(o: Operation) -> range:
    return range(o.offset // SECTOR_BYTES, -(-(o.offset + len(o.data)) // SECTOR_BYTES))


def _sectors_later(
    operations: Sequence[Operation], fates: Mapping[int, Fate]
) -> dict[int, frozenset[int]]:
    """Return, of each pending change of bytes, the sectors that a later one brought to disk."""
    seen: dict[int, set[int]] = {}
    found: dict[int, frozenset[int]] = {}
    for i in sorted(fates, reverse=True):
        o, fate = operations[i], fates[i]
        if o.kind not in ("write", "truncate"):
            continue
        brought = seen.setdefault(o.node, set())
        found[i] = frozenset(brought)
        if o.kind == "write" and fate == "kept":
            brought.update(_sectors(o))
        elif isinstance(fate, tuple):
            brought.update(fate)
    return found


def _write(content: bytearray, o: Operation, fate: Fate, later: frozenset[int]) -> None:
    end = o.offset + len(o.data)
    if fate == "kept":
        content.extend(bytes(max(o.offset - len(content), 0)))
        content[o.offset : end] = o.data
        return
    chosen = set(fate) if isinstance(fate, tuple) else set()
    for sector in sorted((chosen | later) & set(_sectors(o))):
        first = max(sector * SECTOR_BYTES, o.offset)
        last = min((sector + 1) * SECTOR_BYTES, end)
        content.extend(bytes(max(first - len(content), 0)))
        content[first:last] = o.data[first - o.offset : last - o.offset]
    if fate == "size":
        content.extend(bytes(max(end - len(content), 0)))


def _walk(
    name: str,
    node: int,
    folders: Mapping[int, Mapping[str, int]],
    files: Mapping[int, bytearray],
    tree: dict[str, bytes | None],
) -> None:
    if node in files:
        tree[name] = bytes(files[node])
        return
    tree[name] = None
    for inner, number in folders[node].items():
        _walk(f"{name}/{inner}", number, folders, files, tree)


def every_cut(disk: Disk, *, seed: int, first: int = 0) -> Iterator[Cut]:
    """Yield the cuts after each operation from `first` on.

    All pending operations lost, all kept; all subsets of up to four, and each write of them in
    part; of more, 50 seeded samples for each stretch between two syncs.
    """
    start = first
    for done in range(first, len(disk.operations) + 1):
        pending = disk.pending(done)
        yield Cut(done, "lost")
        if pending:
            yield Cut(done, "kept")
        if len(pending) <= _MOST_IN_FULL:
            yield from _subsets(disk, done, pending)
        ends = done == len(disk.operations) or disk.operations[done].kind == "sync"
        if ends:
            yield from _samples(disk, start, done, seed)
            start = done + 1


def _subsets(disk: Disk, done: int, pending: Sequence[int]) -> Iterator[Cut]:
    for kept in product((False, True), repeat=len(pending)):
        chosen: Fates = tuple((i, "kept") for i, there in zip(pending, kept, strict=True) if there)
        if 0 < len(chosen) < len(pending):
            yield Cut(done, "subset", chosen)
    for i in pending:
        o = disk.operations[i]
        if o.kind == "write":
            others: Fates = tuple((j, "kept") for j in pending if j != i)
            yield Cut(done, "torn", (*others, (i, "size")))
            sectors = _sectors(o)
            for part in {tuple(sectors[:1]), tuple(sectors[:-1]), tuple(sectors[-1:])} - {()}:
                if len(part) < len(sectors):
                    yield Cut(done, "torn", (*others, (i, part)))


def _samples(disk: Disk, start: int, end: int, seed: int) -> Iterator[Cut]:
    if len(disk.pending(end)) <= _MOST_IN_FULL:
        return
    rng = random.Random(f"{seed} {end}")
    for _ in range(SAMPLES_PER_WINDOW):
        done = rng.randint(start, end)
        share = rng.random()
        fates = ((i, _draw(disk.operations[i], share, rng)) for i in disk.pending(done))
        yield Cut(done, "sample", tuple((i, fate) for i, fate in fates if fate != "lost"))


def _draw(o: Operation, share: float, rng: random.Random) -> Fate:
    if rng.random() > share:
        return "lost"
    if o.kind != "write" or rng.random() < 0.75:
        return "kept"
    sectors = _sectors(o)
    return "size" if rng.random() < 0.25 else tuple(s for s in sectors if rng.random() < 0.5)


def write_tree(tree: Tree, folder: Path) -> None:
    """Make the state real below an empty folder."""
    for name, data in tree.items():
        path = folder / name
        if data is None:
            path.mkdir()
        else:
            path.write_bytes(data)


def differences(tree: Tree, root: Path) -> list[str]:
    """Name what of a folder is not as a state has it."""
    real = {
        path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
    }
    missing = object()
    names = sorted(set(tree) | set(real))
    return [n for n in names if tree.get(n, missing) != real.get(n, missing)]
