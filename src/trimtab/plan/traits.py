"""What a log shows its run to be: which remedies have something to act on.

A remedy that changes attention is none for a critic's loss, and no loss scaler is reset where none
is logged. A guarded run states what its model and its optimizer have. Of other runs a trait that
nothing shows is taken as absent, but for those of the optimizer, which few logs name: these are
open, and a remedy that needs one is worded so.
"""

import re
from collections.abc import Iterable

from trimtab.detectors.stand_in import training_of
from trimtab.record import RunRecord
from trimtab.signals.spans import has_value_other_than

__all__ = ["is_foreign", "open_traits", "traits_of"]

_LANGUAGE_FORMATS = (
    "megatron",
    "metaseq",
    "fairseq",
    "torchtitan",
    "llm.c",
    "nanogpt",
    "olmo",
    "maxtext",
    "transformer-xl",
    "nemo",
    "neox",
    "levanter",
)
"""Trainers that make language models and nothing else."""
_LANGUAGE_SIGNALS = ("tokens_seen", "attention_logit_max", "attention_entropy")
_LANGUAGE_WORDS = re.compile(
    r"tokens?(?![a-z])|perplexity|ppl(?![a-z])|lm["
    r" _-]?loss|vocab|seq[_-]?len|gpt|llama|bert|transformer",
    re.I,
)
_ATTENTION_FORMATS = tuple(f for f in _LANGUAGE_FORMATS if f != "fairseq")
_ATTENTION_SIGNALS = ("attention_logit_max", "attention_entropy")
_ATTENTION_WORDS = re.compile(
    r"attention|attn|transformer|(?<![a-z])n?_?heads?(?![a-z])|num_heads|gpt"
    r"|llama|bert|qwen|mistral"
    r"|(?<![a-z])vit(?![a-z])",
    re.I,
)
_OF_OTHERS = frozenset(
    ("accuracy", "eval_score", "eval_error", "recon_loss", "latent_kl", "fid", "ema_loss")
)
"""Signals of classifiers, detectors and generative models."""
_RECURRENT_WORDS = re.compile(r"lstm|(?<![a-z])(?:gru|rnn|rwkv|mamba)(?![a-z])", re.I)
_OPTIMIZER_KEY = re.compile(r"(?<![a-z])optim(?:izer)?(?:[._ -]?(?:name|type|class))?$", re.I)
_ADAM_WORDS = re.compile(r"adam|lamb(?![a-z])|(?<![a-z0-9])(?:adam_?)?beta_?2(?![0-9])", re.I)
_OTHER_OPTIMIZERS = re.compile(r"sgd|lion|adagrad|rmsprop|momentum", re.I)
"""Optimizers without Adam's second moment. Muon is none of them: it goes with AdamW."""
_ADAM_SIGNALS = ("adam_v_l1", "adam_v_max", "adam_v_left", "adam_eps", "beta2")
_STATED = "traits"
"""Setting by which a guarded run says what its model and optimizer have."""
_OF_OPTIMIZER = frozenset(("moments", "second-moment"))
_SAID_BY_GUARD = frozenset(("attention", *_OF_OPTIMIZER))
_HALF_WORDS = re.compile(r"(?<![a-z0-9])fp16(?![0-9])", re.I)


def traits_of(record: RunRecord, framework: str = "") -> frozenset[str]:
    """Return the traits that the log's format, signals or settings show.

    Args:
        record: What the run logged.
        framework: Name of the framework, where it is known better than by the format.

    Example:
        >>> from trimtab.record import RecordBuilder
        >>> builder = RecordBuilder("critic.csv", "csv")
        >>> builder.add(1, {"loss": 0.5})
        >>> sorted(traits_of(builder.build())), sorted(traits_of(builder.build(), "megatron"))
        ([], ['attention', 'language-model', 'moments', 'second-moment'])
    """
    found = set()
    stated = _said_by_guard(record)
    name = f"{record.format} {framework}".lower()
    signals = set(record.columns)
    if (
        any(known in name for known in _LANGUAGE_FORMATS)
        or signals & set(_LANGUAGE_SIGNALS)
        or any(_LANGUAGE_WORDS.search(text) for text in _named(record))
    ):
        found.add("language-model")
    if (
        any(known in name for known in _ATTENTION_FORMATS)
        or signals & set(_ATTENTION_SIGNALS)
        or any(_ATTENTION_WORDS.search(text) for text in (*_named(record), *_stated(record)))
    ) and not any(_RECURRENT_WORDS.search(t) for t in (*_named(record), *_stated(record))):
        found.add("attention")
    whole = ((0, record.num_rows),)
    # bf16 runs print a constant scale of 1, which there is no scaler behind.
    if has_value_other_than(record, "loss_scale", whole, 1.0) or _says_half(record):
        found.add("loss-scale")
    if any(known in name for known in _LANGUAGE_FORMATS) or _has_adam(record):
        found |= _OF_OPTIMIZER
    return frozenset(found if stated is None else (found - _SAID_BY_GUARD) | stated)


def is_foreign(record: RunRecord, traits: frozenset[str]) -> bool:
    """Return whether a run is shown to be other training than that of a language model.

    Args:
        record: What the run logged.
        traits: What `traits_of` gave.
    """
    if not traits.isdisjoint(("language-model", "attention")):
        return False
    return training_of(record) != "" or not _OF_OTHERS.isdisjoint(record.columns)


def open_traits(record: RunRecord) -> frozenset[str]:
    """Return the traits of the optimizer that the log neither shows nor rules out."""
    named = any(_OTHER_OPTIMIZERS.search(text) for text in _optimizers(record))
    if named or _said_by_guard(record) is not None:
        return frozenset()
    return _OF_OPTIMIZER - traits_of(record)


def _said_by_guard(record: RunRecord) -> frozenset[str] | None:
    """Return what a guarded run states of its model and optimizer; None where none is stated."""
    said = [a.settings[_STATED] for a in record.attempts if _STATED in a.settings]
    return frozenset(" ".join(said).replace(",", " ").split()) & _SAID_BY_GUARD if said else None


def _has_adam(record: RunRecord) -> bool:
    optimizers = list(_optimizers(record))
    if optimizers:
        return any(_ADAM_WORDS.search(text) for text in optimizers)
    named = any(_ADAM_WORDS.search(text) for text in _named(record))
    return named or bool(set(record.columns) & set(_ADAM_SIGNALS))


def _optimizers(record: RunRecord) -> Iterable[str]:
    """Yield what settings call the optimizer."""
    for attempt in record.attempts:
        yield from (v for k, v in attempt.settings.items() if _OPTIMIZER_KEY.search(k))


def _named(record: RunRecord) -> Iterable[str]:
    """Yield the keys that the log uses, those of its settings and of its units of work."""
    yield from record.keys  # perplexity among them where it is logged, not derived
    yield from record.keys.values()
    yield from record.facts
    for attempt in record.attempts:
        yield from attempt.settings


def _stated(record: RunRecord) -> Iterable[str]:
    """Yield the values of settings that may name the model."""
    for attempt in record.attempts:
        for key, value in attempt.settings.items():
            if "model" in key.lower() or "arch" in key.lower():
                yield value


def _says_half(record: RunRecord) -> bool:
    return any(
        # Both spellings: `fp16: true` has the word in its key, `dtype: fp16` in its value.
        _HALF_WORDS.search(key if value.lower() in ("true", "1", "yes") else value)
        for attempt in record.attempts
        for key, value in attempt.settings.items()
        if value.lower() not in ("false", "0", "no", "none", "")
    )
