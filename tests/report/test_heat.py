import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from trimtab.readers.layers import LayerReadings
from trimtab.record import RecordBuilder
from trimtab.report.heat import make_heats, worst_columns

VALUES = arrays(
    np.float64,
    st.tuples(st.integers(1, 200), st.integers(1, 8)),
    elements=st.one_of(st.floats(-1e6, 1e6), st.sampled_from([np.nan, np.inf, -np.inf])),
)


@given(VALUES, st.integers(1, 60), st.booleans())
def test_every_block_keeps_its_worst_and_whether_it_was_ever_not_finite(
    values: NDArray[np.float64], budget: int, low: bool
) -> None:
    step = np.arange(float(len(values)))
    first, worst = worst_columns(step, values, budget=budget, low=low)
    assert len(first) == len(worst) <= budget
    assert first[0] == 0
    assert (np.diff(first) > 0).all()
    for layer in range(values.shape[1]):
        finite = np.isfinite(values[:, layer])
        assert np.isnan(worst[:, layer]).any() == (not finite.all())
        if finite.all():
            pick = np.min if low else np.max
            assert pick(worst[:, layer]) == pick(values[:, layer])


def test_parts_that_were_given_up_are_told_apart_and_entropy_keeps_its_lowest() -> None:
    build = RecordBuilder("runs/x", "trimtab")
    build.start_attempt(number="1.0")
    for step in range(1, 101):
        build.add(step, {"loss": 2.0})
    build.start_attempt(number="1.1", parent="1.0", parent_step=60)
    for step in range(61, 151):
        build.add(step, {"loss": 2.0})
    entropy = np.full((100, 3), 3.0)
    entropy[80, 1] = 0.1
    readings = [
        LayerReadings(
            name="attention_entropy", attempt="1.0", step=np.arange(1.0, 101), values=entropy
        ),
        LayerReadings(
            name="attention_entropy", attempt="1.1", step=np.arange(61.0, 151), values=entropy[:90]
        ),
        LayerReadings(name="unheard", attempt="9.9", step=np.arange(3.0), values=np.ones((3, 2))),
    ]
    (heat,) = make_heats(build.build(), readings, columns=10)
    assert heat.low_is_bad
    assert [(p.attempt, p.live, p.first[0], p.last) for p in heat.parts] == [
        (0, True, 1, 60),
        (0, False, 61, 100),
        (1, True, 61, 150),
    ]
    assert [p.values.min() for p in heat.parts] == [3.0, 0.1, 0.1]


def test_a_very_deep_model_is_drawn_with_the_worst_of_neighbours() -> None:
    build = RecordBuilder("runs/x", "trimtab")
    build.start_attempt(number="1.0")
    build.add(1, {"loss": 2.0})
    values = np.ones((4, 1001))
    values[2, 777] = 9.0
    reading = LayerReadings(name="grad_norm", attempt="1.0", step=np.arange(4.0), values=values)
    (heat,) = make_heats(build.build(), [reading])
    assert heat.num_layers == 1001
    assert heat.parts[0].values.shape[1] <= 200
    assert heat.parts[0].values.max() == 9.0
