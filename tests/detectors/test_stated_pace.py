"""A pace that moves where the log states a longer sequence is a note; one that moves between is told."""

import numpy as np
import pytest

import trimtab


def _kinds(seed: int, slow_from: int | None) -> list[str]:
    rng = np.random.default_rng(seed)
    n = np.arange(900)
    length = 512 * 2 ** np.searchsorted([220, 440, 660], n, side="right")
    seconds = length / 1024 * np.exp(0.1 * rng.standard_normal(900))
    if slow_from is not None:
        seconds[slow_from:] *= 2.2
    loss = 2 + 4 * (1 + n / 20) ** -0.4 + 0.03 * rng.standard_normal(900)
    columns = {"step": 10 * n, "loss": loss, "seq_len": length, "step_time": seconds}
    (run,) = trimtab.analyze(columns).runs
    return [i.kind for i in run.incidents if i.severity != "info"]


@pytest.mark.parametrize("seed", range(6))
def test_longer_sequences_take_longer(seed: int) -> None:
    assert "slowdown" not in _kinds(seed, None)


@pytest.mark.parametrize("seed", range(3))
def test_what_slows_down_between_two_stages_is_told(seed: int) -> None:
    assert "slowdown" in _kinds(seed, 540)
