"""The small twin as the default case of `trimtab parity`, used without --python."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.model_checks.layouts import LayoutCase
from trimtab.model_checks.smoke_run import batch_of
from trimtab.model_checks.twin import TwinModel, make_optimizer, tensor_plan

if TYPE_CHECKING:
    from trimtab.configs.shrink import Twin

__all__ = ["TwinCase"]


@dataclass(frozen=True)
class TwinCase:
    """`build` for `parity`; a value, so that it can be sent to other processes."""

    twin: Twin
    seed: int = 0

    def __call__(self) -> LayoutCase:
        """Return a fresh case: the same weights and the same batch each time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = TwinModel(self.twin)
        batch = batch_of(replace(self.twin, batch=max(self.twin.batch, 8)), seed=self.seed)
        return LayoutCase(
            model=model,
            optimizer=make_optimizer(model),
            loss=exact_loss,
            batch=batch,
            clip=self.twin.clip or None,
            tensor_plan=lambda sequence: tensor_plan(self.twin, sequence=sequence),
        )


def exact_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean next-token cross-entropy in the type of the model."""
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
