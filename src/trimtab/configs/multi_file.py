"""Configs of one run that lie in several files: the shape from one, the training from another."""

import os.path
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from trimtab.configs.settings import Setting, Settings

__all__ = ["joined"]

SHAPE = (
    "hidden",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "ffn_effective",
    "gated_ffn",
    "vocab",
    "experts",
    "tied_embeddings",
    "params",
    "active_params",
    "qk_norm",
    "embed_norm",
    "norm",
    "activation",
    "position",
    "init_std",
    "init_std_output",
    "max_positions",
    "softcap_attention",
    "softcap_final",
    "embedding_scale",
)
"""Settings that a model's description gives to the run that trains it."""
USUAL_NAME = "config.json"


def joined(found: Sequence[Settings], *, given_together: bool = False) -> list[Settings]:
    """Return configs, with the model's shape filled in from a description in another file.

    A description is taken where exactly one fits: the file that the training names, or
    `config.json` in the same folder, or, for files that were given together, the only description
    among them. A run that starts from named weights keeps their size.
    """
    descriptions = [s for s in found if describes(s)]
    anyhow = descriptions if given_together else []
    read = {PurePath(s.path).name for s in found}
    return [without_read(with_shape(s, fitting(s, descriptions, anyhow)), read) for s in found]


def without_read(run: Settings, read: set[str]) -> Settings:
    """Return a run without the remark on an unread file, where that file was read separately."""
    left = tuple(
        doubt
        for doubt in run.doubts
        if doubt.kind != "not-read" or doubt.key or PurePath(doubt.text).name not in read
    )
    return replace(run, doubts=left)


def describes(settings: Settings) -> bool:
    """Whether this describes a model and not its training."""
    shaped = "hidden" in settings.values and "layers" in settings.values
    trains = any(
        n in settings.values
        for n in ("lr", "optimizer", "train_steps", "batch_samples", "micro_batch")
    )
    return shaped and not trains


def fitting(
    run: Settings, descriptions: Sequence[Settings], anyhow: Sequence[Settings]
) -> Settings | None:
    """Return the description that belongs to a run, or None.

    `anyhow` are those that need no name to belong to it.
    """
    trains = "lr" in run.values or "train_steps" in run.values
    if (
        not trains
        or "hidden" in run.values
        or "layers" in run.values
        # Given weights bring their own shape, which a description beside them need not share.
        or run.get("pretrained") is True
    ):
        return None
    here = PurePath(run.path).parent
    paths = {os.path.normpath(here / name) for name in run.names_files}
    names = {PurePath(name).name for name in run.names_files}
    named = [d for d in descriptions if os.path.normpath(d.path) in paths]
    named = named or [d for d in descriptions if PurePath(d.path).name in names]
    beside = [
        d
        for d in descriptions
        if PurePath(d.path).parent == here and PurePath(d.path).name == USUAL_NAME
    ]
    # The closest tie decides alone: a file that is named beats one that only lies beside.
    candidates = named or beside or anyhow
    return candidates[0] if len(candidates) == 1 else None


def with_shape(run: Settings, description: Settings | None) -> Settings:
    """Return a run with the shape of a description."""
    if description is None:
        return run
    file = PurePath(description.path).name
    lent = {
        name: Setting(found.value, found.origin, f"{file}: {found.key}", found.line, found.text)
        for name in SHAPE
        if (found := description.values.get(name)) is not None and name not in run.values
    }
    note = (*run.note, f"shape taken from {description.path}")
    return replace(run, values={**run.values, **lent}, note=note)
