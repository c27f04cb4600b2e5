"""A checkpoint is whole or it is none; grades, pins and what is moved aside."""

import json
from pathlib import Path

import pytest

from trimtab import analyze
from trimtab.checkpoints.manifest import (
    commit,
    list_checkpoints,
    move_aside,
    newest_healthy,
    set_grade,
    verify,
)
from trimtab.errors import ActError, ReadError


def checkpoint(folder: Path, step: int) -> Path:
    partial, final = folder / f"step-{step:08d}.partial", folder / f"step-{step:08d}"
    (partial / "tensors").mkdir(parents=True)
    (partial / "tensors" / "a.bin").write_bytes(bytes(range(256)) * 8)
    (partial / "state.json").write_text(json.dumps({"step": step}), encoding="utf-8")
    commit(partial, final, step=step, attempt="1.0")
    return final


def test_a_committed_checkpoint_is_whole_healthy_and_listed(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 12)
    assert verify(path) == ""
    (found,) = list_checkpoints(tmp_path)
    assert (found.step, found.attempt, found.path) == (12, "1.0", path)
    assert (found.grade, found.pinned) == ("healthy", False)
    assert not (tmp_path / "step-00000012.partial").exists()
    files = json.loads((path / "manifest.json").read_text(encoding="utf-8"))["files"]
    assert sorted(files) == ["state.json", "tensors/a.bin"]


def test_they_are_listed_by_step_and_other_folders_left_out(tmp_path: Path) -> None:
    for step in (300, 12, 123456789):
        checkpoint(tmp_path, step)
    (tmp_path / "step-00000500.partial").mkdir()
    (tmp_path / "step-00000600").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "step-00000700").write_text("a file", encoding="utf-8")
    assert [c.step for c in list_checkpoints(tmp_path)] == [12, 300, 123456789]
    assert list_checkpoints(tmp_path / "nowhere") == ()
    assert newest_healthy(tmp_path / "nowhere") is None


def test_a_second_commit_of_one_step_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, 5)
    with pytest.raises(ActError, match="exists already; move it aside"):
        checkpoint(tmp_path, 5)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "state.json").unlink(), "state.json is missing"),
        (lambda p: (p / "state.json").write_text("{}"), "state.json has 2 bytes, expected 11"),
        (lambda p: (p / "tensors/a.bin").write_bytes(bytes(2048)), "does not match its hash"),
        (lambda p: (p / "manifest.json").unlink(), "no readable manifest.json"),
        (lambda p: (p / "manifest.json").write_text("[]"), "no readable manifest.json"),
        (lambda p: (p / "manifest.json").write_text('{"files": {}}'), "no readable manifest.json"),
        (
            lambda p: (p / "manifest.json").write_text(
                '{"step": 5, "attempt": "1.0", "files": {"../x": {"size_bytes": 1, "sha256": ""}}}'
            ),
            "outside the checkpoint",
        ),
    ],
)
def test_every_damage_is_named_and_the_older_one_chosen(
    tmp_path: Path, damage: object, message: str
) -> None:
    older = checkpoint(tmp_path, 3)
    path = checkpoint(tmp_path, 5)
    assert callable(damage)
    damage(path)
    assert message in verify(path)
    newest = newest_healthy(tmp_path)
    assert newest is not None
    assert newest.path == older


@pytest.mark.parametrize("byte", [0, 700, 2047])
def test_one_flipped_bit_is_enough(tmp_path: Path, byte: int) -> None:
    path = checkpoint(tmp_path, 5)
    file = path / "tensors" / "a.bin"
    raw = bytearray(file.read_bytes())
    raw[byte] ^= 1
    file.write_bytes(raw)
    assert verify(path) == "tensors/a.bin does not match its hash"
    assert verify(path, hashes=False) == ""
    assert newest_healthy(tmp_path) is None


def test_the_newest_healthy_one_is_chosen_not_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint(tmp_path, step)
    set_grade(tmp_path / "step-00000003", "poisoned", "after the onset", pinned=True)
    set_grade(tmp_path / "step-00000002", "suspect", "close to the onset")
    newest = newest_healthy(tmp_path)
    assert newest is not None
    assert newest.step == 1
    grades = [(c.grade, c.pinned, c.why) for c in list_checkpoints(tmp_path)]
    assert grades[1:] == [
        ("suspect", False, "close to the onset"),
        ("poisoned", True, "after the onset"),
    ]
    set_grade(tmp_path / "step-00000003", "healthy", "cleared")
    assert list_checkpoints(tmp_path)[2].pinned  # a new grade keeps the pin


