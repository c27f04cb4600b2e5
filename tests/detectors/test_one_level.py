"""A loss that is made of something else from a row on, by a setting that the log states itself."""

import json
from pathlib import Path

import numpy as np
import pytest

from trimtab import analyze

N, AT = 300, 180


def _curve(seed: int = 1) -> np.ndarray:
    rng, t = np.random.default_rng(seed), np.arange(N)
    return 1.2 + 1.3 * np.exp(-t / 50) + 0.03 * rng.standard_normal(N)


def _write(path: Path, loss: np.ndarray, key: str, setting: np.ndarray) -> Path:
    rows = [
        {"step": 10 * i, "loss": float(loss[i]), key: float(setting[i])} for i in range(len(loss))
    ]
    if path.suffix == ".csv":
        lines = [f"step,loss,{key}", *(",".join(map(str, r.values())) for r in rows)]
    elif path.suffix == ".log":
        lines = [f"step {r['step']} | loss {r['loss']:.4f} | {key} {r[key]:g}" for r in rows]
    else:
        lines = [json.dumps(r) for r in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def _from(value: float, row: int = AT) -> np.ndarray:
    return value * (np.arange(N) >= row)


SOUND = {
    "label_smoothing": (_from(0.4), 0.1 * _from(1)),
    "temperature": (_from(-0.3), 0.1 + 0.1 * _from(1)),
    "aux_weight": (_from(0.5), 0.1 + 0.4 * _from(1)),
    "num_negatives": (_from(0.6), 256 + 768 * _from(1)),
    "img_size": (
        _from(0.25) * np.exp(-np.maximum(np.arange(N) - AT, 0) / 40),
        160 + 64 * _from(1),
    ),
    "lambda_kl": (_from(0.2) + _from(0.2, 240), _from(0.5) + _from(0.5, 240)),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".log"])
@pytest.mark.parametrize("key", SOUND)
def test_a_step_at_a_change_that_the_log_states_is_a_note(
    tmp_path: Path, key: str, suffix: str
) -> None:
    step, setting = SOUND[key]
    found = analyze(_write(tmp_path / f"run{suffix}", _curve() + step, key, setting))
    assert found.verdict == "healthy"
    notes = [ia.incident for ia in found.incidents]
    assert {n.severity for n in notes} == {"info"}
    told = [f.text for n in notes if n.onset == 10 * AT for f in n.findings]
    assert any(key in text.replace(" ", "_") for text in told)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("later", _from(0.4, AT + 30)),
        ("goes on", 0.004 * np.maximum(np.arange(N) - AT, 0)),
        ("no number", np.where(np.arange(N) >= AT, np.nan, 0.0)),
    ],
)
def test_what_comes_later_or_goes_on_is_an_alarm(
    tmp_path: Path, name: str, step: np.ndarray
) -> None:
    path = _write(tmp_path / "run.jsonl", _curve() + step, "label_smoothing", 0.1 * _from(1))
    assert analyze(path).verdict != "healthy"


