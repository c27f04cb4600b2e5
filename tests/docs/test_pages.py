"""README and documentation are whole: links lead somewhere, generated tables miss nothing."""

import argparse
import importlib.util
import re
from collections.abc import Iterator
from types import ModuleType

import pytest
import yaml

from tools.doc_blocks import ROOT, pages, shortened
from trimtab.cli import build_parser
from trimtab.kinds import KIND_BY_NAME
from trimtab.plan.policy import Policy
from trimtab.version import __version__


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    """The module that Sphinx makes pages with."""
    path = ROOT / "docs" / "_ext" / "generated.py"
    spec = importlib.util.spec_from_file_location("generated", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_is_short_and_says_what_was_not_run_early() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 160
    (status,) = [n for n, line in enumerate(lines) if "was not run on several GPUs" in line]
    assert status < len(lines) / 3


def test_the_closed_list_of_kinds_is_whole() -> None:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    listed = re.search(r"^Kinds are a closed list[^:]*: ([^.]+)\.$", text, flags=re.M)
    assert listed is not None
    assert sorted(re.split(r",\s+", listed[1])) == sorted(KIND_BY_NAME)


def test_links_lead_somewhere() -> None:
    more = [ROOT / name for name in ("CHANGELOG.md", "SECURITY.md")]
    for page in (*pages(), *more):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_pages_hold_no_placeholder() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert "@@" not in text, page.name
        assert "TODO" not in text, page.name


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command
                yield from commands_of(command)


def test_commands_page_has_every_command_and_flag(generated: ModuleType) -> None:
    page = generated.commands()
    for command in commands_of(build_parser()):
        assert f"`{command.prog}`" in page
        section = page.split(f"`{command.prog}`\n", 1)[1].split("\n(command-", 1)[0]
        for action in command._actions:
            for option in action.option_strings:
                if option not in ("-h", "--help") and action.help != argparse.SUPPRESS:
                    assert f"`{option}" in section, (command.prog, option)


def test_settings_page_has_every_setting_with_its_meaning(generated: ModuleType) -> None:
    page = generated.settings()
    for name in Policy.__dataclass_fields__:
        (row,) = re.findall(rf"^\| `{name}` \|.*$", page, re.M)
        assert len(row.rsplit("|", 2)[1]) > 20, row


def test_sources_have_an_address_or_are_listed_without_one(generated: ModuleType) -> None:
    missing = {
        part.strip()
        for citation, _ in generated.citations()
        for part in citation.split(";")
        if generated.links_of(part.strip()) is None
    }
    assert missing <= WITHOUT_ADDRESS, "give it one in docs/_ext/sources.toml"


WITHOUT_ADDRESS = {
    "published smoke and benchmark configs",
    "the published config has 3e-4 where the report has 9e-4",
    "the published config has batch 64 for DPO",
    "no learning rate is published",
    "updates scaled to AdamW's root mean square",
}
"""Citations that name no page, such as settings of several papers at once."""


def test_decisions_are_numbered_once_and_without_a_gap() -> None:
    found = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    assert [path.name[:4] for path in found] == [f"{n:04}" for n in range(1, len(found) + 1)]
    for path in found:
        head = path.read_text(encoding="utf-8").splitlines()[0]
        assert head.startswith(f"# {path.name[:4]} "), path.name


def test_no_page_of_users_names_the_requirements() -> None:
    for page in pages():
        if page.name != "CONTRIBUTING.md":
            assert "checklist" not in page.read_text(encoding="utf-8"), page.name


def test_shortened_finds_the_segments_that_a_page_shows() -> None:
    printed = ["head", "a", "b", "because 1", "c", "d", "end"]
    assert shortened(printed, ["x", "…", "because", "y", "…"]) == (
        "head",
        "…",
        "because 1",
        "c",
        "…",
    )
    assert shortened(printed, ["x", "…", "z"]) == ("head", "…", "end")
    assert shortened(printed, ["x"]) == tuple(printed)


def test_hooks_for_others_run_a_command_that_is_there() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    commands = {command.prog for command in commands_of(build_parser())}
    assert {hook["entry"] for hook in hooks} <= commands


def test_citation_names_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
