"""The small-model convergence test: a tiny twin must beat tables of counts on real text."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from trimtab.errors import ConfigError
from trimtab.model_checks.book import found
from trimtab.model_checks.gradients import token_loss
from trimtab.model_checks.ngrams import bigram_loss, unigram_loss
from trimtab.model_checks.twin import TwinModel, make_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from trimtab.config_rules.lint import ConfigFinding
    from trimtab.configs.shrink import Twin

__all__ = ["Smoke", "smoke"]

_JUDGED_WINDOWS = 512
_JUDGED_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class Smoke:
    """How the twin did."""

    passed: bool
    loss: float
    """Nats per token on held-out text, after the last step; NaN where training ran into NaN."""
    unigram: float
    """Loss of single-token frequencies on the same text."""
    bigram: float
    first_loss: float
    """Training loss of the first step."""
    steps: int
    seconds: float
    findings: tuple[ConfigFinding, ...]
    twin: Twin

    def to_json(self) -> dict[str, object]:
        """Return it as JSON can hold it."""
        document = asdict(self)
        for name in ("notes", "caveats"):
            document["twin"].pop(name)
        return document | {"notes": list(self.twin.notes), "caveats": list(self.twin.caveats)}


def smoke(
    twin: Twin,
    train: NDArray[np.uint8],
    held_out: NDArray[np.uint8],
    *,
    steps: int = 600,
    seed: int = 0,
    on_step: Callable[[int, float], None] | None = None,
) -> Smoke:
    """Train the twin and hold it against a unigram and a bigram table on held-out text.

    Passes where the held-out loss is below both. 600 steps at width 64 take one to two minutes on
    one core and end well below; a rate, init or optimizer that does not train ends above.
    Blind to what trains small and fails large: a rate a few times too high, β2, fp16, a missing
    clip.

    Args:
        twin: The model and how it is trained.
        train: uint8 [n], tokens to train and to count on.
        held_out: uint8 [m], never trained on.
        steps: Optimizer steps.
        seed: Of weights and data.
        on_step: Called with step and loss.

    Raises:
        ConfigError: A text is shorter than a sequence, or fewer than ten steps are asked for.

    NaN: a loss that is not finite ends training; the test has then failed. The same seed and
    number of threads give the same bits; torch's global generator is put back.
    """
    if steps < 10:
        raise ConfigError(f"steps is {steps}; give at least 10")
    if min(train.size, held_out.size) <= twin.context + 1:
        raise ConfigError(
            f"a text has {min(train.size, held_out.size)} tokens, a sequence {twin.context + 1};"
            " give more"
        )
    if int(max(train.max(), held_out.max())) >= twin.vocab:
        raise ConfigError(
            f"the text has token {int(max(train.max(), held_out.max()))} and vocab is {twin.vocab};"
            " give a larger one"
        )
    begin = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TwinModel(twin)
        first, done = _train(model, train, steps, seed, on_step)
        loss = _judge(model, held_out) if math.isfinite(done[1]) else math.nan
    unigram, bigram = (f(train, held_out, vocab=twin.vocab) for f in (unigram_loss, bigram_loss))
    passed = loss < min(unigram, bigram)  # NaN passes nothing
    return Smoke(
        passed=passed,
        loss=loss,
        unigram=unigram,
        bigram=bigram,
        first_loss=first,
        steps=done[0],
        seconds=time.perf_counter() - begin,
        findings=() if passed else (_failed(loss, unigram, bigram, done[0]),),
        twin=twin,
    )


def _train(
    model: TwinModel,
    text: NDArray[np.uint8],
    steps: int,
    seed: int,
    on_step: Callable[[int, float], None] | None,
) -> tuple[float, tuple[int, float]]:
    """Return the first loss, and the last step with its loss."""
    twin, source = model.twin, np.random.default_rng(seed)
    optimizer = make_optimizer(model)
    warm = max(1, round(twin.warmup_share * steps))

    def share(done: int) -> float:
        if done < warm:
            return (done + 1) / warm
        turn = 0.5 * (1 + math.cos(math.pi * (done - warm) / max(steps - warm, 1)))
        return twin.final_lr_share + (1 - twin.final_lr_share) * turn

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    windows = np.lib.stride_tricks.sliding_window_view(text, twin.context + 1)
    first = value = math.nan
    for step in range(1, steps + 1):
        rows = windows[source.integers(len(windows), size=twin.batch)]
        loss = token_loss(model, torch.from_numpy(rows.astype(np.int64)))
        value = float(loss.detach())
        first = value if step == 1 else first
        if on_step is not None:
            on_step(step, value)
        # Before the update, which would only spread it.
        if not math.isfinite(value):
            return first, (step, value)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if twin.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), twin.clip)
        optimizer.step()
        schedule.step()
    return first, (steps, value)


def _judge(model: TwinModel, text: NDArray[np.uint8]) -> float:
    """Return the mean loss of windows spread evenly over the text."""
    width = model.twin.context + 1
    # Windows do not overlap, so that no token counts twice.
    starts = np.linspace(0, text.size - width, num=min(_JUDGED_WINDOWS, text.size // width)).astype(
        int
    )
    rows = np.stack([text[s : s + width] for s in starts]).astype(np.int64)
    total, tokens = 0.0, torch.from_numpy(rows)
    model.eval()
    with torch.no_grad():
        for part in torch.split(tokens, _JUDGED_AT_ONCE):
            total += float(token_loss(model, part)) * len(part)
    return total / len(tokens)


def _failed(loss: float, unigram: float, bigram: float, step: int) -> ConfigFinding:
    if not math.isfinite(loss):
        message = f"the small twin ran into NaN or Inf at step {step}"
    elif loss >= unigram:
        message = (
            f"the small twin learned nothing: {loss:.3f} nats per token, single-token frequencies"
            f" have {unigram:.3f}"
        )
    else:
        message = (
            f"the small twin hardly learned: {loss:.3f} nats per token, a bigram table has"
            f" {bigram:.3f}"
        )
    values = {"loss": loss, "unigram": unigram, "bigram": bigram, "step": step}
    return found(
        "L43",
        "error",
        message,
        values=values,
        instead="change one setting at a time: learning rate, init, eps, clip",
    )


def batch_of(twin: Twin, *, seed: int = 0) -> Tensor:
    """Return random tokens, int64 [batch, context + 1], from a generator of its own."""
    return torch.randint(
        twin.vocab, (twin.batch, twin.context + 1), generator=torch.Generator().manual_seed(seed)
    )
