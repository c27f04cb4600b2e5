"""A logbook fit for publishing: hosts, users, addresses, paths and secrets are masked.

Names of people and hosts become `person-1`, `host-1`, each the same throughout; of a path the last
part stays. Secrets are found as everywhere (`trimtab.masking`). Blind to a name that stands in free
text and nowhere else: read a logbook before it is published.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trimtab.chronicle.journal import Event
from trimtab.masking import masked_text
from trimtab.record import RunRecord

__all__ = ["Publisher"]

_PATH = re.compile(r"(?<![\w:/.])(?:~|/[\w.@+~-]+)(?:/[\w.@+=,:~-]+)+/?|\b[A-Za-z]:\\[\w.\\ -]+")
_HOME = re.compile(r"/(?:home|Users|scratch|gpfs\w*|fsx|data)/(?:users?/)?([A-Za-z][\w.-]{1,31})/")
_ADDRESS = re.compile(
    r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?\b|\b(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}\b"
)
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
_LOGIN = re.compile(r"\b([a-z_][\w.-]{1,31})@([\w.-]+)\b")
_HOST = re.compile(
    r"\b(?:[a-z][\w-]*\.)+(?:local|internal|cluster|lan|corp|compute)\b"
    r"|\b(?:[a-z][a-z0-9]*-)*(?:node|gpu|dgx|worker|compute|hpc|ip)-?\d[\w-]*(?:\[[\d,-]+\])?",
    re.IGNORECASE,
)
_HOST_KEYS = frozenset({"host", "hosts", "hostname", "nodelist", "node_name", "machine"})
_PERSON_KEYS = frozenset({"author", "by", "user", "username", "decided_by", "login"})
_MAX_DEPTH = 40


@dataclass
class Publisher:
    """Masks events and a record, the same name always in the same way."""

    people: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)

    def events(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Return events with what is private masked; names are collected from all of them first."""
        for event in events:
            self._collect(event.data, 0)
        return tuple(replace(e, data=self._mapping(e.data, 0)) for e in events)

    def record(self, record: RunRecord) -> RunRecord:
        """Return a record whose texts are masked; its numbers stay."""
        return replace(
            record,
            source=self.text(record.source),
            notes=tuple(self.text(n) for n in record.notes),
            tail=(),
            attempts=tuple(
                replace(
                    a,
                    why=self.text(a.why),
                    settings={k: str(self._value(v, k, 0)) for k, v in a.settings.items()},
                )
                for a in record.attempts
            ),
        )

    def text(self, text: str) -> str:
        """Return text with what is private masked."""
        text = masked_text(text)
        text = _MAIL.sub(lambda m: self._person(m[0]), text)
        for match in _HOME.finditer(text):
            self._person(match[1])
        text = _PATH.sub(lambda m: "…/" + Path(m[0].replace("\\", "/").rstrip("/")).name, text)
        text = _LOGIN.sub(lambda m: f"{self._person(m[1])}@{self._host(m[2])}", text)
        text = _ADDRESS.sub(lambda m: self._host(m[0]), text)
        text = _HOST.sub(lambda m: self._host(m[0]), text)
        for names in (self.people, self.hosts):
            for name in sorted(names, key=len, reverse=True):
                if len(name) > 2 and name in text:
                    text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", names[name], text)
        return text

    def _collect(self, value: object, depth: int, key: str = "") -> None:
        if depth > _MAX_DEPTH:
            return
        if isinstance(value, Mapping):
            for k, v in value.items():
                self._collect(v, depth + 1, str(k).lower())
        elif isinstance(value, list | tuple):
            for v in value:
                self._collect(v, depth + 1, key)
        elif isinstance(value, str) and value:
            if key in _PERSON_KEYS and value not in ("trimtab", "unknown"):
                self._person(value)
            elif key in _HOST_KEYS:
                for host in re.split(r"[,\s]+(?![^\[]*\])", value):
                    self._host(host)

    def _person(self, name: str) -> str:
        return self.people.setdefault(name, f"person-{len(self.people) + 1}")

    def _host(self, name: str) -> str:
        if name in self.hosts.values():
            return name
        return self.hosts.setdefault(name, f"host-{len(self.hosts) + 1}")

    def _mapping(self, data: Mapping[str, object], depth: int) -> dict[str, object]:
        return {k: self._value(v, k, depth + 1) for k, v in data.items()}

    def _value(self, value: object, key: str, depth: int) -> object:
        if isinstance(value, str):
            return value if key == "image" else self.text(value)
        if depth > _MAX_DEPTH:
            return None
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple):
            return [self._value(v, key, depth + 1) for v in value]
        return value
