"""What was last measured of each block of the model, as a table for the terminal."""

import math
from collections.abc import Sequence

from trimtab.readers.layers import LayerReadings
from trimtab.text import number

__all__ = ["layers_table"]


def layers_table(readings: Sequence[LayerReadings]) -> str:
    """Return one line a block, and the first over the last; nothing where no block was read."""
    last = [r for r in readings if r.attempt == readings[-1].attempt]
    if not last:
        return ""
    head = ["block", *(r.name for r in last)]
    values = [r.values[-1].tolist() for r in last]
    lines = [head]
    for block in range(max(map(len, values))):
        lines.append([str(block), *(_number(v[block]) if block < len(v) else "—" for v in values)])
    lines.append(["first/last", *(_number(v[0] / v[-1] if v[-1] else math.nan) for v in values)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ("  ".join(x.rjust(w) for x, w in zip(line, widths, strict=True)) for line in lines)
    title = f"blocks in attempt {last[0].attempt}, as last read at step {number(last[0].step[-1])}"
    return "\n".join(["", title, *rows, ""])


def _number(value: float) -> str:
    return number(float(f"{value:.4g}")) if math.isfinite(value) else "—"
