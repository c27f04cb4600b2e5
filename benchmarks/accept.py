"""Runs the acceptance table: each scenario and seed without and with the guard.

A run without a guard that is less than 1 % worse than its healthy twin has nothing to be saved
from: it is named and not judged. Twins and runs without a guard are kept on disk, by all that
decides them, so that a change of the guard costs only the guarded runs.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import shutil
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from trimtab import lab
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ConfigError
from trimtab.lab.run import run_guarded, run_unguarded
from trimtab.lab.scenarios import Scenario, healthy_twin, training_settings
from trimtab.lab.text import load_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trimtab.lab.text import Text

__all__ = ["AcceptanceRow", "Verdict", "accept", "gap_closed", "judge", "summarise"]

_Work = tuple[Scenario, int, Path, Path | None, str]
Verdict = Literal["ok", "falls short", "sound without"]

FAILS_BY = 0.01
"""Share of the twin's loss by which a run without a guard must be worse to be judged."""
RATIO_WITHIN = 0.01
"""Distance from the twin within which faults of data, tensors and ranks must end, share."""
GAP_CLOSED = 0.9
"""Share of the gap to the twin at the sound rate that a guarded run at a wrong rate must close."""
RATE_RATIO = 1.03
"""Most that such a run may end above its twin, ratio."""
MEDIAN_WASTED = 0.15
"""Median of the wasted steps, share of the effective steps."""

_EVALUATION_BYTES = 64 * 1024
_SOURCES = ("model", "data", "train", "corruption", "planting", "faults", "ranks", "run")


