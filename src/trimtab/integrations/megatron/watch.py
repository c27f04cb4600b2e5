"""Megatron-LM's and Megatron-DeepSpeed's own trainers: watched, stopped, and how to restart them.

    # on every rank
    watch = MegatronWatch(args.save + "/trimtab", checkpoints=args.save, mode="act")
    ...
    # after each step
    if watch.step(iteration, loss=loss, grad_norm=grad_norm, lr=learning_rate):
        sys.exit(watch.exit_code)

Their trainers have no point from which a step can be undone, so this class records and judges
what they know of each step. In `act` it ends a run that does not recover by itself:
`verdict.json` says so, and

    python -m trimtab.integrations.megatron.watch RUN CHECKPOINTS

prints the arguments to restart it with. megatron-core is not needed for that.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.checkpoints.find import find_checkpoints
from trimtab.detectors.judge import Judge, judge_record
from trimtab.diagnosis.diagnose import diagnose
from trimtab.errors import ReadError
from trimtab.guard.loop.exit_status import EXIT_GIVEN_UP, read_verdict
from trimtab.guard.port import Ranks, to_stderr
from trimtab.incidents import group_findings
from trimtab.integrations.watching import RowWatch, first_sign
from trimtab.plan.flags import located
from trimtab.plan.planner import make_plan
from trimtab.plan.policy import Policy
from trimtab.readers.rundir import read_run_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trimtab.guard.loop.exit_status import State
    from trimtab.plan.policy import Mode
    from trimtab.plan.rollback import CheckpointInfo
    from trimtab.record import RunRecord

__all__ = ["MegatronWatch", "main", "restart_arguments"]

_NAMES = ("loss", "grad_norm", "lr", "loss_scale", "skipped")
_REMEDIES = ("restore-lr", "lower-lr", "skip-data", "lower-clip")
"""Remedies that arguments can carry out, one of which goes with going back."""


class MegatronWatch:
    """Records and judges the steps of a trainer that cannot roll back; see the module.

    An internal error is reported once and stops nothing. Cost: one small collective a step.
    """

    exit_code = EXIT_GIVEN_UP

    def __init__(
        self,
        run: str | Path,
        *,
        checkpoints: str | Path | None = None,
        mode: Mode | None = None,
        policy: Policy | None = None,
        steps: int | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Open the run directory; make it on every rank, after `init_process_group`.

        Args:
            run: Run directory; one that is there goes on as a new attempt.
            checkpoints: Where Megatron saves to (`--save`).
            mode: observe, advise: record and judge; act: also ask to end the run.
            policy: Settings; of them count `mode` and `patience_steps`.
            steps: Of the whole run, for the verdict.
            say: Shows one line to the user; default: standard error.

        Raises:
            ChronicleError: The run directory cannot be written, or another process is writing to
                it.
        """
        policy = policy or Policy()
        self.policy = policy if mode is None else replace(policy, mode=mode)
        self.stopped = ""
        """Why the run is to end; empty while it is not."""
        self._root, self._checkpoints, self._steps = Path(run), checkpoints, steps
        self._say = say or to_stderr
        self._ranks = Ranks()
        self._watch = RowWatch(policy=self.policy, source="Megatron")
        self._watch.open(self._root, writes=self._ranks.chief, ranks=self._ranks)
        self._step = 0
        self._started = False

    def step(
        self,
        iteration: int,
        *,
        loss: float | None,
        grad_norm: float | None = None,
        lr: float | None = None,
        loss_scale: float | None = None,
        skipped: bool = False,
    ) -> bool:
        """Record one iteration; return whether the run is to end. All ranks must call it.

        Args:
            iteration: Megatron's count, after the step.
            loss: Mean loss, nats per token; None on ranks that do not know it, such as all pipeline
                stages but the last. NaN is a value.
            grad_norm: As `optimizer.step()` returned it; None if the update was skipped.
            lr: Rate in force.
            loss_scale: Of fp16.
            skipped: Whether the update was skipped.
        """
        watch = self._watch
        row = self._mean((loss, grad_norm, lr, loss_scale, float(skipped)))
        self._step = iteration
        if self._ranks.chief:
            watch.edge.run("record", lambda: self._record(iteration, row))
            if watch.may_stop:
                watch.edge.run("recovery", lambda: self._stop(iteration))
        # All ranks end in the same step, or those that go on would wait in a collective.
        self.stopped = self._ranks.agree(lambda: watch.stopped)
        return bool(self.stopped)

    def close(self, reason: str = "the trainer has ended") -> None:
        """Write down how it ended; call it when training ends."""
        if self._ranks.chief and not self.stopped:
            self._watch.edge.run("journal", lambda: self._verdict("done", reason))
        self._watch.close()

    # -- inside -----------------------------------------------------------------------------

    def _mean(self, values: Sequence[float | None]) -> dict[str, float]:
        """Return the mean over the ranks that know a value; a name that none knows is missing."""
        # Known or not is sent along: NaN is a value here, and cannot stand for an unknown one.
        mine = [float(v is not None) for v in values] + [
            0.0 if v is None else float(v) for v in values
        ]
        everyone = self._ranks.gather(mine)
        known, given = everyone[:, : len(values)], everyone[:, len(values) :]
        return {
            name: float(given[known[:, i] > 0, i].mean())
            for i, name in enumerate(_NAMES)
            if known[:, i].any()
        }

    def _record(self, step: int, values: dict[str, float]) -> None:
        watch = self._watch
        if not self._started:
            self._started = True
            watch.start(step - 1)
        for finding in watch.take_in(step, values):
            if watch.note(finding, step=step) and finding.severity != "info":
                self._say(f"step {step:>6,}  {finding.text}")
        # At the first row, so that a run that is killed later has a verdict that says so.
        if not watch.stopped and watch.row == 1:
            self._verdict("running", "under way, or it was killed")

    def _stop(self, step: int) -> None:
        """End the run if trouble has lasted."""
        watch = self._watch
        trouble = watch.trouble(scaled=False)
        if not trouble:
            return
        watch.stop(step, trouble)
        before = first_sign(trouble) - self.policy.rollback_margin_steps
        self._verdict("given-up", watch.stopped, before=before)
        if self._checkpoints is not None:
            arguments = shlex.join(restart_arguments(self._root, self._checkpoints))
            how = f"restart it with {arguments}" if arguments else "there is no older checkpoint"
            self._say(f"step {step:>6,}  ending the run; {how}")

    def _verdict(self, state: State, reason: str, *, before: float = math.inf) -> None:
        self._watch.verdict(
            state,
            reason,
            step=self._step,
            steps=self._steps,
            saved_step=_newest_before(self._checkpoints, before),
        )


