"""What a run says of itself: the order of its data, its layout, seeds, flags and rates in force."""

import random
import tomllib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from tests.guard.crowd import Job, run_crowd
from tests.guard.inner import inner
from tests.guard.tiny import (
    Sequences,
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
from trimtab.analysis.settings_diff import diff, flat_config
from trimtab.cli import main
from trimtab.errors import ConfigError
from trimtab.guard import seed_all
from trimtab.guard.recording.environment import reproducibility
from trimtab.plan.policy import Policy
from trimtab.readers.rundir import read_run_directory
from trimtab.signals.rates import fit_envelope, lr_history

pytestmark = pytest.mark.torch


def run_with_seed(run: Path, seed: int, *, steps: int = 14, until: int | None = None) -> Setup:
    """Train on an order that a sampler's own seed decides."""
    s = make()
    data = Sequences(42)
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(
        data, 1, 0, shuffle=True, seed=seed
    )
    s.loader = DataLoader(data, batch_size=4, sampler=sampler)
    guard = guard_of(
        s, run, steps=steps, policy=Policy(checkpoint_every_steps=5, checkpoint_in_background=False)
    )
    train_guarded(s, guard, until=until)
    guard.close()
    return s


def compared(capsys: pytest.CaptureFixture[str], a: Path, b: Path) -> str:
    assert main(["compare", str(a), str(b)]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.covers("S68")
def test_another_seed_is_a_change_of_the_data_order_that_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with_seed(tmp_path / "a", 42)
    run_with_seed(tmp_path / "b", 43)
    hashes = [flat_config(tmp_path / run / "run.toml")["data_order"] for run in "ab"]
    said = compared(capsys, tmp_path / "a", tmp_path / "b")
    assert f"● the data order changed: {hashes[0]} in" in said
    assert hashes[1] in said
    assert "identical" not in said


@pytest.mark.covers("S68")
def test_another_seed_at_a_resume_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with_seed(tmp_path / "run", 42, until=7)
    run_with_seed(tmp_path / "run", 42, until=9)
    assert events_of(tmp_path / "run", "note") == []
    run_with_seed(tmp_path / "run", 43)
    (note,) = events_of(tmp_path / "run", "note")
    assert "the data order changed: epoch 0 was" in note.data["text"]


@pytest.mark.covers("S193")
def test_dropout_of_embeddings_is_in_the_run_record_and_its_change_in_the_diff(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, p in (("a", 0.1), ("b", 0.0)):
        s = make()
        s.model.embedding = nn.Sequential(s.model.embedding, nn.Dropout(p))  # type: ignore[assignment]
        guard = guard_of(s, tmp_path / name, steps=3)
        train_guarded(s, guard)
        told = flat_config(tmp_path / name / "run.toml")["embedding_dropout"]
        assert float(str(told)) == p
    said = compared(capsys, tmp_path / "a", tmp_path / "b")
    assert "embedding_dropout" in said


@pytest.mark.covers("S88")
def test_one_seed_twice_gives_the_same_first_fifty_losses(tmp_path: Path) -> None:
    losses = []
    for name in "ab":
        s = make(dropout=0.2, shuffle=True)
        train_guarded(s, guard_of(s, tmp_path / name, steps=50))
        losses.append([row["loss"] for row in rows_of(tmp_path / name)])
    assert len(losses[0]) == 50
    assert losses[0] == losses[1]


@pytest.mark.covers("S69")
def test_the_same_seed_is_data_in_identical_order_by_its_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with_seed(tmp_path / "a", 43)
    run_with_seed(tmp_path / "b", 43)
    told = flat_config(tmp_path / "a" / "run.toml")["data_order"]
    said = compared(capsys, tmp_path / "a", tmp_path / "b")
    assert f"data order identical ({told})" in said
    assert "order changed" not in said


@pytest.mark.covers("S259")
@pytest.mark.parametrize(
    ("layout", "world", "sizes"),
    [
        ("alone", 1, (1, 1)),
        pytest.param("fsdp+tp", 4, (2, 2), marks=pytest.mark.slow),
        pytest.param("ddp", 2, (2, 1), marks=pytest.mark.slow),
        pytest.param("tp", 2, (1, 2), marks=pytest.mark.slow),
    ],
)
def test_the_layout_stands_in_the_run_record_and_in_the_diff(
    tmp_path: Path,
    layout: Any,
    world: int,
    sizes: tuple[int, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_crowd(tmp_path, world, Job(layout, 6)) == [0] * world
    written = tomllib.loads((tmp_path / "run" / "run.toml").read_text("utf-8"))
    assert written["world_size"] == world
    assert (written["data_parallel_size"], written["tensor_parallel_size"]) == sizes
    assert written["pipeline_parallel_size"] == 1
    large, small = tmp_path / "large", tmp_path / "small"  # as many ranks as no test has
    for folder, ranks in ((large, 1024), (small, 512)):
        folder.mkdir()
        text = (tmp_path / "run" / "run.toml").read_text("utf-8")
        text = text.replace(f"world_size = {world}", f"world_size = {ranks}")
        (folder / "run.toml").write_text(text)
    (change,) = diff(flat_config(large / "run.toml"), flat_config(small / "run.toml"))
    assert (change.key, change.a, change.b) == ("world_size", "1024", "512")


@pytest.mark.slow
def test_a_later_attempt_on_other_ranks_is_named_by_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_crowd(tmp_path, 2, Job("fsdp", 20)) == [0, 0]
    assert run_crowd(tmp_path, 1, Job("alone", 30)) == [0]
    run = tmp_path / "run"
    assert main(["compare", f"{run}@1.0", f"{run}@1.1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "world_size 2 1" in said


class Ramp(torch.utils.data.Sampler[list[int]]):
    """Batches of 192 samples, 64 more with each, up to 2048."""

    sizes = tuple(range(192, 2049, 64))

    def __iter__(self) -> Iterator[list[int]]:
        first = 0
        for size in self.sizes:
            yield list(range(first, first + size))
            first += size

    def __len__(self) -> int:
        return len(self.sizes)


@pytest.mark.covers("S10")
def test_a_batch_ramp_is_recorded_step_by_step(tmp_path: Path) -> None:
    s = make()
    s.loader = DataLoader(Sequences(sum(Ramp.sizes)), batch_sampler=Ramp())
    train_guarded(s, guard_of(s, tmp_path / "run"))
    record = read_run_directory(tmp_path / "run")
    assert tuple(record.columns["batch_size"].values) == Ramp.sizes
    assert list(record.columns["samples_seen"].values) == list(np.cumsum(Ramp.sizes))


def test_seeds_and_flags_stand_in_the_run_record(tmp_path: Path) -> None:
    s = make(seed=11)
    train_guarded(s, guard_of(s, tmp_path / "run", steps=2))
    written = tomllib.loads((tmp_path / "run" / "run.toml").read_text("utf-8"))
    assert written["seed"] == 11
    assert written["deterministic_algorithms"] == "off"
    assert written["local_batch_size"] == 4
    assert {"python", "numpy", "torch", "threads", "hash_seed"} <= set(written)


@pytest.mark.covers("S235")
def test_seed_all_makes_two_runs_the_same_and_reports_the_flags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))  # noqa: NPY002

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = reproducibility()["deterministic_algorithms"]
    first = seed_all(5)
    one = draws()
    assert seed_all(5) == first
    assert draws() == one
    seed_all(6)
    other = draws()
    assert all(a != b for a, b in zip(one, other, strict=True))
    assert first["seed"] == 5
    assert first["deterministic_algorithms"] == before
    try:
        strict = seed_all(5, deterministic=True)
        assert strict["deterministic_algorithms"] == "on"
        assert strict["cudnn_benchmark"] == "off"
        assert draws() == one
    finally:
        torch.use_deterministic_algorithms(mode=False)
    for seed in (-1, 2**32, True, 1.5):
        with pytest.raises(ConfigError, match="seed is"):
            seed_all(seed)  # type: ignore[arg-type]


@pytest.mark.covers("S117")
def test_the_rates_in_force_are_exported_with_the_curve_they_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s = make(schedule="none", lr=1e-2)
    guard = guard_of(s, tmp_path / "run", steps=40)
    train_guarded(s, guard, until=9)
    guard.scale_lr(0.5, why="a test")
    train_guarded(s, guard, until=25)
    guard.scale_lr(0.1, why="a test")
    train_guarded(s, guard)
    out = tmp_path / "rates.csv"
    assert main(["inspect", str(tmp_path / "run"), "--lr-history", str(out)]) == 0
    lines = out.read_text("utf-8").splitlines()
    assert lines[0] == "# follows no usual curve"
    assert lines[1] == "step,lr,curve"
    rates = {int(step): float(lr) for step, lr, _ in (line.split(",") for line in lines[2:])}
    assert rates == {n: 1e-2 if n <= 9 else 5e-3 if n <= 25 else 5e-4 for n in range(1, 41)}


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "inverse-sqrt"])
def test_a_curve_is_named_through_noise(kind: str) -> None:
    steps = np.arange(1.0, 401.0)
    warm = np.minimum(steps / 40, 1.0)
    u = np.clip((steps - 40) / 360, 0, 1)
    shape = {
        "constant": np.ones(400),
        "linear": 1 - 0.9 * u,
        "cosine": 0.55 + 0.45 * np.cos(np.pi * u),
        "inverse-sqrt": np.sqrt(40 / np.maximum(steps, 40)),
    }[kind]
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal(400)
    found = fit_envelope(steps, 3e-4 * warm * shape * noise)
    assert found is not None
    assert found.kind == kind
    assert found.error == pytest.approx(0.01, abs=0.005)
    assert fit_envelope(steps[:5], steps[:5]) is None
    assert fit_envelope(steps, np.zeros(400)) is None


def test_a_history_leaves_out_what_was_rolled_back(tmp_path: Path) -> None:
    run_with_seed(tmp_path / "run", 42, until=8)
    run_with_seed(tmp_path / "run", 42)
    steps, rates = lr_history(read_run_directory(tmp_path / "run"))
    assert list(steps) == list(range(1, 15))
    assert len(rates) == 14


@pytest.mark.covers("S24")
def test_a_weight_decay_that_is_a_function_of_the_step_is_in_force_and_recorded(
    tmp_path: Path,
) -> None:
    def wd(step: int) -> float:
        return 0.1 + 0.01 * step

    plain, steps = make(), count(1)

    def set_it(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        optimizer.param_groups[0]["weight_decay"] = wd(next(steps))

    plain.optimizer.register_step_pre_hook(set_it)
    expected = train_plain(plain, 20)
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=20)
    guard.schedule_weight_decay(wd, why="a test")
    train_guarded(s, guard, until=12)
    guard.checkpoint()
    guard.close()
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=20)
    with pytest.raises(ConfigError, match="weight decay follows a schedule since step 1"):
        train_guarded(s, guard)
    guard.close()
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=20)
    guard.schedule_weight_decay(wd, why="a test")
    assert train_guarded(s, guard) == expected[12:]
    rows = rows_of(tmp_path / "run") + rows_of(tmp_path / "run", "1.2")
    assert [r["weight_decay"] for r in rows] == pytest.approx([wd(n) for n in range(1, 21)])
    assert s.optimizer.param_groups[0]["weight_decay"] == wd(20)
    assert s.optimizer.param_groups[1]["weight_decay"] == 0.0
    assert differences(state_of(plain)["model"], state_of(s)["model"]) == []


def test_a_weight_decay_schedule_that_gives_none_is_refused(tmp_path: Path) -> None:
    guard = guard_of(make(), tmp_path / "run", steps=5)
    for bad in (-0.1, float("nan"), "much"):
        with pytest.raises(ConfigError, match="schedule_weight_decay: the schedule gives"):
            guard.schedule_weight_decay(lambda _, x=bad: x, why="a test")  # type: ignore[misc]
    assert inner(guard).parts.rates.weight_decay is None
    guard.close()


class Shifted(Dataset[torch.Tensor]):
    """Other samples: what `Sequences` gives, shifted by five."""

    def __init__(self, num_samples: int) -> None:
        self.inner = Sequences(num_samples)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.inner[index] + 5) % 13


