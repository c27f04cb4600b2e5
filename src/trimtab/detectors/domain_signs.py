"""What is abnormal in RL, preference training, MoE, low precision, GANs, diffusion and fine-tuning.

Data for `trimtab.detectors.domain`. Sources stand with the simulators that test each sign
(`benchmarks/domains`); amounts are ours, chosen on those simulators with seeds 0-9, between what
the sources call sound and what they call broken.
"""

from collections.abc import Mapping

from trimtab.detectors.domain import Clause, DomainDetector, DomainSign

__all__ = ["DOMAIN_DETECTORS", "DOMAIN_SIGNS", "SIGN_BY_ID", "SIGN_CAUSES"]


def _c(signal: str, how: str, amount: float = 0.0, other: str = "") -> Clause:
    return Clause(signal=signal, how=how, amount=amount, other=other)


def _any_logged(*signals: str) -> tuple[Clause, ...]:
    """Clauses that hold where one of these is logged: `entropy` of another kind of run is none."""
    return tuple(_c(s, "logged") for s in signals)


_ROLLOUTS = (
    "reward",
    "reward_std",
    "completion_length",
    "policy_clip_share",
    "zero_variance_share",
    "advantage_std",
    "advantage_mean",
    "truncated_share",
    "policy_kl",
)

_RL: tuple[DomainSign, ...] = (
    DomainSign(
        id="entropy-collapse",
        title="the policy's entropy collapses, so its rollouts become alike",
        kind="policy-collapse",
        way="down",
        all=(
            _c("policy_entropy", "share of best", 0.2),
            _c("policy_entropy", "sigma below best", 6),
        ),
        any=_any_logged(*_ROLLOUTS),
        # A policy that becomes sure of what is rewarded needs no more exploration.
        unless=(_c("policy_entropy", "pays", 0.05, "reward"),),
        causes=("entropy-collapse",),
    ),
    DomainSign(
        id="entropy-explosion",
        title="the policy's entropy grows many times, so its rollouts turn random",
        kind="policy-collapse",
        way="up",
        all=(
            _c("policy_entropy", "times past", 3),
            _c("policy_entropy", "times start", 2),
            _c("policy_entropy", "sigma above past", 8),
        ),
        any=_any_logged(*_ROLLOUTS),
        causes=("policy-update-too-large", "train-inference-mismatch"),
    ),
    DomainSign(
        id="kl-blow-up",
        title="the policy runs away from its reference",
        kind="policy-collapse",
        way="up",
        all=(
            _c("policy_kl", "times past", 3.5),
            # The first departure from the reference starts at 0 and is no flight from it.
            _c("policy_kl", "past over", 0.003),
            _c("policy_kl", "over", 0.5),
            _c("policy_kl", "sigma above past", 6),
            _c("policy_kl", "accelerates", 1.25),
        ),
        any=_any_logged(*_ROLLOUTS[:-1], "policy_entropy"),
        causes=("policy-drift",),
    ),
    DomainSign(
        id="kl-hacking",
        title="the reward rises while the policy runs away from its reference",
        kind="reward-hacking",
        way="up",
        all=(
            _c("policy_kl", "times past", 3.5),
            # The first departure from the reference starts at 0 and is no flight from it.
            _c("policy_kl", "past over", 0.003),
            _c("policy_kl", "over", 0.5),
            _c("policy_kl", "sigma above past", 6),
            _c("policy_kl", "accelerates", 1.25),
            _c("reward", "sigma above past", 4),
        ),
        unless=(_c("reward", "not rising", 1.0),),
        causes=("reward-hacking",),
    ),
    DomainSign(
        id="eval-falls",
        title="the held-out score falls while the training reward does not",
        kind="reward-hacking",
        way="down",
        all=(
            _c("eval_score", "sigma below best", 4),
            _c("eval_score", "share of best", 0.88),
            _c("reward", "sigma above start", 4),
        ),
        unless=(_c("reward", "share of best", 0.85),),
        min_rows=8,
        causes=("reward-hacking",),
    ),
    DomainSign(
        id="length-hacking",
        title="answers grow and the reward with them, the held-out score does not",
        kind="reward-hacking",
        way="up",
        all=(
            _c("completion_length", "times start", 2),
            _c("completion_length", "sigma above start", 8),
            _c("reward", "sigma above start", 4),
            _c("eval_score", "lags", 0.3, "reward"),
        ),
        causes=("reward-hacking",),
    ),
    DomainSign(
        id="length-explosion",
        title="answers grow without end",
        kind="policy-collapse",
        way="up",
        all=(
            _c("completion_length", "times start", 2),
            _c("completion_length", "sigma above start", 8),
        ),
        any=(
            _c("reward", "not rising", 1.0),
            _c("truncated_share", "over", 0.25),
        ),
        causes=("length-explosion",),
    ),
    DomainSign(
        id="truncation",
        title="answers run into the length limit",
        kind="policy-collapse",
        way="up",
        all=(
            _c("truncated_share", "over", 0.3),
            _c("truncated_share", "sigma above start", 6),
            _c("truncated_share", "was under", 0.2),
        ),
        causes=("length-explosion",),
    ),
    DomainSign(
        id="length-collapse",
        title="answers shrink to almost nothing",
        kind="policy-collapse",
        way="down",
        all=(
            _c("completion_length", "share of best", 0.4),
            _c("completion_length", "sigma below best", 8),
        ),
        any=(
            _c("reward", "not rising", 1.0),
            _c("completion_length", "share of best", 0.15),
        ),
        causes=("length-collapse",),
    ),
    DomainSign(
        id="clip-saturation",
        title="most of what the policy would change is clipped",
        kind="policy-collapse",
        way="up",
        all=(_c("policy_clip_share", "over", 0.4), _c("policy_clip_share", "sigma above start", 6)),
        causes=("policy-update-too-large",),
    ),
    DomainSign(
        id="update-kl",
        title="single updates change the policy too much",
        kind="policy-collapse",
        way="up",
        all=(
            _c("update_kl", "over", 0.1),
            _c("update_kl", "times past", 5),
            _c("update_kl", "sigma above past", 8),
        ),
        causes=("policy-update-too-large",),
    ),
    DomainSign(
        id="zero-variance",
        title="in most groups all rollouts get the same reward, so nothing is learned from them",
        kind="policy-collapse",
        way="up",
        all=(_c("zero_variance_share", "over", 0.62),),
        causes=("no-learning-signal",),
    ),
    DomainSign(
        id="reward-spread-vanishes",
        title="the rewards of a group become alike, so nothing is learned from them",
        kind="policy-collapse",
        way="down",
        all=(
            _c("reward_std", "share of best", 0.1),
            _c("reward_std", "sigma below best", 6),
        ),
        any=_any_logged("policy_entropy", "completion_length", "policy_kl", "zero_variance_share"),
        causes=("no-learning-signal",),
    ),
    DomainSign(
        id="advantage-vanishes",
        title="advantages vanish, so the policy stands still",
        kind="policy-collapse",
        way="down",
        all=(
            _c("advantage_std", "share of best", 0.1),
            _c("advantage_std", "sigma below best", 6),
        ),
        causes=("no-learning-signal",),
    ),
    DomainSign(
        id="policy-gradient-vanishes",
        title="the gradient vanishes with the differences between rewards",
        kind="policy-collapse",
        way="down",
        all=(
            _c("grad_norm", "share of best", 0.1),
            _c("grad_norm", "sigma below best", 6),
            _c("reward", "not rising", 1.0),
        ),
        any=(
            _c("zero_variance_share", "over", 0.5),
            _c("reward_std", "share of best", 0.3),
            _c("advantage_std", "share of best", 0.3),
        ),
        causes=("no-learning-signal",),
    ),
    DomainSign(
        id="advantage-explodes",
        title="the spread of the advantages grows many times",
        kind="signal-abnormal",
        way="up",
        all=(
            _c("advantage_std", "times past", 3),
            _c("advantage_std", "sigma above past", 8),
        ),
        causes=("reward-scale", "value-loss-explosion"),
    ),
    DomainSign(
        id="reward-spread-explodes",
        title="the spread of the rewards grows many times",
        kind="reward-hacking",
        way="up",
        all=(_c("reward_std", "times past", 3), _c("reward_std", "sigma above past", 8)),
        any=_any_logged("policy_entropy", "completion_length", "policy_kl", "zero_variance_share"),
        causes=("reward-scale", "reward-hacking"),
    ),
    DomainSign(
        id="reward-lost",
        title="the reward has fallen for good below what had been reached",
        kind="policy-collapse",
        way="down",
        all=(_c("reward", "settles below", 0.25),),
        min_rows=24,
        causes=("policy-update-too-large",),
    ),
    DomainSign(
        id="reward-drops",
        title="the reward falls at once to a third of what it was, and stays there",
        kind="policy-collapse",
        way="down",
        all=(
            _c("reward", "share of past", 0.35),
            _c("reward", "sigma below past", 8),
        ),
        checks=4,
        causes=("policy-update-too-large",),
    ),
    DomainSign(
        id="mismatch-grows",
        title="the inference engine and the trainer disagree more and more on the same tokens",
        kind="policy-collapse",
        way="up",
        all=(
            _c("rollout_mismatch", "times past", 3),
            _c("rollout_mismatch", "sigma above past", 8),
            _c("rollout_mismatch", "over", 1e-4),
        ),
        causes=("train-inference-mismatch",),
    ),
    DomainSign(
        id="importance-ratio",
        title="the trainer gives rollouts far lower probabilities than the engine that made them",
        kind="policy-collapse",
        way="down",
        all=(
            _c("importance_ratio", "under", 0.8),
            _c("importance_ratio", "sigma below past", 6),
            _c("importance_ratio", "was over", 0.9),
        ),
        causes=("train-inference-mismatch",),
    ),
    DomainSign(
        id="probability-error",
        title="the probabilities of trainer and inference engine drift apart",
        kind="policy-collapse",
        way="up",
        all=(
            _c("importance_ratio", "over", 1.2),
            _c("importance_ratio", "sigma above past", 6),
            _c("importance_ratio", "was under", 1.1),
        ),
        causes=("train-inference-mismatch",),
    ),
    DomainSign(
        id="value-loss-explodes",
        title="the critic's loss explodes while the reward does not rise",
        kind="policy-collapse",
        way="up",
        all=(
            _c("value_loss", "times past", 8),
            _c("value_loss", "sigma above past", 8),
        ),
        any=(_c("reward", "not rising", 1.0),),
        causes=("value-loss-explosion",),
    ),
    DomainSign(
        id="values-run-away",
        title="the values that are expected grow faster and faster while the return does not",
        kind="policy-collapse",
        way="up",
        all=(
            _c("q_value", "times past", 4.0),
            _c("q_value", "over", 1.0),
            _c("q_value", "accelerates", 1.0),
            _c("q_value", "sigma above past", 8),
        ),
        any=(_c("reward", "not rising", 1.0),),
        # An agent that has come to the most there is goes on learning what that is worth.
        unless=(
            _c("reward", "near best", 0.95),
            # What is expected comes in fact.
            _c("reward", "times other", 1.0, "q_value"),
        ),
        causes=("value-loss-explosion",),
    ),
    DomainSign(
        id="value-explains-nothing",
        title="the critic explains less than a constant would",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("explained_variance", "under", -0.3),
            _c("explained_variance", "was over", 0.2),
            _c("explained_variance", "sigma below best", 6),
        ),
        any=(_c("reward", "not rising", 1.0),),
        causes=("value-loss-explosion",),
    ),
)

