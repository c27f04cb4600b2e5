"""A run that was rescued: a divergence, two trials, a rollback. Its journal is rescued.jsonl."""

import math
from pathlib import Path

import numpy as np

from tests.report.parts import finding, incident, told
from trimtab.analysis.account import RunAccount
from trimtab.chronicle.journal import read_journal
from trimtab.diagnosis.diagnose import Cause, Diagnosis
from trimtab.plan.plan import Plan, PlannedRemedy
from trimtab.record import RecordBuilder, RunRecord


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


def make_rescued() -> RunAccount:
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
        headline=(
            "loss is diverging · since step 902 (first sign 884, grad_norm) · loss 6.1,"
            " expected 2.0"
        ),
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
        events=read_journal(Path(__file__).with_name("rescued.jsonl"))[0],
        read_s=0.04,
        notes=("clip 1.0 is as set in run.toml",),
    )
