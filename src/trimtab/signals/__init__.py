"""Signals derived from others, and the statistics that judge them; `robust` has the spreads."""

from trimtab.signals.derived import derive

__all__ = ["derive"]
