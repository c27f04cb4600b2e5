"""What a Trainer brings besides a plain model.

LoRA, losses of its own, a scaler, a callback alone, two epochs.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import Trainer, TrainerCallback  # noqa: E402

from tests.guard.tiny import differences, events_of  # noqa: E402
from tests.integrations.hf_lab import (  # noqa: E402
    BAD_SAMPLES,
    STEPS,
    fit,
    gpt2,
    guard_settings,
    quiet,
    rows_of,
)
from trimtab.checkpoints.sidecar import read_stamp  # noqa: E402
from trimtab.errors import ActError, ConfigError  # noqa: E402
from trimtab.integrations.huggingface import (  # noqa: E402
    GuardCallback,
    GuardedTrainer,
    GuardMixin,
)
from trimtab.plan.policy import Policy  # noqa: E402

pytestmark = pytest.mark.torch


def grades(folder: Path) -> dict[str, str]:
    """The grade beside each checkpoint of a folder."""
    stamps = {p.name: read_stamp(p) for p in folder.glob("checkpoint-*") if p.is_dir()}
    return {name: "none" if stamp is None else stamp.grade for name, stamp in stamps.items()}


class Tuned(Trainer):
    """A Trainer with a loss of its own and figures beside it, as TRL's are made."""

    guard: Any = None

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = model(**inputs)
        self.kl = float(outputs.logits.detach().float().var())
        if self.guard is not None:
            self.guard.note_signals(reward=-self.kl)
        return outputs.loss + 0.01 * outputs.logits.square().mean()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        super().log({**logs, "objective/kl": self.kl} if "loss" in logs else logs, *args, **kwargs)


class GuardedTuned(GuardMixin, Tuned):
    pass


def test_a_loss_of_its_own_and_further_signals(tmp_path: Path) -> None:
    plain = fit(tmp_path / "plain", base=Tuned, max_steps=8, num_samples=64)
    guarded = fit(
        tmp_path / "guarded",
        base=GuardedTuned,
        guard=guard_settings("observe"),
        max_steps=8,
        num_samples=64,
    )
    assert guarded.log.logs == plain.log.logs
    rows = rows_of(guarded.out)
    kls = [logs["objective/kl"] for _, logs in plain.log.logs if "loss" in logs]
    assert [r["reward"] for r in rows] == [-kl for kl in kls]
    assert [r.get("objective/kl") for r in rows] == [None, *kls[:-1]]  # known once it is logged
    assert [r["loss"] for r in rows] == list(plain.log.by_step().values())


