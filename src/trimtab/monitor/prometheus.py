"""What a watch knows, for Prometheus: a text file for node_exporter, or a port on this machine.

The names and labels stand in `METRICS`. `trimtab_look_time_seconds` rises with each look: an alert
on its age, or on its absence, is the dead-man switch that fires when run and watch die together.
"""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import numpy as np

from trimtab.analysis.account import RunAccount
from trimtab.errors import ConfigError
from trimtab.kinds import severity_rank
from trimtab.masking import masked_text
from trimtab.monitor.follow import Watch

__all__ = ["METRICS", "Exporter", "metrics_text", "parse_target"]

METRICS: Final[Mapping[str, str]] = {
    "trimtab_look_time_seconds": "When the log was last looked at, seconds since 1970",
    "trimtab_log_time_seconds": "When the log was last written, seconds since 1970",
    "trimtab_rows": "Rows with a train loss",
    "trimtab_step": "Newest position on the log's axis",
    "trimtab_signal": "Newest value of a judged signal; NaN and Inf as logged",
    "trimtab_verdict": "1 for the verdict that holds",
    "trimtab_open_alarms": "Alarms that nobody dismissed and nothing resolved, by severity",
    "trimtab_incidents": "Incidents so far, by kind",
}
"""Name -> help; all are gauges."""

_MOST_SIGNALS = 40
_VERDICTS = ("healthy", "incident", "ended-badly", "not-judged")
_CONTENT = "text/plain; version=0.0.4; charset=utf-8"


def parse_target(text: str) -> int | Path:
    """Return a port, or the file to write.

    Raises:
        ConfigError: The port is impossible, or the file does not end as node_exporter wants it.

    Example:
        >>> parse_target("9464"), parse_target("/tmp/run.prom").name
        (9464, 'run.prom')
    """
    if text.isdecimal():
        port = int(text)
        if not 0 < port < 65536:
            raise ConfigError(f"--prometheus {text}: not a port; give 1 to 65535, or a file")
        return port
    path = Path(text)
    if path.suffix != ".prom":
        raise ConfigError(
            f"--prometheus {text}: give a port, or a file that ends in .prom for the textfile"
            " collector of node_exporter"
        )
    return path


def metrics_text(
    path: str, account: RunAccount | None, *, now: float, written: float | None
) -> str:
    """Return what is known of a run in Prometheus' text format.

    Args:
        path: Of the log; the label `run` of every sample.
        account: As it was last judged; None before the first row.
        now: Seconds since 1970.
        written: When the log was last written, seconds since 1970; None: it is not there.
    """
    found: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in METRICS}
    found["trimtab_look_time_seconds"].append(({}, now))
    if written is not None:
        found["trimtab_log_time_seconds"].append(({}, written))
    verdict = "not-judged"
    if account is not None:
        record = account.record
        verdict = account.verdict
        found["trimtab_rows"].append(({}, record.num_loss_rows))
        if record.num_rows:
            found["trimtab_step"].append(({}, float(record.step[-1])))
        # Signals of the whole go before those of layers and data sets, of which there may be hundreds.
        order = sorted(record.columns, key=lambda n: ("/" in n, n))
        for name, column in ((n, record.columns[n]) for n in order[:_MOST_SIGNALS]):
            rows = np.flatnonzero(column.present)
            if len(rows):
                value = float(column.values[rows[-1]])
                found["trimtab_signal"].append(({"signal": name}, value))
        kinds: dict[str, int] = {}
        open_ = dict.fromkeys(("warning", "critical"), 0)
        for told in account.incidents:
            kinds[told.kind] = kinds.get(told.kind, 0) + 1
            if told.is_open_alarm and severity_rank(told.severity) > 0 and told.end is None:
                open_[told.severity] = open_.get(told.severity, 0) + 1
        found["trimtab_open_alarms"] += [({"severity": s}, n) for s, n in open_.items()]
        found["trimtab_incidents"] += [({"kind": k}, n) for k, n in sorted(kinds.items())]
    found["trimtab_verdict"] += [({"verdict": v}, float(v == verdict)) for v in _VERDICTS]
    lines = []
    for metric, samples in found.items():
        if samples:
            lines += [f"# HELP {metric} {METRICS[metric]}", f"# TYPE {metric} gauge"]
        for labels, value in samples:
            shown = {"run": masked_text(path), **labels}
            words = ",".join(f'{k}="{_escaped(v)}"' for k, v in shown.items())
            lines.append(f"{metric}{{{words}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    plain = text.encode("utf-8", "replace").decode()
    return plain.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")[:400]


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


class Exporter:
    """Tells Prometheus what a watch knows, after each look."""

    def __init__(self, target: int | Path, path: str, clock: Callable[[], float]) -> None:
        """Open the port on the loopback address, or remember the file.

        Raises:
            ConfigError: The port is taken, or the file cannot be written.
        """
        self._path, self._clock, self._target = path, clock, target
        self._text = metrics_text(path, None, now=clock(), written=_written(path))
        self._server: ThreadingHTTPServer | None = None
        self.trouble = ""
        """Why the file could not be written last time; the watch goes on."""
        if isinstance(target, Path):
            self._write()
            if self.trouble:
                raise ConfigError(self.trouble)
            return
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            """Answers GET /metrics, and nothing else."""

            timeout = 10

            def do_GET(self) -> None:
                """Send the newest text."""
                if self.path.partition("?")[0] not in ("/metrics", "/"):
                    self.send_error(404)
                    return
                body = exporter.text.encode()
                self.send_response(200)
                self.send_header("Content-Type", _CONTENT)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: the terminal belongs to the watch."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", target), Handler)
        except OSError as error:
            raise ConfigError(
                f"--prometheus {target}: the port cannot be opened ({error.strerror}); give another"
            ) from error
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def text(self) -> str:
        """What the last look gave."""
        return self._text

    def tell(self, watch: Watch) -> None:
        """Take what a watch knows now."""
        self._text = metrics_text(
            self._path, watch.account, now=self._clock(), written=_written(self._path)
        )
        if isinstance(self._target, Path):
            self._write()

    def _write(self) -> None:
        assert isinstance(self._target, Path)
        partial = self._target.with_suffix(f".{os.getpid()}.partial")
        try:
            partial.write_text(self._text, encoding="utf-8")
            partial.replace(self._target)  # a reader never sees half a file
            self.trouble = ""
        except OSError as error:
            self.trouble = (
                f"{self._target}: cannot be written ({error.strerror}); Prometheus will see an old"
                " time there"
            )
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the port; the file stays, and grows old: that is what the dead-man rule sees."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def _written(path: str) -> float | None:
    """Return when a log, or the newest file of a directory, was written."""
    place = Path(path)
    try:
        if not place.is_dir():
            return place.stat().st_mtime
        files = [place, *place.iterdir(), *(place / "signals").glob("*.jsonl")]
        return max(p.stat().st_mtime for p in files[:1000] if p.exists())
    except OSError:
        return None
