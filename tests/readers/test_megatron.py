"""Megatron text: a record printed with each trap of the real thing reads back as it was."""

import gzip
import lzma
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.readers.megatron import MegatronReader
from trimtab.record import Column, RecordBuilder, RunRecord
from trimtab.testing.curves import Fault, simulate_run
from trimtab.testing.megatron_logs import MegatronStyle, print_log

STYLE = MegatronStyle(total_steps=1000)
QUIET = simulate_run(num_steps=60, seed=1)


def read_text(text: str) -> RunRecord:
    return MegatronReader().read_lines(text.splitlines(), "log")


def assert_same(got: RunRecord, want: RunRecord, *names: str) -> None:
    assert got.step.tolist() == want.step.tolist()
    digits = {"loss": 1e-6, "grad_norm": 6e-4, "lr": 1e-10, "loss_scale": 0.0, "skipped": 0.0}
    for name in names:
        a, b = got.columns[name], want.columns[name]
        assert a.present.tolist() == b.present.tolist(), name
        np.testing.assert_allclose(a.values, b.values, rtol=1e-6, atol=digits[name])


def without(record: RunRecord, name: str, rows: list[int]) -> RunRecord:
    column = record.columns[name]
    values, present = column.values.copy(), column.present.copy()
    values[rows], present[rows] = np.nan, False
    return replace(record, columns={**record.columns, name: Column(values, present)})


STYLES = {
    "plain": STYLE,
    "true norm": replace(STYLE, norm_times_loss_scale=False),
    "newer Megatron-LM": replace(STYLE, layout="megatron-lm", norm_times_loss_scale=False),
    "seconds": replace(STYLE, time_in_seconds=True),
    "torchrun prefix": replace(STYLE, rank_prefixes=("[default7]:",)),
    "srun prefix": replace(STYLE, rank_prefixes=(" 9: [default3]: [2026-04-15 11:22:26.2] ",)),
    "ranks in turn": replace(STYLE, rank_prefixes=("[rank0]:", "[rank1]:", "[rank2]:")),
    "ranks that lag": replace(STYLE, rank_prefixes=("0: ", "1: "), rank_lag_rows=3),
    "elisions": replace(STYLE, elide_after=frozenset({10.0, 20.0})),
    "progress bars": replace(STYLE, progress_bars=True),
}


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES.keys())
def test_a_log_reads_back(style: MegatronStyle, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(print_log(QUIET, style), newline="")
    record = read_run(path)
    assert_same(record, QUIET, "loss", "grad_norm", "lr", "loss_scale", "skipped")
    assert len(record.attempts) == 1
    np.testing.assert_allclose(
        record.columns["step_time_s"].values, QUIET.columns["step_time_s"].values, atol=1e-4
    )


def test_repeats_by_rank_are_counted() -> None:
    record = read_text(print_log(QUIET, STYLES["ranks that lag"]))
    assert "60 records repeated by other ranks left out" in record.notes


def test_ranks_that_lag_and_time_themselves_are_repeats_too() -> None:
    slower = QUIET.columns["step_time_s"]
    other = replace(
        QUIET, columns={**QUIET.columns, "step_time_s": Column(slower.values + 0.1, slower.present)}
    )
    first = print_log(QUIET, replace(STYLE, rank_prefixes=("0: ",))).splitlines()
    second = print_log(other, replace(STYLE, rank_prefixes=("1: ",))).splitlines()
    lines = [*first[:3], *(x for pair in zip(first[3:], second, strict=False) for x in pair)]
    record = read_text("\n".join([*lines, *second[-3:]]))
    assert_same(record, QUIET, "loss")
    assert len(record.attempts) == 1
    np.testing.assert_allclose(record.columns["step_time_s"].values, slower.values, atol=1e-4)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstandard.compress])
def test_compressed_logs_are_read(pack: object, tmp_path: Path) -> None:
    assert callable(pack)
    path = tmp_path / "log"
    path.write_bytes(pack(print_log(QUIET, STYLE).encode()))
    assert_same(read_run(path), QUIET, "loss")


def test_a_compressed_log_that_breaks_off_is_read_so_far(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(print_log(QUIET, STYLE).encode())[:-200])
    record = read_run(path)
    assert 0 < record.num_rows < 60
    assert any("breaks off" in note for note in record.notes)


def test_records_far_behind_library_noise_are_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("NCCL INFO Channel 00 : 0 1 2 3\n" * 40_000 + print_log(QUIET, STYLE))
    assert read_run(path).num_rows == 60


# --- units ------------------------------------------------------------------------------------


