"""Settings at which nothing trains, whatever the model: init, clip, smoothing, warm-up, Adam's rate."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.config_rules.settings_by_hand import make_settings
from trimtab.config_rules.lint import ConfigFinding, lint, satisfied
from trimtab.config_rules.terminal import render_config
from trimtab.configs import read_config
from trimtab.configs.settings import Settings


def judged(settings: Settings) -> dict[str, ConfigFinding]:
    return {f.rule: f for f in lint(settings)}


def read(path: Path, text: str | dict[str, object]) -> Settings:
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    (settings,) = read_config(path)
    return settings


@pytest.mark.parametrize(
    ("hidden", "std", "severity"),
    [
        (768, 0.02, None),
        (768, 0.1, None),
        (768, 0.2, "warning"),
        (768, 2.0, "error"),
        (2304, 0.1, None),  # MiniCPM 2.4B
        (4096, 2.0, "error"),
    ],
)
def test_an_absurd_init_is_told_at_any_width(
    tmp_path: Path, hidden: int, std: float, severity: str | None
) -> None:
    config = {"model_type": "gpt2", "n_embd": hidden, "n_layer": 12, "n_head": 12}
    said = judged(read(tmp_path / "c.json", {**config, "initializer_range": std})).get("L01")
    assert (said and said.severity) == severity


def test_a_wide_init_with_a_scaled_embedding_stays_a_remark() -> None:
    """Granite 3.0 8B: width 4096, 0.1, embeddings × 12."""
    run = make_settings(hidden=4096, layers=40, init_std=0.1, embedding_scale=12.0)
    assert judged(run)["L01"].severity == "info"


@pytest.mark.parametrize("clip", [1000.0, 1e9])
def test_a_clip_that_clips_nothing_counts_as_off(clip: float) -> None:
    settings = make_settings(lr=3e-4, hidden=2048, layers=24, clip=clip)
    off = judged(make_settings(lr=3e-4, hidden=2048, layers=24, clip=0))["L13"]
    said = judged(settings)["L13"]
    assert said.severity == off.severity
    assert "clips nothing" in said.message


_TRAINER: dict[str, object] = {
    "learning_rate": 2e-5,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 8,
}


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({"eval_strategy": "no", "save_strategy": "steps"}, True),
        ({"evaluation_strategy": "epoch", "save_strategy": "steps"}, True),
        ({"eval_strategy": "no"}, True),
        ({"eval_strategy": "steps", "save_strategy": "steps"}, False),
        ({"eval_strategy": "epoch", "save_strategy": "best"}, False),
        ({"save_strategy": "steps"}, False),  # the other half may stand on the command line
        ({"eval_strategy": "no", "load_best_model_at_end": False}, False),
    ],
)
def test_the_best_model_needs_evaluation_and_saving_in_step(
    tmp_path: Path, more: dict[str, object], refused: bool
) -> None:
    config = {**_TRAINER, "load_best_model_at_end": True, **more}
    said = judged(read(tmp_path / "c.json", config)).get("KEY")
    assert (said is not None and said.severity == "error") is refused


def test_no_under_yaml_is_no_strategy(tmp_path: Path) -> None:
    text = (
        "learning_rate: 2.0e-5\nnum_train_epochs: 3\nper_device_train_batch_size: 8\n"
        "load_best_model_at_end: true\neval_strategy: no\nsave_strategy: steps\n"
    )
    assert judged(read(tmp_path / "c.yaml", text))["KEY"].severity == "error"


@pytest.mark.parametrize(
    ("smoothing", "bad"), [(1.5, True), (-0.1, True), (0.1, False), (0, False)]
)
def test_label_smoothing_is_a_share(tmp_path: Path, smoothing: float, bad: bool) -> None:
    config = {**_TRAINER, "label_smoothing_factor": smoothing}
    assert ("KEY" in judged(read(tmp_path / "c.json", config))) is bad


@pytest.mark.parametrize(("epochs", "severity"), [(60, "error"), (50, "error"), (5, None)])
def test_a_warm_up_in_epochs_is_held_against_a_run_in_epochs(
    tmp_path: Path, epochs: int, severity: str | None
) -> None:
    text = f'[model]\narch = "unet"\n[train]\nlr = 1e-3\nepochs = 50\nwarmup_epochs = {epochs}\n'
    said = judged(read(tmp_path / "c.toml", text)).get("SCHED")
    assert (said and said.severity) == severity
    if said:
        assert "epochs" in said.message


@pytest.mark.parametrize(
    ("optimizer", "lr", "fires"),
    [("adam", 0.3, True), ("adamw", 0.1, True), ("adam", 0.01, False), ("sgd", 0.3, False)],
)
def test_adam_at_a_tenth_is_told_of_any_model(
    tmp_path: Path, optimizer: str, lr: float, fires: bool
) -> None:
    text = f'[model]\narch = "unet"\n[train]\nlr = {lr}\noptimizer = "{optimizer}"\nepochs = 50\n'
    said = judged(read(tmp_path / "c.toml", text)).get("ADAM-RATE")
    assert (said is not None) is fires
    assert said is None or said.severity == "warning"


def test_a_clip_above_all_norms_is_not_satisfied(tmp_path: Path) -> None:
    settings = read(tmp_path / "c.json", {**_TRAINER, "max_grad_norm": 1e9})
    assert "L13" not in {r.id for r in satisfied(settings, lint(settings))}


def test_the_headline_names_both_formats_where_both_are_on(tmp_path: Path) -> None:
    settings = read(tmp_path / "c.json", {**_TRAINER, "fp16": True, "bf16": True})
    head = render_config(settings, lint(settings), fine=())
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(head)
    assert "hf-trainer · bf16 and fp16 ·" in console.export_text().replace("\n", " ·")
