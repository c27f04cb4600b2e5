"""A log on disk -> RunRecord; the format is recognized by content, never by name.

    record = read_run("train.log")
    records = read("runs/")  # a directory of logs; a directory with journal.jsonl is one run

To add a format, write a `Reader` (`base`) and put it into `READERS`. What reads what:

| on disk                    | modules                                                     |
| -------------------------- | ----------------------------------------------------------- |
| any text with a loss in it | `freetext`                                                  |
| Megatron text              | `megatron`, `megatron_units`, `loss_scaling`, `line_layout` |
| JSON lines, CSV            | `jsonl`, `csv_table` over `table`, `table_axis`             |
| numbers without names      | `bare_table`, `yolo_results` over `table`                   |
| HF's and MLPerf's output   | `hf_stdout`, `mllog` over `table`, `table_axis`             |
| one JSON document          | `json_document`, `long_form`, `catboost`                    |
| TensorBoard event files    | `tensorboard` over `tfevents`, `tfrecord`, `crc32c`         |
| W&B offline runs           | `wandb` over `leveldb_log`                                  |
| MLflow, trackio            | `mlflow`, `sqlite_store`                                    |
| archives, notebooks, pages | `containers`                                                |
| directories of any of them | `folders`                                                   |
| numbers under unknown names| `by_course`                                                 |
| held-out sets named alone  | `held_out_sets`                                             |
| trimtab's own directory    | `rundir`, `layers`                                          |

`stamps` reads the times that lines begin with, `clock_columns` those of a column. `summands` tells
what a total is made of. `protobuf` decodes the wire format that both
TensorBoard and W&B use, and knows neither. `series` builds records from one series per tag.
`numbers`, `placeholders`, `nan_policy`, `skip_counter` and `tags` settle what a value or a name
means, for all of them.
"""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

from trimtab.crash import classify
from trimtab.errors import ReadError
from trimtab.limits import MAX_FOLDERS
from trimtab.masking import masked_text
from trimtab.readers.bare_table import BareTableReader, bare_table
from trimtab.readers.base import (
    CUT_STREAM,
    Reader,
    loss_lines_among,
    num_loss_lines,
    read_tail,
    take_sample,
    watching,
)
from trimtab.readers.by_course import by_course
from trimtab.readers.containers import (
    Member,
    file_name,
    members_of,
    name_of_binary,
    notebook_cells,
)
from trimtab.readers.csv_table import CsvReader
from trimtab.readers.folders import FolderCount, RunFiles, runs_under
from trimtab.readers.freetext.formats import TEXT_FORMATS
from trimtab.readers.freetext.reader import TextReader
from trimtab.readers.given_columns import NAME_IT
from trimtab.readers.hf_stdout import HfStdoutReader
from trimtab.readers.json_document import JsonDocumentReader, names_of_columns
from trimtab.readers.jsonl import JsonlReader
from trimtab.readers.layer_norms import with_layer_norms
from trimtab.readers.megatron import MegatronReader
from trimtab.readers.mlflow import is_mlflow_run, read_mlflow_run
from trimtab.readers.mllog import MllogReader
from trimtab.readers.numbers import BadNumberError, counted, parse_number, shown
from trimtab.readers.part_losses import named_by_others
from trimtab.readers.rundir import is_run_directory, read_run_directory
from trimtab.readers.running_means import own_values
from trimtab.readers.sqlite_store import SqliteReader
from trimtab.readers.supervised import by_launches, supervised_log
from trimtab.readers.tensorboard import TensorBoardReader
from trimtab.readers.unread_end import with_unread_end
from trimtab.readers.wandb import WandbReader
from trimtab.readers.writers import UNREAD_NOTE
from trimtab.readers.yolo_results import YoloResultsReader
from trimtab.record import RunRecord
from trimtab.text import plain

__all__ = [
    "READERS",
    "Reader",
    "fault_error",
    "find_reader",
    "read",
    "read_each",
    "read_newest",
    "read_run",
    "too_many_files",
    "watching",
]

READERS: tuple[Reader, ...] = (
    JsonlReader(),
    CsvReader(),
    BareTableReader(),
    YoloResultsReader(),
    MegatronReader(),
    TensorBoardReader(),
    WandbReader(),
    JsonDocumentReader(),
    MllogReader(),
    HfStdoutReader(),
    SqliteReader(),
    *TEXT_FORMATS,
    TextReader(),  # any other text: keep it last
)
"""Built-in formats; of equally sure ones the first reads."""

