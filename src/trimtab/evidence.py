"""A bundle of evidence: what a provider or a bug report needs of a run, masked and bounded.

A zip with a summary on top, the ends of logs and journals, verdict, settings, versions, stacks and,
where given, the facts of hosts. Secrets are masked as everywhere; no link is followed, so nothing
from outside the run gets in; checkpoints and binary files stay out.
"""

import hashlib
import json
import os
import platform
import re
import stat
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from trimtab.chronicle.journal import Event, read_event
from trimtab.crash import classify
from trimtab.errors import ReadError
from trimtab.masking import masked, masked_text
from trimtab.text import plain
from trimtab.version import __version__

__all__ = ["Bundle", "make_bundle"]

_ENDINGS = frozenset(
    [
        "log",
        "txt",
        "out",
        "err",
        "json",
        "jsonl",
        "toml",
        "yaml",
        "yml",
        "csv",
        "md",
        "conf",
        "cfg",
        "ini",
        "sh",
        "sbatch",
        "slurm",
        "stacks",
    ]
)
_LEFT_OUT = frozenset({"checkpoints", "aside", ".git", "__pycache__", "node_modules", ".lock"})
_MOST_DEPTH = 4
_MOST_FILES = 200
_MOST_LOOKED_AT = 20_000
_FILE_BYTES = 1 << 20
"""Of each file its end, and of a settings file all of it."""
_WHOLE_BYTES = 32 << 20
_HARDWARE = re.compile(r"\bS?Xid\b|\bECC\b|fallen off the bus|Row Remapp|NVLink|mce: \[Hard", re.I)
_MOST_LINES = 200
_PACKAGES: Final = ("torch", "numpy", "transformers", "deepspeed", "lightning", "megatron-core")
_TOLD = ("restart", "gave-up", "hang", "incident", "fault", "decision", "outcome", "end")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What was put together."""

    path: Path
    files: tuple[str, ...]
    """Names in the zip."""
    left_out: tuple[str, ...]
    """What was not taken, with the reason."""
    size_bytes: int


def make_bundle(run: Path, target: Path, *, facts: Path | None = None) -> Bundle:
    """Write the bundle of a run.

    Args:
        run: A run directory, a supervisor's folder, or one log file.
        target: The zip; it must not lie inside the run, and is replaced.
        facts: Folder of hosts as `trimtab doctor --collect` writes it.

    Raises:
        ReadError: There is no run, or the zip cannot be written.

    Bounds: the last 1 MiB of each file, 200 files, 32 MiB in all, before they are compressed.
    """
    if not run.exists():
        raise ReadError(f"{run}: there is no such run; give a run directory, a folder or a log")
    if run.is_dir() and target.resolve().is_relative_to(run.resolve()):
        raise ReadError(f"{target}: lies inside the run; give another place for the bundle")
    taken: dict[str, bytes] = {}
    left: list[str] = []
    sources = [(run, "run"), *([(facts, "hosts")] if facts is not None else [])]
    whole = 0
    for root, name in sources:
        for path, why in _files(root):
            inside = f"{name}/{path.relative_to(root) if root.is_dir() else path.name}"
            if why:
                left.append(f"{inside}: {why}")
                continue
            if len(taken) >= _MOST_FILES or whole >= _WHOLE_BYTES:
                left.append(f"{inside}: the bundle is full")
                continue
            text = _read(path)
            if text is None:
                left.append(f"{inside}: binary, or cannot be read")
                continue
            data = _harmless(path, text).encode("utf-8", "replace")
            taken[inside] = data
            whole += len(data)
    documents = _documents(taken, run)
    manifest = {
        "schema": 1,
        "made_by": f"trimtab {__version__}",
        "files": [
            {"name": n, "bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()}
            for n, d in taken.items()
        ],
        "left_out": [plain(text) for text in left[:_MOST_FILES]],
        "masked": "secrets by name and by shape; look it through before you send it",
    }
    documents["manifest.json"] = json.dumps(manifest, indent=1).encode()
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for inside, data in (*documents.items(), *taken.items()):
                archive.writestr(inside, data)
        size = target.stat().st_size
    except OSError as error:
        raise ReadError(
            f"{target}: cannot be written ({error.strerror}); give another place with -o"
        ) from error
    return Bundle(path=target, files=(*documents, *taken), left_out=tuple(left), size_bytes=size)


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield files of a run, each with why it is left out; empty: it is taken. Sorted, bounded."""
    if not root.is_dir() or root.is_symlink():
        # What a person names is meant, even where it is a link to the log.
        yield root.resolve() if root.is_symlink() else root, ""
        return
    folders = [(root, 0)]
    looked_at = 0
    while folders:
        folder, depth = folders.pop(0)
        try:
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError:
            yield folder, "cannot be looked at"
            continue
        for entry in entries:
            looked_at += 1
            if looked_at > _MOST_LOOKED_AT:
                return
            path = Path(entry.path)
            if entry.is_symlink():
                yield path, "a link, which is not followed"
            elif entry.is_dir(follow_symlinks=False):
                if entry.name not in _LEFT_OUT and depth < _MOST_DEPTH:
                    folders.append((path, depth + 1))
            elif entry.is_file(follow_symlinks=False):
                ending = entry.name.rpartition(".")[2].lower()
                numbered = ending.isdecimal() and ".log." in entry.name
                if ending in _ENDINGS or numbered:
                    yield path, ""


