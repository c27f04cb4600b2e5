"""A tiny GPT on real text under a DeepSpeed engine on the CPU, alone or on several ranks, over
gloo.

Each rank writes the losses of its steps to `folder/TAG-RANK.txt`, bit for bit, and its end to a
`.pt`.
"""

import asyncio
import dataclasses
import logging
import math
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from tests.guard.small_lab import SOUND, bad_data, bad_lr
from trimtab.lab.model import next_token_loss
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import Text, load_text
from trimtab.lab.train import build, evaluate
from trimtab.plan.policy import Mode, Policy

STEPS = 240
HEALTHY = dataclasses.replace(SOUND, steps=STEPS)
BAD_DATA = dataclasses.replace(bad_data(140, 12), steps=STEPS)
BAD_LR = dataclasses.replace(bad_lr(140, 300.0), steps=STEPS)


@dataclasses.dataclass(frozen=True)
class Job:
    """What every rank does."""

    scenario: Scenario = HEALTHY
    tag: str = "out"
    mode: Mode | None = "act"
    """None: no guard, the plain script."""
    stage: int = 0
    precision: str = "fp32"
    accumulate: int = 1
    nan_at: int | None = None
    """Step in which the last rank alone has a gradient of NaN, and a loss that is finite."""
    kill_at: int | None = None
    """Step after which rank 0 is killed with SIGKILL."""
    tags_every: int | None = None
    """Steps between the engine's own checkpoints in `folder/tags`, each once; None: none."""
    tags_until: int = STEPS
    load_tag: str | None = None
    """A tag of these to go on from."""
    evaluate_at: int | None = None
    """Step after which the model is only run, and the guard then told to save."""
    policy: dict[str, Any] = dataclasses.field(default_factory=dict)


def config_of(job: Job) -> dict[str, Any]:
    """What DeepSpeed is set to do."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": job.accumulate,
        "gradient_clipping": 1.0,
        "steps_per_print": None,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": job.stage, "stage3_param_persistence_threshold": 500},
    }
    if job.precision != "fp32":
        config[job.precision] = {"enabled": True}
    return config


def work(rank: int, world: int, store: str, folder: Path, job: Job) -> None:
    """One rank of a job."""
    engine, loader, text = start(rank, world, store, job)
    guard = None
    loaded = None
    if job.load_tag is not None:
        loaded, _ = engine.load_checkpoint(str(folder / "tags"), job.load_tag)
    batches: Any = loader
    if job.mode is not None:
        from trimtab.integrations.deepspeed import DeepSpeedGuard

        policy: dict[str, Any] = {
            "checkpoint_in_background": False,
            "checkpoint_every_steps": 50,
            "snapshot_every_steps": 10,
            "healing_steps": 0,
            **job.policy,
        }
        batches = guard = DeepSpeedGuard(
            engine,
            data=loader,
            steps=job.scenario.steps,
            run=folder / "run",
            mode=job.mode,
            policy=Policy(**policy),
            loaded=loaded,
            say=lambda _line: None,
        )
    tagged = engine.global_steps
    with (folder / f"{job.tag}-{rank}.txt").open("a", encoding="utf-8") as losses:
        for batch in batches:
            step = engine.global_steps + 1
            loss = next_token_loss(engine, batch["tokens"])
            calm = guard is None or guard.phase == "calm"
            if calm and rank == world - 1 and step == job.nan_at:
                loss.register_hook(_spoil)  # type: ignore[no-untyped-call]
            engine.backward(loss)
            engine.step()
            losses.write(f"{step} {float(loss.detach()).hex()}\n")
            losses.flush()
            now = engine.global_steps
            if job.tags_every and now % job.tags_every == 0 and tagged < now <= job.tags_until:
                engine.save_checkpoint(str(folder / "tags"))
                tagged = now
            if now == job.evaluate_at:
                _evaluate(engine, batch, guard)
            if rank == 0 and now == job.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if guard is None and now >= job.scenario.steps:
                break
    weights = weights_of(engine)
    out = {
        "validation": _validation(weights, job, text),
        "weights": weights,
        "actions": [] if guard is None else [str(a["remedy"]) for a in guard.actions],
        "skips": [] if guard is None else list(guard.skipped_samples),
        "skipped_steps": engine.skipped_steps,
        "lr": [float(x) for x in engine.get_lr()],
    }
    torch.save(out, folder / f"{job.tag}-{rank}.pt")
    dist.destroy_process_group()


def start(rank: int, world: int, store: str, job: Job) -> tuple[Any, DataLoader[Any], Text]:
    """Join the ranks; return an engine, its data and the text."""
    torch.set_num_threads(1)
    deepspeed = import_deepspeed()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    text = load_text(Path(asyncio.__file__).parent)
    parts = build(job.scenario, 0, text)
    # shuffle=False: the samples keep their order, so that a window of them stays one
    sampler: Any = DistributedSampler(parts.loader.dataset, world, rank, shuffle=False)
    size = job.scenario.batch_size // world // job.accumulate
    loader: DataLoader[Any] = DataLoader(parts.loader.dataset, batch_size=size, sampler=sampler)
    engine, *_ = deepspeed.initialize(
        model=parts.model,
        optimizer=parts.optimizer,
        lr_scheduler=parts.scheduler,
        config=config_of(job),
    )
    return engine, loader, text


def import_deepspeed() -> Any:
    """DeepSpeed for the CPU, without the shared-memory op that it would compile: gloo does."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed


def _spoil(grad: Tensor) -> Tensor:
    return grad * math.nan


def _evaluate(engine: Any, batch: Any, guard: Any) -> None:
    with torch.no_grad():
        next_token_loss(engine, batch["tokens"])
    if guard is not None:
        guard.checkpoint()


def weights_of(engine: Any) -> dict[str, Tensor]:
    """The whole weights, in fp32; all ranks must call."""
    import deepspeed

    parameters = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(
        parameters, enabled=engine.zero_optimization_stage() == 3
    ):
        return {k: v.detach().float().clone() for k, v in engine.module.state_dict().items()}


def _validation(weights: dict[str, Tensor], job: Job, text: Text) -> float:
    if not all(bool(w.isfinite().all()) for w in weights.values()):
        return math.nan
    model = build(HEALTHY, 0, text).model
    model.load_state_dict(weights)
    return evaluate(model, text, max_bytes=16 * 1024)


def losses_of(folder: Path, tag: str, rank: int = 0) -> dict[int, str]:
    """Loss of each step, the last one where a step was done twice."""
    return {step: losses[-1] for step, losses in all_losses_of(folder, tag, rank).items()}


def all_losses_of(folder: Path, tag: str, rank: int = 0) -> dict[int, list[str]]:
    """Losses of each step, as often as it was done."""
    found: dict[int, list[str]] = {}
    for line in (folder / f"{tag}-{rank}.txt").read_text(encoding="utf-8").splitlines():
        step, loss = line.split()
        found.setdefault(int(step), []).append(loss)
    return found
