"""A trainer that prints the mean since its last row prints no mean since the epoch began."""

import json
from pathlib import Path

import numpy as np
import pytest

from trimtab import read


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_of_a_trainer_state_are_taken_as_they_are(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 200
    losses = 1.4 * np.exp(-np.arange(n) / 26 + 0.1 * rng.normal(size=n)) + 0.002
    history = [
        {"step": 5 * (k + 1), "epoch": round(0.015 * (k + 1), 3), "loss": float(f"{x:.6g}")}
        for k, x in enumerate(losses)
    ]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history, "global_step": 5 * n}))
    (record,) = read(path)
    values = record.columns["loss"].values
    assert values[np.isfinite(values)].tolist() == [row["loss"] for row in history]
    assert not any("mean since the epoch" in note for note in record.notes)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_noise_that_shrinks_with_a_loss_is_no_mean_in_any_format(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = 1.4 * np.exp(-np.arange(200) / 26 + 0.1 * rng.normal(size=200)) + 0.002
    path = tmp_path / "log.jsonl"
    rows = ({"step": 5 * k, "epoch": 0.015 * k, "loss": float(x)} for k, x in enumerate(losses, 1))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (record,) = read(path)
    assert np.isfinite(record.columns["loss"].values).sum() == 200
