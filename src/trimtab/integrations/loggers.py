"""The guard's signals and events, sent to the logger that a run already uses.

Each class takes the object that the script made (a writer, a run, a registry) and is passed to
`Guard.listen`; none of the packages is imported here, none is required. Signals go under
`trimtab/`, events as text, incidents as alerts if the logger has them. A rollback makes steps fall.

Example::

    guard.listen(TensorBoard(SummaryWriter("runs/tb")), WandB(wandb.run))
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from trimtab.chronicle.logbook import event_lines
from trimtab.errors import ConfigError
from trimtab.text import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from trimtab.chronicle.journal import Event

__all__ = ["MLflow", "Prometheus", "TensorBoard", "Thinned", "Trackio", "WandB"]

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


class Thinned:
    """A logger that takes the signals of every so many steps, and all events."""

    def __init__(self, every_steps: int) -> None:
        if every_steps < 1:
            raise ConfigError(f"every_steps is {every_steps}, expected at least 1")
        self._every = every_steps

    def sample(self, step: int, values: Mapping[str, float], *, attempt: str) -> None:
        """Log the signals of a step that is due."""
        if step % self._every == 0:
            self.write_values(
                step, {f"trimtab/{name}": value for name, value in values.items()}, attempt
            )

    def event(self, event: Event) -> None:
        """Log an event that people should see, as Markdown."""
        if event.event in _SHOWN:
            text = "\n".join(event_lines(event))
            if text:
                self.write_text(event, text)

    def close(self) -> None:
        """Leave the user's object open: whoever made it closes it."""

    def write_values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        """Write the signals of one step; names begin with `trimtab/`."""
        raise NotImplementedError

    def write_text(self, event: Event, text: str) -> None:
        """Write an event in words."""
        raise NotImplementedError


class TensorBoard(Thinned):
    """Writes to a `SummaryWriter` (of torch or of tensorboardX)."""

    def __init__(self, writer: Writer, *, every_steps: int = 1) -> None:
        """Take a writer; signals of every `every_steps` steps."""
        super().__init__(every_steps)
        self._writer = writer

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


class WandB(Thinned):
    """Writes to a run of Weights & Biases, against a step of its own that may fall back."""

    def __init__(self, run: WandbRun, *, every_steps: int = 1) -> None:
        """Take a run, as `wandb.init` returns it."""
        super().__init__(every_steps)
        self._run = run
        # W&B drops rows whose own step falls; a metric of our own may fall with a rollback.
        run.define_metric("trimtab/step", hidden=True)
        run.define_metric("trimtab/*", step_metric="trimtab/step")

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
