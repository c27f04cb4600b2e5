"""What says which of two runs is worse, and what does not: players, scales, axes, noise."""

from typing import Literal

import numpy as np
import pytest

from trimtab.analysis.against import against_findings, against_note
from trimtab.analysis.divergence import apart_at_end
from trimtab.analysis.impact import measure_impact
from trimtab.analysis.side_by_side import Comparison, compare_sides, make_side
from trimtab.api.comparison import compare
from trimtab.record import Axis, Column, RecordBuilder, RunRecord
from trimtab.report.side_text import SideText
from trimtab.report.terminal import rendered_text

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def record_of(
    columns: dict[str, Floats],
    *,
    axis: Axis = "step",
    every: int = 0,
    scale: float = 1.0,
    start: float = 0.0,
    keys: dict[str, str] | None = None,
) -> RunRecord:
    """A record with steps from `start` in units of `scale`.

    What is called `val_*` or `eval_*` is there in each row of `every` alone.
    """
    builder = RecordBuilder("x", "made", axis=axis)
    num = len(next(iter(columns.values())))
    whole, some = np.ones(num, dtype=np.bool_), np.arange(1, num + 1) % max(every, 1) == 0
    builder.extend(
        start + scale * np.arange(float(num)),
        {
            n: Column(v, some if every and n.startswith(("val_", "eval_")) else whole)
            for n, v in columns.items()
        },
    )
    builder.keys.update(keys or {n: n for n in columns})
    return builder.build()


def compared(a: RunRecord, b: RunRecord, by: Literal["step", "tokens"] = "step") -> Comparison:
    return compare_sides(make_side("one", a, {}), make_side("two", b, {}), by=by)


def printed(c: Comparison) -> str:
    """All that is said of two runs, in one line."""
    return " ".join(rendered_text(SideText(c, None, (), title=""), width=200).split())


def curve(seed: int, num: int = 600, *, floor: float = 0.5, noise: float = 0.05) -> Floats:
    draw = np.random.default_rng(seed)
    falls = floor + 2.0 * np.exp(-np.arange(float(num)) / (num / 6))
    return np.asarray(falls * np.exp(noise * draw.standard_normal(num)), dtype=np.float64)


@pytest.mark.parametrize(
    "keys",
    [
        {"loss": "loss/D", "discriminator_loss": "loss/D", "generator_loss": "loss/G"},
        {"loss": "loss_G", "generator_loss": "loss_G"},
        {"loss": "critic_loss"},
        {"loss": "policy_loss", "policy_loss": "policy_loss"},
    ],
)
def test_losses_of_players_part_and_are_never_worse(keys: dict[str, str]) -> None:
    def run(seed: int, late: float) -> RunRecord:
        loss = 1.2 + 0.1 * np.random.default_rng(seed).standard_normal(600)
        loss += np.where(np.arange(600) > 300, late, 0.0)
        other = 1.0 + 0.1 * np.random.default_rng(seed + 9).standard_normal(600) - late
        return record_of(
            {n: loss if k == keys["loss"] else other for n, k in keys.items()}, keys=keys
        )

    sound, frozen = run(1, 0.0), run(2, -0.5)
    for pair in ((sound, frozen), (frozen, sound)):
        c = compared(*pair)
        assert c.worse is None
        assert "worse" not in printed(c).replace("neither is worse", "")
        assert "more slowly" not in printed(c)
        assert "part" in c.verdict
        assert not [f for f in against_findings(pair[1], pair[0], "A") if f.severity != "info"]
    assert "above" in compared(sound, frozen).verdict


def test_a_total_that_is_the_sum_of_two_players_has_no_good_direction() -> None:
    def run(seed: int, shift: float) -> RunRecord:
        d, g = (1.0 + 0.05 * np.random.default_rng(seed + k).standard_normal(600) for k in (0, 50))
        g = g + shift
        return record_of({"loss": d + g, "discriminator_loss": d, "generator_loss": g})

    assert compared(run(1, 0.0), run(2, 1.0)).worse is None


