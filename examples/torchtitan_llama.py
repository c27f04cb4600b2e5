"""torchtitan's Llama 3 debug model in its own Trainer, guarded, on the text of this Python.

    torchrun --nproc-per-node 8 examples/torchtitan_llama.py runs/titan

From step 120 on the learning rate is a hundred times too high, as after a wrong restart. The guard
sees the loss climb, rolls back, tries a lower rate on a short branch, and keeps it. Lines that
the guard needs end in `# trimtab`: 2 of them. Needs `pip install 'trimtab[torchtitan]'`.
"""

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

from trimtab.integrations.torchtitan import guarded  # trimtab

STEPS, CONTEXT, BATCH = 200, 32, 8


class Text(torch.utils.data.IterableDataset):
    """Windows of Python's own sources, byte by byte; this rank's share of them."""

    def __init__(self, rank, world):
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        self.bytes = b"".join(f.read_bytes() for f in files)
        self.next, self.world = rank, world

    def __iter__(self):
        while True:
            rng = torch.Generator().manual_seed(self.next)
            self.next += self.world
            start = int(torch.randint(len(self.bytes) - CONTEXT - 1, (1,), generator=rng))
            row = torch.tensor(list(self.bytes[start : start + CONTEXT + 1]))
            yield {"input": row[:-1], "positions": torch.arange(CONTEXT)}, row[1:]

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class TextLoader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(self, config, *, dp_rank, dp_world_size, local_batch_size, **_):
        super().__init__(
            Text(dp_rank, dp_world_size), dp_rank, dp_world_size, batch_size=local_batch_size
        )


class Bytes(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path):
        super().__init__()

    def encode(self, text, **_):
        return list(text.encode())

    def decode(self, tokens, **_):
        return bytes(tokens).decode()

    def get_vocab_size(self):
        return 256


def config(dump_folder):
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:2]
    for layer in spec.model.layers:  # runs on any device
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return Trainer.Config(
        model_spec=spec,
        dump_folder=dump_folder,
        tokenizer=Bytes.Config(),
        dataloader=TextLoader.Config(),
        loss=CrossEntropyLoss.Config(global_vocab_size=2048),
        optimizer=default_adamw(lr=1e-3),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=20, decay_ratio=0.1),
        training=TrainingConfig(
            local_batch_size=BATCH, seq_len=CONTEXT, steps=STEPS, disable_cuda_graphs=True
        ),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        activation_checkpoint=None,
        metrics=MetricsProcessor.Config(log_freq=20),
        debug=DebugConfig(seed=1),
    )


def main():
    chosen = config(sys.argv[1] if sys.argv[1:] else "runs/titan")
    chosen = guarded(chosen, mode="act")  # trimtab
    trainer = chosen.build()
    for scheduler in trainer.lr_schedulers.schedulers:  # the fault
        own = scheduler.lr_lambdas[0]
        scheduler.lr_lambdas = [lambda done, own=own: own(done) * (100 if done >= 120 else 1)]
    trainer.train()
    trainer.close()


if __name__ == "__main__":
    main()
