"""The settings of a scenario: what is trained and what goes wrong. Free of torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trimtab.errors import ConfigError
from trimtab.lab.config import ModelConfig

if TYPE_CHECKING:
    from trimtab.lab.corruption import Corruption
    from trimtab.lab.faults import LrFault, StateFault

__all__ = ["BATCH_SIZE", "Scenario", "healthy_twin", "learning_rate", "training_settings"]

BATCH_SIZE = 16


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
    batch_size: int = BATCH_SIZE
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
    clip_norm: float | None = 1.0
    """Largest norm of the gradient over all parameters, as in GPT-3; None: no clipping."""
    ranks: int = 1
    """Processes that train together, each on its share of every batch."""
    corruption: Corruption | None = None
    """A window of damaged data."""
    lr_fault: LrFault | None = None
    """A wrong learning rate."""
    state_fault: StateFault | None = None
    """Damage to a tensor."""

    def __post_init__(self) -> None:
        if not 0 < self.warmup_steps < self.steps:
            raise ConfigError(
                f"Scenario.warmup_steps is {self.warmup_steps} of {self.steps} steps; "
                "must be at least 1 and leave some for training"
            )
        if self.batch_size < 1:
            raise ConfigError(f"Scenario.batch_size is {self.batch_size}; must be at least 1")
        if self.ranks < 1 or self.batch_size % self.ranks:
            raise ConfigError(
                f"Scenario.ranks is {self.ranks} and batch_size is {self.batch_size}; "
                "choose a number of ranks that divides the batch"
            )

    @property
    def fault_step(self) -> int | None:
        """First step at which anything is wrong; None in a healthy scenario."""
        first_steps = []
        if self.corruption is not None:
            first_steps.append(self.corruption.first_sample // self.batch_size + 1)
        if self.lr_fault is not None:
            first_steps.append(self.lr_fault.first_step)
        if self.state_fault is not None:
            first_steps.append(self.state_fault.step)
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
    factor = 1.0 if fault is None else fault.factor(step)
    return scenario.peak_lr * share * factor


def healthy_twin(scenario: Scenario) -> Scenario:
    """Return the same run with the faults, and only them, taken away."""
    # The same object: runs without a fault share one twin.
    if scenario.fault_step is None:
        return scenario
    return dataclasses.replace(
        scenario,
        title=f"{scenario.title} (healthy twin)",
        expect="untouched",
        corruption=None,
        lr_fault=None,
        state_fault=None,
    )


def training_settings(scenario: Scenario) -> dict[str, object]:
    """Return the settings that decide what a run does: all but its name and description.

    Two scenarios that agree in this are the same run.
    """
    words = ("name", "title", "expect", "expected_minutes")
    settings = dataclasses.asdict(scenario)
    return {name: value for name, value in settings.items() if name not in words}