_PREFERENCE: tuple[DomainSign, ...] = (
    DomainSign(
        id="likelihood-displacement",
        title="margins grow while the chosen answers become less likely too",
        kind="policy-collapse",
        way="down",
        all=(
            _c("chosen_logp", "below start by", 0.3),
            _c("chosen_logp", "sigma below best", 6),
            _c("reward_margin", "sigma above start", 6),
        ),
        causes=("likelihood-displacement",),
    ),
    DomainSign(
        id="chosen-reward-falls",
        title="margins grow while the reward of the chosen answers falls far below zero",
        kind="policy-collapse",
        way="down",
        all=(
            _c("chosen_reward", "under", -4.0),
            _c("chosen_reward", "sigma below best", 6),
            _c("reward_margin", "sigma above start", 6),
        ),
        causes=("likelihood-displacement",),
    ),
    DomainSign(
        id="preference-stuck",
        title="chosen and rejected answers are told apart no better than by chance",
        kind="signal-abnormal",
        way="down",
        all=(_c("preference_accuracy", "near a half", 0.03),),
        unless=(_c("reward_margin", "sigma above start", 4),),
        min_rows=96,
        causes=("preference-not-learned",),
    ),
    DomainSign(
        id="preference-reversed",
        title="rejected answers come to be preferred",
        kind="policy-collapse",
        way="down",
        all=(
            _c("preference_accuracy", "under", 0.4),
            _c("preference_accuracy", "sigma below best", 4),
        ),
        causes=("preferences-swapped",),
    ),
    DomainSign(
        id="margin-reversed",
        title="the margin turns negative: rejected answers are rewarded more",
        kind="policy-collapse",
        way="down",
        all=(
            _c("reward_margin", "under", -0.1),
            _c("reward_margin", "sigma below best", 8),
        ),
        any=(_c("preference_accuracy", "under", 0.45),),
        causes=("preferences-swapped",),
    ),
)

