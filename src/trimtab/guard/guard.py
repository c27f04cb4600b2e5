"""The public face of the guard: about eight lines in a plain PyTorch loop."""

from __future__ import annotations

import math
import platform
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trimtab import __version__
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ConfigError, TrimtabError
from trimtab.guard.data import DataOrder
from trimtab.guard.engine import Engine
from trimtab.guard.recorder import Recorder
from trimtab.guard.recovery import Recovery
from trimtab.guard.snapshots import Training
from trimtab.plan.policy import Mode, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.utils.data import DataLoader

__all__ = ["Guard"]


class Guard:
    """Guards one training run.

    It owns the order of the data, so that it can go back and leave data out; it measures, judges
    and writes down every step; in `act` mode it rolls back, finds the cause with short trials, and
    goes on with the cheapest remedy that holds. In `observe` mode the losses are bitwise those of
    the same loop without it. A fault of its own is journalled, and training goes on unguarded.

    Example::

        guard = Guard(model, optimizer, data=loader, scheduler=scheduler, clip=1.0,
                      steps=10_000, run="runs/tiny", mode="act")
        for batch in guard:
            loss = model(batch)
            guard.backward(loss)
            guard.step()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        data: DataLoader[Any],
        run: str | Path,
        mode: Mode | None = None,
        policy: Policy | None = None,
        scheduler: Any | None = None,
        scaler: Any | None = None,
        clip: float | None = None,
        steps: int | None = None,
        resume: bool = True,
        output_layer: torch.nn.Module | None = None,
        count_tokens: Callable[[Any], int] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Take over a run; nothing of it is changed before the first step.

        Args:
            model: The module that is trained.
            optimizer: Its optimizer; parameters in its groups are clipped and measured.
            data: A DataLoader over a map-style dataset; its order is kept exactly.
            run: Run directory; a run that is in it goes on from its newest healthy checkpoint.
            mode: observe, advise or act; default: the policy's.
            policy: Settings; default: `Policy()`.
            scheduler: Learning-rate scheduler; stepped by `step()`.
            scaler: `torch.amp.GradScaler`; used by `backward()` and `step()`.
            clip: Largest global gradient norm; None: no clipping.
            steps: Effective steps of the whole run, going through the data as often as needed;
                None: one epoch.
            resume: Go on with a run found in the directory; False: refuse such a directory.
            output_layer: Layer whose input is the last hidden state; default: found.
            count_tokens: Gives the tokens of a batch; default: elements of its first integer tensor.
            say: Shows one line to the user; default: standard error, in `advise` and `act` only.

        Raises:
            ConfigError: A setting is impossible, or the data cannot be rewound.
            ChronicleError: The run directory cannot be written.
            ActError: A run is there but does not fit these objects.
        """
        policy = policy or Policy()
        policy = replace(policy, mode=mode) if mode is not None else policy
        _check(clip, steps)
        directory = RunDirectory(Path(run))
        is_old = directory.journal.exists()
        if is_old and not resume:
            raise ConfigError(
                f"{run}: holds a run already; choose another directory, or resume=True to go on with it"
            )
        self.policy = policy
        self._steps = steps
        self._say = say or (_to_stderr if policy.mode != "observe" else _silent)
        self._count_tokens = count_tokens or _count_tokens
        self._order = DataOrder(data)
        self._training = Training(model, optimizer, scheduler, scaler)
        self._recorder = Recorder(directory)
        self._engine = Engine(
            self._training,
            self._order,
            policy,
            self._recorder,
            clip=clip,
            output_layer=output_layer,
        )
        self._recovery = Recovery(
            self._engine, say=self._tell, planned_samples=self._planned_samples
        )
        self._losses: list[torch.Tensor] = []
        self._batch: tuple[int, int, int] | None = None
        self._fault: str | None = None
        self._ended = False
        self._begin(is_old=is_old)

    # -- what the user's loop calls ---------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yield batches until the run is done; after a rollback, the batches to train on again."""
        while True:
            if not self._recovery.busy and self._done():
                break
            fetched = self._order.fetch()
            if fetched is None:
                if self._steps is None and not self._recovery.busy:
                    break
                self._order.next_epoch()
                continue
            batch, first, last = fetched
            self._batch = (first, last, self._count_tokens(batch))
            self._losses.clear()
            yield batch
            if self._batch is not None:
                raise ConfigError(
                    "guard.step() was not called for the last batch; call guard.backward(loss) and guard.step() once for every batch"
                )
        self._end("all steps done")

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, scaled where there is a scaler; nothing but noting it in a probe.

        Call it more than once before `step()` to accumulate gradients; the logged loss is their mean.
        """
        self._losses.append(loss.detach())
        if self._recovery.phase == "probe" and self._fault is None:
            return
        scaler = self._training.scaler
        (scaler.scale(loss) if scaler is not None else loss).backward()

    def step(self) -> None:
        """Clip, update or skip, record, judge; go back where it is needed and allowed."""
        if self._batch is None or not self._losses:
            raise ConfigError(
                "guard.step() needs one batch from the guard and guard.backward(loss) before it"
            )
        (first, last, tokens), self._batch = self._batch, None
        loss = float(torch.stack([x.float() for x in self._losses]).mean())
        if self._recovery.phase == "probe" and self._fault is None:
            self._guarded(lambda: self._recovery.after_probe(first, last, loss))
            return
        acting = self.policy.mode == "act" and self._fault is None
        values, labels = self._engine.step(loss, last - first + 1, tokens, skip_nonfinite=acting)
        if self._fault is None:
            self._guarded(lambda: self._after_step(values, labels, loss))

    # -- what the user may ask --------------------------------------------------------------

    @property
    def step_number(self) -> int:
        """Last finished effective step; falls back in a rollback."""
        return self._engine.counters.step

    @property
    def phase(self) -> str:
        """calm, probe or trial."""
        return self._recovery.phase

    @property
    def lr_factor(self) -> float:
        """Factor of the guard on the scheduler's rates; never above 1."""
        return self._engine.decisions.lr_factor

    @property
    def skipped_samples(self) -> tuple[tuple[int, int], ...]:
        """Ranges [first, last] of sample ids that are never fed again."""
        return self._order.skips

    @property
    def actions(self) -> tuple[dict[str, object], ...]:
        """What was done, in order."""
        return tuple(self._recovery.actions)

    @property
    def num_incidents(self) -> int:
        """Incidents acted on or advised about in this process."""
        return len(self._recovery.incidents)

    @property
    def wasted_steps(self) -> float:
        """Steps run that are not on the final lineage, as a share of the effective steps.

        Trials and what was rolled back count whole; a probed batch (forward only) counts a third.
        """
        d, step = self._engine.decisions, max(self._engine.counters.step, 1)
        return (d.executed_steps - self._engine.counters.step + d.probed_batches / 3) / step

    def scale_lr(self, factor: float, *, why: str) -> None:
        """Multiply the learning rate from the next step on; no scheduler can undo it.

        Raises:
            ConfigError: The factor is not in (0, 1], or no reason is given.
        """
        if not 0 < factor <= 1 or not why:
            raise ConfigError(
                f"scale_lr({factor!r}, why={why!r}): expected 0 < factor <= 1 (a rate is never raised) and a reason"
            )
        self._engine.decisions.lr_factor *= factor
        self._note_action("lower-lr", {"lr_factor": self._engine.decisions.lr_factor}, why)

    def tighten_clip(self, factor: float, *, why: str) -> None:
        """Multiply the clipping threshold from the next step on.

        Raises:
            ConfigError: The factor is not in (0, 1], no reason is given, or the run has no clip.
        """
        if not 0 < factor <= 1 or not why or self._engine.clip is None:
            raise ConfigError(
                f"tighten_clip({factor!r}, why={why!r}): expected 0 < factor <= 1, a reason, and Guard(clip=...)"
            )
        self._engine.decisions.clip_factor *= factor
        self._note_action(
            "tighten-clip", {"clip": self._engine.clip * self._engine.decisions.clip_factor}, why
        )

    def skip_samples(self, first: int, last: int, *, why: str) -> None:
        """Never feed sample ids first..last (absolute positions in the data order) from now on."""
        self._order.skip(first, last)
        self._note_action("skip-data", {"skip_samples": [first, last]}, why)

    def checkpoint(self) -> None:
        """Save the state to disk now, whole or not at all; also done every so many steps.

        Raises:
            ActError: It cannot be saved.
        """
        self._engine.save_checkpoint("asked for")

    # -- inside -----------------------------------------------------------------------------

    def _begin(self, *, is_old: bool) -> None:
        engine = self._engine
        settings = {
            "trimtab": __version__,
            "mode": self.policy.mode,
            "clip": engine.clip,
            "steps": self._steps,
            **_environment(),
        }
        self._recorder.settings(settings)
        resumed = is_old and engine.resume()
        if resumed:
            parent, parent_step = self._recorder_parent(), engine.counters.step
            engine.decisions.minor = max(
                engine.decisions.minor, self._next_minor(engine.decisions.major)
            )
            engine.begin_attempt(
                parent=parent, parent_step=parent_step, why="resumed after a stop", trial=False
            )
        else:
            if is_old:
                engine.decisions.major = self._next_major()
            engine.begin_attempt(parent=None, parent_step=None, why="start", trial=False)
            self._recorder.event(
                "start",
                step=0,
                settings={**settings, "policy": asdict(self.policy)},
                environment=_environment(),
            )
        engine.snapshot()

    def _recorder_parent(self) -> str | None:
        from trimtab.chronicle.journal import read_journal

        events, _ = read_journal(self._engine.directory.journal)
        resumes = [e for e in events if e.event == "resume"]
        return str(resumes[-1].data.get("from_attempt")) if resumes else None

    def _attempt_numbers(self) -> list[tuple[int, int]]:
        folder = self._engine.directory.signals
        names = [p.stem for p in folder.glob("*.jsonl")] if folder.is_dir() else []
        parts = [n.split(".") for n in names]
        return [
            (int(a), int(b))
            for a, b in (p for p in parts if len(p) == 2)
            if a.isdigit() and b.isdigit()
        ]

    def _next_major(self) -> int:
        return max((a for a, _ in self._attempt_numbers()), default=0) + 1

    def _next_minor(self, major: int) -> int:
        return max((b for a, b in self._attempt_numbers() if a == major), default=-1) + 1

    def _after_step(self, values: dict[str, float], labels: dict[str, str], loss: float) -> None:
        engine, policy = self._engine, self.policy
        findings = engine.write_and_judge(values, labels)
        for finding in findings:
            engine.recorder.event(
                "finding",
                step=engine.counters.step,
                kind=finding.kind,
                signal=finding.signal,
                severity=finding.severity,
                onset=finding.onset,
                row=finding.row,
                text=finding.text,
                closed=finding.closed,
            )
        self._recovery.after_step(loss, findings, last=self._done())
        if self._recovery.busy:
            return
        step = engine.counters.step
        calm = not self._recovery.alarmed
        if step % policy.snapshot_every_steps == 0 and calm and policy.mode != "observe":
            engine.snapshot()
        if step % policy.checkpoint_every_steps == 0 and calm and math.isfinite(loss):
            engine.save_checkpoint("on schedule")

    def _done(self) -> bool:
        return self._steps is not None and self._engine.counters.step >= self._steps

    def _planned_samples(self) -> int | None:
        c = self._engine.counters
        return (
            None if self._steps is None or c.step == 0 else round(c.samples / c.step * self._steps)
        )

    def _note_action(self, remedy: str, values: dict[str, object], why: str) -> None:
        self._recovery.actions.append(
            {"step": self._engine.counters.step, "remedy": remedy, "values": values, "why": why}
        )
        self._guarded(
            lambda: self._recorder.event(
                "action", step=self._engine.counters.step, remedy=remedy, values=values, why=why
            )
        )

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._guarded(
                lambda: self._recorder.event(
                    "end",
                    step=self._engine.counters.step,
                    final_step=self._engine.counters.step,
                    reason=reason,
                    wasted_steps=self.wasted_steps,
                )
            )
            self._engine.activation.close()

    def _tell(self, line: str) -> None:
        self._say(line)

    def _guarded(self, work: Callable[[], object]) -> None:
        """Do work of our own; a fault of ours is written down and training goes on without us."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the one place: a fault of ours never stops a run
            self._fault = f"{type(error).__name__}: {error}"
            self._engine.activation.enabled = False
            _to_stderr(
                f"trimtab: a fault of its own; the run goes on unguarded from step {self._engine.counters.step}: {self._fault}"
            )
            try:
                self._recorder.event(
                    "fault",
                    step=self._engine.counters.step,
                    error=self._fault,
                    where=self._recovery.phase,
                )
            except (TrimtabError, OSError):
                _to_stderr("trimtab: the fault could not be journalled")
            self._recovery.phase = "calm"


def _check(clip: float | None, steps: int | None) -> None:
    if clip is not None and not (
        isinstance(clip, int | float) and math.isfinite(clip) and clip > 0
    ):
        raise ConfigError(f"clip is {clip!r}, expected a positive number, or None for no clipping")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise ConfigError(
            f"steps is {steps!r}, expected a whole number of at least 1, or None for one epoch"
        )


def _count_tokens(batch: Any) -> int:
    """Return the elements of the first integer tensor with at least two dimensions; 0 without one."""
    if isinstance(batch, torch.Tensor):
        return batch.numel() if batch.dim() >= 2 and not batch.is_floating_point() else 0
    values = (
        batch.values()
        if isinstance(batch, dict)
        else batch
        if isinstance(batch, list | tuple)
        else ()
    )
    for value in values:
        count = _count_tokens(value)
        if count:
            return count
    return 0


def _environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.system().lower(),
        "threads": str(torch.get_num_threads()),
    }


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")


def _silent(_line: str) -> None:
    return
