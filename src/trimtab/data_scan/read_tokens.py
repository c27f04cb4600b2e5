"""Token files: Megatron `.bin` with `.idx`, numpy `.npy`, llm.c and raw `.bin`.

Nothing is unpickled.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from trimtab.data_scan.block import BLOCK_BYTES, MAX_DOC_BYTES, DataBlock, Elements, Unit
from trimtab.errors import ReadError

__all__ = ["Tokens", "megatron", "npy", "raw_bin"]

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER_BYTES = 34
_INTEGERS = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Codes of Megatron-LM's indexed_dataset.py that are integers; 6 and 7 are floats."""
_LLM_C = {20240520: "<u2", 20240801: "<u4"}
"""Magic numbers of llm.c's data files (dev/data/data_common.py): GPT-2 tokens, Llama-3 tokens."""
_LLM_C_HEADER_BYTES = 1024
_NO_HEADER = (
    OSError,
    ValueError,
    SyntaxError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
    TokenError,
)
"""What numpy raises at a header that is damaged; its text is a Python literal."""


@dataclass
class Tokens:
    """Tokens in a row in a file, cut into samples of `context` tokens."""

    path: Path
    dtype: np.dtype[np.integer]
    offset: int
    num_tokens: int
    context: int
    doc_ends: NDArray[np.int64] | None = None
    """int64 [docs]: token after each document; None where the file does not mark documents."""
    unit: Unit = "sample"

    def __post_init__(self) -> None:
        """Count in tokens."""
        self.total = self.num_tokens
        self.notes: list[str] = []

    def blocks(self, cursor: int, next_id: int) -> Iterator[tuple[DataBlock, int]]:
        """Yield blocks; the cursor counts tokens, and `next_id` follows from it."""
        del next_id
        per_block = max(BLOCK_BYTES // self.dtype.itemsize // self.context, 1) * self.context
        with self.path.open("rb") as file:
            while cursor < self.num_tokens:
                end = self._block_end(cursor, per_block)
                data = self._read(file, cursor, end)
                if not len(data):
                    raise ReadError(
                        f"{self.path}: ends at token {cursor} of {self.num_tokens}; it was cut"
                    )
                end = cursor + len(data)
                yield self._block(data, cursor), end
                cursor = end

    def _block_end(self, cursor: int, per_block: int) -> int:
        """Return where a block ends: at a sample's edge, or a document's where they are marked."""
        end = min(cursor + per_block, self.num_tokens)
        if self.doc_ends is None:
            return end
        last = int(np.searchsorted(self.doc_ends, end, side="right"))
        whole = int(self.doc_ends[last - 1]) if last else cursor
        return whole if whole > cursor else end  # a document longer than a block is cut

    def _read(self, file: BinaryIO, cursor: int, end: int) -> Elements:
        file.seek(self.offset + cursor * self.dtype.itemsize)
        raw = file.read((end - cursor) * self.dtype.itemsize)
        whole = len(raw) - len(raw) % self.dtype.itemsize
        tokens = np.frombuffer(raw[:whole], self.dtype)
        return tokens.astype(np.uint16) if self.dtype.itemsize == 1 else tokens  # uint8 means text

    def _block(self, data: Elements, cursor: int) -> DataBlock:
        end, size = cursor + len(data), self.context
        edges = np.arange(cursor // size * size + size, end, size, dtype=np.int64)
        starts = np.concatenate(([cursor], edges, [end])).astype(np.int64)
        starts, ids = starts - cursor, starts[:-1] // size
        docs = starts
        if self.doc_ends is not None:
            # empty documents end where the one before does, and belong to the block of that one
            first = int(np.searchsorted(self.doc_ends, cursor, side="right")) if cursor else 0
            ends = self.doc_ends[first : np.searchsorted(self.doc_ends, end, side="right")] - cursor
            rest = [] if len(ends) and ends[-1] == len(data) else [len(data)]
            docs = np.concatenate(([0], ends, rest)).astype(np.int64)
        return DataBlock(data, starts, ids, docs, 0, len(data) * self.dtype.itemsize)


def megatron(index: Path, context: int) -> Tokens:
    """Return the tokens that a Megatron `.idx` describes; its `.bin` lies beside it.

    Layout: magic, uint64 version 1, uint8 dtype code, uint64 sequences, uint64 documents, then
    int32 sizes [sequences], int64 byte offsets [sequences], int64 first sequences [documents].
    Source: Megatron-LM, megatron/core/datasets/indexed_dataset.py.

    Raises:
        ReadError: It is not one, or does not fit its `.bin`.
    """
    try:
        with index.open("rb") as file:
            dtype, sizes, pointers, docs = _read_index(index, file)
        binary = index.with_suffix(".bin")
        size_bytes = binary.stat().st_size
    except OSError as error:
        raise ReadError(
            f"{error.filename or index}: cannot be read ({error.strerror}); an .idx needs its .bin"
        ) from error
    if (
        (sizes < 0).any()
        or (docs < 0).any()
        or (docs > len(sizes)).any()
        or (np.diff(docs) < 0).any()
    ):
        raise ReadError(
            f"{index}: sizes or documents are negative or out of order; rebuild the index"
        )
    ends = np.cumsum(sizes, dtype=np.int64)
    if len(sizes) and not np.array_equal(pointers, (ends - sizes) * dtype.itemsize):
        raise ReadError(
            f"{index}: sequences do not lie end to end in {binary.name}; merge the data again"
        )
    num = int(ends[-1]) if len(ends) else 0
    if num * dtype.itemsize > size_bytes:
        raise ReadError(
            f"{binary}: holds {size_bytes} bytes, its index asks for {num * dtype.itemsize}; the"
            " copy is not whole"
        )
    doc_ends = np.concatenate(([0], ends))[docs[1:]] if len(docs) > 1 else ends
    return Tokens(binary, dtype, 0, num, context, doc_ends)


def _read_index(
    index: Path, file: BinaryIO
) -> tuple[np.dtype[np.integer], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    head = file.read(_HEADER_BYTES)
    if len(head) < _HEADER_BYTES or not head.startswith(_MAGIC):
        raise ReadError(
            f"{index}: not a Megatron index (no MMIDIDX at its start), and the .bin beside it is"
            " read by its index; the old TNTIDX kind is not read; take it away to read the .bin as"
            " raw tokens with --dtype"
        )
    version = int.from_bytes(head[9:17], "little")
    num, num_docs = (int.from_bytes(head[i : i + 8], "little") for i in (18, 26))
    if version != 1 or head[17] not in _INTEGERS:
        raise ReadError(
            f"{index}: version {version}, dtype code {head[17]}; expected version 1 and integer"
            " tokens"
        )
    if _HEADER_BYTES + 12 * num + 8 * num_docs > index.stat().st_size:
        raise ReadError(
            f"{index}: {num} sequences and {num_docs} documents do not fit into it; the copy is not"
            " whole"
        )
    sizes = np.frombuffer(file.read(4 * num), "<i4")
    pointers = np.frombuffer(file.read(8 * num), "<i8")
    return (
        np.dtype(_INTEGERS[head[17]]),
        sizes,
        pointers,
        np.frombuffer(file.read(8 * num_docs), "<i8"),
    )


def npy(path: Path, context: int) -> Tokens:
    """Return the tokens of a `.npy`: one dimension, or rows that are samples.

    Raises:
        ReadError: It holds no integers, or objects.
    """
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            header = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = header(file)
            offset = file.tell()
            size_bytes = path.stat().st_size - offset
    except _NO_HEADER as error:
        why = (
            error.strerror
            if isinstance(error, OSError) and error.strerror
            else "its header is damaged or is none"
        )
        raise ReadError(
            f"{path}: cannot be read as a numpy array ({why}); save it with numpy.save"
        ) from error
    if any(n < 0 for n in shape):
        raise ReadError(f"{path}: says that it has the shape {shape}; save it again")
    if dtype.kind not in "iu" or len(shape) not in (1, 2) or (fortran and len(shape) > 1):
        raise ReadError(
            f"{path}: holds {dtype} of shape {shape}; expected integer tokens [tokens] or [samples,"
            " length], in C order"
        )
    # Python's integers: a product of numpy's would wrap around, and fit again.
    num = math.prod(map(int, shape))
    if num * dtype.itemsize > size_bytes:
        raise ReadError(
            f"{path}: holds {size_bytes:,} bytes of tokens, its header asks for"
            f" {str(num * dtype.itemsize)[:24]}; the copy is not whole"
        )
    if len(shape) == 2:
        context = max(int(shape[1]), 1)
        if context * dtype.itemsize > MAX_DOC_BYTES:
            raise ReadError(
                f"{path}: a row is {context * dtype.itemsize >> 20:,} MiB long, at most"
                f" {MAX_DOC_BYTES >> 20} are read at once; save it as one dimension, and give the"
                " length of a sample with --context"
            )
    return Tokens(path, dtype, offset, num, context)


def raw_bin(path: Path, context: int, dtype: str | None) -> Tokens:
    """Return the tokens of a `.bin` without an index; llm.c's header gives the dtype, else `dtype`.

    Raises:
        ReadError: Nobody says what the numbers are.
    """
    with path.open("rb") as file:
        head = file.read(_LLM_C_HEADER_BYTES)
    magic = int.from_bytes(head[:4], "little")
    size_bytes, offset = path.stat().st_size, 0
    if dtype is None and magic in _LLM_C and len(head) == _LLM_C_HEADER_BYTES:
        dtype, offset = _LLM_C[magic], _LLM_C_HEADER_BYTES
    if dtype is None:
        raise ReadError(
            f"{path}: raw tokens without an .idx; say what they are, such as --dtype uint16"
        )
    kind = np.dtype(dtype)
    return Tokens(path, kind, offset, (size_bytes - offset) // kind.itemsize, context)
