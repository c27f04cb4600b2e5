"""Causes of trouble in RL, preference training, MoE, low precision, GANs, diffusion, fine-tuning.

Each is lifted by the signs that speak for it (`trimtab.detectors.domain_signs`) and practically
excluded without one, as the causes of `plain_causes` are: the prior 0.0004 times e^11 outweighs
every other cause. Of several causes of one sign the one that the sign names first leads.
"""

from collections.abc import Callable

from trimtab.detectors.domain_signs import SIGN_CAUSES
from trimtab.diagnosis import evidence as e
from trimtab.diagnosis.cause_entry import CauseEntry
from trimtab.diagnosis.evidence import EvidenceRule
from trimtab.diagnosis.features import Features

__all__ = ["DOMAIN_CAUSES"]

_PRIOR = 0.0004
_LIFT = 11.0
"""Nats that a sign gives the cause that it names first."""
_STEP = 1.2
"""Nats less for each further place in the list of a sign."""


def _strength(cause: str) -> Callable[[Features], float]:
    """Return the strength of the signs that speak for a cause: 1 for one that names it first."""

    def strength(f: Features) -> float:
        places = [SIGN_CAUSES[s].index(cause) for s in f.signs if cause in SIGN_CAUSES.get(s, ())]
        if not places:
            return 0.0
        # Each further sign that names the cause first adds half a place.
        more = 0.5 * (sum(place == 0 for place in places) - 1)
        return 1.0 + (_STEP / _LIFT) * (max(more, 0.0) - min(places))

    return strength


def _cause(
    name: str,
    title: str,
    says: str,
    test: str,
    remedies: tuple[str, ...],
    *look_alikes: str,
    not_with: str = "",
) -> CauseEntry:
    """Return a row of the table; `not_with` is a sign that speaks against it."""
    strength = _strength(name)
    return CauseEntry(
        id=name,
        title=title,
        modes=(),
        prior=_PRIOR,
        rules=(
            EvidenceRule("sign", strength, _LIFT, says + ": {f.sign_texts}"),
            EvidenceRule(
                "no-sign",
                lambda f: e.yes(strength(f) == 0),
                -8.0,
                "no signal that the run logs shows it",
            ),
            EvidenceRule(
                "other-sign",
                lambda f: e.yes(not_with in f.signs),
                -2.0,
                "another cause explains more of what is seen",
            ),
        ),
        look_alikes=look_alikes,
        test=test,
        remedies=remedies,
        go_back="always" if "roll-back" in remedies else "never",
    )


