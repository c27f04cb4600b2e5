"""Gradient norms by layer are read together, whatever a logger calls them, and make their total."""

import json
from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run
from trimtab.record import RunRecord

N = 60
LAYERS = ("fc1", "fc2", "fc3")


def _norms(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.exp(0.2 * rng.standard_normal((N, 3))) * (0.3, 0.1, 0.2)


def _losses() -> np.ndarray:
    return 0.2 + 2 * np.exp(-np.arange(N) / 15) + 0.01 * np.random.default_rng(1).standard_normal(N)


def _write(path: Path, keys: tuple[str, ...], norms: np.ndarray) -> Path:
    rows = [
        {"step": 10 * (i + 1), "loss": round(x, 6), **dict(zip(keys, norm.round(7), strict=True))}
        for i, (x, norm) in enumerate(zip(_losses().tolist(), norms, strict=True))
    ]
    if path.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(map(str, r.values())) for r in rows)]
    elif path.suffix == ".jsonl":
        lines = [json.dumps({k: float(v) for k, v in r.items()}) for r in rows]
    else:
        lines = [" ".join(f"{k}={v}" for k, v in r.items()) for r in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def _read(path: Path) -> RunRecord:
    return read_run(path)


FORMS = ("grad_norm/{}", "grad_norm.{}", "gradients/{}", "grad/{}.weight", "{}_grad_norm",
         "train/grad_norm/{}", "grad_2.0_norm/model.{}.weight")  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".log"])
@pytest.mark.parametrize("form", FORMS)
def test_a_family_is_read_under_any_name(tmp_path: Path, form: str, suffix: str) -> None:
    norms = _norms()
    record = _read(_write(tmp_path / f"a{suffix}", tuple(map(form.format, LAYERS)), norms))
    found = [n for n in record.columns if n.startswith("grad_norm/")]
    assert len(found) == 3
    for j, layer in enumerate(LAYERS):
        name = next(n for n in found if layer in n)
        np.testing.assert_allclose(record.columns[name].values, norms[:, j], atol=1e-6)
    assert not [k for k in record.unread if "grad" in k]
    if "norm" in form:  # of others it is not said that they are norms whose squares add up
        total = np.sqrt((norms**2).sum(axis=1))
        np.testing.assert_allclose(record.columns["grad_norm"].values, total, rtol=1e-4)
    else:
        assert "grad_norm" not in record.columns


def test_a_total_that_is_logged_stands(tmp_path: Path) -> None:
    norms = np.column_stack((_norms()[:, :2], np.full(N, 7.0)))
    record = _read(_write(tmp_path / "a.csv", ("grad_norm/a", "grad_norm/b", "grad_norm"), norms))
    assert np.all(record.columns["grad_norm"].values == 7.0)


def test_no_total_of_layers_that_hold_others(tmp_path: Path) -> None:
    keys = ("grad_norm/encoder", "grad_norm/encoder.0", "grad_norm/head")
    assert "grad_norm" not in _read(_write(tmp_path / "a.csv", keys, _norms())).columns


def test_one_that_is_the_total_of_the_others_is_read_as_it(tmp_path: Path) -> None:
    norms = np.column_stack(((part := _norms()[:, :2]), np.sqrt((part**2).sum(axis=1))))
    keys = ("grad_norm/a", "grad_norm/b", "grad_norm/net")
    record = _read(_write(tmp_path / "a.csv", keys, norms))
    np.testing.assert_allclose(record.columns["grad_norm"].values, norms[:, 2], atol=1e-6)


def test_nets_against_each_other_have_no_total(tmp_path: Path) -> None:
    keys = ("generator_grad_norm", "discriminator_grad_norm", "head_grad_norm")
    assert "grad_norm" not in _read(_write(tmp_path / "a.csv", keys, _norms())).columns


@pytest.mark.parametrize(
    "keys",
    [
        ("max_grad_norm", "grad_norm/min", "grad_norm_std"),  # statistics
        ("grad/mean", "grad/max", "grad/clip_ratio"),
        ("grad-norm/grad-norm vs samples", "grad-norm/grad-norm vs tokens", "x"),
        ("val/grad_norm/a", "grad_norm/only", "other"),  # one layer alone is no family
    ],
)
def test_what_is_no_family_is_left(tmp_path: Path, keys: tuple[str, ...]) -> None:
    record = _read(_write(tmp_path / "a.csv", keys, _norms()))
    assert not [n for n in record.columns if n.startswith("grad_norm/")]


def test_signed_means_are_no_norms(tmp_path: Path) -> None:
    keys = tuple(f"gradients/{x}" for x in LAYERS)
    record = _read(_write(tmp_path / "a.csv", keys, _norms() - 0.2))
    assert not [n for n in record.columns if n.startswith("grad_norm/")]
    assert "gradients/fc1" in record.unread
