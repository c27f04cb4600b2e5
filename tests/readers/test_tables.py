"""JSONL and CSV: keys, missing against NaN, steps, restarts, broken lines."""

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.detectors.offline import all_findings
from trimtab.errors import ReadError
from trimtab.readers import find_reader, read_run
from trimtab.readers.csv_table import CsvReader
from trimtab.readers.given_columns import columns_given, parse_columns
from trimtab.readers.nan_policy import nan_means_missing
from trimtab.readers.tags import signal_of_tag
from trimtab.record import Column, RunRecord
from trimtab.testing.curves import simulate_run
from trimtab.testing.megatron_logs import MegatronStyle, print_log

VALUE = st.one_of(st.none(), st.floats(0.1, 9), st.sampled_from([math.nan, math.inf, -math.inf]))


def read_as(tmp_path: Path, text: str) -> RunRecord:
    path = tmp_path / "some log"
    path.write_text(text)
    return read_run(path)


def as_jsonl(rows: Sequence[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def cells(record: RunRecord, name: str) -> list[float | None]:
    column = record.columns[name]
    return [float(v) if p else None for v, p in zip(column.values, column.present, strict=True)]


# --- the same run in three formats -------------------------------------------------------------


def test_three_formats_give_equal_series(tmp_path: Path) -> None:
    run = simulate_run(num_steps=50, seed=3)
    names = ("loss", "grad_norm", "lr", "loss_scale")
    rounded = {n: [float(f"{v:.6E}") for v in run.columns[n].values] for n in names}
    rows = [dict(zip(names, v, strict=True)) for v in zip(*rounded.values(), strict=True)]
    jsonl = as_jsonl([{"step": i, **row} for i, row in enumerate(rows, 1)])
    table = ["step,loss,grad_norm,lr,loss_scale"]
    table += [",".join(str(x) for x in (i, *row.values())) for i, row in enumerate(rows, 1)]
    records = [
        read_as(tmp_path, jsonl),
        read_as(tmp_path, "\n".join(table)),
        read_as(tmp_path, print_log(run, MegatronStyle(total_steps=50))),
    ]
    assert [r.format for r in records] == ["jsonl", "csv", "megatron"]
    for record in records:
        assert record.step.tolist() == list(range(1, 51))
        for name, atol in zip(names, (0.0, 5e-4, 1e-9, 0.0), strict=True):
            np.testing.assert_allclose(record.columns[name].values, rounded[name], atol=atol)


# --- JSONL -------------------------------------------------------------------------------------


def test_nested_keys_and_the_names_of_loggers(tmp_path: Path) -> None:
    rows = [
        {
            "_step": i,
            "train": {"loss": 3.0 - i, "lr": 1e-3},
            "grad-norm": 0.5,
            "list": [1],
            "x": "y",
        }
        for i in range(4)
    ]
    record = read_as(tmp_path, as_jsonl(rows))
    assert record.step.tolist() == [0, 1, 2, 3]
    assert cells(record, "loss") == [3, 2, 1, 0]
    assert record.keys == {"loss": "train/loss", "lr": "train/lr", "grad_norm": "grad-norm"}


def test_nan_tokens_are_values_and_null_is_missing(tmp_path: Path) -> None:
    text = (
        '{"step": 1, "loss": NaN}\n{"step": 2, "loss": null}\n{"step": 3, "loss": "NaN"}\n'
        '{"step": 4, "loss": -Infinity}\n{"step": 5, "loss": nan}\n{"step": 6, "loss": "inf"}\n'
        '{"step": 7}\n{"step": 8, "loss": 2.5}\n{"step": 9, "loss": 2.5, "grad_norm": null}\n'
    )
    record = read_as(tmp_path, text)
    assert record.step.tolist() == [1, 3, 4, 5, 6, 8, 9]
    np.testing.assert_array_equal(
        record.columns["loss"].values, [math.nan, math.nan, -math.inf, math.nan, math.inf, 2.5, 2.5]
    )
    assert record.columns["loss"].present.all()
    assert "grad_norm" not in record.columns


@pytest.mark.parametrize(
    "key",
    [
        "step",
        "iter",
        "iteration",
        "global_step",
        "update",
        "num_updates",
        "trainer/global_step",
        "current_steps",
        "train/global_step",
        "_step",
    ],
)
def test_step_keys(tmp_path: Path, key: str) -> None:
    record = read_as(tmp_path, as_jsonl([{key: 10 * i, "loss": 2.0} for i in range(5)]))
    assert (record.axis, record.step.tolist()) == ("step", [0, 10, 20, 30, 40])


def test_a_step_with_its_total_and_a_key_that_counts_better(tmp_path: Path) -> None:
    rows = [{"global_step/max_steps": f"{i}/9", "loss": 1.0} for i in range(1, 5)]
    assert read_as(tmp_path, as_jsonl(rows)).step.tolist() == [1, 2, 3, 4]
    stuck: list[dict[str, object]] = [{"step": 0, "iter": i, "loss": 1.0} for i in range(5)]
    assert read_as(tmp_path, as_jsonl(stuck)).step.tolist() == [0, 1, 2, 3, 4]


def test_rows_in_descending_order_of_step_are_read_from_the_last(tmp_path: Path) -> None:
    rows = [{"step": s, "loss": 3 - s / 100, "lr": 1e-3} for s in range(60)]
    rows += [{"step": s, "val_loss": 3.1 - s / 100} for s in (20, 40)]
    rows.sort(key=lambda row: row["step"], reverse=True)
    record = read_as(tmp_path, as_jsonl(rows))
    assert record.step.tolist() == list(range(60))
    assert record.columns["loss"].values[0] == 3
    assert len(record.attempts) == 1
    assert "the newest row stands first; the rows are read from the last to the first" in (
        record.notes
    )
    # What only falls often, as many short attempts do, stays as it is.
    often = [{"step": s % 3, "loss": 3 - s / 100} for s in range(60)]
    assert read_as(tmp_path, as_jsonl(often)).columns["loss"].values[0] == 3


def test_without_a_step_epochs_count_if_they_rise_else_rows(tmp_path: Path) -> None:
    rising = read_as(tmp_path, as_jsonl([{"epoch": i / 2, "loss": 1.0} for i in range(4)]))
    assert (rising.axis, rising.step.tolist()) == ("epoch", [0, 0.5, 1, 1.5])
    stairs = read_as(tmp_path, as_jsonl([{"epoch": i // 2, "loss": 1.0} for i in range(4)]))
    assert (stairs.axis, stairs.step.tolist()) == ("row", [0, 1, 2, 3])
    assert any("place in the file" in note for note in stairs.notes)


def test_the_fullest_of_several_losses_is_read_and_the_rest_named(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"step": i, "loss": 2.0} for i in range(9)]
    rows.append({"step": 9, "train_loss": 7.0, "val_loss": 2.2})
    record = read_as(tmp_path, as_jsonl(rows))
    assert record.num_loss_rows == 9
    assert cells(record, "val_loss")[-1] == 2.2
    assert "loss is read from 'loss'; left out: 'train_loss'" in record.notes


def test_a_column_that_is_only_like_a_loss_is_taken_and_said_so(tmp_path: Path) -> None:
    rows = [{"step": i, "val_loss": 9.0, "critic_loss": 2.0} for i in range(4)]
    record = read_as(tmp_path, as_jsonl(rows))
    assert record.keys["loss"] == "critic_loss"
    assert any("'critic_loss' is taken" in note for note in record.notes)


def test_restarts_rewind_or_log_the_step_again(tmp_path: Path) -> None:
    steps = [1, 2, 3, 4, 3, 4, 4, 5]
    rows = [{"step": s, "loss": 3.0 - i / 10} for i, s in enumerate(steps)]
    record = read_as(tmp_path, as_jsonl(rows))
    assert [(a.first_row, a.end_row) for a in record.attempts] == [(0, 4), (4, 6), (6, 8)]
    assert record.num_loss_rows == 8


def test_equal_lines_at_one_step_are_repeats(tmp_path: Path) -> None:
    rows = [{"step": i, "loss": 3.0 - i / 10} for i in range(10)]
    record = read_as(tmp_path, as_jsonl([*rows, rows[-1]]))
    assert (record.num_rows, len(record.attempts)) == (10, 1)


def test_other_ranks_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"step": i, "rank": r, "loss": 3.0 + r}
        for k in range(0, 8, 4)
        for r in (0, 1)
        for i in range(k, k + 4)
    ]
    record = read_as(tmp_path, as_jsonl(rows))
    assert record.step.tolist() == list(range(8))
    assert set(cells(record, "loss")) == {3.0}
    assert "rank 0 is judged, 1 other rank compared with it" in record.notes


def test_validation_rows_without_a_step_belong_to_the_row_before(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"step": i, "loss": 3.0} for i in range(20)]
    rows.insert(10, {"eval_loss": 2.5})
    record = read_as(tmp_path, as_jsonl(rows))
    assert record.step[record.columns["val_loss"].present].tolist() == [9]


def test_a_torn_last_line_is_counted(tmp_path: Path) -> None:
    record = read_as(
        tmp_path, '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n{"step": 3, "lo'
    )
    assert record.step.tolist() == [1, 2]
    assert "the last line was torn in mid-write and left out" in record.notes


def test_a_broken_line_is_one_clear_error(tmp_path: Path) -> None:
    good = '{"step": 1, "loss": 2.0}\n'
    with pytest.raises(ReadError, match=r"some log:2: not a JSON object: .{3}step.*; 1 such in 12"):
        read_as(tmp_path, good + '{"step": 2, "lo\n' + good * 10)
    with pytest.raises(ReadError, match=r"some log:3: loss is 'oops', expected a number"):
        read_as(tmp_path, good * 2 + '{"step": 3, "loss": "oops"}\n' + good * 10)


def test_damaged_lines_are_left_out_up_to_one_in_twenty(tmp_path: Path) -> None:
    rows = [f'{{"step": {i}, "loss": 2.0}}' for i in range(200)]
    rows[100] = rows[100][:13]
    rows[101] = rows[101][13:]
    record = read_as(tmp_path, "\n".join(rows))
    assert record.num_rows == 198
    assert any("2 bad values left out" in n for n in record.notes)
    rows[50:62] = [row[:13] for row in rows[50:62]]
    with pytest.raises(ReadError, match="not a JSON object"):
        read_as(tmp_path, "\n".join(rows))


def test_a_header_again_in_another_order_holds_from_there_on(tmp_path: Path) -> None:
    first = "".join(f"{i},2.0,1e-4\n" for i in range(20))
    then = "".join(f"{i},1e-4,2.0\n" for i in range(20, 40))
    again = "".join(f"{i},2.0,1e-4\n" for i in range(40, 60))
    header, other = "step,loss,lr\n", "step,lr,loss\n"
    record = read_as(tmp_path, header + first + other + then + header + again)
    assert cells(record, "loss") == [2.0] * 60
    assert cells(record, "lr") == [1e-4] * 60


def test_under_one_per_cent_of_bad_lines_are_noted(tmp_path: Path) -> None:
    rows = [{"step": i, "loss": 2.0} for i in range(300)]
    lines = as_jsonl(rows).splitlines()
    lines[99] = "Traceback (most recent call last):"
    lines[199] = '{"step": 199, "loss": "oops"}'
    record = read_as(tmp_path, "\n".join(lines))
    assert record.num_loss_rows == 298
    (note,) = [n for n in record.notes if "bad value" in n]
    assert "some log:100: not a JSON object" in note


@given(st.lists(VALUE, min_size=2, max_size=30), st.integers(2, 30))
def test_a_prefix_of_the_lines_is_a_prefix_of_the_record(
    tmp_path_factory: pytest.TempPathFactory, values: list[float | None], length: int
) -> None:
    rows: list[dict[str, object]] = [
        {"step": i, "lr": 1.0, "loss": v} for i, v in enumerate(values)
    ]
    path = tmp_path_factory.mktemp("prefix")
    whole, part = read_as(path, as_jsonl(rows)), read_as(path, as_jsonl(rows[:length]))
    n = part.num_rows
    assert part.step.tolist() == whole.step[:n].tolist()
    if "loss" in whole.columns and "loss" in part.columns:
        np.testing.assert_array_equal(part.columns["loss"].values, whole.columns["loss"].values[:n])
        assert cells(part, "loss").count(None) == values[:length].count(None)


# --- CSV ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_delimiters(tmp_path: Path, delimiter: str) -> None:
    lines = ["# made by hand", "step,train_loss,who", "1,2.5,me", "2,2.4,me", "3,,me"]
    record = read_as(tmp_path, "\r\n".join(lines).replace(",", delimiter) + "\r\n")
    assert record.format == "csv"
    assert cells(record, "loss") == [2.5, 2.4]


def test_decimal_commas(tmp_path: Path) -> None:
    record = read_as(tmp_path, "step;loss;lr\n1;2,5;1,0e-4\n2;2,25;1,0e-4\n")
    assert cells(record, "loss") == [2.5, 2.25]
    assert cells(record, "lr") == [1e-4, 1e-4]


def test_quotes_blank_lines_and_a_header_again(tmp_path: Path) -> None:
    text = 'step,"loss",note\n1,2.5,"a, b"\n\n2,2.4,c\nstep,"loss",note\n2,2.3,d\n3,2.2,e\n'
    record = read_as(tmp_path, text)
    assert record.step.tolist() == [1, 2, 2, 3]
    assert len(record.attempts) == 2


def test_sparse_rows_of_one_step_are_merged(tmp_path: Path) -> None:
    text = "epoch,step,train_loss_epoch,train_loss_step,val_loss\n"
    text += "".join(f"0,{s},,{3 - s / 100},\n" for s in range(49, 500, 50))
    text += "0,499,,,2.75\n0,499,2.8,,\n"
    record = read_as(tmp_path, text)
    assert record.num_rows == 10
    assert record.keys["loss"] == "train_loss_step"
    assert cells(record, "val_loss")[-1] == 2.75


def test_a_torn_last_row_is_counted_and_several_short_ones_are_an_error(tmp_path: Path) -> None:
    rows = "".join(f"{i},2.0,1e-4\n" for i in range(30))
    record = read_as(tmp_path, f"step,loss,lr\n{rows}30,1.")
    assert record.num_rows == 30
    assert "the last row was torn in mid-write and left out" in record.notes
    with pytest.raises(ReadError, match=r"some log:32: 2 cells, expected 3 as in the header"):
        read_as(tmp_path, f"step,loss,lr\n{rows}30,1.\n31,1.\n32,1.0,1e-4\n")


def nan_csv(values: list[str], tmp_path: Path, name: str = "grad_norm") -> RunRecord:
    lines = [f"{i},2.0,{v}" for i, v in enumerate(values)]
    return read_as(tmp_path, "\n".join([f"step,lr,{name}", *lines]) + "\n")


def test_nan_at_regular_distances_was_not_recorded(tmp_path: Path) -> None:
    sparse = nan_csv(["1.0" if i % 10 == 0 else "nan" for i in range(100)], tmp_path)
    assert sparse.columns["grad_norm"].present.sum() == 10
    assert any("grad_norm: nan in 90 cells, taken as not recorded" in n for n in sparse.notes)
    dotted = nan_csv(["nan" if i % 10 == 9 else "2.5" for i in range(100)], tmp_path, "loss")
    assert dotted.num_loss_rows == 90


def test_a_first_norm_that_did_not_exist_yet_is_missing(tmp_path: Path) -> None:
    record = nan_csv(["nan", *["1.0"] * 20], tmp_path)
    assert cells(record, "grad_norm")[0] is None


def test_a_divergence_stays_nan(tmp_path: Path) -> None:
    record = nan_csv(["2.5"] * 30 + ["nan"] * 70, tmp_path, "loss")
    assert record.num_loss_rows == 100
    assert int(np.isnan(record.columns["loss"].logged()).sum()) == 70
    single = nan_csv(["2.5"] * 30 + ["nan"] + ["2.4"] * 30, tmp_path)
    assert int(np.isnan(single.columns["grad_norm"].logged()).sum()) == 1
    flapping = ["2.5" if i % 7 in (0, 2) and i % 5 else "nan" for i in range(90)]
    mostly = nan_csv(flapping, tmp_path, "loss")
    assert mostly.num_loss_rows == 90
    always = nan_csv(["nan"] * 10, tmp_path, "loss")
    assert always.num_loss_rows == 10


@given(st.lists(VALUE, max_size=40), st.booleans())
def test_only_nan_cells_are_ever_explained_away(values: list[float | None], is_loss: bool) -> None:
    column = Column(
        np.array([math.nan if v is None else v for v in values], dtype=np.float64),
        np.array([v is not None for v in values], dtype=np.bool_),
    )
    missing, why = nan_means_missing(column, is_loss=is_loss)
    assert np.isnan(column.values[missing]).all()
    assert column.present[missing].all()
    assert bool(why) == bool(missing.any())


@pytest.mark.parametrize(
    "key", ["rollout/ep_rew_mean", "episode_reward", "episodic_return", "mean_reward", "return"]
)
def test_a_reward_that_is_lost_is_told_without_a_loss(tmp_path: Path, key: str) -> None:
    rng = np.random.default_rng(len(key))
    reward = 200 * (1 - np.exp(-np.arange(300) / 60)) + 10 * rng.standard_normal(300)
    for lost in (False, True):
        reward[210:] -= 180 * lost
        rows = (f"{2048 * i},{v:.4f}" for i, v in enumerate(reward))
        record = read_as(tmp_path, "\n".join([f"time/total_timesteps,{key}", *rows]) + "\n")
        assert record.axis == "step"
        told = [f.onset for f in all_findings(record) if f.severity != "info"]
        assert bool(told) == lost
        assert all(abs(onset / 2048 - 210) <= 8 for onset in told)


# --- what is no table --------------------------------------------------------------------------


def test_no_known_column_names_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"no known signal; looked for a loss.*found 'q', 'l'"):
        read_as(tmp_path, "q,l,t\n1.0,2,3\n2.0,3,4\n")


def test_the_monitor_of_an_agent_holds_its_rewards(tmp_path: Path) -> None:
    rows = [f"{-100 + k},{200 + k},{3.5 * k:.6f}" for k in range(60)]
    head = '#{"t_start": 1675199325.9, "env_id": "maze-v0"}'
    record = read_as(tmp_path, "\n".join([head, "r,l,t", *rows]) + "\n")
    assert record.columns["reward"].logged().tolist() == [-100.0 + k for k in range(60)]
    record = read_as(tmp_path, "episode_id,score\n" + "".join(f"{k},{k - 9}\n" for k in range(60)))
    assert record.columns["reward"].logged()[3] == -6
    assert record.step[3] == 3


def test_losses_of_two_nets_may_say_that_they_are_of_training(tmp_path: Path) -> None:
    rows = [f"{k},{5 / (1 + k):.4f},{0.4 + k / 100:.4f},{20 + k / 9:.4f}" for k in range(30)]
    record = read_as(tmp_path, "\n".join(["epoch,train_G,train_D,val_PSNR", *rows]) + "\n")
    assert {"loss", "generator_loss", "discriminator_loss", "eval_score"} <= record.columns.keys()


def test_a_header_alone_is_said_to_be_that(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"a header \(step, loss .*\) and no rows"):
        read_as(tmp_path, "step,loss\n")


@pytest.mark.slow
def test_one_great_json_object_is_no_table(tmp_path: Path) -> None:
    text = json.dumps({"weights": {"values": {str(i): float(i) for i in range(20_000)}}})
    with pytest.raises(ReadError, match="no records that can be read"):
        read_as(tmp_path, text)


def test_the_format_is_told_by_content(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    assert find_reader(path).name == "jsonl"


@pytest.mark.parametrize("text", ["# a comment\n" * 40, "\0\n# only this\n", "#\n" * 99])
def test_a_table_of_comments_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(text)
    with pytest.raises(ReadError, match=r"run\.csv: no table"):
        CsvReader().read(path)


def emptied(
    path: Path, *, form: str, last: dict[str, float | None] | None = None, gap: int = 0
) -> Path:
    """Write 100 rows whose loss is empty from row 80 on, and in every so many before."""
    rows = [
        {"step": t, "loss": None if t >= 80 or (gap and t % gap == 0) else 2 - 0.01 * t, "lr": 0.1}
        | ((last or {}) if t >= 80 else {})
        for t in range(100)
    ]
    keys = dict.fromkeys(k for row in rows for k in row)
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        cells = [["" if row.get(k) is None else str(row[k]) for k in keys] for row in rows]
        path.write_text("\n".join(",".join(c) for c in [list(keys), *cells]) + "\n")
    return path


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_loss_that_is_empty_to_the_end_is_nan_and_said(tmp_path: Path, form: str) -> None:
    record = read_run(emptied(tmp_path / f"log.{form}", form=form))
    loss = record.columns["loss"]
    assert loss.present.all()
    assert np.isnan(loss.values[80:]).all()
    assert np.isfinite(loss.values[:80]).all()
    assert [n for n in record.notes if "empty in the last 20 rows" in n]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize(
    ("last", "gap"), [({"val_loss": 1.0}, 0), ({"test/acc": 0.5}, 0), (None, 5)]
)
def test_rows_of_another_kind_at_the_end_have_no_loss(
    tmp_path: Path, form: str, last: dict[str, float | None] | None, gap: int
) -> None:
    record = read_run(emptied(tmp_path / f"log.{form}", form=form, last=last, gap=gap))
    loss = record.columns["loss"]
    assert np.isfinite(loss.values[loss.present]).all()
    assert not [n for n in record.notes if "read as NaN" in n]


def test_a_loss_above_a_thousand_that_is_printed_short_is_a_thousandfold(tmp_path: Path) -> None:
    text = "".join(
        f"step {t} loss {x / 1000:.3f}k\n" if (x := 1100.0 - t) >= 1000 else f"step {t} loss {x}\n"
        for t in range(200)
    )
    (tmp_path / "train.log").write_text(text)
    record = read_run(tmp_path / "train.log")
    assert record.columns["loss"].values.tolist() == pytest.approx([1100.0 - t for t in range(200)])


@pytest.mark.parametrize("key", ["Episode", "Generation", "total_step", "round"])
def test_a_count_that_rises_is_the_step_of_a_table(tmp_path: Path, key: str) -> None:
    rows = "".join(f"{300 + i},{120 - i / 9:.2f},{i % 7}\n" for i in range(30))
    path = tmp_path / "log.csv"
    path.write_text(f"{key},Mean Fitness,lives\n{rows}")
    record = read_run(path)
    assert (record.axis, record.step.tolist()) == ("step", list(range(300, 330)))
    assert record.keys["reward"] == "Mean Fitness"
    assert dict(record.unread) == {"lives": 30}
    # What an epoch or a step counts goes before it; what falls or has fractions counts nothing.
    path.write_text(
        f"{key},epoch,loss\n" + "".join(f"{9 * i},{i},{3 - i / 99}\n" for i in range(30))
    )
    assert read_run(path).axis == "epoch"
    path.write_text(f"{key},loss\n" + "".join(f"{i % 7},{3 - i / 99}\n" for i in range(30)))
    assert read_run(path).axis == "row"


@pytest.mark.parametrize(
    "key",
    [
        "samples_per_second",
        "examples_per_sec",
        "tokens_per_second",
        "perf/images_per_sec",
        "seqs/s",
    ],
)
def test_throughput_under_many_names(tmp_path: Path, key: str) -> None:
    assert signal_of_tag(key) == "throughput"
    rows = "".join(f"{i},{3 - i / 99},{900 + i}\n" for i in range(30))
    path = tmp_path / "log.csv"
    path.write_text(f"step,loss,{key}\n{rows}")
    assert read_run(path).columns["throughput"].logged().tolist() == [900.0 + i for i in range(30)]
    path.write_text(f"step,loss,Tempo\n{rows}")
    with columns_given(parse_columns(f"{key.rpartition('/')[2] if 'perf' in key else key}=Tempo")):
        assert read_run(path).columns["throughput"].logged()[0] == 900


@pytest.mark.parametrize("names", ["step_start,step_end", "start_step,end_step"])
def test_rows_of_stretches_are_counted_by_their_last_step(tmp_path: Path, names: str) -> None:
    lines = [f"1,{100 * i + 1},{100 * i + 100},{3 - i / 20}" for i in range(40)]
    path = tmp_path / "loss.csv"
    path.write_text("\n".join([f"epoch,{names},avg_loss", *lines]) + "\n")
    record = read_run(path)
    assert (record.axis, record.step[0], record.step[-1]) == ("step", 100, 4000)


def test_an_epoch_that_is_infinite_counts_no_rows(tmp_path: Path) -> None:
    lines = [f"{{'loss': {2 - i / 10}, 'epoch': -1e999}}\n" for i in range(3)]
    record = read_as(tmp_path, "".join(lines))
    assert (record.axis, record.num_rows) == ("row", 3)


@pytest.mark.parametrize(
    ("name", "signal"),
    [
        ("run-.-tag-loss.csv", "loss"),
        ("run-model_v1.5-tag-epoch_val_loss.csv", "val_loss"),
        ("run-a-tag-optim_0.lr.csv.gz", "lr"),
    ],
)
def test_a_point_in_the_name_of_a_run_is_no_end_of_it(
    tmp_path: Path, name: str, signal: str
) -> None:
    rows = "".join(f"1575618724.{i},{10 * i},{2.8 - i / 50}\n" for i in range(40))
    text = f"Wall time,Step,Value\n{rows}".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    record = read_run(path)
    assert record.columns[signal].values[0] == 2.8
    assert (record.axis, record.num_rows) == ("step", 40)


@pytest.mark.parametrize(
    "word", ["_", "-", "--", "", "NA", "n/a", "N/A", "#N/A", "None", "null", "<NA>", "nil"]
)
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_words_for_a_missing_value_are_no_errors(tmp_path: Path, word: str, delimiter: str) -> None:
    rows = [
        delimiter.join(
            [str(i), f"{3 - 0.01 * i:.2f}", f"{3.5 - i / 100:.2f}" if i % 5 == 4 else word]
        )
        for i in range(60)
    ]
    record = read_as(tmp_path, "\n".join([delimiter.join(["step", "loss", "val_loss"]), *rows]))
    assert record.num_loss_rows == 60
    assert record.step[record.columns["val_loss"].present].tolist() == list(range(4, 60, 5))
    objects = [{"step": i, "loss": 3 - 0.01 * i, "val_loss": word} for i in range(60)]
    record = read_as(tmp_path, as_jsonl(objects))
    assert record.num_loss_rows == 60
    assert "val_loss" not in record.columns
