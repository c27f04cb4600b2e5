"""Several ranks in one file: one is judged, the others are held against it, and none is dropped."""

import json
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.api.analysis import Analysis
from trimtab.readers import read_run

NUM, RANKS, ODD, SINCE = 240, 4, 2, 140
FORMS = {
    "jsonl": '{{"rank": {r}, "step": {i}, "loss": {loss}, "step_time": {time:.4f}}}',
    "tag": "[rank{r}] step={i} loss={loss} gnorm={norm:.4f}",
    "torchrun": "[default{r}]:step {i} | loss {loss} | lr 3.0e-4",
    "time in front": "2026-03-02 09:14:04 [rank{r}] step={i} loss={loss} time={time:.3f}s",
    "gpu": "GPU{r}: Epoch 0 Step {i} Loss {loss}",
}


def _write(
    path: Path,
    form: str,
    wrong: str = "",
    *,
    odd: int = ODD,
    ranks: int = RANKS,
    since: int = SINCE,
) -> Path:
    """Write a log whose odd rank goes wrong from a step on."""
    rng = np.random.default_rng(1)
    lines = []
    for i in range(NUM):
        common = 2.2 + 2.5 * np.exp(-i / 40) + 0.03 * rng.normal()
        for r in range(ranks):
            bad = r == odd and i >= since
            loss = (common + 0.03 * rng.normal()) * (1.5 if bad and wrong == "loss" else 1.0)
            shown = "NaN" if bad and wrong == "nan" else f"{loss:.4f}"
            time = 0.5 * (1 + 0.02 * rng.normal()) * (3 if bad and wrong == "slow" else 1)
            norm = np.exp(0.1 * rng.normal()) * (4 if bad and wrong == "norm" else 1)
            lines.append(FORMS[form].format(r=r, i=i, loss=shown, time=time, norm=norm))
    path.write_text("\n".join(lines) + "\n")
    return path


def _alarms(found: Analysis) -> list[tuple[str, str]]:
    return [(i.severity, i.headline) for i in found.incidents if i.severity != "info"]


@pytest.mark.parametrize("form", FORMS)
def test_nan_on_another_rank_is_critical_and_names_it(tmp_path: Path, form: str) -> None:
    path = _write(tmp_path / "run.log", form, "nan")
    found = trimtab.analyze(path)
    assert read_run(path).num_loss_rows == NUM
    ((severity, headline),) = _alarms(found)
    assert severity == "critical"
    assert f"loss of rank {ODD} is not finite" in headline


def test_nan_on_the_first_rank_alone_is_told_with_the_rank(tmp_path: Path) -> None:
    path = _write(tmp_path / "run.log", "tag", "nan", odd=0)
    found = trimtab.analyze(path)
    assert [severity for severity, _ in _alarms(found)] == ["critical"]
    assert any(n.startswith("the loss of rank 0 is NaN or Inf") for n in read_run(path).notes)


@pytest.mark.parametrize(
    ("form", "wrong", "words"),
    [
        ("time in front", "loss", "loss of rank 2 leaves the others for good"),
        ("gpu", "loss", "loss of rank 2 leaves the others for good"),
        ("tag", "norm", "gradient norm of rank 2 leaves the others for good"),
        ("jsonl", "slow", "time of a step of rank 2 leaves the others for good"),
    ],
)
def test_a_rank_that_leaves_the_others_is_told(
    tmp_path: Path, form: str, wrong: str, words: str
) -> None:
    alarms = _alarms(trimtab.analyze(_write(tmp_path / "run.log", form, wrong)))
    assert [words in headline for _, headline in alarms] == [True]


def test_of_two_ranks_the_worse_one_is_told(tmp_path: Path) -> None:
    path = _write(tmp_path / "run.log", "tag", "loss", odd=1, ranks=2)
    assert ["rank 1 leaves" in text for _, text in _alarms(trimtab.analyze(path))] == [True]


def test_a_rank_that_is_slow_from_the_first_row_is_told(tmp_path: Path) -> None:
    path = _write(tmp_path / "run.jsonl", "jsonl", "slow", since=0)
    ((_, headline),) = _alarms(trimtab.analyze(path))
    assert "time of a step of rank 2 leaves the others from the first row on" in headline


@pytest.mark.parametrize("form", FORMS)
def test_ranks_that_differ_by_noise_are_quiet(tmp_path: Path, form: str) -> None:
    path = _write(tmp_path / "run.log", form)
    found = trimtab.analyze(path)
    assert _alarms(found) == []
    assert any("3 other ranks compared with it" in n for n in read_run(path).notes)


def test_rows_of_one_step_belong_together_whatever_their_order(tmp_path: Path) -> None:
    rows = [
        {"rank": r, "step": i, "loss": 3.0 - 0.01 * i + r} for r in (0, 1, 2) for i in range(40)
    ]
    del rows[45]  # step 5 of rank 1
    (tmp_path / "run.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    record = read_run(tmp_path / "run.jsonl")
    other = record.columns["rank 1/loss"]
    assert np.flatnonzero(~other.present).tolist() == [5]
    gap = other.logged() - np.delete(record.columns["loss"].values, 5)
    assert gap == pytest.approx(np.ones(39))


def test_a_rank_without_any_finite_loss_leaves_no_healthy_verdict(tmp_path: Path) -> None:
    path = _write(tmp_path / "run.jsonl", "jsonl", "nan", since=0)
    found = trimtab.analyze(path)
    assert found.verdict == "not-judged"
    assert any("loss of rank 2 is never finite" in n for n in read_run(path).notes)
