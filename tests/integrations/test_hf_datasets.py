"""HF `datasets` in HF's Trainer, map-style and streamed: rewound, skipped by sample id, resumed."""

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
    BAD_SAMPLES,
    BATCH,
    STEPS,
    fit,
    guard_settings,
    hugging,
    rows_of,
)

pytestmark = pytest.mark.torch

KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "map": (hugging, {}),
    "map, shuffled, 2 workers": (
        hugging,
        {"train_sampling_strategy": "random", "dataloader_num_workers": 2},
    ),
    "stream": (lambda *a: hugging(*a, shards=1), {}),
    "stream of 4 shards, 2 workers": (
        lambda *a: hugging(*a, shards=4),
        {"dataloader_num_workers": 2},
    ),
}
"""How each is made, of a number of samples and the bad ones among them, and the Trainer's
arguments."""
SLOW = {name: [pytest.mark.slow] if "workers" in name else [] for name in KINDS}
kinds = pytest.mark.parametrize("kind", [pytest.param(k, marks=SLOW[k]) for k in KINDS])


@pytest.mark.slow
@kinds
def test_observe_is_bitwise_the_trainer_and_a_stopped_run_goes_on_so(
    tmp_path: Path, kind: str
) -> None:
    """Epochs of 11 batches, the last of half the size."""
    make, arguments = KINDS[kind]
    shape: dict[str, Any] = {"save_strategy": "steps", "save_steps": 6, **arguments}
    plain = fit(tmp_path / "plain", data=make(84), max_steps=30, **shape)
    guarded = fit(
        tmp_path / "g", data=make(84), max_steps=30, guard=guard_settings("observe"), **shape
    )
    assert guarded.log.logs == plain.log.logs
    assert differences(plain.weights, guarded.weights) == []
    assert [r["step"] for r in rows_of(guarded.out)] == list(range(1, 31))
    for out, resume in (("own", None), ("theirs", "checkpoint-18")):
        policy = guard_settings("observe", checkpoint_every_steps=10)
        fit(tmp_path / out, data=make(84), max_steps=25, guard=policy, **shape)
        path = None if resume is None else str(tmp_path / out / resume)
        again = fit(tmp_path / out, data=make(84), max_steps=30, guard=policy, resume=path, **shape)
        since = 25 if resume is None else 18
        assert again.log.by_step() == {s: x for s, x in plain.log.by_step().items() if s > since}
        assert differences(plain.weights, again.weights) == []
        assert events_of(tmp_path / out / "trimtab", "fault") == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_bad_window_is_gone_back_from_and_left_out_by_id(tmp_path: Path, kind: str) -> None:
    make, arguments = KINDS[kind]
    found = fit(
        tmp_path, data=make(2 * STEPS * BATCH, BAD_SAMPLES), guard=guard_settings(), **arguments
    )
    (action,) = found.trainer.guard.actions
    assert action["remedy"] == "roll-back+skip-data"
    assert found.trainer.guard.skipped_samples == ((BAD_SAMPLES[0], BAD_SAMPLES[-1]),)
    assert found.trainer.state.global_step == STEPS
    assert events_of(tmp_path / "trimtab", "fault") == []
