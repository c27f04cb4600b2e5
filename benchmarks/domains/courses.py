"""Sound courses of the signals of each kind of training: what pathologies and twins start from.

Levels and trends follow public runs and reports: GRPO on mathematics (DeepSeekMath, DAPO), DPO
(Zephyr), mixtures of experts (Switch, ST-MoE, OLMoE, DeepSeek-V3), fp8 (Transformer Engine,
DeepSeek-V3), DCGAN. They are shapes, not simulations of learning.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["BASES", "Courses", "noise"]

Floats = NDArray[np.float64]
Courses = dict[str, Floats]
"""Canonical name -> float64 [n_rows]; NaN where nothing is logged."""

EVAL_ROWS = 20
"""Every so many rows there is an evaluation."""
NUM_EXPERTS = 16


def noise(rng: np.random.Generator, n: int, sd: float, rho: float = 0.4) -> Floats:
    """Return AR(1) noise of a given standard deviation, float64 [n]."""
    white = rng.normal(0.0, sd * np.sqrt(1.0 - rho * rho), n)
    white[0] = rng.normal(0.0, sd)
    out = np.empty(n)
    last = 0.0
    for k, value in enumerate(white.tolist()):
        last = rho * last + value if k else value
        out[k] = last
    return out


def _around(rng: np.random.Generator, level: Floats, share: float) -> Floats:
    """Return a positive level with noise in proportion to it."""
    return np.asarray(level * np.exp(noise(rng, len(level), share)))


def evaluated(values: Floats) -> Floats:
    """Return the values of every `EVAL_ROWS`-th row, NaN between."""
    out = np.full(len(values), np.nan)
    out[EVAL_ROWS - 1 :: EVAL_ROWS] = values[EVAL_ROWS - 1 :: EVAL_ROWS]
    return out


def rl(rng: np.random.Generator, n: int) -> Courses:
    """Return a sound GRPO or PPO run: reward still rising, entropy falling slowly, KL growing."""
    f = np.linspace(0.0, 1.0, n)
    skill = 0.2 + 0.45 / (1.0 + np.exp(-7.0 * (f - 0.45)))
    reward = skill + noise(rng, n, 0.025)
    p = np.clip(skill + noise(rng, n, 0.02), 0.01, 0.99)
    return {
        "loss": noise(rng, n, 0.01),
        "lr": np.full(n, 1e-6),
        "grad_norm": _around(rng, 0.3 - 0.1 * f, 0.12),
        "reward": reward,
        "reward_std": np.clip(np.sqrt(p * (1 - p)) * 0.8 + noise(rng, n, 0.015), 0.01, None),
        "policy_entropy": _around(rng, 0.35 + 0.3 * np.exp(-2.0 * f), 0.05),
        "policy_kl": _around(rng, 0.004 + 0.15 * f**1.2, 0.15),
        "update_kl": _around(rng, np.full(n, 0.003), 0.3),
        "policy_clip_share": np.clip(0.02 + 0.02 * f + noise(rng, n, 0.004), 0.0, 1.0),
        "zero_variance_share": np.clip(p**8 + (1 - p) ** 8 + noise(rng, n, 0.03), 0.0, 1.0),
        "completion_length": 420 * (1.0 + 0.35 * f) + noise(rng, n, 18.0),
        "truncated_share": np.clip(0.01 + noise(rng, n, 0.006), 0.0, 1.0),
        "advantage_std": np.clip(0.93 + noise(rng, n, 0.02), 0.0, None),
        "value_loss": _around(rng, 0.05 + 0.15 * np.exp(-4.0 * f), 0.15),
        "explained_variance": np.clip(0.3 + 0.4 * f + noise(rng, n, 0.05), -5, 1),
        "rollout_mismatch": _around(rng, np.full(n, 1.2e-3), 0.2),
        "importance_ratio": 0.998 + noise(rng, n, 0.004),
        "eval_score": evaluated(skill - 0.04 + rng.normal(0.0, 0.012, n)),
    }


def preference(rng: np.random.Generator, n: int) -> Courses:
    """Return a sound DPO run: accuracy to 0.8, margins growing, chosen answers a little rarer."""
    f = np.linspace(0.0, 1.0, n)
    learned = 1.0 - np.exp(-5.0 * f)
    margin = 1.3 * learned
    chosen = -0.25 * learned + noise(rng, n, 0.06)
    return {
        "loss": np.clip(0.693 - 0.22 * learned + noise(rng, n, 0.03), 0.02, None),
        "lr": 5e-7 * np.minimum(1.0, 10 * f + 0.01) * (1.0 - 0.9 * f),
        "grad_norm": _around(rng, 20.0 + 5.0 * f, 0.2),
        "chosen_reward": chosen,
        "rejected_reward": chosen - margin + noise(rng, n, 0.08),
        "reward_margin": margin + noise(rng, n, 0.1),
        "preference_accuracy": np.clip(0.5 + 0.28 * learned + noise(rng, n, 0.07, 0.0), 0, 1),
        "chosen_logp": -260.0 - 12.0 * learned + noise(rng, n, 9.0, 0.1),
        "rejected_logp": -240.0 - 35.0 * learned + noise(rng, n, 9.0, 0.1),
    }


def moe(rng: np.random.Generator, n: int) -> Courses:
    """Return a sound mixture of experts: the load evens out, the router specializes slowly."""
    f = np.linspace(0.0, 1.0, n)
    early = np.exp(-12.0 * f)
    return {
        "loss": 2.6 + 4.5 * np.exp(-9.0 * f) - 0.3 * f + noise(rng, n, 0.02),
        "lr": 3e-4 * np.minimum(1.0, 30 * f + 0.01) * (1.0 - 0.8 * f),
        "grad_norm": _around(rng, 0.5 + 0.8 * early, 0.12),
        "router_entropy": 2.35 - 0.25 * f + noise(rng, n, 0.02),
        "aux_loss": _around(rng, 0.0102 + 0.004 * early, 0.01),
        "router_z_loss": _around(rng, 2.0e-3 * (1.0 + 0.3 * f), 0.06),
        "expert_load_max": _around(rng, 1.3 + 1.2 * early, 0.05),
        "max_violation": _around(rng, 0.3 + 1.2 * early, 0.1),
        "expert_load_std": _around(rng, 0.2 + 0.5 * early, 0.06),
        "dead_experts": np.asarray(np.round(np.clip(3.0 * early - 0.5, 0.0, None)), np.float64),
        "dropped_tokens": np.clip(0.015 + 0.05 * early + noise(rng, n, 0.003), 0, 1),
    }


def moe_loads(rng: np.random.Generator, n: int) -> Courses:
    """Return a sound mixture of experts that logs the load of each expert of two layers."""
    base = moe(rng, n)
    kept = {k: base[k] for k in ("loss", "lr", "grad_norm")}
    for layer in (1, 2):
        logits = rng.normal(0.0, 0.15, NUM_EXPERTS)[:, None] + np.array(
            [noise(rng, n, 0.08, 0.8) for _ in range(NUM_EXPERTS)]
        )
        loads = np.exp(logits)
        loads /= loads.sum(axis=0)
        kept.update({f"load:{layer}:{e}": loads[e] for e in range(NUM_EXPERTS)})
    return kept


def low_precision(rng: np.random.Generator, n: int) -> Courses:
    """Return a sound fp8 run: amax grows slowly, little over- and underflow."""
    f = np.linspace(0.0, 1.0, n)
    amax = _around(rng, 20.0 * (1.0 + 0.5 * f), 0.12)
    return {
        "loss": 2.5 + 4.5 * np.exp(-9.0 * f) - 0.3 * f + noise(rng, n, 0.02),
        "lr": 3e-4 * np.minimum(1.0, 30 * f + 0.01) * (1.0 - 0.6 * f),
        "grad_norm": _around(rng, 0.5 + 0.8 * np.exp(-12 * f), 0.12),
        "amax": amax,
        "fp8_scale": 2.0 ** np.floor(np.log2(448.0 / (1.2 * amax))),
        "overflow_share": _around(rng, np.full(n, 2e-5), 0.4),
        "underflow_share": _around(rng, 0.010 + 0.004 * f, 0.1),
        "precision_fallback": _around(rng, np.full(n, 0.003), 0.3),
        "lost_updates": np.clip(0.05 + 0.15 * f + noise(rng, n, 0.01), 0, 1),
        "update_ratio": _around(rng, 1.2e-3 * (1.0 - 0.5 * f), 0.05),
        "quantization_error": _around(rng, np.full(n, 8e-4), 0.1),
    }


def gan(rng: np.random.Generator, n: int) -> Courses:
    """Return a sound GAN: losses swing about their levels, the generator's rises slowly."""
    f = np.linspace(0.0, 1.0, n)
    return {
        "discriminator_loss": _around(rng, 1.25 - 0.5 * f, 0.12),
        "generator_loss": _around(rng, 0.85 + 0.8 * f, 0.15),
        "d_real": np.clip(0.6 + 0.08 * f + noise(rng, n, 0.04), 0, 1),
        "d_fake": np.clip(0.42 - 0.12 * f + noise(rng, n, 0.04), 0, 1),
        "gradient_penalty": _around(rng, np.full(n, 0.12), 0.25),
        "sample_diversity": _around(rng, 0.42 + 0.05 * f, 0.06),
    }


