"""Rises of the loss that the log itself explains: notes, in hindsight.

**A restart of the schedule**: where the learning rate jumps back up to one that was in force before
and then falls as slowly as schedules do, the loss rises with it and falls with it. A rise is a note
by its *place*: it begins while the rate rises, or within `LATE_ROWS`; its *size*: at most twice
what an earlier restart raised it by, or the level it had when that rate was last in force, never
more than half the descent of the run; and its *shape*: it comes down with the rate, not at an edge
while the rate stands, and by the end of the cycle it is back. A cycle that is still under way, or
that another alarm cuts off, needs an earlier one that healed.

**A part that is warmed up**: a total loss = reconstruction + weight x divergence, as of a VAE,
rises while the weight does. It is a note where the reconstruction is no worse than before the rise,
or by no more than a logged weight gains by pressing the divergence down,
and the divergence is not larger either, or its weight is logged and has risen; where the total does
not rise by more than the other part gains, or is; and, without a logged weight, at no edge. A total
that falls while the reconstruction stands is nothing too good.

**A return that grows**: the targets of a loss of reinforcement learning grow with what is learned,
and a loss of a weight times a divergence grows from 0. A rise of the loss is a note where the
reward rises with it to the end; of fewer than `FEW_REWARDS` rewards, where it rises at all,
or does not fall and the loss stays within `OF_TARGETS` times its level.

**A stage**: where a logged stage of a curriculum changes, harder data costs more. A rise that
begins there is a note if every stage since has its highest losses first, and wears off.

**Data or an objective that is harder**: the training loss rises, and in the two evaluations from there
on what is held out is better than ever before, by `GAINS` of its best and more, and stays so as long.

**A range test**: a rate that grows by one factor from the first row on, ten thousandfold and more, and
is left, looks for the rate; what the loss does meanwhile, and is over with it, is asked for.

**Not yet updated**: a loss that is NaN in the first rows alone was of no weights, which would stay so.

**A round**: see `recurring`.

Blind to a rate that is not logged and restarts at unequal distances. A rise that does not heal
stays an alarm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.recurring import Rounds, rounds_of
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma, median

__all__ = ["as_explained", "restarts_of"]

Floats = NDArray[np.float64]

KINDS = ("spike", "unrecovered-spike", "shift", "drift", "divergence", "grad-spike", "grad-drift")
SIGNALS = ("loss", "grad_norm", "perplexity")
JUMP = 1.3
"""Ratio of two rates in a row, as `lr_change` has it."""
ABOVE = 1.05
"""Over a rate that was in force: that rate again, as `lr_change` has it."""
MOST_FALL = 0.3
"""Of the height of the jump, that a rate on a schedule falls by from row to row. Ours."""
EARLY_ROWS = 16
"""By which the block that holds a restart may begin before it. Ours."""
LATE_ROWS, LATE_SHARE = 16, 16
"""After its last rise, and share of the cycle, in which what a rate sets off begins. Ours."""
CYCLE_SHARE = 8
"""Levels are those of an eighth of a cycle."""
TWICE = 2.0
"""Times the rise at an earlier restart, or what was left at half the rate, that one may be. Ours.
"""
LEAST_SIGMA = 8.0
"""Noise of single rows, that a restart may always raise a signal by. Ours."""
DESCENT_SHARE = 0.5
EDGE_SHARE = 0.6
"""Of a rise, that comes down from one row to the next at an edge. Ours."""
STANDS = 0.75
"""Of its height, at which the rate still stands. Ours."""
LARGER = 1.5
PART_ROWS = 64
"""Before a rise, that a part of the loss is compared with. Ours."""

PART_OF_FALL = 0.25
"""Of a fall of the loss, that what is learned has in it where a weight explains it. Ours."""
FEW_REWARDS = 24
"""Rewards that cannot tell yet whether they rise. Ours."""
SLOW = ("shift", "drift", "divergence", "unrecovered-spike")
STAGE_SHARE = 6
"""Rows a stage has at least, on the average; what changes more often is no stage. Ours."""
WORN_OFF = 0.25
"""Of its rise, that a stage must lose by its end. Ours."""
OF_TARGETS = 10.0
"""Times its level, that a loss with the return may come to. Ours."""
GAINS, OF_SCORES, FEWEST_BEFORE = 0.05, 0.4, 3
"""Share of the lowest evaluation, of a score less; and evaluations before the rise."""
SWEPT_ROWS, SWEPT, ONE_FACTOR, ONE_SHARE, LEFT, BEHIND, EVALUATED = 16, 1e4, 0.1, 0.85, 0.5, 16, 0.5
"""Rows of a range test, times that its rate grows at least, spread of the logarithm of its steps about
their middle as a share, the share of the steps that keep to it, the share of its last rate that the
next is at most, rows behind it that may still be of it, and the share of its rows that are evaluated,
from which on it is none. Ours."""
UNMADE_ROWS, UNMADE_SHARE = 16, 0.15
"""Most first rows without a loss, and share of all. All ours."""
ERRORS = 3.0
"""Standard errors by which the level of a part rises by chance."""
_NUMERIC, _LEAST_NOISE = 1e-6, 1e-12


@dataclass(frozen=True)
class _Cycle:
    first: int
    """Row of the restart."""
    top: int
    """Row at which the rate rises no more."""
    end: int
    falls: bool
    """The rate has fallen back as schedules do."""
    share: Floats
    """Of the height of the jump, that the rate still has, by row."""
    last_in_force: tuple[int, int]
    """Rows around the place where the rate came down from its last top."""


def as_explained(record: RunRecord, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, rises that the rate or the parts of the loss explain as notes."""
    alarms = [f for f in findings if _rises(f) and f.severity != "info"]
    cycles: dict[int, list[_Cycle]] = {}
    rounds: dict[tuple[int, str], Rounds | None] = {}
    swept = [_swept(record, i) for i in range(len(record.attempts))]
    result: list[Finding] = []
    for f in findings:
        why = ""
        if f.severity != "info" and _of_a_range_test(record, f, swept):
            why = "a range test: the rate grows by one factor in each row, and is left then"
        elif f.severity != "info" and f.kind == "non-finite" and _unmade(record, f):
            why = "in the first rows alone: nothing was updated yet"
        elif _rises(f) and f.severity != "info":
            attempt = int(record.attempt[f.onset_row])
            if attempt not in cycles:
                cycles[attempt] = _cycles(record, attempt)
            if _of_a_restart(record, f, cycles[attempt], [a.onset_row for a in alarms]):
                why = "it rises and falls with the learning rate at a restart of the schedule"
            elif _of_a_warm_up(record, f):
                why = "the reconstruction falls on: the weight of another part of the loss rises"
            elif _of_a_return(record, f):
                why = "the reward does not fall with it: the targets of such a loss grow"
            elif _while_held_out_gains(record, f):
                why = "what is held out gets better as it rises: harder data, or another objective"
            elif _of_stages(record, f):
                why = "it begins where the logged stage changes, and wears off within the stage"
            else:
                place = attempt, f.signal
                if place not in rounds:
                    rounds[place] = rounds_of(record, *place)
                known = rounds[place]
                if known is not None and known.explains(f):
                    why = f"it comes back {len(known.teeth)} times at equal distances and wears off"
        elif f.kind == "too-good" and f.severity != "info" and _of_a_weight(record, f):
            why = "the reconstruction stands: the weight of another part of the loss falls"
        result.append(replace(f, severity="info", text=f"{f.text}; {why}") if why else f)
    return tuple(result)


