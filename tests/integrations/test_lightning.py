"""The guard in Lightning's Trainer, in one process: the real package, a tiny GPT on real text."""

import csv
import json
import math
import re
import shutil
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
)
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader

from tests.guard.tiny import Sequences, events_of, rows_of
from tests.integrations.lightning_jobs import STREAMS, Forwards, Job, TinyModule
from tests.integrations.lightning_lab import (
    BAD_DATA,
    BAD_LR,
    SHORT,
    Fit,
    fit,
    guard_callback,
    make_text,
    nan_gradient,
    quiet,
    share_of_gap_closed,
    trainer,
)
from trimtab.checkpoints.sidecar import read_stamp, sidecar_of, verify_stamped
from trimtab.errors import ActError, ConfigError
from trimtab.integrations import packages
from trimtab.integrations.lightning import GuardCallback, WatchCallback
from trimtab.integrations.packages import Package
from trimtab.integrations.strategies import check_strategy
from trimtab.lab.text import Text

pytestmark = pytest.mark.torch


class Recorder(Callback):
    """Every batch that Lightning trained on: step, epoch, batch, loss."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, float]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        row = (trainer.global_step, trainer.current_epoch, batch_idx, float(outputs["loss"]))
        self.rows.append(row)


def run_tiny(
    *callbacks: Callback, steps: int = 30, seed: int = 3, **settings: Any
) -> tuple[TinyModule, Trainer, Recorder]:
    """Some epochs of 11 batches, dropout on, shuffled, a validation after each."""
    torch.manual_seed(seed)
    module, recorder = TinyModule(Job(steps)), Recorder()
    settings = {"max_steps": steps, "num_sanity_val_steps": 0, "gradient_clip_val": 1.0, **settings}
    with quiet():
        used = trainer(recorder, *callbacks, **settings)
        used.fit(module)
    return module, used, recorder


def same(a: LightningModule, b: LightningModule) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def fp16(scale: float = 2.0**16) -> MixedPrecision:
    """Lightning turns fp16 down on a CPU unless it is asked like this."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", scale, growth_interval=7))


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no clipping": {"gradient_clip_val": None},
    "clipped by value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "accumulated, 11 batches by 4": {"accumulate_grad_batches": 4, "steps": 8},
    "bf16": {"precision": "bf16-mixed"},
    "fp16": {"plugins": "fp16"},
    "part of each epoch": {"limit_train_batches": 7},
    "by epochs": {"max_epochs": 2, "max_steps": -1},
    "sanity check and validation within epochs": {
        "num_sanity_val_steps": 1,
        "val_check_interval": 4,
    },
}


def settings_of(name: str) -> dict[str, Any]:
    settings = dict(SETTINGS[name])
    if settings.get("plugins") == "fp16":
        settings["plugins"] = [fp16()]
    return settings


@pytest.mark.parametrize(
    "name", [n if n == "plain" else pytest.param(n, marks=pytest.mark.slow) for n in SETTINGS]
)
@pytest.mark.parametrize("mode", ["observe", "act"])
def test_a_healthy_run_is_bit_for_bit_the_one_without_a_guard(
    tmp_path: Path, name: str, mode: str
) -> None:
    plain, its_trainer, rows = run_tiny(**settings_of(name))
    callback = guard_callback(tmp_path / "run", mode)
    guarded, used, guarded_rows = run_tiny(callback, **settings_of(name))
    assert guarded_rows.rows == rows.rows
    assert len(rows.rows) >= 20
    assert same(plain, guarded)
    assert (used.global_step, used.current_epoch) == (
        its_trainer.global_step,
        its_trainer.current_epoch,
    )
    assert callback.guard is not None
    assert callback.guard.step_number == used.global_step
    assert events_of(tmp_path / "run", "fault") == []
    assert [e.data["reason"] for e in events_of(tmp_path / "run", "end")] == ["all steps done"]


