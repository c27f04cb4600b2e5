"""Power cuts: the model of the disk does what it says, and nothing that was promised is lost."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.trust.power_disk import SECTOR_BYTES, Cut, Disk, differences, every_cut
from benchmarks.trust.power_tape import ROOT, Operation, Tape
from trimtab import durable

STATES = int(os.environ.get("POWER_STATES", "60"))
SEED = int(os.environ.get("POWER_SEED", "0"))


def make(node: int, name: str, folder: int = ROOT, **more: Any) -> Operation:
    return Operation("make", node, folder=folder, name=name, **more)


def write(node: int, data: bytes, offset: int = 0) -> Operation:
    return Operation("write", node, data=data, offset=offset)


def sync(node: int) -> Operation:
    return Operation("sync", node)


def rename(node: int, name: str, to_name: str) -> Operation:
    return Operation("rename", node, folder=ROOT, name=name, to_folder=ROOT, to_name=to_name)


def found(*operations: Operation, how: Any = "lost", fates: Any = ()) -> dict[str, bytes | None]:
    return dict(Disk(operations).tree(Cut(len(operations), how, fates)))


def test_bytes_last_with_their_file_and_names_with_their_folder() -> None:
    file = (make(2, "a"), write(2, b"data"))
    assert found(*file) == {}
    assert found(*file, sync(2)) == {}
    assert found(*file, sync(ROOT)) == {"a": b""}
    assert found(*file, sync(2), sync(ROOT)) == {"a": b"data"}
    assert found(*file, how="kept") == {"a": b"data"}


def test_a_rename_without_a_sync_of_the_file_may_leave_it_empty() -> None:
    older = (make(2, "a"), write(2, b"old"), sync(2), sync(ROOT))
    newer = (make(3, "b"), write(3, b"new"), rename(3, "b", "a"))
    assert found(*older, *newer) == {"a": b"old"}
    assert found(*older, *newer, fates=((6, "kept"),)) == {"a": b""}
    assert found(*older, *newer, sync(ROOT)) == {"a": b""}
    assert found(*older, *newer[:2], sync(3), newer[2], sync(ROOT)) == {"a": b"new"}


def test_what_is_in_a_folder_without_a_name_is_not_found() -> None:
    made = (make(2, "d", is_folder=True), make(3, "f", folder=2), sync(2))
    assert found(*made) == {}
    assert found(*made, sync(ROOT)) == {"d": None, "d/f": b""}


def test_a_write_may_be_there_in_part_but_a_sector_never_goes_back() -> None:
    file = (make(2, "a"), sync(ROOT), write(2, b"x" * 2 * SECTOR_BYTES))
    assert found(*file, fates=((2, (1,)),)) == {"a": bytes(SECTOR_BYTES) + b"x" * SECTOR_BYTES}
    assert found(*file, fates=((2, "size"),)) == {"a": bytes(2 * SECTOR_BYTES)}
    rows = (make(2, "a"), sync(ROOT), write(2, b"one\n"), write(2, b"two\n", 4))
    assert found(*rows, fates=((3, "kept"),)) == {"a": b"one\ntwo\n"}


def test_up_to_four_pending_operations_give_all_subsets_and_more_give_samples() -> None:
    few = [make(n, str(n)) for n in range(2, 6)]
    cuts = [c for c in every_cut(Disk(few), seed=0) if c.done == len(few)]
    assert len({tuple(sorted(Disk(few).tree(c))) for c in cuts}) == 2**4
    many = [make(n, str(n)) for n in range(2, 12)]
    cuts = list(every_cut(Disk(many), seed=0))
    assert sum(c.how == "sample" for c in cuts) == 50
    assert cuts == list(every_cut(Disk(many), seed=0))


def in_a_child(work: Any) -> None:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told by the exit code
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_what_durable_returns_from_is_found_after_every_cut(tmp_path: Path) -> None:
    def work() -> None:
        tape = Tape(tmp_path)
        tape.install()
        durable.make_folder(tmp_path / "a" / "b")
        durable.write_whole(tmp_path / "a" / "b" / "f", b"old")
        tape.mark(kept="old")
        durable.write_whole(tmp_path / "a" / "b" / "f", b"new")
        tape.mark(kept="new")
        durable.move(tmp_path / "a" / "b" / "f", tmp_path / "a" / "f")
        disk = Disk(tape.operations)
        assert differences(disk.tree(Cut(len(tape.operations), "kept")), tmp_path) == []
        for cut in every_cut(disk, seed=0):
            tree, told = disk.tree(cut), disk.told(cut.done)
            files = [tree[n] for n in ("a/b/f", "a/f") if n in tree]
            if len(told) == 2:
                assert files == [b"new"], cut
            elif told:
                assert files in ([b"old"], [b"new"]), cut

    in_a_child(work)


@pytest.mark.torch
@pytest.mark.slow
def test_after_a_power_cut_nothing_that_was_promised_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from benchmarks.trust.power import cut_power, holds, power_table

    judged = cut_power(tmp_path, states=STATES, seed=SEED)
    sys.stdout.write(power_table(judged) + "\n")
    assert len(judged) >= STATES
    assert [j for j in judged if not holds(j)] == []
    again = cut_power(tmp_path, states=STATES, seed=SEED)
    assert again == judged
