"""The command-line flags of a remedy or a test, by the framework that wrote the log."""

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePath

from trimtab.plan.flag_table import DIALECTS, REMEDY_FLAGS, TEST_FLAGS, TRAPS

__all__ = ["TRAPS", "dialect", "experiment_flags", "flags_for", "located"]


def dialect(log_format: str) -> str:
    """Return whose flags a log format or framework uses; empty where none are known.

    Example:
        >>> dialect("megatron"), dialect("hf-stdout"), dialect("csv")
        ('megatron', 'hf-trainer', '')
    """
    name = log_format.lower()
    return next((whose for part, whose in DIALECTS if part in name), "")


def flags_for(log_format: str, remedy: str, values: Mapping[str, float | str | bool | None]) -> str:
    """Return the flags, or an empty string where none are known or a value is missing.

    Example:
        >>> flags_for("megatron", "lower-lr", {"lr": 3e-5})
        '--override-opt_param-scheduler --lr 3e-05'
        >>> flags_for("megatron", "roll-back", {"to_step": None})
        ''
    """
    return _filled(REMEDY_FLAGS.get(dialect(log_format), {}).get(remedy, ""), values)


def experiment_flags(log_format: str, experiment: str, values: Mapping[str, str]) -> str:
    """Return the command or flags of a test; in words where the framework's are not known.

    Args:
        log_format: Format of the log, or name of the framework.
        experiment: Id in the table of experiments.
        values: at, earlier, first, last, half_lr, old_lr, parent, attempt, where known.

    Example:
        >>> experiment_flags("torchtitan", "half-rate", {"at": "3000", "half_lr": "1e-4"})
        '--checkpoint.load_step 3000 --metrics.log_freq 1 --optimizer.lr 1e-4'
    """
    own = TEST_FLAGS.get(dialect(log_format), {}).get(experiment, "")
    return _filled(own, values) or _filled(TEST_FLAGS[""].get(experiment, ""), values)


def located(flags: str, checkpoint: str) -> str:
    """Return flags with the place of a known checkpoint for the words that stand for it.

    Example:
        >>> located("--load CHECKPOINTS --ckpt-step 3000", "/data/tr8/iter_0003000")
        '--load /data/tr8 --ckpt-step 3000'
        >>> located("--resume_from_checkpoint OUTPUT/checkpoint-3000", "out/checkpoint-3000")
        '--resume_from_checkpoint out/checkpoint-3000'
    """
    path = PurePath(checkpoint)
    # A person pastes the flags into a shell.
    whole, folder = shlex.quote(str(path)), shlex.quote(str(path.parent))
    # A function, since a backslash in the path would be read as a group of the pattern. The longer
    # placeholder goes first: it may contain the shorter one.
    flags = re.sub(_WHOLE, lambda _: whole, flags)
    return re.sub(_FOLDER, lambda _: folder, flags)


_WHOLE = re.compile(r"\b(?:(?:OUTPUT|SAVE_DIR|SAVE_FOLDER)/[^\s)]+|CHECKPOINT_AT_\d+(?:\.ckpt)?)")
_FOLDER = re.compile(r"\b(?:CHECKPOINTS|DIR)\b")


def _filled(template: str, values: Mapping[str, object]) -> str:
    try:
        # An unknown value gives no flags rather than flags with a hole in them.
        return template.format(**values)
    except (KeyError, TypeError, ValueError):
        return ""
