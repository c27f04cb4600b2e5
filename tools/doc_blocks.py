"""Run the code blocks of README and documentation, and bring their sessions up to date.

    python -m tools.doc_blocks              count the blocks: run, and marked as not run
    python -m tools.doc_blocks --refresh    write what the commands print today into the pages

`python` blocks of a page run in order, in one namespace and one folder. In a `console` block, a
line that starts with `$ ` is a command and the lines below it are what it prints; one line `…`
stands for lines left out. A block that cannot run has, right above it, a line that says so to the
reader: `*Not run by the tests: REASON.*`

The folder of each page holds the same few logs, see `lay_out`. A page may have lines that come
before its first block, such as a tiny model, in `tests/docs/preludes/PAGE.txt`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.logs.wandb_logs import encode_wandb_log
from trimtab.testing.tr8_104b import print_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Block",
    "Outcome",
    "Session",
    "lay_out",
    "masked",
    "pages",
    "read_blocks",
    "run_page",
    "shortened",
]

ROOT = Path(__file__).resolve().parent.parent
PRELUDES = ROOT / "tests" / "docs" / "preludes"
LANGUAGES = ("python", "console")
LEFT_OUT = "…"
_ANCHOR = 12
"""Characters of a line by which a segment in the middle of an output is found again."""
COLUMNS = 100
"""Width of the terminal in which the sessions of the documentation run."""

_FENCE = re.compile(
    r"^(?P<fence>`{3,})(?P<language>[a-z]*)\n(?P<body>.*?)^(?P=fence)$", re.M | re.S
)
_TIMES = re.compile(r"\b(read in|in) \d[\d.]* ?m?s\b")
_REASON = re.compile(r"^\*Not run by the tests: (?P<reason>.+)\*\n+\Z", re.M)

_DRIVER = """
import json, subprocess, sys
from pathlib import Path
blocks = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
space, printed = {"__name__": "__main__"}, []
for block in blocks:
    if block["language"] == "python":
        exec(compile(block["body"], block["page"], "exec"), space)
        continue
    for command in block["commands"]:
        done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        printed.append([block["where"], command, done.returncode, done.stdout])
Path(sys.argv[2]).write_text(json.dumps(printed), encoding="utf-8")
"""


@dataclass(frozen=True)
class Session:
    """One command of a console block and what the page shows of its output."""

    command: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    body: str
    reason: str
    """Why it is not run; empty: it is."""

    @property
    def where(self) -> str:
        """Return page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Return the commands of a console block."""
        found: list[tuple[str, list[str]]] = []
        for line in self.body.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found and found[-1][0].endswith("\\"):  # the command goes on in the next line
                found[-1] = (f"{found[-1][0]}\n{line}", [])
            elif found:
                found[-1][1].append(line)
        return tuple(Session(command, tuple(_stripped(shown))) for command, shown in found)


@dataclass(frozen=True)
class Outcome:
    """What a command printed when its page was run."""

    where: str
    command: str
    code: int
    printed: tuple[str, ...]


def pages() -> tuple[Path, ...]:
    """Return README and every written page of the documentation."""
    docs = ROOT / "docs"
    found = (
        path
        for path in docs.rglob("*.md")
        if not any(part.startswith("_") for part in path.relative_to(docs).parts)
    )
    return (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(found))


def read_blocks(page: Path) -> tuple[Block, ...]:
    """Return the Python and console blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        if match["language"] not in LANGUAGES:
            continue
        reason = _REASON.search(text, 0, match.start())
        line = text.count("\n", 0, match.start()) + 1
        found.append(
            Block(page, line, match["language"], match["body"], reason["reason"] if reason else "")
        )
    return tuple(found)


