"""torchtitan's real Trainer on the CPU: a tiny Llama on real text over gloo, with faults to plant.

torchtitan 0.3 asks its device for names and memory, which `torch.cpu` does not tell, and asks torch
for `torch.distributed.set_timeout`, which torch 2.13 does not have: `on_cpu` stands in for both.
Flex attention is not run (it has no backward pass on the CPU): the model takes torchtitan's
`ScaledDotProductAttention`.
"""

import gc
import json
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trimtab.lab.text import Text, load_text


def _nothing(*_: Any, **__: Any) -> None:
    """What a device has and a CPU has not."""


def on_cpu() -> None:
    """Have torchtitan run on the CPU; before anything else of it is imported."""
    import torchtitan.tools.utils as tools

    tools.device_type = "cpu"
    tools.device_module = SimpleNamespace(
        set_device=_nothing,
        device_count=lambda: 1,
        current_device=lambda: 0,
        synchronize=_nothing,
        get_device_name=lambda *_: "CPU",
        get_device_properties=lambda *_: SimpleNamespace(total_memory=1 << 30),
        reset_peak_memory_stats=_nothing,
        empty_cache=_nothing,
        memory_stats=lambda *_: {},
    )
    tools.get_local_device = lambda: torch.device("cpu")
    tools.get_peak_flops = lambda _name: 1e12  # it would ask lspci
    import torchtitan.distributed.utils as distributed

    if not hasattr(dist, "set_timeout"):
        distributed.set_pg_timeouts = _nothing


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    on_cpu()
    from torchtitan.components.checkpointer import CheckpointManager
    from torchtitan.components.dataloader import ParallelAwareDataloader
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.components.metrics import MetricsProcessor
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import Llama3Model, _build_llama3_layers, parallelize_llama
    from torchtitan.protocols.model_spec import ModelSpec
    from torchtitan.trainer import Trainer

from trimtab.integrations.torchtitan import guarded  # noqa: E402

CONTEXT = 32
STEPS = 240
BATCH = 8
"""Of all ranks."""
PEAK_LR = 4e-3
BAD_STEPS = range(160, 172)
LR_STEP, LR_FACTOR = 140, 100.0
NAN_STEPS = (101, 102)


@cache
def text() -> Text:
    return load_text(max_bytes=1_000_000)


class Windows(torch.utils.data.IterableDataset[Any]):
    """This rank's share of an endless stream of windows of real text.

    Those of `bad` are random bytes.
    """

    def __init__(self, rank: int, world: int, bad: range) -> None:
        self.number, self.world, self.bad = rank, world, bad

    def __iter__(self) -> Iterator[Any]:
        while True:
            number, self.number = self.number, self.number + self.world
            rng = np.random.default_rng(number)
            data = text().train
            start = int(rng.integers(0, len(data) - CONTEXT - 1))
            row = data[start : start + CONTEXT + 1].astype(np.int64)
            if number // BATCH + 1 in self.bad:
                row = rng.integers(0, 256, CONTEXT + 1)
            tokens = torch.from_numpy(row)
            yield {"input": tokens[:-1], "positions": torch.arange(CONTEXT)}, tokens[1:]

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


class Loader(ParallelAwareDataloader):  # type: ignore[misc]
    """torchtitan's loader over them."""

    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):  # type: ignore[misc]
        bad: tuple[int, int] = (0, 0)

    def __init__(
        self, config: Any, *, dp_rank: int, dp_world_size: int, local_batch_size: int, **_: Any
    ) -> None:
        windows = Windows(dp_rank, dp_world_size, range(*config.bad))
        super().__init__(windows, dp_rank, dp_world_size, batch_size=local_batch_size)


class Letters(BaseTokenizer):  # type: ignore[misc]
    """Bytes as they are."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Any, *, tokenizer_path: str) -> None:
        super().__init__()

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int], **_: Any) -> str:
        return bytes(tokens).decode()

    def get_vocab_size(self) -> int:
        return 256


def _parallelize(model: Any, **given: Any) -> Any:
    """torchtitan's own; gloo knows no PREMUL_SUM, which FSDP2 would ask for."""
    model = parallelize_llama(model, **given)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def _model() -> Any:
    """torchtitan's Llama 3, small: one layer, 32 wide, 256 letters."""
    norm = {"weight": nn.init.ones_}
    rope = ComplexRoPE.Config(dim=16, max_seq_len=64, theta=10000, scaling="none")
    layers = _build_llama3_layers(
        n_layers=1, dim=32, n_heads=2, hidden_dim=64, rope=rope, attn_backend="flex"
    )
    for layer in layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return Llama3Model.Config(
        dim=32,
        vocab_size=256,
        layers=layers,
        tok_embeddings=Embedding.Config(
            num_embeddings=256,
            embedding_dim=32,
            param_init={"weight": partial(nn.init.normal_, std=0.5)},
        ),
        norm=RMSNorm.Config(normalized_shape=32, param_init=norm),
        lm_head=Linear.Config(
            in_features=32,
            out_features=256,
            param_init={"weight": partial(nn.init.normal_, std=0.02)},
        ),
    )


