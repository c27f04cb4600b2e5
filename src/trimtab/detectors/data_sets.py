"""Losses of single data sets, and validation by set, in hindsight.

A mix logs the loss of each set beside the whole: columns `loss/NAME` and `val_loss/NAME`. Sets fall
together; the difference of one to the median of all is steady. One that leaves it is told:

    g[k] = loss/NAME - median of all sets, in blocks;  z = (level of g after - before) / noise

with noise from `dependent_blocks_sigma` of the blocks before. Validation of each set is judged as
the whole is (`overfitting`, `lost_validation`).
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.lost_signals import lost_findings, rows_beside_loss
from trimtab.detectors.overfitting import OverfittingDetector
from trimtab.detectors.record_finding import finding_at
from trimtab.readers.tags import set_of_tag
from trimtab.record import RunRecord
from trimtab.signals.robust import dependent_blocks_sigma, difference_sigma, median
from trimtab.trend import kendall_score

__all__ = ["leaves", "set_findings"]

Floats = NDArray[np.float64]

MIN_ROWS = 48
NUM_BLOCKS = 32
THRESHOLD = 8.0
LEAST_SHARE = 0.02
"""Of the level; sets wander by one per cent as their weights in a batch change. Ours."""
MAX_SETS = 64
FEWEST_CHECKS, LEAST_RISE, CLEAR, TREND = 10, 0.005, 5.0, 2.0
"""Evaluations before and since the lowest of a set (half and all of it), share of that by which it
rises, the same in the noise of one, and the normal score of Kendall's S. Ours."""


def set_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return what single sets did apart from the others, attempt by attempt."""
    # Parts of a total (`loss_digit`) need not fall together: `swells` judges each by itself.
    trained = sorted(
        n
        for n in record.columns
        if n.startswith("loss/") and set_of_tag(record.keys.get(n, n)) is not None
    )[:MAX_SETS]
    checked = sorted(n for n in record.columns if n.startswith("val_loss/"))[:MAX_SETS]
    found: list[Finding] = []
    for index in range(len(record.attempts)):
        span = record.rows_of(index)
        if len(trained) >= 2:
            found += _apart(record, trained, span)
        for name in checked:
            found += _checks(record, name, span)
        found += _left_behind(record, checked, span)
    return tuple(found)


def _left_behind(record: RunRecord, names: list[str], span: slice) -> list[Finding]:
    """Return the sets that get worse since their lowest, slowly, while the others go on."""
    rows = [record.columns[n].finite_rows(span) for n in names]
    if len(names) < 2 or min(map(len, rows)) < FEWEST_CHECKS or len({len(r) for r in rows}) > 1:
        return []
    values = np.stack([record.columns[n].values[r] for n, r in zip(names, rows, strict=True)])
    found: list[Finding] = []
    for i, name in enumerate(names):
        y, others = values[i], np.median(np.delete(values, i, axis=0), axis=0)
        k = int(np.argmin(y))
        since = y[k:]
        if k < FEWEST_CHECKS // 2 or len(since) <= FEWEST_CHECKS or y.min() <= 0:
            continue
        last = max(len(since) // 3, 3)
        rise = median(since[-last:]) - float(since[0])
        noise = difference_sigma(np.diff(y, 2), order=2)
        gone_on = float(others[k] - median(others[-last:]))
        if rise < max(LEAST_RISE * float(since[0]), CLEAR * noise) or gone_on < 2 * rise:
            continue
        if since[-last:].min() <= since[0] + rise / 3 or kendall_score(since) < TREND:
            continue
        found.append(
            finding_at(
                record,
                detector="set-left-behind",
                kind="overfitting",
                signal=name,
                severity="warning",
                row=int(rows[i][-1]),
                onset_row=int(rows[i][k + 1]),
                peak_row=int(rows[i][k + int(np.argmax(since))]),
                value=median(since[-last:]),
                expected=float(since[0]),
                score=min(99.0, rise / max(noise, 1e-12)),
                closed=False,
                text=(
                    f"validation loss of {name.partition('/')[2]} {since[0]:.4g} →"
                    f" {median(since[-last:]):.4g} since its lowest, while the other sets go on:"
                    " is its data still in the mix? (in hindsight)"
                ),
            )
        )
    return found


def _checks(record: RunRecord, name: str, span: slice) -> list[Finding]:
    overfits = OverfittingDetector()
    rows = rows_beside_loss(record, name, span)
    rises = {f.key: f for f in overfits.update_rows(overfits.start(), rows)[1]}
    return [*(_of_set(f, name) for f in rises.values()), *lost_findings(record, name, span)]


def _of_set(f: Finding, name: str) -> Finding:
    text = f.text.replace("validation loss", f"validation loss of {name.partition('/')[2]}", 1)
    return replace(f, signal=name, text=f"{text} (in hindsight)")


def _apart(record: RunRecord, names: list[str], span: slice) -> list[Finding]:
    columns = np.stack([record.columns[n].values[span] for n in names])
    rows = np.flatnonzero(np.isfinite(columns).all(axis=0))
    if len(rows) < MIN_ROWS:
        return []
    losses = columns[:, rows]
    gaps = losses - np.median(losses, axis=0)
    edges = np.linspace(0, len(rows), min(NUM_BLOCKS, len(rows) // 3) + 1).astype(np.intp)
    pairs = list(pairwise(edges))
    found: list[Finding] = []
    for name, gap, loss in zip(names, gaps, losses, strict=True):
        if not gap.any():  # the median itself
            continue
        blocks = np.array([median(gap[a:b]) for a, b in pairs])
        best = leaves(blocks)
        if best is None:
            continue
        k, score, moved = best
        level = median(np.abs(loss))
        if moved < LEAST_SHARE * level:
            continue
        onset = int(rows[edges[k]]) + span.start
        last = int(rows[-1]) + span.start
        found.append(
            finding_at(
                record,
                detector="set-apart",
                kind="shift",
                signal=name,
                severity="warning",
                row=last,
                onset_row=onset,
                value=median(loss[edges[k] :]),
                expected=median(loss[edges[k] :]) - moved,
                score=min(99.0, score),
                closed=True,
                text=(
                    f"loss of {name.partition('/')[2]} rises by {moved:.3g} against the other sets"
                    " (in hindsight)"
                ),
            )
        )
    return found


def leaves(blocks: Floats) -> tuple[int, float, float] | None:
    """Return (block, score, how far up) where the blocks leave their level for good; else None."""
    best: tuple[int, float, float] | None = None
    for k in range(8, len(blocks) - 2):
        before = blocks[:k]
        noise = max(dependent_blocks_sigma(before), 1e-12)
        # The past may have a slope of its own, which goes on.
        slope = np.polyfit(np.arange(k), before, 1)[0]
        ahead = median(before[-4:]) + max(slope, 0.0) * (len(blocks) - k + 2)
        moved = median(blocks[k:]) - ahead
        score = moved / noise
        if score > THRESHOLD and float((blocks[k:] - median(before[-4:])).min()) > 2 * noise:
            if best is None or score > best[1]:
                best = k, score, moved
            break
    return best
