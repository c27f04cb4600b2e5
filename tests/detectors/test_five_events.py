"""Five events that published rules miss or drown in false alarms, in three kinds of noise.

The curve and the events: 2 + 9 exp(-t/150) + 1.2 (1 + t/400)^-0.6 with noise .02, at row 4000 one
row +50 %, a spike of 65 rows, +.06 for 150 rows and then +.03 for good, +.0005 a row, -30 % for
good. A single row in heavy-tailed noise is told as an outlier, a note: such noise has rows like it.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.hindsight import hindsight_findings
from trimtab.detectors.judge import judge_record
from trimtab.incidents import group_findings
from trimtab.testing.curves import CurveKind, NoiseKind, lm_curve, make_noise, make_quiet, record_of

AT, NUM = 4000, 5200
Floats = NDArray[np.float64]


def single(loss: Floats) -> None:
    loss[AT] *= 1.5


def broad(loss: Floats) -> None:
    loss[AT : AT + 65] *= 1 + np.concatenate([np.linspace(0.2, 1, 5), np.linspace(1, 0, 60)])


def shifted(loss: Floats) -> None:
    loss[AT : AT + 150] += 0.06
    loss[AT + 150 :] += 0.03


def drifting(loss: Floats) -> None:
    loss[AT:] += 0.0005 * np.arange(NUM - AT)


def too_good(loss: Floats) -> None:
    loss[AT:] *= 0.7


EVENTS: tuple[tuple[Callable[[Floats], None], str], ...] = (
    (single, "spike"),
    (broad, "spike"),
    (shifted, "shift drift divergence"),
    (drifting, "drift divergence"),
    (too_good, "too-good"),
)


def found(loss: Floats, *, notes: bool = False) -> list[Finding]:
    record = record_of(np.arange(1.0, len(loss) + 1), {"loss": loss})
    return [f for f in judge_record(record) if notes or f.severity != "info"]


@pytest.mark.parametrize("noise", ["gaussian", "ar1", "t3"])
@pytest.mark.parametrize(("event", "kinds"), EVENTS, ids=[e.__name__ for e, _ in EVENTS])
@pytest.mark.parametrize("seed", [100, pytest.param(101, marks=pytest.mark.slow)])
def test_each_event_is_caught(
    seed: int, event: Callable[[Floats], None], kinds: str, noise: NoiseKind
) -> None:
    loss = lm_curve(NUM) + 0.02 * make_noise(NUM, noise, np.random.default_rng(seed))
    event(loss)
    alone = event is single and noise == "t3"
    told = found(loss, notes=alone)
    assert told, "missed"
    first = next(f for f in told if f.row >= AT)
    assert first.row <= AT + 1000
    assert {f.kind for f in told} & {*kinds.split(), *(["batch-outlier"] if alone else [])}
    assert not [f for f in told if f.row < AT and f.severity != "info"]


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["gaussian", "ar1", "t3"])
def test_at_most_one_false_alarm_in_20000_clean_rows(noise: NoiseKind) -> None:
    num = 0
    curves: tuple[CurveKind, ...] = ("flat", "lm")
    for seed in (100, 101):
        for curve in curves:
            loss = make_quiet("loss", 20_000, seed, noise=noise, curve=curve)
            record = record_of(np.arange(1.0, len(loss) + 1), {"loss": loss})
            findings = (*judge_record(record), *hindsight_findings(record))
            num += sum(i.severity != "info" for i in group_findings(record, findings))
    assert num <= 4  # in 80,000 rows