_MOE: tuple[DomainSign, ...] = (
    DomainSign(
        id="router-entropy-collapse",
        title="the router comes to choose the same few experts",
        kind="router-collapse",
        way="down",
        all=(
            _c("router_entropy", "share of best", 0.6),
            _c("router_entropy", "sigma below best", 8),
        ),
        # A router may become sure of each token while all experts have as many.
        unless=(
            _c("expert_load_max", "at most start", 1.1),
            _c("aux_loss", "at most start", 1.02),
        ),
        causes=("router-collapse",),
    ),
    DomainSign(
        id="dead-experts",
        title="experts stop getting tokens",
        kind="expert-imbalance",
        way="up",
        all=(
            _c("dead_experts", "over", 1.0),
            _c("dead_experts", "sigma above past", 4),
            _c("dead_experts", "times past", 1.5),
        ),
        causes=("dead-experts",),
    ),
    DomainSign(
        id="active-experts-fall",
        title="fewer and fewer experts get tokens",
        kind="expert-imbalance",
        way="down",
        all=(
            _c("active_experts", "share of best", 0.8),
            _c("active_experts", "sigma below best", 6),
        ),
        causes=("dead-experts",),
    ),
    DomainSign(
        id="load-imbalance",
        title="the busiest expert takes ever more of the tokens",
        kind="expert-imbalance",
        way="up",
        all=(
            _c("expert_load_max", "times lowest", 1.8),
            _c("expert_load_max", "times past", 1.4),
            _c("expert_load_max", "sigma above past", 8),
        ),
        causes=("load-balancing-too-weak",),
    ),
    DomainSign(
        id="max-violation",
        title="the load leaves an even one further and further",
        kind="expert-imbalance",
        way="up",
        all=(
            _c("max_violation", "times past", 2),
            _c("max_violation", "over", 0.5),
            _c("max_violation", "sigma above past", 8),
        ),
        causes=("load-balancing-too-weak",),
    ),
    DomainSign(
        id="load-spread",
        title="the load spreads unevenly over the experts",
        kind="expert-imbalance",
        way="up",
        all=(
            _c("expert_load_std", "times past", 2),
            _c("expert_load_std", "sigma above past", 8),
        ),
        causes=("load-balancing-too-weak",),
    ),
    DomainSign(
        id="idlest-expert",
        title="the idlest expert loses its tokens",
        kind="expert-imbalance",
        way="down",
        all=(
            _c("expert_load_min", "share of past", 0.1),
            _c("expert_load_min", "sigma below best", 6),
        ),
        causes=("dead-experts",),
    ),
    DomainSign(
        id="aux-loss-explodes",
        title="the balancing loss grows: the router resists it",
        kind="router-collapse",
        way="up",
        all=(
            _c("aux_loss", "times past", 1.8),
            _c("aux_loss", "sigma above past", 8),
        ),
        causes=("router-collapse", "load-balancing-too-weak"),
    ),
    DomainSign(
        id="aux-loss-vanishes",
        title="the balancing loss vanishes, which an even load does not explain",
        kind="router-collapse",
        way="down",
        all=(
            _c("aux_loss", "share of best", 0.1),
            _c("aux_loss", "sigma below best", 8),
        ),
        causes=("balancing-off",),
    ),
    DomainSign(
        id="router-z-loss-grows",
        title="the router's logits grow",
        kind="router-collapse",
        way="up",
        all=(
            _c("router_z_loss", "times past", 4),
            _c("router_z_loss", "sigma above past", 8),
        ),
        causes=("router-logits-grow",),
    ),
    DomainSign(
        id="tokens-dropped",
        title="experts have no room for many tokens",
        kind="expert-imbalance",
        way="up",
        all=(
            _c("dropped_tokens", "over", 0.05),
            _c("dropped_tokens", "times past", 2.5),
            _c("dropped_tokens", "sigma above past", 8),
        ),
        causes=("load-balancing-too-weak",),
    ),
)

