"""What `trimtab doctor` looks for in the environment of a long run: four chapters of one book.

Stas Bekman's Machine Learning Engineering has chapters on fault tolerance, on debugging NCCL, on
hangs and deadlocks, and on under- and overflow. Each is one row here: what is set, and what to do.
"""

import importlib.util
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Ready", "readiness"]

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Ready:
    """One chapter."""

    topic: str
    found: str
    """What is set up; empty: nothing is."""
    do: str


def readiness(environment: Environment) -> tuple[Ready, ...]:
    """Return what this environment has for a run that fails, hangs or overflows."""
    return tuple(
        Ready(topic, ", ".join(name for name, there in looks if there(environment)), do)
        for topic, looks, do in _ROWS
    )


def _set(name: str, *off: str) -> tuple[str, Callable[[Environment], bool]]:
    """Return a look for a variable that is set, and not to one of these values."""
    return name, lambda environment: environment.get(name, "") not in ("", *off)


def _program(name: str) -> tuple[str, Callable[[Environment], bool]]:
    return name, lambda environment: shutil.which(name, path=environment.get("PATH")) is not None


_ROWS = (
    (
        "fault tolerance",
        (_set("TRIMTAB_SUPERVISE_DIR"), _set("TORCHELASTIC_RUN_ID"), _set("SLURM_RESTART_COUNT")),
        "start it by `trimtab supervise -- COMMAND`: it goes on from the newest whole checkpoint",
    ),
    (
        "NCCL debugging",
        (_set("NCCL_DEBUG", "VERSION"), _set("TORCH_DISTRIBUTED_DEBUG", "OFF")),
        "export NCCL_DEBUG=WARN: its errors name the link or the host",
    ),
    (
        "hangs and deadlocks",
        (
            _set("TORCH_FR_BUFFER_SIZE", "0"),
            _set("TORCH_NCCL_TRACE_BUFFER_SIZE", "0"),
            _set("PYTHONFAULTHANDLER"),
            _program("py-spy"),
        ),
        "export TORCH_FR_BUFFER_SIZE=2000, and pip install py-spy: the rank that stands elsewhere"
        " is named",
    ),
    (
        "under- and overflow",
        (("the guard", lambda _: importlib.util.find_spec("torch") is not None),),
        "install torch for the guard, which follows the loss scale and what is not finite;"
        " `trimtab watch LOG` reads both from a log",
    ),
)
"""Topic, what may be there, what to do where nothing is."""
