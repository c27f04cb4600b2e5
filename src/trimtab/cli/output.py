"""What commands print: one JSON document, or text for people."""

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from trimtab.errors import ConfigError, TrimtabError
from trimtab.masking import masked, masked_text
from trimtab.text import finite_json, visible

__all__ = [
    "LastingOutput",
    "SafeConsole",
    "discard_output",
    "errors_as_json",
    "print_json",
    "tell",
    "tell_error",
    "write_file",
]

_SURROGATE = re.compile("[\ud800-\udfff]")
_STEERING = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


class SafeConsole(Console):
    """A console that nothing it is given can steer.

    Control and reordering characters are written out.

    The one place for it: whatever comes from a file, a config or a model's code passes here on its
    way to the terminal. Colours and movements of trimtab's own are styles and controls, not text.
    """

    def render_str(self, text: str, *args: Any, **options: Any) -> Text:
        """Return a string as rich text, with its secrets masked."""
        return super().render_str(masked_text(text), *args, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments of anything printed, each harmless."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text, keep="\n\t"), segment.style)


class LastingOutput:
    """Stdout of a command whose exit status counts: it goes on where its reader goes away.

    So `inspect … --fail-on warning | head` gives the status of the verdict.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        """Write, or discard what nobody reads."""
        try:
            return self._out.write(text)
        except BrokenPipeError:
            discard_output()
            return len(text)

    def flush(self) -> None:
        """Flush what is still read."""
        try:
            self._out.flush()
        except BrokenPipeError:
            discard_output()

    def __getattr__(self, name: str) -> Any:
        """Return all else as the stream has it."""
        return getattr(self._out, name)


def discard_output() -> None:
    """Discard buffered output; otherwise the interpreter fails to flush it on exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def errors_as_json(arguments: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """Run a command; with `--json` an error is a document, too: `{"schema": 1, "errors".

    [{"path", "error"}]}`.

    Raises:
        TrimtabError: Without `--json`, as the command raised it.
    """
    try:
        return run(arguments)
    except TrimtabError as error:
        if not arguments.json:
            raise
        path = getattr(arguments, "config", None) or getattr(arguments, "python", None)
        path = path or getattr(arguments, "run_directory", None)
        shown = f"{path[0]}:{path[1]}" if isinstance(path, tuple) else path and str(path)
        print_json({"schema": 1, "errors": [{"path": shown, "error": str(error)}]})
        tell_error(error)
        return 2


def tell(text: object) -> None:
    """Print text on stdout; what would steer the terminal is written out, secrets are masked."""
    print(visible(text, keep="\n\t"), flush=True)


def tell_error(error: object) -> None:
    """Print an error, as one harmless line on stderr."""
    print(f"trimtab: {visible(error)}", file=sys.stderr)


def print_json(document: Mapping[str, object]) -> None:
    """Print exactly one JSON document.

    NaN and Inf become null, lone surrogates U+FFFD, what steers a terminal is escaped, secrets are
    masked.
    """
    plain = finite_json(masked(document))
    text = _SURROGATE.sub(
        "\ufffd", json.dumps(plain, ensure_ascii=False, allow_nan=False, indent=1)
    )
    text = _STEERING.sub(lambda m: f"\\u{ord(m[0]):04x}", text)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # a terminal that knows fewer characters: escape them
        text = json.dumps(json.loads(text), allow_nan=False, indent=1)
    print(text)


def write_file(path: Path, text: str) -> None:
    """Write a file that a command was asked for.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); choose another place for it"
        ) from error
