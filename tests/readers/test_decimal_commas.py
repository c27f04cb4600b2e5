"""Printed lines whose fractions have a comma: throughout, or beside others that have a point."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run

N = 60
NOISE = np.random.default_rng(0).normal(0, 0.02, (2, N))
LOSS = 0.3 + 4 / (1 + 0.1 * np.arange(N)) + NOISE[0]
VAL = LOSS + 0.2 + NOISE[1]


def comma(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}".replace(".", ",")


FORMS = {
    "only commas": "step {step} nll {loss} lr 0,001",
    "commas part the values, too": "step {step}, loss: {loss}, val_loss: {val}, lr: 0,001",
    "beside points": "~ it={step:05d} | nll {loss} nats | |g| 1.{step:03d} | eta=3.00e-05 | chars {step}68",
    "in quotes": 'step {step}: {{"loss": "{loss}", "lr": 0.001, "acc": 0.{step:03d}}}',
    "thousands beside them": "step {step} loss {loss} acc 0.{step:03d} mem 0.5 tokens 1,{step:03d},000",
}


def write(folder: Path, form: str, digits: int = 4) -> Path:
    path = folder / "train.log"
    path.write_text(
        "\n".join(
            form.format(step=i + 1, loss=comma(LOSS[i], digits), val=comma(VAL[i], digits))
            for i in range(N)
        )
    )
    return path


@pytest.mark.parametrize("digits", [2, 3, 4])
@pytest.mark.parametrize("form", FORMS)
def test_fractions_keep_their_digits(tmp_path: Path, form: str, digits: int) -> None:
    record = read_run(write(tmp_path, FORMS[form], digits))
    assert record.step.tolist() == [*range(1, N + 1)]
    assert record.columns["loss"].logged() == pytest.approx(LOSS, abs=0.6 * 10.0**-digits)
    if "{val}" in FORMS[form]:
        assert record.columns["val_loss"].logged() == pytest.approx(VAL, abs=0.6 * 10.0**-digits)
    if "tokens" in FORMS[form]:
        assert record.columns["tokens_seen"].logged()[:2].tolist() == [1001000.0, 1002000.0]


def test_keras_with_commas_in_its_losses(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "\n".join(
            f"Epoch {i + 1}/{N}\n5/5 [==============================] - 0s 2ms/step - loss:"
            f" {comma(LOSS[i])} - accuracy: 0.{100 + i} - val_loss: {comma(VAL[i])} - val_accuracy:"
            f" 0.{110 + i}"
            for i in range(N)
        )
    )
    record = read_run(path)
    assert record.columns["loss"].logged() == pytest.approx(LOSS, abs=1e-4)
    assert record.columns["val_loss"].logged() == pytest.approx(VAL, abs=1e-4)
    assert any("decimal commas" in note and "'val_loss'" in note for note in record.notes)


def test_thousands_and_lists_stay_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "\n".join(
            f"step {i + 1:,} loss {LOSS[i]:.4f} tokens {i + 1},{100 + i} size 32,32 betas 0.9,0.95 gpus 0,1"
            for i in range(N)
        )
    )
    record = read_run(path)
    assert record.columns["loss"].logged() == pytest.approx(LOSS, abs=1e-4)
    assert record.columns["tokens_seen"].logged()[-1] == 60159.0
    assert not any("comma" in note for note in record.notes)


def test_what_may_be_thousands_or_fractions_is_said(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "\n".join(f"step {i + 1} loss {comma(LOSS[i] + 1, 3)} acc 0.{100 + i}" for i in range(N))
    )
    record = read_run(path)
    assert any("'loss'" in note and "thousands" in note for note in record.notes)