def test_a_game_is_judged_by_the_distance_of_its_samples() -> None:
    def run(seed: int, fid: float) -> RunRecord:
        loss = 1.2 + 0.1 * np.random.default_rng(seed).standard_normal(600)
        return record_of(
            {"loss": loss, "fid": fid * curve(seed)}, keys={"loss": "d_loss", "fid": "fid"}
        )

    c = compared(run(1, 10.0), run(2, 30.0))
    assert c.worse == "b"
    assert c.verdict.startswith("two is worse: fid")


def test_a_players_loss_that_breaks_is_worse_all_the_same() -> None:
    loss = 1.2 + 0.1 * np.random.default_rng(0).standard_normal(600)
    broken = np.where(np.arange(600) > 400, np.nan, loss)
    c = compared(
        record_of({"loss": loss}, keys={"loss": "d_loss"}),
        record_of({"loss": broken}, keys={"loss": "d_loss"}),
    )
    assert c.worse == "b"
    assert "its loss is not finite" in c.verdict


@pytest.mark.parametrize("since", [0, 300])
def test_a_sum_for_a_mean_is_another_scale_where_validation_is_the_same(since: int) -> None:
    def run(seed: int, factor: float) -> RunRecord:
        loss = curve(seed) * np.where(np.arange(600) >= since, factor, 1.0)
        return record_of({"loss": loss, "val_loss": curve(seed + 50, noise=0.02)}, every=30)

    c = compared(run(1, 1.0), run(2, 64.0))
    assert c.worse is None
    assert "another scale of the loss" in c.verdict
    assert "64" in c.verdict or "63" in c.verdict or "65" in c.verdict
    assert "val loss" in c.verdict
    assert "nothing useful" not in printed(c)
    assert "worse" not in printed(c)
    turned = compared(run(2, 64.0), run(1, 1.0))
    assert turned.worse is None
    assert "that of two" in turned.verdict
    assert not [f for f in against_findings(run(2, 64.0), run(1, 1.0), "A") if f.severity != "info"]
    assert "another scale" in against_note(run(2, 64.0), run(1, 1.0), "A")


def test_an_offset_is_another_scale_where_validation_is_the_same() -> None:
    def run(seed: int, more: float) -> RunRecord:
        loss = curve(seed) + np.where(np.arange(600) >= 100, more, 0.0)
        return record_of({"loss": loss, "val_loss": curve(seed + 50, noise=0.02)}, every=30)

    c = compared(run(1, 0.0), run(2, 0.7))
    assert c.worse is None
    assert "another scale of the loss" in c.verdict
    assert "0.7" in c.verdict


def test_a_constant_factor_from_the_first_row_on_is_another_scale_without_validation() -> None:
    c = compared(record_of({"loss": curve(1)}), record_of({"loss": 8.0 * curve(2)}))
    assert c.worse is None
    assert "another scale of the loss" in c.verdict
    late = curve(2) * np.where(np.arange(600) > 300, 8.0, 1.0)
    assert compared(record_of({"loss": curve(1)}), record_of({"loss": late})).worse == "b"
    # A loss that hardly falls has a constant factor to any other that hardly falls.
    flat = 2.0 + 0.01 * np.random.default_rng(3).standard_normal(600)
    c = compared(record_of({"loss": curve(1)}), record_of({"loss": flat}))
    assert c.worse == "b"
    assert compared(record_of({"loss": flat}), record_of({"loss": flat * 1.5})).worse == "b"


def test_validation_that_is_worse_too_is_no_other_scale() -> None:
    def run(seed: int, factor: float) -> RunRecord:
        late = np.where(np.arange(600) >= 300, factor, 1.0)
        return record_of(
            {"loss": curve(seed) * late, "val_loss": curve(seed + 50) * late}, every=30
        )

    c = compared(run(1, 1.0), run(2, 1.6))
    assert c.worse == "b"
    assert "scale" not in c.verdict


def test_a_training_loss_that_is_higher_beside_the_same_validation_accuses_nobody() -> None:
    """Dropout, augmentation, label smoothing: harder to learn, and as good in the end."""

    def run(seed: int, more: float) -> RunRecord:
        loss = curve(seed) + more * np.arange(600) / 600
        return record_of({"loss": loss, "val_loss": curve(seed + 50, noise=0.02)}, every=30)

    c = compared(run(1, 0.0), run(2, 0.8))
    assert c.worse is None
    assert "val loss" in c.verdict
    assert "same" in c.verdict


