"""How many epochs a plan takes over the corpus, and the step at which each begins."""

from dataclasses import dataclass

from trimtab.config_rules.planning import Ledger, epoch_ledger
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
    def ledger(self) -> Ledger | None:
        """When each pass begins; None without the size of a step."""
        if not self.tokens_per_step:
            return None
        return epoch_ledger(self.corpus_tokens, self.tokens_per_step, self.plan_tokens)

    @property
    def starts(self) -> tuple[int, ...]:
        """First steps of epochs 2 to 10; empty without the size of a step."""
        return () if self.ledger is None else self.ledger.steps[:9]


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
