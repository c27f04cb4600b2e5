"""One model on several ranks: DDP, FSDP2, tensor and sequence parallel, and FSDP2 over those."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from trimtab.errors import ConfigError
from trimtab.model_checks.anatomy import dissect
from trimtab.model_checks.book import found, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

    from trimtab.config_rules.lint import ConfigFinding
    from trimtab.model_checks.gradients import LossFunction

__all__ = ["LAYOUTS", "LayoutCase", "check_replicas", "part_of", "place", "plain_names", "whole"]

LAYOUTS = ("ddp", "fsdp", "tp", "tp+sp", "fsdp+tp", "fsdp+tp+sp")
"""`sp` splits the sequence over the tensor-parallel ranks; `fsdp+tp` needs a multiple of 2, at
least 4."""


@dataclass(kw_only=True)
class LayoutCase:
    """What `build` gives: a model and how one step of it is done. Every layout gets a fresh one."""

    model: nn.Module
    """Fresh, on the CPU, the same on every call: seed in `build`."""
    optimizer: torch.optim.Optimizer
    """Optimizer of the model's parameters, which are exchanged for their shards."""
    loss: LossFunction
    """(model, batch) → scalar, a mean over the batch."""
    batch: Any
    """Tensors, or lists or dictionaries of them, with the samples along dimension 0."""
    clip: float | Callable[[nn.Module], object] | None = None
    """Largest global gradient norm, or your own function of the model; None does not clip."""
    tensor_plan: (
        Mapping[str, ParallelStyle] | Callable[[bool], Mapping[str, ParallelStyle]] | None
    ) = None
    """Plan for `parallelize_module`, or a function that gives it, asked with whether the sequence
    is split. Without one, tensor-parallel layouts are left out."""
    after_backward: Callable[[nn.Module], object] | None = None
    """Your own synchronisation of gradients, if there is one."""
    after_step: Callable[[nn.Module], object] | None = None


def place(case: LayoutCase, layout: str) -> tuple[nn.Module, int, int]:
    """Put a model on the ranks; return it, the number of batch shards, and our shard.

    Raises:
        ConfigError: There is no such layout, no plan for it, or not enough ranks.
    """
    ranks, rank = dist.get_world_size(), dist.get_rank()
    names = {id(w): n for n, w in case.model.named_parameters()}
    # Sharding replaces the parameters, so the optimizer's groups are kept by name and refilled.
    held = [[names[id(w)] for w in group["params"]] for group in case.optimizer.param_groups]
    model, ways, mine = case.model, ranks, rank
    if layout == "ddp":
        model = DistributedDataParallel(model)
    elif layout == "fsdp":
        _shard(model, init_device_mesh("cpu", (ranks,)))
    elif layout in ("tp", "tp+sp"):
        _split(case, init_device_mesh("cpu", (ranks,)), sequence=layout.endswith("sp"))
        ways, mine = 1, 0
    elif layout in ("fsdp+tp", "fsdp+tp+sp"):
        # Two ranks for tensor parallelism, and at least two groups of them to shard over.
        if ranks < 4 or ranks % 2:
            raise ConfigError(f"layout {layout!r} needs 4, 6, … ranks and there are {ranks}")
        mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
        _split(case, mesh["tp"], sequence=layout.endswith("sp"))
        _shard(model, mesh["dp"])
        ways, mine = ranks // 2, mesh.get_local_rank("dp")
    else:
        raise ConfigError(f"there is no layout {layout!r}; choose of {', '.join(LAYOUTS)}")
    placed = dict(case.model.named_parameters())
    for group, own in zip(case.optimizer.param_groups, held, strict=True):
        group["params"] = [placed[n] for n in own]
    return model, ways, mine


