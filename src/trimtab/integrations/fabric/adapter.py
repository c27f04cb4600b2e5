"""The guard in a Lightning Fabric loop.

    guard = FabricGuard(fabric, model, optimizer, data=loader, scheduler=scheduler, clip=1.0,
                        steps=10_000, run="runs/tiny", mode="act")
    for batch in guard:
        loss = model(batch)
        guard.backward(loss)      # was fabric.backward(loss)
        guard.step()              # was fabric.clip_gradients, optimizer.step, scheduler.step,
        zero_grad

What `fabric.setup` and `fabric.setup_dataloaders` gave back goes in as it is. Precision (its loss
scaler included), device and DDP stay Fabric's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trimtab.errors import ConfigError, MissingExtraError
from trimtab.guard import Guard
from trimtab.integrations.lightning.trainer_parts import check_strategy, clip_in_lightnings_order
from trimtab.integrations.packages import warn_of_version

try:
    from lightning.fabric import is_wrapped
except ImportError as error:
    raise MissingExtraError("The adapter for Lightning Fabric", "lightning") from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from lightning.fabric import Fabric

__all__ = ["FabricGuard"]


class FabricGuard(Guard):
    """A `Guard` over what Fabric has set up; see the module, and `Guard` for its settings."""

    def __init__(
        self, fabric: Fabric, model: Any, optimizer: Any, *, data: Any, **settings: Any
    ) -> None:
        """Take over a run.

        Args:
            fabric: Launched, where it has several processes.
            model: From `fabric.setup`.
            optimizer: From `fabric.setup`.
            data: From `fabric.setup_dataloaders`, or a plain DataLoader.
            settings: As of `Guard`; `scaler` is Fabric's.

        Raises:
            ConfigError: The strategy cannot be guarded, an object is not from `fabric.setup`, or
                what `Guard` refuses.
        """
        warn_of_version("lightning")
        check_strategy(fabric.strategy, "FabricGuard")
        if not (is_wrapped(model) and is_wrapped(optimizer)):
            raise ConfigError(
                f"model is {type(model).__name__} and optimizer is {type(optimizer).__name__}: pass"
                " both as fabric.setup(model, optimizer) gave them back; it takes exactly one"
                " optimizer"
            )
        self._fabric = fabric
        super().__init__(
            model._forward_module,
            optimizer.optimizer,
            data=getattr(data, "_dataloader", data),
            scaler=getattr(fabric.strategy.precision, "scaler", None),
            **settings,
        )
        clip_in_lightnings_order(self)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches as `Guard` does, on Fabric's device."""
        batches = super().__iter__()
        try:
            for batch in batches:
                yield self._fabric.to_device(batch)
        finally:
            batches.close()  # type: ignore[attr-defined]

    def backward(
        self, loss: torch.Tensor, *, parts: float = 1, samples: torch.Tensor | None = None
    ) -> None:
        """Run Fabric's backward pass, as `Guard.backward` does.

        Nothing but noting the loss in a probe.
        """
        self.note_loss(loss, parts=parts, samples=samples)
        if not self.probing:
            self._fabric.backward(loss if parts == 1 else loss / parts)
