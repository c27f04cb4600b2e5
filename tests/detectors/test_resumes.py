"""Resumes: a run continues, jumps, starts over, changes its settings, or repeats its data."""

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.judge import judge_record
from trimtab.detectors.repeats import best_repeat, repeat_findings
from trimtab.detectors.resumes import resume_findings
from trimtab.incidents import group_findings
from trimtab.record import RecordBuilder, RunRecord
from trimtab.testing.curves import make_noise

Floats = NDArray[np.float64]
SEEDS = range(100, 106)
BATCH = 256


class Run:
    """A run whose loss is a slow curve plus what its data at each step adds."""

    def __init__(self, seed: int, *, num_steps: int = 3000) -> None:
        rng = np.random.default_rng(seed)
        self.curve = 2.4 + 3.0 * (1 + np.arange(num_steps) / 50.0) ** -0.5
        self.data = 0.03 * rng.standard_normal(num_steps)
        self.state = 0.005 * make_noise(num_steps, "ar1", rng)
        self.builder = RecordBuilder("resumed", "simulated")

    def rows(
        self, first: int, stop: int, *, fed: int | None = None, add: float = 0.0, **more: float
    ) -> "Run":
        """Log steps first .. stop - 1, fed from `fed` on (the same as the steps), `add` nats up."""
        data = first if fed is None else fed
        for k, step in enumerate(range(first, stop)):
            loss = self.curve[step] + self.data[data + k] + self.state[step] + add
            seen = float((data + k + 1) * BATCH)
            self.builder.add(float(step), {"loss": loss, "samples_seen": seen, **more})
        return self

    def resume(self, at: int) -> "Run":
        """Begin an attempt that resumes from a step."""
        self.builder.start_attempt(parent="1.0", parent_step=float(at - 1))
        return self

    def build(self) -> RunRecord:
        """Return the record."""
        return self.builder.build()

    def without_counter(self) -> RunRecord:
        """Return the record without the counter of samples."""
        record = self.builder.build()
        columns = {n: c for n, c in record.columns.items() if n != "samples_seen"}
        return dataclasses.replace(record, columns=columns)


def told(record: RunRecord) -> list[Finding]:
    return [*resume_findings(record), *repeat_findings(record)]


@pytest.mark.covers("S65")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("again", [0, 40])
def test_a_resume_on_the_same_data_says_nothing(seed: int, again: int) -> None:
    run = Run(seed).rows(1, 2000).resume(2000 - again).rows(2000 - again, 2600)
    assert told(run.build()) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fed", [1, 700], ids=["from the start", "from the last epoch's end"])
def test_a_sampler_that_starts_again_is_found_by_its_losses_alone(seed: int, fed: int) -> None:
    run = Run(seed).rows(1, 2000).resume(2000).rows(2000, 2600, fed=fed)
    (one,) = [f for f in told(run.without_counter()) if f.kind == "repeated-data"]
    assert (one.severity, one.onset) == ("warning", 2000)
    assert f"step {fed} to" in one.text


def test_one_row_after_the_stretch_that_is_compared_is_no_error() -> None:
    run = Run(100).rows(1, 2000).resume(2000).rows(2000, 2257, fed=1)
    assert [f.kind for f in repeat_findings(run.without_counter())] == ["repeated-data"]


@pytest.mark.parametrize(("fed", "what"), [(1800, "fed again"), (2200, "left out")])
def test_a_counter_of_samples_that_does_not_go_on_is_an_event(fed: int, what: str) -> None:
    run = Run(100).rows(1, 2000).resume(2000).rows(2000, 2600, fed=fed)
    (one,) = [f for f in told(run.build()) if f.signal == "samples_seen"]
    assert f"{200 * BATCH} samples {what}".replace("51200", "5.12e+04") in one.text


@pytest.mark.parametrize("seed", SEEDS)
def test_the_loss_that_jumps_where_repeated_data_ends_is_the_resumes_doing(seed: int) -> None:
    run = Run(seed).rows(1, 500).resume(500).rows(500, 999, fed=1, add=-0.4)
    record = run.rows(999, 1300, fed=500, add=0.4).without_counter()
    repeat, jump = (f for f in repeat_findings(record))
    assert (repeat.kind, repeat.onset) == ("repeated-data", 500)
    assert (jump.kind, jump.severity, jump.onset) == ("resume-jump", "warning", 999)
    alarms = [*told(record), *judge_record(record)]
    kinds = [(i.kind, i.onset) for i in group_findings(record, alarms) if i.severity != "info"]
    assert ("resume-jump", 999.0) in kinds
    assert not any(kind in ("spike", "unrecovered-spike") for kind, _ in kinds)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_resume_that_feeds_the_start_again_is_told(seed: int) -> None:
    run = Run(seed).rows(1, 500)
    for at in (500, 1000, 1500):
        run.builder.start_attempt()
        run.rows(at, at + 500, fed=1)
    found = repeat_findings(run.without_counter())
    assert [f.onset for f in found] == [500.0, 1000.0, 1500.0]


def test_a_counter_that_falls_within_an_attempt_is_an_event() -> None:
    run = Run(100).rows(1, 500).rows(500, 900, fed=300)
    (one,) = repeat_findings(run.build())
    assert (one.kind, one.onset) == ("repeated-data", 500)


def test_an_epoch_in_a_fixed_order_is_no_fault_of_the_resume() -> None:
    run = Run(100)
    run.data[:] = np.tile(run.data[:600], 5)
    run.rows(1, 2000).resume(2000).rows(2000, 2600)
    assert told(run.without_counter()) == []


