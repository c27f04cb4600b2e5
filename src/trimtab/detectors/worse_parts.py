"""A part of a loss that ends above where it began, or climbs from its lowest, while the total falls.

A total is dominated by its largest parts: it falls though a head that the optimizer does not hold,
or whose labels are mixed up, gets worse as the trunk below it moves. With y the medians of equal
stretches of a part, as in `came_up`, and start the highest of the first `END` of them, the part is
told where y rises over the whole run by Kendall's test of trend, and its level at the end lies

* above start by a tenth and by the bars of noise of `came_up`,
* for the last quarter of the run, without one stretch back at start.

A model that learns nothing of a task stays at its start; so this one is worse than untrained. So is
a part told that has risen ever since its lowest point by the bars of `came_up`, to `CLIMBED` times
that, in a total that falls on meanwhile. Told
as a warning: parts may be traded against each other on purpose. Not told of what need not fall:
regularizers (by their names, or since they begin at almost nothing), losses of an agent or of nets
against each other, and parts whose weight, or another setting of the log's own, is logged and
changes. In hindsight, over the attempts that lead to the last.

Blind to a total that does not fall, which is judged by itself.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.came_up import BARS, END, FEW, MAX_PARTS, NO_DESCENT, POINTS, climb_of
from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.readers.stated_settings import STATED_SETTING
from trimtab.readers.tags import is_of_nets, names_whole_loss
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median
from trimtab.text import plain
from trimtab.trend import kendall_score

__all__ = ["tasks_of", "worse_part_findings"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

CLIMBED = 1.2
"""Times its lowest, that a part comes to."""
LEAST_RATIO = 1.1
"""Times its start, that a part comes to."""
OF_TOTAL, OF_LEVEL = 0.05, 0.1
"""Shares of the total at the start, and of its own level at the end, below which a part begins at
almost nothing, as a regularizer does."""
FALLS = -3.0
"""Normal score of Kendall's S of the total. All bars are ours."""
_NO_TASK = frozenset(
    [
        "align",
        "alignment",
        "anchor",
        "bal",
        "boundary",
        "budget",
        "cons",
        "consistency",
        "cov",
        "covariance",
        "cst",
        "cyc",
        "cycle",
        "decorrelation",
        "distill",
        "diversity",
        "drift",
        "ent",
        "entropy",
        "ewc",
        "feat",
        "fm",
        "gate",
        "hint",
        "inv",
        "invariance",
        "jacobian",
        "l0",
        "lap",
        "laplacian",
        "latent",
        "lipschitz",
        "margin",
        "noise",
        "ode",
        "orth",
        "orthogonal",
        "orthogonality",
        "pde",
        "penalty",
        "physics",
        "prox",
        "proximal",
        "pseudo",
        "regulariser",
        "regularization",
        "regularizer",
        "repel",
        "repulsion",
        "res",
        "residual",
        "semi",
        "si",
        "sim",
        "similarity",
        "smoothness",
        "spars",
        "sparse",
        "sparsity",
        "spectral",
        "style",
        "temperature",
        "tv",
        "uniformity",
        "unlabeled",
        "unsup",
        "unsupervised",
        "variance",
    ]
)
"""Words of parts that may rise by design: regularizers, residuals of an equation, embeddings held
against each other or against a teacher."""
_WEIGHTS = frozenset(
    [
        "weight",
        "weights",
        "coef",
        "coeff",
        "coefficient",
        "lambda",
        "lam",
        "alpha",
        "beta",
        "gamma",
        "w",
    ]
)
_NO_WEIGHTS = frozenset(["norm", "decay", "grad", "gradient", "rms", "std", "mean", "update"])
"""Words of weights that are trained, not those of a part of a loss."""


