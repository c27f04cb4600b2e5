"""Killed at random moments, a run loses nothing that it had committed and ends bit for bit the
same.

`KILLS=200 pytest -m slow tests/guard/test_kills.py -rP` does more of it and prints how many there
were.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.guard.kills import VARIANTS, Variant, torment

pytestmark = [pytest.mark.torch, pytest.mark.slow]

KILLS = int(os.environ.get("KILLS", "24"))
SEED = int(os.environ.get("KILLS_SEED", "0"))


@pytest.mark.covers("S236")
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_killed_at_random_moments_it_ends_as_an_unbroken_run(
    tmp_path: Path, variant: Variant
) -> None:
    share = -(-KILLS // len(VARIANTS))
    tally = torment(tmp_path, variant, share, SEED)
    sys.stdout.write(
        f"{variant.name}: {tally.kills} kills, {tally.from_inside} of them in mid-write, "
        f"{tally.in_trouble} while gone back, over {tally.chains} runs\n"
    )
    assert tally.kills >= share
    assert tally.rolled_back == variant.fault
