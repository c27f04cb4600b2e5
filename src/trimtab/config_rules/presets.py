"""Published settings as sets that fit each other, and the difference of a config to one of them.

Taking one value from one paper and one from another is how OPT's first runs were set up.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeAlias, TypeGuard

from trimtab.configs.facts import Facts
from trimtab.configs.settings import Setting, Settings
from trimtab.errors import ConfigError

__all__ = ["Preset", "PresetDifference", "PresetValue", "difference", "find_preset", "presets"]

PresetValue: TypeAlias = str | float | bool


@dataclass(frozen=True)
class Preset:
    """One published run's settings."""

    name: str
    source: str
    values: Mapping[str, PresetValue]

    def as_settings(self) -> Settings:
        """Return it in the form of a config."""
        return Settings(self.name, "preset", {k: Setting(v) for k, v in self.values.items()})


@cache
def presets() -> tuple[Preset, ...]:
    """Return the published runs, in the order in which they are listed."""
    table = tomllib.loads((files("trimtab.config_rules") / "presets.toml").read_text("utf-8"))
    found = []
    for name, row in table["preset"].items():
        source = row.pop("source")
        found.append(Preset(name, source, _with_base(row, table["base"])))
    return tuple(found)


def _with_base(
    row: Mapping[str, PresetValue], bases: Mapping[str, Mapping[str, PresetValue]]
) -> dict[str, PresetValue]:
    """Return a row with the settings of its base, and of the base of that."""
    own = dict(row)
    like = own.pop("like", None)
    return {**_with_base(bases[str(like)], bases), **own} if like else own


_ALIASES: Mapping[str, str] = {
    "gpt3/megatron": "gpt3-175b",
    "megatron": "gpt3-175b",
    "gpt-3": "gpt3",
}


def find_preset(name: str, settings: Settings | None = None) -> Preset:
    """Return a preset by name; a family's name gives the member of the size nearest to a config's.

    Raises:
        ConfigError: There is none of that name.

    Example:
        >>> find_preset("bloom").name
        'bloom-176b'
    """
    asked = _ALIASES.get(name.lower(), name.lower())
    family = [p for p in presets() if p.name == asked] or [
        p for p in presets() if p.name.startswith(asked + "-")
    ]
    if not family:
        raise ConfigError(f"no preset {name!r}; there are {', '.join(p.name for p in presets())}")
    params = Facts(settings).params if settings is not None else None
    if params is None:
        return family[0]
    return min(family, key=lambda p: abs(float(p.values["params"]) / params - 1))


@dataclass(frozen=True)
class PresetDifference:
    """One setting that differs; None where a side does not state it."""

    setting: str
    ours: object
    theirs: object


def difference(
    ours: Settings, theirs: Settings, *, absent: bool = False
) -> tuple[PresetDifference, ...]:
    """Return the settings in which two configs differ by more than 1 %.

    Args:
        ours: One config.
        theirs: The other, or a preset's.
        absent: Also list settings that only one of the two states.
    """
    found = []
    for name in dict.fromkeys((*theirs, *ours)):
        mine, other = ours.get(name), theirs.get(name)
        if (mine is None or other is None) and not absent:
            continue
        if not _same(mine, other):
            found.append(PresetDifference(name, mine, other))
    return tuple(found)


_SAME_WORDS: Mapping[str, str] = {
    other: name
    for name, others in {
        "rotary": "rope rotaryposition rotaryembedding",
        "learned": "learnedabsolute absolute",
        "silu": "swiglu swish",
        "rmsnorm": "rms llamarmsnorm fusedrmsnorm",
        "layernorm": "layernorm1p",
        "adamw": "adamwtorch adamwtorchfused fusedadam decoupledadamw distributedfusedadam",
        "cosine": "cosinewithwarmup cosineannealing cosinewithminlr warmupcosine",
        "bf16": "bfloat16",
        "fp16": "float16",
        "fp32": "float32",
    }.items()
    for other in others.split()
}
"""Two names of one thing."""


def _word(value: object) -> str:
    """Return a word without case and separators, and by one name where there are two."""
    plain = re.sub(r"[^a-z0-9.]", "", str(value).lower())
    return _SAME_WORDS.get(plain, plain)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(one: object, other: object) -> bool:
    if not (_is_number(one) and _is_number(other)):
        return _word(one) == _word(other)
    try:
        # 1 %: papers round, and vocabularies are padded (50,257 to 50,304).
        return math.isclose(one, other, rel_tol=0.01)
    except OverflowError:  # an integer beyond all floats
        return bool(one == other)
