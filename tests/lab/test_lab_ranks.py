"""A scenario on two ranks is the run of one rank, dealt out."""

import dataclasses
from pathlib import Path

import pytest

from tests.guard.small_lab import SOUND, make_text
from tests.guard.tiny import events_of
from trimtab.errors import ActError
from trimtab.lab.ranks import on_ranks
from trimtab.lab.run import run_guarded, run_unguarded

pytestmark = pytest.mark.torch


def fail() -> None:
    raise ValueError("this rank cannot")


@pytest.mark.slow
def test_two_ranks_train_on_the_samples_of_one(tmp_path: Path) -> None:
    alone = dataclasses.replace(SOUND, steps=40)
    both = dataclasses.replace(alone, ranks=2)
    text = make_text()
    expected, _ = run_unguarded(alone, 0, text)
    plain, losses = run_unguarded(both, 0, text)
    # the order in which gradients are summed differs, and Adam makes much of the last digits
    assert plain == pytest.approx(expected, rel=2e-3)
    done = run_guarded(both, 0, text, tmp_path / "run", "observe")
    assert done.final_loss == plain
    assert done.losses == losses
    assert events_of(tmp_path / "run", "fault") == []


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run() -> None:
    with pytest.raises(ActError, match="first rank ended with an error"):
        on_ranks(2, fail)
