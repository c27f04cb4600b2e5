"""All findings on a whole record: first row by row as the guard sees it, then in hindsight."""

from collections.abc import Callable, MutableMapping
from dataclasses import replace

import numpy as np

from trimtab.detectors.borne_out import as_borne_out
from trimtab.detectors.by_design import as_designed
from trimtab.detectors.came_up import with_climbs
from trimtab.detectors.contract import Finding
from trimtab.detectors.cut_early import cut_early_findings
from trimtab.detectors.data_sets import set_findings
from trimtab.detectors.data_waits import data_wait_findings
from trimtab.detectors.each_pass import as_follows, told_once
from trimtab.detectors.epochs import round_findings, staircase_findings
from trimtab.detectors.excerpt import excerpt_findings
from trimtab.detectors.excess import with_excess
from trimtab.detectors.explained_rises import as_explained
from trimtab.detectors.few_rows import few_rows_findings
from trimtab.detectors.hardly_moved import hardly_moved_findings
from trimtab.detectors.held_out_drop import held_out_drop_findings
from trimtab.detectors.held_out_still import held_out_still_findings
from trimtab.detectors.hindsight import hindsight_findings
from trimtab.detectors.judge import Judge, JudgedSoFar, JudgeState, judge_record
from trimtab.detectors.lasting import lasting_findings
from trimtab.detectors.layers_apart import layer_findings
from trimtab.detectors.learned_by_heart import as_text
from trimtab.detectors.loss_shapes import (
    flat_window_findings,
    late_stall_findings,
    thrown_start_findings,
    too_low_findings,
)
from trimtab.detectors.lost_signals import lost_signal_findings
from trimtab.detectors.memorised import memorised_findings
from trimtab.detectors.noise_gone import noise_gone_findings
from trimtab.detectors.norm_climbs import with_norm_climbs
from trimtab.detectors.one_level import Levelled, at_one_level
from trimtab.detectors.one_scale import Rescaled, at_one_scale
from trimtab.detectors.other_signals import other_signal_findings
from trimtab.detectors.pace_creeps import pace_creeps_findings
from trimtab.detectors.plateau import plateau_findings
from trimtab.detectors.ranks import rank_findings
from trimtab.detectors.repeats import repeat_findings
from trimtab.detectors.restart_loop import restart_loop_findings
from trimtab.detectors.resumes import resume_findings
from trimtab.detectors.reward_flat import reward_flat_findings
from trimtab.detectors.reward_sinks import with_reward_sinks
from trimtab.detectors.risen import risen_findings
from trimtab.detectors.sawtooth import sawtooth_findings
from trimtab.detectors.score_sinks import with_score_sinks
from trimtab.detectors.sensitivity import Sensitivity
from trimtab.detectors.sensors import sensor_findings
from trimtab.detectors.silence import (
    growing_hang_findings,
    silence_findings,
    slow_stretch_findings,
    stall_findings,
)
from trimtab.detectors.stand_in import is_distance, no_distances, of_stand_in, runaway_findings
from trimtab.detectors.stands_dead import dead_findings
from trimtab.detectors.stated_changes import as_stated
from trimtab.detectors.swells import swell_findings
from trimtab.detectors.troughs import as_troughs
from trimtab.detectors.unmoved import unmoved_findings
from trimtab.detectors.worse_parts import worse_part_findings
from trimtab.detectors.written_pace import written_pace_findings
from trimtab.detectors.zero_end import zero_end_findings
from trimtab.readers.rank_values import names_rank
from trimtab.record import RunRecord
from trimtab.text import plain
from trimtab.vocabulary import Severity, canonical

__all__ = ["HINDSIGHT", "LOSS_SHAPES", "all_findings", "as_judged", "settling_rows"]

