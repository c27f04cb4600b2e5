"""A rate cut early in a run: a person is asked once it has been calm, and none is raised."""

from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab import Policy
from trimtab.chronicle.journal import Event
from trimtab.guard import Guard
from trimtab.guard.recovery.early_cut import ASKED, early_cut
from trimtab.guard.recovery.past_outcomes import left_before

_POLICY = Policy(mode="act", verify_steps=16)


def _train(folder: Path, *, until: int, steps: int = 600, undo_at: int = 0) -> list[float]:
    """Train at a rate that is 60 times too high, stop after some steps; return the rates."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())), nn.Linear(64, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3 * 60)
    inputs = torch.randn(4096, 64)
    targets = torch.sin(inputs[:, :4]) + 0.1 * torch.randn(4096, 4)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, targets), batch_size=16, shuffle=True
    )
    guard = Guard(
        model, optimizer, data=data, run=folder, policy=_POLICY, mode="act", clip=1.0, steps=steps
    )
    rates = []
    for x, y in guard:
        guard.backward(nn.functional.mse_loss(model(x), y))
        guard.step()
        rates.append(optimizer.param_groups[0]["lr"])
        if guard.step_number == until:
            break
    guard.close()
    return rates


@pytest.mark.slow
def test_it_is_asked_once_over_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _train(tmp_path / "run", until=120)
    first = capsys.readouterr().err
    assert "lower-lr" in (tmp_path / "run" / "journal.jsonl").read_text()
    assert "None is raised by itself" not in first
    rates = _train(tmp_path / "run", until=600)
    told = capsys.readouterr().err
    assert told.count("None is raised by itself") == 1
    assert 'guard.undo("lower-lr", why=..., confirm=True)' in told
    assert len(set(rates[-100:])) == 1
    _train(tmp_path / "run", until=700, steps=700)
    assert "None is raised by itself" not in capsys.readouterr().err


def _event(kind: str, step: int, /, **data: object) -> Event:
    return Event("", kind, "1.1", step, data)


_CUT = _event("action", 40, remedy="roll-back+lower-lr", values={"factor": 0.1, "lr_limit": None})


@pytest.mark.parametrize(
    ("later", "stands"),
    [
        ((), True),
        ((_event("action", 90, remedy="roll-back+skip-data", values={}),), True),
        ((_event("action", 90, remedy="undo lower-lr", values={"id": 0}),), False),
        ((_event("decision", 300, what=ASKED),), False),
        ((_event("decision", 300, what="wait"),), True),
    ],
)
def test_what_the_journal_leaves_to_ask(later: tuple[Event, ...], stands: bool) -> None:
    assert (left_before((_CUT, *later), 1).cut is not None) == stands


def test_cuts_by_hand_are_not_asked_about() -> None:
    by_hand = _event(
        "action", 40, remedy="roll-back+lower-lr", values={"factor": 0.5, "confirmed": True}
    )
    scaled = _event("action", 50, remedy="lower-lr", values={"factor": 0.5})
    assert left_before((by_hand, scaled), 1).cut is None


@pytest.mark.parametrize(
    ("step", "final", "asked"),
    [(40, 5000, True), (40, None, True), (600, 5000, False), (300, None, False), (40, 200, False)],
)
def test_only_early_cuts_with_much_of_the_run_left(
    step: int, final: int | None, asked: bool
) -> None:
    cut = early_cut(_POLICY, {"factor": 0.1}, step, final)
    assert (cut is not None) == asked
    assert early_cut(_POLICY, {"factor": 1.0}, step, final) is None
