"""Values that are named by a call (`loss(x, y) = 2.5`) or by a comma (`Loss, 2.5`)."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import ReadError
from trimtab.readers import read_run

NOISE = np.random.default_rng(0).normal(0, 0.05, 40)
LOSS = [round(3.0 / (1 + i) + 0.5 + float(NOISE[i]), 4) for i in range(40)]


def write(tmp_path: Path, text: str, name: str = "some log") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["loss.csv", "out.txt"])
@pytest.mark.parametrize("form", ["Loss, {x}\n", "loss,{x}\n", "Train Loss, {x},\n"])
def test_a_name_and_its_value_parted_by_a_comma(tmp_path: Path, name: str, form: str) -> None:
    # As a trainer in C prints it: printf("Loss, %f\n", loss).
    record = read_run(write(tmp_path, "".join(form.format(x=x) for x in LOSS), name))
    assert record.columns["loss"].logged().tolist() == LOSS


def test_several_names_and_values_on_a_line(tmp_path: Path) -> None:
    rows = "".join(f"Epoch, {i}, Loss, {x}, Val Loss, {x + 1:.4f}\n" for i, x in enumerate(LOSS, 1))
    record = read_run(write(tmp_path, rows))
    assert (record.axis, record.step[-1]) == ("epoch", 40)
    assert record.columns["loss"].logged().tolist() == LOSS
    assert record.columns["val_loss"].logged()[0] == pytest.approx(LOSS[0] + 1)


def test_a_table_of_results_by_name_is_no_log(tmp_path: Path) -> None:
    rows = "accuracy, 0.91\nloss, 0.35\nf1, 0.88\nrecall, 0.9\nloss_test, 0.41\n"
    with pytest.raises(ReadError):
        read_run(write(tmp_path, rows, "results.csv"))
    names = "".join(f"{'abc'[i % 3]}, {x}\n" for i, x in enumerate(LOSS))
    with pytest.raises(ReadError):
        read_run(write(tmp_path, names, "scores.csv"))


@pytest.mark.parametrize(
    "form",
    [
        "loss(tx, ty) = {x}",
        "loss(X, Y) = {x} (tracked)",
        "loss(tx, ty) = {x}f0",
        "(loss(tx, ty), now()) = ({x}f0, 2020-04-21T20:48:{s:02d}.672)",
        "(loss(model(x), y), accuracy(x, y)) = ({x}f0, 0.5f0)",
        "[ Info: loss(m, x, y) = {x}",
        "loss_all(train_data...) = {x}",
    ],
)
def test_what_julia_shows_of_a_call_is_its_value(tmp_path: Path, form: str) -> None:
    # Flux calls back with `@show loss(tx, ty)`: an expression, and what it is.
    lines = []
    for i, x in enumerate(LOSS):
        if i % 20 == 0:
            lines.append(f"[ Info: Epoch {1 + i // 20}")
        lines.append(form.format(x=x, s=i))
    record = read_run(write(tmp_path, "\n".join(lines) + "\n"))
    assert record.columns["loss"].logged().tolist() == LOSS
    assert record.axis == "epoch"
    assert record.step[20] == 2


def test_numbers_of_32_bits_as_julia_writes_them(tmp_path: Path) -> None:
    small = [2.5, 1.25, 0.5, 0.0625, 0.03125, *[1e-2 / 2**k for k in range(20)]]
    shown = [f"{x:.6f}f0" if x > 0.02 else f"{x * 1e5:.6f}f-5" for x in small]
    lines = [f"loss(x, y) = {x}" for x in [*shown, "NaN32", "Inf32"]]
    record = read_run(write(tmp_path, "\n".join(lines) + "\n"))
    np.testing.assert_allclose(record.columns["loss"].logged()[:-2], small, rtol=1e-3)
    assert np.isnan(record.columns["loss"].logged()[-2])


def test_the_data_of_a_call_say_whether_it_is_held_out(tmp_path: Path) -> None:
    lines = [
        f"epoch = {i}\nloss(train_x, train_y) = {x}\nloss(test_x, test_y) = {x + 1:.4f}"
        for i, x in enumerate(LOSS)
    ]
    record = read_run(write(tmp_path, "\n".join(lines) + "\n"))
    assert record.columns["loss"].logged().tolist() == LOSS
    assert record.columns["val_loss"].logged()[0] == pytest.approx(LOSS[0] + 1)


def test_definitions_in_source_code_are_no_values(tmp_path: Path) -> None:
    lines = [
        "using Flux",
        "loss(x, y) = Flux.mse(m(x), y)",
        "loss2(x, y) = 0.5 * sum(abs2, m(x) .- y)",
        "penalty(m, l) = 0.01 * l",
        "evalcb = () -> @show(loss(X, Y))",
        "opt = ADAM(0.001)",
    ]
    with pytest.raises(ReadError):
        read_run(write(tmp_path, "\n".join(lines) + "\n", "train.jl"))


@pytest.mark.parametrize(
    ("trained", "tested"),
    [
        ("(X, Y)", "(Xt,Yt)"),
        ("(x, y)", "(xv, yv)"),
        ("(X, Y)", "(tX, tY)"),
        ("(m, x, y)", "(m, x_t, y_t)"),
        ("(xtr, ytr)", "(xte, yte)"),
        ("(A, b)", "(C, d)"),
    ],
)
def test_a_second_call_with_other_arguments_is_of_held_out_data(
    tmp_path: Path, trained: str, tested: str
) -> None:
    lines = []
    for i, x in enumerate(LOSS, 1):
        lines.append(f"Epoch: {i}\nloss{trained} = {x}f0")
        said = f"(accuracy{tested}, loss{tested}) = (0.{50 + i}f0, {x + 1:.4f}f0)"
        lines.append(said)
    record = read_run(write(tmp_path, "\n".join(lines) + "\n"))
    assert record.columns["loss"].logged().tolist() == LOSS
    assert record.columns["val_loss"].logged().tolist() == [round(x + 1, 4) for x in LOSS]
    assert record.columns["eval_score"].logged()[0] == 0.51


def test_marks_of_held_out_data_go_before_the_order(tmp_path: Path) -> None:
    lines = [f"loss(xt, yt) = {x + 1:.4f}\nloss(x, y) = {x}\n" for x in LOSS]
    record = read_run(write(tmp_path, "".join(lines)))
    assert record.columns["loss"].logged().tolist() == LOSS
    assert record.columns["val_loss"].logged()[-1] == pytest.approx(LOSS[-1] + 1)


def test_other_arguments_in_a_second_phase_are_no_held_out_data(tmp_path: Path) -> None:
    phases = [f"loss({a}) = {x}\n" for a in ("x1, y1", "x2, y2") for x in LOSS]
    record = read_run(write(tmp_path, "".join(phases)))
    assert record.columns["loss"].logged().tolist() == LOSS * 2


def test_the_two_losses_of_a_game_are_no_two_sets(tmp_path: Path) -> None:
    lines = [f"loss(G, real) = {2 + k / 9:.4f}\nloss(D, fake) = {3 + k / 7:.4f}" for k in range(60)]
    path = tmp_path / "out.txt"
    path.write_text("\n".join(lines) + "\n")
    assert "val_loss" not in read_run(path).columns
