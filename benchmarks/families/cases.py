"""What goes wrong in a family, and what changes without anything being wrong: a table of data.

A fault has a twin, the same run without it. A harmless change has none: it is judged against the
same run, with the change, without a guard. Damage to a state happens once; a setting that a user's
script changes at a step is changed again whenever that step comes again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

__all__ = ["CASES", "FamilyCase", "FamilyRun"]

Batch = tuple[Tensor, ...]

FAULT_SHARE = 0.55
"""Place of the fault, share of the run: after the steepest fall, with time to recover."""
_WINDOW_STEPS = 20

TEXT = ("lm", "lstm", "moe-lm")
IMAGES = ("cnn-bn", "vit", "vae", "diffusion", "contrastive", "policy")
CLASSES = ("cnn-bn", "vit")
ADAM = ("lm", "lstm", "moe-lm", "vit", "vae", "diffusion", "contrastive", "policy", "dpo")
NORMALIZED = ("cnn-bn", "contrastive")
"""Families with running statistics."""
ALL = (*TEXT, *IMAGES, "dpo")


@dataclass
class FamilyRun:
    """A run that a case may change."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step_of_fault: int
    done: set[str]
    """One-off damage that has been done."""


@dataclass(frozen=True, kw_only=True)
class FamilyCase:
    """One thing that happens to a run."""

    name: str
    families: tuple[str, ...]
    fault: bool
    """False: a harmless change."""
    causes: tuple[str, ...] = ()
    """First causes that count as right."""
    source: str
    """Where it is known from."""
    damage: Callable[[Batch, np.random.Generator], Batch] | None = None
    """Done to a window of samples, or, with `lasting`, to all from the fault on."""
    lasting: bool = False
    rate: Callable[[int, int], float] | None = None
    """Factor on the rate of (step, step of the fault)."""
    once: Callable[[FamilyRun], None] | None = None
    """Done before the step of the fault, the first time only."""
    at: Callable[[FamilyRun], None] | None = None
    """Done before the step of the fault whenever it comes."""
    from_start: Callable[[FamilyRun], None] | None = None
    """Done to the fresh model and optimizer."""
    loss: Callable[[Tensor], Tensor] | None = None
    """Applied to the loss from the fault on."""

    @property
    def from_the_start(self) -> bool:
        """Whether something is other than in the twin from the first step on."""
        return self.from_start is not None or (self.rate is not None and self.rate(1, 2) != 1)

    def window(self, step: int, batch_size: int) -> tuple[int, int]:
        """Return first and last sample id of the damage, the fault being at a step (from 1)."""
        first = (step - 1) * batch_size
        count = 10**9 if self.lasting else _WINDOW_STEPS * batch_size
        return first, first + count - 1


# -- damage to data -------------------------------------------------------------------------


def _noise(batch: Batch, rng: np.random.Generator) -> Batch:
    return tuple(_noise_like(x, rng) for x in batch)


def _noise_like(x: Tensor, rng: np.random.Generator) -> Tensor:
    if x.is_floating_point():
        return torch.from_numpy(rng.normal(0, 3, tuple(x.shape))).float()
    if x.dim() == 1:
        return x
    return torch.from_numpy(rng.integers(0, 256, tuple(x.shape)))


def _wrong_labels(batch: Batch, rng: np.random.Generator) -> Batch:
    return (batch[0], torch.from_numpy(rng.integers(0, 10, len(batch[1]))))


def _turned_pairs(batch: Batch, _: np.random.Generator) -> Batch:
    return (batch[1], batch[0])


def _unscaled(batch: Batch, _: np.random.Generator) -> Batch:
    return (255.0 * batch[0], *batch[1:])


def _nan_inputs(batch: Batch, _: np.random.Generator) -> Batch:
    return (torch.full_like(batch[0], math.nan), *batch[1:])


def _one_sample(batch: Batch, _: np.random.Generator) -> Batch:
    return tuple(x[:1].expand_as(x) for x in batch)


def _inverted(batch: Batch, _: np.random.Generator) -> Batch:
    return (-batch[0], *batch[1:])


