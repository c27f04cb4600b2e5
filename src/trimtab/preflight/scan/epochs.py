"""How often a plan goes through the corpus, and at which step each time begins."""

import math
from dataclasses import dataclass

from trimtab.errors import ConfigError

__all__ = ["EpochPlan", "plan_epochs"]


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """Tokens planned against tokens there are."""

    corpus_tokens: int
    plan_tokens: int
    tokens_per_step: int | None

    @property
    def epochs(self) -> float:
        """How often the corpus is gone through."""
        return self.plan_tokens / self.corpus_tokens

    @property
    def starts(self) -> tuple[int, ...]:
        """First step that reads from epoch 2, 3, … 10, counted from 1; empty without the step's size."""
        if not self.tokens_per_step:
            return ()
        last = min(math.ceil(self.epochs), 10)
        return tuple(self.corpus_tokens * e // self.tokens_per_step + 1 for e in range(1, last))

    def epoch_at(self, step: int) -> int:
        """Return the epoch that the first token of a step belongs to, counted from 1.

        Raises:
            ConfigError: The size of a step is not known.

        Example:
            >>> opt = EpochPlan(corpus_tokens=180_000_000_000, plan_tokens=300_000_000_000, tokens_per_step=2**21)
            >>> opt.epoch_at(80_000), opt.epoch_at(93_000), opt.starts
            (1, 2, (85831,))
        """
        if not self.tokens_per_step:
            raise ConfigError("tokens_per_step is not known; give --tokens-per-step")
        return (step - 1) * self.tokens_per_step // self.corpus_tokens + 1


def plan_epochs(
    corpus_tokens: int, plan_tokens: int | None, tokens_per_step: int | None
) -> EpochPlan | None:
    """Return the plan; None where none is stated or the corpus is empty.

    Raises:
        ConfigError: A number is not positive.
    """
    for name, value in (("plan_tokens", plan_tokens), ("tokens_per_step", tokens_per_step)):
        if value is not None and value <= 0:
            raise ConfigError(f"{name} is {value}; give a positive number")
    if plan_tokens is None or corpus_tokens <= 0:
        return None
    return EpochPlan(
        corpus_tokens=corpus_tokens, plan_tokens=plan_tokens, tokens_per_step=tokens_per_step
    )
