"""The loss of a log in which nothing has a known name: by its words, and by its partner.

`tr_ssl=0.31 va_ssl=0.20`, columns `train,valid`, `Recon: 0.013 | KL: 0.5`: no alias knows them, yet a
person sees the loss. A last resort, asked where a file would be refused, and never beside a name
that is known. In this order:

* of rows that a step or an epoch counts, a value whose name says what losses are made of (`xent`,
  `recon`), with its partner on held-out data where there is one;
* a value that is there for training and again for held-out data under the same name, and falls
  over the run; rows need no count only where there is nothing else. Where both rise to shares of 1
  or of 100 they are scores, and read as such. A pair of counts, or that moves neither way, is none.

What merely falls is a price, a battery or a schedule as often as a loss, and is left to a person.
The file is read again with the keys as if a person had given them, and a note says what was taken.
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
from trimtab.vocabulary import canonical, normalise

__all__ = ["by_course"]

Floats = NDArray[np.float64]

FEWEST_ROWS = 10
FALLS, RISES = -3.0, 3.0
"""Normal score of Kendall's S: one chance in 700. Ours."""
PERCENT = 50.0
"""Scores of 100 pass it; a loss that rises beyond 1 may be one that diverges. Ours."""
MOST_TRIED = 6
MOST_BYTES = 1 << 25
"""Of a file that is read again for each key that is tried."""
MOST_COMPARED = 100
_TRAINING = ("tr", "trn", "train", "training", "fit", "seen")
_HELD_OUT = (
    *(
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
    ),
    *("held", "heldout", "holdout", "unseen"),
)
_WHOLE_WORDS = ("train", "training"), ("val", "valid", "validation", "test", "dev", "eval")
"""What may stand alone for training and for held-out data."""
_OPENRLHF = {"rm": "reward", "glen": "completion_length", "pg": "policy_loss"}
"""What OpenRLHF's bar calls them; alone, most of these names mean other things."""
_PART = re.compile(
    r"\b(?:recon\w*|reconstruction|mse|rmse|mae|bce|ce|xent|nll|kl|kld|elbo|ssl|objective|residual"
    r"|criterion|contrastive|misfit)\b"
)
_NO_LOSS = re.compile(
    r"\b(?:time\w*|eta|s|secs?|seconds|ms|hours?|h|minutes?|elapsed|remaining|left|lr|learning|rate"
    r"|mem\w*|gpu|cpu|ram|speed|fps|it|its|temp\w*|sigma|noise|eps\w*|beta\w*|gamma|lambda|alpha"
    r"|weight\w*|coef\w*|len\w*|size|count|counts|num|n|id|ids|idx|index|indices|steps?|epochs?"
    r"|episodes?|iter\w*|batch\w*|samples?|images?|seen|tokens?|params?|patience|acc\w*|score\w*"
    r"|reward\w*|return\w*|iou|miou|dice|psnr|ssim|f1|auc|auroc|recall|prec\w*|bleu|rouge|r2|corr\w*"
    r"|win\w*|success|map|top\w*|explor\w*|buffer|date|day|month|year|price|cost|age|version|seed|port"
    r"|line|best|energy|kwh)\b"
)


