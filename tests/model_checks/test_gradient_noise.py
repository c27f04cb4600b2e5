"""The gradient noise scale, where it is known exactly, and on a model with all that must come back."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trimtab.errors import ConfigError
from trimtab.model_checks import noise_scale

pytestmark = pytest.mark.torch

SIZE = 40
SIGMA = 3.0


class Quadratic(nn.Module):
    """Half of the squared distance to the samples: the gradient of one is theta - x."""

    def __init__(self, distance: float) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.full((SIZE,), distance / math.sqrt(SIZE)))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * (self.theta - x).square().sum(1).mean()


def of_quadratic(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(batch)
    return loss


def drawn(num: int, samples: list[int], seed: int) -> list[Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [
        SIGMA * torch.randn(samples[i % len(samples)], SIZE, generator=source) for i in range(num)
    ]


@pytest.mark.covers("S26")
@pytest.mark.parametrize("samples", [[16], [4, 32, 8]])
@pytest.mark.parametrize("distance", [2.0, 6.0])
def test_on_a_quadratic_with_known_noise_it_is_within_ten_per_cent(
    samples: list[int], distance: float
) -> None:
    known = SIZE * SIGMA**2 / distance**2
    for seed in range(5):
        found = noise_scale(Quadratic(distance), drawn(600, samples, seed), of_quadratic)
        assert found.samples == pytest.approx(known, rel=0.1)
        assert found.noise == pytest.approx(SIZE * SIGMA**2, rel=0.05)
        assert found.gradient == pytest.approx(distance, rel=0.1)
        assert found.low < found.samples < found.high


def test_without_bias_where_few_batches_say_little() -> None:
    known = SIZE * SIGMA**2 / 36
    found = [noise_scale(Quadratic(6.0), drawn(16, [8], s), of_quadratic) for s in range(60)]
    noise = sum(f.noise for f in found) / len(found)
    square = sum(f.gradient**2 for f in found) / len(found)
    assert noise / square == pytest.approx(known, rel=0.1)
    within = sum(f.low <= known <= f.high for f in found) / len(found)
    assert within > 0.4  # one standard error, of four parts


def test_a_gradient_that_is_not_told_from_its_noise_has_no_scale() -> None:
    found = [noise_scale(Quadratic(0.0), drawn(16, [8], s), of_quadratic) for s in range(8)]
    assert any(math.isinf(f.samples) for f in found)
    assert all(f.high == math.inf for f in found if math.isinf(f.samples))


def test_sizes_in_tokens_give_the_scale_in_tokens() -> None:
    batches = drawn(200, [16], 0)
    samples = noise_scale(Quadratic(2.0), batches, of_quadratic).samples
    tokens = noise_scale(Quadratic(2.0), batches, of_quadratic, sizes=[160] * 200).samples
    assert tokens == pytest.approx(10 * samples, rel=1e-6)


def test_everything_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    model(torch.randn(8, 4)).sum().backward()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    gradients = [p.grad for p in model.parameters()]
    batches, state = [torch.randn(8, 4) for _ in range(8)], torch.get_rng_state()
    noise_scale(model, batches, lambda m, x: m(x).square().mean())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert model.training


@pytest.mark.parametrize(
    ("batches", "loss", "said"),
    [
        (3, lambda m, x: m(x), "at least 8"),
        (8, lambda m, x: m(x).detach(), "no scalar tensor with a graph"),
        (8, lambda m, x: m(x) * math.nan, "is not finite"),
        (8, lambda _, __: 1.0, "no scalar tensor"),
    ],
)
def test_what_gives_no_scale_is_one_error(batches: int, loss: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        noise_scale(Quadratic(1.0), drawn(batches, [4], 0), loss)
    with pytest.raises(ConfigError, match="sizes="):
        noise_scale(Quadratic(1.0), [{"a": "text"}] * 8, of_quadratic)
