"""The guard in Hugging Face's real Trainer.

Nothing changed while it observes, faults recovered in act.
"""

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")


from tests.guard.tiny import differences, events_of  # noqa: E402
from tests.integrations import hf_lab  # noqa: E402
from tests.integrations.hf_lab import (  # noqa: E402
    BAD_SAMPLES,
    BATCH,
    STEPS,
    Fit,
    Windows,
    fit,
    gpt2,
    guard_settings,
    rows_of,
    text,
    validation,
)
from trimtab.checkpoints.sidecar import read_stamp, verify_stamped  # noqa: E402
from trimtab.guard import Guard  # noqa: E402, TC001

pytestmark = pytest.mark.torch


def same(a: Fit, b: Fit) -> bool:
    """Whether two trainings logged the same figures and ended with the same weights, bit for
    bit."""
    return a.log.logs == b.log.logs and not differences(a.weights, b.weights)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_steps": 12, "num_samples": 64},
        pytest.param(
            {
                "max_steps": -1,
                "num_train_epochs": 3,
                "gradient_accumulation_steps": 3,
                "num_samples": 83,
                "eval_strategy": "epoch",
                "eval_windows": 20,
                "train_sampling_strategy": "random",
                "own_schedule": False,
            },
            marks=pytest.mark.slow,
            id="epochs that end in a shorter step, evaluation between",
        ),
        pytest.param({"max_steps": 20, "bf16": True, "num_samples": 400}, marks=pytest.mark.slow),
        pytest.param(
            {
                "max_steps": 20,
                "max_grad_norm": 0.0,
                "lr_scheduler_type": "cosine",
                "own_schedule": False,
                "num_samples": 400,
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_observe_is_bitwise_the_trainer_without_it(tmp_path: Path, arguments: Any) -> None:
    plain = fit(tmp_path / "plain", **arguments)
    guarded = fit(tmp_path / "guarded", guard=guard_settings("observe"), **arguments)
    assert len(plain.log.logs) > 10
    assert same(plain, guarded)
    steps = [r["step"] for r in rows_of(guarded.out)]
    assert steps == list(range(1, guarded.trainer.state.max_steps + 1))
    assert [r["loss"] for r in rows_of(guarded.out)] == pytest.approx(
        [logs["loss"] for _, logs in plain.log.logs if "loss" in logs], rel=1e-6
    )
    assert events_of(guarded.out / "trimtab", "fault") == []
    (end,) = events_of(guarded.out / "trimtab", "end")
    assert end.data["reason"] == "all steps done"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> float:
    return validation(fit(tmp_path_factory.mktemp("sound")).trainer.model)


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_bad_data_is_left_out(tmp_path: Path, sound: float, accumulate: int) -> None:
    found = fit(
        tmp_path,
        guard=guard_settings(),
        fault="data",
        gradient_accumulation_steps=accumulate,
        per_device_train_batch_size=BATCH // accumulate,
        save_strategy="steps",
        save_steps=7,
        save_total_limit=3,
    )
    guard: Guard = found.trainer.guard
    (action,) = guard.actions
    assert action["remedy"] == "roll-back+skip-data"
    assert guard.skipped_samples == ((BAD_SAMPLES[0], BAD_SAMPLES[-1]),)  # its 12 batches, no other
    assert validation(found.trainer.model) / sound < 1.01
    state = found.trainer.state
    assert (state.global_step, guard.step_number) == (STEPS, STEPS)
    # logged once for every step of the lineage that counts, and in order
    assert [s for s, logs in found.log.logs if "loss" in logs][-60:] == list(
        range(STEPS - 59, STEPS + 1)
    )
    history = [row["step"] for row in state.log_history if "loss" in row]
    assert history == sorted(set(history))  # of what was given up nothing is left
    assert history[-60:] == list(range(STEPS - 59, STEPS + 1))
    assert state.epoch == guard.data_epoch
    assert events_of(tmp_path / "trimtab", "fault") == []
    # the Trainer's own checkpoints: what was given up lies aside, the others are whole and graded
    to_step = action["values"]["to_step"]  # type: ignore[index]
    aside = {
        int(p.name.split("-")[1]): p
        for p in (tmp_path / "aside").glob("checkpoint-*")
        if p.is_dir()
    }
    assert aside
    assert min(aside) > to_step
    grades = {step: read_stamp(p).grade for step, p in aside.items()}  # type: ignore[union-attr]
    assert grades == {s: "poisoned" if s >= 160 else "suspect" for s in aside}
    kept = sorted(p for p in tmp_path.glob("checkpoint-*") if p.is_dir())
    assert [verify_stamped(p) for p in kept] == [""] * len(kept)
    assert {read_stamp(p).grade for p in kept} == {"healthy"}  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_wrong_rate_is_cut(tmp_path: Path, sound: float) -> None:
    unguarded = validation(fit(tmp_path / "plain", fault="lr").trainer.model)
    found = fit(tmp_path / "guarded", guard=guard_settings(), fault="lr")
    (action,) = found.trainer.guard.actions
    assert action["remedy"] == "roll-back+lower-lr"
    assert (unguarded - validation(found.trainer.model)) / (unguarded - sound) >= 0.9
    # what the Trainer logs is the rate in force, not the schedule's
    assert max(found.log.by_step("learning_rate")[s] for s in range(STEPS - 20, STEPS)) < 1e-2


@pytest.mark.slow
def test_a_rate_thirty_times_too_high_saturates_two_layers_and_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss hardly rises; what is found is the attention."""
    monkeypatch.setattr(hf_lab, "LR_FACTOR", 30.0)
    shape: dict[str, Any] = {"data": Windows(text().train, 2 * STEPS * BATCH, seed=1), "seed": 1}

    def trained(name: str, **how: Any) -> Fit:
        return fit(tmp_path / name, model=gpt2(width=64, layers=2, seed=1), **shape, **how)

    sound = validation(trained("sound").trainer.model)
    unguarded = validation(trained("plain", fault="lr").trainer.model)
    found = trained("guarded", fault="lr", guard=guard_settings())
    assert [a["remedy"] for a in found.trainer.guard.actions] == ["roll-back+lower-lr"]
    assert (unguarded - validation(found.trainer.model)) / (unguarded - sound) >= 0.8


@pytest.mark.slow
def test_a_nan_is_skipped_where_the_trainer_alone_is_lost(tmp_path: Path, sound: float) -> None:
    plain = fit(tmp_path / "plain", fault="nan", max_steps=110)
    assert math.isnan(validation(plain.trainer.model))
    found = fit(tmp_path / "guarded", guard=guard_settings(), fault="nan")
    assert [a["remedy"] for a in found.trainer.guard.actions] == ["skip-update"]
    assert [r["step"] for r in rows_of(found.out) if r["skipped"]] == [101, 102]
    assert validation(found.trainer.model) / sound < 1.02
