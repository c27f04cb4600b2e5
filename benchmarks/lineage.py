"""A lineage like OPT-175B's: 54 attempts over 140 k steps, as a logbook; how long that takes."""

import io
import statistics
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trimtab.chronicle.adopt import adopt, write_run
from trimtab.chronicle.journal import read_journal
from trimtab.cli import main as trimtab_main

__all__ = ["LineageFigures", "lineage_text", "make_logs", "measure_lineage"]

_ATTEMPTS, _STEPS = 54, 140_000
_LINE = (
    " iteration {s:8d}/  140000 | consumed samples: {n:12d} | elapsed time per iteration (ms):"
    " {ms:.1f} | learning rate: {lr:.3E} | global batch size:  1024 | lm loss: {loss:.6E} | loss"
    " scale: 1.0 | grad norm: {norm:.3f} | num zeros: 0.0 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |"
)


@dataclass(frozen=True, kw_only=True)
class LineageFigures:
    """What was measured."""

    attempts: int
    rows: int
    repeats: int
    markdown_s: float
    """Median seconds of the clock of `trimtab chronicle RUN`, reading included."""
    page_s: float
    """The same with `--format html`."""
    page_bytes: int


def make_logs(folder: Path, *, every: int, seed: int = 100) -> None:
    """Write 54 logs, one a launch; one in four diverges, nine end with a failure."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    lr, clip, start = 1.2e-4, 1.0, 0
    ends = np.linspace(_STEPS / _ATTEMPTS, _STEPS, _ATTEMPTS).astype(int) // every * every
    for k, end in enumerate(ends.tolist()):
        clip = 0.3 if k == 16 else clip
        lr *= 0.6 if k in (10, 25, 30, 40, 48) else 1.0
        told = {"clip_grad": clip, "lr": f"{lr:.3g}", "hidden_size": 12288, "num_layers": 96}
        lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in told.items()]
        dead = int(rng.integers(200, 2000))
        for s in range(start + every, min(end + dead, _STEPS) + 1, every):
            loss = 2.2 + 6 * np.exp(-s / 3000) + 0.02 * rng.standard_normal()
            away = max(s - end - dead / 2, 0) / dead if k % 4 == 1 else 0.0
            norm = 0.2 * np.exp(0.1 * rng.standard_normal()) * (1 + 20 * (away > 0))
            ms = 30_000 + 100 * rng.standard_normal()
            lines.append(
                _LINE.format(s=s, n=s * 1024, ms=ms, lr=lr, loss=loss + 6 * away, norm=norm)
            )
        if k % 6 == 4:
            lines.append("RuntimeError: CUDA error: an illegal memory access was encountered")
        (folder / f"run12.{k}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
        start = end


def measure_lineage(folder: Path, *, every: int, repeats: int) -> LineageFigures:
    """Write the logs, adopt them, and time the logbook.

    Args:
        folder: An empty folder for all of it.
        every: Steps from one row to the next.
        repeats: How often each form is made.
    """
    make_logs(folder / "logs", every=every)
    found = adopt([folder / "logs"])
    write_run(found, (), folder / "run")
    events, _ = read_journal(folder / "run" / "journal.jsonl")
    times: dict[str, list[float]] = {"md": [], "html": []}
    for _ in range(repeats):
        for form, seconds in times.items():
            begun = time.perf_counter()
            with redirect_stdout(io.StringIO()):
                out = str(folder / f"book.{form}")
                trimtab_main(["chronicle", str(folder / "run"), "--format", form, "--out", out])
            seconds.append(time.perf_counter() - begun)
    return LineageFigures(
        attempts=sum(e.event == "attempt" for e in events),
        rows=found.record.num_rows,
        repeats=repeats,
        markdown_s=statistics.median(times["md"]),
        page_s=statistics.median(times["html"]),
        page_bytes=(folder / "book.html").stat().st_size,
    )


def lineage_text(figures: LineageFigures) -> str:
    """Return the figures for people."""
    return (
        f"{figures.attempts} attempts, {figures.rows} rows: Markdown {figures.markdown_s:.2f} s,"
        f" page {figures.page_s:.2f} s of {figures.page_bytes / 1e6:.1f} MB"
        f" (medians of {figures.repeats})"
    )
