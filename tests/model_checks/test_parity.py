"""Layouts that agree are said to agree; a planted bug is found, and its tensor named."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.guard.jobs import context
from tests.model_checks.planted import SMALL, Planted, odd_batch, tuple_instead, without_plan
from trimtab.errors import ConfigError
from trimtab.model_checks.layout_parity import Parity, TensorDifference, parity
from trimtab.model_checks.layouts import check_replicas

pytestmark = pytest.mark.torch

EVERY_KIND = replace(
    SMALL, qk_norm=True, gated=True, position="rotary", norm="layernorm", embed_norm=True, tied=True
)


def first(done: Parity) -> TensorDifference:
    (result,) = done.layouts
    assert result.status == "differs", result
    assert result.first is not None
    assert not done.passed
    return result.first


@pytest.mark.slow
def test_a_bug_of_one_rank_is_found() -> None:
    """The one quick test with ranks: the tensor-parallel bug that BLOOM had."""
    seen = first(parity(Planted("rank-not-clipped"), ("tp",), steps=1))
    assert (seen.step, seen.phase) == (1, "clipped gradient")
    assert seen.tensor == "embed.tokens.weight"
    assert seen.error > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("twin", [SMALL, EVERY_KIND], ids=["plain", "every kind"])
def test_sound_layouts_agree(twin: object) -> None:
    done = parity(Planted("none", twin), ("ddp", "fsdp", "tp", "tp+sp"))  # type: ignore[arg-type]
    assert done.passed
    assert [r.status for r in done.layouts] == ["agrees"] * 4
    assert not done.findings
    for result in done.layouts:
        assert result.largest is not None
        assert max(result.largest.values()) < 1e-10


@pytest.mark.slow
def test_fsdp_over_tensor_parallel_on_four_ranks() -> None:
    done = parity(Planted("none", EVERY_KIND), ("fsdp+tp", "fsdp+tp+sp"), ranks=4, steps=2)
    assert done.passed, done.layouts


@pytest.mark.slow
def test_float32_has_room_for_round_off() -> None:
    done = parity(Planted("none"), ("tp",), dtype=torch.float32)
    assert done.passed, done.layouts
    assert not parity(Planted("rank-not-clipped"), ("tp",), dtype=torch.float32).passed


@pytest.mark.slow
def test_clipping_by_what_a_rank_holds() -> None:
    seen = first(parity(Planted("local-clip"), ("fsdp",)))
    assert seen.phase == "clipped gradient"


@pytest.mark.slow
@pytest.mark.covers("S210")
def test_replicated_parameters_that_differ_are_named_with_their_step() -> None:
    seen = first(parity(Planted("norm-desync"), ("tp",)))
    assert (seen.step, seen.phase, seen.tensor) == (1, "replicas", "blocks.1.ffn_norm.weight")
    seen = first(parity(Planted("norm-desync-late"), ("tp",), steps=4))
    assert (seen.step, seen.phase, seen.tensor) == (3, "replicas", "blocks.1.ffn_norm.weight")


@pytest.mark.slow
def test_a_matrix_in_the_wrong_group() -> None:
    seen = first(parity(Planted("wrong-decay"), ("ddp",)))
    assert (seen.phase, seen.tensor) == ("update", "blocks.1.ffn.up.weight")


@pytest.mark.slow
def test_a_gradient_that_is_not_added_up() -> None:
    twin = replace(SMALL, qk_norm=True)
    seen = first(parity(Planted("partial-qk-norm", twin), ("tp",)))
    assert (seen.step, seen.phase, seen.tensor) == (
        1,
        "gradient",
        "blocks.0.attention.q_norm.weight",
    )


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_gradients_that_are_not_averaged(layout: str) -> None:
    seen = first(parity(Planted("summed-not-averaged"), (layout,)))
    assert (seen.phase, seen.tensor) == ("gradient", "embed.tokens.weight")
    assert seen.error == pytest.approx(1.0)


@pytest.mark.slow
def test_a_gradient_that_one_rank_forgets() -> None:
    seen = first(parity(Planted("dropped-gradient"), ("tp",)))
    assert (seen.phase, seen.tensor) == ("gradient", "blocks.0.attention.v.weight")


@pytest.mark.slow
def test_what_cannot_be_compared_is_told() -> None:
    (result,) = parity(without_plan, ("tp",)).layouts
    assert result.status == "left out"
    assert "no tensor-parallel plan" in result.why
    (result,) = parity(odd_batch, ("ddp",)).layouts
    assert "batch of 7 cannot be split over 2" in result.why
    (result,) = parity(tuple_instead, ("ddp",)).layouts
    assert "build gives tuple" in result.why
    (result,) = parity(Planted("none"), ("fsdp+tp",), ranks=2).layouts
    assert "needs 4" in result.why
    assert not parity(without_plan, ("tp",)).passed


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_layout_and_is_told() -> None:
    done = parity(Planted("dies"), ("ddp",), timeout_s=60)
    (result,) = done.layouts
    assert result.status == "failed"
    assert "no memory left on rank 1" in result.why
    assert result.seconds < 50
    assert done.findings[0].severity == "error"


def test_impossible_questions() -> None:
    with pytest.raises(ConfigError, match="choose of ddp"):
        parity(Planted("none"), ("pipeline",))
    with pytest.raises(ConfigError, match="ranks is 1"):
        parity(Planted("none"), ranks=1)
    with pytest.raises(ConfigError, match="float16"):
        parity(Planted("none"), dtype=torch.float16)
    with pytest.raises(ConfigError, match="top of a module"):
        parity(lambda: Planted("none")(), ("ddp",))


# ------------------------------------------------------------ in a running job


def watch(rank: int, store: str, results: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.LayerNorm(4)
    told = []
    for step in range(1, 9):
        if step == 5 and rank == 1:
            with torch.no_grad():
                model.weight[0] += 1e-7
        told += [f.values["step"] for f in check_replicas(model, step, every_steps=4)]
    Path(f"{results}-{rank}").write_text(repr(told))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.covers("S210")
def test_replicas_are_compared_each_n_steps(tmp_path: Path) -> None:
    ranks = [
        context().Process(target=watch, args=(r, f"{tmp_path}/store", f"{tmp_path}/out"))
        for r in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    for r in range(2):
        assert (tmp_path / f"out-{r}").read_text() == "[8]"
