"""Four evaluations tell data from state."""

import sys
from pathlib import Path

import pytest

from trimtab.errors import ConfigError
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
    cells = evaluated(
        f"{sys.executable} -S {tmp_path / 'program'} {{checkpoint}} {{data}}",
        {"before": str(tmp_path / "old"), "after": str(tmp_path / "new")},
        {"fixed": str(tmp_path / "fixed"), "window": str(tmp_path / "window")},
        within_s=20.0,
        aborted=lambda: False,
    )
    told = judged(cells)
    assert told.blame == blame
    assert "before: fixed 2 ± 0.05774" in told.text


def test_judged_takes_nan_for_worse_and_says_what_is_missing() -> None:
    sound, broken = Evaluation(loss=2.0, error=None), Evaluation(loss=float("nan"), error=None)
    cells = {("before", "fixed"): sound, ("after", "fixed"): broken}
    assert judged(cells).blame == "state"
    assert judged({("before", "fixed"): sound}).blame == "unknown"
    assert judged({}).blame == "unknown"
    noisy = Evaluation(loss=2.6, error=0.3)
    assert judged({("before", "fixed"): sound, ("before", "window"): noisy}).blame == "unknown"


def test_read_loss_takes_the_named_one_and_refuses_other_text() -> None:
    printed = "***** eval metrics *****\n  eval_loss = 2.5\n  eval_runtime = 0:00:01"
    assert read_loss(printed) == Evaluation(loss=2.5, error=None)
    assert read_loss("done") is None
    assert read_loss("") is None


def test_settings_refuse_an_evaluation_that_names_no_checkpoint() -> None:
    with pytest.raises(ConfigError, match="it needs"):
        SuperviseSettings(evaluate="python eval.py {data}")
