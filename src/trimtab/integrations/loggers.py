"""The guard's signals and events, sent to the logger that a run already uses.

Each class takes the object that the script made (a writer, a run, a registry) and is passed to
`Guard.listen`; none of the packages is imported here, none is required. Signals go under
`trimtab/`, events as text, incidents as alerts if the logger has them.

A rollback makes steps fall. What a logger has taken it cannot give back, so of each step the last
row counts: rows of the kept lineage that others were written over are written again, and what was
given up is written once more, apart, under `trimtab-given-up/` and the number of its attempt.

Example::

    guard.listen(TensorBoard(SummaryWriter("runs/tb")), WandB(wandb.run))
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from trimtab.chronicle.logbook import event_lines
from trimtab.errors import ConfigError
from trimtab.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from trimtab.chronicle.journal import Event

__all__ = ["MLflow", "Prometheus", "TensorBoard", "Thinned", "Trackio", "WandB"]

_MOST_ROWS = 2048
"""Rows that are remembered, in case that a rollback gives them up; of older ones nothing is said.
"""
_SHOWN = ("incident", "action", "decision", "outcome", "fault")
"""Events that people should see beside their curves."""


class Writer(Protocol):
    """The part of a `SummaryWriter` that is used."""

    def add_scalar(self, tag: str, value: float, step: int, /) -> object:
        """Add one number."""

    def add_text(self, tag: str, text: str, step: int, /) -> object:
        """Add a text."""

    def flush(self) -> object:
        """Write what is buffered."""


class _Summary(Protocol):
    def __setitem__(self, key: str, value: str, /) -> None: ...


class WandbRun(Protocol):
    """The part of a run of Weights & Biases that is used."""

    @property
    def summary(self) -> _Summary:
        """Values shown for the whole run."""

    def define_metric(self, name: str, /, *, hidden: bool = ..., step_metric: str = ...) -> object:
        """Set how a metric is drawn."""

    def log(self, data: dict[str, object], /) -> object:
        """Log one row."""

    def alert(self, *, title: str, text: str, level: str) -> object:
        """Send an alert."""


class MlflowClient(Protocol):
    """The part of an `mlflow.MlflowClient` that is used."""

    def log_metric(
        self, run_id: str, key: str, value: float, /, *, timestamp: int, step: int
    ) -> object:
        """Log one number."""

    def set_tag(self, run_id: str, key: str, value: str, /) -> object:
        """Set a tag of the run."""


class TrackioRun(Protocol):
    """The part of a trackio run that is used."""

    def log(self, metrics: dict[str, object], /, *, step: int) -> object:
        """Log one row."""


class _Lineage:
    """The newest rows of all attempts, and which attempt the logger shows at each step."""

    def __init__(self) -> None:
        self._rows: deque[tuple[str, int, Mapping[str, float]]] = deque(maxlen=_MOST_ROWS)
        self._parents: dict[str, tuple[str, int]] = {}
        self._shown: dict[int, str] = {}
        """Attempt of the row that was written last, by step."""

    def add(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        """Take in a row that was written."""
        self._rows.append((attempt, step, values))
        self._shown[step] = attempt
        if len(self._shown) > 2 * _MOST_ROWS:
            known = {t for _, t, _ in self._rows}
            self._shown = {t: a for t, a in self._shown.items() if t in known}

    def begin(
        self, number: str, parent: str, parent_step: int
    ) -> tuple[list[tuple[str, int, Mapping[str, float]]], dict[int, Mapping[str, float]]]:
        """Go on with an attempt; return rows that are given up, and those to be written again.

        Both are in the order of steps; the latter also hold what stands and lies beyond the first
        of them.
        """
        self._parents[number] = (parent, parent_step)
        until = {parent: parent_step}
        while parent in self._parents:
            parent, step = self._parents[parent]
            until[parent] = parent_step = min(step, parent_step)
        rows = {(a, t): v for a, t, v in self._rows}
        kept = {t: a for a, t in sorted(rows) if t <= until.get(a, -1)}
        gone = sorted((t, a) for t, a in self._shown.items() if kept.get(t) != a)
        given_up = [(a, t, rows[a, t]) for t, a in gone if (a, t) in rows]
        if not gone:
            return [], {}
        again = {t: rows[a, t] for t, a in sorted(kept.items()) if t >= gone[0][0]}
        self._shown = {t: a for t, a in self._shown.items() if t < gone[0][0]}
        self._shown |= {t: kept[t] for t in again}
        return given_up, again


class Thinned:
    """A logger that takes the signals of every so many steps, and all events."""

    def __init__(self, every_steps: int) -> None:
        if every_steps < 1:
            raise ConfigError(f"every_steps is {every_steps}, expected at least 1")
        self._every = every_steps
        self._lineage = _Lineage()

    def sample(self, step: int, values: Mapping[str, float], *, attempt: str) -> None:
        """Log the signals of a step that is due."""
        if step % self._every == 0:
            named = {f"trimtab/{name}": value for name, value in values.items()}
            self.write_values(step, named, attempt)
            self._lineage.add(step, named, attempt)

    def event(self, event: Event) -> None:
        """Log an event that people should see, as Markdown."""
        if event.event == "attempt":
            self._go_on(event)
        if event.event in _SHOWN:
            text = "\n".join(event_lines(event))
            if text:
                self.write_text(event, text)

    def _go_on(self, event: Event) -> None:
        """Show the lineage that a new attempt goes on from."""
        data = event.data
        parent, step = data.get("parent"), data.get("parent_step")
        if not isinstance(parent, str) or not isinstance(step, int):
            return
        number = str(data.get("number"))
        given_up, again = self._lineage.begin(number, parent, step)
        if given_up or again:
            self.write_rollback(min([*again, *(t for _, t, _ in given_up)]))
        for attempt, t, values in given_up:
            apart = f"trimtab-given-up/{attempt}/"
            row = {name.replace("trimtab/", apart, 1): v for name, v in values.items()}
            self.write_given_up(t, row, attempt)
        for t, values in again.items():
            self.write_values(t, values, number)

    def close(self) -> None:
        """Leave the user's object open: whoever made it closes it."""

    def write_values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        """Write the signals of one step; names begin with `trimtab/`."""
        raise NotImplementedError

    def write_given_up(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        """Write a row that a rollback gave up; names begin with `trimtab-given-up/ATTEMPT/`."""
        self.write_values(step, values, attempt)

    def write_rollback(self, step: int) -> None:
        """Take note that rows from a step on are written anew."""

    def write_text(self, event: Event, text: str) -> None:
        """Write an event in words."""
        raise NotImplementedError


class TensorBoard(Thinned):
    """Writes to a `SummaryWriter` (of torch or of tensorboardX)."""

    def __init__(self, writer: Writer, *, every_steps: int = 1, purge: bool = False) -> None:
        """Take a writer; signals of every `every_steps` steps.

        Args:
            writer: Whoever made it closes it.
            every_steps: Distance of the steps that are logged.
            purge: Have TensorBoard drop what a rollback gave up, so that the curves are the kept
                lineage alone. It drops all that the writer wrote at those steps: give the guard a
                writer of its own, such as `SummaryWriter("runs/tb/trimtab")`.

        Raises:
            ConfigError: With `purge`, a writer that is not open, or not one of torch's.
        """
        super().__init__(every_steps)
        self._writer = writer
        self._restart = _restart_of(writer) if purge else None
        self._given_up: list[tuple[int, Mapping[str, float]]] = []

    def write_rollback(self, step: int) -> None:
        """Begin the curves anew at a step."""
        if self._restart is not None:
            self._restart(step)
            for t, values in self._given_up:  # dropped with the rest
                if t >= step:
                    self.write_values(t, values, "")

    def write_given_up(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        """Log a row that a rollback gave up."""
        self.write_values(step, values, attempt)
        if self._restart is not None:
            self._given_up = [*self._given_up[1 - _MOST_ROWS :], (step, values)]

    def write_values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        """Log the signals of one step."""
        del attempt
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def write_text(self, event: Event, text: str) -> None:
        """Log an event in words."""
        self._writer.add_text("trimtab/chronicle", text, event.step)

    def close(self) -> None:
        """Flush; the writer stays open."""
        self._writer.flush()


def _restart_of(writer: Writer) -> Callable[[int], None]:
    """Return what makes TensorBoard drop all from a step on that a writer has written so far."""
    files = getattr(writer, "file_writer", None)
    if files is None:
        raise ConfigError(
            f"purge needs an open SummaryWriter of torch.utils.tensorboard, got"
            f" {type(writer).__name__}"
        )
    from tensorboard.compat.proto.event_pb2 import Event as TensorEvent
    from tensorboard.compat.proto.event_pb2 import SessionLog

    def restart(step: int) -> None:
        files.add_event(TensorEvent(step=step, file_version="brain.Event:2"))
        files.add_event(
            TensorEvent(step=step, session_log=SessionLog(status=SessionLog.START)), step
        )

    return restart


class WandB(Thinned):
    """Writes to a run of Weights & Biases, against a step of its own that may fall back."""

    def __init__(self, run: WandbRun, *, every_steps: int = 1) -> None:
        """Take a run, as `wandb.init` returns it."""
        super().__init__(every_steps)
        self._run = run
        # W&B drops rows whose own step falls; a metric of our own may fall with a rollback.
        run.define_metric("trimtab/step", hidden=True)
        run.define_metric("trimtab/*", step_metric="trimtab/step")
        run.define_metric("trimtab-given-up/*", step_metric="trimtab/step")

    def write_values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        """Log the signals of one step."""
        self._run.log({**values, "trimtab/step": step, "trimtab/attempt": attempt})

    def write_text(self, event: Event, text: str) -> None:
        """Log an event in words."""
        data = event.data
        # An incident is told again as it grows and ends: one message for each is enough.
        if event.event == "incident" and data.get("state") == "open":
            level = "ERROR" if data.get("severity") == "critical" else "WARN"
            self._run.alert(
                title=f"trimtab: {plain(data.get('kind'), limit=60)} at step {event.step:,}",
                text=text,
                level=level,
            )
        self._run.summary["trimtab/last"] = text


class MLflow(Thinned):
    """Writes to an MLflow run through a client."""

    def __init__(self, client: MlflowClient, run_id: str, *, every_steps: int = 1) -> None:
        """Take an `mlflow.MlflowClient` and the id of a run under way."""
        super().__init__(every_steps)
        self._client, self._run_id = client, run_id

    def write_values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        """Log the signals of one step."""
        del attempt
        now = int(time.time() * 1000)
        for name, value in values.items():
            self._client.log_metric(self._run_id, name, value, timestamp=now, step=step)

    def write_text(self, event: Event, text: str) -> None:
        """Log an event in words."""
        del event
        # All stores of MLflow take 5,000 characters; whether they take more depends on the store.
        self._client.set_tag(self._run_id, "trimtab.last", plain(text, limit=5000))


class Trackio(Thinned):
    """Writes to a trackio run."""

    def __init__(self, run: TrackioRun, *, every_steps: int = 1) -> None:
        """Take a run, as `trackio.init` returns it."""
        super().__init__(every_steps)
        self._run = run

    def write_values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        """Log the signals of one step."""
        self._run.log({**values, "trimtab/attempt": attempt}, step=step)

    def write_text(self, event: Event, text: str) -> None:
        """Log an event in words."""
        self._run.log({"trimtab/chronicle": plain(text, limit=5000)}, step=event.step)


class Prometheus:
    """Keeps gauges and counters of `prometheus_client`, for a scrape or a pushgateway.

    `trimtab_signal{name}`, `trimtab_step`, `trimtab_findings_total{kind,severity}`,
    `trimtab_incidents_total{kind,severity}`, `trimtab_actions_total{remedy}`,
    `trimtab_faults_total`.
    """

    def __init__(self, prometheus_client: ModuleType, registry: object | None = None) -> None:
        """Take the module and, if it is not its default, a registry."""
        of: dict[str, object] = {} if registry is None else {"registry": registry}
        gauge, counter = prometheus_client.Gauge, prometheus_client.Counter
        self._signal = gauge("trimtab_signal", "Signal of the last step", ["name"], **of)
        self._step = gauge("trimtab_step", "Last finished step", **of)
        self._incidents = counter("trimtab_incidents", "Incidents", ["kind", "severity"], **of)
        self._findings = counter(
            "trimtab_findings", "Findings of detectors", ["kind", "severity"], **of
        )
        self._actions = counter("trimtab_actions", "Interventions of the guard", ["remedy"], **of)
        self._faults = counter("trimtab_faults", "Internal errors of trimtab", **of)

    def sample(self, step: int, values: Mapping[str, float], *, attempt: str) -> None:
        """Set the gauges."""
        del attempt
        self._step.set(step)
        for name, value in values.items():
            self._signal.labels(name=name).set(value)

    def event(self, event: Event) -> None:
        """Count an event."""
        data = event.data
        labels = {"kind": str(data.get("kind")), "severity": str(data.get("severity"))}
        if event.event == "finding":
            self._findings.labels(**labels).inc()
        elif event.event == "incident" and data.get("state") == "open":
            self._incidents.labels(**labels).inc()
        elif event.event == "action":
            self._actions.labels(remedy=str(data.get("remedy"))).inc()
        elif event.event == "fault":
            self._faults.inc()

    def close(self) -> None:
        """Leave the registry as it is."""
