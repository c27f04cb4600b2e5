"""Values read one step late: the same run, and in a calm step nothing is read from the device."""

import copy
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.guard.crowd import Crew, Job, outcome, run_crowd
from tests.guard.jobs import context
from tests.guard.small_lab import SOUND, bad_data, bad_lr, guarded, make_text
from tests.guard.tiny import (
    Setup,
    differences,
    events_of,
    guard_of,
    make,
    rows_of,
    state_of,
    train_guarded,
    train_plain,
)
from trimtab.detectors.unannounced_change import UnannouncedChangeDetector
from trimtab.errors import ConfigError
from trimtab.guard import Guard
from trimtab.guard.step.deferred_read import skips_on_device, update_unless
from trimtab.guard.step.deferred_step import DeferredStep
from trimtab.lab.train import Parts
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

CLOCKED = ("step_time_s", "throughput", "host_memory_gib")
"""What is never the same twice."""


def fuse(optimizer: torch.optim.Optimizer) -> None:
    """Have an AdamW that has not stepped yet take its fused step."""
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]


def fused(**settings: Any) -> Setup:
    s = make(**settings)
    fuse(s.optimizer)
    return s


def policy_of(reads: str, **settings: Any) -> Policy:
    return Policy(
        **{
            "snapshot_every_steps": 5,
            "checkpoint_every_steps": 20,
            "checkpoint_in_background": False,
            **settings,
        },
        reads=reads,  # type: ignore[arg-type]
    )


def signals(run: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of every attempt as written, but for what depends on the clock."""
    names = sorted(p.stem for p in (run / "signals").glob("*.jsonl"))
    rows = {name: rows_of(run, name) for name in names}
    return {
        name: [{k: repr(v) for k, v in row.items() if k not in CLOCKED} for row in found]
        for name, found in rows.items()
    }


def journal(run: Path) -> list[tuple[str, str, int, dict[str, Any]]]:
    """What was found, decided and done, in order."""
    skipped = ("start", "note", "owner")
    return [
        (
            e.event,
            e.attempt,
            e.step,
            {k: v for k, v in e.data.items() if k not in ("seconds", "save_s", "path")},
        )
        for e in events_of(run)
        if e.event not in skipped and e.data.get("signal") not in CLOCKED
    ]


def assert_same_rows(late: Path, now: Path, *, later: set[int]) -> None:
    """Every row is the same, but for what is read only since something is wrong: `later`, by step,
    lacks it, because its forward pass was done before that was known."""
    a, b = signals(late), signals(now)
    assert {k: len(v) for k, v in a.items()} == {k: len(v) for k, v in b.items()}
    lacking = set()
    for x, y in ((x, y) for name in a for x, y in zip(a[name], b[name], strict=True)):
        missing = set(y) - set(x)
        of_output = {"output_log_z", "num_outputs"}
        assert missing <= {"attention_logit_max", "attention_entropy", *of_output}
        assert x == {k: v for k, v in y.items() if k not in missing}
        lacking |= {int(x["step"])} if missing else set()
    assert lacking <= later


def spoil_gradients(steps: range, s: Setup, guard: Guard) -> None:
    if guard.step_number + 1 in steps and guard.phase != "probe":
        gradient = s.model.hidden.weight.grad
        assert gradient is not None
        gradient[0, 0] = math.nan


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Count the steps that were done late."""
    count = {"late": 0, "dropped": 0}
    step_late, drop_step = DeferredStep.step, DeferredStep.drop

    def counting(self: DeferredStep, *rest: Any, **named: Any) -> Any:
        count["late"] += 1
        return step_late(self, *rest, **named)

    def dropping(self: DeferredStep) -> None:
        count["dropped"] += 1
        drop_step(self)

    DeferredStep.step, DeferredStep.drop = counting, dropping  # type: ignore[method-assign]
    try:
        yield count
    finally:
        DeferredStep.step, DeferredStep.drop = step_late, drop_step  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "accumulate"), [("observe", 1), ("advise", 1), ("act", 2)])
def test_a_run_that_reads_late_is_bitwise_the_plain_loop_with_the_rows_of_one_that_reads_now(
    tmp_path: Path, mode: str, accumulate: int
) -> None:
    plain = fused(shuffle=True)
    expected = train_plain(plain, 47, accumulate=accumulate)
    for reads in ("now", "late"):
        s = fused(shuffle=True)
        guard = guard_of(s, tmp_path / reads, mode=mode, steps=47, policy=policy_of(reads))
        with counted() as count:
            assert train_guarded(s, guard, accumulate=accumulate) == expected
        assert differences(state_of(plain), state_of(s)) == []
        assert (count["late"] > 20) == (reads == "late")
    assert signals(tmp_path / "late") == signals(tmp_path / "now")
    assert journal(tmp_path / "late") == journal(tmp_path / "now")
    assert len(rows_of(tmp_path / "late")) == 47


