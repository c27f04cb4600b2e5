"""What stands beside the loss, or beside the log, and what it says of a cause."""

import json
from pathlib import Path

import numpy as np
import pytest

from trimtab import analyze
from trimtab.analysis.config_evidence import signs_of_this_run
from trimtab.diagnosis.config_signs import ConfigSign
from trimtab.testing.curves import record_of

N = 600
T = np.arange(float(N))


@pytest.mark.parametrize(
    ("key", "unit"), [("data_time", 1.0), ("time/data_s", 1.0), ("data_ms", 1e3)]
)
@pytest.mark.parametrize("share", [1.0, 0.0])
def test_a_wait_for_data_that_is_logged_says_why_steps_are_slow(
    tmp_path: Path, key: str, unit: float, share: float
) -> None:
    rng = np.random.default_rng(0)
    slower = 0.06 * (T >= 300)
    rows = (
        {
            "step": int(t),
            "loss": 1 + 2 * np.exp(-t / 80) + 0.02 * float(rng.normal()),
            "step_time": 0.05 * float(np.exp(0.02 * rng.normal())) + s,
            key: unit * (0.002 * float(np.exp(0.1 * rng.normal())) + share * s),
        }
        for t, s in zip(T, slower, strict=True)
    )
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in rows))
    (incident,) = [i for i in analyze(path).incidents if i.severity != "info"]
    assert incident.incident.kind == "slowdown"
    causes = {c.cause: c.confidence for c in incident.causes}
    if share:
        assert incident.causes[0].cause == "input-or-network"
        assert incident.causes[0].confidence > 0.7
    else:
        assert causes.get("input-or-network", 0.0) < 0.4


@pytest.mark.parametrize(
    ("stated", "kept"), [(1e-3, True), (1.8e-3, True), (6e-2, False), (2e-4, False)]
)
def test_a_rate_of_a_config_that_the_log_contradicts_is_no_evidence(
    stated: float, kept: bool
) -> None:
    rate = 1e-3 * np.minimum(T / 50, 1 - T / 700)
    record = record_of(T, {"loss": 1 + np.exp(-T / 50), "lr": rate})
    signs = (
        ConfigSign(rule="L06", severity="error", message="", ratio=30.0, rate=stated),
        ConfigSign(rule="L24", severity="warning", message=""),
    )
    left, note = signs_of_this_run(signs, record)
    assert [s.rule for s in left] == (["L06", "L24"] if kept else ["L24"])
    assert bool(note) is not kept


def test_a_log_that_ends_in_its_warm_up_contradicts_no_higher_rate() -> None:
    record = record_of(T, {"loss": 1 + np.exp(-T / 50), "lr": 1e-6 * (1 + T)})
    signs = (ConfigSign(rule="L06", severity="error", message="", ratio=30.0, rate=0.1),)
    assert signs_of_this_run(signs, record) == (signs, ())
