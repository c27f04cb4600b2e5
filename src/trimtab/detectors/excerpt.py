"""The excerpt rule: what a handful of rows can say, in hindsight.

Chronicles and bug reports quote a few rows around the trouble. No streaming detector has a past to
compare with there, so attempts of fewer than `MAX_ROWS` train losses are judged whole: a loss that
stands well above the lowest value seen before it is a spike, and unrecovered unless the last rows
are back; a true grad norm far above the clip in every row is a first sign. The rule looks ahead
(at the end of the excerpt) and every finding of it says so.

"Well above" is in units of the noise, which so few rows tell badly. It is taken in two ways, from
the steps without the largest, and from second differences; either must see the rise beyond its bar.
Of stretches of 3 to 25 rows, drawn at random from 147 real logs with what trouble they have, 2 to
4 % lie beyond the bars, and 1 to 2 % far beyond. Where the size of the batch is logged, a mean over
so many samples has a noise that is known beforehand, and a rise beyond that counts as well.

The start rule does the same for the first `START_ROWS` rows of a longer attempt, where a blow-up in
warm-up comes before any streaming detector has a past. Losses are medians of three rows on a log
scale there, and a rise must be ten times their row-to-row noise, since many rows have more
extremes. A rise that goes on to the last row, higher in each of its thirds, needs to be less high:
a loss that climbs is told before it stands a third above its lowest.
"""

import math
import re

import numpy as np

from trimtab.detectors.confidence import STRONG_SCORE
from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.clip import clip_of
from trimtab.signals.robust import MAD_TO_SIGMA, difference_sigma, median
from trimtab.trend import kendall_score

__all__ = ["MAX_ROWS", "excerpt_findings"]

MAX_ROWS = 30
MIN_RISE = math.log(1.15)
"""Smallest rise of the loss that counts, as a logarithm: logged losses of healthy runs fall."""
BACK = math.log(1.05)
"""Distance from the level before up to which the loss is back, as a logarithm."""
LEAST_NOISE = 0.01
BARS = (
    (3, 30.0, 15.0),
    (4, 12.0, 9.0),
    (5, 16.0, 10.0),
    (6, 16.0, 9.0),
    (7, 13.0, 9.0),
    (8, 11.0, 9.0),
)
"""Fewest rows, and how often the rise must be the noise of the steps, or that of the second
differences."""
SAMPLE_SPREAD, SAMPLE_SHARE = 1.0, 0.35
"""How far the losses of single samples spread: as much (nats), and this share of the level. Ours:
three to five times what language models show."""
OF_BATCH = 7.0
"""How often a rise must be the noise of a batch, where its size is logged."""
FAR = 1.5
"""Times the bar, from which on an alarm may be critical; 1 to 2 % of stretches reach it."""
NEAR_RISE = math.log(1.5)
"""Smallest rise that counts below that, as a logarithm."""
START_ROWS = 100
FALLS = -3.0
"""Normal score of Kendall's S, from which on rows fall: one chance in 700. Ours."""
"""First rows of an attempt that the start rule looks at."""
START_RATIO = 1.3
START_SIGMA = 10.0
START_WIDTH = 6
"""Rows that a rise at the start must last: a few bad batches in a row are noise there."""
CLIMB_RATIO = 1.08
"""The same for a rise that goes on. Ours; tried on everyday seeds 0-9, as `CLIMB_ROWS`."""
CLIMB_ROWS = 12
NEGLIGIBLE_SHARE = 1e-3
"""Of the first losses: changes of a loss that lives below this do not matter."""
CLIP_RATIO = 10.0
"""Grad norm at least this many times the clip in every row: each step is scaled down tenfold."""