@dataclass(frozen=True, kw_only=True)
class AcceptanceRow:
    """One scenario at one seed."""

    scenario: str
    expect: Literal["recovers", "untouched"]
    seed: int
    reference_loss: float | None
    """Validation loss of the healthy twin, nats per token; None for a run that is sound itself."""
    off_loss: float | None
    """The same without a guard; NaN where it diverged."""
    act_loss: float | None
    """The same with the guard; None where nothing was to be saved."""
    wasted_steps: float
    actions: tuple[dict[str, object], ...]
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Return the public form; NaN and Inf as null."""
        reference, off, act = self.reference_loss, self.off_loss, self.act_loss
        ratios = [
            None if reference is None or loss is None else _number(loss / reference)
            for loss in (off, act)
        ]
        closed = None
        if reference is not None and off is not None and act is not None and _fails(reference, off):
            closed = gap_closed(reference, off, act)
        return {
            "scenario": self.scenario,
            "seed": self.seed,
            "reference_loss": _number(reference),
            "ratio_off": ratios[0],
            "ratio_act": ratios[1],
            "gap_closed": closed,
            "wasted_steps": self.wasted_steps,
            "actions": list(self.actions),
            "verdict": self.verdict,
        }


def accept(
    scenarios: Sequence[Scenario],
    seeds: Sequence[int],
    out: Path,
    *,
    text_path: Path | None = None,
    jobs: int = 1,
    device: str = "cpu",
    say: Callable[[AcceptanceRow], None] = lambda _row: None,
) -> list[AcceptanceRow]:
    """Run scenarios at seeds, say each row as it is done, and return them all.

    Args:
        scenarios: What to run.
        seeds: Of weights, data and damage.
        out: Folder for guarded runs and what is kept; an earlier guarded run there is replaced.
        text_path: What to train on; default: the standard library's sources.
        jobs: Processes at a time.
        device: Where to train.
        say: Called with each row, in order.

    Raises:
        ConfigError: `out` holds something else where a run is to go.
    """
    work = [(s, seed, out, text_path, device) for s in scenarios for seed in seeds]
    rows = []
    for row in _each(work, jobs):
        say(row)
        rows.append(row)
    return rows


def _each(work: Sequence[_Work], jobs: int) -> Iterator[AcceptanceRow]:
    if jobs == 1:
        text = load_text(work[0][3]) if work else None
        for scenario, seed, out, _, device in work:
            assert text is not None
            yield _run(scenario, seed, out, text, device)
        return
    context = multiprocessing.get_context("spawn")
    threads = torch.get_num_threads()
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        yield from pool.map(_run_alone, work)


def _run_alone(work: _Work) -> AcceptanceRow:
    scenario, seed, out, text_path, device = work
    return _run(scenario, seed, out, load_text(text_path), device)


def _run(scenario: Scenario, seed: int, out: Path, text: Text, device: str) -> AcceptanceRow:
    reference = off = None
    if scenario.fault_step is not None:
        kept = out / "kept"
        reference = _known_loss(healthy_twin(scenario), seed, text, kept, device)
        off = _known_loss(scenario, seed, text, kept, device)
        if scenario.expect == "recovers" and not _fails(reference, off):
            return AcceptanceRow(
                scenario=scenario.name,
                expect=scenario.expect,
                seed=seed,
                reference_loss=reference,
                off_loss=off,
                act_loss=None,
                wasted_steps=0.0,
                actions=(),
                verdict="sound without",
            )
    folder = out / f"{scenario.name}-{seed}"
    _make_room(folder)
    done = run_guarded(
        scenario,
        seed,
        text,
        folder,
        "act",
        evaluation_bytes=_EVALUATION_BYTES,
        device=device,
    )
    if reference is None or off is None or scenario.expect == "untouched":
        verdict: Verdict = "falls short" if done.actions else "ok"
    else:
        verdict = judge(scenario, reference, off, done.final_loss)
    return AcceptanceRow(
        scenario=scenario.name,
        expect=scenario.expect,
        seed=seed,
        reference_loss=reference,
        off_loss=off,
        act_loss=done.final_loss,
        wasted_steps=done.wasted_steps,
        actions=done.actions,
        verdict=verdict,
    )


def _fails(reference: float, off: float) -> bool:
    return not off <= (1.0 + FAILS_BY) * reference


def gap_closed(reference: float, off: float, act: float) -> float:
    """Return (off - act) / (off - reference); 1 where `off` is not finite and `act` is.

    Example:
        >>> gap_closed(2.0, 3.0, 2.1), gap_closed(2.0, float("nan"), 2.1)
        (0.9, 1.0)
    """
    if not math.isfinite(act):
        return 0.0
    return (off - act) / (off - reference) if math.isfinite(off) else 1.0


def judge(scenario: Scenario, reference: float, off: float, act: float) -> Verdict:
    """Return whether a guarded run of a faulty scenario ended well enough.

    A wrong rate must be made good for `GAP_CLOSED` of what it costs and end within `RATE_RATIO`:
    how far to lower it is the guard's to find, so it may end below its twin, too. All else must
    end within `RATIO_WITHIN` of the twin, above or below.
    """
    if scenario.lr_fault is not None:
        closed = gap_closed(reference, off, act)
        good = closed >= GAP_CLOSED and act <= RATE_RATIO * reference
    else:
        good = abs(act / reference - 1.0) <= RATIO_WITHIN
    return "ok" if good else "falls short"


def summarise(rows: Sequence[AcceptanceRow]) -> dict[str, Any]:
    """Return how many rows are good enough, the median of the wasted steps, and what is missed."""
    saved = [r for r in rows if r.expect == "recovers"]
    judged = [r for r in saved if r.verdict != "sound without"]
    sound = [r for r in rows if r.expect == "untouched"]
    wasted = statistics.median(r.wasted_steps for r in judged) if judged else None
    return {
        "recovered": sum(r.verdict == "ok" for r in judged),
        "judged": len(judged),
        "sound_without": len(saved) - len(judged),
        "left_alone": sum(r.verdict == "ok" for r in sound),
        "sound": len(sound),
        "median_wasted_steps": wasted,
        "accepted": (
            all(r.verdict != "falls short" for r in rows)
            and (wasted is None or wasted <= MEDIAN_WASTED)
        ),
    }


def _known_loss(scenario: Scenario, seed: int, text: Text, folder: Path, device: str) -> float:
    """Return the validation loss of a run without a guard, from disk where it was run before."""
    path = folder / f"{_key(scenario, seed, text, device)}.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))["final_loss"]
        return math.nan if kept is None else float(kept)
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not run yet, or cut short while it was written
    final, _ = run_unguarded(
        scenario, seed, text, evaluation_bytes=_EVALUATION_BYTES, device=device
    )
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    document = {"name": scenario.name, "seed": seed, "final_loss": _number(final)}
    partial.write_text(json.dumps(document), encoding="utf-8")
    partial.replace(path)
    return final


def _key(scenario: Scenario, seed: int, text: Text, device: str) -> str:
    """Return a hash of all that decides what a run without a guard comes to."""
    # the lab's code: a run of another model or loop is another run
    here = Path(lab.__file__).parent
    parts = (
        repr(training_settings(scenario)),
        seed,
        text.train_sha256,
        text.validation_sha256,
        torch.__version__,
        *(() if device == "cpu" else (device,)),
        torch.get_num_threads(),
        *((here / f"{name}.py").read_text(encoding="utf-8") for name in _SOURCES),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _make_room(folder: Path) -> None:
    """Remove an earlier guarded run, and nothing else.

    Raises:
        ConfigError: Something else is there.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_symlink() or not RunDirectory(folder).journal.is_file():
        raise ConfigError(f"{folder}: is there and is no earlier run; choose another --out")
    shutil.rmtree(folder)


def _number(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) else None