def test_validation_too_coarse_to_tell_leaves_it_to_the_training_loss() -> None:
    def run(seed: int, more: float) -> RunRecord:
        loss = curve(seed, noise=0.01) + more
        held_out = curve(seed + 50, noise=0.5) + more
        return record_of({"loss": loss, "val_loss": held_out}, every=60)

    assert compared(run(1, 0.0), run(2, 0.2)).worse == "b"


def test_too_few_common_rows_are_said_once() -> None:
    a = record_of({"loss": 1.2 * curve(1, 200), "val_loss": curve(3, 200)}, axis="epoch")
    b = record_of({"loss": 6 * curve(2, 150)}, axis="epoch", scale=1 / 150, start=1 / 150)
    c = compared(a, b)
    said = printed(c)
    assert "too few common rows" in said
    assert "nothing useful" not in said
    assert " above " not in said
    assert c.worse is None


def test_losses_of_other_steps_are_compared_between_them() -> None:
    a = record_of({"loss": curve(1, 300)}, scale=10.0, start=10.0)
    b = record_of({"loss": curve(2, 430) + 1.5}, scale=7.0, start=3.5)
    for pair, worse in (((a, b), "b"), ((b, a), "a")):
        c = compared(*pair)
        assert c.worse == worse
        assert "too few" not in c.verdict
    twin = record_of({"loss": curve(2, 430)}, scale=7.0, start=3.5)
    assert compared(a, twin).worse is None
    assert compared(twin, a).worse is None


@pytest.mark.parametrize("axis", ["epoch", "row"])
def test_positions_are_called_by_what_the_axis_counts(axis: Axis) -> None:
    def run(seed: int, more: float, rate: float) -> RunRecord:
        return record_of(
            {
                "loss": curve(seed, 150) + more,
                "lr": np.full(150, rate),
                "val_loss": curve(seed + 9, 150) + more,
            },
            axis=axis,
        )

    c = compared(run(1, 0.0, 1e-3), run(2, 1.5, 1e-2))
    said = printed(c)
    assert "step" not in said
    assert f"{axis} " in said
    assert f"{axis}s" in c.verdict + str(c.warnings) + said
    note = against_note(run(2, 1.5, 1e-2), run(1, 0.0, 1e-3), "A")
    assert "step" not in note
    assert f"common {axis}s" in note


def test_two_axes_are_not_laid_on_each_other() -> None:
    a, b = record_of({"loss": curve(1, 200)}, axis="epoch"), record_of({"loss": curve(2, 200) + 3})
    c = compared(a, b)
    assert (c.worse, c.common, c.first_difference, c.apart) == (None, None, None, ())
    assert any("epochs" in w and "steps" in w for w in c.warnings)
    assert not against_findings(b, a, "A")
    assert "epochs" in against_note(b, a, "A")


def test_slopes_that_noise_explains_are_not_said() -> None:
    flat = [2.0 + 0.3 * np.random.default_rng(k).standard_normal(150) for k in (0, 1)]
    c = compared(record_of({"loss": flat[0]}), record_of({"loss": flat[1]}))
    assert "slope" not in printed(c)
    assert c.slope_ratio is None
    assert not any("falls" in w or "rises" in w for w in c.warnings)
    x = np.arange(600.0)
    falls = 3.0 - x / 600 + 0.02 * np.random.default_rng(2).standard_normal(600)
    still = 3.0 + 0.02 * np.random.default_rng(3).standard_normal(600)
    said = printed(compared(record_of({"loss": falls}), record_of({"loss": still})))
    assert "per 1 000 steps" in said
    assert "ratio" not in said
    assert "two no longer falls" in said


def test_a_gap_that_is_not_told_from_noise_is_not_called_none() -> None:
    """More than the noise that is printed, less than what is needed."""
    draw = np.random.default_rng(1)
    one, two = (3.0 + 0.3 * draw.standard_normal(150) for _ in range(2))
    c = compared(record_of({"loss": one}), record_of({"loss": two + 0.5}))
    assert c.worse is None
    assert c.end_gap is not None
    assert c.noise is not None
    assert c.end_gap > c.noise
    assert "no difference" not in c.verdict
    assert "not told apart" in c.verdict


