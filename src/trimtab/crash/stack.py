"""Where a line of a log says that an exception was raised: the innermost frames of a traceback."""

import re
from collections.abc import Sequence
from typing import Final

from trimtab.crash.lines import is_frame, is_traceback_start, unlabelled

__all__ = ["names_a_frame", "raised_name", "raised_where"]

_MAX_FRAMES: Final = 2
_MAX_LINES: Final = 40
"""Lines before the exception in which its innermost frames are looked for: with several ranks in
one log, lines of others stand between."""

_FILE = re.compile(r'\s*File "([^"]{1,300})", line \d+, in (\S{1,120})')
_NAME = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w{2,80})(?::(?:\s|$)|\s*$)")


def names_a_frame(text: str) -> bool:
    """Tell whether a line names file and function of a frame; its line of code comes next."""
    return _FILE.match(unlabelled(text)) is not None


def raised_where(texts: Sequence[str], index: int) -> str:
    """Return where the exception of a line was raised; empty where no frame stands before it.

    One line per frame, `path|function|line of code`, the innermost first, two at most.

    Args:
        texts: Lines of a log, cleaned.
        index: The line that names the exception.
    """
    frames: list[str] = []
    code = ""
    for text in reversed(texts[max(index - _MAX_LINES, 0) : index]):
        if is_traceback_start(text):
            break
        found = _FILE.match(body := unlabelled(text))
        if found:
            frames.append(f"{found[1]}|{found[2]}|{code}")
            code = ""
            if len(frames) == _MAX_FRAMES:
                break
        elif body.strip(" ^~"):
            code = body.strip()
    return "\n".join(frames)


def raised_name(texts: Sequence[str], start: int) -> tuple[int, str] | None:
    """Return (line, name) of what a traceback raised, by its place behind the frames.

    A class need not end in `Error`: the first line behind the frames that has the form of a name,
    with or without a message, is what was raised. None: the traceback is cut, or no frame is there.

    Args:
        texts: Lines of a log, cleaned.
        start: The line with which the traceback begins.
    """
    framed = False
    for index in range(start + 1, min(start + 1 + 4 * _MAX_LINES, len(texts))):
        body = unlabelled(texts[index])
        if is_traceback_start(body):
            return None
        if _FILE.match(body):
            framed = True
        elif framed and not is_frame(texts[index]):
            found = _NAME.match(body)
            return (index, found[1]) if found else None
    return None
