"""Code blocks of README and of the documentation run, and print what the pages show."""

import ast
import re
from pathlib import Path

import pytest

import trimtab
from tools.doc_blocks import (
    ROOT,
    Block,
    Outcome,
    lay_out,
    masked,
    pages,
    read_blocks,
    run_page,
    shortened,
)

ALL = [page for page in pages() if any(not b.reason for b in read_blocks(page))]
# Pages whose Python blocks import a trainer or train, and whose sessions read what these wrote, and
# pages that run many commands.
DEAR = {
    "README.md",
    "docs/quickstart.md",
    "docs/recipes/huggingface.md",
    "docs/recipes/lineage.md",
    "docs/recipes/other-trainers.md",
    "docs/recipes/own-loop.md",
    "docs/recipes/reading-logs.md",
    "docs/recipes/rolling-back.md",
}
MOST_MARKED = 6
"""Blocks that say they are not run; raising it wants a reason as good as theirs."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def cases(*, is_dear: bool) -> list[Path]:
    return [page for page in ALL if (name_of(page) in DEAR) is is_dear]


def check(page: Path, outcomes: tuple[Outcome, ...]) -> None:
    """Compare what the commands printed with what the page shows, but for times."""
    sessions = [
        (block, session)
        for block in read_blocks(page)
        if block.language == "console" and not block.reason
        for session in block.sessions
    ]
    assert len(outcomes) == len(sessions)
    for outcome, (block, session) in zip(outcomes, sessions, strict=True):
        assert outcome.code in (0, 1), f"{block.where}: {session.command}: {outcome.printed}"
        if session.shown:
            printed = shortened(outcome.printed, session.shown)
            assert masked(printed) == masked(session.shown), f"{block.where}: make pictures"


@pytest.mark.parametrize("page", cases(is_dear=False), ids=name_of)
def test_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    lay_out(tmp_path)
    check(page, run_page(page, tmp_path))


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("page", cases(is_dear=True), ids=name_of)
def test_blocks_of_a_dear_page_run(page: Path, tmp_path: Path) -> None:
    for package in re.findall(r"^from (\w+)", "\n".join(b.body for b in read_blocks(page)), re.M):
        if package in ("transformers", "accelerate", "lightning"):
            pytest.importorskip(package)
    lay_out(tmp_path)
    check(page, run_page(page, tmp_path))


def test_blocks_that_do_not_run_say_why_and_are_few() -> None:
    marked = [block for page in pages() for block in read_blocks(page) if block.reason]
    assert all(len(block.reason) > 10 for block in marked)
    assert len(marked) <= MOST_MARKED, [block.where for block in marked]


def test_blocks_import_promised_names_only() -> None:
    promised = set(trimtab.__all__)
    for page in pages():
        for block in read_blocks(page):
            if block.language == "python":
                for name in imported(block):
                    module, _, rest = name.removeprefix("trimtab").lstrip(".").partition(".")
                    is_adapter = module == "integrations" and "." not in rest.partition(".")[2]
                    assert not module or module in promised or is_adapter, (block.where, name)


def imported(block: Block) -> list[str]:
    """Return what of trimtab a block imports, as dotted names."""
    found = []
    for node in ast.walk(ast.parse(block.body)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in found if name.split(".")[0] == "trimtab"]
