"""The guard in torchtitan's Trainer, by its extension point: a subclass with a Config of its own.

    from trimtab.integrations.torchtitan import guarded

    def llama3_8b_guarded() -> Trainer.Config:      # in a config registry
        return guarded(llama3_8b(), mode="act")     # or --guard.mode act on the command line

The Trainer keeps its loop. Its batches come from the guard, `optimizers.step()` is the guard's
step, and the norm and the clipping are torchtitan's own, with the guard's factor on the limit. The
Trainer counts passes of its loop and the guard counts steps: after each pass the Trainer's count is
set to the guard's, and while the guard probes or tries a remedy nothing is logged, validated or
saved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import torch

from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ConfigError, MissingExtraError, TrimtabError
from trimtab.guard import Guard
from trimtab.guard.port import Ranks, StreamOrder, TrainerPort, to_stderr
from trimtab.integrations.packages import warn_of_version
from trimtab.integrations.stepping import SteppedOptimizer
from trimtab.integrations.torchtitan.trainer_parts import (
    ContainedOptimizer,
    RatesInForce,
    Stream,
    TitanFiles,
    check_trainer,
)
from trimtab.plan.policy import Policy

try:
    from torchtitan.distributed import utils as dist_utils
    from torchtitan.trainer import Trainer
except ImportError as error:
    raise MissingExtraError("The adapter for torchtitan", "torchtitan") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from torch.utils.data import DataLoader

    from trimtab.plan.policy import Mode

    _TrainerBase: TypeAlias = Trainer
else:
    _TrainerBase = object  # a mixin: the Trainer class comes after it

__all__ = ["GuardConfig", "TitanGuardMixin", "TitanGuardedTrainer", "guarded"]


@dataclass(kw_only=True, slots=True)
class GuardConfig:
    """How a Trainer is guarded; torchtitan's command line sets it: `--guard.mode act`."""

    mode: Literal["observe", "advise", "act"] = "observe"
    """What the guard may do."""
    run: str = ""
    """Run directory; empty: `trimtab` in the dump folder."""
    policy: str = ""
    """A TOML file of the policy; empty: its defaults."""

    def policy_in_force(self) -> Policy:
        """Return the policy.

        Raises:
            ConfigError: The file cannot be read or holds something impossible.
        """
        return Policy.from_toml(self.policy) if self.policy else Policy()


