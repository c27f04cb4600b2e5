"""Names of signals beyond language-model pre-training, as data: what each framework calls them.

Reinforcement learning and preference training (TRL, verl, OpenRLHF, prime-rl, NeMo-RL,
Stable-Baselines3), mixtures of experts (Megatron-LM, DeepSpeed-MoE, OLMoE, torchtitan, verl), low
precision (Transformer Engine, torchao, Megatron-LM), GANs, diffusion, supervised fine-tuning.
`trimtab.vocabulary` makes signals of them.

Sources: the code and the documentation of these frameworks; `benchmarks/domains` names them.
"""

from typing import Literal, NamedTuple

from trimtab.said_by_words import HELD_OUT_SETS

__all__ = ["DOMAIN_WORDS", "DomainWord"]

Domain = Literal[
    "rl", "preference", "moe", "low-precision", "gan", "diffusion", "sft", "vae", "self-supervised"
]


class DomainWord(NamedTuple):
    """One signal of one kind of training."""

    domain: Domain
    name: str
    unit: str
    bad: Literal["up", "down", "both", "none"]
    doc: str
    aliases: str
    """Keys, separated by |."""
    spread: bool = False
    """Whether it is logged once for each layer or rank: the worst of them is then the signal."""


def _measured(words: str, *, alone: str = "") -> str:
    """Return keys of held-out metrics: each by itself, and behind the name of a set.

    Args:
        words: Names of metrics, separated by |, the one that says most first.
        alone: Further ones that mean nothing, or something else, without a set.
    """
    named = [w for w in (words, alone) if w]
    sets = [
        f"{s}{j}{w}"
        for w in "|".join(named).split("|")
        for s in sorted(HELD_OUT_SETS)
        for j in "/_"
    ]
    return "|".join([words, *sets])


