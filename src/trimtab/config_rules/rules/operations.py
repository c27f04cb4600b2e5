"""The file itself, and what is checked at other times: saves, restarts, spares, environment."""

import math
import re
from collections.abc import Sequence

from trimtab.config_rules.rules.rule import Checks, RuleVerdict, Severity, compact
from trimtab.configs.facts import Facts
from trimtab.configs.settings import Doubt

__all__ = ["OPERATIONS_CHECKS"]

_NUMBERS = (
    "hidden",
    "layers",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "seq",
    "lr",
    "min_lr",
    "warmup_steps",
    "warmup_samples",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "clip",
    "train_steps",
    "dropout",
    "batch_samples",
    "batch_tokens",
    "loss_scale",
    "save_steps",
)
_LIKE_A_NUMBER = re.compile(r"[+-]?\.?\d[\d._eE+-]*")
_BELOW_ONE = (
    *("beta1", "beta2", "dropout", "attention_dropout", "embedding_dropout"),
    "label_smoothing",
)


def spelled(run: Facts) -> Sequence[RuleVerdict]:
    """A value that could not be read, or a number that is text because it is misspelt."""
    found = [
        _unread(doubt) for doubt in run.settings.doubts if doubt.kind in ("unreadable", "unsure")
    ]
    if (misspelt := _misspelt(run)) is not None:
        found.append(misspelt)
    bare = [doubt for doubt in run.settings.doubts if doubt.kind == "word"]
    if bare:
        keys = ", ".join(f"{d.key} {d.text}" for d in bare[:4]) + (" …" if len(bare) > 4 else "")
        found.append(
            RuleVerdict(
                "info",
                f"{keys}: PyYAML reads a number without a point or without a sign in its exponent"
                " as text; it is taken as a number here",
                {d.key: d.text for d in bare},
                words="write 4.0e-4, unless your trainer turns text into numbers",
            )
        )
    return found


def read_whole(run: Facts) -> Sequence[RuleVerdict]:
    """Name the files and keys that were not read."""
    missed = [doubt for doubt in run.settings.doubts if doubt.kind == "not-read"]
    files = [doubt.text for doubt in missed if not doubt.key]
    found = []
    if files:
        said = f"not read: {', '.join(files[:6])}; the content was not checked"
        it = "it" if len(files) == 1 else "them"
        found.append(
            RuleVerdict(
                "info", said, {"files": files}, words=f"give {it} on the command line as well"
            )
        )
    if run.other_architecture:
        said = (
            f"the model is no transformer ({run.other_architecture}): its parameters are not"
            " counted, and rules that hold for transformers only are not applied"
        )
        found.append(RuleVerdict("info", said, {"architecture": run.other_architecture}))
    for doubt in [doubt for doubt in missed if doubt.key][:6]:
        where = f" (line {doubt.line})" if doubt.line else ""
        said = f"not read: {doubt.key} {doubt.text}{where}"
        found.append(RuleVerdict("info", said, {doubt.name: doubt.text}, words=doubt.expected))
    return found


def _unread(doubt: Doubt) -> RuleVerdict:
    where = f" (line {doubt.line})" if doubt.line else ""
    key = doubt.key
    guess = f"{key} {doubt.meant}" if key.startswith("-") else f"{key}: {doubt.meant}"
    return RuleVerdict(
        "error" if doubt.kind == "unreadable" else "warning",
        f'{key} "{doubt.text}"{where} cannot be read: expected {doubt.expected}',
        {doubt.name: doubt.text, "line": doubt.line},
        words=guess if doubt.meant else f"write {key} as {doubt.expected}",
    )


def _misspelt(run: Facts) -> RuleVerdict | None:
    for name in _NUMBERS:
        value = run.get(name)
        if not isinstance(value, str) or not _LIKE_A_NUMBER.fullmatch(value.strip()):
            continue
        try:
            float(value)
        except ValueError:
            found = run.setting(name)
            where = f" ({found.key})" if found and found.key else ""
            guess = _guess(value)
            return RuleVerdict(
                "error",
                f'{name} is "{value[:40]}"{where}: text, not a number',
                {name: value},
                {name: guess} if guess is not None else {},
                "" if guess is not None else "write it as a number, such as 1.0e-8",
            )
    return None


def _guess(value: str) -> float | None:
    """Return what `1.0e_8` was meant to be, where that is plain."""
    try:
        # `1.0e_8`: a minus that became an underscore.
        return float(re.sub(r"[eE][_-]+", "e-", value))
    except ValueError:
        return None