def _while_held_out_gains(record: RunRecord, f: Finding) -> bool:
    """Whether evaluations from the rise on are better than any before it."""
    if f.signal != "loss":
        return False
    span = record.rows_of(int(record.attempt[f.onset_row]))
    last = span.stop - 1 if f.end_row is None else f.end_row
    for name, sign in (("val_loss", 1.0), ("eval_error", 1.0), ("eval_score", -1.0)):
        column = record.columns.get(name)
        rows = np.zeros(0, np.intp) if column is None else column.finite_rows(span)
        at, stop = np.searchsorted(rows, (f.onset_row, last + 1)).tolist()
        if column is None or at < FEWEST_BEFORE or stop - at < 2:
            continue
        values = sign * column.values[rows]
        low, since = float(values[:at].min()), values[at:stop]
        by = GAINS * abs(low) * (1.0 if name == "val_loss" else OF_SCORES)
        if since[:2].max() < low - by and since.max() < low:
            return True
    return False


def _swept(record: RunRecord, attempt: int) -> int:
    """Return the row behind a range test that an attempt begins with; its first where there is none."""
    span = record.rows_of(attempt)
    begins = int(span.start)
    column = record.columns.get("lr")
    if column is None:
        return begins
    rows = column.finite_rows(span)
    rate = column.values[rows]
    if len(rows) < SWEPT_ROWS or rows[0] != begins or not rate[0] > 0:
        return begins
    stop = int(np.argmax(np.append(np.diff(rate) <= 0, True))) + 1
    moves = np.diff(np.log(rate[:stop]))
    if stop < SWEPT_ROWS or rate[stop - 1] < SWEPT * rate[0]:
        return begins
    middle = median(moves)
    # Not of all: the first rates of one that is printed have few digits.
    one = float((np.abs(moves - middle) <= ONE_FACTOR * middle).mean()) >= ONE_SHARE
    left = stop == len(rate) or rate[stop] < LEFT * rate[stop - 1]
    held_out = record.columns.get("val_loss")
    # One that is evaluated row by row goes by epochs: that is a rate which runs away.
    evaluated = held_out is not None and held_out.present[rows[:stop]].mean() >= EVALUATED
    return int(rows[stop - 1]) + 1 if one and left and not evaluated else begins


