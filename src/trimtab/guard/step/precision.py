"""The number format of the forward pass, and the loss scaler that goes with it.

The user's `torch.autocast` stays in place. While another format is in force, a hook opens a second
autocast around the model's forward pass: off for fp32, or bf16. What the loop computes outside the
model (a loss under autocast) keeps the run's own format. Weights that are themselves in half
precision cannot be replayed in another format; that is reported, not tried. Hooks are registered
only while they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from trimtab.guard.state.run_state import RunState
    from trimtab.guard.state.training_state import Scaler

__all__ = ["Precision", "PrecisionSwitch"]

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
        """Begin or stop to note which format the forward passes run in."""
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

    def _before(self, _module: torch.nn.Module, _arguments: object) -> None:
        device = next((p.device.type for p in self._model.parameters()), "cpu")
        on = torch.is_autocast_enabled(device)
        self.seen = _NAMES.get(torch.get_autocast_dtype(device), "") if on else ""
        if self._wanted:
            bf16 = self._wanted == "bf16"
            inner = torch.autocast(device, dtype=torch.bfloat16, enabled=bf16)
            inner.__enter__()  # type: ignore[no-untyped-call]
            self._open.append(inner)

    def _after(self, _module: torch.nn.Module, _arguments: object, _output: object) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)


class Precision:
    """Which format the forward pass runs in, and whether a loss scaler is in use."""

    def __init__(self, state: RunState) -> None:
        """Use the run's own format until another one is decided on."""
        self._state = state
        self._switch = PrecisionSwitch(state.training.model)
        self._scales_loss = False

    @property
    def scaler(self) -> Scaler | None:
        """The loss scaler where it is in use: not under fp32 or bf16 by decision."""
        scaler = self._state.training.scaler
        if self._state.decisions.precision:
            return None
        return scaler if scaler is not None and scaler.is_enabled() else None

    @property
    def has_scaler(self) -> bool:
        """Whether a loss scaler is in use, for which a gradient that overflows is normal."""
        return self.scaler is not None

    @property
    def low(self) -> str:
        """fp16 or bf16 where the forward pass runs in it and can be run in another; else empty."""
        changeable = self._scales_loss or not self.has_scaler
        return self._switch.seen if changeable and not self._state.decisions.precision else ""

    def note_scaled_loss(self) -> None:
        """Take note that the guard scales the loss itself, and so may leave the scale out."""
        self._scales_loss = True

    def watch(self, *, on: bool) -> None:
        """Begin or stop to note which format the forward passes run in."""
        self._switch.watch(on=on)

    def set(self, precision: str) -> None:
        """Run the forward pass in fp32 or bf16, without the loss scaler.

        An empty string means the run's own format.
        """
        self._state.decisions.precision = precision
        self._switch.want(precision)

    def enforce(self) -> None:
        """Put the format that was decided on in force, after a resume."""
        self._switch.want(self._state.decisions.precision)
