"""Print which items of tests/checklist.md have a test that claims them, and which are open.

A test claims an item with `@pytest.mark.covers("S31")`, and only where the test does what the
item's acceptance sentence says. The claims are found by pytest's own collection, so a claim
counts only if pytest would run the test; one marked `xfail` does not count.

Exit status: 0; 1 if a marker names an id that the table does not have; 2 if the tests could not
be collected.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "checklist.md"
ROW = re.compile(r"^\| *(S\d+) *\|(.*)\|\s*$")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One row of the table."""

    id: str
    section: str
    what: str
    accepted_when: str
    source: str


@dataclass(kw_only=True)
class Claims:
    """A pytest plugin that notes who claims what, in the order of collection."""

    tests: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read the `covers` markers; the cases of a parametrized test count as one test."""
        for item in session.items:
            if item.get_closest_marker("xfail"):
                continue
            inside = item.path.is_relative_to(ROOT)
            path = item.path.relative_to(ROOT) if inside else item.path
            test = f"{path}::{item.nodeid.partition('::')[2].partition('[')[0]}"
            for mark in item.iter_markers("covers"):
                for claimed in mark.args or ("(no id)",):
                    if test not in self.tests[str(claimed)]:
                        self.tests[str(claimed)].append(test)


def read_table(path: Path = TABLE) -> list[Item]:
    """Return the rows of the requirements table in file order, each with its section's title.

    Raises:
        ValueError: A row has another number of cells than four, or an empty cell.
    """
    items, section = [], ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("## "):
            section = line[3:].strip()
        row = ROW.match(line)
        if row is None:
            continue
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row[2])]
        if len(cells) != 3 or not all(cells):
            raise ValueError(
                f"{path}:{number}: {row[1]} has {len(cells) + 1} cells of which some may be empty, "
                "expected id | what | accepted when | source; write a | inside a cell as \\|"
            )
        what, accepted_when, source = cells
        items.append(
            Item(id=row[1], section=section, what=what, accepted_when=accepted_when, source=source)
        )
    return items


def collect_claims(tests: list[str]) -> dict[str, list[str]]:
    """Return the tests that claim each id, by running pytest's collection in this process.

    Raises:
        RuntimeError: Collection failed; the message is pytest's own output.
    """
    claims, output = Claims(), io.StringIO()
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(
            [*config, "--collect-only", "-q", "-p", "no:cacheprovider", *tests], plugins=[claims]
        )
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(output.getvalue().strip())
    return dict(claims.tests)


def compact(ids: list[str]) -> str:
    """Return ids with neighbours drawn together.

    Example:
        >>> compact(["S2", "S10", "S11", "S12", "S14", "S15"])
        'S2 S10-S12 S14 S15'
    """
    runs: list[list[int]] = []
    for number in sorted(int(name[1:]) for name in ids):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = []
    for run in runs:
        words += [f"S{run[0]}-S{run[-1]}"] if len(run) > 2 else [f"S{number}" for number in run]
    return " ".join(words)


def as_text(items: list[Item], claims: dict[str, list[str]], unknown: list[str]) -> str:
    """Return the report for people: the count, the covered items, the open ids, the mistakes."""
    covered = [item for item in items if item.id in claims]
    open_ids = [item.id for item in items if item.id not in claims]
    lines = [f"covered {len(covered)} / {len(items)}", ""]
    for item in covered:
        lines.append(f"{item.id:<5} {item.what}")
        lines += [f"        {test}" for test in claims[item.id]]
    lines += ["", f"open {len(open_ids)}: {compact(open_ids) or 'none'}"]
    lines += [
        f"unknown id {name!r}, claimed by {', '.join(claims[name])}; the ids are those of"
        f" {TABLE.name}"
        for name in unknown
    ]
    return "\n".join(lines)


def as_json(items: list[Item], claims: dict[str, list[str]], unknown: list[str]) -> str:
    """Return the same as one JSON document."""
    document: dict[str, Any] = {
        "schema": 1,
        "total": len(items),
        "covered": sum(item.id in claims for item in items),
        "items": [
            {
                "id": item.id,
                "section": item.section,
                "what": item.what,
                "tests": claims.get(item.id, []),
            }
            for item in items
        ],
        "unknown": [{"id": name, "tests": claims[name]} for name in unknown],
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def main(argv: list[str] | None = None) -> int:
    """Run the command; see the top of the file for the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="*", help="files or folders to collect (default: all)")
    parser.add_argument("--table", type=Path, default=TABLE, help="the table to read")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(argv)

    items = read_table(options.table)
    try:
        claims = collect_claims(options.tests)
    except RuntimeError as failed:
        print(f"the tests could not be collected:\n{failed}", file=sys.stderr)
        return 2
    unknown = sorted(claims.keys() - {item.id for item in items})
    print((as_json if options.json else as_text)(items, claims, unknown))
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
