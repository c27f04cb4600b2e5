"""Trains one case in one family, with and without the guard, and measures what came of it."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.families.cases import FAULT_SHARE, FamilyCase, FamilyRun
from benchmarks.families.data import Damage, Samples, loader_of
from trimtab.guard import Guard

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.families.models import Family

__all__ = ["FamilyOutcome", "train_case"]

Mode = Literal["off", "observe", "act"]


@dataclass(frozen=True)
class FamilyOutcome:
    """What a run came to."""

    loss: float
    """Held-out loss at the end; NaN where it is not finite."""
    start: float
    """The same before the first step."""
    wasted: float = 0.0
    """Steps off the final lineage, share of the steps."""
    actions: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    """First cause of each incident that was explained and not opened before the fault."""
    alarmed: bool = False
    stopped: bool = False
    seconds: float = 0.0


def train_case(
    family: Family, case: FamilyCase | None, seed: int, mode: Mode, folder: Path
) -> FamilyOutcome:
    """Train a family with one case, or without any, and return what came of it.

    Args:
        family: What to train.
        case: What happens to it; None: nothing.
        seed: Of weights, data and damage.
        mode: off: a plain loop.
        folder: FamilyRun directory; removed when the run is over.
    """
    began = time.perf_counter()
    torch.manual_seed(seed)
    built = family.build()
    model, optimizer = built.model, _optimizer(family, built.model)
    # the place moves with the seed, so that no rule fits one step
    at = int(family.steps * (FAULT_SHARE + 0.02 * (seed % 5)))
    run = FamilyRun(model, optimizer, at, set())
    if case is not None and case.from_start is not None:
        case.from_start(run)
    damage = None
    if case is not None and case.damage is not None:
        damage = Damage(*case.window(at, family.batch_size), case.damage)
    samples = Samples(
        built.rows,
        built.num_rows,
        num_samples=2 * family.steps * family.batch_size,
        seed=seed,
        damage=damage,
    )
    scheduler = LambdaLR(optimizer, lambda done: _rate(family, case, done + 1, at))
    loader = loader_of(samples, family.batch_size)
    start = built.validate(model)
    model.train()
    if mode == "off":
        for step, batch in zip(range(1, family.steps + 1), loader, strict=False):
            _before(case, run, step)
            optimizer.zero_grad(set_to_none=True)
            loss = _loss_of(case, built.loss(model, tuple(batch)), step, at)
            loss.backward()  # type: ignore[no-untyped-call]
            if family.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), family.clip)
            optimizer.step()
            scheduler.step()
        return FamilyOutcome(
            _final(built.validate(model)), start, seconds=time.perf_counter() - began
        )
    shutil.rmtree(folder, ignore_errors=True)
    guard = Guard(
        model,
        optimizer,
        scheduler=scheduler,
        data=loader,
        run=folder,
        mode=mode,
        clip=family.clip,
        steps=family.steps,
        say=lambda _: None,
    )
    stopped = False
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            for batch in guard:
                step = guard.step_number + 1
                if guard.phase != "probe":
                    _before(case, run, step)
                loss = _loss_of(case, built.loss(model, tuple(batch)), step, at)
                guard.backward(loss)
                guard.step()
        except SystemExit:
            stopped = True
        first = 0 if case is None or case.from_the_start else at
        causes, alarmed = _read_journal(folder / "journal.jsonl", first)
        return FamilyOutcome(
            _final(built.validate(model)),
            start,
            wasted=guard.wasted_steps,
            actions=tuple(str(a.get("remedy")) for a in guard.actions),
            causes=causes,
            alarmed=alarmed,
            stopped=stopped,
            seconds=time.perf_counter() - began,
        )


def _optimizer(family: Family, model: torch.nn.Module) -> torch.optim.Optimizer:
    if family.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), family.lr, momentum=0.9, weight_decay=5e-4)
    return torch.optim.AdamW(
        model.parameters(), family.lr, betas=(0.9, 0.95), weight_decay=family.weight_decay
    )


def _rate(family: Family, case: FamilyCase | None, step: int, at: int) -> float:
    share = min(step / family.warmup_steps, 1.0)
    share *= 0.55 + 0.45 * math.cos(math.pi * min(step / family.steps, 1.0))
    return share * (case.rate(step, at) if case is not None and case.rate is not None else 1.0)


def _before(case: FamilyCase | None, run: FamilyRun, step: int) -> None:
    if case is None or step != run.step_of_fault:
        return
    if case.at is not None:
        case.at(run)
    if case.once is not None and case.name not in run.done:
        run.done.add(case.name)
        case.once(run)


def _loss_of(case: FamilyCase | None, loss: torch.Tensor, step: int, at: int) -> torch.Tensor:
    return case.loss(loss) if case is not None and case.loss is not None and step >= at else loss


def _final(loss: float) -> float:
    return loss if math.isfinite(loss) else math.nan


def _read_journal(path: Path, first: int) -> tuple[tuple[str, ...], bool]:
    """Return the first cause of each incident said from a step on, and whether any was said."""
    causes: dict[object, str] = {}
    said: dict[object, int] = {}
    alarmed = False
    for line in path.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event.get("event") != "incident":
            continue
        onset = event.get("onset")
        if said.setdefault(onset, int(event["step"])) < first:
            continue  # it has nothing to do with the fault
        alarmed = True
        found = event.get("causes") or []
        if found:
            causes[onset] = str(found[0].get("cause"))
    return tuple(causes.values()), alarmed
