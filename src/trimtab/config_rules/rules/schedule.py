"""Warm-up, decay, batch ramps, and how often the corpus is seen."""

import math

from trimtab.config_rules.references import BATCH_TOKENS, GPT3_LR
from trimtab.config_rules.rules.learning_rate import advised_peak
from trimtab.config_rules.rules.rule import Checks, RuleVerdict, Severity, compact, times, tokens
from trimtab.configs.facts import Facts

__all__ = ["SCHEDULE_CHECKS"]

LOCAL_BATCH = (8, 32)
"""Usual sequences of one device in a step, OPT-175B logbook."""
_USUAL_WARM_UP = 2000
"""Steps of Llama and OLMo."""
_WARM_UP_SHARE = 0.1
"""Share of a short run that is warm-up enough, and that is advised at most. Ours."""
_NEVER_DECAYS = ("constant", "constant_with_warmup", "constantlr")


def warm_up(run: Facts) -> RuleVerdict | None:
    """Compare the warm-up with 500 steps, 375 M tokens, and 2 / (1 - beta2)."""
    steps, covered = run.warmup_steps, run.warmup_tokens
    # A run that goes on without a rate of its own takes rate and warm-up from its checkpoint.
    if run.get("resumes") is True and run.positive("lr") is None:
        return None
    if run.is_tuning or run.is_continued or not run.has_adam:
        return _other_warm_up(run, steps)
    if steps is None:
        return None
    values = {"warmup_steps": steps, "warmup_tokens": covered}
    room = _room_for_warm_up(run)
    change = {"warmup_steps": room}
    in_tokens = f" ({tokens(covered)})" if covered else ""
    few = f"warm-up of {steps:.0f} steps{in_tokens}"
    # nGPT normalizes its weights and is trained without a warm-up.
    if steps <= 2 and steps < room and not run.is_ngpt:
        stated = run.setting("warmup_tokens")
        short = f"{tokens(covered)}, " if covered and stated and stated.origin == "stated" else ""
        return RuleVerdict(
            _severity_without_warm_up(run),
            f"no warm-up ({short}{steps:.0f} step{'' if steps == 1 else 's'}): Adam's first updates"
            " are at the full rate",
            values,
            change,
        )
    share = steps / run.train_steps if run.train_steps else 0.0
    by_tokens = (
        bool(run.setting("warmup_tokens") or run.setting("warmup_samples"))
        and (covered or 0) >= 3e8
    )
    if steps < min(500, room) and not by_tokens and not run.is_ngpt:
        enough = (covered or 0) >= 1e9 or share >= _WARM_UP_SHARE
        return RuleVerdict(
            "info" if enough else "warning",
            f"{few}: below 500; GPT-3 and BLOOM had 375 M tokens, Llama and OLMo 2000 steps",
            values,
            change,
        )
    # Adam's second moment averages over about 1/(1-β2) steps; after twice that it has settled.
    b2 = run.number("beta2")
    bound = 2 / (1 - b2) if b2 is not None and 0 <= b2 < 1 else 0.0
    if steps < bound and not run.is_ngpt:
        return RuleVerdict(
            "info",
            f"{few} is shorter than 2/(1-β2) = {bound:.0f} steps, so β2 {b2:g} has not settled at"
            " the peak",
            {**values, "beta2": b2},
            {"beta2": 0.95},
        )
    return None


def _room_for_warm_up(run: Facts) -> int:
    """Return the usual warm-up, or the share of a short run that it may take."""
    end = run.train_steps
    return min(_USUAL_WARM_UP, round(_WARM_UP_SHARE * end)) if end else _USUAL_WARM_UP


def _severity_without_warm_up(run: Facts) -> Severity:
    """Return the severity of a missing warm-up: an error from 1 B parameters on.

    A third of GPT-3's rate is what a warm-up passes on its way, so below it nothing breaks.
    """
    lr = run.positive("lr")
    if lr is not None and run.lookup_params is not None and lr < GPT3_LR.at(run.lookup_params) / 3:
        return "warning"
    if run.params is not None or run.setting("hidden") is not None:
        return (
            "error"
            if (run.params or 0) >= 1e9 or (run.positive("hidden") or 0) >= 2048
            else "warning"
        )
    return "warning" if run.is_stated("warmup_steps") else "info"


def _other_warm_up(run: Facts, steps: float | None) -> RuleVerdict | None:
    """Report a warm-up that is too short even without Adam, or on given weights."""
    lr, tuned = run.positive("lr") or 0.0, run.is_tuning or run.is_continued
    usual = min(100, _room_for_warm_up(run))
    if steps is None or steps >= (min(1, usual) if tuned else usual):
        return None
    if not tuned and "muon" not in run.text("optimizer"):
        return None
    severity: Severity = "info" if tuned and lr < 1e-4 else "warning"
    return RuleVerdict(
        severity, f"warm-up of {steps:.0f} steps", {"warmup_steps": steps}, {"warmup_steps": usual}
    )


