"""What to type in each framework: its own name of a setting.

The config's own key is used where it has one, else the framework's usual key, else words.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TypedDict, cast

from trimtab.config_rules.rules.rule import compact
from trimtab.configs.facts import Facts
from trimtab.configs.settings import Settings

__all__ = ["spell"]

_WITH_EQUALS = (".toml", ".py", ".gin", ".ini", ".cfg", ".conf")
"""Endings of files in which a setting is `key = value`."""
_USUAL_SHARE = 0.03
"""Warm-up of tuning recipes (Alpaca, QLoRA), for a run whose length is not stated."""
_KEY = r"-{0,2}[\w./-]+"


class _Table(TypedDict):
    """`spelling.toml`."""

    frameworks: dict[str, str]
    """Part of a framework's name → name of its table under `spelling`."""
    words: dict[str, str]
    """Setting → what it is called in a sentence."""
    spelling: dict[str, dict[str, str]]
    """Framework → setting → template of what to type."""


@cache
def _table() -> _Table:
    text = (files("trimtab.config_rules") / "spelling.toml").read_text("utf-8")
    return cast("_Table", tomllib.loads(text))


def _spelling_of(framework: str) -> Mapping[str, str]:
    """Return a framework's own names of settings; empty where they are not known."""
    for part, name in _table()["frameworks"].items():
        if part in framework.lower():
            # Megatron-DeepSpeed has Megatron-LM's options but for these two
            own = {"qk_norm": "", "embed_norm": "--embed-layernorm"}
            known = _table()["spelling"][name.removesuffix("-deepspeed")]
            return {**known, **own} if name.endswith("-deepspeed") else known
    return {}


def spell(settings: Settings, change: Mapping[str, object], words: str = "") -> str:
    """Return what to type, or words where the framework's name of a setting is not known.

    Example:
        >>> from trimtab.configs.settings import Setting
        >>> run = Settings("a.sh", "megatron", {"init_std": Setting(0.02, "default")})
        >>> spell(run, {"init_std": 0.00587, "beta2": 0.95})
        '--init-method-std 0.00587 --adam-beta2 0.95'
    """
    names = list(change)
    # One key holds both, so one clause sets both.
    if {"beta1", "beta2"} <= change.keys() and _betas(settings, "beta2", change):
        names.remove("beta1")
    parts = [part for name in names if (part := _one(settings, name, change))]
    joined = " ".join(parts) if all(p.startswith("--") for p in parts) else ", ".join(parts)
    return "; ".join(p for p in (joined, words) if p)


def _one(settings: Settings, name: str, change: Mapping[str, object]) -> str:
    value = change[name]
    if name == "lr" and "lr_factor" in settings.values:
        return _factor(settings, value)
    template = _spelling_of(settings.framework).get(name, "")
    if name.endswith("dtype") and (typed := _number_format(settings, name, str(value))):
        return typed
    if typed := _betas(settings, name, change):
        return typed
    if (
        name == "warmup_steps"
        and isinstance(value, int | float)
        and (typed := _warm_up(settings, float(value)))
    ):
        return typed
    text = _plain(value)
    if (lent := settings.values.get(name)) and (
        file := re.fullmatch(r"([\w.-]+): ([\w.]+)", lent.key)
    ):
        lender = Settings(file[1], settings.framework)
        return f"{file[2]}: {_as_yaml(lender, text)} (in {file[1]})"
    if own := _own_key(settings, name, value):
        return _assigned(settings, own, text + _unit(settings.values[name].text))
    if template:
        return _on_command_line(settings, _as_yaml(settings, template.format(text)))
    if name == "batch_start_samples":  # a ramp needs more than a start
        return ""
    what = _table()["words"].get(name) or name.replace("_", " ")
    return f"turn on {what}" if value is True else f"set {what} to {text}"


def _factor(settings: Settings, peak: object) -> str:
    """Return the factor that gives a peak rate, for a schedule that takes one.

    The two are proportional; without a known peak nothing is advised.
    """
    run = Facts(settings)
    now, factor = run.positive("lr"), run.positive("lr_factor")
    if now is None or factor is None or not isinstance(peak, int | float):
        return ""
    return _assigned(
        settings, settings.values["lr_factor"].key, _plain(float(f"{peak * factor / now:.2g}"))
    )


def _warm_up(settings: Settings, steps: float) -> str:
    """Return a warm-up in the unit that the file gives it in.

    Tokens, samples or a share of the run.
    """
    run = Facts(settings)
    for name, factor in (
        ("warmup_tokens", run.positive("batch_tokens")),
        ("warmup_samples", run.positive("batch_samples")),
        ("warmup_ratio", 1 / (run.positive("train_steps") or steps / _USUAL_SHARE)),
    ):
        found = settings.values.get(name)
        if (
            found is not None
            and found.origin == "stated"
            and factor
            and re.fullmatch(_KEY, found.key)
        ):
            amount = steps * factor if name != "warmup_ratio" else float(f"{steps * factor:.2g}")
            return _assigned(settings, found.key, _plain(amount))
    return ""


