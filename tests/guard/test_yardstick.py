"""The yardstick through the user's door: nothing of training changes, and damage is seen."""

import json
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.families.data import Samples, loader_of
from benchmarks.families.models import FAMILIES
from tests.guard.tiny import differences, events_of, guard_of, make, rows_of, state_of, train_plain
from trimtab.cli import main
from trimtab.errors import ConfigError
from trimtab.guard import Guard
from trimtab.guard.yardstick.yardstick import checked_metrics
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

OFTEN = Policy(
    yardstick_share=1.0,
    snapshot_every_steps=3,
    checkpoint_every_steps=1000,
    checkpoint_in_background=False,
)
"""A reading every three steps."""


class Odd(nn.Module):
    """Statistics, a counter, a cache and noise: all that a forward pass may change."""

    amax_history: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.head = nn.Linear(8, 1)
        self.register_buffer("amax_history", torch.zeros(4))
        self.calls = 0
        self.cache: Tensor = torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.amax_history = torch.roll(self.amax_history, 1)
        self.amax_history[0] = x.detach().abs().max()
        self.cache = self.cache + x.detach().mean()
        h = self.inner(x + 0.1 * torch.randn_like(x))
        out: Tensor = self.head(h).squeeze(-1)
        return out + 1e-3 * self.amax_history.sum() + 1e-4 * self.cache


class Rows(Dataset[Tensor]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        draw = torch.Generator().manual_seed(index)
        return torch.randn(7, generator=draw) + 0.01 * torch.randn(7)  # augmented


def odd_parts(seed: int = 5) -> tuple[Odd, torch.optim.Optimizer, DataLoader[Tensor]]:
    torch.manual_seed(seed)
    model = Odd()
    return model, torch.optim.SGD(model.parameters(), 0.01), DataLoader(Rows(1600), 32)


def odd_loss(model: Odd, batch: Tensor) -> Tensor:
    loss: Tensor = ((model(batch[:, :6]) - batch[:, 6]) ** 2).mean()
    return loss


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["observe", "act"])
def test_buffers_counters_caches_and_noise_are_bitwise_the_plain_loops(
    tmp_path: Path, mode: Any
) -> None:
    model, optimizer, loader = odd_parts()
    plain: list[float] = []
    for _, batch in zip(range(40), loader, strict=False):
        optimizer.zero_grad()
        loss = odd_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        plain.append(loss.item())
    expected = (model.state_dict(), model.calls, model.cache, torch.get_rng_state())

    model, optimizer, loader = odd_parts()
    guard = Guard(
        model, optimizer, data=loader, run=tmp_path / "run", steps=40, mode=mode, policy=OFTEN,
        say=lambda _line: None,
    )  # fmt: skip
    losses = list(odd_steps(guard, model))
    assert [x for phase, x in losses if phase == "calm"] == plain
    found = (model.state_dict(), model.calls, model.cache, torch.get_rng_state())
    assert differences(list(expected), list(found)) == []
    assert len([1 for phase, _ in losses if phase == "probe"]) == 2 * 13 + 1
    readings = events_of(tmp_path / "run", "yardstick")
    assert [e.step for e in readings] == list(range(3, 40, 3))
    assert guard.wasted_steps == 0
    assert events_of(tmp_path / "run", "fault", "action") == []


