"""The loss of a log in which nothing has a known name: by its partner, or by how it moves.

`tr_ssl=0.31 va_ssl=0.20`, columns `train,valid`, `Recon: 0.013 | KL: 0.5`: no alias knows them, yet a
person sees the loss. A last resort, asked where a file would be refused, and never beside a name
that is known. In this order:

* a value that is there for training and again for held-out data under the same name. Where both
  rise and stay within 100, they are scores, and read as such; within 1 and moving neither way they
  may be either, and are not read;
* of rows that a step or an epoch counts, a value whose name says what losses are made of (`xent`,
  `recon`), however it moves; where there is none, one that falls over the run and is no share: the
  accuracy of a run that goes wrong falls, too.

What is named after a time, a rate, a size or a score is none. The file is read again with the key
as if a person had given it, and a note says what was taken for the loss.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ReadError
from trimtab.readers.given_columns import all_given, columns_given
from trimtab.readers.numbers import shown
from trimtab.record import RunRecord
from trimtab.trend import kendall_score
from trimtab.vocabulary import normalise

__all__ = ["by_course"]

Floats = NDArray[np.float64]

FEWEST_ROWS = 10
FALLS, RISES = -3.0, 3.0
"""Normal score of Kendall's S: one chance in 700. Ours."""
LARGE_SHARE = 0.1
"""A loss in [0, 1] that ever was above it may be a share; one that never was is none to be read.
"""
MOST_TRIED = 6
MOST_BYTES = 1 << 25
"""Of a file that is read again for each key that is tried."""
MOST_COMPARED = 100
_TRAINING = ("tr", "trn", "train", "training", "fit", "seen")
_HELD_OUT = (
    "va",
    "val",
    "valid",
    "validation",
    "vld",
    "te",
    "tst",
    "test",
    "testing",
    "dev",
    "ev",
    "eval",
    "held",
    "heldout",
    "holdout",
    "unseen",
)
_PART = re.compile(
    r"\b(?:recon\w*|reconstruction|rec|mse|rmse|mae|l1|l2|bce|ce|xent|nll|kl|kld|elbo|ssl|objective|obj"
    r"|total|energy|residual|distance|dist|divergence|error|err|criterion|contrastive|diff|misfit|d 2"
    r"|d\^2|fitness)\b"
)
_NO_LOSS = re.compile(
    r"\b(?:time\w*|eta|secs?|seconds|ms|hours?|minutes?|elapsed|remaining|left|lr|learning|rate|mem\w*|gpu"
    r"|cpu|ram|speed|fps|it|its|temp\w*|sigma|noise|eps\w*|beta\w*|gamma|lambda|alpha|weight\w*|len\w*"
    r"|size|count|num|n|id|idx|index|steps?|epochs?|episodes?|iter\w*|batch\w*|samples?|tokens?|params?"
    r"|patience|acc\w*|score\w*|reward\w*|return\w*|iou|miou|dice|psnr|ssim|f1|auc|auroc|recall|prec\w*"
    r"|bleu|rouge|r2|corr\w*|win\w*|success|map|top\w*|explor\w*|buffer|date|day|month|year|price|age"
    r"|version|seed|port|line|best)\b"
)


