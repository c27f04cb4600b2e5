"""Detectors of the user's own, and settings changed by name.

A detector is given as an object, or by the name of an entry point in the group
`trimtab.detectors`, which an installed package declares:

    [project.entry-points."trimtab.detectors"]
    router-load = "my_package.detectors:RouterLoadDetector"

An entry point is loaded when its name is given, never on import. It names a detector, or a class
or function that returns one when called without arguments.
"""

import dataclasses
import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from trimtab.detectors.contract import AnyDetector, Detector, state_to_json
from trimtab.errors import ConfigError
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = ["ENTRY_POINT_GROUP", "load_detectors", "with_thresholds"]

ENTRY_POINT_GROUP = "trimtab.detectors"


def load_detectors(
    given: Iterable[AnyDetector | str] | AnyDetector, *, taken: Iterable[str] = ()
) -> tuple[AnyDetector, ...]:
    """Return detectors, those given by name loaded from their entry points.

    Args:
        given: Detectors, or names of entry points; a single one needs no list.
        taken: Names that other detectors have already.

    Raises:
        ConfigError: No entry point has that name, it cannot be loaded, or what was given is no
            detector, repeats a name, or reads a signal that does not exist.
    """
    # A lone name would be taken letter by letter; a lone detector is meant as well.
    if isinstance(given, str | type | Detector):
        given = (given,)
    listed: object = given
    if not isinstance(listed, Iterable):
        raise ConfigError(
            f"detectors={given!r:.60}: expected detectors, or names of entry points, in a list"
        )
    # A judge keeps states by detector name, so two of one name would share a checkpoint entry.
    names = set(taken)
    loaded: list[AnyDetector] = []
    for item in given:
        detector = _load(item) if isinstance(item, str) else item
        _check(detector, item)
        if detector.name in names:
            raise ConfigError(
                f"detectors: two detectors are named {detector.name!r}; rename one of them"
            )
        names.add(detector.name)
        loaded.append(detector)
    return tuple(loaded)


def _load(name: str) -> AnyDetector:
    known = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in known:
        installed = ", ".join(sorted(known)) or "none"
        raise ConfigError(
            f"detectors: no installed package declares {name!r} in the entry point group"
            f" {ENTRY_POINT_GROUP}{_nearest(name, known)}; installed: {installed}"
        )
    try:
        found: Any = known[name].load()
        made: AnyDetector = found if _is_instance(found) else found()
    except Exception as error:  # the code is another package's: it may raise anything
        raise ConfigError(
            f"detectors: entry point {name!r} ({known[name].value}) cannot be loaded:"
            f" {type(error).__name__}: {error}"
        ) from error
    return made


def _is_instance(found: object) -> bool:
    """Tell a detector from a class or function that makes one; a class has `update`, too."""
    return isinstance(found, Detector) and not isinstance(found, type)


def _check(detector: object, given: object) -> None:
    if isinstance(detector, type) and hasattr(detector, "update"):
        name = detector.__name__
        raise ConfigError(f"detectors: {name} is a class; give an instance, {name}()")
    if not isinstance(detector, Detector):
        raise ConfigError(
            f"detectors: {given!r:.80} is no detector; it needs name, signals, start() and"
            " update(state, row), as trimtab.Detector has them"
        )
    signals: object = detector.signals
    if not isinstance(signals, tuple | list) or not all(isinstance(s, str) for s in signals):
        raise ConfigError(
            f'detectors: {detector.name} has signals={signals!r:.60}; give a tuple, such as ("loss",)'
        )
    for signal in detector.signals:
        # A misspelled signal is never logged, so its detector would stay silent for ever.
        if signal not in SIGNAL_BY_NAME:
            raise ConfigError(
                f"detectors: {detector.name} reads {signal!r}, which is no signal"
                f"{_nearest(signal, SIGNAL_BY_NAME)}"
            )
    try:
        json.dumps(state_to_json(detector.start()))
    except Exception as error:  # the code is the user's: it may raise anything
        raise ConfigError(
            f"detectors: {detector.name}: start() gives no state that can be saved"
            f" ({type(error).__name__}: {error}); it holds numbers, text, arrays, tuples and"
            " dataclasses of such"
        ) from error


def with_thresholds(
    detectors: Sequence[AnyDetector], thresholds: Mapping[str, float]
) -> tuple[AnyDetector, ...]:
    """Return detectors with settings changed.

    Args:
        detectors: Frozen dataclasses.
        thresholds: `detector.setting` -> number. A setting of several numbers takes as many.

    Raises:
        ConfigError: A name is not known, or the detector refuses the value.
    """
    if not isinstance(thresholds, Mapping):
        raise ConfigError(
            f"thresholds is a {type(thresholds).__name__}; give a mapping such as"
            ' {"spike.threshold_sigma": 12}'
        )
    changes: dict[str, dict[str, object]] = {}
    settings = {f"{d.name}.{n}": v for d in detectors for n, v in _numbers_of(d).items()}
    for key, value in thresholds.items():
        if key not in settings:
            raise ConfigError(
                f"thresholds: no detector has the setting {key!r}{_nearest(str(key), settings)}"
            )
        name, _, setting = key.partition(".")
        changes.setdefault(name, {})[setting] = _fitting(key, value, settings[key])
    return tuple(_changed(d, changes.get(d.name, {})) for d in detectors)


def _numbers_of(detector: object) -> dict[str, object]:
    """Return the settings that are numbers, or several numbers."""
    if not dataclasses.is_dataclass(detector):
        return {}
    values = {f.name: getattr(detector, f.name) for f in dataclasses.fields(detector) if f.init}
    return {
        name: value
        for name, value in values.items()
        if _is_number(value) or (isinstance(value, tuple) and value and all(map(_is_number, value)))
    }


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fitting(key: str, value: object, now: object) -> object:
    """Return a value of the type of the one that it replaces."""
    if isinstance(now, tuple):
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != len(now):
            raise ConfigError(f"thresholds: {key} is {value!r}, expected {len(now)} numbers")
        return tuple(_fitting(key, v, n) for v, n in zip(value, now, strict=True))
    # NaN compares False with everything: a threshold of NaN would switch its rule off unseen.
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        raise ConfigError(f"thresholds: {key} is {value!r}, expected a number")
    # TOML and the command line give 16.0 for 16; a count of rows must stay an int to slice with.
    if isinstance(now, int):
        if not float(value).is_integer():
            raise ConfigError(f"thresholds: {key} is {value!r}, expected a whole number")
        return int(value)
    return float(value)


def _changed(detector: AnyDetector, changes: Mapping[str, object]) -> AnyDetector:
    if not changes:
        return detector
    try:
        new: AnyDetector = dataclasses.replace(detector, **changes)  # type: ignore[type-var]
    # ConfigError is a ValueError, too: `__post_init__` of a detector may raise either.
    except ValueError as error:
        raise ConfigError(f"thresholds: {error}") from error
    return new


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else ""
