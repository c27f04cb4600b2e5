"""The arithmetic of `planning` for one config and one machine."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from trimtab.config_rules.planning import epoch_ledger, goodput, memory, time_needed
from trimtab.config_rules.rules.rule import compact
from trimtab.config_rules.scale import keeping_of, sharding_of, sharding_words
from trimtab.configs.facts import Facts
from trimtab.configs.settings import Settings

__all__ = ["Machine", "Plan", "plan_config", "plan_lines"]

Plan: TypeAlias = dict[str, Any]
"""The plan as JSON holds it: `eta`, `epochs`, `memory`, `checkpoints`, `missing`; a part that is
not determined is absent."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Facts that no config states; None where one is not known."""

    params: float | None = None
    corpus_tokens: float | None = None
    train_tokens: float | None = None
    tokens_per_second: float | None = None
    deadline_days: float | None = None
    spent_days: float = 0.0
    devices: float | None = None
    device_gib: float | None = None
    save_seconds: float | None = None


def plan_config(settings: Settings, machine: Machine) -> Plan:
    """Return time, memory, checkpoints and epochs, as far as they are determined.

    Raises:
        ConfigError: A number of the machine is not positive.
    """
    run = Facts(
        settings,
        params=machine.params,
        corpus_tokens=machine.corpus_tokens,
        train_tokens=machine.train_tokens,
    )
    total = run.train_tokens
    plan: Plan = {}
    if total and run.corpus_tokens and run.batch_tokens:
        ledger = epoch_ledger(run.corpus_tokens, run.batch_tokens, total)
        plan["epochs"] = {"epochs": ledger.epochs, "begin_at_step": list(ledger.steps)}
    reliable = (
        goodput(machine.devices, machine.save_seconds)
        if machine.devices and machine.save_seconds
        else None
    )
    # Failures and checkpoints cost time, so the throughput counts only for the rest.
    if total and machine.tokens_per_second is not None:
        share = 1 - reliable.lost_share if reliable is not None and reliable.lost_share < 1 else 1.0
        eta = time_needed(
            total,
            machine.tokens_per_second,
            deadline_days=machine.deadline_days,
            spent_days=machine.spent_days,
            goodput_share=share,
        )
        plan["eta"] = {
            "tokens": total,
            "days": eta.days,
            "days_left": eta.left_days,
            "late": eta.is_late,
        }
    if run.params is not None and not run.is_adapter and (machine.devices or machine.device_gib):
        plan["memory"] = _memory(settings, run.params, machine)
    if reliable is not None:
        plan["checkpoints"] = asdict(reliable)
        step_s = (
            run.batch_tokens / machine.tokens_per_second
            if run.batch_tokens and machine.tokens_per_second
            else None
        )
        plan["checkpoints"]["interval_steps"] = (
            max(1, round(reliable.interval_s / step_s)) if step_s else None
        )
    if missing := _missing(run, machine):
        plan["missing"] = missing
    return plan


def _memory(settings: Settings, params: float, machine: Machine) -> dict[str, object]:
    """Return what one copy takes and what each device holds of it, as this config divides it."""
    sharding = sharding_of(settings, machine.devices)
    dtype = str(settings.get("dtype") or "bf16")
    found = asdict(
        memory(
            params,
            devices=machine.devices,
            device_gib=machine.device_gib,
            sharding=sharding,
            dtype=dtype,
            keeping=keeping_of(settings),
        )
    )
    for part in found["parts"]:
        # JSON has no infinity.
        part["ways"] = part["ways"] if math.isfinite(part["ways"]) else None
    return {
        **found,
        "dtype": dtype,
        "sharding": asdict(sharding) if sharding is not None else None,
        "sharding_words": sharding_words(sharding, machine.devices),
    }


def _missing(run: Facts, machine: Machine) -> list[str]:
    """Return what is missing for figures that were asked for and could not be computed."""
    missing: list[str] = []
    if run.train_tokens is None and (machine.tokens_per_second or machine.corpus_tokens):
        asked = [
            name
            for name, given in (
                ("time", machine.tokens_per_second),
                ("epochs", machine.corpus_tokens),
            )
            if given
        ]
        missing.append(f"{' and '.join(asked)}: {_why_no_tokens(run)}")
    elif machine.corpus_tokens and run.batch_tokens is None:
        missing.append("epochs: the batch in tokens is not known, so no step can be named")
    if machine.tokens_per_second is None and (machine.deadline_days or machine.spent_days):
        missing.append("time: give --tokens-per-second of the whole job")
    if machine.save_seconds and not machine.devices:
        missing.append("checkpoints: give --devices")
    if run.params is None and (machine.devices or machine.device_gib):
        missing.append("memory: the size of the model is not known; give --params")
    elif run.is_adapter and (machine.devices or machine.device_gib):
        missing.append("memory: only an adapter is trained, and its size is not stated")
    return missing


def _why_no_tokens(run: Facts) -> str:
    if run.train_steps is None:
        return (
            "this config does not state for how many tokens or steps it trains; give --train-tokens"
        )
    if run.positive("batch_samples") and run.positive("seq"):
        return (
            f"{run.train_steps:.0f} steps are stated, but only one device's batch"
            "; give --devices (a multiple of tensor × pipeline parallel) or --train-tokens"
        )
    return f"{run.train_steps:.0f} steps are stated, but no batch in tokens; give --train-tokens"


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """Return the plan as lines for people."""
    lines: list[str] = []
    if eta := plan.get("eta"):
        late = " · LATE: fewer tokens, a smaller model, or more devices" if eta["late"] else ""
        left = (
            f", {eta['days_left']:.1f} days are left{late}" if eta["days_left"] is not None else ""
        )
        lines.append(
            f"time        {eta['days']:.1f} days for {compact(eta['tokens'])} tokens{left}"
        )
    if epochs := plan.get("epochs"):
        begins = ", ".join(f"{n} at step {s}" for n, s in enumerate(epochs["begin_at_step"][:5], 2))
        lines.append(
            f"epochs      {epochs['epochs']:.2f}" + (f"; epoch {begins}" if begins else "")
        )
    if saved := plan.get("checkpoints"):
        steps = f" = {saved['interval_steps']} steps" if saved["interval_steps"] else ""
        lines.append(
            f"checkpoints every {saved['interval_s'] / 60:.0f} min{steps},"
            f" {saved['lost_share']:.1%} of the time lost; a failure every"
            f" {saved['failure_hours']:.0f} h; {saved['spare_nodes']} spare nodes"
        )
    if kept := plan.get("memory"):
        each = f", {kept['per_device_gib']:.1f} GiB per device" if kept["per_device_gib"] else ""
        fits = {True: ": fits, before activations", False: ": does not fit", None: ""}[kept["fits"]]
        lines.append(
            f"memory      {kept['gib']:,.0f} GiB in one copy, {kept['bytes_per_param']:.0f} bytes a"
            f" parameter ({kept['assumed']}){each} ({kept['sharding_words']}){fits}; give up"
            " precision in this order:"
        )
        lines += [
            f"            {n}  {p['name']}  {p['gib']:,.0f} GiB — {p['give_up']}"
            for n, p in enumerate(kept["parts"], 1)
        ]
    lines += [f"not known   {what}" for what in plan.get("missing", ())]
    return lines
