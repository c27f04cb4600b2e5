"""Later checkpoints leave a trainer's sight, and come back."""

import json
from pathlib import Path

from trimtab.supervise.aside import put_back, set_aside
from trimtab.supervise.resume import Restore, newest


def test_later_checkpoints_are_moved_aside_and_brought_back(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    found = newest(tmp_path, before=25)
    assert found == Restore(step=20, path=str(tmp_path / "checkpoint-20"), layout="huggingface")
    assert set_aside(tmp_path, found, "a test") == ""
    last = newest(tmp_path)
    assert last is not None
    assert last.step == 20
    assert put_back(tmp_path) == ""
    last = newest(tmp_path)
    assert last is not None
    assert last.step == 30