def test_an_update_that_is_not_finite_is_left_out_on_the_device(tmp_path: Path) -> None:
    states = []
    with counted() as count:
        for reads in ("now", "late"):
            s = fused(num_samples=400)
            guard = guard_of(s, tmp_path / reads, mode="act", steps=40, policy=policy_of(reads))
            for batch in guard:
                loss = s.loss(batch)
                guard.backward(loss, samples=loss.detach() * torch.arange(9.0))
                spoil_gradients(range(13, 14), s, guard)
                guard.step()
            states.append(state_of(s))
    assert count["late"] > 15
    assert differences(states[0], states[1]) == []
    assert_same_rows(tmp_path / "late", tmp_path / "now", later={14})
    assert journal(tmp_path / "late") == journal(tmp_path / "now")
    row = rows_of(tmp_path / "late")[12]
    assert row["sample_loss_max"] > row["loss"]
    assert (row["step"], row["skipped"]) == (13, 1.0)
    assert math.isnan(row["grad_norm"])
    assert row["nonfinite_at"] == "hidden.weight"
    assert [e.data["remedy"] for e in events_of(tmp_path / "late", "action")] == ["skip-update"]


def make_optimizer(name: str, weights: list[Tensor]) -> torch.optim.Optimizer:
    if name.startswith("sgd"):
        momentum = 0.0 if name == "sgd-plain" else 0.9
        return torch.optim.SGD(weights, lr=0.1, momentum=momentum, fused=True)
    if name == "adagrad":
        return torch.optim.Adagrad(weights, lr=0.1, fused=True)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(weights, lr=0.1, fused=True, amsgrad=name == "adam")


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "sgd-plain", "adagrad"])
def test_a_step_left_out_on_the_device_changes_no_bit(name: str) -> None:
    weights: list[Tensor] = [nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(7))]
    optimizer = make_optimizer(name, weights)

    def gradients() -> None:
        for w in weights:
            w.grad = torch.randn_like(w)

    gradients()
    assert skips_on_device(optimizer) == (name in ("sgd-plain", "adagrad")), "its state is not made"
    optimizer.step()
    assert skips_on_device(optimizer)
    gradients()
    weights[0].grad[0, 0] = math.nan  # type: ignore[index]
    before = copy.deepcopy([weights, optimizer.state_dict()])
    update_unless(optimizer, torch.tensor(1.0))
    assert differences(before, [weights, optimizer.state_dict()]) == []
    gradients()
    twins: list[Tensor] = [nn.Parameter(w.detach().clone()) for w in weights]
    for twin, w in zip(twins, weights, strict=True):
        twin.grad = None if w.grad is None else w.grad.clone()
    other = make_optimizer(name, twins)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    update_unless(optimizer, torch.tensor(0.0))
    other.step()
    assert differences([twins, other.state_dict()], [weights, optimizer.state_dict()]) == []
    assert differences(before[0], weights) != []
    assert not hasattr(optimizer, "found_inf")


def test_where_the_optimizer_cannot_leave_a_step_out_on_the_device_act_reads_now(
    tmp_path: Path,
) -> None:
    for mode in ("act", "observe"):
        s = make()
        guard = guard_of(s, tmp_path / mode, mode=mode, steps=11, policy=policy_of("late"))
        with counted() as count:
            train_guarded(s, guard)
        assert (count["late"] > 0) == (mode == "observe")


class Strict(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each read on the host of a tensor that was made since `begin`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: dict[int, Tensor] = {}
        self.reads: list[str] = []

    def begin(self) -> None:
        self.made, self.reads = {}, []

    def see(self, tensor: Tensor, what: str) -> None:
        if any(
            tensor.untyped_storage().data_ptr() == m.untyped_storage().data_ptr()
            for m in self.made.values()
        ):
            self.reads.append(what)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.see(args[0], "item")
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, list | tuple) else [out]:
            if isinstance(tensor, Tensor):
                self.made[id(tensor)] = tensor
        return out


