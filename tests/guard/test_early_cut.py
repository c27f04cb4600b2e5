"""A rate cut early in a run: a person is asked once it has been calm, and none is raised."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.guard.tiny import events_of
from trimtab import Policy, analyze
from trimtab.chronicle.journal import Event
from trimtab.cli import main
from trimtab.guard import Guard
from trimtab.guard.recovery.early_cut import ASKED, early_cut
from trimtab.guard.recovery.past_outcomes import left_before
from trimtab.guard.state.decisions import Decisions, lr_factor
from trimtab.plan.authority import Permission
from trimtab.readers import read_run

_POLICY = Policy(mode="act", verify_steps=16)


def _train(
    folder: Path,
    *,
    until: int,
    steps: int = 600,
    times: float = 60.0,
    policy: Policy = _POLICY,
    each_step: Callable[[Guard], object] = lambda _guard: None,
) -> dict[float, float]:
    """Train at a rate that is so many times too high, stop after some steps; return the rate by step."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh())), nn.Linear(64, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3 * times)
    inputs = torch.randn(4096, 64)
    targets = torch.sin(inputs[:, :4]) + 0.1 * torch.randn(4096, 4)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(inputs, targets), batch_size=16, shuffle=True
    )
    guard = Guard(
        model, optimizer, data=data, run=folder, policy=policy, mode="act", clip=1.0, steps=steps
    )
    for x, y in guard:
        guard.backward(nn.functional.mse_loss(model(x), y))
        guard.step()
        each_step(guard)
        if guard.step_number == until:
            break
    guard.close()
    record = read_run(folder)
    rows = record.lineage_rows()
    return dict(
        zip(record.step[rows].tolist(), record.columns["lr"].values[rows].tolist(), strict=True)
    )


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
    assert {rate for step, rate in rates.items() if step > 200} == {rates[100]}
    _train(tmp_path / "run", until=700, steps=700)
    assert "None is raised by itself" not in capsys.readouterr().err


def _may(permission: Permission) -> Policy:
    return replace(_POLICY, authority={"raise-rate": permission})


@pytest.mark.slow
def test_a_part_of_it_is_given_back_where_the_policy_lets_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _train(run, until=300, policy=_may("act"))
    rates = _train(run, until=600, policy=_may("act"))
    (raised,) = (e for e in events_of(run, "action") if e.data["remedy"] == "raise-lr")
    assert raised.data["values"]["factor"] == 2.0
    assert "a part of a cut is given back" in str(raised.data["why"])
    assert rates[600] / rates[raised.step] == pytest.approx(2.0)
    (outcome,) = (e for e in events_of(run, "outcome") if e.data["remedy"] == "raise-lr")
    assert outcome.data["of_step"] == raised.step
    # its own rise is no trouble that it would deal with
    assert len(events_of(run, "action")) == 2
    assert analyze(run).verdict == "healthy"


@pytest.mark.slow
def test_a_person_may_be_asked_whether_it_rises(tmp_path: Path) -> None:
    run = tmp_path / "run"

    answered_at: list[int] = []

    def answer(guard: Guard) -> None:
        if guard.step_number == 450 and not answered_at:
            answered_at.append(guard.step_number)
            assert [e.data["classes"] for e in events_of(run, "staged")] == [["raise-rate"]]
            assert main(["approve", str(run), "ask-1", "--why", "too slow", "--author", "S."]) == 0

    _train(run, until=400, policy=_may("ask"))
    _train(run, until=600, policy=_may("ask"), each_step=answer)
    (answered,) = events_of(run, "answered")
    assert (answered.data["answer"], answered.data["by"]) == ("approved", "S.")
    (raised,) = (e for e in events_of(run, "action") if e.data["remedy"] == "raise-lr")
    assert answered.step <= raised.step <= 452


@pytest.mark.slow
@pytest.mark.parametrize("permission", ["never", "ask"])
def test_without_an_answer_it_stays_as_it_is(tmp_path: Path, permission: Permission) -> None:
    run = tmp_path / "run"
    _train(run, until=600, policy=_may(permission))
    assert len(events_of(run, "staged")) == (permission == "ask")
    assert not [e for e in events_of(run, "action") if e.data["remedy"] == "raise-lr"]


