"""Two runs beside each other, and before and after a change."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trimtab.analysis.against import against_note
from trimtab.analysis.impact import measure_impact
from trimtab.analysis.settings_diff import diff, flat_config
from trimtab.analysis.side_by_side import Comparison, compare_sides, make_side, mean_text
from trimtab.errors import ReadError
from trimtab.record import Column, RecordBuilder, RunRecord


def run_of(
    loss: Callable[[np.ndarray], np.ndarray], num: int = 3000, **more: np.ndarray
) -> RunRecord:
    step = np.arange(1.0, num + 1)
    noise = np.random.default_rng(0).normal(0, 0.01, num)
    columns = {"loss": loss(step) + noise, **more}
    builder = RecordBuilder("x", "made")
    every = np.ones(num, dtype=np.bool_)
    builder.extend(step, {n: Column(v, every) for n, v in columns.items()})
    return builder.build()


def compared(a: RunRecord, b: RunRecord, **options: str) -> Comparison:
    return compare_sides(make_side("13B", a, {}), make_side("104B", b, {}), **options)  # type: ignore[arg-type]


def falling(x: np.ndarray) -> np.ndarray:
    return 4.0 + 4 * np.exp(-x / 1500)


@pytest.mark.covers("S60")
@pytest.mark.parametrize(("offset", "warns"), [(1.8, True), (1.1, True), (0.9, False)])
def test_a_gap_of_more_than_a_nat_warns(offset: float, warns: bool) -> None:
    c = compared(run_of(falling), run_of(lambda x: falling(x) + offset))
    assert c.end_gap == pytest.approx(offset, abs=0.02)
    assert any("104B" in w and "learning nothing useful" in w for w in c.warnings) is warns
    turned = compared(run_of(lambda x: falling(x) + offset), run_of(falling))
    assert any(w.startswith("13B is") for w in turned.warnings) is warns


@pytest.mark.covers("S61")
def test_the_ratio_of_slopes_is_reported() -> None:
    c = compared(run_of(lambda x: 8 - 1e-3 * x), run_of(lambda x: 7 - 2e-4 * x))
    assert c.slopes == pytest.approx((-1.0, -0.2), abs=0.01)
    assert c.slope_ratio == pytest.approx(0.2, abs=0.01)
    assert any("104B falls 5" in w or "104B falls 4.9" in w for w in c.warnings)
    assert not compared(run_of(falling), run_of(falling)).warnings


def test_by_tokens_a_run_of_half_the_batch_is_level() -> None:
    tokens = np.arange(1.0, 3001) * 1e6
    a = run_of(lambda x: 3 + 4 * np.exp(-x / 800), tokens_seen=tokens)
    b = run_of(lambda x: 3 + 4 * np.exp(-x / 1600), tokens_seen=tokens / 2)
    by_step, by_tokens = compared(a, b), compared(a, b, by="tokens")
    assert by_step.end_gap is not None
    assert by_step.end_gap > 0.4
    assert by_tokens.end_gap == pytest.approx(0.0, abs=0.02)
    assert by_tokens.common == pytest.approx((1e6, 1.5e9))


def test_other_spacing_and_nan_do_no_harm() -> None:
    a, b = run_of(falling), run_of(lambda x: falling(x) + 0.5)
    loss = b.columns["loss"]
    values = loss.values.copy()
    values[100:110] = np.nan
    values[200] = np.inf
    sparse = replace(b, columns={"loss": Column(values, np.arange(3000) % 10 == 0)})
    c = compared(a, sparse)
    assert c.end_gap == pytest.approx(0.5, abs=0.03)
    assert all(np.isfinite([g.a, g.b]).all() for g in c.gaps)


def test_nothing_in_common_is_said() -> None:
    a = run_of(falling, 100)
    b = replace(a, step=a.step + 1000)
    c = compared(a, b)
    assert c.common is None
    assert "nothing in common" in c.warnings[0]
    assert compared(a, a, by="tokens").common is None


def test_a_spike_of_one_is_not_the_difference() -> None:
    def spiky(x: np.ndarray) -> np.ndarray:
        return np.asarray(falling(x) + np.where((x > 2900) & (x < 2906), 9.0, 0.0))

    c = compared(run_of(falling), run_of(spiky))
    assert c.end_gap == pytest.approx(0.0, abs=0.02)
    assert c.widest is not None
    assert abs(c.widest.gap) < 0.1


def calmed(**changes: np.ndarray) -> RunRecord:
    at = np.arange(1.0, 2001) < 1001
    scale = np.where(at, 2.0 ** (16 - np.arange(2000) // 200), 4096.0)
    columns = {
        "grad_norm": np.where(at, 0.5, 0.3),
        "activation_norm": np.where(at, 20.0, 15.0),
        "loss_scale": scale,
        "lr": np.where(at, 6e-5, 3e-5),
        **changes,
    }
    return run_of(lambda x: 4 - 1e-4 * x, 2000, **columns)


@pytest.mark.covers("S94")
def test_the_verdict_names_the_three_signs() -> None:
    record = calmed()
    found = measure_impact(record, record.lineage_rows(), at=1001, window_steps=500)
    assert [s.state for s in found.signs] == ["yes", "yes", "yes"]
    for name in ("grad norm falls", "loss scale settles", "activation norm falls"):
        assert f"{name}: yes" in found.verdict
    assert found.verdict.startswith("calmer: 3 of 3")
    assert "the learning rate was lowered, which alone can do this" in found.verdict


def test_what_got_worse_or_was_not_logged_is_said() -> None:
    at = np.arange(1.0, 2001) < 1001
    record = calmed(grad_norm=np.where(at, 0.3, 0.5), lr=np.full(2000, 6e-5))
    columns = {n: c for n, c in record.columns.items() if n != "activation_norm"}
    record = replace(record, columns=columns)
    found = measure_impact(record, record.lineage_rows(), at=1001, window_steps=500)
    assert [s.state for s in found.signs] == ["no", "yes", "not logged"]
    assert found.verdict.startswith("no clear change: 1 of 2")
    few = measure_impact(record, record.lineage_rows(), at=1, window_steps=500)
    assert few.verdict == "too few rows on one side to judge"


def test_means_and_slope_of_the_window_against_plain_numpy() -> None:
    record = calmed()
    found = measure_impact(record, record.lineage_rows(), at=1001, window_steps=200)
    table = {(r.signal, r.measure.split(",")[0]): (r.before, r.after) for r in found.rows}
    loss, step = record.columns["loss"].values, record.step
    for i, part in enumerate((slice(800, 1000), slice(1000, 1200))):
        assert table["loss", "mean"][i] == pytest.approx(loss[part].mean())
        slope = np.polyfit(step[part], loss[part], 1)[0] * 1000
        assert table["loss", "slope"][i] == pytest.approx(slope, rel=1e-6)
        assert table["grad_norm", "mean"][i] == pytest.approx((0.5, 0.3)[i])
        assert table["activation_norm", "mean"][i] == pytest.approx((20.0, 15.0)[i])
    assert (found.num_before, found.num_after) == (200, 200)


@pytest.mark.covers("S95")
def test_exactly_the_changed_keys(tmp_path: Path) -> None:
    a = tmp_path / "a.yaml"
    b = tmp_path / "b.json"
    a.write_text(
        "model: {hidden: 512, layers: 4}\noptim: {lr: 6.0e-5, betas: [0.9, 0.999]}\nseed:"
        " 42\nold: 1\n"
    )
    b.write_text(
        '{"model": {"hidden": 512, "layers": 4}, "optim": {"lr": 0.00003, "betas": [0.9, 0.95]},'
        ' "seed": 42, "new": true}'
    )
    changed = diff(flat_config(a), flat_config(b))
    assert {c.key for c in changed} == {"optim.lr", "optim.betas", "old", "new"}
    assert {c.key: (c.a, c.b) for c in changed}["new"] == (None, "true")
    assert diff(flat_config(a), flat_config(a)) == ()


def test_a_launch_script_and_toml(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "# --lr 1\nexport X=1\ntorchrun train.py --lr 6e-5 \\\n  --clip-grad=1.0 --fp16 --data-path"
        ' "a b" --seed -1 --x $LR\n'
    )
    assert flat_config(script) == {
        "lr": "6e-5",
        "clip-grad": "1.0",
        "fp16": "true",
        "data-path": "a b",
        "seed": "-1",
        "x": "$LR",
    }
    toml = tmp_path / "run.toml"
    toml.write_text('[optimizer]\nlr = 3e-4\nname = "AdamW"\n')
    assert flat_config(toml) == {"optimizer.lr": "0.0003", "optimizer.name": "AdamW"}
    empty = tmp_path / "empty"
    empty.write_text("nothing here")
    with pytest.raises(ReadError, match="no settings found"):
        flat_config(empty)
    unsafe = tmp_path / "unsafe.yaml"
    unsafe.write_text("a: !!python/object/apply:os.system ['touch /tmp/never']\n")
    assert flat_config(unsafe) == {"a": '["touch /tmp/never"]'}  # a tag is text, never run
    assert not Path("/tmp/never").exists()


def test_the_loss_itself_enters_the_verdict() -> None:
    at = np.arange(1.0, 2001) < 1001
    silent = {"grad_norm": np.full(2000, 0.3), "activation_norm": np.full(2000, 15.0)}
    cases = ((0.770, 0.703, "better: loss 0.77 to 0.703 (-8.7%)"), (0.70, 0.77, "worse: loss"))
    for before, after, said in cases:
        loss = np.where(at, before, after)
        record = replace(
            calmed(**silent), columns={"loss": Column(loss, np.ones(2000, dtype=bool))}
        )
        found = measure_impact(record, record.lineage_rows(), at=1001, window_steps=500)
        assert found.verdict.startswith(said)
    loss = np.where(at, 0.7, np.nan)
    record = replace(record, columns={"loss": Column(loss, np.ones(2000, dtype=bool))})
    found = measure_impact(record, record.lineage_rows(), at=1001, window_steps=500)
    assert "none that is finite" in found.verdict
    assert found.verdict.startswith("worse")


def test_a_run_without_a_finite_loss_is_named() -> None:
    a, b = run_of(falling), run_of(falling)
    never = replace(b, columns={"loss": Column(np.full(3000, np.nan), np.ones(3000, dtype=bool))})
    c = compared(a, never)
    assert c.common is None
    assert "never had a finite loss: NaN or Inf in all 3000 rows" in c.warnings[0]
    values = b.columns["loss"].values.copy()
    values[2000:] = np.nan
    c = compared(a, replace(b, columns={"loss": Column(values, np.ones(3000, dtype=bool))}))
    assert "no finite loss from step 2001 on" in c.warnings[0]
    assert mean_text(float("nan")) == "—"


def table_of(**columns: np.ndarray) -> RunRecord:
    builder = RecordBuilder("x", "made")
    num = len(next(iter(columns.values())))
    every = np.ones(num, dtype=np.bool_)
    builder.extend(np.arange(float(num)), {n: Column(v, every) for n, v in columns.items()})
    return builder.build()


def test_a_run_that_is_worse_in_few_validations_alone_is_named() -> None:
    rng = np.random.default_rng(0)
    x = np.arange(30.0)
    base = 0.6 + 2.4 * np.exp(-x / 8)
    first, worse, second = (
        table_of(
            loss=base * (1 + rng.normal(0, 0.001, 30)),
            val_loss=base * factor * (1 + rng.normal(0, 0.02, 30)),
        )
        for factor in (1.0, 1.2, 1.0)
    )
    assert compared(first, worse).verdict.startswith("104B is worse: val loss")
    assert "worse" not in compared(first, second).verdict
    accurate, less = (
        table_of(
            loss=base * (1 + rng.normal(0, 0.001, 30)), accuracy=level + rng.normal(0, 0.01, 30)
        )
        for level in (0.9, 0.7)
    )
    assert compared(accurate, less).verdict.startswith("104B is worse: accuracy")
    assert compared(less, less).verdict == "no difference at all"


def test_a_loss_in_other_units_is_not_said_to_learn_nothing() -> None:
    other = compared(run_of(falling), run_of(lambda x: 400 * falling(x)))
    assert not any("nothing useful" in w for w in other.warnings)


def test_who_is_worse_is_said_by_what_was_held_out_where_the_training_loss_says_otherwise() -> None:
    step = np.arange(1.0, 601)
    honest = 0.52 + 0.3 * np.exp(-step / 100)
    overfit = honest + 0.15 * np.clip((step - 200) / 400, 0, 1)
    a = run_of(lambda x: 0.5 + 0.3 * np.exp(-x / 100), 600, val_loss=honest)
    b = run_of(lambda x: 0.05 + 0.7 * np.exp(-x / 100), 600, val_loss=overfit)
    said = compared(a, b).verdict
    assert said.startswith("104B is worse: val loss 0.52")
    assert "by the training loss alone 13B is worse: 0.4" in said


def test_validation_that_is_not_finite_any_more_is_worse() -> None:
    step = np.arange(1.0, 301)
    held_out = 1.2 + np.exp(-step / 100)
    broken = np.where(step < 200, held_out, np.nan)
    other = run_of(lambda x: falling(x) * 1.0001, 300, val_loss=broken)
    c = compared(run_of(falling, 300, val_loss=held_out), other)
    assert c.verdict.startswith("104B is worse: val loss 1.2")
    assert "and NaN at the end, apart from step 200 on" in c.verdict


def test_agents_without_a_loss_are_compared_by_their_reward() -> None:
    def run(reward: float, seed: int) -> RunRecord:
        step = np.arange(300.0)
        noise = np.random.default_rng(seed).normal(0, 8, 300)
        return table_of(reward=reward * (1 - np.exp(-step / 80)) + noise)

    c = compared(run(200.0, 3), run(100.0, 4))
    assert (c.worse, c.common, c.warnings) == ("b", None, ())
    assert c.verdict.startswith("104B is worse: reward ")
    alike = compared(run(200.0, 3), run(200.0, 5))
    assert alike.worse is None
    assert alike.verdict == "no reward or score ends apart beyond noise"


def test_a_reward_that_is_logged_at_other_steps_is_compared_and_the_loss_accuses_nobody() -> None:
    def run(begins: float, reward: float) -> RunRecord:
        step = np.arange(begins, 3000, 10)
        builder = RecordBuilder("x", "made")
        draw = np.random.default_rng(int(reward))
        columns = {
            "loss": 3.0 + reward / 50 + draw.normal(0, 0.1, len(step)),
            "reward": reward * (1 - np.exp(-step / 500)) + draw.normal(0, 1.0, len(step)),
        }
        every = np.ones(len(step), dtype=np.bool_)
        builder.extend(step, {n: Column(v, every) for n, v in columns.items()})
        return builder.build()

    c = compared(run(1, 200.0), run(4, 20.0))
    assert not any("nats above" in w for w in c.warnings)
    assert c.apart[0].signal == "reward"
    assert c.apart[0].worse == "b"


def test_a_reference_is_said_to_be_the_same_until_what_differs_first() -> None:
    step = np.arange(400.0)
    noise = np.random.default_rng(0).normal(0, 0.02, 400)
    norm = 1 + 0.1 * np.random.default_rng(1).random(400)
    a = table_of(loss=2 + np.exp(-step / 50) + noise, grad_norm=norm)
    later = step >= 200
    b = table_of(
        loss=2 + np.exp(-step / 50) + noise + 0.3 * (step >= 220),
        grad_norm=np.where(later, 2 * norm, norm),
    )
    assert "identical until 199, and from 200 on grad norm differs" in against_note(b, a, "A")
    assert "identical" not in against_note(table_of(loss=noise, grad_norm=norm), a, "A")


def _times(slow_every: int, num: int = 600) -> np.ndarray:
    usual = 0.006 * np.exp(0.05 * np.random.default_rng(slow_every).standard_normal(num))
    if slow_every:
        usual[::slow_every] += 0.02
    return usual


def test_a_pace_whose_every_fourth_step_is_slow_is_told() -> None:
    c = compared(
        run_of(falling, 600, step_time_s=_times(0)), run_of(falling, 600, step_time_s=_times(4))
    )
    assert c.pace is not None
    assert c.pace.ratio == pytest.approx(1.83, abs=0.05)
    assert "104B is 1.8 times as slow" in c.verdict


def test_one_pause_or_a_slow_half_is_no_pace_of_the_run() -> None:
    pause, half = _times(0), _times(0)
    pause[300] += 60.0
    half[:300][::4] += 0.02
    for other in (pause, half, _times(1) - 0.02):
        c = compared(
            run_of(falling, 600, step_time_s=_times(0)), run_of(falling, 600, step_time_s=other)
        )
        assert c.pace is None


def test_the_same_training_is_not_worse_for_another_evaluation() -> None:
    """Loss and norms are equal to the last digit, so the weights were: the evaluation differs."""
    score = 0.5 + 0.3 * (1 - np.exp(-np.arange(1.0, 601) / 200))
    norm = np.exp(0.1 * np.random.default_rng(1).standard_normal(600))
    late = score + 0.05 * (np.arange(600) > 300)
    a = run_of(falling, 600, eval_score=score, grad_norm=norm)
    c = compared(a, run_of(falling, 600, eval_score=late, grad_norm=norm))
    assert c.apart
    assert c.worse is None
    assert "the training is identical to the last digit" in c.verdict
    assert "the evaluation differs, not the run" in c.verdict
    assert "is worse" not in c.verdict
    other = compared(a, run_of(falling, 600, eval_score=late, grad_norm=norm * 1.001))
    assert other.worse == "a"


def test_values_printed_with_three_digits_equal_what_rounds_to_them() -> None:
    rate = 1e-3 * np.linspace(0.05, 2.0, 600)
    short = np.array([float(f"{r:.2e}") for r in rate])
    c = compared(run_of(falling, 600, lr=rate), run_of(falling, 600, lr=short))
    assert not c.changed
    assert "differ" not in c.first_text
    moved = rate * np.where(np.arange(600) < 300, 1.0, 1.02)
    c = compared(run_of(falling, 600, lr=moved), run_of(falling, 600, lr=short))
    assert c.first_difference is not None
    assert c.first_difference.at is not None
    assert c.first_difference.at == pytest.approx(301, abs=2)


def test_what_is_compared_between_steps_is_not_called_left_out() -> None:
    def run(apart: int) -> RunRecord:
        step = np.arange(apart, 500.0, apart)
        builder = RecordBuilder("x", "made")
        every = np.ones(len(step), dtype=np.bool_)
        columns = {
            "loss": 2.0 - step / 1000,
            "loss_scale": np.full(len(step), 65536.0),
            "lr": np.full(len(step), 1e-3),
            "weight_norm": step,
        }
        builder.extend(step, {n: Column(v, every) for n, v in columns.items()})
        builder.keys.update({n: f"the {n}" for n in columns})
        return builder.build()

    c = compared(run(47), run(12))
    assert c.common is not None
    assert c.not_compared == ("the weight_norm",)
    assert "not compared: the weight_norm" in c.notes


def test_losses_of_two_digits_do_not_show_that_the_training_was_the_same() -> None:
    step = np.arange(400.0)
    loss = np.round(0.1 * np.exp(-step / 60), 1)
    val = 0.5 + 0.01 * np.random.default_rng(0).random(400)
    c = compared(table_of(loss=loss, val_loss=val), table_of(loss=loss, val_loss=val + 1))
    assert not c.same_training
    assert c.worse == "b"