def test_a_skipped_step_reprints_the_norm_and_has_no_loss() -> None:
    run = simulate_run(
        num_steps=40, faults=[Fault(kind="scale-collapse", step=20, duration_steps=4)]
    )
    rows = [19, 20, 21, 22]
    run = without(without(run, "loss", rows), "grad_norm", rows)
    for count_skips in (True, False):
        record = read_text(print_log(run, replace(STYLE, count_skips=count_skips)))
        assert_same(record, run, "loss", "grad_norm", "skipped", "loss_scale")
        assert np.flatnonzero(record.columns["nonfinite"].values).tolist() == rows
        assert any("repeated to the last digit in 4 records" in note for note in record.notes)
        assert any(note.startswith("4 records without a loss") for note in record.notes)


def test_a_norm_left_out_on_a_skipped_step_is_missing() -> None:
    run = without(without(QUIET, "grad_norm", [5]), "loss", [5])
    record = read_text(print_log(run, replace(STYLE, reprint_norm_on_skip=False)))
    assert_same(record, run, "grad_norm", "loss")


def test_equal_small_norms_are_no_reprints() -> None:
    builder = RecordBuilder("made up", "test")
    for step in range(1, 11):
        builder.add(step, {"loss": 2.0, "lr": 1e-4, "grad_norm": 0.131, "loss_scale": 1.0})
    record = read_text(print_log(builder.build(), STYLE))
    assert record.columns["grad_norm"].logged().tolist() == [0.131] * 10


def test_nan_and_inf_losses_are_values_and_counted() -> None:
    run = simulate_run(num_steps=20, faults=[Fault(kind="nan", step=5), Fault(kind="inf", step=12)])
    record = read_text(print_log(run, STYLE))
    assert record.columns["loss"].present.all()
    assert np.isnan(record.columns["loss"].values[4:9]).all()
    assert np.isinf(record.columns["loss"].values[11:16]).all()
    assert int(record.columns["nonfinite"].values.sum()) == 10


def test_a_norm_of_zero_throughout_is_dropped() -> None:
    record = read_text(print_log(QUIET, replace(STYLE, norm_not_wired=True)))
    assert "grad_norm" not in record.columns
    assert any("exactly 0.000 in 60 records" in note for note in record.notes)


def test_skips_over_an_interval_are_a_share_of_it() -> None:
    builder = RecordBuilder("made up", "test")
    for step, skipped in ((10, 0.0), (20, 3.0), (30, 10.0)):
        builder.add(step, {"loss": 2.0, "lr": 1e-4, "grad_norm": 0.5 + step, "skipped": skipped})
    record = read_text(print_log(builder.build(), STYLE))
    assert record.columns["skipped"].values.tolist() == [0.0, 0.3, 1.0]


def make_scaled(norms: list[float], scales: list[float]) -> RunRecord:
    builder = RecordBuilder("made up", "test")
    for step, (norm, scale) in enumerate(zip(norms, scales, strict=True), 1):
        builder.add(step, {"loss": 2.0, "lr": 1e-4, "grad_norm": norm, "loss_scale": scale})
    return builder.build()


