"""The verdict does not hang on units, names, order or the way a log is cut."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.offline import all_findings
from trimtab.incidents import group_findings
from trimtab.record import RecordBuilder, RunRecord
from trimtab.signals import derive
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]
Columns = dict[str, Floats]
ROWS = 1200


def made(seed: int) -> Columns:
    """A falling loss with a spike, a lasting rise, and a burst of the norm."""
    rng = np.random.default_rng(seed)
    t = np.arange(ROWS)
    loss = 2.5 + np.exp(-t / 200) + 0.02 * rng.standard_normal(ROWS)
    loss[500:512] += np.linspace(1.5, 0.3, 12)
    loss[800:] += 0.5
    norm = np.exp(0.1 * rng.standard_normal(ROWS))
    norm[498:510] *= 20.0
    return {"loss": loss, "grad_norm": norm}


def judged(record: RunRecord) -> list[tuple[str, int]]:
    record = derive(record)
    found = group_findings(record, all_findings(record))
    return [(i.kind, i.onset_row) for i in found if i.severity != "info"]


def plain(columns: Columns, first: float = 1.0, every: float = 1.0) -> RunRecord:
    return record_of((first + every * np.arange(ROWS)).tolist(), columns)


def shuffled(columns: Columns) -> RunRecord:
    more = {"throughput": np.full(ROWS, 1000.0) + np.random.default_rng(9).standard_normal(ROWS)}
    return plain({**more, **dict(reversed(columns.items()))})


def row_by_row(columns: Columns) -> RunRecord:
    builder = RecordBuilder("cut", "simulated")
    for i in range(ROWS):
        builder.add(i + 1.0, {name: float(v[i]) for name, v in columns.items()})
    return builder.build()


SAME: dict[str, Callable[[Columns], RunRecord]] = {
    "steps times 10": lambda c: plain(c, 10.0, 10.0),
    "steps plus 5000": lambda c: plain(c, 5001.0),
    "columns in another order, and one more": shuffled,
    "rows one by one": row_by_row,
    "six digits": lambda c: plain(
        {k: np.array([float(f"{x:.6g}") for x in v]) for k, v in c.items()}
    ),
    "norm in another unit": lambda c: plain({**c, "grad_norm": 1000.0 * c["grad_norm"]}),
}


@pytest.mark.parametrize("seed", [100, 101])
@pytest.mark.parametrize("change", SAME, ids=str)
def test_what_means_nothing_changes_nothing(change: str, seed: int) -> None:
    columns = made(seed)
    expected = judged(plain(columns))
    assert {kind for kind, _ in expected} >= {"spike"}
    assert judged(SAME[change](columns)) == expected


@pytest.mark.parametrize("seed", [100, 101])
def test_a_loss_in_other_units_has_the_same_incidents(seed: int) -> None:
    columns = made(seed)
    expected = judged(plain(columns))
    assert judged(plain({**columns, "loss": 3.0 * columns["loss"]})) == expected


@pytest.mark.parametrize("shift", [-3.0, -10.0, -100.0])
def test_a_loss_below_zero_has_the_same_spike(shift: float) -> None:
    columns = made(100)
    found = judged(plain({**columns, "loss": columns["loss"] + shift}))
    assert any(abs(row - 500) <= 8 for _, row in found)


def test_every_second_row_shows_the_same_trouble() -> None:
    columns = {k: v[::2] for k, v in made(100).items()}
    record = record_of((1.0 + 2.0 * np.arange(ROWS // 2)).tolist(), columns)
    assert [abs(row - 250) <= 4 for _, row in judged(record)][:1] == [True]
