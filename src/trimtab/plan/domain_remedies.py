"""Remedies for RL, preference training, MoE, low precision, GANs, diffusion and fine-tuning.

Sources are the papers and documentation named beside each.
"""

from trimtab.plan.remedies import Evidence as Ev
from trimtab.plan.remedies import Remedy, When

__all__ = ["DOMAIN_REMEDIES"]


def _remedy(
    name: str,
    title: str,
    changes: str,
    cost: str,
    *worked: Ev,
    undo: str = "set it back",
    when: When = "mid-run",
) -> Remedy:
    return Remedy(
        id=name, title=title, changes=changes, cost=cost, undo=undo, when=when, worked=worked
    )


DOMAIN_REMEDIES: tuple[Remedy, ...] = (
    _remedy(
        "raise-upper-bound",
        "raise the upper bound of the probability ratio alone (0.2 to 0.28)",
        "epsilon_high of the policy objective (TRL epsilon_high, verl clip_ratio_high)",
        "more change per update",
        Ev("DAPO, Qwen2.5-32B", "DAPO, arXiv:2503.14476", "entropy held, accuracy rose"),
    ),
    _remedy(
        "entropy-bonus",
        "add a small entropy bonus, 0.001 to begin with",
        "the entropy coefficient of the policy loss",
        "too much of it makes answers random",
        Ev("PPO", "Schulman et al. 2017, arXiv:1707.06347"),
    ),
    _remedy(
        "sampling-temperature",
        "sample rollouts at a higher temperature",
        "temperature and top-p of the rollouts",
        "more wrong answers in each group",
    ),
    _remedy(
        "raise-kl-penalty",
        "raise the weight of the divergence from the reference, or add it",
        "beta or kl_coef of the policy loss",
        "slower gain of reward",
        Ev("RLHF", "Stiennon et al. 2020, arXiv:2009.01325", "an early stop by divergence"),
        Ev("RLHF", "Gao et al. 2023, arXiv:2210.10760", "it acts like an early stop"),
    ),
    _remedy(
        "repair-reward",
        "repair the reward: close what is exploited, and judge by a second one",
        "the reward function or model, and a held-out judge",
        "rewards before and after cannot be compared",
        Ev("InstructGPT-like runs", "Gao et al. 2023, arXiv:2210.10760", "larger reward models"),
    ),
    _remedy(
        "length-penalty",
        "make length neutral: penalty near the limit, or a loss that does not favor length",
        "soft penalty of overlong answers, or the normalization of the loss by length",
        "answers that need the length are penalized too",
        Ev("DAPO", "DAPO, arXiv:2503.14476", "soft overlong punishment"),
        Ev("Dr. GRPO", "arXiv:2503.20783", "the bias to long wrong answers went"),
    ),
    _remedy(
        "filter-overlong",
        "leave answers that were cut out of the loss",
        "the mask of truncated rollouts (TRL mask_truncated_completions)",
        "fewer tokens are trained on",
        Ev("DAPO", "DAPO, arXiv:2503.14476", "overlong filtering steadied the run"),
    ),
    _remedy(
        "bound-updates",
        "bound single updates: a target for their divergence (0.01 to 0.03), or a tighter clip",
        "target_kl, or the clip range of the probability ratio (0.2 to 0.1)",
        "fewer of the planned updates of a batch are made",
        Ev("PPO", "Schulman et al. 2017, arXiv:1707.06347", "clipped ratios, adaptive penalty"),
    ),
    _remedy(
        "fewer-policy-epochs",
        "use each batch of rollouts for fewer updates, and fresher weights for rollouts",
        "epochs or mini-batches per batch of rollouts; how stale rollouts may be",
        "more generation per update",
        Ev("PPO", "Andrychowicz et al. 2021, arXiv:2006.05990"),
    ),
    _remedy(
        "normalize-rewards",
        "normalize and clip rewards and returns",
        "running mean and scale of the rewards; a bound on single ones",
        "the scale of the reward no longer shows in the loss",
        Ev("PPO", "Engstrom et al. 2020, arXiv:2005.12729"),
    ),
    _remedy(
        "lower-critic-lr",
        "lower the critic's learning rate, and warm the critic up first",
        "the learning rate of the critic; steps of the critic alone",
        "a slower critic",
    ),
    _remedy(
        "filter-prompts",
        "leave out prompts whose rollouts all get the same reward",
        "dynamic sampling: groups of accuracy 0 or 1 are sampled anew",
        "more generation per update",
        Ev("DAPO", "DAPO, arXiv:2503.14476", "dynamic sampling"),
    ),
    _remedy(
        "harder-or-easier-data",
        "fit the difficulty of the prompts to the policy",
        "the mixture of prompts, by the share that the policy solves now",
        "another distribution of tasks",
    ),
    _remedy(
        "correct-mismatch",
        "correct for the mismatch: truncated importance sampling",
        "the weight of each token by the ratio of trainer to engine, with a bound",
        "variance of the gradient",
        Ev("TIS", "Yao et al. 2025, Your efficient RL framework", "runs with 8-bit rollouts held"),
    ),
    _remedy(
        "match-precision",
        "let trainer and inference engine compute alike",
        "number format, kernels, router replay, and the version of the weights",
        "slower rollouts",
        Ev("fp16 for both", "arXiv:2510.26788", "the mismatch all but vanished"),
    ),
    _remedy(
        "chosen-nll",
        "add the likelihood of the chosen answers to the loss",
        "rpo_alpha in TRL, or the term of DPO-Positive",
        "smaller margins",
        Ev("DPO-Positive", "Pal et al. 2024, arXiv:2402.13228"),
    ),
    _remedy(
        "raise-beta",
        "raise beta",
        "the strength with which the policy is held at its reference",
        "smaller changes per step",
    ),
    _remedy(
        "filter-similar-pairs",
        "leave out pairs whose answers are alike inside",
        "the set of pairs, by the similarity of their hidden states (CHES)",
        "fewer pairs",
        Ev("CHES", "Razin et al. 2024, arXiv:2410.08847"),
    ),
    _remedy(
        "check-pairs",
        "check the examples: template, labels, order of chosen and rejected",
        "nothing yet: read 20 examples as the model sees them",
        "minutes",
    ),
    _remedy(
        "raise-lr",
        "raise the learning rate, once a small set can be overfitted",
        "the learning rate",
        "less margin to divergence",
    ),
    _remedy(
        "raise-balancing",
        "raise the weight of the balancing loss, or check that it is added",
        "the coefficient of the auxiliary loss (0.01 in Switch and OLMoE)",
        "it pulls against the loss of the model",
        Ev("Switch", "Fedus et al. 2022, arXiv:2101.03961", "0.01"),
        Ev("OLMoE", "arXiv:2409.02060", "0.01"),
    ),
    _remedy(
        "bias-balancing",
        "balance by a bias on the router's scores",
        "a bias by expert, moved by its load after each step",
        "a bias to tune; it must be checkpointed",
        Ev("DeepSeek-V3", "arXiv:2412.19437", "few tokens dropped, no loss term needed"),
    ),
    _remedy(
        "router-noise",
        "add noise to the router's scores for a while, or restart dead experts from live ones",
        "noise on the scores, or the weights of the dead experts",
        "a less certain router",
        Ev("noisy top-k", "Shazeer et al. 2017, arXiv:1701.06538"),
    ),
    _remedy(
        "router-z-loss",
        "add or raise the router's z-loss (0.001)",
        "the coefficient of the squared log-sum-exp of the router's logits",
        "almost nothing",
        Ev("ST-MoE", "Zoph et al. 2022, arXiv:2202.08906", "0.001 steadied training"),
    ),
    _remedy(
        "router-fp32",
        "compute the router in fp32",
        "the number format of the router's logits and softmax",
        "a little time",
        Ev("Switch", "Fedus et al. 2022, arXiv:2101.03961", "selective precision"),
    ),
    _remedy(
        "raise-capacity",
        "raise the capacity factor, or use kernels that drop no token",
        "tokens that an expert may take",
        "memory and communication",
        Ev("MegaBlocks", "arXiv:2211.15841", "no drops at all"),
    ),
    _remedy(
        "bf16-layers",
        "keep the layers concerned in bf16",
        "the recipe of low precision by layer: first and last layers, output projections",
        "a part of the gain in speed",
        Ev("Llama-like 7B", "Fishman et al. 2024, arXiv:2409.12517", "SwiGLU outliers"),
    ),
    _remedy(
        "finer-scaling",
        "scale by block instead of by tensor, and by the present amax instead of old ones",
        "granularity of the scale: 1 x 128 and 128 x 128 blocks",
        "kernels that support it",
        Ev("DeepSeek-V3", "arXiv:2412.19437", "tile and block scaling"),
    ),
    _remedy(
        "scale-margin",
        "leave a margin under the largest number, over a longer amax history",
        "margin and amax_history_len of the fp8 recipe",
        "one or two bits of resolution",
    ),
    _remedy(
        "gradients-e5m2",
        "keep gradients in a format of wider range",
        "E5M2 for gradients (the hybrid recipe), or bf16",
        "resolution of the gradients",
        Ev("FP8 formats", "arXiv:2209.05433", "E4M3 forward, E5M2 backward"),
    ),
    _remedy(
        "fp32-master-weights",
        "keep the weights that are updated in fp32",
        "a master copy of the weights in the optimizer",
        "4 bytes per weight",
        Ev("mixed precision", "Micikevicius et al. 2018, arXiv:1710.03740"),
    ),
    _remedy(
        "stochastic-rounding",
        "round updates at random, or sum them up with compensation",
        "the rounding of the update (stochastic, or Kahan summation)",
        "a kernel that supports it",
        Ev("bf16 alone", "Zamirai et al. 2021, arXiv:2010.06192"),
    ),
    _remedy(
        "weaken-discriminator",
        "weaken the discriminator: lower rate, fewer steps, label smoothing, augmentation",
        "the ratio of steps and of rates of the two networks",
        "a discriminator that teaches less",
        Ev("StyleGAN2-ADA", "arXiv:2006.06676", "adaptive augmentation"),
    ),
    _remedy(
        "gradient-penalty",
        "add or raise a gradient penalty (R1, or Wasserstein with penalty)",
        "the penalty on the discriminator's gradient and its weight",
        "a second backward pass",
        Ev("WGAN-GP", "arXiv:1704.00028"),
        Ev("R1", "Mescheder et al. 2018, arXiv:1801.04406"),
    ),
    _remedy(
        "anneal-divergence",
        "let the weight of the divergence grow from 0, or leave it some nats that cost nothing",
        "the weight of the divergence from the prior (annealing, free bits)",
        "a less regular latent code",
        Ev("KL annealing", "Bowman et al. 2016, arXiv:1511.06349"),
        Ev("free bits", "Kingma et al. 2016, arXiv:1606.04934"),
    ),
    _remedy(
        "sample-diversity",
        "reward diversity: statistics of the minibatch, or unrolled steps",
        "a minibatch layer in the discriminator, or its unrolling",
        "time per step",
        Ev("Progressive GAN", "arXiv:1710.10196", "minibatch standard deviation"),
    ),
    _remedy(
        "keep-apart",
        "give the loss what keeps representations apart: negatives, a stopped gradient, a variance term",
        "stop-gradient and momentum of the target, center and temperature, or a variance term",
        "another balance of the loss",
        Ev(
            "SimSiam",
            "Chen & He 2021, arXiv:2011.10566",
            "without the stopped gradient it collapses",
        ),
        Ev("VICReg", "Bardes et al. 2022, arXiv:2105.04906", "the variance term"),
    ),
    _remedy(
        "repair-ema",
        "repair the average: decay, warm-up of the decay, and its restore",
        "decay of the averaged weights and what is restored after a restart",
        "the average starts anew",
        Ev("EDM2", "arXiv:2312.02696", "the decay set after training"),
    ),
    _remedy(
        "loss-weighting",
        "weigh timesteps anew (min-SNR, learned), or sample them by importance",
        "the weight of each timestep in the loss",
        "losses before and after cannot be compared",
        Ev("min-SNR", "Hang et al. 2023, arXiv:2303.09556"),
    ),
    _remedy(
        "fewer-epochs",
        "stop at the epoch with the best held-out loss",
        "the number of epochs",
        "the training loss stays higher",
    ),
)
