"""Monitors of other projects, ready to be timed beside the guard.

Lightning's and trainscope's are their own code, where it is installed (`pip install
'trimtab[bench]'`). OLMo-core's package brings a cloud client and holds other libraries back, so its
rules stand here as we read them at fa6c5014c, and are labelled so: SkipStep (128 losses and norms,
six standard deviations, on the device), StabilityMonitor (the same of values on the host) and
GAPMonitor (maximum, mean and variance of each gradient and parameter and of each block's output).
"""

from __future__ import annotations

import importlib.util
import statistics
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trimtab.lab.train import Parts

__all__ = ["PEERS", "is_installed"]

_HISTORY = 128


def _skip_step(_parts: Parts, _folder: Path) -> Callable[[torch.Tensor, torch.Tensor], None]:
    losses: deque[torch.Tensor] = deque(maxlen=_HISTORY + 1)
    norms: deque[torch.Tensor] = deque(maxlen=_HISTORY + 1)
    seen: deque[float] = deque(maxlen=_HISTORY)
    over: deque[bool] = deque(maxlen=10_000)

    def watch(loss: torch.Tensor, norm: torch.Tensor) -> None:
        losses.append(loss.detach())
        norms.append(norm.detach())
        if len(losses) >= _HISTORY // 2:
            wrong = []
            for values in (losses, norms):
                spread, mean = torch.std_mean(torch.stack(list(values)[:-1]))
                wrong.append(values[-1] - mean <= 6 * spread)
            torch.logical_and(*wrong).to(torch.float32)
        value = loss.item()
        if len(seen) == _HISTORY:
            over.append(value > statistics.fmean(seen) + 6 * statistics.pstdev(seen))
        seen.append(value)

    return watch


def _gap_monitor(parts: Parts, _folder: Path) -> Callable[[torch.Tensor, torch.Tensor], None]:
    outputs: list[torch.Tensor] = []
    state = {"step": 0}

    def keep(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        if (state["step"] + 1) % 10 == 0:
            outputs.append(output.detach())

    for block in parts.model.blocks:
        block.register_forward_hook(keep)

    def watch(_loss: torch.Tensor, _norm: torch.Tensor) -> None:
        state["step"] += 1
        if state["step"] % 10:
            return
        tensors = [p.detach() for p in parts.model.parameters()]
        tensors += [p.grad for p in parts.model.parameters() if p.grad is not None]
        figures = []
        for tensor in (*tensors, *outputs):
            variance, mean = torch.var_mean(tensor.float())
            figures += [tensor.abs().max().float(), mean, variance]
        torch.stack(figures).tolist()
        outputs.clear()

    return watch


def _lightning(_parts: Parts, folder: Path) -> Callable[[torch.Tensor, torch.Tensor], None]:
    from lightning.fabric import Fabric
    from lightning.fabric.utilities.spike import SpikeDetection

    fabric = Fabric(accelerator="cpu", devices=1)
    detection = SpikeDetection(warmup=10, exclude_batches_path=str(folder))
    count = iter(range(1 << 40))

    def watch(loss: torch.Tensor, _norm: torch.Tensor) -> None:
        detection.on_train_batch_end(fabric, loss.detach(), None, next(count))

    return watch


def _trainscope(parts: Parts, folder: Path) -> Callable[[torch.Tensor, torch.Tensor], None]:
    from trainscope import TrainScope, TrainScopeConfig

    config = TrainScopeConfig(run_dir=str(folder), run_name="bench")
    scope = TrainScope(parts.model, parts.optimizer, config).attach()

    def watch(loss: torch.Tensor, _norm: torch.Tensor) -> None:
        scope.step(loss.item())

    return watch


PEERS: tuple[tuple[str, str, Any], ...] = (
    ("OLMo-core SkipStep + StabilityMonitor (re-implemented)", "", _skip_step),
    ("OLMo-core GAPMonitor every 10 steps (re-implemented)", "", _gap_monitor),
    ("Lightning SpikeDetection", "lightning", _lightning),
    ("trainscope, its defaults", "trainscope", _trainscope),
)
"""Name, package it needs, and what makes of a run's parts and a folder a function that is called
with loss and gradient norm before each update."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported; an empty name needs none."""
    return not package or importlib.util.find_spec(package) is not None
