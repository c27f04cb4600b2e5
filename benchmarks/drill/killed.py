"""`trimtab supervise`, killed with SIGKILL at a point of the code that starts its command.

    python -m benchmarks.drill.killed LINE ARGUMENT ...

LINE is how many lines of that code are executed first; 0: all, and their number goes to stderr.
"""

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

from trimtab.cli import main

if TYPE_CHECKING:
    from _typeshed import TraceFunction

_PARTS = ("supervisor", "running", "processes", "holder")
_PLACES = (*(f"supervise/{name}.py" for name in _PARTS), "durable.py")
_STARTING = "_begin"


class Countdown:
    """Counts the lines executed from the first start of the command to its return."""

    def __init__(self, kill_at: int) -> None:
        """Keep when to kill; 0: never."""
        self._kill_at, self.num_lines = kill_at, 0
        self._depth = 0

    def call(self, frame: FrameType, _event: str, _argument: object) -> "TraceFunction | None":
        """Follow the calls of our own files while the command is being started."""
        name = frame.f_code.co_name
        if not frame.f_code.co_filename.endswith(_PLACES) or (
            not self._depth and name != _STARTING
        ):
            return None
        if name == _STARTING:
            self._depth += 1
        return self.line

    def line(self, frame: FrameType, event: str, _argument: object) -> "TraceFunction | None":
        """Count a line, and kill the process at the one that is asked for."""
        if event == "line" and self._depth:
            self.num_lines += 1
            if self.num_lines == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        if event == "return" and frame.f_code.co_name == _STARTING:
            sys.settrace(None)
            sys.stderr.write(f"lines: {self.num_lines}\n")
            return None
        return self.line


if __name__ == "__main__":
    sys.settrace(Countdown(int(sys.argv[1])).call)
    sys.exit(main(sys.argv[2:]))
