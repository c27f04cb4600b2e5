"""What the probes need of the objects that are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = ["Trained"]


class Trained(Protocol):
    """A model and its optimizer."""

    @property
    def model(self) -> torch.nn.Module:
        """The module as the loop calls it."""

    @property
    def bare_model(self) -> torch.nn.Module:
        """The module without wrappers such as DDP or torch.compile."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer."""

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """The optimizer's parameters."""