def _unit(text: str) -> str:
    """Return the unit after a number, such as `ba` in `100ba`."""
    found = re.fullmatch(r"[\d.]+(ba|tok|sp|ep)", text)
    return found[1] if found else ""


def _assigned(settings: Settings, key: str, text: str) -> str:
    """Return key and value in the syntax of the file."""
    if key.startswith("-"):
        return f"{key} {text}"
    if settings.path.lower().endswith(_WITH_EQUALS):
        if settings.path.lower().endswith(".py"):
            text = {"true": "True", "false": "False"}.get(text, text)
        quoted = (
            text
            if re.fullmatch(r"[\[(]?[-+\d.].*|true|false|True|False|torch\..*", text)
            else f'"{text}"'
        )
        return f"{key} = {quoted}"
    return f"{key}: {_as_yaml(settings, text)}"


def _as_yaml(settings: Settings, text: str) -> str:
    """Return `2e-5` as `2.0e-5` for a YAML file: YAML 1.1 reads numbers without a point as text."""
    if not settings.path.lower().endswith((".yaml", ".yml")):
        return text
    return re.sub(r"(?<![\w.])(\d+)(e)([-+]?)(\d+)", _with_point, text)


def _with_point(found: re.Match[str]) -> str:
    return f"{found[1]}.0e{found[3] or '+'}{found[4]}"


def _on_command_line(settings: Settings, typed: str) -> str:
    """Return `weight_decay: 0.1` as an option where the config is a command line."""
    plain = re.fullmatch(r"(\w+): (\S+)", typed)
    if plain is None or not any(s.key.startswith("--") for s in settings.values.values()):
        return typed
    return f"--{plain[1]}" if plain[2] == "true" else f"--{plain[1]} {plain[2]}"


def _number_format(settings: Settings, name: str, value: str) -> str:
    """Return the file's own key with the number format in the file's own words.

    Empty where it has none.
    """
    found = settings.values.get(name)
    if found is None or found.origin == "default" or not re.fullmatch(_KEY, found.key):
        return ""
    written = _in_words_of(found.text, value)
    if written:
        return _assigned(settings, found.key, written)
    if found.text.lower() not in ("true", "1") or "fp16" not in found.key:
        return ""
    key = found.key.replace("fp16", value)
    return key if key.startswith("-") else _assigned(settings, key, "true")


def _in_words_of(text: str, value: str) -> str:
    """Return bf16 or fp32 in the words of a file that has `amp_fp16`, `float16` or `16-mixed`.

    Empty where it says neither.

    Example:
        >>> _in_words_of("amp_fp16", "bf16"), _in_words_of("bfloat16", "fp32")
        ('amp_bf16', 'float32')
    """
    bits = "32" if value == "fp32" else "16"
    brain = "b" if value == "bf16" else ""
    for pattern, new in (
        # In this order: `float16` is part of `bfloat16`, and the bare 16 of `16-mixed` comes last.
        (r"b?float16", f"{brain}float{bits}"),
        (r"b?fp16|bf16", f"{'bf' if brain else 'fp'}{bits}"),
        (r"half", value),
        (r"^16(?=-|$)", f"bf{bits}" if brain else bits),
    ):
        if re.search(pattern, text):
            return re.sub(pattern, new, text)
    return ""


def _betas(settings: Settings, name: str, change: Mapping[str, object]) -> str:
    """Return both betas where the file states them under one key; else empty."""
    found = settings.values.get(name)
    if name not in ("beta1", "beta2") or found is None or "betas" not in found.key.lower():
        return ""
    run = Facts(settings)
    first, second = (
        _plain(change.get(part, run.positive(part) or usual))
        for part, usual in (("beta1", 0.9), ("beta2", 0.95))
    )
    if found.key.startswith("-"):
        return (
            f"{found.key} '({first}, {second})'"
            if found.text.startswith("(")
            else f"{found.key} {first} {second}"
        )
    return _assigned(settings, found.key, f"[{first}, {second}]")


def _own_key(settings: Settings, name: str, value: object) -> str:
    """Return the config's own key of a setting, where a value can be typed after it."""
    found = settings.values.get(name)
    if found is None or found.origin != "stated":
        return ""
    # An option that is a flag takes no value: `--qk-layernorm true` would not parse.
    if isinstance(value, bool) and (not isinstance(found.value, bool) or found.key.startswith("-")):
        return ""
    if name in ("dtype", "loss_scale"):  # several keys, or one that must go
        return ""
    return found.key if re.fullmatch(_KEY, found.key) else ""


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"{value:.0f}" if abs(value) >= 10 or value == 0 else f"{value:.1f}"
    if isinstance(value, float):
        return compact(value).replace(" ", "") if abs(value) < 1 else f"{value:g}"
    return str(value)
