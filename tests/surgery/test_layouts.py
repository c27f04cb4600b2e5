"""Where checkpoints lie, which are whole, and what points to them: every layout through one door."""

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.checkpoints.manifest import commit
from trimtab.errors import ReadError
from trimtab.surgery import find_layout


def put(path: Path, data: bytes | str = b"weights") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def megatron_deepspeed(root: Path) -> None:
    for step in (3000, 6210, 6900):
        for rank in range(4):
            name = f"mp_rank_0{rank}_model_states.pt"
            put(root / "checkpoints" / f"global_step{step}" / name)
    put(root / "checkpoints/latest", "global_step6900")
    put(root / "checkpoints/latest_checkpointed_iteration.txt", "6900")


def deepspeed(root: Path) -> None:
    for step in (3000, 6210, 6900):
        put(root / f"global_step{step}" / "mp_rank_00_model_states.pt")
    put(root / "latest", "global_step6900\n")


def megatron_lm(root: Path) -> None:
    for step in (3000, 6210, 6900):
        put(root / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt")
    put(root / "latest_checkpointed_iteration.txt", "6900")


def megatron_dist(root: Path) -> None:
    for step in (3000, 6210, 6900):
        put(root / f"iter_{step:07d}" / "__0_0.distcp")
        put(root / f"iter_{step:07d}" / ".metadata")
    put(root / "latest_checkpointed_iteration.txt", "6900")


def huggingface(root: Path) -> None:
    for step in (3000, 6210, 6900):
        put(root / f"checkpoint-{step}" / "trainer_state.json", f'{{"global_step": {step}}}')


def pickled(step: int, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        content = {"epoch": 3, "global_step": step, "state_dict": {"w": [1.0]}}
        archive.writestr("archive/data.pkl", pickle.dumps(content, protocol=2))


def lightning(root: Path) -> None:
    folder = root / "lightning_logs" / "version_0" / "checkpoints"
    put(folder / "epoch=0-step=3000.ckpt")
    put(folder / "epoch=1-step=6210.ckpt")
    pickled(6900, folder / "epoch=02.ckpt")  # the name says no step
    pickled(6900, folder / "last.ckpt")


def torchtitan(root: Path) -> None:
    for step in (3000, 6210, 6900):
        put(root / "checkpoint" / f"step-{step}" / ".metadata")


def own(root: Path) -> None:
    for step in (3000, 6210, 6900):
        partial = root / "checkpoints" / f"step-{step:08d}.partial"
        put(partial / "state.json")
        commit(partial, root / "checkpoints" / f"step-{step:08d}", step=step, attempt="1.0")


MAKERS: list[tuple[str, Callable[[Path], None]]] = [
    ("megatron-deepspeed", megatron_deepspeed),
    ("deepspeed", deepspeed),
    ("megatron-lm", megatron_lm),
    ("megatron-lm", megatron_dist),
    ("huggingface", huggingface),
    ("lightning", lightning),
    ("dcp", torchtitan),
    ("trimtab", own),
]


@pytest.mark.parametrize(("framework", "make"), MAKERS, ids=lambda x: getattr(x, "__name__", x))
def test_every_layout_is_found_from_the_run_and_from_its_folder(
    framework: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    found = find_layout(tmp_path)
    assert found is not None
    assert found.framework == framework
    assert found.steps == (3000, 6210, 6900)
    assert found.current_step == 6900
    assert all(c.complete and not c.why_not for c in found.checkpoints), found.checkpoints
    inside = find_layout(found.folder)
    assert inside is not None
    assert inside.checkpoints == found.checkpoints


def test_what_is_not_whole_says_why(tmp_path: Path) -> None:
    megatron_deepspeed(tmp_path)
    folder = tmp_path / "checkpoints"
    (folder / "global_step3000" / "mp_rank_02_model_states.pt").unlink()
    put(folder / "global_step6210" / "mp_rank_01_model_states.pt", b"")
    put(folder / "global_step7000" / "mp_rank_00_model_states.pt")
    (folder / "global_step2000").mkdir()
    found = find_layout(tmp_path)
    assert found is not None
    why = {c.step: c.why_not for c in found.checkpoints}
    assert why[2000] == "empty"
    assert why[3000] == "3 of 4 shards mp_rank_N_model_states.pt are there"
    assert why[6210] == "mp_rank_01_model_states.pt is empty"
    assert why[6900] == ""
    assert "newer than 6900" in why[7000]


def test_parts_of_weights_are_counted_and_a_mark_of_the_end_is_looked_for(tmp_path: Path) -> None:
    huggingface(tmp_path)
    put(tmp_path / "checkpoint-6900" / "model-00001-of-00003.safetensors")
    (tmp_path / "checkpoint-6210" / "trainer_state.json").unlink()
    put(tmp_path / "checkpoint-6210" / "optimizer.pt")
    found = find_layout(tmp_path)
    assert found is not None
    why = {c.step: c.why_not for c in found.checkpoints}
    assert why == {
        3000: "",
        6210: "has no trainer_state.json",
        6900: "1 of 3 parts are there",
    }
    assert found.current_step == 3000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("global_step7000", "global_step6210"),
        ("7000", "6210"),
        ("7000\n", "6210\n"),
        ("global_step7000_universal", "global_step6210_universal"),
        ("iter_0007000", "iter_0006210"),
        ("release", "release"),
        ("team/project-2/model:v7", None),
    ],
)
def test_a_pointer_keeps_all_but_its_number(text: str, wanted: str | None, tmp_path: Path) -> None:
    deepspeed(tmp_path)
    put(tmp_path / "latest_other", text)
    found = find_layout(tmp_path)
    assert found is not None
    (pointer,) = (p for p in found.pointers if p.path.name == "latest_other")
    if wanted is None:
        assert pointer.step is None
    else:
        assert pointer.renamed(6210) == wanted


def test_a_link_is_a_pointer_and_what_was_moved_aside_is_not_seen(tmp_path: Path) -> None:
    torchtitan(tmp_path)
    (tmp_path / "checkpoint" / "latest").symlink_to("step-6900")
    put(tmp_path / "checkpoint" / "aside" / "step-9000" / ".metadata")
    found = find_layout(tmp_path)
    assert found is not None
    assert [(p.path.name, p.step, p.is_link) for p in found.pointers] == [("latest", 6900, True)]
    assert found.steps == (3000, 6210, 6900)


def test_hostile_names_and_no_checkpoints(tmp_path: Path) -> None:
    for name in (
        "global_step" + "9" * 40,
        "global_step१२",
        "iter_\x1b[31m1",
        "checkpoint--3",
        "x\ny",
    ):
        (tmp_path / name).mkdir()
    assert find_layout(tmp_path) is None
    with pytest.raises(ReadError, match="is not a folder"):
        find_layout(tmp_path / "absent")
    for version in (0, 1):
        put(tmp_path / f"version_{version}" / "checkpoints" / "a-step=3.ckpt")
    with pytest.raises(ReadError, match="2 folders hold checkpoints"):
        find_layout(tmp_path)