DOMAIN_CAUSES: tuple[CauseEntry, ...] = (
    _cause(
        "entropy-collapse",
        "exploration dies: the policy settles on few answers",
        "the policy's entropy is nearly used up",
        "sample one prompt 16 times at the training temperature and count the different answers",
        ("raise-upper-bound", "entropy-bonus", "sampling-temperature", "roll-back"),
        "no-learning-signal",
    ),
    _cause(
        "policy-drift",
        "the policy leaves its reference: KL penalty too weak, or learning rate too high",
        "the divergence from the reference grows ever faster",
        "replay from before the onset at twice the KL coefficient, beside one at half the rate",
        ("raise-kl-penalty", "lower-lr", "roll-back"),
        "reward-hacking",
        "policy-update-too-large",
        not_with="kl-hacking",
    ),
    _cause(
        "reward-hacking",
        "the policy exploits the reward instead of the task",
        "the reward and what it should stand for part ways",
        "read 20 answers with the highest reward, and score 200 held-out ones by another judge",
        ("repair-reward", "raise-kl-penalty", "length-penalty", "roll-back"),
        "policy-drift",
        "length-explosion",
    ),
    _cause(
        "reward-scale",
        "the scale of the reward changed: no normalization, or outliers of the reward model",
        "rewards or advantages spread many times wider",
        "plot the rewards of one batch before and one after the onset",
        ("normalize-rewards", "repair-reward", "lower-lr"),
        "reward-hacking",
    ),
    _cause(
        "length-explosion",
        "answers grow without end: nothing limits or ends them",
        "answers grow, or are cut at the limit",
        "read 20 answers that were cut at the limit: repetition means that the end token is lost",
        ("length-penalty", "filter-overlong", "roll-back"),
        "reward-hacking",
    ),
    _cause(
        "length-collapse",
        "answers shrink: the reward or the penalty favors ending at once",
        "answers become far shorter while the reward gains nothing",
        "read 20 of the shortest answers and their rewards",
        ("repair-reward", "length-penalty", "roll-back"),
        "reward-hacking",
    ),
    _cause(
        "policy-update-too-large",
        "updates of the policy are too large: learning rate, epochs per batch, or stale rollouts",
        "single updates move the policy too far",
        "replay from before the onset at half the learning rate and one epoch per batch",
        ("lower-lr", "bound-updates", "fewer-policy-epochs", "roll-back"),
        "policy-drift",
        "train-inference-mismatch",
        not_with="kl-blow-up",
    ),
    _cause(
        "no-learning-signal",
        "no learning signal: prompts too hard or too easy for the policy",
        "rollouts of one prompt no longer differ in reward",
        "print the share of prompts that all rollouts solve, and the share that none solves",
        ("filter-prompts", "harder-or-easier-data", "sampling-temperature"),
        "entropy-collapse",
    ),
    _cause(
        "reward-not-learned",
        "nothing of the reward is learned: its scale, its rarity, or a critic that learns nothing",
        "the reward stays where it began",
        (
            "print observations, actions, rewards and returns of ten episodes; train on a task of"
            " the same shape that is known to be solved"
        ),
        ("normalize-rewards", "entropy-bonus", "lower-critic-lr"),
        "no-learning-signal",
    ),
    _cause(
        "train-inference-mismatch",
        "the inference engine and the trainer compute different probabilities",
        "trainer and inference engine disagree",
        (
            "compute the log-probabilities of one rollout with both, token by token: precision,"
            " kernels, sampling settings or stale weights"
        ),
        ("correct-mismatch", "match-precision", "roll-back"),
        "policy-update-too-large",
    ),
    _cause(
        "value-loss-explosion",
        "the critic fails: its rate, or returns that it is not scaled for",
        "the critic no longer follows the returns",
        "log the returns beside the values of one batch; train the critic alone for 50 steps",
        ("normalize-rewards", "lower-critic-lr", "roll-back"),
        "reward-scale",
    ),
    _cause(
        "likelihood-displacement",
        "margins are bought by pushing both answers down",
        "chosen answers lose probability while margins grow",
        "log the log-probability of the chosen answers on 100 held-out pairs",
        ("chosen-nll", "raise-beta", "lower-lr", "filter-similar-pairs"),
        "policy-drift",
    ),
    _cause(
        "preference-not-learned",
        "preferences are not learned: labels at random, rate too low, or chosen equals rejected",
        "accuracy stays at chance",
        "read 20 pairs; overfit 32 of them: accuracy below 1 after 100 steps means a bug",
        ("check-pairs", "raise-lr"),
        "preferences-swapped",
    ),
    _cause(
        "preferences-swapped",
        "chosen and rejected are swapped, in the data or in the loss",
        "rejected answers win",
        "read 20 pairs beside their rewards",
        ("check-pairs",),
        "preference-not-learned",
    ),
    _cause(
        "router-collapse",
        "the router collapses: balancing too weak for its learning rate",
        "the router chooses ever fewer experts",
        "log the load of each expert of the layer with the lowest entropy for 20 steps",
        ("raise-balancing", "router-z-loss", "router-fp32", "lower-lr", "roll-back"),
        "load-balancing-too-weak",
        "dead-experts",
    ),
    _cause(
        "dead-experts",
        "experts die: they get no tokens, so no gradient, so no tokens",
        "experts get practically no tokens",
        "list the experts without tokens over 100 batches, by layer",
        ("raise-balancing", "router-noise", "bias-balancing"),
        "router-collapse",
    ),
    _cause(
        "load-balancing-too-weak",
        "the load is balanced too weakly, or over too few tokens",
        "the load leaves an even one",
        "compute the load over the global batch, beside that over one micro-batch",
        ("raise-balancing", "bias-balancing", "raise-capacity"),
        "router-collapse",
    ),
    _cause(
        "balancing-off",
        "the balancing loss is off, masked away, or not logged",
        "the balancing loss is practically 0, and an even load gives its weight times 1",
        "print its weight and its value for one batch before it is added to the loss",
        ("raise-balancing", "repair-logging"),
        "router-collapse",
    ),
    _cause(
        "router-logits-grow",
        "the router's logits grow, so its softmax saturates and loses precision",
        "the router's z-loss grows",
        "log the largest router logit by layer for 20 steps",
        ("router-z-loss", "router-fp32", "lower-lr"),
        "router-collapse",
    ),
    _cause(
        "low-precision-overflow",
        "values exceed the range of the number format",
        "elements lie beyond the format's range",
        "run the same 20 steps in bf16 from before the onset: if they go well, it is the format",
        ("bf16-layers", "scale-margin", "lower-lr", "roll-back"),
        "activation-outliers",
    ),
    _cause(
        "low-precision-underflow",
        "values are too small for the number format",
        "elements become zero in the format",
        "run the same 20 steps in bf16 and compare the gradient norms by layer",
        ("bf16-layers", "gradients-e5m2", "loss-scaler-reset"),
        "updates-lost-to-rounding",
    ),
    _cause(
        "activation-outliers",
        "outliers of the activations grow, so a shared scale fits them and nothing else",
        "the largest values grow while the typical ones do not",
        "log amax over the root mean square of each tensor by layer: the first that rises",
        ("bf16-layers", "finer-scaling", "qk-norm", "weight-decay"),
        "low-precision-overflow",
    ),
    _cause(
        "updates-lost-to-rounding",
        "updates are lost to rounding: weights kept in 16 bits",
        "updates are too small to change the weights",
        "compare the weights before and after ten steps: the share that did not change",
        ("fp32-master-weights", "stochastic-rounding"),
        "low-precision-underflow",
    ),
    _cause(
        "discriminator-too-strong",
        "the discriminator is too strong for the generator",
        "the discriminator wins",
        "train ten steps of the generator alone and see whether its loss falls",
        ("weaken-discriminator", "gradient-penalty", "lower-lr"),
        "mode-collapse",
    ),
    _cause(
        "mode-collapse",
        "mode collapse: the generator makes few kinds of samples",
        "samples become alike, or the discriminator stops teaching",
        "generate 64 samples from different noise and look at them",
        ("sample-diversity", "gradient-penalty", "roll-back"),
        "discriminator-too-strong",
    ),
    _cause(
        "posterior-collapse",
        "posterior collapse: the decoder does without the latent code",
        "the divergence from the prior vanishes",
        "decode two different codes: alike outputs mean that the decoder does not read them",
        ("anneal-divergence", "roll-back"),
        "mode-collapse",
    ),
    _cause(
        "representation-collapse",
        "collapse of the representations: every input is mapped to the same",
        "representations of different inputs come together",
        "embed 256 different inputs and print the standard deviation of each dimension",
        ("keep-apart", "roll-back"),
        "mode-collapse",
    ),
    _cause(
        "averaged-weights-broken",
        "the averaged weights are not what they should be: decay, start or restore of the average",
        "the averaged weights get worse",
        "evaluate the trained and the averaged weights of one checkpoint on the same batches",
        ("repair-ema",),
        "samples-degrade",
    ),
    _cause(
        "samples-degrade",
        "samples get worse though the loss does not show it",
        "the distance of the samples from the data grows",
        "generate with the same noise from the best and from the last checkpoint",
        ("roll-back", "lower-lr"),
        "averaged-weights-broken",
    ),
    _cause(
        "noise-schedule",
        "part of the noise levels is not learned: weighting or schedule of the noise",
        "the loss of part of the timesteps rises",
        "plot the loss by timestep before and after the onset",
        ("loss-weighting", "lower-lr"),
        "samples-degrade",
    ),
    _cause(
        "fine-tune-memorised",
        "the examples are learned by heart: too many epochs, or a set that is too small",
        "nearly every token is predicted",
        "evaluate on examples that were held out",
        ("fewer-epochs", "lower-lr"),
        "repeated-data",
    ),
    _cause(
        "forgetting",
        "what was known is forgotten: other data, wrong template, or a rate too high",
        "less is answered rightly",
        "evaluate the checkpoint before the onset on the batches after it",
        ("lower-lr", "check-pairs", "roll-back"),
        "code-or-resume-change",
    ),
)
