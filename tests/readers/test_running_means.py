"""Bars that print the mean since the epoch began: neither noise at its start nor a fault in it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import trimtab
from trimtab.readers import read_run

NUM_EPOCHS, NUM_BATCHES = 10, 120
Floats = NDArray[np.float64]


def losses(seed: int = 0) -> Floats:
    """Return the loss of each batch [epoch, batch] of a sound classifier of small batches."""
    t = np.arange(NUM_EPOCHS * NUM_BATCHES) / NUM_BATCHES
    noise = np.random.default_rng(seed).normal(size=len(t))
    level = 0.6 + 1.2 * np.exp(-t / 1.5)
    return (level * (1 + 0.2 * noise)).clip(0.05).reshape(NUM_EPOCHS, NUM_BATCHES)


def means(own: Floats) -> Floats:
    shown: Floats = own.cumsum(1) / np.arange(1, NUM_BATCHES + 1)
    return shown


def keras(shown: Floats, rest: str = ">.") -> str:
    """Each state of the bar, as a terminal that is no screen gets it."""
    lines = []
    for e, epoch in enumerate(shown.tolist(), 1):
        lines.append(f"Epoch {e}/{NUM_EPOCHS}\n")
        for i, x in enumerate(epoch, 1):
            bar = f"{'=' * (30 * i // NUM_BATCHES)}{rest[0]}".ljust(30, rest[1])[:30]
            lines.append(f"\r{i}/{NUM_BATCHES} [{bar}] - ETA: 0s - loss: {x:.4f}")
        lines.append("\n")
    return "".join(lines)


def blank(shown: Floats) -> str:
    return keras(shown, "  ")


def tqdm(shown: Floats) -> str:
    return "".join(
        f"\rEpoch {e}: {100 * i // NUM_BATCHES}%|{'#' * (i // 12)}| {i}/{NUM_BATCHES}"
        f" [00:00<00:10, 20.1it/s, loss={x:.4f}]"
        for e, epoch in enumerate(shown.tolist(), 1)
        for i, x in enumerate(epoch, 1)
    )


def table(shown: Floats) -> str:
    rows = [
        f"{e},{i},{x:.5f}" for e, epoch in enumerate(shown.tolist()) for i, x in enumerate(epoch)
    ]
    return "\n".join(["epoch,batch,loss", *rows]) + "\n"


def stepped(shown: Floats) -> str:
    return "".join(
        json.dumps({"step": e * NUM_BATCHES + i, "epoch": e, "loss": x}) + "\n"
        for e, epoch in enumerate(shown.tolist())
        for i, x in enumerate(epoch, 1)
    )


FORMS: list[Callable[[Floats], str]] = [keras, blank, tqdm, table, stepped]
NAMES: dict[Callable[[Floats], str], str] = {
    keras: "keras.txt",
    blank: "blank.txt",
    tqdm: "tqdm.txt",
    table: "log.csv",
    stepped: "log.jsonl",
}


def write(tmp_path: Path, form: Callable[[Floats], str], shown: Floats) -> Path:
    path = tmp_path / NAMES[form]
    path.write_text(form(shown))
    return path


def alarms(path: Path) -> list[tuple[str, float]]:
    found = trimtab.analyze(path).incidents
    return [(i.kind, i.incident.onset_row) for i in found if i.severity != "info"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(4))
def test_the_start_of_an_epoch_is_no_spike(
    tmp_path: Path, form: Callable[[Floats], str], seed: int
) -> None:
    assert alarms(write(tmp_path, form, means(losses(seed)))) == []


@pytest.mark.parametrize("form", FORMS)
def test_rows_hold_what_each_batch_adds(tmp_path: Path, form: Callable[[Floats], str]) -> None:
    record = read_run(write(tmp_path, form, means(losses())))
    loss = record.columns["loss"]
    own = loss.values[loss.present]
    # A rounded mean of 120 batches leaves an error of 120 times its last digit, by sqrt(6).
    assert own == pytest.approx(losses().ravel(), abs=0.013)
    assert any("printed as the mean since the epoch began" in n for n in record.notes)


@pytest.mark.parametrize("form", FORMS)
def test_a_spike_within_an_epoch_is_told(tmp_path: Path, form: Callable[[Floats], str]) -> None:
    own = losses()
    own[6, 70:80] += 4.0
    told = alarms(write(tmp_path, form, means(own)))
    assert [kind for kind, _ in told] == ["spike"]
    assert told[0][1] == pytest.approx(6 * NUM_BATCHES + 70, abs=NUM_BATCHES / 2 + 5)


@pytest.mark.parametrize("form", FORMS)
def test_nan_within_an_epoch_is_told(tmp_path: Path, form: Callable[[Floats], str]) -> None:
    own = losses()
    own[6, 70] = np.nan
    assert [kind for kind, _ in alarms(write(tmp_path, form, means(own)))][:1] == ["non-finite"]


@pytest.mark.parametrize("form", FORMS[1:])
def test_losses_of_single_batches_stay(tmp_path: Path, form: Callable[[Floats], str]) -> None:
    own = losses()
    record = read_run(write(tmp_path, form, own))
    assert record.columns["loss"].logged() == pytest.approx(own.ravel(), abs=1e-3)
    own[6, :6] += 4.0
    assert [kind for kind, _ in alarms(write(tmp_path, form, own))] == ["spike"]


def test_too_few_digits_are_made_good_by_more_rows(tmp_path: Path) -> None:
    shown = np.round(means(losses()), 2)
    path = write(tmp_path, tqdm, shown)
    assert alarms(path) == []
    loss = read_run(path).columns["loss"]
    assert NUM_EPOCHS <= loss.present.sum() <= NUM_EPOCHS * NUM_BATCHES / 4


@pytest.mark.parametrize("form", FORMS)
def test_a_log_that_ends_within_an_epoch_is_read_as_well(
    tmp_path: Path, form: Callable[[Floats], str]
) -> None:
    path = write(tmp_path, form, means(losses(11)))
    text = path.read_text()
    path.write_text(text[: int(0.22 * len(text))])
    assert alarms(path) == []
