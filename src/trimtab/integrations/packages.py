"""Versions of other packages that the adapters were tested with; none of them is needed here.

Outside the tested range an adapter warns once and goes on: it uses public hooks, and says so itself
if one is missing.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

__all__ = ["PACKAGES", "Package", "State", "state_of", "warn_of_version"]


@dataclass(frozen=True, kw_only=True)
class Package:
    """One package and the part of trimtab that uses it."""

    name: str
    """As pip knows it."""
    serves: str
    """What it is needed for."""
    lowest: tuple[int, int]
    highest: tuple[int, int]
    """Oldest and newest `major.minor` that the tests were run with."""
    extra: str = ""
    """The extra of trimtab that installs it; empty: none does."""

    @property
    def tested(self) -> str:
        """The tested range in words."""
        low, high = (f"{a}.{b}" for a, b in (self.lowest, self.highest))
        return low if low == high else f"{low} to {high}"


PACKAGES = (
    Package(
        name="torch",
        serves="guard, audit, smoke, parity, lab",
        lowest=(2, 13),
        highest=(2, 13),
        extra="torch",
    ),
    Package(
        name="transformers",
        serves="HF Trainer, audit of HF configs",
        lowest=(5, 23),
        highest=(5, 23),
        extra="hf",
    ),
    Package(
        name="accelerate",
        serves="HF Trainer, Accelerate",
        lowest=(1, 15),
        highest=(1, 15),
        extra="hf",
    ),
    Package(
        name="peft", serves="adapters in HF Trainer", lowest=(0, 21), highest=(0, 21), extra="hf"
    ),
    Package(
        name="datasets", serves="data of HF Trainer", lowest=(5, 2), highest=(5, 2), extra="hf"
    ),
    Package(
        name="trl",
        serves="SFT and GRPO by GuardMixin",
        lowest=(1, 16),
        highest=(1, 16),
        extra="trl",
    ),
    Package(
        name="lightning",
        serves="Lightning Trainer and Fabric",
        lowest=(2, 4),
        highest=(2, 6),
        extra="lightning",
    ),
    Package(
        name="torchtitan",
        serves="torchtitan's Trainer",
        lowest=(0, 3),
        highest=(0, 3),
        extra="torchtitan",
    ),
    Package(
        name="megatron-core",
        serves="Megatron loops and hooks",
        lowest=(0, 16),
        highest=(0, 16),
        extra="megatron",
    ),
    Package(
        name="deepspeed",
        serves="DeepSpeed engine",
        lowest=(0, 19),
        highest=(0, 19),
        extra="deepspeed",
    ),
    Package(name="tensorboard", serves="logger", lowest=(2, 21), highest=(2, 21), extra="loggers"),
    Package(name="wandb", serves="logger", lowest=(0, 31), highest=(0, 31), extra="loggers"),
    Package(
        name="mlflow-skinny",
        serves="logger (or the whole mlflow)",
        lowest=(3, 17),
        highest=(3, 17),
        extra="loggers",
    ),
    Package(name="trackio", serves="logger", lowest=(0, 43), highest=(0, 43), extra="loggers"),
    Package(
        name="prometheus-client", serves="logger", lowest=(0, 26), highest=(0, 26), extra="loggers"
    ),
    Package(
        name="torchdata",
        serves="loaders that keep their place",
        lowest=(0, 11),
        highest=(0, 11),
        extra="streams",
    ),
    Package(
        name="webdataset",
        serves="streams of tar files",
        lowest=(1, 0),
        highest=(1, 0),
        extra="streams",
    ),
    Package(
        name="pyarrow",
        serves="Parquet and Arrow in scan",
        lowest=(26, 0),
        highest=(26, 0),
        extra="data",
    ),
)
"""What `trimtab doctor --packages` lists."""

WARNED: set[str] = set()


@dataclass(frozen=True)
class State:
    """The installed version of a package."""

    package: Package
    installed: str
    """Its version; empty if it is not installed."""

    @property
    def word(self) -> str:
        """tested, newer than tested, older than tested, unknown version, or not installed."""
        if not self.installed:
            return "not installed"
        # Versions such as 2.13.0+cu130 or 0.3.0.dev1: only major and minor are compared.
        numbers = re.match(r"(\d+)\.(\d+)", self.installed)
        if numbers is None:
            return "unknown version"
        found = (int(numbers[1]), int(numbers[2]))
        if found < self.package.lowest:
            return "older than tested"
        return "newer than tested" if found > self.package.highest else "tested"


def state_of(package: Package) -> State:
    """Return what is installed of a package; it is not imported."""
    try:
        return State(package, version(package.name))
    except PackageNotFoundError:
        return State(package, "")


def warn_of_version(name: str) -> None:
    """Warn, once a process, if the installed version is outside the tested range."""
    if name in WARNED:
        return
    WARNED.add(name)
    package = next(p for p in PACKAGES if p.name == name)
    state = state_of(package)
    if state.word not in ("tested", "not installed"):
        warnings.warn(
            f"trimtab: {name} {state.installed} is {state.word} (tested: {package.tested}); "
            "the adapter goes on, and leaves the run unguarded if a hook is missing",
            stacklevel=3,
        )