def excerpt_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return hindsight findings on the attempts that are too short for the detectors."""
    findings: list[Finding] = []
    column = record.columns.get("loss")
    if column is None:
        return ()
    for index in range(len(record.attempts)):
        span = record.rows_of(index)
        rows = column.finite_rows(span)
        if 3 <= len(rows) < MAX_ROWS:
            spike = _spike(record, rows, column.values[rows])
            if spike is not None:
                findings += [*_norm(record, rows), spike]
        elif len(rows) >= MAX_ROWS and (column.values[rows] > 0).all():
            findings += _start(record, rows, column.values[rows])
    return tuple(findings)


def _spike(
    record: RunRecord,
    rows: np.ndarray[tuple[int], np.dtype[np.intp]],
    loss: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> Finding | None:
    peak = int(np.argmax(loss))
    # Relative bars mean nothing for a loss that may be 0 or negative (a reward, a GAN).
    if peak == 0 or loss.min() <= 0:
        return None
    y = np.log(loss)
    low = int(np.argmin(loss[:peak]))
    before, rise = float(loss[low]), float(y[peak] - y[low])
    score, noise = _beyond_noise(y, rise, _noise_of_batch(record, rows, before))
    far = score >= FAR
    if score < 1 or rise < (MIN_RISE if far else NEAR_RISE):
        return None
    onset = low + 1
    last = float(loss[-1])
    level = median(y[max(0, low - 2) : onset])
    after = y[peak + 1 :][-3:]
    back = len(after) > 0 and min(median(after), y[-1]) <= level + max(BACK, 2 * noise)
    # The confidence of a strong score was measured on no log of so few rows.
    score = min(STRONG_SCORE - 0.1, 4 * score)
    lone = back and int((y[onset:] > y[low] + rise / 2).sum()) == 1
    end = int(rows[-1])
    story = " → ".join(f"{x:.4g}" for x in dict.fromkeys((before, float(loss[peak]), last)))
    steps = int(record.step[rows[peak]] - record.step[rows[low]])
    return finding_at(
        record,
        detector="excerpt" if far else "excerpt-near",
        kind="spike" if back else "unrecovered-spike",
        signal="loss",
        severity="info" if lone else "critical" if far and not back else "warning",
        row=end,
        onset_row=int(rows[onset]),
        peak_row=int(rows[peak]),
        end_row=end if back else None,
        value=float(loss[peak]),
        expected=before,
        score=score,
        closed=True,
        text=(
            f"loss {story} (up within {steps} {record.axis}s; few rows, judged whole in hindsight)"
        ),
    )


def _noise_of_batch(
    record: RunRecord, rows: np.ndarray[tuple[int], np.dtype[np.intp]], level: float
) -> float:
    """Return the noise that a mean over so many samples has at most; infinite where not logged."""
    column = record.columns.get("batch_size")
    sizes = column.values[rows][column.present[rows]] if column is not None else np.zeros(0)
    size = median(sizes) if len(sizes) else 0.0
    return max(SAMPLE_SHARE, SAMPLE_SPREAD / level) / math.sqrt(size) if size > 1 else math.inf


def _beyond_noise(
    y: np.ndarray[tuple[int], np.dtype[np.float64]], rise: float, of_batch: float
) -> tuple[float, float]:
    """Return how often a rise is what noise alone reaches in so few rows, and that noise."""
    steps = np.sort(np.abs(np.diff(y)))
    around = steps[: -1 if len(y) < 6 else -2]
    of_steps = max(median(around), LEAST_NOISE) if len(around) else math.inf
    of_bends = max(MAD_TO_SIGMA * median(np.abs(np.diff(y, 2))) / math.sqrt(6), LEAST_NOISE)
    _, most_steps, most_bends = next(bar for bar in reversed(BARS) if len(y) >= bar[0])
    return max(
        (rise / of_steps / most_steps, of_steps),
        (rise / of_bends / most_bends, of_bends),
        (rise / of_batch / OF_BATCH, of_batch),
    )


_MEAN = re.compile(r"(?:^|[^a-z])(?:av[gr]|average|running|smooth|ema)(?:[^a-z]|$)")
SETTLES_ROWS, SETTLES_BY = 32, 1.6
"""In which a mean over many steps, which begins with one, comes to its level, and times its lowest.
Ours."""


def _start(
    record: RunRecord,
    rows: np.ndarray[tuple[int], np.dtype[np.intp]],
    loss: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> list[Finding]:
    """Return the rises of the loss that begin within the first rows, one after the other."""
    y = np.log(loss + NEGLIGIBLE_SHARE * float(loss[:8].max()))
    # Single odd batches vanish in a median of three, a blow-up does not.
    y[1:-1] = np.median(np.stack([y[:-2], y[1:-1], y[2:]]), axis=0)
    head = np.log(loss[:START_ROWS])
    noise = difference_sigma(np.diff(head))
    least = max(math.log(START_RATIO), START_SIGMA * noise)
    found: list[Finding] = []
    begin, stop = 0, min(START_ROWS, len(y))
    mean = record.axis != "epoch" and _MEAN.search(record.keys.get("loss", "").lower())
    if mean and loss[:SETTLES_ROWS].max() < SETTLES_BY * loss[:SETTLES_ROWS].min():
        begin = min(SETTLES_ROWS, stop)
    while begin < stop:
        part = y[begin:stop]
        rise = part - np.minimum.accumulate(part)
        if rise.max() < least:
            break
        # the first rise that is large enough, up to its peak: the fall behind it ends it
        over = int(np.argmax(rise >= least))
        low = begin + int(np.argmin(part[: over + 1]))
        back = np.flatnonzero(y[begin + over :] < y[low] + 0.2 * least)
        end = begin + over + int(back[0]) if len(back) else None
        peak = low + int(np.argmax(y[low : stop if end is None else end]))
        onset = low + int(np.argmax(y[low : peak + 1] > y[low] + 0.1 * (y[peak] - y[low])))
        if (len(y) if end is None else end) - onset >= START_WIDTH:
            found.append(_start_finding(record, rows, loss, (low, onset, peak, end), noise))
        if end is None:
            break
        begin = end
    if not found and len(y) <= START_ROWS and (climb := _climb(y, noise)) is not None:
        found.append(_start_finding(record, rows, loss, climb, noise))
    return found


def _climb(
    y: np.ndarray[tuple[int], np.dtype[np.float64]], noise: float
) -> tuple[int, int, int, None] | None:
    """Return the places of a rise that goes on to the last row; None: there is none."""
    low = int(np.argmin(y))
    tail = y[low:]
    if len(tail) < CLIMB_ROWS:
        return None
    thirds = [median(part) for part in np.array_split(tail, 3)]
    last, least = median(tail[-3:]) - y[low], max(math.log(CLIMB_RATIO), START_SIGMA * noise)
    rises = min(np.diff(thirds)) > START_SIGMA / 4 * noise
    if last < least or not rises or last < 0.8 * (tail.max() - y[low]):
        return None
    onset = low + int(np.argmax(tail > y[low] + 0.1 * last))
    return low, onset, low + int(np.argmax(tail)), None


def _start_finding(
    record: RunRecord,
    rows: np.ndarray[tuple[int], np.dtype[np.intp]],
    loss: np.ndarray[tuple[int], np.dtype[np.float64]],
    places: tuple[int, int, int, int | None],
    noise: float,
) -> Finding:
    low, onset, peak, end = places
    seen = int(rows[-1 if end is None else end])
    rising = end is None and loss[-1] > math.sqrt(loss[low] * loss[peak])
    kind = "spike" if end is not None else "divergence" if rising else "unrecovered-spike"
    last = float(loss[-1 if end is None else end])
    behind = loss[peak:]
    # More than half back, and still falling as the log ends: a start that comes right by itself.
    comes_back = not rising and kendall_score(behind[:: len(behind) // START_ROWS + 1]) <= FALLS
    rise = float(loss[peak] / loss[low])
    story = " → ".join(f"{x:.4g}" for x in dict.fromkeys((loss[low], loss[peak], last)))
    return finding_at(
        record,
        detector="start",
        kind=kind,
        signal="loss",
        severity="warning" if end is not None or rise < START_RATIO or comes_back else "critical",
        row=seen,
        onset_row=int(rows[onset]),
        peak_row=int(rows[peak]),
        end_row=None if end is None else seen,
        value=float(loss[peak]),
        expected=float(loss[low]),
        score=min(99.0, math.log(rise) / max(noise, 0.01)),
        closed=True,
        text=f"loss {story} in the first {START_ROWS} rows (in hindsight)",
    )


def _norm(record: RunRecord, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> list[Finding]:
    """Return the first sign that every row is clipped far below its norm, if that is so."""
    column = record.columns.get("grad_norm")
    if column is None:
        return []
    clip, by_default = clip_of(record)
    if clip is None:
        return []
    assumed = " assumed" if by_default else ""
    norms = column.values[rows][column.present[rows]]
    if len(norms) < 3 or not np.isfinite(norms).all():
        return []
    ratios = norms / clip
    # One row below the clip and the norm is not large in every step.
    if float(np.median(ratios)) < CLIP_RATIO or float(ratios.min()) < 1:
        return []
    first, last = int(rows[0]), int(rows[-1])
    worst = int(rows[column.present[rows]][int(np.argmax(norms))])
    return [
        finding_at(
            record,
            detector="excerpt",
            kind="grad-explosion",
            signal="grad_norm",
            severity="info",
            row=last,
            onset_row=first,
            peak_row=worst,
            value=float(norms.max()),
            expected=clip,
            score=float(np.median(ratios)),
            # An excerpt ends before anything could have closed.
            closed=False,
            text=(
                f"every row is clipped {ratios.min():.0f} to {ratios.max():.0f} times (clip"
                f" {clip:g}{assumed})"
            ),
        )
    ]
