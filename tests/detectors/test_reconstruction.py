"""A reconstruction loss that is read as the loss is judged as one, whatever it is called."""

import json
from pathlib import Path

import numpy as np
import pytest

import trimtab


@pytest.mark.parametrize("key", ["reconstruction_loss", "recon_loss", "train/rec_loss", "mse"])
def test_a_reconstruction_that_doubles_for_good_is_an_alarm(tmp_path: Path, key: str) -> None:
    n = np.arange(1200)
    rng = np.random.default_rng(0)
    loss = (0.03 + 0.14 * np.exp(-n / 80)) * (1 + 0.04 * rng.standard_normal(1200))
    loss[500:] += 0.045
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"step": int(i), key: float(loss[i])}) + "\n" for i in n))
    (run,) = trimtab.analyze(path).runs
    alarms = [i for i in run.incidents if i.severity != "info"]
    assert alarms[0].incident.signals[0] == "loss"
    assert abs(alarms[0].onset - 500) <= 4