def test_validation_signals_that_disagree_leave_it_open() -> None:
    def run(seed: int, more: float) -> RunRecord:
        score = 0.6 + more + 0.005 * np.random.default_rng(seed).standard_normal(600)
        return record_of(
            {
                "loss": curve(seed) + more,
                "val_loss": curve(seed + 9, noise=0.01) + more,
                "eval_score": score,
            },
            every=20,
        )

    c = compared(run(1, 0.0), run(2, 0.3))
    assert c.worse is None
    assert "val loss" in c.verdict
    assert "eval score" in c.verdict
    assert "is worse" not in c.verdict


def test_only_validation_in_common_is_judged_by_a_reference_too() -> None:
    def run(seed: int, more: float, **loss: Floats) -> RunRecord:
        return record_of(
            {"val_loss": curve(seed, noise=0.02) + more, "grad_norm": curve(9), **loss}, every=10
        )

    good, bad = run(1, 0.0, loss=curve(5)), run(2, 0.6)
    (found, *_) = against_findings(bad, good, "A")
    assert (found.signal, found.severity, found.kind) == ("val_loss", "warning", "behind-reference")
    assert "val loss" in against_note(bad, good, "A")
    assert not against_findings(run(3, 0.0), good, "A")


@pytest.mark.parametrize("num", [40, 150, 600])
def test_against_judges_as_compare_does(num: int) -> None:
    """Each pair of a few kinds of runs: an alarm where, and only where, compare says worse."""

    def run(seed: int, train: float, held_out: float) -> RunRecord:
        return record_of(
            {
                "loss": curve(seed, num, noise=0.02) + train,
                "val_loss": curve(seed + 9, num, noise=0.02) + held_out,
            },
            every=2,
        )

    kinds = ((0.0, 0.0), (0.5, 0.5), (0.0, 0.5), (-0.2, 0.5), (0.6, 0.0))
    for i, one in enumerate(kinds):
        for j, two in enumerate(kinds):
            a, b = run(10 + i, *one), run(30 + j, *two)
            worse = compared(a, b).worse
            found = against_findings(b, a, "A")
            alarms = [f for f in found if f.severity == "warning" and f.end_row is None]
            assert bool(alarms) is (worse == "b"), (one, two)


def test_agents_are_judged_by_the_reward_of_the_reference() -> None:
    def run(seed: int, reward: float) -> RunRecord:
        noise = np.random.default_rng(seed).normal(0, 5, 600)
        return record_of(
            {"loss": curve(seed), "reward": reward * (1 - np.exp(-np.arange(600) / 100)) + noise}
        )

    (found, *_) = against_findings(run(2, 20.0), run(1, 200.0), "A")
    assert found.signal == "reward"
    assert found.severity == "warning"
    assert "reward" in against_note(run(2, 20.0), run(1, 200.0), "A")
    assert not against_findings(run(1, 200.0), run(2, 20.0), "A")


def _columns(loss: Floats, held_out: Floats) -> dict[str, Floats]:
    return {"step": np.arange(600.0), "loss": loss, "val_loss": held_out}


def test_several_runs_are_ranked_by_what_decides() -> None:
    def held_out(seed: int, more: float) -> Floats:
        return np.asarray(curve(seed, noise=0.01) + more, dtype=np.float64)

    best = _columns(curve(1) + 0.5, held_out(4, 0.0))
    middle = _columns(curve(2), held_out(5, 0.4))
    worst = _columns(curve(3) - 0.3, held_out(6, 0.9))
    found = compare(middle, worst, best)
    labels = [run for run, _ in found.ranking]
    assert [label[-2] for label in labels] == ["c", "a", "b"]
    assert found.to_dict()["ranked_by"] == "val_loss"


def test_players_are_not_ranked_by_their_losses() -> None:
    step = np.arange(600.0)
    runs = [{"step": step, "loss_D": curve(k) + k / 3, "loss_G": curve(k + 5)} for k in range(3)]
    found = compare(*runs)
    assert found.ranking == ()
    assert found.to_dict()["ranked_by"] is None


