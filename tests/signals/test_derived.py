import math

import numpy as np
import pytest

from trimtab.record import RecordBuilder, RunRecord
from trimtab.signals import derive


def record_with(clip: float | None, losses: list[float], norms: list[float]) -> RunRecord:
    builder = RecordBuilder("x.log", "test")
    if clip is not None:
        builder.facts["clip"] = clip
    for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), 1):
        builder.add(step, {"loss": loss, "grad_norm": norm})
    return builder.build()


def test_perplexity_is_exp_of_the_loss_and_inf_where_it_overflows() -> None:
    derived = derive(record_with(None, [0.5, 81.0, 1e4, math.nan], [1.0] * 4))
    values = derived.columns["perplexity"].values
    assert values[:2].tolist() == pytest.approx([math.exp(0.5), math.exp(81.0)], rel=1e-12)
    assert math.isinf(values[2])
    assert math.isnan(values[3])


def test_clip_share_needs_a_stated_clip() -> None:
    losses = [1.0] * 4
    norms = [0.5, 2.0, math.nan, 3.0]
    assert "clipped" not in derive(record_with(None, losses, norms)).columns
    derived = derive(record_with(1.0, losses, norms))
    assert derived.columns["clipped"].values[[0, 1, 3]].tolist() == [0.0, 1.0, 1.0]
    assert derived.columns["clip_frequency"].values.tolist() == pytest.approx([0, 0.5, 0.5, 2 / 3])


def test_what_is_logged_stays() -> None:
    builder = RecordBuilder("x.log", "test")
    builder.add(1, {"loss": 1.0, "perplexity": 7.0})
    assert derive(builder.build()).columns["perplexity"].values.tolist() == [7.0]


def test_missing_stays_missing() -> None:
    builder = RecordBuilder("x.log", "test")
    builder.add(1, {"loss": 1.0})
    builder.add(2, {"grad_norm": 1.0})
    derived = derive(builder.build())
    assert np.array_equal(derived.columns["perplexity"].present, [True, False])
