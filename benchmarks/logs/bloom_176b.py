"""The one published loss spike of BLOOM 176B, re-typed as numbers.

Nine steps, 31214 to 31222, as the public chronicle prints them (bigscience-workshop/bigscience,
train/tr11-176B-ml/chronicles.md): the grad norm leaves its level at 31215, the loss peaks at 31219.
What stands before and behind is made up: level 2.21 with noise .02, norm .15 with a spread of 8 %,
and a way back within the thirty steps that the chronicle names. bf16: the norms are true norms.
"""

import numpy as np

from trimtab.record import RunRecord
from trimtab.testing.curves import record_of
from trimtab.testing.megatron_logs import MegatronStyle
from trimtab.testing.megatron_logs import print_log as print_megatron

__all__ = ["LINES", "SOURCE", "as_record", "print_log"]

SOURCE = "bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles.md"

LINES: tuple[tuple[int, float, float], ...] = (
    (31214, 2.199, 0.242),
    (31215, 2.220, 0.947),
    (31216, 2.595, 2.390),
    (31217, 2.242, 15.886),
    (31218, 2.345, 145.119),
    (31219, 5.098, 960.350),
    (31220, 3.492, 353.200),
    (31221, 3.213, 379.330),
    (31222, 2.805, 650.246),
)
"""(step, loss, grad norm)."""


def as_record(*, rows_before: int = 400, rows_after: int = 200, seed: int = 0) -> RunRecord:
    """Return the lines with made-up quiet rows around them, one row per step."""
    rng = np.random.default_rng(seed)
    num = rows_before + len(LINES) + rows_after
    loss = 2.21 + 0.02 * rng.standard_normal(num)
    norm = 0.15 * np.exp(0.08 * rng.standard_normal(num))
    spike = slice(rows_before, rows_before + len(LINES))
    loss[spike] = [line[1] for line in LINES]
    norm[spike] = [line[2] for line in LINES]
    back = np.exp(-np.arange(1, rows_after + 1) / 8.0)
    loss[spike.stop :] += (LINES[-1][1] - 2.21) * back
    norm[spike.stop :] *= (LINES[-1][2] / 0.15) ** (back * np.linspace(1, 0, rows_after))
    steps = LINES[0][0] - rows_before + np.arange(num, dtype=np.float64)
    columns = {"loss": loss, "grad_norm": norm, "lr": np.full(num, 6e-5)}
    return record_of(steps, columns, source=SOURCE)


def print_log(*, seed: int = 0) -> str:
    """Return the rows as Megatron-DeepSpeed prints them in bf16."""
    style = MegatronStyle(total_steps=115311, norm_times_loss_scale=False)
    return print_megatron(as_record(seed=seed), style)
