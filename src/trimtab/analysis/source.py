"""What commands share: a run read, judged and told with what stands beside it on this machine."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trimtab.analysis.account import RunAccount
from trimtab.analysis.assemble import events_of, make_account
from trimtab.checkpoints.layouts import find_checkpoints, own_checkpoints
from trimtab.chronicle.dismissals import dismissals
from trimtab.configs import read_config
from trimtab.errors import ConfigError
from trimtab.plan.flags import dialect
from trimtab.plan.rollback import CheckpointInfo
from trimtab.readers import read_run
from trimtab.readers.layers import read_layers
from trimtab.record import RunRecord

__all__ = ["Beside", "account_of", "read_account", "read_beside", "store"]

_FACTS: Mapping[str, str] = {
    "clip": "clip",
    "hidden": "hidden_size",
    "init_std": "init_method_std",
    "warmup_steps": "lr_warmup_iters",
    "warmup_samples": "lr_warmup_samples",
}
"""Setting of a config -> fact of a record."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What is known of a run beside its log."""

    facts: Mapping[str, float] = field(default_factory=dict)
    framework: str = ""
    checkpoints: tuple[CheckpointInfo, ...] = ()
    notes: tuple[str, ...] = ()


def store() -> Path:
    """Return the file that keeps the dismissals of foreign logs.

    $XDG_STATE_HOME/trimtab/dismissed.jsonl.
    """
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "trimtab" / "dismissed.jsonl"


def read_beside(*, config: Path | None = None, checkpoints: Path | None = None) -> Beside:
    """Read the config and list the checkpoints that a run was given.

    Raises:
        ReadError: One of them cannot be read.
        ConfigError: The config holds several runs, or nothing that is known.
    """
    beside = Beside() if config is None else _from_config(config)
    if checkpoints is None:
        return beside
    found = find_checkpoints(checkpoints)
    steps = [c.step for c in found.checkpoints]
    told = f"{len(steps)} checkpoints ({found.layout}) in {found.path}" + (
        f", steps {steps[0]} to {steps[-1]}" if steps else ""
    )
    notes = (told, *(f"checkpoint left out: {text}" for text in found.left_out))
    return replace(beside, checkpoints=found.checkpoints, notes=(*beside.notes, *notes))


def _from_config(path: Path) -> Beside:
    read = read_config(path)
    if len(read) != 1:
        raise ConfigError(f"{path}: holds {len(read)} configs; give a file with one")
    settings = read[0]
    facts = {
        fact: number
        for name, fact in _FACTS.items()
        if (number := settings.number(name)) is not None and number > 0
    }
    said = ", ".join(f"{name} {value:g}" for name, value in facts.items())
    note = f"from {path} ({settings.framework}): {said or 'nothing that bears on this'}"
    framework = settings.framework if dialect(settings.framework) else ""
    return Beside(facts=facts, framework=framework, notes=(note,))


def account_of(
    record: RunRecord,
    path: str,
    *,
    beside: Beside | None = None,
    read_s: float = 0.0,
    hindsight: bool = True,
) -> RunAccount:
    """Return the account of a record with its journal, its checkpoints and its dismissals.

    What a config says wins over what the log says: it was given for this run.
    """
    beside = beside or Beside()
    layers, layer_notes = read_layers(Path(path))
    record = replace(
        record,
        facts={**record.facts, **beside.facts},
        notes=(*record.notes, *layer_notes, *beside.notes),
    )
    return make_account(
        record,
        events=events_of(path),
        checkpoints=beside.checkpoints or own_checkpoints(Path(path)),
        framework=beside.framework,
        dismissed=dismissals(path, store=store()),
        hindsight=hindsight,
        read_s=read_s,
        layers=layers,
    )


def read_account(path: str, *, beside: Beside | None = None) -> RunAccount:
    """Return the account of one run.

    Raises:
        ReadError: It cannot be read, or holds several runs.
    """
    started = time.perf_counter()
    record = read_run(path)
    return account_of(record, path, beside=beside, read_s=time.perf_counter() - started)
