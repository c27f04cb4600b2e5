"""The scenarios: what is trained, and what goes wrong in it. No torch here: they can be listed."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal

from trimtab.errors import ConfigError
from trimtab.lab.config import ModelConfig
from trimtab.lab.corruption import Corruption

__all__ = ["SCENARIOS", "LrFault", "Scenario", "get_scenario", "healthy_twin", "learning_rate"]

_BATCH_SIZE = 16


@dataclass(frozen=True, kw_only=True)
class LrFault:
    """A learning rate that is wrong from some step on and stays so, on the same schedule."""

    first_step: int
    """First step with the wrong rate; steps count from 1."""
    multiplier: float
    """Wrong rate over the sound one."""

    def __post_init__(self) -> None:
        if self.first_step < 1:
            raise ConfigError(f"LrFault.first_step is {self.first_step}; steps count from 1")
        if not self.multiplier > 0.0:
            raise ConfigError(f"LrFault.multiplier is {self.multiplier}; must be above 0")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A training run to be reproduced: model, optimiser, schedule and at most a fault or two.

    Step s, counted from 1, trains on samples (s - 1) * batch_size up to s * batch_size.
    """

    name: str
    """Short name, as typed."""
    title: str
    """What happens in it, in one line."""
    expect: Literal["recovers", "untouched"]
    """What a good guard makes of it: the fault is undone, or the run is left alone."""
    expected_minutes: float
    """Wall time of the run and its healthy twin on 2 CPU cores, measured."""
    steps: int = 1200
    """Optimizer steps."""
    batch_size: int = _BATCH_SIZE
    """Samples per step."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Shape of the model."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast type; fp16 brings a loss scaler. fp32 is fastest where the CPU has no bf16 units."""
    peak_lr: float = 6e-3
    """Learning rate after warm-up; chosen on seeds 0-3 of the default text."""
    warmup_steps: int = 100
    """Steps of linear warm-up from 0."""
    final_lr_share: float = 0.1
    """Learning rate at the last step over the peak; cosine in between."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates, as in GPT-3."""
    weight_decay: float = 0.1
    """AdamW's weight decay, of matrices only, as in GPT-3."""
    clip_norm: float = 1.0
    """Largest norm of the gradient over all parameters, as in GPT-3."""
    corruption: Corruption | None = None
    """A window of damaged data."""
    lr_fault: LrFault | None = None
    """A wrong learning rate."""

    def __post_init__(self) -> None:
        if not 0 < self.warmup_steps < self.steps:
            raise ConfigError(
                f"Scenario.warmup_steps is {self.warmup_steps} of {self.steps} steps; "
                "must be at least 1 and leave some for training"
            )
        if self.batch_size < 1:
            raise ConfigError(f"Scenario.batch_size is {self.batch_size}; must be at least 1")

    @property
    def fault_step(self) -> int | None:
        """First step at which anything is wrong; None in a healthy scenario."""
        first_steps = []
        if self.corruption is not None:
            first_steps.append(self.corruption.first_sample // self.batch_size + 1)
        if self.lr_fault is not None:
            first_steps.append(self.lr_fault.first_step)
        return min(first_steps, default=None)


def learning_rate(scenario: Scenario, step: int) -> float:
    """Return the learning rate that the scenario's schedule gives at a step, its fault included.

    Linear warm-up to `peak_lr`, then a cosine down to `final_lr_share` of it at the last step.

    Args:
        scenario: The run.
        step: Optimizer step, counted from 1; after the last step the rate stays.
    """
    if step <= scenario.warmup_steps:
        share = step / scenario.warmup_steps
    else:
        done = (step - scenario.warmup_steps) / (scenario.steps - scenario.warmup_steps)
        cosine = 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))
        share = scenario.final_lr_share + (1.0 - scenario.final_lr_share) * cosine
    fault = scenario.lr_fault
    multiplier = fault.multiplier if fault is not None and step >= fault.first_step else 1.0
    return scenario.peak_lr * share * multiplier


def healthy_twin(scenario: Scenario) -> Scenario:
    """Return the same run with the faults, and only them, taken away."""
    if scenario.corruption is None and scenario.lr_fault is None:
        return scenario
    return dataclasses.replace(
        scenario,
        title=f"{scenario.title} (healthy twin)",
        expect="untouched",
        corruption=None,
        lr_fault=None,
    )


def get_scenario(name: str) -> Scenario:
    """Return the scenario of that name.

    Raises:
        ConfigError: There is none.
    """
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    names = ", ".join(scenario.name for scenario in SCENARIOS)
    raise ConfigError(f"there is no scenario {name!r}; choose one of {names}")


def _bad_steps(kind: Literal["random", "shuffle"], *, first: int, count: int) -> Corruption:
    """Return a corruption of all samples of `count` steps from step `first` on."""
    return Corruption(
        kind=kind, first_sample=(first - 1) * _BATCH_SIZE, num_samples=count * _BATCH_SIZE
    )


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="healthy",
        title="Nothing goes wrong; the guard must leave the run alone",
        expect="untouched",
        expected_minutes=1.0,
    ),
    Scenario(
        name="bad-data-late",
        title="50 steps of random bytes late in the run",
        expect="recovers",
        expected_minutes=1.0,
        corruption=_bad_steps("random", first=1100, count=50),
    ),
    Scenario(
        name="bad-data-shuffle",
        title="40 steps of shuffled bytes late in the run, the least visible corruption",
        expect="recovers",
        expected_minutes=1.0,
        corruption=_bad_steps("shuffle", first=1100, count=40),
    ),
    Scenario(
        name="lr-after-warmup",
        title="A learning rate 20 times too high sets in after a healthy warm-up and stays",
        expect="recovers",
        expected_minutes=1.0,
        lr_fault=LrFault(first_step=300, multiplier=20.0),
    ),
)