def test_a_calm_step_reads_nothing_that_was_made_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = Strict()
    for name in ("tolist", "numpy"):
        read: Callable[..., Any] = getattr(Tensor, name)

        def noted(
            self: Tensor, *rest: Any, read: Any = read, name: str = name, **named: Any
        ) -> Any:
            strict.see(self, name)
            return read(self, *rest, **named)

        monkeypatch.setattr(Tensor, name, noted)
    quiet: dict[str, dict[int, list[str]]] = {}
    for reads in ("now", "late"):
        s = fused(num_samples=400)
        policy = policy_of(reads, snapshot_every_steps=10)
        guard = guard_of(s, tmp_path / reads, mode="act", steps=32, policy=policy)
        found = quiet[reads] = {}
        with strict:
            for batch in guard:
                strict.begin()
                guard.backward(s.loss(batch))
                guard.step()
                found[guard.step_number] = list(strict.reads)
    calm = [n for n in range(2, 32) if n % 4 and n % 10]
    assert [n for n in calm if quiet["late"][n]] == []
    assert all(quiet["late"][n] for n in (4, 10, 12, 32)), "probes that are due are read at once"
    assert all(quiet["now"][n] for n in calm)
    assert len(rows_of(tmp_path / "late")) == 32


@pytest.mark.parametrize("way", ["break", "error", "checkpoint", "companion", "by hand", "close"])
def test_a_pending_row_is_written_before_anything_else_is_done(tmp_path: Path, way: str) -> None:
    s = fused(num_samples=400)
    guard = guard_of(s, tmp_path / "run", steps=40, policy=policy_of("late"))

    def rows() -> int:
        return len(rows_of(tmp_path / "run"))

    def loop() -> None:
        for batch in guard:
            if way == "error" and guard.step_number == 7:
                raise KeyError("in the loop")
            guard.backward(s.loss(batch))
            guard.step()
            if guard.step_number == 7:
                assert rows() == 6
                if way == "checkpoint":
                    guard.checkpoint()
                elif way == "companion":
                    guard.companion()
                elif way == "by hand":
                    guard.scale_lr(0.5, why="test")
                if way != "error":
                    return

    if way == "error":
        with pytest.raises(KeyError):
            loop()
    else:
        loop()
    guard.close()
    assert [r["step"] for r in rows_of(tmp_path / "run")] == list(range(1, 8))
    if way in ("checkpoint", "by hand"):
        (event,) = events_of(tmp_path / "run", "action" if way == "by hand" else "checkpoint")
        assert event.step == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_loses_no_row_and_is_saved_after_it(tmp_path: Path, number: int) -> None:
    s = fused(num_samples=400)
    guard = guard_of(s, tmp_path / "run", steps=40, policy=policy_of("late"))

    def loop() -> None:
        for batch in guard:
            if guard.step_number == 6:
                signal.raise_signal(number)
            guard.backward(s.loss(batch))
            guard.step()

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        loop()
    assert [r["step"] for r in rows_of(tmp_path / "run")] == list(range(1, 8))
    assert [e.step for e in events_of(tmp_path / "run", "checkpoint")] == [7]
    again = fused(num_samples=400)
    guard = guard_of(again, tmp_path / "run", steps=40, policy=policy_of("late"))
    assert guard.step_number == 7
    guard.close()


def spoilt(guard: Guard, loss: Tensor) -> Tensor:
    """A loss that is far off from step 102 on, until the run has gone back."""
    bad = guard.step_number + 1 >= 102 and guard.phase == "calm" and not guard.actions
    return loss + 5.0 if bad else loss


def fuse_parts(parts: Parts) -> None:
    fuse(parts.optimizer)


@pytest.mark.slow
def test_a_pending_row_that_sends_the_run_back_takes_the_batch_under_way_with_it(
    tmp_path: Path,
) -> None:
    text = make_text()
    ends = {}
    with counted() as count:
        for reads in ("now", "late"):
            ends[reads] = guarded(
                SOUND,
                text,
                tmp_path / reads,
                spoil=spoilt,
                prepare=fuse_parts,
                reads=reads,
                patience_steps=0,
                healing_steps=0,
                spikes_trained_through=0,
                trial_steps=12,
                yardstick_share=0.0,  # else the fixed batches are read before anything is done
            )
    assert count["dropped"] >= 1
    assert count["late"] > 100
    assert_same_rows(tmp_path / "late", tmp_path / "now", later=set())
    assert journal(tmp_path / "late") == journal(tmp_path / "now")
    assert [a["remedy"] for a in ends["late"].guard.actions] != []
    assert ends["late"].validation == ends["now"].validation


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [bad_data(220, 20), bad_lr(220, 20.0)], ids=["data", "rate"])
def test_a_fault_is_seen_decided_and_cured_as_when_it_is_read_at_once(
    tmp_path: Path, scenario: Any
) -> None:
    text, ends = make_text(), {}
    with counted() as count:
        for reads in ("now", "late"):
            ends[reads] = guarded(
                scenario,
                text,
                tmp_path / reads,
                prepare=fuse_parts,
                reads=reads,
                yardstick_share=0.0,  # how often it is read depends on the time that it takes
            )
    assert count["late"] > 100
    first = min(e.step for e in events_of(tmp_path / "now", "finding"))
    assert_same_rows(tmp_path / "late", tmp_path / "now", later=set(range(first, 361)))
    assert journal(tmp_path / "late") == journal(tmp_path / "now")
    assert any("roll-back" in str(a["remedy"]) for a in ends["late"].guard.actions)
    assert ends["late"].validation == ends["now"].validation


