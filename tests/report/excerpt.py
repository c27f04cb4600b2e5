"""Eight quoted rows of two attempts, each with a spike that did not recover."""

from dataclasses import replace

from tests.report.parts import finding, incident, told
from trimtab.analysis.account import RunAccount
from trimtab.diagnosis.diagnose import Cause, Diagnosis
from trimtab.plan.plan import Plan, PlannedRemedy
from trimtab.record import RecordBuilder, RunRecord

PLAN = Plan(
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
WHY = Diagnosis(
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
NOTES = (
    (
        "printed grad norm is multiplied by the loss scale; divided out (98 258 / 2048 = 48.0 at"
        " step 7000)"
    ),
    "judged by the excerpt rule: attempts of fewer than 30 rows, with hindsight",
    "clip 1.0 assumed: the log does not state it",
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


def make_excerpt() -> RunAccount:
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
    return RunAccount(
        record=spiked_record(),
        incidents=(told(second, WHY, PLAN), told(first, WHY, PLAN)),
        notes=NOTES,
        read_s=0.01,
    )