def by_course(
    path: Path, keys: Sequence[str], read: Callable[[], RunRecord], *, step: str = ""
) -> RunRecord | None:
    """Return the record of a file by what moves like a loss in it; None where nothing does.

    Args:
        path: The file, for its size.
        keys: Names of its numbers, the most frequent first; of columns without names their places.
        read: Reads it again, with the columns given that hold then.
        step: Name of what counts its rows, where that is known.

    Cost: the file is read up to six times more; files beyond 32 MiB are not.
    """
    # What a person names goes before what seems so.
    if not keys or all_given() or not path.is_file() or path.stat().st_size > MOST_BYTES:
        return None
    keys = list(dict.fromkeys(keys))
    for train, held_out in sorted(_pairs(keys), key=lambda pair: _is_no_part(pair[0]))[:MOST_TRIED]:
        found = _read(read, {"loss": train, "val_loss": held_out})
        if found is None or len(_values(found, "loss")) < FEWEST_ROWS:
            continue
        if _is_no_part(train) and _are_shares(found):
            if _trend(_values(found, "loss")) < RISES:
                continue
            scores = _read(read, {"accuracy": train, "eval_score": held_out})
            if scores is not None:
                return scores
        return _noted(found, train, f"beside {shown(held_out)}")
    free = [k for k in keys if not _NO_LOSS.search(_words(k))]
    parts = [k for k in free if not _is_no_part(k)]
    counted = {"step": step} if step else {}
    found = None
    for key in (parts or free)[:MOST_TRIED]:
        record = _read(read, {"loss": key, **counted})
        if record is None or not _is_counted(record):
            continue
        loss = _values(record, "loss")
        if parts:
            return _noted(record, key, "by its name")
        if not _falls(loss) or _is_share(loss):
            continue
        # What never rises may be a schedule, and gives way to what has noise.
        if (np.diff(loss) > 0).any():
            return _noted(record, key, "as it falls over the run")
        found = found or _noted(record, key, "as it falls over the run")
    return found


def _is_counted(record: RunRecord) -> bool:
    return record.axis in ("step", "epoch") and len(_values(record, "loss")) >= FEWEST_ROWS


def _is_share(values: Floats) -> bool:
    """Whether values may be shares of 1, of which some are large."""
    return bool(values.min() >= 0 and values.max() <= 1 and values.max() > LARGE_SHARE)


def _falls(loss: Floats) -> bool:
    third = len(loss) // 3
    last, first = float(np.median(loss[-third:])), float(np.median(loss[:third]))
    return _trend(loss) <= FALLS and last < first


def _pairs(keys: Sequence[str]) -> list[tuple[str, str]]:
    """Return each name of training with that of the same on held-out data."""
    by_words = {tuple(_words(k).split()): k for k in keys}
    found: list[tuple[str, str]] = []
    for words, key in by_words.items():
        for place, word in enumerate(words):
            if word not in _TRAINING or _NO_LOSS.search(
                " ".join(words[:place] + words[place + 1 :])
            ):
                continue
            others = ((*words[:place], other, *words[place + 1 :]) for other in _HELD_OUT)
            partner = next((by_words[o] for o in others if o in by_words), None)
            if partner is not None:
                found.append((key, partner))
    return found


def _words(key: str) -> str:
    return normalise(re.sub(r"[/.:|]+", " ", key))


def _is_no_part(key: str) -> bool:
    return _PART.search(_words(key)) is None


def _read(read: Callable[[], RunRecord], columns: Mapping[str, str]) -> RunRecord | None:
    with columns_given(columns):
        try:
            return read()
        except ReadError:
            return None


def _values(record: RunRecord, signal: str) -> Floats:
    column = record.columns.get(signal)
    return np.zeros(0) if column is None else column.values[column.finite_rows(slice(None))]


def _trend(values: Floats) -> float:
    return kendall_score(values[:: len(values) // MOST_COMPARED + 1])


def _are_shares(record: RunRecord) -> bool:
    """Whether what is there for both kinds of data may be shares: of 100 where they rise, or of 1.

    Where training data falls clearly, they are losses.
    """
    train, held_out = _values(record, "loss"), _values(record, "val_loss")
    both = np.concatenate((train, held_out))
    rises, falls = _trend(train) >= RISES, _falls(train)
    return bool(both.min() >= 0 and (both.max() <= 100 if rises else both.max() <= 1 and not falls))


def _noted(record: RunRecord, key: str, why: str) -> RunRecord:
    note = f"nothing is called a training loss; {shown(key)} is taken for it, {why}"
    return replace(record, notes=(*record.notes, note))