def fuse_crew(crew: Crew, _guard: Guard) -> None:
    fuse(crew.optimizer)


def nan_on_one_rank(crew: Crew, step: int) -> None:
    if step == 13 and crew.rank == 1:
        gradient = next(p.grad for p in crew.model.parameters() if p.grad is not None)
        gradient.view(-1)[0] = math.nan


def stop_one_rank(crew: Crew, step: int) -> None:
    if step == 13 and crew.rank == 1:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_two_ranks_read_late_what_two_ranks_read_now(tmp_path: Path) -> None:
    for reads in ("now", "late"):
        (tmp_path / reads).mkdir()
        job = Job(
            "ddp", 30, mode="act", spoil=nan_on_one_rank, before=fuse_crew, policy={"reads": reads}
        )
        assert run_crowd(tmp_path / reads, 2, job) == [0, 0]
    for rank in range(2):
        now, late = outcome(tmp_path / "now", rank), outcome(tmp_path / "late", rank)
        assert differences(now, late) == []
    assert_same_rows(tmp_path / "late" / "run", tmp_path / "now" / "run", later={14})
    assert journal(tmp_path / "late" / "run") == journal(tmp_path / "now" / "run")
    row = rows_of(tmp_path / "late" / "run")[12]
    assert (row["skipped"], row["nonfinite_ranks"]) == (1.0, "1")


@pytest.mark.slow
def test_two_ranks_that_read_late_stop_after_the_same_step(tmp_path: Path) -> None:
    job = Job("ddp", 40, spoil=stop_one_rank, policy={"reads": "late"})
    assert run_crowd(tmp_path, 2, job, grace_s=60) == [143, 143]
    assert [e.step for e in events_of(tmp_path / "run", "checkpoint")] == [10, 14]
    assert [r["step"] for r in rows_of(tmp_path / "run")] == list(range(1, 15))


def live(folder: Path, die_at: int | None) -> None:
    torch.set_num_threads(1)
    s = fused(shuffle=True)
    guard = guard_of(s, folder / "run", mode="act", steps=47, policy=policy_of("late"))
    for batch in guard:
        guard.backward(s.loss(batch))
        if guard.step_number + 1 == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        guard.step()
    torch.save(state_of(s), folder / "end.pt")


def without_settings(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return rows without the settings, which each process writes with its first row."""
    settings = UnannouncedChangeDetector().signals
    return [{n: v for n, v in row.items() if n not in settings} for row in rows]


@pytest.mark.slow
def test_killed_with_a_row_pending_it_goes_on_as_an_unbroken_run(tmp_path: Path) -> None:
    for name, deaths in (("straight", [None]), ("broken", [18, 27, None])):
        (tmp_path / name).mkdir()
        for die_at in deaths:
            process = context().Process(target=live, args=(tmp_path / name, die_at))
            process.start()
            process.join(120)
            assert process.exitcode == (0 if die_at is None else -signal.SIGKILL)
    broken = tmp_path / "broken" / "run"
    assert [r["step"] for r in rows_of(broken)][-1] == 16, "step 17 was done and not read"
    assert [r["step"] for r in rows_of(broken, "2.0")] == list(range(1, 26))
    assert [r["step"] for r in rows_of(broken, "2.1")] == list(range(21, 48))
    straight = without_settings(signals(tmp_path / "straight" / "run")["1.0"])
    again = {number: without_settings(rows) for number, rows in signals(broken).items()}
    assert again["2.0"][:20] + again["2.1"] == straight
    ends = [torch.load(tmp_path / name / "end.pt") for name in ("straight", "broken")]
    assert differences(ends[0], ends[1]) == []


def test_a_way_to_read_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="reads is 'soon', expected one of auto, now, late"):
        Policy(reads="soon")  # type: ignore[arg-type]