def possible(run: Facts) -> Sequence[RuleVerdict]:
    """Values that cannot be, alone or together.

    Sizes are left out: -1 stands for "from the tokenizer" and the like.
    """
    found = []
    for doubt in run.settings.doubts:
        where = f" (line {doubt.line})" if doubt.line else ""
        if doubt.kind == "impossible":
            said = f"{doubt.key} {doubt.text}{where} is impossible: expected {doubt.expected}"
        elif doubt.kind in ("conflict", "disagree"):
            said = f"{doubt.key} {doubt.text}{where}: expected {doubt.expected}"
        else:
            continue
        severity: Severity = "warning" if doubt.kind == "disagree" else "error"
        words = f"give {doubt.expected}" if doubt.kind == "impossible" else "change one of the two"
        found.append(
            RuleVerdict(severity, said, {doubt.name: doubt.text, "line": doubt.line}, words=words)
        )
    if (one := _impossible(run)) is not None:
        found.append(one)
    return found


def _impossible(run: Facts) -> RuleVerdict | None:
    for name in (*_BELOW_ONE, "lr", "min_lr", "weight_decay", "eps", "init_std"):
        value = run.raw_number(name)
        if value is None:
            continue
        if not math.isfinite(value) or value < 0 or (name in _BELOW_ONE and value >= 1):
            return RuleVerdict(
                "error",
                f"{name} is {value:g}, which is impossible",
                {name: value},
                words="correct the value",
            )
    beta1, beta2 = run.number("beta1"), run.number("beta2")
    if beta1 is not None and beta2 is not None and beta1 > beta2 and run.has_adam:
        return RuleVerdict(
            "warning",
            f"β1 {beta1:g} is above β2 {beta2:g}: swapped?",
            {"beta1": beta1, "beta2": beta2},
            {"beta1": beta2, "beta2": beta1},
        )
    return None


def lengths(run: Facts) -> RuleVerdict | None:
    """Sequence, batch and budget agree with each other."""
    seq, samples, batch = (
        run.positive("seq"),
        run.positive("batch_samples"),
        run.positive("batch_tokens"),
    )
    if seq and samples and batch and run.is_stated("batch_tokens"):
        ratio = batch / (seq * samples)
        # Ramps and rounded budgets are off by a few per cent; a wrong factor by a half or more.
        if not 0.8 < ratio < 1.25:
            return RuleVerdict(
                "info",
                f"{compact(batch)} tokens a step, but {samples:.0f} sequences of {seq:.0f} make"
                f" {compact(seq * samples)}",
                {"batch_tokens": batch, "batch_samples": samples, "seq": seq},
                words="make the three agree",
            )
    steps, total = run.positive("train_steps"), run.positive("train_tokens")
    if steps and total and run.batch_tokens and run.setting("batch_start_samples") is None:
        ratio = steps * run.batch_tokens / total
        if not 0.8 < ratio < 1.25:
            return RuleVerdict(
                "info",
                f"{compact(total)} tokens are planned, but {steps:.0f} steps of"
                f" {compact(run.batch_tokens)} make {compact(steps * run.batch_tokens)}",
                {"train_tokens": total, "train_steps": steps, "batch_tokens": run.batch_tokens},
                words="make the two agree",
            )
    return None


def saves(run: Facts) -> RuleVerdict | None:
    """Few checkpoints in a long run."""
    save, steps = run.positive("save_steps"), run.train_steps
    if save is None or steps is None or run.is_tuning or steps < 2000 or (run.params or 0) < 1e9:
        return None
    values, words = (
        {"save_steps": save, "train_steps": steps},
        "--save-seconds and --devices give the interval that loses least",
    )
    if save > steps:
        said = (
            f"a checkpoint every {save:.0f} steps, and the run has {steps:.0f}: none before its end"
        )
        return RuleVerdict("info", said, values, words=words)
    if save > steps / (20 if run.is_large else 5):
        said = (
            f"a checkpoint every {save:.0f} of {steps:.0f} steps: a failure loses"
            f" {save / steps / 2:.0%} of the run on average"
        )
        return RuleVerdict(
            "warning" if save > steps / 5 and steps >= 10_000 else "info", said, values, words=words
        )
    return None


OPERATIONS_CHECKS: Checks = {
    "PARSE": (spelled, None),
    "READ": (read_whole, None),
    "KEY": (possible, None),
    "SEQ": (lengths, None),
    "L35": (saves, lambda run: (run.params or 0) >= 1e9 and not run.is_tuning),
}
