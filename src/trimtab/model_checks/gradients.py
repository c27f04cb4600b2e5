"""One forward and backward pass on a tiny batch: what learns, what does not, and the first loss."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.model_checks.anatomy import local
from trimtab.model_checks.book import found, listed
from trimtab.model_checks.weights import fill_noise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trimtab.config_rules.lint import ConfigFinding
    from trimtab.model_checks.anatomy import Anatomy

__all__ = [
    "GradientPass",
    "LossFunction",
    "as_it_was",
    "judge_loss",
    "judge_touch",
    "logits_of",
    "put_back",
    "run_once",
    "tiny_batch",
    "token_loss",
]

_ROWS, _TOKENS = 2, 16

LossFunction: TypeAlias = "Callable[[nn.Module, Any], Tensor]"
"""(model, batch) → scalar. The batch is `Any`: each function declares the type that it takes."""


@dataclass(frozen=True, kw_only=True)
class GradientPass:
    """What one pass showed."""

    loss: float | None = None
    """Nats per token; None where no pass was possible."""
    grad_norm: dict[str, float] = field(default_factory=dict)
    """Parameter → norm of its gradient; one that got none is absent."""
    effective_std: float | None = None
    """std with which the token embedding enters the first block."""
    failed: str = ""
    """Why no pass was possible."""


def tiny_batch(vocab: int, device: torch.device, *, seed: int = 0) -> Tensor:
    """Return random tokens, int64 [2, 17], from a generator of its own."""
    # On the CPU, then moved: a generator of a device gives other tokens there.
    source = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (_ROWS, _TOKENS + 1), generator=source).to(device)


def logits_of(output: object) -> Tensor:
    """Return the logits of a model's output.

    A tensor, something with `.logits`, or the first of several.

    Raises:
        TypeError: It is none of these.
    """
    found_logits = getattr(
        output, "logits", output[0] if isinstance(output, tuple | list) else output
    )
    if not isinstance(found_logits, Tensor):
        raise TypeError(
            f"the model returns {type(output).__name__}; give loss=, a function of (model, batch)"
        )
    return found_logits


def token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean next-token cross-entropy in nats, for tokens, int64 [B, T + 1]."""
    logits = logits_of(model(batch[:, :-1]))
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def run_once(
    model: nn.Module, anatomy: Anatomy, batch: object, loss: LossFunction | None
) -> GradientPass:
    """Do one pass in train mode and restore weights, gradients, buffers and random state.

    A weight that is exactly 0 hides the gradient of those before it; for the pass it gets small
    noise.

    Cost: one forward and backward pass, and the memory of one set of gradients.
    """
    if any(p.parameter.is_meta for p in anatomy.parts):
        return GradientPass(failed="weights are on the meta device")
    if batch is None and anatomy.vocab is None:
        return GradientPass(failed="no token embedding was recognised; give batch= and loss=")
    device = anatomy.parts[0].parameter.device
    given = tiny_batch(anatomy.vocab or 2, device) if batch is None else batch
    entering: list[float] = []
    with as_it_was(model, anatomy), _first_input(model, anatomy, entering):
        try:
            chosen: LossFunction = loss or token_loss
            value = chosen(model, given)
            value.backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 (any error of the user's code is reported)
            return GradientPass(
                failed=(
                    f"{type(error).__name__}:"
                    f" {str(error).splitlines()[0][:200] if str(error) else ''}"
                )
            )
        norms = {
            p.name: float(local(p.parameter.grad).float().norm())
            for p in anatomy.parts
            if p.parameter.grad is not None
        }
        return GradientPass(
            loss=float(value.detach()),
            grad_norm=norms,
            effective_std=entering[0] if entering else None,
        )


@contextlib.contextmanager
def put_back(model: nn.Module) -> Iterator[None]:
    """Compute gradients within; put gradients, buffers, modes and the random state back after."""
    modes = [(m, m.training) for m in model.modules()]
    # The gradient tensors themselves: DDP and FSDP keep views of them.
    grads = [(p, p.grad) for p in model.parameters()]
    # BatchNorm's running means and rotary caches are written in a forward pass.
    buffers = [(b, b.clone()) for b in model.buffers()]
    devices = [p.device for p in model.parameters() if p.device.type == "cuda"]
    with (
        torch.random.fork_rng(devices=sorted({d.index or 0 for d in devices})),
        # The caller may hold `no_grad`, under which nothing would get a gradient.
        torch.enable_grad(),
    ):
        for p, _ in grads:
            p.grad = None
        try:
            yield
        finally:
            for p, grad in grads:
                p.grad = grad
            with torch.no_grad():
                for buffer, kept in buffers:
                    buffer.copy_(kept)
            for module, mode in modes:
                module.training = mode


@contextlib.contextmanager
def as_it_was(model: nn.Module, anatomy: Anatomy) -> Iterator[None]:
    """Fill weights that are exactly 0 with small noise, and put everything back afterwards.

    Weights, gradients, buffers, the mode and the random state are restored.
    """
    parameters = list(model.parameters())
    zeros = [p for p in parameters if p.numel() and not bool(local(p.detach()).any())]
    with put_back(model):
        torch.manual_seed(0)
        model.train()
        for part in anatomy.of("matrix", "residual output", "head"):
            if part.parameter.numel() and not bool(local(part.parameter.detach()).any()):
                fill_noise(part.parameter)
        try:
            yield
        finally:
            with torch.no_grad():
                for p in zeros:
                    local(p).zero_()


@contextlib.contextmanager
def _first_input(model: nn.Module, anatomy: Anatomy, entering: list[float]) -> Iterator[None]:
    """Record the std of the input of the first block, without the share of added positions."""
    tokens = anatomy.of("token embedding")
    if anatomy.blocks_name is None or not tokens:
        yield
        return
    blocks = model.get_submodule(anatomy.blocks_name)
    first = next(iter(blocks.children()))
    embedded: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            embedded.append(output.detach().float())

    def note(_module: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
        # transformers calls its blocks with keywords, other code by position.
        given = inputs[0] if inputs else named.get("hidden_states")
        if isinstance(given, Tensor) and not entering and embedded:
            entering.append(_share(embedded[0], given.detach().float()))

    hooks = [
        tokens[0].module.register_forward_hook(keep),
        first.register_forward_pre_hook(note, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _share(embedded: Tensor, entering: Tensor) -> float:
    """Return the std of a·e, the embedding's share of x = a·e + positions."""
    if embedded.shape != entering.shape:
        return float(entering.std())
    e, x = embedded - embedded.mean(), entering - entering.mean()
    # Least squares: positions and a constant are uncorrelated with the tokens, so a is the slope.
    slope = float((e * x).sum() / e.square().sum().clamp_min(1e-30))
    return abs(slope) * float(embedded.std())


def judge_touch(anatomy: Anatomy, done: GradientPass) -> Iterator[ConfigFinding]:
    """Yield frozen parameters, parameters without a gradient, and gradients that are not finite."""
    frozen = [
        p for p in anatomy.parts if not p.parameter.requires_grad and p.role != "position embedding"
    ]
    if frozen:
        few = len(frozen) * 2 < len(
            anatomy.parts
        )  # most of them: adapters are trained, as is meant
        yield found(
            "UNTOUCHED",
            "warning" if few else "info",
            f"{len(frozen)} of {len(anatomy.parts)} parameters are frozen:"
            f" {listed(p.name for p in frozen)}",
            values={"tensors": [p.name for p in frozen]},
            instead="requires_grad True, if they are to learn",
        )
    if done.failed:
        return
    trained = [p for p in anatomy.parts if p.parameter.requires_grad]
    still = [p for p in trained if done.grad_norm.get(p.name, 0.0) == 0.0]
    lost = [p.name for p in still if p.role == "position embedding"]
    if lost:
        yield found(
            "L04",
            "error",
            f"position embeddings get no gradient: {listed(lost)}",
            values={"tensors": lost},
            instead="use them in the forward pass, without detach() or no_grad()",
        )
    others = [p for p in still if p.role != "position embedding" and not _is_key_bias(p.name)]
    if others:
        none = sum(p.name not in done.grad_norm for p in others)
        yield found(
            "UNTOUCHED",
            "warning",
            f"{len(others)} trainable parameters get no gradient ({none} none at all,"
            f" {len(others) - none} zero): {listed(p.name for p in others)}",
            values={"tensors": [p.name for p in others]},
            instead="take them out of the model, or use them",
        )
    wild = [n for n, norm in done.grad_norm.items() if not math.isfinite(norm)]
    if wild:
        yield found(
            "UNTOUCHED",
            "error",
            f"gradients are not finite at the first step: {listed(wild)}",
            values={"tensors": wild},
        )


def _is_key_bias(name: str) -> bool:
    """A bias on keys shifts all scores of a row alike, so its gradient is 0 by softmax."""
    return name.endswith("bias") and any(k in name for k in ("k_proj", "key", ".k.", "wk"))


def judge_loss(done: GradientPass, vocab: int | None) -> Iterator[ConfigFinding]:
    """Compare the first loss on random tokens with ln V."""
    if done.loss is None or vocab is None:
        return
    ideal = math.log(vocab)
    values = {"loss": done.loss, "ln V": ideal, "vocab": vocab}
    if not math.isfinite(done.loss):
        yield found(
            "LOSS0",
            "error",
            f"the first loss is {done.loss}; ln {vocab} = {ideal:.2f}",
            values=values,
        )
    # One nat: a sound init adds about half the variance of its logits, far below that.
    elif done.loss > ideal + 1.0:
        yield found(
            "LOSS0",
            "error" if done.loss > 2 * ideal else "warning",
            f"the first loss is {done.loss:.2f}, ln {vocab} = {ideal:.2f}: the output layer starts"
            " too large",
            values=values,
            instead="a smaller init of the output layer or of a tied embedding, or a final norm",
        )
    # On random tokens nothing can be predicted: below ln V the answer is in the input.
    elif done.loss < ideal - 1.0:
        yield found(
            "LOSS0",
            "error",
            f"the first loss on random tokens is {done.loss:.2f}, below ln {vocab} = {ideal:.2f}:"
            " the target leaks into the input",
            values=values,
            instead="shift the labels once, and mask what lies ahead",
        )
