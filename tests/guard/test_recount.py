"""A loss that the loop multiplies is known by equal weights on equal batches, and put back."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.families.cases import CASES
from benchmarks.families.data import Samples, loader_of
from benchmarks.families.models import FAMILIES
from benchmarks.families.run import train_case
from tests.guard.tiny import events_of
from trimtab.guard import Guard
from trimtab.guard.settings.measured import LossCount
from trimtab.guard.yardstick.reading import recount_of


@pytest.mark.slow
@pytest.mark.parametrize("seed", [193, 208])
def test_a_loss_that_is_summed_is_divided_again_and_named(tmp_path: Path, seed: int) -> None:
    """Of a network trained by SGD, whose losses differ too much to show the factor by themselves."""
    found = train_case(FAMILIES["cnn-bn"], CASES["loss-summed"], seed, "act", tmp_path / "run")
    assert found.actions == ("roll-back+put-back",)
    assert found.causes[-1] == "setting-changed"
    assert found.loss < 0.2


@pytest.mark.parametrize(
    ("now", "known", "factor"),
    [
        ([32.0, 16.16], [2.0, 1.01], 16.0),
        ([2.0, 1.01], [2.0, 1.01], 1.0),
        ([0.5, 0.2525], [2.0, 1.01], 0.25),
        ([2.5, 1.51], [2.0, 1.01], None),
        ([-2.0, -1.0], [2.0, 1.0], None),
        ([math.nan, 2.0], [2.0, 1.0], None),
        ([math.inf, math.inf], [2.0, 1.0], None),
        ([2.0], [2.0, 1.0], None),
        ([32.0], [2.0], None),  # one batch agrees with itself
        ([6.2, 6.25], [2.0, 2.01], None),  # batches that cost the same: labels were mixed up
        ([32.0, 32.16], [2.0, 2.01], 16.0),
        ([2.0, 1.0], [0.0, 1.0], None),
        ([2.0, 1.0], [], None),
    ],
)
def test_a_factor_is_what_all_batches_agree_on(
    now: list[float], known: list[float], factor: float | None
) -> None:
    found = recount_of(now, known)
    assert found == (None if factor is None else pytest.approx(factor))


@pytest.mark.parametrize("seed", range(8))
def test_a_measured_factor_is_dated_by_losses_and_norms_rather_early_than_late(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = LossCount()
    count.corrects = True
    for step in range(1, 181):
        by = 16.0 if step >= 150 else 1.0
        loss, norm = by * np.exp(rng.normal(0, 0.8, 2))
        count.see(float(loss), float(norm), step, counts=False)
    ((name, step, _, after),) = count.take_measured(16.0, 100)
    assert (name, after) == ("loss.factor", (16.0,))
    assert 135 <= step <= 151
    assert list(count.values_to_hold) == [16.0, step]
    assert not count.take_measured(16.0, 100)  # told once


def test_what_is_measured_is_divided_from_its_step_on_after_a_restart_too() -> None:
    count = LossCount()  # no row is known yet
    count.hold({"loss.factor": (16.0, 160)})
    loss = torch.tensor(0.01, requires_grad=True)
    assert count.apply(loss, 159).item() == pytest.approx(0.01)
    assert count.apply(loss, 160).item() == pytest.approx(0.01 / 16)


def test_a_measured_factor_is_over_where_the_same_weights_cost_what_they_cost_before_it() -> None:
    count = LossCount()
    assert not count.is_back(1.0)
    count.hold({"loss.factor": (16.0, 160)})
    assert count.is_back(1 / 16.01)
    assert not count.is_back(1.0)
    assert not count.is_back(16.0)
    assert not count.is_back(math.nan)


@pytest.mark.slow
@pytest.mark.parametrize("by_step", [False, True])
def test_a_loop_that_counts_as_before_again_is_divided_no_more(
    tmp_path: Path, *, by_step: bool
) -> None:
    """Also where the running code has changed, so that steps that are done again are summed, too."""
    torch.manual_seed(193)
    family = FAMILIES["cnn-bn"]
    built = family.build()
    optimizer = torch.optim.SGD(built.model.parameters(), lr=family.lr, momentum=0.9)
    samples = Samples(
        built.rows, built.num_rows, num_samples=800 * family.batch_size, seed=193, damage=None
    )
    scheduler = LambdaLR(optimizer, lambda t: 0.55 + 0.45 * math.cos(math.pi * min(t / 500, 1)))
    run = tmp_path / "run"
    guard = Guard(
        built.model,
        optimizer,
        scheduler=scheduler,
        data=loader_of(samples, family.batch_size),
        run=run,
        mode="act",
        clip=family.clip,
        steps=440,
        say=lambda _: None,
    )
    for done, batch in enumerate(guard):
        summed = 200 <= guard.step_number + 1 < 360 if by_step else 200 <= done < 420
        guard.backward(built.loss(built.model, tuple(batch)) * (16 if summed else 1))
        guard.step()
    assert "roll-back+put-back" in [e.data["remedy"] for e in events_of(run, "action")]
    assert "no longer hold loss.factor" in [e.data["what"] for e in events_of(run, "decision")]
    assert not events_of(run, "end")[-1].data["in_force"]
    assert built.validate(built.model) < 0.35  # lost: above 1.4
