"""The frameworks as data: how a config of each is recognised.

And what its own keys mean beyond the common names.
"""

from trimtab.configs.frameworks.base import Framework, detect
from trimtab.configs.frameworks.finetuning import FINETUNING
from trimtab.configs.frameworks.megatron import MEGATRON
from trimtab.configs.frameworks.others import OTHERS
from trimtab.configs.frameworks.pretraining import PRETRAINING

__all__ = ["FRAMEWORKS", "Framework", "detect"]

FRAMEWORKS: tuple[Framework, ...] = (*OTHERS, *MEGATRON, *PRETRAINING, *FINETUNING)
"""In order: the first whose marks are all there is it."""
