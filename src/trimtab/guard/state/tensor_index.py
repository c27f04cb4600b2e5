"""The index of a checkpoint's tensors, which torch keeps in a pickle: read without running it.

Torch's distributed checkpoint unpickles `tensors/.metadata` itself, and a pickle can call anything.
Here its bytes are compared with the manifest's hash, then unpickled with the few classes that such
an index is made of and nothing else; torch is handed the result.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from trimtab.checkpoints.manifest import listed_hashes
from trimtab.errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["IndexedReader"]

_INDEX = "tensors/.metadata"
_METADATA, _FILES = metadata.__name__, filesystem.__name__
_ALLOWED: Mapping[tuple[str, str], object] = {
    **{
        (_METADATA, name): getattr(metadata, name)
        for name in (
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    },
    (_FILES, "_StorageInfo"): filesystem._StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    # where it was saved, which nobody asks for: as a text that opens nothing
    **{
        (module, name): PureWindowsPath if "Windows" in name else PurePosixPath
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    },
}
"""What the index of a trimtab checkpoint is made of; the types of tensors come with it."""


class _IndexUnpickler(pickle.Unpickler):
    """Unpickles what is allowed, and refuses the rest by name."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class; others are not even looked up."""
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        kind = getattr(torch, name, None) if module == "torch" and name.isidentifier() else None
        if isinstance(kind, torch.dtype):
            return kind
        raise pickle.UnpicklingError(f"it names {module[:60]}.{name[:60]}")


class IndexedReader(FileSystemReader):
    """Reads the tensors of one checkpoint whose files match its manifest."""

    def __init__(self, checkpoint: Path) -> None:
        """Read and check the index.

        Args:
            checkpoint: The folder.

        Raises:
            ReadError: It is not the index that was saved, or names what no index of ours does.
        """
        super().__init__(str(checkpoint / "tensors"))
        self.index = _read_index(checkpoint)

    def read_metadata(self, *_: object, **__: object) -> Metadata:
        """Return the index; torch's own reader would unpickle it."""
        self.index.storage_meta = StorageMeta(load_id=self.load_id)
        return self.index


def _read_index(checkpoint: Path) -> Metadata:
    path, hashes = checkpoint / _INDEX, listed_hashes(checkpoint)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ReadError(f"{path}: cannot be read ({error.strerror})") from error
    if hashlib.sha256(raw).hexdigest() != hashes.get(_INDEX):
        raise ReadError(f"{path}: does not match the hash in manifest.json; it is not opened")
    try:
        index = _IndexUnpickler(io.BytesIO(raw)).load()
        problem = _problem(index, hashes)
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise anything
        index, problem = None, str(error) or type(error).__name__
    if problem:
        raise ReadError(
            f"{path}: is no index of a checkpoint that trimtab saved: {problem}; nothing of it was"
            " run; find out who wrote it, and resume from another checkpoint"
        )
    assert isinstance(index, Metadata)
    return index


def _problem(index: object, hashes: Mapping[str, str]) -> str:
    """Return what an index holds that ours never do; empty where it holds nothing of the kind."""
    if not isinstance(index, Metadata) or not isinstance(index.state_dict_metadata, dict):
        return "it holds no Metadata"
    entries: list[tuple[object, object]] = list(index.state_dict_metadata.items())
    for key, known in entries:
        # any other entry is bytes that torch would unpickle
        if not isinstance(key, str) or not isinstance(known, TensorStorageMetadata):
            return f"{key!r:.60} is not a tensor"
    if not isinstance(index.storage_data, dict):
        return "it does not say where the tensors lie"
    for place in index.storage_data.values():
        if not isinstance(place, filesystem._StorageInfo):
            return "it does not say where the tensors lie"
        if f"tensors/{place.relative_path}" not in hashes:
            return f"it names a file outside the manifest, {place.relative_path!r:.80}"
        if place.transform_descriptors:
            return "its tensors are stored in a form that trimtab does not write"
    return ""
