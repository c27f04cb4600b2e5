"""From a source to the analysis of its runs: the one path of `analyze` and of every command.

A run is judged together with what lies beside it on this machine: its journal, its checkpoints,
and the dismissals that a person recorded.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trimtab.analysis.account import RunAccount
from trimtab.analysis.assemble import events_of, make_account
from trimtab.analysis.config_evidence import config_signs, signs_of_this_run
from trimtab.analysis.ending import earlier_ends, ending_of
from trimtab.analysis.frames import is_columns, record_of_columns
from trimtab.analysis.self_test import SelfTester
from trimtab.analysis.verdict import Ending
from trimtab.checkpoints.find import find_checkpoints, own_checkpoints
from trimtab.chronicle.dismissals import dismissals
from trimtab.chronicle.journal import Event
from trimtab.chronicle.rundir import RunDirectory
from trimtab.configs import read_config
from trimtab.detectors.judge import Judge
from trimtab.diagnosis.config_signs import ConfigSign
from trimtab.errors import ConfigError, ReadError, TrimtabError
from trimtab.plan.flags import dialect
from trimtab.plan.rollback import CheckpointInfo
from trimtab.readers import fault_error, read_each, read_run
from trimtab.readers.layers import read_layers
from trimtab.record import RunRecord

__all__ = [
    "Beside",
    "account_of",
    "account_or_fault",
    "read_account",
    "read_beside",
    "read_source",
    "store",
]

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
    config: tuple[ConfigSign, ...] = ()
    """What a check of the config found that bears on causes."""
    reference: RunRecord | None = None
    """A run to judge by; None: judged by itself alone."""


def store() -> Path:
    """Return the file that keeps the dismissals of foreign logs.

    $XDG_STATE_HOME/trimtab/dismissed.jsonl.
    """
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "trimtab" / "dismissed.jsonl"


def read_beside(
    *,
    config: Path | None = None,
    checkpoints: Path | None = None,
    against: object = None,
) -> Beside:
    """Read the config and the reference run, and list the checkpoints, that a run was given.

    Raises:
        ReadError: One of them cannot be read.
        ConfigError: The config holds several runs, or nothing that is known.
    """
    beside = Beside() if config is None else _from_config(config)
    if against is not None:
        beside = replace(beside, reference=_one_run(against))
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
    return Beside(facts=facts, framework=framework, notes=(note,), config=config_signs(settings))


def read_source(source: object) -> Iterator[tuple[str, RunRecord | ReadError]]:
    """Yield (path, record or why there is none) for every run in a source.

    Args:
        source: A path (a log, a run directory, or a directory of logs), a run record or several (as
            `trimtab.read` gives them), a pandas or polars frame, or a mapping of columns. The path of columns in memory is empty.

    Raises:
        ReadError: The columns in memory cannot be read, or the source is of another type.
    """
    if isinstance(source, str | os.PathLike):
        if not os.fspath(source):
            raise ReadError("the path is empty; give that of a log, or '.' for this directory")
        yield from read_each(source)
    elif isinstance(source, list | tuple) and all(isinstance(s, RunRecord) for s in source):
        for record in source:
            yield record.source, record
    elif isinstance(source, RunRecord):
        yield source.source, source
    elif is_columns(source):
        yield "", record_of_columns(source)
    else:
        raise ReadError(
            f"{type(source).__name__} is no source; give a path, a run record, a pandas or polars"
            " frame, or a mapping of columns"
        )


def _one_run(source: object) -> RunRecord:
    """Return the one run of a source.

    Raises:
        ReadError: It cannot be read, or holds several.
    """
    if isinstance(source, str | os.PathLike):
        return read_run(source)
    ((_, found),) = read_source(source)  # what is in memory is one run
    if isinstance(found, ReadError):
        raise found
    return found


def account_of(
    record: RunRecord,
    path: str,
    *,
    beside: Beside | None = None,
    judge: Judge | None = None,
    read_s: float = 0.0,
    hindsight: bool = True,
    grows: bool = False,
    tester: SelfTester | None = None,
) -> RunAccount:
    """Return the analysis of a record with its journal, its checkpoints and its dismissals.

    What a config says wins over what the log says: it was given for this run.

    Args:
        record: What the run logged.
        path: Where it was read; empty for columns in memory, which have nothing beside them.
        beside: What is known of the run beside its log.
        judge: The detectors to use; None: the built-in ones with their own settings.
        read_s: How long reading took, seconds.
        hindsight: Whether rules that need later rows apply.
        grows: Whether more rows will come.
        tester: What injects faults into copies of the rows, kept while a log grows; None: a new
        one.
    """
    beside = beside or Beside()
    layers, layer_notes = read_layers(Path(path)) if path else ((), ())
    own = own_checkpoints(Path(path)) if path and not beside.checkpoints else None
    left_out = tuple(f"checkpoint left out: {text}" for text in own.left_out) if own else ()
    config, no_evidence = signs_of_this_run(beside.config, record)
    record = replace(
        record,
        facts={**record.facts, **beside.facts},
        notes=(*record.notes, *layer_notes, *left_out, *beside.notes, *no_evidence),
    )
    ended = earlier_ends(record)
    record = replace(record, notes=(*ended, *record.notes)) if ended else record
    given_up = _given_up(RunDirectory(Path(path))) if path else None
    events = events_of(path) if path else ()
    return make_account(
        record,
        events=events,
        checkpoints=beside.checkpoints or (own.checkpoints if own else ()),
        framework=beside.framework,
        dismissed=dismissals(path, store=store()) if path else (),
        judge=judge,
        hindsight=hindsight,
        grows=grows,
        read_s=read_s,
        layers=layers,
        path=path,
        reference=beside.reference,
        config=config,
        ending=given_up or _by_journal(events, record),
        tester=tester,
    )


def account_or_fault(
    record: RunRecord,
    path: str,
    *,
    beside: Beside | None = None,
    judge: Judge | None = None,
    read_s: float = 0.0,
    hindsight: bool = True,
    grows: bool = False,
    tester: SelfTester | None = None,
) -> RunAccount | ReadError:
    """Return `account_of`, or the one error of a run on which trimtab itself failed.

    A fault of ours on one run must not lose the results of the others.
    """
    try:
        return account_of(
            record,
            path,
            beside=beside,
            judge=judge,
            read_s=read_s,
            hindsight=hindsight,
            grows=grows,
            tester=tester,
        )
    except TrimtabError as error:
        return error if isinstance(error, ReadError) else ReadError(str(error))
    except Exception as error:  # noqa: BLE001 - one run, one error
        return fault_error(path or record.source, "judged", error)


def _given_up(directory: RunDirectory) -> Ending | None:
    """Return why a guarded process gave its run up, or ended it broken; None where it did not."""
    try:
        told = json.loads(directory.verdict.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    if told.get("state") != "given-up" and told.get("verdict") != "ended-badly":
        return None
    return Ending(why=str(told.get("reason") or "the guard gave the run up"))


def _by_journal(events: Iterable[Event], record: RunRecord) -> Ending | None:
    """Return how a run ended badly; what its supervisor saw outweighs the text of its log."""
    last: Event | None = None
    for event in events:
        if event.event in ("attempt", "end", "gave-up"):
            last = event
    if last is not None and last.event == "end" and last.data.get("status") == 0:
        return None
    told = ending_of(record)
    if told or last is None or last.event != "gave-up" or last.data.get("class") == "numeric":
        return told
    return Ending(why=f"the supervisor gave up: {last.data.get('why') or 'no reason is told'}")


def read_account(path: str, *, beside: Beside | None = None) -> RunAccount:
    """Return the analysis of the one run at a path.

    Raises:
        ReadError: It cannot be read, or holds several runs.
    """
    started = time.perf_counter()
    record = read_run(path)
    return account_of(record, path, beside=beside, read_s=time.perf_counter() - started)
