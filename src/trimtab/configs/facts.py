"""What follows from one config's settings: size, batch, warm-up, kind of training.

Each fact is None where the settings do not determine it; rules that need it are skipped.
"""

import math
import re
from functools import cached_property

from trimtab.configs.settings import Setting, Settings

__all__ = ["ADAM_LIKE", "OTHER_OPTIMIZERS", "Facts", "small_init", "wide_init"]

ADAM_LIKE = ("adam", "distributed_optim")
"""Parts of names of optimizers whose rate is on Adam's scale."""
OTHER_OPTIMIZERS = (
    "muon",
    "lion",
    "lamb",
    "sgd",
    "adafactor",
    "sophia",
    "shampoo",
    "soap",
    "novograd",
    "lars",
    "adagrad",
    "rmsprop",
    "galore",
    "composite",
    "prodigy",
    "came",
    "stablessm",
    "apollo",
    "sm3",
)
"""Known optimizers whose rate is on a scale of their own."""
_TUNING = (
    "sft",
    "dpo",
    "orpo",
    "kto",
    "cpo",
    "rl",
    "ppo",
    "grpo",
    "reward",
    "instruct",
    "finetune",
    "fine-tun",
    "simpo",
    "rloo",
    "distill",
    "lora",
    "peft",
    "adapter",
    "preference",
)
_DERIVED = (
    "params",
    "batch_tokens",
    "warmup_steps",
    "train_steps",
    "train_tokens",
    "corpus_tokens",
)
_TUNING_NAMES = frozenset(
    {
        "sft",
        "dpo",
        "orpo",
        "kto",
        "grpo",
        "ppo",
        "rlhf",
        "lora",
        "qlora",
        "ft",
        "finetune",
        "finetuning",
        "instruct",
    }
)
"""Words in a file name that mean fine-tuning, used where the file states no objective."""
_PRETRAINERS = (
    "megatron",
    "neox",
    "titan",
    "olmo",
    "nanotron",
    "lingua",
    "levanter",
    "maxtext",
    "metaseq",
    "flagscale",
    "internevo",
    "kempner",
)
_ADAPTER = re.compile(
    r"(?<![a-z])(q?lora|peft|adapters?|prefix.?tuning|prompt.?tuning)(?![a-z])", re.IGNORECASE
)


def small_init(hidden: float) -> float:
    """Return sqrt(2 / (5 h)), the small init of Nguyen and Salazar (arXiv:1910.05895).

    Example:
        >>> round(small_init(11600), 5)
        0.00587
    """
    return math.sqrt(0.4 / hidden)


def wide_init(hidden: float) -> float:
    """Return sqrt(1 / (3 h)), the init of Megatron-Turing NLG 530B (arXiv:2201.11990).

    Example:
        >>> round(wide_init(14336), 5)
        0.00482
    """
    return math.sqrt(1 / (3 * hidden))


