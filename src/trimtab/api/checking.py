"""`trimtab.preflight`: what the settings of a config risk, before the run."""

import dataclasses
import difflib
import os
from collections.abc import Mapping

from trimtab.config_rules.budget import Machine
from trimtab.config_rules.lint import Phase
from trimtab.config_rules.preflight import PreflightResult, preflight_config
from trimtab.errors import ConfigError

__all__ = ["preflight"]


def preflight(
    *configs: str | os.PathLike[str],
    phase: Phase | None = None,
    like: str | None = None,
    against: str | os.PathLike[str] | None = None,
    machine: Mapping[str, float] | None = None,
) -> PreflightResult:
    """Check training configs for what went wrong with such settings in public runs.

    Nothing in a config is executed.

    Args:
        configs: A config of any framework, a launch script, or a directory of them.
        phase: Only findings of one phase: `start`, or `mid` for a run in trouble.
        like: Name of a published run to compare with, such as `llama3`.
        against: Another config to compare with.
        machine: What no config states, by the names of the command's options: `params`,
            `corpus_tokens`, `train_tokens`, `tokens_per_second`, `devices`, `device_gib` ...

    Returns:
        `findings`, `verdict`, and `to_dict()`, the document of `trimtab preflight --json`.

    Raises:
        ConfigError: No config is given, or an argument is not known.
        ReadError: `against` cannot be read.
    """
    if phase not in (None, "start", "mid"):
        raise ConfigError(f"phase is {phase!r}; choose start or mid, or leave it out")
    if like is not None and not isinstance(like, str):
        raise ConfigError(f"like is {like!r}; give the name of a published run, such as llama3")
    if not all(isinstance(path, str | os.PathLike) for path in configs):
        raise ConfigError("preflight takes paths of configs; write a mapping to a file first")
    return preflight_config(
        *(os.fspath(path) for path in configs),
        machine=_machine(machine or {}),
        phase=phase,
        like=like,
        against=None if against is None else os.fspath(against),
    )


def _machine(given: Mapping[str, float]) -> Machine:
    known = [field.name for field in dataclasses.fields(Machine)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            offer = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"machine: {name!r} is not known{offer}")
    return Machine(**given)
