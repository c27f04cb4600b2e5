"""Snapshots within a stated budget: fewer, on a disk, shared where nothing trains, or refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.guard.inner import inner
from trimtab.errors import ConfigError
from trimtab.guard import Guard
from trimtab.guard.state.host_memory import free_host_bytes
from trimtab.guard.state.state_copy import fingerprint, state_bytes
from trimtab.plan.guard_costs import GIB, GuardLoad, guard_cost
from trimtab.plan.policy import Policy

WIDTH = 96


class Adapted(nn.Module):
    """A frozen base with a small part that trains, as LoRA has."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, 4 * WIDTH)
        self.out = nn.Linear(4 * WIDTH, WIDTH)
        self.low = nn.Linear(WIDTH, WIDTH)
        self.table: Tensor
        self.register_buffer("table", torch.randn(WIDTH, 4 * WIDTH))
        if frozen:
            self.base.requires_grad_(False)
            self.out.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.tanh(self.base(x) + x @ self.table)) + self.low(x)
        return out


def run_of(
    folder: Path, *, frozen: bool = False, steps: int = 60, **policy: Any
) -> tuple[Guard, Adapted, list[str]]:
    torch.manual_seed(0)
    model = Adapted(frozen=frozen)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    said: list[str] = []
    loader: Any = DataLoader(TensorDataset(torch.randn(512, WIDTH)), batch_size=4)
    guard = Guard(
        model,
        optimizer,
        data=loader,
        steps=steps,
        run=folder / "run",
        mode="act",
        policy=Policy(snapshot_every_steps=2, checkpoint_in_background=False, **policy),
        say=said.append,
    )
    return guard, model, said


def train(guard: Guard, model: nn.Module) -> None:
    for (batch,) in guard:
        guard.backward((model(batch) - batch).square().mean())
        guard.step()


def snapshot_bytes(frozen: bool, tmp_path: Path) -> int:
    guard, model, _ = run_of(tmp_path, frozen=frozen, steps=4)
    train(guard, model)
    newest = inner(guard).parts.points.ring.items[-1]
    return state_bytes(newest.payload, without=inner(guard).parts.state.copier.held)


def test_without_a_budget_in_the_way_sixteen_are_kept(tmp_path: Path) -> None:
    guard, model, said = run_of(tmp_path)
    train(guard, model)
    assert len(inner(guard).parts.points.ring.items) == 16
    assert not [line for line in said if "snapshots:" in line]


@pytest.mark.slow
def test_fewer_are_kept_where_no_more_fit(tmp_path: Path) -> None:
    one = snapshot_bytes(False, tmp_path / "a")
    guard, model, said = run_of(tmp_path / "b", snapshot_memory_gib=4.7 * one / GIB)
    held: list[int] = []
    for (batch,) in guard:
        guard.backward((model(batch) - batch).square().mean())
        guard.step()
        ring = inner(guard).parts.points.ring.items
        held.append(
            sum(state_bytes(s.payload, without=inner(guard).parts.state.copier.held) for s in ring)
            + state_bytes(inner(guard).parts.state.copier.held)
        )
    assert max(held) <= 4.7 * one
    steps = [s.step for s in inner(guard).parts.points.ring.items]
    assert len(steps) in (3, 4)
    assert steps[-1] == 60
    told = [line for line in said if "snapshots:" in line]
    assert len(told) == 1
    assert "of 16 are kept in memory: one snapshot holds" in told[0]


def test_a_snapshot_that_does_not_fit_is_refused_before_the_first_step(tmp_path: Path) -> None:
    one = snapshot_bytes(False, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"no snapshot fits.*one snapshot holds .* budget is"):
        run_of(tmp_path / "b", snapshot_memory_gib=0.9 * one / GIB)


def test_what_is_expected_before_the_first_step_is_what_a_snapshot_holds(tmp_path: Path) -> None:
    from trimtab.guard.state.snapshot_budget import needed_for

    for frozen in (False, True):
        guard, model, _ = run_of(tmp_path / str(frozen), frozen=frozen, steps=4)
        expected = needed_for(inner(guard).parts.training)
        train(guard, model)
        newest, shared = (
            inner(guard).parts.points.ring.items[-1],
            inner(guard).parts.state.copier.held,
        )
        assert state_bytes(newest.payload, without=shared) == pytest.approx(expected.own, rel=0.1)
        assert state_bytes(shared) == expected.shared
        plan = guard_cost(
            GuardLoad(
                params=sum(p.numel() for p in model.parameters()),
                trainable=sum(p.numel() for p in model.parameters() if p.requires_grad)
                / sum(p.numel() for p in model.parameters()),
            )
        )
        assert plan.snapshot == pytest.approx(expected.own, rel=0.15)


