"""Accounts to render: a run that was rescued, an excerpt of two attempts, a long healthy run."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.chronicle.journal import Event
from trimtab.detectors.contract import Finding
from trimtab.diagnosis.diagnose import Cause, Diagnosis
from trimtab.incidents import Incident
from trimtab.plan.plan import Plan, PlannedRemedy
from trimtab.record import Attempt, Column, RecordBuilder, RunRecord
from trimtab.report.account import IncidentAccount, RunAccount


def finding(row: int, step: float, text: str, **changes: Any) -> Finding:
    base = Finding(
        detector="spike",
        kind="spike",
        signal="loss",
        severity="critical",
        row=row,
        step=step,
        onset_row=row,
        onset=step,
        peak_row=row,
        peak=step,
        value=4.0,
        expected=2.6,
        score=12.0,
        text=text,
    )
    return replace(base, **changes)


def incident(**changes: Any) -> Incident:
    base = Incident(
        kind="spike",
        attempt="1.0",
        severity="info",
        onset_row=411,
        onset=412.0,
        peak_row=412,
        peak=413.0,
        end_row=415,
        end=416.0,
        signals=("loss",),
        headline="loss spike · step 412 to 416, recovered · loss 3.9, expected 3.1",
    )
    return replace(base, **changes)


def told(
    found: Incident, diagnosis: Diagnosis | None = None, plan: Plan | None = None
) -> IncidentAccount:
    return IncidentAccount(
        incident=found, diagnosis=diagnosis or Diagnosis(causes=()), plan=plan or Plan()
    )


def schedule(step: float, *, factor: float = 1.0) -> float:
    warm = min(step / 100, 1.0)
    return factor * 1e-3 * warm * (0.1 + 0.45 * (1 + math.cos(math.pi * step / 1200)))


def signals_at(
    step: int, rng: np.random.Generator, *, harm: float = 0.0, factor: float = 1.0
) -> dict[str, float]:
    """Return one row of a small run; harm 0 is healthy, 1 is lost."""
    loss = 1.9 + 5.4 * float(np.exp(-step / 190)) + float(rng.normal(0, 0.03)) + 4.2 * harm
    grad = (
        float(np.exp(rng.normal(-0.7, 0.12)))
        * (1 + 45 * harm)
        * (1 + 3 * float(np.exp(-step / 40)))
    )
    if 412 <= step <= 414:
        loss, grad = loss + (0.8, 1.3, 0.5)[step - 412], grad * 4
    row = {
        "loss": loss,
        "grad_norm": grad,
        "lr": schedule(step, factor=factor),
        "clipped": float(grad > 1.0),
        "activation_norm": 9.0 + step / 600 + 30 * harm + float(rng.normal(0, 0.1)),
        "loss_scale": 2.0 ** (16 - min(8, int(9 * harm))),
        "step_time_s": 0.21 + float(rng.normal(0, 0.004)),
        "adam_v_l1": 3e-3 * (1 + 6 * float(np.exp(-(((step - 118) / 60) ** 2)))) * (1 + 5 * harm),
        "adam_v_max": 2e-6 * (1 + 9 * float(np.exp(-(((step - 131) / 50) ** 2)))) * (1 + 9 * harm),
    }
    if step % 100 == 0:
        row["val_loss"] = loss - 0.05
    return row


def rescued_record() -> RunRecord:
    rng = np.random.default_rng(0)
    build = RecordBuilder("runs/demo/act", "trimtab run directory")
    settings = {"lr": "0.001", "clip": "1.0", "batch": "32"}
    build.start_attempt(number="1.0", settings=settings, why="launched")
    for step in range(1, 945):
        build.add(step, signals_at(step, rng, harm=min(1.0, max(0.0, (step - 884) / 45)) ** 2))
    build.add(945, {"loss": float("nan"), "grad_norm": float("inf"), "lr": schedule(945)})
    trials = (
        ("1.1", "leave samples 28 288 to 29 568 out, nothing else", 1.0, 0.6),
        ("1.2", "learning rate x 0.5", 0.5, 0.0),
    )
    for number, why, factor, harm in trials:
        build.start_attempt(
            number=number,
            parent="1.0",
            parent_step=880,
            why=why,
            trial=True,
            settings={**settings, "lr factor": str(factor)},
        )
        for step in range(881, 921):
            build.add(step, signals_at(step, rng, harm=harm * (step - 880) / 40, factor=factor))
    build.start_attempt(
        number="1.3",
        parent="1.0",
        parent_step=880,
        settings={**settings, "lr factor": "0.5"},
        why="rolled back before the first sign; the halved learning rate held in trial 1.2",
    )
    for step in range(881, 1201):
        build.add(step, signals_at(step, rng, factor=0.5))
    build.facts["clip"] = 1.0
    return build.build()


RESCUE = Plan(
    remedies=(
        PlannedRemedy(
            remedy="roll-back",
            values={"to_step": 880},
            why="the newest healthy checkpoint before the first sign at 884",
            cost="65 steps",
            undo="trimtab rollback RUN --undo",
            when="mid-run",
            flags="--load runs/demo/act/checkpoints/step-00000880",
            worked=("104B exp 11", "OPT-175B"),
            failed=("104B attempt 2 (resumed at 6 210)",),
        ),
        PlannedRemedy(
            remedy="scale-lr",
            values={"factor": 0.5},
            why="held in a trial of 40 steps; leaving the data out alone did not",
            cost="slower progress",
            undo="set the factor back to 1",
            when="mid-run",
            flags="--override-opt_param-scheduler --lr 5.0e-4",
            worked=("OPT-175B", "OPT-66B"),
        ),
    ),
)
WHY = Diagnosis(
    causes=(
        Cause(
            cause="learning-rate-too-high",
            title="learning rate too high for this width",
            confidence=0.71,
            evidence=(
                "the same steps at half the rate held",
                "100 % of the 60 rows before the onset were clipped",
            ),
            test="",
        ),
        Cause(
            cause="bad-data",
            title="bad data window",
            confidence=0.18,
            evidence=("onset within one batch",),
            against=("leaving it out did not help",),
        ),
        Cause(
            cause="fp16-range",
            title="fp16 range",
            confidence=0.11,
            evidence=(),
            test="200 steps in bf16 from step 880",
        ),
    ),
    next_test="200 steps in bf16 from step 880",
)


def event(name: str, step: int, attempt: str = "1.0", minute: int = 0, **data: Any) -> Event:
    return Event(f"2024-05-01T03:{minute:02d}:12.000+00:00", name, attempt, step, data)


def rescue_events() -> tuple[Event, ...]:
    return (
        event(
            "start", 0, minute=1, settings={"lr": 0.001, "clip": 1.0}, environment={"torch": "2.4"}
        ),
        event(
            "attempt",
            0,
            minute=1,
            number="1.0",
            parent=None,
            parent_step=None,
            why="launched",
            trial=False,
        ),
        event(
            "checkpoint",
            880,
            minute=31,
            path="checkpoints/step-00000880",
            grade="healthy",
            why="every 40 steps",
        ),
        event(
            "incident",
            902,
            minute=32,
            kind="divergence",
            headline="loss is diverging · since step 902",
            severity="critical",
            onset=902,
            precursor=884,
            causes=[],
            state="open",
        ),
        event(
            "decision",
            945,
            minute=33,
            what="go back to 880 and try two remedies",
            why="the loss is not finite",
            evidence=["grad norm x 40 since 884", "3 clipped steps in a row"],
        ),
        event(
            "action",
            880,
            "1.1",
            33,
            remedy="skip-data",
            values={"samples": "28 288 to 29 568"},
            why="cheapest first",
        ),
        event(
            "outcome",
            920,
            "1.1",
            34,
            remedy="skip-data",
            verdict="did not",
            figures={"loss": 4.41, "expected": 2.0},
            text="",
        ),
        event(
            "action",
            880,
            "1.2",
            34,
            remedy="scale-lr",
            values={"factor": 0.5},
            why="next in the plan",
        ),
        event(
            "outcome",
            920,
            "1.2",
            35,
            remedy="scale-lr",
            verdict="worked",
            figures={"loss": 1.94, "expected": 1.95},
            text="back on trend",
        ),
        event(
            "decision",
            880,
            "1.3",
            35,
            what="roll back to 880 with LR x 0.5",
            why="it held in trial 1.2",
            evidence=["loss 1.94, expected 1.95"],
        ),
        event(
            "attempt",
            880,
            "1.3",
            35,
            number="1.3",
            parent="1.0",
            parent_step=880,
            why="the halved learning rate held",
            trial=False,
        ),
        event(
            "action",
            880,
            "1.3",
            35,
            remedy="roll-back",
            values={"to_step": 880, "factor": 0.5},
            why="",
        ),
        event(
            "outcome",
            1020,
            "1.3",
            41,
            remedy="roll-back",
            verdict="worked",
            figures={"loss": 1.92},
            text="verified at 1 020: back on trend",
        ),
        event("end", 1200, "1.3", 48, final_step=1200, reason="all steps done"),
    )


@pytest.fixture(scope="session")
def rescued() -> RunAccount:
    """1 200 steps, a divergence, two trials, a rollback, a benign spike."""
    record = rescued_record()
    lost = incident(
        kind="divergence",
        also=("non-finite", "grad-explosion"),
        severity="critical",
        precursor_row=883,
        precursor=884.0,
        onset_row=901,
        onset=902.0,
        peak_row=944,
        peak=945.0,
        end_row=None,
        end=None,
        signals=("loss", "grad_norm"),
        headline="loss is diverging · since step 902 (first sign 884, grad_norm) · loss 6.1, expected 2.0",
        confidence=0.97,
        findings=(
            finding(
                883,
                884,
                "grad norm 4.1, 8 x its usual 0.5",
                signal="grad_norm",
                kind="grad-explosion",
            ),
            finding(901, 902, "loss 6.1, expected 2.0", kind="divergence"),
            finding(944, 945, "loss is NaN at step 945", kind="non-finite"),
        ),
        correlations=(("loss", "grad_norm", 0.96), ("loss", "loss_scale", -0.91)),
    )
    return RunAccount(
        record=record,
        incidents=(told(lost, WHY, RESCUE), told(incident())),
        events=rescue_events(),
        read_s=0.04,
        notes=("clip 1.0 is as set in run.toml",),
    )


def spiked_record() -> RunRecord:
    build = RecordBuilder("slurm-884211.out", "Megatron-DeepSpeed text")
    build.start_attempt(number="1.0", settings={"seed": "42"})
    rows: list[tuple[float, float, float, float]] = [
        (7000, 6.444662, 2048, 48.0),
        (7010, 11.42026, 2048, 107.2),
        (7220, 7.155109, 2048, 8.3),
    ]
    for step, loss, scale, grad in rows:
        build.add(
            step,
            {"loss": loss, "loss_scale": scale, "grad_norm": grad, "lr": 6e-5, "step_time_s": 18.7},
        )
    build.add(7000, {"val_loss": 7.1742})
    build.start_attempt(
        number="1.1",
        parent="1.0",
        parent_step=6210,
        settings={"seed": "43"},
        why="rolled back to 6210, another data order",
    )
    rows = [
        (6900, 6.365808, 4096, 23.3),
        (6910, 6.598378, 4096, 20.7),
        (6920, 7.314456, 4096, 30.0),
        (6930, 9.121927, 4096, 69.2),
        (6940, 10.23865, 4096, 10.3),
    ]
    for step, loss, scale, grad in rows:
        build.add(
            step,
            {"loss": loss, "loss_scale": scale, "grad_norm": grad, "lr": 6e-5, "step_time_s": 18.6},
        )
    return build.build()


@pytest.fixture(scope="session")
def excerpt() -> RunAccount:
    """Eight rows of two attempts, each with a spike that did not recover."""
    first = incident(
        kind="unrecovered-spike",
        severity="critical",
        onset_row=1,
        onset=7010.0,
        peak_row=1,
        peak=7010.0,
        end_row=None,
        end=None,
        headline="loss spike that did not recover · since step 7010 · loss 11.4, expected 6.44",
        confidence=0.9,
        findings=(finding(1, 7010, "loss 11.4, expected 6.44"),),
    )
    second = replace(
        first,
        attempt="1.1",
        onset_row=5,
        onset=6920.0,
        peak_row=7,
        peak=6940.0,
        findings=(finding(5, 6920, "loss 10.2, expected 6.4"),),
        headline="loss spike that did not recover · since step 6920 · loss 10.2, expected 6.4",
        confidence=0.96,
    )
    plan = Plan(
        remedies=(
            PlannedRemedy(
                remedy="roll-back",
                values={"to_step": 3000},
                why="attempt 1.1 resumed at 6 210 and failed sooner",
                cost="4 010 steps",
                undo="load the checkpoint of 6 210",
                when="mid-run",
                flags="--load CHECKPOINTS --load-iteration 3000",
                worked=("OPT-175B",),
            ),
            PlannedRemedy(
                remedy="lower-lr",
                values={"lr": 3e-5},
                why="every step was clipped 20 to 50 x",
                cost="slower",
                undo="raise it again",
                when="mid-run",
                flags="--override-opt_param-scheduler --lr 3.0e-5",
                worked=("OPT-175B", "OPT-66B"),
                failed=("104B: new seed alone",),
            ),
        )
    )
    why = Diagnosis(
        causes=(
            Cause(
                cause="learning-rate-too-high",
                title="learning rate or initialisation too high for this width",
                confidence=0.71,
                evidence=(
                    "clip share 100 % from row 1 (clip 1.0 assumed)",
                    "recurs 90 steps earlier in attempt 1.1",
                ),
            ),
            Cause(
                cause="fp16-range",
                title="fp16 range",
                confidence=0.14,
                evidence=("not separated by this log",),
            ),
            Cause(
                cause="bad-data",
                title="bad data window",
                confidence=0.08,
                evidence=(),
                against=("attempt 1.1 used another order and failed sooner",),
            ),
        ),
        next_test="200 steps in fp32 or bf16 from step 3000",
    )
    notes = (
        "printed grad norm is multiplied by the loss scale; divided out (98 258 / 2048 = 48.0 at step 7000)",
        "judged by the excerpt rule: attempts of fewer than 30 rows, with hindsight",
        "clip 1.0 assumed: the log does not state it",
    )
    return RunAccount(
        record=spiked_record(),
        incidents=(told(second, why, plan), told(first, why, plan)),
        notes=notes,
        read_s=0.01,
    )


def plain_record(
    columns: Mapping[str, NDArray[np.float64]], *, source: str = "run.jsonl", **changes: Any
) -> RunRecord:
    n = len(next(iter(columns.values())))
    whole = np.ones(n, dtype=np.bool_)
    base = RunRecord(
        source=source,
        format="JSONL",
        axis="step",
        attempt=np.zeros(n, dtype=np.int32),
        step=np.arange(1, n + 1, dtype=np.float64),
        columns={k: Column(v, whole) for k, v in columns.items()},
        attempts=(Attempt(number="1.0", first_row=0, end_row=n),),
    )
    return replace(base, **changes)


@pytest.fixture(scope="session")
def make_record() -> Callable[..., RunRecord]:
    """One attempt with the columns given, every row present."""
    return plain_record


@pytest.fixture(scope="session")
def make_incident() -> Callable[..., IncidentAccount]:
    """One incident with changes to a benign spike at step 412."""
    return lambda **changes: told(incident(**changes))


@pytest.fixture(scope="session")
def healthy() -> RunAccount:
    """150 000 quiet steps of five signals."""
    rng = np.random.default_rng(1)
    n = 150_000
    step = np.arange(1, n + 1)
    columns = {
        "loss": 2.05 + 8.0 * (step + 200.0) ** -0.32 + rng.normal(0, 0.02, n),
        "grad_norm": np.exp(rng.normal(-1.2, 0.2, n)),
        "activation_norm": 11 + np.log(step) + rng.normal(0, 0.2, n),
        "loss_scale": np.full(n, 65536.0),
        "lr": 3e-4 * np.minimum(step / 2000, 1) * (0.1 + 0.45 * (1 + np.cos(np.pi * step / n))),
    }
    return RunAccount(record=plain_record(columns), incidents=(), read_s=1.2)
