"""A pipeline of two stages with the guard: a tiny GPT, a jump of the rate, the recovery.

    torchrun --standalone --nproc-per-node 2 examples/pipeline_gpt.py          with the guard
    torchrun --standalone --nproc-per-node 2 examples/pipeline_gpt.py --off    without it

Lines that the guard needs end in `# trimtab`: 5 of them. Each rank gives the guard the stage that
it holds; the last one has the loss. `guard.step()` stands for clipping by the norm of the whole
model, the optimizer's and the scheduler's step and `zero_grad`. Run again, it goes on where it was
(here: nothing is left to do); give another `--folder` to start anew.
"""

import argparse
import asyncio
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional
from torch.utils.data import DataLoader

from trimtab.guard import Guard  # trimtab
from trimtab.lab.config import ModelConfig
from trimtab.lab.data import TextWindows
from trimtab.lab.model import Transformer
from trimtab.lab.text import load_text

STEPS, BATCH, CONTEXT = 240, 8, 32


def rate(done: int) -> float:
    """Warm-up, then constant. What goes wrong: from step 140 on it is 300 times as high."""
    return min(1.0, (done + 1) / 20) * (300.0 if done + 1 >= 140 else 1.0)


class Stage(nn.Module):
    """A part of a transformer: the first one embeds, the last one gives the logits."""

    def __init__(self, model: Transformer, index: int, count: int) -> None:
        super().__init__()
        self.embeds, self.ends = index == 0, index == count - 1
        if self.embeds:
            self.tokens, self.positions = model.token_embedding, model.position_embedding
        share = len(model.blocks) // count
        self.blocks = model.blocks[index * share : (index + 1) * share]
        if self.ends:
            self.norm, self.head = model.final_norm, model.lm_head

    def forward(self, x: Tensor) -> Tensor:
        if self.embeds:
            x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.ends else x


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", default="runs/pipeline", help="run directory of the guard")
    options.add_argument("--mode", default="act", choices=("observe", "advise", "act"))
    options.add_argument("--off", action="store_true", help="without trimtab")
    args = options.parse_args()

    dist.init_process_group("gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    text = load_text(Path(asyncio.__file__).parent)  # a package of the standard library
    data = TextWindows(text.train, num_samples=STEPS * BATCH, context_tokens=CONTEXT, seed=0)
    model = Transformer(ModelConfig(width=32, num_layers=2, num_heads=2, context_tokens=CONTEXT))
    stage = Stage(model, rank, count)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    loader = DataLoader(data, batch_size=BATCH)
    placed = PipelineStage(stage, rank, count, torch.device("cpu"))
    schedule = Schedule1F1B(placed, n_microbatches=2, loss_fn=loss_of)

    def forward_and_backward(tokens: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        if stage.embeds:
            schedule.step(tokens[:, :-1])
        else:
            schedule.step(target=tokens[:, 1:], losses=losses)
        return torch.stack(losses).mean().detach() if losses else None

    loss: Tensor | None = None
    if args.off:
        for batch in loader:
            loss = forward_and_backward(batch["tokens"])
            # clips by the norm of this stage alone: the whole one takes a reduction of your own
            nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    else:
        guard = Guard(
            stage,
            optimizer,
            data=loader,
            scheduler=scheduler,
            clip=1.0,
            steps=STEPS,
            run=args.folder,
            mode=args.mode,
        )  # trimtab
        for batch in guard:  # trimtab
            loss = forward_and_backward(batch["tokens"])
            guard.note_loss(loss)  # trimtab
            guard.step()  # trimtab

    if loss is not None:
        print(f"loss {float(loss):.3f} in the last of {STEPS} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
