"""By what the parts of a loss are multiplied, as its graph has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["terms_of"]

_MOST_TERMS, _MOST_DEPTH = 8, 8


def terms_of(loss: object) -> tuple[float, ...]:
    """Return the factors by which the parts of a loss are multiplied, as its graph has them.

    Only plain numbers count, so that nothing waits for a device; what else a part is multiplied by
    is part of it.

    Example:
        >>> x, y = torch.ones(2, requires_grad=True).unbind()
        >>> terms_of(x.exp() - 0.5 * y.exp()), terms_of(-(x * y))
        ((1.0, -0.5), (-1.0,))
    """
    found: list[float] = []
    todo = [(getattr(loss, "grad_fn", None), 1.0, 0)]
    while todo and len(found) < _MOST_TERMS:
        node, factor, depth = todo.pop()
        if node is None:
            continue
        name, inputs = node.name(), [n for n, _ in node.next_functions]
        kind = name.partition("Backward")[0] if depth < _MOST_DEPTH else ""
        number = _number_in(node, inputs) if kind in ("Mul", "Div") else None
        if kind in ("Add", "Sub"):
            alpha = float(getattr(node, "_saved_alpha", 1)) * (-1 if kind == "Sub" else 1)
            # the last is taken first, so that factors come in the order of the formula
            todo += [
                (n, factor * f, depth + 1) for n, f in zip(inputs[:2], (1.0, alpha), strict=False)
            ][::-1]
        elif kind in ("Neg", "Rsub"):
            todo.append((inputs[0], -factor, depth + 1))
        elif number is not None and (kind == "Mul" or number):
            part = next(n for n in inputs if n is not None)
            todo.append((part, factor * number if kind == "Mul" else factor / number, depth + 1))
        else:
            found.append(factor)
    return tuple(found)


def _number_in(node: torch.autograd.graph.Node, inputs: Sequence[object]) -> float | None:
    """Return the plain number of a product or quotient with one; None where there is none."""
    if sum(n is not None for n in inputs) != 1:
        return None
    try:
        saved = getattr(node, "_saved_other" if inputs[0] is not None else "_saved_self", None)
    except RuntimeError:  # the backward pass is done, and has freed it
        return None
    plain = isinstance(saved, torch.Tensor) and saved.device.type == "cpu" and saved.numel() == 1
    return float(saved) if plain else None  # type: ignore[arg-type]
