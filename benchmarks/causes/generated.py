"""Made-up faults with a known cause, read as logs are: is the first cause that is named right?

Each seed makes one run per fault: 900 rows of loss, gradient norm, rate and, in fp16, loss scale.
The run is judged, grouped and diagnosed by the path of every command; a fault without an alarm
within 60 rows counts as not seen and has no cause to judge.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.assemble import make_account
from trimtab.incidents import Incident
from trimtab.record import RecordBuilder, RunRecord

__all__ = ["FAULTS", "Guess", "guesses"]

Floats = NDArray[np.float64]
NUM_ROWS = 900
AT = 600
NEAR_ROWS = 60


@dataclass(frozen=True)
class Guess:
    """What was said of one made-up fault."""

    fault: str
    right: bool
    """Whether the first cause that is not unknown is one of those that the fault stands for."""
    share: float
    """Confidence of that first cause."""
    seen: bool
    given: float
    """Confidence given to the causes that the fault stands for."""


class _Run:
    """Columns of a healthy run, to plant a fault in."""

    def __init__(self, seed: int, fault: str) -> None:
        self.rng = np.random.default_rng([seed, sum(map(ord, fault))])
        t = np.arange(1, NUM_ROWS + 1)
        self.loss = 3 + 3 * np.exp(-t / 150) + 0.03 * self.rng.standard_normal(NUM_ROWS)
        self.norm = 0.4 * np.exp(0.1 * self.rng.standard_normal(NUM_ROWS))
        cosine = 5e-4 * (1 + np.cos(np.pi * np.clip((t - 100) / 1400, 0, 1)))
        self.lr = np.where(t <= 100, 1e-3 * t / 100, cosine)
        self.time = 0.5 * np.exp(0.02 * self.rng.standard_normal(NUM_ROWS))
        self.scale: Floats | None = None
        self.resume_at: int | None = None
        self.clip = 1.0
        self.size = float(np.exp(self.rng.uniform(np.log(0.6), np.log(3.0))))
        self.width = int(self.rng.integers(8, 40))

    def record(self) -> RunRecord:
        builder = RecordBuilder("made-up.jsonl", "jsonl")
        for i in range(NUM_ROWS):
            if i == self.resume_at:
                builder.start_attempt(number="1.1", parent_step=i)
            row = {
                "loss": self.loss[i],
                "grad_norm": self.norm[i],
                "lr": self.lr[i],
                "step_time_s": self.time[i],
            }
            if self.scale is not None:
                row["loss_scale"] = self.scale[i]
            builder.add(i + 1, row)
        builder.facts["clip"] = self.clip
        return builder.build()


def _rate_jump(r: _Run) -> None:
    r.lr[AT:] *= float(r.rng.uniform(3, 30))
    delay = int(r.rng.integers(2, 40))
    rise = np.arange(NUM_ROWS - AT - delay)
    r.loss[AT + delay :] += np.minimum(r.size, 0.1 * rise)
    r.norm[AT + delay :] *= 3


def _rate_jump_at_resume(r: _Run) -> None:
    r.resume_at = AT
    _rate_jump(r)


def _window(r: _Run) -> None:
    r.loss[AT : AT + r.width] += r.size
    r.norm[AT : AT + r.width] *= 3


def _organic(r: _Run) -> None:
    since = np.arange(NUM_ROWS - AT)
    r.norm[AT - 1 : AT + 4] *= 10
    rise = np.minimum(1, (since + 1) / 3) * np.exp(-np.maximum(0, since - 2) / (0.2 * r.width + 2))
    r.loss[AT:] += r.size * rise


def _too_high(r: _Run) -> None:
    r.norm *= 30
    r.norm[AT:] *= np.linspace(1, 8, NUM_ROWS - AT)
    r.loss[AT:] += np.linspace(0, 1 + r.size, NUM_ROWS - AT)


def _fp16(r: _Run) -> None:
    r.scale = np.full(NUM_ROWS, 65536.0)
    halved = np.arange(NUM_ROWS - AT + 40) // int(r.rng.integers(2, 7))
    r.scale[AT - 40 :] = np.maximum(1.0, 65536.0 / 2.0 ** np.minimum(halved, 16))


def _joint(r: _Run) -> None:
    r.scale = np.full(NUM_ROWS, 4.0)
    r.scale[AT:] = np.maximum(2.0**-12, 4.0 / 2.0 ** np.minimum(np.arange(NUM_ROWS - AT), 14))
    r.norm[AT - 2 :] *= np.minimum(60, 2.0 ** np.arange(NUM_ROWS - AT + 2))
    r.loss[AT:] += np.minimum(1 + r.size, 0.3 * np.arange(1, NUM_ROWS - AT + 1))


def _masked(r: _Run) -> None:
    where = AT + np.cumsum(r.rng.integers(3, 30, 4))
    r.loss[where] = np.nan


def _log_of_zero(r: _Run) -> None:
    r.loss[AT] = np.inf
    r.loss[AT + 1 :] = np.nan
    r.norm[AT:] = np.nan


def _lost_state(r: _Run) -> None:
    r.resume_at = AT
    r.loss[AT:] += r.size * (0.3 + 0.7 * np.exp(-np.arange(NUM_ROWS - AT) / 80))


def _slow_input(r: _Run) -> None:
    r.time[AT:] *= float(r.rng.uniform(1.6, 4))


def _not_learning(r: _Run) -> None:
    r.loss[300:] = r.loss[300] + 0.03 * r.rng.standard_normal(NUM_ROWS - 300)
    r.lr[300:] = 0.0


FAULTS: Mapping[str, tuple[Callable[[_Run], None], tuple[str, ...]]] = {
    "rate jump": (_rate_jump, ("learning-rate-jump",)),
    "rate jump at a resume": (_rate_jump_at_resume, ("learning-rate-jump",)),
    "window of other data": (_window, ("bad-data-window",)),
    "spike that decays": (_organic, ("benign-noise",)),
    "rate too high": (_too_high, ("learning-rate-too-high",)),
    "fp16 underflow": (_fp16, ("fp16-range",)),
    "joint explosion in fp16": (_joint, ("learning-rate-too-high",)),
    "masked batches": (_masked, ("masked-batch",)),
    "log of 0": (_log_of_zero, ("undefined-loss",)),
    "state lost at a resume": (_lost_state, ("code-or-resume-change",)),
    "slow input": (_slow_input, ("input-or-network",)),
    "rate of 0": (_not_learning, ("updates-too-small", "rate-at-zero")),
}
"""Fault -> (how it is planted, the causes that say what it is)."""


def guesses(seeds: Iterable[int]) -> list[Guess]:
    """Return what is said of every fault; some 0.1 s each."""
    return [_guess(seed, fault) for seed in seeds for fault in FAULTS]


def _guess(seed: int, fault: str) -> Guess:
    plant, causes = FAULTS[fault]
    run = _Run(seed, fault)
    plant(run)
    account = make_account(run.record())
    start = 300 if plant is _not_learning else AT
    near = [ia for ia in account.incidents if _touches(ia.incident, start)]
    alarms = [ia for ia in near if ia.incident.severity != "info" and ia.diagnosis.causes]
    if not alarms:
        return Guess(fault, right=False, share=0.0, seen=False, given=0.0)
    told = alarms[0].diagnosis
    first = next((c for c in told.causes if c.cause != "unknown"), told.causes[0])
    return Guess(
        fault,
        right=first.cause in causes,
        share=first.confidence,
        seen=True,
        given=sum(told.share(c) for c in causes),
    )


def _touches(incident: Incident, row: int) -> bool:
    last = incident.peak_row if incident.end_row is None else incident.end_row
    return incident.first_row - NEAR_ROWS <= row <= max(last, incident.onset_row) + NEAR_ROWS
