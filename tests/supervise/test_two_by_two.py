"""Four evaluations tell data from state."""

import math
import os
import sys
from pathlib import Path

import pytest

from trimtab.errors import ConfigError
from trimtab.plan.policy import Policy
from trimtab.supervise import supervisor
from trimtab.supervise.numeric import NumericAnswer
from trimtab.supervise.resume import Restore
from trimtab.supervise.settings import SuperviseSettings
from trimtab.supervise.two_by_two import Evaluation, evaluated, judged, read_loss

PROGRAM = """\
import sys
state, data = (float(open(path).read()) for path in sys.argv[1:])
print("loading"), print(state + data, state + data + 0.1, state + data - 0.1)
"""


@pytest.mark.parametrize(
    ("state", "window", "blame"),
    [("0", "3", "data"), ("3", "0", "state"), ("3", "3", "both"), ("0.01", "0", "neither")],
)
def test_evaluated_tells_data_from_state_by_a_command(
    tmp_path: Path, state: str, window: str, blame: str
) -> None:
    files = {"program": PROGRAM, "old": "2", "fixed": "0"}
    files |= {"new": str(2 + float(state)), "window": window}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    cells, missing = evaluated(
        f"{sys.executable} -S {tmp_path / 'program'} {{checkpoint}} {{data}}",
        {"before": str(tmp_path / "old"), "after": str(tmp_path / "new")},
        {"fixed": str(tmp_path / "fixed"), "window": str(tmp_path / "window")},
        within_s=20.0,
        aborted=lambda: False,
    )
    told = judged(cells)
    assert (told.blame, missing) == (blame, "")
    assert "before: fixed 2 ± 0.05774" in told.text


def test_judged_takes_nan_for_worse_and_says_what_is_missing() -> None:
    sound, broken = Evaluation(loss=2.0, error=None), Evaluation(loss=float("nan"), error=None)
    cells = {("before", "fixed"): sound, ("after", "fixed"): broken}
    assert judged(cells).blame == "state"
    assert judged({("before", "fixed"): sound}).blame == "unknown"
    assert judged({}).blame == "unknown"
    noisy = Evaluation(loss=2.6, error=0.3)
    assert judged({("before", "fixed"): sound, ("before", "window"): noisy}).blame == "unknown"


@pytest.mark.parametrize(
    ("printed", "loss"),
    [
        ("***** eval metrics *****\n  eval_loss = 2.5\n  eval_runtime = 0:00:01", 2.5),
        ("eval_loss = 2.0\nbest_loss = 1.1", 2.0),
        ("loss 9.1\neval/loss: 2.3, z_loss: 0.001", 2.3),
        ("validation loss at iteration 9 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01", 2.5),
        ("loss: 2.1\nloss: 9.0\nloss: 2.1", 4.4),
        ("loss 2.31 ppl 10.1", 2.31),
        ("eval_loss = .31", 0.31),
        ("2.0\n3.0\n4.0", 3.0),
        *((f"2.0\n{last}", None) for last in ("1795451598", "1795451598.5", "12 2.31", "done")),
        ("step 1000 2.31", None),
        ("a_loss = 1.0\nb_loss = 2.0", None),
        ("eval_loss = 9.5s", None),
        ("", None),
    ],
)
def test_read_loss_takes_the_named_one_and_refuses_other_text(
    printed: str, loss: float | None
) -> None:
    told = read_loss(printed)
    assert (told and told.loss) == (None if loss is None else pytest.approx(loss))


@pytest.mark.parametrize("printed", ["2.31 nan", "loss: 2.0\nloss: nan\nloss: inf", "nan"])
def test_read_loss_takes_one_broken_batch_for_a_broken_loss(printed: str) -> None:
    told = read_loss(printed)
    assert told is not None
    assert math.isnan(told.loss)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("python3 -c 'raise SystemExit(\"no such split\")'", "with status 1: no such split"),
        ("echo done", "no loss that can be told: done"),
        ("/no/such/program", "cannot be started"),
        ("sh -c 'sleep {mark} & setsid sleep {mark}'", "did not end within"),
    ],
)
def test_evaluated_says_why_and_leaves_nothing_behind(command: str, why: str) -> None:
    mark = f"300.{os.getpid()}"
    cells, missing = evaluated(
        command.replace("{mark}", mark),
        {"before": "c"},
        {"fixed": "f"},
        within_s=0.3,
        aborted=lambda: False,
    )
    assert not cells
    assert why in missing
    left = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert not any(mark.encode() in words for words in left)


def test_supervisor_goes_on_without_a_reading_that_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AttributeError("no numerator")

    monkeypatch.setattr(supervisor, "evaluated", fails)
    settings = SuperviseSettings(evaluate="e {checkpoint} {data}", judge_every_s=0.0)
    job = supervisor.Job(argv=("true",), folder=tmp_path / "run")
    own = supervisor.Supervisor(job, settings, Policy(), None)
    answer = NumericAnswer(
        before=9.0, axis="step", kind="", headline="", onset=9.0, row=9, through=9.0, why=""
    )
    restore = Restore(step=5, path="c", layout="files")
    assert own.read_forward(answer, restore, None) is None
    assert own.read_forward(answer, restore, None) is None
    own.notes.close()
    assert capsys.readouterr().err.count("evaluate failed (AttributeError: no numerator)") == 1


def test_settings_refuse_an_evaluation_that_names_no_checkpoint() -> None:
    with pytest.raises(ConfigError, match="it needs"):
        SuperviseSettings(evaluate="python eval.py {data}")


def test_settings_refuse_an_evaluation_with_an_open_quote() -> None:
    with pytest.raises(ConfigError, match="No closing quotation"):
        SuperviseSettings(evaluate="python 'eval.py {checkpoint} {data}")
