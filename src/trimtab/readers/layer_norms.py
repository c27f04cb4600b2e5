"""Gradient norms of single layers: `grad_norm/fc1`, `gradients/fc1`, `fc1_grad_norm`.

Two or more of them are columns called `grad_norm/LAYER`. Where the norm of the whole model is not
logged it is worked out of them, provided that they are norms of the same rows and none of them
holds another:

    grad_norm[t] = sqrt(sum over layers of norm[t]^2)
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from trimtab.readers.nan_policy import nan_means_missing
from trimtab.readers.numbers import counted, shown
from trimtab.readers.placeholders import drop_zero_norm
from trimtab.readers.tags import is_of_nets, is_validation_word, signal_of_tag
from trimtab.record import Column, RunRecord, most_values

__all__ = ["BY_LAYER", "layer_of_tag", "layers_of", "with_layer_norms"]

Columns = Mapping[str, Column]

BY_LAYER = "grad_norm/"
"""What the name of such a column begins with."""
_LEAST, _MOST = 2, 512
_LONGEST_TAG = 120
_RUN = re.compile(r"^.+ - (?=\S)")
"""The name of a run in front of a key, as W&B exports it."""
_FRONT = re.compile(
    r"(?P<path>(?:[\w .-]+/)*?)"
    r"(?P<what>grad(?:ient)?s?[_ -]?(?:l2[_ -]?)?norms?|gnorms?|grad[_ ](?:\d+(?:\.\d+)?|inf)[_ ]norm"
    r"|grad(?:ient)?s?)[/.](?P<layer>.+)",
    re.IGNORECASE,
)
_BEHIND = re.compile(
    r"(?P<path>(?:[\w .-]+/)*)(?P<layer>[^/]+?)[._ -](?P<what>(?:grad(?:ient)?[_ -]?(?:l2[_ -]?)?norm|gnorm))",
    re.IGNORECASE,
)
_SQUARES = re.compile(
    r"(?:grad(?:ient)?s?[_ -]?(?:l2[_ -]?)?norms?|gnorms?|grad[_ ]2(?:\.0)?[_ ]norm)", re.I
)
"""Names of norms whose squares add up: `gradients/fc1` may be a mean, `grad_inf_norm` is a maximum."""
_STATISTICS = frozenset(
    [
        "max",
        "min",
        "mean",
        "avg",
        "average",
        "median",
        "std",
        "var",
        "variance",
        "total",
        "global",
        "all",
        "overall",
        "clip",
        "clipped",
        "clipping",
        "num",
        "count",
        "share",
        "ratio",
        "noise",
        "cos",
        "cosine",
        "similarity",
        "snr",
        "sparsity",
        "zeros",
        "zero",
        "nan",
        "inf",
        "threshold",
        "ema",
        "unclipped",
        "before",
        "after",
        "raw",
        "penalty",
        "per",
        "rank",
        "accumulation",
        "steps",
        "checkpointing",
        "hist",
        "histogram",
        "cur",
        "running",
        "value",
        "values",
        "bins",
        "target",
        "limit",
    ]
)
"""First or last words of what is no layer."""
_NEVER_ALONE = frozenset(
    [
        "norm",
        "norms",
        "l1",
        "l2",
        "scale",
        "scaler",
        "step",
        "pre",
        "post",
        "weight",
        "weights",
        "param",
        "params",
        "model",
    ]
)
"""Words of layers that name none by themselves."""
_SAME = 1e-3
"""Share by which one of them may differ from the root of the others' squares and be their total."""


def layer_of_tag(tag: str) -> str | None:
    """Return the layer whose gradient norm a tag names, None for any other tag.

    Example:
        >>> [layer_of_tag(t) for t in ("grad_norm/fc1", "fc1_grad_norm", "max_grad_norm", "grad_norm")]
        ['fc1', 'fc1', None, None]
        >>> layer_of_tag("grad_2.0_norm/model.fc1.weight"), layer_of_tag("gradients/layers.0")
        ('model.fc1.weight', 'layers.0')
    """
    if len(tag) > _LONGEST_TAG or not ("grad" in (low := tag.lower()) or "gnorm" in low):
        return None
    found = _matched(tag)
    if found is None or signal_of_tag(tag) is not None:
        return None
    layer, path = found["layer"].strip(), re.split(r"[/ _-]", found["path"])
    words = [w for w in re.split(r"[^a-z0-9]+", layer.lower()) if w]
    if (
        not words
        or any(map(is_validation_word, path))
        or not _STATISTICS.isdisjoint((words[0], words[-1]))
    ):
        return None
    # `grad-norm/grad-norm vs samples` is the whole model's again, on another axis.
    return None if "vs" in words or _NEVER_ALONE.issuperset(words) else layer


