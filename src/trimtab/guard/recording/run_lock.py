"""The lock on a run directory; it stands in `trimtab.chronicle`, where commands hold it, too."""

from trimtab.chronicle.run_lock import RunLock

__all__ = ["RunLock"]
