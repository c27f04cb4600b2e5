"""Times reading of logs beside other readers: interleaved in one process, as ratios.

Each pair of readings is timed right after one another, trimtab first and second in turn, in seconds
of processor time, which what else the machine does hardly changes; the figure is the median of the
ratios (above 1: trimtab is faster), with the smallest and the largest. All read the same file, from
memory, and end with numbers: trimtab with a record, attempts found and units settled.
The other readers are no part of an installation: `pip install '.[bench]'`.
"""

import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.logs.event_logs import write_event_file
from trimtab.errors import MissingExtraError
from trimtab.readers import read_run
from trimtab.testing.curves import lm_curve, make_noise, simulate_run
from trimtab.testing.megatron_logs import print_log
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = ["Rival", "big_run", "run_reading_bench", "write_jsonl"]

Floats = NDArray[np.float64]

_MEGATRON_LINE = re.compile(
    r"iteration\s+(\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\): ([\d.]+) \|.*?"
    r"learning rate: ([\d.E+-]+) \|.*?lm loss: ([\d.E+-]+) \|.*?loss scale: ([\d.]+) \|.*?"
    r"grad norm: ([\d.]+) \|.*?skipped iterations:\s+(\d+) \|.*?nan iterations:\s+(\d+) \|"
)


@dataclass(frozen=True, kw_only=True)
class Rival:
    """Another way to read a file."""

    name: str
    read: Callable[[Path], object]
    target: float | None = None
    """Ratio that trimtab should reach."""


def run_reading_bench(
    *, rounds: int, say: Callable[[str], None], whole_rows: int = 150_000, share: float = 1.0
) -> dict[str, Any]:
    """Measure, say a line per comparison, and return the figures as JSON values.

    Args:
        rounds: Pairs of readings of each file.
        say: Shows one line to the user.
        whole_rows: Length of the run that is inspected as a whole; 0 leaves it out.
        share: Of the size of the other logs; below 1 for a quick try.

    Raises:
        MissingExtraError: One of the other readers is not installed.
    """
    pairs = _rivals()
    columns = big_run(int(20_000 * share), num_signals=30)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = _write_logs(Path(folder), columns, share)
        for kind, rivals in pairs.items():
            file = files[kind]
            say(f"{kind}, {file.stat().st_size / 1e6:.1f} MB")
            for rival in rivals:
                rows.append(_measure(kind, file, rival, rounds))
                say(_line(rows[-1]))
        whole = _inspect(Path(folder), whole_rows, say) if whole_rows else None
    return {"schema": 1, "readers": rows, "whole": whole}


