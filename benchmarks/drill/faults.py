"""The faults of the drill, and the right answer to each."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["FAULTS", "DrillFault"]


@dataclass(frozen=True, kw_only=True)
class DrillFault:
    """One fault, planted once in the last rank at a step, unless it is one that never heals."""

    name: str
    what: str
    right: Literal["heals", "stops"]
    """heals: the run must reach its last step; stops: it must not be started again."""


FAULTS: tuple[DrillFault, ...] = (
    DrillFault(name="kill", what="SIGKILL to the last rank", right="heals"),
    DrillFault(name="stop", what="SIGSTOP to the last rank", right="heals"),
    DrillFault(name="wait", what="the last rank waits for ever", right="heals"),
    DrillFault(name="network", what="ConnectionResetError, once", right="heals"),
    DrillFault(name="disk", what="file size limit while saving, once", right="heals"),
    DrillFault(name="damaged", what="newest checkpoint cut off, then SIGKILL", right="heals"),
    DrillFault(name="nan", what="loss is NaN at the full rate", right="heals"),
    DrillFault(name="oom", what="out of GPU memory, as PyTorch says it", right="stops"),
    DrillFault(name="code", what="KeyError that never heals", right="stops"),
)