def test_the_logged_loss_of_a_step_is_the_mean_of_its_batches(tmp_path: Path) -> None:
    _, _, rows = run_tiny(
        guard_callback(tmp_path / "run", "observe"), steps=4, accumulate_grad_batches=4
    )
    losses = [4 * loss for *_, loss in rows.rows]  # Lightning divides each by the four
    parts = [losses[a:b] for a, b in ((0, 4), (4, 8), (8, 11), (11, 15))]  # 11 batches an epoch
    expected = [sum(part) / len(part) for part in parts]
    assert [r["loss"] for r in rows_of(tmp_path / "run")] == pytest.approx(expected, rel=1e-6)


# -- recovery ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text() -> Text:
    return make_text()


@pytest.fixture(scope="module")
def sound(text: Text) -> Fit:
    return fit(SHORT, text)


def assert_whole(o: Fit, callback: GuardCallback, run: Path) -> None:
    assert callback.guard is not None
    assert callback.guard.step_number == o.trainer.global_step == SHORT.steps
    progress = o.trainer.fit_loop.epoch_loop.batch_progress.total
    assert progress.ready == progress.completed == SHORT.steps
    assert events_of(run, "fault") == []


@pytest.mark.slow
def test_a_window_of_bad_data_is_left_out(tmp_path: Path, text: Text, sound: Fit) -> None:
    callback = guard_callback(tmp_path / "run")
    o = fit(BAD_DATA, text, callback)
    assert_whole(o, callback, tmp_path / "run")
    assert callback.guard is not None
    assert [a["remedy"] for a in callback.guard.actions] == ["roll-back+skip-data"]
    assert callback.guard.skipped_samples == (
        (1112, 1207),
    )  # the 12 batches from step 140, no other
    assert o.validation == pytest.approx(sound.validation, rel=0.01)
    assert max(step for step, _ in o.module.losses) == SHORT.steps
    assert 0 < callback.guard.wasted_steps < 0.25


@pytest.mark.slow
def test_a_wrong_rate_is_cut(tmp_path: Path, text: Text, sound: Fit) -> None:
    unguarded = fit(BAD_LR, text).validation
    callback = guard_callback(tmp_path / "run")
    o = fit(BAD_LR, text, callback)
    assert_whole(o, callback, tmp_path / "run")
    assert callback.guard is not None
    assert [a["remedy"] for a in callback.guard.actions] == ["roll-back+lower-lr"]
    assert callback.guard.lr_factor == pytest.approx(1 / 300, rel=0.2)
    assert share_of_gap_closed(unguarded, o.validation, sound.validation) >= 0.9


@pytest.mark.slow
def test_an_update_with_a_nan_gradient_is_left_out(tmp_path: Path, text: Text, sound: Fit) -> None:
    assert math.isnan(fit(SHORT, text, spoil=nan_gradient).validation)
    callback = guard_callback(tmp_path / "run")
    o = fit(SHORT, text, callback, spoil=nan_gradient)
    assert_whole(o, callback, tmp_path / "run")
    assert callback.guard is not None
    assert [a["remedy"] for a in callback.guard.actions] == ["skip-update"]
    assert o.validation == pytest.approx(sound.validation, rel=0.01)


@pytest.mark.slow
def test_a_rollback_over_the_end_of_an_epoch_takes_lightnings_counters_back(
    tmp_path: Path, text: Text
) -> None:
    """Epochs of 48 batches: the fault is seen at step 149, the rollback is to 130, in epoch 2."""
    own = ModelCheckpoint(
        tmp_path / "own", filename="{step}-{train_loss:.3f}", every_n_train_steps=48, save_top_k=-1
    )
    callback = guard_callback(tmp_path / "run")
    o = fit(BAD_LR, text, callback, own, limit_train_batches=48, enable_checkpointing=True)
    assert_whole(o, callback, tmp_path / "run")
    assert callback.guard is not None
    assert [a["remedy"] for a in callback.guard.actions] == ["roll-back+lower-lr"]
    assert o.trainer.current_epoch == 5
    assert o.trainer.fit_loop.epoch_progress.total.completed == 5
    steps = [step for step, _ in o.module.losses]
    jumps = [(a, b) for a, b in pairwise(steps) if b != a + 1]
    assert [b for _, b in jumps] == [130]  # to the trial that puts the rate back, which holds
    grades = [read_stamp(p) for p in (tmp_path / "own").glob("*.ckpt")]
    assert sorted((g.step, g.grade) for g in grades if g is not None) == [
        (48, "healthy"),
        (96, "healthy"),
        (144, "healthy"),
        (144, "poisoned"),  # saved after the onset; the healthy one on the trial that was kept
        (192, "healthy"),
        (240, "healthy"),
    ]
    assert [verify_stamped(p) for p in (tmp_path / "own").glob("*.ckpt")] == [""] * len(grades)


