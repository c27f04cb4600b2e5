"""The guard in a Lightning Fabric loop.

    guard = FabricGuard(fabric, model, optimizer, data=loader, scheduler=scheduler, clip=1.0,
                        steps=10_000, run="runs/tiny", mode="act")
    for batch in guard:
        loss = model(batch)
        guard.backward(loss)      # instead of fabric.backward(loss)
        guard.step()              # instead of clip_gradients, optimizer.step, scheduler.step and
                                  # zero_grad

Pass what `fabric.setup` and `fabric.setup_dataloaders` returned. Precision (its loss scaler
included), device and DDP stay Fabric's.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, cast

from trimtab.errors import ConfigError, MissingExtraError
from trimtab.guard import Guard
from trimtab.guard.port import TrainerPort
from trimtab.integrations.packages import warn_of_version
from trimtab.integrations.strategies import check_strategy

try:
    from lightning.fabric import is_wrapped
except ImportError as error:
    raise MissingExtraError("The adapter for Lightning Fabric", "lightning") from error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    import torch
    from lightning.fabric import Fabric
    from torch.utils.data import DataLoader

    from trimtab.guard.port import LoopOptions

__all__ = ["FabricGuard"]


class FabricGuard(Guard):
    """A `Guard` over what Fabric has set up; see the module, and `Guard` for its settings."""

    def __init__(
        self,
        fabric: Fabric,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        data: DataLoader[object] | list[DataLoader[object]],
        **settings: Unpack[LoopOptions],
    ) -> None:
        """Take over a run.

        Args:
            fabric: Launched, if it has several processes.
            model: From `fabric.setup`.
            optimizer: From `fabric.setup`.
            data: From `fabric.setup_dataloaders`, or a plain DataLoader.
            settings: As of `Guard`; `scaler` is Fabric's.

        Raises:
            ConfigError: The strategy cannot be guarded, an object is not from `fabric.setup`, or
                as for `Guard`.
        """
        warn_of_version("lightning")
        check_strategy(fabric.strategy, "FabricGuard")
        if not (is_wrapped(model) and is_wrapped(optimizer)):
            raise ConfigError(
                f"model is {type(model).__name__} and optimizer is {type(optimizer).__name__}: pass"
                " both as fabric.setup(model, optimizer) returned them; it takes exactly one"
                " optimizer"
            )
        self.fabric = fabric
        # The guard reads the plain loader, whose position it can restore; batches are moved below.
        single = cast("DataLoader[object]", getattr(data, "_dataloader", data))
        super().__init__(
            # Fabric's wrapper moves batches and casts outputs; gradients and names are within it.
            getattr(model, "_forward_module"),  # noqa: B009 - not of torch's Module
            getattr(optimizer, "optimizer"),  # noqa: B009 - not of torch's Optimizer
            data=single,
            scaler=getattr(fabric.strategy.precision, "scaler", None),
            **settings,
        )
        TrainerPort(self).clip_in_group_order()  # as Fabric does

    def __iter__(self) -> Iterator[Any]:
        """Yield batches as `Guard` does, on Fabric's device."""
        batches = super().__iter__()
        try:
            for batch in batches:
                yield self.fabric.to_device(batch)
        finally:
            if isinstance(batches, Generator):  # closed, it writes an interrupt down
                batches.close()

    def backward(
        self, loss: torch.Tensor, *, parts: float = 1, samples: torch.Tensor | None = None
    ) -> None:
        """Run Fabric's backward pass, as `Guard.backward` does; in a probe only note the loss."""
        self.note_loss(loss, parts=parts, samples=samples)
        if not self.probing:
            self.fabric.backward(loss if parts == 1 else loss / parts)
