"""A whole file in memory, decompressed, for formats that are not read line by line."""

from pathlib import Path

from trimtab.errors import ReadError
from trimtab.limits import MAX_WHOLE_BYTES, size_text
from trimtab.readers.base import CUT_STREAM, open_bytes

__all__ = ["read_whole"]

_PART_SIZE_BYTES = 1 << 24


def read_whole(path: Path) -> tuple[bytes, bool]:
    """Return a file's bytes, and whether its compressed data breaks off before its end.

    Raises:
        ReadError: The file is missing, unreadable, empty or beyond `MAX_WHOLE_BYTES`.
    """
    parts: list[bytes] = []
    size = 0
    cut = False
    with open_bytes(path) as stream:
        try:
            while part := stream.read1(_PART_SIZE_BYTES):
                parts.append(part)
                size += len(part)
                if size > MAX_WHOLE_BYTES:
                    limit = size_text(MAX_WHOLE_BYTES)
                    raise ReadError(f"{path}: holds more than {limit}; split it into several files")
        except CUT_STREAM:
            cut = True
    if not size:
        raise ReadError(f"{path}: empty; nothing has been logged yet, or it is the wrong file")
    return parts[0] if len(parts) == 1 else b"".join(parts), cut
