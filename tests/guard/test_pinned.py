"""Copies in pinned memory: where they lie, and that they are the same; a GPU is not needed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.guard.tiny import differences, events_of, guard_of, make, train_guarded
from trimtab.guard.state import pinned, training_state
from trimtab.guard.state.pinned import PinnedCopies, places
from trimtab.guard.state.serialization import clone


@given(st.lists(st.integers(1, 5 << 20), max_size=60), st.integers(0, 8))
@settings(deadline=None)
def test_places_lie_apart_in_pieces_that_are_well_filled(sizes: list[int], shift: int) -> None:
    sizes = [size << shift for size in sizes]
    pieces, found = places(sizes)
    assert all(piece & (piece - 1) == 0 for piece in pieces)
    for number, piece in enumerate(pieces):
        mine = sorted(
            (place[1], size)
            for place, size in zip(found, sizes, strict=True)
            if place is not None and place[0] == number
        )
        assert mine
        ends = [at + size for at, size in mine]
        assert ends[-1] <= piece
        assert all(end <= at for end, (at, _) in zip(ends, mine[1:], strict=False))
        assert all(at % 512 == 0 for at, _ in mine)
        filled = sum(size + 511 for _, size in mine)
        assert piece <= max(1.25 * filled, 1 << 26)
    left = [size for place, size in zip(found, sizes, strict=True) if place is None]
    assert all(size > 1 << 24 for size in left)


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have tensors of the host be copied as if they lay on a device."""

    def memory(size: int, like: torch.Tensor | None = None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8) if like is None else torch.empty_like(like)

    monkeypatch.setattr(pinned, "_memory", memory)
    monkeypatch.setattr(pinned, "_LEAST_PINNED", 1)
    monkeypatch.setattr(
        pinned, "_can_be_pinned", lambda t: type(t) in (torch.Tensor, torch.nn.Parameter)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "synchronize", lambda _device=None: None)
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "get_rng_state_all", list)
        patch.setattr(torch.cuda, "set_rng_state_all", lambda _states: None)
        patch.setattr(torch.cuda, "manual_seed_all", lambda _seed: None)
        patch.setattr(torch.cuda, "get_device_name", lambda *_: "none")
        yield


@pytest.mark.usefixtures("as_on_a_device")
def test_copies_are_the_same_and_apart() -> None:
    draw = torch.Generator().manual_seed(0)
    state: dict[str, Any] = {
        "a": torch.randn(3, 5, generator=draw),
        "b": [torch.arange(7), torch.randn(64, 64, generator=draw).T],
        "c": (torch.tensor(2.0), torch.zeros(0), torch.randn(33, generator=draw).bfloat16()),
        "d": 4,
    }
    copied = clone(state)
    assert differences(state, copied) == []
    copied["a"].fill_(0.0)
    assert state["a"].abs().sum() > 0
    assert [float(t.float().sum()) for t in clone(copied)["c"]] == [
        float(t.float().sum()) for t in state["c"]
    ]


@pytest.mark.usefixtures("as_on_a_device")
def test_a_run_is_the_same_with_them_and_goes_back(tmp_path: Path) -> None:
    def bad(guard: Any, _batch: torch.Tensor) -> None:
        if guard.step_number == 150 and not blown:
            blown.append(True)
            with torch.no_grad():
                for parameter in s.model.parameters():
                    parameter.mul_(100)

    blown: list[bool] = []
    s = make(schedule="none", dropout=0.0)
    guard = guard_of(s, tmp_path / "run", steps=220, mode="act")
    losses = train_guarded(s, guard, on_batch=bad)
    assert "roll-back" in str([e.data for e in events_of(tmp_path / "run", "action")])
    assert max(losses) > 10
    assert max(losses[-20:]) < 2.6


def test_where_nothing_can_be_pinned_the_copy_is_made_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(_size: int, like: torch.Tensor | None = None) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(pinned, "_memory", none)
    monkeypatch.setattr(pinned, "_can_be_pinned", lambda _t: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device=None: None)
    tensors = {"a": torch.ones(1 << 14), "b": torch.ones(20_000)}
    copies = PinnedCopies(tensors.values())
    assert copies.of(tensors["a"]) is copies.of(tensors["b"]) is None
    assert differences(clone(tensors, copies), tensors) == []


def test_what_torch_copies_to_a_device_anyway_is_not_copied_before() -> None:
    s = make()
    assert not training_state._copies_what_it_loads(s.model)
    away = torch.nn.Linear(4, 4, device="meta")
    assert training_state._copies_what_it_loads(away)
    assert training_state._copies_what_it_loads(torch.optim.AdamW(away.parameters()))
    large, small = torch.ones(1 << 15), torch.ones(3)
    lent = clone({"large": large, "small": small}, training_state._LENT)
    assert lent["large"] is large
    assert lent["small"] is not small
