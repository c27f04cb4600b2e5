"""Checkpoints as other trainers lay them out."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.checkpoints.find import find_checkpoints
from trimtab.checkpoints.layouts import LAYOUTS
from trimtab.checkpoints.manifest import commit
from trimtab.errors import ReadError


def folders(*names: str, holds: str = "weights.bin") -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for name in names:
            (root / name).mkdir(parents=True)
            (root / name / holds).write_bytes(b"x")

    return make


def files(*names: str) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        for name in names:
            (root / name).write_bytes(b"x")

    return make


@pytest.mark.parametrize(
    ("layout", "make"),
    [
        ("megatron", folders("iter_0001000", "iter_0002000", holds="common.pt")),
        ("deepspeed", folders("global_step1000", "global_step2000")),
        ("hf-trainer", folders("checkpoint-1000", "checkpoint-2000", holds="trainer_state.json")),
        ("torchtitan", folders("step-1000", "step-2000", holds=".metadata")),
        ("olmo", folders("step1000", "step2000-unsharded")),
        ("lightning", files("epoch=0-step=1000.ckpt", "epoch=1-step=2000.ckpt")),
        ("fairseq", files("checkpoint_1_1000.pt", "checkpoint_2_2000.pt", "checkpoint_last.pt")),
        ("metaseq", files("checkpoint_1000-shard0.pt", "checkpoint_2000-shard0.pt")),
        ("files", files("model_step_1000.pt", "model_step_2000.safetensors", "readme.txt")),
        ("files", files("ckpt-1000.pth", "ckpt-2000.pth")),
        ("folders", folders("my-model-step-1000", "my-model-step-2000")),
    ],
)
def test_each_layout(layout: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path)
    found = find_checkpoints(tmp_path)
    assert found.layout == layout
    assert [c.step for c in found.checkpoints] == [1000, 2000]
    assert all(Path(c.path).exists() for c in found.checkpoints)
    assert not found.left_out


@pytest.mark.parametrize(
    ("pointer", "text", "names"),
    [
        (
            "latest_checkpointed_iteration.txt",
            "2000\n",
            ("iter_0001000", "iter_0002000", "iter_0003000"),
        ),
        ("latest", "global_step2000", ("global_step1000", "global_step2000", "global_step3000")),
    ],
)
def test_what_the_pointer_does_not_reach_is_not_whole(
    pointer: str, text: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    folders(*names, holds="common.pt")(tmp_path)
    (tmp_path / pointer).write_text(text)
    found = find_checkpoints(tmp_path)
    assert [c.step for c in found.checkpoints] == [1000, 2000]
    assert "still being written" in found.left_out[0]


def test_half_written_ones_are_left_out(tmp_path: Path) -> None:
    folders("checkpoint-1000", holds="trainer_state.json")(tmp_path)
    folders("checkpoint-2000", holds="optimizer.pt")(tmp_path)
    (tmp_path / "checkpoint-3000").mkdir()
    found = find_checkpoints(tmp_path)
    assert [c.step for c in found.checkpoints] == [1000]
    assert found.left_out == (
        "checkpoint-2000: has no trainer_state.json",
        "checkpoint-3000: empty",
    )


def test_our_own_with_their_grades(tmp_path: Path) -> None:
    for step in (100, 200):
        partial = tmp_path / "checkpoints" / f"step-{step:08d}.partial"
        folders(partial.name)(partial.parent)
        commit(partial, partial.with_suffix(""), step=step, attempt="1.0")
    (tmp_path / "checkpoints" / "step-00000200" / "weights.bin").write_bytes(b"longer")
    found = find_checkpoints(tmp_path)
    assert (found.layout, [c.step for c in found.checkpoints]) == ("trimtab", [100])
    assert found.left_out == ("step-00000200: weights.bin has 6 bytes, expected 1",)


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="no checkpoint"):
        find_checkpoints(tmp_path)
    with pytest.raises(ReadError, match="not a folder"):
        find_checkpoints(tmp_path / "none")


def test_names_of_any_length_do_no_harm(tmp_path: Path) -> None:
    files("step" + "9" * 60 + ".pt", "step_5.pt")(tmp_path)
    assert [c.step for c in find_checkpoints(tmp_path).checkpoints] == [5]
    assert len({x.name for x in LAYOUTS}) == len(LAYOUTS)
