"""The table of the families: what was recovered, what was harmed, and at what cost.

A fault counts where the run without a guard ends at least 2 % worse than its twin, in units of the
twin's loss or of its descent, whichever is larger. It is recovered where the guarded run closes
nine tenths of that gap, or ends within 1 % of the twin. A harmless change is harmed where the
guarded run ends more than 3 % worse than the same run without a guard.
"""

from __future__ import annotations

import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

import torch

from benchmarks.families.cases import CASES
from benchmarks.families.models import FAMILIES
from benchmarks.families.run import FamilyOutcome, train_case
from benchmarks.trust.totals import Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__all__ = ["all_work", "measure", "sample_work", "summary", "table_text"]

Row = dict[str, object]
Work = tuple[str, str, int]

SHOWS = 0.02
RECOVERED_GAP, RECOVERED_WITHIN = 0.9, 0.01
HARMED = 0.03


def all_work(seeds: Sequence[int]) -> list[Work]:
    """Return (family, case, seed) of the whole table."""
    return [(f, c.name, s) for s in seeds for c in CASES.values() for f in c.families]


def sample_work(seeds: Sequence[int], each: int) -> list[Work]:
    """Return a share of the table: of each case, so many families, other ones with each seed.

    Neighboring cases begin with neighboring families, so that a sample has all of both.
    """
    return [
        (c.families[(i + n + s) % len(c.families)], c.name, s)
        for s in seeds
        for i, c in enumerate(CASES.values())
        for n in range(min(each, len(c.families)))
    ]


def measure(work: Sequence[Work], out: Path, *, jobs: int, say: Callable[[Row], None]) -> list[Row]:
    """Run what is not known yet for this code, and return the rows of all of it, in order."""
    totals = Totals(out)
    baselines = Totals(out.with_suffix(".baselines.jsonl"), follows_code=False)
    open_ = [w for w in work if _name(w) not in totals.rows]
    folder = out.parent / f"{out.stem}-runs"
    task = partial(_one, folder=folder, known=dict(baselines.rows))
    if jobs == 1:
        found = map(task, open_)
        _take_in(found, totals, baselines, say)
    elif open_:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            _take_in(pool.map(task, open_), totals, baselines, say)
    return [totals.rows[_name(w)] for w in work if _name(w) in totals.rows]


def _take_in(found: object, totals: Totals, baselines: Totals, say: Callable[[Row], None]) -> None:
    assert hasattr(found, "__iter__")
    for row, learned in found:
        for name, outcome in learned.items():
            if name not in baselines.rows:
                baselines.add({"case": name, **outcome})
        totals.add(row)
        say(row)


def _name(work: Work) -> str:
    return "/".join(map(str, work))


def _one(work: Work, *, folder: Path, known: Mapping[str, Row]) -> tuple[Row, dict[str, Row]]:
    torch.set_num_threads(1)
    family, case = FAMILIES[work[0]], CASES[work[1]]
    learned: dict[str, Row] = {}
    place = folder / _name(work).replace("/", "-")

    def baseline(name: str, *, fault: bool) -> tuple[float, float]:
        key = f"{family.name}/{name}/{work[2]}"
        row = known.get(key) or learned.get(key)
        if row is None:
            o = train_case(family, case if fault else None, work[2], "off", place)
            row = {"loss": _number(o.loss), "start": o.start}
            learned[key] = row
        return _float(row["loss"]), _float(row["start"])

    twin, start = baseline("twin", fault=False)
    off, _ = baseline(case.name, fault=True)
    scale = max(abs(twin), start - twin)
    row: Row = {
        "case": _name(work),
        "family": family.name,
        "name": case.name,
        "fault": case.fault,
        "seed": work[2],
        "twin": twin,
        "off": _number(off),
        "scale": scale,
    }
    shows = not off <= twin + SHOWS * scale
    if case.fault and not shows:
        return {**row, "verdict": "does not show"}, learned
    act = train_case(family, case, work[2], "act", place)
    row |= {
        k: list(v) if isinstance(v, tuple) else v
        for k, v in asdict(act).items()
        if k not in ("start",)
    }
    row["act"] = _number(act.loss)
    row["verdict"] = (
        _recovered(twin, off, act, scale) if case.fault else _left_alone(off, act, scale)
    )
    row["cause_right"] = bool(set(act.causes[:1]) & set(case.causes)) if case.fault else None
    return row, learned


