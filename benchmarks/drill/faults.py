"""The faults of the drill, and the right answer to each."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["FAULTS", "PlantedFault"]


@dataclass(frozen=True, kw_only=True)
class PlantedFault:
    """One fault, planted once in the last rank at a step, unless it is one that never heals."""

    name: str
    what: str
    right: Literal["heals", "stops"]
    """heals: the run must reach its last step; stops: it must not be started again."""


FAULTS: tuple[PlantedFault, ...] = (
    PlantedFault(name="kill", what="SIGKILL to the last rank", right="heals"),
    PlantedFault(name="stop", what="SIGSTOP to the last rank", right="heals"),
    PlantedFault(name="wait", what="the last rank waits for ever", right="heals"),
    PlantedFault(name="network", what="ConnectionResetError, once", right="heals"),
    PlantedFault(name="disk", what="file size limit while saving, once", right="heals"),
    PlantedFault(name="damaged", what="newest checkpoint cut off, then SIGKILL", right="heals"),
    PlantedFault(name="nan", what="loss is NaN at the full rate", right="heals"),
    PlantedFault(name="oom", what="out of GPU memory, as PyTorch says it", right="stops"),
    PlantedFault(name="code", what="KeyError that never heals", right="stops"),
)
