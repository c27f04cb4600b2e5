"""The step of a checkpoint whose name does not say it, without loading the file.

The archive's `data.pkl` is read opcode by opcode: after `global_step` (or `iter_num`) stands
its number. Nothing in it is run, no object is made, and torch is not needed.
"""

import json
import pickletools
import zipfile
from pathlib import Path

__all__ = ["step_in_checkpoint", "step_in_state"]

_MAX_BYTES = 1 << 24
"""Most of `data.pkl` that is read; the step stands near its beginning."""
_KEYS = ("global_step", "iter_num")
"""Of Lightning, and of scripts after nanoGPT."""
_MEMO = frozenset({"MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "FRAME"})


def step_in_checkpoint(path: Path) -> int | None:
    """Return the step that a checkpoint holds; None where none can be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((n for n in archive.namelist() if n.endswith("data.pkl")), None)
            if name is None:
                return None
            with archive.open(name) as file:
                pickled = file.read(_MAX_BYTES)
            return next((s for k in _KEYS if (s := _after_key(pickled, k)) is not None), None)
    except (OSError, ValueError, zipfile.BadZipFile, RuntimeError, EOFError, NotImplementedError):
        return None


def _after_key(pickled: bytes, key: str) -> int | None:
    seen = False
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if seen and opcode.name not in _MEMO:
                number = argument if isinstance(argument, int) else -1
                return None if number < 0 or isinstance(argument, bool) else number
            seen = seen or (argument == key and "UNICODE" in opcode.name)
    except (ValueError, KeyError, IndexError, EOFError):
        return None
    return None


def step_in_state(path: Path) -> int | None:
    """Return the `global_step` of Hugging Face's `trainer_state.json`; None where there is none."""
    try:
        if path.stat().st_size > 1 << 30:
            return None
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    step = data.get("global_step") if isinstance(data, dict) else None
    return step if isinstance(step, int) and not isinstance(step, bool) else None
