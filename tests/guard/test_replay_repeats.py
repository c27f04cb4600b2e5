"""Whether a replay repeats what was recorded."""

import math

import pytest

from trimtab.guard.recovery.curves import repeats


@pytest.mark.parametrize(
    ("branch", "recorded", "said"),
    [
        ({1: 2.0, 2: math.inf}, {1: 2.0, 2: 2.1}, "different"),
        ({1: 2.0, 2: 2.1}, {1: 2.0, 2: -math.inf}, "different"),
        ({1: 2.0, 2: math.inf}, {1: 2.0, 2: math.inf}, "bit-equal"),
        ({1: 2.0, 2: math.nan}, {1: 2.0, 2: math.nan}, "bit-equal"),
        ({1: 2.0, 2: math.nan}, {1: 2.0, 2: 2.1}, "different"),
        ({1: 2.0}, {1: 2.0 + 1e-7}, "rounding"),
    ],
)
def test_infinite_is_near_no_number(
    branch: dict[int, float], recorded: dict[int, float], said: str
) -> None:
    assert repeats(branch, recorded) == said