def test_an_unreadable_grade_is_suspect(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 5)
    (path / "health.json").write_text("{", encoding="utf-8")
    (found,) = list_checkpoints(tmp_path)
    assert found.grade == "suspect"
    assert newest_healthy(tmp_path) is None


def test_what_is_no_checkpoint_cannot_be_graded(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="it cannot be graded"):
        set_grade(tmp_path, "healthy", "a test")


def test_what_is_moved_aside_is_kept_under_a_free_name(tmp_path: Path) -> None:
    targets = []
    for _ in range(3):
        targets.append(move_aside(checkpoint(tmp_path, 5), tmp_path / "aside"))
    assert [t.name for t in targets] == ["step-00000005", "step-00000005.2", "step-00000005.3"]
    assert [verify(t) for t in targets] == ["", "", ""]
    assert list_checkpoints(tmp_path) == ()


GOOD = '{"size_bytes": 2048, "sha256": ""}'


@pytest.mark.parametrize(
    "text",
    [
        '{"step": 5, "attempt": "1.0", "files": {}}',
        '{"step": 5, "attempt": "1.0", "files": {"state.json": 11}}',
        '{"step": 5, "attempt": "1.0", "files": {"state.json": {}}}',
        '{"step": 5, "attempt": "1.0", "files": {"state.json": {"size_bytes": "11"}}}',
        '{"step": 5, "attempt": "1.0", "files": [["state.json", {"size_bytes": 11}]]}',
        '{"step": 5, "attempt": "1.0", "files": 7}',
        f'{{"step": 5, "attempt": "1.0", "files": {{"a\\u0000b": {GOOD}}}}}',
        f'{{"step": 5, "attempt": "1.0", "files": {{"\\ud800": {GOOD}}}}}',
        f'{{"step": 5, "attempt": "1.0", "files": {{"{"n" * 5000}": {GOOD}}}}}',
        f'{{"step": Infinity, "attempt": "1.0", "files": {{"tensors/a.bin": {GOOD}}}}}',
        f'{{"step": {"1" * 5000}, "attempt": "1.0", "files": {{"tensors/a.bin": {GOOD}}}}}',
        f'{{"step": 6, "attempt": "1.0", "files": {{"tensors/a.bin": {GOOD}}}}}',
        f'{{"step": 5, "attempt": [], "files": {{"tensors/a.bin": {GOOD}}}}}',
        "[" * 100_000,
        '{"a":' * 100_000,
        "7",
    ],
)
def test_a_wild_manifest_is_not_whole(tmp_path: Path, text: str) -> None:
    older = checkpoint(tmp_path, 3)
    path = checkpoint(tmp_path, 5)
    (path / "manifest.json").write_text(text, encoding="utf-8")
    assert verify(path, hashes=False) != ""
    assert [c.path for c in list_checkpoints(tmp_path)] == [older]


@pytest.mark.parametrize("text", ["[" * 100_000, "7", "[]", '{"grade": []}', '{"grade": Infinity}'])
def test_a_wild_grade_is_suspect(tmp_path: Path, text: str) -> None:
    path = checkpoint(tmp_path, 5)
    (path / "health.json").write_text(text, encoding="utf-8")
    assert [c.grade for c in list_checkpoints(tmp_path)] == ["suspect"]


def test_a_link_is_no_checkpoint(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "elsewhere", 5)
    (tmp_path / "here").mkdir()
    link = tmp_path / "here" / "step-00000005"
    link.symlink_to(path)
    assert verify(link) == "a link, not a checkpoint"
    assert list_checkpoints(tmp_path / "here") == ()


def test_a_checkpoint_that_inspect_cannot_use_is_named(tmp_path: Path) -> None:
    signals = tmp_path / "signals"
    signals.mkdir()
    rows = [json.dumps({"step": s, "loss": 2.0 + 0.01 * (s % 7)}) for s in range(1, 60)]
    (signals / "1.0.jsonl").write_text("\n".join(rows) + "\n")
    checkpoint(tmp_path / "checkpoints", 20)
    broken = checkpoint(tmp_path / "checkpoints", 40)
    (broken / "manifest.json").write_text("{")
    (run,) = analyze(tmp_path).runs
    assert [n for n in run.record.notes if "left out" in n] == [
        f"checkpoint left out: {broken.name}: no readable manifest.json (JSONDecodeError)"
    ]
