"""The frameworks as data: how a config of each is recognised, and what its own keys mean beyond the common names."""

from trimtab.preflight.reading.frameworks.base import Framework, detect
from trimtab.preflight.reading.frameworks.finetuning import FINETUNING
from trimtab.preflight.reading.frameworks.megatron import MEGATRON
from trimtab.preflight.reading.frameworks.others import OTHERS
from trimtab.preflight.reading.frameworks.pretraining import PRETRAINING

__all__ = ["FRAMEWORKS", "Framework", "detect"]

FRAMEWORKS: tuple[Framework, ...] = (*OTHERS, *MEGATRON, *PRETRAINING, *FINETUNING)
"""In order: the first whose marks are all there is it."""