class Facts:
    """Settings and what follows from them.

    Numbers are finite here; NaN, Inf and absurd values count as absent.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        params: float | None = None,
        corpus_tokens: float | None = None,
        train_tokens: float | None = None,
    ) -> None:
        """Take the settings, and what the user knows beyond them, which then holds."""
        self.settings = settings
        self._params = params
        self._corpus_tokens = corpus_tokens
        self._train_tokens = train_tokens

    def get(self, name: str) -> object:
        """Return the value of a setting, unconverted."""
        return self.settings.get(name)

    def raw_number(self, name: str) -> float | None:
        """Return a number, NaN and Inf included.

        An integer beyond all floats is Inf.
        """
        try:
            return self.settings.number(name)
        except OverflowError:
            return math.inf

    def number(self, name: str) -> float | None:
        """Return a number, or None.

        A value above 1e30, or below 1e-30 and not 0, is not taken for a setting.
        """
        value = self.raw_number(name)
        if value is None or not math.isfinite(value):
            return None
        return value if value == 0 or 1e-30 < abs(value) < 1e30 else None

    def positive(self, name: str) -> float | None:
        """Return a finite number above 0, or None."""
        value = self.number(name)
        return value if value is not None and value > 0 else None

    def text(self, name: str) -> str:
        """Return a setting in lower case; empty where it is absent."""
        value = self.get(name)
        return "" if value is None else str(value).lower()

    def has(self, name: str) -> bool:
        """Whether a setting is there, or follows from others."""
        if name in _DERIVED:
            return getattr(self, name) is not None
        return name in self.settings.values

    def setting(self, name: str) -> Setting | None:
        """Return a setting with its origin."""
        return self.settings.values.get(name)

    def is_stated(self, name: str) -> bool:
        """Whether the file itself states a setting."""
        found = self.setting(name)
        return found is not None and found.origin != "default"

    # kind of training
    @cached_property
    def is_adapter(self) -> bool:
        """Whether only adapters are trained (LoRA and the like)."""
        if self.get("adapter") is not None:
            return self.get("adapter") is True
        return bool(_ADAPTER.search(self.text("objective")) or _ADAPTER.search(self._file_name))

    @cached_property
    def _starts_from_weights(self) -> bool:
        """Whether weights are given. A pre-training framework's `model` names an architecture."""
        found = self.setting("pretrained")
        if found is None or found.value is not True:
            return False
        pretrainer = any(part in self.settings.framework.lower() for part in _PRETRAINERS)
        return not (
            pretrainer
            and found.key.lower().lstrip("-").rsplit(".", 1)[-1] in ("model", "model_name", "name")
        )

    @cached_property
    def is_tuning(self) -> bool:
        """Whether given weights are tuned: sft, preferences, rl, adapters."""
        objective = self.text("objective")
        if self.is_adapter or any(part in objective for part in _TUNING):
            return True
        if not objective and self.setting("pretrained") is None:
            return bool(self.named_objective)
        named_pretraining = not objective and "pretrain" in self._file_name
        return self._starts_from_weights and not named_pretraining and "pretrain" not in objective

    @cached_property
    def _file_name(self) -> str:
        return self.settings.path.replace("\\", "/").rsplit("/", 1)[-1].lower()

    @cached_property
    def named_objective(self) -> str:
        """Objective as far as the file name shows it; empty where it does not."""
        return " ".join(_TUNING_NAMES.intersection(re.split(r"[^a-z]+", self._file_name)))

    @cached_property
    def is_continued(self) -> bool:
        """Whether pre-training continues from given weights."""
        return self._starts_from_weights and not self.is_tuning

    @cached_property
    def is_ngpt(self) -> bool:
        """Whether weights are normalized (nGPT), which needs neither warm-up nor weight decay."""
        named = (self.text("norm"), self._file_name, *self.settings.note)
        return any("ngpt" in text.lower() for text in named)

    @cached_property
    def is_description(self) -> bool:
        """Whether this describes a model only: no learning rate, optimizer or length."""
        return not any(self.setting(n) for n in ("lr", "optimizer", "train_steps", "train_tokens"))

    @cached_property
    def has_adam(self) -> bool:
        """Whether the rate is on Adam's scale. An unnamed optimizer is taken for AdamW."""
        name = self.text("optimizer")
        if any(other in name for other in OTHER_OPTIMIZERS):
            return False
        return not name or any(part in name for part in ADAM_LIKE)

    @cached_property
    def has_plain_adam(self) -> bool:
        """Whether weight decay goes into Adam's gradient (L2), where 0.1 is no usual value.

        What Megatron, fairseq and DeepSpeed call adam is AdamW, so only a script's own counts.
        """
        named = self.text("optimizer").rsplit(".", 1)[-1]
        return named == "adam" and self.settings.framework == "generic"

    @cached_property
    def other_architecture(self) -> str:
        """The architecture that the file names, where it is no transformer; else empty."""
        return self.text("architecture")

    # size
    @cached_property
    def params(self) -> float | None:
        """Parameters: given by the user, stated, or from the shape."""
        if self._params is not None:
            return self._params
        stated = self.positive("params")
        if stated is not None or self.is_mixture:
            return stated
        return self._dense_params

    @cached_property
    def is_mixture(self) -> bool:
        """Whether it is a mixture of experts: not all parameters serve each token."""
        return (self.number("experts") or 0) > 1

    @cached_property
    def _dense_params(self) -> float | None:
        """Parameters of the dense model of this shape: attention, FFN and embeddings."""
        hidden, layers = self.positive("hidden"), self.positive("layers")
        if hidden is None or layers is None or self.other_architecture:
            return None
        ffn = self.positive("ffn_effective") or self.positive("ffn") or 4 * hidden
        gated = self.get("gated_ffn") is True and self.positive("ffn") is not None
        heads, kv_heads = self.positive("heads"), self.positive("kv_heads")
        shared = kv_heads / heads if heads and kv_heads and kv_heads <= heads else 1.0
        attention = hidden * hidden * (2 + 2 * shared)
        vocab = self.positive("vocab") or 0.0
        tables = 1 if self.get("tied_embeddings") is True else 2
        return layers * (attention + (3 if gated else 2) * hidden * ffn) + tables * vocab * hidden

    @cached_property
    def lookup_params(self) -> float | None:
        """Size for tables of dense models: of a mixture, the parameters that one token uses.

        Where these are not known, a mixture counts as a dense model of its shape, or as an eighth
        of its size. Published rates of mixtures follow their active parameters: DeepSeek-V3, 671 B
        of which 37 B are active, has the rate of a model of 37 B.
        """
        if self.is_mixture:
            if active := self.positive("active_params"):
                return active
            hidden, layers = self.positive("hidden"), self.positive("layers")
            if hidden and layers:
                return 12 * layers * hidden * hidden
            return self.params / 8 if self.params else None
        return self.positive("active_params") or self.params

    @cached_property
    def is_large(self) -> bool:
        """Whether it has 10 B parameters or more.

        A mixture counts as a dense model of its shape; without a size, the width decides.
        """
        if self.lookup_params is not None:
            return self.lookup_params >= 1e10
        return (self.positive("hidden") or 0) >= 5120

    @cached_property
    def aspect(self) -> float | None:
        """Width over depth, hidden / layers."""
        hidden, layers = self.positive("hidden"), self.positive("layers")
        return hidden / layers if hidden and layers else None

    # batch and warm-up
    @cached_property
    def batch_tokens(self) -> float | None:
        """Tokens of one optimizer step; None where only one device's share of it is known."""
        if any("batch is that of one device" in note for note in self.settings.note):
            return None
        if stated := self.positive("batch_tokens"):
            return stated
        samples, seq = self.positive("batch_samples"), self.positive("seq")
        return samples * seq if samples and seq else None

    @cached_property
    def warmup_steps(self) -> float | None:
        """Warm-up in optimizer steps; 0 is a value."""
        steps = self.number("warmup_steps")
        if steps is not None:
            return steps
        samples, batch = self.number("warmup_samples"), self.positive("batch_samples")
        if samples is not None and batch:
            return samples / batch
        tokens = self.number("warmup_tokens")
        if tokens is not None and self.batch_tokens:
            return tokens / self.batch_tokens
        return None

    @cached_property
    def warmup_tokens(self) -> float | None:
        """Warm-up in tokens."""
        tokens = self.number("warmup_tokens")
        if tokens is not None:
            return tokens
        samples, seq = self.number("warmup_samples"), self.positive("seq")
        if samples is not None and seq:
            return samples * seq
        steps = self.number("warmup_steps")
        return steps * self.batch_tokens if steps is not None and self.batch_tokens else None

    @cached_property
    def train_steps(self) -> float | None:
        """Length of the run in optimizer steps."""
        if self._train_tokens is not None:
            return self._train_tokens / self.batch_tokens if self.batch_tokens else None
        if steps := self.positive("train_steps"):
            return steps
        samples, batch = self.positive("train_samples"), self.positive("batch_samples")
        if samples and batch:
            return samples / batch
        tokens = self.positive("train_tokens")
        return tokens / self.batch_tokens if tokens and self.batch_tokens else None

    @cached_property
    def train_tokens(self) -> float | None:
        """Length of the run in tokens."""
        if self._train_tokens is not None:
            return self._train_tokens
        if tokens := self.positive("train_tokens"):
            return tokens
        samples, seq = self.positive("train_samples"), self.positive("seq")
        if samples and seq:
            return samples * seq
        steps = self.positive("train_steps")
        return steps * self.batch_tokens if steps and self.batch_tokens else None

    @cached_property
    def corpus_tokens(self) -> float | None:
        """Tokens of the corpus: given by the user, or stated."""
        return (
            self._corpus_tokens
            if self._corpus_tokens is not None
            else self.positive("corpus_tokens")
        )
