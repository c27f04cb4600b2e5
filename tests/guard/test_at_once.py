"""What is asked of many tensors at once is what would be asked of each."""

import math

import pytest
import torch

from trimtab.guard.probes import packs

SIZES = (1, 3, 64, 70_000, 200_000)


@pytest.fixture(params=[False, True], ids=["one by one", "at once"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "_at_once", lambda _flats: request.param)


@pytest.fixture
def flats() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(n, generator=draw) for n in SIZES]


@pytest.mark.usefixtures("at_once")
def test_largest(flats: list[torch.Tensor]) -> None:
    flats[1][2] = math.nan
    flats[2][5] = -math.inf
    found = [float(t) for t in packs.largest(flats)]
    assert math.isnan(found[1])
    assert found[2] == math.inf
    assert [found[i] for i in (0, 3, 4)] == [float(flats[i].abs().max()) for i in (0, 3, 4)]


@pytest.mark.usefixtures("at_once")
def test_sums(flats: list[torch.Tensor]) -> None:
    positive = [f.square() for f in flats]
    found = [float(t) for t in packs.sums(positive)]
    assert found == pytest.approx([float(f.double().sum()) for f in positive], rel=5e-3)


@pytest.mark.usefixtures("at_once")
def test_absolute_sums_of_large_ones_are_estimated(flats: list[torch.Tensor]) -> None:
    found = [float(t) for t in packs.absolute_sums(flats)]
    exact = [float(f.double().abs().sum()) for f in flats]
    assert found[:3] == pytest.approx(exact[:3], rel=1e-5)
    assert found[3:] == pytest.approx(exact[3:], rel=0.02)


@pytest.mark.usefixtures("at_once")
def test_nonzeros(flats: list[torch.Tensor]) -> None:
    flats[3][:60_000] = 0.0
    assert [float(t) for t in packs.nonzeros(flats)] == [1, 3, 64, 10_000, 200_000]


@pytest.mark.usefixtures("at_once")
def test_of_nothing_there_is_nothing() -> None:
    assert (
        packs.largest([]) == packs.sums([]) == packs.absolute_sums([]) == packs.nonzeros([]) == []
    )