# -- resuming ---------------------------------------------------------------------------------


class OtherSetting(TinyModule):
    """Launched with another setting than the run's."""

    setting: tuple[str, Any]

    def configure_optimizers(self) -> Any:
        made = super().configure_optimizers()
        for group in made["optimizer"].param_groups:
            name, group[name] = self.setting
        return made


@pytest.mark.covers("S83", "S211")
@pytest.mark.parametrize("ours", [True, False], ids=["our checkpoint", "Lightning's checkpoint"])
def test_settings_that_a_resume_would_undo_are_an_error_that_names_them(
    tmp_path: Path, ours: bool
) -> None:
    own = ModelCheckpoint(tmp_path / "own", filename="{step}", every_n_train_steps=5, save_top_k=-1)
    run_tiny(guard_callback(tmp_path / "run"), own, steps=10, enable_checkpointing=True)
    path = None if ours else str(tmp_path / "own" / "step=5.ckpt")
    others = {"betas": (0.5, 0.9), "lr": 0.5, "eps": 1e-3, "weight_decay": 0.5}
    for name, value in others.items():
        module = OtherSetting(Job(20))
        module.setting = (name, value)
        now = rf"launched with {name}=.*, now with {re.escape(repr(value))}"
        with quiet():
            used = trainer(guard_callback(tmp_path / "run"), max_steps=20, gradient_clip_val=1.0)
            with pytest.raises(ActError, match=now):
                used.fit(module, ckpt_path=path)


class SetScale(Callback):
    """Asks the guard for another loss scale, where the run begins."""

    def __init__(self, guarded: GuardCallback) -> None:
        self.guarded = guarded

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert self.guarded.guard is not None
        self.guarded.guard.set_loss_scale(64.0, why="start low")


@pytest.mark.covers("S127", "S128")
def test_the_scale_of_the_loss_goes_through_a_resume_and_is_reset_on_request_alone(
    tmp_path: Path,
) -> None:
    run_tiny(guard_callback(tmp_path / "whole"), steps=24, plugins=[fp16(1024.0)])
    run_tiny(guard_callback(tmp_path / "run"), steps=12, plugins=[fp16(1024.0)])
    shutil.copytree(tmp_path / "run", tmp_path / "reset")
    _, _, rows = run_tiny(guard_callback(tmp_path / "run"), steps=24, plugins=[fp16(1024.0)])
    assert [step for step, *_ in rows.rows] == list(range(13, 25))
    scales = [row["loss_scale"] for row in rows_of(tmp_path / "whole")]
    assert [row["loss_scale"] for row in rows_of(tmp_path / "run", "1.1")] == scales[12:]
    assert scales[12] == 2 * scales[0]  # it has moved since the start
    callback = guard_callback(tmp_path / "reset")
    run_tiny(callback, SetScale(callback), steps=14, plugins=[fp16(1024.0)])
    assert rows_of(tmp_path / "reset", "1.1")[0]["loss_scale"] == 64.0
    (action,) = events_of(tmp_path / "reset", "action")
    assert action.data["values"]["before"] == scales[12]


# -- Lightning's own business -----------------------------------------------------------------


