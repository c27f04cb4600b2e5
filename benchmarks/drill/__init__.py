"""Real faults in a small running job, and what a supervisor makes of them."""

from benchmarks.drill.faults import FAULTS, DrillFault
from benchmarks.drill.measure import LAUNCHERS, Drilled, drill, drill_text

__all__ = ["FAULTS", "LAUNCHERS", "DrillFault", "Drilled", "drill", "drill_text"]
