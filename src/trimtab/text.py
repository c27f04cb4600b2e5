"""Numbers and log text as people read them; the logbook and every report use the same words."""

import math
import re
from collections.abc import Mapping
from typing import TypeGuard

from trimtab.masking import masked, masked_text

__all__ = [
    "OTHER",
    "action_values",
    "action_words",
    "finite_json",
    "is_number",
    "number",
    "plain",
    "reworded",
    "signal_label",
    "values_text",
    "verdict_text",
    "visible",
    "words",
]

OTHER = "other/"
"""Before the key, in the name of a column whose key nobody knows."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_STEERING = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
)

_SIGNAL_NAME = re.compile(
    r"\b(?:grad|activation|update)_norm\b|\bloss_scale\b|\bval_loss\b|\bstep_time_s\b"
    r"|\battention_logit_max\b"
)
_MAX_DEPTH = 100
_POWER = re.compile(r"(?<![\w.])\d(?:\.\d+)?e[+-]\d{2}\b")

_COUNTS = ("step ", "steps ", "row ", "rows ", "epoch ")
_MILLION = 1e6


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value read from a file is a finite number; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def finite_json(value: object, depth: int = 0) -> object:
    """Return a document as JSON can hold it.

    NaN and Inf become None, tuples become lists. What nests deeper than any report is None: a
    journal can hold an event that nests without end.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict | list | tuple) and depth > _MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {k: finite_json(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(v, depth + 1) for v in value]
    return value


def plain(text: object, *, limit: int = 0) -> str:
    r"""Return text from a log as one harmless line; None is empty.

    Terminal escape sequences, control characters and characters that reorder or hide text are
    taken out; blanks and line breaks become one blank; secrets are masked. `limit` > 0 cuts longer
    text with an ellipsis.

    Example:
        >>> plain("loss\x1b[31m red\x1b[0m\r\nnext")
        'loss red next'
    """
    if text is None:
        return ""
    cleaned = _ESCAPE.sub("", str(text))
    cleaned = _INVISIBLE.sub("", _CONTROL.sub(" ", cleaned))
    cleaned = re.sub(r"\s+", " ", cleaned.encode("utf-8", "replace").decode()).strip()
    cleaned = masked_text(cleaned)
    if limit and len(cleaned) > limit:
        return cleaned[: limit - 1].rstrip() + "…"
    return cleaned


def visible(text: object, *, keep: str = "") -> str:
    r"""Return text with control, reordering and invisible characters written as escapes.

    Unlike `plain` it loses nothing but secrets, which are masked: for names of files and samples of
    data, whose content people must be able to see. Characters in `keep` stay as they are.

    Example:
        >>> visible("a\x1b[31m\u202eb")
        'a\\x1b[31m\\u202eb'
    """
    return _STEERING.sub(
        lambda m: (
            m[0]
            if m[0] in keep
            else f"\\x{ord(m[0]):02x}"
            if ord(m[0]) < 256
            else f"\\u{ord(m[0]):04x}"
        ),
        masked_text(str(text)),
    )


def number(value: object, *, digits: int = 4) -> str:
    """Return a number for people: about `digits` significant digits, whole numbers in full.

    Digits are not grouped, so that a step reads as the log prints it and can be searched for.

    Example:
        >>> number(283384.13), number(48.0), number(6e-05), number(None), number(1e-3)
        ('283384', '48', '6e-5', '—', '0.001')
    """
    if value is None:
        return "—"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return plain(value)
    try:
        x = float(value)
    except OverflowError:  # a whole number beyond every float
        x = math.inf if value > 0 else -math.inf
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else ("∞" if x > 0 else "\u2212∞")
    if x == int(x) and abs(x) < 1e15:
        return str(int(x))
    if abs(x) >= 10**digits and abs(x) < 1e9:
        return str(round(x))
    return _short(f"{x:.{digits}g}")


def sigmas(z: float, *, sign: str = "") -> str:
    """Return a distance in robust standard deviations; one beyond all meaning in short.

    Example:
        >>> sigmas(12.4), sigmas(12.4, sign="+"), sigmas(6.7449e300)
        ('12 sigma', '+12 sigma', '6.7e+300 sigma')
    """
    return f"{z:{sign}.0f} sigma" if abs(z) < 1e6 else f"{z:{sign}.2g} sigma"


def signal_label(name: str) -> str:
    """Return the name of a signal in words: `grad_norm` -> `grad norm`.

    A number that nobody knows is called as the log calls it: `other/ram_gb` -> `ram_gb`.
    """
    own = name.removeprefix(OTHER)
    return plain(own) if own != name else plain(name).replace("_", " ")


def values_text(values: object) -> str:
    """Return values as a clause: {"to_step": 3000, "reset": True} -> `to step 3000, reset`."""
    if not isinstance(values, Mapping):
        return plain(values) if values not in (None, "") else ""
    shown = {key: masked(value, name=str(key)) for key, value in values.items()}
    parts = [_value_text(plain(key).replace("_", " "), value) for key, value in shown.items()]
    return ", ".join(p for p in parts if p)


def _value_text(key: str, value: object) -> str:
    if value is None or value is False or value in ("", [], ()):
        return ""
    if value is True:
        return key
    if isinstance(value, Mapping):
        return f"{key} ({values_text(value)})"
    if isinstance(value, list | tuple):
        if isinstance(value[0], list | tuple | Mapping):  # rows of figures are for the file
            return f"{len(value)} {key}"
        shown = ", ".join(number(v) for v in value[:8])
        return f"{key} {shown}{' …' if len(value) > 8 else ''}"
    return f"{key} {number(value)}"


def words(value: object) -> str:
    """Return an identifier as words; the hyphen of a range such as `17584-18383` stays.

    Example:
        >>> words("skip-data"), words("trial: without samples 17584-18383")
        ('skip data', 'trial: without samples 17584-18383')
    """
    return re.sub(r"(?<=[A-Za-z])-(?=[A-Za-z])", " ", plain(value))


def action_values(values: object) -> str:
    """Return the values of an action as a clause; those that change nothing are left out.

    Example:
        >>> action_values({"to_step": 480, "skip_samples": [8000, 8639], "lr_factor": 1.0})
        'to step 480, skip samples 8000-8639'
    """
    if not isinstance(values, Mapping):
        return values_text(values)
    said = {}
    for key, value in values.items():
        if (key, value) in (("num_samples", 0), ("lr_factor", 1), ("clip_factor", 1)):
            continue
        pair = key == "skip_samples" and isinstance(value, list | tuple) and len(value) == 2
        said[key] = "-".join(plain(v) for v in value) if pair else value
    return values_text(said)


_ONLY_FOR_RECORD = frozenset({"num_samples", "lr_from_step"})


def action_words(step: float, deed: Mapping[str, object]) -> str:
    """Return what an action did, its remedy and values in words.

    Example:
        >>> skipped = {"samples": [4000, 4015], "num": 1}
        >>> action_words(251, {"remedy": "skip-update", "values": skipped})
        'update of step 251 skipped (samples 4000-4015)'
        >>> action_words(60, {"remedy": "skip-data", "values": {"to_step": 40}})
        'rolled back to step 40'
    """
    values = deed.get("values")
    if isinstance(values, Mapping) and "to_step" in values:
        return _went_back(values)
    if deed.get("remedy") == "raise-lr" and isinstance(values, Mapping):
        since = _said(values.get("lr_from_step"))
        return f"raised the learning rate x {_said(values.get('factor'))} from step {since} on"
    if deed.get("remedy") != "skip-update" or not isinstance(values, Mapping):
        return " ".join(p for p in (words(deed.get("remedy")), action_values(values)) if p)
    count, samples = values.get("num"), values.get("samples")
    last = number(step + count - 1) if isinstance(count, int) else number(step)
    one = last == number(step)
    of = f"update of step {last}" if one else f"updates of steps {number(step)}-{last}"
    fed = ""
    if isinstance(samples, list | tuple) and len(samples) == 2:
        fed = f" (samples {plain(samples[0])}-{plain(samples[1])})"
    return f"{of} skipped{fed}"


def _went_back(values: Mapping[str, object]) -> str:
    """Return what a rollback did, in the past: `rolled back to step 880 and ...`."""
    known = {k: v for k, v in values.items() if v is not None and k not in _ONLY_FOR_RECORD}
    parts = [f"rolled back to step {_said(known.pop('to_step', None))}"]
    samples = known.pop("skip_samples", None)
    if isinstance(samples, list | tuple) and len(samples) == 2:
        parts.append(f"left out samples {_said(samples[0])} to {_said(samples[1])}")
    factors = {known.pop(key, 1) for key in ("lr_factor", "factor")} - {1}
    parts += [f"multiplied the learning rate by {_said(f)}" for f in factors]
    if "lr_limit" in known:
        parts.append(f"held the learning rate at {_said(known.pop('lr_limit'))}")
    put_back = plain(known.pop("put_back", None), limit=120).replace("_", " ")
    said = " and ".join((", ".join(parts[:-1]), parts[-1]) if parts[1:] else parts)
    rest = action_values(known)
    return said + (f", with {put_back}" if put_back else "") + (f" ({rest})" if rest else "")


def _said(value: object) -> str:
    return number(value) if isinstance(value, int | float) else plain(value, limit=80)


def verdict_text(outcome: Mapping[str, object]) -> tuple[str, str]:
    """Return the verdict of an outcome and what is reported about it, each thing once.

    Example:
        >>> verdict_text({"verdict": "did not", "text": "trial failed"})
        ('failed', '')
    """
    verdict, text = plain(outcome.get("verdict")) or "unclear", plain(outcome.get("text"))
    short = {"trial failed": "failed", "trial held": "held"}.get(text)
    said = "did not help" if verdict == "did not" else verdict
    return (short, "") if short else (said, text)


def reworded(text: object) -> str:
    """Return a sentence of a detector or a cause as people say it.

    Numbers with a power are written out below a million, and have three digits beyond; a step is
    written as the log has it.

    Example:
        >>> reworded("it rose 1 rows before the onset"), reworded("nonfinite is non-finite")
        ('it rose 1 row before the onset', 'non-finite values')
        >>> reworded("grad_norm 317.3 -> 1.967e+04")
        'grad norm 317.3 -> 19670'
        >>> reworded("loss 42.84 → 9.801e+13 at step 2e+06")
        'loss 42.84 → 9.8e13 at step 2000000'
    """
    said = re.sub(r"(?<![\d.] )(?<![\d.,])\b1 rows\b", "1 row", plain(text))
    said = re.sub(r"\bnonfinite is non-finite\b", "non-finite values", said)
    said = re.sub(r"\bnon-finite of ", "non-finite ", said)
    said = _SIGNAL_NAME.sub(lambda m: m[0].replace("_", " "), said)
    return _POWER.sub(_power, said)


def _power(found: re.Match[str]) -> str:
    value = float(found[0])
    counts = found.string[: found.start()].endswith(_COUNTS)
    return number(value) if counts or value < _MILLION else _short(f"{value:.3g}")


def _short(text: str) -> str:
    """Return a number with a power without what needs not be said: `6e-05` -> `6e-5`."""
    return re.sub(r"e([+-])0*(\d+)", lambda m: f"e{'-' if m[1] == '-' else ''}{m[2]}", text)