def test_a_key_that_is_measured_is_no_setting(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    measured = 0.5 + 0.1 * rng.standard_normal(N) + _from(0.3)
    path = _write(tmp_path / "run.jsonl", _curve() + _from(0.4), "mask_ratio", measured)
    found = analyze(path)
    assert found.verdict == "incident"
    assert found.incidents[0].incident.onset == 10 * AT


def test_a_step_without_a_change_is_an_alarm(tmp_path: Path) -> None:
    path = _write(tmp_path / "run.jsonl", _curve() + _from(0.4), "num_views", np.full(N, 2.0))
    assert analyze(path).verdict == "incident"


def test_values_are_told_as_they_were_logged(tmp_path: Path) -> None:
    loss = _curve() + _from(0.4) + _from(0.5, AT + 60)
    path = _write(tmp_path / "run.jsonl", loss, "label_smoothing", 0.1 * _from(1))
    alarms = [ia.incident for ia in analyze(path).incidents if ia.severity != "info"]
    rises = [f for f in alarms[0].findings if f.kind == "unrecovered-spike"]
    assert rises[0].value > 1.9
    assert rises[0].expected == pytest.approx(1.6, abs=0.1)


def test_a_stage_in_numbers_is_read_from_a_table(tmp_path: Path) -> None:
    wears_off = _from(0.4) * np.exp(-np.maximum(np.arange(N) - AT, 0) / 40)
    path = _write(tmp_path / "run.csv", _curve() + wears_off, "stage", 1 + _from(1))
    assert analyze(path).verdict == "healthy"


SINCE = np.maximum(np.arange(N) - AT, 0)
BEYOND = {
    "near zero: targets leak, or nothing is counted": _from(1) * (0.001 - _curve()),
    "back where it began: a broken model": _from(1) * (2.5 + 0.004 * np.sin(SINCE) - _curve()),
    "climbs over some rows": _from(1) * 0.9 * (1 - np.exp(-SINCE / 3)),
    "a second edge, five rows later": _from(0.2) + _from(0.8, AT + 5),
    "far above its start": _from(40.0),
}


@pytest.mark.parametrize("what", BEYOND)
def test_what_a_setting_cannot_do_is_an_alarm(tmp_path: Path, what: str) -> None:
    path = _write(tmp_path / "run.csv", _curve() + BEYOND[what], "label_smoothing", 0.1 * _from(1))
    assert analyze(path).verdict != "healthy"


def test_a_norm_that_breaks_in_the_same_row_is_an_alarm(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    loss, norm = _curve() + _from(0.3), np.exp(0.1 * rng.standard_normal(N))
    for factor in (0.0, 30.0):
        rows = [
            {
                "step": i,
                "loss": float(loss[i]),
                "grad_norm": float(norm[i] * (factor if i >= AT else 1)),
                "label_smoothing": 0.1 * (i >= AT),
            }
            for i in range(N)
        ]
        path = tmp_path / f"run{factor:g}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        assert analyze(path).verdict != "healthy"


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("queue_size", 64, 0),
        ("temperature", 61, 62),
        ("world_size", 64, 63),
        ("num_restored", 0, 1),
        ("buffer_level", 9, 1),
        ("p_value", 0.2, 0.8),
        ("version", 3, 4),
    ],
)
def test_counters_and_gauges_excuse_nothing(
    tmp_path: Path, key: str, old: float, new: float
) -> None:
    path = _write(tmp_path / "run.csv", _curve() + _from(0.6), key, old + _from(new - old))
    assert analyze(path).verdict == "incident"


def test_settings_that_change_at_different_rows_are_all_seen(tmp_path: Path) -> None:
    loss = _curve() + _from(0.4, 120) + _from(0.3, 210)
    lines = ["step,loss,label_smoothing,temperature"]
    lines += [f"{i},{loss[i]:.5f},{0.1 * (i >= 120)},{0.1 + 0.4 * (i >= 210)}" for i in range(N)]
    path = tmp_path / "run.csv"
    path.write_text("\n".join(lines) + "\n")
    found = analyze(path)
    assert found.verdict == "healthy"
    texts = [f.text for ia in found.incidents for f in ia.incident.findings]
    assert any("one of label_smoothing, temperature is changed" in t for t in texts)
    assert not {"label_smoothing", "temperature"} & set(found.runs[0].record.unread)


def _curriculum(seed: int) -> np.ndarray:
    """Four levels of 15 epochs, each harder than where the loss began."""
    rng, t = np.random.default_rng(seed), np.arange(60)
    level = np.array([0.0, 0.33, 0.9, 1.4])[t // 15]
    return (
        level
        + 0.12 * np.exp(-(t % 15) / 5)
        + 0.6 * np.exp(-t / 3)
        + 0.03
        + 0.004 * rng.standard_normal(60)
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_curriculum_may_take_the_loss_above_its_start_and_a_score_down(seed: int) -> None:
    stage = (np.arange(60) // 15).astype(float)
    score = 0.99 - 0.2 * stage + 0.002 * np.random.default_rng(seed).standard_normal(60)
    columns = {"epoch": np.arange(60.0), "train_loss": _curriculum(seed), "val_acc": score}
    assert analyze({**columns, "curriculum/level": stage}).verdict != "incident"
    assert analyze(columns).verdict == "incident"


@pytest.mark.parametrize("to", [2.3, 1e4])
def test_a_curriculum_excuses_no_guess_and_no_explosion(to: float) -> None:
    rng, t = np.random.default_rng(0), np.arange(120)
    loss = np.where(t < 60, 0.2 + 0.4 * np.exp(-t / 10), to) + 0.005 * rng.standard_normal(120)
    columns = {"epoch": np.arange(120.0), "train_loss": loss}
    assert analyze({**columns, "curriculum/level": (t >= 60).astype(float)}).verdict == "incident"