def odd_steps(guard: Guard, model: Odd) -> Iterator[tuple[str, float]]:
    for batch in guard:
        phase = guard.phase
        assert model.training == (phase != "probe")
        loss = odd_loss(model, batch)
        guard.backward(loss)
        guard.step()
        yield phase, loss.item()


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in ("cnn-bn", "vae") else pytest.mark.slow) for n in FAMILIES],
)
def test_every_family_is_bitwise_the_plain_loop(tmp_path: Path, name: str) -> None:
    """Dropout, running statistics, noise of the model's own: ten kinds of models."""
    family, ends = FAMILIES[name], []
    for guarded in (False, True):
        torch.manual_seed(0)
        built = family.build()
        model = built.model.train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        samples = Samples(built.rows, built.num_rows, num_samples=64 * family.batch_size, seed=0)
        loader, losses = loader_of(samples, family.batch_size), []
        if guarded:
            guard = Guard(
                model, optimizer, data=loader, run=tmp_path / "run", steps=12, policy=OFTEN,
                say=lambda _line: None,
            )  # fmt: skip
            probed = 0
            for batch in guard:
                loss = built.loss(model, tuple(batch))
                if guard.phase == "probe":
                    probed += 1
                else:
                    losses.append(loss.item())
                guard.backward(loss)
                guard.step()
            assert probed == 2 * 4 + 1  # the first batch is handed out twice, once
            assert events_of(tmp_path / "run", "fault") == []
        else:
            for _, batch in zip(range(12), loader, strict=False):
                optimizer.zero_grad()
                loss = built.loss(model, tuple(batch))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.item())
        ends.append((losses, model.state_dict(), torch.get_rng_state()))
    assert differences(list(ends[0]), list(ends[1])) == []


