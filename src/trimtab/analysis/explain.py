"""The knowledge base: what is known of a kind, a cause, a remedy or a test.

Each entry is assembled from the tables `kinds`, `kind_notes`, `causes`,
`look_alikes`, `experiments`, `remedy_table`, `flag_table` and `conflicts`.
"""

import difflib
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from trimtab.detectors.domain_signs import SIGN_BY_ID
from trimtab.diagnosis.causes import CAUSE_BY_ID, UNKNOWN, CauseEntry
from trimtab.diagnosis.diagnose import rank_causes
from trimtab.diagnosis.evidence import STATE_KINDS, EvidenceRule
from trimtab.diagnosis.experiments import EXPERIMENT_BY_ID, EXPERIMENTS
from trimtab.diagnosis.features import Features
from trimtab.diagnosis.kind_notes import KIND_NOTE_BY_NAME
from trimtab.diagnosis.look_alikes import look_alikes_of
from trimtab.errors import ConfigError
from trimtab.kinds import KIND_BY_NAME
from trimtab.plan.conflicts import CONFLICTS, Conflict
from trimtab.plan.flag_table import REMEDY_FLAGS, TEST_FLAGS, TRAPS
from trimtab.plan.remedies import only_failed
from trimtab.plan.remedy_table import REMEDY_BY_ID

__all__ = ["Entry", "conflict_entry", "conflicts", "explain", "explain_all", "known_entries"]

Said = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of the knowledge base."""

    type: str
    """kind, cause, remedy, test or conflict."""
    id: str
    title: str
    said: Said
    """(label, statements), in the order to read them; labels without statements are left out."""


@cache
def known_entries() -> tuple[Entry, ...]:
    """Return every entry with its title alone, in the order of the tables."""
    return tuple(
        Entry(type=kind, id=name, title=_titles(kind)[name], said=())
        for kind in _BUILD
        for name in _titles(kind)
    )


def explain(name: str) -> tuple[Entry, ...]:
    """Return the entries of that id; else those whose ids hold it as a word or a part.

    A title, or words of one in their order, is as good as an id: reports print titles.

    Raises:
        ConfigError: Nothing is called that; the message offers the nearest ids.
    """
    found = _find(name)
    if not found:
        wanted = re.sub(r"[\s_]+", "-", name.strip().lower())
        near = difflib.get_close_matches(wanted, [e.id for e in known_entries()], n=3, cutoff=0.4)
        offer = f"perhaps {', '.join(dict.fromkeys(near))}; " if near else ""
        raise ConfigError(
            f"{name[:60]!r}: no kind, cause, remedy or test of that name; "
            f"{offer}`trimtab explain --list` prints all"
        )
    return tuple(_BUILD[kind](i) for kind, i in found)


def explain_all(names: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries of every name; words that make a title together are one name.

    Raises:
        ConfigError: One of them is not known.
    """
    ids = {e.id for e in known_entries()}
    title = len(names) > 1 and not ids.issuperset(names)
    together = _find(" ".join(names)) if title else []
    if together:
        return tuple(_BUILD[kind](i) for kind, i in together)
    return tuple(entry for name in names for entry in explain(name))


def _find(name: str) -> list[tuple[str, str]]:
    """Return (type, id) of what goes by that name: by id, by a part of an id, by title."""
    wanted = re.sub(r"[\s_]+", "-", name.strip().lower())
    ids = [(e.type, e.id) for e in known_entries()]
    found = [pair for pair in ids if pair[1] == wanted]
    found = found or [("kind", _TOLD_AS[n]) for n in [wanted] if n in _TOLD_AS]
    found = found or [pair for pair in ids if wanted in pair[1].split("-")]
    found = found or [pair for pair in ids if wanted and wanted in pair[1]]
    return found or _by_title(wanted)


_TOLD_AS = {"saturation": "shift", "attention-entropy": "shift", "slow-step": "stall"}
"""Words that findings use, and the kind that reports use for them."""


def _by_title(wanted: str) -> list[tuple[str, str]]:
    """Return the entries with that title; else those whose titles hold its words in their order."""
    titles = [((x.type, x.id), re.findall(r"[a-z0-9]+", x.title.lower())) for x in known_entries()]
    words = re.findall(r"[a-z0-9]+", wanted)
    exact = [pair for pair, title in titles if title == words]
    return exact or [pair for pair, title in titles if words and _in_order(words, title)]