DOMAIN_WORDS: tuple[DomainWord, ...] = (
    DomainWord(
        "rl",
        "reward",
        "points of the reward",
        "down",
        "Mean reward of the rollouts, before or after penalties as logged.",
        "reward|rewards|reward/mean|rewards/mean|reward_mean|mean_reward|train/reward|"
        "critic/score/mean|critic/rewards/mean|critic/score|objective/scores|"
        "objective/rlhf_reward|env/reward_mean|ppo/mean_scores|rollout/reward_mean|"
        "rollout/reward|reward/all/mean|train/rewards|rollout/ep_rew_mean|ep_rew_mean|"
        "episode_reward_mean|mean_episode_reward|eprewmean|eprew|episode_reward|episode_return|"
        "episodic_return|charts/episodic_return|episode_rewards|ep_reward|ep_return|"
        "mean_return|average_return|return|returns|rollout/return|train/episode_reward|"
        "episode/reward|episode/return|rollout/episodic_return|ep_rew|total_reward|"
        "mean_episode_return|average_reward|avg_reward|cumulative_reward|mean_fitness|"
        "average_fitness|avg_fitness|fitness|fitness/mean|averageepret|reward_score|"
        "average_reward_score|mean_reward_score|rew|mean/median_reward",
    ),
    DomainWord(
        "rl",
        "reward_std",
        "points of the reward",
        "both",
        "Standard deviation of the rewards, within groups where there are groups.",
        "reward_std|rewards_std|reward/std|rewards/std|critic/score/std|critic/rewards/std|"
        "env/reward_std|rollout/reward_std|reward/all/std|std_reward|group_reward_std",
    ),
    DomainWord(
        "rl",
        "eval_score",
        "points of the evaluation",
        "down",
        "Reward, accuracy or another score of held-out data that is better when higher.",
        "eval_score|eval/score|eval/reward|eval_reward|eval/accuracy|eval_accuracy|"
        "eval/mean_reward|val/reward|val/test_score|val/score|val/accuracy|val_accuracy|"
        "test/accuracy|test/reward|validation/accuracy|validation/reward|validation/score|"
        "val-core/acc|val-core/reward|eval/pass@1|eval/avg@k|eval_rewards/accuracies|val/acc|"
        "val_acc|valid/acc|valid_acc|valid/accuracy|valid_accuracy|validation/acc|validation_acc|"
        "validation_accuracy|eval/acc|eval_acc|test/acc|test_acc|test_accuracy|val/acc1|val_acc1|"
        "val/top1|val_top1|eval/top1|eval_top1|test/top1|val/f1|val_f1|eval/f1|eval_f1|val/auc|"
        "val_auc|eval/auc|eval_auc|"
        "metrics/map50_95(b)|metrics/map50(b)|metrics/map50_95(m)|metrics/map50(m)|"
        + _measured(
            "map50_95|map_50_95|map@50:95|map_0.5:0.95|map@0.5:0.95|metrics/map_0.5:0.95|bbox_map|"
            "coco/bbox_map|segm_map|coco/segm_map|map50|map_50|map@50|map@0.5|map_0.5|"
            "metrics/map_0.5|bbox_map_50|mean_average_precision|miou|mean_iou|iou|dice|dice_score|"
            "mean_dice|dice_coefficient|dice_coef|jaccard|jaccard_coefficient|"
            "jaccard_index|f1|f1_score|f1score|macro_f1|f1_macro|micro_f1|f1_micro|weighted_f1|"
            "f1_weighted|exact_match|bleu|sacrebleu|bleu4|bleu_4|rouge_l|rougel|rouge/l|rouge_lsum|"
            "rougelsum|rouge_1|rouge1|rouge_2|rouge2|meteor|chrf|cider|psnr|ssim|ms_ssim|auc|auroc|"
            "roc_auc|auc_roc|roc_auc_score|auprc|aupr|pr_auc|average_precision|ndcg|ndcg@5|ndcg@10|"
            "ndcg@20|ndcg@100|mrr|mrr@10|hit_rate|hit@10|hr@10|recall@10|recall@20|recall@1|"
            "recall@5|r@1|success_rate|win_rate|pass@1|mcc|matthews_correlation|kappa|"
            "cohen_kappa|balanced_accuracy|macc|aacc|knn_acc|knn_accuracy|knn_top1|knn@1|knn@5|knn@10|knn@20|knn@200",
            alone="map|ap|ap50|em|r2|r2_score|normalized_score|d4rl_normalized_score|pearson|spearman|spearmanr|recall|precision|score|"
            "top5|acc5|top5_acc|top1_acc|acc_top1|acc@1",
        )
        + "|metrics/recall(b)|metrics/precision(b)|recall|precision",
    ),
    DomainWord(
        "rl",
        "eval_error",
        "as logged",
        "up",
        "Error rate of held-out data, which is better when lower.",
        _measured(
            "wer|word_error_rate|cer|character_error_rate|char_error_rate|wer_ctc|cer_ctc|ter|phoneme_error_rate|"
            "eer|equal_error_rate|lpips|mape|smape",
            alone="error|error_rate|err|error1|err1|top1_err|top1_error",
        ),
    ),
    DomainWord(
        "rl",
        "policy_entropy",
        "nats/token",
        "down",
        "Entropy of the policy over the tokens of its rollouts.",
        "entropy|entropy/mean|mean_entropy|actor/entropy|policy/entropy|policy_entropy|"
        "train/entropy|objective/entropy|ppo/policy/entropy|policy/entropy_avg|entropy_avg|"
        "approx_entropy|train/approx_entropy|losses/entropy|entropy/all/mean|actor/entropy_loss|"
        "entropy_loss|train/entropy_loss|losses/entropy_loss|loss/entropy_loss|"
        "token_entropy|train/token_entropy",
    ),
    DomainWord(
        "rl",
        "policy_kl",
        "nats, per token or per rollout as logged",
        "up",
        "Divergence of the policy from its reference model.",
        "kl|kl/mean|mean_kl|objective/kl|actor/kl_loss|critic/kl|policy_kl|train/kl|kl_loss|"
        "kl_divergence|ref_kl|kl_ref|kl_to_ref|kl_penalty|train/kl_penalty|"
        "actor/reward_kl_penalty|ppo/mean_kl|rollout/kl|kl_div|"
        "reference_kl|kl_reference|actor/reference_kl",
    ),
    DomainWord(
        "vae",
        "recon_loss",
        "nats or squared error, as logged",
        "up",
        "Reconstruction part of the loss of a variational autoencoder.",
        "recon|rec|recon_loss|train/recon|train/recon_loss|loss/recon|loss_recon|recons_loss|rec_loss|recon_nll|rec_nll|"
        "reconstruction|reconstruction_loss|train/reconstruction_loss|loss/reconstruction",
    ),
    DomainWord(
        "rl",
        "q_value",
        "points of the return",
        "none",
        "Mean value that the critic expects of the actions taken.",
        "q_value|q_values|avg_q_policy|avg_q_data|q_mean|mean_q|mean_q_value|avg_q|avg_q_value|q_val|q_avg|qf_values|"
        "qf1_values|meanq|avgq|mean_q_values|losses/q_values|losses/qf1_values|train/q_mean|train/mean_q|max_q|q_max",
    ),
    DomainWord(
        "self-supervised",
        "embedding_std",
        "standard deviation over inputs",
        "down",
        "How far representations of different inputs lie apart, over dimensions.",
        "embedding_std|embed_std|z_std|std_z|feature_std|features_std|feat_std|repr_std|"
        "representation_std|rep_std|output_std|projection_std|avg_output_std|emb_std",
    ),
    DomainWord(
        "vae",
        "latent_kl",
        "nats, as logged",
        "none",
        "Divergence of the latent code from its prior; `kl` beside a reconstruction is this one.",
        "latent_kl|kld|kld_loss|train/kld|train/kld_loss|loss/kld|loss_kld|loss/kl|"
        "loss_kl|kl_latent|kl_nats|kl_bits",
    ),
    DomainWord(
        "vae",
        "kl_weight",
        "1",
        "none",
        "Weight of that divergence in the loss.",
        "kl_weight|train/kl_weight|beta|kld_weight|kl_anneal|kl_annealing|beta_kl|kl_beta|beta_vae",
    ),
    DomainWord(
        "rl",
        "update_kl",
        "nats/token",
        "up",
        "Divergence of the policy from the one that made the rollouts.",
        "approx_kl|approxkl|policy/approxkl|policy/approxkl_avg|ppo_kl|actor/ppo_kl|"
        "train/approx_kl|losses/approx_kl|ppo/policy/approxkl|update_kl|old_approx_kl",
    ),
    DomainWord(
        "rl",
        "policy_clip_share",
        "share of tokens or samples",
        "up",
        "Share whose probability ratio the objective clips.",
        "clip_ratio/region_mean|clip_ratio|actor/pg_clipfrac|pg_clipfrac|clipfrac|"
        "policy/clipfrac|policy/clipfrac_avg|losses/clipfrac|train/clip_fraction|"
        "ppo/policy/clipfrac|policy_clip_share|clip_frac|ppo_clip_ratio|is_clipped|"
        "cispo_clip_ratio",
    ),
    DomainWord(
        "rl",
        "zero_variance_share",
        "share of groups",
        "up",
        "Share of groups whose rollouts all have the same reward, so they teach nothing.",
        "frac_reward_zero_std|zero_variance_share|zero_var_group_frac|grpo/zero_std_frac|"
        "actor/zero_advantage_frac|flat_group_fraction|zero_std_ratio|"
        "self_distillation/flat_group_fraction|groups/zero_variance|solve_none_or_all|"
        "frac_zero_std_groups|frac_zero_std",
    ),
    DomainWord(
        "rl",
        "completion_length",
        "tokens",
        "both",
        "Mean length of the rollouts.",
        "completions/mean_length|completion_length|completion_length/mean|response_length/mean|"
        "response_length|mean_response_length|rollout/response_length|response_lengths|"
        "train/response_length|mean_gen_tokens_per_sample|seq_len/mean|seq_len/all/mean|"
        "mean_completion_length|gen_len|generation_length|completion_len/mean|avg_response_length|glen",
    ),
    DomainWord(
        "rl",
        "truncated_share",
        "share of rollouts",
        "up",
        "Share of rollouts cut at the length limit, which never end by themselves.",
        "completions/clipped_ratio|response_length/clip_ratio|truncation_rate|truncated_share|"
        "completions/truncated_fraction|truncated_fraction|response_clip_ratio|truncated_ratio|"
        "is_truncated/mean|is_truncated/all/mean|truncated_rate",
    ),
    DomainWord(
        "rl",
        "advantage_std",
        "1",
        "both",
        "Standard deviation of the advantages.",
        "advantage_std|advantages_std|critic/advantages/std|advantage/std|advantages/std",
    ),
    DomainWord(
        "rl",
        "advantage_mean",
        "1",
        "none",
        "Mean advantage.",
        "advantage|advantages|advantage_mean|advantages_mean|critic/advantages/mean|"
        "advantage/mean|advantages/mean|"
        "train/advantages/mean",
    ),
    DomainWord(
        "rl",
        "policy_loss",
        "as logged",
        "none",
        "The policy's own part of the loss; it measures no distance to a target.",
        "policy_loss|pg_loss|actor/pg_loss|loss/policy_avg|policy_gradient_loss|"
        "train/policy_gradient_loss|losses/policy_loss|actor_loss|act_loss|ppo/loss/policy|"
        "loss/actor|loss_actor|loss/policy|losspi|surrogate_loss",
    ),
    DomainWord(
        "rl",
        "value_loss",
        "squared points of the return",
        "up",
        "Loss of the critic.",
        "value_loss|vf_loss|critic/vf_loss|critic_loss|cri_loss|train/value_loss|"
        "losses/value_loss|loss/value_avg|ppo/loss/value|loss/critic|loss_critic|"
        "lossv|value_function_loss",
    ),
    DomainWord(
        "rl",
        "explained_variance",
        "share",
        "down",
        "Share of the variance of the returns that the critic explains.",
        "explained_variance|critic/vf_explained_var|train/explained_variance|"
        "value/explained_var|losses/explained_variance|vf_explained_var",
    ),
    DomainWord(
        "rl",
        "exploration",
        "share of actions",
        "none",
        "Share of actions that are drawn at random; it is scheduled to fall.",
        "epsilon|eps|exploration_rate|rollout/exploration_rate|exploration|eps_threshold|"
        "explore_rate|epsilon_greedy|exploration_epsilon",
    ),
    DomainWord(
        "rl",
        "episode_length",
        "steps",
        "none",
        "Steps of an agent's episodes; whether long ones are good depends on the task.",
        "episode_length|ep_len_mean|eplenmean|rollout/ep_len_mean|ep_length|episode_len|ep_len|"
        "mean_episode_length|episode_length_mean|charts/episodic_length|episodic_length",
    ),
    DomainWord(
        "rl",
        "rollout_mismatch",
        "nats/token",
        "up",
        "Distance of the probabilities of the inference engine from those of the trainer.",
        "sampling/sampling_logp_difference/mean|mismatch_kl|mismatch_kl/mean|rollout_kl|"
        "rollout_probs_diff_mean|training/rollout_probs_diff_mean|rollout_corr/kl|"
        "mismatch/mismatch_kl|actor/rollout_kl|vllm_kl|gen_kl_error|train/gen_kl_error|"
        "train_inference_kl|kl_sample_train_v1|rollout_mismatch|mismatch_kl/all/mean|"
        "rollout_corr/k3_kl|train/policy_kl_error|policy_kl_error|"
        "rollout_log_probs_abs_diff|train_rollout_logprob_abs_diff|"
        "train/train_rollout_logprob_abs_diff",
    ),
    DomainWord(
        "rl",
        "importance_ratio",
        "1",
        "both",
        "Mean ratio of the trainer's probabilities to those of the inference engine.",
        "sampling/importance_sampling_ratio/mean|importance_ratio|importance_ratio/mean|"
        "rollout_is_mean|mismatch/rollout_is_mean|token_mult_prob_error|"
        "train/token_mult_prob_error|is_ratio/mean|rollout_corr/rollout_is_mean|"
        "train/sampling_importance_ratio|sampling_importance_ratio",
    ),
    DomainWord(
        "preference",
        "chosen_reward",
        "nats x beta",
        "down",
        "Implicit reward of the chosen answers.",
        "rewards/chosen|chosen_reward|chosen_rewards|reward_chosen|train/rewards_chosen_mean|"
        "rewards_chosen_mean|rewards_train/chosen",
    ),
    DomainWord(
        "preference",
        "rejected_reward",
        "nats x beta",
        "none",
        "Implicit reward of the rejected answers.",
        "rewards/rejected|rejected_reward|rejected_rewards|reject_reward|"
        "rewards_rejected_mean|train/rewards_rejected_mean|rewards_train/rejected",
    ),
    DomainWord(
        "preference",
        "reward_margin",
        "nats x beta",
        "none",
        "Reward of the chosen answers over that of the rejected ones.",
        "rewards/margins|reward_margin|margin|rewards/margin|rewards_margin|reward_margins|"
        "objective/scores_margin|rewards_train/margins",
    ),
    DomainWord(
        "preference",
        "preference_accuracy",
        "share of pairs",
        "down",
        "Share of pairs in which the chosen answer has the higher reward.",
        "rewards/accuracies|preference_accuracy|reward_accuracy|rewards_accuracy|"
        "rewards/accuracy|preference_acc|acc_mean|reward_acc|rewards_train/accuracies|"
        "preference/accuracy",
    ),
    DomainWord(
        "preference",
        "chosen_logp",
        "nats/answer",
        "down",
        "Log-probability of the chosen answers.",
        "logps/chosen|chosen_logp|chosen_logps|policy_chosen_logps|logps_train/chosen",
    ),
    DomainWord(
        "preference",
        "rejected_logp",
        "nats/answer",
        "none",
        "Log-probability of the rejected answers.",
        "logps/rejected|rejected_logp|rejected_logps|policy_rejected_logps|logps_train/rejected",
    ),
    DomainWord(
        "moe",
        "expert_load",
        "tokens or share of tokens",
        "none",
        "Load of each expert; read as largest load over the mean, and experts without load.",
        "expert_load",
        spread=True,
    ),
    DomainWord(
        "moe",
        "expert_load_max",
        "largest over mean load, or a share",
        "up",
        "Load of the busiest expert.",
        "expert_load_max|max_expert_load|expert_load_ratio|load_imbalance|expert_load/max|"
        "moe/load_imbalance|moe/max_load|router/max_frac_max|router/max_frac_mean|"
        "max_expert_share|load_imbalance_ratio|moe/load_max_over_mean|load_max_over_mean|"
        "moe/max_over_mean_load|max_over_mean|moe/expert_load_max|max_load_ratio|"
        "moe/max_expert_load|batch_load_imbalance|max_fraction_expert|"
        "load_max|max_load|moe/load_max|router/load_max",
        spread=True,
    ),
    DomainWord(
        "moe",
        "max_violation",
        "largest over mean load, less 1",
        "up",
        "Maximal violation of an even load (MaxVio).",
        "max_violation|maxvio|max_vio|moe/max_violation|moe/maxvio|maxvio_batch|maxvio_global|"
        "load_balance/max_violation|router/maxvio|moe/max_vio",
        spread=True,
    ),
    DomainWord(
        "moe",
        "expert_load_std",
        "relative",
        "up",
        "Spread of the load over the experts.",
        "expert_load_std|expert_load_cv|load_cv|load_std|moe/load_cv|moe/load_std|"
        "expert_load/cv|expert_load/std|moe/expert_load_std|router/load_cv|load_balance/cv|"
        "tokens_per_expert_std|moe/tokens_per_expert_std",
        spread=True,
    ),
    DomainWord(
        "moe",
        "expert_load_min",
        "smallest over mean load, or a share",
        "down",
        "Load of the idlest expert.",
        "expert_load_min|min_expert_load|expert_load/min|moe/min_load|min_expert_share|"
        "moe/expert_load_min|moe/min_expert_load",
        spread=True,
    ),
    DomainWord(
        "moe",
        "dead_experts",
        "experts",
        "up",
        "Experts that get practically no tokens.",
        "dead_experts|num_dead_experts|moe/dead_experts|unused_experts|idle_experts|"
        "dead_expert_count|moe/num_dead_experts|router/dead_experts|experts/dead",
        spread=True,
    ),
    DomainWord(
        "moe",
        "active_experts",
        "experts",
        "down",
        "Experts that get tokens.",
        "active_experts|num_active_experts|moe/active_experts|router/active_min|"
        "router/active_mean|experts/active|effective_experts",
        spread=True,
    ),
    DomainWord(
        "moe",
        "router_entropy",
        "nats, or a share of ln(experts)",
        "down",
        "Entropy of the router over the experts.",
        "router_entropy|routing_entropy|moe/router_entropy|router/entropy|gate_entropy|"
        "moe/routing_entropy|router/entropy_mean|router/entropy_min|expert_entropy|"
        "token_routing_entropy|moe/gate_entropy|load_entropy|moe/entropy|"
        "router_logits/entropy|experts/entropy|expert/entropy|gate/entropy|"
        "gating/entropy|gating_entropy|moe/expert_entropy",
        spread=True,
    ),
    DomainWord(
        "moe",
        "aux_loss",
        "1",
        "both",
        "Auxiliary loss that balances the load, as logged: with its weight or without.",
        "aux_loss|load_balancing_loss|load_balance_loss|lb_loss|moe_aux_loss|moe_loss|"
        "moe/load_balancing_loss|moe/aux_loss|train/load_balancing_loss|router_aux_loss|"
        "train/LoadBalancingLoss|train/load_balance_loss|global_load_balancing_loss|"
        "seq_load_balancing_loss|l_aux|moe/lb_loss|train/lb_loss|router/aux_loss|balance_loss|"
        "aux/load_balance|aux/load_balancing|aux/balance",
        spread=True,
    ),
    DomainWord(
        "moe",
        "router_z_loss",
        "1",
        "up",
        "Squared log-sum-exp of the router's logits.",
        "router_z_loss|z_loss|moe/z_loss|moe_z_loss|train/router_z_loss|moe/router_z_loss|"
        "train/RouterZLoss|router/z_loss|train/z_loss|router_zloss",
        spread=True,
    ),
    DomainWord(
        "moe",
        "dropped_tokens",
        "share of tokens",
        "up",
        "Tokens that no expert had room for.",
        "dropped_tokens|token_drop_rate|drop_rate_tokens|moe/dropped_tokens|"
        "dropped_token_share|moe/token_drop_rate|tokens_dropped|router/drop_rate|"
        "dropped_fraction|moe/drop_fraction|token_dropped|capacity_drop_rate|moe/drop_rate|"
        "overflow_tokens|moe/overflow|"
        "tokens_dropped_pct|tokens_dropped_frac|tokens_dropped_rate|dropped_frac|"
        "router/dropped_frac|moe/dropped_frac|moe/tokens_dropped_pct|"
        "dropped_token_frac|dropped_token_rate",
        spread=True,
    ),
    DomainWord(
        "low-precision",
        "amax",
        "largest absolute value",
        "up",
        "Largest absolute value of the tensors cast to low precision.",
        "amax|fp8_amax|fp8/amax|amax_max|max_amax|fp8/amax_max|activation_amax|fp8_max_amax|"
        "precision/amax",
        spread=True,
    ),
    DomainWord(
        "low-precision",
        "fp8_scale",
        "1",
        "down",
        "Factor that brings tensors into the range of fp8.",
        "fp8_scale|fp8/scale|fp8_scaling_factor|scale_min|fp8/scale_min|fp8_scale_min|"
        "precision/scale",
        spread=True,
    ),
    DomainWord(
        "low-precision",
        "overflow_share",
        "share of elements, or a count",
        "up",
        "Elements beyond the largest number of the format, which are cut to it or become Inf.",
        "overflow_share|overflow%|overflows%|overflow_pct|fp8/overflow|fp8_overflow|overflow_rate|"
        "overflow_count|num_overflows|overflows_num|fp8/overflow_rate|saturation_rate|"
        "saturated_share|fp8_saturation|clip_rate_fp8|fp8_overflow_count|precision/overflow|"
        "fp8/saturated",
        spread=True,
    ),
    DomainWord(
        "low-precision",
        "underflow_share",
        "share of elements, or a count",
        "up",
        "Elements that become zero in the format.",
        "underflow_share|underflows%|underflow%|underflow_pct|fp8/underflow|fp8_underflow|"
        "underflow_rate|underflow_count|underflows_num|fp8/underflow_rate|flush_to_zero_rate|"
        "grad_underflow|fp8_underflow_rate|precision/underflow|zero_share_fp8",
        spread=True,
    ),
    DomainWord(
        "low-precision",
        "precision_fallback",
        "share of products, or a count",
        "up",
        "Matrix products that ran in higher precision because the low one did not fit.",
        "precision_fallback|fp8_fallback|fallback_rate|fp8/fallback|bf16_fallback|num_fallbacks|"
        "fp8/fallback_rate|fp8_fallback_count|high_precision_fallback|precision/fallback",
        spread=True,
    ),
    DomainWord(
        "low-precision",
        "lost_updates",
        "share of weights",
        "up",
        "Weights whose update is too small to change them in their format.",
        "lost_updates|lost_update_share|update_underflow|zero_update_share|stagnant_weights|"
        "bf16_lost_updates|zero_updates|update_zero_frac|unchanged_weights|frac_unchanged_params",
        spread=True,
    ),
    DomainWord(
        "low-precision",
        "quantization_error",
        "relative",
        "up",
        "Error that the cast to low precision makes.",
        "quantization_error|quant_error|quantization_mse|fp8/mse|fp8_mse|fp8/quant_error|"
        "quant_mse|cast_error|precision/quant_error",
        spread=True,
    ),
    DomainWord(
        "gan",
        "discriminator_loss",
        "as logged",
        "down",
        "Loss of the discriminator or critic of a GAN.",
        "loss_d|d_loss|disc_loss|discriminator_loss|lossd|dloss|loss/d|loss_disc|errd|loss_discriminator|"
        "dis_loss|disc loss|train/d_loss|d loss|loss/discriminator|d_total_loss|Loss/D/loss",
    ),
    DomainWord(
        "gan",
        "generator_loss",
        "as logged",
        "up",
        "Loss of the generator of a GAN.",
        "loss_g|g_loss|gen_loss|generator_loss|lossg|gloss|loss/g|loss_gen|errg|loss_generator|"
        "gen loss|train/g_loss|g loss|loss/generator|g_total_loss|Loss/G/loss",
    ),
    DomainWord(
        "gan",
        "d_real",
        "probability or score",
        "none",
        "What the discriminator gives real samples, D(x).",
        "d(x)|d_x|d_real|real_score|D/real|scores/real|d_real_mean|Loss/scores/real|real_acc",
    ),
    DomainWord(
        "gan",
        "d_fake",
        "probability or score",
        "none",
        "What the discriminator gives generated samples, D(G(z)).",
        "d(g(z))|d_g_z|d_fake|fake_score|D/fake|scores/fake|d_fake_mean|Loss/scores/fake|d_g_z1",
    ),
    DomainWord(
        "gan",
        "gradient_penalty",
        "1",
        "up",
        "Penalty on the discriminator's gradient.",
        "gradient_penalty|grad_penalty|gp|loss_gp|d_gp|r1_penalty|r1|Loss/r1_penalty|gp_loss",
    ),
    DomainWord(
        "gan",
        "sample_diversity",
        "as logged",
        "down",
        "Distance between generated samples.",
        "sample_diversity|diversity|lpips_diversity|sample_std|fake_std|intra_fake_distance|"
        "mode_coverage|num_modes|modes_covered|g/diversity",
    ),
    DomainWord(
        "diffusion",
        "fid",
        "1",
        "up",
        "Frechet distance of generated from real samples.",
        "fid|eval/fid|test_fid|val_fid|valid_fid|test/fid|fid50k|fid_score|metrics/fid50k_full|val/fid|fid5k|fid10k|train/fid",
    ),
    DomainWord(
        "diffusion",
        "ema_loss",
        "as the loss",
        "up",
        "Loss of the averaged weights.",
        "ema_loss|loss_ema|val_loss_ema|ema/loss|ema_val_loss|val/loss_ema|val/ema_loss|"
        "ema_eval_loss|eval_ema_loss|eval_loss_ema|eval/ema_loss|eval/loss_ema|ema/val_loss|"
        "ema/eval_loss|val_ema_loss",
    ),
    DomainWord(
        "diffusion",
        "low_noise_loss",
        "as the loss",
        "up",
        "Loss at the timesteps with the least noise (first quarter).",
        "loss_q0|low_noise_loss|loss/q0|loss_t0|train/loss_q0",
    ),
    DomainWord(
        "diffusion",
        "high_noise_loss",
        "as the loss",
        "up",
        "Loss at the timesteps with the most noise (last quarter).",
        "loss_q3|high_noise_loss|loss/q3|train/loss_q3",
    ),
    DomainWord(
        "sft",
        "token_accuracy",
        "share of tokens",
        "down",
        "Share of trained tokens that the model ranks first.",
        "token_accuracy|mean_token_accuracy|train/token_accuracy|train/mean_token_accuracy|"
        "token_acc|train/token_acc|lm_accuracy|next_token_accuracy",
    ),
    DomainWord(
        "sft",
        "accuracy",
        "share",
        "down",
        "Accuracy on the training data, or of a set that the log does not name.",
        "accuracy|acc|train_accuracy|train/accuracy|train_acc|train/acc|training_accuracy|"
        "accuracy/train|acc/train|top1|acc1|acc@1|train_top1|prec1|prec@1|train_prec1|train_prec@1",
    ),
    DomainWord(
        "sft",
        "stage",
        "1",
        "none",
        "Stage of a curriculum, or the length of its sequences: what changes is the data.",
        "stage|curriculum_stage|curriculum/stage|train/stage|training_stage|curriculum|phase|"
        "curriculum_phase|curriculum_level|curriculum/level|curriculum_seqlen|seqlen|seq_length|"
        "sequence_length|seq_len|max_seq_len|max_seq_length|context_length|context_len",
    ),
)
