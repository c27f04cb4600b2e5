"""The number format of the forward pass.

Seen, and changed for a branch, inside the user's own loop.

The user's `torch.autocast` stays where it is. While a change is wanted, a hook opens another one
around the model's forward pass: off for fp32, or bf16. What the loop computes outside the model (a
loss under autocast) keeps the run's own format, and weights that are themselves in half precision
cannot be replayed in another: that is told, not tried. Hooks are there only while they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

__all__ = ["PrecisionSwitch"]

_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class PrecisionSwitch:
    """Watches and overrides autocast around one model."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Take a model, as it is called in the loop; nothing is hooked yet."""
        self.seen = ""
        """Format of the last forward pass that was watched: fp16, bf16, or empty for the weights'.
        """
        self._model = model
        self._wanted = ""
        self._watching = False
        self._handles: list[RemovableHandle] = []
        self._open: list[torch.autocast] = []

    @property
    def wanted(self) -> str:
        """fp32 or bf16 in place of the run's own; empty: the run's own."""
        return self._wanted

    def watch(self, *, on: bool) -> None:
        """Begin or stop to look which format the forward passes run in."""
        self._watching = on
        self._hook()

    def want(self, precision: str) -> None:
        """Run the forward passes in fp32 or bf16 from now on; empty: in the run's own."""
        self._wanted = precision
        self._hook()

    def _hook(self) -> None:
        needed = self._watching or bool(self._wanted)
        if needed and not self._handles:
            self._handles = [
                self._model.register_forward_pre_hook(self._before),
                self._model.register_forward_hook(self._after, always_call=True),
            ]
        elif not needed:
            for handle in self._handles:
                handle.remove()
            self._handles = []

    def _before(self, _module: torch.nn.Module, _arguments: Any) -> None:
        device = next((p.device.type for p in self._model.parameters()), "cpu")
        on = torch.is_autocast_enabled(device)
        self.seen = _NAMES.get(torch.get_autocast_dtype(device), "") if on else ""
        if self._wanted:
            bf16 = self._wanted == "bf16"
            inner = torch.autocast(device, dtype=torch.bfloat16, enabled=bf16)
            inner.__enter__()  # type: ignore[no-untyped-call]
            self._open.append(inner)

    def _after(self, _module: torch.nn.Module, _arguments: Any, _output: Any) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)
