"""Tables of numbers without names: columns are said by their place; one column under its name."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.readers.given_columns import columns_given

LOSS = [round(3.0 / (1 + i) + 0.5, 4) for i in range(40)]


def write(tmp_path: Path, text: str, name: str = "some log") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("delimiter", [",", ", ", "\t", ";", " ", "   ", " | "])
def test_columns_are_given_by_their_place(tmp_path: Path, delimiter: str) -> None:
    rows = "".join(f"{10 * i}{delimiter}{0.5}{delimiter}{x}\n" for i, x in enumerate(LOSS))
    path = write(tmp_path, rows)
    with pytest.raises(ReadError, match=r"3 columns of numbers without names.*--columns loss=2,st"):
        read_run(path)
    with columns_given({"loss": "3", "step": "1"}):
        record = read_run(path)
    assert record.columns["loss"].logged().tolist() == LOSS
    assert (record.axis, record.step[-1]) == ("step", 390)


def test_one_number_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(f"{x:.4e}\n" for x in LOSS))
    with pytest.raises(ReadError, match=r"one number a line, without a name.*--columns loss=1 "):
        read_run(path)
    with columns_given({"loss": "1"}):
        record = read_run(path)
    np.testing.assert_allclose(record.columns["loss"].logged(), LOSS)
    assert record.axis == "row"


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(f"{i},{x}\n" for i, x in enumerate(LOSS)))
    for column in ("3", "loss"):
        with (
            columns_given({"loss": column}),
            pytest.raises(ReadError, match=f"no column '{column}'; 2 columns"),
        ):
            read_run(path)


@pytest.mark.parametrize("header", ["loss", '"loss"', "train_loss", "# loss", "Train Loss"])
def test_one_column_under_its_name_is_read(tmp_path: Path, header: str) -> None:
    path = write(tmp_path, header + "\n" + "".join(f"{x}\n" for x in LOSS))
    assert read_run(path).columns["loss"].logged().tolist() == LOSS


def test_a_comment_that_names_all_columns_is_a_header(tmp_path: Path) -> None:
    # As `numpy.savetxt(..., header="step loss")` writes it.
    path = write(tmp_path, "# step loss\n" + "".join(f"{i} {x}\n" for i, x in enumerate(LOSS)))
    record = read_run(path)
    assert (record.axis, record.columns["loss"].logged().tolist()) == ("step", LOSS)


def test_a_torn_last_row_and_nan(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(f"{i},{x}\n" for i, x in enumerate([*LOSS, "nan"])) + "41")
    with columns_given({"loss": "2", "step": "1"}):
        record = read_run(path)
    assert record.num_rows == 41
    assert np.isnan(record.columns["loss"].values[-1])
    assert any("torn" in note for note in record.notes)


@pytest.mark.parametrize(
    "text", ["1.5\n2.5\n", "price\n1\n2\n3\n", "1,2\n3\n4,5,6\n", "10.0.0.1\n10.0.0.2\n10.0.0.3\n"]
)
def test_what_is_no_table_of_numbers(tmp_path: Path, text: str) -> None:
    with pytest.raises(ReadError, match="some log"):
        read_run(write(tmp_path, text))


@pytest.mark.parametrize("rule", ["-- | -- | --", "--- | --- | ---", ":-- | --: | -"])
def test_the_rule_of_a_markdown_table_is_no_row(tmp_path: Path, rule: str) -> None:
    # A comment on open-r1 has such a table, copied from a notebook.
    rows = "".join(f"{i} | -0.1{i} | {'No Log' if i > 1 else 0} | nan\n" for i in range(1, 5))
    path = write(tmp_path, f"Step | Training Loss | entropy | kl\n{rule} | --\n{rows}")
    record = read_run(path)
    assert record.columns["loss"].logged().tolist() == [-0.11, -0.12, -0.13, -0.14]
    assert np.isnan(record.columns["policy_kl"].logged()).sum() == 4


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("loss.txt", "loss"),
        ("train_losses.csv", "loss"),
        ("03-loss_log", "loss"),
        ("val_loss.txt", "val_loss"),
        ("Test-Losses.log", "val_loss"),
    ],
)
def test_the_name_of_the_file_says_what_a_number_a_line_is(
    tmp_path: Path, name: str, key: str
) -> None:
    record = read_run(write(tmp_path, "".join(f"{x}\n" for x in LOSS), name))
    assert record.columns[key].logged().tolist() == LOSS
    assert any("by the name of the file" in note for note in record.notes)
    counted = "".join(f"{10 * i} {x}\n" for i, x in enumerate(LOSS))
    record = read_run(write(tmp_path, counted, name))
    assert (record.columns[key].logged().tolist(), record.step[-1]) == (LOSS, 390)


@pytest.mark.parametrize("name", ["accuracy.txt", "glossary.txt", "lossless.txt", "numbers"])
def test_another_name_says_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ReadError, match="without a name"):
        read_run(write(tmp_path, "".join(f"{x}\n" for x in LOSS), name))


def test_two_columns_that_count_nothing_are_not_named_by_the_file(tmp_path: Path) -> None:
    rows = "".join(f"{x} {x + 1}\n" for x in LOSS)
    with pytest.raises(ReadError, match="2 columns of numbers without names"):
        read_run(write(tmp_path, rows, "loss.txt"))


@pytest.mark.parametrize(("form", "count", "value"), [("{c},{r}", 1, 2), ("{r},{c}", 2, 1)])
def test_the_hint_offers_a_loss_and_a_reward(
    tmp_path: Path, form: str, count: int, value: int
) -> None:
    rewards = [float(3 * i - 50) for i in range(40)]
    rows = (form.format(c=50 * i, r=r) for i, r in enumerate(rewards))
    path = write(tmp_path, "".join(f"{row}\n" for row in rows))
    said = rf"--columns loss={value},step={count} where .* reward={value},step={count} where"
    with pytest.raises(ReadError, match=said) as refused:
        read_run(path)
    assert f"{value}: -50.0 to 67.0" in str(refused.value)
    with columns_given({"reward": str(value), "step": str(count)}):
        record = read_run(path)
    assert record.columns["reward"].logged().tolist() == rewards
    assert record.step[-1] == 50 * 39


def test_counts_of_a_loss_file_may_begin_again(tmp_path: Path) -> None:
    path = tmp_path / "loss_log.txt"
    counts = [*range(1, 24), *range(1, 41)]
    path.write_text("".join(f"{k},{4 + 2 / (1 + i):.4f}\n" for i, k in enumerate(counts)))
    record = read_run(path)
    assert record.num_loss_rows == 63
    assert len(record.attempts) == 2


@pytest.mark.parametrize(
    ("name", "form", "head"),
    [
        ("loss_log.csv", "{i},{x:.16e}\n", ""),  # the letter of an exponent is no name
        ("loss.csv", "{i},{x}\n", ",0\n"),  # as pandas writes a Series: under its place
        ("loss.csv", "{i},{x}\n", '"",0\n'),
        ("train-loss.csv", "{i},{x},\n", ""),
        ("trainLoss.csv", "{i},{x}\n", ""),
        ("LossHistory.txt", "{i}.0 {x}\n", ""),
        ("losses.csv", "{i:.18e} {x:.18e}\n", ""),  # as `numpy.savetxt` writes both
    ],
)
def test_a_count_and_a_number_in_a_file_of_losses(
    tmp_path: Path, name: str, form: str, head: str
) -> None:
    text = head + "".join(form.format(i=60 + i, x=x) for i, x in enumerate(LOSS))
    record = read_run(write(tmp_path, text, name))
    assert record.columns["loss"].logged().tolist() == LOSS
    assert (record.axis, record.step[0], record.step[-1]) == ("step", 60, 99)
    with pytest.raises(ReadError, match=r"2 columns of numbers without names.*loss=2,step=1"):
        read_run(write(tmp_path, text, "gan_log.csv"))


def test_fractions_and_places_that_turn_back_count_nothing(tmp_path: Path) -> None:
    rates = "".join(f"{0.1 * i:.1f},{x}\n" for i, x in enumerate(LOSS))
    with pytest.raises(ReadError, match="2 columns of numbers without names"):
        read_run(write(tmp_path, rates, "loss_by_rate.csv"))
    classes = "".join(f"{i % 4},{x}\n" for i, x in enumerate(LOSS))
    with pytest.raises(ReadError, match="2 columns of numbers without names"):
        read_run(write(tmp_path, classes, "loss_by_class.csv"))


def test_each_row_may_end_with_a_delimiter(tmp_path: Path) -> None:
    # As a loop writes it that puts a comma behind each number.
    rows = "".join(f"{i // 2},{80 + 80 * (i % 2)},{x},{x + 1:.4f},\n" for i, x in enumerate(LOSS))
    path = write(tmp_path, rows, "losses.txt")
    with pytest.raises(ReadError, match=r"4 columns of numbers without names.*loss=3 "):
        read_run(path)
    with columns_given({"loss": "3"}):
        assert read_run(path).columns["loss"].logged().tolist() == LOSS


def test_an_index_over_columns_is_no_row_of_theirs(tmp_path: Path) -> None:
    # A frame of pandas without names: its columns are called 0, 1 ...
    rows = "".join(f"{i},{x},{x / 2}\n" for i, x in enumerate(LOSS))
    path = write(tmp_path, ",0,1\n" + rows, "frame.csv")
    with pytest.raises(ReadError, match="3 columns of numbers without names"):
        read_run(path)
    with columns_given({"loss": "2"}):
        assert read_run(path).columns["loss"].logged().tolist() == LOSS


def test_a_file_of_rewards_holds_rewards(tmp_path: Path) -> None:
    path = write(
        tmp_path, "".join(f"{700 + i},{5.5 + 0.1 * (i % 4)}\n" for i in range(40)), "rewards.csv"
    )
    record = read_run(path)
    assert "loss" not in record.columns
    assert record.columns["reward"].present.all()
    assert (record.axis, record.step[0]) == ("step", 700)


NOISY = [round(x + 0.2 * (i % 3 == 1), 4) for i, x in enumerate(LOSS)]
"""As losses of batches scatter."""


@pytest.mark.parametrize("cap", [math.inf, 100.0])
def test_a_column_that_is_exp_of_another_is_its_perplexity(tmp_path: Path, cap: float) -> None:
    losses = [x + (33_000 if cap == 100 else 1) for x in NOISY]
    rows = "".join(
        f"{i % 30}, {x:.5f}, {math.exp(min(x, cap)):.5f},4{9 + i % 2}.857\n"
        for i, x in enumerate(losses)
    )
    record = read_run(write(tmp_path, rows))
    np.testing.assert_allclose(record.columns["loss"].logged(), losses)
    assert record.columns["perplexity"].present.all()
    assert (record.axis, len(record.attempts)) == ("step", 2)
    assert any("column 3 is exp of column 2" in note for note in record.notes)


def test_what_is_exp_of_two_or_of_none_is_left_to_a_person(tmp_path: Path) -> None:
    for factor, again in ((1.01, False), (1.0, True)):
        rows = [f"{i},{x:.4f},{factor * math.exp(x):.4f}" for i, x in enumerate(LOSS)]
        rows = [f"{r},{r.partition(',')[2]}" if again else r for r in rows]
        with pytest.raises(ReadError, match="columns of numbers without names"):
            read_run(write(tmp_path, "\n".join(rows)))


def under_epochs(row: str, values: list[float], heading: str = "Epoch: {e}") -> str:
    lines = []
    for i, x in enumerate(values):
        if i % 8 == 0:
            lines.append(heading.format(e=i // 8))
        lines.append(row.format(x=x, b=100 * (i % 8)))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("row", ["{x}, {b}", "{b} {x}", "{b},{x}"])
@pytest.mark.parametrize("heading", ["Epoch: {e}", "===== Epoch {e}/5 =====", "epoch={e}"])
def test_rows_under_epochs_are_batches_and_their_falling_loss(
    tmp_path: Path, row: str, heading: str
) -> None:
    record = read_run(write(tmp_path, under_epochs(row, NOISY, heading)))
    assert record.columns["loss"].logged().tolist() == NOISY
    assert (record.axis, int(record.step[-1])) == ("epoch", 4)
    assert any("so it is taken for the loss" in note for note in record.notes)


def test_what_does_not_fall_under_epochs_is_said_by_a_person(tmp_path: Path) -> None:
    path = write(tmp_path, under_epochs("{x}, {b}", LOSS[::-1]))
    with pytest.raises(ReadError, match="2 columns of numbers without names"):
        read_run(path)
    with columns_given({"reward": "1"}):
        record = read_run(path)
    assert record.columns["reward"].logged().tolist() == LOSS[::-1]


@pytest.mark.parametrize(
    "row",
    [
        lambda i, x: f"{x / 4:.3f} 1",  # a score and its label
        lambda i, x: f"{i},{i / 20:.3f},{math.exp(i / 20):.3f}",  # a curve
        lambda i, x: f"{i},{30 + i / 7 + x / 9:.2f},{math.log(30 + i / 7 + x / 9):.4f}",  # prices
    ],
    ids=["labels", "curve", "prices"],
)
def test_numbers_that_are_exp_of_others_by_nature_are_no_log(
    tmp_path: Path, row: Callable[[int, float], str]
) -> None:
    text = "".join(f"{row(i, x)}\n" for i, x in enumerate(NOISY))
    with pytest.raises(ReadError, match="columns of numbers without names"):
        read_run(write(tmp_path, text))


def test_a_rate_or_odd_counts_under_epochs_are_no_loss(tmp_path: Path) -> None:
    rates = [1e-3 * 0.9**i for i in range(40)]
    for values in (rates, [2e7 + 1e5 * x for x in NOISY]):
        with pytest.raises(ReadError, match="2 columns of numbers without names"):
            read_run(write(tmp_path, under_epochs("{b} {x}", values)))
