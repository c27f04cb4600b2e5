"""Batch, length of training and warm-up, in samples, tokens and steps."""

import math

from trimtab.configs.derivation import Derivation
from trimtab.configs.document import squash
from trimtab.configs.values import duration, finite, number

__all__ = ["batch", "length", "ramp_steps", "warmup"]

PER_NODE = {"numgpus", "launchernumgpus"}
MAX_STEPS = 1e9  # of a decay; more are tokens
MAX_RAMP_SIZES = 100_000  # of a batch ramp; finer ones are taken as none
TOKENS_FROM = 32_768  # a "batch size" above it, with sequences beyond 512 tokens, counts tokens


def batch(facts: Derivation) -> None:
    """Samples and tokens of one optimizer step."""
    seq = facts.get("seq")
    layout(facts)
    facts.derive("grad_accum", facts.amount("grad_accum"), "grad_accum", origin="stated")
    ramp = facts.fact("ramp")
    if isinstance(ramp, list) and len(ramp) == 3:
        facts.derive("batch_start_samples", number(ramp[0]), "ramp", origin="stated")
    facts.derive("batch_start_samples", facts.amount("batch_start"), "batch_start", origin="stated")
    tokens = facts.amount("batch_tokens")
    if tokens is not None and tokens >= 1:
        facts.derive("batch_tokens", tokens, "batch_tokens", origin="stated")
    samples = facts.amount("batch_global")
    source = "batch_global"
    plain = facts.amount("batch")
    if samples is None and plain is not None and counts_globally(facts):
        samples, source = plain, "batch"
    if samples is not None and samples >= TOKENS_FROM and seq and seq > 512 and samples % seq == 0:
        facts.derive("batch_tokens", samples, source, origin="stated")
        samples = None
    if samples is not None:
        facts.derive("batch_samples", samples, source, origin="stated")
    else:
        from_micro(facts)
    samples = facts.get("batch_samples")
    if samples is not None and seq:
        origin = facts.values["batch_samples"].origin
        facts.derive(
            "batch_tokens",
            samples * seq,
            "batch_global",
            "batch",
            "micro_batch",
            "seq",
            origin="default" if origin == "default" else "derived",
        )
    elif facts.get("batch_tokens") is not None and seq:
        facts.derive(
            "batch_samples", (facts.get("batch_tokens") or 0) / seq, "batch_tokens", "batch_global"
        )


def counts_globally(facts: Derivation) -> bool:
    """Whether `batch_size` is the batch of the whole step.

    It is taken to be where no key states accumulation or the share of one device.
    """
    if facts.batch_unit:
        return facts.batch_unit == "global"
    return not any(
        facts.fact(name) is not None
        for name in (
            "grad_accum",
            "micro_num",
            "devices",
            "nodes",
            "dp_shard",
            "dp_replicate",
            "data_parallel",
        )
    )


def from_micro(facts: Derivation) -> None:
    """Multiply one device's batch by accumulation and data-parallel width.

    An unknown width is taken as one.
    """
    micro = facts.amount("micro_batch")
    source = "micro_batch"
    if micro is None:
        micro, source = facts.amount("batch"), "batch"
    local = facts.amount("local_batch")
    if local is not None and micro is None:
        micro, source = local, "local_batch"
    tokens = facts.amount("micro_tokens") if micro is None else None
    accumulation = (
        1
        if local is not None and source != "local_batch"
        else facts.amount("grad_accum") or facts.amount("micro_num") or 1
    )
    width = facts.get("data_parallel")
    known = width is not None or facts.batch_unit == "shared"
    if tokens is not None and facts.batch_unit == "tokens":
        facts.derive(
            "batch_tokens",
            tokens * accumulation * (width or 1),
            "micro_tokens",
            origin="derived" if known else "default",
        )
    if micro is None or micro <= 0:
        return
    if source in facts.stated:
        facts.derive("micro_batch", micro, source, origin="stated")
    # What one device takes in a step may be stated beside its micro batch.
    facts.derive(
        "batch_samples",
        max(local or 0, micro) * accumulation * (width or 1),
        source,
        origin="derived" if known else "default",
    )
    if (
        not known
        and (note := "number of devices not stated: the batch is that of one device")
        not in facts.note
    ):
        facts.note.append(note)