def config(
    dump: Path,
    *,
    steps: int = STEPS,
    fault: str = "",
    tp: int = 1,
    accumulate: int = 1,
    **changes: Any,
) -> Any:
    """What a registry would give: torchtitan's `Trainer.Config`."""
    dealt = int(os.environ.get("WORLD_SIZE", "1")) // tp
    bad = (BAD_STEPS[0], BAD_STEPS[-1] + 1) if fault == "data" else (0, 0)
    own = {
        "model_spec": ModelSpec(
            name="llama3",
            flavor="tiny",
            model=_model(),
            parallelize_fn=_parallelize,
            pipelining_fn=None,
            post_optimizer_build_fn=None,
            state_dict_adapter=None,
        ),
        "loss": CrossEntropyLoss.Config(global_vocab_size=256),
        "optimizer": default_adamw(lr=PEAK_LR),
        "lr_scheduler": LRSchedulersContainer.Config(warmup_steps=20, decay_ratio=0.1),
        "training": TrainingConfig(
            local_batch_size=BATCH // dealt // accumulate,
            global_batch_size=BATCH,
            seq_len=CONTEXT,
            steps=steps,
            disable_cuda_graphs=True,
            mixed_precision_param="float32",
            mixed_precision_reduce="float32",
        ),
        "tokenizer": Letters.Config(),
        "dataloader": Loader.Config(bad=bad),
        "metrics": MetricsProcessor.Config(log_freq=1),
        "checkpoint": CheckpointManager.Config(**changes.pop("checkpoint", {})),
        "parallelism": ParallelismConfig(tensor_parallel_degree=tp, spmd_backend="partial_dtensor"),
        "debug": DebugConfig(seed=1),
        "activation_checkpoint": None,
        "dump_folder": str(dump),
    }
    return Trainer.Config(**{**own, **changes})


@dataclass
class Fit:
    """What came of a training."""

    trainer: Any
    out: Path
    losses: dict[int, str] = field(default_factory=dict)
    """Logged loss of each step, as a hexadecimal float."""
    logs: list[tuple[Any, ...]] = field(default_factory=list)
    """Step, loss, norm and rates, as logged."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    validation: float = math.nan
    """Nats per token on held-out text; NaN where a weight is not finite."""

    def look(self) -> None:
        """Gather weights and validation loss; all ranks must call."""
        state = self.trainer.model_parts[0].state_dict()
        self.weights = {
            k: (v.full_tensor() if isinstance(v, DTensor) else v).clone() for k, v in state.items()
        }
        held_out, rng = text().validation, np.random.default_rng(0)
        starts = rng.integers(0, len(held_out) - CONTEXT - 1, 512)
        rows = torch.stack(
            [torch.from_numpy(held_out[s : s + CONTEXT + 1].astype(np.int64)) for s in starts]
        )
        positions = torch.arange(CONTEXT).expand(512, CONTEXT)
        trainer = self.trainer
        with torch.no_grad(), trainer.train_context():
            logits = trainer.model_parts[0](rows[:, :-1], positions=positions)
        if isinstance(logits, DTensor):
            logits = logits.full_tensor()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        self.validation = float(loss)


@contextmanager
def process_group() -> Iterator[None]:
    """The group that torchtitan would make itself, for a test that is alone in its process."""
    own = not dist.is_initialized() and "RANK" not in os.environ
    kept = dict(os.environ)
    if own:
        os.environ["LOCAL_RANK"] = "0"
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        gc.enable()  # torchtitan switches it off
        if own:
            dist.destroy_process_group()
            os.environ.clear()
            os.environ.update(kept)


def plant(trainer: Any, fault: str) -> None:
    """Make the rate too high, or gradients NaN on the last rank."""
    if fault == "lr":
        for scheduler in trainer.lr_schedulers.schedulers:
            own = scheduler.lr_lambdas[0]
            scheduler.lr_lambdas = [
                lambda done, own=own: own(done) * (LR_FACTOR if done + 1 >= LR_STEP else 1.0)
            ]
    if fault == "nan":
        forward = trainer.forward_backward_step
        last = dist.get_rank() == dist.get_world_size() - 1

        def spoiled(**given: Any) -> Tensor:
            loss: Tensor = forward(**given)
            if trainer.step in NAN_STEPS and last:
                for p in trainer.model_parts[0].parameters():
                    (p.grad._local_tensor if isinstance(p.grad, DTensor) else p.grad).mul_(math.nan)
            return loss

        trainer.forward_backward_step = spoiled


def fit(
    out: Path,
    *,
    guard: str = "",
    fault: str = "",
    policy: dict[str, Any] | None = None,
    before: Any = None,
    **changes: Any,
) -> Fit:
    """Train with torchtitan's real Trainer; with `guard`, its mode, with the guarded one."""
    with warnings.catch_warnings(), process_group():
        warnings.simplefilter("ignore")
        chosen = config(out, fault=fault, **changes)
        if guard:
            out.mkdir(parents=True, exist_ok=True)
            settings = {
                "checkpoint_in_background": False,
                "snapshot_every_steps": 10,
                **(policy or {}),
            }
            lines = [f"{k} = {json.dumps(v)}" for k, v in settings.items()]
            (out / "policy.toml").write_text("[policy]\n" + "\n".join(lines), encoding="utf-8")
            chosen = guarded(chosen, mode=guard, policy=str(out / "policy.toml"))  # type: ignore[arg-type]
        trainer = chosen.build()
        trainer.say = lambda _line: None
        found = Fit(trainer, out)
        own = trainer.metrics_processor.log

        def log(
            step: int, loss: float, most: float, norm: float, extra_metrics: Any = None
        ) -> None:
            found.losses[step] = loss.hex()
            found.logs.append((step, loss, norm, *sorted(extra_metrics.items())))
            own(step, loss, most, norm, extra_metrics=extra_metrics)

        trainer.metrics_processor.log = log
        plant(trainer, fault)
        if before is not None:
            before(trainer)
        try:
            trainer.train()
        finally:
            gc.enable()
        found.look()
        trainer.close()
    return found
