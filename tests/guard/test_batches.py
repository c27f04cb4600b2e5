"""What the loop body may do with a batch: train on it in parts, with others, or give it up."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.guard.inner import inner
from tests.guard.tiny import (
    Precision,
    Setup,
    differences,
    events_of,
    guard_of,
    make,
    rows_of,
    state_of,
    train_plain,
)
from trimtab.errors import ConfigError
from trimtab.guard import Guard
from trimtab.guard.loop.step_batches import Losses

pytestmark = pytest.mark.torch

STEPS = 9
DOCS = Path(__file__).parents[2] / "docs" / "recipes" / "own-loop.md"


def documented(text: str) -> str:
    """The code block of the page that holds a text, as it stands there."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    (block,) = [b for b in blocks if text in b]
    return str(block)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_parts_of_a_batch_train_as_the_plain_loop_and_log_their_mean(
    tmp_path: Path, precision: Precision
) -> None:
    plain = make(precision=precision, num_samples=36)
    train_plain(plain, STEPS, accumulate=2)
    s = make(precision=precision, num_samples=36)
    said: list[str] = []
    guard = guard_of(s, tmp_path / "run", steps=STEPS, say=said.append)
    losses: list[float] = []

    def loss_of(part: torch.Tensor) -> torch.Tensor:
        loss = s.loss(part)
        losses.append(float(loss.detach()))
        return loss

    exec(documented("parts=2"), {"guard": guard, "loss_of": loss_of})
    assert differences(state_of(plain), state_of(s)) == []
    means = [(a + b) / 2 for a, b in zip(losses[::2], losses[1::2], strict=True)]
    assert [r["loss"] for r in rows_of(tmp_path / "run")] == pytest.approx(means, rel=1e-6)
    assert not [line for line in said if "add up" in line]


def plain_accumulating(s: Setup, steps: int, accumulate: int) -> None:
    batches = endless(s)
    for _ in range(steps):
        s.optimizer.zero_grad(set_to_none=True)
        for _ in range(accumulate):
            (s.loss(next(batches)) / accumulate).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(s.model.parameters(), 1.0)
        s.optimizer.step()
        s.scheduler.step()


def endless(s: Setup) -> Iterator[torch.Tensor]:
    while True:
        yield from s.loader


def test_several_batches_of_a_step_train_as_the_plain_loop(tmp_path: Path) -> None:
    plain = make(shuffle=True)
    plain_accumulating(plain, STEPS, 4)
    s = make(shuffle=True)

    def guarded(model: Any, optimizer: Any, *, data: Any, run: str, **settings: Any) -> Guard:
        assert run == "runs/tiny"
        assert settings.pop("steps") == 100
        return guard_of(s, tmp_path / "run", steps=STEPS, **settings)

    names = {"Guard": guarded, "model": s.model, "optimizer": s.optimizer, "loader": s.loader}
    exec(documented("step_is_due"), {**names, "loss_of": s.loss})
    assert differences(state_of(plain), state_of(s)) == []
    assert {r["batch_size"] for r in rows_of(tmp_path / "run")} <= {14, 16}


def test_parts_of_unequal_size_count_by_it() -> None:
    losses = Losses()
    for size, loss in ((3, 2.0), (1, 6.0)):
        losses.note(torch.tensor([loss]), 4 / size)
    assert float(losses.mean()) == 3.0


def test_losses_that_add_up_are_said_once(tmp_path: Path) -> None:
    s = make()
    said: list[str] = []
    guard = guard_of(s, tmp_path / "run", steps=3, say=said.append)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.backward(s.loss(batch).reshape(1, 1))  # another shape
        guard.step()
    (line,) = [line for line in said if "add up" in line]
    assert "guard.backward(loss, parts=N)" in line
    assert [r["loss"] > 0 for r in rows_of(tmp_path / "run")] == [True] * 3


# -- giving a batch up --------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_batch_is_given_up_and_the_loop_goes_on(tmp_path: Path, precision: Precision) -> None:
    s = make(precision=precision)
    said: list[str] = []
    guard = guard_of(s, tmp_path / "run", steps=8, say=said.append)
    seen, done = [], False
    for number, batch in enumerate(guard):
        loss = s.loss(batch)
        if guard.step_number == 3 and not done:
            done = True
            guard.note_signals(reward=1.0)
            guard.backward(loss)
            guard.clip_gradients(1.0)
            guard.drop_batch(why="out of memory")
            assert all(p.grad is None for p in s.model.parameters())
            continue
        seen.append(number)
        guard.backward(loss)
        guard.step()
    assert seen == [0, 1, 2, 4, 5, 6, 7, 8]
    rows = rows_of(tmp_path / "run")
    assert [r["step"] for r in rows] == list(range(1, 9))
    assert not any("reward" in r for r in rows)
    assert "step      3  samples 12-15 given up: out of memory" in said
    assert [e.data["text"] for e in events_of(tmp_path / "run", "note")] == [
        "samples 12-15 given up: out of memory"
    ]
    with pytest.raises(ConfigError, match="after the end"):
        guard.drop_batch(why="late")