def _recovered(twin: float, off: float, act: FamilyOutcome, scale: float) -> str:
    if math.isfinite(act.loss):
        closed = (off - act.loss) / (off - twin) if math.isfinite(off) else 1.0
        near = act.loss <= twin + RECOVERED_WITHIN * scale
        if near or (closed >= RECOVERED_GAP and act.loss <= twin + 0.1 * scale):
            return "recovered"
        if math.isfinite(off) and closed >= 0.5:
            return "in part"
    return "seen" if act.alarmed else "no alarm"


def _left_alone(off: float, act: FamilyOutcome, scale: float) -> str:
    if not act.loss <= off + HARMED * scale:
        return "harmed"
    return "left alone" if act.wasted == 0 else "cost steps"


def _number(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _float(x: object) -> float:
    return float(x) if isinstance(x, int | float) else math.nan


def summary(rows: Sequence[Row]) -> Row:
    """Return the figures of the table, as one document."""
    faults = [r for r in rows if r["fault"] and r["verdict"] != "does not show"]
    changes = [r for r in rows if not r["fault"]]
    harmed = sum(r["verdict"] == "harmed" for r in changes)
    wasted = [_float(r.get("wasted")) for r in faults]
    spent = sorted(_float(r.get("wasted")) for r in changes)
    return {
        "faults": len(faults),
        "recovered": sum(r["verdict"] == "recovered" for r in faults),
        "in part": sum(r["verdict"] == "in part" for r in faults),
        "seen, not recovered": sum(r["verdict"] == "seen" for r in faults),
        "no alarm": sum(r["verdict"] == "no alarm" for r in faults),
        "do not show": sum(r["verdict"] == "does not show" for r in rows),
        "first cause right": sum(bool(r.get("cause_right")) for r in faults),
        "median wasted": statistics.median(wasted) if wasted else None,
        "changes": len(changes),
        "harmed": harmed,
        "harmed, upper 95 % bound": _upper(harmed, len(changes)),
        "cost steps": sum(r["verdict"] == "cost steps" for r in changes),
        "wasted on changes, 95th percentile": spent[int(0.95 * (len(spent) - 1))]
        if spent
        else None,
    }


def _upper(bad: int, count: int) -> float:
    """Return the one-sided upper 95 % bound of a share (Clopper and Pearson), by bisection."""
    low, high = bad / count if count else 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        tail = sum(math.comb(count, i) * p**i * (1 - p) ** (count - i) for i in range(bad + 1))
        low, high = (p, high) if tail > 0.05 else (low, p)
    return high


def table_text(rows: Sequence[Row]) -> str:
    """Return the table as text: a line for each case, then the figures."""
    lines = [f"{'case':<24}{'families':>9}{'recovered':>11}{'in part':>9}{'seen':>6}{'blind':>7}"]
    for case in CASES.values():
        mine = [r for r in rows if r["name"] == case.name and r["verdict"] != "does not show"]
        if not mine or not case.fault:
            continue
        count = [
            sum(r["verdict"] == v for r in mine)
            for v in ("recovered", "in part", "seen", "no alarm")
        ]
        lines.append(
            f"{case.name:<24}{len(mine):>9}{count[0]:>11}{count[1]:>9}{count[2]:>6}{count[3]:>7}"
        )
    lines += ["", f"{'change':<24}{'runs':>9}{'left alone':>11}{'steps':>9}{'harmed':>8}"]
    for case in CASES.values():
        mine = [r for r in rows if r["name"] == case.name]
        if not mine or case.fault:
            continue
        count = [
            sum(r["verdict"] == v for r in mine) for v in ("left alone", "cost steps", "harmed")
        ]
        lines.append(f"{case.name:<24}{len(mine):>9}{count[0]:>11}{count[1]:>9}{count[2]:>8}")
    lines.append("")
    for name, value in summary(rows).items():
        shown = f"{value:.3g}" if isinstance(value, float) else value
        lines.append(f"{name}: {shown}")
    return "\n".join(lines)
