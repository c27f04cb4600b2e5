"""The row of a step: its values, counted and timed, as it is written down."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimtab.errors import ActError
from trimtab.guard.distributed.rank_pace import RankPace
from trimtab.guard.distributed.step_reduction import BATCH_STATISTICS
from trimtab.guard.state.decisions import safe_exp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.guard.data.order import Fed
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.distributed.step_reduction import StepSum
    from trimtab.guard.probes.suite import Measured, Probes
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.state.data_state import DataState
    from trimtab.guard.state.run_state import RunState
    from trimtab.guard.state.step_clock import StepClock
    from trimtab.guard.step.optimizer_step import OptimizerStep
    from trimtab.guard.step.step_pool import StepPool

__all__ = ["StepRecorder", "StepRow"]


@dataclass
class StepRow:
    """What is recorded of one step."""

    fed: Fed
    """What was handed out for it."""
    values: dict[str, float]
    labels: dict[str, str]
    seen: Measured | None = None
    """What the probes held of a step that was read late; None: they are asked now."""
    layers: dict[str, list[float]] = field(default_factory=dict)
    """What the probes saw block by block."""

    @property
    def loss(self) -> float:
        """Mean loss over all ranks."""
        return self.values["loss"]


class StepRecorder:
    """Makes rows of steps, and writes them."""

    def __init__(
        self,
        state: RunState,
        *,
        recorder: Recorder,
        pool: StepPool,
        update: OptimizerStep,
        probes: Probes,
        clock: StepClock,
        ranks: Ranks,
        data: DataState | None,
    ) -> None:
        """Write with a run's recorder.

        Args:
            state: Counts steps and rows.
            recorder: Writes rows.
            pool: Gives the step of all ranks.
            update: Says whether the rate that was asked for stayed in force.
            probes: Say what they saw of a step.
            clock: Gives the time of a step.
            ranks: Those that train together.
            data: Gives the fingerprint of its order.
        """
        self._state = state
        self._recorder = recorder
        self._pool = pool
        self._update = update
        self._probes = probes
        self._clock = clock
        self._ranks = ranks
        self._data = data
        self._order_noted = False
        self._pace = RankPace()
        self._notes: list[str] = []

    def take_notes(self) -> list[str]:
        """Return what is to be told of the ranks, once."""
        told, self._notes = self._notes, []
        repeated = self._data.take_note() if self._data is not None else ""
        if repeated:
            told.append(repeated)
        return told

    def values(
        self,
        whole: StepSum,
        *,
        lr: float,
        scheduled: Mapping[str, float],
        limit: float | None,
        noted: Mapping[str, float],
        skipped: bool,
        scale: float | None = None,
    ) -> dict[str, float]:
        """Return what is recorded of a step that was done, and count it.

        Args:
            whole: The step of all ranks.
            lr: Rate of the first group.
            scheduled: Other settings that follow a schedule.
            limit: Largest gradient norm; None: no clipping.
            noted: Further signals; a name that the guard measures itself is left out.
            skipped: Whether the update was left out.
            scale: Loss scale; None without a scaler.
        """
        values: dict[str, float] = {
            "loss": whole.loss,
            "perplexity": safe_exp(whole.loss),
            "grad_norm": whole.norm,
            "lr": lr,
            **scheduled,
        }
        if scale is not None:
            values["loss_scale"] = scale
        self._count(values, whole, limit)
        values |= {n: v for n, v in noted.items() if n not in values}
        # The update used such a gradient: the weights cannot be trusted until a restore.
        if not skipped and not math.isfinite(whole.norm):
            self._state.note_poisoned()
        values["skipped"] = float(skipped)
        values["nonfinite"] = float(not (math.isfinite(whole.loss) and math.isfinite(whole.norm)))
        return values

    def _count(self, values: dict[str, float], whole: StepSum, limit: float | None) -> None:
        c = self._state.counters
        c.samples += whole.samples
        c.tokens += whole.tokens
        if limit is not None:
            clipped = whole.norm > limit
            c.measured += 1
            c.clipped += int(clipped)
            values["clipped"] = float(clipped)
            values["clip_frequency"] = c.clipped / c.measured
        values["batch_size"] = float(whole.samples)
        values["samples_seen"] = float(c.samples)
        values["tokens_seen"] = float(c.tokens)

    def add_probes(self, row: StepRow) -> None:
        """Add what the probes saw of the step just done."""
        whole = self._pool.whole
        if row.seen is None and whole.faults:
            self._probes.call_off()  # another rank may not come to the collective
        self._probes.note_loss(whole.loss)
        found = self._probes.take() if row.seen is None else row.seen
        row.values |= found.values
        row.labels |= found.labels
        if self._ranks.count > 1:
            row.labels |= _labels_of_ranks(whole)
            if whole.hidden is not None:
                row.values["activation_norm"] = whole.hidden
        for name in BATCH_STATISTICS:
            value = getattr(whole, name)
            if value is not None:
                row.values[name] = value
        row.layers = found.layers

    def agree(self, row: StepRow) -> None:
        """Take the values of the first rank, where ranks hold different parts of the model.

        What one part alone knows would be judged there alone. All ranks must call it.
        """
        if self._probes.parts_differ:
            row.values = self._ranks.agree(lambda: row.values)

    def check_rate(self) -> None:
        """Refuse to rest on a rate that something else sets.

        Raises:
            ActError: The rate that was asked for did not stay in force through the step.
        """
        if self._update.lr_undone is not None:
            asked, got = self._update.lr_undone
            raise ActError(
                f"step {self._state.counters.step}: learning rate {asked:g} was asked for and the "
                f"optimizer holds {got:g} after its step; something else sets it"
            )

    def record(self, row: StepRow) -> None:
        """Take the row into the record, with the time since the last one."""
        values, whole = row.values, self._pool.whole
        values["step_time_s"] = self._clock.end_row()
        if whole.step_time_s is not None:
            values["step_time_s"] = whole.step_time_s
        if whole.tokens and values["step_time_s"] > 0:
            values["throughput"] = whole.tokens / values["step_time_s"]
        staged = self._probes.is_staged
        self._notes += self._pace.see(whole.paces, values["step_time_s"], staged=staged)
        # Of what was fed: a row that is read late is written after the next batch is fetched.
        if self._data is not None and self._data.epoch >= 0:
            values["epochs_seen"] = float(row.fed.epoch)
        self._recorder.sample(self._state.counters.step, values, row.labels)
        self._state.count_row()

    def note_order(self) -> None:
        """Write the fingerprint of the first epoch's order down beside the settings, once."""
        if not self._order_noted and self._data is not None and self._data.epoch >= 0:
            self._order_noted = True
            if self._data.epoch == 0:
                self._recorder.add_setting("data_order", self._data.fingerprint)


def _labels_of_ranks(whole: StepSum) -> dict[str, str]:
    """Name the ranks that are not like the others, where there are such."""
    marked = {"nonfinite_ranks": whole.broken_ranks, "odd_ranks": whole.odd_ranks}
    return {name: " ".join(map(str, found)) for name, found in marked.items() if found}