def _shard(model: nn.Module, mesh: DeviceMesh) -> None:
    blocks = dissect(model).blocks_name
    # FSDP2 gathers per sharded module: blocks first, or all weights are gathered at once.
    for block in model.get_submodule(blocks).children() if blocks is not None else ():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _split(case: LayoutCase, mesh: DeviceMesh, *, sequence: bool) -> None:
    plan = case.tensor_plan(sequence) if callable(case.tensor_plan) else case.tensor_plan
    if plan is None:
        raise ConfigError(
            "no tensor-parallel plan was given; set LayoutCase.tensor_plan, or leave these layouts"
            " out"
        )
    parallelize_module(case.model, mesh, dict(plan))


def part_of(batch: object, ways: int, mine: int) -> object:
    """Return this rank's samples of a batch.

    Raises:
        ConfigError: The samples cannot be dealt out evenly; means would then differ.
    """
    if isinstance(batch, Tensor):
        if batch.shape[0] % ways:
            raise ConfigError(
                f"a batch of {batch.shape[0]} cannot be split over {ways} ranks; give a multiple"
            )
        return batch.chunk(ways)[mine]
    if isinstance(batch, Mapping):
        return {k: part_of(v, ways, mine) for k, v in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(part_of(v, ways, mine) for v in batch)
    return batch


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be sharded; then all ranks must call."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def plain_names(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield parameters under the names they have without a wrapper."""
    for name, weight in model.named_parameters():
        yield name.removeprefix("module.").removeprefix("_orig_mod."), weight


def check_replicas(
    model: nn.Module, step: int = 0, *, every_steps: int = 1, group: dist.ProcessGroup | None = None
) -> tuple[ConfigFinding, ...]:
    """Return a finding on parameters that should be equal on several ranks and are not.

    A plain tensor is the same on all ranks of the group; a DTensor on those that hold the same
    shard. Compared are the bits, so a NaN equals the same NaN. For a running job: call it in the
    loop with `every_steps=1000` or so, on all ranks.

    Args:
        model: On every rank.
        step: Where the run is; nothing is done but at multiples of `every_steps`.
        every_steps: How often.
        group: The ranks; None takes all. Shards that are kept as plain tensors need the group of
            those that hold the same, and a call for each.

    Cost: each weight is read once and copied to the host; one collective of 16 bytes per parameter.
    """
    if step % every_steps or not dist.is_initialized():
        return ()
    mine = {name: (_shard_of(w), *_seal(w)) for name, w in plain_names(model)}
    every: list[dict[str, tuple[object, int, float]]] = [
        {} for _ in range(dist.get_world_size(group))
    ]
    dist.all_gather_object(every, mine, group=group)
    wrong: dict[str, list[float]] = {}
    for name in mine:
        seals: dict[object, set[int]] = {}
        for other in every:
            key, bits, _ = other[name]
            seals.setdefault(key, set()).add(bits)
        if any(len(s) > 1 for s in seals.values()):
            wrong[name] = [other[name][2] for other in every]
    if not wrong:
        return ()
    first = next(iter(wrong))
    return (
        found(
            "REPLICA",
            "error",
            f"after step {step}, {len(wrong)} replicated parameters differ between ranks, first"
            f" {first}: norms {', '.join(f'{n:.8g}' for n in wrong[first])}",
            values={"step": step, "tensors": list(wrong), "first": first, "norms": wrong[first]},
            instead=(
                f"reduce the gradient of {listed(wrong)} over the ranks that hold it, and clip on"
                " all of them"
            ),
        ),
    )


def _shard_of(weight: Tensor) -> tuple[object, ...]:
    """Return what names the part that this rank holds."""
    if not isinstance(weight, DTensor):
        return ()
    at: Sequence[int] = weight.device_mesh.get_coordinate() or []
    return tuple(
        c for c, p in zip(at, weight.placements, strict=True) if not isinstance(p, Replicate)
    )


def _seal(weight: Tensor) -> tuple[int, float]:
    # The local shard: gathering the whole would need a collective for each weight.
    held = weight._local_tensor if isinstance(weight, DTensor) else weight
    plain = held.detach().cpu().contiguous()
    return zlib.crc32(plain.view(torch.uint8).numpy().tobytes()), float(plain.double().norm())
