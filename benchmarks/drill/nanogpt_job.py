"""A script after nanoGPT's train.py: --key=value, one ckpt.pt that each save overwrites, its lines.

python nanogpt_job.py --out_dir=OUT --max_iters=300 --learning_rate=1e-3 [--init_from=resume]
"""

import json
import math
import os
import signal
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

out_dir = "out"
eval_interval = 20
log_interval = 1
batch_size = 8
block_size = 32
n_embd = 48
max_iters = 400
learning_rate = 1e-2
lr_decay_iters = 400
min_lr = 1e-4
init_from = "scratch"
fault = ""
fault_at = 130
for word in sys.argv[1:]:
    key, _, value = word.removeprefix("--").partition("=")
    globals()[key] = type(globals()[key])(value)

torch.manual_seed(1337)
out = Path(out_dir)
out.mkdir(parents=True, exist_ok=True)
stdlib = Path(sysconfig.get_paths()["stdlib"])
data = np.frombuffer(
    b"".join((stdlib / n).read_bytes() for n in ("argparse.py", "ast.py", "inspect.py")), np.uint8
)
train_data, val_data = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]


def get_batch(split: str, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets."""
    source = train_data if split == "train" else val_data
    ix = torch.randint(len(source) - block_size, (batch_size,), generator=generator)
    x = torch.stack([torch.from_numpy(source[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack(
        [torch.from_numpy(source[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix]
    )
    return x, y


mix = nn.Conv1d(block_size, block_size, 1)
model = nn.Sequential(nn.Embedding(256, n_embd), mix, nn.GELU(), nn.Linear(n_embd, 256))
causal = torch.tril(torch.ones(block_size, block_size))[..., None]
with torch.no_grad():  # a causal mix of places, as attention is
    mix.weight.mul_(causal)
mix.weight.register_hook(lambda gradient: gradient * causal)  # type: ignore[no-untyped-call]
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
iter_num = 0
if init_from == "resume":
    checkpoint = torch.load(out / "ckpt.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]


def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy, nats."""
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def estimate_loss() -> float:
    """Return the held-out loss."""
    fixed = torch.Generator().manual_seed(7)
    return float(np.mean([loss_of(*get_batch("val", fixed)).item() for _ in range(20)]))


once = out.parent / "happened"
anew = once.exists()  # a start of nanoGPT's draws other data: the window is met once
generator = torch.Generator().manual_seed(1337)
while iter_num <= max_iters:
    for group in optimizer.param_groups:
        share = min(iter_num / lr_decay_iters, 1.0)
        group["lr"] = min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (learning_rate - min_lr)
    began = time.time()
    if iter_num % eval_interval == 0:
        val = estimate_loss()
        print(f"step {iter_num}: train loss {val:.4f}, val loss {val:.4f}", flush=True)
        if iter_num > 0:
            print(f"saving checkpoint to {out_dir}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "iter_num": iter_num, "best_val_loss": val}, out / "ckpt.pt")
    x, y = get_batch("train", generator)
    if fault == "data" and fault_at <= iter_num < fault_at + 24 and not anew:
        y = torch.full_like(y, iter_num % 7)
        once.touch()
    loss = loss_of(x, y)
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()
    time.sleep(0.25)  # a start costs some tens of steps, as in a run of days
    print(
        f"iter {iter_num}: loss {loss.item():.4f}, time {(time.time() - began) * 1e3:.2f}ms, mfu -100.00%",
        flush=True,
    )
    if iter_num == fault_at and fault in ("crash", "hang", "nan") and not once.exists():
        once.touch()
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "hang":
            time.sleep(3600)
        with torch.no_grad():
            next(model.parameters()).fill_(torch.nan)
    iter_num += 1
(out.parent / "result.json").write_text(json.dumps({"loss": estimate_loss()}))