def _in_order(words: Sequence[str], title: Sequence[str]) -> bool:
    rest = iter(title)
    return all(word in rest for word in words)


def conflicts() -> tuple[Entry, ...]:
    """Return all that the sources disagree on."""
    return tuple(conflict_entry(c) for c in CONFLICTS)


def conflict_entry(c: Conflict) -> Entry:
    """Return one disagreement."""
    return Entry(
        type="conflict",
        id=c.id,
        title=c.subject,
        said=_said(
            ("says", [f"{p.source}: {p.says}" for p in c.positions]),
            ("read as", [c.reading]),
            ("bears on", [", ".join(c.about)]),
        ),
    )


def _said(*pairs: tuple[str, Sequence[str]]) -> Said:
    kept = ((label, tuple(t for t in texts if t)) for label, texts in pairs)
    return tuple((label, texts) for label, texts in kept if texts)


@cache
def _titles(kind: str) -> Mapping[str, str]:
    return {
        "kind": {k.name: k.title for k in KIND_BY_NAME.values()},
        "cause": {c.id: c.title for c in CAUSE_BY_ID.values() if c.id != UNKNOWN},
        "remedy": {r.id: r.title for r in REMEDY_BY_ID.values()},
        "test": {x.id: x.text.format(before="the first sign") for x in EXPERIMENTS},
    }[kind]


def _kind(name: str) -> Entry:
    kind, note = KIND_BY_NAME[name], KIND_NOTE_BY_NAME[name]
    causes = [c for c in causes_of_kind(name) if c != UNKNOWN]
    due = [f"{c}: {CAUSE_BY_ID[c].title}" for c in causes] or [_NOTHING_SPEAKS]
    causes = causes or [UNKNOWN]
    remedies = dict.fromkeys(r for c in causes for r in CAUSE_BY_ID[c].remedies)
    return Entry(
        type="kind",
        id=name,
        title=kind.title,
        said=_said(
            ("means", [f"{kind.meaning}; {kind.severity} unless the numbers say otherwise"]),
            ("looks", [note.looks]),
            ("first", [note.first]),
            ("seen in", [str(s) for s in note.seen]),
            ("not to be mistaken for", _look_alikes(name)),
            ("may be due to", due),
            ("what may help", _histories(remedies)),
            ("sources disagree", _disagreements(name)),
        ),
    )


_NOTHING_SPEAKS = f"{UNKNOWN}: the kind by itself speaks for none of the causes"


def causes_of_kind(kind: str, *, most: int = 5) -> tuple[str, ...]:
    """Return the causes of an incident of which nothing but its kind is known, likeliest first.

    A kind that is said on a sign alone has the causes that its signs speak for, each sign being as
    likely as the others. Of one that is no matter of the loss's course a cause counts only with
    evidence: what is left by default for a spike is none of it.
    """
    of_domain = frozenset(sign.id for sign in SIGN_BY_ID.values() if sign.kind == kind)
    ways = [frozenset({sign}) for sign in KIND_NOTE_BY_NAME[kind].signs]
    ways += [of_domain] if of_domain or not ways else []
    shares: dict[str, float] = {}
    for signs in ways:
        bare = Features(
            kinds=frozenset({kind}), severity="warning", axis="step", onset=0.0, signs=signs
        )
        for cause in rank_causes(bare, before=0.0).causes:
            if cause.evidence or (kind in STATE_KINDS and not signs):
                share = shares.get(cause.cause, 0.0) + cause.confidence / len(ways)
                shares[cause.cause] = share
    ranked = sorted(shares, key=lambda name: -shares[name])
    return tuple(name for name in ranked if shares[name] >= _LEAST_SHARE)[:most]


_LEAST_SHARE = 0.02
"""Share from which a cause of a kind is worth a line. Ours."""


def _cause(name: str) -> Entry:
    cause = CAUSE_BY_ID[name]
    return Entry(
        type="cause",
        id=name,
        title=cause.title,
        said=_said(
            ("speaks for it", _rules(cause, for_it=True)),
            ("against it", _rules(cause, for_it=False)),
            ("not to be mistaken for", _look_alikes(name)),
            ("cheapest test", [cause.test]),
            ("what may help", _histories(cause.remedies)),
            ("sources disagree", _disagreements(name)),
            ("covers", [", ".join(cause.modes)]),
        ),
    )