def _read(path: Path) -> str | None:
    """Return the end of a text file; None where it is binary, no plain file, or cannot be read."""
    try:
        # A link that came between the look and this is refused by the system.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return None
            file.seek(max(found.st_size - _FILE_BYTES, 0))
            data = file.read(_FILE_BYTES)
        except OSError:
            return None
        cut = found.st_size > _FILE_BYTES
    if b"\0" in data[:8192]:
        return None
    if cut:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")


def _harmless(path: Path, text: str) -> str:
    """Return a text with its secrets masked: in JSON by the names of fields, too."""
    if path.suffix == ".json":
        try:
            return json.dumps(masked(json.loads(text)), indent=1, ensure_ascii=False)
        except (ValueError, RecursionError):
            return masked_text(text)
    if path.suffix != ".jsonl":
        # Line by line takes a third of the time; only a private key runs over several.
        whole = "PRIVATE KEY" in text
        return masked_text(text) if whole else "\n".join(map(masked_text, text.split("\n")))
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.dumps(masked(json.loads(line)), ensure_ascii=False))
        except (ValueError, RecursionError):
            lines.append(masked_text(line))
    return "\n".join(lines) + "\n"


def _documents(taken: Mapping[str, bytes], run: Path) -> dict[str, bytes]:
    """Return the summary, the versions and the stacks."""
    texts = {name: data.decode("utf-8", "replace") for name, data in taken.items()}
    events = [
        (name, event)
        for name, text in texts.items()
        if name.endswith("journal.jsonl")
        for line in text.splitlines()
        if (event := read_event(line.encode())) is not None
    ]
    documents = {"summary.txt": _summary(texts, events, run).encode("utf-8", "replace")}
    stacks = [e.data["stacks"] for _, e in events if e.event == "note" and "stacks" in e.data]
    if stacks:
        documents["stacks.json"] = json.dumps(masked(stacks), indent=1).encode()
    documents["versions.json"] = json.dumps(_versions(), indent=1).encode()
    return documents


def _summary(texts: Mapping[str, str], events: Sequence[tuple[str, Event]], run: Path) -> str:
    logs = {n: t for n, t in texts.items() if n.rpartition(".")[2] in ("log", "out", "err", "txt")}
    report = None
    for text in logs.values():
        report = report or classify(text.splitlines()[-2000:])
    lines = []
    if report is None:
        lines.append("what:  no crash is named in the ends of the logs")
    else:
        where = f" · host {plain(report.host)}" if report.host else ""
        rank = "" if report.rank is None else f" · rank {report.rank}"
        lines.append(f"what:  {report.crash_class}: {plain(report.why)}{where}{rank}")
        lines += [f"line:  {plain(report.line, limit=400)}", f"do:    {plain(report.do)}"]
    times = [e.t for _, e in events]
    lines.append(f"when:  {times[0]} to {times[-1]} (UTC)" if times else "when:  no journal")
    lines.append(f"host:  {platform.node()} made this bundle · run {plain(run.name)}")
    lines += ["", "events:"]
    for _, event in [e for e in events if e[1].event in _TOLD][-_MOST_LINES:]:
        told = {k: event.data[k] for k in ("class", "kind", "host", "why") if event.data.get(k)}
        words = " · ".join(plain(v, limit=300) for v in told.values())
        lines.append(f"  {plain(event.t)}  step {event.step}  {event.event}  {words}")
    hardware = [
        f"  {name}: {plain(line, limit=300)}"
        for name, text in texts.items()
        if not name.endswith("journal.jsonl") and "nvidia-smi" not in name
        for line in text.splitlines()
        if _HARDWARE.search(line)
    ]
    lines += ["", f"lines about hardware: {len(hardware)}", *hardware[-_MOST_LINES:]]
    return masked_text("\n".join(lines)) + "\n"


def _versions() -> dict[str, str]:
    found = {
        "trimtab": __version__,
        "python": sys.version.split()[0],
        "system": platform.platform(),
    }
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found | {"made": datetime.now(UTC).isoformat(timespec="seconds")}