def test_a_checkpoint_that_lightning_removes_takes_its_manifest_along(tmp_path: Path) -> None:
    own = ModelCheckpoint(
        tmp_path / "own", monitor="train_loss", every_n_train_steps=4, save_top_k=1, save_last=True
    )
    run_tiny(guard_callback(tmp_path / "run"), own, steps=24, enable_checkpointing=True)
    left = sorted(p for p in (tmp_path / "own").iterdir() if p.suffix == ".ckpt")
    assert len(left) == 2  # the best and the last
    assert sorted((tmp_path / "own").glob("*.json")) == [sidecar_of(p) for p in left]
    assert [verify_stamped(p) for p in left] == ["", ""]


def test_a_run_that_lightning_stops_early_is_ended_and_said_so(tmp_path: Path) -> None:
    stop = EarlyStopping("val_loss", patience=1, min_delta=1e9)
    _, used, _ = run_tiny(guard_callback(tmp_path / "run"), stop, steps=60)
    assert used.global_step == 22
    (end,) = events_of(tmp_path / "run", "end")
    assert (end.data["final_step"], end.data["reason"]) == (22, "the trainer stopped")
    assert (tmp_path / "run" / "checkpoints" / "step-00000022" / "manifest.json").exists()


def test_lightnings_loop_is_given_back_as_it_was(tmp_path: Path) -> None:
    before = trainer()
    fresh = {id(o): set(vars(o)) for o in (before.fit_loop, before.strategy, before)}
    _, used, _ = run_tiny(guard_callback(tmp_path / "run"), steps=3)
    for ours, owner in zip(fresh.values(), (used.fit_loop, used.strategy, used), strict=True):
        assert "run" not in vars(owner)
        assert "optimizer_step" not in vars(owner)
        assert "save_checkpoint" not in vars(owner)
        assert ours <= set(vars(owner))
    with quiet():
        used.validate(used.lightning_module, verbose=False)


def test_hooks_see_unscaled_gradients_before_they_are_clipped(tmp_path: Path) -> None:
    class Norms(Callback):
        def __init__(self) -> None:
            self.norms: list[float] = []

        def on_before_optimizer_step(
            self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
        ) -> None:
            norms = [p.grad.norm() for p in pl_module.parameters() if p.grad is not None]
            self.norms.append(float(torch.stack(norms).norm()))

    seen, plain = Norms(), Norms()
    run_tiny(plain, steps=5, gradient_clip_val=0.01, plugins=[fp16()])
    run_tiny(
        seen, guard_callback(tmp_path / "run"), steps=5, gradient_clip_val=0.01, plugins=[fp16()]
    )
    assert seen.norms == plain.norms
    logged = [row["grad_norm"] for row in rows_of(tmp_path / "run")]
    assert logged == pytest.approx(seen.norms, rel=1e-5)
    assert min(logged) > 0.01


# -- loggers ----------------------------------------------------------------------------------


def nan_from_step_6(module: TinyModule, step: int, _rank: int) -> None:
    if step >= 6:
        first = next(module.parameters())
        assert first.grad is not None
        first.grad[0] = math.nan


def test_the_trainers_own_loggers_get_signals_and_incidents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    theirs = MLFlowLogger("x", tracking_uri=(tmp_path / "ml").as_uri())
    loggers: list[Any] = [
        TensorBoardLogger(tmp_path, "tb"),
        CSVLogger(tmp_path, "csv"),
        theirs,
    ]
    module = TinyModule(Job(12, spoil=nan_from_step_6))
    callback = guard_callback(tmp_path / "run", "observe")
    with quiet():
        trainer(callback, max_steps=12, logger=loggers, log_every_n_steps=2).fit(module)
    expected = [float(row["loss"]) for row in rows_of(tmp_path / "run")][1::2]
    assert any(map(math.isnan, expected))

    raw = b"".join(p.read_bytes() for p in (tmp_path / "tb").rglob("events*"))
    assert b"trimtab/chronicle" in raw
    assert b"non-finite" in raw

    with next((tmp_path / "csv").rglob("metrics.csv")).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["trimtab/loss"]) for row in rows if row["trimtab/loss"]]
    assert losses == pytest.approx(expected, rel=1e-6, nan_ok=True)
    opened = [e for e in events_of(tmp_path / "run", "incident") if e.data["state"] == "open"]
    counted = [float(row["trimtab/incidents"]) for row in rows if row["trimtab/incidents"]]
    assert max(counted) == len(opened) > 0

    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "ml").as_uri())
    history = [m.value for m in client.get_metric_history(theirs.run_id, "trimtab/loss")]
    assert history == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert client.get_run(theirs.run_id).data.tags["trimtab.last"]
    assert events_of(tmp_path / "run", "fault") == []