def test_a_run_whose_validation_breaks_is_ranked_last() -> None:
    broken = np.where(np.arange(600) > 400, np.nan, curve(7))
    runs = [_columns(curve(k), curve(k + 5)) for k in range(2)]
    found = compare(runs[0], _columns(curve(3), broken), runs[1])
    assert found.ranked_by == "val_loss"
    assert found.ranking[-1] == ("columns (b)", None)


def test_rows_are_steps_where_each_step_is_logged_alone() -> None:
    rows = record_of({"loss": curve(1) + 1}, axis="row")
    assert compared(record_of({"loss": curve(2)}), rows).worse == "b"
    assert compared(record_of({"loss": curve(2)}, scale=10.0), rows).other_axis


def test_runs_without_noise_are_told_without_any() -> None:
    late = curve(1) + 0.5 * (np.arange(600) > 300)
    c = compared(record_of({"loss": curve(1)}), record_of({"loss": late}))
    assert c.worse == "b"
    assert "(noise" not in c.verdict
    (found, *_) = against_findings(record_of({"loss": late}), record_of({"loss": curve(1)}), "A")
    assert "noise" not in found.text


def test_validation_that_is_better_is_not_called_the_same() -> None:
    """Of a few checks, too few to tell them apart: the higher loss is no worse, and no scale."""
    late = np.clip(np.arange(600) - 350, 0, None) / 250
    swing = np.array([0.2 if k % 40 else -0.2 for k in range(600)])
    a = record_of({"loss": curve(1), "val_loss": curve(3, noise=0.2)}, every=100)
    b = record_of(
        {"loss": curve(2) * np.exp(-2.5 * late), "val_loss": curve(4, noise=0.2) + late + swing},
        every=100,
    )
    c = compared(a, b)
    assert c.worse != "a"
    assert "is the same" not in c.verdict


def test_the_perplexity_of_the_training_loss_is_not_held_out() -> None:
    def run(seed: int, more: float) -> RunRecord:
        loss = curve(seed) + more
        return record_of({"loss": loss, "perplexity": np.exp(loss)})

    c = compared(run(1, 0.0), run(2, 0.5))
    assert c.worse == "b"
    assert c.ends == ()


def test_before_and_after_a_change_no_direction_and_no_noise_is_made_a_judgment() -> None:
    loss = 1.0 + 0.02 * np.random.default_rng(0).standard_normal(100)
    loss += 0.5 * (np.arange(100) >= 50)
    keys = {"loss": "loss_D", "generator_loss": "loss_G"}
    players = record_of({"loss": loss, "generator_loss": curve(1, 100)}, axis="epoch", keys=keys)
    found = measure_impact(players, players.lineage_rows(), at=50, window_steps=50)
    assert "worse" not in found.verdict
    assert "of which neither direction is good" in found.verdict
    assert [r.measure for r in found.rows] == ["mean"]
    falls = record_of({"loss": loss - 0.01 * np.arange(100)}, axis="epoch")
    found = measure_impact(falls, falls.lineage_rows(), at=50, window_steps=50)
    slope = next(r for r in found.rows if r.measure == "slope, per epoch")
    assert (slope.before, slope.after) == pytest.approx((-0.01, -0.01), abs=0.001)


def test_before_and_after_a_change_what_is_held_out_decides() -> None:
    t = np.arange(100.0)
    overfit = record_of({"loss": 1.0 - t / 110, "val_loss": 0.8 + 0.01 * np.abs(t - 40)})
    found = measure_impact(overfit, overfit.lineage_rows(), at=50, window_steps=50)
    assert found.verdict.startswith("worse: val loss 0.")
    assert "training loss 0." in found.verdict


def test_a_validation_that_turns_late_is_worse_though_its_gap_still_grows() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(0.0, 800.0, 20.0)
    falls = 2.4 + 0.95 * np.exp(-steps / 150)
    turns = falls + 0.2 * np.maximum(steps - 400, 0) / 400
    noise = 0.01 * rng.standard_normal((2, len(steps)))
    assert apart_at_end(falls + noise[0], turns + noise[1]) is not None
    assert apart_at_end(falls + noise[0], falls + noise[1]) is None
