"""CatBoost's `catboost_training.json`: its rows hold lists of values, whose names stand apart.

    {"meta": {"learn_sets": ["learn"], "learn_metrics": [{"best_value": "Min", "name": "Logloss"}],
              "test_sets": ["test"], "test_metrics": [...]},
     "iterations": [{"iteration": 0, "learn": [0.68], "test": [0.69, 0.71], "passed_time": 0.1}]}

A metric is a loss where its best value is the least, and a score where it is the greatest.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trimtab.said_by_words import said_by_words
from trimtab.vocabulary import normalise

__all__ = ["BoostingRows", "boosting_rows"]

_LEAST, _GREATEST = "Min", "Max"


@dataclass(frozen=True)
class BoostingRows:
    """What one document of boosting logged."""

    rows: list[dict[str, object]]
    """The values of an iteration under the names of set and metric: `learn Logloss`."""
    meanings: Mapping[str, str]
    """Canonical name -> key in the rows, of what the document says the metrics to be."""


@dataclass(frozen=True)
class _Metric:
    key: str
    set_name: str
    place: int
    """In the list of values of its set."""
    best: object
    of_training: bool


def boosting_rows(part: Mapping[str, object]) -> BoostingRows | None:
    """Return the rows of a document of CatBoost, None for another document.

    An iteration whose metrics were not computed (`metric_period`) has no value for them. Of several
    held-out sets the first is judged, as CatBoost itself does for its best iteration.
    """
    meta, iterations = part.get("meta"), part.get("iterations")
    if not isinstance(meta, dict) or not isinstance(iterations, list):
        return None
    metrics = [*_metrics(meta, "learn"), *_metrics(meta, "test")]
    if not metrics:
        return None
    rows: list[dict[str, object]] = []
    for number, logged in enumerate(iterations):
        if not isinstance(logged, dict):
            continue
        row: dict[str, object] = {"iteration": logged.get("iteration", number)}
        for metric in metrics:
            values = logged.get(metric.set_name)
            if isinstance(values, list) and metric.place < len(values):
                row[metric.key] = values[metric.place]
        rows.append(row)
    return BoostingRows(rows, _meanings(metrics)) if rows else None


def _metrics(meta: Mapping[str, object], which: str) -> Iterator[_Metric]:
    sets, metrics = meta.get(f"{which}_sets"), meta.get(f"{which}_metrics")
    if not isinstance(sets, list) or not isinstance(metrics, list):
        return
    for set_name in sets:
        for place, metric in enumerate(metrics):
            if not isinstance(set_name, str) or not isinstance(metric, dict):
                continue
            key = f"{set_name} {metric.get('name', place)}"
            yield _Metric(key, set_name, place, metric.get("best_value"), which == "learn")


def _meanings(metrics: list[_Metric]) -> dict[str, str]:
    found: dict[str, str] = {}
    for metric in metrics:
        if metric.best == _LEAST:
            found.setdefault("loss" if metric.of_training else "val_loss", metric.key)
        elif metric.best == _GREATEST and not metric.of_training:
            found.setdefault("eval_score", metric.key)
        elif metric.best == _GREATEST and _is_a_share(metric):
            found.setdefault("accuracy", metric.key)
    return found


def _is_a_share(metric: _Metric) -> bool:
    """Whether a score of training is one that is known, such as an accuracy or an area."""
    name = normalise(metric.key).removeprefix(normalise(metric.set_name))
    return said_by_words(f"val {name}") == "eval_score"
