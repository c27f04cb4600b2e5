"""The faults of the drill, and the right answer to each."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault, planted once in the last rank at a step, unless it is one that never heals."""

    name: str
    what: str
    right: Literal["heals", "stops"]
    """heals: the run must reach its last step; stops: it must not be started again."""


FAULTS: tuple[Fault, ...] = (
    Fault(name="kill", what="SIGKILL to the last rank", right="heals"),
    Fault(name="stop", what="SIGSTOP to the last rank", right="heals"),
    Fault(name="wait", what="the last rank waits for ever", right="heals"),
    Fault(name="network", what="ConnectionResetError, once", right="heals"),
    Fault(name="disk", what="file size limit while saving, once", right="heals"),
    Fault(name="damaged", what="newest checkpoint cut off, then SIGKILL", right="heals"),
    Fault(name="nan", what="loss is NaN at the full rate", right="heals"),
    Fault(name="oom", what="out of GPU memory, as PyTorch says it", right="stops"),
    Fault(name="code", what="KeyError that never heals", right="stops"),
)
