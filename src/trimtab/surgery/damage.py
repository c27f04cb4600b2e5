"""What can be seen of a checkpoint's files without hashes: whether one was cut off.

PyTorch's files are zip archives, whose table stands at the end; safetensors say in their head how
long they are. A file that was cut off by a kill or a full disk lacks one or the other.
"""

import json
import os
import zipfile
from itertools import islice
from pathlib import Path

__all__ = ["damage_in"]

_MAX_FILES = 10_000
_MAX_HEAD_BYTES = 100_000_000
"""The format's own limit."""
_TORCH = (".pt", ".pth", ".ckpt", ".bin", ".distcp")


def damage_in(path: Path) -> str:
    """Return what shows that a file of a checkpoint was cut off; empty where nothing does."""
    files = [path] if path.is_file() else islice(_files(path), _MAX_FILES)
    for file in files:
        try:
            why = _cut_off(file)
        except OSError as error:
            why = f"cannot be read ({error.strerror})"
        if why:
            return f"{file.name} {why}"
    return ""


def _files(folder: Path) -> list[Path]:
    found = [Path(inside) / n for inside, _, names in os.walk(folder) for n in names]
    return sorted(f for f in found if f.suffix in (*_TORCH, ".safetensors"))


def _cut_off(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(8)
        if path.suffix == ".safetensors":
            size = int.from_bytes(head, "little")
            if len(head) < 8 or size > _MAX_HEAD_BYTES:
                return ""  # another format under this name: nothing is known of it
            try:
                table = json.loads(file.read(size))
                ends = [v["data_offsets"][1] for k, v in table.items() if k != "__metadata__"]
                wanted = 8 + size + max(ends, default=0)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                return ""
            is_size = path.stat().st_size
            return f"has {is_size} bytes of {wanted}" if is_size < wanted else ""
    if head[:4] == b"PK\x03\x04" and not zipfile.is_zipfile(path):
        return "is cut off"
    return ""
