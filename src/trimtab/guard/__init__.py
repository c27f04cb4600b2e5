"""The guard: stands in a training loop, records, judges, and, when allowed, recovers.

Needs torch.
"""

from trimtab.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ImportError:
    raise MissingExtraError("The guard", "torch") from None

from trimtab.guard.guard import Guard
from trimtab.guard.probes.overflow import find_overflow
from trimtab.guard.recording.environment import seed_all

__all__ = ["Guard", "find_overflow", "seed_all"]
