"""What the stated sharding leaves on each device.

And the batch that the number of devices settles.
"""

import dataclasses

import pytest

from tests.config_rules.settings_by_hand import make_settings
from trimtab.config_rules.lint import lint, satisfied
from trimtab.config_rules.planning import Sharding, memory
from trimtab.config_rules.scale import on_devices, sharding_of

GIB = 2.0**30


@pytest.mark.parametrize(
    (
        "stage",
        "each",
    ),  # bytes of a parameter on one of 4 data-parallel ranks: 10 of 22 sharded, or all
    [(0, 22.0), (1, 4 + 4 + 2 + 12 / 4), (2, 4 + 2 + 16 / 4), (3, 22 / 4)],
)
def test_each_stage_of_zero_divides_what_it_names(stage: int, each: float) -> None:
    kept = memory(8e9, sharding=Sharding(data=4, zero_stage=stage), device_gib=80)
    assert kept.per_device_gib == pytest.approx(8e9 * each / GIB)
    assert kept.fits is (8e9 * each / GIB <= 80)
    divided = memory(8e9, sharding=Sharding(tensor=2, pipeline=4, data=4, zero_stage=stage))
    assert divided.per_device_gib == pytest.approx(8e9 * each / GIB / 8)


def test_the_weights_are_named_by_their_format() -> None:
    assert "fp16 weights" in [p.name for p in memory(1e9, dtype="fp16").parts]
    full = memory(1e9, dtype="fp32")
    assert [p.name for p in full.parts] == ["fp32 gradients", "fp32 weights", "fp32 Adam moments"]
    assert full.gib == pytest.approx(16e9 / GIB)


def test_a_config_that_states_no_sharding_has_none() -> None:
    assert sharding_of(make_settings("generic", hidden=4096), 64) is None
    bloom = make_settings(
        "megatron-deepspeed", tensor_parallel=4, pipeline_parallel=12, zero_stage=0, dtype="bf16"
    )
    assert sharding_of(bloom, 384) == Sharding(tensor=4, pipeline=12, data=8, zero_stage=1)


def test_devices_settle_the_batch() -> None:
    one = dataclasses.replace(
        make_settings(
            hidden=4096,
            layers=32,
            heads=32,
            batch_samples=2,
            batch_tokens=4096,
            seq=2048,
            lr=3e-4,
            tensor_parallel=4,
        ),
        note=("number of devices not stated: the batch is that of one device",),
    )
    assert {"L16", "L17", "L32"}.isdisjoint(r.id for r in satisfied(one, lint(one)))
    settled = on_devices(one, 256)
    assert settled.get("batch_tokens") == 4096 * 64
    assert settled.get("data_parallel") == 64
    assert {"L16", "L17", "L32"} <= {r.id for r in satisfied(settled, lint(settled))}
    assert on_devices(one, 6) is one, "6 devices are no whole number of model copies"
    assert on_devices(settled, 512) is settled, "a known batch stays"


def test_a_size_that_the_user_gives_counts_for_satisfied_rules() -> None:
    run = make_settings("hf-trainer", batch_tokens=2_000_000, lr=1e-4)
    found = lint(run, params=7e9)
    assert "L17" in {r.id for r in satisfied(run, found, params=7e9)}
    assert "L17" not in {r.id for r in satisfied(run, lint(run))}
