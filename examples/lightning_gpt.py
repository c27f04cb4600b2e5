"""Lightning's Trainer with the guard: a tiny GPT on real text, a window of bad data, the recovery.

    python examples/lightning_gpt.py            with the guard: about half a minute on two cores
    python examples/lightning_gpt.py --off      the same script without it

Lines that the guard needs end in `# trimtab`: 2 of them. Run again, it goes on where it was (here:
nothing is left to do); give another `--run` to start anew.
"""

import argparse
import asyncio
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader

from trimtab.integrations.lightning import GuardCallback  # trimtab
from trimtab.lab.config import ModelConfig
from trimtab.lab.corruption import Corruption
from trimtab.lab.data import TextWindows
from trimtab.lab.model import Transformer, next_token_loss
from trimtab.lab.text import load_text

STEPS, BATCH, CONTEXT = 240, 8, 32
# What goes wrong: the 96 samples of steps 140 to 151 are random bytes, as of a truncated shard.
FAULT = Corruption(kind="random", first_sample=139 * BATCH, num_samples=12 * BATCH)


class TinyGpt(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        config = ModelConfig(width=32, num_layers=1, num_heads=2, context_tokens=CONTEXT)
        self.model = Transformer(config)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = next_token_loss(self.model, batch["tokens"])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        self.log("val_loss", next_token_loss(self.model, batch["tokens"]))

    def configure_optimizers(self):  # type: ignore[no-untyped-def]
        optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3)
        warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1, (done + 1) / 20))
        return [optimizer], [{"scheduler": warmup, "interval": "step"}]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--run", default="runs/lightning", help="run directory of the guard")
    options.add_argument("--mode", default="act", choices=("observe", "advise", "act"))
    options.add_argument("--off", action="store_true", help="without trimtab")
    args = options.parse_args()

    seed_everything(0)
    text = load_text(Path(asyncio.__file__).parent)  # a package of the standard library
    shape = {"context_tokens": CONTEXT, "seed": 0}
    train = TextWindows(text.train, num_samples=2 * STEPS * BATCH, corruption=FAULT, **shape)
    validation = TextWindows(text.validation, num_samples=1000, **shape)
    callbacks = [] if args.off else [GuardCallback(args.run, mode=args.mode)]  # trimtab
    trainer = Trainer(
        max_steps=STEPS,
        gradient_clip_val=1.0,
        callbacks=callbacks,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = TinyGpt()
    trainer.fit(module, DataLoader(train, batch_size=BATCH))
    trainer.validate(module, DataLoader(validation, batch_size=50), verbose=False)
    print(f"validation loss {float(trainer.callback_metrics['val_loss']):.3f} after {STEPS} steps")


if __name__ == "__main__":
    main()