def layers_of(tags: Iterable[str]) -> dict[str, str]:
    """Return `grad_norm/LAYER` -> tag; two at least, 512 at most, in the order of the log."""
    named: dict[str, str] = {}
    for tag in tags:
        if (layer := layer_of_tag(tag)) is not None and len(named) < _MOST:
            named.setdefault(BY_LAYER + layer, tag)
    return named if len(named) >= _LEAST else {}


def with_layer_norms(record: RunRecord) -> RunRecord:
    """Return the record with its norms by layer checked, and the whole model's norm, whoever read it.

    What is negative, or never a number, is no norm: it counts as not read.
    """
    layers = {n: c for n, c in record.columns.items() if n.startswith(BY_LAYER)}
    if not layers:
        return record
    kept = {n: _settled(c) for n, c in layers.items() if _is_norm(c)}
    if len(kept) < _LEAST:
        kept = {}
    columns = {n: kept.get(n, c) for n, c in record.columns.items() if n in kept or n not in layers}
    keys = {n: k for n, k in record.keys.items() if n in columns}
    unread = dict(record.unread)
    for name in layers.keys() - kept.keys():
        unread[record.keys.get(name, name)] = int(layers[name].present.sum())
    notes = list(record.notes)
    if kept:
        first = shown(keys.get(next(iter(kept)), next(iter(kept))))
        notes.append(
            f"{counted(len(kept), 'gradient norm')} by layer, such as {first}, each by itself"
        )
    total = None if "grad_norm" in columns or not kept else _total(kept, keys)
    if total is not None:
        columns["grad_norm"], keys["grad_norm"] = total, next(iter(kept))
        drop_zero_norm(columns, keys, notes)
        if keys.pop("grad_norm", None):
            notes.append("grad_norm is the root of the sum of their squares: no total is logged")
    return replace(
        record, columns=columns, keys=keys, notes=tuple(notes), unread=most_values(unread)
    )


def _matched(tag: str) -> re.Match[str] | None:
    text = _RUN.sub("", tag)
    return _FRONT.fullmatch(text) or _BEHIND.fullmatch(text)


def _is_norm(column: Column) -> bool:
    values = column.logged()
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and bool((finite >= 0).all())


def _settled(column: Column) -> Column:
    missing, _ = nan_means_missing(column, is_loss=False)
    return Column(column.values, column.present & ~missing) if missing.any() else column


def _total(layers: Columns, keys: Mapping[str, str]) -> Column | None:
    """Return the norm of the whole, None where it does not follow from those of the layers."""
    matches = [_matched(keys.get(name, name)) for name in layers]
    sums_up = all(m is not None and _SQUARES.fullmatch(m["what"]) for m in matches)
    if not sums_up or _hold_another(layers) or is_of_nets(keys.get(n, n) for n in layers):
        return None
    columns = list(layers.values())
    present = columns[0].present
    if not all(np.array_equal(c.present, present) for c in columns):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.array([c.values for c in columns])
        # By the largest, whose square may be beyond what a number holds.
        finite = norms[np.isfinite(norms)]
        unit = float(np.abs(finite).max(initial=0.0)) or 1.0
        squares = (norms / unit) ** 2
        whole = squares.sum(axis=0)
        known = present & np.isfinite(whole) & (whole > 0)
        for column, square in zip(columns, squares, strict=True):
            # One of them may be the norm of all others under a name of its own.
            if known.any() and np.allclose(2 * square[known], whole[known], rtol=_SAME):
                return column if len(columns) > _LEAST else None
        return Column(np.where(present, unit * np.sqrt(whole), np.nan), present)


def _hold_another(names: Collection[str]) -> bool:
    """Whether one layer is part of another: `encoder` beside `encoder.0`."""
    flat = {name.replace(".", "/").replace("__", "/") for name in names}
    return any(
        "/".join(parts[:i]) in flat
        for parts in (name.split("/") for name in flat)
        for i in range(2, len(parts))
    )