HINDSIGHT: tuple[Callable[[RunRecord], tuple[Finding, ...]], ...] = (
    excerpt_findings,
    few_rows_findings,
    hardly_moved_findings,
    held_out_drop_findings,
    held_out_still_findings,
    memorised_findings,
    noise_gone_findings,
    plateau_findings,
    cut_early_findings,
    resume_findings,
    restart_loop_findings,
    repeat_findings,
    sensor_findings,
    silence_findings,
    growing_hang_findings,
    stall_findings,
    slow_stretch_findings,
    pace_creeps_findings,
    written_pace_findings,
    data_wait_findings,
    lost_signal_findings,
    other_signal_findings,
    layer_findings,
    lasting_findings,
    set_findings,
    rank_findings,
    swell_findings,
    risen_findings,
    late_stall_findings,
    thrown_start_findings,
    too_low_findings,
    flat_window_findings,
    sawtooth_findings,
    staircase_findings,
    unmoved_findings,
    round_findings,
    runaway_findings,
    reward_flat_findings,
    worse_part_findings,
    zero_end_findings,
    dead_findings,
)
"""Rules that need later rows, or the whole record, besides `hindsight_findings`."""


LOSS_SHAPES: tuple[Callable[[RunRecord], tuple[Finding, ...]], ...] = (
    hardly_moved_findings,
    held_out_drop_findings,
    memorised_findings,
    noise_gone_findings,
    plateau_findings,
    cut_early_findings,
    late_stall_findings,
    thrown_start_findings,
    too_low_findings,
    flat_window_findings,
    sawtooth_findings,
    staircase_findings,
    round_findings,
    worse_part_findings,
    zero_end_findings,
    dead_findings,
)
"""Rules that take the loss for a distance to what is learned."""

BROKEN_ROWS = 16
"""Gradient norms in a row, to the end, that are no skipped steps of a scaler. Ours."""
SETTLING_ROWS = 32
"""Most last rows of a log that grows, of which nothing is said in hindsight: bursts are held
against the 30 rows after them. Chosen on half of the repositories of the labeled logs."""
SETTLING_SHARE = 8
"""A short log, whose windows are short, settles by an eighth of its rows. Chosen on everyday seeds
0-1."""


def as_judged(record: RunRecord) -> RunRecord:
    """Return a record as it is judged in hindsight: at one scale and one level."""
    return _judged(record, Sensitivity())[0]


def _judged(
    record: RunRecord, moved: Sensitivity
) -> tuple[RunRecord, tuple[Rescaled | Levelled, ...]]:
    rescaled, steps = tuple[Rescaled, ...](), tuple[Levelled, ...]()
    if at_one_scale.__name__ not in moved.off:
        record, rescaled = at_one_scale(record)
    if at_one_level.__name__ not in moved.off:
        record, steps = at_one_level(record)
    return record, (*steps, *rescaled)


