"""The architecture that a config names, where it is no transformer."""

import re
from collections.abc import Iterable
from typing import Final

from trimtab.configs.document import Leaf, squash
from trimtab.configs.settings import Setting

__all__ = ["other_architecture"]

_OTHER: Final = re.compile(
    r"(?<![a-z])((?:bi|conv|q)?(?:lstm|gru|rnn)|(?:conv|dense|res|wide_?res|efficient|mobile|alex)net"
    r"|cnn|conv|vgg|u-?net|mlp|(?:vq|beta)?-?vae|autoencoder|d?dqn|d?c?gan|gnn|gcn)"
    r"(?![a-z])(?!-?[0-9]*[bm](?![a-z]))",
    re.IGNORECASE,
)
_ENDS: Final = re.compile(
    r"(?<=[a-z0-9])_?(?:lm|model|classifier|network|encoder|decoder|agent)$", re.I
)
_TRANSFORMER: Final = re.compile(r"former|attention|bert|gpt|llama|vit|llm", re.IGNORECASE)
_NAMES_IT: Final = frozenset(
    [
        "modeltype",
        "modelname",
        "modelarch",
        "arch",
        "architecture",
        "architectures",
        "model",
        "network",
        "net",
        "networktype",
        "nettype",
        "rnntype",
        "celltype",
        "rnncell",
    ]
)
_KIND: Final = frozenset(("type", "name", "kind", "class", "arch", "architecture", "target"))
_OF_A_MODEL: Final = frozenset(("model", "network", "net", "arch", "architecture"))
_AROUND: Final = frozenset(
    ("model", "network", "net", "train", "training", "config", "params", "hparams", "args")
)
_LONGEST: Final = 80


def other_architecture(leaves: Iterable[Leaf]) -> Setting | None:
    """Return the first architecture named that is no transformer, in lower case; None: none is."""
    for leaf in leaves:
        if _is_name(leaf) and (named := _named(leaf.value)):
            return Setting(named, "stated", leaf.key, leaf.line, str(leaf.value)[:40])
    return None


def _is_name(leaf: Leaf) -> bool:
    """Whether a value names the model itself, not a part of it or another model beside it."""
    *around, last = [squash(part) for part in leaf.path]
    if around and last in _KIND and around[-1] in _OF_A_MODEL:
        return len(around) <= 2
    return last in _NAMES_IT and all(part in _AROUND for part in around)


def _named(value: object) -> str:
    """Return the architecture in a name; a path or a name of weights states none."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str) or len(value) > _LONGEST or "/" in value:
        return ""
    found = _OTHER.search(_ENDS.sub("", value))
    return "" if found is None or _TRANSFORMER.search(value) else found[1].lower()
