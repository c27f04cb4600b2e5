"""Which versions of other packages the adapters were tested with; outside them, one warning."""

from __future__ import annotations

import re
import warnings
from importlib import metadata

__all__ = ["TESTED", "UntestedVersionWarning", "check_versions"]

TESTED: dict[str, tuple[str, str]] = {
    "accelerate": ("1.15", "2"),
    "transformers": ("5.23", "6"),
}
"""Package: first version, and the first that is no longer in the range."""

_told: set[str] = set()


class UntestedVersionWarning(UserWarning):
    """A package is outside the range that its adapter was tested with."""


def check_versions(*packages: str) -> None:
    """Warn, once in a process, of each package that is outside its range; nothing is refused."""
    for package in packages:
        if package in _told:
            continue
        first, end = TESTED[package]
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        if not _numbers(first) <= _numbers(found) < _numbers(end):
            _told.add(package)
            warnings.warn(
                f"{package} {found}: trimtab's adapter was tested with {first} to before {end}; "
                "it may still work: compare a short run in observe mode with one without trimtab",
                UntestedVersionWarning,
                stacklevel=3,
            )


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(n) for n in found[0].split(".")) if found else ()