def diffusion(rng: np.random.Generator, n: int) -> Courses:
    """Return a sound diffusion run: a loss that hardly falls, a Frechet distance that does."""
    f = np.linspace(0.0, 1.0, n)
    fall = np.exp(-6.0 * f)
    return {
        "loss": _around(rng, 0.055 + 0.05 * fall, 0.08),
        "lr": np.full(n, 1e-4),
        "grad_norm": _around(rng, 0.25 + 0.5 * fall, 0.2),
        "low_noise_loss": _around(rng, 0.16 + 0.08 * fall, 0.08),
        "high_noise_loss": _around(rng, 0.006 + 0.01 * fall, 0.1),
        "ema_loss": evaluated(_around(rng, 0.054 + 0.2 * np.exp(-10 * f), 0.02)),
        "fid": evaluated(_around(rng, 9.0 + 60.0 * fall, 0.03)),
    }


def sft(rng: np.random.Generator, n: int) -> Courses:
    """Return a sound fine-tune."""
    f = np.linspace(0.0, 1.0, n)
    return {
        "loss": 0.95 + 0.6 * np.exp(-15 * f) - 0.1 * f + noise(rng, n, 0.04),
        "lr": 2e-5 * np.minimum(1.0, 20 * f + 0.01) * (1.0 - 0.9 * f),
        "grad_norm": _around(rng, np.full(n, 1.1), 0.15),
        "token_accuracy": np.clip(0.76 - 0.1 * np.exp(-15 * f) + 0.02 * f, 0, 1)
        + noise(rng, n, 0.008),
    }