class Hoarder(nn.Module):
    """State where `state_dict` does not look: containers, generators, objects, slots."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)
        self.noise = torch.Generator().manual_seed(1)
        self.dice = random.Random(2)
        self.draws = np.random.default_rng(3)
        self.history: list[float] = []
        self.counts: dict[str, Any] = {"calls": 0, "last": torch.zeros(1)}
        self.seen: set[int] = set()
        self.window: deque[float] = deque(maxlen=3)
        self.table = np.zeros(2)
        self.helper = Helper()
        self.bound = (self.helper, self.counts)  # one object in two places

    def forward(self, x: Tensor) -> Tensor:
        n = self.counts["calls"] = self.counts["calls"] + 1
        self.counts["last"] = x.detach().mean().reshape(1)
        self.history.append(float(x[0, 0]))
        self.window.append(float(x[0, 1]))
        self.seen.add(n % 7)
        self.table += n
        self.helper.total += 1
        if n % 5 == 0:
            self.extra = n
        jitter = torch.randn(x.shape, generator=self.noise) + self.dice.random()
        scale = 1e-3 * (len(self.history) + self.helper.total + float(self.table.sum()))
        scale += 1e-3 * (sum(self.window) + len(self.seen) + float(self.counts["last"]))
        out: Tensor = self.linear(x + 0.1 * jitter + 0.1 * self.draws.random()).squeeze(-1)
        return out + scale


class Helper:
    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class Drawn(Rows):
    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.own = torch.Generator().manual_seed(4)

    def __getitem__(self, index: int) -> Tensor:
        return super().__getitem__(index) + torch.randn(7, generator=self.own)


def hoard(run: Path | None, *, break_it: bool = False) -> tuple[list[float], Hoarder, Guard | None]:
    torch.manual_seed(0)
    model, masks = Hoarder(), torch.Generator().manual_seed(9)
    if break_it:
        vars(model)["stream"] = iter(range(10**9))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader, losses = DataLoader(Drawn(1600), 32), []

    def loss_of(batch: Tensor) -> Tensor:
        x = batch[:, :6] * (torch.rand(6, generator=masks) > 0.2)
        return cast("Tensor", ((model(x) - batch[:, 6]) ** 2).mean())

    if run is None:
        for _, batch in zip(range(24), loader, strict=False):
            optimizer.zero_grad()
            loss = loss_of(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
        return losses, model, None
    guard = Guard(
        model, optimizer, data=loader, run=run, steps=24, policy=OFTEN, say=lambda _line: None
    )
    for batch in guard:
        loss = loss_of(batch)
        if guard.phase == "calm":
            losses.append(loss.item())
        guard.backward(loss)
        guard.step()
    return losses, model, guard


def test_containers_and_generators_of_model_loop_and_data_are_put_back(tmp_path: Path) -> None:
    plain, expected, _ = hoard(None)
    losses, model, _ = hoard(tmp_path / "run")
    assert events_of(tmp_path / "run", "yardstick")
    assert losses == plain
    assert differences([expected.state_dict()], [model.state_dict()]) == []
    assert (model.history, model.counts["calls"], model.seen, model.helper.total) == (
        expected.history, expected.counts["calls"], expected.seen, expected.helper.total
    )  # fmt: skip
    assert model.bound == (model.helper, model.counts)
    assert model.bound[1] is model.counts


def test_what_cannot_be_put_back_switches_it_off_with_a_sentence(tmp_path: Path) -> None:
    plain, _, _ = hoard(None)
    losses, model, _ = hoard(tmp_path / "run", break_it=True)
    assert losses == plain
    assert next(vars(model)["stream"]) == 0
    notes = [str(e.data["text"]) for e in events_of(tmp_path / "run", "note")]
    assert [
        n for n in notes if "the yardstick is off: it could not put back" in n and "stream" in n
    ]
    assert events_of(tmp_path / "run", "yardstick") == []


def test_what_the_readings_say_is_recorded_with_the_next_row(tmp_path: Path) -> None:
    s = make(num_samples=4000)
    guard = guard_of(s, tmp_path / "run", steps=30, policy=OFTEN)
    for batch in guard:
        loss = s.loss(batch)
        guard.backward(loss)
        guard.step()
    rows = {r["step"]: r for r in rows_of(tmp_path / "run") if "yardstick_loss" in r}
    events = {e.step: e.data["losses"] for e in events_of(tmp_path / "run", "yardstick")}
    for step, losses in events.items():
        if step + 1 in rows:
            assert rows[step + 1]["yardstick_loss"] == pytest.approx(sum(losses) / len(losses))
    assert len(rows) >= 8
    (told,) = [e for e in events_of(tmp_path / "run", "note") if "yardstick" in e.data["text"]]
    assert "held out" in told.data["text"], "the run ends before it comes to them"


@pytest.mark.slow
def test_it_takes_the_share_of_the_steps_that_it_is_given(tmp_path: Path) -> None:
    s = make(num_samples=4000)
    guard = guard_of(
        s,
        tmp_path / "run",
        steps=170,
        policy=Policy(checkpoint_every_steps=1000, yardstick_share=0.01),
    )
    probed = 0
    for batch in guard:
        probed += guard.phase == "probe"
        loss = s.loss(batch)
        guard.backward(loss)
        guard.step()
    # a forward pass counts a third of a step
    assert 0 < probed / 3 <= 0.01 * 170


def test_by_default_it_is_off(tmp_path: Path) -> None:
    s = make()
    policy = Policy(snapshot_every_steps=3, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=12, policy=policy)
    for batch in guard:
        assert guard.phase == "calm"
        guard.backward(s.loss(batch))
        guard.step()
    assert events_of(tmp_path / "run", "yardstick") == []


def test_a_function_is_judged_by_the_good_direction_it_names(tmp_path: Path) -> None:
    plain = make(num_samples=4000)
    expected = train_plain(plain, 30)
    s = make(num_samples=4000)
    asked: list[bool] = []

    def accuracy() -> dict[str, tuple[float, str]]:
        asked.append(s.model.training)
        torch.rand(3)
        return {"accuracy": (0.5 + 0.001 * len(asked), "up"), "loss": (2.0, "down")}

    guard = guard_of(s, tmp_path / "run", steps=30, policy=OFTEN, validate=accuracy)
    losses = []
    for batch in guard:
        assert guard.phase == "calm", "the function reads by itself"
        loss = s.loss(batch)
        losses.append(loss.item())
        guard.backward(loss)
        guard.step()
    assert losses == expected
    assert differences(state_of(plain), state_of(s)) == []
    assert asked == [False] * 10
    first = events_of(tmp_path / "run", "yardstick")[0].data
    assert first["losses"] == [-0.501]
    assert first["metrics"] == {"accuracy": [0.501, "up"], "loss": [2.0, "down"]}


@pytest.mark.parametrize(("unit", "told"), [(1.0, True), (1000.0, False)])
def test_a_loss_of_the_users_own_is_judged_from_its_second_reading_in_the_units_of_training(
    unit: float, told: bool, tmp_path: Path
) -> None:
    s = make(num_samples=4000)
    asked: list[float] = []

    def held_out() -> float:
        # four readings, as of a validation that is dear: 2.1, 2, and then three times as much
        asked.append(unit * (2.1 - 0.1 * len(asked) if len(asked) < 2 else 6.0))
        return asked[-1]

    policy = Policy(yardstick_share=0.05, snapshot_every_steps=3, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=70, policy=policy, validate=held_out)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
    guard.close()
    read = events_of(tmp_path / "run", "yardstick")
    assert 3 <= len(read) <= 5
    assert {e.data["is_loss"] for e in read} == {told}
    kinds = {e.data["kind"] for e in events_of(tmp_path / "run", "incident")}
    assert ("held-out-worse" in kinds) is told


@pytest.mark.parametrize("given", [0.25, torch.tensor(0.25), {"f1": [0.75, "up"]}])
def test_a_number_that_a_function_returns_is_a_loss(given: object) -> None:
    assert checked_metrics(given) in ({"loss": (0.25, "down")}, {"f1": (0.75, "up")})


@pytest.mark.parametrize("given", ["0.25", None, {}, {"f1": 0.75}, [0.1, 0.2]])
def test_what_is_no_measure_is_refused_with_the_form_it_must_have(given: object) -> None:
    with pytest.raises(ValueError, match="must return a loss"):
        checked_metrics(given)


def test_a_function_that_raises_ends_no_training(tmp_path: Path) -> None:
    def broken() -> dict[str, tuple[float, str]]:
        raise RuntimeError("no such file")

    s = make()
    guard = guard_of(s, tmp_path / "run", steps=12, policy=OFTEN, validate=broken)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
    assert guard.step_number == 12
    (fault,) = events_of(tmp_path / "run", "fault")
    assert "no such file" in fault.data["error"]
    assert s.model.training


def test_what_is_neither_loader_nor_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="validate is int, expected a loader"):
        guard_of(make(), tmp_path / "run", steps=3, validate=3)


def test_a_loop_that_is_left_in_mid_reading_goes_on_in_train_mode(tmp_path: Path) -> None:
    s = make(num_samples=4000)
    guard = guard_of(s, tmp_path / "run", steps=20, policy=OFTEN)
    left = False
    while guard.step_number < 20:
        for batch in guard:
            if guard.phase == "probe" and not left:
                left = True
                break
            guard.backward(s.loss(batch))
            guard.step()
    assert left
    assert s.model.training
    assert events_of(tmp_path / "run", "fault") == []


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.02], ids=["read often", "read seldom"])
def test_damage_that_the_training_loss_does_not_show_is_found_and_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], share: float
) -> None:
    """Running statistics count in eval mode alone: the training loss stays as it is."""
    model, optimizer, _ = odd_parts()
    policy = Policy(
        yardstick_share=share, snapshot_every_steps=10, checkpoint_every_steps=1000, trial_steps=16,
        checkpoint_in_background=False,
    )  # fmt: skip
    guard = Guard(
        model, optimizer, data=DataLoader(Rows(4000), 16), run=tmp_path / "run", steps=160,
        mode="act", policy=policy, say=lambda _line: None,
    )  # fmt: skip
    done = False
    norm = model.inner[1]
    assert isinstance(norm, nn.BatchNorm1d)
    for batch in guard:
        if guard.phase == "calm" and guard.step_number == 104 and not done:
            done = True
            assert norm.running_var is not None
            norm.running_var.mul_(1e-6)
            norm.momentum = 0.0  # no later step heals it
        guard.backward(odd_loss(model, batch))
        guard.step()
    kinds = {e.data["kind"] for e in events_of(tmp_path / "run", "finding")}
    assert "held-out-worse" in kinds
    (action,) = (e.data for e in events_of(tmp_path / "run", "action"))
    assert str(action["remedy"]).startswith("roll-back")
    # a change between two readings is gone back from, and not the last good reading
    assert action["values"]["to_step"] >= 90
    capsys.readouterr()
    main(["watch", str(tmp_path / "run"), "--interval", "0.1", "--until-idle", "0.5"])
    last = capsys.readouterr().out.splitlines()[-1]
    if share == 1.0:  # else the run ends before the remedy is verified
        # a slow step of the machine may be noted besides
        assert "none ongoing" in last
        assert "1 dealt with" in last
    assert norm.running_var is not None
    assert float(norm.running_var.min()) > 1e-3
    assert guard.step_number == 160


@pytest.mark.slow
def test_a_loss_that_is_only_counted_otherwise_is_left_alone(tmp_path: Path) -> None:
    s = make(num_samples=40_000, dropout=0.0)
    policy = Policy(
        checkpoint_every_steps=1000, checkpoint_in_background=False, yardstick_share=0.01
    )
    guard = guard_of(s, tmp_path / "run", steps=220, mode="act", policy=policy)
    for batch in guard:
        factor = 3.0 if guard.step_number >= 120 else 1.0
        guard.backward(factor * s.loss(batch))
        guard.step()
    told = [json.loads(json.dumps(e.data)) for e in events_of(tmp_path / "run", "decision")]
    assert "leave alone" in [d["what"] for d in told]
    assert events_of(tmp_path / "run", "action") == []
    assert guard.wasted_steps == 0
    assert math.isfinite(guard.last_norm)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_a_root_that_fsdp_keeps_gathered_trains_on_after_a_reading(tmp_path: Path) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("torch before 2.6")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        s = make(schedule="none")
        fsdp.fully_shard(s.model.hidden)
        fsdp.fully_shard(s.model)
        s.optimizer = torch.optim.AdamW(s.model.parameters(), lr=1e-3)
        policy = Policy(yardstick_share=1.0, snapshot_every_steps=5, checkpoint_in_background=False)
        guard = guard_of(s, tmp_path / "run", steps=12, mode="act", policy=policy)
        phases = []
        for batch in guard:
            phases.append(guard.phase)
            guard.backward(s.loss(batch))
            guard.step()
        assert "probe" in phases
        assert guard.step_number == 12
    finally:
        dist.destroy_process_group()


class Turned(Dataset[tuple[Tensor, Tensor]]):
    """A sum that is to be learned, and from an item on its negative."""

    def __init__(self, turns_at: int, count: int = 16 * 220) -> None:
        draw = torch.Generator().manual_seed(4)
        self.x = torch.randn(count, 6, generator=draw)
        self.y = self.x.sum(1) + 0.1 * torch.randn(count, generator=draw)
        self.y[turns_at:] *= -1

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


@pytest.mark.parametrize("turns_at", [16 * 120, 16 * 200])
def test_batches_of_another_kind_of_data_raise_no_alarm_while_what_is_fed_is_learned(
    tmp_path: Path, turns_at: int
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    policy = Policy(yardstick_share=0.2, snapshot_every_steps=10, checkpoint_in_background=False)
    guard = guard_of_parts(model, optimizer, Turned(turns_at), tmp_path / "run", policy)
    for x, y in guard:
        guard.backward((model(x).squeeze(1) - y).square().mean())
        guard.step()
    assert guard.wasted_steps == 0
    told = {str(e.data["kind"]) for e in events_of(tmp_path / "run", "incident")}
    assert "held-out-worse" not in told
    notes = [str(e.data["text"]) for e in events_of(tmp_path / "run", "note")]
    assert sum("another kind of data" in n for n in notes) == 1
    assert sum("judged again" in n for n in notes) == (turns_at == 16 * 120)


def test_a_batch_unlike_what_is_fed_and_unlike_the_others_is_left_out_also_after_a_restart(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    policy = Policy(
        yardstick_share=0.2,
        snapshot_every_steps=10,
        checkpoint_every_steps=60,
        checkpoint_in_background=False,
    )
    for last in (90, 200):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        guard = guard_of_parts(model, optimizer, Turned(16 * 219), run, policy)
        for x, y in guard:
            guard.backward((model(x).squeeze(1) - y).square().mean())
            guard.step()
            if guard.step_number == last:
                break
        guard.close()
    notes = [str(e.data["text"]) for e in events_of(run, "note")]
    (told,) = [n for n in notes if "another kind of data" in n]
    assert told.startswith("1 of 2 fixed batches left out")
    assert not [n for n in notes if "new series" in n]
    read = events_of(run, "yardstick")
    assert {len(e.data["losses"]) for e in read if e.step > 20} == {1}
    named = [e.data["samples"] for e in read if "samples" in e.data]
    assert named[-1] == [list(range(16 * 218, 16 * 219))]
    assert not [e for e in events_of(run, "incident") if e.data["kind"] == "held-out-worse"]
    by_step = {e.step: e.data["losses"] for e in read}
    assert max(by_step) > 90
    assert by_step[max(by_step)][0] < 0.2


def own_steps(run: Path | None, how: str) -> tuple[list[float], list[float], float, list[str]]:
    """Train with what the loop steps by itself; return losses, rates, averages and notes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=61)
    average = torch.optim.swa_utils.AveragedModel(model)
    policy = Policy(yardstick_share=0.2, snapshot_every_steps=10, checkpoint_in_background=False)
    losses, rates = list[float](), list[float]()
    data, loader = Turned(16 * 220), DataLoader(Turned(16 * 220), 16)
    guard = None if run is None else guard_of_parts(model, optimizer, data, run, policy, steps=60)

    def body(step: Callable[[], object]) -> None:
        step()
        if how == "schedule":
            scheduler.step()
        if how == "average":
            average.update_parameters(model)
        rates.append(optimizer.param_groups[0]["lr"])

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = (model(x).squeeze(1) - y).square().mean()
        return loss

    if guard is None or run is None:
        for (x, y), _ in zip(loader, range(60), strict=False):
            optimizer.zero_grad()
            loss = loss_of(x, y)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
            body(optimizer.step)
        return losses, rates, sum(p.sum().item() for p in average.parameters()), []
    for x, y in guard:
        loss = loss_of(x, y)
        if guard.phase != "probe":
            losses.append(loss.item())
        guard.backward(loss)
        body(guard.step)
    notes = [str(e.data["text"]) for e in events_of(run, "note")]
    return losses, rates, sum(p.sum().item() for p in average.parameters()), notes


