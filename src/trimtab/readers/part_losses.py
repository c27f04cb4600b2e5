"""Losses that stand beside the one that is read, where no key is the whole: NaN in any is told.

A detector's log has `box_loss`, `cls_loss` and `dfl_loss`, that of a GAN `D_A` and `G_A`, and none
has their sum. One of them is read as the loss. The others need not fall and are not judged by their
level, but a NaN in one breaks the weights that all of them share: it counts in `nonfinite`. Those
of the two nets of a GAN, of a policy and of a critic are signals of their own as well
(`named_parts`). Beside a whole that is finite a part with NaN is none of its terms, and only a
note.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.nan_policy import nan_means_missing
from trimtab.readers.numbers import counted, shown
from trimtab.readers.tags import is_of_entropy, signal_of_tag
from trimtab.record import Column, RunRecord, most_values
from trimtab.vocabulary import SIGNAL_BY_NAME, canonical, normalise

__all__ = [
    "BROKEN_PARTS",
    "GAN_PAIR",
    "Watched",
    "name_entropy",
    "name_latent",
    "named_by_others",
    "named_parts",
    "net_of",
    "watch_parts",
]

BROKEN_PARTS = "nonfinite"
"""The signal that counts parts with NaN or Inf."""
GAN_PAIR = frozenset({"g", "d"})
"""Names of the losses of a generator and its discriminator, which mean so only side by side."""
_OF_A_POLICY = frozenset({"policy_loss", "update_kl", "policy_entropy"})
_MAX_TOLD = 6
_NETS = (
    {
        "generator_loss": re.compile(r"g|generator"),
        "discriminator_loss": re.compile(r"d|disc\w*|critic"),
    },
    {
        "generator_loss": re.compile(r"g[ /](?:gan|adv\w*|a|b|total)"),
        "discriminator_loss": re.compile(r"d[ /](?:gan|adv\w*|a|b|total)"),
    },
)
"""What the two nets' losses are called where no alias knows them: whole, else by a part of each."""


@dataclass(frozen=True)
class Watched:
    """Parts whose NaN is told."""

    keys: tuple[str, ...] = ()
    """All of them; none where a whole is read."""
    broken: tuple[Column, str] | None = None
    """How many are NaN or Inf in each row, and the first key that is; None where none ever is."""


def watch_parts(
    loss: str,
    values: Column,
    parts: Mapping[str, Column],
    notes: list[str],
    *,
    is_whole: bool | None = None,
    judged: Collection[str] = (),
) -> Watched:
    """Return the parts that are watched beside the loss that is read, and what broke.

    Args:
        loss: Key that is read as the loss.
        values: Its values [n_rows]; where they broke as well, the parts add nothing.
        parts: Other keys of losses, not of held-out data, each [n_rows].
        notes: What is looked at, and what broke, is added here.
        is_whole: Whether it is the sum of the parts; None: by its key.
        judged: Keys of parts that are signals of their own, so that more than NaN is told of them.

    A part that never was a number, or whose NaN come so regularly that they mean "not recorded",
    counts as missing there.
    """
    is_part = signal_of_tag(loss) != "loss" if is_whole is None else not is_whole
    finite = ~values.present | np.isfinite(values.values)
    broken = {k: bad for k, column in parts.items() if (bad := _broken(column) & finite).any()}
    for key, bad in list(broken.items())[:_MAX_TOLD]:
        said = "" if is_part else f"; {shown(loss)} is what is judged"
        notes.append(f"{shown(key)} is NaN or Inf in {counted(int(bad.sum()), 'row')}{said}")
    if not is_part or not parts:
        return Watched()
    others = [k for k in parts if k not in judged]
    if others:
        names = ", ".join(map(shown, others[:_MAX_TOLD])) + (
            " ..." if len(others) > _MAX_TOLD else ""
        )
        notes.append(f"of {names} only NaN and Inf are told: {shown(loss)} is read as the loss")
    if not broken:
        return Watched(tuple(parts))
    present = np.any([parts[key].present for key in broken], axis=0)
    count = np.sum(list(broken.values()), axis=0, dtype=np.float64)
    column = Column(np.where(present, count, np.nan), present)
    return Watched(tuple(parts), (column, next(iter(broken))))


