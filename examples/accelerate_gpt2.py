"""A loop with Accelerate and the guard: a tiny GPT-2, a jump of the learning rate, the recovery.

    python examples/accelerate_gpt2.py            with the guard: about half a minute on two cores
    python examples/accelerate_gpt2.py --off      the same loop without it

Lines that the guard needs end in `# trimtab`: 2 of them; the loop stays as it is. Run again, it
goes on where it was (here: nothing is left to do); give another `--run` to start anew.
"""

import argparse
import asyncio
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from trimtab.integrations.accelerate import guard_loop  # trimtab
from trimtab.lab.data import TextWindows
from trimtab.lab.text import load_text

EPOCHS, STEPS, BATCH, CONTEXT = 2, 240, 8, 32


def rate(done: int) -> float:
    """Warm-up, then constant. What goes wrong: from step 140 on it is 300 times as high."""
    return min(1.0, (done + 1) / 20) * (300.0 if done + 1 >= 140 else 1.0)


def loss_of(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    tokens = batch["tokens"][:, :CONTEXT]
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--run", default="runs/accelerate", help="run directory of the guard")
    options.add_argument("--mode", default="act", choices=("observe", "advise", "act"))
    options.add_argument("--off", action="store_true", help="without trimtab")
    args = options.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    text = load_text(Path(asyncio.__file__).parent)  # a package of the standard library
    shape = {"context_tokens": CONTEXT, "seed": 0}
    train = TextWindows(text.train, num_samples=STEPS // EPOCHS * BATCH, **shape)
    config = GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=32,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    loader = DataLoader(train, batch_size=BATCH, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    if not args.off:
        optimizer, loader, scheduler = guard_loop(
            accelerator,
            model,
            optimizer,
            loader,
            scheduler,
            run=args.run,
            mode=args.mode,
            epochs=EPOCHS,
        )  # trimtab

    for _ in range(EPOCHS):
        for batch in loader:
            accelerator.backward(loss_of(model, batch))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    model.eval()
    held_out = TextWindows(text.validation, num_samples=1000, **shape)
    with torch.no_grad():
        losses = [loss_of(model, batch) for batch in DataLoader(held_out, batch_size=50)]
    print(f"validation loss {float(torch.stack(losses).mean()):.3f} after {STEPS} steps")


if __name__ == "__main__":
    main()
