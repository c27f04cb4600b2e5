"""The self-test: it shows a judge that works, and one that does not."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import trimtab
from trimtab.analysis.assemble import make_account
from trimtab.analysis.power_curve import PowerCurve
from trimtab.analysis.self_test import SelfTester
from trimtab.detectors.contract import Finding, Row
from trimtab.detectors.judge import DETECTORS, Judge
from trimtab.record import RunRecord
from trimtab.testing.curves import record_of, simulate_run


@dataclass(frozen=True)
class NoState:
    """Nothing."""


@dataclass(frozen=True, kw_only=True)
class DeadDetector:
    """Stands in the place of a detector, reads what it reads, and says nothing."""

    name: str
    signals: tuple[str, ...]

    def start(self) -> NoState:
        return NoState()

    def update(self, state: NoState, row: Row) -> tuple[NoState, tuple[Finding, ...]]:
        return state, ()


def judge_without(*names: str) -> Judge:
    """The built-in judge in which some detectors are dead."""
    return Judge(
        tuple(
            DeadDetector(name=d.name, signals=d.signals) if d.name in names else d
            for d in DETECTORS
        )
    )


@pytest.fixture(scope="module")
def quiet() -> RunRecord:
    """A run of 2,000 steps without a fault."""
    return simulate_run(num_steps=2000, seed=3)


def test_faults_are_injected_only_where_the_verdict_rests_on_them(
    quiet: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    monkeypatch.setattr(SelfTester, "run", lambda *_: runs.append(1))
    loss = quiet.columns["loss"].values.copy()
    loss[1500:1520] += 6.0
    spiked = make_account(record_of(quiet.step, {"loss": loss}))
    assert spiked.verdict == "incident"
    assert [ia.kind for ia in spiked.incidents if ia.is_open_alarm]
    assert not runs
    calm = make_account(quiet)
    assert (calm.verdict, calm.verdict, runs) == ("not-judged", "not-judged", [1])


def test_a_quiet_run_is_healthy_and_says_what_would_have_been_seen(quiet: RunRecord) -> None:
    account = make_account(quiet)
    assert account.verdict == "healthy"
    test = account.self_test
    assert test is not None
    assert test.passed
    assert test.seen >= 0.8 * test.injected
    rise = test.of("rise")
    assert rise is not None
    assert rise.size is not None
    assert 0.0 < rise.size < 20 * 0.02  # the noise is .02
    assert "would see a step of +" in account.judgement.power


@pytest.mark.parametrize("dead", ["non-finite", "spike", "all"])
def test_a_dead_detector_fails_the_self_test(quiet: RunRecord, dead: str) -> None:
    names = [d.name for d in DETECTORS] if dead == "all" else [dead]
    account = make_account(quiet, judge=judge_without(*names))
    assert account.incidents == ()
    assert account.verdict == "not-judged"
    assert account.judgement.why
    assert account.self_test is not None
    assert not account.self_test.passed


def test_the_self_test_touches_neither_record_nor_findings(quiet: RunRecord) -> None:
    before = {n: c.values.copy() for n, c in quiet.columns.items()}
    with_test, without = make_account(quiet), make_account(quiet, self_test=False)
    assert [i.headline for i in with_test.incidents] == [i.headline for i in without.incidents]
    assert without.self_test is None
    assert without.verdict == "not-judged"
    for name, values in before.items():
        np.testing.assert_array_equal(values, quiet.columns[name].values)


@pytest.mark.slow
def test_the_same_rows_give_the_same_figures(quiet: RunRecord) -> None:
    first, second = make_account(quiet).self_test, make_account(quiet).self_test
    assert first is not None
    assert second is not None
    assert first.to_json() == second.to_json()


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "offset"), [(0.25, 0.0), (3.0, 0.0), (1.0, 2.0)])
def test_sizes_follow_the_unit_of_the_loss(factor: float, offset: float) -> None:
    rng = np.random.default_rng(5)
    t = np.arange(1, 1501.0)
    loss = 2 + 3 / (1 + t / 40) + 0.03 * rng.standard_normal(len(t))
    plain = make_account(record_of(t, {"loss": loss})).self_test
    other = make_account(record_of(t, {"loss": factor * loss + offset})).self_test
    assert plain is not None
    assert other is not None
    for name in ("rise", "spike"):
        a, b = plain.of(name), other.of(name)
        assert a is not None
        assert b is not None
        assert b.sigma == pytest.approx(factor * a.sigma, rel=1e-9)
        # Rules with a bar that is a share of the level move it; the noise decides above all.
        assert b.smallest == pytest.approx(a.smallest, rel=0.6)


@pytest.mark.slow
def test_a_log_that_grows_pays_for_a_few_faults_at_each_look(quiet: RunRecord) -> None:
    tester = SelfTester(hindsight=False)
    calls: list[int] = []
    for _ in range(3):
        test = make_account(quiet, hindsight=False, tester=tester).self_test
        assert test is not None
        assert test.passed
        calls.append(sum(known.number for known in tester.known.values()))
    assert calls[0] > 40
    assert calls[1] - calls[0] == calls[2] - calls[1] == 8


def test_a_watch_carries_the_self_test_in_its_status(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from trimtab.cli import main

    rng = np.random.default_rng(1)
    log = tmp_path / "run.csv"
    rows = [f"{s},{2 + 3 / (1 + s / 50) + 0.02 * rng.standard_normal():.5f}" for s in range(900)]
    log.write_text("step,loss\n" + "\n".join(rows) + "\n")
    code = main(
        ["watch", str(log), "--until-idle", "0", "--interval", "0.01", "--fail-on", "not-judged"]
    )
    assert code == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "healthy · self-test" in last


def test_power_curve_finds_the_threshold_it_is_shown() -> None:
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(np.log(1), np.log(40), 300))
    seen = rng.random(300) < 1 / (1 + np.exp(-(np.log(sizes) - np.log(8)) / 0.2))
    curve = PowerCurve(zip(sizes.tolist(), seen.tolist(), strict=True))
    assert curve.power(8.0) == pytest.approx(0.5, abs=0.12)
    assert curve.power(2.0) < 0.05
    size, share = curve.smallest_seen(40.0)
    assert 11 < size < 22  # 8 exp(0.2 ln 19) = 14.4
    assert share >= 0.93


def test_sixty_rows_say_which_rises_they_cannot_tell() -> None:
    rng = np.random.default_rng(2)
    t = np.arange(57.0)
    found = trimtab.analyze(
        {"step": t * 500, "loss": 2 + 3 / (1 + t / 20) + 0.05 * rng.standard_normal(57)}
    )
    # Rises of a third of the level would be seen, smaller ones not, which is said.
    assert found.verdict == "healthy"
    judgement = found.runs[0].judgement
    said = judgement.not_judged
    unseen = [s for s in said if s.startswith("57 rows: lasting rises under ")]
    assert len(unseen) == 1
    assert 0.3 < float(unseen[0].split()[5]) < 1.2
    assert "a 3-row spike of " in judgement.power
    assert "no gradient norm is logged" in said
    assert "no validation is logged" in said
    judged = found.to_dict()["runs"][0]["judged"]  # type: ignore[index]
    assert judged["rows"] == 57
    assert judged["cannot_tell"] == list(said)


def test_a_self_test_of_a_run_with_an_incident_keeps_the_verdict(quiet: RunRecord) -> None:
    loss = quiet.columns["loss"]
    values = loss.values.copy()
    values[1500:] += 3.0
    columns = {**quiet.columns, "loss": replace(loss, values=values)}
    assert make_account(replace(quiet, columns=columns)).verdict == "incident"


@pytest.mark.slow
def test_a_loss_that_becomes_quieter_as_it_falls_is_healthy() -> None:
    for seed in range(3):
        noise = 1 + 0.1 * np.random.default_rng(seed).standard_normal(800)
        loss = (0.02 + 0.88 * np.exp(-np.arange(800) / 200)) * noise
        account = make_account(record_of(np.arange(800.0), {"loss": loss}))
        assert account.verdict == "healthy"


def test_a_self_test_says_first_that_a_doubling_may_go_unseen() -> None:
    noise = np.random.default_rng(3).normal(0, 1, 200)
    told = {}
    for share in (0.02, 0.3):
        loss = np.maximum(0.5 + 2 * np.exp(-np.arange(200) / 20) + 0.5 * share * noise, 0.01)
        account = make_account(record_of(np.arange(200.0), {"loss": loss}))
        assert account.self_test is not None
        assert account.self_test.doubling is not None
        told[share] = (account.self_test.doubling, account.judgement.power)
    assert told[0.02][0] > 0.9
    assert "doubling" not in told[0.02][1]
    assert told[0.3][0] < 0.7
    assert told[0.3][1].startswith("but a lasting doubling of the loss would be missed ")


@pytest.mark.slow
def test_a_self_test_gives_one_number_for_one_fault() -> None:
    told = 0
    for seed in range(3):
        noise = 0.003 * np.random.default_rng(seed).standard_normal(600)
        loss = 5 - np.arange(600) * 4.5 / 600 + noise
        judged = make_account(record_of(np.arange(600.0), {"loss": loss})).judgement
        for part in judged.why.split("; "):
            if part.startswith("a lasting rise") and "places" in part:
                told += 1
                assert f"600 rows: {part}" in judged.not_judged
    assert told
