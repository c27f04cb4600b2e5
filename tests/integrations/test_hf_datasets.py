"""HF `datasets` in HF's Trainer, map-style and streamed: unchanged while observed, and resumed bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("datasets")

from tests.guard.tiny import differences, events_of  # noqa: E402
from tests.integrations.hf_lab import (  # noqa: E402
    fit,
    guard_settings,
    hugging,
    rows_of,
)

pytestmark = pytest.mark.torch

KINDS: dict[str, Callable[[int], Any]] = {
    "map": hugging,
    "stream": lambda num: hugging(num, shards=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_observe_is_bitwise_the_trainer_and_a_stopped_run_goes_on_so(
    tmp_path: Path, kind: str
) -> None:
    """Epochs of 11 batches, the last of half the size."""
    make = KINDS[kind]
    shape: dict[str, Any] = {"save_strategy": "steps", "save_steps": 6}
    plain = fit(tmp_path / "plain", data=make(84), max_steps=30, **shape)
    guarded = fit(tmp_path / "g", data=make(84), max_steps=30, guard=guard_settings("observe"), **shape)  # fmt: skip
    assert guarded.log.logs == plain.log.logs
    assert differences(plain.weights, guarded.weights) == []
    assert [r["step"] for r in rows_of(guarded.out)] == list(range(1, 31))
    for out, resume in (("own", None), ("theirs", "checkpoint-18")):
        policy = guard_settings("observe", checkpoint_every_steps=10)
        fit(tmp_path / out, data=make(84), max_steps=25, guard=policy, **shape)
        path = None if resume is None else str(tmp_path / out / resume)
        again = fit(tmp_path / out, data=make(84), max_steps=30, guard=policy, resume=path, **shape)  # fmt: skip
        since = 25 if resume is None else 18
        assert again.log.by_step() == {s: x for s, x in plain.log.by_step().items() if s > since}
        assert differences(plain.weights, again.weights) == []
        assert events_of(tmp_path / out / "trimtab", "fault") == []
