"""The table of scenarios. Free of torch, so that they can be listed.

The lab's own are trained for 1200 steps, long enough to look at. Those of the acceptance table are
short and cover each mechanism by which small language models were seen to go wrong; `trimtab lab
accept` runs them. A fault of the rate is what makes a run wrong from its first step: the twin is
the same run at the sound rate, which the guard is never told.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from trimtab.errors import ConfigError
from trimtab.lab.config import ModelConfig
from trimtab.lab.corruption import Corruption
from trimtab.lab.faults import LrFault, StateFault
from trimtab.lab.scenario import (
    BATCH_SIZE,
    Scenario,
    healthy_twin,
    learning_rate,
    training_settings,
)

if TYPE_CHECKING:
    from trimtab.lab.corruption import CorruptionKind

__all__ = [
    "ACCEPTANCE",
    "SCENARIOS",
    "LrFault",
    "Scenario",
    "StateFault",
    "get_scenario",
    "healthy_twin",
    "learning_rate",
    "training_settings",
]


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


def _bad_steps(
    kind: CorruptionKind, *, first: int, count: int, batch_size: int = BATCH_SIZE
) -> Corruption:
    """Return a corruption of all samples of `count` steps from step `first` on."""
    return Corruption(
        kind=kind, first_sample=(first - 1) * batch_size, num_samples=count * batch_size
    )


_SHORT = Scenario(
    name="short",
    title="",
    expect="recovers",
    expected_minutes=0.5,
    steps=300,
    warmup_steps=50,
    batch_size=8,
    peak_lr=1e-2,
)
"""Base of the short scenarios: they differ from it in what they name."""

_CONSTANT = dataclasses.replace(_SHORT, final_lr_share=1.0, steps=400, warmup_steps=100)
"""The rate stays where warm-up brought it, so that a wrong one is not healed by the schedule."""


def _short(name: str, title: str, base: Scenario = _SHORT, **changes: Any) -> Scenario:
    return dataclasses.replace(base, name=name, title=title, **changes)


def _wrong_rate(multiplier: float, *, growth_per_step: float = 0.0) -> LrFault:
    """Return a rate that is wrong from the first step on."""
    return LrFault(first_step=1, multiplier=multiplier, growth_per_step=growth_per_step)


_NO_FINAL_NORM = ModelConfig(final_norm=False)
# Late, since a fault hides in the steep fall of the loss before.
_LATE = 250
"""Step at which the short scenarios' data and tensors go bad."""
_FREQUENT_BYTE = ord("e")

_KINDS: tuple[tuple[CorruptionKind, str], ...] = (
    ("random", "random bytes"),
    ("repeat", "one repeated character"),
    ("shuffle", "shuffled bytes"),
)
_DATA = tuple(
    _short(
        f"data-{kind}",
        f"20 steps of {what} late in the run",
        corruption=_bad_steps(kind, first=_LATE, count=20, batch_size=_SHORT.batch_size),
    )
    for kind, what in _KINDS
)
_RATES = (
    _short(
        "rate-30x",
        "LR 0.3, thirty times the sound one, from the start, clipped: attention saturates",
        _CONSTANT,
        lr_fault=_wrong_rate(30.0),
    ),
    _short(
        "rate-no-final-norm",
        "LR 0.1 without a final norm: the loss explodes",
        _CONSTANT,
        model=_NO_FINAL_NORM,
        lr_fault=_wrong_rate(10.0),
    ),
    _short(
        "rate-no-clip",
        "LR 0.1 without clipping: attention logits grow, the loss stays up",
        _CONSTANT,
        clip_norm=None,
        lr_fault=_wrong_rate(10.0),
    ),
    _short(
        "rate-ramp",
        "LR that rises by a tenth of 3e-3 with every step: a slow divergence",
        _CONSTANT,
        steps=600,
        peak_lr=3e-3,
        lr_fault=_wrong_rate(1.0, growth_per_step=0.1),
    ),
    _short(
        "spikes-organic",
        "LR 0.05 without a final norm: spikes out of nothing",
        _CONSTANT,
        model=_NO_FINAL_NORM,
        lr_fault=_wrong_rate(5.0),
    ),
    _short(
        "fp16-overflow",
        "LR 0.3 in fp16: the forward pass overflows, the loss scale collapses",
        _CONSTANT,
        steps=200,
        precision="fp16",
        lr_fault=_wrong_rate(30.0),
    ),
)

