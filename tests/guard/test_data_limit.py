"""Bad data that is more than may be left out: the limit is said to be what stood in the way."""

from pathlib import Path

import pytest

from tests.guard.tiny import events_of, guard_of, make
from trimtab.plan.policy import Policy

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.mark.parametrize("max_wasted_share", [4.0, 0.17])
def test_the_limit_on_data_is_named_after_few_trials(
    tmp_path: Path, max_wasted_share: float
) -> None:
    run = tmp_path / "run"
    s = make(num_samples=1600, schedule="none")
    tokens = s.loader.dataset.tokens  # type: ignore[attr-defined]
    tokens[600:800] = 12 - tokens[600:800]
    said: list[str] = []
    policy = Policy(
        checkpoint_in_background=False,
        trial_steps=12,
        patience_steps=4,
        verify_steps=12,
        snapshot_every_steps=10,
        checkpoint_every_steps=20,
        max_wasted_share=max_wasted_share,
        probe_margin_batches=4,
    )
    guard = guard_of(s, run, mode="act", steps=390, policy=policy, say=said.append)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
    (told,) = (line for line in said if "automatic recovery disabled" in line)
    assert "the limit on data is what stands in the way: without samples 600-799 the run" in told
    assert "13% of the planned data, the policy allows max_skip_share = 0.1" in told
    assert "raise it to 0.129" in told
    assert ("one more trial would pass the 17%" in told) == (max_wasted_share < 1)
    assert guard.skipped_samples == ()
    trials = [e for e in events_of(run, "outcome") if e.data.get("trial")]
    assert len(trials) <= 3
    table = [e for e in events_of(run, "decision") if e.data["what"] == "compare the trials"]
    assert table[-1].data["suspect"] == "bad data" or "bad data" in str(table[-1].data["why"])
