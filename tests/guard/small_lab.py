"""The lab at a size that runs in seconds: a small transformer, a planted fault, a guard."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.guard.inner import inner
from tests.guard.tiny import DEVICE
from trimtab.guard import Guard
from trimtab.lab.config import ModelConfig
from trimtab.lab.corruption import Corruption
from trimtab.lab.scenarios import LrFault, Scenario
from trimtab.lab.text import Text, split_text
from trimtab.lab.train import Parts, build, evaluate, forward, train
from trimtab.plan.policy import Policy

STEPS = 360
BATCH = 8

SOUND = Scenario(
    name="small",
    title="Nothing goes wrong",
    expect="untouched",
    expected_minutes=1.0,
    steps=STEPS,
    warmup_steps=20,
    batch_size=BATCH,
    peak_lr=4e-3,
    model=ModelConfig(width=32, num_layers=1, num_heads=2, context_tokens=32),
)


def bad_data(first: int, count: int) -> Scenario:
    """Random bytes in `count` steps from step `first` on."""
    window = Corruption(kind="random", first_sample=(first - 1) * BATCH, num_samples=count * BATCH)
    return dataclasses.replace(SOUND, expect="recovers", corruption=window)


def bad_lr(first: int, multiplier: float) -> Scenario:
    return dataclasses.replace(
        SOUND, expect="recovers", lr_fault=LrFault(first_step=first, multiplier=multiplier)
    )


def make_text() -> Text:
    words = np.random.default_rng(0).choice(
        [b"loss ", b"spike ", b"step ", b"rate\n", b"norm, "], 60_000
    )
    return split_text({"words": b"".join(words.tolist())}, source="words")


@dataclasses.dataclass
class Outcome:
    """What came of a guarded run."""

    guard: Guard
    losses: list[float]
    """Of every step that was run, trials included; probed batches not."""
    validation: float
    parts: Parts
    fed: list[tuple[int, int, str]]
    """First and last sample id of every batch, with the phase it was fed in."""


def plain(scenario: Scenario, text: Text, seed: int = 0) -> tuple[list[float], float]:
    parts = build(scenario, seed, text, device=DEVICE)
    losses = train(parts)
    return losses, evaluate(parts.model, text, max_bytes=32 * 1024)


def guarded(
    scenario: Scenario,
    text: Text,
    run: Path,
    *,
    mode: str = "act",
    seed: int = 0,
    spoil: Callable[[Guard, Tensor], Tensor] | None = None,
    limit: int = 5000,
    prepare: Callable[[Parts], None] | None = None,
    **policy: Any,
) -> Outcome:
    """Run a scenario under a guard.

    Args:
        scenario: What to train.
        text: On what.
        run: Run directory.
        mode: The guard's.
        seed: Of weights and data.
        spoil: Changes the loss before the backward pass.
        prepare: Called with the parts before the guard is made.
        limit: Batches after which the run counts as one that does not end.
        policy: Settings of the policy.
    """
    parts = build(scenario, seed, text, device=DEVICE)
    if prepare is not None:
        prepare(parts)
    settings = {
        "checkpoint_in_background": False,
        "checkpoint_every_steps": 60,
        "snapshot_every_steps": 10,
        "act_uncertified": True,
        **policy,
    }
    guard = Guard(
        parts.model,
        parts.optimizer,
        data=parts.loader,
        scheduler=parts.scheduler,
        scaler=parts.scaler,
        clip=scenario.clip_norm,
        steps=scenario.steps,
        run=run,
        mode=mode,  # type: ignore[arg-type]
        policy=Policy(**settings),
        say=lambda _line: None,
    )
    losses: list[float] = []
    fed: list[tuple[int, int, str]] = []
    for number, batch in enumerate(guard):
        assert number < limit, "the run does not end"
        assert inner(guard).fed
        fed.append((inner(guard).fed[0].first, inner(guard).fed[-1].last, guard.phase))
        loss = forward(parts, batch)
        if spoil is not None:
            loss = spoil(guard, loss)
        probing = guard.phase == "probe"
        guard.backward(loss)
        guard.step()
        if not probing:
            losses.append(float(loss.detach()))
    torch.manual_seed(0)
    finite = all(bool(p.isfinite().all()) for p in parts.model.parameters())
    validation = evaluate(parts.model, text, max_bytes=32 * 1024) if finite else math.nan
    return Outcome(guard, losses, validation, parts, fed)
