"""Each start of a supervised command as an attempt of its chronicle."""

from collections.abc import Mapping, Sequence

from trimtab.chronicle.journal import Event
from trimtab.configs.arguments import argument_tree
from trimtab.supervise.notes import SupervisorNotes
from trimtab.supervise.resume import LaunchFlags, Restore
from trimtab.supervise.state import JobState

__all__ = ["AttemptBook"]

_MOST_TEXT = 200


class AttemptBook:
    """Writes the attempts of one folder; those of supervisors before count on."""

    def __init__(self, notes: SupervisorNotes, framework: LaunchFlags | None) -> None:
        """Take in what the journal tells of the attempts so far."""
        self._notes = notes
        # What tells which checkpoint to load changes with each start and is no setting.
        self._unsaid = tuple(_name(flag) for flag in framework.flags) if framework else ()
        self._starts: list[tuple[int, float]] = []
        """Number and first step of each attempt, oldest first."""
        self.num_before = 0
        """Number of the last attempt that the journal speaks of; 0: of none."""
        self.why = "the command as given"
        """Why the next attempt is begun."""
        for event in notes.earlier:
            number = _number_of(event)
            self.num_before = max(self.num_before, number)
            if event.event == "attempt":
                self._starts.append((number, float(event.step)))

    def begun(self, state: JobState, argv: Sequence[str], restore: Restore | None) -> None:
        """Write down the attempt that was begun, unless a supervisor before did.

        Args:
            state: With the number of the attempt.
            argv: Its command.
            restore: What it loads; None: what the command says.
        """
        if any(number == state.attempt for number, _ in self._starts):
            return
        step = 0 if restore is None else restore.step
        parent: int | None = None
        if state.attempt > state.num_before + 1 or restore is not None:
            # The last one that had come to the checkpoint: those between began behind it.
            came = [number for number, first in self._starts if restore is None or first < step]
            parent = max(came, default=None)
        anew = parent is not None and state.before == 0
        self._starts.append((state.attempt, float(step)))
        self._notes.write_at(
            step,
            state,
            "attempt",
            number=f"{state.attempt}.0",
            parent=None if parent is None else f"{parent}.0",
            parent_step=0 if anew else None if restore is None else step,
            checkpoint=None if restore is None else restore.path,
            why=self.why,
            trial=False,
            supervised=True,
            settings={k: v for k, v in _flags(argv).items() if k not in self._unsaid},
        )


def _number_of(event: Event) -> int:
    major = event.attempt.partition(".")[0]
    return int(major) if major.isdecimal() and len(major) < 10 else 0


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_").replace("/", ".")


def _flags(argv: Sequence[str]) -> dict[str, str]:
    """Return the options of a command by their names, dots kept."""
    found: dict[str, str] = {}

    def walk(tree: Mapping[str, object], above: str) -> None:
        for key, value in tree.items():
            if isinstance(value, Mapping):
                walk(value, f"{above}{key}.")
            else:
                told = " ".join(map(str, value)) if isinstance(value, list) else str(value)
                found[above + key] = told[:_MOST_TEXT]

    walk(argument_tree(argv[1:]), "")
    return found