def named_parts(keys: Iterable[str]) -> dict[str, str]:
    """Return signal -> key of the losses that are signals of their own: of two nets, of a critic.

    Example:
        >>> named_parts(("loss_d", "loss_g"))
        {'discriminator_loss': 'loss_d', 'generator_loss': 'loss_g'}
        >>> named_parts(("d", "g")), named_parts(("l1", "g a"))
        ({'generator_loss': 'g', 'discriminator_loss': 'd'}, {})
    """
    keys = list(keys)
    found: dict[str, str] = {}
    for key in keys:
        name = canonical(key)
        if name is not None and _is_judged_part(key):
            found.setdefault(name, key)
    if "generator_loss" in found and "critic" in normalise(found.get("value_loss", "")):
        found.setdefault("discriminator_loss", found.pop("value_loss"))  # beside a generator
    if any(name in found for name in _NETS[0]):
        return found
    for patterns in _NETS:
        of_nets = {
            name: next((k for k in keys if pattern.fullmatch(net_of(k))), None)
            for name, pattern in patterns.items()
        }
        # One letter is a name only beside the other.
        if all(of_nets.values()):
            return found | {name: key for name, key in of_nets.items() if key is not None}
    return found


def net_of(key: str) -> str:
    """Return a name without the word that it is of training: `train_G` is `g`."""
    return re.sub(r"^train[ /]", "", normalise(key))


def _is_judged_part(key: str) -> bool:
    """Whether a key names a part of a loss that the vocabulary has a signal for."""
    name = canonical(key)
    # `D_real` of a printed loss is no probability, whatever the vocabulary makes of it elsewhere.
    return name is not None and (
        (bool(SIGNAL_BY_NAME[name].domain) and name.endswith("_loss")) or name == "policy_kl"
    )


def name_latent(signals: dict[str, Column], keys: dict[str, str]) -> None:
    """Call a divergence beside a reconstruction that of the code: it is that of no policy."""
    if "recon_loss" in signals and "policy_kl" in signals:
        column, key = signals.pop("policy_kl"), keys.pop("policy_kl")
        if "latent_kl" not in signals:
            signals["latent_kl"], keys["latent_kl"] = column, key


def name_entropy(
    losses: Mapping[str, Column], signals: dict[str, Column], keys: dict[str, str]
) -> None:
    """Take a term of the loss that is never above 0 for the entropy of a policy, if no other is.

    `named_by_others` turns its sign.
    """
    key = next((k for k in losses if is_of_entropy(k)), None)
    if key is None or "policy_entropy" in signals:
        return
    if _is_minus_entropy(key, losses[key]):
        signals["policy_entropy"], keys["policy_entropy"] = losses[key], key


def named_by_others(record: RunRecord) -> RunRecord:
    """Return the record with signals called by what is logged beside them, whoever read it.

    A divergence beside a reconstruction is that of a code, and a share that is clipped beside the
    signals of a policy that of its ratios. An entropy that is a term of the loss and
    never above 0 is minus the entropy; one that crosses 0 is that of continuous actions, of which no
    share means anything: it is not judged.
    """
    signals, keys = dict(record.columns), dict(record.keys)
    name_latent(signals, keys)
    if "fraction" in keys.get("clipped", "") and not _OF_A_POLICY.isdisjoint(signals):
        # PPO's share of clipped ratios, beside its other signals.
        column, key = signals.pop("clipped"), keys.pop("clipped")
        signals.setdefault("policy_clip_share", column)
        keys.setdefault("policy_clip_share", key)
    notes = record.notes
    entropy, key = signals.get("policy_entropy"), keys.get("policy_entropy", "")
    if entropy is not None and _is_minus_entropy(key, entropy):
        signals["policy_entropy"] = Column(-entropy.values, entropy.present)
        notes = (*notes, f"{shown(key)} is minus the entropy: its sign is turned")
    unread = record.unread
    if entropy is not None and _crosses_zero(key, entropy):
        del signals["policy_entropy"], keys["policy_entropy"]
        unread = most_values({**unread, key: int(entropy.present.sum())})
    if keys == record.keys and notes == record.notes:
        return record
    return replace(record, columns=signals, keys=keys, notes=notes, unread=unread)


def _crosses_zero(key: str, column: Column) -> bool:
    values = column.logged()
    values = values[np.isfinite(values)]
    return normalise(key).endswith("loss") and bool((values < 0).any() and (values > 0).any())


def _is_minus_entropy(key: str, column: Column) -> bool:
    values = column.logged()
    values = values[np.isfinite(values)]
    return normalise(key).endswith("loss") and len(values) > 0 and float(values.max()) <= 0.0


def _broken(column: Column) -> NDArray[np.bool_]:
    """Return the rows in which a part broke, bool [n_rows]."""
    missing, _ = nan_means_missing(column, is_loss=False)
    bad: NDArray[np.bool_] = column.present & ~np.isfinite(column.values) & ~missing
    return bad
