import numpy as np
import pytest

from benchmarks.noise import EVENT_ROW, EVENTS, NOISES, make_run, measure_noise
from benchmarks.peers.norm_rules import ZClip
from benchmarks.peers.sigma_rules import LevanterUpdateClip, SkipStep
from benchmarks.peers.trainscope import Cusum


@pytest.mark.parametrize("noise", NOISES)
def test_the_healthy_twin_is_the_same_run_without_the_event(noise: str) -> None:
    twin = make_run(noise, 5)  # type: ignore[arg-type]
    for event in EVENTS:
        run = make_run(noise, 5, event=event, num_rows=5001)  # type: ignore[arg-type]
        ours, theirs = run.columns["loss"].values, twin.columns["loss"].values[:5001]
        assert np.array_equal(ours[:EVENT_ROW], theirs[:EVENT_ROW])
        assert not np.array_equal(ours[EVENT_ROW:], theirs[EVENT_ROW:])
        norms = run.columns["grad_norm"].values
        assert np.array_equal(norms, twin.columns["grad_norm"].values[:5001])


@pytest.mark.slow
def test_what_is_caught_and_what_noise_alone_sets_off() -> None:
    lines: list[str] = []
    found = measure_noise(
        seeds=(0, 1),
        say=lines.append,
        noises=("gaussian",),
        clean_rows=5001,
        peers=(SkipStep(uses=()), Cusum(), ZClip(), LevanterUpdateClip()),
    )
    by_name = {r.system: r for r in found}
    assert [*by_name] == [
        "trimtab",
        "trimtab, notes too",
        "olmo-core skip-step",
        "trainscope cusum",
        "zclip",
    ]
    assert len(lines) == 2
    skip = {
        e: (c.num_caught, c.delay_rows) for e, c in by_name["olmo-core skip-step"].events.items()
    }
    one, spike, shift, drift, good = EVENTS
    assert skip == {
        one: (2, 0.0),
        spike: (2, 1.0),
        shift: (0, None),
        drift: (0, None),
        good: (0, None),
    }
    assert by_name["trainscope cusum"].false_per_20k > 10
    assert by_name["zclip"].false_per_20k > 100
    # a norm that knows nothing of the event catches nothing: its alarms are the twin's
    assert [c.num_caught for c in by_name["zclip"].events.values()] == [0] * 5
    own = by_name["trimtab"]
    assert own.false_per_20k == 0
    for event in (spike, shift, drift):
        assert own.events[event].num_caught == 2
    assert by_name["trimtab, notes too"].events[one].num_caught == 2
