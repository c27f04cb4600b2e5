"""Logs of 8 to 100 rows: what is told, and what stays silent."""

from collections.abc import Callable

import numpy as np
import pytest

from trimtab.analysis.assemble import make_account
from trimtab.detectors.few_rows import few_rows_findings
from trimtab.record import RecordBuilder
from trimtab.testing.curves import record_of

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def _fell(n: int, seed: int = 0, noise: float = 0.02) -> Floats:
    rng = np.random.default_rng(seed)
    return np.asarray((0.3 + np.exp(-np.arange(n) / (n / 4))) * (1 + noise * rng.normal(size=n)))


def _kinds(loss: Floats, val: Floats | None = None) -> set[str]:
    columns = {"loss": loss} if val is None else {"loss": loss, "val_loss": val}
    return {f.kind for f in few_rows_findings(record_of(np.arange(float(len(loss))), columns))}


@pytest.mark.parametrize("n", [8, 12, 19, 29, 60, 100])
def test_few_rows_of_a_sound_run_are_silent(n: int) -> None:
    told = [_kinds(_fell(n, s), _fell(n, s + 1000, 0.04)) for s in range(30)]
    assert not any(told)


@pytest.mark.parametrize("n", [12, 19, 30, 60])
def test_few_rows_tell_overfitting_with_its_best_row(n: int) -> None:
    late = np.maximum(np.arange(n) - n // 3, 0) / n
    loss, val = _fell(n) * np.exp(-late), _fell(n, 1) + 0.8 * late
    record = record_of(np.arange(float(n)), {"loss": loss, "val_loss": val})
    found = [f for f in few_rows_findings(record) if f.kind == "overfitting"]
    best = int(np.argmin(val))
    assert [f.onset_row for f in found] == [best + 1]
    assert f"row {best + 1} of {n})" in found[0].text
    assert "overfitting" not in _kinds(loss[::-1].copy(), val)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda y: np.where(np.arange(len(y)) > 11, 2 * y, y), "unrecovered-spike"),
        (lambda y: np.where(np.arange(len(y)) == 11, 9 * y, y), "spike"),
    ],
)
def test_few_rows_tell_a_rise_and_a_lone_row(damage: Callable[[Floats], Floats], kind: str) -> None:
    assert kind in _kinds(damage(_fell(19)))


def test_few_rows_are_healthy_with_their_power_said() -> None:
    account = make_account(record_of(np.arange(20.0), {"loss": _fell(20)}))
    assert account.verdict == "healthy"
    assert "a lasting rise to twice, in " in account.judgement.power
    short = make_account(record_of(np.arange(7.0), {"loss": _fell(7)}))
    assert short.verdict == "not-judged"


def test_few_rows_tell_a_level_that_is_left_for_good_however_noisy() -> None:
    rng = np.random.default_rng(0)
    low, high = 1.6 * np.exp(0.35 * rng.normal(size=21)), 5.4 * np.exp(0.35 * rng.normal(size=70))
    found = few_rows_findings(record_of(np.arange(91.0), {"loss": np.append(low, high)}))
    level = [f for f in found if f.detector == "few-rows-level"]
    assert [abs(f.onset_row - 21) <= 2 for f in level] == [True]


def test_few_rows_tell_a_level_that_is_left_for_one_that_is_wild() -> None:
    rng = np.random.default_rng(3)
    low = (1.2 + 2.5 * np.exp(-np.arange(21) / 4)) * (1 + 0.03 * rng.normal(size=21))
    low[15:17] = (4.4, 3.7)
    high = rng.uniform(1.5, 9.0, size=70)
    found = few_rows_findings(record_of(np.arange(91.0), {"loss": np.append(low, high)}))
    assert [f.detector for f in found if f.severity != "info"] == ["few-rows-level"]


def test_few_rows_tell_a_loss_that_is_the_same_in_each() -> None:
    assert _kinds(np.full(13, 0.6931)) == {"frozen-signal"}
    assert "frozen-signal" not in _kinds(np.append(np.full(12, 0.6931), 0.6932))


def test_one_high_evaluation_does_not_hide_overfitting() -> None:
    first = [1.45, 1.40, 1.41, 0.95, 1.27, 1.04, 1.33, 1.53, 1.14, 1.13]
    last = [1.20, 1.53, 1.40, 1.61, 1.42, 2.23, 1.68, 1.76, 1.21, 1.80]
    val = np.array([*first, *last])
    assert "overfitting" in _kinds(1.7 * np.exp(-np.arange(20) / 8), val)


