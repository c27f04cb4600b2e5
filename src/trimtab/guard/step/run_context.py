"""The parts of a guarded run, by reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.guard.data.streams import Order
    from trimtab.guard.distributed.holders import Holders
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.probes.suite import Probes
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.settings.ledger import SettingsLedger
    from trimtab.guard.state.judgement import Judgement
    from trimtab.guard.state.restore_points import RestorePoints
    from trimtab.guard.state.run_state import RunState
    from trimtab.guard.state.step_clock import StepClock
    from trimtab.guard.state.training_state import Training
    from trimtab.guard.step.deferred_read import LateReads
    from trimtab.guard.step.deferred_step import DeferredStep
    from trimtab.guard.step.optimizer_step import OptimizerStep
    from trimtab.guard.step.precision import Precision
    from trimtab.guard.step.rates import Rates
    from trimtab.guard.step.step_pool import StepPool
    from trimtab.guard.step.step_recorder import StepRecorder
    from trimtab.plan.expected import ExpectedChanges
    from trimtab.plan.policy import Policy

__all__ = ["RunContext"]


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """References only: each part does its own work."""

    policy: Policy
    recorder: Recorder
    ranks: Ranks
    holders: Holders
    training: Training
    data: Order
    state: RunState
    """Captures and puts back all that decides the future of the run."""
    points: RestorePoints
    """States to go back to, in memory and on disk."""
    judgement: Judgement
    clock: StepClock
    probes: Probes
    precision: Precision
    rates: Rates
    optimizer_step: OptimizerStep
    """Clips, updates or skips."""
    pool: StepPool
    """The step of all ranks as one."""
    rows: StepRecorder
    """Makes rows of steps, and writes them."""
    deferred: DeferredStep
    """Does a step whose values are read late."""
    reads_late: LateReads
    """Whether values may be read late at all."""
    settings: SettingsLedger
    """What is in force, and what changed without being announced."""
    expected: ExpectedChanges
    """What was announced."""