@pytest.mark.parametrize(("how", "named"), [("schedule", "OneCycleLR"), ("average", "Averaged")])
def test_what_the_loop_steps_by_itself_is_put_back_after_a_reading(
    tmp_path: Path, how: str, named: str
) -> None:
    plain, _, average, _ = own_steps(None, how)
    guarded, _, same_average, notes = own_steps(tmp_path / "run", how)
    assert guarded == plain
    assert same_average == average
    assert len([n for n in notes if "the loop steps" in n and named in n]) == 1


def test_a_rate_that_is_set_by_a_count_of_batches_is_put_back_and_said(tmp_path: Path) -> None:
    s = make(num_samples=4000)
    guard = guard_of(s, tmp_path / "run", steps=12, policy=OFTEN)
    for number, batch in enumerate(guard):
        if guard.phase == "probe":
            s.optimizer.param_groups[0]["lr"] = 100.0 + number
        guard.backward(s.loss(batch))
        guard.step()
        assert s.optimizer.param_groups[0]["lr"] < 1
    notes = [str(e.data["text"]) for e in events_of(tmp_path / "run", "note")]
    assert len([n for n in notes if "Go by guard.step_number" in n]) == 1


def guard_of_parts(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    run: Path,
    policy: Policy,
    steps: int = 200,
) -> Guard:
    return Guard(
        model,
        optimizer,
        data=DataLoader(data, 16),
        steps=steps,
        run=run,
        mode="act",
        policy=policy,
        say=lambda _line: None,
    )
