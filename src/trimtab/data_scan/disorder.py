"""Text that is no language: characters drawn at random, or characters or words in random order.

Compression does not tell: random ASCII, base64 and shuffled prose are made of few characters and
still compress. What they lack is order: in text the next character and the next word depend on the
one before.
"""

import math
import re

import numpy as np
from numpy.typing import NDArray

from trimtab.data_scan.block import DataBlock
from trimtab.data_scan.source_counts import SourceCounts

__all__ = ["bits_per_byte", "disorder", "is_shuffled_words", "shared_bits"]

_PIECE_BYTES = 4096
"""Looked at of a document, from its beginning."""
_FIRST_BYTES = 1024
"""Looked at first: most text shows its order here, and the rest of the piece is then left alone."""
_FIRST_WORDS = 170
_LOOKS = 24
"""Documents of a block that are looked at, spread evenly; where one is found, all of them are."""
_SHORTEST = 500
_RANDOM_BITS = 5.7
"""Bits per byte of the counts alone: prose has 4.0 to 4.6, source code 4.6 to 5.2, minified
scripts 5.4; base64 has 5.9 from 500 bytes on, all of printable ASCII 6.3."""
_ORDERED_BITS = 0.55
"""Bits that a character tells of the next beyond which nothing is in doubt."""
_SHUFFLED_BITS = 0.15
"""The same, less what chance gives: prose of any alphabet has 0.6 to 1.1, code and tables more."""
_ALPHABET = 110
"""More distinct characters than this need longer documents to show their order."""
_BROKEN_IN_TEXT = 0.012
"""Share of small words before a word that cannot follow them, in text of the languages below."""
_BROKEN_AT_RANDOM = 0.2
"""The same where the order is random: 0.15 to 0.35."""
_MIN_EVIDENCE = 5.0
"""Log likelihood ratio of random order against text from which on it is said: e^5 is 150."""
_MIN_SENTENCES = 6

# Small words, and those that follow none of them; as ASCII where the language allows it.
_CLOSED: dict[str, tuple[tuple[str, str], ...]] = {
    "the": (
        ("the|a|an", "the|a|an|of|to|in|and|or|for|with|at|by|from|is|was|are|were|that|it|as|be"),
        ("of|in|for|with|by|from|at|on", "of|and|or|is|was|are|were|be|if|not"),
        ("and|or", "and|or|of"),
    ),
    "und": (("der|die|das|dem|ein|eine|einen", "der|das|und|von|zu|mit|ist|war|wurde|aus|bei"),),
    "les": (("le|la|les|un|une", "le|la|les|de|du|des|et|est|dans|pour|par|sur|que|qui|avec|ou"),),
    "los": (("el|la|los|las|un|una", "el|la|los|las|de|del|y|en|es|por|para|con|se|a"),),
    "che": (("il|lo|la|gli|le|un|una", "il|lo|la|gli|le|di|del|della|e|in|che|per|con|da|si"),),
    "uma": (("o|a|os|as|um|uma", "o|os|de|do|da|e|em|no|na|para|com|por|se"),),
}  # fmt: skip
"""By a word that tells the language."""
_FOLLOWERS = {
    mark: {
        word.encode(): frozenset(then.encode().split(b"|"))
        for first, then in rows
        for word in first.split("|")
    }
    for mark, rows in _CLOSED.items()
}
"""By the word that tells the language: small words, and what follows none of them."""
_SENTENCE_END = re.compile(r"[^\W\d_]{3,}[.!?][\"')\]]?\s+(?=[^\W\d_])")
_WORD = re.compile(r"(?<!\S)[^\W\d_]")
_N_LOG_N = np.arange(_PIECE_BYTES + 1) * np.log2(np.maximum(np.arange(_PIECE_BYTES + 1), 1))