@pytest.mark.parametrize("n", [10, 14, 24])
def test_validation_that_stands_far_above_its_best_is_overfitting_without_a_trend(n: int) -> None:
    t = np.arange(float(n))
    rng = np.random.default_rng(n)
    loss = 1.5 * np.exp(-t / 4) + 0.1
    wander = 0.05 * rng.normal(size=n)
    val = np.exp(np.interp(t, [0, 2, 6, n], [0.2, 0, 0.5, 0.5]) + wander)
    val[-2:] = val[6:-2].min()  # no trend to the end
    assert _kinds(loss, val) == {"overfitting"}
    assert "overfitting" not in _kinds(loss[::-1].copy(), val)


@pytest.mark.parametrize("n", [24, 50])
def test_validation_that_rises_for_epochs_and_comes_back_is_a_spike(n: int) -> None:
    t = np.arange(float(n))
    val = _fell(n, 4)
    hump = val * np.exp(np.exp(-(((t - 0.6 * n) / 3) ** 2)))
    record = record_of(t, {"loss": _fell(n), "val_loss": hump})
    (found,) = few_rows_findings(record)
    assert (found.kind, found.signal, found.severity) == ("spike", "val_loss", "warning")
    assert found.text.startswith("val loss ") or found.text.startswith("validation loss ")
    assert abs(found.onset_row - 0.6 * n) < 6


def test_some_lone_rows_are_told_one_by_one() -> None:
    loss = _fell(24)
    loss[[8, 15, 20]] *= 9
    found = few_rows_findings(record_of(np.arange(24.0), {"loss": loss}))
    assert [(f.kind, f.onset_row) for f in found] == [("spike", 8), ("spike", 15), ("spike", 20)]


def test_a_loss_of_a_guess_that_creeps_is_no_learning() -> None:
    t = np.arange(12.0)
    rng = np.random.default_rng(5)
    loss = np.log(2) + 0.001 - 0.0002 * t + 0.0001 * rng.normal(size=12)
    val = np.log(2) + 0.0004 * rng.normal(size=12)
    builder = RecordBuilder("run", "simulated", axis="epoch")
    for i in range(12):
        builder.add(i + 1.0, {"loss": float(loss[i]), "val_loss": float(val[i])})
    assert {f.kind for f in few_rows_findings(builder.build())} == {"never-learns"}
    builder = RecordBuilder("run", "simulated", axis="epoch")
    for i in range(12):
        builder.add(i + 1.0, {"loss": float(loss[i]) + 0.3, "val_loss": float(val[i]) + 0.3})
    assert not few_rows_findings(builder.build())


@pytest.mark.parametrize(
    ("score", "num", "told"),
    [
        (0.72414, 14, True),
        (0.72414, 9, False),
        (0.0128, 400, True),
        (0.0, 14, True),
        (1.0, 14, False),
        (0.2, 8, True),
    ],
)
def test_a_score_that_never_moves_is_one_answer(score: float, num: int, told: bool) -> None:
    columns = {"loss": _fell(num), "eval_score": np.full(num, score)}
    found = few_rows_findings(record_of(np.arange(float(num)), columns))
    assert [f.kind for f in found] == (["never-learns"] if told else [])


@pytest.mark.parametrize("row", [8, 20])
def test_a_lone_row_is_told_before_the_stream_has_a_past(row: int) -> None:
    t = np.arange(60.0)
    loss = _fell(60)
    loss[row] *= 8
    account = make_account(record_of(t, {"loss": loss}))
    assert [(a.incident.kind, a.incident.onset_row) for a in account.incidents] == [("spike", row)]


def test_a_score_of_one_answer_may_begin_with_another() -> None:
    score = np.append(0.049, np.full(12, 0.0661))
    found = few_rows_findings(record_of(np.arange(13.0), {"loss": _fell(13), "eval_score": score}))
    assert [f.kind for f in found] == ["never-learns"]
    assert "all 12 evaluations from the second on" in found[0].text
    moved = np.append(score, 0.07)
    columns = {"loss": _fell(14), "eval_score": moved}
    assert not few_rows_findings(record_of(np.arange(14.0), columns))


@pytest.mark.parametrize(
    ("spacing", "start", "lr", "told"),
    [
        (500, 9.68, 1e-4, True),
        (50, 9.68, 1e-4, False),
        (500, 3.1, 1e-4, False),
        (500, 9.68, 0, False),
    ],
)
def test_a_vocabulary_that_is_still_a_guess_after_thousands_of_steps_learns_nothing(
    spacing: int, start: float, lr: float, told: bool
) -> None:
    rows = np.arange(1.0, 22.0)
    loss = start - 0.003 * rows + 0.0004 * np.random.default_rng(1).normal(size=21)
    rate = np.full(21, lr) if lr else 1e-7 * rows  # warmed up to the end
    found = few_rows_findings(record_of(spacing * rows, {"loss": loss, "lr": rate}))
    assert [f.kind for f in found] == (["never-learns"] if told else [])


