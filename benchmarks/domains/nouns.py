"""What is covered beyond language-model pre-training, as a table: one row per notion.

Rules and tests are not typed here: a row's signs are those that read its signals, its tests are the
pathologies that change them.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.domains.courses import BASES
from benchmarks.domains.formats import FORMATS
from benchmarks.domains.measure import pathology_courses
from benchmarks.domains.pathologies import PATHOLOGIES, Pathology
from trimtab.detectors.domain_signs import SIGN_BY_ID

__all__ = ["NOUNS", "NounRow", "noun_rows"]

TEST = "tests/benchmarks/test_domains.py"

NOUNS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("reward", "rl", ("reward", "reward_std")),
    ("divergence from the reference (KL)", "rl", ("policy_kl",)),
    ("divergence of one update", "rl", ("update_kl",)),
    ("entropy", "rl", ("policy_entropy",)),
    ("length", "rl", ("completion_length", "truncated_share")),
    ("clip share", "rl", ("policy_clip_share",)),
    ("zero-variance groups", "rl", ("zero_variance_share",)),
    ("advantage", "rl", ("advantage_std",)),
    ("critic", "rl", ("value_loss", "explained_variance")),
    ("held-out score", "rl", ("eval_score",)),
    ("train-inference mismatch", "rl", ("rollout_mismatch", "importance_ratio")),
    ("margins", "preference", ("reward_margin",)),
    ("chosen and rejected rewards", "preference", ("chosen_reward", "rejected_reward")),
    ("chosen and rejected log-probabilities", "preference", ("chosen_logp", "rejected_logp")),
    ("accuracy of preferences", "preference", ("preference_accuracy",)),
    ("load of the experts", "moe", ("expert_load_max", "max_violation", "expert_load_std")),
    ("load by expert", "moe-loads", ("expert_load_max", "dead_experts")),
    ("dead experts", "moe", ("dead_experts",)),
    ("router entropy", "moe", ("router_entropy",)),
    ("auxiliary loss", "moe", ("aux_loss",)),
    ("z-loss", "moe", ("router_z_loss",)),
    ("dropped tokens", "moe", ("dropped_tokens",)),
    ("overflow", "low-precision", ("overflow_share", "quantization_error")),
    ("underflow", "low-precision", ("underflow_share",)),
    ("amax and scale", "low-precision", ("amax", "fp8_scale")),
    ("fallback", "low-precision", ("precision_fallback",)),
    ("updates lost to rounding", "low-precision", ("lost_updates", "update_ratio")),
    ("diffusion", "diffusion", ("low_noise_loss", "high_noise_loss", "ema_loss", "fid")),
    (
        "GAN",
        "gan",
        (
            "discriminator_loss",
            "generator_loss",
            "d_real",
            "d_fake",
            "gradient_penalty",
            "sample_diversity",
        ),
    ),
    ("VAE", "vae", ("latent_kl", "recon_loss")),
    ("values of actions", "q-learning", ("q_value",)),
    ("self-supervised learning", "self-supervised", ("embedding_std",)),
    ("supervised fine-tuning", "sft", ("token_accuracy",)),
)
"""(notion, kind of training, signals)."""


@dataclass(frozen=True)
class NounRow:
    """One row of the table."""

    noun: str
    signals: tuple[str, ...]
    rules: tuple[str, ...]
    tests: tuple[str, ...]
    """Ids of tests that go through the user's door; empty: not tested."""
    source: str


def _changed(p: Pathology) -> frozenset[str]:
    """Return the signals that a pathology changes."""
    rng = np.random.default_rng([0, PATHOLOGIES.index(p)])
    sound = BASES[p.base](rng, 200)
    sick, _ = pathology_courses(p, 0, 200)
    names = [n for n in sick if not np.array_equal(sick[n], sound[n], equal_nan=True)]
    if any(n.startswith("load:") for n in names):
        names += ["expert_load_max", "dead_experts"]
    return frozenset(names)


def noun_rows() -> list[NounRow]:
    """Return the table: notions first, then the frameworks whose keys are read."""
    changed = {p.id: _changed(p) for p in PATHOLOGIES}
    rows: list[NounRow] = []
    for noun, base, signals in NOUNS:
        signs = [s.id for s in SIGN_BY_ID.values() if not {*s.signals[:1]}.isdisjoint(signals)]
        cases = [p for p in PATHOLOGIES if p.base == base and not changed[p.id].isdisjoint(signals)]
        rows.append(
            NounRow(
                noun,
                signals,
                tuple(f"sign-{s}" for s in signs),
                tuple(f"{TEST}::test_a_pathology_is_told[{p.id}]" for p in cases),
                cases[0].source if cases else "",
            )
        )
    for base, formats in FORMATS.items():
        for name, (_, keys, _) in formats.items():
            rows.append(
                NounRow(
                    f"keys of {name} ({base})",
                    tuple(dict.fromkeys(keys)),
                    (),
                    (f"{TEST}::test_a_format_is_read[{base}-{name}]",),
                    "code and documentation of the framework",
                )
            )
    return rows
