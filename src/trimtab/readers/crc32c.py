"""CRC-32C (Castagnoli) as TFRecord files use it, of one record or of many of equal length.

The CRC is linear over bits: for two messages of one length, crc(a) ^ crc(b) depends on a ^ b alone,
byte by byte. So for many records that differ in a few bytes, only those bytes are looked up.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["byte_effects", "crc32c", "crc32c_rows", "masked"]

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


def _make_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


_TABLE = _make_table()
_TABLE_INTS: tuple[int, ...] = tuple(_TABLE.tolist())


def crc32c(data: bytes) -> int:
    """Return the CRC of a message.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE_INTS[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def crc32c_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the CRC of each row of uint8 [n, length]; one pass over the columns."""
    crc = np.full(rows.shape[0], 0xFFFFFFFF, dtype=np.uint32)
    for column in rows.T:
        crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)


def masked(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return CRCs in the form in which TFRecord files store them (rotated, plus a constant)."""
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return (rotated + np.uint32(_MASK_DELTA)).astype(np.uint32)


@lru_cache(maxsize=64)
def byte_effects(length: int) -> NDArray[np.uint32]:
    """Return what a changed byte does to the CRC.

    Uint32 [length, 256] by place and by old ^ new.
    """
    effects = np.empty((length, 256), dtype=np.uint32)
    effect = _TABLE
    for place in range(length - 1, -1, -1):
        effects[place] = effect
        effect = _TABLE[effect & 0xFF] ^ (effect >> np.uint32(8))
    return effects
