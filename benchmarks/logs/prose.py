"""Generates prose: words by Zipf's law, in sentences and paragraphs."""

import numpy as np

__all__ = ["prose"]

_SYLLABLES = [
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "ha",
    "ke",
    "li",
    "mo",
    "nu",
    "pa",
    "re",
    "si",
    "to",
    "va",
    "we",
    "yo",
    "za",
    "sha",
    "the",
    "ing",
    "er",
    "on",
    "tion",
    "ly",
]
_NUM_WORDS = 8_000
_EXPONENT = 1.1


def prose(num_documents: int, *, seed: int, mean_words: int = 450) -> list[str]:
    """Return documents of text that compresses about as English does (zstd 1.

    0.4 to 0.5 of its size).

    Each has `mean_words` / 4 to `mean_words` * 7 / 4 words.
    """
    rng = np.random.default_rng(seed)
    number = rng.integers(1, 4, _NUM_WORDS)
    words = ["".join(rng.choice(_SYLLABLES, n)) for n in number.tolist()]
    weights = np.arange(1, _NUM_WORDS + 1, dtype=float) ** -_EXPONENT
    weights /= weights.sum()
    documents = []
    for length in rng.integers(mean_words // 4, mean_words * 7 // 4, num_documents).tolist():
        chosen = [words[i] for i in rng.choice(_NUM_WORDS, length, p=weights).tolist()]
        ends = np.cumsum(rng.integers(6, 20, length // 6 + 1))
        starts = [0, *ends[ends < length].tolist()]
        sentences = [
            " ".join(chosen[a:b]).capitalize()
            for a, b in zip(starts, [*starts[1:], length], strict=True)
        ]
        documents.append(".\n".join(sentences) + ".")
    return documents
