"""Building blocks of a lab run, and the plain loop that a guard is measured against.

Nothing here sets the number of threads; the same number gives the same bits.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from trimtab.errors import ConfigError
from trimtab.lab.data import TextWindows, make_loader
from trimtab.lab.model import Transformer, next_token_loss
from trimtab.lab.planting import Planter
from trimtab.lab.scenario import Scenario, learning_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import DataLoader

    from trimtab.lab.text import Text

__all__ = [
    "EVALUATION_BYTES",
    "Parts",
    "StepReport",
    "autocast",
    "build",
    "evaluate",
    "forward",
    "train",
    "train_plain",
    "train_step",
]

_AUTOCAST_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
EVALUATION_BYTES = 256 * 1024
"""Held-out text that is predicted, by default."""
_EVALUATION_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a training loop is made of."""

    scenario: Scenario
    """The settings it was built from."""
    model: Transformer
    """In train mode, weights in fp32."""
    module: nn.Module
    """What is called: the model, or on several ranks what keeps its gradients together."""
    optimizer: torch.optim.AdamW
    """Two groups: matrices with weight decay, norms without."""
    scheduler: LambdaLR
    """Holds the rate of step 1; `step()` after each update."""
    loader: DataLoader[dict[str, Tensor]]
    """Batches of {"tokens": int64 [batch_size, context_tokens + 1]}, twice as many as steps, so
    that data can be skipped."""
    planter: Planter
    """Does the damage of the scenario's state fault."""
    scaler: torch.amp.GradScaler | None
    """Loss scaler; for fp16 only."""
    autocast_dtype: torch.dtype | None
    """Type for autocast; None trains in fp32."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step of the plain loop gave."""

    step: int
    """Counted from 1."""
    loss: float
    """Nats per token, before the update."""
    grad_norm: float
    """Norm of the unscaled gradient before clipping."""
    learning_rate: float
    """Rate of this update."""


def build(scenario: Scenario, seed: int, text: Text, *, device: str = "cpu") -> Parts:
    """Return a run's parts, ready for its first step; seeds torch's global generator.

    Args:
        scenario: What to train, faults included.
        seed: Chooses the weights, the order of the data and the damage done to it.
        text: Its training bytes are trained on.
        device: Where to train; the weights are drawn on the CPU, and so the same everywhere.

    Raises:
        ConfigError: The text has more token ids than the model.
    """
    if text.vocab_size > scenario.model.vocab_size:
        raise ConfigError(
            f"text has {text.vocab_size} token ids and ModelConfig.vocab_size is "
            f"{scenario.model.vocab_size}; raise it to {text.vocab_size}"
        )
    # Before the model, whose weights are drawn from the global generator.
    torch.manual_seed(seed)
    model = Transformer(scenario.model).to(device)
    optimizer = _make_optimizer(model, scenario)
    rank = dist.get_rank() if scenario.ranks > 1 else 0
    dataset = TextWindows(
        text.train,
        context_tokens=scenario.model.context_tokens,
        num_samples=2 * scenario.steps * scenario.batch_size,
        seed=seed,
        corruption=scenario.corruption,
    )
    return Parts(
        scenario=scenario,
        model=model,
        module=DistributedDataParallel(model) if scenario.ranks > 1 else model,
        optimizer=optimizer,
        planter=Planter(scenario.state_fault, model, optimizer, rank=rank),
        scheduler=LambdaLR(
            optimizer, lambda done: learning_rate(scenario, done + 1) / scenario.peak_lr
        ),
        loader=make_loader(
            dataset, batch_size=scenario.batch_size, rank=rank, ranks=scenario.ranks
        ),
        scaler=torch.amp.GradScaler(device) if scenario.precision == "fp16" else None,
        autocast_dtype=_AUTOCAST_DTYPES[scenario.precision],
    )