# -- streams ----------------------------------------------------------------------------------


def run_stream(stream: str, *callbacks: Callback, **settings: Any) -> tuple[TinyModule, Recorder]:
    """Fewer steps than the stream has batches."""
    torch.manual_seed(3)
    module, recorder = TinyModule(Job(20, stream=stream, num_samples=4 * 40)), Recorder()
    with quiet():
        used = trainer(
            recorder,
            *callbacks,
            max_steps=20,
            num_sanity_val_steps=0,
            gradient_clip_val=1.0,
            **settings,
        )
        used.fit(module)
    return module, recorder


@pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")  # torchdata's own
@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_comes_in_its_own_order(tmp_path: Path, stream: str) -> None:
    if stream != "IterableDataset":
        pytest.importorskip(stream)
    plain, rows = run_stream(stream)
    guarded, guarded_rows = run_stream(stream, guard_callback(tmp_path / "run", "observe"))
    assert guarded_rows.rows == rows.rows
    assert len(rows.rows) == 20
    assert same(plain, guarded)
    assert events_of(tmp_path / "run", "fault") == []


@pytest.mark.slow
def test_bad_data_of_a_stream_is_left_out(tmp_path: Path, text: Text, sound: Fit) -> None:
    callback = guard_callback(tmp_path / "run")
    o = fit(BAD_DATA, text, callback, stream=True)
    assert_whole(o, callback, tmp_path / "run")
    assert callback.guard is not None
    assert [a["remedy"] for a in callback.guard.actions] == ["roll-back+skip-data"]
    assert callback.guard.skipped_samples == ((1112, 1207),)
    assert o.validation == pytest.approx(sound.validation, rel=0.01)


# -- what is refused --------------------------------------------------------------------------


class Manual(TinyModule):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.automatic_optimization = False


def _refused(tmp_path: Path, module: LightningModule | None = None, **settings: Any) -> str:
    fit_settings = {"train_dataloaders": settings.pop("data")} if "data" in settings else {}
    callbacks = settings.pop("callbacks", [])
    with quiet():
        settings = {"max_steps": 3, **settings}
        used = trainer(guard_callback(tmp_path / "run"), *callbacks, **settings)
        with pytest.raises(ConfigError) as caught:
            used.fit(module or TinyModule(Job(3)), **fit_settings)
    return str(caught.value)


class NoOptimizer(TinyModule):
    def configure_optimizers(self) -> None:
        """Nothing is trained."""


def test_what_cannot_be_guarded_is_refused_with_what_to_do(tmp_path: Path) -> None:
    manual = _refused(tmp_path, Manual(Job(3)))
    assert "manual optimization" in manual
    assert "FabricGuard" in manual
    stream = DataLoader(Forwards(Sequences(40)), batch_size=4)
    assert "set max_steps" in _refused(tmp_path, data=stream, max_steps=-1)
    assert "leave max_epochs out" in _refused(tmp_path, data=stream, max_epochs=2)
    assert "set max_steps" in _refused(tmp_path, data=stream, limit_train_batches=5)
    two = [DataLoader(Sequences(8), batch_size=4), DataLoader(Sequences(8), batch_size=4)]
    assert "one DataLoader" in _refused(tmp_path, data=two)
    assert "set it to 0" in _refused(tmp_path, reload_dataloaders_every_n_epochs=1)
    assert "limit_train_batches" in _refused(tmp_path, overfit_batches=2)
    assert "NoOptimizer.configure_optimizers" in _refused(tmp_path, NoOptimizer(Job(3)))
    changes = GradientAccumulationScheduler({0: 1, 1: 2})
    assert "accumulate_grad_batches" in _refused(tmp_path, callbacks=[changes])
    assert not (tmp_path / "run").exists()


