"""What follows from the number of devices: data-parallel width, batch and sharding."""

from dataclasses import replace

from trimtab.config_rules.planning import Keeping, Sharding
from trimtab.configs.facts import Facts
from trimtab.configs.settings import Setting, Settings

__all__ = ["keeping_of", "on_devices", "sharding_of", "sharding_words"]

ONE_DEVICE = "batch is that of one device"
"""Part of the reader's note on a batch whose data-parallel width no key states."""


def on_devices(settings: Settings, devices: float | None) -> Settings:
    """Return a config with the batch of all devices, where it states only that of one.

    The width is devices / (tensor × pipeline × context parallel); where that is no whole number,
    nothing is changed.
    """
    if devices is None or not any(ONE_DEVICE in note for note in settings.note):
        return settings
    width = devices / _model_ways(Facts(settings))
    if width < 1 or width != int(width):
        return settings
    values = dict(settings.values)
    for name in ("batch_samples", "batch_tokens"):
        size = settings.number(name)
        if size is not None:
            values[name] = Setting(size * width, "derived", values[name].key, values[name].line)
    values["data_parallel"] = Setting(int(width), "derived")
    values["world_size"] = Setting(int(devices), "derived")
    note = [n for n in settings.note if ONE_DEVICE not in n]
    return replace(
        settings, values=values, note=(*note, f"data-parallel width {width:.0f} from --devices")
    )


def _model_ways(run: Facts) -> float:
    degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel")
    product = 1.0
    for name in degrees:
        product *= run.positive(name) or 1.0
    return product


def sharding_of(settings: Settings, devices: float | None) -> Sharding | None:
    """Return how a config divides its model over devices.

    The result is None where it states neither degrees nor a stage of ZeRO.

    DeepSpeed's bf16 optimizer at stage 0 divides its states as stage 1 does.
    """
    run = Facts(settings)
    tensor, pipeline = run.positive("tensor_parallel"), run.positive("pipeline_parallel")
    stage = run.number("zero_stage")
    if tensor is None and pipeline is None and stage is None:
        return None
    total = devices or run.positive("world_size")
    width = total / _model_ways(run) if total else run.positive("data_parallel")
    # ranks of context parallelism hold the same weights, and share them as data-parallel ranks do
    width = (width or 1.0) * (run.positive("context_parallel") or 1.0)
    # Its BF16_Optimizer always partitions states over the data-parallel ranks.
    if not stage and run.text("dtype") == "bf16" and "deepspeed" in settings.framework.lower():
        stage = 1
    return Sharding(
        tensor=tensor or 1, pipeline=pipeline or 1, data=max(1.0, width), zero_stage=int(stage or 0)
    )


_KEEPING: tuple[tuple[str, Keeping], ...] = (
    ("deepspeed", "zero"),
    ("neox", "zero"),
    ("megatron", "megatron"),
    ("nemo", "megatron"),
    ("flagscale", "megatron"),
    ("nanotron", "megatron"),
    ("titan", "autocast"),
    ("olmo", "autocast"),
    ("foundry", "autocast"),
    ("composer", "autocast"),
    ("lingua", "autocast"),
    ("litgpt", "autocast"),
    ("levanter", "autocast"),
    ("maxtext", "autocast"),
    ("axolotl", "autocast"),
    ("llama-factory", "autocast"),
    ("hf-", "autocast"),
    ("open-instruct", "autocast"),
    ("nanogpt", "autocast"),
    ("torchtune", "autocast"),
)
"""A part of the framework's name, and what it keeps for each parameter; the first that fits holds.
"""


def keeping_of(settings: Settings) -> Keeping:
    """Return what a config's framework keeps for each parameter."""
    # The engine decides what is kept, whichever trainer calls it.
    if any("deepspeed_json" in found.key for found in settings.values.values()):
        return "zero"
    name = settings.framework.lower()
    return next((keeping for part, keeping in _KEEPING if part in name), "everything")


def sharding_words(sharding: Sharding | None, devices: float | None) -> str:
    """Return a sharding for people."""
    if sharding is None:
        return (
            f"if shared evenly by {devices:.0f} devices; this config states no sharding"
            if devices
            else "in one copy; this config states no sharding"
        )
    return (
        f"tensor {sharding.tensor:.0f} × pipeline {sharding.pipeline:.0f} × data"
        f" {sharding.data:.0f}, ZeRO stage {sharding.zero_stage}"
    )