def settling_rows(num_rows: int) -> int:
    """Return how many rows of a log that grows later rows may still show in another light.

    Example:
        >>> settling_rows(96), settling_rows(10_000)
        (12, 32)
    """
    return min(SETTLING_ROWS, max(6, num_rows // SETTLING_SHARE))


def _of_named_part(record: RunRecord, f: Finding) -> Finding:
    """Return a finding on values that are counted as broken with the name of the part they are of.

    Where several losses have no whole, a NaN in any of them is such a count.
    """
    key = record.keys.get("nonfinite", "")
    if f.detector != "non-finite" or f.signal != "nonfinite" or canonical(key) == "nonfinite":
        return f
    if names_rank(key):  # what breaks one rank breaks the mean over all of them
        return replace(f, text=f"{plain(key, limit=40)} is not finite", severity="critical")
    return replace(f, text=f"{plain(key, limit=40)!r} is not finite") if key else f


def _without_a_loss(record: RunRecord, f: Finding) -> Finding:
    """Return norms that are broken for good as critical, where no loss says whether the weights are."""
    if f.detector != "non-finite" or f.signal != "grad_norm" or f.end_row is not None:
        return f
    column = record.columns["grad_norm"]
    since = slice(f.onset_row, record.rows_of(int(record.attempt[f.onset_row])).stop)
    values = column.values[since][column.present[since]]
    gone = len(values) >= BROKEN_ROWS and not np.isfinite(values).any()
    return replace(f, severity="critical") if gone and "loss" not in record.columns else f


def _of_few_rows(f: Finding) -> Severity:
    """Return the severity of a finding on a log that grows.

    An excerpt is judged by its end. Where more rows come it asks for a look, and for no action yet.
    """
    few = f.detector in ("excerpt", "excerpt-near", "few-rows-rise")
    return "warning" if few and f.severity == "critical" else f.severity


def all_findings(
    record: RunRecord,
    *,
    judge: Judge | None = None,
    sensitivity: Sensitivity | None = None,
    hindsight: bool = True,
    grows: bool = False,
    before: MutableMapping[int, JudgeState] | None = None,
    so_far: JudgedSoFar | None = None,
) -> tuple[Finding, ...]:
    """Return the findings of every detector on a derived record.

    Args:
        record: With its derived signals.
        judge: The detectors to use; None: the built-in ones.
        sensitivity: Thresholds moved by a factor; for measuring.
        hindsight: False: only what the guard would have said.
        grows: Whether more rows will come; hindsight then leaves the last `settling_rows` alone.
        before: Rows whose state of the judge is wanted, as for `judge_record`.
        so_far: Of the last look at a log that grows, as for `judge_record`.
    """
    moved = sensitivity or Sensitivity()
    judge = moved.judge() if judge is None else judge
    logged, changes = record, tuple[Rescaled | Levelled, ...]()
    if hindsight:
        record, changes = _judged(logged, moved)
    findings = judge_record(record, judge, before=before, so_far=so_far)
    findings = tuple(_without_a_loss(record, _of_named_part(record, f)) for f in findings)
    no_distance = no_distances(record)
    if hindsight:
        findings = as_text(record, findings)
    findings = tuple(of_stand_in(f, no_distance) for f in findings)
    if not hindsight:
        return findings
    if as_borne_out.__name__ not in moved.off:
        findings = as_borne_out(record, findings)
    rules = [r for r in HINDSIGHT if is_distance(record) or r not in LOSS_SHAPES]
    later = [f for rule in rules if rule.__name__ not in moved.off for f in rule(record)]
    if "hindsight_findings" not in moved.off:
        later = [*hindsight_findings(record, bar=moved.hindsight), *later]
    settled = record.num_rows - (settling_rows(record.num_rows) if grows else 0)
    later = [
        replace(f, in_hindsight=True, severity=_of_few_rows(f) if grows else f.severity)
        for f in later
        if (f.onset_row if f.end_row is None else f.end_row) <= settled
    ]
    later = [f if f.detector == "runaway" else of_stand_in(f, no_distance) for f in later]
    found = told = tuple(as_stated(logged, f) for f in (*findings, *later))
    if as_explained.__name__ not in moved.off:
        found = as_troughs(record, as_explained(record, found))
    if told_once.__name__ not in moved.off:
        found = as_follows(told_once(record, found))
    if with_excess.__name__ not in moved.off:
        more = with_excess(record, (*told, *found))
        if more and as_explained.__name__ not in moved.off:
            more = as_explained(record, (*found, *more))[len(found) :]
        found = (*found, *(of_stand_in(f, no_distance) for f in more if f.row <= settled))
    if with_norm_climbs.__name__ not in moved.off:
        found = with_norm_climbs(record, found)
    if with_score_sinks.__name__ not in moved.off:
        found = with_score_sinks(record, found)
    if with_reward_sinks.__name__ not in moved.off:
        found = as_designed(record, with_reward_sinks(record, found))
    if with_climbs.__name__ not in moved.off and is_distance(record) and not no_distance:
        climbs = with_climbs(record, found)
        if as_explained.__name__ not in moved.off:
            climbs = as_explained(record, climbs)
        found = tuple(
            replace(f, in_hindsight=True) if f.detector == "came-up" else f for f in climbs
        )
    for change in changes:
        found = (*map(change.told, found), replace(change.finding(logged), in_hindsight=True))
    return found