def danger_zone(run: Facts) -> RuleVerdict | None:
    """Saves are dense enough where runs diverge most."""
    steps, save = run.warmup_steps, run.positive("save_steps")
    if not steps or save is None or run.is_tuning or (run.params or 0) < 1e9:
        return None
    zone = 3 * steps
    if zone < 4 * save:
        return RuleVerdict(
            "info",
            f"the first {zone:.0f} steps (3 × warm-up) are where runs diverge, and only"
            f" {zone / save:.2g} checkpoints fall there",
            {"zone_steps": zone, "save_steps": save},
            # Sixteen saves within the zone: four times the number from which the rule is quiet.
            {"save_steps": max(1, round(zone / 16))},
        )
    return None


def schedule(run: Facts) -> tuple[RuleVerdict, ...]:
    """Warm-up, end rate, decay and end of the run fit each other."""
    said = (_warm_up_fits(run), _end_rate(run), _decay(run), _constant(run))
    return tuple(verdict for verdict in said if verdict is not None)


def _warm_up_fits(run: Facts) -> RuleVerdict | None:
    steps, end = run.warmup_steps, run.train_steps
    if not steps or not end:
        return _warm_up_of_epochs(run)
    values = {"warmup_steps": steps, "train_steps": end}
    change = {"warmup_steps": round(end / 50) if run.is_tuning else _room_for_warm_up(run)}
    if steps >= end:
        longer = "as long as" if steps == end else "longer than"
        said = (
            f"warm-up of {steps:.0f} steps is {longer} the run of {end:.0f}: the peak rate is never"
            " held"
        )
        return RuleVerdict("error", said, values, change)
    if steps > 0.3 * end and not run.is_tuning:
        half = steps >= 0.5 * end and end >= 10_000 and not run.is_continued
        said = f"warm-up takes {steps / end:.0%} of the run"
        return RuleVerdict("warning" if half else "info", said, values, change)
    return None


def _warm_up_of_epochs(run: Facts) -> RuleVerdict | None:
    """Compare warm-up and run where both are stated in epochs alone."""
    warm, end = run.positive("warmup_epochs"), run.positive("epochs")
    if warm is None or end is None or warm < end:
        return None
    longer = "as long as" if warm == end else "longer than"
    return RuleVerdict(
        "error",
        f"warm-up of {warm:g} epochs is {longer} the run of {end:g} epochs: the peak rate is never"
        " held",
        {"warmup_epochs": warm, "epochs": end},
        {"warmup_epochs": max(1, round(_WARM_UP_SHARE * end))},
    )


def _end_rate(run: Facts) -> RuleVerdict | None:
    lr, low = run.positive("lr"), run.number("min_lr")
    if lr is None or low is None:
        return None
    values = {"lr": lr, "min_lr": low}
    change = {"min_lr": float(f"{(advised_peak(run) or lr) / 10:.3g}")}
    if low > lr * 1.001:  # from a hundredth on it may be a share of the peak
        return RuleVerdict(
            "error" if low < 0.01 else "warning",
            f"minimum rate {compact(low)} is above the peak {compact(lr)}",
            values,
            change,
        )
    constant = "constant" in run.text("schedule") or "wsd" in run.text("schedule")
    if low >= lr * 0.999 and not constant and not run.is_tuning:
        said = (
            f"minimum rate {compact(low)} equals the peak: the {run.text('schedule') or 'schedule'}"
            " never decays"
        )
        return RuleVerdict("warning", said, values, change)
    return None


def _decay(run: Facts) -> RuleVerdict | None:
    """Whether the decay ends with the run: a warning where it is off by a factor of two or more."""
    end, decay, low = run.train_steps, run.positive("decay_steps"), run.number("min_lr")
    if not decay or not end or 0.9 * end <= decay <= 1.25 * end:
        return None
    found = run.setting("decay_steps")
    rises = found is not None and found.key.rsplit(".", 1)[-1] == "T_max" and decay < end
    rest = f"the rest runs at {compact(low) if low is not None else 'the minimum'}"
    if rises:
        rest = "torch's cosine then rises to the peak again"
    far = decay <= 0.5 * end or decay >= 2 * end
    known = found is not None and found.origin == "stated" and run.is_stated("train_steps")
    return RuleVerdict(
        "warning" if far and known and not run.is_tuning else "info",
        f"the decay ends at {decay:.0f} of {end:.0f} steps:"
        f" {rest if decay < end else 'the run ends at a high rate'}",
        {"decay_steps": decay, "train_steps": end},
        {"decay_steps": int(end)},
    )


def _constant(run: Facts) -> RuleVerdict | None:
    if run.text("schedule") not in _NEVER_DECAYS or run.is_tuning or run.positive("lr") is None:
        return None
    return RuleVerdict(
        "info",
        f"schedule {run.get('schedule')}: the rate never decays; published runs end at a tenth of"
        " the peak or below",
        {"schedule": run.get("schedule")},
        {"schedule": "cosine"},
    )


