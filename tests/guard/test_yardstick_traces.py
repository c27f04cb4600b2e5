"""A reading leaves no trace: calls by hand, written parameters, hidden state, kills."""

import functools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from tests.guard.inner import inner
from tests.guard.tiny import VOCAB, differences, events_of, guard_of, make, state_of
from trimtab.errors import ConfigError
from trimtab.guard import Guard
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

OFTEN = Policy(
    yardstick_share=1.0,
    snapshot_every_steps=3,
    checkpoint_every_steps=6,
    checkpoint_in_background=False,
)
"""A reading every three steps."""


def notes_of(run: Path) -> list[str]:
    return [str(e.data["text"]) for e in events_of(run, "note")]


# -- calls by hand --------------------------------------------------------------------------------


def test_calls_by_hand_in_a_reading_are_left_to_the_step(tmp_path: Path) -> None:
    s = make(num_samples=4000)
    guard = guard_of(s, tmp_path / "run", steps=8, policy=OFTEN)
    phases = []
    for batch in guard:
        before = guard.phase
        guard.backward(s.loss(batch))
        guard.step()
        assert guard.phase == before, "until the next batch, also after the last one of a reading"
        assert guard.probing == (before == "probe")
        if guard.step_number == 3:
            phases.append(before)
            guard.scale_lr(0.5, why="by hand")
            guard.control.tighten_clip(0.5, why="by hand")
            guard.skip_samples(3000, 3001, why="by hand")
            guard.checkpoint()
    assert phases == ["calm", "probe", "probe", "probe"], "the first batch twice, once"
    assert guard.lr_factor == 0.5
    actions = [e.data["remedy"] for e in events_of(tmp_path / "run", "action")]
    assert sorted(actions) == sorted({*actions})
    assert len(actions) == 3
    told = [n for n in notes_of(tmp_path / "run") if "left to the step itself" in n]
    assert len(told) == 1
    assert "scale_lr" in told[0]


@pytest.mark.parametrize("how", ["continue", "break"])
def test_a_batch_of_a_reading_without_a_step_gives_the_reading_up(tmp_path: Path, how: str) -> None:
    ends = []
    for name, policy in (("plain", Policy()), ("run", OFTEN)):
        setup = make(num_samples=4000)
        guard = guard_of(setup, tmp_path / name, steps=8, policy=policy)
        while guard.step_number < 8:
            for batch in guard:
                if guard.phase == "probe":
                    if how == "break":
                        break
                    continue
                guard.backward(setup.loss(batch))
                guard.step()
        assert setup.model.training
        ends.append(state_of(setup))
    assert differences(ends[0], ends[1]) == []
    notes = notes_of(tmp_path / "run")
    assert len([n for n in notes if "a reading of fixed batches was given up" in n]) == 1
    assert not [n for n in notes if "samples" in n]
    assert events_of(tmp_path / "run", "fault") == []


# -- what a forward pass changes ------------------------------------------------------------------


class Tracker:
    def __init__(self) -> None:
        self.n = 0

    def hook(self, _module: nn.Module, _args: object, out: Tensor) -> Tensor:
        self.n += 1
        return out * (1 + 1e-2 * (self.n % 7))


class Counted(dict[str, int]):
    n = 0


def counting() -> Callable[[], int]:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    return count


class Noted(nn.Module):
    """Counts in places where attributes of the module do not lead at once."""

    def __init__(self, max_norm: float | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 8, max_norm=max_norm)
        self.output = nn.Linear(8, VOCAB)
        self.output.register_forward_hook(Tracker().hook)
        self.embedding.register_forward_hook(functools.partial(Tracker().hook))
        self.count = counting()
        self.table = Counted()

    def forward(self, tokens: Tensor) -> Tensor:
        self.table.n += 1
        out: Tensor = self.output(self.embedding(tokens))
        return out * (1 + 1e-2 * ((self.count() + self.table.n) % 5))


class Weighed(Noted):
    def forward(self, tokens: Tensor) -> Tensor:
        self.output.weight.data.mul_(0.999)
        return super().forward(tokens)


def drawing(seed: int) -> Callable[[], Tensor]:
    own = torch.Generator().manual_seed(seed)
    return lambda: torch.rand((), generator=own)


