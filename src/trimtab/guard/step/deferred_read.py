"""A step whose values are read when the next one is about to be applied, without waiting for it.

What the row of the step needs goes into one vector on the device and from there to the host while
training goes on. By the time it is read, the device has the next forward and backward pass to do.
The update is left out on the device as well, by the protocol with which torch's fused optimizers
follow a loss scaler: parameters, moments and step counts of a skipped step stay bit for bit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trimtab.guard.distributed.sharding import is_sharded
from trimtab.guard.state.optimizers import optimizers_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from trimtab.guard.data.order import Fed
    from trimtab.guard.probes.suite import Held

__all__ = [
    "DeviceReading",
    "LateReads",
    "LateRow",
    "reads_late",
    "skips_on_device",
    "update_unless",
]

_SKIPPING = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""Optimizers whose fused step takes `found_inf`; a class derived from one may do more."""


def reads_late(setting: str, parameters: Sequence[torch.Tensor]) -> bool:
    """Whether values are read a step late: as the policy says, or on a GPU, where that was tried.

    Example:
        >>> weights = [torch.zeros(2)]
        >>> [reads_late(setting, weights) for setting in ("auto", "now", "late")]
        [False, False, True]
    """
    kind = parameters[0].device.type if parameters else "cpu"
    if kind in ("mps", "meta"):  # no float64 there
        return False
    return setting == "late" or (setting == "auto" and kind == "cuda")


class LateReads:
    """Whether values of a calm step are read when the next one is about to be applied."""

    def __init__(self, *, on: bool) -> None:
        """Begin as the policy and the device say."""
        self._on = on

    @property
    def on(self) -> bool:
        """Whether they are."""
        return self._on

    def switch_off(self) -> None:
        """Read at once from now on: the trainer has read the values before it updates."""
        self._on = False


class DeviceReading:
    """Numbers of a device on their way to the host."""

    def __init__(self, numbers: torch.Tensor) -> None:
        """Send them; returns at once. `numbers`: float64 [n], not changed from here on."""
        self._numbers, self._arrived = numbers, None
        if numbers.device.type != "cpu":
            # Without pinned memory `copy_` waits for the device, in spite of `non_blocking`.
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            device: Any = getattr(torch, numbers.device.type)
            self._arrived = device.Event()
            self._arrived.record(device.current_stream(numbers.device))
        self._sent_at = time.perf_counter()
        self.done_at = self._sent_at
        """When the device had done it, on the clock of `time.perf_counter`: once it is read."""

    def read(self) -> NDArray[np.float64]:
        """Wait until they are there, where they are not, and return them, float64 [n].

        Where the host had to wait, the device was done at the end of it; else soon after the host
        was.
        """
        arrived: Any = self._arrived
        # `query` first: only a wait that really happened tells when the device was done.
        if arrived is not None and not arrived.query():
            arrived.synchronize()
            self.done_at = time.perf_counter()
        return self._numbers.numpy()


@dataclass(frozen=True, kw_only=True)
class LateRow:
    """What is known of a step that was done and is not read yet."""

    reading: DeviceReading
    """The table of the ranks' shares, then which gradients are finite, then what the probes hold.
    """
    lr: float
    scheduled: dict[str, float]
    limit: float | None
    noted: dict[str, float]
    fed: Fed
    position: int
    """Sample id that came next."""
    may_skip: bool
    """Whether an update that is not finite was left out on the device."""
    names: tuple[str, ...]
    """Of the tensors with a gradient, in the order of their flags."""
    held: Held


def skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of this optimizer, with these gradients, can be left out on the device.

    Only where each parameter has its whole state: one that is made in a skipped step would stay,
    and SGD's first momentum would be left without a value.
    """
    return all(map(_skips_on_device, optimizers_in(optimizer)))


def _skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    if type(optimizer) not in _SKIPPING or not getattr(
        optimizer, "_step_supports_amp_scaling", False
    ):
        return False
    for group in optimizer.param_groups:
        if not group.get("fused"):
            return False
        stateless = group.get("momentum") == 0
        for p in group["params"]:
            if p.grad is None:
                continue
            held = optimizer.state.get(p, {})
            whole = stateless or (held and all(v is not None for v in held.values()))
            if not whole or is_sharded(p):
                return False
    return True


def update_unless(optimizer: torch.optim.Optimizer, broken: torch.Tensor) -> None:
    """Step, unless `broken` (float32 scalar on the device) is 1: then all stays bit for bit."""
    # The attributes that `GradScaler` sets for fused optimizers; their kernels read the flag.
    for one in optimizers_in(optimizer):
        member: Any = one
        member.grad_scale, member.found_inf = None, broken
        try:
            member.step()
        finally:
            del member.grad_scale, member.found_inf