def worse_part_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the parts of a loss that end above where they began, while the total falls."""
    parts = tasks_of(record)
    if not parts:
        return ()
    lineage = record.lineage_rows()
    total = record.columns["loss"]
    whole = _points(total.values[total.finite_rows(lineage)])
    if len(whole) < BARS[-1][0] or kendall_score(whole) > FALLS or whole[-END:].max() >= whole[0]:
        return ()
    return tuple(
        found
        for name in parts
        if (
            found := _of(record, name, lineage, float(median(whole[:END])))
            or _climbs(record, name, lineage, float(median(whole[:END])))
        )
        is not None
    )


def tasks_of(record: RunRecord) -> list[str]:
    """Return the parts beside a logged total that fall as the model learns, by their names."""
    parts = sorted(n for n in record.columns if n.startswith("loss/"))[:MAX_PARTS]
    if not parts or not _is_sum_of_distances(record):
        return []
    keys = [*record.keys.values(), *record.unread]
    return [n for n in parts if not _words(n) & _NO_TASK and not _is_weighted(n, keys)]


def _is_sum_of_distances(record: RunRecord) -> bool:
    """Whether the total is logged, of parts that fall as the model learns, under one setting."""
    if "loss" not in record.columns or not names_whole_loss(record.keys.get("loss", "loss")):
        return False
    if any(n in record.columns for n in (*NO_DESCENT, STATED_SETTING, "kl_weight")):
        return False
    keys = (*record.keys.values(), *record.unread)
    return not is_of_nets(k for k in keys if "loss" in k.lower())


def _is_weighted(part: str, keys: Iterable[str]) -> bool:
    """Whether a weight of this part, or of one that is not named, is logged."""
    mine = _words(part.partition("/")[2])
    for key in keys:
        words = _words(key)
        if words & _WEIGHTS and not words & _NO_WEIGHTS:
            rest = words - _WEIGHTS - {"loss", "train"}
            if not rest or rest & mine:
                return True
    return False


def _words(text: str) -> set[str]:
    return {w.rstrip("0123456789") or w for w in re.split(r"[^a-z0-9]+", text.lower()) if w}


def _points(loss: Floats) -> Floats:
    """Return the medians of equal stretches; what is left over is left out at the end."""
    size = 1 if len(loss) <= FEW else len(loss) // POINTS
    num = len(loss) // size
    return np.asarray(np.median(loss[: num * size].reshape(num, size), axis=1))


def _climbs(record: RunRecord, name: str, lineage: Rows, total: float) -> Finding | None:
    """Return the climb of a part from its lowest point, while the total has fallen since."""
    column, whole = record.columns[name], record.columns["loss"]
    rows = column.finite_rows(lineage)
    loss = column.values[rows]
    if len(loss) < BARS[-1][0] or loss.min() <= 0 or median(loss[:END]) < OF_TOTAL * total:
        return None
    climb = climb_of(record, name, rows, loss)
    if climb is None or climb.value < CLIMBED * climb.expected:
        return None
    since = whole.values[whole.finite_rows(lineage[lineage >= climb.onset_row])]
    if len(since) < BARS[-1][0] or kendall_score(_points(since)) > FALLS:
        return None
    which = plain(name.partition("/")[2], limit=60)
    return replace(
        climb,
        detector="worse-part",
        kind="drift",
        severity="warning",
        text=(
            f"the {which!r} part of the loss {climb.expected:.4g} → {climb.value:.4g}: it has risen"
            " ever since its lowest, while the total falls (in hindsight)"
        ),
    )


def _of(record: RunRecord, name: str, lineage: Rows, total: float) -> Finding | None:
    column = record.columns[name]
    rows = column.finite_rows(lineage)
    loss = column.values[rows]
    if len(loss) < BARS[-1][0] or loss.min() <= 0:
        return None
    points = _points(loss)
    start, level = float(points[:END].max()), median(points[-END:])
    noise = difference_sigma(np.diff(points, 2), order=2)
    score = kendall_score(points)
    told = any(
        len(points) >= n
        and score >= s
        and level >= max(times, LEAST_RATIO) * start
        and level - start >= sigmas * noise
        for n, s, times, sigmas in BARS
    )
    stays = bool(points[-max(len(points) // 4, END) :].min() > start)
    if not told or not stays or start < max(OF_TOTAL * total, OF_LEVEL * level):
        return None
    above = np.flatnonzero(loss <= start)
    onset = int(above[-1]) + 1 if len(above) else 0
    which = plain(name.partition("/")[2], limit=60)
    return finding_at(
        record,
        detector="worse-part",
        kind="drift",
        signal=name,
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[min(onset, len(rows) - 1)]),
        peak_row=int(rows[onset + int(np.argmax(loss[onset:]))]) if onset < len(rows) else None,
        value=level,
        expected=start,
        score=min(99.0, (level - start) / max(noise, 1e-12)),
        closed=False,
        text=(
            f"the {which!r} part of the loss {start:.4g} → {level:.4g}: worse than at the start,"
            " while the total falls (in hindsight)"
        ),
    )
