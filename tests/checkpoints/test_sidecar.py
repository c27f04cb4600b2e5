"""Manifest and grade beside a checkpoint that another trainer wrote."""

from pathlib import Path

import pytest

from trimtab.checkpoints.sidecar import read_stamp, regrade, sidecar_of, stamp, verify_stamped
from trimtab.errors import ActError, ReadError


def make(folder: Path) -> tuple[Path, Path]:
    """A checkpoint in one file, and one that is a folder."""
    one, many = folder / "last.ckpt", folder / "checkpoint-500"
    one.write_bytes(b"weights")
    (many / "inner").mkdir(parents=True)
    (many / "model.bin").write_bytes(b"weights")
    (many / "inner" / "state.json").write_text("{}", encoding="utf-8")
    for path in (one, many):
        stamp(path, step=500, attempt="1.0", grade="healthy", why="saved while calm")
    return one, many


def test_what_was_stamped_is_whole_until_a_byte_changes(tmp_path: Path) -> None:
    one, many = make(tmp_path)
    assert [verify_stamped(p) for p in (one, many)] == ["", ""]
    found = read_stamp(many)
    assert found is not None
    assert (found.step, found.attempt, found.grade) == (500, "1.0", "healthy")
    assert sorted(p.name for p in many.iterdir()) == ["inner", "model.bin"]  # nothing added inside
    one.write_bytes(b"weighTs")
    (many / "inner" / "state.json").unlink()
    assert verify_stamped(one) == "last.ckpt does not match its hash"
    assert verify_stamped(many) == "checkpoint-500/inner/state.json is missing"


def test_a_grade_can_be_revised_and_the_manifest_stays(tmp_path: Path) -> None:
    one, _ = make(tmp_path)
    regrade(one, "poisoned", "saved after the onset")
    found = read_stamp(one)
    assert found is not None
    assert (found.grade, found.why, found.step) == ("poisoned", "saved after the onset", 500)
    assert verify_stamped(one) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "{}",
        "[1]",
        '{"step": "5", "attempt": "1.0", "files": {}, "grade": "healthy"}',
        '{"step": 5, "attempt": "1.0", "files": {}, "grade": "best"}',
    ],
)
def test_what_is_not_legible_is_no_stamp(tmp_path: Path, text: str) -> None:
    one, _ = make(tmp_path)
    sidecar_of(one).write_text(text, encoding="utf-8")
    assert read_stamp(one) is None
    assert "no readable" in verify_stamped(one)
    with pytest.raises(ReadError, match="cannot be graded"):
        regrade(one, "suspect", "why")


def test_a_manifest_names_no_file_outside(tmp_path: Path) -> None:
    one, _ = make(tmp_path)
    text = sidecar_of(one).read_text(encoding="utf-8")
    sidecar_of(one).write_text(text.replace('"last.ckpt"', '"../last.ckpt"'), encoding="utf-8")
    assert "outside the checkpoint" in verify_stamped(one)


def test_a_checkpoint_that_is_gone_cannot_be_stamped(tmp_path: Path) -> None:
    with pytest.raises(ActError, match="cannot be given a manifest"):
        stamp(tmp_path / "gone.ckpt", step=1, attempt="1.0", grade="healthy", why="")
