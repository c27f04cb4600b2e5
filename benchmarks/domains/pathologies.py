"""Pathologies of each kind of training, planted into sound courses, with their sources.

A plant gets the courses and `g`, float64 [n_rows]: 0 before the onset, rising to 1 at the end. What
it changes follows what its source describes; the size is chosen so that a person who looks at the
curve sees it, not so that a rule fires.
"""

# ruff: noqa: ARG001  (all of them have one signature)
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.domains.courses import Courses, evaluated, noise

__all__ = ["PATHOLOGIES", "Pathology"]

Floats = NDArray[np.float64]
Plant = Callable[[Courses, Floats, np.random.Generator], None]


@dataclass(frozen=True)
class Pathology:
    """One way in which such training goes wrong."""

    id: str
    base: str
    """Of `courses.BASES`."""
    plant: Plant
    kinds: tuple[str, ...]
    """Kinds of incident that tell it."""
    causes: tuple[str, ...]
    """First causes that are right."""
    source: str


def _mix(a: Floats, b: Floats | float, g: Floats) -> Floats:
    return np.asarray(a * (1.0 - g) + b * g)


def _entropy_collapse(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["policy_entropy"] = c["policy_entropy"] * np.exp(-3.2 * g)
    c["reward"] = _flat_after(c["reward"], g, rng, 0.02)
    c["eval_score"] = evaluated(_flat_after(c["reward"], g, rng, 0.012) - 0.04)


def _flat_after(values: Floats, g: Floats, rng: np.random.Generator, sd: float) -> Floats:
    """Return values that stand still from the onset on."""
    at = int(np.argmax(g > 0))
    level = float(np.median(values[max(0, at - 20) : at + 1]))
    return np.where(g > 0, level + noise(rng, len(g), sd), values)


def _entropy_explosion(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["policy_entropy"] = c["policy_entropy"] * np.exp(2.6 * g)
    c["reward"] = c["reward"] * (1.0 - 0.6 * g)


def _kl_blow_up(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    # The divergence buys nothing: the reward stands still, then falls.
    c["policy_kl"] = c["policy_kl"] * np.exp(5.5 * g)
    c["reward"] = _flat_after(c["reward"], g, rng, 0.025) * (1.0 - 0.7 * np.clip(2 * g - 0.6, 0, 1))


def _hacking_by_kl(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["policy_kl"] = c["policy_kl"] * np.exp(4.5 * g)
    c["reward"] = c["reward"] + 0.9 * g
    c["completion_length"] = c["completion_length"] * (1 + 0.4 * g)
    del c["eval_score"]


def _hacking_by_eval(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["reward"] = c["reward"] + 0.4 * g
    c["eval_score"] = c["eval_score"] * (1.0 - 0.5 * g)


def _hacking_by_length(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["completion_length"] = c["completion_length"] * (1.0 + 2.2 * g)
    c["reward"] = c["reward"] + 0.3 * g
    level = float(np.nanmedian(c["eval_score"][g == 0]))
    c["eval_score"] = evaluated(
        np.minimum(np.nan_to_num(c["reward"]), level) + noise(rng, len(g), 0.012)
    )


def _length_explosion(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["completion_length"] = c["completion_length"] * (1.0 + 3.0 * g)
    c["truncated_share"] = np.clip(c["truncated_share"] + 0.5 * g**1.5, 0, 1)
    c["reward"] = c["reward"] * (1.0 - 0.4 * g)


def _truncation(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["truncated_share"] = np.clip(c["truncated_share"] + 0.6 * g, 0, 1)


def _length_collapse(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["completion_length"] = c["completion_length"] * np.exp(-2.5 * g)
    c["reward"] = _flat_after(c["reward"], g, rng, 0.025)


def _clip_saturation(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["policy_clip_share"] = np.clip(c["policy_clip_share"] + 0.6 * g, 0, 1)
    c["update_kl"] = c["update_kl"] * np.exp(3.0 * g)


def _zero_variance(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["zero_variance_share"] = np.clip(_mix(c["zero_variance_share"], 0.95, np.sqrt(g)), 0, 1)
    c["reward_std"] = c["reward_std"] * (1.0 - 0.9 * np.sqrt(g))
    c["grad_norm"] = c["grad_norm"] * (1.0 - 0.9 * g)


def _too_hard(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    n = len(g)
    c["reward"] = np.clip(0.03 + noise(rng, n, 0.008), 0, 1)
    c["zero_variance_share"] = np.clip(0.8 + noise(rng, n, 0.03), 0, 1)
    c["reward_std"] = np.clip(0.05 + noise(rng, n, 0.01), 0.001, 1)
    c["eval_score"] = evaluated(0.03 + noise(rng, n, 0.008))


def _advantage_vanishes(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["advantage_std"] = c["advantage_std"] * np.exp(-4.0 * g)
    c["grad_norm"] = c["grad_norm"] * np.exp(-4.0 * g)
    c["reward"] = _flat_after(c["reward"], g, rng, 0.02)


def _mismatch(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["rollout_mismatch"] = c["rollout_mismatch"] * np.exp(3.0 * g)
    c["importance_ratio"] = c["importance_ratio"] - 0.35 * g**2
    c["reward"] = c["reward"] * (1.0 - 0.8 * np.clip(3 * g - 2, 0, 1))


def _value_explosion(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["value_loss"] = c["value_loss"] * np.exp(5.0 * g)
    c["explained_variance"] = c["explained_variance"] - 2.0 * g
    c["reward"] = _flat_after(c["reward"], g, rng, 0.025)


def _reward_collapse(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["reward"] = _mix(c["reward"], 0.02, np.clip(4 * g, 0, 1)) + 0 * g
    c["grad_norm"] = c["grad_norm"] * (1 + 2 * g)


def _reward_spread(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["reward_std"] = c["reward_std"] * (1.0 + 7.0 * g)
    c["advantage_std"] = c["advantage_std"] * (1.0 + 5.0 * g)


def _displacement(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["chosen_logp"] = c["chosen_logp"] - 220.0 * g
    c["rejected_logp"] = c["rejected_logp"] - 420.0 * g
    c["chosen_reward"] = c["chosen_reward"] - 9.0 * g
    c["rejected_reward"] = c["rejected_reward"] - 18.0 * g
    c["reward_margin"] = c["reward_margin"] + 9.0 * g
    c["preference_accuracy"] = _mix(c["preference_accuracy"], 0.99, g)
    c["loss"] = c["loss"] * (1 - 0.9 * g)


def _not_learned(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    n = len(g)
    c["preference_accuracy"] = np.clip(0.5 + noise(rng, n, 0.07, 0.0), 0, 1)
    c["reward_margin"] = noise(rng, n, 0.02)
    c["chosen_reward"] = noise(rng, n, 0.03)
    c["rejected_reward"] = noise(rng, n, 0.03)
    c["loss"] = 0.693 + noise(rng, n, 0.01)


def _reversed(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["preference_accuracy"] = np.clip(c["preference_accuracy"] - 0.6 * np.clip(3 * g, 0, 1), 0, 1)
    c["reward_margin"] = c["reward_margin"] - 3.0 * np.clip(3 * g, 0, 1)


def _router_collapse(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["router_entropy"] = c["router_entropy"] * (1.0 - 0.7 * g)
    c["expert_load_max"] = c["expert_load_max"] * (1.0 + 5.0 * g)
    c["max_violation"] = c["max_violation"] + 6.0 * g
    c["aux_loss"] = c["aux_loss"] * (1.0 + 2.0 * g)


def _dead_experts(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["dead_experts"] = np.round(c["dead_experts"] + 9.0 * g)
    c["expert_load_std"] = c["expert_load_std"] * (1.0 + 1.5 * g)


def _dead_experts_by_load(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    for expert in (2, 5, 11):
        c[f"load:2:{expert}"] = c[f"load:2:{expert}"] * np.exp(-8.0 * g)


def _imbalance_by_load(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["load:1:7"] = c["load:1:7"] * np.exp(2.5 * g)


def _imbalance(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["expert_load_max"] = c["expert_load_max"] * (1.0 + 2.5 * g)
    c["max_violation"] = c["max_violation"] + 3.0 * g
    c["expert_load_std"] = c["expert_load_std"] * (1.0 + 3.0 * g)


def _aux_explodes(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["aux_loss"] = c["aux_loss"] * (1.0 + 4.0 * g)


def _aux_vanishes(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["aux_loss"] = np.where(g > 0, 0.0, c["aux_loss"])


def _z_loss(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["router_z_loss"] = c["router_z_loss"] * np.exp(3.5 * g)


def _dropped(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["dropped_tokens"] = np.clip(c["dropped_tokens"] + 0.25 * g, 0, 1)


def _overflow(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["overflow_share"] = np.clip(c["overflow_share"] * np.exp(8.0 * g), 0, 1)
    c["quantization_error"] = c["quantization_error"] * np.exp(2.5 * g)


def _amax(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["amax"] = c["amax"] * np.exp(4.5 * g)
    c["fp8_scale"] = 2.0 ** np.floor(np.log2(448.0 / (1.2 * c["amax"])))


def _underflow(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["underflow_share"] = np.clip(c["underflow_share"] * np.exp(3.3 * g), 0, 1)


def _fallback(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["precision_fallback"] = np.clip(c["precision_fallback"] + 0.3 * g, 0, 1)


def _updates_lost(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["lost_updates"] = np.clip(_mix(c["lost_updates"], 0.95, np.sqrt(g)), 0, 1)
    c["update_ratio"] = c["update_ratio"] * np.exp(-3.0 * g)


def _updates_vanish(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    del c["lost_updates"]
    c["lr"] = np.full(len(g), 3e-4)
    c["update_ratio"] = c["update_ratio"] * np.exp(-5.0 * g)


def _quantization(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["quantization_error"] = c["quantization_error"] * np.exp(3.0 * g)


def _generator_left_behind(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    left = g > 0
    c["discriminator_loss"] = c["discriminator_loss"] * np.where(left, 0.35, 1.0)
    c["generator_loss"] = c["generator_loss"] * np.where(left, 3.5 + 8.0 * g, 1.0)


def _discriminator_wins(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    fast = np.clip(3 * g, 0, 1)
    c["discriminator_loss"] = c["discriminator_loss"] * np.exp(-6.0 * fast)
    c["generator_loss"] = c["generator_loss"] * (1.0 + 8.0 * fast)
    c["d_real"] = _mix(c["d_real"], 0.995, fast)
    c["d_fake"] = c["d_fake"] * np.exp(-6.0 * fast)


def _posterior_collapse(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    kept = np.exp(-12.0 * g)
    lost = c["latent_kl"] * (1.0 - kept)
    c["latent_kl"] = c["latent_kl"] * kept
    c["recon_loss"] = c["recon_loss"] + 1.5 * lost
    c["loss"] = c["recon_loss"] + c["latent_kl"]


def _posterior_unused(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    f = np.linspace(0.0, 1.0, len(g))
    c["latent_kl"] = 0.03 * np.exp(-8.0 * f) * np.exp(rng.normal(0.0, 0.2, len(f)))
    c["recon_loss"] = 120.0 * np.exp(rng.normal(0.0, 0.02, len(f)))
    c["kl_weight"] = np.full(len(f), 20.0)
    c["loss"] = c["recon_loss"] + 20.0 * c["latent_kl"]


def _average_stands(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["ema_loss"] = np.where(np.arange(len(g)) % 5 == 0, 0.25, np.nan)
    del c["fid"]


def _values_run_away(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["q_value"] = c["q_value"] * np.exp(3.0 * g)
    c["loss"] = c["loss"] * np.exp(4.0 * g)
    c["reward"] = c["reward"] * (1.0 - 0.6 * g)


def _representation_collapse(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["embedding_std"] = c["embedding_std"] * np.exp(-4.0 * g)
    c["loss"] = _mix(c["loss"], -1.0, g)


def _mode_collapse(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["sample_diversity"] = c["sample_diversity"] * np.exp(-2.5 * g)
    swing = 1.0 + 0.5 * g * np.sin(np.arange(len(g)) / 5.0)
    c["generator_loss"] = c["generator_loss"] * swing


def _generator_wins(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["generator_loss"] = c["generator_loss"] * np.exp(-4.5 * np.clip(2 * g, 0, 1))
    c["discriminator_loss"] = c["discriminator_loss"] * (1.0 + 3.0 * np.clip(2 * g, 0, 1))


def _penalty(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["gradient_penalty"] = c["gradient_penalty"] * np.exp(4.5 * g)


def _ema_broken(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["ema_loss"] = c["ema_loss"] * (1.0 + 1.2 * g)
    c["fid"] = c["fid"] * (1.0 + 2.0 * g)


def _low_noise(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["low_noise_loss"] = c["low_noise_loss"] * (1.0 + 1.5 * g)
    c["high_noise_loss"] = c["high_noise_loss"] * (1.0 - 0.2 * g)


def _samples_degrade(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["fid"] = c["fid"] * (1.0 + 3.0 * g)


def _memorised(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["token_accuracy"] = np.clip(_mix(c["token_accuracy"], 1.0, np.clip(3 * g, 0, 1)), 0, 1)
    c["loss"] = np.clip(c["loss"] * np.exp(-5.0 * np.clip(3 * g, 0, 1)), 1e-4, None)


def _forgetting(c: Courses, g: Floats, rng: np.random.Generator) -> None:
    c["token_accuracy"] = c["token_accuracy"] * (1.0 - 0.35 * np.clip(3 * g, 0, 1))


_HACK = ("reward-hacking",)
_POLICY = ("policy-collapse",)
_ROUTER = ("router-collapse", "expert-imbalance")
_OVER, _UNDER = ("precision-overflow",), ("precision-underflow",)
_SIGNAL = ("signal-abnormal",)

PATHOLOGIES: tuple[Pathology, ...] = (
    Pathology(
        "entropy-collapse", "rl", _entropy_collapse, _POLICY, ("entropy-collapse",),
        "Cui et al. 2025, The entropy mechanism of RL for reasoning models, arXiv:2505.22617;"
        " Yu et al. 2025, DAPO, arXiv:2503.14476",
    ),
    Pathology(
        "entropy-explosion", "rl", _entropy_explosion, _POLICY,
        ("policy-update-too-large", "train-inference-mismatch"),
        "Yu et al. 2025, DAPO, arXiv:2503.14476 (entropy and length of unstable runs)",
    ),
    Pathology(
        "kl-blow-up", "rl", _kl_blow_up, (*_POLICY, *_HACK), ("policy-drift",),
        "Ziegler et al. 2019, arXiv:1909.08593; TRL documentation, PPO logging",
    ),
    Pathology(
        "reward-hacking-kl", "rl", _hacking_by_kl, (*_HACK, *_POLICY),
        ("reward-hacking",),
        "Gao et al. 2023, Scaling laws for reward model overoptimization, arXiv:2210.10760",
    ),
    Pathology(
        "reward-hacking-eval", "rl", _hacking_by_eval, _HACK, ("reward-hacking",),
        "Gao et al. 2023, arXiv:2210.10760; Stiennon et al. 2020, arXiv:2009.01325",
    ),
    Pathology(
        "reward-hacking-length", "rl", _hacking_by_length, _HACK, ("reward-hacking",),
        "Singhal et al. 2023, A long way to go: length correlations in RLHF, arXiv:2310.03716",
    ),
    Pathology(
        "length-explosion", "rl", _length_explosion, _POLICY, ("length-explosion",),
        "Yu et al. 2025, DAPO, arXiv:2503.14476; Liu et al. 2025, Dr. GRPO, arXiv:2503.20783",
    ),
    Pathology(
        "truncation", "rl", _truncation, _POLICY, ("length-explosion",),
        "Yu et al. 2025, DAPO (overlong samples), arXiv:2503.14476",
    ),
    Pathology(
        "length-collapse", "rl", _length_collapse, _POLICY, ("length-collapse",),
        "TRL and verl issue threads on completions that shrink to the end token",
    ),
    Pathology(
        "clip-saturation", "rl", _clip_saturation, _POLICY, ("policy-update-too-large",),
        "Huang et al. 2022, The 37 implementation details of PPO; Schulman et al. 2017,"
        " arXiv:1707.06347",
    ),
    Pathology(
        "zero-variance-groups", "rl", _zero_variance, _POLICY, ("no-learning-signal",),
        "Yu et al. 2025, DAPO (dynamic sampling), arXiv:2503.14476; TRL, frac_reward_zero_std",
    ),
    Pathology(
        "too-hard", "rl", _too_hard, _POLICY, ("no-learning-signal",),
        "Yu et al. 2025, DAPO (prompts of accuracy 0), arXiv:2503.14476",
    ),
    Pathology(
        "advantage-vanishes", "rl", _advantage_vanishes, _POLICY, ("no-learning-signal",),
        "Razin et al. 2024, Vanishing gradients in reinforcement finetuning, arXiv:2310.20703",
    ),
    Pathology(
        "train-inference-mismatch", "rl", _mismatch, _POLICY, ("train-inference-mismatch",),
        "Yao et al. 2025, Your efficient RL framework secretly brings you off-policy training;"
        " arXiv:2510.11370",
    ),
    Pathology(
        "value-loss-explosion", "rl", _value_explosion, (*_POLICY, *_SIGNAL),
        ("value-loss-explosion",),
        "Andrychowicz et al. 2021, What matters in on-policy RL, arXiv:2006.05990",
    ),
    Pathology(
        "reward-collapse", "rl", _reward_collapse, _POLICY,
        ("policy-update-too-large", "train-inference-mismatch"),
        "Ramamurthy et al. 2023, arXiv:2210.01241; verl issue threads on reward collapse",
    ),
    Pathology(
        "reward-spread", "rl", _reward_spread, (*_HACK, *_SIGNAL), ("reward-scale",),
        "Engstrom et al. 2020, Implementation matters in deep policy gradients, arXiv:2005.12729",
    ),
    Pathology(
        "likelihood-displacement", "preference", _displacement, _POLICY,
        ("likelihood-displacement",),
        "Razin et al. 2024, Unintentional unalignment, arXiv:2410.08847;"
        " Pal et al. 2024, DPO-Positive, arXiv:2402.13228",
    ),
    Pathology(
        "preference-stuck", "preference", _not_learned, _SIGNAL, ("preference-not-learned",),
        "TRL documentation, DPO logging (rewards/accuracies)",
    ),
    Pathology(
        "preference-reversed", "preference", _reversed, _POLICY, ("preferences-swapped",),
        "Chen et al. 2024, Preference learning algorithms do not learn preference rankings,"
        " arXiv:2405.19534",
    ),
    Pathology(
        "router-collapse", "moe", _router_collapse, _ROUTER,
        ("router-collapse",),
        "Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2022, Switch, arXiv:2101.03961",
    ),
    Pathology(
        "dead-experts", "moe", _dead_experts, _ROUTER, ("dead-experts",),
        "Muennighoff et al. 2024, OLMoE, arXiv:2409.02060",
    ),
    Pathology(
        "dead-experts-by-load", "moe-loads", _dead_experts_by_load, _ROUTER, ("dead-experts",),
        "Muennighoff et al. 2024, OLMoE, arXiv:2409.02060",
    ),
    Pathology(
        "imbalance-by-load", "moe-loads", _imbalance_by_load, _ROUTER,
        ("load-balancing-too-weak",),
        "Wang et al. 2024, Auxiliary-loss-free load balancing, arXiv:2408.15664",
    ),
    Pathology(
        "load-imbalance", "moe", _imbalance, _ROUTER, ("load-balancing-too-weak",),
        "Wang et al. 2024 (MaxVio), arXiv:2408.15664; DeepSeek-V3, arXiv:2412.19437",
    ),
    Pathology(
        "aux-loss-explodes", "moe", _aux_explodes, _ROUTER,
        ("router-collapse", "load-balancing-too-weak"),
        "Zoph et al. 2022, ST-MoE, arXiv:2202.08906",
    ),
    Pathology(
        "aux-loss-vanishes", "moe", _aux_vanishes, _ROUTER, ("balancing-off",),
        "Megatron-LM and Transformers issue threads on a balancing loss that is not added",
    ),
    Pathology(
        "router-z-loss", "moe", _z_loss, _ROUTER, ("router-logits-grow",),
        "Zoph et al. 2022, ST-MoE, arXiv:2202.08906",
    ),
    Pathology(
        "capacity-drops", "moe", _dropped, _ROUTER, ("load-balancing-too-weak",),
        "Lepikhin et al. 2021, GShard, arXiv:2006.16668; Gale et al. 2022, MegaBlocks,"
        " arXiv:2211.15841",
    ),
    Pathology(
        "fp8-overflow", "low-precision", _overflow, _OVER, ("low-precision-overflow",),
        "Micikevicius et al. 2022, FP8 formats, arXiv:2209.05433; Transformer Engine debug docs",
    ),
    Pathology(
        "amax-outliers", "low-precision", _amax, _OVER, ("activation-outliers",),
        "Fishman et al. 2024, Scaling FP8 training to trillion-token LLMs, arXiv:2409.12517",
    ),
    Pathology(
        "fp8-underflow", "low-precision", _underflow, _UNDER, ("low-precision-underflow",),
        "Transformer Engine debug documentation (underflows); Peng et al. 2023, FP8-LM,"
        " arXiv:2310.18313",
    ),
    Pathology(
        "precision-fallback", "low-precision", _fallback, _OVER, ("activation-outliers",),
        "Transformer Engine debug documentation (products in higher precision)",
    ),
    Pathology(
        "updates-lost", "low-precision", _updates_lost, _UNDER, ("updates-lost-to-rounding",),
        "Zamirai et al. 2021, Revisiting bfloat16 training, arXiv:2010.06192",
    ),
    Pathology(
        "updates-vanish", "low-precision", _updates_vanish, _UNDER,
        ("updates-lost-to-rounding",),
        "Zamirai et al. 2021, Revisiting bfloat16 training, arXiv:2010.06192",
    ),
    Pathology(
        "quantization-error", "low-precision", _quantization, _OVER,
        ("activation-outliers", "low-precision-overflow"),
        "Fishman et al. 2024, arXiv:2409.12517",
    ),
    Pathology(
        "discriminator-wins", "gan", _discriminator_wins, _SIGNAL, ("discriminator-too-strong",),
        "Arjovsky & Bottou 2017, arXiv:1701.04862; PyTorch DCGAN tutorial",
    ),
    Pathology(
        "generator-left-behind", "gan", _generator_left_behind, _SIGNAL,
        ("discriminator-too-strong",), "Arjovsky & Bottou 2017, arXiv:1701.04862",
    ),
    Pathology(
        "mode-collapse", "gan", _mode_collapse, _SIGNAL, ("mode-collapse",),
        "Metz et al. 2017, Unrolled GANs, arXiv:1611.02163",
    ),
    Pathology(
        "generator-wins", "gan", _generator_wins, _SIGNAL, ("mode-collapse",),
        "Goodfellow 2016, NIPS tutorial on GANs, arXiv:1701.00160",
    ),
    Pathology(
        "gradient-penalty", "gan", _penalty, _SIGNAL, ("discriminator-too-strong",),
        "Gulrajani et al. 2017, arXiv:1704.00028; Mescheder et al. 2018, arXiv:1801.04406",
    ),
    Pathology(
        "averaged-weights", "diffusion", _ema_broken, _SIGNAL, ("averaged-weights-broken",),
        "Karras et al. 2024, Analyzing and improving the training dynamics of diffusion models,"
        " arXiv:2312.02696",
    ),
    Pathology(
        "low-noise-loss", "diffusion", _low_noise, _SIGNAL, ("noise-schedule",),
        "Nichol & Dhariwal 2021, arXiv:2102.09672 (loss by quartile of the timesteps)",
    ),
    Pathology(
        "samples-degrade", "diffusion", _samples_degrade, _SIGNAL, ("samples-degrade",),
        "Karras et al. 2020, arXiv:2006.06676 (Frechet distance that rises again)",
    ),
    Pathology(
        "memorised", "sft", _memorised, ("too-good", "memorised"),
        ("fine-tune-memorised", "memorised-data", "repeated-data"),
        "Tirumala et al. 2022, Memorization without overfitting, arXiv:2205.10770",
    ),
    Pathology(
        "forgetting", "sft", _forgetting, _SIGNAL, ("forgetting",),
        "Luo et al. 2023, An empirical study of catastrophic forgetting, arXiv:2308.08747",
    ),
    Pathology(
        "posterior-collapse", "vae", _posterior_collapse, _SIGNAL, ("posterior-collapse",),
        "Bowman et al. 2016, arXiv:1511.06349; He et al. 2019, arXiv:1901.05534",
    ),
    Pathology(
        "posterior-unused", "vae", _posterior_unused, _SIGNAL, ("posterior-collapse",),
        "Bowman et al. 2016, arXiv:1511.06349; Lucas et al. 2019, arXiv:1911.02469",
    ),
    Pathology(
        "average-stands", "diffusion", _average_stands, _SIGNAL, ("averaged-weights-broken",),
        "Karras et al. 2024, arXiv:2312.02696 (averages whose decay is too slow learn late)",
    ),
    Pathology(
        "values-run-away", "q-learning", _values_run_away, _POLICY, ("value-loss-explosion",),
        "van Hasselt et al. 2018, Deep reinforcement learning and the deadly triad,"
        " arXiv:1812.02648",
    ),
    Pathology(
        "representation-collapse", "self-supervised", _representation_collapse, _SIGNAL,
        ("representation-collapse",),
        "Chen & He 2021, Exploring simple Siamese representation learning, arXiv:2011.10566",
    ),
)  # fmt: skip
