"""megatron-core's real model, DDP, optimizer and scheduler on the CPU over gloo.

With faults to plant.

megatron-core asks for CUDA where it makes small tensors and where it clips: `OnCpu` answers for it.
The attention core of its spec is exchanged (its own asks for a CUDA random state), nothing else of
it is.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Dataset

from trimtab.lab.text import Text, load_text
from trimtab.plan.policy import Mode, Policy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.transformer.transformer_config import TransformerConfig

from trimtab.integrations.megatron.adapter import MegatronGuard

CONTEXT = 32
STEPS = 240
BATCH = 8
PEAK_LR = 4e-3
BAD_SAMPLES = range(159 * BATCH, 171 * BATCH)
LR_STEP, LR_FACTOR = 140, 100.0
NAN_STEPS = (101, 102)


class OnCpu(TorchFunctionMode):
    """What is asked of CUDA is done on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.cuda:
            return args[0]
        if func is Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


@contextmanager
def megatron() -> Iterator[None]:
    """A process group of one, megatron-core's groups, and `OnCpu`."""
    here = mock.patch.object(torch.cuda, "current_device", return_value=torch.device("cpu"))
    with warnings.catch_warnings(), OnCpu(), here:
        warnings.simplefilter("ignore")
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel(1, 1)
        try:
            yield
        finally:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()


class _Attention(nn.Module):
    """Causal attention, in megatron-core's layout [tokens, samples, heads, width]."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, **_: Any) -> Tensor:
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.permute(2, 0, 1, 3).flatten(2)


@cache
def text() -> Text:
    return load_text(max_bytes=1_000_000)


class Windows(Dataset[Tensor]):
    """Windows of real text; those of `bad` are random bytes."""

    def __init__(self, data: Any, num: int, bad: range = range(0)) -> None:
        self.starts = np.random.default_rng(0).integers(0, len(data) - CONTEXT - 1, num)
        self.data, self.bad = data, bad

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Tensor:
        start = self.starts[index]
        row = self.data[start : start + CONTEXT + 1].astype(np.int64)
        if index in self.bad:
            row = np.random.default_rng(index).integers(0, 256, CONTEXT + 1)
        return torch.from_numpy(row)


class Parts:
    """Model, optimizer and scheduler of megatron-core, and data."""

    def __init__(self, fault: str = "", *, optimizer: str = "adam") -> None:
        torch.manual_seed(0)
        config = TransformerConfig(
            num_layers=1,
            hidden_size=32,
            num_attention_heads=2,
            use_cpu_initialization=True,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            gradient_accumulation_fusion=False,
            masked_softmax_fusion=False,
            bias_activation_fusion=False,
            bias_dropout_fusion=False,
        )
        spec = get_gpt_layer_local_spec()
        spec.submodules.self_attention.submodules.core_attention = _Attention
        model = GPTModel(
            config=config, transformer_layer_spec=spec, vocab_size=256, max_sequence_length=CONTEXT
        )
        self.model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
        chosen = OptimizerConfig(
            optimizer=optimizer,
            lr=PEAK_LR,
            min_lr=0.0,
            clip_grad=1.0,
            weight_decay=0.1,
            params_dtype=torch.float32,
        )
        self.optimizer = get_megatron_optimizer(chosen, [self.model])
        self.scheduler = OptimizerParamScheduler(
            self.optimizer,
            init_lr=0.0,
            max_lr=PEAK_LR,
            min_lr=0.0,
            lr_warmup_steps=20 * BATCH,
            lr_decay_steps=2 * STEPS * BATCH,
            lr_decay_style="cosine",
            start_wd=0.1,
            end_wd=0.1,
            wd_incr_steps=STEPS,
            wd_incr_style="constant",
        )
        self.scheduler.step(increment=BATCH)
        if fault == "lr":
            own = self.scheduler.get_lr
            late = LR_STEP * BATCH
            self.scheduler.get_lr = lambda group: (
                own(group) * (LR_FACTOR if self.scheduler.num_steps >= late else 1.0)
            )
        bad = BAD_SAMPLES if fault == "data" else range(0)
        self.data = DataLoader(Windows(text().train, 2 * STEPS * BATCH, bad), batch_size=BATCH)

    def loss(self, batch: Tensor) -> Tensor:
        """Mean nats per token."""
        positions = torch.arange(CONTEXT).expand(len(batch), CONTEXT)
        found: Tensor = self.model(batch[:, :-1], positions, None, labels=batch[:, 1:]).mean()
        return found

    def validation(self) -> float:
        """Nats per token on held-out text; NaN where a weight is not finite."""
        held_out = Windows(text().validation, 512)
        with torch.no_grad():
            return float(self.loss(torch.stack([held_out[i] for i in range(512)])))

    def weights(self) -> dict[str, Tensor]:
        return {n: p.detach().clone() for n, p in self.model.module.named_parameters()}


def spoil(parts: Parts, step: int, fault: str) -> None:
    """Make gradients NaN in `NAN_STEPS`."""
    if fault == "nan" and step in NAN_STEPS:
        for p in parts.model.parameters():
            p.main_grad.mul_(math.nan)


def plain(fault: str = "", steps: int = STEPS) -> tuple[Parts, list[str], list[Any]]:
    """Train as Megatron-LM's `train_step` does.

    Return parts, losses in hexadecimal, what `step` gave.
    """
    parts = Parts(fault)
    losses, given = [], []
    for step, batch in zip(range(1, steps + 1), parts.data, strict=False):
        parts.model.zero_grad_buffer()
        parts.optimizer.zero_grad()
        loss = parts.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        spoil(parts, step, fault)
        parts.model.finish_grad_sync()
        given.append(parts.optimizer.step())
        parts.scheduler.step(increment=BATCH)
        losses.append(float(loss).hex())
    return parts, losses, given


def guarded(
    run: Path,
    mode: Mode = "act",
    fault: str = "",
    steps: int = STEPS,
    stop_at: int = 0,
    **policy: Any,
) -> tuple[Parts, dict[int, str], MegatronGuard]:
    """Train the same under a guard; leave as a killed process would after `stop_at` steps."""
    parts = Parts(fault)
    settings = {"checkpoint_in_background": False, "snapshot_every_steps": 10, **policy}
    guard = MegatronGuard(
        parts.model,
        parts.optimizer,
        parts.scheduler,
        data=parts.data,
        increment=BATCH,
        steps=steps,
        run=run,
        mode=mode,
        policy=Policy(**settings),
        say=lambda _line: None,
    )
    losses: dict[int, str] = {}
    for batch in guard:
        step = guard.step_number + 1
        if stop_at and step > stop_at:
            break
        loss = parts.loss(batch)
        losses[step] = float(loss).hex()
        guard.backward(loss)
        if not guard.probing:
            spoil(parts, step, fault)
        guard.step()
    guard.close()
    return parts, losses, guard