def train(build: Callable[[], Noted], run: Path, policy: Policy, steps: int = 10) -> Noted:
    torch.manual_seed(0)
    model, held, draw = build(), {"g": torch.Generator().manual_seed(1)}, drawing(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    guard = Guard(
        model, optimizer, data=make(num_samples=400).loader, run=run, steps=steps, policy=policy,
        say=lambda _line: None,
    )  # fmt: skip
    for batch in guard:
        loss = nn.functional.cross_entropy(
            model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
        )
        guard.backward(loss * (1 + torch.rand((), generator=held["g"]) + draw()))
        guard.step()
    return model


def test_hooks_closures_partials_and_held_generators_are_put_back(tmp_path: Path) -> None:
    expected = train(Noted, tmp_path / "plain", Policy())
    found = train(Noted, tmp_path / "run", OFTEN)
    assert differences([expected.state_dict()], [found.state_dict()]) == []
    assert [e.step for e in events_of(tmp_path / "run", "yardstick")] == [3, 6, 9]


@pytest.mark.parametrize("build", [lambda: Noted(0.5), Weighed])
def test_parameters_that_a_forward_pass_writes_are_put_back_and_named(
    tmp_path: Path, build: Callable[[], Noted]
) -> None:
    expected = train(build, tmp_path / "plain", Policy())
    found = train(build, tmp_path / "run", OFTEN)
    assert differences([expected.state_dict()], [found.state_dict()]) == []
    (told,) = [n for n in notes_of(tmp_path / "run") if "the yardstick is off" in n]
    assert "in place" in told
    assert re.search(r"(embedding|output)\.weight", told)
    assert "could not" not in told


class Late(Noted):
    """Writes into a parameter from its ninth forward pass in eval mode on."""

    def forward(self, tokens: Tensor) -> Tensor:
        self.lots = getattr(self, "lots", 0) + 1
        if self.lots > 6 and not self.training:
            with torch.no_grad():
                self.output.weight.mul_(0.999)
        return super().forward(tokens)


def test_a_parameter_that_is_written_later_is_said_to_be_changed(tmp_path: Path) -> None:
    train(Late, tmp_path / "run", OFTEN)
    (told,) = [n for n in notes_of(tmp_path / "run") if "the yardstick is off" in n]
    assert "could not be put back" in told
    assert "output.weight" in told


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    model = torch.jit.trace(nn.Linear(2, 1), torch.zeros(1, 2))  # type: ignore[no-untyped-call]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ConfigError, match="ScriptModule"):
        Guard(model, optimizer, data=make().loader, run=tmp_path / "run", steps=1)


# -- killed and resumed ---------------------------------------------------------------------------


class Stream(IterableDataset[Tensor]):
    """Its first samples are of another kind than the rest."""

    def __iter__(self) -> Iterator[Tensor]:
        draw = torch.Generator().manual_seed(4)
        for i in range(4000):
            high = 2 if i < 8 else VOCAB
            yield torch.randint(0, high, (7,), generator=draw)


def losses_of(run: Path) -> list[tuple[int, list[float], float | None]]:
    return [(e.step, e.data["losses"], e.data.get("rise")) for e in events_of(run, "yardstick")]


def run_once(run: Path, *, stream: bool, killed_at: int | None) -> None:
    s = make(num_samples=42, shuffle=True)
    if stream:
        s.loader = DataLoader(Stream(), 4)
    guard = guard_of(s, run, steps=19, policy=OFTEN)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
        if guard.step_number == killed_at:
            inner(guard).recorder.write_events()
            guard.close()
            return


def resumed(tmp_path: Path, *, stream: bool) -> tuple[Any, Any]:
    run_once(tmp_path / "whole", stream=stream, killed_at=None)
    run_once(tmp_path / "cut", stream=stream, killed_at=13)
    before = len(losses_of(tmp_path / "cut"))
    assert before >= 3
    run_once(tmp_path / "cut", stream=stream, killed_at=None)
    return losses_of(tmp_path / "whole"), losses_of(tmp_path / "cut")[before:]


@pytest.mark.slow
def test_after_a_kill_the_same_batches_are_read(tmp_path: Path) -> None:
    whole, after = resumed(tmp_path, stream=False)
    assert after
    assert after == [x for x in whole if x[0] >= after[0][0]]
    assert not [n for n in notes_of(tmp_path / "cut") if "new series" in n]


@pytest.mark.slow
def test_other_batches_after_a_kill_begin_a_new_series(tmp_path: Path) -> None:
    whole, after = resumed(tmp_path, stream=True)
    assert after[0][2] is None or math.isnan(after[0][2]), "nothing to compare it with"
    assert after[0][1] != {s: x for s, x, _ in whole}[after[0][0]]
    assert len([n for n in notes_of(tmp_path / "cut") if "new series" in n]) == 1


# -- memory ---------------------------------------------------------------------------------------


def test_a_reading_that_finds_no_memory_is_given_up_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Tensor:
        raise torch.OutOfMemoryError("no memory for a copy")

    monkeypatch.setattr("trimtab.guard.yardstick.isolation._on_host", full)
    s = make(num_samples=4000)
    guard = guard_of(s, tmp_path / "run", steps=8, policy=OFTEN)
    for batch in guard:
        assert guard.phase == "calm"
        guard.backward(s.loss(batch))
        guard.step()
    assert guard.step_number == 8
    told = "\n".join(str(e.data) for e in events_of(tmp_path / "run"))
    assert "the guard goes on without a yardstick" in told