def until_the_fourth(guard: Guard, s: Setup, leave: Callable[[], None] | None) -> None:
    for batch in guard:
        guard.backward(s.loss(batch))
        if guard.step_number == 3:
            if leave is None:
                break
            leave()
            continue
        guard.step()


def leave_by_break(guard: Guard, s: Setup) -> None:
    until_the_fourth(guard, s, None)


def leave_by_error(guard: Guard, s: Setup) -> None:
    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        until_the_fourth(guard, s, fail)


def leave_by_continue(guard: Guard, s: Setup) -> None:
    with pytest.raises(ConfigError, match=r"guard\.drop_batch\(why=\.\.\.\) before `continue`"):
        until_the_fourth(guard, s, lambda: None)


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_error, leave_by_continue])
def test_a_loop_left_in_mid_step_goes_on_in_a_second_one(
    tmp_path: Path, leave: Callable[[Guard, Setup], None]
) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=8)
    leave(guard, s)
    with pytest.raises(ConfigError, match=r"give the batch up with guard\.drop_batch"):
        guard.checkpoint()
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
    (note,) = events_of(tmp_path / "run", "note")
    assert note.data["text"].startswith("samples 12-15 given up: their loop was left")
    expected = make()  # the same without that batch
    plain_without(expected, 3, 8)
    assert differences(expected.model.state_dict(), s.model.state_dict()) == []


def plain_without(s: Setup, left_out: int, steps: int) -> None:
    for number, batch in enumerate(endless(s)):
        loss = s.loss(batch)
        if number == left_out:
            continue
        s.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(s.model.parameters(), 1.0)
        s.optimizer.step()
        s.scheduler.step()
        if number == steps:
            return


# -- what is no loss ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (1.0, r"guard\.backward\(1\.0\): expected the mean loss of the batch, a tensor of one"),
        (
            torch.zeros(2, requires_grad=True),
            r"a tensor \[2\] of torch\.float32\): expected the mean",
        ),
        (torch.zeros((), dtype=torch.complex64), r"complex64\): expected the mean loss"),
        (torch.zeros(()), r"a loss without a graph; do not detach it"),
    ],
)
def test_what_is_no_loss_is_refused_in_a_sentence(tmp_path: Path, loss: Any, message: str) -> None:
    guard = guard_of(make(), tmp_path / "run", steps=3)
    for _ in guard:
        with pytest.raises(ConfigError, match=message):
            guard.backward(loss)
        with pytest.raises(ConfigError, match=r"parts=0\.5.*expected how many parts"):
            guard.backward(torch.zeros((), requires_grad=True), parts=0.5)
        break
    guard.close()


@pytest.mark.parametrize("samples", [[1, 2], torch.zeros(3, dtype=torch.complex64), "x"])
def test_samples_that_are_no_losses_are_left_out_and_stop_nothing(
    tmp_path: Path, samples: Any
) -> None:
    s = make()
    said: list[str] = []
    guard = guard_of(s, tmp_path / "run", steps=4, mode="act", say=said.append)
    for batch in guard:
        guard.backward(s.loss(batch), samples=samples)
        guard.step()
    assert len([line for line in said if "is left out: expected a tensor of losses" in line]) == 1
    assert (guard.step_number, inner(guard).edge.stood_down) == (4, False)


def test_a_signal_cannot_take_the_place_of_the_step(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=3)
    for batch in guard:
        guard.note_signals(step=7.0, reward=torch.tensor(0.5), gap=math.nan)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"note_signals: reward=\('x'\): expected a number"):
            guard.note_signals(reward="x")  # type: ignore[arg-type]
        guard.backward(s.loss(batch))
        guard.step()
    rows = rows_of(tmp_path / "run")
    assert [(r["step"], r["reward"]) for r in rows] == [(1, 0.5), (2, 0.5), (3, 0.5)]


def test_a_loss_that_nobody_has_is_one_clear_error(tmp_path: Path) -> None:
    s = make()
    guard = Guard(s.model, s.optimizer, data=s.loader, run=tmp_path / "run", steps=2)
    next(iter(guard))
    with pytest.raises(ConfigError, match=r"note_loss\(None\): no other rank"):
        guard.note_loss(None)
