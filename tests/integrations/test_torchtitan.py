"""The guard in torchtitan's real Trainer, on the CPU.

Bitwise while it observes, faults recovered in act.
"""

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchtitan", reason="torchtitan is not installed")
pytest.importorskip("triton", reason="torchtitan 0.3 imports triton on any machine")

from tests.guard.tiny import differences, events_of  # noqa: E402
from tests.integrations.titan_lab import BAD_STEPS, BATCH, STEPS, Fit, config, fit  # noqa: E402
from trimtab.errors import ConfigError  # noqa: E402
from trimtab.integrations.torchtitan import GuardConfig, guarded  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Fit:
    return fit(tmp_path_factory.mktemp("twin"))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_observe_is_bitwise_the_trainer_without_it(tmp_path: Path, accumulate: int) -> None:
    plain = fit(tmp_path / "plain", steps=30, accumulate=accumulate)
    found = fit(tmp_path / "guarded", steps=30, accumulate=accumulate, guard="observe")
    assert [log[0] for log in found.logs] == list(range(1, 31))
    assert found.logs == plain.logs  # loss, norm, rate and tokens seen
    assert differences(found.weights, plain.weights) == []
    run = tmp_path / "guarded" / "trimtab"
    assert events_of(run, "fault") == []
    (end,) = events_of(run, "end")
    assert end.data["reason"] == "all steps done"


def test_bad_data_is_left_out(tmp_path: Path, twin: Fit) -> None:
    files = {"enable": True, "interval": 7, "keep_latest_k": 0}
    found = fit(tmp_path, fault="data", guard="act", checkpoint=files)
    guard = found.trainer.guard
    (action,) = guard.actions
    assert action["remedy"] == "roll-back+skip-data"
    ((first, last),) = guard.skipped_samples
    assert first <= (BAD_STEPS[0] - 1) * BATCH
    assert last >= BAD_STEPS[-1] * BATCH - 1
    assert found.validation / twin.validation < 1.01
    assert (found.trainer.step, guard.step_number) == (STEPS, STEPS)
    assert found.trainer.ntokens_seen == twin.trainer.ntokens_seen  # rolled back with the rest
    assert [log[0] for log in found.logs][-40:] == list(range(STEPS - 39, STEPS + 1))
    assert events_of(tmp_path / "trimtab", "fault") == []
    # torchtitan's own checkpoints of the steps given up lie aside
    to_step = action["values"]["to_step"]
    aside = {int(p.name.split("-")[1]) for p in (tmp_path / "aside").iterdir()}
    assert aside
    assert min(aside) > to_step


def test_a_wrong_rate_is_cut(tmp_path: Path, twin: Fit) -> None:
    unguarded = fit(tmp_path / "plain", fault="lr").validation
    found = fit(tmp_path / "guarded", fault="lr", guard="act")
    (action,) = found.trainer.guard.actions
    assert action["remedy"] == "roll-back+lower-lr"
    assert (unguarded - found.validation) / (unguarded - twin.validation) >= 0.9
    assert found.validation / twin.validation <= 1.03
    rates = [dict(log[3:])["lr/AdamW"] for log in found.logs]
    assert max(rates[-20:]) < 1e-2  # what is logged is the rate in force


def test_a_nan_gradient_is_left_out_where_the_trainer_alone_ends(tmp_path: Path, twin: Fit) -> None:
    with pytest.raises(RuntimeError, match="Loss is not finite"):
        fit(tmp_path / "plain", fault="nan")
    found = fit(tmp_path / "guarded", fault="nan", guard="act")
    assert [a["remedy"] for a in found.trainer.guard.actions] == ["skip-update"]
    assert found.validation / twin.validation < 1.01
    assert len(found.losses) == STEPS


def test_a_nan_loss_is_left_out_where_the_trainer_alone_ends(tmp_path: Path) -> None:
    def spoil(trainer: Any) -> None:
        own = trainer.loss_fn

        def loss_fn(*given: Any, **more: Any) -> Any:
            loss, *rest = own(*given, **more)
            return (loss * math.nan if trainer.step == 25 else loss, *rest)

        trainer.loss_fn = loss_fn

    for mode in ("", "observe"):
        with pytest.raises(RuntimeError, match="Loss is not finite"):
            fit(tmp_path / f"ends-{mode}", steps=40, before=spoil, guard=mode)
    found = fit(tmp_path / "guarded", steps=40, before=spoil, guard="act")
    assert [a["remedy"] for a in found.trainer.guard.actions] == ["skip-update"]
    assert math.isfinite(found.validation)
    assert found.trainer.step == 40


def test_what_cannot_be_guarded_is_refused_before_a_step(tmp_path: Path) -> None:
    def two_optimizers(trainer: Any) -> None:
        trainer.optimizers.optimizers = trainer.optimizers.optimizers * 2

    with pytest.raises(ConfigError, match="holds 2 optimizers"):
        fit(tmp_path, steps=3, guard="act", before=two_optimizers)


def test_a_fault_of_ours_before_the_first_step_leaves_the_trainer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = fit(tmp_path / "plain", steps=5)

    def broken(*_: Any, **__: Any) -> None:
        raise AttributeError("renamed")

    monkeypatch.setattr("trimtab.integrations.torchtitan.trainer.Stream", broken)
    found = fit(tmp_path / "guarded", steps=5, guard="act")
    assert found.trainer.guard is None
    assert found.logs == plain.logs
    assert "the run is not guarded" in capsys.readouterr().err


def test_a_registrys_config_is_taken_whole(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = config(tmp_path)
        ours = guarded(own, mode="act", run="runs/tiny")
    for f in dataclasses.fields(own):
        assert getattr(ours, f.name) is getattr(own, f.name)
    assert ours.guard == GuardConfig(mode="act", run="runs/tiny")
    assert ours.to_dict()["guard"] == {"mode": "act", "run": "runs/tiny", "policy": ""}
    with pytest.raises(
        ConfigError, match=r"put trimtab\.integrations\.torchtitan\.GuardMixin before"
    ):
        guarded(ours)
