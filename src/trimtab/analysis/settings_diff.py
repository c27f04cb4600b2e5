"""Which settings differ between two runs: what their logs state, and their config files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trimtab.config_rules.presets import difference
from trimtab.configs import Settings, flat_config, joined, read_config
from trimtab.errors import ReadError
from trimtab.masking import masked
from trimtab.record import Attempt, RunRecord

__all__ = ["SettingChange", "diff", "flat_config", "setting_changes", "stated_settings"]

_NO_SETTINGS = frozenset({"grad_norm_was_scaled"})
"""Facts of a record that its reader found; they are no settings of the run."""


@dataclass(frozen=True)
class SettingChange:
    """One setting that differs; None where a side does not state it."""

    key: str
    a: str | None
    b: str | None


def diff(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[SettingChange, ...]:
    """Return the keys whose values differ, and no others; numbers that are equal count as equal.

    Secrets are compared, and masked in what is returned.

    Example:
        >>> diff({"lr": "6e-5", "seed": "42"}, {"lr": "0.00006", "seed": "43"})
        (SettingChange(key='seed', a='42', b='43'),)
    """
    keys = sorted({*a, *b})
    return tuple(
        SettingChange(k, _shown(k, a), _shown(k, b)) for k in keys if not _same(a.get(k), b.get(k))
    )


def _shown(key: str, settings: Mapping[str, str]) -> str | None:
    return None if key not in settings else str(masked(settings[key], name=key))


def _same(a: str | None, b: str | None) -> bool:
    if a == b:
        return True
    try:
        return a is not None and b is not None and float(a) == float(b)
    except ValueError:
        return False


def setting_changes(a: Path, b: Path) -> tuple[SettingChange, ...]:
    """Return the canonical settings that both configs have and in which they differ.

    `--lr 6e-5` of Megatron-LM and `learning_rate: 6e-5` of a Trainer are one setting here, where a
    comparison key by key sees two. Empty where a file is no training config.
    """
    ours, theirs = _canonical(a), _canonical(b)
    if ours is None or theirs is None:
        return ()
    return tuple(
        SettingChange(d.setting, str(d.ours), str(d.theirs)) for d in difference(ours, theirs)
    )


def _canonical(path: Path) -> Settings | None:
    """Return the settings of a file that holds one config."""
    try:
        found = joined(read_config(path))
    except ReadError:
        return None
    return found[0] if len(found) == 1 else None


def stated_settings(record: RunRecord, attempt: Attempt | None = None) -> dict[str, str]:
    """Return what a log states of its settings: its facts, and those of one attempt (the last)."""
    facts = {k: f"{v:g}" for k, v in record.facts.items() if k not in _NO_SETTINGS}
    own = attempt or (record.attempts[-1] if record.attempts else None)
    return {**facts, **({} if own is None else dict(own.settings))}
