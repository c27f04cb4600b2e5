"""The newest alarm that is not handled: the same that all incidents would give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.detectors.judge import judge_record
from trimtab.incidents import Incident, group_findings, newest_unhandled
from trimtab.record import Column, RecordBuilder, RunRecord

Keys = set[tuple[str, str, int]]


def record_of_spikes(seed: int, num_rows: int, places: list[int]) -> RunRecord:
    """Spikes of the loss, each with a jump of the grad norm some rows before it."""
    rng = np.random.default_rng(seed)
    loss = 3 + 0.02 * rng.standard_normal(num_rows)
    norm = np.exp(0.1 * rng.standard_normal(num_rows))
    for place in places:
        loss[place : place + 5] += 1.5
        norm[max(place - seed % 9, 0) : place + 3] *= 8
    every = np.ones(num_rows, dtype=np.bool_)
    builder = RecordBuilder("a test", "jsonl")
    builder.extend(
        np.arange(1.0, num_rows + 1),
        {"loss": Column(loss, every), "grad_norm": Column(norm, every)},
    )
    return builder.build()


def last_of_all(record: RunRecord, handled: Keys) -> tuple[Incident, Keys] | None:
    for incident in reversed(group_findings(record, judge_record(record))):
        keys = {f.key for f in incident.findings if f.severity != "info"}
        if incident.severity != "info" and keys - handled:
            return incident, keys
    return None


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    num_rows=st.integers(300, 900),
    places=st.lists(st.integers(150, 890), max_size=6),
    dealt_with=st.floats(0, 1),
)
def test_newest_unhandled_is_the_last_of_all_incidents(
    seed: int, num_rows: int, places: list[int], dealt_with: float
) -> None:
    record = record_of_spikes(seed, num_rows, places)
    findings = judge_record(record)
    handled = {f.key for i, f in enumerate(findings) if i < dealt_with * len(findings)}
    assert newest_unhandled(record, findings, handled) == last_of_all(record, handled)
