"""Pages of the documentation that are made from the program itself at build time.

Each function returns Markdown. `write_all` puts them into `docs/_generated`, from where the pages
include them, so that a new flag, setting, rule or remedy is documented by being there.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import trimtab
from trimtab.cli import build_parser
from trimtab.config_rules.presets import presets
from trimtab.config_rules.references import TABLES
from trimtab.config_rules.rules import rule_table
from trimtab.detectors.judge import DETECTORS
from trimtab.diagnosis.causes import CAUSES
from trimtab.diagnosis.kind_notes import KIND_NOTE_BY_NAME
from trimtab.diagnosis.look_alikes import LOOK_ALIKES
from trimtab.plan.conflicts import CONFLICTS
from trimtab.plan.policy import Policy
from trimtab.plan.remedy_table import REMEDIES
from trimtab.plan.trials import ARMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["PAGES", "citations", "links_of", "write_all"]

_HERE = Path(__file__).resolve().parent
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|$])")
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def write_all(folder: Path) -> None:
    """Write every generated page whose text changed."""
    folder.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        path = folder / f"{name}.md"
        text = page()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def escaped(text: str) -> str:
    """Return text in one line; its code spans stay, other signs of Markdown are escaped."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    made = (
        part.replace("|", r"\|") if k % 2 else _MARKDOWN.sub(r"\\\1", part)
        for k, part in enumerate(parts)
    )
    return "".join(made)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the cells are Markdown already."""
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    lines += [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join(lines) + "\n"


# -- commands -----------------------------------------------------------------------------------


def commands() -> str:
    """Return every command with every flag, from the parsers."""
    parser = build_parser()
    return "\n".join(_commands_of(parser, level=2))


def _commands_of(parser: argparse.ArgumentParser, *, level: int) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            yield from _command(command, helps.get(name, ""), level=level)
            yield from _commands_of(command, level=level + 1)


def _command(parser: argparse.ArgumentParser, summary: str, *, level: int) -> Iterator[str]:
    name = parser.prog.removeprefix("trimtab ")
    yield f"(command-{name.replace(' ', '-')})="
    yield f"{'#' * level} `trimtab {name}`\n"
    words = parser.description or summary
    if words:
        yield f"{_sentence(words)}\n"
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    usage = textwrap.fill(usage, 80, subsequent_indent="    ", break_on_hyphens=False)
    yield f"```text\n{usage}\n```\n"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        if action.help == argparse.SUPPRESS:
            continue
        yield f"{_names(parser, action)}\n: {_help(parser, action)}\n"
    if parser.epilog:
        yield f"```text\n{parser.epilog.strip()}\n```\n"


def _sentence(text: str) -> str:
    text = escaped(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _names(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    value = parser._get_formatter()._format_args(action, _metavar(action))
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(f"`{option} {value}`".replace(" `", "`") for option in action.option_strings)


def _metavar(action: argparse.Action) -> str:
    return action.dest if not action.option_strings else action.dest.upper()


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    words = escaped(formatter._expand_help(action)) if action.help else "See the usage above."
    return words.replace("docs/formats.md", "[JSON formats](formats.md)")


# -- Python API ---------------------------------------------------------------------------------


def api() -> str:
    """Return a directive of autodoc for each promised name, in the order of `trimtab.__all__`."""
    lines = ["```{eval-rst}"]
    for name in trimtab.__all__:
        thing = getattr(trimtab, name)
        if name.startswith("__") or inspect.ismodule(thing):
            continue
        if not inspect.isclass(thing):
            lines += [f".. autofunction:: trimtab.{name}", ""]
            continue
        lines.append(f".. autoclass:: trimtab.{name}")
        if name != "Policy":  # its settings have a page of their own
            lines += [
                "   :members:",
                "   :inherited-members: Protocol",
                "   :special-members: __iter__",
            ]
        lines.append("")
    return "\n".join([*lines, "```", ""])


# -- settings -----------------------------------------------------------------------------------


def settings() -> str:
    """Return the settings of the guard with their defaults, from `Policy`."""
    texts = _field_texts(Policy)
    rows = []
    for field in dataclasses.fields(Policy):
        default = field.default
        if isinstance(default, tuple):
            shown = ", ".join(f"{x:.3g}" if isinstance(x, float) else str(x) for x in default)
        else:
            shown = str(default)
        rows.append((f"`{field.name}`", f"`{shown}`" if shown else "", escaped(texts[field.name])))
    return table(("setting", "default", "meaning, unit, and where the default comes from"), rows)


def _field_texts(cls: type) -> Mapping[str, str]:
    """Return the text below each field of a dataclass."""
    (node,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    texts = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            texts[field.target.id] = str(text.value.value)
    return texts


def arms() -> str:
    """Return the branches that a recovery may try."""
    rows = [
        (
            f"`{arm.id}`",
            escaped(arm.title),
            escaped(arm.question),
            "yes" if arm.keepable else "no",
            escaped(arm.evidence),
        )
        for arm in ARMS
    ]
    return table(("branch", "changes", "question", "can be kept", "evidence"), rows)


# -- what judges and what is known --------------------------------------------------------------


def detectors() -> str:
    """Return the built-in detectors with the signals they read and the first line of their text."""
    rows = []
    for detector in DETECTORS:
        module = importlib.import_module(type(detector).__module__)
        first = (inspect.getdoc(module) or "").partition("\n\n")[0]
        signals = ", ".join(f"`{name}`" for name in detector.signals)
        if len(detector.signals) > 6:
            signals = f"{len(detector.signals)} signals"
        rows.append((f"`{detector.name}`", signals, escaped(first)))
    return table(("detector", "reads", "finds"), rows)


def causes() -> str:
    """Return the table of causes."""
    rows = [
        (
            f"`{cause.id}`",
            escaped(cause.title),
            escaped(cause.test) or "none",
            ", ".join(f"`{name}`" for name in cause.remedies) or "none",
        )
        for cause in CAUSES
    ]
    return table(("cause", "meaning", "cheapest test", "remedies, in this order"), rows)


def remedies() -> str:
    """Return the table of remedies."""
    rows = [
        (
            f"`{remedy.id}`",
            escaped(remedy.title),
            remedy.when,
            escaped(remedy.cost),
            "; ".join(escaped(e.run) for e in remedy.worked) or "none known",
            "; ".join(escaped(e.run) for e in remedy.failed) or "none known",
        )
        for remedy in REMEDIES
    ]
    return table(("remedy", "what it does", "when", "cost", "worked in", "did not help in"), rows)


def rules() -> str:
    """Return the rules of `trimtab preflight` with their sources."""
    rows = [
        (f"`{rule.id}`", escaped(rule.title), _cited(rule.source)) for rule in rule_table().values()
    ]
    return table(("rule", "checks", "source"), rows)


# -- sources ------------------------------------------------------------------------------------


def sources() -> str:
    """Return every source that a table cites, with its address and what rests on it."""
    used: dict[str, set[str]] = {}
    for citation, what in citations():
        for part in citation.split(";"):
            used.setdefault(_name_of(part.strip()), set()).add(what)
    rows = [
        (_cited(name), ", ".join(sorted(whats)))
        for name, whats in sorted(used.items(), key=lambda item: item[0].lower())
    ]
    return table(("source", "what cites it"), rows)


def citations() -> Iterator[tuple[str, str]]:
    """Yield each citation of the tables with what cites it."""
    for remedy in REMEDIES:
        for evidence in (*remedy.worked, *remedy.failed):
            yield evidence.source, f"remedy `{remedy.id}`"
    for note in KIND_NOTE_BY_NAME.values():
        for seen in note.seen:
            yield seen.source, f"kind `{note.kind}`"
    for pair in LOOK_ALIKES:
        if pair.source:
            yield pair.source, f"look-alikes `{pair.one}`, `{pair.other}`"
    for conflict in CONFLICTS:
        for position in conflict.positions:
            yield position.source, f"disagreement `{conflict.id}`"
    for rule in rule_table().values():
        yield rule.source, f"rule `{rule.id}`"
    for reference in TABLES:
        yield reference.source, f"published {reference.name}"
    for preset in presets():
        yield preset.source, f"preset `{preset.name}`"


def links_of(citation: str) -> tuple[str, ...] | None:
    """Return the addresses for a citation; None: it is in no table of addresses."""
    if citation in _addresses():
        return tuple(filter(None, (_addresses()[citation],)))
    found = [f"https://arxiv.org/abs/{number}" for number in _ARXIV.findall(citation)]
    known = False
    left = citation
    for name, address in _addresses().items():
        if name in left:
            known = True
            left = left.replace(name, "")  # a shorter name inside it is not meant
            if address:
                found.append(address)
    return tuple(dict.fromkeys(found)) if found or known else None


def _addresses() -> Mapping[str, str]:
    addresses = tomllib.loads((_HERE / "sources.toml").read_text(encoding="utf-8"))
    # A longer name first: "OPT-175B logbook" must not be taken for what a shorter name links to.
    return dict(sorted(addresses.items(), key=lambda item: -len(item[0])))


def _cited(citation: str) -> str:
    """Return a citation as Markdown with links; a part without an address stays text."""
    made = []
    for part in (p.strip() for p in citation.split(";")):
        links = links_of(part) or ()
        text = escaped(part)
        made.append(f"[{text}]({links[0]})" if links else text)
        made += [f"[(also)]({link})" for link in links[1:]]
    return "; ".join(made).replace("; [(also)]", " [(also)]")


def _name_of(part: str) -> str:
    """Return a citation without the place in the source, so that its uses gather in one row."""
    bare = re.sub(r", (section|table|loss patterns|coefficient|log lines|text|counts).*$", "", part)
    return bare.removesuffix(" (Meta AI, 2022)").strip()


PAGES = {
    "api": api,
    "arms": arms,
    "causes": causes,
    "commands": commands,
    "detectors": detectors,
    "remedies": remedies,
    "rules": rules,
    "settings": settings,
    "sources": sources,
}
"""Generated pages by file name."""
