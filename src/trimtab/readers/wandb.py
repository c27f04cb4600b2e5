"""W&B's offline transaction log, `run-ID.wandb`: LevelDB's log framing around protobuf records.

The file is cut into blocks of 32 KiB. A record that does not fit is split over several; checksums
are zlib's CRC-32 over type and data. Of the records only the history is read: its items are JSON
texts by key. A damaged block is passed over and reading goes on at the next one.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from trimtab.errors import ReadError
from trimtab.readers.base import Sample
from trimtab.readers.jsonl import flatten, parse_value
from trimtab.readers.numbers import counted
from trimtab.readers.table import Table
from trimtab.readers.whole import read_whole
from trimtab.readers.wire import BYTES, VARINT, WireError, fields
from trimtab.record import RunRecord

__all__ = ["WandbReader", "history_rows"]