MIN_CONFIDENCE = 0.2
_OF_FREE_TEXT = (MegatronReader, MllogReader, HfStdoutReader)
_FORMATS_OF_TEXT = frozenset(r.name for r in READERS if isinstance(r, (*_OF_FREE_TEXT, TextReader)))
_MIN_EXPLAINED = 0.8
"""Share of the lines that name a loss with a number, below which others are asked, too, and the
record says so."""
_MIN_AT_END, _MAX_AT_END = 20, 120
"""Lines with a loss at an end of a log that show what its records look like there, among how many.
"""
_MIN_BETTER = 1.5
"""How many times more records another reader must give to be believed before a surer one."""
_FEWEST_OF_A_RUN, _MOST_SHARED, _MOST_TOLD, _MANY_OF_A_RUN = 3, 0.5, 3, 0.1
"""Records of another form that are told of as a second run; share of their losses that may occur
among those that are read, for a line may be printed in both forms; keys that are shown; and share of
the records read, from which on what is judged is a part. Ours."""
_FEW_ROWS = 200
_MANY_BYTES_PER_ROW = 2_000
_LONGEST_LINE = 4096
"""Characters of a line in which keys are looked for: one of letters alone costs their square."""
_KEY_WITH_NUMBER = re.compile(
    r"([A-Za-z_][\w./-]{0,40})(?:\s*[=:]\s*|[ \t]+)[-+]?(?:\d|nan\b|inf\b)"
)
_MOST_KEYS = 8
CERTAIN = 0.95
"""Confidence at which no later reader is asked: some look through the whole file."""


def find_reader(path: Path) -> Reader:
    """Return the reader that is surest that the file is of its format.

    Raises:
        ReadError: The file is missing, empty or binary, or nobody knows it.
    """
    sample = take_sample(path)
    # of equally sure readers the first wins, so their order in READERS decides
    surest, found = MIN_CONFIDENCE, None
    for reader in READERS:
        sure = reader.sniff(sample)
        if sure > surest or (found is None and sure == surest):
            surest, found = sure, reader
        if surest >= CERTAIN:
            break
    if found is not None:
        return found
    bare = None if sample.is_binary else bare_table(sample.lines)
    if bare is not None and not bare.names:
        raise ReadError.of_no_log(f"{path}: {bare.way_out}")
    known = name_of_binary(sample.raw) if sample.is_binary else ""
    if known:
        raise ReadError.of_no_log(f"{path}: {known}")
    died = None if sample.is_binary else _died_before(path, "row")
    if died is not None:
        raise died
    what = "binary data of no known format" if sample.is_binary else "no records that can be read"
    keys = () if sample.is_binary else _keys_with_numbers(sample.lines)
    way_out = "" if sample.is_binary else f"; {NAME_IT}"
    if keys:
        way_out += f" (keys with numbers: {', '.join(keys)})"
    # What helps comes first: the names of all formats fill a screen.
    raise ReadError.of_no_log(
        f"{path}: {what}{way_out}; looked for {', '.join(r.name for r in READERS)};"
        " give a training log"
    )


