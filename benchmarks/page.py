"""Times how long the report of a very long run takes to open in a real browser.

The run is made up (`testing.curves`): a million rows of six signals with faults planted in it,
which are told as incidents without being looked for. The page is opened in a headless Chromium; the
time is the wall clock from the call to navigate until a frame has been drawn after the script is
done, less the same for an empty page.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.browser import Browser
from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.diagnosis.diagnose import Diagnosis
from trimtab.incidents import Incident
from trimtab.kinds import KIND_BY_NAME
from trimtab.plan.plan import Plan
from trimtab.report.html import page_data, render_html
from trimtab.signals import derive
from trimtab.testing.curves import Fault, FaultKind, simulate_run
from trimtab.vocabulary import Severity

__all__ = ["PageFigures", "long_run", "measure_page", "time_opening"]

_NOTHING = "<!DOCTYPE html><title>nothing</title><p>nothing</p>"


@dataclass(frozen=True, kw_only=True)
class PageFigures:
    """What was measured, on one machine in one moment."""

    rows: int
    incidents: int
    drawn: int
    """Points that the page holds of its loss; of each few rows the lowest and the highest."""
    size_bytes: int
    render_s: float
    """To write the page."""
    open_ms: tuple[float, ...]
    """To open it, each time."""
    empty_ms: float
    """To open an empty page, the median."""
    zoom_ms: float
    """To draw everything anew after a zoom, the median."""
    load_before: float
    """Load average of the machine before the first opening."""

    @property
    def opening_ms(self) -> float:
        """The median opening less that of an empty page."""
        return statistics.median(self.open_ms) - self.empty_ms


_PLANTED: tuple[tuple[FaultKind, str, Severity, float], ...] = (
    ("spike", "spike", "info", 0.2),
    ("slow-spike", "spike", "warning", 0.45),
    ("nan", "non-finite", "critical", 0.7),
    ("unrecovered-spike", "unrecovered-spike", "critical", 0.98),
)
"""Fault, the kind and severity that it is told with, and where in the run it lies."""


def long_run(num_rows: int, *, seed: int = 100) -> RunAccount:
    """Return a made-up run with a spike, a slow spike, a NaN and a spike that does not recover."""
    steps = [int(share * num_rows) for *_, share in _PLANTED]
    faults = [Fault(kind=f, step=at) for (f, *_), at in zip(_PLANTED, steps, strict=True)]
    told = [
        IncidentAccount(
            incident=Incident(
                kind=kind,
                attempt="1.0",
                severity=severity,
                onset_row=at - 1,
                onset=at,
                peak_row=at + 1,
                peak=at + 2,
                end_row=None if kind == "unrecovered-spike" else at + 5,
                end=None if kind == "unrecovered-spike" else at + 6,
                signals=("loss", "grad_norm"),
                headline=f"{KIND_BY_NAME[kind].title} · step {at}",
            ),
            diagnosis=Diagnosis(causes=()),
            plan=Plan(),
        )
        for (_, kind, severity, _), at in zip(_PLANTED, steps, strict=True)
    ]
    record = simulate_run(num_steps=num_rows, faults=faults, seed=seed)
    return RunAccount(record=derive(record), incidents=tuple(reversed(told)))


def measure_page(
    *, num_rows: int, repeats: int = 5, say: Callable[[str], None] = lambda _: None
) -> PageFigures:
    """Make the run and its page, and open it `repeats` times.

    Raises:
        ConfigError: No Chromium is installed.
    """
    say(f"making {num_rows} rows")
    account = long_run(num_rows)
    say("writing the page")
    started = time.perf_counter()
    page = render_html(account, title="a long run")
    render_s = time.perf_counter() - started
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        open_ms, empty_ms, zoom_ms = time_opening(page, Path(folder), repeats=repeats, say=say)
    return PageFigures(
        rows=num_rows,
        incidents=len(account.incidents),
        drawn=_drawn(account),
        size_bytes=len(page.encode()),
        render_s=render_s,
        open_ms=open_ms,
        empty_ms=empty_ms,
        zoom_ms=zoom_ms,
        load_before=load,
    )


def time_opening(
    page: str, folder: Path, *, repeats: int, say: Callable[[str], None] = lambda _: None
) -> tuple[tuple[float, ...], float, float]:
    """Return each opening of the page, the median of an empty one and the median zoom, in ms."""
    path, nothing = folder / "page.html", folder / "nothing.html"
    path.write_text(page, encoding="utf-8")
    nothing.write_text(_NOTHING, encoding="utf-8")
    opened, empty = [], []
    with Browser() as browser:
        browser.open(nothing)  # the first page of a new browser pays for its start
        for k in range(repeats):
            say(f"opening it, {k + 1} of {repeats}")
            empty.append(browser.opening_ms(nothing))
            opened.append(browser.opening_ms(path))
        zooms = browser.evaluate("""[...Array(5).keys()].map((i) => {
          const [low, high] = trimtab.data.range, t = performance.now();
          trimtab.zoom([low + (high - low) * (0.1 + i / 100), high]);
          document.body.getBoundingClientRect();
          return performance.now() - t;
        })""")
    return tuple(opened), statistics.median(empty), statistics.median(zooms)


def _drawn(account: RunAccount) -> int:
    loss = next(p for p in page_data(account)["panels"] if p["name"] == "loss")
    return sum(len(s["y"]) for s in loss["stretches"])