def test_a_score_that_comes_to_rest_below_all_before_is_one_answer() -> None:
    rng = np.random.default_rng(2)
    before = 0.2 + 0.1 * rng.random(10)
    columns = {"loss": _fell(20), "eval_score": np.append(before, np.full(10, 0.09375))}
    found = few_rows_findings(record_of(np.arange(20.0), columns))
    assert [(f.kind, f.onset_row) for f in found] == [("never-learns", 10)]
    columns["eval_score"] = np.append(before, np.full(10, 0.9667))  # as good as it gets
    assert not few_rows_findings(record_of(np.arange(20.0), columns))


def test_two_rows_that_stand_apart_are_one_spike() -> None:
    val = _fell(24, 1, 0.04)
    val[[9, 10, 16]] *= (9.0, 12.0, 8.0)
    found = few_rows_findings(record_of(np.arange(24.0), {"loss": _fell(24), "val_loss": val}))
    told = [(f.kind, f.onset_row, f.end_row, f.text.split(" among")[0]) for f in found]
    assert [t[:3] for t in told] == [("spike", 9, 11), ("spike", 16, 17)]
    assert told[0][3].startswith("2 rows up to ")
    assert told[1][3].startswith("one row of ")


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e6])
def test_lone_rows_of_a_loss_below_zero_are_told(scale: float) -> None:
    loss = scale * (_fell(24, 3) - 2.4)
    record = record_of(np.arange(24.0), {"loss": loss})
    assert not few_rows_findings(record)
    loss[[4, 9, 10, 17]] = [683 * scale, 717 * scale, 195 * scale, 389 * scale]
    told = few_rows_findings(record_of(np.arange(24.0), {"loss": loss}))
    assert [(f.kind, f.onset_row) for f in told] == [("spike", 4), ("spike", 9), ("spike", 17)]


@pytest.mark.parametrize("num", [8, 45, 400])
def test_one_validation_loss_in_every_evaluation_is_told(num: int) -> None:
    rng = np.random.default_rng(num)
    loss = 2.09 + 0.02 * rng.normal(size=num)
    columns = {"loss": loss, "val_loss": np.full(num, 2.08891)}
    found = few_rows_findings(record_of(np.arange(float(num)), columns))
    assert [(f.kind, f.signal) for f in found] == [("never-learns", "val_loss")]
    columns["val_loss"][-1] += 1e-5
    assert not few_rows_findings(record_of(np.arange(float(num)), columns))


@pytest.mark.parametrize(
    ("key", "score"),
    [
        ("eval_reward", 500.0),
        ("val_acc", 99.5),
        ("val_acc", 0.8667),
        ("val_r", -0.5),
        ("v", 1e-320),
    ],
)
def test_a_score_that_stands_where_it_was_learned_is_no_alarm(key: str, score: float) -> None:
    builder = RecordBuilder("run", "simulated", axis="epoch")
    for i, loss in enumerate(_fell(14).tolist()):
        builder.add(i + 1.0, {"loss": loss, "eval_score": score})
    builder.keys["eval_score"] = key
    found = few_rows_findings(builder.build())
    assert [f.kind for f in found] == (["never-learns"] if score == 1e-320 else [])


