"""Everything trimtab raises on purpose.

TrimtabError
├── ReadError          a log, checkpoint or run directory cannot be read
├── ConfigError        a setting is impossible (also a ValueError)
├── PlanError          no plan can be made from what is known
├── ActError           an action on a run could not be carried out
├── ChronicleError     the journal cannot be written or is not a journal
│   └── OwnerLost      another process took the run directory
└── MissingExtraError  an optional package is needed (also an ImportError)

A message says what, which value, where, and what to do.
"""

__all__ = [
    "ActError",
    "ChronicleError",
    "ConfigError",
    "MissingExtraError",
    "OwnerLost",
    "PlanError",
    "ReadError",
    "TrimtabError",
]


class TrimtabError(Exception):
    """Root of all errors that trimtab raises on purpose."""


class ReadError(TrimtabError):
    """A file or directory cannot be read as what it should be.

    Attributes:
        is_something_else: The file is whole and no log; among the files of a directory it is
            passed over.
        keys: What it holds numbers under that nobody knows, the most frequent first.
    """

    is_something_else = False
    keys: tuple[str, ...] = ()

    @classmethod
    def of_no_log(cls, message: str) -> "ReadError":
        """Return the error of a file that is whole and no log."""
        error = cls(message)
        error.is_something_else = True
        return error


class ConfigError(TrimtabError, ValueError):
    """A setting has an impossible value."""


class PlanError(TrimtabError):
    """No plan can be made from what is known."""


class ActError(TrimtabError):
    """An action on a run could not be carried out; the run is as it was."""


class ChronicleError(TrimtabError):
    """The journal cannot be written, or a file is not a journal."""

    holder = ""
    """Which process holds the run directory, where that is the reason; empty: it is another."""


class OwnerLost(TrimtabError):  # noqa: N818 - a state to be handled, not a mistake
    """Another process took this run directory: nothing more may be written into it."""


class MissingExtraError(TrimtabError, ImportError):
    """An optional package is needed; the message names the extra to install."""

    def __init__(self, what: str, extra: str) -> None:
        """Say what needs which extra.

        Args:
            what: The thing that was asked for, as the start of a sentence.
            extra: Name of the extra of the trimtab distribution.
        """
        super().__init__(
            f"{what} needs the {extra!r} extra; in a checkout of trimtab: pip install '.[{extra}]'"
        )
        self.extra = extra
