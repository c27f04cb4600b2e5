"""Which probed batches stand out: bad data, or a state that is bad with any data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trimtab.diagnosis.probes import DataProbe
from trimtab.guard.recovery.curves import recorded_curve
from trimtab.guard.recovery.triage import COUNTED, NO_RISE, is_no_updates_doing
from trimtab.signals.robust import mad_sigma

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.case import Case
    from trimtab.incidents import Incident

__all__ = [
    "batch_ids",
    "forward_fails",
    "low_before",
    "low_window",
    "onset_sample",
    "outliers",
    "probe_sample",
    "recounted",
    "summarize_probe",
]

_ALONE_SIGMA = 6.0
"""Distance from which one batch stands out by itself. Ours."""
_NEAR_SIGMA = 3.5
"""Distance from which three batches in a row stand out: bad data comes in windows. Ours."""
_LEAST_SHARE = 0.04
"""Least distance that counts, share of the unit (see `expectation`)."""
_FEWEST_TRAINED = 5
"""Batches trained on without trouble from which they set the level; else the run's own does."""
_FEWEST_SOUND = 2
"""Batches trained on with a finite loss that show the forward pass itself to fail now. Ours."""
_NEARLY_ALL, _FAR_MORE = 0.9, 6
"""Share of the probed batches that stand out, and their number in margins, from which the reference
is what is odd, where fewer than five trained batches set the level. Ours."""
_GAP = 3
"""Batches from one that stands out to the next, up to which both are of one window. Ours."""
_MILD_SHARE = 0.5
"""Of how far a window lies off, below which a batch apart from it is a hard one. Ours."""
_ALIKE = 1.6
"""Most that two factors of the loss differ by, where it is counted otherwise. Ours."""
_LOW_ROWS, _LONGEST_LOW = 4, 256
"""Rows before the trouble that show how low the loss was, and most that it was so. Ours."""
_ODD_STATE = 0.15
"""How far the median of the batches trained on without trouble lies above the level of the run,
from which on the restored state is not what the run had; share of the unit."""


def outliers(case: Case, *, margin: int) -> list[bool]:
    """Return which probed batches stand out from the ones that were trained on without trouble.

    A batch stands out by 6 sigma, or as one of three in a row by 3.5: small batches are noisy, and
    bad data comes in windows. A batch that was fed more than `margin` batches before the onset
    never does: it was trained on, and nothing came of it. Where there is a window of three in a row
    or more, what lies apart from it and is less than half as far off is a hard batch, not of it.

    No batch stands out where the state is odd: the batches that were trained on without trouble
    are far above the level of the run, or those that stand out are scattered, fewer than every
    third; or nearly all stand out, far more than a window, and hardly a batch was trained on: what
    the loss was in the first rows is no level then. Nor where weights or moments changed as no
    update changes them: no batch did that.
    """
    if is_no_updates_doing(case.incident):
        return [False] * len(case.probe_samples)
    onset = onset_sample(case)
    losses = [loss for *_, loss in case.probe_samples]
    none = [False] * len(losses)
    trained = [x for first, _, x in case.probe_samples if first < onset and math.isfinite(x)]
    # batches that were trained on are the fairest reference: same state, same forward pass
    expected = case.expected
    center, spread = expected.level, expected.sigma
    if len(trained) >= _FEWEST_TRAINED:
        center = float(np.median(trained))
        spread = mad_sigma(np.array(trained), center=center)
    if center - expected.level > _ODD_STATE * expected.unit:
        return _apart(case, losses, onset)
    noise, least = max(spread, expected.sigma), _LEAST_SHARE * expected.unit
    if "non-finite" in (case.incident.kind, *case.incident.also):
        least = expected.unit  # a batch that costs a little more than others makes no NaN
    # batches that are easier than the others made no loss rise
    low = case.incident.kind in NO_RISE
    far = [abs(x - center) if low else x - center for x in losses]
    alone = [not math.isfinite(x) or x > max(_ALONE_SIGMA * noise, least) for x in far]
    near = [not math.isfinite(x) or x > max(_NEAR_SIGMA * noise, least) for x in far]
    marks = [
        (alone[i] or _in_a_row(near, i)) and first >= onset - margin * (last - first + 1)
        for i, (first, last, _) in enumerate(case.probe_samples)
    ]
    hits = [i for i, mark in enumerate(marks) if mark]
    if not hits or len(hits) == len(marks):  # where all stand out, nothing does
        return none
    few = len(trained) < _FEWEST_TRAINED
    if few and len(hits) >= max(_FAR_MORE * margin, _NEARLY_ALL * len(marks)):
        return none
    # a window of bad data is dense; outliers here and there come from the state
    dense = any(_in_a_row(marks, i) for i in hits) or 3 * len(hits) > hits[-1] - hits[0]
    return _of_windows(marks, far) if dense else none