def _rules(cause: CauseEntry, *, for_it: bool) -> list[str]:
    """Return the rules of a cause as statements, the weightiest first."""
    rules = sorted(
        (r for r in cause.rules if (r.weight > 0) == for_it), key=lambda r: -abs(r.weight)
    )
    return list(dict.fromkeys(f"{_statement(r)}  ({r.weight:+.1f})" for r in rules))


def _statement(rule: EvidenceRule) -> str:
    """Return what a rule looks for: its own words, with the numbers of a run left open."""
    if rule.text.count("{") > 1 or rule.text.startswith("{"):
        doc = (rule.strength.__doc__ or "").partition("\n")[0].rstrip(".")
        if doc:
            return re.sub(
                r"^(?:return|yield)s? 1(?:\.0)? (?:where|when) ", "", doc[:1].lower() + doc[1:]
            )
    return re.sub(r"\{[^{}]*\}", "…", rule.text)


def _remedy(name: str) -> Entry:
    r = REMEDY_BY_ID[name]
    return Entry(
        type="remedy",
        id=name,
        title=r.title,
        said=_said(
            ("changes", [r.changes]),
            ("worked", [str(e) for e in r.worked]),
            ("did not", [str(e) for e in r.failed]),
            ("costs", [r.cost]),
            ("mind", list(r.labels)),
            ("undo", [r.undo]),
            ("when", [r.when]),
            ("helps against", [c.id for c in CAUSE_BY_ID.values() if name in c.remedies]),
            ("flags", _by_dialect(REMEDY_FLAGS, name)),
            ("watch for", [f"{d}: {text}" for (d, r_id), text in TRAPS.items() if r_id == name]),
            ("sources disagree", _disagreements(name)),
        ),
    )


def _test(name: str) -> Entry:
    x = EXPERIMENT_BY_ID[name]
    return Entry(
        type="test",
        id=name,
        title=x.text.format(before="the first sign"),
        said=_said(
            ("costs", [x.cost]),
            ("tells", [f"{cause}: {outcome}" for cause, outcome in x.predicts.items()]),
            ("otherwise", [x.otherwise]),
            ("flags", _by_dialect(TEST_FLAGS, name)),
        ),
    )


def _by_dialect(table: Mapping[str, Mapping[str, str]], name: str) -> list[str]:
    shown = ((dialect or "any loop", flags.get(name, "")) for dialect, flags in table.items())
    return [f"{dialect}: {_open(text)}" for dialect, text in shown if text]


def _open(template: str) -> str:
    """Return a template with its blanks as words: `{to_step:.0f}` becomes `TO_STEP`."""
    parts = string.Formatter().parse(template)
    return "".join(
        literal + ("" if field is None else {"at": "STEP"}.get(field, field.upper()))
        for literal, field, _, _ in parts
    )


def _look_alikes(name: str) -> list[str]:
    pairs = look_alikes_of(name)
    return [
        f"{p.other if p.one == name else p.one}: {p.how}" + (f" ({p.source})" if p.source else "")
        for p in pairs
    ]


def _histories(remedies: Iterable[str]) -> list[str]:
    """Return remedies with their runs, in order; what is only known to have failed comes last."""
    return [_history(r) for r in sorted(remedies, key=lambda r: only_failed(REMEDY_BY_ID[r]))]


def _history(remedy: str) -> str:
    """Return a remedy with the runs in which it helped and did not, by name."""
    r = REMEDY_BY_ID[remedy]
    sides = [
        f"{label} {', '.join(dict.fromkeys(e.run for e in runs))}"
        for label, runs in (("worked for", r.worked), ("did not help", r.failed))
        if runs
    ]
    return f"{r.id}: {r.title}" + (f" — {'; '.join(sides)}" if sides else "")


def _disagreements(name: str) -> list[str]:
    return [
        f"{c.subject}: "
        + "; ".join(f"{p.source}: {p.says}" for p in c.positions)
        + f" → {c.reading}"
        for c in CONFLICTS
        if name in c.about
    ]


_BUILD: Mapping[str, Callable[[str], Entry]] = {
    "kind": _kind,
    "cause": _cause,
    "remedy": _remedy,
    "test": _test,
}
