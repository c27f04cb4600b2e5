"""Rows of a table with another number of cells than its header has names."""

from pathlib import Path

import pytest

from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.readers.given_columns import columns_given

N = 40
LOSS = [round(3 / (1 + 0.05 * i) + 0.5, 4) for i in range(N)]
NAMES = "Epoch,Iteration,TD Loss,Actor Loss,Entropy,Alpha,Alpha_Loss"


def write(tmp_path: Path, lines: list[str], name: str = "stats.csv") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def short(tmp_path: Path) -> Path:
    rows = [f"{i},{100 * i},{x},{x - 2:.4f},0.7" for i, x in enumerate(LOSS)]
    return write(tmp_path, [NAMES, *rows])


def test_more_names_than_cells_are_told_as_that(tmp_path: Path) -> None:
    said = r"header has 7 names and its rows 5 cells.*by place.*--columns loss=3,epoch=1 if"
    with pytest.raises(ReadError, match=said):
        read_run(short(tmp_path))


@pytest.mark.parametrize(
    "given", [{"loss": "TD Loss", "epoch": "Epoch"}, {"loss": "3", "epoch": "1"}]
)
def test_a_person_says_which_column_is_what(tmp_path: Path, given: dict[str, str]) -> None:
    with columns_given(given):
        record = read_run(short(tmp_path))
    # By place the other columns have no names that could count.
    assert record.axis == ("step" if given["loss"] == "TD Loss" else "epoch")
    assert record.columns["loss"].logged().tolist() == LOSS


def rows(first: int, num: int, form: str) -> list[str]:
    return [form.format(i=i + 1, x=LOSS[first + i]) for i in range(num)]


@pytest.mark.parametrize("num_before", [8, 14, 30])
def test_wider_rows_of_a_second_run_are_counted(tmp_path: Path, num_before: int) -> None:
    lines = [
        "update,v_loss,entropy,sps",
        *rows(0, num_before, "{i},{x},0.9,1200.5"),
        *rows(0, 10, "{i},{x},0.0,1.0,0.9,1200.5"),
    ]
    record = read_run(write(tmp_path, lines))
    assert record.format == "csv"
    assert record.columns["loss"].logged().tolist() == LOSS[:num_before]
    first = num_before + 2
    said = f"10 rows from line {first} on left out: 6 cells, expected 4 as in the header"
    assert any(said in note for note in record.notes)


@pytest.mark.parametrize("num_before", [8, 30])
def test_a_second_run_with_a_header_of_its_own_is_an_attempt(
    tmp_path: Path, num_before: int
) -> None:
    lines = [
        "step,loss,lr",
        *rows(0, num_before, "{i},{x},0.001"),
        "step,lr,loss,grad_norm",
        *rows(0, 10, "{i},0.002,{x},1.5"),
    ]
    record = read_run(write(tmp_path, lines))
    assert [a.end_row - a.first_row for a in record.attempts] == [num_before, 10]
    assert record.columns["loss"].logged().tolist() == [*LOSS[:num_before], *LOSS[:10]]
    assert record.columns["grad_norm"].present.sum() == 10
    assert any("1 other header, the first on line" in note for note in record.notes)


def test_a_torn_row_is_still_one(tmp_path: Path) -> None:
    lines = ["step,loss,lr", *rows(0, 20, "{i},{x},0.001"), "21,1.2"]
    assert (
        "the last row was torn in mid-write and left out" in read_run(write(tmp_path, lines)).notes
    )


def test_a_table_with_many_damaged_rows_is_refused_as_before(tmp_path: Path) -> None:
    lines = ["step,loss,lr", *(f"{i},{3 - i / 200},0.001" for i in range(100))]
    for at in range(60, 100, 4):
        lines[at] = lines[at].rpartition(",")[0]
    with pytest.raises(ReadError, match="cells, expected 3"):
        read_run(write(tmp_path, lines))
