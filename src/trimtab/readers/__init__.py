"""A log on disk -> RunRecord; the format is recognized by content, never by name.

    record = read_run("train.log")
    records = read("runs/")  # a directory of logs; a directory with journal.jsonl is one run

To add a format, write a `Reader` (`base`) and put it into `READERS`. What reads what:

| on disk                    | modules                                                     |
| -------------------------- | ----------------------------------------------------------- |
| any text with a loss in it | `freetext`                                                  |
| Megatron text              | `megatron`, `megatron_units`, `loss_scaling`, `line_layout` |
| JSON lines, CSV            | `jsonl`, `csv_table` over `table`, `table_axis`             |
| HF's and MLPerf's output   | `hf_stdout`, `mllog` over `table`, `table_axis`             |
| one JSON document          | `json_document`, `long_form`                                |
| TensorBoard event files    | `tensorboard` over `tfevents`, `tfrecord`, `crc32c`         |
| W&B offline runs           | `wandb` over `leveldb_log`                                  |
| MLflow, trackio            | `mlflow`, `sqlite_store`                                    |
| archives, notebooks, pages | `containers`                                                |
| trimtab's own directory    | `rundir`, `layers`                                          |

`protobuf` decodes the wire format that both TensorBoard and W&B use, and knows neither. `series`
builds records from one series per tag. `numbers`, `placeholders`, `nan_policy`, `skip_counter` and
`tags` settle what a value or a name means, for all of them.
"""

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from trimtab.errors import ReadError
from trimtab.limits import MAX_FOLDERS
from trimtab.readers.base import CUT_STREAM, Reader, read_tail, take_sample, watching
from trimtab.readers.containers import Member, file_name, members_of, name_of_binary
from trimtab.readers.csv_table import CsvReader
from trimtab.readers.freetext.formats import TEXT_FORMATS
from trimtab.readers.freetext.reader import TextReader
from trimtab.readers.hf_stdout import HfStdoutReader
from trimtab.readers.json_document import JsonDocumentReader
from trimtab.readers.jsonl import JsonlReader
from trimtab.readers.megatron import MegatronReader
from trimtab.readers.mlflow import is_mlflow_run, read_mlflow_run
from trimtab.readers.mllog import MllogReader
from trimtab.readers.rundir import is_run_directory, read_run_directory
from trimtab.readers.sqlite_store import SqliteReader
from trimtab.readers.tensorboard import TensorBoardReader, event_files_among
from trimtab.readers.wandb import WandbReader
from trimtab.record import RunRecord

__all__ = ["READERS", "Reader", "find_reader", "read", "read_each", "read_run", "watching"]

