"""What the guard sees and does, in the logger that a run uses already.

Each class takes the object that the script made (a writer, a run, a registry) and is handed to
`Guard.listen`; none of the packages is imported here, none is needed. Signals go under `trimtab/`,
events as text, incidents as alerts where the logger has them. Steps fall back in a rollback.

Example::

    guard.listen(TensorBoard(SummaryWriter("runs/tb")), WandB(wandb.run))
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trimtab.chronicle.logbook import event_lines
from trimtab.errors import ConfigError
from trimtab.text import plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.chronicle.journal import Event

__all__ = ["MLflow", "Prometheus", "TensorBoard", "Thinned", "Trackio", "WandB"]

_LOUD = ("incident", "action", "decision", "outcome", "fault")
"""Events that people should see beside their curves."""


class Thinned:
    """A logger that takes the signals of every so many steps, and all events."""

    def __init__(self, every_steps: int) -> None:
        if every_steps < 1:
            raise ConfigError(f"every_steps is {every_steps}, expected at least 1")
        self._every = every_steps

    def sample(self, step: int, values: Mapping[str, float], *, attempt: str) -> None:
        """Pass on the signals of a step that is due."""
        if step % self._every == 0:
            self._values(
                step, {f"trimtab/{name}": value for name, value in values.items()}, attempt
            )

    def event(self, event: Event) -> None:
        """Pass on an event that is for people, as Markdown."""
        if event.event in _LOUD:
            text = "\n".join(event_lines(event))
            if text:
                self._text(event, text)

    def close(self) -> None:
        """Leave the user's object open: whoever made it closes it."""

    def _values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        raise NotImplementedError

    def _text(self, event: Event, text: str) -> None:
        raise NotImplementedError


class TensorBoard(Thinned):
    """Writes to a `SummaryWriter` (of torch or of tensorboardX)."""

    def __init__(self, writer: Any, *, every_steps: int = 1) -> None:
        """Take a writer; signals of every `every_steps` steps."""
        super().__init__(every_steps)
        self._writer = writer

    def _values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        del attempt
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def _text(self, event: Event, text: str) -> None:
        self._writer.add_text("trimtab/chronicle", text, event.step)

    def close(self) -> None:
        """Flush; the writer stays open."""
        self._writer.flush()


class WandB(Thinned):
    """Writes to a run of Weights & Biases, against a step of its own that may fall back."""

    def __init__(self, run: Any, *, every_steps: int = 1) -> None:
        """Take a run, as `wandb.init` returns it."""
        super().__init__(every_steps)
        self._run = run
        run.define_metric("trimtab/step", hidden=True)
        run.define_metric("trimtab/*", step_metric="trimtab/step")

    def _values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        self._run.log({**values, "trimtab/step": step, "trimtab/attempt": attempt})

    def _text(self, event: Event, text: str) -> None:
        data = event.data
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

    def __init__(self, client: Any, run_id: str, *, every_steps: int = 1) -> None:
        """Take an `mlflow.MlflowClient` and the id of a run under way."""
        super().__init__(every_steps)
        self._client, self._run_id = client, run_id

    def _values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        del attempt
        now = int(time.time() * 1000)
        for name, value in values.items():
            self._client.log_metric(self._run_id, name, value, timestamp=now, step=step)

    def _text(self, event: Event, text: str) -> None:
        del event
        self._client.set_tag(self._run_id, "trimtab.last", plain(text, limit=5000))


class Trackio(Thinned):
    """Writes to a trackio run."""

    def __init__(self, run: Any, *, every_steps: int = 1) -> None:
        """Take a run, as `trackio.init` returns it."""
        super().__init__(every_steps)
        self._run = run

    def _values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        self._run.log({**values, "trimtab/attempt": attempt}, step=step)

    def _text(self, event: Event, text: str) -> None:
        self._run.log({"trimtab/chronicle": plain(text, limit=5000)}, step=event.step)


class Prometheus:
    """Keeps gauges and counters of `prometheus_client`, for a scrape or a pushgateway.

    `trimtab_signal{name}`, `trimtab_step`, `trimtab_findings_total{kind,severity}`,
    `trimtab_incidents_total{kind,severity}`, `trimtab_actions_total{remedy}`,
    `trimtab_faults_total`.
    """

    def __init__(self, prometheus_client: Any, registry: Any | None = None) -> None:
        """Take the module and, where not its default, a registry."""
        of: dict[str, Any] = {} if registry is None else {"registry": registry}
        gauge, counter = prometheus_client.Gauge, prometheus_client.Counter
        self._signal = gauge("trimtab_signal", "Signal of the last step", ["name"], **of)
        self._step = gauge("trimtab_step", "Last finished step", **of)
        self._incidents = counter("trimtab_incidents", "Incidents", ["kind", "severity"], **of)
        self._findings = counter(
            "trimtab_findings", "Claims of detectors", ["kind", "severity"], **of
        )
        self._actions = counter("trimtab_actions", "What the guard did", ["remedy"], **of)
        self._faults = counter("trimtab_faults", "Faults of trimtab's own", **of)

    def sample(self, step: int, values: Mapping[str, float], *, attempt: str) -> None:
        """Set the gauges."""
        del attempt
        self._step.set(step)
        for name, value in values.items():
            self._signal.labels(name=name).set(value)

    def event(self, event: Event) -> None:
        """Count it."""
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
