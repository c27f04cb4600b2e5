"""Findings -> incidents: what belongs together, its first sign, how it ended, what it is called."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.logs import bloom_176b
from trimtab.analysis.assemble import make_account
from trimtab.analysis.json_form import run_to_json
from trimtab.detectors.contract import Finding
from trimtab.detectors.excerpt import excerpt_findings
from trimtab.detectors.judge import judge_record
from trimtab.detectors.record_finding import finding_at
from trimtab.diagnosis.diagnose import diagnose
from trimtab.diagnosis.evidence import MALIGNANT
from trimtab.incidents import Incident, group_findings
from trimtab.plan.rollback import CheckpointInfo
from trimtab.readers import read_run
from trimtab.record import RecordBuilder, RunRecord
from trimtab.testing import tr8_104b
from trimtab.testing.curves import Fault, record_of, simulate_run
from trimtab.vocabulary import Severity

Floats = NDArray[np.float64]


def tell(record: RunRecord) -> tuple[Incident, ...]:
    return group_findings(record, [*judge_record(record), *excerpt_findings(record)])


def alarms(record: RunRecord) -> list[Incident]:
    return [i for i in tell(record) if i.severity != "info"]


def of(columns: Mapping[str, Floats], first_step: float = 1.0) -> RunRecord:
    n = len(next(iter(columns.values())))
    return record_of(first_step + np.arange(n, dtype=np.float64), columns)


def level(n: int, at: float = 2.5, noise: float = 0.02, seed: int = 100) -> Floats:
    return np.asarray(at + noise * np.random.default_rng(seed).standard_normal(n))


def norms(n: int, seed: int) -> Floats:
    return np.asarray(0.3 * np.exp(0.1 * np.random.default_rng(seed).standard_normal(n)))


def bump(n: int, at: int, width: int) -> Floats:
    t = np.arange(n) - at
    return np.where((t >= 0) & (t < width), np.sin(np.pi * (t + 1) / (width + 1)), 0.0)


# What belongs together


@pytest.mark.covers("S6")
def test_a_joint_explosion_is_one_incident_with_its_rank_correlations() -> None:
    n, at = 1500, 1000
    up = bump(n, at, 60)
    record = of(
        {
            "loss": level(n) + 4 * up,
            "grad_norm": norms(n, 1) * np.exp(4 * up),
            "activation_norm": norms(n, 2) * np.exp(3 * up),
            "loss_scale": 65536 * 2.0 ** -np.round(8 * up),
        }
    )
    (one,) = alarms(record)
    pairs = {(a, b): rho for a, b, rho in one.correlations}
    assert len(pairs) == 6
    assert all(abs(rho) >= 0.8 for rho in pairs.values())
    assert pairs["loss", "grad_norm"] > 0 > pairs["loss", "loss_scale"]
    assert set(one.signals) >= {"loss", "grad_norm", "activation_norm", "loss_scale"}


@pytest.mark.covers("S6")
@pytest.mark.parametrize("seed", range(100, 110))
def test_independent_noise_beside_a_spike_lists_no_correlations(seed: int) -> None:
    loss = level(1500, seed=seed)
    loss[1000:1030] += 3.0
    quiet = of(
        {"loss": level(1500), "grad_norm": norms(1500, seed), "activation_norm": norms(1500, 1)}
    )
    assert alarms(quiet) == []
    spiked = of({"loss": loss, "grad_norm": norms(1500, seed), "activation_norm": norms(1500, 1)})
    (one,) = alarms(spiked)
    assert one.correlations == ()


def test_spikes_far_apart_are_two_incidents_and_close_ones_are_one() -> None:
    loss = level(2000)
    for at in (600, 612, 1500):
        loss[at : at + 6] += 2.0
    found = alarms(of({"loss": loss}))
    assert [i.onset_row for i in found] == [600, 1500]
    assert found[0].end_row == 617


# Where it began


def test_a_falling_loss_scale_long_before_a_spike_is_its_first_sign() -> None:
    n = 7400
    loss, scale = level(n), np.full(n, 16384.0)
    for k, row in enumerate((4700, 5200, 5800, 6500)):
        scale[row:] = 16384.0 / 2 ** (k + 1)
    loss[7000:] += 3.0
    (one,) = alarms(of({"loss": loss, "loss_scale": scale}, first_step=0.0))
    assert one.onset == 7000
    assert one.precursor == pytest.approx(4700, abs=16)
    assert "first sign 4" in one.headline


def test_a_loss_scale_that_grew_back_is_no_first_sign() -> None:
    n = 7400
    loss, scale = level(n), np.full(n, 16384.0)
    scale[4700:5700] = 8192.0
    loss[7000:] += 3.0
    (one,) = alarms(of({"loss": loss, "loss_scale": scale}))
    assert one.precursor is None


@pytest.mark.parametrize("seed", range(100, 104))
def test_healthy_growth_of_activations_is_no_first_sign(seed: int) -> None:
    n = 6000
    loss = level(n, seed=seed)
    loss[5000:] += 3.0
    rng = np.random.default_rng(seed)
    growth = 20 * (1 + np.arange(n) / 500) ** 0.5 * np.exp(0.05 * rng.standard_normal(n))
    growth[3000:] *= 1.8  # a longer context, say: found, and 2000 rows too early to be a sign
    assert any(f.signal == "activation_norm" for f in judge_record(of({"activation_norm": growth})))
    (one,) = alarms(of({"loss": loss, "activation_norm": growth}))
    assert one.onset_row == 5000
    assert one.precursor_row is None or one.precursor_row >= 4800


@pytest.mark.parametrize(("at", "first"), [(700, 610), (1300, None)])
def test_a_level_that_has_been_the_usual_one_for_long_is_no_first_sign(
    at: int, first: int | None
) -> None:
    n = 1500
    loss, norm = level(n), np.full(n, 80.0)
    norm += 0.8 * np.random.default_rng(3).standard_normal(n)
    norm[610:] *= 1.4  # accepted 200 rows later
    loss[at : at + 60] += 2.0
    told = [i for i in alarms(of({"loss": loss, "activation_norm": norm})) if i.kind == "spike"]
    (one,) = told
    assert one.onset_row == at
    assert one.precursor_row == first


def test_a_jump_of_the_rate_is_dated_to_itself_whatever_was_odd_before() -> None:
    n = 1500
    norm, lr = np.full(n, 80.0), np.full(n, 1e-3)
    norm += 0.8 * np.random.default_rng(3).standard_normal(n)
    norm[900:] *= 3.0
    lr[1000:] = 1e-2
    (jump,) = (
        i for i in tell(of({"loss": level(n), "activation_norm": norm, "lr": lr}))
        if "setting-jump" in (i.kind, *i.also)
    )  # fmt: skip
    assert (jump.onset_row, jump.precursor_row) == (1000, None)


def test_a_block_that_holds_the_onset_is_no_first_sign() -> None:
    n = 1600
    loss, norm = level(n), norms(n, 5)
    loss[1010:1050] += 3.0
    norm[1010:1050] *= 30.0
    (one,) = alarms(of({"loss": loss, "grad_norm": norm}))
    assert one.precursor is None
    assert one.first_row == one.onset_row == 1010


def test_grad_norms_that_rise_first_are_the_first_sign() -> None:
    run = simulate_run(
        seed=100, faults=[Fault(kind="spike", step=900, lead_steps=6, duration_steps=12)]
    )
    (one,) = alarms(run)
    assert (one.onset, one.precursor) == (900.0, 894.0)
    assert one.first_step == 894.0


# How it ended


@pytest.mark.covers("S39")
@pytest.mark.parametrize("start", [7000, 1_500_000])
def test_size_and_shape_of_a_spike_logged_every_ten_steps(start: int) -> None:
    n, interval = 400, 10
    steps = start - 3000.0 + interval * np.arange(n, dtype=np.float64)
    loss = level(n, 6.44)
    after = (steps - start) / interval
    rise = np.where((after >= 1) & (after <= 20), 14 - 6.44, 0.0)  # 6.44 -> 14 in ten steps
    loss += rise * np.clip(1.05 - 0.05 * after, 0, 1)
    (one,) = alarms(record_of(steps, {"loss": loss}))
    assert abs(one.onset - start) <= interval
    assert abs(one.peak - (start + interval)) <= interval
    assert one.end is not None
    assert abs((one.end - one.onset) - 19 * interval) <= interval
    lead = one.findings[0]
    assert lead.value == pytest.approx(14, abs=0.1)
    assert lead.value - lead.expected == pytest.approx(14 - 6.44, abs=0.1)
    assert f"step {start + interval} to " in one.headline
    assert ", over · " in one.headline
    assert "e+" not in one.headline


@pytest.mark.covers("S47")
def test_a_spike_that_is_not_back_within_the_budget_is_malignant() -> None:
    sick = simulate_run(seed=100, faults=[Fault(kind="unrecovered-spike", step=900, size=3.0)])
    (one,) = alarms(sick)
    assert (one.kind, one.shape, one.severity, one.end) == (
        "unrecovered-spike",
        "unrecovered",
        "critical",
        None,
    )
    assert one.kind in MALIGNANT
    (back,) = alarms(simulate_run(seed=100, faults=[Fault(kind="spike", step=900, size=3.0)]))
    assert (back.kind, back.shape) == ("spike", "fast")
    assert back.kind not in MALIGNANT


@pytest.mark.parametrize(("rows", "kind"), [(40, "spike"), (51, "unrecovered-spike")])
def test_a_spike_still_open_at_the_end_has_not_recovered(rows: int, kind: str) -> None:
    loss = level(600 + rows)
    loss[600:] += 3.0
    (one,) = alarms(of({"loss": loss}))
    assert one.kind == kind
    assert one.severity == ("critical" if rows > 50 else "warning")
    assert one.end is None
    assert (f"still up after {rows} rows" in one.headline) == (rows > 50)


@pytest.mark.covers("S35")
def test_the_chronicles_spike_is_found_from_its_lines() -> None:
    first = tell(tr8_104b.as_record())[0]
    assert (first.attempt, first.onset, first.peak, first.end) == ("1.0", 7010, 7010, None)
    assert (first.kind, first.shape, first.severity) == (
        "unrecovered-spike",
        "unrecovered",
        "critical",
    )
    assert "6.445 → 11.42 → 7.155" in first.headline
    assert first.findings[-1].step == 7220
    assert "hindsight" in first.headline


@pytest.mark.covers("S42")
def test_the_level_behind_the_chronicles_spike_is_a_plateau() -> None:
    first, second = tell(tr8_104b.as_record())
    assert "plateau" in first.also
    assert "plateau" not in second.also  # still rising where it ends


@pytest.mark.parametrize(("slope", "flat"), [(0.0, True), (-0.004, False), (0.004, False)])
def test_a_level_behind_a_spike_is_a_plateau_only_where_it_is_flat(
    slope: float, flat: bool
) -> None:
    n = 1200
    loss = level(n, 6.4)
    loss[800:810] += 5.0
    loss[810:] += 1.5 + slope * np.arange(n - 810)
    assert ("plateau" in alarms(of({"loss": loss}))[0].also) == flat


@pytest.mark.covers("S40")
def test_a_second_smaller_glitch_that_ends_in_nan_is_a_recurrence_of_the_first() -> None:
    loss = level(1600)
    loss[800:830] += 5.0
    loss[1200:1210] += 1.5
    loss[1210:] = np.nan
    first, second = alarms(of({"loss": loss}))
    assert (first.kind, first.recurrence_of) == ("spike", None)
    assert (second.kind, second.also[0], second.recurrence_of) == (
        "non-finite",
        "unrecovered-spike",  # the NaN came before the loss was back
        first.onset,
    )
    assert "again after step 801" in second.headline
    assert second.severity == "critical"


def test_trouble_after_a_rollback_is_a_recurrence_of_what_the_parent_met() -> None:
    first, second = tell(tr8_104b.as_record())
    assert (second.attempt, second.recurrence_of) == ("2.0", first.onset)
    apart = RecordBuilder("two runs", "simulated")
    loss = level(900)
    loss[600:640] += 3
    for number in ("1.0", "2.0"):  # the second is nobody's child
        apart.start_attempt(number=number, parent=None if number == "1.0" else "9.9")
        for i, value in enumerate(loss.tolist()):
            apart.add(i + 1.0, {"loss": value})
    assert [i.recurrence_of for i in alarms(apart.build())] == [None, None]


def read_later(row: int, first: int, last: int) -> Finding:
    """Fixed batches that got worse in one of the rows from `first` to `last`."""
    return Finding(
        detector="held-out", kind="held-out-worse", signal="yardstick_loss", severity="critical",
        row=row, step=row + 1.0, onset_row=first, onset=first + 1.0, peak_row=row,
        peak=row + 1.0, value=2.3, expected=0.2, score=20.0, grain_rows=last - first + 1, text="",
    )  # fmt: skip


def test_readings_that_are_rare_date_no_incident_in_which_the_loss_speaks() -> None:
    loss = level(600)
    loss[455:] += 5.0
    record = of({"loss": loss})
    rare = read_later(460, 381, 460)
    (found,) = group_findings(record, [*judge_record(record), rare])
    assert (found.kind, found.onset, found.first_step) == ("unrecovered-spike", 456.0, 456.0)
    assert found.severity == "critical"
    (alone,) = group_findings(of({"loss": level(600)}), [rare])
    assert (alone.kind, alone.first_step) == ("held-out-worse", 382.0)
    assert "since step 382 at the earliest, 461 at the latest" in alone.headline


def test_again_is_said_of_the_same_kind_only() -> None:
    loss = level(900)
    loss[600:610] += 3.0
    record = of({"loss": loss})
    before = read_later(300, 281, 300)
    before = replace(before, closed=True, end_row=320, end=321.0)
    _, spike = group_findings(record, [*judge_record(record), before])
    assert (spike.kind, spike.recurrence_of) == ("spike", before.onset)
    assert "again" not in spike.headline


def test_a_block_that_reaches_over_a_resume_is_dated_where_the_signal_rises() -> None:
    builder = RecordBuilder("resumed", "simulated")
    norm = norms(600, 1)
    builder.start_attempt(number="1.0", parent=None)
    for i in range(400):
        builder.add(i + 1.0, {"loss": 2.0, "grad_norm": float(norm[i])})
    builder.start_attempt(number="1.1", parent="1.0")
    for i in range(300, 600):
        builder.add(i + 1.0, {"loss": 2.0, "grad_norm": 2 * float(norm[i])})
    drift = Finding(
        detector="creep-16", kind="grad-drift", signal="grad_norm", severity="warning", row=460,
        step=361.0, onset_row=292, onset=293.0, peak_row=460, peak=361.0, value=0.6, expected=0.3,
        score=20.0, grain_rows=16, text="",
    )  # fmt: skip
    (found,) = group_findings(builder.build(), [drift])
    assert (found.attempt, found.onset) == ("1.1", 301.0)


def test_trouble_far_later_is_no_recurrence() -> None:
    loss = level(4000)
    loss[600:640] += 3.0
    loss[3500:3540] += 3.0
    assert [i.recurrence_of for i in alarms(of({"loss": loss}))] == [None, None]


def test_a_rollback_into_an_open_spike_does_not_close_the_parents_incident() -> None:
    loss = level(800)
    builder = RecordBuilder("rollback", "simulated")
    for i in range(700):
        builder.add(i + 1.0, {"loss": float(loss[i]) + (3.0 if i >= 600 else 0.0)})
    builder.start_attempt(number="1.1", parent="1.0", parent_step=605.0)
    for i in range(605, 800):
        builder.add(i + 1.0, {"loss": float(loss[i])})
    (one,) = alarms(builder.build())
    assert (one.attempt, one.kind, one.end) == ("1.0", "unrecovered-spike", None)


def test_a_spike_that_is_back_outdoes_the_blocks_that_saw_it() -> None:
    loss = level(1400, 1.6)
    loss[1104:1164] += np.linspace(4, 1, 60)
    (one,) = alarms(of({"loss": loss}))
    assert one.end_row == 1163
    assert ", over · " in one.headline


# For any findings


def made_findings(seed: int) -> Sequence[Finding]:
    """By a seed: to draw each field from hypothesis takes longer than to group them."""
    rng, found = random.Random(seed), list[Finding]()
    for _ in range(rng.randint(0, 12)):
        onset = rng.randint(0, 190)
        row = rng.randint(onset, 199)
        closed = rng.random() < 0.5
        end = rng.randint(onset, row) if closed and rng.random() < 0.5 else None
        found.append(
            Finding(
                detector=rng.choice(("spike", "level-16")),
                kind=rng.choice(("spike", "shift", "non-finite", "grad-drift")),
                signal=rng.choice(("loss", "grad_norm")),
                severity=rng.choice(("info", "warning", "critical")),
                row=row,
                step=row + 1.0,
                onset_row=onset,
                onset=onset + 1.0,
                peak_row=onset,
                peak=onset + 1.0,
                end_row=end,
                end=None if end is None else end + 1.0,
                value=4.0,
                expected=2.0,
                score=9.0,
                closed=closed,
                grain_rows=rng.choice((1, 16)),
                text="made up",
            )
        )
    return sorted(found, key=lambda f: f.row)


TWO_SIGNALS = of({"loss": level(200), "grad_norm": norms(200, 1)})


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32))
def test_incidents_are_ordered_whole_and_as_severe_as_their_worst(seed: int) -> None:
    record, found = TWO_SIGNALS, made_findings(seed)
    incidents = group_findings(record, found)
    onsets = [i.onset_row for i in incidents]
    assert len(set(onsets)) == len(onsets)
    told = [f for i in incidents for f in i.findings if f.signal == "loss"]
    assert len(told) == len({f.key for f in told})  # nothing on the loss is in two incidents
    assert {f.key for f in found if f.signal == "loss"} <= {f.key for f in told}
    for i in incidents:
        assert i.precursor_row is None or i.precursor_row < i.onset_row
        assert i.first_row <= i.onset_row
        assert i.end_row is None or i.onset_row <= i.end_row < record.num_rows
        assert i.kind not in i.also
        assert 0 < i.confidence < 1
        assert i.headline.count("\n") == 0


@pytest.mark.slow
@settings(max_examples=12)
@given(seed=st.integers(100, 400), cut=st.integers(500, 1400))
def test_what_is_over_in_a_prefix_reads_the_same_in_the_whole(seed: int, cut: int) -> None:
    faults = [Fault(kind="spike", step=s, size=2.0, duration_steps=8) for s in (400, 900, 1300)]
    run = simulate_run(num_steps=1500, seed=seed, faults=faults)
    prefix = record_of(run.step[:cut], {n: c.values[:cut] for n, c in run.columns.items()})
    whole = {i.onset_row: i for i in tell(run)}
    for i in tell(prefix):
        if i.end_row is not None and i.end_row < cut - 64:
            same = whole[i.onset_row]
            assert (same.kind, same.end_row, same.peak_row) == (i.kind, i.end_row, i.peak_row)


@pytest.mark.parametrize("seed", range(100, 105))
def test_the_grad_norm_leads_the_loss_peak_of_the_published_spike_by_four_steps(
    seed: int, tmp_path: Path
) -> None:
    path = tmp_path / "bloom.log"
    path.write_text(bloom_176b.print_log(seed=seed))
    account = make_account(read_run(path))
    told = run_to_json(account, path=str(path))
    (one,) = [i for i in told["incidents"] if i["severity"] != "info"]
    assert (one["kind"], one["peak"]) == ("spike", 31219)
    assert one["lead"]["signal"] == "grad_norm"
    assert one["lead"]["before_peak"] == 4
    assert one["precursor"] == 31215
    assert one["end"] is not None


@pytest.mark.covers("S38")
def test_norms_that_explode_with_a_collapsing_loss_scale_are_one_incident() -> None:
    n, at = 1500, 1000
    up = bump(n, at, 60)
    record = of(
        {
            "grad_norm": norms(n, 1) * np.exp(5 * up),
            "activation_norm": norms(n, 2) * np.exp(3 * up),
            "loss_scale": np.asarray(
                65536 * 0.5 ** np.clip(np.arange(n) - at, 0.0, 9.0), np.float64
            ),
            "loss": level(n) + 2 * up,
        }
    )
    (one,) = alarms(record)
    assert set(one.signals) >= {"grad_norm", "activation_norm", "loss_scale"}
    assert {one.kind, *one.also} >= {"scale-collapse", "spike"}


# What the first line says


def drifting_norm(rows_before_the_loss: int, seed: int = 100) -> RunRecord:
    """A grad norm that climbs from row 4900 on, and a loss that follows so many rows later."""
    n, at = 6000, 4900
    t = np.arange(n, dtype=np.float64)
    loss = 2 + 4 * np.exp(-t / 900) + level(n, 0.0, 0.03, seed)
    loss += np.clip((t - at - rows_before_the_loss) * 0.005, 0, 4)
    return of({"loss": loss, "grad_norm": norms(n, seed) * (1 + 0.02 * np.clip(t - at, 0, None))})


@pytest.mark.parametrize("seed", [100, 101])
@pytest.mark.parametrize("later", [100, 400])
def test_a_drift_that_lasts_through_the_onset_is_the_first_sign(later: int, seed: int) -> None:
    told = alarms(drifting_norm(later, seed))
    (drift,) = [i for i in told if i.kind == "grad-drift"]
    worst = next(i for i in told if i.severity == "critical")
    assert worst.first_row == drift.onset_row < 4900 + later
    assert worst.recurrence_of is None
    assert "again after" not in worst.headline


def test_the_plan_goes_back_before_the_drift() -> None:
    account = make_account(
        drifting_norm(400), checkpoints=[CheckpointInfo(step=s) for s in (4500, 4900, 5100)]
    )
    plan = account.incidents[0].plan.remedies[0]
    assert account.incidents[0].incident.severity == "critical"
    assert plan.remedy == "roll-back"
    assert plan.values["to_step"] in (4500, 4900)


def test_a_nan_is_told_with_its_own_step_beside_that_of_the_trouble() -> None:
    loss = np.array([10.2, 9.8, 12, 20, 40, 90, 200, 400, *[np.nan] * 4])
    (one,) = alarms(of({"loss": loss, "grad_norm": np.arange(1.0, 13)}))
    assert one.onset == 3
    assert "NaN at step 9; trouble began at 3" in one.headline


def test_a_jump_of_the_rate_is_the_news_where_the_loss_keeps_quiet() -> None:
    share = np.where(np.arange(400) < 251, 0.02, 0.8)
    clipped = (np.random.default_rng(3).random(400) < share).astype(float)
    rate = np.where(np.arange(400) < 250, 8.4e-4, 1.67e-2)
    norm = norms(400, seed=3) * np.where(np.arange(400) < 251, 1.0, 4.0)
    found = alarms(of({"loss": level(400), "clipped": clipped, "lr": rate, "grad_norm": norm}))
    assert found[0].precursor_signal == "lr"
    assert found[0].headline.startswith(
        "jump of the learning rate · step 251 · learning rate 0.00084 → 0.0167 in one row (x19.9) ·"
        " then shift of clipped, "
    )


# What was told as a note


def noted(record: RunRecord, row: int, signal: str = "beta1") -> Finding:
    return finding_at(
        record, detector="unannounced-change", kind="setting-jump", signal=signal, severity="info",
        row=row, onset_row=row, value=0.999, expected=0.9, score=10.0, closed=True,
        text=f"{signal} 0.9 -> 0.999, not announced",
    )  # fmt: skip


def spiked(at: int) -> RunRecord:
    loss = level(400) + 1.5 * bump(400, at, 60)
    return of({"loss": loss})


def test_a_setting_that_changed_shortly_before_is_evidence_and_the_first_cause() -> None:
    record = spiked(at=300)
    found = [*judge_record(record), noted(record, 296)]
    (incident,) = [i for i in group_findings(record, found) if i.severity != "info"]
    assert "setting-jump" in {f.kind for f in incident.findings}
    assert "setting-jump" not in incident.also
    assert incident.onset == 302.0
    assert diagnose(record, incident).top.cause == "setting-changed"


@pytest.mark.parametrize("rows", [[200], [60, 120, 180, 296]], ids=["long ago", "by a plan"])
def test_a_setting_that_changed_long_ago_or_all_the_time_is_none(rows: list[int]) -> None:
    record = spiked(at=300)
    found = [*judge_record(record), *(noted(record, r) for r in rows)]
    (incident,) = [i for i in group_findings(record, found) if i.severity != "info"]
    assert diagnose(record, incident).top.cause != "setting-changed"


def test_one_hard_batch_does_not_date_weights_that_got_worse() -> None:
    record = of({"loss": level(400)})
    worse = read_later(320, 242, 320)
    batch = finding_at(
        record, detector="batch-outlier", kind="batch-outlier", signal="loss", severity="info",
        row=312, onset_row=311, value=2.6, expected=2.5, score=10.0, closed=True, end_row=311,
        text="one row",
    )  # fmt: skip
    (incident,) = [
        i
        for i in group_findings(record, [worse, batch, noted(record, 244)])
        if i.severity != "info"
    ]
    assert (incident.kind, incident.onset) == ("held-out-worse", 243.0)
    assert diagnose(record, incident).top.cause == "setting-changed"


@pytest.mark.parametrize(
    ("severity", "kind"), [("info", "spike"), ("warning", "spike"), ("warning", "shift")]
)
def test_weights_that_got_worse_are_dated_by_what_came_after_the_last_good_reading(
    severity: Severity, kind: str
) -> None:
    norm = np.where(np.arange(400) < 60, 1.0, 3.0) + 700.0 * (np.arange(400) >= 250)
    record = of({"loss": level(400), "activation_norm": norm})

    def moved(row: int, value: float, severity: Severity, kind: str) -> Finding:
        return finding_at(
            record, detector=kind, kind=kind, signal="activation_norm", severity=severity,
            row=row + 1, onset_row=row, value=value, expected=1.0, score=60.0, closed=False,
            text="still up",
        )  # fmt: skip

    worse, older = read_later(320, 242, 320), moved(60, 3.0, severity, kind)
    found = group_findings(record, [worse, older])
    alone = next(i for i in found if i.kind == "held-out-worse")
    assert (alone.onset, alone.first_step) == (243.0, 243.0)
    found = group_findings(record, [worse, older, moved(250, 703.0, "info", "spike")])
    jumped = next(i for i in found if i.kind == "held-out-worse")
    assert (jumped.onset, jumped.first_step) == (251.0, 251.0)


def test_a_level_that_was_accepted_before_is_no_first_sign() -> None:
    norm = np.where(np.arange(600) < 30, 0.14, 1.1) * (1 + 0.01 * level(600, 0.0, 1.0, 7))
    loss = level(600) + 1.5 * (np.arange(600) >= 260)
    (*_, incident) = alarms(of({"loss": loss, "activation_norm": norm}))
    assert incident.onset > 250
    assert incident.first_step > 250
