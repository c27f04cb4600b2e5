"""Hugging Face's Trainer with the guard: a tiny GPT-2, a window of bad data, the recovery.

    python examples/hf_trainer_gpt2.py            with the guard: about half a minute on two cores
    python examples/hf_trainer_gpt2.py --off      the same script without it

Lines that the guard needs end in `# trimtab`: 2 of them, where `Trainer` and its arguments stand
without it. Run again, it goes on where it was (here: nothing is left to do); give another `--out`
to start anew.
"""

import argparse
import asyncio
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from trimtab.integrations.huggingface import GuardedTrainer  # trimtab
from trimtab.lab.corruption import Corruption
from trimtab.lab.data import TextWindows
from trimtab.lab.text import load_text

STEPS, BATCH, CONTEXT = 240, 8, 32
# What goes wrong: the 96 samples of steps 140 to 151 are random bytes, as of a truncated shard.
FAULT = Corruption(kind="random", first_sample=139 * BATCH, num_samples=12 * BATCH)


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    tokens = torch.stack([row["tokens"][:CONTEXT] for row in rows])
    return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", default="runs/hf", help="output directory; the guard's is in it")
    options.add_argument("--mode", default="act", choices=("observe", "advise", "act"))
    options.add_argument("--off", action="store_true", help="without trimtab")
    args = options.parse_args()

    torch.manual_seed(0)
    text = load_text(Path(asyncio.__file__).parent)  # a package of the standard library
    shape = {"context_tokens": CONTEXT, "seed": 0}
    train = TextWindows(text.train, num_samples=2 * STEPS * BATCH, corruption=FAULT, **shape)
    held_out = TextWindows(text.validation, num_samples=1000, **shape)
    config = GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=32,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    settings = TrainingArguments(
        output_dir=args.out,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=4e-3,
        warmup_steps=20,
        lr_scheduler_type="constant_with_warmup",
        logging_steps=20,
        save_steps=60,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
    )
    make = (
        Trainer if args.off else lambda **parts: GuardedTrainer(guard=args.mode, **parts)
    )  # trimtab
    trainer = make(
        model=GPT2LMHeadModel(config),
        args=settings,
        train_dataset=train,
        data_collator=collate,
        eval_dataset=held_out,
    )
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    print(f"validation loss {loss:.3f} after {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