@pytest.mark.parametrize("scaled", [True, False])
def test_the_slope_against_the_scale_decides_where_magnitudes_cannot(scaled: bool) -> None:
    rng = np.random.default_rng(0)
    scales = [2.0 ** (1 + i // 20 % 3) for i in range(120)]
    norms = np.exp(0.1 * rng.standard_normal(120)).tolist()
    style = replace(STYLE, norm_times_loss_scale=scaled)
    record = read_text(print_log(make_scaled(norms, scales), style))
    np.testing.assert_allclose(record.columns["grad_norm"].values, norms, atol=1e-3)
    assert any("log-log slope" in note for note in record.notes)


def test_an_undecidable_norm_is_left_as_printed_and_said_so() -> None:
    style = replace(STYLE, norm_times_loss_scale=False)
    record = read_text(print_log(make_scaled([7.9, 8.1, 8.0], [12.0] * 3), style))
    assert record.columns["grad_norm"].values.tolist() == [7.9, 8.1, 8.0]
    assert any("cannot be told" in note for note in record.notes)


def test_without_loss_scale_nothing_is_divided_or_noted() -> None:
    record = read_text(print_log(make_scaled([700.0, 800.0, 900.0], [1.0] * 3), STYLE))
    assert record.columns["grad_norm"].values.tolist() == [700.0, 800.0, 900.0]
    assert not any("grad norm" in note for note in record.notes)


def test_consumed_samples_grow_by_the_batch_size_through_a_ramp() -> None:
    builder = RecordBuilder("made up", "test")
    samples = 0.0
    for step in range(1, 31):
        batch = 16.0 * (1 + step // 10)
        samples += batch
        builder.add(step, {"loss": 2.0, "lr": 1e-4, "samples_seen": samples, "batch_size": batch})
    record = read_text(print_log(builder.build(), STYLE))
    assert record.columns["batch_size"].values.sum() == record.columns["samples_seen"].values[-1]


# --- restarts and torn files ------------------------------------------------------------------


def restarted(announce: bool) -> RunRecord:
    builder = RecordBuilder("made up", "test")
    builder.start_attempt(settings={"seed": "1", "clip_grad": "1.0"})
    for step in range(1, 21):
        builder.add(step, {"loss": 3.0 - step / 100, "lr": 1e-4})
    builder.start_attempt(parent_step=12.0, settings={"seed": "2"} if announce else {})
    for step in range(13, 26):
        builder.add(step, {"loss": 2.9 - step / 100, "lr": 1e-4})
    return builder.build()


@pytest.mark.parametrize("announce", [True, False])
def test_a_restart_in_one_file_is_an_attempt(announce: bool) -> None:
    run = restarted(announce)
    record = read_text(print_log(run, replace(STYLE, announce_restarts=announce)))
    assert_same(record, run, "loss")
    assert [(a.first_row, a.end_row) for a in record.attempts] == [(0, 20), (20, 33)]
    assert record.step[record.lineage_rows()].tolist() == list(range(1, 26))
    if announce:
        assert record.attempts[1].parent_step == 12.0
        assert record.attempts[1].settings == {"seed": "2"}
        assert record.facts["clip"] == 1.0


def test_a_bit_equal_rerun_after_a_launch_is_no_repeat() -> None:
    builder = RecordBuilder("made up", "test")
    for first in (1, 6):
        builder.start_attempt(parent_step=first - 1)
        for step in range(first, 11):
            builder.add(step, {"loss": 3.0 - step / 100, "lr": 1e-4})
    record = read_text(print_log(builder.build(), replace(STYLE, rank_prefixes=("0: ",))))
    assert len(record.attempts) == 2
    assert record.num_rows == 15


def test_a_record_that_is_still_being_written_is_left_out() -> None:
    text = print_log(QUIET, STYLE)
    last = text.rstrip("\n").rfind("\n") + 1
    for length in range(last, len(text) - 3):
        record = read_text(text[:length])
        assert record.num_rows == 59, text[last:length]


@given(st.integers(0, 60), st.sampled_from(sorted(STYLES)))
def test_a_prefix_of_the_file_is_a_prefix_of_the_record(rows: int, name: str) -> None:
    lines = print_log(QUIET, STYLES[name]).splitlines()
    whole = read_text("\n".join(lines))
    part_lines = lines[: max(4, rows * len(lines) // 60)]
    part = read_text("\n".join(part_lines))
    n = part.num_rows
    assert part.step.tolist() == whole.step[:n].tolist()
    for column in ("loss", "lr", "loss_scale"):
        np.testing.assert_array_equal(part.columns[column].values, whole.columns[column].values[:n])


@given(st.text(max_size=200))
def test_other_lines_around_do_no_harm(noise: str) -> None:
    if "iteration" in noise or "loss at" in noise or "checkpoint" in noise:
        return
    lines = print_log(QUIET, STYLE).splitlines()
    text = [*noise.splitlines(), *lines[:30], *noise.splitlines(), *lines[30:]]
    record = MegatronReader().read_lines(text, "log")
    assert_same(record, QUIET, "loss", "grad_norm")


def test_no_whole_record_is_one_clear_error() -> None:
    with pytest.raises(ReadError, match=r"log: no whole record, looked for Megatron lines"):
        read_text(" iteration 10/ 20 | consumed sam")


def test_validation_values_stand_at_their_step() -> None:
    builder = RecordBuilder("made up", "test")
    for step in range(1, 11):
        builder.add(step, {"loss": 2.0, "lr": 1e-4})
        if step % 5 == 0:
            builder.add(step, {"val_loss": 2.5 + step})
    record = read_text(print_log(builder.build(), replace(STYLE, rules=False)))
    column = record.columns["val_loss"]
    assert record.step[column.present].tolist() == [5, 10]
    assert column.logged().tolist() == [7.5, 12.5]
    np.testing.assert_allclose(record.columns["perplexity"].logged()[0], math.exp(7.5), rtol=1e-6)
