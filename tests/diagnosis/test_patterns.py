"""The seven pictures of loss curves, scripted and named."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.judge import judge_record
from trimtab.diagnosis.patterns import Pattern, name_pattern
from trimtab.incidents import group_findings
from trimtab.record import Column, RecordBuilder, RunRecord
from trimtab.testing.curves import lm_curve, record_of

Floats = NDArray[np.float64]
NUM, AT = 3000, 2000


def quiet(seed: int) -> Floats:
    return np.asarray(lm_curve(NUM) + 0.02 * np.random.default_rng(seed).standard_normal(NUM))


def since() -> Floats:
    return np.arange(NUM, dtype=np.float64) - AT


def tooth(width: float) -> Floats:
    return np.where(since() >= 0, np.clip(1 - since() / width, 0, 1), 0.0)


def run(loss: Floats, **columns: Floats) -> RunRecord:
    return record_of(np.arange(1.0, NUM + 1), {"loss": loss, **columns})


def fast(seed: int) -> RunRecord:
    return run(quiet(seed) + 2 * tooth(20))


def slow(seed: int) -> RunRecord:
    return run(quiet(seed) + 3 * tooth(150))


def unrecovered(seed: int) -> RunRecord:
    return run(
        quiet(seed) + np.where(since() >= 0, 1 + 2 * np.exp(-np.clip(since(), 0, None) / 20), 0)
    )


def divergence(seed: int) -> RunRecord:
    return run(quiet(seed) + 0.0005 * np.clip(since(), 0, None))


def datasets(seed: int) -> RunRecord:
    web, books = quiet(seed) + 2 * tooth(20), quiet(seed + 1) + 3 * tooth(20)
    return run((web + books) / 2, **{"loss/web": web, "loss/books": books})


def resume(seed: int) -> RunRecord:
    loss = quiet(seed) + 2 * tooth(20)
    builder = RecordBuilder("simulated", "simulated")
    builder.start_attempt(number="1.0")
    for i in range(AT):
        builder.add(i + 1.0, {"loss": float(loss[i])})
    builder.start_attempt(number="2.0", parent="1.0", parent_step=float(AT))
    for i in range(AT, NUM):
        builder.add(i + 1.0, {"loss": float(loss[i])})
    return builder.build()


def grokking(seed: int) -> RunRecord:
    loss = quiet(seed)
    loss[AT:] *= 0.6
    val = np.full(NUM, np.nan)
    val[49::50] = 3.0
    val[AT:] *= 0.5
    builder = RecordBuilder("simulated", "simulated")
    columns = {
        "loss": Column(loss, np.ones(NUM, np.bool_)),
        "val_loss": Column(val, np.isfinite(val)),
    }
    builder.extend(np.arange(1.0, NUM + 1), columns)
    return builder.build()


CURVES: tuple[tuple[object, Pattern], ...] = (
    (fast, "fast spike"),
    (slow, "slow spike"),
    (unrecovered, "spike that does not fully recover"),
    (divergence, "divergence without a spike"),
    (datasets, "spikes of several datasets"),
    (resume, "spike at a resume"),
    (grokking, "grokking"),
)


@pytest.mark.covers("S59")
@pytest.mark.parametrize("seed", [100, 103, 106])
@pytest.mark.parametrize(("make", "pattern"), CURVES, ids=[p for _, p in CURVES])
def test_the_scripted_curves_are_named(make: object, pattern: Pattern, seed: int) -> None:
    assert callable(make)
    record = make(seed)
    told = group_findings(record, judge_record(record))
    main = [i for i in told if i.severity != "info" or i.kind == "grokking"]
    assert {name_pattern(record, i) for i in main} == {pattern}
    if pattern == "grokking":
        assert [i.severity for i in told if i.severity != "info"] == []
