"""Fuzzing of what trimtab reads: damaged data, configs, checkpoints, journals, pages.

One harness per kind of input (`trials`), damages that know the format (`damage`), seeds made by
code (`seeds`), and one engine that runs them in limited processes and keeps the totals (`engine`).
"""

from benchmarks.fuzz.engine import FuzzTotals, fuzz
from benchmarks.fuzz.trials import TRIALS

__all__ = ["TRIALS", "FuzzTotals", "fuzz"]