class TitanGuardMixin(_TrainerBase):  # type: ignore[misc]
    """Put before a Trainer class of torchtitan, guards its `train()`.

    `class Mine(GuardMixin, FluxTrainer)`, with a field `guard: GuardConfig` in its Config; without
    one the guard observes. `guard` is the guard while training runs.
    """

    guard: Guard | None = None
    say: Callable[[str], None] | None = None
    """Shows one line to the user; None: standard error."""

    @property
    def port(self) -> TrainerPort | None:
        """Port of the guard; None while there is none."""
        return None if self.guard is None else TrainerPort(self.guard)

    # -- what the Trainer calls -------------------------------------------------------------

    def train(self) -> None:
        """Train as the Trainer does; a run found in the run directory is resumed.

        Raises:
            ConfigError: What the Trainer is set to do cannot be guarded; the message says what to
                change.
        """
        self._undo: list[Callable[[], None]] = []
        self._batches: Generator[dict[str, object]] | None = None
        try:
            super().train()
            if self.guard is not None:
                self.guard.finish()
        finally:
            self._release()

    def batch_generator(self, data_iterable: Iterable[object]) -> Iterator[object]:
        """Return the Trainer's batches, in the guard's order."""
        warn_of_version("torchtitan")
        try:
            self._begin_guard()
        except TrimtabError:  # the settings are impossible: say so before anything is trained
            raise
        except Exception as error:  # noqa: BLE001 - an internal error never stops a run
            self._go_unguarded(error)
        source = data_iterable if self.guard is None else self._feed()
        batches: Iterator[object] = super().batch_generator(source)
        return batches

    def should_continue_training(self) -> bool:
        """Whether there is a step to do: by the Trainer's count, or one that the guard tries."""
        if self.port is not None and not self.port.is_calm:
            return True
        return bool(super().should_continue_training())

    def forward_backward_step(self, **given: object) -> torch.Tensor:
        """Run the Trainer's pass and note its loss in the guard."""
        loss: torch.Tensor = super().forward_backward_step(**given)
        if self.guard is not None:
            # It is this rank's share of the mean; the guard expects a mean of its own.
            self.guard.note_loss(loss.detach() * self._shares)
        return loss

    def train_step(self, data_iterator: Iterator[object]) -> None:
        """Do the Trainer's step, whose norm, update and schedule are the guard's."""
        port = self.port
        if port is None:
            super().train_step(data_iterator)
            return
        before, own = port.step_number, dist_utils.clip_grad_norm_
        self._advanced = False
        # torchtitan's step calls it by its module, so it is replaced there for one step.
        dist_utils.clip_grad_norm_ = partial(self._clip, own)
        try:
            super().train_step(data_iterator)
        except RuntimeError:  # torchtitan stops at a loss that is not finite; the guard left it out
            if not (port.acting and self._stepped(before) and not self._finite):
                raise
        finally:
            dist_utils.clip_grad_norm_ = own
        self.step = port.step_number
        self._advanced = self._counts(before)
        if port.is_calm:
            port.contain("checkpoint", self._files.follow)

    # -- joining the Trainer ------------------------------------------------------------------

    def _begin_guard(self) -> None:
        """Make the guard of what the Trainer has built and loaded, and join the two."""
        config = self.config
        check_trainer(self)
        chosen = getattr(config, "guard", None) or GuardConfig()
        mesh = self.parallel_dims.get_optional_mesh("loss")
        dealt = self.parallel_dims.get_optional_mesh("batch")
        accumulate = int(self.gradient_accumulation_steps)
        self._shares = (1 if mesh is None else mesh.size()) * accumulate
        self._run = Path(chosen.run or Path(config.dump_folder) / "trimtab")
        optimizers, schedulers = self.optimizers, self.lr_schedulers
        order = StreamOrder(Stream(self.dataloader), replicas=1 if dealt is None else dealt.size())
        self.guard = Guard(
            self.model_parts[0],
            ContainedOptimizer(optimizers),
            data=cast("DataLoader[object]", order),  # the guard takes an order as it is
            run=self._run,
            mode=chosen.mode,
            policy=chosen.policy_in_force(),
            scheduler=schedulers,
            steps=config.training.steps,
            accumulate=accumulate,
            loaded_step=self._loaded_step(),
            extra={"torchtitan": self},
            say=self.say,
        )
        port = TrainerPort(self.guard)
        self.step = port.step_number
        self._batches = port.batches()
        self._files = TitanFiles(self.checkpointer, Path(config.dump_folder) / "aside", port)
        self._replace(self, "optimizers", SteppedOptimizer(optimizers, port))
        self._replace(self, "lr_schedulers", RatesInForce(schedulers, port))
        self._replace(self.metrics_processor, "log", partial(self._log, self.metrics_processor.log))
        self._replace(self.checkpointer, "save", partial(self._save, self.checkpointer.save))
        validator = getattr(self, "validator", None)
        if validator is not None:
            self._replace(
                validator, "should_validate", partial(self._is_due, validator.should_validate)
            )
            self._replace(validator, "validate", partial(self._validate, validator.validate))

    def _loaded_step(self) -> int | None:
        """Return the step of torchtitan's checkpoint if the run resumes from it."""
        if not self.step:
            return None
        # Agreed upon: on a shared disk one rank may see the new journal before another looks.
        is_old = Ranks().agree(RunDirectory(self._run).journal.exists)
        return self.step if self.config.checkpoint.load_step >= 0 or not is_old else None

    def _feed(self) -> Iterator[tuple[object, object]]:
        assert self._batches is not None
        for batch in self._batches:
            yield batch["input"], batch["labels"]

    def _go_unguarded(self, error: Exception) -> None:
        self._restore()
        to_stderr(
            f"trimtab: internal error; the run is not guarded: {type(error).__name__}: {error}"
        )
        if self.guard is not None:
            self.guard.close()
        self.guard = None

    def _replace(self, owner: object, name: str, ours: object) -> None:
        own = vars(owner)
        before = (own[name],) if name in own else None
        setattr(owner, name, ours)
        self._undo.append(
            partial(setattr, owner, name, before[0]) if before else partial(delattr, owner, name)
        )

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _release(self) -> None:
        """Give the Trainer its own objects back, and release the run."""
        if self._batches is not None:
            self._batches.close()
        self._restore()
        if self.guard is not None:
            self.guard.close()

    # -- within a step ----------------------------------------------------------------------

    def _clip(
        self,
        own: Callable[..., torch.Tensor],
        parameters: Iterable[torch.Tensor],
        max_norm: float,
        *rest: object,
        **more: object,
    ) -> torch.Tensor:
        """Clip as torchtitan does, over all its meshes, to the limit in force; return the norm."""
        port = self.port
        assert port is not None
        if port.probing:
            return torch.zeros(())
        limit = max_norm * port.clip_factor
        norm = own(parameters, limit, *rest, **more)
        port.note_clipped(torch.as_tensor(norm), own_limit=max_norm, limit=limit)
        return norm

    def _stepped(self, before: int) -> bool:
        """Whether the guard did a step in this pass: its count moved, or it tries something."""
        port = self.port
        return port is not None and (port.step_number != before or not port.is_calm)

    @property
    def _finite(self) -> bool:
        """Whether the loss of the last step was finite on all ranks."""
        return self.port is not None and math.isfinite(self.port.last_loss)

    def _counts(self, before: int) -> bool:
        """Whether this pass was a step of the run: not of a probe or trial, and not rolled back."""
        port = self.port
        return port is not None and port.is_calm and port.step_number == before + 1

    def _log(self, own: Callable[..., None], step: int, *values: object, **more: object) -> None:
        """Log a step that counts."""
        if self._counts(step - 1):
            own(step, *values, **more)

    def _save(self, own: Callable[..., bool], step: int, *rest: object, **more: object) -> bool:
        """Save a step that counts."""
        return self._advanced and self._files.saved(step, own(step, *rest, **more))

    def _is_due(self, own: Callable[[int], bool], step: int) -> bool:
        return self._advanced and own(step)

    def _validate(self, own: Callable[..., None], *given: object, **more: object) -> None:
        """Validate, and leave its time out of the next step's."""
        own(*given, **more)
        if self.port is not None:
            self.port.restart_clock()


