"""`trimtab.watch`: follow a log that grows."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trimtab.analysis.source import read_beside
from trimtab.detectors.contract import Detector
from trimtab.detectors.judge import make_judge
from trimtab.monitor.follow import DEFAULT_HANG_FACTOR, DEFAULT_INTERVAL_S, Watch

__all__ = ["watch"]


def watch(
    path: str | os.PathLike[str],
    *,
    interval_s: float = DEFAULT_INTERVAL_S,
    until_idle_s: float | None = None,
    hang_factor: float = DEFAULT_HANG_FACTOR,
    config: str | os.PathLike[str] | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    detectors: Iterable[Detector[Any] | str] = (),
    thresholds: Mapping[str, float] | None = None,
) -> Watch:
    """Return an iterator over what is new in a log: each incident once, and each of its changes.

        for update in trimtab.watch("runs/demo", until_idle_s=3600):
            if update.event == "found" and update.incident.is_open_alarm:
                page(str(update))

    In the end it says what `analyze` says of the finished log. What only hindsight shows comes when
    it has stood for some rows, or when no row comes any more.

    Args:
        path: A log or a run directory; it need not exist yet.
        interval_s: Seconds between looks.
        until_idle_s: Stop when nothing was new for so many seconds; None: never.
        hang_factor: A silence of so many usual rows, at least a minute, is a hang; 0: never.
        config: The run's training config, as for `analyze`.
        checkpoints: Directory of its checkpoints, as for `analyze`.
        detectors: Further detectors, as for `analyze`.
        thresholds: Settings of detectors, as for `analyze`.

    Raises:
        ReadError: The config or the checkpoints cannot be read.
        ConfigError: A time is impossible, or a detector or a threshold is not known.
    """
    return Watch(
        os.fspath(path),
        interval_s=interval_s,
        until_idle_s=until_idle_s,
        hang_factor=hang_factor,
        beside=read_beside(
            config=None if config is None else Path(config),
            checkpoints=None if checkpoints is None else Path(checkpoints),
        ),
        judge=make_judge(detectors, thresholds),
    )
