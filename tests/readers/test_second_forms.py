"""Validation on lines of a form of its own, and norms between bars, beside lines of training."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run
from trimtab.readers.given_columns import columns_given

N, EVERY = 60, 5
LOSS = 0.3 + 4 / (1 + 0.1 * np.arange(1, N + 1))
VAL = LOSS[EVERY - 1 :: EVERY] + 0.2

FORMS = (
    "  >> held-out nll after {step}: {loss}",
    "held-out nll at {step}: {loss}",
    "val nll @ {step}: {loss}",
    "val_loss@{step}: {loss}",
    "eval @ {step}: loss {loss}",
    "held-out nll after {step} steps: {loss}",
    "validation nll (after {step}): {loss}",
    "validation nll [step {step}]: {loss}",
    "unseen nll after {step} = {loss}",
    "nll on held-out data after {step}: {loss}",
    "nll on the validation set after {step} is {loss}",
    "nll (held-out): {loss}",
    "held-out: {loss}",
    "held-out nll {loss} (after {step})",
    "held-out nll after {step} steps {loss}",
    "validation loss (after {step} updates) {loss}",
    "val loss at step {step} {loss}",
)
NORMS = ("|g| {g}", "||g|| {g}", "||g||_2={g}", "\u2016g\u2016={g}", "|grad| {g}", "|\u2207|: {g}")


def write(folder: Path, second: str = "", norm: str = "gnorm {g}") -> Path:
    lines: list[str] = []
    for i in range(1, N + 1):
        lines.append(
            f"~ it={10 * i:05d} | nll {LOSS[i - 1]:.4f} nats | {norm.format(g=f'1.{i:03d}')} | eta=3.00e-05"
        )
        if second and i % EVERY == 0:
            lines.append(second.format(step=10 * i, loss=f"{LOSS[i - 1] + 0.2:.4f}"))
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("form", FORMS)
def test_validation_behind_a_count(tmp_path: Path, form: str) -> None:
    record = read_run(write(tmp_path, form))
    assert record.columns["loss"].logged() == pytest.approx(LOSS, abs=1e-4)
    column = record.columns["val_loss"]
    assert column.logged() == pytest.approx(VAL, abs=1e-4)
    assert record.step[column.present].tolist() == [50.0 * k for k in range(1, N // EVERY + 1)]


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("held-out loss after {k} epochs {value}", "val_loss"),
        ("test loss after epoch {k} {value}", "val_loss"),
        ("validation perplexity after {k} epochs {value}", "val_perplexity"),
        ("validation accuracy after {k} epochs {value}", "eval_score"),
    ],
)
def test_a_value_behind_what_is_counted_without_a_sign(
    tmp_path: Path, form: str, name: str
) -> None:
    path = tmp_path / "train.log"
    with path.open("w") as log:
        for k in range(1, 9):
            for i in range(10):
                log.write(f"epoch {k} step {100 * k + 10 * i} loss {4 - k / 10 - i / 100:.3f}\n")
            log.write(form.format(k=k, value=f"{4 - 0.09 * k:.2f}") + "\n")
    values = read_run(path).columns[name].logged()
    assert values == pytest.approx(4 - 0.09 * np.arange(1, 9), abs=0.006)


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_between_bars(tmp_path: Path, norm: str) -> None:
    path = write(tmp_path, norm=norm)
    record = read_run(path)
    assert record.columns["grad_norm"].logged() == pytest.approx(1 + np.arange(1, N + 1) / 1000)
    with columns_given({"grad_norm": norm.partition("{")[0].strip(" :=")}):
        assert "grad_norm" in read_run(path).columns


def test_bars_of_cells_and_two_nets_are_no_norm(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            f"step {i} loss {2 / i:.4f} |d| 0.{500 + i} |g| 0.{700 + i}\n" for i in range(1, 40)
        )
    )
    assert "grad_norm" not in read_run(path).columns


@pytest.mark.parametrize("name", ["|g|", "||grad||"])
def test_a_column_between_bars(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        f"step,loss,{name}\n" + "".join(f"{i},{2 / i:.4f},1.{i}\n" for i in range(1, 40))
    )
    assert read_run(path).keys["grad_norm"] == name


def test_validation_in_a_form_that_is_not_read_is_said(tmp_path: Path) -> None:
    record = read_run(write(tmp_path, "we saw on validation, of nll kind, something like <{loss}>"))
    assert "val_loss" not in record.columns
    said = [note for note in record.notes if "held-out" in note]
    assert len(said) == 1
    assert "12 lines" in said[0]
    assert "line 6" in said[0]


def test_recall_at_a_count_is_no_loss(tmp_path: Path) -> None:
    record = read_run(write(tmp_path, "held-out recall at 5: 0.31, at 10: 0.42"))
    assert "val_loss" not in record.columns


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("recall at 5 0.31", "eval_score", 0.31),
        ("pass@1 0.31", "eval_score", 0.31),
        ("mAP@.5:.95 0.44", "eval_score", 0.44),
        ("scaler 65536", "loss_scale", 65536.0),
    ],
)
def test_a_count_in_a_name_is_no_value_and_a_whole_number_may_be_one(
    tmp_path: Path, words: str, name: str, value: float
) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "".join(f"step {10 * i} loss {4 - 0.03 * i:.3f} {words}\n" for i in range(1, 80))
    )
    record = read_run(path)
    assert set(record.columns[name].logged()) == {value}
    assert "loss" in record.columns


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("step {s} loss {v} Acc@1:0.31 0.5", {"accuracy": 0.31}),
        ("step {s} loss {v} recall@5:0.31 12.5s", {"eval_score": 0.31}),
        ("it@{s} 0.25 loss {v}", {}),
        ("step@{s} 0.5s loss {v}", {}),
        ("expected loss at step 1000 1.5; step {s} loss {v}", {}),
        ("step {s} loss {v}, val loss at step {s} 2.51s", {}),
    ],
)
def test_counts_times_and_what_is_expected_are_no_values(
    tmp_path: Path, line: str, values: dict[str, float]
) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "".join(line.format(s=10 * i, v=f"{4 - 0.03 * i:.3f}") + "\n" for i in range(1, 80))
    )
    record = read_run(path)
    assert record.columns["loss"].logged() == pytest.approx(4 - 0.03 * np.arange(1, 80))
    assert "val_loss" not in record.columns
    for name, value in values.items():
        assert set(record.columns[name].logged()) == {value}
    if not line.startswith("it"):
        assert record.step.tolist() == [10.0 * i for i in range(1, 80)]
