"""What ended a run, read from the last lines that it printed.

`classify(lines)` names the fault, the line, the rank and host where stated, whether the line is
the fault itself or the echo of one elsewhere, and who must act. The wordings are data
(`patterns.toml`); the code only decides which of several matches is the fault.
"""

from trimtab.crash.classify import CrashReport, classify, named_faults
from trimtab.crash.table import CRASH_CLASSES

__all__ = ["CRASH_CLASSES", "CrashReport", "classify", "named_faults"]