def big_run(num_rows: int, *, num_signals: int) -> dict[str, Floats]:
    """Return a made-up run; two thirds of its signals have a name that trimtab knows.

    Loss and norms are autocorrelated; the loss spikes every 20,000 rows. Seed 0.
    """
    rng = np.random.default_rng(0)
    loss: Floats = np.asarray(lm_curve(num_rows) + 0.02 * make_noise(num_rows, "ar1", rng))
    for first in range(20_000, num_rows, 20_000):
        part = loss[first : first + 40]
        part += np.linspace(1.0, 0.0, len(part))
    steady = {"loss_scale": 65536.0, "skipped": 0.0, "nonfinite": 0.0, "clipped": 0.0}
    columns = {"loss": loss}
    for name in list(SIGNAL_BY_NAME)[: num_signals * 2 // 3]:
        if name in steady:
            columns[name] = np.full(num_rows, steady[name])
        elif name == "lr":
            columns[name] = np.linspace(1.2e-4, 1.2e-5, num_rows)
        elif SIGNAL_BY_NAME[name].bad == "none":
            columns[name] = np.linspace(1024.0, 1024.0 * num_rows, num_rows)
        elif name not in ("loss", "val_loss"):
            columns[name] = np.exp(0.15 * make_noise(num_rows, "ar1", rng))
    for layer in range(num_signals - len(columns)):
        columns[f"layer_{layer}_rms"] = np.exp(0.1 * rng.standard_normal(num_rows))
    return columns


def write_jsonl(path: Path, columns: Mapping[str, Floats]) -> Path:
    """Write one JSON object per row, with its step; seven digits after the point."""
    names = ("step", *columns)
    table = np.round(np.stack(list(columns.values()), axis=1), 7).tolist()
    with path.open("wb") as file:
        for step, row in enumerate(table, 1):
            file.write(orjson.dumps(dict(zip(names, (step, *row), strict=True))) + b"\n")
    return path


def _rivals() -> dict[str, tuple[Rival, ...]]:
    tbparse = _import("tbparse").SummaryReader
    accumulator = _import("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    pandas = _import("pandas")

    def read_accumulator(path: Path) -> object:
        events = accumulator(str(path), size_guidance={"scalars": 0}).Reload()
        return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}

    return {
        "TensorBoard events": (
            Rival(name="tbparse", read=lambda p: tbparse(str(p)).scalars, target=10.0),
            Rival(name="EventAccumulator", read=read_accumulator),
        ),
        "Megatron text": (Rival(name="re loop", read=_read_with_re, target=3.0),),
        "JSON lines": (
            Rival(name="pandas", read=lambda p: pandas.read_json(p, lines=True)),
            Rival(name="json loop", read=_read_with_json),
        ),
        "CSV": (Rival(name="pandas", read=lambda p: pandas.read_csv(p)),),
    }


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError("Reading speed beside that of others", "bench") from error


def _write_logs(folder: Path, columns: Mapping[str, Floats], share: float) -> dict[str, Path]:
    num_rows = len(columns["loss"])
    events = folder / "events.out.tfevents.1700000000.host.1"
    tags = {n: columns[n] for n in ("loss", "grad_norm", "lr", "loss_scale", "step_time_s")}
    write_event_file(events, tags, np.arange(1, num_rows + 1))
    megatron = folder / "megatron.log"
    megatron.write_text(print_log(simulate_run(num_steps=int(50_000 * share))))
    table = folder / "metrics.csv"
    with table.open("w") as file:
        file.write(",".join(("step", *columns)) + "\n")
        for step, row in enumerate(np.stack(list(columns.values()), axis=1).tolist(), 1):
            file.write(f"{step},{','.join(f'{v:.7g}' for v in row)}\n")
    return {
        "TensorBoard events": events,
        "Megatron text": megatron,
        "JSON lines": write_jsonl(folder / "metrics.jsonl", columns),
        "CSV": table,
    }


def _read_with_re(path: Path) -> object:
    rows: list[list[float]] = []
    with path.open() as file:
        for line in file:
            match = _MEGATRON_LINE.search(line)
            if match:
                rows.append([float(text) for text in match.groups()])
    return np.array(rows)


def _read_with_json(path: Path) -> object:
    with path.open() as file:
        rows = [json.loads(line) for line in file]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _measure(kind: str, file: Path, rival: Rival, rounds: int) -> dict[str, Any]:
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(rounds + 1):
        steps: Sequence[tuple[list[float], Callable[[Path], object]]]
        steps = ((ours, read_run), (theirs, rival.read))
        for times, read in steps if turn % 2 else reversed(steps):
            started = time.process_time()
            read(file)
            if turn:  # the first of each loads what is loaded once
                times.append(time.process_time() - started)
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return {
        "format": kind,
        "size_bytes": file.stat().st_size,
        "rival": rival.name,
        "trimtab_s": statistics.median(ours),
        "rival_s": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "target": rival.target,
    }


def _line(row: Mapping[str, Any]) -> str:
    met = ""
    if row["target"] is not None:
        met = f"   target {row['target']:g}: {'met' if row['ratio'] >= row['target'] else 'MISSED'}"
    return (
        f"  trimtab {row['trimtab_s']:7.3f} s   {row['rival']:<16} {row['rival_s']:7.3f} s   "
        f"ratio {row['ratio']:6.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]{met}"
    )


def _inspect(folder: Path, num_rows: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Inspect a whole run in a process of its own; return its time and its highest memory."""
    file = write_jsonl(folder / "whole.jsonl", big_run(num_rows, num_signals=30))
    with subprocess.Popen(
        [sys.executable, "-m", "trimtab", "inspect", str(file), "--json"],
        stdout=subprocess.DEVNULL,
    ) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    size, memory = file.stat().st_size, usage.ru_maxrss * 1024
    say(
        f"trimtab inspect, {num_rows} rows of 30 signals in JSON lines, {size / 1e6:.0f} MB:"
        f" {seconds:.2f} s of processor time with the start of Python, {memory / 1e6:.0f} MB of"
        f" memory, {memory / size:.1f} times the file"
    )
    return {
        "rows": num_rows,
        "size_bytes": size,
        "seconds": seconds,
        "memory_bytes": memory,
        "exit_code": child.returncode,
    }
