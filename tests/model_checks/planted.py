"""Cases for parity with one bug each, of the kind that public runs had."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trimtab.configs.shrink import Twin
from trimtab.model_checks.anatomy import local
from trimtab.model_checks.layout_parity import LayoutCase, clip_whole
from trimtab.model_checks.twin import tensor_plan
from trimtab.model_checks.twin_case import TwinCase

Bug = Literal[
    "none",
    "rank-not-clipped",
    "local-clip",
    "norm-desync",
    "norm-desync-late",
    "wrong-decay",
    "partial-qk-norm",
    "summed-not-averaged",
    "dropped-gradient",
    "dies",
    "tuple",
]

SMALL = Twin(hidden=16, layers=2, heads=2, context=8, batch=8, vocab=32, clip=0.1)


def rank() -> int:
    """0 in the single process, which is no part of a group."""
    return dist.get_rank() if dist.is_initialized() else 0


@dataclass(frozen=True)
class Planted:
    """`build` of a small twin with a bug in how it is parallelised."""

    bug: Bug
    twin: Twin = SMALL

    def __call__(self) -> LayoutCase:
        case = TwinCase(self.twin)()
        plant = getattr(self, f"_{self.bug.replace('-', '_')}", None)
        if plant is not None:
            plant(case)
        return case

    def _rank_not_clipped(self, case: LayoutCase) -> None:
        """BLOOM's: one tensor-parallel rank alone is clipped."""

        def clip(model: nn.Module) -> None:
            kept = [w.grad.clone() for w in model.parameters() if w.grad is not None]
            clip_whole(model, 0.1)
            if rank() == 1:
                grads = [w.grad for w in model.parameters() if w.grad is not None]
                for grad, old in zip(grads, kept, strict=True):
                    local(grad).copy_(local(old))

        case.clip = clip

    def _local_clip(self, case: LayoutCase) -> None:
        """Each rank clips by the norm of what it holds."""

        def clip(model: nn.Module) -> None:
            grads = [local(w.grad) for w in model.parameters() if w.grad is not None]
            norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
            for grad in grads:
                grad.mul_(min(1.0, 0.1 / norm))

        case.clip = clip

    def _norm_desync(self, case: LayoutCase) -> None:
        """A norm's weight on one rank drifts from its copies."""
        self._desync(case, 1)

    def _norm_desync_late(self, case: LayoutCase) -> None:
        self._desync(case, 3)

    def _desync(self, case: LayoutCase, first: int) -> None:
        done = [0]

        def drift(model: nn.Module) -> None:
            done[0] += 1
            if rank() == 1 and done[0] >= first:
                with torch.no_grad():
                    model.get_parameter("blocks.1.ffn_norm.weight")[3] += 1e-6

        case.after_step = drift

    def _wrong_decay(self, case: LayoutCase) -> None:
        """Where the model is split, one matrix is told apart wrongly and does not decay."""
        if not dist.is_initialized():
            return
        groups = case.optimizer.param_groups
        weight = case.model.get_parameter("blocks.1.ffn.up.weight")
        groups[0]["params"] = [w for w in groups[0]["params"] if w is not weight]
        case.optimizer.add_param_group(
            {"params": [weight], "weight_decay": 0.0, "lr": groups[0]["lr"]}
        )

    def _partial_qk_norm(self, case: LayoutCase) -> None:
        """The norm on queries sees a rank's own heads, and its gradient is not added up."""

        def plan(sequence: bool) -> dict[str, Any]:
            return {
                k: v
                for k, v in tensor_plan(self.twin, sequence=sequence).items()
                if "q_norm" not in k
            }

        case.tensor_plan = plan

    def _summed_not_averaged(self, case: LayoutCase) -> None:
        """Gradients are added over ranks and not divided."""

        def times(model: nn.Module) -> None:
            if dist.is_initialized():
                for weight in model.parameters():
                    if weight.grad is not None:
                        local(weight.grad).mul_(dist.get_world_size())

        case.after_backward = times

    def _dropped_gradient(self, case: LayoutCase) -> None:
        """One rank forgets one gradient."""

        def drop(model: nn.Module) -> None:
            for name, weight in model.named_parameters():
                if rank() == 1 and name.endswith("blocks.0.attention.v.weight"):
                    grad = weight.grad
                    assert isinstance(grad, DTensor | Tensor)
                    local(grad).zero_()

        case.after_backward = drop

    def _dies(self, case: LayoutCase) -> None:
        if rank() == 1:
            raise RuntimeError("no memory left on rank 1")


def tuple_instead() -> Any:
    """Gives no case."""
    return nn.Linear(2, 2), None


def without_plan() -> LayoutCase:
    """A case that cannot be split."""
    case = TwinCase(SMALL)()
    case.tensor_plan = None
    return case


def odd_batch() -> LayoutCase:
    """A batch that two ranks cannot share evenly."""
    case = TwinCase(SMALL)()
    case.batch = case.batch[:7]
    return case
