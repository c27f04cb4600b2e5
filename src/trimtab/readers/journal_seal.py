"""The checksum that closes a line of trimtab's own journal.

A sealed line is a JSON object whose last field is `crc`: CRC-32 of the line's bytes without that
field, eight hexadecimal digits. A line of a version before seals has none and is read as it is.
"""

import re
from typing import Literal
from zlib import crc32

__all__ = ["LEGIBLE_SEAL", "checksum", "seal", "seal_state"]

_SEAL = re.compile(rb', "crc": "([0-9a-f]{8})"\}\r?$')
LEGIBLE_SEAL = re.compile(
    rb', "writer": "([0-9a-f]{8})", "seq": (\d{1,12}), "after": "([0-9a-f]{8})"(, "torn": true)?'
    rb', "crc": "[0-9a-f]{8}"\}\r?$'
)
"""What closes a line that trimtab wrote: its writer, number, `after` and `torn`."""


def checksum(data: bytes) -> str:
    """Return CRC-32 as eight hexadecimal digits."""
    return f"{crc32(data):08x}"


def seal(text: str) -> bytes:
    """Return the line of a JSON object, closed by its checksum, without a line end."""
    body = text.encode()
    return body[:-1] + b', "crc": "' + checksum(body).encode() + b'"}'


def seal_state(line: bytes) -> Literal["whole", "broken", "none"]:
    """Tell whether a line is what was written: its checksum matches, does not, or there is none."""
    found = _SEAL.search(line)
    if found is None:
        return "none"
    body = line[: found.start()] + b"}"
    return "whole" if checksum(body) == found[1].decode() else "broken"