@pytest.mark.parametrize("seed", range(100, 120))
def test_chance_repeats_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    past, child = (
        rng.standard_t(3, n).cumsum() * 0.01 + rng.standard_t(3, n) for n in (20_000, 256)
    )
    assert best_repeat(child, past)[1] < 0.4


def test_best_repeat_is_the_correlation_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    past = rng.uniform(0.0, 1.0, 60)
    child = past[20:30] + 0.1 * rng.uniform(0.0, 1.0, 10)
    at, rho = best_repeat(child, past)

    def steps(x: Floats) -> Floats:
        d = np.diff(x) - np.median(np.diff(x))
        sigma = 1.4826 * np.median(np.abs(d))
        return np.asarray(np.clip(d, -3 * sigma, 3 * sigma))

    x, y = steps(child), steps(past)
    windows = [y[i : i + 9] for i in range(len(y) - 8)]
    expected = [float(x @ w / np.sqrt((x @ x) * (w @ w))) for w in windows]
    assert at == int(np.argmax(expected)) == 20
    assert rho == pytest.approx(max(expected), abs=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_jump_that_lasts_is_a_warning_and_one_that_heals_a_note(seed: int) -> None:
    lasting = Run(seed).rows(1, 2000).resume(2000).rows(2000, 2600, add=0.3)
    (one,) = resume_findings(lasting.build())
    assert (one.severity, one.onset, one.direction) == ("warning", 2000, "up")
    assert one.value - one.expected == pytest.approx(0.3, abs=0.05)
    brief = Run(seed).rows(1, 2000).resume(2000).rows(2000, 2024, add=0.3).rows(2024, 2600)
    (note,) = resume_findings(brief.build())
    assert (note.severity, "over within" in note.text) == ("info", True)


@pytest.mark.parametrize(("add", "said"), [(0.8, ["warning"]), (0.0, [])])
def test_a_past_that_is_all_descent_hides_no_jump(add: float, said: list[str]) -> None:
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        loss = 1.9 + 2.6 * np.exp(-np.arange(120) / 25) + 0.12 * rng.standard_normal(120)
        loss[71:] += add
        builder = RecordBuilder("short", "simulated")
        for step in range(120):
            if step == 71:
                builder.start_attempt(parent="1.0", parent_step=70.0)
            builder.add(float(step), {"loss": float(loss[step])})
        found.append([f.severity for f in resume_findings(builder.build())])
    assert sum(f == said for f in found) >= 19


def test_a_jump_at_a_resume_is_one_incident_named_so() -> None:
    run = Run(100).rows(1, 2000).resume(2000).rows(2000, 2600, add=0.3, lr=3e-4)
    (one,) = group_findings(run.build(), told(run.build()))
    assert (one.kind, one.severity, one.onset) == ("resume-jump", "warning", 2000)


def test_settings_that_changed_at_the_resume_are_named() -> None:
    run = Run(100).rows(1, 2000, lr=3e-4, batch_size=64.0)
    run.resume(2000).rows(2000, 2600, lr=6e-4, batch_size=128.0)
    (one,) = resume_findings(run.build())
    assert one.severity == "info"
    assert "learning rate 0.0003 → 0.0006, batch size 64 → 128" in one.text


@pytest.mark.parametrize(("top", "severity"), [(3e-3, "warning"), (6e-4, "info")])
def test_a_schedule_that_begins_anew_is_a_warning(top: float, severity: str) -> None:
    run = Run(100).rows(1, 1500, lr=7e-4).resume(1500)
    for step in range(1500, 1900):
        run.rows(step, step + 1, lr=min(top, 5e-5 * (step - 1499)))
    (one,) = resume_findings(run.build())
    assert one.severity == severity
    assert ("begins anew" in one.text) == (severity == "warning")


def test_a_schedule_that_goes_on_is_no_change() -> None:
    run = Run(100)
    lr = 3e-4 * np.minimum(1.0, np.arange(3000) / 2500)
    for step in range(1, 1500):
        run.rows(step, step + 1, lr=float(lr[step]))
    run.resume(1400)
    for step in range(1400, 2000):
        run.rows(step, step + 1, lr=float(lr[step]))
    assert resume_findings(run.build()) == ()


def test_an_attempt_that_starts_over_is_a_note() -> None:
    run = Run(100).rows(1, 400)
    run.builder.start_attempt()
    (one,) = resume_findings(run.rows(1, 300).build())
    assert one.severity == "info"
    assert "starts over at step 1" in one.text


@pytest.mark.parametrize(("fed", "said"), [(1900, "same data"), (400, "the data differs")])
def test_a_branch_that_was_left_high_is_compared_at_the_same_steps(fed: int, said: str) -> None:
    run = Run(100).rows(1, 1900).rows(1900, 2000, add=0.8)
    record = run.resume(1900).rows(1900, 2300, fed=fed).without_counter()
    (one,) = resume_findings(record)
    assert one.severity == "info"
    assert said in one.text


def test_a_resume_that_stands_lower_is_a_note() -> None:
    run = Run(100).rows(1, 2000).resume(2000).rows(2000, 2600, add=-0.3)
    (one,) = resume_findings(run.build())
    assert (one.severity, one.direction) == ("info", "down")


def test_too_many_attempts_are_several_runs_and_say_nothing() -> None:
    run = Run(100)
    for k in range(80):
        run.builder.start_attempt()
        run.rows(1 + k % 3, 40, add=float(k % 2))
    assert told(run.build()) == []
