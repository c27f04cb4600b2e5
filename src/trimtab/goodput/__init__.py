"""Where the hours of a run went: effective training time, and what the rest was lost to.

`goodput(paths)` reads a log with times, a guard's run directory, a supervisor's folder, or several
of them that belong to one run. Every second between the first mark and the last belongs to exactly
one cause, so the causes sum to the wall time. No torch.
"""

from trimtab.goodput.account import CAUSES, GoodputAccount, Mark, account_for
from trimtab.goodput.sources import goodput
from trimtab.goodput.wording import goodput_text

__all__ = ["CAUSES", "GoodputAccount", "Mark", "account_for", "goodput", "goodput_text"]
