"""The guard: stands in a training loop, records, judges, and, when allowed, recovers. Needs torch."""

from trimtab.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError("The guard", "torch") from error

from trimtab.guard.guard import Guard

__all__ = ["Guard"]