_PRECISION: tuple[DomainSign, ...] = (
    DomainSign(
        id="overflow-grows",
        title="ever more elements lie beyond the range of the number format",
        kind="precision-overflow",
        way="up",
        all=(
            _c("overflow_share", "times past", 4),
            _c("overflow_share", "over", 1e-3),
            _c("overflow_share", "sigma above past", 8),
        ),
        causes=("low-precision-overflow",),
    ),
    DomainSign(
        id="amax-grows",
        title="the largest values of the cast tensors grow many times",
        kind="precision-overflow",
        way="up",
        all=(_c("amax", "times past", 5), _c("amax", "sigma above past", 8)),
        causes=("activation-outliers", "low-precision-overflow"),
    ),
    DomainSign(
        id="fp8-scale-falls",
        title="the scale of fp8 falls, as the values it must cover grow",
        kind="precision-overflow",
        way="down",
        all=(_c("fp8_scale", "share of best", 0.1), _c("fp8_scale", "sigma below best", 6)),
        causes=("activation-outliers", "low-precision-overflow"),
    ),
    DomainSign(
        id="underflow-grows",
        title="ever more elements become zero in the number format",
        kind="precision-underflow",
        way="up",
        all=(
            _c("underflow_share", "times past", 2.5),
            _c("underflow_share", "over", 0.02),
            _c("underflow_share", "sigma above past", 8),
        ),
        # Where there is little left to learn, gradients are small and lack nothing.
        unless=(_c("loss", "share of best", 0.1),),
        causes=("low-precision-underflow",),
    ),
    DomainSign(
        id="fallback-grows",
        title="more and more products run in higher precision because the low one does not fit",
        kind="precision-overflow",
        way="up",
        all=(
            _c("precision_fallback", "times past", 3),
            _c("precision_fallback", "over", 0.02),
            _c("precision_fallback", "sigma above past", 8),
        ),
        causes=("activation-outliers",),
    ),
    DomainSign(
        id="updates-lost",
        title="most updates are too small to change a weight in its number format",
        kind="precision-underflow",
        way="up",
        all=(
            _c("lost_updates", "over", 0.5),
            _c("lost_updates", "sigma above start", 6),
        ),
        causes=("updates-lost-to-rounding",),
    ),
    DomainSign(
        id="updates-vanish",
        title="updates vanish against the weights although the learning rate does not fall",
        kind="precision-underflow",
        way="down",
        all=(
            _c("update_ratio", "share of best", 0.1),
            _c("update_ratio", "sigma below best", 6),
            _c("lr", "logged"),
        ),
        # Near its minimum the gradient shrinks, and with it what Adam writes.
        unless=(_c("lr", "share of best", 0.5), _c("update_ratio", "falls with", other="loss")),
        causes=("updates-lost-to-rounding",),
    ),
    DomainSign(
        id="quantization-error-grows",
        title="the cast to low precision loses ever more",
        kind="precision-overflow",
        way="up",
        all=(
            _c("quantization_error", "times past", 3),
            _c("quantization_error", "sigma above past", 8),
        ),
        causes=("activation-outliers", "low-precision-overflow"),
    ),
)

