"""Times `trimtab serve` in a real browser: twenty long runs in one picture, zoom, new rows.

The logs are made up: CSV with a loss and a gradient norm. The server is a process of its own, as a
user starts it. Times are the clock of the wall: from the call to navigate, or to zoom, until the
second frame after everything is drawn.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.browser import Browser

__all__ = ["ServeFigures", "measure_serve", "serve_text"]

_FRAMES = "new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(() => d(1))))"
_READY = "document.documentElement.dataset.ready === 'yes'"


@dataclass(frozen=True, kw_only=True)
class ServeFigures:
    """What was measured, on one machine in one moment."""

    runs: int
    rows: int
    """Of each run."""
    reading_s: float
    """From the start of the server until the rows of all runs are there."""
    first_ms: tuple[float, ...]
    """To open the picture of all runs, each time."""
    zoom_ms: tuple[float, ...]
    """To zoom it, each time: another half of the axis, and ever smaller parts."""
    smooth_ms: float
    """To draw means of 1 000 rows over the whole range, the median."""
    live_s: tuple[float, ...]
    """From a new row of a log as long as the others to the page of its run, each time."""
    server_mb: float
    """Resident memory of the server without the pages of mapped files, MB, at the end."""
    mapped_mb: float
    """Mapped rows that are resident, which the system may drop, MB."""
    cache_mb: float
    """Rows on disk, MB."""
    load_before: float
    """Load average of the machine before the first opening."""


def measure_serve(
    *,
    num_runs: int = 20,
    num_rows: int = 1_000_000,
    repeats: int = 5,
    say: Callable[[str], None] = lambda _: None,
) -> ServeFigures:
    """Make the runs, serve them, and look at them.

    Raises:
        ConfigError: No Chromium is installed.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder) / "runs"
        root.mkdir()
        say(f"writing {num_runs} logs of {num_rows} rows")
        _write_logs(root, num_runs, num_rows)
        live = root / "live.csv"
        _write_log(live, num_rows, 0, _texts(num_rows))
        environment = {**os.environ, "TMPDIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "trimtab", "serve", str(root), "--port", "0"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            try:
                assert process.stdout is not None
                address = process.stdout.readline().split()[0]
                return _look(address, process.pid, Path(folder), live, num_rows, repeats, say)
            finally:
                process.terminate()


def _texts(num_rows: int) -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(100)
    loss = 2 + 8 * (np.arange(num_rows) + 50.0) ** -0.3 + rng.normal(0, 0.05, num_rows)
    norm = np.exp(rng.normal(-1, 0.3, num_rows))
    return [f"{v:.5f}" for v in loss.tolist()], [f"{v:.4f}" for v in norm.tolist()]


def _write_logs(root: Path, num_runs: int, num_rows: int) -> None:
    texts = _texts(num_rows)
    for k in range(num_runs):
        _write_log(root / f"run-{k:02}.csv", num_rows, k, texts)


def _write_log(path: Path, num_rows: int, k: int, texts: tuple[list[str], list[str]]) -> None:
    """Write a log; its norms are those of the first one, beginning elsewhere."""
    loss, norm = texts
    at = k * 7_919 % num_rows
    norm = norm[at:] + norm[:at]
    rows = (f"{i},{y},{g}" for i, (y, g) in enumerate(zip(loss, norm, strict=True), start=1))
    path.write_text("step,loss,grad_norm\n" + "\n".join(rows) + "\n")


def _look(
    address: str,
    process: int,
    folder: Path,
    live: Path,
    num_rows: int,
    repeats: int,
    say: Callable[[str], None],
) -> ServeFigures:
    started = time.perf_counter()
    while True:
        with urllib.request.urlopen(f"{address}api/runs", timeout=60) as answer:
            runs = json.load(answer)["runs"]
        if runs and all(r["state"] in ("judging", "ready", "error") for r in runs):
            break
        time.sleep(0.2)
    reading_s = time.perf_counter() - started
    say(f"read in {reading_s:.0f} s")
    ids = [r["id"] for r in runs if r["title"].startswith("run-")]
    own = next(r["id"] for r in runs if r["title"] == "live.csv")
    load = os.getloadavg()[0]
    picture = f"{address}overlay?runs={','.join(ids)}&signal=grad_norm"
    first, zooms, smooth, live_s = [], [], [], []
    with Browser() as browser:
        browser.visit(address)
        for _ in range(repeats):
            browser.visit("about:blank")
            begun = time.perf_counter()
            browser.visit(picture)
            browser.wait(_READY, timeout_s=60)
            browser.evaluate(_FRAMES)
            first.append(1000 * (time.perf_counter() - begun))
        for k in range(4 * repeats):
            low = num_rows * (0.1 + 0.02 * k)
            high = low + num_rows * 0.5 / 2**k
            zooms.append(_timed(browser, f"trimtab.zoom({low}, {high})"))
        for _ in range(repeats):
            browser.evaluate("trimtab.state.smooth = 1000")
            smooth.append(_timed(browser, "trimtab.whole()"))
        say("waiting for the page of a run that grows")
        browser.visit(f"{address}overlay?runs={own}")
        browser.wait(_READY)
        for k in range(repeats):
            with live.open("a") as file:
                file.write(f"{num_rows + 1 + k},2.5,0.4\n")
            took = browser.wait(
                f"trimtab.state.data.limits[1] === {num_rows + 1 + k}", timeout_s=60
            )
            live_s.append(took)
    status = Path(f"/proc/{process}/status").read_text()
    held = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if "Rss" in line}
    cached = sum(f.stat().st_size for f in folder.glob("trimtab-serve-*/**/*") if f.is_file())
    return ServeFigures(
        runs=len(ids),
        rows=num_rows,
        reading_s=reading_s,
        first_ms=tuple(first),
        zoom_ms=tuple(zooms),
        smooth_ms=statistics.median(smooth),
        live_s=tuple(live_s),
        server_mb=int(held.get("RssAnon", "0")) / 1024,
        mapped_mb=int(held.get("RssFile", "0")) / 1024,
        cache_mb=cached / 2**20,
        load_before=load,
    )


def _timed(browser: Browser, call: str) -> float:
    took = browser.evaluate(
        f"(async () => {{ const t = performance.now(); await {call}; await {_FRAMES};"
        " return performance.now() - t; })()"
    )
    return float(took)


def serve_text(f: ServeFigures) -> str:
    """Return the figures as a table of text."""
    zoom = sorted(f.zoom_ms)
    rows = (
        ("runs x rows", f"{f.runs} x {f.rows}"),
        ("read, all of them", f"{f.reading_s:.0f} s"),
        ("first picture", f"{statistics.median(f.first_ms):.0f} ms (max {max(f.first_ms):.0f})"),
        ("zoom", f"{statistics.median(zoom):.0f} ms (max {zoom[-1]:.0f}, {len(zoom)} zooms)"),
        ("means of 1 000 rows", f"{f.smooth_ms:.0f} ms"),
        ("new row to page", f"{statistics.median(f.live_s):.2f} s (max {max(f.live_s):.2f})"),
        ("memory of the server", f"{f.server_mb:.0f} MB, and {f.mapped_mb:.0f} MB mapped"),
        ("rows on disk", f"{f.cache_mb:.0f} MB"),
        ("load before", f"{f.load_before:.1f}"),
    )
    return "\n".join(f"{name:<22}{value}" for name, value in rows)