def ramp(run: Facts) -> RuleVerdict | None:
    """A very large batch from the first step."""
    batch = run.batch_tokens
    if (
        batch is None
        or batch < 4e6
        or run.setting("batch_start_samples")
        or run.is_tuning
        or run.is_continued
    ):
        return None
    return RuleVerdict(
        "info",
        f"{tokens(batch)} a step from the start: early gradients agree, so much of it is wasted"
        " (BLOOM ramped from 192 to 2048 sequences over 9.8 M)",
        {"batch_tokens": batch},
        _eighth(run),
        "start at an eighth of it",
    )


def _eighth(run: Facts) -> dict[str, int]:
    """Return an eighth of the batch in sequences, where the devices can divide it."""
    samples = run.positive("batch_samples") or 0.0
    shares = (run.positive("micro_batch") or 1) * (run.positive("data_parallel") or 1)
    fits = samples >= 8 and samples % 8 == 0 and (samples / 8) % shares == 0
    return {"batch_start_samples": int(samples / 8)} if fits else {}


def batch_size(run: Facts) -> RuleVerdict | None:
    """A batch far from those that were used at this size."""
    batch, params = run.batch_tokens, run.lookup_params
    if batch is None or params is None or params < 1e9 or run.is_tuning or run.is_continued:
        return None
    usual = BATCH_TOKENS.at(params)
    ratio = batch / usual
    values = {"batch_tokens": batch, "params": params, "usual": usual, "ratio": ratio}
    if ratio < 1 / 25 and run.positive("lr"):
        return RuleVerdict(
            "warning",
            f"{tokens(batch)} a step is {times(1 / ratio)} × below GPT-3's at {compact(params)}"
            f" ({tokens(usual)}): noisy gradients at a rate meant for large batches",
            values,
            words=(
                f"accumulate gradients up to about {tokens(usual)}, or lower the rate with the root"
                " of the batch"
            ),
        )
    if ratio > 4:
        return RuleVerdict(
            "info",
            f"{tokens(batch)} a step is {times(ratio)} × GPT-3's at {compact(params)}: OPT doubled"
            f" its batch and saw not much difference; {tokens(batch - usual)} more for each update",
            values,
            words=(
                "ramp the batch, or measure the gradient noise scale first:"
                " trimtab.model_checks.noise_scale"
            ),
        )
    return None


def length_ramp(run: Facts) -> RuleVerdict | None:
    """Suggest short sequences at the start for a very large batch."""
    batch, params, seq = run.batch_tokens, run.lookup_params, run.positive("seq")
    if batch is None or params is None or seq is None or run.is_tuning or run.is_continued:
        return None
    if batch < 8 * BATCH_TOKENS.at(params):
        return None
    return RuleVerdict(
        "info",
        f"{tokens(batch)} a step is 8 × the published batch and more: starting with short sequences"
        " kept such batches stable for GPT-2, and may mask the fault it cures",
        {"batch_tokens": batch, "seq": seq},
        words="sequence-length warm-up",
    )


def local_batch(run: Facts) -> RuleVerdict | None:
    """A share of the batch per data-parallel rank outside the usual 8 to 32 sequences."""
    batch, width = run.positive("batch_samples"), run.positive("data_parallel")
    local = None if batch is None or width is None else batch / width
    if local is None or LOCAL_BATCH[0] <= local <= LOCAL_BATCH[1] or run.is_tuning:
        return None
    side = "below" if local < LOCAL_BATCH[0] else "above"
    return RuleVerdict(
        "info",
        f"{local:g} sequences for one data-parallel rank in a step are {side} the usual"
        f" {LOCAL_BATCH[0]} to {LOCAL_BATCH[1]}",
        {"local_batch": local, "batch_samples": batch, "data_parallel": width},
        words=(
            "few leave a device idle, many cost accumulation: measure the throughput of two or"
            " three widths"
        ),
    )


def epochs(run: Facts) -> RuleVerdict | None:
    """Whether tokens repeat, and at which step."""
    corpus, total, batch = run.corpus_tokens, run.train_tokens, run.batch_tokens
    # Budgets are often stated as the rounded size of the corpus.
    if corpus is None or total is None or total <= corpus * 1.0001:
        return None
    where = f", the second pass begins at step {math.ceil(corpus / batch)}" if batch else ""
    return RuleVerdict(
        "warning" if not run.is_tuning else "info",
        f"{tokens(total)} from a corpus of {compact(corpus)}: {total / corpus:.2f} epochs{where}",
        {
            "train_tokens": total,
            "corpus_tokens": corpus,
            "epochs": total / corpus,
            "boundary_step": math.ceil(corpus / batch) if batch else None,
        },
        words="plan what repeats, or end at the boundary; expect a step down in train loss there",
    )


SCHEDULE_CHECKS: Checks = {
    "L07": (warm_up, None),
    "L08": (danger_zone, lambda run: (run.params or 0) >= 1e9),
    "SCHED": (schedule, None),
    "L16": (ramp, None),
    "L17": (batch_size, lambda run: (run.params or 0) >= 1e9),
    "LOCAL": (local_batch, None),
    "L32": (length_ramp, None),
    "L37": (epochs, None),
}
