"""What makes up one run each in a directory, whatever wrote it: once each, other files left out.

    NAME/trainer_state.json, checkpoint-N/, runs/...        a Hugging Face output folder: one run
    lightning_logs/version_N/{metrics.csv, events...}       one run a version
    wandb/run-DATE-ID/{run-ID.wandb, files/, logs/}         one run a folder
    outputs/DATE/TIME/{.hydra/, main.log, ...}              one run a folder
    LOGDIR/{train, validation}/events...                    one run; event files of a folder, too
    catboost_info/{catboost_training.json, learn/, ...}     one run
    journal.jsonl + signals/, meta.yaml + metrics/          a run of trimtab, of MLflow

Where a tracker has written the same run in several forms, the fullest is tried first and the others
are read only if it cannot be.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.limits import MAX_FOLDERS
from trimtab.readers.mlflow import is_mlflow_run
from trimtab.readers.rundir import is_run_directory
from trimtab.readers.tags import is_validation_word
from trimtab.readers.tensorboard import event_files_among

__all__ = ["FolderCount", "RunFiles", "files_under", "runs_under"]

_SKIPPED_DIRECTORIES = frozenset({"checkpoints", "aside", "__pycache__", "node_modules"})
_NO_LOGS = re.compile(
    r"""
    .*\.(safetensors | pt | pth | ckpt | onnx | distcp | patch | bin | h5 | keras | msgpack | npz
       | gguf | model | pyc | so | png | jpe?g | gif | svg | webp | pdf | mp4 | whl | lock | pid)
    | .*\.(py | md | rst | yaml | yml | toml | cfg | ini | sh | tsx? | css | scss)
    | README(\..*)? | LICEN[CS]E(\..*)?
    | debug(-internal|-core|-cli)?(\..*)?\.log     # of wandb itself
    | report\.html                               # of trimtab
    | wandb-(metadata | summary)\.json
    | journal\.(jsonl | head)                   # of trimtab's commands, beside another's logs
    | requirements\.txt | merges\.txt | vocab\.(json | txt)
    | .*(config | index | tokenizer | tokens | tokens_map | settings)\.json
    | scheduler\.json | training_args\.json
    | (all | train | eval | test | predict)_results\.json
    """,
    re.VERBOSE,
)
"""Files that stand beside a log and are none. A directory is read without them; one that is
named is read."""
_HF_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_HISTORY = "trainer_state.json"
_OF_BOOSTING = "catboost_training.json"
_WANDB_RUN = re.compile(r"(?:offline-)?run-\d{8}_\d{6}-\w+")


@dataclass(frozen=True)
class RunFiles:
    """The files of one run."""

    source: Path
    """What it is called by: the file, or the directory."""
    choices: tuple[tuple[Path, ...], ...]
    """Forms in which it may be read, the best first; each a file or the event files of a run."""


@dataclass
class FolderCount:
    """What was passed over."""

    num_skipped: int = 0
    """Files that are no logs by their names."""


def runs_under(directory: Path, count: FolderCount) -> Iterator[RunFiles]:
    """Yield what makes up one run each, in order of name; hidden files are left out.

    Links to directories (W&B's `latest-run`) are not followed: what they lead to has its own place.
    A directory that cannot be listed, or lies too deep, is yielded itself.
    """
    # A list of what is still to be looked into, not recursion: folders may lie in folders.
    waiting: list[tuple[Path | RunFiles, int]] = [(directory, 0)]
    while waiting:
        here, depth = waiting.pop()
        if isinstance(here, RunFiles):
            yield here
            continue
        if depth > MAX_FOLDERS or is_run_directory(here) or is_mlflow_run(here):
            yield _one(here)
            continue
        try:
            entries = sorted(e for e in here.iterdir() if not e.name.startswith("."))
            runs, below = _of_directory(here, entries, count)
        except OSError:
            yield _one(here)
            continue
        # last in, first out: the names in their order
        inside: list[Path | RunFiles] = [*runs, *below]
        inside.sort(key=lambda e: e.source if isinstance(e, RunFiles) else e, reverse=True)
        waiting += [(entry, depth + 1) for entry in inside]


def files_under(directory: Path) -> Iterator[Path]:
    """Yield the files in a directory and in the directories below it, down to `MAX_FOLDERS`.

    A directory below that is gone by now, or may not be read, is left out.

    Raises:
        OSError: A directory cannot be listed. What changed in it is then not known.
    """
    waiting = [(directory, 0)]
    while waiting:
        here, depth = waiting.pop()
        try:
            entries = list(here.iterdir())
        except (FileNotFoundError, PermissionError):
            if depth == 0:
                raise
            continue
        for entry in entries:
            if entry.is_dir():
                if depth < MAX_FOLDERS and not entry.is_symlink():
                    waiting.append((entry, depth + 1))
            elif entry.is_file():
                yield entry


def _one(path: Path) -> RunFiles:
    return RunFiles(path, ((path,),))


def _of_directory(
    here: Path, entries: Sequence[Path], count: FolderCount
) -> tuple[list[RunFiles], list[Path]]:
    """Return the runs that a directory is or holds, and the directories in it to look into."""
    folders = [e for e in entries if e.is_dir() and not e.is_symlink()]
    files = [e for e in entries if e.is_file()]
    logs = [f for f in files if not _NO_LOGS.fullmatch(f.name)]
    count.num_skipped += len(files) - len(logs)
    events = event_files_among(logs)
    rest = [f for f in logs if f not in events]
    for special in (_of_hugging_face, _of_catboost, _of_wandb, _of_lightning, _of_split_events):
        found = special(here, folders, rest, events)
        if found is not None:
            runs, used = found
            count.num_skipped += sum(f not in used for f in rest) if runs else 0
            return runs, [f for f in folders if f not in used and not _is_skipped(f)]
    runs = [RunFiles(here, (tuple(events),))] if events else []
    runs += [_one(f) for f in rest]
    return runs, [f for f in folders if not _is_skipped(f)]


def _is_skipped(folder: Path) -> bool:
    return folder.name in _SKIPPED_DIRECTORIES


_Found = tuple[list[RunFiles], set[Path]] | None
"""Runs, and the entries that belong to them; None: another kind of directory."""


def _of_hugging_face(
    here: Path, folders: Sequence[Path], files: Sequence[Path], events: Sequence[Path]
) -> _Found:
    """Read a Hugging Face output folder: its history, else its events, else its last checkpoint."""
    numbered = {f: int(m[1]) for f in folders if (m := _HF_CHECKPOINT.fullmatch(f.name))}
    logged = sorted(
        (f for f in numbered if (f / _HISTORY).is_file()), key=numbered.__getitem__, reverse=True
    )
    whole = here / _HISTORY
    if not logged and whole not in files:
        return None
    beside = [f for f in folders if f.name == "runs"]
    written = [*events, *(e for f in beside for e in _events_under(f))]
    states = [whole] if whole in files else []
    newest = [f / _HISTORY for f in logged[:1]]
    # Events go on while the last checkpoint's history stands still.
    choices = [(s,) for s in states] + ([tuple(written)] if written else [])
    choices += [(s,) for s in newest]
    source = here if len(choices[0]) > 1 else choices[0][0]
    # Logs of the user's own (`train.log`) may hold more than the run's history: they stand beside.
    others = [f for f in files if f.name not in (_HISTORY, "trainer_log.jsonl")]
    runs = [RunFiles(source, tuple(choices)), *(_one(f) for f in others)]
    return runs, {*files, *numbered, *beside}


def _of_catboost(
    here: Path, folders: Sequence[Path], files: Sequence[Path], events: Sequence[Path]
) -> _Found:
    """Read CatBoost's `catboost_info`: its document, else the table of the training error."""
    whole = here / _OF_BOOSTING
    if whole not in files:
        return None
    tables = [f for f in files if f.name in ("learn_error.tsv", "test_error.tsv", "time_left.tsv")]
    beside = [f for f in folders if f.name in ("learn", "tmp") or is_validation_word(f.name)]
    learned = [(f,) for f in tables if f.name == "learn_error.tsv"]
    run = RunFiles(whole, ((whole,), *learned))
    others = [f for f in files if f not in (whole, *tables)]
    return [run, *(_one(f) for f in others)], {*files, *beside, *events}


def _of_wandb(
    here: Path, folders: Sequence[Path], files: Sequence[Path], events: Sequence[Path]
) -> _Found:
    """Read a run's folder of W&B: its transaction log, else what the trainer printed."""
    if not _WANDB_RUN.fullmatch(here.name):
        return None
    choices = [(f,) for f in files if f.suffix == ".wandb"]
    printed = here / "files" / "output.log"
    choices += [(printed,)] if printed.is_file() else []
    if not choices:
        return None
    return [RunFiles(choices[0][0], tuple(choices))], {*files, *folders, *events}


def _of_lightning(
    here: Path, folders: Sequence[Path], files: Sequence[Path], events: Sequence[Path]
) -> _Found:
    """Read a version of Lightning's logs: events and `metrics.csv` are the same run."""
    table = here / "metrics.csv"
    if table not in files or not events:
        return None
    del folders
    run = RunFiles(here, (tuple(events), (table,)))
    others = [_one(f) for f in files if f != table]
    return [run, *others], {*files}


def _of_split_events(
    here: Path, folders: Sequence[Path], files: Sequence[Path], events: Sequence[Path]
) -> _Found:
    """Read the event files of `train/` and `validation/` as one run, as Keras writes them."""
    train = [f for f in folders if f.name.lower() in ("train", "training")]
    held_out = [f for f in folders if is_validation_word(f.name)]
    if not train or not held_out:
        return None
    parts = [e for f in (*train, *held_out) for e in event_files_among(sorted(f.iterdir()))]
    if not parts:
        return None
    run = RunFiles(here, ((*events, *parts),))
    return [run, *(_one(f) for f in files)], {*files, *train, *held_out}


def _events_under(folder: Path) -> list[Path]:
    """Return the event files in a folder and in the folders right below it."""
    inside = sorted(folder.iterdir())
    below = [e for f in inside if f.is_dir() and not f.is_symlink() for e in sorted(f.iterdir())]
    return event_files_among([*inside, *below])
