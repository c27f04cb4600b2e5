"""Files are written whole, and on disk when the call returns."""

import os
from pathlib import Path

import pytest

from trimtab.durable import make_folder, move, sync_folder, write_whole


def test_write_whole_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    write_whole(path, b"old")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["verdict.json"]


def test_write_whole_keeps_the_old_file_where_the_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "verdict.json"
    write_whole(path, b"old")

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["verdict.json"]


def test_make_folder_syncs_the_folder_above_each_one_it_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("trimtab.durable.sync_folder", synced.append)
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert {tmp_path, tmp_path / "a"} <= set(synced)


def test_move_renames_between_folders(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "aside").mkdir()
    move(tmp_path / "x", tmp_path / "aside" / "x")
    assert (tmp_path / "aside" / "x").is_dir()
    assert not (tmp_path / "x").exists()


def test_sync_folder_does_without_where_a_folder_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def refuse(descriptor: int) -> None:
        tried.append(descriptor)
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    sync_folder(tmp_path)
    assert len(tried) == 1
