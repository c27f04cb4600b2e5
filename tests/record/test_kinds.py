"""The closed list of kinds, and that nothing in the package says another."""

import ast
from pathlib import Path

import trimtab
from trimtab.kinds import KIND_BY_NAME, KINDS

PACKAGE = Path(trimtab.__file__).parent
SPEAKERS = sorted((PACKAGE / "detectors").glob("*.py"))


def said_in(path: Path) -> set[str]:
    """Return every string that a file gives, or may give, as the kind of a finding."""
    said: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "kind":
            said |= strings(node.value)
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "kind" for t in node.targets
        ):
            said |= strings(node.value)
    return said


def strings(node: ast.expr) -> set[str]:
    """Return the strings that an expression may evaluate to; keys and tests count for nothing."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return strings(node.body) | strings(node.orelse)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        table = node.func.value
        values = table.values if isinstance(table, ast.Dict) else []
        return set().union(*(strings(v) for v in [*values, *node.args[1:]]))
    return set()


def test_every_kind_is_there_once_and_says_what_it_means() -> None:
    assert len(KIND_BY_NAME) == len(KINDS) == 35
    assert len({k.title for k in KINDS}) == len({k.meaning for k in KINDS}) == len(KINDS)
    assert [k.rank for k in KINDS] == sorted(k.rank for k in KINDS)


def test_the_page_of_kinds_is_the_table() -> None:
    page = (PACKAGE.parent.parent / "docs" / "kinds.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{k.name}` | {k.title} | {k.meaning} | {k.severity} |" for k in KINDS]


def test_detectors_say_only_kinds_of_the_list() -> None:
    said = set().union(*(said_in(p) for p in SPEAKERS))
    assert {"spike", "scale-collapse", "batch-outlier", "too-good"} <= said, "the scan sees nothing"
    assert said <= set(KIND_BY_NAME)
