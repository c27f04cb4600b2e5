"""Numbers that are printed as an object of a library, and columns whose names have blanks."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run

N = 30
LOSS = [round(3 / (1 + 0.05 * i), 4) if i != 20 else float("nan") for i in range(N)]

OBJECTS = (
    "tensor({}, grad_fn=<NllLossBackward0>)",
    "tensor([{}], device='cuda:0')",
    "tensor({}, device='cuda:1', grad_fn=<NllLossBackward0>)",
    "array({}, dtype=float32)",
    "array([{}], dtype=float32)",
    "np.float32({})",
    "Array({}, dtype=float32, weak_type=True)",
    "DeviceArray({}, dtype=float32)",
    "tf.Tensor({}, shape=(), dtype=float32)",
    "<tf.Tensor: shape=(), dtype=float32, numpy={}>",
    "torch.tensor([[{}]])",
)


@pytest.mark.parametrize("printed", OBJECTS)
@pytest.mark.parametrize(
    "form", ["step {i} loss {loss}", "step {i} loss: {loss}", "{{'step': {i}, 'loss': {loss}}}"]
)
def test_the_number_in_an_object_is_the_loss(tmp_path: Path, form: str, printed: str) -> None:
    path = tmp_path / "run.log"
    lines = [form.format(i=i, loss=printed.format(value)) for i, value in enumerate(LOSS)]
    path.write_text("\n".join(lines) + "\n")
    record = read_run(path)
    np.testing.assert_array_equal(record.columns["loss"].logged(), LOSS)
    assert record.step.tolist() == list(range(N))
    assert not record.unread


@pytest.mark.parametrize(
    ("names", "axis"),
    [
        (("Epoch", "Train Loss", "Valid Loss"), "epoch"),
        (("epoch nr", "train loss", "test loss"), "epoch"),
        (("Iteration nr", "Training loss", "Validation loss"), "step"),
        (("Step #", "Train Loss", "Val Loss"), "step"),
    ],
)
@pytest.mark.parametrize("gap", ["  ", "   ", ","])
def test_names_with_blanks(tmp_path: Path, names: tuple[str, ...], axis: str, gap: str) -> None:
    widths = [max(len(name), 8) for name in names] if gap != "," else [0] * len(names)
    rows = [(str(i + 1), f"{value}", f"{value + 0.5:.4f}") for i, value in enumerate(LOSS)]
    text = "\n".join(
        gap.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in [names, *rows]
    )
    path = tmp_path / "run.log"
    path.write_text(text + "\n")
    record = read_run(path)
    assert record.axis == axis
    assert record.step.tolist() == list(range(1, N + 1))
    np.testing.assert_array_equal(record.columns["loss"].logged(), LOSS)
    assert np.isnan(record.columns["val_loss"].logged()[20])


@pytest.mark.parametrize("set_to", ["left", "right"])
def test_an_empty_cell_of_a_fixed_width_is_missing(tmp_path: Path, set_to: str) -> None:
    names = ("Epoch", "Train Loss", "Validation Loss", "Learning Rate")
    rows = [
        (str(i + 1), str(value), f"{value + 0.5:.4f}" if i % 5 == 4 else "", "0.001")
        for i, value in enumerate(LOSS)
    ]
    text = "\n".join(
        "".join(c.ljust(20) if set_to == "left" else c.rjust(20) for c in row)
        for row in [names, *rows]
    )
    path = tmp_path / "run.log"
    path.write_text(text + "\n")
    record = read_run(path)
    np.testing.assert_array_equal(record.columns["loss"].logged(), LOSS)
    assert record.step[record.columns["val_loss"].present].tolist() == [5, 10, 15, 20, 25, 30]
    assert record.columns["lr"].present.all()


def test_a_number_in_a_name_breaks_no_header(tmp_path: Path) -> None:
    text = "\n".join(
        "".join(c.ljust(14) for c in row)
        for row in [
            ("Epoch", "Train Loss", "R^2 score"),
            *((str(i), str(value), "0.5") for i, value in enumerate(LOSS)),
        ]
    )
    path = tmp_path / "run.log"
    path.write_text(text + "\n")
    np.testing.assert_array_equal(read_run(path).columns["loss"].logged(), LOSS)


def test_a_name_with_its_value_heads_no_table(tmp_path: Path) -> None:
    lines = [f"step:{i}/30 train_loss:{value}" for i, value in enumerate(LOSS)]
    lines.append("final_exact val_loss:2.09528780 val_bpb:1.24094745")
    lines += ["peak memory allocated"] * 3
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    assert not any("2.095" in key for key in read_run(path).unread)


@pytest.mark.parametrize("mark", ["'", '"'])
@pytest.mark.parametrize("first_nan", [0, 20])
def test_dicts_that_python_prints_over_several_lines(
    tmp_path: Path, mark: str, first_nan: int
) -> None:
    losses = [float("nan") if i == first_nan else 3.0 - i / 20 for i in range(N)]
    blocks = [
        f"{{\n    {mark}loss{mark}: {x},\n    {mark}skipped{mark}: None,\n"
        f"    {mark}learning_rate{mark}: {mark}1.0e-04{mark},\n    {mark}step{mark}: {10 * i},\n}}\n"
        for i, x in enumerate(losses)
    ]
    path = tmp_path / "run.log"
    path.write_text("".join(blocks))
    record = read_run(path)
    np.testing.assert_array_equal(record.columns["loss"].logged(), losses)
    assert (record.axis, record.step[-1], record.columns["lr"].values[0]) == ("step", 290, 1e-4)


def test_a_history_that_python_prints(tmp_path: Path) -> None:
    path = tmp_path / "history.txt"
    path.write_text(str({"loss": LOSS, "val_loss": LOSS}))
    np.testing.assert_array_equal(read_run(path).columns["val_loss"].logged(), LOSS)
