"""DeepSpeed's engine as its getting-started page uses it: load_dir, ckpt_id, save_dir, a step a line.

    python deepspeed_job.py --save_dir OUT --lr 3e-3 [--load_dir OUT --ckpt_id global_step120]

Runs on the CPU with gloo, ZeRO 1, one rank. It wants deepspeed where Python finds it.
"""

import argparse
import json
import os
import signal
import sysconfig
import time
from pathlib import Path

import deepspeed
import numpy as np
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

CONTEXT, BATCH, WINDOW = 32, 8, 24


def main() -> None:
    """Train as the page says, and write the held-out loss down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--save_dir", type=Path, required=True)
    parser.add_argument("--load_dir", type=Path)
    parser.add_argument("--ckpt_id")
    parser.add_argument("--save_interval", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", default="")
    parser.add_argument("--fault_at", type=int, default=130)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)
    torch.manual_seed(0)
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    net = nn.Sequential(
        nn.Embedding(256, 48),
        nn.Flatten(),
        nn.Linear(48 * CONTEXT, 96),
        nn.GELU(),
        nn.Linear(96, 256),
    )
    engine, _, _, _ = deepspeed.initialize(
        model=net,
        model_parameters=net.parameters(),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "optimizer": {"type": "AdamW", "params": {"lr": args.lr, "torch_adam": True}},
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10,
        },
    )
    step = 0
    if args.load_dir is not None:
        _, client_sd = engine.load_checkpoint(str(args.load_dir), args.ckpt_id)
        step = client_sd["step"]
        if step:  # the schedule of the script, as it is given now
            for group in engine.optimizer.param_groups:
                group["lr"] = args.lr
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join((folder / n).read_bytes() for n in ("argparse.py", "ast.py", "inspect.py"))
    data = np.frombuffer(text, np.uint8)
    cut = int(0.9 * len(data))
    once = args.save_dir.parent / "happened"

    def batch(part: np.ndarray, rng: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
        at = rng.integers(0, len(part) - CONTEXT - 1, size)
        rows = np.stack([part[i : i + CONTEXT + 1] for i in at]).astype(np.int64)
        return torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, -1])

    while step < args.steps:
        began = time.monotonic()
        x, y = batch(data[:cut], np.random.default_rng([args.seed, step]), BATCH)
        if args.fault == "data" and args.seed == 1 and 0 <= step - args.fault_at < WINDOW:
            y = torch.full_like(y, step % 7)
        loss = nn.functional.cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        step += 1
        time.sleep(0.25)  # a start costs some tens of steps, as in a run of days
        print(
            f"step: {step} loss: {loss.item():.4f} time: {time.monotonic() - began:.3f}", flush=True
        )
        if step % args.save_interval == 0:
            engine.save_checkpoint(
                str(args.save_dir), f"global_step{step}", client_state={"step": step}
            )
        if step == args.fault_at and args.fault in ("crash", "hang", "nan") and not once.exists():
            once.touch()
            if args.fault == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            elif args.fault == "hang":
                time.sleep(3600)
            with torch.no_grad():
                for parameter in engine.optimizer.param_groups[0]["params"]:
                    parameter.fill_(torch.nan)
    with torch.no_grad():
        x, y = batch(data[cut:], np.random.default_rng(9), 1024)
        loss = nn.functional.cross_entropy(engine.module(x), y)
    (args.save_dir.parent / "result.json").write_text(json.dumps({"loss": loss.item()}))


if __name__ == "__main__":
    main()