def _newest_before(checkpoints: str | Path | None, step: float) -> int:
    if checkpoints is None:
        return 0
    try:
        found = find_checkpoints(Path(checkpoints)).checkpoints
    except ReadError:
        return 0
    return max((c.step for c in found if c.step < step), default=0)


def restart_arguments(
    run: str | Path, checkpoints: str | Path, *, framework: str = "megatron"
) -> list[str]:
    """Return the arguments with which a run that ended should be restarted.

    A run that was killed or interrupted resumes from its newest checkpoint. One that was given up
    goes back before the first sign of its newest incident, with the first remedy of its plan that
    arguments can carry out: a lower rate, skipped iterations, a lower clip. Empty if the run is
    done.

    Args:
        run: Run directory.
        checkpoints: Where Megatron saved to.
        framework: Whose arguments: megatron, or megatron-deepspeed for BigScience's fork.

    Raises:
        ReadError: There is no run or no checkpoint to read.
    """
    verdict = read_verdict(Path(run))
    if verdict["state"] == "done":
        return []
    found = find_checkpoints(Path(checkpoints)).checkpoints
    if verdict["state"] != "given-up":
        return ["--load", str(checkpoints)]
    record = read_run_directory(Path(run))
    flags = [f for f in _planned(record, found, framework) if f]
    # Any name below the folder: `located` loads from the parent of a checkpoint.
    text = located(" ".join(flags), str(Path(checkpoints) / "iter"))
    # `$(seq a b)` is for a shell; a list of arguments goes past it.
    return shlex.split(_SEQUENCE.sub(_spell, text))


_SEQUENCE = re.compile(r"\$\(seq (\d+) (\d+)\)")


def _spell(match: re.Match[str]) -> str:
    return " ".join(map(str, range(int(match[1]), int(match[2]) + 1)))


def _planned(
    record: RunRecord, checkpoints: Sequence[CheckpointInfo], framework: str
) -> Iterable[str]:
    """Yield the flags of going back, and of the first remedy."""
    incidents = group_findings(record, judge_record(record, Judge()))
    grave = [i for i in incidents if i.severity != "info"]
    if not grave:
        return
    plan = make_plan(
        record,
        grave[-1],
        diagnose(record, grave[-1], earlier=grave[:-1]),
        earlier=grave[:-1],
        checkpoints=checkpoints,
        framework=framework,
    )
    by_name = {r.remedy: r.flags for r in plan.remedies}
    yield by_name.get("roll-back") or by_name.get("roll-back-further", "")
    yield next((by_name[r] for r in by_name if r in _REMEDIES and by_name[r]), "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the arguments; return 0, or 1 with the reason if the run cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m trimtab.integrations.megatron.watch", description=__doc__
    )
    parser.add_argument("run", help="run directory, with verdict.json")
    parser.add_argument("checkpoints", help="where Megatron saved to (--save)")
    parser.add_argument(
        "--framework", default="megatron", help="megatron (default) or megatron-deepspeed"
    )
    given = parser.parse_args(arguments)
    try:
        found = restart_arguments(given.run, given.checkpoints, framework=given.framework)
    except ReadError as error:
        to_stderr(str(error))
        return 1
    sys.stdout.write(shlex.join(found) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
