"""Benign courses that look like pathologies: what must stay silent."""

# ruff: noqa: ARG001  (all of them have one signature)
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.domains.courses import Courses, evaluated, noise

__all__ = ["TWINS", "Twin"]

Floats = NDArray[np.float64]
Change = Callable[[Courses, Floats, np.random.Generator], None]


@dataclass(frozen=True)
class Twin:
    """One sound run; `change` gets the courses and f, float64 [n_rows] from 0 to 1."""

    id: str
    base: str
    change: Change


def _as_it_is(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    """Change nothing."""


def _longer_and_better(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["completion_length"] = c["completion_length"] * (1.0 + 1.6 * f)


def _entropy_falls_slowly(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["policy_entropy"] = c["policy_entropy"] * np.exp(-0.45 * f)


def _no_kl_penalty(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["policy_kl"] = 1.2 * f * np.exp(noise(rng, len(f), 0.12)) + 1e-3


def _kl_of_whole_answers(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    warm = np.clip((f - 0.08) / 0.92, 0, 1)
    c["policy_kl"] = 18.0 * (1 - np.exp(-3 * warm)) * np.exp(noise(rng, len(f), 0.1)) + 1e-3


def _solved(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    p = np.clip(0.3 + 0.58 * (1 - np.exp(-6 * f)) + noise(rng, len(f), 0.02), 0, 1)
    c["reward"] = p
    c["zero_variance_share"] = np.clip(p**8 + noise(rng, len(f), 0.03), 0, 1)
    c["reward_std"] = np.sqrt(p * (1 - p)) * 0.8
    c["eval_score"] = evaluated(p - 0.04)


def _concise(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["completion_length"] = c["completion_length"] * (1.0 - 0.5 * f)


def _clip_share_rises(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["policy_clip_share"] = c["policy_clip_share"] + 0.15 * f


def _critic_of_a_rising_reward(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["reward"] = 100 * c["reward"]
    c["reward_std"] = 100 * c["reward_std"] * (1 + f)
    c["value_loss"] = c["value_loss"] * (1.0 + 6.0 * f)


def _odd_rows(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    for name in c:
        if name in ("lr",):
            continue
        for row in rng.choice(len(f), 2, replace=False):
            c[name][row] = c[name][row] * 4 if name != "preference_accuracy" else 0.1


def _many_epochs(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["chosen_logp"] = c["chosen_logp"] - 25.0 * f
    c["chosen_reward"] = c["chosen_reward"] - 1.8 * f
    c["rejected_reward"] = c["rejected_reward"] - 3.0 * f
    c["reward_margin"] = c["reward_margin"] + 1.2 * f


def _weak_preferences(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    learned = 1 - np.exp(-5 * f)
    c["preference_accuracy"] = np.clip(0.5 + 0.12 * learned + noise(rng, len(f), 0.07, 0.0), 0, 1)
    c["reward_margin"] = c["reward_margin"] * 0.2


def _specialises(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["router_entropy"] = c["router_entropy"] * (1 - 0.2 * f)


def _uneven_at_first(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    early = np.exp(-20 * f)
    c["expert_load_max"] = c["expert_load_max"] + 4 * early
    c["aux_loss"] = c["aux_loss"] * (1 + 2 * early)
    c["dead_experts"] = np.round(12 * early)


def _other_mix(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["expert_load_max"] = c["expert_load_max"] * np.where(f > 0.6, 1.15, 1.0)
    c["router_entropy"] = c["router_entropy"] - 0.05 * (f > 0.6)


def _values_grow(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["amax"] = c["amax"] * (1 + f)
    c["fp8_scale"] = 2.0 ** np.floor(np.log2(448.0 / (1.2 * c["amax"])))
    c["underflow_share"] = c["underflow_share"] * (1 + 0.6 * f)


def _cosine(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    decay = 0.02 + 0.98 * 0.5 * (1 + np.cos(np.pi * f))
    c["lr"] = 3e-4 * decay
    c["update_ratio"] = c["update_ratio"] * decay


def _generator_loss_rises(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["generator_loss"] = c["generator_loss"] * (1 + 1.5 * f)
    c["discriminator_loss"] = c["discriminator_loss"] * (1 - 0.4 * f)


def _swings(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    wave = np.sin(np.arange(len(f)) / 9.0)
    c["generator_loss"] = c["generator_loss"] * np.exp(0.4 * wave)
    c["discriminator_loss"] = c["discriminator_loss"] * np.exp(-0.4 * wave)


def _learns_well(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["token_accuracy"] = np.clip(c["token_accuracy"] + 0.15 * f, 0, 0.95)


def _values_catch_up(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    """A delayed return: values stand low, then rise as it is found."""
    found = 1.0 / (1.0 + np.exp(-14.0 * (f - 0.6)))
    c["reward"] = (5.0 + 150.0 * found) * np.exp(noise(rng, len(f), 0.15))
    c["q_value"] = (1.0 + 50.0 * found) * np.exp(noise(rng, len(f), 0.05))


def _representations_narrow(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    c["embedding_std"] = c["embedding_std"] * np.exp(-0.8 * f)


def _weight_warms_up(c: Courses, f: Floats, rng: np.random.Generator) -> None:
    """The divergence is free at first, and comes down a hundredfold as its weight grows."""
    weight = np.minimum(1.0, 2 * f)
    c["latent_kl"] = 600.0 * np.exp(-4.6 * weight) * (c["latent_kl"] / 23.0)
    c["recon_loss"] = c["recon_loss"] + 12.0 * weight
    c["loss"] = c["recon_loss"] + weight * c["latent_kl"]


TWINS: tuple[Twin, ...] = (
    *(
        Twin(f"sound-{base}", base, _as_it_is)
        for base in (
            "rl", "preference", "moe", "moe-loads", "low-precision", "gan", "diffusion", "sft",
        )
    ),
    Twin("longer-and-better", "rl", _longer_and_better),
    Twin("entropy-falls-slowly", "rl", _entropy_falls_slowly),
    Twin("no-kl-penalty", "rl", _no_kl_penalty),
    Twin("kl-of-whole-answers", "rl", _kl_of_whole_answers),
    Twin("solved", "rl", _solved),
    Twin("concise", "rl", _concise),
    Twin("clip-share-rises", "rl", _clip_share_rises),
    Twin("critic-of-a-rising-reward", "rl", _critic_of_a_rising_reward),
    Twin("odd-rows-rl", "rl", _odd_rows),
    Twin("many-epochs", "preference", _many_epochs),
    Twin("weak-preferences", "preference", _weak_preferences),
    Twin("specializes", "moe", _specialises),
    Twin("uneven-at-first", "moe", _uneven_at_first),
    Twin("other-mix", "moe", _other_mix),
    Twin("values-grow", "low-precision", _values_grow),
    Twin("cosine-rate", "low-precision", _cosine),
    Twin("generator-loss-rises", "gan", _generator_loss_rises),
    Twin("gan-swings", "gan", _swings),
    Twin("learns-well", "sft", _learns_well),
    Twin("sound-vae", "vae", _as_it_is),
    Twin("weight-warms-up", "vae", _weight_warms_up),
    Twin("sound-q-learning", "q-learning", _as_it_is),
    Twin("values-catch-up", "q-learning", _values_catch_up),
    Twin("sound-self-supervised", "self-supervised", _as_it_is),
    Twin("representations-narrow", "self-supervised", _representations_narrow),
)  # fmt: skip
