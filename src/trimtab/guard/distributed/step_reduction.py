"""One step of all ranks as one: the small vector that each sends, and what they mean together."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from trimtab.guard.distributed.rank_pace import PaceShare

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trimtab.guard.distributed.process_group import Ranks

__all__ = ["BATCH_STATISTICS", "StepShare", "StepSum", "pool", "share_on_device", "whole_of"]


BATCH_STATISTICS = (
    "batch_compression",
    "batch_entropy",
    "batch_nonfinite",
    "batch_integers",
    "batch_fingerprint",
)
"""Fields of a share and of the sum that a row takes as they are."""


@dataclass(frozen=True)
class StepShare:
    """What one rank knows of a step before its update."""

    loss: float
    """Mean over its own batch; of no meaning where it has none."""
    norm: float
    """Global gradient norm as this rank sees it; the same on all where all is well."""
    samples: float
    """Of all ranks: sample ids run over all of them."""
    tokens: float
    """Of its own batch."""
    hidden: float
    """Root mean square of its last hidden states; NaN where it is not measured."""
    batch_compression: float
    batch_entropy: float
    """Of its own batch, see `probes.batch`; NaN where it is not known."""
    batch_nonfinite: float
    batch_integers: float
    batch_fingerprint: float
    """The same."""
    step_time_s: float
    """Since its last share."""
    faults: float
    """Parts of the guard that are degraded on it, one bit each."""
    stop: float
    """1 where it was asked to stop."""
    noted: float = 0.0
    """Checksum of the names of its further signals; 0 where it has none."""
    data_s: float = math.nan
    """Time to fetch its batch; NaN where the loop does not tell."""
    forward_s: float = math.nan
    """Time of its forward pass, of the host."""
    between_s: float = math.nan
    """Time of the loop's own, from the end of a step until it asks for the next batch."""
    host: float = 0.0
    """Number of its host."""
    has_loss: float = 1.0
    """0 on a stage of a pipeline that does not end in the loss."""
    changed: float = 0.0
    """1 where a setting has changed on it that the others have not heard of."""


@dataclass(frozen=True)
class StepSum:
    """The step as a whole; the same on all ranks, bit for bit."""

    loss: float
    """Mean over the ranks that have one; NaN where one is."""
    norm: float
    """Largest over the ranks; NaN where one is."""
    samples: int
    tokens: int
    hidden: float | None = None
    batch_compression: float | None = None
    batch_entropy: float | None = None
    """Means over the ranks."""
    batch_nonfinite: float | None = None
    batch_integers: float | None = None
    batch_fingerprint: float | None = None
    """The same."""
    step_time_s: float | None = None
    """The first rank's; None alone, where it is measured when the step is written down."""
    faults: int = 0
    """Parts of the guard that are degraded on any rank, one bit each."""
    stop: bool = False
    noted: bool = False
    """Whether all ranks with a loss have further signals, of the same names."""
    broken_ranks: tuple[int, ...] = ()
    """Ranks whose own loss or norm is not finite, where not all are."""
    odd_ranks: tuple[int, ...] = ()
    """Ranks whose norm is not the first rank's, both finite: they no longer train the same model. A
    norm that is not finite says nothing of the weights: the update is left out on all."""
    paces: tuple[PaceShare, ...] = ()
    """Of each rank."""
    num_losses: int = 1
    """Ranks that have a loss."""
    changed: bool = False
    """Whether a setting has changed on any rank."""


def pool(share: StepShare, ranks: Ranks, *, replicas: int) -> StepSum:
    """Return the whole step; all ranks must call it.

    Args:
        share: This rank's.
        ranks: All of them.
        replicas: How many of them get data of their own; the others get the same as one of these.
    """
    if ranks.count == 1:
        return _alone(share)
    return whole_of(ranks.gather(astuple(share)), replicas=replicas)


def share_on_device(share: StepShare, device: torch.device, **seen: torch.Tensor) -> torch.Tensor:
    """Return a share as float64 [n] on a device, without waiting for it: what `pool` sends.

    Args:
        share: This rank's.
        device: On which the table of all ranks is wanted.
        seen: Fields whose value lies in a tensor of one element, which takes the place of the
            share's.
    """
    # Only a copy from pinned memory is asynchronous; from other memory the host would wait.
    known = torch.tensor(astuple(share), dtype=torch.float64, pin_memory=device.type != "cpu")
    known = known.to(device, non_blocking=True)
    for i, name in enumerate(f.name for f in fields(share)):
        if name in seen:
            value = seen[name].detach()
            # `full_tensor` is a collective: all ranks go through the fields in the same order.
            known[i] = (value.full_tensor() if isinstance(value, DTensor) else value).reshape(())
    return known


def _alone(share: StepShare) -> StepSum:
    return StepSum(
        share.loss,
        share.norm,
        int(share.samples),
        int(share.tokens),
        hidden=_known(share.hidden),
        batch_compression=_known(share.batch_compression),
        batch_entropy=_known(share.batch_entropy),
        batch_nonfinite=_known(share.batch_nonfinite),
        batch_integers=_known(share.batch_integers),
        batch_fingerprint=_known(share.batch_fingerprint),
        faults=int(share.faults),
        stop=bool(share.stop),
        paces=(PaceShare(share.data_s, share.forward_s, share.between_s, share.host),),
        num_losses=int(share.has_loss),
    )


def whole_of(table: NDArray[np.float64], *, replicas: int) -> StepSum:
    """Return the whole step from the shares of all ranks, float64 [ranks, n].

    `replicas` as for `pool`.
    """
    count = len(table)
    if count == 1:
        return _alone(StepShare(*table[0].tolist()))
    *told, data, forward, between, hosts, has_loss, changed = table.T
    ends = has_loss > 0  # what is seen of the last stage counts there alone
    loss, norm, samples, tokens, hiddens, *seen, times, faults, stop, noted = told
    squeezed, entropy, broken_values, integers, fingerprint = (
        _known(float(s.mean())) for s in seen
    )
    broken = np.flatnonzero(~((np.isfinite(loss) | ~ends) & np.isfinite(norm)))
    loss, hiddens, noted = loss[ends], hiddens[ends], noted[ends]
    # Compared bit for bit: ranks that hold the same weights reduce to the same norm, so any
    # difference means that the replicas have diverged.
    odd = np.flatnonzero((norm != norm[0]) & np.isfinite(norm) & np.isfinite(norm[0]))
    with np.errstate(invalid="ignore", over="ignore"):
        hidden = None if np.isnan(hiddens).all() else float(np.sqrt(np.mean(np.square(hiddens))))
    return StepSum(
        loss=float(loss.mean()) if len(loss) else math.nan,
        norm=float(np.max(norm)),
        samples=int(samples[0]),
        # count / replicas ranks share one batch, and each of them reports its tokens
        tokens=round(float(tokens.sum()) * replicas / count),
        hidden=hidden,
        batch_compression=squeezed,
        batch_entropy=entropy,
        batch_nonfinite=broken_values,
        batch_integers=integers,
        batch_fingerprint=fingerprint,
        step_time_s=float(times[0]),
        faults=int(np.bitwise_or.reduce(faults.astype(np.int64))),
        stop=bool(stop.any()),
        noted=bool(noted.all()) and bool((noted == noted[:1]).all()),
        broken_ranks=tuple(broken.tolist()) if len(broken) < count else (),
        odd_ranks=tuple(odd.tolist()),
        paces=tuple(
            map(PaceShare, data.tolist(), forward.tolist(), between.tolist(), hosts.tolist())
        ),
        num_losses=int(ends.sum()),
        changed=bool(changed.any()),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
