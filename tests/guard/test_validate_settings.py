"""What a user's validation function leaves changed is put back, and said once."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.guard.tiny import Setup, differences, events_of, guard_of, make, state_of, train_guarded
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


def run(tmp_path: Path, change: Callable[[Setup], object] | None) -> tuple[object, list[str]]:
    """Return the state at the end of a run whose validation changes something, and what is said."""
    s = make()
    said: list[str] = []

    def validate() -> float:
        if change is not None:
            change(s)
        return 1.0

    policy = Policy(checkpoint_in_background=False, snapshot_every_steps=5, yardstick_share=1.0)
    guard = guard_of(
        s, tmp_path, mode="act", steps=30, policy=policy, say=said.append, validate=validate
    )
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    try:
        train_guarded(s, guard)
        assert torch.get_default_dtype() == dtype
        assert torch.get_num_threads() == threads
        assert torch.is_grad_enabled()
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch.is_autocast_enabled("cpu")
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(False)
        torch.set_autocast_enabled("cpu", False)
        torch.set_num_threads(threads)
    assert len(events_of(tmp_path, "yardstick")) >= 3
    return state_of(s), [line for line in said if "the function validate left" in line]


def other_rates(s: Setup) -> None:
    for group in s.optimizer.param_groups:
        group["lr"], group["betas"] = 0.5, (0.5, 0.6)


CHANGES: dict[str, Callable[[Setup], object]] = {
    "requires_grad of 7 parameters": lambda s: s.model.requires_grad_(False),
    "the optimizer's lr, the optimizer's betas": other_rates,
    "the scheduler's step": lambda s: s.scheduler.step(),
    "the default dtype": lambda _: torch.set_default_dtype(torch.float64),
    "grad mode": lambda _: torch.set_grad_enabled(False),
    "deterministic algorithms": lambda _: torch.use_deterministic_algorithms(True),
    "autocast on cpu": lambda _: torch.set_autocast_enabled("cpu", True),
}


@pytest.mark.parametrize("what", CHANGES)
def test_settings_that_validation_changes_are_put_back_and_named_once(
    tmp_path: Path, what: str
) -> None:
    untouched, quiet = run(tmp_path / "untouched", None)
    changed, (line,) = run(tmp_path / "changed", CHANGES[what])
    assert quiet == []
    assert f"left {what}" in line
    assert "put back" in line
    assert differences(untouched, changed) == []


@pytest.mark.parametrize(
    "change", [lambda s: s.model.eval(), lambda _: torch.manual_seed(5), lambda _: torch.rand(3)]
)
def test_mode_and_random_states_come_back_without_a_word(
    tmp_path: Path, change: Callable[[Setup], object]
) -> None:
    untouched, _ = run(tmp_path / "untouched", None)
    changed, said = run(tmp_path / "changed", change)
    assert said == []
    assert differences(untouched, changed) == []