def _of_a_range_test(record: RunRecord, f: Finding, swept: Sequence[int]) -> bool:
    """Whether a finding begins in a range test, and is over with it."""
    attempt = int(record.attempt[f.onset_row])
    stop = swept[attempt]
    if f.onset_row >= stop:
        return False
    return stop >= record.rows_of(attempt).stop or (
        f.end_row is not None and f.end_row <= stop + BEHIND
    )


def _unmade(record: RunRecord, f: Finding) -> bool:
    """Whether a loss is not finite in the first rows of an attempt alone."""
    column = record.columns.get(f.signal)
    if column is None or f.signal not in ("loss", "grad_norm") or f.end_row is None:
        return False
    span = record.rows_of(int(record.attempt[f.onset_row]))
    rows = np.flatnonzero(column.present[span]) + span.start
    bad = ~np.isfinite(column.values[rows])
    num = int(bad.sum())
    most = min(UNMADE_ROWS, UNMADE_SHARE * len(rows))
    if record.attempts[int(record.attempt[f.onset_row])].parent is not None:
        return False  # weights that had been updated
    first = len(rows) > 0 and f.onset_row == rows[0]
    return (
        first
        and bool(bad[:num].all())
        and num <= most
        and np.isnan(column.values[rows[:num]]).all()
    )


def restarts_of(record: RunRecord, attempt: int) -> tuple[slice, ...]:
    """Return the rows over which the rate comes back up at each restart of its schedule."""
    cycles = (c for c in _cycles(record, attempt) if c.falls)
    return tuple(slice(c.first, c.top + 1) for c in cycles)


def _rises(f: Finding) -> bool:
    return f.kind in KINDS and f.signal in SIGNALS and f.direction != "down"


