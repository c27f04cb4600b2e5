"""What trainers of agents, of mixtures of experts and of codebooks call their signals."""

import pytest

from trimtab.readers.tags import signal_of_tag

NAMES = {
    "policy_entropy": ["actor/entropy", "policy/entropy_avg", "token_entropy", "entropy/all/mean"],
    "policy_kl": ["objective/kl", "actor/kl_loss", "reference_kl", "train/kl_penalty"],
    "update_kl": ["train/approx_kl", "actor/ppo_kl", "policy/approxkl_avg", "losses/old_approx_kl"],
    "rollout_mismatch": [
        "rollout_corr/kl",
        "rollout_corr/k3_kl",
        "train/gen_kl_error",
        "train/policy_kl_error",
        "train/train_rollout_logprob_abs_diff",
        "mismatch_kl/all/mean",
        "vllm_kl",
    ],
    "importance_ratio": [
        "sampling/importance_sampling_ratio/mean",
        "train/sampling_importance_ratio",
        "actor/rollout_is_mean",
    ],
    "advantage_mean": ["critic/advantages/mean", "train/advantages/mean"],
    "reward": ["rollout/ep_rew_mean", "objective/scores", "critic/score/mean"],
    "loss": ["loss/mean", "train/loss"],
    "router_entropy": [
        "moe/router_entropy",
        "router_entropy_layer_3",
        "router.entropy",
        "router_logits/entropy",
        "experts/entropy",
        "gate/entropy",
    ],
    "attention_entropy": ["attn/entropy", "attention/entropy"],
    "aux_loss": ["load_balancing_loss", "aux/load_balance", "moe/l_aux", "aux/lb_loss"],
    "router_z_loss": ["aux/z_loss", "z_loss_layer_1", "moe_z_loss"],
    "expert_load_max": ["expert_load_max", "load_imbalance", "load_max"],
    "expert_load_std": ["moe/tokens_per_expert_std", "expert_load_cv"],
    "dropped_tokens": ["tokens_dropped", "tokens_dropped_pct", "router/dropped_frac"],
}


@pytest.mark.parametrize(("name", "key"), [(n, k) for n, keys in NAMES.items() for k in keys])
def test_a_name_is_known(name: str, key: str) -> None:
    assert signal_of_tag(key) == name


@pytest.mark.parametrize("key", ["vq/perplexity", "codebook_perplexity", "train/quantizer/ppl"])
def test_the_perplexity_of_a_codebook_is_not_that_of_the_model(key: str) -> None:
    assert signal_of_tag(key) is None
