"""What the loop tells the guard of the batches of the step under way.

Losses, signals, or that it gives them up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trimtab.errors import ConfigError
from trimtab.guard.control import arguments
from trimtab.guard.control.manual import Controls
from trimtab.guard.data.order import Fed

if TYPE_CHECKING:
    from trimtab.guard.loop.signal_handler import Interrupts

__all__ = ["Batches", "Losses"]

_NO_SIGNALS = ("step",)
"""Names of a row that are no signals."""


class Losses:
    """The losses of one step, each the mean of one part of it."""

    def __init__(self) -> None:
        """None yet."""
        self._losses: list[torch.Tensor] = []
        self._parts: list[float] = []

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._losses)

    def clear(self) -> None:
        """Forget them."""
        self._losses.clear()
        self._parts.clear()

    def note(self, loss: torch.Tensor, parts: float) -> None:
        """Take in the loss of one of so many parts."""
        self._losses.append(loss.detach().reshape(()))
        self._parts.append(parts)

    def mean(self) -> torch.Tensor:
        """Return their mean, each weighted with its share of the step; there is at least one."""
        if len(self._losses) == 1:
            return self._losses[0]
        losses = torch.stack([x.float() for x in self._losses])
        if len(set(self._parts)) == 1:
            return losses.mean()
        shares = torch.tensor([1 / n for n in self._parts], device=losses.device)
        return (losses * shares).sum() / shares.sum()


class Batches(Controls):
    """The part of `Guard` that the loop body calls for each batch."""

    _accumulate: int
    _losses: Losses
    _interrupts: Interrupts
    _sum_told = False
    _samples_told = False

    def backward(
        self, loss: torch.Tensor, *, parts: float = 1, samples: torch.Tensor | None = None
    ) -> None:
        """Run the backward pass, scaled where there is a scaler; nothing but noting it in a probe.

        The gradients of several calls before `step()` add up, as those of `loss.backward()` do.
        Where they are to be those of the mean, say of how many parts the step is made: the backward
        pass is then that of `loss / parts`, and the mean of the losses is logged, each with its
        share.

        Args:
            loss: Mean loss of what was fed, one number; not divided, and not scaled for fp16.
            parts: How many parts like this one make the step; where they are not of one size,
                `len(batch) / len(part)`.
            samples: As for `note_loss`.

        Raises:
            ConfigError: It is no loss with a graph, `parts` is below 1, or no batch was handed out.
        """
        self.note_loss(loss, parts=parts, samples=samples)
        if self.probing:
            return
        if not loss.requires_grad:
            raise ConfigError(
                "guard.backward() was given a loss without a graph; do not detach it, and compute"
                " it with gradients on"
            )
        if parts == 1 and len(self._losses) > len(self._fed):
            self._tell_of_sum()
        if parts != 1:
            loss = loss / parts
        self._engine.scales_loss = True
        scaler = self._engine.live_scaler()
        (scaler.scale(loss) if scaler is not None else loss).backward()

    def note_loss(
        self, loss: torch.Tensor, *, parts: float = 1, samples: torch.Tensor | None = None
    ) -> None:
        """Take note of a batch's loss, where a trainer runs the backward pass itself.

        Args:
            loss: Mean loss of the batch, nats per token; neither scaled for fp16 nor divided by the
                number of batches that are accumulated.
            parts: As for `backward`; only how much it counts in the mean that is logged.
            samples: Losses of single samples, [samples] or [samples, tokens]; the outliers are
                named. What is no such tensor is left out, and said once.

        Raises:
            ConfigError: It is no tensor of one real number, `parts` is below 1, or no batch was
                handed out.
        """
        given: object = loss
        if not isinstance(given, torch.Tensor) or given.numel() != 1 or given.is_complex():
            what = (
                f"a tensor {list(loss.shape)} of {loss.dtype}"
                if isinstance(given, torch.Tensor)
                else arguments.shown(given)
            )
            raise ConfigError(
                f"guard.backward({what}): expected the mean loss of the batch, a tensor of one real"
                " number"
            )
        if not 1 <= arguments.number("guard.backward(parts=...): parts", parts) < float("inf"):
            raise ConfigError(
                f"guard.backward(parts={parts!r}): expected how many parts make the step, at"
                " least 1"
            )
        if not self._fed:
            raise ConfigError(
                "guard.backward() needs a batch: call it in a `for batch in guard:` loop, before"
                " guard.step()"
            )
        self._losses.note(loss, parts)
        if samples is not None:
            self._note_samples(samples)

    def _note_samples(self, samples: object) -> None:
        if isinstance(samples, torch.Tensor) and samples.numel() and not samples.is_complex():
            self._engine.probes.samples.note(samples)
        elif not self._samples_told:
            self._samples_told = True
            self._tell_note(
                f"samples={arguments.shown(samples)} is left out: expected a tensor of losses,"
                " [samples] or [samples, tokens]"
            )

    def _tell_of_sum(self) -> None:
        """Say once that gradients add up, which who passes parts of a batch may not want."""
        if not self._sum_told:
            self._sum_told = True
            self._tell_note(
                "one batch was given several losses: their gradients add up, and their mean is"
                " logged; for N parts of one batch call guard.backward(loss, parts=N), which makes"
                " them those of the mean"
            )

    def clip_gradients(self, limit: float | None) -> float:
        """Unscale and clip now, where a trainer does so before its optimizer's step.

        `step()` then does not do it again; the guard's own factor on the limit applies.

        Args:
            limit: Largest global gradient norm, None: only measure it; kept for later steps.

        Returns:
            The norm before clipping, NaN and Inf as they are; 0 in a probe, which has no gradients.
        """
        if self.probing:
            return 0.0
        self._engine.clip = limit
        return self._engine.clip_ahead()[0]

    def note_signals(self, **signals: float) -> None:
        """Record further signals with the step under way (a reward, a KL divergence).

        Of several ranks all must note the same names; the mean is recorded. Names that the guard
        measures itself are left out, and so is `step`.

        Raises:
            ConfigError: A value is no number.
        """
        taken = {
            name: float(arguments.number(f"note_signals: {name}=", value))
            for name, value in signals.items()
            if name not in _NO_SIGNALS
        }
        if not self.probing:
            self._engine.noted |= taken

    @property
    def probing(self) -> bool:
        """Whether batches are only looked at: gradients made now are thrown away by `step()`."""
        return self._recovery.phase == "probe"

    @property
    def step_is_due(self) -> bool:
        """Whether as many batches were handed out as make a step, `Guard(accumulate=...)`."""
        return len(self._fed) >= self._accumulate

    def drop_batch(self, *, why: str) -> None:
        """Give up what was handed out since the last step.

        No update is made with it, no step counted.

        For a batch that does not fit into memory, or cannot be used. Its gradients and losses are
        thrown away, its sample ids are written down, and the loop goes on with the next batch,
        after `continue`. On several ranks all must call it.

        Raises:
            ConfigError: No batch was handed out, no reason is given, or the run has ended.
            SystemExit, KeyboardInterrupt: As for `step`.
        """
        self._check_open("drop_batch")
        arguments.reason("drop_batch", why)
        if not self._fed:
            raise ConfigError(
                "guard.drop_batch() needs a batch: call it in a `for batch in guard:` loop, in"
                " place of guard.step()"
            )
        self._give_up_batch(why)
        self._interrupts.step_ends(together=False)

    def _give_up_batch(self, why: str) -> None:
        fed = Fed.joined(self._fed)
        self._fed.clear()
        self._losses.clear()
        self._engine.abandon_step()
        self._tell_note(f"samples {fed.first}-{fed.last} given up: {why}")

    def _tell_note(self, text: str) -> None:
        """Say and journal a sentence of ours."""
        step = self._engine.counters.step
        self._edge.run("journal", lambda: self._recovery.note(text))
        self._edge.run("journal", lambda: self._say(f"step {step:>6,}  {text}"))
