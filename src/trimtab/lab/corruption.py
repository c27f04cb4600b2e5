"""Corruptions of training data, applied to a window of absolute sample ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Corruption", "CorruptionKind"]

CorruptionKind = Literal["random", "repeat", "shuffle", "xor", "escape", "artifact"]

# Each pass doubles the backslashes: after four a line break has nine characters.
_NUM_REESCAPES = 4
_ARTIFACT_PATTERN = np.frombuffer(rb"\\\u00", dtype=np.uint8)
_ARTIFACT_SHARE = 0.9
# Keeps the draws of a corruption apart from those of the data order, which use the same seed.
_STREAM = 0x0BAD


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """A window of samples whose bytes are damaged; the same sample is always damaged alike.

    The kinds, by what they stand for:

    - `random`: uniform bytes, as of a truncated or still compressed shard; loss jumps at once.
    - `repeat`: one printable character throughout, as of padding that went into the data.
    - `shuffle`: the row's own bytes in random order; byte frequencies stay right, so this is the
      least visible one.
    - `xor`: every byte inverted, as of a wrong decoder.
    - `escape`: text escaped four times over, as of a serialiser run again and again.
    - `artifact`: nine tenths of the row is one escape run; loss falls *below* its trend.
    """

    kind: CorruptionKind
    """What happens to a damaged row."""
    first_sample: int
    """Absolute sample id at which the window starts; ids count from 0."""
    num_samples: int
    """Length of the window, in samples."""
    fraction: float = 1.0
    """Share of the window's samples that are damaged, each drawn by its own id; 0 < f <= 1."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(CorruptionKind):
            kinds = ", ".join(get_args(CorruptionKind))
            raise ConfigError(f"Corruption.kind is {self.kind!r}; choose one of {kinds}")
        if self.first_sample < 0:
            raise ConfigError(f"Corruption.first_sample is {self.first_sample}; ids count from 0")
        if self.num_samples < 1:
            raise ConfigError(f"Corruption.num_samples is {self.num_samples}; must be at least 1")
        if not 0.0 < self.fraction <= 1.0:
            raise ConfigError(f"Corruption.fraction is {self.fraction}; must be in (0, 1]")

    @property
    def end_sample(self) -> int:
        """First sample id after the window."""
        return self.first_sample + self.num_samples

    def apply(
        self, rows: NDArray[np.uint8], sample_ids: NDArray[np.int64], *, seed: int
    ) -> NDArray[np.uint8]:
        """Return the rows with those of the window damaged.

        Args:
            rows: uint8 [n_samples, row_bytes], clean; left as it is.
            sample_ids: int64 [n_samples], absolute ids of the rows.
            seed: The run's seed; damage is a function of (seed, sample id) alone.

        Returns:
            uint8 [n_samples, row_bytes]; `rows` itself where no row is damaged.
        """
        inside = (sample_ids >= self.first_sample) & (sample_ids < self.end_sample)
        if not inside.any():
            return rows
        damaged = rows.copy()
        for index in np.flatnonzero(inside):
            # By sample id: a sample that a rollback feeds again is damaged alike.
            rng = np.random.default_rng([_STREAM, seed, int(sample_ids[index])])
            if rng.random() < self.fraction:
                damaged[index] = _damage(rows[index], self.kind, rng)
        return damaged


def _damage(
    row: NDArray[np.uint8], kind: CorruptionKind, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Return one damaged row, uint8 [row_bytes]."""
    match kind:
        case "random":
            return rng.integers(0, 256, row.size, dtype=np.uint8)
        case "repeat":
            return np.full_like(row, rng.integers(33, 127))
        case "shuffle":
            return rng.permutation(row)
        case "xor":
            return np.bitwise_not(row)
        case "escape":
            return _reescaped(row)
        case "artifact":
            num_kept = row.size - int(row.size * _ARTIFACT_SHARE)
            return np.concatenate(
                [row[:num_kept], np.resize(_ARTIFACT_PATTERN, row.size - num_kept)]
            )


def _reescaped(row: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Escape the row as a JSON string would be, again and again, and keep its first bytes."""
    text = row.tobytes()
    for _ in range(_NUM_REESCAPES):
        for plain, escaped in ((b"\\", rb"\\"), (b"\n", rb"\n"), (b'"', rb"\"")):
            text = text.replace(plain, escaped)
    return np.frombuffer(text, dtype=np.uint8)[: row.size]
