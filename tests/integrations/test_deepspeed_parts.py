"""What is decided about a DeepSpeed engine before it runs, and about its tags."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

from trimtab.checkpoints.sidecar import stamp  # noqa: E402
from trimtab.errors import ConfigError  # noqa: E402
from trimtab.integrations.deepspeed.checkpoints import healthy_tag  # noqa: E402

pytestmark = pytest.mark.torch


def save(folder: Path, tag: str, step: int, grade: Any) -> Path:
    path = folder / tag
    path.mkdir(parents=True)
    (path / "mp_rank_00_model_states.pt").write_bytes(tag.encode())
    stamp(path, step=step, attempt="1.0", grade=grade, why="for the test")
    return path


def test_the_newest_whole_and_healthy_tag_is_found(tmp_path: Path) -> None:
    assert healthy_tag(tmp_path) is None
    save(tmp_path, "b", 9, "healthy")
    save(tmp_path, "a", 10, "healthy")
    save(tmp_path, "c", 20, "suspect")
    (save(tmp_path, "d", 15, "healthy") / "mp_rank_00_model_states.pt").write_bytes(b"cut")
    assert healthy_tag(tmp_path) == "a"


def test_the_hugging_face_trainer_refuses_a_deepspeed_config() -> None:
    pytest.importorskip("transformers")
    from trimtab.integrations.huggingface import GuardMixin

    accelerator = SimpleNamespace(distributed_type="DistributedType.DEEPSPEED")
    trainer: Any = SimpleNamespace(
        optimizer=None,
        lr_scheduler=None,
        accelerator=accelerator,
        args=None,
        state=SimpleNamespace(),
        _feed=object(),
    )
    with pytest.raises(ConfigError, match=r"trimtab\.integrations\.deepspeed"):
        GuardMixin.begin_guard(trainer)


def test_an_engine_that_cannot_be_rolled_back_is_refused() -> None:
    pytest.importorskip("deepspeed")
    from trimtab.integrations.deepspeed.engine_checks import check_engine

    engine: Any = SimpleNamespace(
        optimizer=SimpleNamespace(param_groups=[]),
        has_moe_layers=False,
        zero_nvme_offload_optimizer=lambda: False,
    )
    check_engine(engine)
    engine.has_moe_layers = True
    with pytest.raises(ConfigError, match=r"MoE"):
        check_engine(engine)
    engine.has_moe_layers, engine.mp_world_size = False, 2
    with pytest.raises(ConfigError, match="tensor parallel"):
        check_engine(engine)
