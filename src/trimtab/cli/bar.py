"""A progress bar on stderr, for people at a terminal and work of more than a second."""

import contextlib
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from trimtab.cli.output import SafeConsole
from trimtab.readers import watching

__all__ = ["Bar"]

_LEAST_BYTES = 1 << 18
"""Read between two drawings of the bar."""


class Bar:
    """Shows how far a file is read, or what else is done; nothing where nobody looks.

    with Bar() as bar:
        record = read_run(path)  # told by the reader itself
        bar.say("judging")
    """

    def __init__(self, console: Console | None = None, *, delay_s: float = 1.0) -> None:
        """Prepare; nothing is shown before `delay_s` seconds of one piece of work have passed."""
        console = console or SafeConsole(stderr=True)
        self._delay_s = delay_s if console.is_terminal else None
        text = TextColumn("{task.description}")
        self._progress = Progress(
            text, BarColumn(bar_width=24), TaskProgressColumn(), console=console, transient=True
        )
        self._task = self._progress.add_task("", total=None)
        self._timer: threading.Timer | None = None
        self._watch = contextlib.ExitStack()
        self._seen = ("", 0)

    def __enter__(self) -> Self:
        """Begin to watch what is read."""
        if self._delay_s is not None:
            self._watch.enter_context(watching(self._see))
            self._wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        self._watch.close()
        self.stop()

    def say(self, what: str) -> None:
        """Name what is done now, of which nobody knows how far it is."""
        self._progress.update(self._task, description=_shortened(what), total=None, completed=0)
        self._wait()

    def stop(self) -> None:
        """Take the bar away, before something is printed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None
        if self._progress.live.is_started:
            self._progress.stop()

    def _wait(self) -> None:
        if self._delay_s is not None and self._timer is None:
            self._timer = threading.Timer(self._delay_s, self._progress.start)
            self._timer.daemon = True
            self._timer.start()

    def _see(self, path: str, position_bytes: int) -> None:
        if self._seen[0] == path and 0 <= position_bytes - self._seen[1] < _LEAST_BYTES:
            return
        self._seen = path, position_bytes
        with contextlib.suppress(OSError):
            total, what = Path(path).stat().st_size, _shortened(f"reading {Path(path).name}")
            self._progress.update(
                self._task, description=what, total=total, completed=position_bytes
            )


def _shortened(text: str) -> str:
    """Return a text with no markup in it, of 60 characters at most."""
    text = text if len(text) <= 60 else f"{text[:20]}…{text[-39:]}"
    return text.replace("[", r"\[")