@pytest.mark.slow
def test_a_rate_that_is_raised_by_hand_is_no_trouble(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def change(guard: Guard) -> None:
        if guard.step_number == 100:
            guard.scale_lr(0.5, why="a try")
        if guard.step_number == 300:
            guard.undo("lower-lr", why="it was not the rate", confirm=True)

    _train(run, until=600, times=1.0, each_step=change)
    assert [e.data["remedy"] for e in events_of(run, "action")] == ["lower-lr", "undo lower-lr"]
    assert analyze(run).verdict == "healthy"


@pytest.mark.slow
@pytest.mark.parametrize("permission", ["never", "act"])
def test_another_policy_after_a_restart_holds_for_what_was_asked_before_it(
    tmp_path: Path, permission: Permission
) -> None:
    run = tmp_path / "run"
    _train(run, until=300, policy=_may("ask"))
    hurried = replace(_may(permission), at_deadline="act", ask_deadline_s=0.001)
    _train(run, until=600, policy=hurried)
    (answered,) = events_of(run, "answered")
    assert answered.data["why"] == "the policy no longer asks about it"
    raised = [e for e in events_of(run, "action") if e.data["remedy"] == "raise-lr"]
    assert len(raised) == (permission == "act")


@pytest.mark.slow
@pytest.mark.parametrize("permission", ["act", "ask"])
def test_a_cut_that_was_undone_is_given_back_no_more(
    tmp_path: Path, permission: Permission
) -> None:
    run = tmp_path / "run"

    def undo(guard: Guard) -> None:
        if guard.step_number == 250 and not undone:
            undone.append(guard.undo("lower-lr", why="it was not the rate", confirm=True))
            if permission == "ask":
                assert main(["approve", str(run), "ask-1", "--why", "too late"]) == 0

    undone: list[str] = []
    policy = _may(permission) if permission == "ask" else replace(_may("act"), verify_steps=30)
    _train(run, until=300, policy=policy, each_step=undo)
    assert undone
    assert not [e for e in events_of(run, "action") if e.data["remedy"] == "raise-lr"]
    _train(run, until=310, policy=policy)  # what it left can be started again


def test_what_was_given_back_goes_with_its_cut_alone() -> None:
    d = Decisions()
    d.ease_lr(10, 2.0)
    assert d.lr_cuts == []
    d.cut_lr(0, 0.5)
    d.cut_lr(20, 0.1)
    d.ease_lr(30, 2.0)
    assert lr_factor(d.lr_cuts, 25) == pytest.approx(0.05)
    assert lr_factor(d.lr_cuts, 30) == pytest.approx(0.1)
    d.uncut_lr((20, 0.1))
    assert d.lr_cuts == [(0, 0.5)]


def _event(kind: str, step: int, /, **data: object) -> Event:
    return Event("", kind, "1.1", step, data)


_ASKED_FOR = _event("staged", 300, id="ask-1", classes=["raise-rate"])
_CUT = _event("action", 40, remedy="roll-back+lower-lr", values={"factor": 0.1, "lr_limit": None})


@pytest.mark.parametrize(
    ("later", "stands"),
    [
        ((), True),
        ((_event("action", 90, remedy="roll-back+skip-data", values={}),), True),
        ((_event("action", 90, remedy="undo lower-lr", values={"id": 0}),), False),
        ((_event("decision", 300, what=ASKED),), False),
        ((_event("decision", 300, what="wait"),), True),
        ((_ASKED_FOR,), True),
        ((_ASKED_FOR, _event("answered", 310, id="ask-1", answer="denied", done=False)), False),
        ((_ASKED_FOR, _event("answered", 310, id="ask-1", answer="withdrawn", done=False)), True),
        # approved, and killed before it was done: it is asked about anew
        ((_ASKED_FOR, _event("answered", 310, id="ask-1", answer="approved", done=True)), True),
        ((_event("answered", 310, id="ask-1", answer="denied", done=False),), True),
        ((_event("action", 300, remedy="raise-lr", values={"factor": 3.0}),), False),
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