def _cycles(record: RunRecord, attempt: int) -> list[_Cycle]:
    """Return the cycles that begin where the rate jumps back to one that was in force."""
    if "lr" not in record.columns:
        return []
    column = record.columns["lr"]
    rows = column.finite_rows(record.rows_of(attempt))
    rate = column.values[rows]
    if len(rate) < 2:
        return []
    highest = np.maximum.accumulate(rate)[:-1]
    jumps = (rate[1:] >= JUMP * rate[:-1]) & (rate[1:] <= ABOVE * highest) & (rate[:-1] < highest)
    at = np.flatnonzero(jumps) + 1
    falls = np.concatenate(([0], np.cumsum(np.diff(rate) < 0)))
    at = at[np.diff(falls[at], prepend=-1) > 0]  # a restart may be warmed up over some rows
    found: list[_Cycle] = []
    begun = 0
    for first, end in pairwise([*at.tolist(), len(rate)]):
        part = rate[first:end]
        full = float(part.max()) - rate[first - 1]
        smooth = float(np.max(-np.diff(part), initial=0.0))
        back = float(part[-1]) <= rate[first - 1] + 0.5 * full
        span = record.rows_of(attempt)
        stop = int(rows[end]) if end < len(rows) else span.stop
        # Rows without a rate have the last one.
        by_row = part[np.searchsorted(rows[first:end], np.arange(rows[first], stop), "right") - 1]
        last = begun + int(np.argmax(rate[begun:first]))
        low = np.flatnonzero(rate[last:first] <= 0.5 * rate[last])
        middle = last + int(low[0]) if len(low) else (last + first) // 2
        around = max(4, (first - begun) // (2 * CYCLE_SHARE))
        found.append(
            _Cycle(
                int(rows[first]),
                int(rows[first + int(np.argmax(part))]),
                stop,
                back and smooth <= MOST_FALL * full,
                np.clip((by_row - rate[first - 1]) / full, 0.0, 1.0),
                (int(rows[max(begun, middle - around)]), int(rows[min(first, middle + around)])),
            )
        )
        begun = first
    return found


def _of_a_restart(
    record: RunRecord, f: Finding, cycles: Sequence[_Cycle], alarms: Sequence[int]
) -> bool:
    usual: float | None = None
    before = int(record.rows_of(int(record.attempt[f.onset_row])).start)
    for cycle in cycles:
        early = min(max(EARLY_ROWS, f.grain_rows), (cycle.first - before) // CYCLE_SHARE)
        late = min(LATE_ROWS, (cycle.end - cycle.top) // LATE_SHARE)
        late += cycle.top + f.grain_rows - 1
        if cycle.first - early <= f.onset_row <= late and f.row >= cycle.first:
            # What another alarm does to the rest of the cycle is not of the restart.
            end = min((a for a in alarms if late < a < cycle.end), default=cycle.end)
            whole = end == cycle.end and cycle.falls
            if not whole and usual is None:
                return False
            return _rise(record, f.signal, cycle, usual, end, whole=whole, peak=f.value) is not None
        if cycle.falls:
            rise = _rise(record, f.signal, cycle, usual, cycle.end, whole=True)
            usual = usual if rise is None else rise
        before = cycle.first
    return False


def _rise(
    record: RunRecord,
    signal: str,
    cycle: _Cycle,
    usual: float | None,
    end: int,
    *,
    whole: bool,
    peak: float = -math.inf,
) -> float | None:
    """Return how far a signal rose in a cycle; None where it is more than a restart brings.

    Args:
        record: What was logged.
        signal: Of which.
        cycle: That of the restart.
        usual: How far it rose at an earlier restart.
        end: Row up to which the cycle is looked at.
        whole: It is looked at up to its end.
        peak: Highest value of the finding.
    """
    column = record.columns[signal]
    start = record.rows_of(int(record.attempt[cycle.first])).start
    earlier = column.values[column.finite_rows(slice(start, cycle.first))]
    rows = column.finite_rows(slice(cycle.first, end))
    values, share = column.values[rows], cycle.share[rows - cycle.first]
    num = max(4, len(values) // CYCLE_SHARE)
    if len(values) < (2 * num if whole else 1) or len(earlier) < 2 * num:
        return None
    level = median(earlier[-num:])
    noise = mad_sigma(np.diff(earlier[-num:])) / math.sqrt(2)
    rise = (_highest(values) if len(values) >= 4 else float(values.min())) - level
    if whole and median(values[-num:]) > level + 2 * noise + LARGER * max(0.0, rise) * share[-1]:
        return None
    then = column.values[column.finite_rows(slice(*cycle.last_in_force))]
    # There the rate was at half of what it comes back to.
    bound = TWICE * (median(then) - level) if len(then) else 0.0
    bound = max(bound if usual is None else max(bound, TWICE * usual), LEAST_SIGMA * noise)
    first = column.values[column.finite_rows(slice(0, cycle.first))][: max(4, min(16, num))]
    descent = DESCENT_SHARE * (median(first) - level)
    if signal == "grad_norm":  # which comes down with nothing
        descent = _highest(earlier) - level
    bound = min(bound, max(descent, LEAST_SIGMA * noise))
    if rise > bound + 2 * noise or peak > level + LARGER * bound + LEAST_SIGMA * noise:
        return None
    return rise if _comes_down(values - level, share, max(rise, 2 * noise), noise) else None


def _comes_down(excess: Floats, share: Floats, rise: float, noise: float) -> bool:
    """Whether what rose comes down with the rate, and not at an edge while that stands."""
    if len(excess) < 16:
        return True
    num = max(4, len(excess) // 32)
    blocks = len(excess) // num
    level = np.median(excess[: blocks * num].reshape(blocks, num), axis=1)
    most = share[: blocks * num].reshape(blocks, num).max(axis=1)
    if (level > LARGER * rise * np.sqrt(most) + 3 * noise).any():
        return False
    if rise < LEAST_SIGMA * noise:
        return True
    of_four = np.median(sliding_window_view(excess, 4), axis=1)
    fall, stands = of_four[:-4] - of_four[4:], share[7:] >= STANDS
    return not (fall[: len(stands)][stands] > EDGE_SHARE * rise).any()


def _highest(values: Floats) -> float:
    """Return the highest level: of medians of four, so that one odd row is none."""
    num = len(values) // 4
    return float(np.median(values[: 4 * num].reshape(num, 4), axis=1).max())


def _of_a_warm_up(record: RunRecord, f: Finding) -> bool:
    """Whether a part of the loss that measures what is learned falls on while the total rises."""
    if f.signal == "grad_norm" or not np.isfinite(f.value):
        return False
    part = _Moved(record, f, "recon_loss")
    other, weight = _Moved(record, f, "latent_kl"), _Moved(record, f, "kl_weight")
    if not part.known or (part.errors >= ERRORS and not _is_pressed(part, other, weight)):
        return False
    if not (other.known and other.errors < ERRORS) and not (
        weight.known and weight.errors > ERRORS
    ):
        return False
    total = _Moved(record, f, f.signal)
    if not total.known:
        return False
    # What the other part gains by its weight, or is; in other units, what the run had come down by.
    most = DESCENT_SHARE * (_first_level(record, f) - median(total.old))
    if other.known and weight.known and len(other.new) == len(weight.new):
        most = max(most, _highest(other.new * weight.new) - median(other.old) * median(weight.old))
    elif other.known:
        most = max(most, median(other.old))
    rise = _highest(total.new) - median(total.old)
    if rise > LARGER * most + 2 * total.noise:
        return False
    of_four = np.median(sliding_window_view(np.append(total.old, total.new), 4), axis=1)
    edge = float(np.max(of_four[4:] - of_four[:-4]))
    # A weight that is not logged grows step by step.
    return weight.known or rise < LEAST_SIGMA * total.noise or edge < EDGE_SHARE * rise


def _is_pressed(part: "_Moved", other: "_Moved", weight: "_Moved") -> bool:
    """Whether a growing weight presses a divergence down, which costs some reconstruction.

    At the best of recon + w kl no more is paid than what it gains: w times the fall of kl.
    """
    if not (other.known and weight.known) or weight.errors <= ERRORS:
        return False
    fall = median(other.old) - median(other.new[-PART_ROWS:])
    rise = _highest(part.new) - median(part.old)
    return rise <= LARGER * float(weight.new.max()) * fall


def _of_a_weight(record: RunRecord, f: Finding) -> bool:
    """Whether a part of the loss that measures what is learned does not fall with the total."""
    if f.signal != "loss":
        return False
    part, total = _Moved(record, f, "recon_loss"), _Moved(record, f, "loss")
    if not (part.known and total.known and "latent_kl" in record.columns):
        return False
    fell, of_part = (median(x.old) - median(x.new) for x in (total, part))
    return fell > 0 and of_part < PART_OF_FALL * fell


def _of_a_return(record: RunRecord, f: Finding) -> bool:
    """Whether the reward rises with a loss whose targets move with what is learned."""
    if f.kind not in SLOW or f.signal != "loss" or not np.isfinite(f.value):
        return False
    if "reward" not in record.columns:
        return False
    reward, span = record.columns["reward"], record.rows_of(int(record.attempt[f.onset_row]))
    last = max(f.row, f.peak_row, f.onset_row + PART_ROWS) + 1
    # As many rows again must bear it out.
    during = slice(f.onset_row, min(2 * last - f.onset_row, span.stop))
    begun = max(span.start, f.onset_row - max(PART_ROWS, last - f.onset_row))
    rows = reward.finite_rows(slice(begun, during.stop))
    if len(rows) < max(4, int(reward.present[begun : during.stop].sum())):
        return False
    values = reward.values[rows]
    num_old = max(int((rows < f.onset_row).sum()), len(rows) // 4)
    old, new = values[:num_old], values[(num_old + len(rows)) // 2 :]
    middle = values[num_old : (num_old + len(rows)) // 2]
    noise = mad_sigma(np.diff(values)) / math.sqrt(2)

    def errors(one: Floats, two: Floats) -> float:
        of_both = 1.25 * max(noise, _NUMERIC) * math.sqrt(1 / len(one) + 1 / len(two))
        return (median(two) - median(one)) / of_both

    if min(len(old), len(new), len(middle)) < 1:
        return False
    if errors(old, new) > ERRORS:
        return errors(middle, new) > -ERRORS
    level = abs(_first_level(record, f)) if f.onset_row > span.start else 0.0
    rose = errors(old, new)
    within = rose > 1 or (rose > -ERRORS and f.value <= OF_TARGETS * level)
    return len(rows) < FEW_REWARDS and within


def _of_stages(record: RunRecord, f: Finding) -> bool:
    """Whether the loss rises where a logged stage changes alone, and wears off in each stage."""
    if f.signal != "loss" or "stage" not in record.columns or not np.isfinite(f.value):
        return False
    span = record.rows_of(int(record.attempt[f.onset_row]))
    stage, loss = record.columns["stage"], record.columns["loss"]
    logged = stage.finite_rows(span)
    edges = logged[1:][np.diff(stage.values[logged]) != 0]
    near = max(2, f.grain_rows)
    begun = np.flatnonzero(np.abs(edges - f.onset_row) <= near)
    if not len(begun) or len(edges) * STAGE_SHARE > len(logged):
        return False
    stops = [*edges[1:].tolist(), span.stop]
    for first, stop in list(zip(edges.tolist(), stops, strict=True))[int(begun[0]) :]:
        if first > max(f.row, f.peak_row):
            break
        before = loss.values[loss.finite_rows(slice(span.start, first))][-PART_ROWS // 8 :]
        values = loss.values[loss.finite_rows(slice(first, stop))]
        if not len(before) or len(values) < int(loss.present[first:stop].sum()) or not len(values):
            return False
        noise = mad_sigma(np.diff(values)) / math.sqrt(2) if len(values) > 2 else 0.0
        rise = float(values.max()) - median(before)
        if rise <= LEAST_SIGMA / 2 * noise:
            continue
        # Of a stage that has hardly begun, where its highest loss stands is all there is.
        early = int(np.argmax(values)) <= max(len(values) // 3, 1)
        left = median(values[-max(1, len(values) // 4) :]) - median(before)
        worn = len(values) < STAGE_SHARE or left <= (1 - WORN_OFF) * rise
        if not (early and worn):
            return False
    return True


def _first_level(record: RunRecord, f: Finding) -> float:
    column = record.columns[f.signal]
    first = column.values[column.finite_rows(slice(0, f.onset_row))]
    return median(first[: max(4, min(16, len(first) // CYCLE_SHARE))])


class _Moved:
    """How far the level of a signal rose over a finding, in standard errors."""

    def __init__(self, record: RunRecord, f: Finding, name: str) -> None:
        span = record.rows_of(int(record.attempt[f.onset_row]))
        last = max(f.row, f.peak_row, f.onset_row + PART_ROWS)
        before = slice(max(span.start, f.onset_row - PART_ROWS), f.onset_row)
        during = slice(f.onset_row, min(last + 1, span.stop))
        column = record.columns.get(name)
        self.known = column is not None
        if column is None:
            return
        self.old, self.new = (column.values[column.finite_rows(s)] for s in (before, during))
        lost = len(self.new) < int(column.present[during].sum())
        self.known = min(len(self.old), len(self.new)) >= 4 and not lost
        if self.known:
            scatter = mad_sigma(np.diff(self.old)) / math.sqrt(2)
            # A signal may stand at 0 for good.
            self.noise = max(scatter, _NUMERIC * float(np.abs(self.old).max()), _LEAST_NOISE)
            rows_each = math.sqrt(1 / len(self.old) + 1 / len(self.new))
            self.errors = (median(self.new) - median(self.old)) / (1.25 * self.noise * rows_each)
