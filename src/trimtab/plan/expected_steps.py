"""Ways to go on, compared by the steps that each is expected to cost.

One sum for the guard's choice among branches and for the supervisor's choice between a restart and
waiting: it rests on the chances of `trials.ARMS` and of the diagnosis, which are guesses, so it is
written down wherever it decides.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["WeighedWay", "chance_of_healing", "now_or_later", "told"]


@dataclass(frozen=True, kw_only=True)
class WeighedWay:
    """One way to go on.

    Example:
        >>> way = WeighedWay(name="LR x 0.5", chance=0.25, then=40, otherwise=240)
        >>> way.lost, way.text
        (190.0, 'LR x 0.5: 0.25 x 40 + 0.75 x 240 = 190')
    """

    name: str
    cost: float = 0.0
    """Steps that it takes in any case."""
    chance: float = 1.0
    """That it does what it is for."""
    then: float = 0.0
    """Steps that it still costs where it does."""
    otherwise: float = 0.0
    """Steps that it costs where it does not."""

    @property
    def lost(self) -> float:
        """Steps that it is expected to cost."""
        return self.cost + self.chance * self.then + (1 - self.chance) * self.otherwise

    @property
    def text(self) -> str:
        """The sum, for people."""
        cases = ((self.chance, self.then), (1 - self.chance, self.otherwise))
        parts = [f"{self.cost:.0f}"] * (self.cost > 0)
        parts += [f"{p:.2f} x {steps:.0f}" for p, steps in cases if p > 0 and steps > 0]
        if self.chance == 1 and not self.then:
            return f"{self.name}: {self.cost:.0f}"
        return f"{self.name}: {' + '.join(parts) or '0'} = {self.lost:.0f}"

    def as_json(self) -> dict[str, Any]:
        """Return it for the journal."""
        return {**asdict(self), "lost": self.lost}


def told(ways: Iterable[WeighedWay]) -> str:
    """Return ways in a line, with what each is expected to cost."""
    return "expected steps lost: " + ", ".join(f"{w.name} {w.lost:.0f}" for w in ways)


def now_or_later(
    *, cost: float, wait_steps: float, heals: float, lasted: float, action: str
) -> tuple[WeighedWay, WeighedWay]:
    """Return acting now and waiting once more.

    What heals takes as long again to come back, and what does not is acted on all the same.

    Args:
        cost: Of acting, steps.
        wait_steps: Until the next look.
        heals: Chance that it passes by itself.
        lasted: Steps for which it lasts.
        action: What acting is.
    """
    now = WeighedWay(name=action, cost=cost)
    later = WeighedWay(name="wait", cost=wait_steps, chance=heals, then=2 * lasted, otherwise=cost)
    return now, later


def chance_of_healing(confidence: Mapping[str, float], *, lasted: float, soon: float) -> float:
    """Return how likely trouble passes by itself within `soon` steps.

    Noise does, and every second window of bad data (ours), by how sure these causes are. What has
    lasted for so long lasts as long again as often as not.

    Example:
        >>> chance_of_healing({"bad-data-window": 0.5, "benign-noise": 0.1}, lasted=24, soon=8)
        0.0875
    """
    noise, data = confidence.get("benign-noise", 0.0), confidence.get("bad-data-window", 0.0)
    return min(noise + data / 2, 1.0) * soon / (lasted + soon)