_GAN: tuple[DomainSign, ...] = (
    DomainSign(
        id="discriminator-wins",
        title="the discriminator wins, so the generator gets no gradient",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("discriminator_loss", "share of best", 0.1),
            _c("discriminator_loss", "sigma below best", 6),
            _c("discriminator_loss", "under", 0.15),
            _c("generator_loss", "times start", 2),
        ),
        # A critic without a bound has losses below 0.
        unless=(_c("discriminator_loss", "under", -0.05),),
        causes=("discriminator-too-strong",),
    ),
    DomainSign(
        id="generator-left-behind",
        title="the generator's loss leaps and grows on while the discriminator's falls",
        kind="signal-abnormal",
        way="up",
        all=(
            _c("generator_loss", "times past", 3.0),
            _c("generator_loss", "sigma above past", 12),
            _c("generator_loss", "leapt and grows", 1.15),
            _c("discriminator_loss", "share of past", 0.5),
            _c("discriminator_loss", "sigma below best", 8),
        ),
        unless=(_c("discriminator_loss", "under", -0.05),),
        min_rows=48,
        causes=("discriminator-too-strong",),
    ),
    DomainSign(
        id="discriminator-won",
        title="the discriminator has won from the start, and the generator's loss grows on",
        kind="signal-abnormal",
        way="down",
        all=(
            # A critic without a bound has losses below 0, which are no floor.
            _c("discriminator_loss", "lies at zero", 0.02),
            _c("generator_loss", "rises on", 2.0),
            _c("generator_loss", "times start", 1.5),
        ),
        min_rows=48,
        causes=("discriminator-too-strong",),
    ),
    DomainSign(
        id="discriminator-certain",
        title="the discriminator tells real from generated samples with certainty",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("d_fake", "under", 0.02),
            _c("d_real", "over", 0.97),
            _c("d_fake", "was over", 0.1),
        ),
        # A critic's outputs are no probabilities.
        unless=(_c("d_fake", "under", -0.01), _c("d_real", "over", 1.01)),
        causes=("discriminator-too-strong",),
    ),
    DomainSign(
        id="generator-wins",
        title="the generator wins: the discriminator no longer teaches it",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("generator_loss", "share of best", 0.1),
            _c("generator_loss", "sigma below best", 6),
            _c("discriminator_loss", "times start", 2),
        ),
        causes=("mode-collapse",),
    ),
    DomainSign(
        id="diversity-collapses",
        title="generated samples become alike",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("sample_diversity", "share of best", 0.4),
            _c("sample_diversity", "sigma below best", 6),
        ),
        causes=("mode-collapse",),
    ),
    DomainSign(
        id="gradient-penalty-explodes",
        title="the discriminator's gradient penalty explodes",
        kind="signal-abnormal",
        way="up",
        all=(
            _c("gradient_penalty", "times past", 8),
            _c("gradient_penalty", "sigma above past", 8),
        ),
        any=_any_logged("discriminator_loss", "generator_loss"),
        causes=("discriminator-too-strong",),
    ),
)