def _of_windows(marks: list[bool], far: Sequence[float]) -> list[bool]:
    """Return the marks without the milder ones that lie apart, where others are three in a row.

    Args:
        marks: Of the probed batches.
        far: How far each lies from the level.
    """
    core = [i for i, mark in enumerate(marks) if mark and _in_a_row(marks, i)]
    finite = [far[i] for i in core if math.isfinite(far[i])]
    if not finite:
        return marks
    mild = _MILD_SHARE * float(np.median(finite))
    return [
        mark and (min(abs(i - c) for c in core) <= _GAP or not far[i] < mild)
        for i, mark in enumerate(marks)
    ]


def _apart(case: Case, losses: Sequence[float], onset: int) -> list[bool]:
    """Return the batches of a window that was trained through before the onset, and came again.

    Where most of the batches from before the onset cost far more than the run did, the state is odd,
    or an earlier alarm lay in the same window and training took it in. An odd state raises every
    batch: here some still cost what the run cost, the others lie apart from all of these, and are
    one window without a gap.
    """
    expected, none = case.expected, [False] * len(losses)
    usual = expected.level + _ODD_STATE * expected.unit
    marks = [not math.isfinite(x) or x > usual for x in losses]
    hits = [i for i, mark in enumerate(marks) if mark]
    sound = np.array([x for x, mark in zip(losses, marks, strict=True) if not mark])
    before = [i for i, (first, *_) in enumerate(case.probe_samples) if first < onset]
    if len(sound) < _FEWEST_TRAINED or not hits or hits[0] not in before:
        return none
    if hits[-1] - hits[0] + 1 != len(hits):
        return none
    noise = max(mad_sigma(sound, center=float(np.median(sound))), expected.sigma)
    nearest = min((losses[i] for i in hits if math.isfinite(losses[i])), default=math.inf)
    return marks if nearest - float(sound.max()) > _ALONE_SIGMA * noise else none


def recounted(case: Case) -> str:
    """Return what shows that the loop counts the loss otherwise than before; empty for nothing.

    Batches that were trained on without trouble cost as many times more under the state of then as
    the loss has risen by: neither the data nor the state is to blame.
    """
    onset, level = onset_sample(case), case.level
    trained = [x for first, _, x in case.probe_samples if first < onset and math.isfinite(x)]
    after = int(case.incident.onset) - 1
    risen = list(recorded_curve(case.record, after=after, until=case.seen_step).values())
    if len(trained) < _FEWEST_TRAINED or not risen or not level > 0:
        return ""
    now, factor = float(np.median(trained)), float(np.median(risen)) / level
    alike = now >= COUNTED * level and 1 / _ALIKE < now / level / factor < _ALIKE
    return f"batches that cost {level:.4g} cost {now:.4g} under the same state" if alike else ""


def forward_fails(case: Case) -> bool:
    """Whether the forward pass gives NaN or Inf with any batch under a state that was sound.

    Among them batches that were trained on from that very state, with a finite loss: neither their
    data nor the weights are to blame, and nothing that recovery changes can help.
    """
    onset = onset_sample(case)
    trained = sum(last < onset for _, last, _ in case.probe_samples)
    record = recorded_curve(
        case.record, after=case.base.step, until=int(case.incident.onset) - 1
    ).values()
    was_sound = len(record) >= _FEWEST_SOUND and all(map(math.isfinite, record))
    broken = not any(math.isfinite(loss) for *_, loss in case.probe_samples)
    return broken and was_sound and trained >= _FEWEST_SOUND


