"""Folds, seeds and trials in one file: each is a run of its own, and the border tells nothing."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run

HEADS = {
    "fold": (
        "======== FOLD {n} / 4 ========",
        "Epoch {e}/{num} - loss: {loss:.4f} - val_loss: {val:.4f}",
    ),
    "no total": ("Fold {n}", "epoch {e}: loss={loss:.4f} val_loss={val:.4f}"),
    "bars": ("#### fold={n}", "[{e}/{num}] train_loss {loss:.4f} valid_loss {val:.4f}"),
    "trial": (
        "[I 2026-03-02 10:0{n}:00,111] Trial {n} started with parameters: {{'lr': 0.001}}",
        "  Epoch  {e} | train {loss:.4f} | val {val:.4f} | acc {acc:.3f}",
    ),
    "keras": (
        "Training for fold {n} ...",
        "Epoch {e}/{num}\n32/32 - 1s - loss: {loss:.4f} - val_loss: {val:.4f} - 1s/epoch",
    ),
    "seed on the line": ("", "seed={n} epoch={e} loss={loss:.4f} val_loss={val:.4f}"),
    "no name": ("", "Epoch {e}/{num}: loss={loss:.4f}, val_loss={val:.4f}"),
}


def _curve(num: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=num)
    t = np.arange(num)
    curve: np.ndarray = (0.4 + 0.9 * np.exp(-t / 3)) * (1 + 0.03 * noise)
    return curve


def _write(path: Path, form: str, curves: Sequence[np.ndarray]) -> Path:
    head, row = HEADS[form]
    lines = []
    for n, curve in enumerate(curves, 1):
        lines.append(head.format(n=n))
        for e, loss in enumerate(curve.tolist(), 1):
            shown = {"loss": loss, "val": 1.1 * loss + 0.03, "acc": 1 - loss / 4}
            lines.append(row.format(n=n, e=e, num=len(curve), **shown))
    path.write_text("\n".join(lines) + "\n")
    return path


def _alarms(path: Path) -> list[tuple[str, str]]:
    found = trimtab.analyze(path)
    return [(i.incident.attempt, i.kind) for i in found.incidents if i.severity != "info"]


@pytest.mark.parametrize("num", [8, 12, 30])
@pytest.mark.parametrize("form", HEADS)
def test_each_run_is_judged_alone(tmp_path: Path, form: str, num: int) -> None:
    path = _write(tmp_path / "log.txt", form, [_curve(num, s) for s in range(4)])
    record = read_run(path)
    assert [a.end_row - a.first_row for a in record.attempts] == [num] * 4
    assert [a.parent for a in record.attempts] == [None] * 4
    assert sum("4 runs in this file" in n for n in record.notes) == 1
    assert _alarms(path) == []


def test_what_breaks_in_one_run_is_told_of_that_run(tmp_path: Path) -> None:
    curves = [_curve(30, s) for s in range(4)]
    curves[2][20:] = np.nan
    assert _alarms(_write(tmp_path / "log.txt", "fold", curves)) == [("1.2", "non-finite")]


@pytest.mark.parametrize("aside", [False, True])
def test_a_column_of_seeds_parts_the_rows(tmp_path: Path, aside: bool) -> None:
    rows = [(s, e, x) for s in range(4) for e, x in enumerate(_curve(25, s).tolist())]
    if aside:  # one epoch of every seed after the other
        rows.sort(key=lambda row: row[1])
    lines = [f"{s},{e},{x:.4f}" for s, e, x in rows]
    (tmp_path / "log.csv").write_text("\n".join(["seed,epoch,train_loss", *lines]))
    record = read_run(tmp_path / "log.csv")
    assert [a.parent for a in record.attempts] == [None] * 4
    assert [a.why for a in record.attempts[1:]] == ["seed 1", "seed 2", "seed 3"]
    assert [a.end_row - a.first_row for a in record.attempts] == [25] * 4
    assert _alarms(tmp_path / "log.csv") == []


def test_a_resume_under_a_numbered_heading_goes_on(tmp_path: Path) -> None:
    loss = 2 + 3 * np.exp(-np.arange(200) / 40)
    lines = [f"step {i} loss {x:.4f}" for i, x in enumerate(loss.tolist())]
    text = "\n".join(["Run 1", *lines[:120], "Run 2", *lines[100:]])
    (tmp_path / "log.txt").write_text(text)
    assert [a.parent for a in read_run(tmp_path / "log.txt").attempts] == [None, "1.0"]


def test_parts_of_an_epoch_that_are_numbered_are_no_runs(tmp_path: Path) -> None:
    loss = iter(2 + 3 * np.exp(-np.arange(120) / 40))
    lines = [
        line
        for epoch in range(5)
        for part in range(4)
        for line in (
            f"split {part}",
            *(
                f"epoch {epoch} step {24 * epoch + 6 * part + k} loss {next(loss):.4f}"
                for k in range(6)
            ),
        )
    ]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    assert len(read_run(tmp_path / "log.txt").attempts) == 1


def test_words_in_a_column_name_the_runs(tmp_path: Path) -> None:
    lines = ["Model,Epoch,Train Loss,Val Loss"]
    names = ("LeNet", "VGG16", "<b>ResNet18</b>")
    for n, name in enumerate(names):
        for e, loss in enumerate(_curve(10, n).tolist(), 1):
            lines.append(f"{name},{e},{loss:.4f},{1.1 * loss:.4f}")
    path = tmp_path / "metrics.csv"
    path.write_text("\n".join(lines) + "\n")
    record = read_run(path)
    assert [a.parent for a in record.attempts] == [None] * 3
    assert any("3 runs in this file" in n for n in record.notes)
    assert _alarms(path) == []
    # What all rows have, and what each has once, names no runs.
    for word in ("LeNet", None):
        rows = [",".join((word or f"m{k}", *x.split(",")[1:])) for k, x in enumerate(lines[1:])]
        path.write_text("\n".join([lines[0], *rows]) + "\n")
        assert not any("runs in this file" in n for n in read_run(path).notes)


def test_what_is_said_between_headings_counts_nothing(tmp_path: Path) -> None:
    lines, rng = [], np.random.default_rng(4)
    for num in (19, 14, 19, 14):
        for e in range(1, num + 1):
            lines.append(f"Epoch {e}/50")
            if e == num and num == 14:
                lines.append(f"Epoch {e - 1:05d}: early stopping")
            loss = 0.05 + 3.5 * np.exp(-e / 2) + 0.003 * rng.normal()
            lines.append(f"224s - loss: {loss:.4f} - acc: {1 - loss / 5:.4f}")
    path = tmp_path / "log.txt"
    path.write_text("\n".join(lines) + "\n")
    record = read_run(path)
    assert record.axis == "epoch"
    assert len(record.attempts) == 4
    assert _alarms(path) == []