def _keys_with_numbers(lines: Sequence[str]) -> list[str]:
    """Return the keys beside which most lines have a number, at most eight."""
    found = Counter(
        key
        for line in lines
        for key in dict.fromkeys(_KEY_WITH_NUMBER.findall(line[:_LONGEST_LINE]))
    )
    least = max(2, len(lines) // 4)
    return [key for key, count in found.most_common(_MOST_KEYS) if count >= least]


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read one run: a log file, or a trimtab run directory.

    Raises:
        ReadError: It cannot be read, or it is a directory with several logs.
    """
    records = read(path)
    if len(records) != 1:
        names = ", ".join(r.source for r in records[:3])
        raise ReadError(f"{path}: holds {len(records)} logs ({names} ...); name one of them")
    return records[0]


def read_newest(
    path: str | os.PathLike[str], *, most: int | None = None, tried: int | None = None
) -> RunRecord:
    """Read a log, or the run of a directory that was written last; for what is still written.

    Args:
        path: Of either.
        most: Runs and other files that a directory may hold; None: any number.
        tried: How many of them are tried, the newest first; None: all.

    Raises:
        ReadError: It cannot be read, or there is no log in the directory, or too much else.
    """
    root = _checked(path)
    if not root.is_dir() or is_run_directory(root):
        return read_run(path)
    under = list(islice(runs_under(root, FolderCount()), None if most is None else most + 1))
    if most is not None and len(under) > most:
        raise ReadError(too_many_files(path, most))
    runs = sorted(under, key=_written_at, reverse=True)
    for run in runs[:tried]:
        found = [r for _, r in _read_safely(run) if isinstance(r, RunRecord)]
        if found:
            newest = max(found, key=lambda r: r.num_rows)
            if len(runs) == 1:
                return newest
            note = f"{path} holds several files; this run was written last: {newest.source}"
            return replace(newest, notes=(*newest.notes, note))
    raise ReadError(f"{path}: no log in this directory yet; give a log, or a directory with logs")


def too_many_files(path: str | os.PathLike[str], most: int) -> str:
    """Return what to say of a directory that holds too much to be followed."""
    return f"{path}: more than {most:,} files in it; give the log, or a folder of this run alone"


def _written_at(run: RunFiles) -> float:
    times = []
    for path in (p for choice in run.choices for p in choice):
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # removed meanwhile
            continue
    return max(times, default=0.0)


def read(path: str | os.PathLike[str]) -> list[RunRecord]:
    """Read a log, or every log in a directory; other files there are skipped.

    Raises:
        ReadError: A named file cannot be read, or a directory holds no log.
    """
    records: list[RunRecord] = []
    errors: list[ReadError] = []
    for _, outcome in read_each(path):
        if isinstance(outcome, RunRecord):
            records.append(outcome)
        else:
            errors.append(outcome)
    if records:
        return records
    if len(errors) == 1:
        raise errors[0]
    raise ReadError(
        f"{path}: no log among {len(errors)} files; looked for a trimtab run (journal.jsonl), "
        f"{'; '.join(r.looks_for for r in READERS)}"
    )


def _checked(path: str | os.PathLike[str]) -> Path:
    """Return a path that the system can look up; it may name nothing.

    Raises:
        ReadError: It is too long, or no name of a file.
    """
    root = Path(path)
    try:
        root.is_dir()
    except (OSError, ValueError) as error:
        shown = str(path)[:60] + ("..." if len(str(path)) > 60 else "")
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ReadError(f"{shown}: cannot be looked up ({why}); check the path") from error
    return root


def read_each(path: str | os.PathLike[str]) -> Iterator[tuple[str, RunRecord | ReadError]]:
    """Yield (path, record or why there is none) for a file, or for all runs in a directory.

    One bad file does not hide the others. What makes up one run, such as a directory of trimtab, of
    MLflow or of Hugging Face, or the TensorBoard event files of one directory, is one record
    (`folders`). Files in a directory that are no logs are passed over, and counted in a note of the
    last record. A database with several runs is one record each, named `FILE#RUN`; such a name can
    be given, too.
    """
    root = _checked(path)
    wanted = ""
    # A file may have # in its name; only where there is none does it divide file and run.
    if "#" in str(path) and not root.exists():
        name, _, wanted = str(path).rpartition("#")
        root = Path(name)
    if not root.is_dir():
        yield from _wanted(_read_safely(_one_file(root)), root, wanted) or [_nothing(path, wanted)]
        return
    count = FolderCount()
    reasons: list[ReadError] = []
    held: tuple[str, RunRecord] | None = None
    num_yielded = 0
    for run in runs_under(root, count):
        for source, outcome in _read_safely(run):
            if isinstance(outcome, ReadError) and outcome.is_something_else and run.source != root:
                count.num_skipped += 1
                reasons.append(outcome)
                continue
            num_yielded += 1
            if isinstance(outcome, ReadError):
                yield source, outcome
                continue
            # One record is held back: only behind the last one is known what was passed over.
            if held is not None:
                yield held
            held = source, outcome
    if held is not None:
        if count.num_skipped:
            others = counted(count.num_skipped, "other file")
            note = f"{others} in {root} passed over: no logs (weights, settings, text)"
            held = held[0], replace(held[1], notes=(*held[1].notes, note))
        yield held
    elif not num_yielded:
        yield str(path), _no_log(path, count, reasons)


def _one_file(path: Path) -> RunFiles:
    return RunFiles(path, ((path,),))


def _wanted(
    outcomes: Iterator[tuple[str, RunRecord | ReadError]], root: Path, wanted: str
) -> list[tuple[str, RunRecord | ReadError]]:
    return [
        (source, outcome)
        for source, outcome in outcomes
        if not wanted or isinstance(outcome, ReadError) or outcome.source == f"{root}#{wanted}"
    ]


def _nothing(path: object, wanted: str) -> tuple[str, ReadError]:
    what = f"no run {wanted!r} in it"
    return str(path), ReadError(f"{path}: {what}; give a log, or a directory with logs")


def _no_log(path: object, count: FolderCount, reasons: Sequence[ReadError]) -> ReadError:
    if len(reasons) == 1:
        return reasons[0]
    if not count.num_skipped:
        return ReadError(f"{path}: no log in this directory; give a log, or a directory with logs")
    return ReadError(
        f"{path}: no log among {counted(count.num_skipped, 'file')}; looked for a trimtab run "
        f"(journal.jsonl), {'; '.join(r.looks_for for r in READERS)}"
    )


def _read_safely(run: RunFiles) -> Iterator[tuple[str, RunRecord | ReadError]]:
    """Yield the records of a run, or one error: whatever goes wrong here stays here."""
    source = str(run.source)
    refused: ReadError | None = None
    for choice in run.choices:
        try:
            for record in _read_one(choice, str(choice[0]) if len(choice) == 1 else source):
                found = with_layer_norms(named_by_others(record))
                yield found.source if "#" in found.source else source, found
            return
        except ReadError as error:
            # The first form is the fullest: why it cannot be read is what is told.
            refused = refused or error
        except CUT_STREAM as error:
            refused = refused or ReadError(
                f"{source}: cannot be unpacked ({error}); check the file"
            )
        except Exception as error:  # noqa: BLE001 - a fault of ours on one file loses no other
            refused = refused or fault_error(source, "read", error)
    if refused is not None:
        yield source, refused


def fault_error(source: str, deed: str, error: Exception) -> ReadError:
    """Return the one error of a file on which trimtab itself failed.

    Args:
        source: The file.
        deed: What it failed to do: `read`, `judged`.
        error: What was raised.
    """
    fault = f"{type(error).__name__}: {error}"[:200]
    return ReadError(
        f"{source}: cannot be {deed}, by a fault of trimtab's own ({fault}); "
        "please report it, with the file"
    )


def _read_one(run: Sequence[Path], source: str) -> Iterator[RunRecord]:
    """Yield the records of one run, with values of their own where a bar prints running means."""
    yield from map(own_values, _as_logged(run, source))


def _as_logged(run: Sequence[Path], source: str) -> Iterator[RunRecord]:
    """Yield the records of one run: a path, the event files of a directory, or a database."""
    if len(run) > 1:
        yield TensorBoardReader().read_files(run, source)
    elif (log := supervised_log(run[0])) is not None:
        yield by_launches(read_run(log), run[0])
    elif is_run_directory(run[0]):
        yield read_run_directory(run[0])
    elif is_mlflow_run(run[0]):
        yield read_mlflow_run(run[0])
    elif run[0].is_dir():
        raise ReadError(
            f"{source}: this directory cannot be listed, or lies more than {MAX_FOLDERS} folders "
            "deep; check its rights, or name it"
        )
    elif len(runs := _read_cells(run[0], source)) > 1:
        yield from runs
    elif (members := members_of(run[0])) is not None:
        yield from _read_members(members, source)
    else:
        yield from _read_file(run[0])


def _read_file(path: Path) -> Iterator[RunRecord]:
    """Yield the records of a file; of one in which nothing has a known name, by how it moves."""
    try:
        reader = find_reader(path)
        if isinstance(reader, SqliteReader):
            yield from reader.read_all(path)
        else:
            yield _read_text(reader, path)
    except ReadError as error:
        sample = take_sample(path)
        keys = [*error.keys]
        if not sample.is_binary:
            keys += _keys_with_numbers(sample.lines)
            keys += names_of_columns(sample.text) if sample.whole else ()
        found = by_course(path, keys, lambda: _read_text(find_reader(path), path))
        if found is None:
            raise
        yield found


def _read_cells(path: Path, source: str) -> list[RunRecord]:
    """Return the runs of the cells of a notebook, where at least two hold one; else none.

    A cell that goes on where the one before ended belongs to the same run, and the notebook is read
    as a whole then.
    """
    found: list[RunRecord] = []
    with tempfile.TemporaryDirectory(prefix="trimtab-") as directory:
        for cell in notebook_cells(path):
            # What a table shows is clearer than what is printed around it.
            for lines in (cell.tables, cell.lines):
                unpacked = Path(directory) / "cell.txt"
                unpacked.write_text("\n".join(lines), encoding="utf-8", errors="replace")
                try:
                    record = _read_text(find_reader(unpacked), unpacked)
                except ReadError:
                    continue
                found.append(replace(record, source=f"{source}#cell-{cell.number}"))
                break
    goes_on = any(
        one.axis == other.axis == "step" and other.step[0] > one.step[-1]
        for one, other in pairwise(found)
    )
    return [] if goes_on else found


def _read_members(members: Iterator[Member], source: str) -> Iterator[RunRecord]:
    """Yield the records of the logs inside an archive, a notebook or a page; skip other files.

    Raises:
        ReadError: There is no log in it.
    """
    found = False
    with tempfile.TemporaryDirectory(prefix="trimtab-") as directory:
        for member in members:
            # Not the member's own path: it may be absolute or climb out with `..`.
            unpacked = Path(directory) / file_name(member)
            unpacked.write_bytes(member.data)
            try:
                record = next(_read_file(unpacked))
            except ReadError:
                continue
            finally:
                unpacked.unlink()
            # one log is enough: other files of an archive are code, configs, pictures
            found = True
            yield replace(record, source=f"{source}#{member.name}" if member.name else source)
    if not found:
        raise ReadError.of_no_log(
            f"{source}: no log in this archive, notebook or page; looked into its files, printed "
            "output and tables; give a training log"
        )


def _died_before(path: Path, what: str) -> ReadError | None:
    """Return what is to be said of a job that died before its first rows; None: it did not."""
    told = classify(read_tail(path))
    if told is None:
        return None
    return ReadError.of_no_log(
        f"{path}: no {what} of training, and its end tells of a crash ({told.crash_class}):"
        f" {masked_text(plain(told.line, limit=200))}; to act: {told.who_must_act}: {told.do}"
    )


def _read_text(reader: Reader, path: Path) -> RunRecord:
    """Read a file; text that only looks like a known trainer's is read as unknown text."""
    try:
        record = _read_lines(reader, path)
    except ReadError as error:
        died = _died_before(path, "record") if error.is_something_else else None
        raise died or error from None
    if record.format in _FORMATS_OF_TEXT:
        lines = read_tail(path)
        return with_unread_end(replace(record, tail=lines), lines, path)
    if isinstance(reader, (JsonlReader, CsvReader)):
        with watching(_unseen):  # a second look is no progress
            lines = read_tail(path)
        # `2>&1 | tee` puts what ended a run behind its rows.
        behind = _behind_the_rows(lines, is_json=isinstance(reader, JsonlReader))
        record = with_unread_end(record, behind, path)
        return replace(record, tail=behind) if behind else record
    return record


def _behind_the_rows(lines: Sequence[str], *, is_json: bool) -> tuple[str, ...]:
    """Return the last lines that are no rows of a table, or no objects of JSON lines."""
    num = 0
    for line in reversed(lines):
        cells = re.split(r"[,;|\t]", line)
        if line.lstrip().startswith("{") if is_json else any(map(_is_number, cells)):
            break
        num += 1
    return tuple(lines[len(lines) - num :])


def _is_number(cell: str) -> bool:
    try:
        return parse_number(cell.strip().strip("\"'")) is not None
    except BadNumberError:
        return False


def _read_lines(reader: Reader, path: Path) -> RunRecord:
    """Read text by the reader that explains more of it.

    The marks of a format occur in other text, too: a log may quote one line of Megatron's, or
    print its config as a dict. A reader that leaves most lines with a loss aside is held against
    those that know no format, and gives way to one that explains many more.
    """
    found: RunRecord | None = None
    refusal: ReadError | None = None
    try:
        found = reader.read(path)
    except ReadError as error:
        refusal = error
    is_json = isinstance(reader, JsonlReader)
    if not isinstance(reader, _OF_FREE_TEXT) and not (is_json and found is not None):
        return _one_of(found, refusal)
    thin = found is None or (not is_json and _is_thin(found, path))
    with watching(_unseen):  # a second look is no progress
        num_lines = num_loss_lines(path) if thin or not _explains_ends(reader, path) else 0
    if found is not None and found.num_loss_rows >= _MIN_EXPLAINED * num_lines:
        return found
    first = found
    for other in (HfStdoutReader(), TextReader()):
        if isinstance(other, type(reader)) or (found is not None and not num_lines):
            continue
        try:
            record = other.read(path)
        except ReadError:
            continue
        if found is None or record.num_loss_rows > _MIN_BETTER * found.num_loss_rows:
            found = record
    if found is not None and first is not None and found is not first:
        found = _with_second_run(found, first)
    if found is not None and found.num_loss_rows < _MIN_EXPLAINED * num_lines:
        share = found.num_loss_rows / num_lines
        text = (
            f"{UNREAD_NOTE}{share:.0%} of {num_lines} lines that name a loss are read as records; the"
            " others have another form: give them as a file of their own to have them judged"
        )
        found = replace(found, notes=(*found.notes, text))
    return _one_of(found, refusal)


def _with_second_run(record: RunRecord, aside: RunRecord) -> RunRecord:
    """Return a record with a note on records of another form in its file that it has none of."""
    losses = [
        r.columns["loss"].logged().tolist() if "loss" in r.columns else [] for r in (record, aside)
    ]
    # In as many digits as the form with fewer prints.
    digits = min(
        max((len(f"{x:.9g}".partition(".")[2]) for x in part), default=0) for part in losses
    )
    mine, others = ([round(x, digits) for x in part] for part in losses)
    known = set(mine)
    shared = sum(x in known for x in others)
    if len(others) < _FEWEST_OF_A_RUN or shared > _MOST_SHARED * len(others):
        return record
    keys = [*(k for k in aside.keys.values() if k not in record.keys.values()), *aside.unread]
    told = f" with {', '.join(map(shown, keys[:_MOST_TOLD]))}" if keys else ""
    lead = UNREAD_NOTE if len(others) >= _MANY_OF_A_RUN * record.num_loss_rows else ""
    note = (
        f"{lead}{counted(len(others), 'record')} of another form ({aside.format}){told} are left out,"
        " a second run, it seems: give them as a file of their own to have them judged"
    )
    return replace(record, notes=(*record.notes, note))


def _unseen(_path: str, _position: int) -> None:
    """Show nothing of it."""


def _explains_ends(reader: Reader, path: Path) -> bool:
    """Whether a reader reads the first and the last records of a file as it reads the others.

    A log may go on in another form where another program took over.
    """
    if isinstance(reader, JsonlReader):
        # Its lines are told from others at a glance; reading them again would cost more.
        return loss_lines_among([line for line in read_tail(path) if "{" not in line]) < _MIN_AT_END
    for lines in (take_sample(path).lines[:_MAX_AT_END], read_tail(path)[-_MAX_AT_END:]):
        num = loss_lines_among(lines)
        if num >= _MIN_AT_END and _num_read(reader, lines) < 0.5 * num:
            return False
    return True


def _num_read(reader: Reader, lines: Sequence[str]) -> int:
    """Return how many losses a reader reads from lines of a text."""
    with tempfile.TemporaryDirectory(prefix="trimtab-") as directory:
        path = Path(directory) / "lines.log"
        path.write_text("\n".join((*lines, "")), encoding="utf-8", errors="replace")
        try:
            return reader.read(path).num_loss_rows
        except ReadError:
            return 0


def _is_thin(record: RunRecord, path: Path) -> bool:
    """Whether so few records for so large a file ask for a look at its lines."""
    return record.num_loss_rows < _FEW_ROWS or path.stat().st_size > (
        _MANY_BYTES_PER_ROW * record.num_loss_rows
    )


def _one_of(found: RunRecord | None, refusal: ReadError | None) -> RunRecord:
    if found is not None:
        return found
    assert refusal is not None
    raise refusal
