"""The guard in a Lightning Fabric loop: the real package, a tiny GPT on real text."""

from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("lightning")

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision

from tests.guard.small_lab import SOUND
from tests.guard.tiny import DEVICE, events_of
from tests.integrations.lightning_lab import (
    BAD_DATA,
    BAD_LR,
    SHORT,
    make_text,
    quiet,
    share_of_gap_closed,
    validation_loss,
)
from trimtab.errors import ConfigError
from trimtab.integrations.fabric import FabricGuard
from trimtab.lab.model import next_token_loss
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import Text
from trimtab.lab.train import build
from trimtab.plan.policy import Mode, Policy

pytestmark = pytest.mark.torch

POLICY: dict[str, Any] = {
    "checkpoint_in_background": False,
    "checkpoint_every_steps": 60,
    "snapshot_every_steps": 10,
}


def run(
    scenario: Scenario,
    text: Text,
    folder: Path | None,
    *,
    mode: Mode = "act",
    nan_at: int | None = None,
    until: int | None = None,
    **settings: Any,
) -> tuple[list[float], float, FabricGuard | None]:
    """Train with a guard, or without where there is no folder.

    Return losses and validation loss.
    """
    with quiet():
        fabric = Fabric(accelerator=DEVICE, devices=1, **settings)
        parts = build(scenario, 0, text)
        model, optimizer = fabric.setup(parts.model, parts.optimizer)
        loader = fabric.setup_dataloaders(parts.loader)
    losses: list[float] = []
    guard = None
    if folder is None:
        for _, batch in zip(range(scenario.steps), loader, strict=False):
            loss = next_token_loss(model, batch["tokens"])
            fabric.backward(loss)
            _spoil(parts.model, nan_at == len(losses) + 1)
            fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
            optimizer.step()
            parts.scheduler.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    else:
        guard = FabricGuard(
            fabric,
            model,
            optimizer,
            data=loader,
            scheduler=parts.scheduler,
            clip=1.0,
            steps=scenario.steps,
            run=folder,
            mode=mode,
            policy=Policy(**POLICY),
            say=lambda _line: None,
        )
        for batch in guard:
            loss = next_token_loss(model, batch["tokens"])
            guard.backward(loss)
            _spoil(parts.model, nan_at == guard.step_number + 1 and guard.phase == "calm")
            guard.step()
            losses.append(float(loss.detach()))
            if guard.step_number == until:
                break
        if until is not None:
            guard.close()
    return losses, validation_loss(parts, text), guard


def _spoil(model: torch.nn.Module, now: bool) -> None:
    if now:
        first = next(model.parameters())
        assert first.grad is not None
        first.grad[0] = torch.nan


def precision(name: str) -> dict[str, Any]:
    if name == "fp16":
        scaler = torch.amp.GradScaler("cpu", growth_interval=7)
        return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}
    return {"precision": name}


@pytest.fixture(scope="module")
def text() -> Text:
    return make_text()


@pytest.fixture(scope="module")
def sound(text: Text) -> float:
    return run(SHORT, text, None)[1]


@pytest.mark.parametrize("name", ["32-true", "bf16-mixed", "fp16"])
@pytest.mark.parametrize("mode", ["observe", "act"])
def test_a_healthy_loop_is_bit_for_bit_the_one_without_a_guard(
    tmp_path: Path, text: Text, name: str, mode: Mode
) -> None:
    short = Scenario(**{**vars(SOUND), "steps": 24})
    plain, validation, _ = run(short, text, None, **precision(name))
    guarded, its_validation, _ = run(short, text, tmp_path / "run", mode=mode, **precision(name))
    assert guarded == plain
    assert len(plain) == 24
    assert its_validation == validation
    assert events_of(tmp_path / "run", "fault") == []


@pytest.mark.slow
def test_a_loop_that_is_left_goes_on_bit_for_bit(tmp_path: Path, text: Text) -> None:
    short = Scenario(**{**vars(SOUND), "steps": 80})
    plain, validation, _ = run(short, text, None)
    run(short, text, tmp_path / "run", until=70)  # saved at 60, and not at its end
    rest, its_validation, _ = run(short, text, tmp_path / "run")
    assert rest == plain[60:]
    assert its_validation == validation


@pytest.mark.slow
def test_a_window_of_bad_data_is_left_out(tmp_path: Path, text: Text, sound: float) -> None:
    _, validation, guard = run(BAD_DATA, text, tmp_path / "run")
    assert guard is not None
    assert [a["remedy"] for a in guard.actions] == ["roll-back+skip-data"]
    assert guard.skipped_samples == ((1112, 1207),)
    assert validation == pytest.approx(sound, rel=0.01)


@pytest.mark.slow
def test_a_wrong_rate_is_cut(tmp_path: Path, text: Text, sound: float) -> None:
    unguarded = run(BAD_LR, text, None)[1]
    _, validation, guard = run(BAD_LR, text, tmp_path / "run")
    assert guard is not None
    assert [a["remedy"] for a in guard.actions] == ["roll-back+lower-lr"]
    assert share_of_gap_closed(unguarded, validation, sound) >= 0.9


@pytest.mark.slow
def test_an_update_with_a_nan_gradient_is_left_out(
    tmp_path: Path, text: Text, sound: float
) -> None:
    unguarded = run(SHORT, text, None, nan_at=150)[1]
    assert unguarded != unguarded
    _, validation, guard = run(SHORT, text, tmp_path / "run", nan_at=150)
    assert guard is not None
    assert [a["remedy"] for a in guard.actions] == ["skip-update"]
    assert validation == pytest.approx(sound, rel=0.01)


def test_what_was_not_set_up_by_fabric_is_refused(tmp_path: Path, text: Text) -> None:
    fabric = Fabric(accelerator=DEVICE, devices=1)
    parts = build(SOUND, 0, text)
    with pytest.raises(ConfigError, match=r"as fabric\.setup"):
        FabricGuard(fabric, parts.model, parts.optimizer, data=parts.loader, run=tmp_path / "run")
    model, optimizer = fabric.setup(parts.model, parts.optimizer)
    with pytest.raises(ConfigError, match="exactly one optimizer"):
        FabricGuard(
            fabric,
            model,
            cast("Any", [optimizer, optimizer]),
            data=parts.loader,
            run=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()
