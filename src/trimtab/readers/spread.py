"""Quantities that a log has once for each layer, rank or expert -> one signal for each.

A router that collapses in one layer of forty shows in no mean, so the signal is the worst of them
in each row: the largest where up is bad, the smallest where down is. Loads of single experts become
two signals: the largest load over the mean of its layer (the worst layer), and the number of
experts with less than `DEAD_SHARE` of the mean (all layers).
"""

import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.numbers import counted, shown
from trimtab.readers.tags import signal_of_tag
from trimtab.vocabulary import SIGNAL_BY_NAME, canonical

__all__ = ["gather", "spread_groups"]

Floats = NDArray[np.float64]

DEAD_SHARE = 0.01
"""Of the mean load, below which an expert counts as dead. Ours: OLMoE and Qwen's reports call an
expert unused that gets practically no token; a hundredth of the mean is far below specialization.
"""
_LEAST_EXPERTS = 4
"""Fewer columns are no family of experts."""
_LAST_NUMBER = re.compile(r"\d+(?!.*\d)")
_EXPERT_NUMBER = re.compile(r"(?<=expert)(s?[/._ -]?(?:load|tokens?|usage)?[/._ -]?)\d+", re.I)


def spread_groups(tags: Iterable[str]) -> dict[str, list[str]]:
    """Return signal -> the tags that give it for one layer, rank or expert each; two at least."""
    groups: dict[str, list[str]] = {}
    for tag in tags:
        name = signal_of_tag(tag)
        if name is not None and SIGNAL_BY_NAME[name].spread:
            groups.setdefault(name, []).append(tag)
    return {name: group for name, group in groups.items() if len(group) > 1}


def gather(
    groups: Mapping[str, list[str]], values: Mapping[str, Floats]
) -> tuple[dict[str, Floats], list[str]]:
    """Return signal -> values, and notes on what was put together.

    Args:
        groups: Of `spread_groups`.
        values: By tag, float64 [n_rows] each; NaN where nothing was logged.

    NaN: a row has a value where one of its tags has a finite one.
    Cost: O(n_rows x tags).
    """
    found: dict[str, Floats] = {}
    notes: list[str] = []
    for name, tags in groups.items():
        if name == "expert_load":
            if _gather_experts(tags, values, found):
                notes.append(
                    f"{counted(len(tags), 'column')} of expert loads: the largest over "
                    "the mean, and how many experts have none, are judged"
                )
            continue
        pick = _PICK[SIGNAL_BY_NAME[name].bad]
        found[name] = pick([values[t] for t in tags])
        plain = [t for t in tags if canonical(t) == name]
        notes.append(
            f"{name} is the worst of {counted(len(tags), 'column')}, such as {shown(tags[0])}"
            + ("" if plain else "; none is named for the whole model")
        )
    return found, notes


def _largest(series: list[Floats]) -> Floats:
    return np.asarray(np.fmax.reduce(series))


def _smallest(series: list[Floats]) -> Floats:
    return np.asarray(np.fmin.reduce(series))


def _mean(series: list[Floats]) -> Floats:
    known = [np.isfinite(s) for s in series]
    total = np.sum([np.where(k, s, 0.0) for s, k in zip(series, known, strict=True)], axis=0)
    return np.asarray(np.where(n := np.sum(known, axis=0), total / np.maximum(n, 1), np.nan))


_PICK: Mapping[str, Callable[[list[Floats]], Floats]] = {
    "up": _largest,
    "down": _smallest,
    "both": _mean,
    "none": _mean,
}


def _gather_experts(
    tags: list[str], values: Mapping[str, Floats], found: dict[str, Floats]
) -> bool:
    """Put the largest load over the mean, and the number of dead experts, into `found`."""
    layers: dict[str, list[str]] = {}
    for tag in tags:
        layer = _EXPERT_NUMBER.sub(r"\1#", tag)
        layers.setdefault(layer if layer != tag else _LAST_NUMBER.sub("#", tag), []).append(tag)
    ratios: list[Floats] = []
    dead: list[Floats] = []
    for members in layers.values():
        if len(members) < _LEAST_EXPERTS:
            continue
        loads = np.array([values[t] for t in members])
        mean = np.nanmean(np.where(np.isfinite(loads).any(axis=0), loads, 0.0), axis=0)
        known = np.isfinite(loads).any(axis=0) & (mean > 0)
        ratio, count = np.full(loads.shape[1], np.nan), np.full(loads.shape[1], np.nan)
        ratio[known] = np.nanmax(loads[:, known], axis=0) / mean[known]
        count[known] = np.sum(loads[:, known] < DEAD_SHARE * mean[known], axis=0)
        ratios.append(ratio)
        dead.append(count)
    if not ratios:
        return False
    found.setdefault("expert_load_max", _largest(ratios))
    found.setdefault("dead_experts", np.asarray(np.sum(dead, axis=0)))
    return True
