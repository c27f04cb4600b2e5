"""A Lightning Fabric loop with the guard: a tiny GPT, a jump of the rate, the recovery.

    python examples/fabric_gpt.py            with the guard: about half a minute on two cores
    python examples/fabric_gpt.py --off      the same loop without it

Lines that the guard needs end in `# trimtab`: 5 of them. `guard.step()` stands for clipping, the
optimizer's and the scheduler's step and `zero_grad`. Run again, it goes on where it was (here:
nothing is left to do); give another `--run` to start anew.
"""

import argparse
import asyncio
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from trimtab.integrations.fabric import FabricGuard  # trimtab
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
    options.add_argument("--run", default="runs/fabric", help="run directory of the guard")
    options.add_argument("--mode", default="act", choices=("observe", "advise", "act"))
    options.add_argument("--off", action="store_true", help="without trimtab")
    args = options.parse_args()

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.seed_everything(0)
    text = load_text(Path(asyncio.__file__).parent)  # a package of the standard library
    shape = {"context_tokens": CONTEXT, "seed": 0}
    train = TextWindows(text.train, num_samples=2 * STEPS * BATCH, **shape)
    model = Transformer(ModelConfig(width=32, num_layers=1, num_heads=2, context_tokens=CONTEXT))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(train, batch_size=BATCH))

    if args.off:
        for _, batch in zip(range(STEPS), loader, strict=False):
            fabric.backward(next_token_loss(model, batch["tokens"]))
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    else:
        guard = FabricGuard(
            fabric,
            model,
            optimizer,
            data=loader,
            scheduler=scheduler,
            clip=1.0,
            steps=STEPS,
            run=args.run,
            mode=args.mode,
        )  # trimtab
        for batch in guard:  # trimtab
            guard.backward(next_token_loss(model, batch["tokens"]))  # trimtab
            guard.step()  # trimtab

    held_out = TextWindows(text.validation, num_samples=1000, **shape)
    with torch.no_grad():
        losses = [next_token_loss(model, b["tokens"]) for b in DataLoader(held_out, batch_size=50)]
    print(f"validation loss {float(torch.stack(losses).mean()):.3f} after {STEPS} steps")


if __name__ == "__main__":
    main()
