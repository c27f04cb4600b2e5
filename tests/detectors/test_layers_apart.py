"""A layer without a gradient is told by name; adapters, unfreezing and rounding are not."""

import json
from pathlib import Path

import numpy as np
import pytest

from trimtab import Analysis, analyze

N = 120
T = np.arange(N)


def _norms(layers: int = 4, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 0.3 * np.exp(-T / 80)[:, None] * np.exp(0.2 * rng.standard_normal((N, layers)))


def _analyzed(path: Path, norms: np.ndarray, *, digits: int = 7, **more: np.ndarray) -> Analysis:
    loss = 0.3 + 2 * np.exp(-T / 25) + 0.01 * np.random.default_rng(1).standard_normal(N)
    keys = [f"grad_norm/fc{j}" for j in range(norms.shape[1])]
    rows = [
        {"step": 5 * (i + 1), "loss": round(float(loss[i]), 5)}
        | {k: float(v[i]) for k, v in more.items()}
        | {k: v for k, v in zip(keys, norms[i].round(digits).tolist(), strict=True) if v == v}
        for i in range(N)
    ]
    if path.suffix == ".csv":
        lines = [",".join(("step", "loss", *more, *keys))]
        lines += [",".join(str(r.get(k, "")) for k in ("step", "loss", *more, *keys)) for r in rows]
    elif path.suffix == ".jsonl":
        lines = [json.dumps({k: float(v) for k, v in r.items()}) for r in rows]
    else:
        lines = [" ".join(f"{k}={v}" for k, v in r.items()) for r in rows]
    path.write_text("\n".join(lines) + "\n")
    return analyze(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".log"])
def test_a_layer_that_is_never_trained_is_told_by_name(tmp_path: Path, suffix: str) -> None:
    norms = _norms()
    norms[:, 1] = 0.0
    found = _analyzed(tmp_path / f"a{suffix}", norms)
    assert found.verdict == "incident"
    text = " ".join(f.text for f in found.incidents[0].incident.findings)
    assert "'fc1'" in text
    assert "on purpose" in text
    assert found.incidents[0].causes[0].cause == "no-gradient"
    assert found.incidents[0].incident.severity == "warning"


def test_a_layer_that_stops_is_told_from_there(tmp_path: Path) -> None:
    norms = _norms()
    norms[70:, 2] = 0.0
    found = _analyzed(tmp_path / "a.csv", norms)
    assert found.verdict == "incident"
    assert found.incidents[0].incident.onset == 5 * 71


def test_a_layer_that_is_no_number_is_told(tmp_path: Path) -> None:
    norms = _norms()
    norms[80:, 2] = np.inf
    found = _analyzed(tmp_path / "a.csv", norms)
    told = [f for x in found.incidents for f in x.incident.findings]
    assert any("'fc2'" in f.text and f.kind == "non-finite" for f in told)


def _sound(name: str) -> dict[str, np.ndarray]:
    norms, more = _norms(), dict[str, np.ndarray]()
    if name == "decades":
        norms[:, 1] = 0.3 * 10.0 ** (-T / 12)
        return {"norms": norms}
    if name == "adapter":
        norms[:, :2] = 0.0
    elif name == "unfreezing":
        for j in range(3):
            norms[: 30 * (3 - j), j] = 0.0
    elif name == "still-unfreezing":
        norms[:, 0], norms[:40, 1] = 0.0, 0.0
    elif name == "sparse":
        norms[np.arange(N) % 6 != 0, 1] = np.nan
    elif name == "warm-up":
        norms[:40, 1] = 0.0
        more["lr"] = np.where(T < 40, 0.0, 1e-3)
    elif name == "in-turn":
        norms[(T // 20) % 2 == 0, 1] = 0.0
        norms[(T // 20) % 2 == 1, 2] = 0.0
    elif name == "handed-over":
        norms[:60, 1], norms[60:, 2] = 0.0, 0.0
    return {"norms": norms, **more}


@pytest.mark.parametrize(
    "name",
    ["decades", "adapter", "unfreezing", "still-unfreezing", "sparse", "warm-up", "in-turn",
     "handed-over"],
)  # fmt: skip
def test_sound_twins_are_silent(tmp_path: Path, name: str) -> None:
    made = _sound(name)
    digits = 12 if name == "decades" else 7
    found = _analyzed(tmp_path / "a.jsonl", made.pop("norms"), digits=digits, **made)
    assert not [
        f.text for x in found.incidents for f in x.incident.findings if f.severity != "info"
    ]


def test_a_small_norm_in_few_digits_is_no_zero(tmp_path: Path) -> None:
    norms = _norms() * 0.5
    norms[:, 1] *= 1e-5
    assert not _analyzed(tmp_path / "a.csv", norms, digits=3).incidents
