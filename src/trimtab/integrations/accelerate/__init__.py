"""Accelerate: `guard_loop`, one call after `prepare`; the loop stays as it is."""

from trimtab.integrations.accelerate.adapter import Guarded, GuardedLoader, guard_loop

__all__ = ["Guarded", "GuardedLoader", "guard_loop"]
