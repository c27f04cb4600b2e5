"""One step of all ranks as one: what this rank knows of it, and what all know together."""

from __future__ import annotations

import math
import platform
import zlib
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError
from trimtab.guard.distributed.step_reduction import (
    StepShare,
    StepSum,
    pool,
    share_on_device,
    whole_of,
)
from trimtab.guard.probes.batch import batch_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.probes.suite import Probes
    from trimtab.guard.settings.ledger import SettingChanged
    from trimtab.guard.state.data_state import DataState
    from trimtab.guard.state.step_clock import StepClock

__all__ = ["StepPool"]

_HOST = float(zlib.crc32(platform.node().encode()))


class StepPool:
    """Gathers the steps of all ranks; alone, it gives this rank's own."""

    def __init__(
        self,
        ranks: Ranks,
        data: DataState | None,
        *,
        probes: Probes,
        clock: StepClock,
        parameters: Sequence[torch.Tensor],
        is_late: Callable[[], bool],
        stop_wanted: Callable[[], bool],
        begin_step: Callable[[], int],
    ) -> None:
        """Begin before the first step.

        Args:
            ranks: Those that train together.
            data: Says how many of them get data of their own.
            probes: Give the last hidden state's size.
            clock: Gives the time of a step.
            parameters: Say on which device the step is.
            is_late: Whether values are read a step late.
            stop_wanted: Whether this rank was asked to stop.
            begin_step: Gives the parts of the guard that are degraded here, once a step.
        """
        self._ranks = ranks
        self._data = data
        self._probes = probes
        self._clock = clock
        self._parameters = parameters
        self._is_late = is_late
        self._stop_wanted = stop_wanted
        self._faults_here = begin_step
        self._noted: dict[str, float] = {}
        self._batch_seen: dict[str, float] = {}
        self._num_seen = 0
        self._changes: list[SettingChanged] = []
        self._whole = StepSum(math.nan, math.nan, 0, 0)

    @property
    def whole(self) -> StepSum:
        """The last step, of all ranks together."""
        return self._whole

    @property
    def device(self) -> torch.device:
        """Device of the trained parameters."""
        return self._parameters[0].device

    # -- what this rank knows ---------------------------------------------------------------

    def begin_step(self) -> None:
        """Forget what was seen of the batches of the last step."""
        self._batch_seen, self._num_seen = {}, 0

    def see_batch(self, batch: object) -> None:
        """Take in a batch of the step; where several make one, their mean counts."""
        seen = batch_statistics(batch) if self._probes.runs("batch") else {}
        self._num_seen += 1
        for name, value in seen.items():
            before = self._batch_seen.get(name, value)
            self._batch_seen[name] = before + (value - before) / self._num_seen

    def note(self, signals: Mapping[str, float]) -> None:
        """Add further signals of the step under way, as this rank knows them."""
        self._noted |= signals

    @property
    def has_noted(self) -> bool:
        """Whether further signals were noted in this step."""
        return bool(self._noted)

    def forget_noted(self) -> None:
        """Throw away the further signals of the step under way."""
        self._noted = {}

    def take_noted(self) -> dict[str, float]:
        """Return this rank's further signals, and forget them."""
        noted, self._noted = self._noted, {}
        return noted

    def note_change(self, change: SettingChanged) -> None:
        """Take note of a setting that has changed here, for the other ranks to hear of."""
        if self._ranks.count > 1:
            self._changes.append(change)

    # -- all ranks together -----------------------------------------------------------------

    def pool(self, loss: float, norm: float, samples: int, tokens: int) -> StepSum:
        """Return the step of all ranks together; all must call it.

        Args:
            loss: Mean loss of this rank's part of the step.
            norm: Global gradient norm before clipping, as this rank sees it.
            samples: Samples in it.
            tokens: Tokens in it.
        """
        hidden = self._probes.hidden.rms() if self._ranks.count > 1 else None
        share = self._share(samples, tokens, loss, norm, hidden)
        if self._is_late() and self._ranks.count > 1:
            # the same collective as of the steps that are read late, so that the ranks meet
            table = self._ranks.gather_tensor(share_on_device(share, self.device))
            # The one sync of this step: the host waits for the table.
            self._whole = whole_of(table.to("cpu").numpy(), replicas=self._replicas)
        else:
            self._whole = pool(share, self._ranks, replicas=self._replicas)
        self._check_loss()
        return self._whole

    def _check_loss(self) -> None:
        if not self._whole.num_losses:
            raise ConfigError(
                "guard.note_loss(None) on all ranks: one of them must give the loss of the step,"
                " in a pipeline the last stage"
            )

    def pool_on_device(self, samples: int, tokens: int, **seen: torch.Tensor) -> torch.Tensor:
        """Return the shares of all ranks, [ranks, n] on the device; the host reads nothing.

        Args:
            samples: Samples in this rank's part of the step.
            tokens: Tokens in it.
            seen: Values that lie on the device, by the name of their field in `StepShare`.
        """
        share = share_on_device(self._share(samples, tokens), self.device, **seen)
        return self._ranks.gather_tensor(share)

    def read(self, table: NDArray[np.float64]) -> StepSum:
        """Return the step whose shares `pool_on_device` gathered, once they are on the host."""
        self._whole = whole_of(table, replicas=self._replicas)
        self._check_loss()
        return self._whole

    def pool_noted(self, whole: StepSum) -> dict[str, float]:
        """Return the further signals of the step, means over the ranks; none where ranks differ."""
        noted = self.take_noted()
        if self._ranks.count == 1 or not whole.noted:
            return noted if self._ranks.count == 1 else {}
        if whole.num_losses < self._ranks.count:
            mine = noted if self._probes.gives_loss else {}
            known = [theirs for theirs in self._ranks.collect(mine) if theirs]
            return {name: sum(k[name] for k in known) / len(known) for name in sorted(known[0])}
        # Sorted, as the checksum in the share was: column i is the same signal on every rank.
        names = sorted(noted)
        means = self._ranks.gather([noted[name] for name in names]).mean(axis=0)
        return dict(zip(names, means.tolist(), strict=True))

    def changes_elsewhere(self) -> dict[SettingChanged, list[int]]:
        """Return the changes that the first rank has not seen, each with its ranks.

        One collective, after a step in which `whole.changed` says that there are any.
        """
        mine, self._changes = self._changes, []
        everyone = self._ranks.collect(mine)
        found: dict[SettingChanged, list[int]] = {}
        known = {change.text() for change in everyone[0]}
        for rank, changes in enumerate(everyone):
            for change in changes:
                if change.text() not in known:
                    found.setdefault(change, []).append(rank)
        return found

    def find_elsewhere(self, whole: StepSum, labels: dict[str, str]) -> None:
        """Take the tensor that is not finite from the first rank that sees one: it may not be here.

        One collective, at steps whose norm is not finite; all ranks have the same norm and come.
        """
        if self._ranks.count == 1 or math.isfinite(whole.norm):
            return
        names = ("nonfinite_at", "nonfinite_tensors")
        # A tensor that is not finite may lie in the shard of another rank only.
        seen: dict[str, str] = {n: labels[n] for n in names if n in labels}
        labels |= next((found for found in self._ranks.collect(seen) if found), {})

    @property
    def _replicas(self) -> int:
        return self._data.replicas if self._data is not None else 1

    def _share(
        self,
        samples: int,
        tokens: int,
        loss: float = math.nan,
        norm: float = math.nan,
        hidden: float | None = None,
    ) -> StepShare:
        """Return this rank's share of the step; NaN stands for what is not read yet."""
        took = self._clock.lap(late=self._is_late())
        names = "\n".join(sorted(self._noted))
        return StepShare(
            loss,
            norm,
            samples,
            tokens,
            math.nan if hidden is None else hidden,
            self._batch_seen.get("batch_compression", math.nan),
            self._batch_seen.get("batch_entropy", math.nan),
            self._batch_seen.get("batch_nonfinite", math.nan),
            self._batch_seen.get("batch_integers", math.nan),
            self._batch_seen.get("batch_fingerprint", math.nan),
            took,
            float(self._faults_here()),
            float(self._stop_wanted()),
            float(zlib.crc32(names.encode())) if self._noted else 0.0,
            *self._clock.take_own(),
            _HOST,
            float(self._probes.gives_loss),
            float(bool(self._changes)),
        )
