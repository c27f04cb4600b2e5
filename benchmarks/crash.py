"""How often the crash classifier names the class, who must act and the rank, on labelled samples.

A folder of samples holds `manifest.jsonl`; an object has `local_path`, `class`, `kind` (who must
act), `is_failure`, `first_error_rank` and `source`. With `leave_one_out` each repository is judged
without the rows of the table that it alone suggested (`benchmarks/origins`).
"""

import json
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trimtab
from benchmarks.everyday.formats import write_log
from benchmarks.everyday.runs import MadeRun, make_healthy
from trimtab.crash import CrashReport, classify
from trimtab.crash.table import crash_patterns
from trimtab.errors import ConfigError

__all__ = [
    "AppendedFigures",
    "CrashFigures",
    "CrashMiss",
    "appended_text",
    "crash_text",
    "measure_appended",
    "measure_crash",
]

ORIGINS = Path(__file__).parent / "origins"


@dataclass(frozen=True, kw_only=True)
class CrashMiss:
    """A sample whose class was not named."""

    id: str
    wanted: str
    got: str


@dataclass(frozen=True, kw_only=True)
class CrashFigures:
    """What was right, of how many."""

    samples: int
    class_right: int
    failures: int
    act_right: int
    ranks: int
    rank_right: int
    left_out: bool
    """Whether each repository was judged without the rows it alone suggested."""
    misses: tuple[CrashMiss, ...]


def measure_crash(folder: Path, *, leave_one_out: bool = False) -> CrashFigures:
    """Classify every sample of a folder.

    Raises:
        ConfigError: The folder has no readable manifest, or a sample is missing.
    """
    rows = _manifest(folder)
    by_repository = _suggested_alone() if leave_one_out else {}
    class_right = act_right = ranks = rank_right = failures = 0
    misses: list[CrashMiss] = []
    for row in rows:
        wanted = str(row["class"]) if row["is_failure"] else "none"
        dropped = by_repository.get(_repository(row), frozenset())
        report = _classify(folder / str(row["local_path"]), dropped)
        got = report.crash_class if report else "none"
        if got == wanted:
            class_right += 1
        else:
            misses.append(CrashMiss(id=str(row["id"]), wanted=wanted, got=got))
        if not row["is_failure"]:
            continue
        failures += 1
        act_right += report is not None and report.who_must_act == row["kind"]
        if row["first_error_rank"] is not None:
            ranks += 1
            rank_right += report is not None and str(report.rank) == str(row["first_error_rank"])
    return CrashFigures(
        samples=len(rows),
        class_right=class_right,
        failures=failures,
        act_right=act_right,
        ranks=ranks,
        rank_right=rank_right,
        left_out=leave_one_out,
        misses=tuple(misses),
    )


@dataclass(frozen=True, kw_only=True)
class AppendedFigures:
    """What `trimtab.analyze` says of a healthy log with a failure's last lines behind it."""

    failures: int
    healthy: int
    """Called healthy all the same."""
    ended_badly: int
    class_right: int
    without_rows: int
    """Told as a failure by its form alone, with every row of the table taken away."""


def measure_appended(folder: Path) -> AppendedFigures:
    """Append each failure of a folder to a healthy log, and judge it as a user does.

    The log is what the sample's launcher prints where its rows are part of the failure, as of
    Hugging Face's Trainer, and Megatron's lines elsewhere.

    Raises:
        ConfigError: The folder has no readable manifest, or a sample is missing.
    """
    rows = [row for row in _manifest(folder) if row["is_failure"]]
    verdicts: list[str] = []
    right = without = 0
    with tempfile.TemporaryDirectory() as scratch:
        run = make_healthy(100, 300)
        path = write_log(run, "megatron", Path(scratch))
        healthy = {"hf trainer": _as_hf_prints(run)}
        usual = path.read_text("utf-8")
        for row in rows:
            sample = folder / str(row["local_path"])
            without += _classify(sample, None) is not None
            before = healthy.get(str(row.get("launcher")), usual)
            path.write_text(before + sample.read_text("utf-8", errors="replace"), "utf-8")
            (judged,) = trimtab.analyze(path).runs
            verdicts.append(judged.verdict)
            right += judged.ending is not None and judged.ending.crash_class == row["class"]
    return AppendedFigures(
        failures=len(rows),
        healthy=verdicts.count("healthy"),
        ended_badly=verdicts.count("ended-badly"),
        class_right=right,
        without_rows=without,
    )


def _as_hf_prints(run: MadeRun) -> str:
    """Return the lines that Hugging Face's Trainer prints of a run."""
    rows = zip(*(run.columns[name] for name in ("loss", "grad_norm", "lr")), strict=True)
    return "".join(
        f"{{'loss': {loss:.4f}, 'grad_norm': {norm:.4f}, 'learning_rate': {lr:.6g},"
        f" 'epoch': {i / 100:.2f}}}\n"
        for i, (loss, norm, lr) in enumerate(rows, 1)
    )


def appended_text(figures: AppendedFigures) -> str:
    """Return the figures of `measure_appended` in two lines."""
    f = figures
    return (
        f"behind a healthy log, through analyze: ended-badly {f.ended_badly}/{f.failures},"
        f" healthy {f.healthy}/{f.failures}, class right {f.class_right}/{f.failures}\n"
        f"told as a failure without any row of the table: {f.without_rows}/{f.failures}"
    )


def crash_text(figures: Sequence[CrashFigures]) -> str:
    """Return the table of the figures, and the samples missed."""
    lines = [f"{'':34}{'class':>12}{'who must act':>16}{'first rank':>14}"]
    for row in figures:
        name = "without its own repository's rows" if row.left_out else "all rows"
        lines.append(
            f"{name:34}"
            f"{f'{row.class_right}/{row.samples}':>12}"
            f"{f'{row.act_right}/{row.failures}':>16}"
            f"{f'{row.rank_right}/{row.ranks}':>14}"
        )
    for row in figures:
        for miss in row.misses:
            kind = "left out" if row.left_out else "all rows"
            lines.append(f"  {kind}: {miss.id}: wanted {miss.wanted}, got {miss.got}")
    return "\n".join(lines)


def _classify(path: Path, dropped: frozenset[str] | None) -> CrashReport | None:
    """Classify a file without some rows of the table; None: without any."""
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    rows = [] if dropped is None else [p for p in crash_patterns() if p.id not in dropped]
    return classify(lines, patterns=rows)


def _manifest(folder: Path) -> list[Mapping[str, Any]]:
    path = folder / "manifest.jsonl"
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: not a manifest of samples ({error}); give the folder that holds it"
        ) from error


def _repository(row: Mapping[str, Any]) -> str:
    return str(row["source"]).split("#")[0].split(":")[0]


def _suggested_alone() -> dict[str, frozenset[str]]:
    """Return the rows that a repository alone suggested, by its name."""
    rows: dict[str, set[str]] = {}
    for path in sorted(ORIGINS.glob("*.toml")):
        for name, about in tomllib.loads(path.read_text("utf-8")).get("crash", {}).items():
            if isinstance(about, dict) and len(about.get("suggested_by", ())) == 1:
                rows.setdefault(about["suggested_by"][0], set()).add(name)
    return {repository: frozenset(names) for repository, names in rows.items()}
