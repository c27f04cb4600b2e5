"""`audit(model, optimizer)`: everything that can be measured on a model before its first step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from trimtab.errors import ConfigError
from trimtab.model_checks.anatomy import dissect, positions_without_weights
from trimtab.model_checks.book import ordered
from trimtab.model_checks.causality import judge_lookahead, look_ahead
from trimtab.model_checks.gradients import judge_loss, judge_touch, run_once
from trimtab.model_checks.groups import (
    decay_of,
    judge_groups,
    judge_precision,
    judge_states,
    state_types,
)
from trimtab.model_checks.operations import judge_activations
from trimtab.model_checks.reload import judge_added_layers
from trimtab.model_checks.weights import (
    embedding_kind,
    judge_embeddings,
    judge_matrices,
    judge_positions,
    measure,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trimtab.config_rules.lint import ConfigFinding
    from trimtab.model_checks.gradients import LossFunction
    from trimtab.model_checks.weights import Position, TensorStats

__all__ = ["Audit", "audit"]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found, and what it measured."""

    findings: tuple[ConfigFinding, ...]
    """Most severe first."""
    tensors: tuple[TensorStats, ...]
    """One per parameter, in the model's order."""
    facts: Mapping[str, Any]
    """params, hidden, layers, vocab, embedding, positions, first_loss, effective_embedding_std,
    tied, optimizer_states, weight_decay, and notes on what could not be measured."""

    def __iter__(self) -> Iterator[ConfigFinding]:
        """Iterate over the findings."""
        return iter(self.findings)

    def check(self) -> None:
        """Refuse to go on where an error was found.

        Raises:
            ConfigError: Names every error.
        """
        wrong = [f"{f.rule}: {f.message}" for f in self.findings if f.severity == "error"]
        if wrong:
            raise ConfigError("; ".join(wrong))

    def to_json(self) -> dict[str, object]:
        """Return it as JSON can hold it."""
        return {
            "facts": dict(self.facts),
            "findings": [asdict(f) for f in self.findings],
            "tensors": [asdict(t) for t in self.tensors],
        }


def audit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    batch: object = None,
    loss: LossFunction | None = None,
    scaler: object | None = None,
    dtype: Literal["fp16", "bf16", "fp32"] | None = None,
    position: Position | None = None,
    checkpoint: Mapping[str, object] | None = None,
    trained: bool = False,
    asked_stds: Mapping[str, float] | None = None,
) -> Audit:
    """Measure a model, and its optimizer, before the first step; leave both as they were.

    Args:
        model: Fresh from its constructor, or not (`trained`). On the meta device only shapes,
            groups and names are judged.
        optimizer: Its groups, decay and state types are judged, too.
        batch: A tiny batch for one pass; None makes random tokens, int64 [2, 17].
        loss: (model, batch) → scalar; None takes next-token cross-entropy of the model's logits.
        scaler: The loss scaler, if there is one.
        dtype: Type of autocast.
        position: What the config says of positions.
        checkpoint: The model's state in a checkpoint to go on from: layers it lacks are reported.
        asked_stds: Parameter → std that the init asks for, for a model on the meta device
            (`drawn.AskedStds`).
        trained: The weights are no longer the first ones: their size is then not judged.

    Cost: reads each weight once; one forward and backward pass. Weights, gradients, buffers, mode
    and random state are put back.
    NaN in a weight makes its std NaN, which no rule judges; NaN in the first loss or in a gradient
    is an error.
    Without batch and loss the model is also asked whether a later token changes earlier logits.
    Blind to what a tiny batch does not reach, such as experts that no token was routed to.
    """
    _check_kinds(model, optimizer)
    anatomy = dissect(model)
    if not anatomy.parts:
        raise ConfigError(f"{type(model).__name__} has no parameters; give a model")
    # Measured before the pass, which fills weights that are 0 with noise for its duration.
    rows = measure(anatomy, asked_stds)
    done = run_once(model, anatomy, batch, loss)
    tamed = any(is_qk_norm(p.name) for p in anatomy.parts)
    kind = embedding_kind(anatomy)
    positions, on_positions = judge_positions(
        anatomy, rows, meant=position, seen=positions_without_weights(model)
    )
    found: list[ConfigFinding] = [*on_positions, *judge_touch(anatomy, done)]
    if not trained:
        found += judge_matrices(anatomy, rows, tamed=tamed)
        found += judge_embeddings(rows, kind=kind, effective=done.effective_std, tamed=tamed)
        # ln V is the expected first loss only for random tokens and cross-entropy.
        if batch is None and loss is None:
            found += judge_loss(done, anatomy.vocab)
    # With a batch of the caller's own the model may be meant to look both ways.
    if batch is None and loss is None and not done.failed:
        found += judge_lookahead(look_ahead(model, anatomy))
    types: dict[str, str] = {}
    if optimizer is not None:
        found += judge_groups(anatomy, optimizer)
        types = state_types(optimizer)
        found += judge_states(types)
    found += judge_precision(anatomy, dtype, scaler)
    if dtype == "fp16":
        found += judge_activations(model)
    if checkpoint is not None:
        found += judge_added_layers(model, checkpoint)
    facts = {
        "params": anatomy.num_params,
        "hidden": anatomy.hidden,
        "layers": anatomy.layers,
        "vocab": anatomy.vocab,
        "embedding": kind,
        "positions": positions,
        "first_loss": done.loss,
        "effective_embedding_std": done.effective_std,
        "tied": [list(names) for names in anatomy.tied],
        "optimizer_states": types,
        "weight_decay": decay_of(anatomy, optimizer) if optimizer is not None else {},
        "notes": [f"no pass was possible: {done.failed}"] if done.failed else [],
    }
    return Audit(findings=ordered(found), tensors=rows, facts=facts)


def _check_kinds(model: object, optimizer: object) -> None:
    """Refuse what is no model, no optimizer, or has weights without a shape.

    Raises:
        ConfigError: Says which.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is {type(model).__name__}; give a torch.nn.Module")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"optimizer is {type(optimizer).__name__}; give a torch.optim.Optimizer")
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        raise ConfigError(
            f"{type(model).__name__} has lazy modules whose weights have no shape yet; run a batch"
            " through it first"
        )


def is_qk_norm(name: str) -> bool:
    """Whether a parameter's name is that of a norm on queries or keys."""
    return any(
        k in name
        for k in (
            "q_norm",
            "k_norm",
            "q_layernorm",
            "k_layernorm",
            "query_norm",
            "qk_norm",
            "q_ln",
            "k_ln",
        )
    )