def _upper_case(batch: Batch, _: np.random.Generator) -> Batch:
    lower = (batch[0] >= 97) & (batch[0] <= 122)
    return (torch.where(lower, batch[0] - 32, batch[0]), *batch[1:])


def _harder(batch: Batch, rng: np.random.Generator) -> Batch:
    x = batch[0]
    return (x + torch.from_numpy(rng.normal(0, 0.5, tuple(x.shape))).float(), *batch[1:])


# -- damage to a state ----------------------------------------------------------------------


def _matrices(run: FamilyRun) -> list[nn.Parameter]:
    return [p for p in run.model.parameters() if p.requires_grad and p.dim() >= 2]


def _bit(x: Tensor, bit: int) -> None:
    flat = x.detach().view(-1).view(torch.int32)
    flat[len(flat) // 2] ^= 1 << bit


@torch.no_grad()
def _flip_weight(run: FamilyRun) -> None:
    _bit(_matrices(run)[-1], 30)


@torch.no_grad()
def _flip_moment(run: FamilyRun) -> None:
    for p in _matrices(run)[-1:]:
        state = run.optimizer.state[p]
        _bit(state["exp_avg" if "exp_avg" in state else "momentum_buffer"], 30)


@torch.no_grad()
def _lose_second_moment(run: FamilyRun) -> None:
    for state in run.optimizer.state.values():
        state["exp_avg_sq"].zero_()


@torch.no_grad()
def _scale_matrix(run: FamilyRun) -> None:
    _matrices(run)[len(_matrices(run)) // 2].mul_(30.0)


@torch.no_grad()
def _nan_weight(run: FamilyRun) -> None:
    _matrices(run)[0].view(-1)[0] = math.nan


@torch.no_grad()
def _lose_layer(run: FamilyRun) -> None:
    weight = _matrices(run)[len(_matrices(run)) // 2]
    weight.normal_(0, 0.5)


@torch.no_grad()
def _spoil_statistics(run: FamilyRun) -> None:
    for module in run.model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_var is not None
            module.running_var.mul_(400.0)
            module.momentum = 0.001  # heals no faster than a wrong setting would let it


# -- settings -------------------------------------------------------------------------------


def _set(**values: float) -> Callable[[FamilyRun], None]:
    def change(run: FamilyRun) -> None:
        for group in run.optimizer.param_groups:
            group.update(values)

    return change


def _times(name: str, factor: float) -> Callable[[FamilyRun], None]:
    def change(run: FamilyRun) -> None:
        for group in run.optimizer.param_groups:
            group[name] *= factor

    return change


def _slow_momentum(run: FamilyRun) -> None:
    for group in run.optimizer.param_groups:
        if "betas" in group:
            group["betas"] = (0.999, group["betas"][1])
        else:
            group["momentum"] = 0.999


def _dropout(share: float) -> Callable[[FamilyRun], None]:
    def change(run: FamilyRun) -> None:
        for module in run.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = share

    return change


def _freeze_most(run: FamilyRun) -> None:
    for p in list(run.model.parameters())[:-2]:
        p.requires_grad = False


def _freeze_half(run: FamilyRun) -> None:
    ps = list(run.model.parameters())
    for p in ps[: len(ps) // 2]:
        p.requires_grad = False


def _unfreeze(run: FamilyRun) -> None:
    for p in run.model.parameters():
        p.requires_grad = True


# -- rates ----------------------------------------------------------------------------------


def _from_fault(factor: float) -> Callable[[int, int], float]:
    return lambda step, at: factor if step >= at else 1.0


def _ramp(step: int, at: int) -> float:
    return float(min(1.03 ** max(step - at, 0), 300.0))


def _restart(step: int, at: int) -> float:
    """A cosine restart: back up to near the peak, then down as before."""
    return 1.0 if step < at else min(1 + (step - at) / 10, 2.5) if step < at + 60 else 1.5


FAULTS = (
    FamilyCase(
        name="data-noise", families=ALL, fault=True, damage=_noise, causes=("bad-data-window",),
        source="PaLM section 5.1: batches skipped; OPT logbook",
    ),
    FamilyCase(
        name="data-labels", families=CLASSES, fault=True, damage=_wrong_labels,
        causes=("bad-data-window",), source="label shift by a join that went wrong",
    ),
    FamilyCase(
        name="data-pairs-turned", families=("dpo",), fault=True, damage=_turned_pairs,
        causes=("bad-data-window",), source="chosen and rejected exchanged, TRL issues",
    ),
    FamilyCase(
        name="data-unscaled", families=IMAGES, fault=True, damage=_unscaled,
        causes=("bad-data-window", "input-or-network"), source="images in 0-255 for 0-1",
    ),
    FamilyCase(
        name="data-unscaled-for-good", families=("vit", "cnn-bn"), fault=True, damage=_unscaled,
        lasting=True, causes=("bad-data-window", "input-or-network", "code-or-resume-change"),
        source="a loader without its transform after a restart",
    ),
    FamilyCase(
        name="data-nan", families=("vit", "vae", "diffusion"), fault=True, damage=_nan_inputs,
        causes=("bad-data-window", "input-or-network"), source="division by zero in a transform",
    ),
    FamilyCase(
        name="data-one-sample", families=("lm", "lstm", "vit", "vae"), fault=True,
        damage=_one_sample, causes=("bad-data-window", "repeated-data"),
        source="a shard that repeats one document",
    ),
    FamilyCase(
        name="weight-bit", families=("lm", "lstm", "vit", "vae", "dpo"), fault=True,
        once=_flip_weight,
        causes=("hardware-fault", "happened-once", "poisoned-optimizer-state"),
        source="silent data corruption: Meta, Llama 3 section 3.3.4",
    ),
    FamilyCase(
        name="moment-bit", families=("lm", "moe-lm", "vit", "cnn-bn", "policy"), fault=True,
        once=_flip_moment,
        causes=("hardware-fault", "happened-once", "poisoned-optimizer-state"),
        source="silent data corruption in optimizer state",
    ),
    FamilyCase(
        name="second-moment-lost", families=ADAM, fault=True, once=_lose_second_moment,
        causes=(  # done once, as the damage above: the replay goes well
            "poisoned-optimizer-state", "hardware-fault", "code-or-resume-change", "happened-once",
        ),
        source="a resume that loads half of the optimizer",
    ),
    FamilyCase(
        name="matrix-scaled", families=("lm", "vit", "diffusion", "contrastive"), fault=True,
        once=_scale_matrix,
        causes=("hardware-fault", "happened-once", "poisoned-optimizer-state"),
        source="a shard written with another scale",
    ),
    FamilyCase(
        name="weight-nan", families=("lm", "cnn-bn", "vae", "policy"), fault=True,
        once=_nan_weight,
        causes=("hardware-fault", "happened-once", "poisoned-optimizer-state"),
        source="NaN on one device, OPT and BLOOM logbooks",
    ),
    FamilyCase(
        name="layer-lost", families=("lm", "moe-lm", "vit", "cnn-bn"), fault=True,
        once=_lose_layer,
        causes=(
            "hardware-fault", "happened-once", "poisoned-optimizer-state", "code-or-resume-change",
        ),
        source="a tensor-parallel rank out of step",
    ),
    FamilyCase(
        name="statistics-spoiled", families=NORMALIZED, fault=True, once=_spoil_statistics,
        causes=(  # the momentum of the statistics is changed as well
            "hardware-fault", "poisoned-optimizer-state", "code-or-resume-change",
            "setting-changed",
        ),
        source="running statistics of BatchNorm after one bad batch",
    ),
    FamilyCase(
        name="rate-x10", families=ALL, fault=True, rate=_from_fault(10.0),
        causes=("learning-rate-jump", "learning-rate-too-high"), source="schedules after a resume",
    ),
    FamilyCase(
        name="rate-x30", families=("lm", "lstm", "vit", "vae", "diffusion", "dpo"), fault=True,
        rate=_from_fault(30.0), causes=("learning-rate-jump", "learning-rate-too-high"),
        source="schedules after a resume",
    ),
    FamilyCase(
        name="rate-ramp", families=("lm", "moe-lm", "vit", "cnn-bn"), fault=True, rate=_ramp,
        causes=("learning-rate-jump", "learning-rate-too-high"), source="a schedule without an end",
    ),
    FamilyCase(
        name="rate-x30-from-start", families=("lm", "vit", "vae"), fault=True,
        rate=lambda _step, _at: 30.0, causes=("learning-rate-too-high", "warm-up-end"),
        source="a rate of another optimizer's recipe",
    ),
    FamilyCase(
        name="weight-decay-x1000", families=("lm", "vit", "diffusion", "contrastive"), fault=True,
        at=_times("weight_decay", 1000.0), causes=("code-or-resume-change", "setting-changed"),
        source="a unit of another recipe after a resume",
    ),
    FamilyCase(
        name="momentum-0.999", families=("lm", "cnn-bn", "vit"), fault=True, at=_slow_momentum,
        causes=("code-or-resume-change", "setting-changed", "learning-rate-too-high"),
        source="betas given in the wrong order",
    ),
    FamilyCase(
        name="loss-summed", families=("cnn-bn", "lm", "policy"), fault=True,
        loss=lambda x: 16 * x,
        causes=("code-or-resume-change", "setting-changed", "learning-rate-jump"),
        source="reduction='sum' after a change of code; transformers gradient accumulation, 2024",
    ),
    FamilyCase(
        name="dropout-0.9", families=("lm", "vit", "cnn-bn"), fault=True, at=_dropout(0.9),
        causes=("code-or-resume-change", "setting-changed"), source="a default of a new version",
    ),
    FamilyCase(
        name="frozen", families=("lm", "vit", "cnn-bn"), fault=True, at=_freeze_most,
        causes=("code-or-resume-change", "setting-changed", "not-wired", "updates-too-small"),
        source="requires_grad left off after an evaluation",
    ),
    FamilyCase(
        name="sign-turned", families=("vit", "diffusion", "lstm"), fault=True,
        loss=lambda x: -x,
        causes=("code-or-resume-change", "setting-changed", "learning-rate-too-high"),
        source="reward for loss, a change of code",
    ),
)  # fmt: skip

CHANGES = (
    FamilyCase(name="nothing", families=ALL, fault=False, source="the run as it is"),
    FamilyCase(
        name="rate-drop", families=ALL, fault=False, rate=_from_fault(0.1),
        source="step decay of vision recipes",
    ),
    FamilyCase(
        name="warm-restart", families=ALL, fault=False, rate=_restart, source="SGDR, 1608.03983"
    ),
    FamilyCase(
        name="unfreezing", families=("lm", "vit", "cnn-bn", "lstm"), fault=False,
        from_start=_freeze_half, at=_unfreeze, source="ULMFiT: gradual unfreezing",
    ),
    FamilyCase(
        name="mix-upper-case", families=(*TEXT,), fault=False, damage=_upper_case, lasting=True,
        source="a switch of the data mix; OLMo 2, two stages",
    ),
    FamilyCase(
        name="mix-inverted", families=("vit", "cnn-bn", "vae", "diffusion"), fault=False,
        damage=_inverted, lasting=True, source="a switch of the data set",
    ),
    FamilyCase(
        name="harder-data", families=IMAGES, fault=False, damage=_harder, lasting=True,
        source="curricula and stronger augmentation",
    ),
    FamilyCase(
        name="loss-offset", families=ALL, fault=False, loss=lambda x: x + 0.7,
        source="a regularizer that is constant in the weights; label smoothing",
    ),
    FamilyCase(
        name="loss-scaled", families=ADAM, fault=False, loss=lambda x: 2 * x,
        source="a weight on the loss that Adam does not see",
    ),
    FamilyCase(
        name="dropout-0.1", families=("lm", "vit", "moe-lm"), fault=False, at=_dropout(0.1),
        source="regularization switched on late",
    ),
    FamilyCase(
        name="weight-decay-x3", families=ADAM, fault=False, at=_times("weight_decay", 3.0),
        source="schedules of the weight decay",
    ),
)  # fmt: skip

CASES = {c.name: c for c in (*FAULTS, *CHANGES)}
"""All by name."""