def test_a_strategy_that_was_not_tried_is_refused() -> None:
    class DeepSpeedStrategy:
        pass

    class ModelParallelStrategy:
        _tensor_parallel_size = 2

    with pytest.raises(ConfigError, match=r"DeepSpeedStrategy.*ModelParallelStrategy"):
        check_strategy(DeepSpeedStrategy(), "GuardCallback")
    with pytest.raises(ConfigError, match=r"tensor_parallel_size=2"):
        check_strategy(ModelParallelStrategy(), "GuardCallback")


@pytest.mark.usefixtures("unwarned")
def test_another_version_of_lightning_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Package(name="lightning", serves="a test", lowest=(1, 0), highest=(1, 1))
    monkeypatch.setattr(packages, "PACKAGES", (theirs,))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("a", "b"):
            _, used, _ = run_tiny(guard_callback(tmp_path / name), steps=3)
            assert used.global_step == 3
    assert len([w for w in caught if "newer than tested" in str(w.message)]) == 1


def test_a_loop_that_is_built_differently_runs_unguarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _, rows = run_tiny(steps=5)
    name = "_block_parallel_sync_behavior"  # taken last: what was replaced before is put back
    monkeypatch.delattr(f"lightning.pytorch.loops.utilities.{name}")
    with pytest.warns(UserWarning, match=f"{name}.*not guarded"):
        module, _, guarded_rows = run_tiny(GuardCallback(tmp_path / "run"), steps=5)
    assert guarded_rows.rows == rows.rows
    assert same(plain, module)


def test_a_fault_of_ours_does_not_stop_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = guard_callback(tmp_path / "run", snapshot_every_steps=4)
    plain, _, _ = run_tiny(steps=12)

    class Breaks(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            monkeypatch.setattr(callback.counters, "state_dict", lambda: 1 // 0)

    module, used, _ = run_tiny(callback, Breaks(), steps=12)
    assert used.global_step == 12
    assert same(plain, module)
    faults = [e.data["error"] for e in events_of(tmp_path / "run", "fault")]
    assert faults
    assert "ZeroDivisionError" in faults[0]
    assert "a fault of its own" in capsys.readouterr().err


def test_watch_callback_records_each_step_and_changes_nothing(tmp_path: Path) -> None:
    plain, _, rows = run_tiny(steps=8)
    watch = WatchCallback(tmp_path / "run", mode="observe", say=lambda _line: None)
    module, _, watched = run_tiny(watch, steps=8)
    assert watched.rows == rows.rows
    assert same(plain, module)
    kept = rows_of(tmp_path / "run")
    assert [row["step"] for row in kept] == list(range(1, 9))
    assert all(row["grad_norm"] > 0 and row["lr"] > 0 for row in kept)
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text("utf-8"))
    assert (verdict["state"], verdict["step"]) == ("done", 8)


def test_watch_callback_ends_a_run_that_does_not_recover(tmp_path: Path) -> None:
    class Spoils(Callback):
        def on_train_batch_start(self, trainer: Trainer, module: Any, *_: Any) -> None:
            if trainer.global_step == 30:
                for p in module.parameters():
                    p.data.fill_(math.nan)

    watch = WatchCallback(tmp_path / "run", mode="act", say=lambda _line: None)
    _, used, _ = run_tiny(watch, Spoils(), steps=120)
    assert 30 < used.global_step < 120
    assert "loss" in watch.stopped
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text("utf-8"))
    assert verdict["state"] == "given-up"