@pytest.mark.slow
def test_lora_trains_the_adapter_and_goes_back_with_it(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    def adapted() -> Any:
        config = peft.LoraConfig(
            r=4, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM", fan_in_fan_out=True
        )
        with quiet():
            return peft.get_peft_model(gpt2(), config)

    plain = fit(tmp_path / "plain", model=adapted(), max_steps=12, num_samples=128)
    guarded = fit(
        tmp_path / "guarded",
        model=adapted(),
        guard=guard_settings("observe"),
        max_steps=12,
        num_samples=128,
        save_strategy="steps",
        save_steps=6,
    )
    assert guarded.log.logs == plain.log.logs
    assert differences(plain.weights, guarded.weights) == []
    frozen = {k: v for k, v in gpt2().state_dict().items() if "c_proj" in k}
    kept = {k.removeprefix("base_model.model."): v for k, v in guarded.weights.items()}
    assert all(torch.equal(v, kept[k]) for k, v in frozen.items())
    resumed = fit(
        tmp_path / "guarded",
        model=adapted(),
        guard=guard_settings("observe"),
        max_steps=14,
        num_samples=128,
        resume=str(tmp_path / "guarded" / "checkpoint-6"),
    )
    after = fit(tmp_path / "more", model=adapted(), max_steps=14, num_samples=128)
    assert resumed.log.by_step() == {s: x for s, x in after.log.by_step().items() if s > 6}


@pytest.mark.slow
def test_an_adapter_goes_back_from_bad_data_over_a_base_that_stays_as_it_was(
    tmp_path: Path,
) -> None:
    peft = pytest.importorskip("peft")
    base = fit(tmp_path / "base", max_steps=120).trainer.model
    frozen = {k: v.clone() for k, v in base.state_dict().items()}
    config = peft.LoraConfig(
        r=4, target_modules=["c_attn", "c_fc"], task_type="CAUSAL_LM", fan_in_fan_out=True
    )
    with quiet():
        model = peft.get_peft_model(base, config)
    found = fit(tmp_path, model=model, guard=guard_settings(), fault="data")
    guard = found.trainer.guard
    assert [a["remedy"] for a in guard.actions] == ["roll-back+skip-data"]
    assert guard.skipped_samples == ((BAD_SAMPLES[0], BAD_SAMPLES[-1]),)
    assert found.trainer.state.global_step == STEPS
    kept = {
        k.removeprefix("base_model.model.").replace(".base_layer", ""): v
        for k, v in found.weights.items()
    }
    assert all(torch.equal(v, kept[k]) for k, v in frozen.items())
    assert any("lora_B" in k and bool(v.any()) for k, v in kept.items())
    assert events_of(tmp_path / "trimtab", "fault") == []


class Folders(TrainerCallback):
    """After each save: the step, the limit in force, the checkpoints on disk and their grades."""

    def __init__(self) -> None:
        self.saves: list[tuple[int, int | None, dict[int, str]]] = []

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        stamps = {
            int(path.name.split("-")[1]): read_stamp(path)
            for path in Path(args.output_dir).glob("checkpoint-*")
            if path.is_dir()
        }
        found = sorted(stamps.items())
        grades = {step: "" if stamp is None else stamp.grade for step, stamp in found}
        self.saves.append((state.global_step, args.save_total_limit, grades))


@pytest.mark.slow
def test_a_healthy_checkpoint_outlives_the_limit_while_the_newer_ones_are_in_doubt(
    tmp_path: Path,
) -> None:
    """Three are kept, one of every fifth step; the data are bad from step 160 to 171."""
    folders = Folders()
    found = fit(
        tmp_path,
        guard=guard_settings(),
        fault="data",
        callbacks=(folders,),
        save_strategy="steps",
        save_steps=5,
        save_total_limit=3,
    )
    (action,) = found.trainer.guard.actions
    assert action["remedy"] == "roll-back+skip-data"
    to_step = action["values"]["to_step"]
    in_doubt = [grades for _, limit, grades in folders.saves if limit is None]
    assert in_doubt, folders.saves
    *beyond, _, _, _ = in_doubt[-1]  # rotation keeps the newest three
    pinned = [step for step in beyond if step <= to_step]
    assert pinned, folders.saves
    assert {in_doubt[-1][step] for step in pinned} == {"healthy"}
    assert [len(grades) for _, limit, grades in folders.saves if limit][-1] == 3  # and again later


class Scaled(Trainer):
    """fp16 with a loss scaler on the CPU, which Accelerate itself offers on GPUs only."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=4)
        self.accelerator.native_amp = True
        self.accelerator.state._mixed_precision = "fp16"


class GuardedScaled(GuardMixin, Scaled):
    pass


@pytest.mark.slow
def test_a_loss_scaler_skips_and_grows_as_without_the_guard(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"max_steps": 40, "num_samples": 400, "max_grad_norm": 0.5}
    plain = fit(tmp_path / "plain", base=Scaled, **shape)
    guarded = fit(tmp_path / "g", base=GuardedScaled, guard=guard_settings("observe"), **shape)
    assert repr(guarded.log.logs) == repr(plain.log.logs)  # NaN norms among them
    assert differences(plain.weights, guarded.weights) == []
    rows = rows_of(guarded.out)
    assert sum(r["skipped"] for r in rows) > 3
    assert len({r["loss_scale"] for r in rows}) > 5
    scales = [f.trainer.accelerator.scaler.get_scale() for f in (plain, guarded)]
    assert scales[0] == scales[1]


class LowerBeta(GuardedTrainer):
    """Launched with other settings than the run's."""

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        made = super().create_optimizer(*args, **kwargs)
        for group in made.param_groups:
            group["betas"] = (0.5, 0.9)
        return made


@pytest.mark.covers("S83", "S211")
@pytest.mark.parametrize("resume", [None, True], ids=["the guard's state", "the Trainer's"])
def test_settings_that_a_resume_would_undo_are_an_error_that_names_them(
    tmp_path: Path, resume: bool | None
) -> None:
    saves: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "own_schedule": False}
    fit(tmp_path, guard=guard_settings("observe"), max_steps=5, num_samples=64, **saves)
    path = None if resume is None else str(tmp_path / "checkpoint-3")
    with pytest.raises(ActError, match=r"betas=\(0\.9, 0\.999\), now with \(0\.5, 0\.9\)"):
        fit(
            tmp_path,
            base=LowerBeta,
            guard=guard_settings("observe"),
            max_steps=8,
            num_samples=64,
            resume=path,
            **saves,
        )


