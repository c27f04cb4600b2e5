"""A run that can only produce NaN ends with exit code 3, and says which module it is."""

import contextlib
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.guard.tiny import events_of, guard_of, make
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


class Sick(nn.Module):
    """Returns NaN for ever from a call on."""

    def __init__(self) -> None:
        super().__init__()
        self.on = False

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.nan if self.on else x


@pytest.mark.slow
def test_nan_for_ever_names_the_module_and_exits_with_3(tmp_path: Path) -> None:
    run = tmp_path / "run"
    s = make(num_samples=1200)
    sick = Sick()
    s.model.norm = nn.Sequential(s.model.norm, sick)  # type: ignore[assignment]
    said: list[str] = []
    policy = Policy(
        trial_steps=12,
        patience_steps=2,
        verify_steps=12,
        snapshot_every_steps=10,
        checkpoint_every_steps=20,
        checkpoint_in_background=False,
        max_wasted_share=4.0,
    )
    guard = guard_of(s, run, mode="act", steps=300, policy=policy, say=said.append)

    def loop() -> None:
        for batch in guard:
            sick.on = sick.on or guard.step_number >= 50
            guard.backward(s.loss(batch))
            guard.step()

    with pytest.raises(SystemExit) as stopped:
        loop()
    assert stopped.value.code == 3
    told = next(line for line in said if "nothing is left to try" in line)
    assert "module 'norm.1' (Sick) returned NaN or Inf on rank 0 (host " in told
    verdict = json.loads((run / "verdict.json").read_text())
    assert (verdict["state"], verdict["verdict"]) == ("given-up", "ended-badly")
    assert "norm.1" in verdict["reason"]
    assert 0 < verdict["resume_step"] <= 50
    assert all(torch.isfinite(p).all() for p in s.model.parameters())
    assert [e for e in events_of(run, "decision") if e.data["what"] == "stop the run"]
    assert events_of(run, "end")[0].data["reason"] == "given up"
    assert not [e for e in events_of(run, "outcome") if e.data.get("trial")]  # no rate can help
    disabled = next(line for line in said if "automatic recovery disabled" in line)
    assert (
        "the forward pass gives NaN or Inf with every batch under the state of step 40" in disabled
    )
    assert disabled.endswith("; the run is stopped")


@pytest.mark.slow
def test_data_that_gives_nan_for_ever_is_no_sick_forward_pass(tmp_path: Path) -> None:
    s = make(num_samples=1200)
    policy = Policy(
        trial_steps=12,
        patience_steps=2,
        snapshot_every_steps=10,
        checkpoint_in_background=False,
        max_wasted_share=4.0,
    )
    said: list[str] = []
    s.loader.dataset.tokens[200:] = 0  # type: ignore[attr-defined]
    guard = guard_of(s, tmp_path / "run", mode="act", steps=200, policy=policy, say=said.append)

    def loop() -> None:
        for batch in guard:
            guard.backward(s.loss(batch) * (1.0 if batch.any() else torch.nan))
            guard.step()

    with contextlib.suppress(SystemExit):
        loop()
    assert not [line for line in said if "the forward pass gives NaN" in line]


def test_observe_never_ends_a_run(tmp_path: Path) -> None:
    s = make(num_samples=400)
    guard = guard_of(s, tmp_path / "run", mode="observe", steps=80)
    for batch in guard:
        factor = torch.nan if guard.step_number >= 20 else 1.0
        guard.backward(s.loss(batch) * factor)
        guard.step()
    assert guard.step_number == 80
