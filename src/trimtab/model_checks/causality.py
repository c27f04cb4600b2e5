"""Whether a model is causal: changing the last token must not change any earlier logit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trimtab.model_checks.book import found
from trimtab.model_checks.gradients import as_it_was, logits_of, tiny_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trimtab.config_rules.lint import ConfigFinding
    from trimtab.model_checks.anatomy import Anatomy

__all__ = ["Lookahead", "judge_lookahead", "look_ahead"]

TOLERANCE = 1e-5
"""Change of an earlier logit over the largest logit. A masked score adds exactly nothing, so a
causal model changes by 0."""


@dataclass(frozen=True, kw_only=True)
class Lookahead:
    """What a change of the last token did."""

    earlier: float
    """Largest change of a logit before the changed token, over the largest logit."""
    own: float
    """The same at the changed token; 0 says that the model does not look at its input."""


def look_ahead(model: nn.Module, anatomy: Anatomy) -> Lookahead | None:
    """Run a model twice in eval mode, from one random state, with two different last tokens.

    Args:
        model: Gives logits, float [B, T, V], for tokens, int64 [B, T]; it is left as it was.
        anatomy: Its parts; without a token embedding nothing is asked.

    Returns:
        None where the output is no such logits, or is not finite, or no pass is possible.

    Cost: two forward passes on a tiny batch.
    Blind to a leak that only longer sequences, packed documents or training mode show.
    """
    vocab = anatomy.vocab
    if vocab is None or vocab < 2 or any(p.parameter.is_meta for p in anatomy.parts):
        return None
    tokens = tiny_batch(vocab, anatomy.parts[0].parameter.device)[:, :-1]
    with as_it_was(model, anatomy):
        try:
            return _compare(model, tokens, vocab)
        except Exception:  # noqa: BLE001 (the pass with a loss reports why)
            return None


def _compare(model: nn.Module, tokens: Tensor, vocab: int) -> Lookahead | None:
    other = tokens.clone()
    # Half the vocabulary away: surely another token, whatever the size.
    other[:, -1] = (other[:, -1] + max(vocab // 2, 1)) % vocab
    model.eval()
    outputs = []
    for given in (tokens, other):
        # From one state: what draws random numbers in eval mode must draw the same ones twice.
        torch.manual_seed(0)
        with torch.no_grad():
            outputs.append(logits_of(model(given)).detach().float())
    first, second = outputs
    if first.shape != second.shape or first.dim() != 3 or first.shape[:2] != tokens.shape:
        return None
    largest = float(first.abs().max())
    # NaN passes no comparison, and would read as a model that looks ahead.
    if not bool(torch.isfinite(first).all() and torch.isfinite(second).all()) or largest == 0:
        return None
    change = (second - first).abs().amax(dim=(0, 2)) / largest
    return Lookahead(earlier=float(change[:-1].max()), own=float(change[-1]))


def judge_lookahead(seen: Lookahead | None) -> Iterator[ConfigFinding]:
    """Report a model whose earlier logits a later token changes."""
    if seen is None or seen.earlier <= TOLERANCE:
        return
    yield found(
        "CAUSAL",
        "error",
        f"another last token changes the logits before it by up to {seen.earlier:.2g} of the"
        f" largest (at its own place {seen.own:.2g}): the model looks ahead",
        values={"earlier": seen.earlier, "own": seen.own, "tolerance": TOLERANCE},
        instead=(
            "a causal mask in attention (is_causal=True), no mean or norm over the sequence; with"
            " batch= and loss= this is not asked of a model that is meant to look both ways"
        ),
    )