def _in_a_row(marks: Sequence[bool], place: int, *, count: int = 3) -> bool:
    """Return whether the mark at a place is one of `count` marks without a gap."""
    starts = range(max(place - count + 1, 0), place + 1)
    return any(all(marks[i : i + count]) and len(marks[i : i + count]) == count for i in starts)


def onset_sample(case: Case) -> int:
    """Return the first sample id of the batch at the incident's onset."""
    column = case.record.columns.get("samples_seen")
    row = case.incident.onset_row
    if column is None or not column.present[row]:
        return case.seen_sample
    before = case.base.samples
    return case.base.sample_id + int(column.values[row] - _step_samples(case)) - before


def batch_ids(case: Case) -> dict[int, int]:
    """Return the first sample id of the batch of each recorded step since the restore point."""
    seen, size = (case.record.columns.get(n) for n in ("samples_seen", "batch_size"))
    if seen is None:
        return {}
    rows = case.record.lineage_rows()
    rows = rows[seen.present[rows] & (case.record.step[rows] > case.base.step)]
    shift = case.base.sample_id - case.base.samples
    return {
        int(case.record.step[r]): shift
        + int(seen.values[r] - (1.0 if size is None else size.values[r]))
        for r in rows
    }


def low_window(case: Case) -> tuple[int, int] | None:
    """Return the samples of a window that was too easy and ended with the trouble; None without.

    One class for a while, labels that leak, empty batches: the weights take them in, and where the
    window ends everything else costs more than before. No batch of it stands out under the state
    from before.
    """
    since, onset = case.low_since, int(case.incident.onset)
    if since is None:
        return None
    curve = recorded_curve(case.record, after=case.base.step, until=onset - 1)
    low = case.expected.level - _NEAR_SIGMA * case.expected.sigma
    last = [x for x in curve.values() if math.isfinite(x)][-_LOW_ROWS:]
    if len(last) < _LOW_ROWS or not np.median(last) < low:
        return None
    before = [step for step, loss in curve.items() if step < since and not loss < low]
    begun = max(before, default=case.base.step) + 1  # told some rows after it has begun
    first = [sample for step, sample in batch_ids(case).items() if step >= begun]
    return (first[0], onset_sample(case) - 1) if first and first[0] < onset_sample(case) else None


def low_before(incident: Incident, alarms: Iterable[Finding]) -> int | None:
    """Return since which step the loss was too low to be true up to an incident; None: it was not.

    Args:
        incident: A rise of the loss.
        alarms: All that were heard.
    """
    falls = [
        f.onset
        for f in alarms
        if f.kind == "too-good"
        and f.signal == "loss"
        and f.severity != "info"
        and 0 < incident.onset - f.onset <= _LONGEST_LOW
        and (not f.closed or f.step >= incident.onset - _LOW_ROWS)
    ]
    return None if not falls or incident.kind in NO_RISE else int(min(falls))


def _step_samples(case: Case) -> float:
    """Return the samples of the step at the onset, of all ranks."""
    column = case.record.columns.get("batch_size")
    return float(column.values[case.incident.onset_row]) if column is not None else 1.0


def probe_sample(case: Case, *, margin: int) -> int:
    """Return the sample id that a probe begins near.

    Batches further than `margin` before the onset cannot be to blame; as many again are looked at
    before those, to compare with.
    """
    return onset_sample(case) - 2 * margin * int(_step_samples(case))


def summarize_probe(case: Case, *, margin: int) -> DataProbe:
    """Return how many probed batches stand out, and where."""
    hits = [
        s for s, mark in zip(case.probe_samples, outliers(case, margin=margin), strict=True) if mark
    ]
    finite = [x for *_, x in case.probe_samples if math.isfinite(x)]
    return DataProbe(
        num_batches=len(case.probe_samples),
        num_outliers=len(hits),
        first_sample=hits[0][0] if hits else None,
        last_sample=hits[-1][1] if hits else None,
        median_loss=float(np.median(finite)) if finite else math.nan,
        worst_loss=max((x for *_, x in hits), default=max(finite, default=math.nan)),
    )
