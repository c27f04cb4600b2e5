"""Later checkpoints leave a trainer's sight, and come back."""

import json
from pathlib import Path

from trimtab.supervise.aside import Moved, put_back, set_aside
from trimtab.supervise.resume import Restore, newest
from trimtab.surgery import apply_rollback, plan_rollback


def save(root: Path, *steps: int) -> None:
    for step in steps:
        folder = root / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")


def newest_step(root: Path) -> int:
    last = newest(root)
    assert last is not None
    return last.step


def test_later_checkpoints_are_moved_aside_and_brought_back(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 30)
    found = newest(tmp_path, before=25)
    assert found == Restore(step=20, path=str(tmp_path / "checkpoint-20"), layout="huggingface")
    moved = set_aside(tmp_path, found, "a test")
    assert isinstance(moved, Moved)
    assert newest_step(tmp_path) == 20
    assert put_back(moved) == ""
    assert newest_step(tmp_path) == 30


def test_where_nothing_was_moved_a_rollback_by_hand_stays(tmp_path: Path) -> None:
    save(tmp_path, 10, 20, 30)
    apply_rollback(plan_rollback(tmp_path, 20, why="by hand"), watch_s=0.0)
    found = newest(tmp_path)
    assert found is not None
    moved = set_aside(tmp_path, found, "a test")
    assert isinstance(moved, Moved)
    assert put_back(moved) == ""
    assert newest_step(tmp_path) == 20