class TitanGuardedTrainer(TitanGuardMixin, Trainer):  # type: ignore[misc]
    """torchtitan's Trainer, guarded; see the module."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):  # type: ignore[misc]
        """torchtitan's config, with the settings of the guard."""

        guard: GuardConfig = field(default_factory=GuardConfig)


def guarded(
    config: Trainer.Config, *, mode: Mode = "observe", run: str = "", policy: str = ""
) -> TitanGuardedTrainer.Config:
    """Return a Trainer's config, as a registry holds it, for the guarded Trainer.

    Args:
        config: A `Trainer.Config`; its fields are taken over.
        mode: observe, advise or act.
        run: Run directory; empty: `trimtab` in the dump folder.
        policy: A TOML file; empty: the defaults.

    Raises:
        ConfigError: It is the config of another class.
    """
    if type(config) is not Trainer.Config:
        raise ConfigError(
            f"config is a {type(config).__qualname__}, expected torchtitan's Trainer.Config; for a"
            " Trainer class of your own put trimtab.integrations.torchtitan.GuardMixin"
            " before it and give its Config a field guard: GuardConfig"
        )
    own = {f.name: getattr(config, f.name) for f in fields(config)}
    return TitanGuardedTrainer.Config(**own, guard=GuardConfig(mode=mode, run=run, policy=policy))
