"""What a check of a config says about the causes of an incident, as evidence."""

import numpy as np

from trimtab.config_rules.lint import lint
from trimtab.configs import Settings
from trimtab.diagnosis.config_signs import CONFIG_EVIDENCE, ConfigSign
from trimtab.record import RunRecord

__all__ = ["config_signs", "signs_of_this_run"]

_OF_RATE = ("L01", "L02", "L03", "L06", "L07", "L10", "L11", "L13", "L21", "L22")
_OTHER_RATE = 2.0
"""Times the highest logged rate, or a share of it, from which a config is not that of the run. Ours.
"""


def config_signs(settings: Settings) -> tuple[ConfigSign, ...]:
    """Return the findings of preflight that bear on a cause, the most severe first."""
    rate = settings.number("lr")
    return tuple(
        ConfigSign(
            rule=f.rule,
            severity=f.severity,
            message=f.message,
            ratio=_number(f.values.get("ratio")),
            rate=rate if f.rule in _OF_RATE else None,
        )
        for f in lint(settings)
        if f.rule in CONFIG_EVIDENCE and f.severity != "info"
    )


def signs_of_this_run(
    signs: tuple[ConfigSign, ...], record: RunRecord
) -> tuple[tuple[ConfigSign, ...], tuple[str, ...]]:
    """Return the signs without those on a rate that the log contradicts, and a note on them.

    A log that ends in a warm-up has not come to its highest rate: only one that has fallen, or
    stood, contradicts a higher one.
    """
    column = record.columns.get("lr")
    logged = np.zeros(0) if column is None else column.values[column.finite_rows(_whole(record))]
    rates = {s.rate for s in signs if s.rate is not None}
    if not len(logged) or not rates or logged.max() <= 0:
        return signs, ()
    highest, rate = float(logged.max()), max(rates)
    climbs = bool(logged[-1] >= highest and logged[0] < highest)
    if rate <= _OTHER_RATE * highest and (highest <= _OTHER_RATE * rate):
        return signs, ()
    if climbs and rate > highest:
        return signs, ()
    note = (
        f"the config states a learning rate of {rate:.4g}, the log comes to {highest:.4g}: is it the"
        " config of this run? What it says of the rate is no evidence here"
    )
    return tuple(s for s in signs if s.rate is None), (note,)


def _whole(record: RunRecord) -> slice:
    return slice(0, record.num_rows)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
