"""A DeepSpeed loop with the guard: a tiny GPT on real text, a jump of the rate, the recovery.

    python examples/deepspeed_gpt.py            with the guard: seconds on one core, no GPU
    python examples/deepspeed_gpt.py --off      the same loop without it
    torchrun --nproc-per-node 2 examples/deepspeed_gpt.py --stage 2

Lines that the guard needs end in `# trimtab`: 3 of them. The loop goes on calling the engine's own
`backward` and `step`. Run again, it goes on where it was (here: nothing is left to do); give
another `--run` to start anew.
"""

import argparse
import asyncio
import os
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # this example is too small for a GPU

import deepspeed
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from trimtab.integrations.deepspeed import DeepSpeedGuard  # trimtab
from trimtab.lab.config import ModelConfig
from trimtab.lab.data import TextWindows
from trimtab.lab.model import Transformer, next_token_loss
from trimtab.lab.text import load_text

STEPS, BATCH, CONTEXT = 240, 8, 32


def rate(done: int) -> float:
    """Warm-up, then constant. What goes wrong: from step 140 on it is 300 times as high."""
    return min(1.0, (done + 1) / 20) * (300.0 if done + 1 >= 140 else 1.0)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--run", default="runs/deepspeed", help="run directory of the guard")
    options.add_argument("--mode", default="act", choices=("observe", "advise", "act"))
    options.add_argument("--stage", default=1, type=int, choices=(0, 1, 2, 3), help="of ZeRO")
    options.add_argument("--off", action="store_true", help="without trimtab")
    args = options.parse_args()

    if "RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo does; nothing is compiled

    torch.manual_seed(0)
    text = load_text(Path(asyncio.__file__).parent)  # a package of the standard library
    shape = {"context_tokens": CONTEXT, "seed": 0}
    train = TextWindows(text.train, num_samples=2 * STEPS * BATCH, **shape)
    loader = DataLoader(train, BATCH // dist.get_world_size(), sampler=DistributedSampler(train))
    model = Transformer(ModelConfig(width=32, num_layers=1, num_heads=2, context_tokens=CONTEXT))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    config = {
        "train_micro_batch_size_per_gpu": BATCH // dist.get_world_size(),
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": args.stage},
    }
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config=config,
        lr_scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, rate),
    )

    batches = (batch for _, batch in zip(range(STEPS), loader, strict=False))
    if not args.off:  # trimtab
        batches = DeepSpeedGuard(
            engine, data=loader, steps=STEPS, run=args.run, mode=args.mode
        )  # trimtab
    for batch in batches:
        loss = next_token_loss(engine, batch["tokens"])
        engine.backward(loss)
        engine.step()

    held_out = TextWindows(text.validation, num_samples=1000, **shape)
    with torch.no_grad():
        losses = [next_token_loss(engine, b["tokens"]) for b in DataLoader(held_out, batch_size=50)]
    if dist.get_rank() == 0:
        print(f"validation loss {float(torch.stack(losses).mean()):.3f} after {STEPS} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