def vae(rng: np.random.Generator, n: int) -> Courses:
    """Return a sound variational autoencoder, whose divergence counts in full from the start."""
    f = np.linspace(0.0, 1.0, n)
    recon = _around(rng, 85.0 + 60.0 * np.exp(-6.0 * f), 0.01)
    divergence = _around(rng, 22.0 * (1.0 - np.exp(-8.0 * f)) + 1.0, 0.03)
    weight = np.ones(n)
    return {
        "loss": recon + divergence,
        "recon_loss": recon,
        "latent_kl": divergence,
        "kl_weight": weight,
    }


def q_learning(rng: np.random.Generator, n: int) -> Courses:
    """Return sound Q-learning: values follow the return, which rises and saturates."""
    f = np.linspace(0.0, 1.0, n)
    learned = 1.0 - np.exp(-5.0 * f)
    return {
        "loss": _around(rng, 0.4 + 1.5 * learned, 0.3),
        "reward": _around(rng, 15.0 + 180.0 * learned, 0.2),
        "q_value": _around(rng, 2.0 + 60.0 * learned, 0.05),
    }


def self_supervised(rng: np.random.Generator, n: int) -> Courses:
    """Return sound learning without labels: the loss falls, representations stay apart."""
    f = np.linspace(0.0, 1.0, n)
    return {
        "loss": -0.35 - 0.45 * (1 - np.exp(-6.0 * f)) + noise(rng, n, 0.02),
        "lr": 0.05 * np.minimum(1.0, 20 * f + 0.01) * (1.0 - 0.9 * f),
        "embedding_std": _around(rng, 0.036 + 0.006 * f, 0.03),
    }


BASES: Mapping[str, Callable[[np.random.Generator, int], Courses]] = {
    "rl": rl,
    "preference": preference,
    "moe": moe,
    "moe-loads": moe_loads,
    "low-precision": low_precision,
    "gan": gan,
    "diffusion": diffusion,
    "sft": sft,
    "vae": vae,
    "q-learning": q_learning,
    "self-supervised": self_supervised,
}
"""Kind of training -> its sound courses, (generator, number of rows) -> courses."""
