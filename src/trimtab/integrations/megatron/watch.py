"""Megatron-LM's and Megatron-DeepSpeed's own trainers: watched, stopped, and told how to go on.

    watch = MegatronWatch(args.save + "/trimtab", checkpoints=args.save, mode="act")    # on every
    rank ...
    if watch.step(iteration, loss=loss, grad_norm=grad_norm, lr=learning_rate):         # after each
        step sys.exit(watch.exit_code)

Their trainers give no place from which a step can be taken back, so this one records and judges
what they know of each step. In `act` it ends a run that does not come back by itself:
`verdict.json` says so, and

    python -m trimtab.integrations.megatron.watch RUN CHECKPOINTS

prints the arguments to start it again with. Neither Megatron nor torch is needed for that.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.checkpoints.layouts import find_checkpoints
from trimtab.chronicle.rundir import RunDirectory
from trimtab.detectors.judge import Judge, judge_record
from trimtab.diagnosis.diagnose import diagnose
from trimtab.errors import ReadError
from trimtab.guard.distributed.process_group import Ranks
from trimtab.guard.loop.exit_status import EXIT_GIVEN_UP, write_verdict
from trimtab.guard.recording.fault_barrier import Edge, to_stderr
from trimtab.guard.recording.recorder import Recorder
from trimtab.guard.recording.run_lock import RunLock
from trimtab.guard.recovery.triage import is_trouble, speaks_of_state
from trimtab.incidents import group_findings
from trimtab.plan.flags import located
from trimtab.plan.planner import make_plan
from trimtab.plan.policy import Policy
from trimtab.readers.rundir import read_run_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trimtab.detectors.contract import Finding
    from trimtab.plan.policy import Mode
    from trimtab.record import RunRecord

__all__ = ["MegatronWatch", "main", "restart_arguments"]

_NAMES = ("loss", "grad_norm", "lr", "loss_scale", "skipped")
_CURES = ("restore-lr", "lower-lr", "skip-data", "lower-clip")
"""Remedies that arguments can carry out, one of which goes with going back."""


class MegatronWatch:
    """Records and judges the steps of a trainer that cannot be taken back; see the module.

    A fault of ours is told once and stops nothing. Cost: one small collective a step.
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
            mode: observe: record and judge; advise: also say causes; act: also ask to end the run.
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
        self._edge = Edge(journal=self._journal_fault, stand_down=lambda: None, note=lambda: True)
        self._judge = Judge()
        self._state = self._judge.start()
        self._findings: dict[tuple[str, str, int], Finding] = {}
        self._row = self._step = 0
        directory = RunDirectory(self._root)
        self._lock = self._ranks.on_chief(lambda: RunLock(directory.root))
        self._recorder = self._ranks.together(lambda: Recorder(directory, writes=self._ranks.chief))
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
        """Take in one iteration; return whether the run is to end. All ranks must call it.

        Args:
            iteration: Megatron's count, after the step.
            loss: Mean loss, nats per token; None on ranks that do not know it, such as all pipeline
                stages but the last. NaN is a value.
            grad_norm: As `optimizer.step()` returned it; None where an update was skipped.
            lr: Rate in force.
            loss_scale: Of fp16.
            skipped: Whether the update was skipped.
        """
        row = self._pool((loss, grad_norm, lr, loss_scale, float(skipped)))
        self._step = iteration
        if self._ranks.chief:
            self._edge.run("record", lambda: self._take_in(iteration, row))
            if self.policy.mode == "act" and not self._edge.stood_down and not self.stopped:
                self._edge.run("recovery", lambda: self._look(iteration))
        self.stopped = self._ranks.agree(lambda: self.stopped)
        return bool(self.stopped)

    def close(self, reason: str = "the trainer has ended") -> None:
        """Write down how it ended; call it where training ends."""
        if self._ranks.chief:
            if not self.stopped:
                self._edge.run("journal", lambda: self._verdict(self.stopped or reason))
            self._recorder.close()
        if self._lock is not None:
            self._lock.release()

    # -- inside -----------------------------------------------------------------------------

    def _pool(self, values: Sequence[float | None]) -> dict[str, float]:
        """Return the mean over the ranks that know a value; a name that none knows is missing."""
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

    def _take_in(self, step: int, values: dict[str, float]) -> None:
        if not self._started:
            self._start(step - 1)
        self._recorder.sample(step, values, {})
        self._row += 1
        self._state, found = self._judge.update(self._state, self._row - 1, float(step), values)
        for finding in found:
            is_new = finding.key not in self._findings
            self._findings[finding.key] = finding
            self._recorder.finding(finding, step=step)
            if is_new and finding.severity != "info":
                self._say(f"step {step:>6,}  {finding.text}")
        if not self.stopped and self._row == 1:
            self._verdict("under way, or it was killed", state="running")

    def _start(self, step: int) -> None:
        self._started, number, parent = True, 0, None
        try:
            record = read_run_directory(self._root)
            self._row, number = record.num_rows, len(record.attempts)
            parent = record.attempts[-1].number if record.attempts else None
        except ReadError:  # nothing is there yet
            pass
        self._recorder.settings({"mode": self.policy.mode, "source": "Megatron"})
        self._recorder.start_attempt(
            f"1.{number}",
            step=step,
            parent=parent,
            parent_step=step if parent else None,
            why="resumed after a stop" if parent else "start",
            trial=False,
        )

    def _look(self, step: int) -> None:
        """Decide whether trouble has lasted."""
        trouble = [
            f
            for f in self._findings.values()
            if f.severity != "info"
            and not f.closed
            and f.end_row is None
            and speaks_of_state(f)
            and is_trouble(
                f, self._row - 1 - f.onset_row, self.policy.patience_steps, last=False, scaled=False
            )
        ]
        if not trouble:
            return
        self.stopped = trouble[0].text
        self._recorder.event(
            "decision", step=step, what="end the run", why=self.stopped, evidence=[]
        )
        before = min(f.onset for f in trouble) - self.policy.rollback_margin_steps
        self._verdict(self.stopped, state="given-up", before=before)
        if self._checkpoints is not None:
            on = (
                shlex.join(restart_arguments(self._root, self._checkpoints))
                or "nothing to go back to"
            )
            self._say(f"step {step:>6,}  ending the run; start it again with {on}")

    def _verdict(self, reason: str, *, state: Any = "done", before: float = math.inf) -> None:
        write_verdict(
            self._root,
            state=state,
            reason=reason,
            step=self._step,
            steps=self._steps,
            saved_step=_newest_before(self._checkpoints, before),
            attempt=self._recorder.attempt,
        )

    def _journal_fault(self, error: str, part: str) -> None:
        if self._started:
            self._recorder.event("fault", step=self._step, error=error, where=part)


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
    """Return with which arguments a run that ended should be started again.

    A run that was killed or interrupted goes on from its newest checkpoint. One that was given up
    goes back before the first sign of its newest incident, with the first remedy of its plan that
    arguments can carry out: a lower rate, iterations left out, a lower clip. Empty where the run is
    done.

    Args:
        run: Run directory.
        checkpoints: Where Megatron saved to.
        framework: Whose arguments: megatron, or megatron-deepspeed for BigScience's fork.

    Raises:
        ReadError: There is no run, or no checkpoint, to be read.
    """
    verdict = _verdict_of(Path(run))
    if verdict["state"] == "done":
        return []
    found = find_checkpoints(Path(checkpoints)).checkpoints
    if verdict["state"] != "given-up":
        return ["--load", str(checkpoints)]
    record = read_run_directory(Path(run))
    flags = [f for f in _planned(record, found, framework) if f]
    text = located(" ".join(flags), str(Path(checkpoints) / "iter"))
    return shlex.split(_SEQUENCE.sub(_spell, text))


_SEQUENCE = re.compile(r"\$\(seq (\d+) (\d+)\)")


def _spell(match: re.Match[str]) -> str:
    return " ".join(map(str, range(int(match[1]), int(match[2]) + 1)))


def _planned(record: RunRecord, checkpoints: Any, framework: str) -> Iterable[str]:
    """Yield the flags of going back, and of the first cure."""
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
    yield next((by_name[r] for r in by_name if r in _CURES and by_name[r]), "")


def _verdict_of(run: Path) -> dict[str, Any]:
    try:
        verdict = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
        if isinstance(verdict, dict) and isinstance(verdict.get("state"), str):
            return verdict
    except (OSError, ValueError, RecursionError) as error:
        raise ReadError(
            f"{run / 'verdict.json'}: cannot be read ({error}); is it a run directory?"
        ) from error
    raise ReadError(f"{run / 'verdict.json'}: holds no verdict; is it a run directory?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the arguments; 0, or 1 with the reason where there is nothing to go on."""
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
