"""A fault of the guard's own never stops a run; a wrong call gives one clear error."""

import errno
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, IterableDataset

from tests.guard.inner import acting, inner, replace_write
from tests.guard.tiny import (
    Sequences,
    differences,
    events_of,
    guard_of,
    make,
    rows_of,
    state_of,
    train_guarded,
    train_plain,
)
from trimtab.checkpoints.manifest import list_checkpoints
from trimtab.errors import ConfigError
from trimtab.guard import Guard
from trimtab.guard.probes import suite
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

STEPS = 25


def fail(*_: Any, **__: Any) -> Any:
    raise RuntimeError("planted")


def no_space(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def break_judge(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(inner(guard).parts.judgement.judge), "update", fail)


def break_recorder(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner(guard).recorder, "sample", no_space)


def break_journal(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner(guard).recorder.journal, "append", no_space)


def break_recovery(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner(guard).recovery, "after_step", fail)


def break_checkpoints(_: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_write(monkeypatch, no_space)


def break_tensor_writer(_: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch turns what happens in its writer into a BaseException."""
    from torch.distributed.checkpoint import filesystem

    monkeypatch.setattr(filesystem, "_write_item", no_space)


def break_snapshots(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner(guard).parts.points, "snapshot", fail)


def break_probes(_: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "read_moments", fail)


def break_hook(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner(guard).parts.probes.hidden, "_measure", fail)


BREAKS = [
    break_judge,
    break_recorder,
    break_journal,
    break_recovery,
    break_checkpoints,
    break_tensor_writer,
    break_snapshots,
    break_probes,
    break_hook,
]


@pytest.mark.parametrize(
    ("broken", "precision"), [(break_judge, "fp32"), *((broken, "fp16") for broken in BREAKS)]
)
def test_a_fault_of_the_guard_leaves_training_as_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: Callable[[Guard, pytest.MonkeyPatch], None],
    precision: Any,
) -> None:
    plain = make(precision=precision, shuffle=True)
    expected, state = train_plain(plain, STEPS), state_of(plain)
    s = make(precision=precision, shuffle=True)
    policy = Policy(
        checkpoint_every_steps=10, snapshot_every_steps=4, checkpoint_in_background=False
    )
    guard = guard_of(s, tmp_path / "run", steps=STEPS, mode="act", policy=policy)
    losses = train_guarded(s, guard, until=7)
    with monkeypatch.context() as patch:
        broken(guard, patch)
        losses += train_guarded(s, guard, until=12)
    losses += train_guarded(s, guard)
    assert losses == expected
    assert differences(state, state_of(s)) == []
    assert "a fault of its own" in capsys.readouterr().err
    faults = [e.data["where"] for e in events_of(tmp_path / "run", "fault")]
    assert len(set(faults)) == 1
    rearmed = [e.data["where"] for e in events_of(tmp_path / "run", "rearmed")]
    assert rearmed == faults  # each fault is over, told in order
    assert (inner(guard).edge.stood_down, guard.coverage.degraded) == (False, "")
    assert guard.num_incidents == 0


def test_under_a_lasting_fault_it_records_and_saves_as_suspect_and_does_not_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = make()
    policy = Policy(checkpoint_every_steps=10, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=STEPS, mode="act", policy=policy)
    train_guarded(s, guard, until=7)
    break_judge(guard, monkeypatch)
    train_guarded(s, guard)
    assert len(rows_of(tmp_path / "run")) == STEPS
    steps = [c.step for c in list_checkpoints(tmp_path / "run" / "checkpoints")]
    assert steps == [10, 20, 25]
    assert [str(c.grade) for c in list_checkpoints(tmp_path / "run" / "checkpoints")] == [
        "suspect",
        "suspect",
        "suspect",
    ]
    assert not acting(guard)
    assert guard.coverage.gaps == ((8, STEPS, "RuntimeError: planted"),)


def test_a_failed_save_leaves_no_half_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = make()
    policy = Policy(checkpoint_every_steps=10, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=STEPS, policy=policy)
    with monkeypatch.context() as patch:
        break_checkpoints(guard, patch)
        train_guarded(s, guard, until=12)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    train_guarded(s, guard)
    steps = [c.step for c in list_checkpoints(tmp_path / "run" / "checkpoints")]
    assert steps == [13, 20, 25]  # not only at the next interval


def test_an_interrupt_passes_through(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=STEPS)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_guarded(s, guard, on_batch=interrupt)
    guard.close()


# -- wrong order of calls -----------------------------------------------------------------------


def test_step_without_backward_is_refused(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=5)
    with pytest.raises(ConfigError, match=r"guard\.step\(\) needs one batch .* guard\.backward"):
        guard.step()
    for _ in guard:
        with pytest.raises(ConfigError, match=r"guard\.step\(\) needs"):
            guard.step()
        break
    guard.close()


def test_a_forgotten_step_is_told_at_the_next_batch(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=5)
    batches = iter(guard)
    guard.backward(s.loss(next(batches)))
    with pytest.raises(ConfigError, match=r"guard\.step\(\) was not called for the last batch"):
        next(batches)
    guard.close()


def test_two_backwards_accumulate_and_the_mean_is_logged(tmp_path: Path) -> None:
    s = make(dropout=0.0)
    guard = guard_of(s, tmp_path / "run", steps=1)
    for batch in guard:
        parts = [s.loss(part) for part in batch.chunk(2)]
        for part in parts:
            guard.backward(part)
        guard.step()
        (row,) = rows_of(tmp_path / "run")
        assert row["loss"] == float(torch.stack([p.detach() for p in parts]).mean())


def test_a_second_step_and_a_backward_outside_the_loop_are_refused(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=5)
    with pytest.raises(ConfigError, match=r"guard\.backward\(\) needs a batch"):
        guard.backward(torch.zeros((), requires_grad=True))
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
        with pytest.raises(ConfigError, match=r"guard\.step\(\) needs one batch"):
            guard.step()
    with pytest.raises(ConfigError, match=r"guard\.backward\(\) needs a batch"):
        guard.backward(torch.zeros((), requires_grad=True))


def test_a_loop_that_was_left_goes_on_where_it_was(tmp_path: Path) -> None:
    expected = train_plain(make(), 20)
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=20)
    losses = [*train_guarded(s, guard, until=6), *train_guarded(s, guard, until=13)]
    assert losses + train_guarded(s, guard) == expected
    assert train_guarded(s, guard) == []  # done
    assert len(events_of(tmp_path / "run", "end")) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda g: g.scale_lr(0.5, why="x"),
        lambda g: g.tighten_clip(0.5, why="x"),
        lambda g: g.skip_samples(0, 1, why="x"),
        lambda g: g.override_lr(lambda _: 1e-3, why="x"),
        lambda g: g.checkpoint(),
    ],
)
def test_what_is_asked_after_the_end_is_refused(
    tmp_path: Path, call: Callable[[Guard], None]
) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=2)
    train_guarded(s, guard)
    with pytest.raises(ConfigError, match="was called after the end; make a new Guard"):
        call(guard)


# -- arguments ----------------------------------------------------------------------------------


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return iter(Sequences(8))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": -1.0}, r"clip is -1\.0, expected a positive number, or None"),
        ({"clip": math.nan}, r"clip is nan, expected a positive number"),
        ({"clip": True}, r"clip is True"),
        ({"steps": 0}, r"steps is 0, expected a whole number of at least 1, or None"),
        ({"steps": 2.5}, r"steps is 2\.5"),
        ({"mode": "loud"}, r"mode is 'loud', expected one of observe, advise, act"),
        (
            {"data": iter(DataLoader(Stream(), batch_size=2))},
            r"an iterator that can be read only once",
        ),
        ({"data": DataLoader(Sequences(0), batch_size=2)}, r"data has no batch; check"),
        ({"data": DataLoader(Sequences(3), batch_size=4, drop_last=True)}, r"data has no batch"),
        ({"data": DataLoader(Sequences(3), batch_size=None)}, r"with batch_size set"),
        ({"data": [1, 2]}, r"data is list: .*pass a DataLoader"),
    ],
)
def test_an_impossible_argument_is_refused_before_anything_is_written(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    s = make()
    arguments = {"data": s.loader, "run": tmp_path / "run", **settings}
    with pytest.raises(ConfigError, match=message) as caught:
        Guard(s.model, s.optimizer, **arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_scheduler_that_needs_a_metric_is_refused(tmp_path: Path) -> None:
    s = make()
    scheduler = ReduceLROnPlateau(s.optimizer)
    with pytest.raises(ConfigError, match="ReduceLROnPlateau, which needs a validation loss"):
        Guard(s.model, s.optimizer, data=s.loader, run=tmp_path / "run", scheduler=scheduler)