def test_frozen_weights_are_held_once_and_put_right(tmp_path: Path) -> None:
    guard, model, _ = run_of(tmp_path, frozen=True, steps=20)
    steps = iter(guard)
    for _ in range(10):
        (batch,) = next(steps)
        guard.backward((model(batch) - batch).square().mean())
        guard.step()
    ring = inner(guard).parts.points.ring.items
    copies = {s.training["model"]["base.weight"].data_ptr() for s in ring}
    assert len(copies) == 1
    assert len({s.training["model"]["low.weight"].data_ptr() for s in ring}) == len(ring)
    sound = model.base.weight.detach().clone()
    model.base.weight.data[0, 0] = -model.base.weight.data[0, 0]  # one bit of a frozen weight
    (batch,) = next(steps)
    guard.backward((model(batch) - batch).square().mean())
    guard.step()
    guard.control.roll_back(10, why="test", confirm=True)
    assert torch.equal(model.base.weight, sound)


def test_snapshots_on_a_disk_are_put_back_bit_for_bit(tmp_path: Path) -> None:
    one = snapshot_bytes(False, tmp_path / "a")
    disk = tmp_path / "disk"
    guard, model, said = run_of(
        tmp_path / "b", spill_to=str(disk), snapshot_memory_gib=2.2 * one / GIB
    )
    steps = iter(guard)
    states: dict[int, dict[str, Tensor]] = {}
    for step in range(1, 41):
        (batch,) = next(steps)
        guard.backward((model(batch) - batch).square().mean())
        guard.step()
        states[step] = {k: v.clone() for k, v in model.state_dict().items()}
    points = inner(guard).parts.points
    assert len(points.ring.items) == 16
    assert sum(s.in_memory for s in points.ring.items) <= 2
    assert not [line for line in said if "spill" in line]
    for step in (30, 20):
        guard.control.roll_back(step, why="test", confirm=True)
        now = guard.step_number
        assert now == step
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, states[now][name])
    guard.close()
    files = list(disk.rglob("*.bin"))
    assert 1 <= len(files) <= 17
    del guard, points
    assert [f for f in disk.rglob("*.bin") if f not in files] == []


def test_a_snapshot_that_a_disk_has_damaged_is_refused(tmp_path: Path) -> None:
    from trimtab.errors import ActError

    guard, model, _ = run_of(tmp_path, spill_to=str(tmp_path / "disk"), steps=10)
    train(guard, model)
    points = inner(guard).parts.points
    for path in (tmp_path / "disk").rglob("*.bin"):
        raw = bytearray(path.read_bytes())
        raw[100] ^= 1
        path.write_bytes(raw)
    snapshot = points.ring.items[0]
    with pytest.raises(ActError, match="not what was written"):
        _ = snapshot.training


def test_a_fingerprint_sees_one_bit_and_a_swap() -> None:
    tensor = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    flipped, swapped = tensor.clone(), tensor.clone()
    flipped.view(torch.int32)[1234] ^= 1
    swapped[[5, 77]] = swapped[[77, 5]]
    marks = {fingerprint(t) for t in (tensor, flipped, swapped, tensor.half())}
    assert len(marks) == 4
    assert fingerprint(tensor.clone()) in marks
    assert fingerprint(torch.zeros(0)) == fingerprint(torch.zeros(0))


def test_free_memory_is_what_the_control_group_leaves(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable:   64000 kB\n")
    assert free_host_bytes(meminfo=meminfo, cgroup=tmp_path / "none") == 64000 * 1024
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.max").write_text("20000000\n")
    (group / "memory.current").write_text("15000000\n")
    (group / "memory.stat").write_text("anon 1\ninactive_file 2000000\n")
    assert free_host_bytes(meminfo=meminfo, cgroup=group) == 7_000_000
    (group / "memory.max").write_text("max\n")
    assert free_host_bytes(meminfo=meminfo, cgroup=group) == 64000 * 1024
