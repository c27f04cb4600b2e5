"""Markdown in which text from a run is never markup."""

import re
from collections.abc import Iterable, Sequence

from trimtab.text import plain

__all__ = ["md", "md_table"]


def md(value: object) -> str:
    """Return text as one line of Markdown in which nothing is markup, HTML included."""
    line = re.sub(r"([\\`*_{}\[\]<>#|~!])", r"\\\1", plain(value))
    line = re.sub(r"^([-+=]|\d+[.)])(?=\s|$)", lambda m: m[1][:-1] + "\\" + m[1][-1], line)
    return line.replace("&", "&amp;")


def md_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a section with a table; empty where there are no rows. Cells are escaped."""
    lines = ["| " + " | ".join(md(cell) or "—" for cell in row) + " |" for row in rows]
    if not lines:
        return ""
    ruler = "| " + " | ".join("---" for _ in head) + " |"
    return f"## {title}\n\n| {' | '.join(head)} |\n{ruler}\n" + "\n".join(lines)
