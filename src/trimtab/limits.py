"""What is read of a file from outside, at most: one table, printed in the documentation.

A parser takes its bound from here, so that the table says what is so. Past a bound a file is
refused or cut with a sentence that names the bound; none of them is met by a log that people keep.
"""

from dataclasses import dataclass

__all__ = ["LIMITS", "Limit", "limits_table", "size_text"]

MAX_WHOLE_BYTES = 1 << 33
MAX_UNPACKED_RATIO = 100
MAX_UNPACKED_SMALL_BYTES = 1 << 26
MAX_MEMBERS = 1_000
MAX_MEMBER_BYTES = 1 << 28
MAX_MEMBERS_BYTES = 1 << 29
MAX_PAGE_BYTES = 1 << 26
MAX_LINE_CHARS = 1 << 22
MAX_SOUGHT_BYTES = 1 << 28
MAX_SOUGHT_S = 20
MAX_CELL_CHARS = 1_000
MAX_COLUMNS = 20_000
MAX_CELLS = 200_000_000
MAX_JSON_DEPTH = 16
MAX_FOLDERS = 100
MAX_TOML_BYTES = 1 << 20
MAX_TOML_PARTS = 32
MAX_TOML_DOTS = 100_000
MAX_WEBHOOK_QUEUE = 64
WEBHOOK_DEADLINE_S = 10
WEBHOOK_WAITS_S = (1, 5, 25)
WEBHOOK_CLOSE_S = 15


@dataclass(frozen=True)
class Limit:
    """One bound."""

    of: str
    """What is bounded."""
    most: str
    """The most that is read, with its unit."""
    beyond: str
    """What happens to more."""


def size_text(size_bytes: int) -> str:
    """Return a size in words.

    Example:
        >>> size_text(1 << 33), size_text(1 << 16)
        ('8 GiB', '64 KiB')
    """
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift:
            return f"{size_bytes / (1 << shift):g} {unit}"
    return f"{size_bytes} bytes"


LIMITS: tuple[Limit, ...] = (
    Limit("a log read as one document", size_text(MAX_WHOLE_BYTES), "refused"),
    Limit(
        "what a compressed log unpacks to",
        f"{MAX_UNPACKED_RATIO} times its size, or {size_text(MAX_UNPACKED_SMALL_BYTES)}",
        "refused",
    ),
    Limit("files in an archive", f"{MAX_MEMBERS:,}", "the rest is left out"),
    Limit("one file of an archive, unpacked", size_text(MAX_MEMBER_BYTES), "left out"),
    Limit("all files of an archive, unpacked", size_text(MAX_MEMBERS_BYTES), "left out"),
    Limit("a notebook or a web page", size_text(MAX_PAGE_BYTES), "the rest is left out"),
    Limit(
        "search for the first record of a format, behind other output",
        f"{size_text(MAX_SOUGHT_BYTES)}, {MAX_SOUGHT_S} s",
        "the format is taken as absent",
    ),
    Limit("one line of a log", f"{MAX_LINE_CHARS:,} characters", "the line is left out, and noted"),
    Limit(
        "one number in a log", f"{MAX_CELL_CHARS:,} characters", "a bad value, as any non-number"
    ),
    Limit(
        "names in a table or in JSON lines", f"{MAX_COLUMNS:,}", "the rest is left out, and noted"
    ),
    Limit("values of a table", f"{MAX_CELLS:,}", "refused"),
    Limit("objects nested in a JSON record", f"{MAX_JSON_DEPTH} levels", "left out"),
    Limit("folders within folders, looked into for logs", f"{MAX_FOLDERS}", "told as an error"),
    Limit("a TOML file", size_text(MAX_TOML_BYTES), "refused"),
    Limit("parts of a dotted TOML key", f"{MAX_TOML_PARTS}", "refused"),
    Limit("dots outside of the texts of a TOML file", f"{MAX_TOML_DOTS:,}", "refused"),
    Limit(
        "one try to post to a webhook, name lookup and TLS included",
        f"{WEBHOOK_DEADLINE_S} s; of the reply, only its head is read",
        "given up, tried again after "
        f"{', '.join(str(s) for s in WEBHOOK_WAITS_S)} s, then told on stderr",
    ),
    Limit("the end of a watch, for messages that wait", f"{WEBHOOK_CLOSE_S} s", "told on stderr"),
    Limit(
        "messages to a webhook or a person that wait",
        f"{MAX_WEBHOOK_QUEUE}",
        "the oldest is dropped, and told",
    ),
)


def limits_table() -> str:
    """Return the table as Markdown."""
    lines = ["| of | most | more than that |", "| --- | --- | --- |"]
    lines += [f"| {x.of} | {x.most} | {x.beyond} |" for x in LIMITS]
    return "\n".join(lines) + "\n"
