"""`rough_start`: a climb of the first rows is open until the loss is below where it began."""

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab
from trimtab import analyze
from trimtab.detectors.offline import all_findings
from trimtab.signals import derive
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]


def thrown_up(rows: int, *, tau: float, end: float, seed: int = 0) -> dict[str, Floats]:
    """A loss of 0.76 that the first update throws up to 3,000, and that falls from there."""
    t = np.arange(rows, dtype=np.float64)
    noise = np.exp(0.3 * np.random.default_rng(seed).standard_normal(rows))
    loss = (end + 3000 * np.exp(-t / tau)) * noise
    loss[0] = 0.76
    return {"step": t + 1, "loss": loss, "lr": np.full(rows, 10.0)}


@pytest.mark.parametrize(
    ("rows", "tau", "end", "kind", "closed"),
    [
        (100, 60.0, 230.0, "spike", False),
        (600, 60.0, 230.0, "unrecovered-spike", True),
        (600, 8.0, 0.4, "spike", True),
    ],
    ids=["still-up-at-the-end", "stays-up", "comes-back"],
)
def test_a_climb_ends_when_the_loss_is_below_where_it_began(
    rows: int, tau: float, end: float, kind: str, *, closed: bool
) -> None:
    columns = thrown_up(rows, tau=tau, end=end)
    steps = columns.pop("step")
    told = [
        f
        for f in all_findings(derive(record_of(steps, columns)))
        if f.detector == "rough-start-cold"
    ]
    assert (told[-1].kind, told[-1].closed) == (kind, closed)
    if kind == "spike" and closed:
        assert told[-1].end is not None
        assert 50 < told[-1].end < 90


def test_a_loss_that_never_came_back_is_no_recovered_spike() -> None:
    analysis = trimtab.analyze(thrown_up(600, tau=60.0, end=230.0))
    first = analysis.incidents[0]
    assert (first.kind, first.severity) == ("unrecovered-spike", "critical")
    assert "recovered" not in first.headline.replace("did not recover", "")


def test_bursts_that_wear_off_above_the_beginning_are_no_recovery() -> None:
    rows = np.arange(400, dtype=np.float64)
    rng = np.random.default_rng(0)
    loss = (7 + 1e6 * np.exp(-rows / 3)) * np.exp(0.5 * rng.standard_normal(400))
    loss[0] = 0.73
    loss[300:305] *= 1e4  # a later burst is not the first thing to say
    analysis = trimtab.analyze({"step": rows, "loss": loss, "lr": np.full(400, 30.0)})
    first = analysis.incidents[0]
    assert (first.kind, first.onset) == ("unrecovered-spike", 1.0)
    assert first.causes[0].cause in ("no-warm-up", "learning-rate-too-high")


@pytest.mark.parametrize("num_rows", [25, 80, 600])
def test_a_start_that_is_thrown_up_is_told_without_a_logged_rate(num_rows: int) -> None:
    rng = np.random.default_rng(num_rows)
    loss = 40 * np.exp(-np.arange(num_rows) / 30) + 2 + rng.normal(0, 0.2, num_rows)
    loss[:5] = 476.0, 45008.0, 23015.0, 7747.0, 802.0
    told = analyze({"step": np.arange(float(num_rows)), "loss": loss}).incidents[0]
    assert (told.severity, told.incident.onset) == ("warning", 1.0)
    assert told.diagnosis.causes[0].cause != "benign"


def test_a_first_loss_next_to_nothing_or_one_high_row_is_no_thrown_start() -> None:
    rows = np.arange(200.0)
    rises = 3 - 2.9 * np.exp(-rows / 3)
    falls = 5 * np.exp(-rows / 60) + 1
    falls[1:3] = 60, 50
    for loss in (rises, falls):
        found = analyze({"step": rows, "loss": loss + 0.001 * np.sin(rows)})
        assert not any("throw" in f.text for i in found.incidents for f in i.incident.findings)