_VAE: tuple[DomainSign, ...] = (
    DomainSign(
        id="posterior-collapse",
        title="the latent code holds nothing any more, and the reconstruction is worse for it",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("latent_kl", "under", 0.5),
            _c("latent_kl", "share of best", 0.05),
            _c("latent_kl", "sigma below best", 6),
            # A divergence that a growing weight presses down costs some reconstruction, too.
            _c("recon_loss", "sigma above lowest", 6),
        ),
        min_rows=32,
        checks=1,
        causes=("posterior-collapse",),
    ),
    DomainSign(
        id="posterior-unused",
        title="the latent code holds less and less from the start, and the reconstruction stands",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("latent_kl", "lies at zero", 0.05),
            _c("latent_kl", "share of best", 0.05),
            _c("recon_loss", "stays within", 0.1),
            # By itself a small divergence may be one of each dimension, or weighted.
            _c("kl_weight", "over", 1.5),
        ),
        min_rows=32,
        causes=("posterior-collapse",),
    ),
)

_SSL: tuple[DomainSign, ...] = (
    DomainSign(
        id="representation-collapse",
        title="representations of different inputs become the same",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("embedding_std", "share of best", 0.03),
            _c("embedding_std", "sigma below best", 6),
        ),
        min_rows=24,
        causes=("representation-collapse",),
    ),
    DomainSign(
        id="representation-of-one",
        title="all inputs agree in full, and their representations come together",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("embedding_std", "share of best", 0.5),
            # Minus the cosine of two views: at -1 they are one.
            _c("loss", "under", -0.97),
        ),
        min_rows=24,
        causes=("representation-collapse",),
    ),
)

