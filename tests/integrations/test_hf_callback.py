"""The callback alone, driven by a Trainer's events: used again, broken off, put there twice."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from trimtab.errors import ConfigError
from trimtab.integrations.huggingface import GuardCallback

pytestmark = pytest.mark.torch

NO_CONTROL: Any = None
"""The callback sets nothing when a training begins."""


def settings(folder: Path) -> Any:
    return SimpleNamespace(output_dir=str(folder), save_total_limit=3, fp16=False, max_steps=70)


def state(step: int) -> Any:
    return SimpleNamespace(global_step=step, is_world_process_zero=True)


def drive(callback: GuardCallback, args: Any, *, steps: int = 60, ends: bool = True) -> int:
    """Send the events of a training whose loss is NaN from step 50 on; return its last step."""
    control: Any = SimpleNamespace(should_training_stop=False, should_save=False)
    callback.on_train_begin(args, state(0), control)
    step = 0
    while step < steps and not control.should_training_stop:
        step += 1
        loss = 3.0 - 0.01 * step + 0.01 * (step * 37 % 7) if step < 50 else math.nan
        logs = {"loss": loss, "grad_norm": 1.0, "learning_rate": 1e-3}
        callback.on_log(args, state(step), control, logs)
    if ends:
        callback.on_train_end(args, state(step), control)
    return step


def silent(mode: Any) -> GuardCallback:
    return GuardCallback(mode=mode, say=lambda _line: None)


def test_a_callback_that_ended_a_training_sees_the_next_one_as_well(tmp_path: Path) -> None:
    callback = silent("act")
    first = drive(callback, settings(tmp_path / "a"))
    assert first < 60
    assert drive(callback, settings(tmp_path / "b")) == first
    assert (tmp_path / "b" / "trimtab" / "verdict.json").exists()
    drive(callback, settings(tmp_path / "c"), steps=10)
    assert callback.findings == {}


def test_a_training_that_is_broken_off_is_let_go_of_at_the_next_begin_or_by_close(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback, args = silent("observe"), settings(tmp_path)
    drive(callback, args, ends=False)
    assert [args.save_total_limit] == [None]  # held: an alarm is open
    again = settings(tmp_path)
    drive(callback, again, ends=False)
    assert args.save_total_limit == 3
    callback.close()
    callback.close()
    assert again.save_total_limit == 3
    drive(silent("observe"), settings(tmp_path), steps=5)
    assert "a fault of its own" not in capsys.readouterr().err


def test_two_callbacks_are_one_too_many(tmp_path: Path) -> None:
    callbacks, shared, args = (silent("act"), silent("act")), state(0), settings(tmp_path)
    callbacks[0].on_train_begin(args, shared, NO_CONTROL)
    with pytest.raises(ConfigError, match="one is enough"):
        callbacks[1].on_train_begin(args, shared, NO_CONTROL)
    drive(callbacks[0], args, steps=3)  # nothing is held any more