@pytest.mark.parametrize("n", [12, 29, 60, 100])
def test_one_low_row_is_no_level_that_the_next_rows_rise_from(n: int) -> None:
    loss = _fell(n, 7, 0.01)
    loss[n // 2] *= 0.7
    assert "unrecovered-spike" not in _kinds(loss)
    loss[n // 2 :] = 2 * _fell(n, 7, 0.01)[n // 2]
    assert "unrecovered-spike" in _kinds(loss)


@pytest.mark.parametrize(
    ("first", "level", "told"),
    [(20_400, 0.6946, True), (2_000, 0.6946, False), (20_400, 0.7031, False)],
)
def test_an_excerpt_that_stands_at_a_guess_between_two_learns_nothing(
    first: float, level: float, told: bool
) -> None:
    rows = np.arange(16.0)
    loss = level + 0.0008 * np.random.default_rng(3).normal(size=16)
    found = few_rows_findings(record_of(first + 100 * rows, {"loss": loss}))
    assert [f.kind for f in found] == (["never-learns"] if told else [])
    falls = few_rows_findings(record_of(first + 100 * rows, {"loss": loss - 0.002 * rows}))
    assert not falls


def test_losses_that_turn_round_and_climb_row_by_row_are_told() -> None:
    loss = np.array([1.59, 1.22, 1.12, 1.09, 1.10, 1.14, 1.19, 1.21, 1.24])
    val = np.array([1.28, 1.04, 0.96, 0.95, 1.00, 1.04, 1.12, 1.10, 1.11])

    def told(loss: Floats, val: Floats) -> list[tuple[str, int]]:
        columns = {"loss": loss, "val_loss": val}
        found = few_rows_findings(record_of(np.arange(9.0), columns))
        return [(f.kind, f.onset_row) for f in found]

    assert told(loss, val) == [("divergence", 4)]
    assert told(np.minimum(loss, 1.11), val) == []
    assert told(loss, np.minimum.accumulate(val)) == []


@pytest.mark.parametrize("row", [4, 12, 16])
def test_a_row_that_sets_a_fast_fall_back_is_told_though_it_is_won_back(row: int) -> None:
    loss = 0.22 * np.exp(-0.13 * np.arange(20.0)) * (1 + 0.01 * np.cos(np.arange(20.0)))
    record = record_of(np.arange(20.0), {"loss": loss})
    assert not few_rows_findings(record)
    loss[row:] *= 2
    (found,) = few_rows_findings(record_of(np.arange(20.0), {"loss": loss}))
    assert (found.onset_row, found.severity) == (row, "warning")
    loss[row + 1 :] /= 2  # one row alone
    kinds = [f.detector for f in few_rows_findings(record_of(np.arange(20.0), {"loss": loss}))]
    assert "few-rows-step" not in kinds


def _overfits(train: list[float], val: list[float], **more: Floats) -> bool:
    columns = {"loss": np.array(train), "val_loss": np.array(val), **more}
    found = few_rows_findings(record_of(np.arange(float(len(train))), columns))
    return any(f.kind == "overfitting" and f.severity == "warning" for f in found)


def test_five_evaluations_that_only_get_worse_are_overfitting() -> None:
    """As of nanoGPT, which evaluates every few hundred steps, or of a fine-tune of six epochs."""
    train = [0.21, 0.17, 0.141, 0.122, 0.11, 0.096]
    assert _overfits(train, [0.34, 0.361, 0.393, 0.458, 0.425, 0.485])
    assert _overfits(train[:5], [0.667, 0.849, 0.918, 1.005, 1.043])
    # four of noise, a rise of a tenth, or beside a training loss that rises too
    assert not _overfits(train[:5], [0.34, 0.40, 0.36, 0.43, 0.39])
    assert not _overfits(train[:5], [0.34, 0.345, 0.35, 0.36, 0.37])
    assert not _overfits(train[4::-1], [0.667, 0.849, 0.918, 1.005, 1.043])


def test_a_loss_that_rises_while_its_score_gains_is_no_overfitting_of_five() -> None:
    """Whisper and BERT: the loss on held-out data rises, the errors get fewer."""
    train, val = [1.0, 0.5, 0.2, 0.1, 0.05], [0.31, 0.36, 0.42, 0.45, 0.47]
    assert _overfits(train, val)
    assert not _overfits(train, val, eval_error=np.array([34.6, 33.1, 32.6, 32.0, 32.1]))
    assert _overfits(train, val, eval_error=np.array([32.1, 32.6, 34.0, 33.6, 34.9]))


def test_work_that_is_undone_for_a_dozen_rows_is_told_though_it_is_won_back() -> None:
    """It fell to 48, leapt, and stood where it began for a quarter of the run."""
    rng = np.random.default_rng(1)
    fell, stood = np.linspace(55, 48.5, 12), np.full(16, 54.2)
    loss = np.concatenate((fell, [48.9, 69.0], stood, np.linspace(53, 15, 30)))
    loss = loss * (1 + 0.008 * rng.normal(size=len(loss)))
    found = few_rows_findings(record_of(np.arange(float(len(loss))), {"loss": loss}))
    rises = [f for f in found if f.detector == "few-rows-rise"]
    assert [f.severity for f in rises] == ["warning"]
    assert 12 <= rises[0].onset_row <= 14
    assert rises[0].end_row is not None
    for seed in range(20):
        assert not any(k in ("spike", "unrecovered-spike") for k in _kinds(_fell(58, seed, 0.01)))