READERS: tuple[Reader, ...] = (
    MegatronReader(),
    JsonlReader(),
    CsvReader(),
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
CERTAIN = 0.95
"""Confidence at which no later reader is asked: some look through the whole file."""
_SKIPPED_DIRECTORIES = frozenset({"checkpoints", "aside", "__pycache__"})

_NO_LOGS = re.compile(
    r"""
    .*\.(safetensors | pt | pth | ckpt | onnx | distcp | patch)
    | (pytorch_model.* | training_args | optimizer | scheduler)\.bin
    | README\.md
    | debug(-internal|-core|-cli)?(\..*)?\.log     # of wandb itself
    | (conda-environment | config | wandb-metadata | wandb-summary)\.(yaml | json)
    | requirements\.txt | merges\.txt | vocab\.(json | txt)
    | .*(config | index | tokenizer | tokens | tokens_map)\.json
    | scheduler\.json | training_args\.json
    """,
    re.VERBOSE,
)
"""Files that stand beside a log in the folders of Hugging Face and W&B and are none. A directory is
read without them; one that is named is read."""

_HF_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


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
    known = name_of_binary(sample.raw) if sample.is_binary else ""
    if known:
        raise ReadError(f"{path}: {known}")
    what = "binary data of no known format" if sample.is_binary else "no records that can be read"
    raise ReadError(
        f"{path}: {what}; looked for {', '.join(r.name for r in READERS)}; give a training log"
    )


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


def read_each(path: str | os.PathLike[str]) -> Iterator[tuple[str, RunRecord | ReadError]]:
    """Yield (path, record or why there is none) for a file, or for all files in a directory.

    One bad file does not hide the others. A directory inside that is a run of trimtab or MLflow is
    one record, and so are the TensorBoard event files of one directory. A database with several
    runs is one record each, named `FILE#RUN`; such a name can be given, too.
    """
    root = Path(path)
    wanted = ""
    # A file may have # in its name; only where there is none does it divide file and run.
    if "#" in str(path) and not root.exists():
        name, _, wanted = str(path).rpartition("#")
        root = Path(name)
    num_yielded = 0
    for run in _runs_under(root) if root.is_dir() else ([root],):
        source = run[0] if len(run) == 1 else run[0].parent
        try:
            for record in _read_one(run, str(source)):
                if not wanted or record.source == f"{root}#{wanted}":
                    num_yielded += 1
                    yield record.source if "#" in record.source else str(source), record
        except ReadError as error:
            num_yielded += 1
            yield str(source), error
        except CUT_STREAM as error:
            num_yielded += 1
            damaged = f"{source}: cannot be unpacked ({error}); check the file"
            yield str(source), ReadError(damaged)
        except Exception as error:  # noqa: BLE001 - a fault of ours on one file loses no other
            num_yielded += 1
            fault = f"{type(error).__name__}: {error}"[:200]
            yield (
                str(source),
                ReadError(
                    f"{source}: cannot be read, by a fault of trimtab's own ({fault}); "
                    "please report it, with the file"
                ),
            )
    if not num_yielded:
        what = f"no run {wanted!r} in it" if wanted else "no log in this directory"
        yield str(path), ReadError(f"{path}: {what}; give a log, or a directory with logs")


def _read_one(run: Sequence[Path], source: str) -> Iterator[RunRecord]:
    """Yield the records of one run: a path, the event files of a directory, or a database."""
    if len(run) > 1:
        yield TensorBoardReader().read_files(run, source)
    elif is_run_directory(run[0]):
        yield read_run_directory(run[0])
    elif is_mlflow_run(run[0]):
        yield read_mlflow_run(run[0])
    elif run[0].is_dir():
        raise ReadError(
            f"{source}: this directory cannot be listed, or lies more than {MAX_FOLDERS} folders "
            "deep; check its rights, or name it"
        )
    elif (members := members_of(run[0])) is not None:
        yield from _read_members(members, source)
    else:
        reader = find_reader(run[0])
        if isinstance(reader, SqliteReader):
            yield from reader.read_all(run[0])
        else:
            yield _read_text(reader, run[0])


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
                record = _read_text(find_reader(unpacked), unpacked)
            except ReadError:
                continue
            finally:
                unpacked.unlink()
            # one log is enough: other files of an archive are code, configs, pictures
            found = True
            yield replace(record, source=f"{source}#{member.name}" if member.name else source)
    if not found:
        raise ReadError(
            f"{source}: no log in this archive, notebook or page; looked into its files, printed "
            "output and tables; give a training log"
        )


def _read_text(reader: Reader, path: Path) -> RunRecord:
    """Read a file; text that only looks like a known trainer's is read as unknown text."""
    if isinstance(reader, (*_OF_FREE_TEXT, TextReader)):
        return replace(_read_lines(reader, path), tail=read_tail(path))
    return reader.read(path)


def _read_lines(reader: Reader, path: Path) -> RunRecord:
    try:
        return reader.read(path)
    except ReadError as error:
        # Their marks occur in prose as well: a log may quote one line of Megatron's.
        if not isinstance(reader, _OF_FREE_TEXT):
            raise
        try:
            return TextReader().read(path)
        except ReadError:
            # The surer reader's message says more than that of the last resort.
            raise error from None


def _runs_under(directory: Path, depth: int = 0) -> Iterator[Sequence[Path]]:
    """Yield what makes up one run each, in order of name; hidden ones are left out.

    That is a run directory, a file, or all the event files of a directory. Links to directories
    (W&B's `latest-run`) are not followed: what they lead to has its own place.
    """
    if is_run_directory(directory) or is_mlflow_run(directory):
        yield [directory]
        return
    if depth > MAX_FOLDERS:
        yield [directory]
        return
    try:
        entries = sorted(e for e in directory.iterdir() if not e.name.startswith("."))
    except OSError:
        yield [directory]
        return
    events = event_files_among(entries)
    if events:
        yield events
    older = _older_checkpoints(directory, entries)
    for entry in entries:
        if entry.is_dir():
            skipped = entry.name in _SKIPPED_DIRECTORIES or entry in older
            if not skipped and not entry.is_symlink():
                yield from _runs_under(entry, depth + 1)
        elif entry.is_file() and entry not in events and not _NO_LOGS.fullmatch(entry.name):
            yield [entry]


def _older_checkpoints(directory: Path, entries: Sequence[Path]) -> set[Path]:
    """Return the checkpoints of a Hugging Face run whose history a newer file repeats."""
    numbered = {e: int(m[1]) for e in entries if (m := _HF_CHECKPOINT.fullmatch(e.name))}
    logged = [e for e in numbered if (e / "trainer_state.json").is_file()]
    if (directory / "trainer_state.json").is_file():
        return set(logged)
    return set(logged) - {max(logged, key=numbered.__getitem__, default=None)}
