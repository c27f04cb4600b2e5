"""A part of a loss that ends above where it began is told beside a total that falls."""

import json
from pathlib import Path

import numpy as np
import pytest

from trimtab import Analysis, analyze

N = 160
T = np.arange(N)
RNG = np.random.default_rng
TASK = 0.1 + 2.2 * np.exp(-T / 25) * np.exp(0.05 * RNG(0).standard_normal(N))
WORSE = (0.69 + 0.4 * (1 - np.exp(-T / 50))) * np.exp(0.02 * RNG(1).standard_normal(N))


def _analyzed(path: Path, **values: np.ndarray) -> Analysis:
    keys = ("step", *values)
    rows = [(5 * (i + 1), *(round(float(v[i]), 5) for v in values.values())) for i in range(N)]
    if path.suffix == ".csv":
        lines = [",".join(keys), *(",".join(map(str, r)) for r in rows)]
    elif path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(keys, r, strict=True))) for r in rows]
    else:
        lines = [" ".join(f"{k}: {v}" for k, v in zip(keys, r, strict=True)) for r in rows]
    path.write_text("\n".join(lines) + "\n")
    return analyze(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".log"])
def test_a_part_that_gets_worse_is_told(tmp_path: Path, suffix: str) -> None:
    found = _analyzed(
        tmp_path / f"a{suffix}", total_loss=TASK + WORSE, loss_digit=TASK, loss_parity=WORSE
    )
    assert found.verdict == "incident"
    incident = found.incidents[0].incident
    assert (incident.kind, incident.severity) == ("drift", "warning")
    text = " ".join(f.text for f in incident.findings)
    assert "'parity'" in text
    assert "than at the start" in text


def _sound(name: str) -> dict[str, np.ndarray]:
    noise = np.exp(0.02 * RNG(2).standard_normal(N))
    if name == "kl":
        part = 0.5 * (1 - np.exp(-T / 30)) * noise + 1e-3
        return {"total_loss": TASK + part, "loss_digit": TASK, "loss_shape": TASK, "loss_kl": part}
    if name == "unnamed":
        part = 0.5 * (1 - np.exp(-T / 30)) * noise + 1e-3
        return {"total_loss": TASK + part, "loss_digit": TASK, "loss_parity": part}
    if name == "regularizer":
        return {"total_loss": TASK + WORSE, "loss_digit": TASK, "loss_smoothness": WORSE}
    if name == "trade-off":
        part = (0.45 + 0.35 * np.exp(-T / 8) + 0.12 * (1 - np.exp(-T / 60))) * noise
        return {"total_loss": TASK + part, "loss_digit": TASK, "loss_parity": part}
    if name == "weighted":
        weight = np.minimum(1.0, 0.5 + T / 100)
        part = 0.7 * weight * noise
        return {
            "total_loss": TASK + part,
            "loss_digit": TASK,
            "loss_parity": part,
            "w_parity": weight,
        }
    if name == "stated":
        weight = np.where(T < 60, 0.5, np.where(T < 110, 0.75, 1.0))
        part = 0.7 * weight * noise
        return {"total_loss": TASK + part, "loss_digit": TASK, "loss_parity": part,
                "aux_weight": weight}  # fmt: skip
    if name == "nets":
        return {"total_loss": TASK + WORSE, "loss_digit": TASK, "loss_style": WORSE,
                "loss_disc": WORSE}  # fmt: skip
    if name == "balance":
        return {"total_loss": TASK + WORSE, "loss_digit": TASK, "loss_shape": TASK,
                "loss_balance": WORSE}  # fmt: skip
    part = 0.69 * noise  # a task that is not learned stays at its start
    return {"total_loss": TASK + part, "loss_digit": TASK, "loss_parity": part}


@pytest.mark.parametrize(
    "name",
    ["kl", "unnamed", "regularizer", "trade-off", "weighted", "stated", "nets", "balance", "flat"],
)
def test_sound_twins_are_silent(tmp_path: Path, name: str) -> None:
    found = _analyzed(tmp_path / "a.jsonl", **_sound(name))
    told = [f for x in found.incidents for f in x.incident.findings if f.detector == "worse-part"]
    assert not told
    if name not in ("nets", "stated"):  # of edges in a part `swells` has its own opinion
        assert not [
            f.text for x in found.incidents for f in x.incident.findings if f.severity != "info"
        ]
