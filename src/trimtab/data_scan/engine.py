"""The scan: every source in turn, a block at a time, with a state to resume from."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, cast

from trimtab.data_scan.block import DataBlock
from trimtab.data_scan.difference import CleaningDifference, by_lines
from trimtab.data_scan.duplicates import Duplicates, DuplicatesState
from trimtab.data_scan.epochs import EpochPlan, plan_epochs
from trimtab.data_scan.findings import DataFinding, corpus_tokens, judge
from trimtab.data_scan.passes import PASSES
from trimtab.data_scan.places import check_state_place
from trimtab.data_scan.source_counts import CountsState, SourceCounts
from trimtab.data_scan.sources import ReadSettings, expand, find_sources, open_source
from trimtab.data_scan.state import load_state, save_state
from trimtab.errors import ConfigError, MissingExtraError, ReadError

__all__ = ["Progress", "ScanResult", "ScanSettings", "scan"]

SAVE_EVERY_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ScanSettings:
    """What is looked for, and how."""

    reading: ReadSettings = field(default_factory=ReadSettings)
    duplicates: bool = True
    """Look for exact and near duplicates; costs about as much as all other passes together."""
    vocab: int | None = None
    """Rows of the embedding; token ids are checked against it."""
    plan_tokens: int | None = None
    tokens_per_step: int | None = None

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        numbers = {
            "context": self.reading.context,
            "vocab": self.vocab,
            "plan_tokens": self.plan_tokens,
            "tokens_per_step": self.tokens_per_step,
        }
        for name, value in numbers.items():
            if value is not None and value <= 0:
                raise ConfigError(f"{name} is {value}; give a positive number")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a scan is."""

    path: str
    done: int
    """In the measure of the source: bytes, tokens, rows."""
    total: int
    """0 where nobody knows."""
    scanned_bytes: int
    """Bytes read so far, over all sources."""


@dataclass(frozen=True, kw_only=True)
class ScanResult:
    """What was found."""

    sources: tuple[SourceCounts, ...]
    findings: tuple[DataFinding, ...]
    errors: tuple[dict[str, str], ...]
    epochs: EpochPlan | None
    difference: CleaningDifference | None
    notes: tuple[str, ...] = ()
    """What is to be said about how it was counted."""


def scan(
    paths: Sequence[str],
    settings: ScanSettings | None = None,
    *,
    before: str | None = None,
    after: str | None = None,
    state_path: Path | None = None,
    resume: bool = False,
    save_every_s: float = SAVE_EVERY_S,
    tell: Callable[[Progress], None] | None = None,
) -> ScanResult:
    """Scan every source under the paths, and compare the input and output of a cleaning step.

    Args:
        paths: Files and directories; a path that cannot be read is listed in `errors` and stops
            nothing.
        settings: What is looked for.
        before: Files before the cleaning step.
        after: Files after it.
        state_path: Where to note how far the scan is, every `save_every_s` seconds; removed at its
            end.
        resume: Continue from the saved state; without one, start from the beginning.
        save_every_s: Seconds between two notes.
        tell: Called after every block.

    Raises:
        ReadError: The note is damaged, or the data or settings are not what they were.
        ConfigError: The note cannot be written, or there is a file that is none in its place.
    """
    chosen = settings or ScanSettings()
    job = _Job(chosen, list(paths), state_path, save_every_s, tell)
    if resume:
        job.resume()
    if state_path is not None:
        check_state_place(state_path, [*job.files, *(Path(p) for p in (before, after) if p)])
    job.run()
    difference = _compare(chosen, before, after, job.errors) if before and after else None
    if state_path is not None:
        state_path.unlink(missing_ok=True)
    epochs = plan_epochs(corpus_tokens(job.accounts)[0], chosen.plan_tokens, chosen.tokens_per_step)
    return ScanResult(
        sources=tuple(job.accounts),
        findings=judge(job.accounts, vocab=chosen.vocab, epochs=epochs, difference=difference),
        errors=tuple(job.errors),
        epochs=epochs,
        difference=difference,
        notes=(*job.notes, *(job.duplicates.notes() if job.duplicates else ())),
    )


class _JobState(TypedDict):
    """What a resumed scan needs; written by `save_state`."""

    schema: int
    of: list[object]
    next_file: int
    cursor: int
    under_way: bool
    scanned_bytes: int
    errors: list[dict[str, str]]
    accounts: list[CountsState]
    duplicates: DuplicatesState | None


