"""Run a training command, watch its progress, and restart it where a restart is the answer.

`supervise` is the door; `update` decides and knows no process; `supervisor` carries out what it
decides. Nothing here needs torch, and the command is not changed but for its resume flags.
"""

from trimtab.supervise.settings import SuperviseSettings
from trimtab.supervise.supervisor import supervise

__all__ = ["SuperviseSettings", "supervise"]