@pytest.mark.covers("S111")
def test_a_new_seed_at_a_restart_is_applied_and_logged_and_the_order_is_another(
    tmp_path: Path,
) -> None:
    def loader(seed: int) -> DataLoader[torch.Tensor]:
        drawn = torch.Generator().manual_seed(seed)
        return DataLoader(Sequences(42), batch_size=4, shuffle=True, generator=drawn)

    s = make()
    s.loader = loader(42)
    guard = guard_of(s, tmp_path / "run", steps=20)
    train_guarded(s, guard, until=5)
    guard.checkpoint()
    guard.close()
    s = make()
    s.loader = loader(42)
    guard = guard_of(s, tmp_path / "run", steps=20)
    seen: list[torch.Tensor] = []
    guard.change_data(loader(43), why="roll back, new seed 43")
    train_guarded(s, guard, until=8, on_batch=lambda _, b: seen.append(b.clone()))
    expected = [b for b, _ in zip(loader(43), range(3), strict=False)]
    assert torch.equal(torch.cat(seen), torch.cat(expected))
    (action,) = events_of(tmp_path / "run", "action")
    assert action.data["values"]["seed"] == 43
    assert action.data["why"] == "roll back, new seed 43"
    order = inner(guard).parts.data.fingerprint
    assert order
    assert order != action.data["values"]["order_before"]


