import numpy as np

from benchmarks.peers.alarms import find_alarms
from benchmarks.peers.norm_rules import StabilityGuard
from benchmarks.peers.ratio_rules import InternEvo
from benchmarks.peers.recovery_rules import Continuity, FiniteCheck, Soup
from benchmarks.peers.sigma_rules import SkipStep
from benchmarks.peers.windows import mean, median_and_spread, sample_std, trailing
from trimtab.record import RecordBuilder, RunRecord
from trimtab.testing.curves import record_of


def run_of(loss: list[float], **columns: list[float]) -> RunRecord:
    whole = {"loss": np.array(loss), **{k: np.array(v) for k, v in columns.items()}}
    return record_of(np.arange(float(len(loss))), whole)


def test_marks_that_stand_close_are_one_alarm() -> None:
    loss = [2.0] * 60
    for at in (10, 12, 20, 40):
        loss[at] = 9.0
    alarms = find_alarms(InternEvo(), run_of(loss)) or ()
    assert [(a.onset_row, a.end_row, a.num_rows) for a in alarms] == [(10, 20, 3), (40, 40, 1)]


def test_the_kind_says_what_was_marked() -> None:
    loss, norm = [2.0] * 120, [1.0] * 120
    loss[70], norm[90], loss[110] = 9.0, 50.0, float("nan")
    alarms = find_alarms(SkipStep(), run_of(loss, grad_norm=norm)) or ()
    assert [(a.kind, a.onset_row) for a in alarms] == [
        ("spike", 70),
        ("grad-spike", 90),
        ("non-finite", 110),
    ]


def test_a_log_without_the_signal_gives_no_answer() -> None:
    assert find_alarms(StabilityGuard(), run_of([2.0] * 30)) is None
    assert find_alarms(FiniteCheck(), run_of([2.0] * 30)) == ()


def test_rows_without_a_loss_are_passed_over() -> None:
    builder = RecordBuilder("made", "made")
    for step in range(40):
        builder.add(
            step, {"val_loss": 9.0} if step % 5 == 4 else {"loss": 3.5 if step > 20 else 2.0}
        )
    alarms = find_alarms(Soup(), builder.build()) or ()
    assert [a.onset_row for a in alarms] == [26]  # the fifth row with a loss, 24 had none


def test_state_is_lost_at_a_restart_unless_the_rule_keeps_it() -> None:
    builder = RecordBuilder("made", "made")
    for step in [*range(100), *range(60, 160)]:
        builder.add(step, {"loss": 3.5 if step >= 97 or builder.num_rows >= 100 else 2.0})
    record = builder.build()
    assert len(record.attempts) == 2
    soup = find_alarms(Soup(), record) or ()
    assert [a.onset_row for a in soup] == [
        104
    ]  # not 101: the three rows before the restart are gone
    jumped = find_alarms(Continuity(), record) or ()
    assert [(a.kind, a.onset_row) for a in jumped] == [("resume-jump", 100)]


def test_an_optional_signal_logged_on_few_rows_is_left_out() -> None:
    builder = RecordBuilder("made", "made")
    for step in range(100):
        row = {"loss": 2.0 if step != 80 else float("nan")}
        builder.add(step, row | ({"grad_norm": float("inf")} if step % 10 == 0 else {}))
    alarms = find_alarms(FiniteCheck(), builder.build()) or ()
    assert [a.onset_row for a in alarms] == [80]


def test_windows_equal_a_plain_loop() -> None:
    values = np.random.default_rng(0).standard_normal(300)
    values[120] = np.nan
    level, spread, pair = trailing(values, 50, (mean, sample_std, median_and_spread), least=7)
    for t in range(300):
        held = values[max(0, t - 50) : t]
        if len(held) < 7:
            assert np.isnan(level[t])
            assert np.isnan(pair[t]).all()
            continue
        np.testing.assert_allclose(level[t], held.mean(), rtol=1e-12, equal_nan=True)
        np.testing.assert_allclose(spread[t], held.std(ddof=1), rtol=1e-9, equal_nan=True)
        middle = np.median(held)
        np.testing.assert_allclose(
            pair[t], [middle, 1.4826 * np.median(np.abs(held - middle))], rtol=1e-12
        )
