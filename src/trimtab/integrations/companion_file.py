"""`trimtab.pt` within a trainer's checkpoint: what the guard needs to resume from it bit for bit.

Random states, position in the data, detectors and decisions, as tensors and text. It is read
without running code from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["has_companion", "load_companion", "save_companion"]

_NAME = "trimtab.pt"


def has_companion(folder: Path) -> bool:
    """Whether a checkpoint was saved with a companion."""
    return (folder / _NAME).exists()


def save_companion(folder: Path, companion: Mapping[str, object]) -> None:
    """Write the companion of a checkpoint."""
    torch.save(dict(companion), folder / _NAME)


def load_companion(folder: Path) -> dict[str, object] | None:
    """Return the companion of a checkpoint; None where it was saved without one.

    Raises:
        Exception: The file is damaged; which error depends on the bytes.
    """
    path = folder / _NAME
    if not path.is_file():
        return None
    # Never the full pickle: a checkpoint may come from someone else, and a pickle runs code.
    found: dict[str, object] = torch.load(path, weights_only=True)
    return found