_DIFFUSION: tuple[DomainSign, ...] = (
    DomainSign(
        id="ema-loss-apart",
        title="the averaged weights get worse while the trained ones do not",
        kind="signal-abnormal",
        way="up",
        all=(
            _c("ema_loss", "times lowest", 1.2),
            _c("ema_loss", "sigma above lowest", 4),
        ),
        min_rows=8,
        causes=("averaged-weights-broken",),
    ),
    DomainSign(
        id="ema-loss-stands",
        title="the averaged weights learn nothing while the trained ones do",
        kind="signal-abnormal",
        way="up",
        all=(_c("ema_loss", "stays within", 0.05),),
        any=(
            _c("ema_loss", "times other", 1.5, "val_loss"),
            _c("ema_loss", "times other", 1.5, "loss"),
        ),
        min_rows=10,
        causes=("averaged-weights-broken",),
    ),
    DomainSign(
        id="fid-rises",
        title="samples get worse than they have been",
        kind="signal-abnormal",
        way="up",
        all=(_c("fid", "times lowest", 1.3), _c("fid", "sigma above lowest", 4)),
        min_rows=8,
        causes=("samples-degrade",),
    ),
    DomainSign(
        id="low-noise-loss-rises",
        title="the loss at little noise rises while the others hide it",
        kind="signal-abnormal",
        way="up",
        all=(
            _c("low_noise_loss", "times lowest", 1.3),
            _c("low_noise_loss", "sigma above past", 8),
        ),
        causes=("noise-schedule",),
    ),
    DomainSign(
        id="high-noise-loss-rises",
        title="the loss at much noise rises while the others hide it",
        kind="signal-abnormal",
        way="up",
        all=(
            _c("high_noise_loss", "times lowest", 1.3),
            _c("high_noise_loss", "sigma above past", 8),
        ),
        causes=("noise-schedule",),
    ),
)

_SFT: tuple[DomainSign, ...] = (
    DomainSign(
        id="tokens-all-known",
        title="nearly every token is predicted: the examples are known by heart",
        kind="too-good",
        way="up",
        all=(
            _c("token_accuracy", "over", 0.985),
            _c("token_accuracy", "was under", 0.95),
        ),
        causes=("fine-tune-memorised",),
    ),
    DomainSign(
        id="token-accuracy-falls",
        title="fewer tokens are predicted than before",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("token_accuracy", "share of best", 0.85),
            _c("token_accuracy", "sigma below best", 8),
        ),
        causes=("forgetting",),
    ),
)

