"""Rules that a config cannot answer.

Measured on the model, the optimizer and the ranks themselves.
"""

from trimtab.config_rules.rules.rule import ConfigRule

__all__ = ["MODEL_RULES"]

MODEL_RULES: tuple[ConfigRule, ...] = (
    ConfigRule(
        id="UNTOUCHED",
        title="every trainable parameter learns",
        topic="init",
        elsewhere="audit",
        why=(
            "a parameter that is frozen, unused or not in the optimizer stays at its first value"
            " and no loss curve says so"
        ),
        source="OPT-175B logbook (positions that never moved)",
        cost="none",
        when="from scratch",
    ),
    ConfigRule(
        id="LOSS0",
        title="the first loss is ln V",
        topic="init",
        elsewhere="audit",
        why=(
            "a fresh model knows nothing: every token has the same chance. A larger loss is a too"
            " large init, a smaller one a leak of the target"
        ),
        source="Karpathy, A recipe for training neural networks",
        cost="a restart from step 0",
        when="from scratch",
    ),
    ConfigRule(
        id="CAUSAL",
        title="no token is seen before its time",
        topic="operations",
        elsewhere="audit",
        why=(
            "without a causal mask the target lies in the input: the loss falls far below that of"
            " any other model, and the model cannot write"
        ),
        source="Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3",
        cost="a restart from step 0",
        when="from scratch",
    ),
    ConfigRule(
        id="LOWP",
        title="no module loses its result in low precision",
        topic="precision",
        elsewhere="audit",
        why=(
            "an overflow or a lost digit in one module is everyone's after it; ranked, the worst is"
            " seen first"
        ),
        source="Mixed precision training (arXiv:1710.03740)",
        cost="slower: that module in fp32",
        when="mid-run",
    ),
    ConfigRule(
        id="PARITY",
        title="every layout computes the same",
        topic="operations",
        elsewhere="smoke",
        why=(
            "OPT and BLOOM each trained with a tensor-parallel bug that one step beside a single"
            " process shows"
        ),
        source="OPT-175B logbook; BLOOM chronicles",
        cost="a minute",
        when="from scratch",
    ),
    ConfigRule(
        id="REPLICA",
        title="replicated parameters are equal on all ranks",
        topic="operations",
        elsewhere="smoke",
        why=(
            "BLOOM's layer norms differed between tensor-parallel ranks, unnoticed until a"
            " checkpoint was merged"
        ),
        source="BLOOM chronicles",
        cost="a small reduction each N steps",
        when="mid-run",
    ),
)