def layout(facts: Derivation) -> None:
    """World size and data-parallel width from nodes, devices and the other degrees."""
    shard, replicate = facts.amount("dp_shard"), facts.amount("dp_replicate")
    if shard is not None and shard > 0:
        facts.derive("data_parallel", shard * max(replicate or 1, 1), "dp_shard")
    nodes, devices = facts.amount("nodes"), facts.amount("devices")
    whole_job = facts.stated.get("world_size")
    if nodes and whole_job is not None and squash(whole_job.key) in PER_NODE and devices is None:
        facts.values.pop(
            "world_size", None
        )  # the deepspeed launcher counts the devices of one node
        facts.derive("world_size", (finite(whole_job.value) or 1) * nodes, "world_size", "nodes")
    if (
        devices is not None
        and devices > 0
        and (nodes is not None or facts.stated["devices"].key.startswith("launcher."))
    ):
        facts.derive("world_size", devices * (nodes or 1), "nodes", "devices")
    world = facts.get("world_size")
    if world:
        model = (
            (facts.get("tensor_parallel") or 1)
            * (facts.get("pipeline_parallel") or 1)
            * (facts.amount("context_parallel") or 1)
        )
        if world % model == 0:
            facts.derive("data_parallel", world / model, "world_size", "nodes")


def length(facts: Derivation) -> None:
    """Steps, samples, tokens and epochs of the whole run."""
    for fact in ("train_steps", "duration"):
        found = duration(facts.fact(fact))
        if found is None or found[0] <= 0:
            continue
        amount, unit = found
        name = {
            "": "train_steps",
            "steps": "train_steps",
            "tokens": "train_tokens",
            "samples": "train_samples",
            "epochs": "epochs",
        }.get(unit)
        if name and not (unit == "" and not amount.is_integer()):
            facts.derive(name, amount, fact, origin="stated")
    facts.derive("train_samples", facts.amount("train_samples"), "train_samples", origin="stated")
    tokens = duration(facts.fact("train_tokens"))
    if tokens:
        facts.derive("train_tokens", tokens[0], "train_tokens", origin="stated")
    decay = in_unit(facts, duration(facts.fact("decay_steps")))
    if decay and 0 < decay[0] <= MAX_STEPS and decay[1] in ("", "steps"):
        facts.derive("decay_steps", decay[0], "decay_steps", origin="stated")
    samples, step_tokens = facts.get("train_samples"), facts.get("batch_tokens")
    total_tokens, batch_samples = facts.get("train_tokens"), facts.get("batch_samples")
    if samples and batch_samples and sure(facts, "batch_samples"):
        facts.derive(
            "train_steps", whole(ramp_steps(facts, samples, batch_samples)), "train_samples"
        )
    if decay and decay[1] == "tokens" and step_tokens and sure(facts, "batch_tokens"):
        facts.derive("decay_steps", whole(decay[0] / step_tokens), "decay_steps")
    if total_tokens and step_tokens and sure(facts, "batch_tokens"):
        facts.derive("train_steps", whole(total_tokens / step_tokens), "train_tokens", "duration")
    steps = facts.get("train_steps")
    if steps and step_tokens and sure(facts, "batch_tokens"):
        facts.derive("train_tokens", steps * step_tokens, "train_steps")


def in_unit(facts: Derivation, length: tuple[float, str] | None) -> tuple[float, str] | None:
    """Return a length without a unit in the schedule's unit, such as OLMo's `units: tokens`."""
    unit = str(facts.fact("schedule_unit") or "").lower()
    if length is not None and length[1] == "" and unit in ("tokens", "samples", "epochs"):
        return length[0], unit
    return length


def whole(steps: float) -> int | None:
    """Return a number of steps; None where a tiny batch makes it more than a float holds."""
    return round(steps) if math.isfinite(steps) else None


def sure(facts: Derivation, name: str) -> bool:
    """Whether a setting rests on the file alone and not on an assumed number of devices."""
    return facts.values[name].origin != "default"


