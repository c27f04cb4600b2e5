"""Published learning rates and batch sizes by model size, read off between their points.

Between two points a table is a straight line in log-log; beyond its ends it keeps the value of the
end. The points are what was published; nothing is fitted. All are for dense decoders under
AdamW-like optimizers.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "BATCH_TOKENS",
    "GPT3_LR",
    "LLAMA_LR",
    "MIXTURE_LR",
    "MUON_LR",
    "TABLES",
    "WARMUP_TOKENS",
    "WORKED_LR",
    "Point",
    "ReferenceTable",
]


@dataclass(frozen=True)
class Point:
    """One published run."""

    params: float
    value: float
    run: str


@dataclass(frozen=True)
class ReferenceTable:
    """Values by number of parameters."""

    name: str
    unit: str
    source: str
    points: tuple[Point, ...]

    def at(self, params: float) -> float:
        """Return the value at a model size, linear in log-log between the two nearest points.

        Args:
            params: Parameters, above 0.

        Returns:
            The value, in the table's unit; the end's value beyond the ends; NaN for NaN.

        Example:
            >>> GPT3_LR.at(175e9), round(GPT3_LR.at(1e9), 6)
            (6e-05, 0.000223)
        """
        points = self.points
        if math.isnan(params):
            return math.nan
        if params <= points[0].params:
            return points[0].value
        # Rates fall roughly as a power of the size, which is a straight line in log-log.
        for low, high in itertools.pairwise(points):
            if params == high.params:
                return high.value
            if params < high.params:
                part = math.log(params / low.params) / math.log(high.params / low.params)
                return low.value * math.exp(part * math.log(high.value / low.value))
        return points[-1].value

    def around(self, params: float) -> tuple[Point, ...]:
        """Return the points that `at` read between: two, or one beyond an end."""
        below = [p for p in self.points if p.params <= params]
        above = [p for p in self.points if p.params >= params]
        return tuple(dict.fromkeys((*below[-1:], *above[:1])))

    def reach(self, params: float) -> float:
        """Return how many times larger than the largest point a model is."""
        return params / self.points[-1].params


def _table(
    name: str, unit: str, source: str, rows: Sequence[tuple[float, float, str]]
) -> ReferenceTable:
    return ReferenceTable(name, unit, source, tuple(Point(*row) for row in rows))


GPT3_LR = _table(
    "GPT-3 peak rate",
    "learning rate",
    "GPT-3 paper, table 2.1 (arXiv:2005.14165)",
    [
        (125e6, 6e-4, "GPT-3 Small"),
        (350e6, 3e-4, "GPT-3 Medium"),
        (760e6, 2.5e-4, "GPT-3 Large"),
        (1.3e9, 2e-4, "GPT-3 XL"),
        (2.7e9, 1.6e-4, "GPT-3 2.7B"),
        (6.7e9, 1.2e-4, "GPT-3 6.7B"),
        (13e9, 1e-4, "GPT-3 13B"),
        (175e9, 6e-5, "GPT-3 175B, BLOOM-176B"),
    ],
)
LLAMA_LR = _table(
    "Llama peak rate",
    "learning rate",
    "LLaMA and Llama 3 papers (arXiv:2302.13971, arXiv:2407.21783), OLMo and Pythia configs",
    [
        (70e6, 1e-3, "Pythia 70M"),
        (160e6, 6e-4, "Pythia 160M, OLMo 150M"),
        (1.2e9, 4e-4, "OLMo 1B"),
        (8e9, 3e-4, "LLaMA 7B, Llama 3 8B"),
        (13e9, 3e-4, "LLaMA 13B"),
        (33e9, 1.5e-4, "LLaMA 33B"),
        (70e9, 1.5e-4, "Llama 3 70B"),
        (405e9, 8e-5, "Llama 3 405B"),
    ],
)
WORKED_LR = _table(
    "highest peak rate that is known to have worked",
    "learning rate",
    "the runs named; Marin 8B was unstable at 2e-3, OLMo 2 and Marin 32B have a norm on queries and"
    " keys",
    [
        (135e6, 3e-3, "SmolLM2 135M"),
        (1.2e9, 3e-3, "lingua 1B, warm-up 5000"),
        (8e9, 1e-3, "Marin 8B"),
        (13e9, 9e-4, "OLMo 2 13B"),
        (32e9, 7e-4, "Marin 32B"),
        (70e9, 1.5e-4, "Llama 3 70B"),
        (175e9, 1.2e-4, "OPT-175B, later lowered"),
        (405e9, 8e-5, "Llama 3 405B"),
    ],
)
MIXTURE_LR = _table(
    "peak rate of mixtures of experts, by active parameters",
    "learning rate",
    "OLMoE (arXiv:2409.02060), Moonlight (arXiv:2502.16982), DeepSeek-V2 and V3"
    " (arXiv:2405.04434, arXiv:2412.19437), GLM-4.5 (arXiv:2508.06471), Kimi K2 (arXiv:2507.20534)",
    [
        (1.3e9, 4e-4, "OLMoE 1B-7B"),
        (2.4e9, 4.2e-4, "DeepSeek-V2-Lite"),
        (14e9, 3e-4, "dots.llm1"),
        (21e9, 2.4e-4, "DeepSeek-V2"),
        (37e9, 2.2e-4, "DeepSeek-V3"),
    ],
)
MUON_LR = _table(
    "peak rate under Muon with updates scaled to AdamW's root mean square",
    "learning rate",
    "Moonlight (arXiv:2502.16982), GLM-4.5 (arXiv:2508.06471), Kimi K2 (arXiv:2507.20534)",
    [
        (2.2e9, 4.2e-4, "Moonlight 16B-A3B"),
        (32e9, 2.5e-4, "GLM-4.5"),
        (32.6e9, 2e-4, "Kimi K2"),
    ],
)
BATCH_TOKENS = _table(
    "GPT-3 batch",
    "tokens",
    "GPT-3 paper, table 2.1 (arXiv:2005.14165)",
    [
        (125e6, 0.5e6, "GPT-3 Small"),
        (760e6, 0.5e6, "GPT-3 Large"),
        (1.3e9, 1e6, "GPT-3 XL"),
        (2.7e9, 1e6, "GPT-3 2.7B"),
        (6.7e9, 2e6, "GPT-3 6.7B"),
        (13e9, 2e6, "GPT-3 13B"),
        (175e9, 3.2e6, "GPT-3 175B"),
    ],
)
WARMUP_TOKENS = _table(
    "warm-up",
    "tokens",
    "GPT-3, BLOOM, Llama 2 and Llama 3 papers; OLMo-core configs",
    [
        (125e6, 375e6, "GPT-3 Small"),
        (7e9, 8e9, "Llama 2 7B: 2000 steps of 4M"),
        (32e9, 16e9, "OLMo 2 32B: 2000 steps of 8M"),
        (405e9, 32e9, "Llama 3 405B: 8000 steps of 4M"),
    ],
)
TABLES: tuple[ReferenceTable, ...] = (
    GPT3_LR,
    LLAMA_LR,
    WORKED_LR,
    MIXTURE_LR,
    MUON_LR,
    BATCH_TOKENS,
    WARMUP_TOKENS,
)