def disorder(block: DataBlock, account: SourceCounts) -> None:
    """Find documents whose characters are random, or whose characters or words are shuffled."""
    if not block.is_text:
        return
    long = np.flatnonzero(block.lengths >= _SHORTEST)
    looks = long[:: max(1, -(-len(long) // _LOOKS))]
    found = _found(block, looks)
    if found and len(looks) < len(long):
        found = _found(block, long)
    for rule, units in found.items():
        account.hit(rule, block, np.array(units, np.int64))


def _found(block: DataBlock, units: NDArray[np.int64]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for unit in units.tolist():
        start = int(block.starts[unit])
        end = min(int(block.starts[unit + 1]), start + _PIECE_BYTES)
        rule = _judge(block.data[start:end])
        if rule:
            found.setdefault(rule, []).append(unit)
    return found


def _judge(data: NDArray[np.integer]) -> str | None:
    """Return the rule that a piece of text breaks, or None."""
    if len(data) < _SHORTEST:
        return None
    raw = data.astype(np.uint8)
    counts = np.bincount(raw, minlength=256)
    is_ascii = counts[128:].sum() <= 0.02 * len(raw)
    if is_ascii and _bits(counts) > _RANDOM_BITS:
        return "random-characters"
    blanks = float(counts[[9, 10, 32]].sum()) / len(raw)
    letters = float(counts[65:91].sum() + counts[97:123].sum() + counts[128:].sum()) / len(raw)
    # Sequences of molecules and of digits have no order between neighbours, and no words either.
    if not 0.03 <= blanks <= 0.4 or letters < 0.55:
        return None
    if _are_shuffled(raw, is_ascii=is_ascii) or is_shuffled_words(raw.tobytes()):
        return "shuffled-text"
    return None


def _are_shuffled(raw: NDArray[np.uint8], *, is_ascii: bool) -> bool:
    """Return whether the characters of a piece are; its beginning mostly shows that they are not."""
    if is_ascii and _is_ordered(raw[:_FIRST_BYTES]):
        return False
    return _is_shuffled(raw if is_ascii else _code_points(raw))


def _is_ordered(values: NDArray[np.uint8]) -> bool:
    """Return whether each byte tells so much of the next that no chance does."""
    # Columns of bytes as they are, not numbered by occurrence: a quarter of a piece is not worth it.
    joint = np.bincount(values[:-1].astype(np.int32) * 128 + np.minimum(values[1:], 127))
    joint = joint[joint > 0]
    counts = np.bincount(values)
    count, kinds = len(values) - 1, int(np.count_nonzero(counts))
    bits = math.log2(count) + (_n_log_n(joint) - 2 * _n_log_n(counts)) / count
    return bits > _ORDERED_BITS + kinds**2 / (2.8 * count)


def _code_points(raw: NDArray[np.uint8]) -> NDArray[np.uint32]:
    text = raw.tobytes().decode("utf-8", errors="ignore")
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def bits_per_byte(data: NDArray[np.uint8]) -> float:
    """Return the entropy of the counts of bytes, in bits: 8 for random bytes, 0 for one value.

    Example:
        >>> bits_per_byte(np.frombuffer(b"abab", np.uint8))
        1.0
    """
    return _bits(np.bincount(data, minlength=256))


def _bits(counts: NDArray[np.int64]) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())


def shared_bits(codes: NDArray[np.int64], kinds: int) -> float:
    """Return the mutual information of neighbours in bits, biased upwards by chance.

    Args:
        codes: Characters as 0 to `kinds` - 1.
        kinds: Number of distinct characters.
    """
    # Entropies from counts: n log n is looked up, since most pairs are seen a few times only.
    pairs = np.bincount(codes[:-1] * kinds + codes[1:])
    ends = _n_log_n(np.bincount(codes[:-1])) + _n_log_n(np.bincount(codes[1:]))
    count = len(codes) - 1
    return math.log2(count) + (_n_log_n(pairs[pairs > 0]) - ends) / count


def _n_log_n(counts: NDArray[np.int64]) -> float:
    return float(_N_LOG_N[counts].sum())


def _is_shuffled(values: NDArray[np.uint8] | NDArray[np.uint32]) -> bool:
    """Return whether neighbouring characters tell nothing of each other."""
    if len(values) < _SHORTEST or int(values.max()) >= 1 << 17:
        return False
    used = np.bincount(values) > 0
    kinds = int(used.sum())
    if kinds > _ALPHABET:
        return False
    codes = (np.cumsum(used) - 1)[values]
    bits = shared_bits(codes, kinds)
    if bits > _ORDERED_BITS + kinds**2 / (2.8 * len(codes)):
        return False
    # What chance gives is measured on the same characters in random order.
    mixed = np.random.default_rng(0).permutation(codes)
    return bits - shared_bits(mixed, kinds) < _SHUFFLED_BITS


def is_shuffled_words(raw: bytes) -> bool:
    """Return whether words stand in random order.

    Small words such as articles are followed by few of their own kind. How often they are, against
    text and against random order, is a likelihood ratio; where there are sentences enough, their
    beginnings must not have more capitals than other words. Languages without small words, and
    those not in the table, are not judged.
    """
    low = raw.lower()
    for mark, followers in _FOLLOWERS.items():
        if low.count(f" {mark} ".encode()) < 2:
            continue
        words = low.split()
        if _evidence(words[:_FIRST_WORDS], followers) < -_MIN_EVIDENCE:
            return False
        if _evidence(words, followers) > _MIN_EVIDENCE:
            return not _has_sentences(raw.decode("utf-8", errors="ignore"))
    return False


def _evidence(words: list[bytes], followers: dict[bytes, frozenset[bytes]]) -> float:
    """Return the log likelihood ratio of random order of small words against text."""
    count = broken = 0
    for at, word in enumerate(words[:-1]):
        never = followers.get(word)
        if never is not None and words[at + 1][:1].isalpha():
            count += 1
            broken += words[at + 1] in never
    return broken * math.log(_BROKEN_AT_RANDOM / _BROKEN_IN_TEXT) + (count - broken) * math.log(
        (1 - _BROKEN_AT_RANDOM) / (1 - _BROKEN_IN_TEXT)
    )


def _has_sentences(text: str) -> bool:
    """Return whether capitals stand where sentences begin; False where none can be told."""
    begins = [text[found.end()].isupper() for found in _SENTENCE_END.finditer(text)]
    words = [text[found.start()].isupper() for found in _WORD.finditer(text)]
    if len(begins) < _MIN_SENTENCES:
        return False
    return sum(begins) / len(begins) > 0.25 + 1.5 * sum(words) / len(words)