@pytest.mark.covers("S125")
def test_another_shard_is_fed_from_the_next_batch_on_and_recorded(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []
    s = make()
    other = DataLoader(Shifted(24), batch_size=4)
    policy = Policy(mode="act", snapshot_every_steps=2, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=30, policy=policy)

    def note(_guard: Any, batch: torch.Tensor) -> None:
        seen.append(batch.clone())

    train_guarded(s, guard, until=7, on_batch=note)
    assert guard.change_data(other, why="the first shard is bad") == 28
    train_guarded(s, guard, until=10, on_batch=note)
    first, second = Sequences(42).tokens[:28], (Sequences(24).tokens[:12] + 5) % 13
    assert torch.equal(torch.cat(seen), torch.cat([first, second]))
    (action,) = events_of(tmp_path / "run", "action")
    assert action.data["remedy"] == "change-data"
    values = action.data["values"]
    assert (values["first_sample"], values["dataset"]) == (28, "Shifted")
    back = next(x for x in reversed(inner(guard).engine.ring.items) if x.step <= 6)
    seen.clear()
    inner(guard).engine.restore(back)  # as a rollback to before the change does
    train_guarded(s, guard, until=9, on_batch=note)
    assert torch.equal(torch.cat(seen), torch.cat([first[24:], second[:8]]))
    guard.checkpoint()
    guard.close()
    s = make()
    s.loader = other
    guard = guard_of(s, tmp_path / "run", steps=30)
    seen.clear()
    train_guarded(s, guard, until=10, on_batch=note)
    assert torch.equal(torch.cat(seen), second[8:12])
    assert events_of(tmp_path / "run", "note") == []
    guard.close()
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=30)  # the old shard, by mistake
    guard.close()
    assert any("data" in e.data["text"] for e in events_of(tmp_path / "run", "note"))