_TENSORS = (
    _short(
        "fp16-weight",
        "A matrix times 3e5 in fp16: the forward pass overflows at once",
        steps=110,
        precision="fp16",
        state_fault=StateFault(step=60, tensor="blocks.1.down.weight", place="weight", factor=3e5),
    ),
    _short(
        "bitflip-weight",
        "One bit flips in the embedding of a frequent byte",
        state_fault=StateFault(
            step=_LATE,
            tensor="token_embedding.weight",
            place="weight",
            # The row of "e" at width 64: that of a rare byte would hardly be read.
            element=_FREQUENT_BYTE * 64 + 7,
            # The highest bit of the exponent: a number below 2 is multiplied by 2^128.
            bit=30,
        ),
    ),
    _short(
        "bitflip-exp-avg",
        "One bit flips in Adam's first moment",
        state_fault=StateFault(
            step=_LATE,
            tensor="blocks.1.attention.qkv.weight",
            place="exp_avg",
            element=1234,
            bit=30,
        ),
    ),
    _short(
        "bitflip-exp-avg-sq",
        "The sign of one number flips in Adam's second moment",
        state_fault=StateFault(
            step=_LATE,
            tensor="blocks.1.attention.qkv.weight",
            place="exp_avg_sq",
            element=1234,
            bit=31,
        ),
    ),
    _short(
        "nan-one-rank",
        "One of two ranks has NaN gradients for three steps",
        steps=300,
        ranks=2,
        state_fault=StateFault(
            step=_LATE,
            tensor="blocks.1.up.weight",
            place="gradient",
            factor=math.nan,
            rank=1,
            num_steps=3,
        ),
    ),
    _short(
        "nan-weight-one-rank",
        "A weight of one of two ranks turns NaN",
        steps=300,
        ranks=2,
        state_fault=StateFault(
            step=_LATE,
            tensor="blocks.1.up.weight",
            place="weight",
            element=99,
            factor=math.nan,
            rank=1,
        ),
    ),
)

_SOUND = (
    _short("sound-lr-low", "LR 3e-3, constant", _CONSTANT, peak_lr=3e-3, expect="untouched"),
    _short("sound-lr-high", "LR 1e-2, constant", _CONSTANT, expect="untouched"),
    _short("sound-cosine", "LR 1e-2, cosine", expect="untouched"),
    _short(
        "sound-no-clip", "LR 1e-2 without clipping", _CONSTANT, clip_norm=None, expect="untouched"
    ),
    _short(
        "sound-no-final-norm",
        "LR 1e-2 without a final norm",
        _CONSTANT,
        model=_NO_FINAL_NORM,
        expect="untouched",
    ),
    _short(
        "sound-wide",
        "Width 128, 4 layers, LR 1e-2: attention logits above 100, and all is well",
        _CONSTANT,
        model=ModelConfig(width=128, num_layers=4, context_tokens=128),
        steps=250,
        expected_minutes=1.0,
        expect="untouched",
    ),
    _short(
        "benign-spike",
        "A spike from two odd batches: the loss comes back by itself within some steps",
        expect="untouched",
        corruption=_bad_steps("random", first=150, count=2, batch_size=_SHORT.batch_size),
    ),
    _short(
        "benign-spike-slow",
        "A spike like BLOOM's: the embedding shrinks to a fifth, and is learnt again in some 30"
        " steps",
        expect="untouched",
        state_fault=StateFault(
            step=150, tensor="token_embedding.weight", place="weight", factor=0.2
        ),
    ),
)

ACCEPTANCE: tuple[Scenario, ...] = (*_DATA, *_TENSORS, *_RATES, *_SOUND)
"""What `trimtab lab accept` runs: faults that a guard must undo, and runs it must leave alone."""

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
    *ACCEPTANCE,
)