def train_step(
    parts: Parts, batch: dict[str, Tensor], *, step: int = 0, read: bool = True
) -> tuple[float, float]:
    """Do one optimizer step and return its loss and the norm of its unclipped gradient.

    Args:
        parts: Trained in place.
        batch: What to train on.
        step: Number of the step, from 1, by which a state fault is timed; 0: none is due.
        read: Read loss and norm on the host; otherwise NaN is returned, and no device waited for.
    """
    parts.optimizer.zero_grad(set_to_none=True)
    loss = forward(parts, batch)
    if parts.scaler is None:
        loss.backward()  # type: ignore[no-untyped-call]
    else:
        parts.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        # Before clipping: a norm of scaled gradients has nothing to do with the limit.
        parts.scaler.unscale_(parts.optimizer)
    parts.planter.on_gradients(step)
    # With an infinite limit the call only measures the norm, so both runs do the same work.
    limit = math.inf if parts.scenario.clip_norm is None else parts.scenario.clip_norm
    grad_norm = nn.utils.clip_grad_norm_(parts.model.parameters(), limit)
    if parts.scaler is None:
        parts.optimizer.step()
    else:
        parts.scaler.step(parts.optimizer)
        parts.scaler.update()
    parts.scheduler.step()
    parts.planter.after_update(step)
    return (loss.item(), grad_norm.item()) if read else (math.nan, math.nan)


def forward(parts: Parts, batch: dict[str, Tensor]) -> Tensor:
    """Return the loss of a batch, computed where the model lies."""
    device = parts.model.device
    with autocast(parts.autocast_dtype, device.type):
        return next_token_loss(parts.module, batch["tokens"].to(device))


def train(parts: Parts, *, on_step: Callable[[StepReport], None] | None = None) -> list[float]:
    """Run the plain loop, without any guard, and return the loss of each step.

    Args:
        parts: Fresh from `build`; trained in place.
        on_step: Called after each step.

    Returns:
        Nats per token, one per step of the scenario; NaN and Inf where the run gave them.
    """
    losses: list[float] = []
    for step, batch in zip(range(1, parts.scenario.steps + 1), parts.loader, strict=False):
        lr = float(parts.optimizer.param_groups[0]["lr"])
        loss, grad_norm = train_step(parts, batch, step=step)
        losses.append(loss)
        if on_step is not None:
            on_step(StepReport(step=step, loss=loss, grad_norm=grad_norm, learning_rate=lr))
    return losses


def train_plain(
    scenario: Scenario,
    seed: int,
    text: Text,
    *,
    on_step: Callable[[StepReport], None] | None = None,
) -> list[float]:
    """Build a run, train it without any guard, and return the loss of each step.

    To keep the trained model, call `build` and `train`.
    """
    return train(build(scenario, seed, text), on_step=on_step)


def evaluate(model: Transformer, text: Text, *, max_bytes: int = EVALUATION_BYTES) -> float:
    """Return the validation loss: mean nats per token on held-out text, eval mode, fp32.

    Read are windows of the model's context, spread evenly over all of the held-out text. Leaves
    the model's mode as it was and draws no random numbers.

    Args:
        model: The model.
        text: Its validation bytes are read.
        max_bytes: Most tokens to predict; 256 kB take 1 to 2 s.

    Returns:
        Nats per token; NaN or Inf where the model gives them.
    """
    context_tokens = model.config.context_tokens
    num_windows = (text.validation.size - 1) // context_tokens
    num_used = min(num_windows, max(1, max_bytes // context_tokens))
    # Evenly spread: the start of a text is one file, and no sample of the whole.
    starts = np.arange(num_used) * num_windows // num_used * context_tokens
    rows = np.lib.stride_tricks.sliding_window_view(text.validation, context_tokens + 1)[starts]
    tokens = torch.from_numpy(rows.astype(np.int64))
    total = 0.0
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(model.device.type, enabled=False):
            for first in range(0, num_used, _EVALUATION_BATCH):
                part = tokens[first : first + _EVALUATION_BATCH].to(model.device)
                # Weighted by size, since the last part may be smaller.
                total += next_token_loss(model, part).item() * len(part)
    finally:
        model.train(was_training)
    return total / num_used


def autocast(
    dtype: torch.dtype | None, device: str = "cpu"
) -> contextlib.AbstractContextManager[object]:
    """Return the autocast context for a type; for None, one that does nothing."""
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=dtype)


def _make_optimizer(model: Transformer, scenario: Scenario) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only.

    `foreach` and not `fused`: it costs 4 % more here, but GradScaler then skips a step by not
    calling the optimizer, as on most hardware, instead of inside the fused kernel.
    """
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    vectors = [weight for weight in model.parameters() if weight.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": scenario.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=scenario.peak_lr,
        betas=scenario.betas,
        foreach=True,
    )
