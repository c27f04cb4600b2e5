"""What went wrong in a hook, for after the step: there it would break the user's forward pass."""

from dataclasses import dataclass

__all__ = ["KeptError"]


@dataclass
class KeptError:
    """An error that waits."""

    error: Exception | None = None

    def raise_once(self) -> None:
        """Raise it, where there is one, and forget it."""
        error, self.error = self.error, None
        if error is not None:
            raise error