def test_a_run_that_went_on_from_an_unguarded_checkpoint_can_be_resumed_again(
    tmp_path: Path,
) -> None:
    """Its settings are those of the launch, not those that the schedule had come to."""
    saves: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3}
    fit(tmp_path, max_steps=5, num_samples=64, **saves)
    adopted = str(tmp_path / "checkpoint-3")
    fit(tmp_path, guard=guard_settings("observe"), max_steps=5, num_samples=64, resume=adopted)
    again = fit(tmp_path, guard=guard_settings("observe"), max_steps=7, num_samples=64)
    assert sorted(again.log.by_step()) == [6, 7]


@pytest.mark.slow
@pytest.mark.covers("S127", "S128")
def test_the_scale_of_the_loss_goes_on_and_only_a_request_resets_it(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"base": GuardedScaled, "num_samples": 400, "max_grad_norm": 0.5}
    fit(tmp_path / "whole", guard=guard_settings("observe"), max_steps=24, **shape)
    fit(tmp_path / "run", guard=guard_settings("observe"), max_steps=13, **shape)
    fit(tmp_path / "run", guard=guard_settings("observe"), max_steps=24, **shape)
    scales = [r["loss_scale"] for r in rows_of(tmp_path / "whole")]
    assert [r["loss_scale"] for r in rows_of(tmp_path / "run", "1.1")] == scales[13:]
    assert scales[13] != scales[0]

    class Reset(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 24:
                trainer.guard.set_loss_scale(2.0**10, why="start low")

    trainer: Any = None

    class Asking(GuardedScaled):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            nonlocal trainer
            super().__init__(*args, **kwargs)
            trainer = self

    shape["base"] = Asking
    fit(
        tmp_path / "run",
        guard=guard_settings("observe"),
        max_steps=26,
        callbacks=(Reset(),),
        **shape,
    )
    assert rows_of(tmp_path / "run", "1.2")[0]["loss_scale"] == 2.0**10


class Marks(TrainerCallback):
    """Step and learning rate as the Trainer's other callbacks see them."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.epochs: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epochs.append(round(state.epoch, 6))


@pytest.mark.slow
def test_going_back_into_the_epoch_before_where_its_last_step_is_a_shorter_one(
    tmp_path: Path,
) -> None:
    """22 batches make 8 steps of 3, the last of 1; NaN for 6 steps around an epoch's end."""

    class Broken(GuardedTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss: Any = super().compute_loss(*args, **kwargs)
            assert self.guard is not None
            first = not self.guard.actions or self.guard.actions[-1]["remedy"] == "skip-update"
            bad = 70 <= self.state.global_step < 76 and first and self.guard.phase == "calm"
            return loss * math.nan if bad else loss

    marks = Marks()
    found = fit(
        tmp_path,
        base=Broken,
        guard=guard_settings(snapshot_every_steps=4),
        callbacks=(marks,),
        max_steps=-1,
        num_train_epochs=14,
        num_samples=22 * 4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=3,
        own_schedule=False,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
    )
    state, guard = found.trainer.state, found.trainer.guard
    assert state.global_step == state.max_steps == 14 * 8
    assert any("roll-back" in a["remedy"] for a in guard.actions)
    assert marks.steps[-10:] == list(range(103, 113))
    assert events_of(tmp_path / "trimtab", "fault") == []
    assert state.epoch == guard.data_epoch


@pytest.mark.slow
def test_the_callback_alone_ends_a_run_that_its_checkpoints_can_go_on_from(tmp_path: Path) -> None:
    callback = GuardCallback(mode="act", policy=Policy(), say=lambda _line: None)
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 6, "save_total_limit": 2}
    found = fit(tmp_path, fault="lr", callbacks=(callback,), **saving)
    end = found.trainer.state.global_step
    assert 140 < end < 200
    verdict = json.loads((tmp_path / "trimtab" / "verdict.json").read_text())
    assert (verdict["state"], verdict["restart"], verdict["resume_step"]) == (
        "given-up",
        False,
        138,
    )
    kept = grades(tmp_path)
    assert kept["checkpoint-138"] == "healthy"
    assert set(kept.values()) == {"healthy"}
    assert set(grades(tmp_path / "aside").values()) == {"poisoned"}
    assert found.trainer.args.save_total_limit == 2
    assert [r["loss"] for r in rows_of(tmp_path)] == list(found.log.by_step().values())
    assert events_of(tmp_path / "trimtab", "fault") == []


def test_the_callback_changes_nothing_while_it_observes(tmp_path: Path) -> None:
    plain = fit(tmp_path / "plain", max_steps=10, num_samples=80)
    callback = GuardCallback(say=lambda _line: None)
    found = fit(tmp_path / "found", max_steps=10, num_samples=80, callbacks=(callback,))
    assert found.log.logs == plain.log.logs
    rows = rows_of(found.out)
    assert [(r["step"], r["loss"], r["lr"]) for r in rows] == [
        (step, logs["loss"], logs["learning_rate"])
        for step, logs in plain.log.logs
        if "loss" in logs
    ]
    assert events_of(found.out / "trimtab", "end")[0].data["reason"] == "the Trainer has ended"


def test_a_fault_of_ours_leaves_the_trainer_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape: dict[str, Any] = {
        "max_steps": -1,
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 3,
        "num_samples": 56,
    }
    plain = fit(tmp_path / "plain", **shape)

    def broken(_trainer: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("trimtab.integrations.huggingface.trainer.TrainerProgress", broken)
    found = fit(tmp_path / "found", guard=guard_settings(), **shape)
    assert found.log.logs == plain.log.logs
    assert found.trainer.guard is None
    assert "the run is not guarded: RuntimeError: ours" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["garbage", "half", "none", "ours"])
def test_a_checkpoint_without_a_whole_companion_goes_on_with_the_right_data(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape: dict[str, Any] = {
        "num_samples": 3 * 8,
        "max_steps": 8,
        "save_strategy": "steps",
        "save_steps": 5,
        "train_sampling_strategy": "random",
    }
    plain = fit(tmp_path / "plain", **shape)
    fit(tmp_path, guard=guard_settings("observe"), **shape)
    companion = tmp_path / "checkpoint-5" / "trimtab.pt"
    if fault == "garbage":
        companion.write_bytes(b"garbage")
    elif fault == "half":
        companion.write_bytes(companion.read_bytes()[:3000])
    elif fault == "none":
        companion.unlink()
    else:
        monkeypatch.setattr(
            "trimtab.integrations.huggingface.trainer.TrainerProgress", lambda _trainer: 1 // 0
        )
    lines: list[str] = []
    settings = replace(guard_settings("observe"), say=lines.append)
    found = fit(tmp_path, guard=settings, resume=str(tmp_path / "checkpoint-5"), **shape)
    assert differences(plain.weights, found.weights) == []
    assert [x for _, x in sorted(found.log.by_step().items())] == [
        x for step, x in sorted(plain.log.by_step().items()) if step > 5
    ]
    assert not found.trainer.args.ignore_data_skip
    assert len([x for x in lines if "damaged" in x]) == (fault in ("garbage", "half"))
    assert ("not guarded" in capsys.readouterr().err) == (fault == "ours")


def test_what_is_no_mode_and_what_is_guarded_twice_is_refused(tmp_path: Path) -> None:
    for guard in (None, 3, {"mode": "act"}):
        with pytest.raises(ConfigError, match=r"guard=.*expected \"observe\""):
            GuardedTrainer(model=gpt2(), guard=guard)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="GuardCallback is redundant"):
        fit(tmp_path, guard=guard_settings(), callbacks=(GuardCallback(),), max_steps=2)


class Ends(TrainerCallback):
    """What callbacks and the end of a training tell; a training may be broken off at a step."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.num_gradients: set[int] = set()
        self.mean_loss = math.nan

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.num_gradients.add(sum(p.grad is not None for p in more["model"].parameters()))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.at:
            raise RuntimeError("cut")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.mean_loss = logs.get("train_loss", self.mean_loss)


@pytest.mark.slow
def test_the_mean_loss_after_a_resume_is_that_of_the_steps_since_and_gradients_are_seen(
    tmp_path: Path,
) -> None:
    shape: dict[str, Any] = {"num_samples": 80, "max_steps": 12, "logging_steps": 4}
    guard, ends = (
        guard_settings("observe", checkpoint_every_steps=6),
        (Ends(9), Ends(), Ends(), Ends()),
    )
    plain = fit(tmp_path / "plain", callbacks=(ends[3],), **{**shape, "logging_steps": 1})
    with pytest.raises(RuntimeError, match="cut"):
        fit(tmp_path / "g", guard=guard, callbacks=(ends[0],), **shape)
    fit(tmp_path / "g", guard=guard, callbacks=(ends[1],), **shape)
    losses = plain.log.by_step()
    assert ends[1].mean_loss == pytest.approx(sum(losses[s] for s in range(7, 13)) / 6, rel=1e-4)
    fit(tmp_path / "g", guard=guard, callbacks=(ends[2],), **shape)
    assert ends[2].mean_loss == 0  # nothing was left to do
    assert ends[0].num_gradients == ends[1].num_gradients == ends[3].num_gradients != {0}


@pytest.mark.slow
def test_a_pass_that_updates_nothing_saves_and_logs_nothing(tmp_path: Path) -> None:
    """NaN until the guard has gone back once: to step 0, where it looks at the data."""

    class Broken(GuardedTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss: Any = super().compute_loss(*args, **kwargs)
            guard = self.guard
            assert guard is not None
            gone_back = any("to_step" in str(a.get("values")) for a in guard.actions)
            bad = guard.phase == "calm" and 12 <= guard.step_number < 20 and not gone_back
            return loss * math.nan if bad else loss

    marks = Marks()
    guard = guard_settings(snapshot_every_steps=50, checkpoint_every_steps=50, max_wasted_share=4.0)
    found = fit(
        tmp_path,
        base=Broken,
        guard=guard,
        max_steps=60,
        num_samples=100,
        save_strategy="steps",
        save_steps=20,
        callbacks=(marks,),
    )
    assert 0 in marks.steps
    assert 0 not in {step for step, _ in found.log.logs}
    saved = {int(p.name.split("-")[1]) for p in tmp_path.glob("checkpoint-*") if p.is_dir()}
    # 20 and 40 lay in the trial; one that was due comes once it is kept
    assert 60 in saved
    assert saved.isdisjoint({20, 40})