class _Job:
    def __init__(
        self,
        settings: ScanSettings,
        paths: list[str],
        state_path: Path | None,
        save_every_s: float,
        tell: Callable[[Progress], None] | None,
    ) -> None:
        self.settings, self.state_path, self.save_every_s, self.tell = (
            settings,
            state_path,
            save_every_s,
            tell,
        )
        found = expand(paths)
        self.errors, self.files, self.notes = found.errors, found.files, found.notes
        self.accounts: list[SourceCounts] = []
        self.duplicates = Duplicates() if settings.duplicates else None
        self.next_file = 0
        self.cursor = 0
        self.under_way = False
        self.scanned_bytes = 0
        self.saved_at = time.monotonic()

    def run(self) -> None:
        while self.next_file < len(self.files):
            path = self.files[self.next_file]
            try:
                self._scan_file(path)
            except (ReadError, MissingExtraError, OSError) as error:
                self.errors.append({"path": str(path), "error": str(error)})
                # A file that fails at its first block has no figures; a later failure leaves some.
                if self.under_way and not self.accounts[-1].num_units:
                    self.accounts.pop()
                elif self.under_way:
                    self.accounts[-1].notes.append(
                        "was not read to its end: these are not all its figures"
                    )
            self.next_file, self.cursor, self.under_way = self.next_file + 1, 0, False

    def _scan_file(self, path: Path) -> None:
        kind, reader = open_source(path, self.settings.reading)
        if not self.under_way:
            self.accounts.append(
                SourceCounts(str(path), kind, reader.unit, reader.context, self.settings.vocab)
            )
            self.under_way = True
        account = self.accounts[-1]
        # Block and cursor advance together: a state saved here neither repeats nor skips a block.
        for block, cursor in reader.blocks(self.cursor, account.num_units):
            self._take(block, account)
            self.cursor = cursor
            self.scanned_bytes += block.size_bytes
            if self.tell is not None:
                self.tell(
                    Progress(
                        path=str(path),
                        done=cursor,
                        total=reader.total,
                        scanned_bytes=self.scanned_bytes,
                    )
                )
            if (
                self.state_path is not None
                and time.monotonic() - self.saved_at >= self.save_every_s
            ):
                save_state(self.state_path, self._state())
                self.saved_at = time.monotonic()
        account.notes += reader.notes

    def _take(self, block: DataBlock, account: SourceCounts) -> None:
        for look in PASSES:
            look(block, account)
        if self.duplicates is not None:
            self.duplicates.update(block, account)
        if len(block.ids):
            account.num_units = int(block.ids[-1]) + 1

    def _described(self) -> list[object]:
        """Return what a note is good for: these settings on these files."""
        files = [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in self.files]
        return [repr(self.settings), files]

    def _state(self) -> _JobState:
        return {
            "schema": 2,
            "of": self._described(),
            "next_file": self.next_file,
            "cursor": self.cursor,
            "under_way": self.under_way,
            "scanned_bytes": self.scanned_bytes,
            "errors": self.errors,
            "accounts": [a.state() for a in self.accounts],
            "duplicates": self.duplicates.state() if self.duplicates else None,
        }

    def resume(self) -> None:
        if self.state_path is None:
            raise ConfigError(
                "there is no note to go on from; give the --write-skip or --state of the first scan"
            )
        if not self.state_path.exists():  # ended before its first note
            return
        state = cast("_JobState", load_state(self.state_path))
        if state.get("schema") != 2 or state.get("of") != self._described():
            raise ReadError(
                f"{self.state_path}: was noted on other data or settings; leave out --resume to"
                " start from the beginning"
            )
        try:
            self._take_state(state)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ReadError(
                f"{self.state_path}: holds a damaged state of a scan; leave out --resume and take"
                " it away to start from the beginning"
            ) from error

    def _take_state(self, state: _JobState) -> None:
        self.next_file, self.cursor, self.under_way = (
            state["next_file"],
            state["cursor"],
            state["under_way"],
        )
        self.scanned_bytes, self.errors = state["scanned_bytes"], state["errors"]
        self.accounts = [SourceCounts.from_state(a) for a in state["accounts"]]
        if self.duplicates is not None and state["duplicates"] is not None:
            self.duplicates.load(state["duplicates"])


def _compare(
    settings: ScanSettings, before: str, after: str, errors: list[dict[str, str]]
) -> CleaningDifference | None:
    difference = CleaningDifference()
    try:
        for _, block in _blocks(before, settings.reading):
            difference.add_before(block)
        for path, block in _blocks(after, settings.reading):
            difference.add_after(block, path)
    except (ReadError, MissingExtraError, OSError) as error:
        errors.append({"path": f"{before} and {after}", "error": str(error)})
        return None
    return difference


def _blocks(given: str, reading: ReadSettings) -> Iterator[tuple[str, DataBlock]]:
    """Yield the blocks of all text under a path.

    Raises:
        ReadError: It holds tokens.
    """
    for path in find_sources(given):
        _, reader = open_source(path, reading)
        for block, _ in reader.blocks(0, 0):
            if not block.is_text:
                raise ReadError(f"{path}: holds tokens; --before and --after compare text")
            yield str(path), block if reader.unit == "document" else by_lines(block)