_SUPERVISED: tuple[DomainSign, ...] = (
    DomainSign(
        id="score-lost",
        title="the held-out score falls and stays down",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("eval_score", "sigma below best", 8),
            _c("eval_score", "lost of the gain", 0.5),
            _c("eval_score", "share of best", 0.85),
        ),
        # An agent falls and learns again, and its rewards are judged by themselves; of a loss that
        # rises the rules of the loss tell.
        unless=(_c("loss", "sigma above past", 4), *_any_logged(*_ROLLOUTS, "policy_entropy")),
        min_rows=8,
        checks=4,
        causes=("evaluation-differs", "overfitting"),
    ),
    DomainSign(
        id="error-back",
        title="the held-out error rises and stays up",
        kind="signal-abnormal",
        way="up",
        all=(
            _c("eval_error", "sigma above lowest", 8),
            _c("eval_error", "gave the gain back", 0.5),
            _c("eval_error", "times lowest", 1.2),
        ),
        unless=(_c("loss", "sigma above past", 4),),
        min_rows=8,
        checks=4,
        causes=("evaluation-differs", "overfitting"),
    ),
    DomainSign(
        id="accuracy-lost",
        title="the accuracy falls and stays down while the loss does not rise",
        kind="signal-abnormal",
        way="down",
        all=(
            _c("accuracy", "sigma below best", 12),
            _c("accuracy", "lost of the gain", 0.5),
            _c("accuracy", "share of best", 0.6),
            # That of a guess among many classes is no accuracy to lose.
            _c("accuracy", "past over", 0.3),
        ),
        unless=(_c("loss", "sigma above past", 4), *_any_logged(*_ROLLOUTS, "policy_entropy")),
        checks=4,
        causes=("evaluation-differs", "overfitting"),
    ),
    DomainSign(
        id="score-zero",
        title="every held-out score is exactly 0 and the loss stays: nothing is learned",
        kind="never-learns",
        way="down",
        all=(_c("eval_score", "is zero"), _c("loss", "stays within", 0.02)),
        unless=_any_logged(*_ROLLOUTS, "policy_entropy"),
        min_rows=8,
        causes=("chance-from-start",),
    ),
)

DOMAIN_SIGNS: Mapping[str, tuple[DomainSign, ...]] = {
    "rl": _RL,
    "preference": _PREFERENCE,
    "moe": _MOE,
    "low-precision": _PRECISION,
    "gan": _GAN,
    "vae": _VAE,
    "self-supervised": _SSL,
    "diffusion": _DIFFUSION,
    "sft": _SFT,
    "supervised": _SUPERVISED,
}
"""Kind of training -> its signs."""

SIGN_BY_ID: Mapping[str, DomainSign] = {s.id: s for signs in DOMAIN_SIGNS.values() for s in signs}

SIGN_CAUSES: Mapping[str, tuple[str, ...]] = {
    **{s.id: s.causes for s in SIGN_BY_ID.values()},
    # Told by detectors of their own.
    "policy-break": ("policy-update-too-large",),
    "reward-flat": ("reward-not-learned",),
    "reward-sinks": ("policy-update-too-large",),
    "accuracy-sinks": ("forgetting",),
    "runaway": ("discriminator-too-strong",),
    "agent-loss": ("policy-update-too-large", "value-loss-explosion"),
}
"""Sign -> ids of causes that it speaks for, the likeliest first."""

DOMAIN_DETECTORS: tuple[DomainDetector, ...] = tuple(
    DomainDetector(name=f"signs-{domain}", signs=signs) for domain, signs in DOMAIN_SIGNS.items()
)
"""One detector for each kind of training: a run that logs none of its signals does not pay for it.
"""
