"""The clip norm of a run: what its log or config states, or what its trainer does unless told."""

from trimtab.record import RunRecord

__all__ = ["clip_of", "states_no_clip"]

_BY_DEFAULT = ("megatron", "tr8", "hf-", "nanogpt", "torchtitan", "olmo")
"""Formats of trainers that clip at 1.0 unless told otherwise. A row of any other log says nothing
about a clip: its script may have none."""
_KEYS = frozenset(
    {"clip", "clip_grad", "grad_clip", "max_grad_norm", "gradient_clipping", "gradient_clip_val"}
)
_OFF = frozenset({"none", "null", "false", "off", "0", "0.0"})


def clip_of(record: RunRecord) -> tuple[float | None, bool]:
    """Return (clip norm, whether it is assumed); None where nothing is known of a clip, or none."""
    clip = record.facts.get("clip")
    if clip is not None:
        return (clip if clip > 0 else None), False
    by_default = record.format.lower().startswith(_BY_DEFAULT)
    return (1.0, True) if by_default and not states_no_clip(record) else (None, True)


def states_no_clip(record: RunRecord) -> bool:
    """Whether the log or the config states that nothing is clipped."""
    clip = record.facts.get("clip")
    own = record.attempts[-1].settings if record.attempts else {}
    stated = (v.strip().lower() for k, v in own.items() if k.lower().lstrip("-") in _KEYS)
    return clip <= 0 if clip is not None else any(v in _OFF for v in stated)
