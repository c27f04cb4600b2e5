"""Signals that follow from others: what a log did not write down but what it wrote down implies."""

from trimtab.signals.derived import derive

__all__ = ["derive"]