def run_page(
    page: Path, folder: Path, *, languages: Iterable[str] = LANGUAGES, timeout_s: float = 300
) -> tuple[Outcome, ...]:
    """Run the blocks of a page in a folder and return what its commands printed.

    Raises:
        RuntimeError: A Python block failed; the message has its traceback.
    """
    name = page.relative_to(ROOT).with_suffix("").as_posix().replace("/", "-")
    prelude = PRELUDES / f"{name}.txt"
    work: list[dict[str, object]] = []
    if "python" in languages and prelude.is_file():
        where = str(prelude.relative_to(ROOT))
        work.append({"language": "python", "body": prelude.read_text("utf-8"), "page": where})
    for block in read_blocks(page):
        if block.reason or block.language not in languages:
            continue
        commands = [session.command for session in block.sessions]
        body = "\n" * block.line + block.body  # so that a traceback names the line of the page
        work.append(
            {
                "language": block.language,
                "body": body,
                "where": block.where,
                "page": str(page.relative_to(ROOT)),
                "commands": commands,
            }
        )
    with tempfile.TemporaryDirectory() as apart:
        given, made = Path(apart) / "blocks.json", Path(apart) / "printed.json"
        given.write_text(json.dumps(work), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", _DRIVER, str(given), str(made)],
            cwd=folder,
            env=_environment(Path(apart)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{page.name}: {done.stderr.strip()}")
        printed = json.loads(made.read_text(encoding="utf-8"))
    return tuple(
        Outcome(where, command, code, tuple(_stripped(text.splitlines())))
        for where, command, code, text in printed
    )


def shortened(printed: Sequence[str], shown: Sequence[str]) -> tuple[str, ...]:
    """Return an output with the same parts left out as the page leaves out.

    The page shows segments between lines `…`. The first is the beginning of the output, the last
    its end, unless `…` stands there; one between them is found by how its first line begins.
    """
    if LEFT_OUT not in shown:
        return tuple(printed)
    segments: list[list[str]] = [[]]
    for line in shown:
        if line == LEFT_OUT:
            segments.append([])
        else:
            segments[-1].append(line)
    made, at = list(printed[: len(segments[0])]), len(segments[0])
    for number, segment in enumerate(segments[1:], start=1):
        made.append(LEFT_OUT)
        if not segment:
            continue
        if number == len(segments) - 1:
            at = max(at, len(printed) - len(segment))
        else:
            head = segment[0][:_ANCHOR]
            places = (k for k in range(at, len(printed)) if printed[k].startswith(head))
            at = next(places, at)
        made += printed[at : at + len(segment)]
        at += len(segment)
    return tuple(made)


def masked(lines: Iterable[str]) -> list[str]:
    """Return lines without the times in them, which differ from run to run."""
    return [_TIMES.sub("in TIME", line) for line in lines]


def lay_out(folder: Path) -> None:
    """Put into a folder the logs and configs that the pages speak of."""
    (folder / "tr8-104b.log").write_text(print_log(), encoding="utf-8")
    (config,) = (ROOT / "tests").rglob("pretrain_104b.sh")
    (folder / config.name).write_text(config.read_text("utf-8"), encoding="utf-8")
    sound, spoilt = _rows(seed=1), _rows(seed=2, spike_at=900)
    for name, rows in (("healthy.jsonl", sound), ("train.jsonl", spoilt)):
        lines = (json.dumps(row) + "\n" for row in rows)
        (folder / name).write_text("".join(lines), encoding="utf-8")
    run = folder / "wandb" / "offline-run-20260102_030405-a1b2c3d4"
    run.mkdir(parents=True)
    history = ({"_step": row["step"], **{f"train/{k}": row[k] for k in row}} for row in spoilt)
    (run / "run-a1b2c3d4.wandb").write_bytes(encode_wandb_log(history))


def _rows(*, seed: int, spike_at: int | None = None, count: int = 1200) -> list[dict[str, float]]:
    """Return the rows of a made-up run; from `spike_at` on its loss stays 1.5 nats too high."""
    rng = np.random.default_rng(seed)
    step = np.arange(1, count + 1)
    loss = 2.2 + 4.5 * step**-0.35 + rng.normal(0, 0.02, count)
    norm = np.exp(rng.normal(-0.7, 0.1, count))
    if spike_at is not None:
        late = step >= spike_at
        loss = loss + 1.5 * late
        norm = norm * np.where((step >= spike_at - 3) & (step < spike_at + 40), 30.0, 1.0)
    rate = 3e-4 * np.minimum(step / 100, 1.0)
    columns = {"loss": loss, "grad_norm": norm, "lr": rate}
    return [
        {"step": int(s), **{name: float(f"{column[k]:.6g}") for name, column in columns.items()}}
        for k, s in enumerate(step)
    ]


def refresh(page: Path) -> bool:
    """Write what the commands of a page print today into it; return whether it changed."""
    text = page.read_text(encoding="utf-8")
    if not any(b.language == "console" and not b.reason for b in read_blocks(page)):
        return False
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder))
        outcomes = iter(run_page(page, Path(folder)))
    made = text
    for block in read_blocks(page):
        if block.language != "console" or block.reason:
            continue
        lines: list[str] = []
        for session, outcome in zip(block.sessions, outcomes, strict=False):
            lines.append(f"$ {session.command}")
            if session.shown:
                new = shortened(outcome.printed, session.shown)
                lines += session.shown if masked(new) == masked(session.shown) else new
        made = made.replace(block.body, "\n".join(lines) + "\n", 1)
    if made != text:
        page.write_text(made, encoding="utf-8")
    return made != text


def _stripped(lines: Iterable[str]) -> list[str]:
    """Return lines without the spaces at their ends and without empty lines at both ends."""
    kept = [line.rstrip() for line in lines]
    while kept and not kept[-1]:
        kept.pop()
    while kept and not kept[0]:
        kept.pop(0)
    return kept


def _environment(home: Path) -> dict[str, str]:
    """Return an environment in which `trimtab` is this tree's and nothing of the user's is read."""
    commands = home / "bin"
    commands.mkdir()
    trimtab = commands / "trimtab"
    trimtab.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m trimtab "$@"\n', encoding="utf-8")
    trimtab.chmod(0o755)
    return os.environ | {
        "COLUMNS": str(COLUMNS),
        "HF_HUB_OFFLINE": "1",
        "HOME": str(home),
        "PATH": f"{commands}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "PYTHONWARNINGS": "default",
        "TERM": "dumb",
        "XDG_STATE_HOME": str(home),
    }


def main() -> int:
    """Count the blocks, or bring the sessions up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--refresh", action="store_true", help="rewrite the sessions of all pages")
    options = parser.parse_args()
    if options.refresh:
        for page in pages():
            if refresh(page):
                print(f"{page.relative_to(ROOT)}: sessions rewritten")
    blocks = [block for page in pages() for block in read_blocks(page)]
    marked = [block for block in blocks if block.reason]
    print(f"{len(blocks) - len(marked)} blocks run, {len(marked)} marked as not run")
    for block in marked:
        print(f"  {block.where}: {block.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
