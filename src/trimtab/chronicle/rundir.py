"""The layout of a run directory: the only place that knows the names of its files.

runs/NAME/
  run.toml                 settings as launched
  journal.jsonl            events: the truth
  signals/ATTEMPT.jsonl    one JSON object per step: {"step": 12, "loss": 3.4, ...}; also primary
  signals/layers/ATTEMPT.jsonl  one value per block: {"step": 40, "grad_norm": [0.1, 0.2], ...}
  checkpoints/step-00001200/
  aside/                   what rollbacks moved out of the way
  report.html              derived
  verdict.json             how the guarded process ended
  skip.json                items of the dataset that are never fed (trimtab.plan.skiplist)
  journal.head             the last decision of the journal, once more
  .lock                    held by the guard that writes here; a second one is refused
"""

from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import ReadError

__all__ = ["RunDirectory", "has_samples", "is_there"]


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run directory."""

    root: Path

    @property
    def settings(self) -> Path:
        """Settings as launched, TOML."""
        return self.root / "run.toml"

    @property
    def journal(self) -> Path:
        """Events."""
        return self.root / "journal.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the process that writes here."""
        return self.root / ".lock"

    @property
    def signals(self) -> Path:
        """Folder of samples, one file per attempt."""
        return self.root / "signals"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.root / "checkpoints"

    @property
    def aside(self) -> Path:
        """Folder of what rollbacks moved aside."""
        return self.root / "aside"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.root / "report.html"

    @property
    def verdict(self) -> Path:
        """How the guarded process ended."""
        return self.root / "verdict.json"

    @property
    def skip_list(self) -> Path:
        """Items of the dataset that are never fed."""
        return self.root / "skip.json"

    def signals_of(self, attempt: str) -> Path:
        """File with the samples of one attempt."""
        return self.signals / f"{attempt}.jsonl"

    def checkpoint_of(self, step: int) -> Path:
        """Folder of the checkpoint after `step`."""
        return self.checkpoints / f"step-{step:08d}"


def has_samples(directory: RunDirectory) -> bool:
    """Whether samples of a run are in a directory; a file is there before its first row.

    Raises:
        ReadError: It cannot be looked at.
    """
    if not is_there(directory.signals):
        return False
    try:
        files = (p for p in directory.signals.iterdir() if p.suffix == ".jsonl")
        return any(p.stat().st_size for p in files)
    except OSError as error:
        raise ReadError(_cannot_look(directory.signals, error)) from error


def is_there(path: Path) -> bool:
    """Whether something is at a path.

    Raises:
        ReadError: It cannot be looked at.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ReadError(_cannot_look(path, error)) from error
    return True


def _cannot_look(path: Path, error: OSError) -> str:
    return (
        f"{path}: cannot be looked at ({error.strerror}), so it is not known whether a run is"
        " there; mount the disk or restore its rights, then start again"
    )
