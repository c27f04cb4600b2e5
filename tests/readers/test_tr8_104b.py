"""The published lines of the 104B run, through the generator: figures, units, attempts, notes."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import find_reader, read_run
from trimtab.record import RunRecord
from trimtab.testing import tr8_104b


@pytest.fixture(params=["plain", "markdown"])
def record(request: pytest.FixtureRequest, tmp_path: Path) -> RunRecord:
    text = tr8_104b.print_log() if request.param == "plain" else tr8_104b.as_markdown()
    path = tmp_path / "anything"
    path.write_text(text)
    assert find_reader(path).name == "megatron"
    return read_run(path)


def column(record: RunRecord, name: str) -> list[float]:
    return [float(v) for v in record.columns[name].values]


@pytest.mark.covers("S31")
def test_all_lines_parse_to_the_same_numbers(record: RunRecord) -> None:
    lines = tr8_104b.LINES
    assert record.step.tolist() == [line[1] for line in lines]
    assert column(record, "samples_seen") == [line[2] for line in lines]
    assert column(record, "step_time_s") == pytest.approx([line[3] / 1e3 for line in lines])
    assert column(record, "loss") == [line[4] for line in lines]
    assert column(record, "loss_scale") == [line[5] for line in lines]
    printed = record.columns["grad_norm"].values * record.columns["loss_scale"].values
    assert printed.tolist() == [line[6] for line in lines]
    assert set(column(record, "lr")) == {tr8_104b.LR}
    assert set(column(record, "batch_size")) == {tr8_104b.BATCH_SIZE}
    for name in ("num_zeros", "skipped", "nonfinite"):
        assert set(column(record, name)) == {0.0}
    assert record.facts["total_steps"] == tr8_104b.TOTAL_STEPS


@pytest.mark.covers("S32")
def test_the_validation_line_is_a_validation_record(record: RunRecord) -> None:
    for name, value in (("val_loss", 7.1742), ("perplexity", 1305.315)):
        present = record.columns[name].present
        assert record.step[present].tolist() == [7000]
        assert record.columns[name].logged().tolist() == [value]


@pytest.mark.covers("S33")
def test_elisions_and_rules_of_dashes_are_no_errors(tmp_path: Path) -> None:
    text = tr8_104b.print_log()
    assert "[...]" in text
    assert "-" * 90 in text
    (tmp_path / "log").write_text(text)
    record = read_run(tmp_path / "log")
    assert record.num_loss_rows == 8
    assert "1 elision ([...]): rows are missing there" in record.notes


@pytest.mark.covers("S34")
def test_the_loss_scale_is_divided_out_of_the_grad_norm_and_said_so(record: RunRecord) -> None:
    norm = record.columns["grad_norm"].values
    assert norm[0] == pytest.approx(47.98, abs=0.005)
    np.testing.assert_allclose(norm[[1, 2]], [107.25, 8.263], rtol=1e-3)
    np.testing.assert_allclose(norm[3:], [23.27, 20.67, 29.96, 69.19, 10.34], rtol=1e-3)
    assert record.facts["grad_norm_was_scaled"] == 1.0
    (note,) = [n for n in record.notes if "multiplied by the loss scale" in n]
    assert "98258.265 / 2048 = 47.98" in note


def test_attempts_carry_seed_and_the_step_they_resumed_from(record: RunRecord) -> None:
    first, second = record.attempts
    assert (first.parent, first.parent_step, first.settings["seed"]) == (None, None, "42")
    assert (second.parent, second.parent_step, second.settings["seed"]) == (
        first.number,
        6210.0,
        "43",
    )
    assert (second.first_row, second.end_row) == (3, 8)


def test_losses_are_said_to_be_means_over_the_interval(record: RunRecord) -> None:
    assert any("one record per 10 steps" in note for note in record.notes)


def test_headings_of_a_chronicle_are_why_an_attempt_was_made(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(tr8_104b.as_markdown())
    record = read_run(tmp_path / "log")
    assert [(a.number, a.why) for a in record.attempts] == [("1.0", "Try 1"), ("2.0", "Try 2")]
    assert record.attempts[0].settings == {"nodes": "64", "seed": "42"}
    assert "no records are quoted of: Try 3" in record.notes


def test_what_is_said_after_the_records_is_not_a_setting_of_theirs(tmp_path: Path) -> None:
    text = tr8_104b.as_markdown().replace("- take seed `43`", "- Seed: `43`")
    (tmp_path / "log").write_text(text)
    assert read_run(tmp_path / "log").attempts[0].settings["seed"] == "42"