def by_course(path: Path, keys: Sequence[str], read: Callable[[], RunRecord]) -> RunRecord | None:
    """Return the record of a file by what is named, or moves, like a loss; None where nothing is.

    Args:
        path: The file, for its size.
        keys: Names of its numbers, the most frequent first.
        read: Reads it again, with the columns given that hold then.

    Cost: the file is read up to a dozen times more; files beyond 32 MiB are not.
    """
    # What a person names goes before what seems so.
    if not keys or all_given() or not path.is_file() or path.stat().st_size > MOST_BYTES:
        return None
    keys = list(dict.fromkeys(keys))
    # An agent's divergence from a reference is no loss: its rewards are read without one.
    if _OPENRLHF.keys() <= set(keys):
        return _read(read, {name: key for key, name in _OPENRLHF.items()})
    reward = next((k for k in keys if canonical(k) == "reward"), None)
    if reward is not None:
        return _read(read, {"reward": reward})
    pairs = _pairs(keys)
    partners = dict(pairs)
    for key in [k for k in keys if _is_part(k) and k not in partners.values()][:MOST_TRIED]:
        beside = {"val_loss": partners[key]} if key in partners else {}
        found = _read(read, {"loss": key, **beside})
        if found is not None and _is_counted(found):
            return _noted(found, key, "by its name")
    for train, held_out in [p for p in pairs if not _is_part(p[0])][:MOST_TRIED]:
        found = _read(read, {"loss": train, "val_loss": held_out})
        if found is None or len(_values(found, "loss")) < FEWEST_ROWS:
            continue
        alone = _words(train) in _WHOLE_WORDS[0] and _words(held_out) in _WHOLE_WORDS[1]
        if not _is_counted(found) and not (alone and _holds_nothing_else(keys)):
            continue
        train_values, held = _values(found, "loss"), _values(found, "val_loss")
        if not len(held) or (train_values == np.floor(train_values)).all():
            continue
        if _falls(train_values) or (alone and _falls(train_values[: _worst(train_values)])):
            return _noted(found, train, f"beside {shown(held_out)}")
        if _are_scores(train_values, held):
            scores = _read(read, {"accuracy": train, "eval_score": held_out})
            if scores is not None:
                return _noted(scores, train, f"beside {shown(held_out)}", what="accuracy")
    return None


def _pairs(keys: Sequence[str]) -> list[tuple[str, str]]:
    """Return each name of training with that of the same on held-out data."""
    by_words = {tuple(_words(k).split()): k for k in keys}
    found: list[tuple[str, str]] = []
    for words, key in by_words.items():
        for place, word in enumerate(words):
            rest = " ".join(words[:place] + words[place + 1 :])
            # Alone, only whole words say what they are.
            if (
                word not in _TRAINING
                or _NO_LOSS.search(rest)
                or not (rest or word in _WHOLE_WORDS[0])
            ):
                continue
            others = ((*words[:place], other, *words[place + 1 :]) for other in _HELD_OUT)
            partner = next((by_words[o] for o in others if o in by_words), None)
            if partner is not None:
                found.append((key, partner))
    return found


def _words(key: str) -> str:
    return normalise(re.sub(r"[/.:|]+", " ", key))


def _is_part(key: str) -> bool:
    words = _words(key)
    return _PART.search(words) is not None and _NO_LOSS.search(words) is None


def _holds_nothing_else(keys: Sequence[str]) -> bool:
    """Whether the names are those of a pair alone; the number of a row or a seed is no other."""
    words = [w for w in map(_words, keys) if w and not w.startswith("unnamed")]
    return sum(_NO_LOSS.search(w) is None for w in words) == 2


def _read(read: Callable[[], RunRecord], columns: Mapping[str, str]) -> RunRecord | None:
    with columns_given(columns):
        try:
            return read()
        except ReadError:
            return None


def _values(record: RunRecord, signal: str) -> Floats:
    column = record.columns.get(signal)
    return np.zeros(0) if column is None else column.values[column.finite_rows(slice(None))]


def _is_counted(record: RunRecord) -> bool:
    return record.axis in ("step", "epoch") and len(_values(record, "loss")) >= FEWEST_ROWS


def _trend(values: Floats) -> float:
    return kendall_score(values[:: len(values) // MOST_COMPARED + 1])


def _falls(values: Floats) -> bool:
    third = len(values) // 3
    last, first = float(np.median(values[-third:])), float(np.median(values[:third]))
    return _trend(values) <= FALLS and last < first


def _worst(values: Floats) -> int:
    """Return the place of the highest value behind the first tenth, before which a loss may fall."""
    first = len(values) // 10
    return max(first + int(np.argmax(values[first:])), FEWEST_ROWS)


def _are_scores(train: Floats, held_out: Floats) -> bool:
    """Whether both are shares of 1 or of 100, and rise on training data."""
    both = np.concatenate((train, held_out))
    is_share = both.max() <= 1 or PERCENT <= both.max() <= 100
    return bool(both.min() >= 0 and is_share and _trend(train) >= RISES)


def _noted(record: RunRecord, key: str, why: str, what: str = "training loss") -> RunRecord:
    note = f"nothing is called a training loss; {shown(key)} is taken for the {what}, {why}"
    return replace(record, notes=(*record.notes, note))