def warmup(facts: Derivation) -> None:
    """Warm-up in steps, from steps, a share, samples, tokens or a duration."""
    source = "warmup_steps" if facts.fact("warmup_steps") is not None else "warmup"
    steps, ratio = stated_warmup(facts, source)
    for name in ("warmup_samples", "warmup_tokens"):
        found = duration(facts.fact(name))
        if found and found[0] > 0:
            facts.derive(name, found[0], name, origin="stated")
    if steps is not None and not (steps == 0 and more_is_stated(facts, ratio)):
        facts.derive("warmup_steps", steps, source, origin="stated")
    if ratio is not None:
        warmup_of_share(facts, ratio, source)
    warmup_of_data(facts, source)


def stated_warmup(facts: Derivation, source: str) -> tuple[float | None, float | None]:
    """Return the stated warm-up as (steps, share of the run), each None where it is not stated.

    A length in samples, tokens or epochs is kept as such: the length of an epoch is not known.
    """
    ratio = facts.amount("warmup_ratio")
    if ratio is not None and ratio > 1:
        ratio /= 100  # percent
    stated = duration(facts.fact("warmup_steps")) or duration(facts.fact("warmup"))
    amount, unit = in_unit(facts, stated) or (-1.0, "")
    if amount < 0:
        return None, ratio
    if unit == "ratio" or (unit == "" and 0 < amount < 1):
        return None, amount if ratio is None else ratio
    if unit in ("tokens", "samples", "epochs"):
        facts.derive(f"warmup_{unit}", amount, source, origin="stated")
    return (None if unit in ("tokens", "samples", "epochs") else amount), ratio


def warmup_of_share(facts: Derivation, ratio: float, source: str) -> None:
    """Warm-up that is a share of the decay, or of the run where no decay is stated."""
    total = facts.get("decay_steps") or facts.get("train_steps") or samples_as_steps(facts)
    if total:
        steps = ratio * total
        facts.derive(
            "warmup_steps",
            round(steps, 3) if steps < 1 else int(steps + 1e-6),
            "warmup_ratio",
            source,
        )
    elif ratio == 0:
        facts.derive("warmup_steps", 0, "warmup_ratio", source)
    facts.derive("warmup_ratio", ratio, "warmup_ratio", source, origin="stated")


def warmup_of_data(facts: Derivation, source: str) -> None:
    """Warm-up in steps from samples or tokens, and in tokens from steps."""
    samples, batch_samples = facts.get("warmup_samples"), facts.get("batch_samples")
    if samples and batch_samples and sure(facts, "batch_samples"):
        steps = ramp_steps(facts, samples, batch_samples)
        facts.derive("warmup_steps", whole(steps), "warmup_samples")
    step_tokens = facts.get("batch_tokens")
    if not step_tokens or not sure(facts, "batch_tokens"):
        return
    if tokens := facts.get("warmup_tokens"):
        facts.derive("warmup_steps", whole(tokens / step_tokens), "warmup_tokens", source)
    if taken := facts.get("warmup_steps"):
        facts.derive("warmup_tokens", taken * step_tokens, "warmup_steps", source)


def more_is_stated(facts: Derivation, ratio: float | None) -> bool:
    """Whether another key gives a warm-up where the number of steps is 0 (0 means: look there)."""
    return bool(ratio) or any(
        (duration(facts.fact(name)) or (0, ""))[0] > 0
        for name in ("warmup_samples", "warmup_tokens")
    )


def samples_as_steps(facts: Derivation) -> float | None:
    """Return the run's length in steps by its samples, or None."""
    samples, size = facts.get("train_samples"), facts.get("batch_samples")
    return samples / size if samples and size and sure(facts, "batch_samples") else None


def ramp_steps(facts: Derivation, samples: float, size: float) -> float:
    """Return the number of steps for some samples, with Megatron's batch ramp where one is stated.

    `[start, increment, samples of the ramp]`: each size from start up to the full one lasts equally
    many samples.
    """
    ramp = facts.fact("ramp")
    parts = [number(part) for part in ramp] if isinstance(ramp, list) and len(ramp) == 3 else []
    if not parts or any(not part or part <= 0 for part in parts):
        return samples / size
    start, increment, length = (float(part or 0) for part in parts)
    if start >= size or (size - start) / increment > MAX_RAMP_SIZES:
        return samples / size
    share = length / max((size - start) / increment, 1)
    steps, left, now = 0.0, samples, start
    while now < size and left > 0:
        taken = min(share, left)
        steps, left, now = steps + taken / now, left - taken, now + increment
    return steps + max(left, 0) / size
