"""All published rules with their defaults, and those that need more than a log of scalars."""

from benchmarks.peers.contract import Peer, Unfed
from benchmarks.peers.norm_rules import AxLearn, Cosmos, MindFormers, StabilityGuard, ZClip
from benchmarks.peers.ratio_rules import (
    Entrenar,
    FlagScale,
    InternEvo,
    KillLossSpike,
    Lightning,
    MegatronLarge,
    Metaseq,
)
from benchmarks.peers.recovery_rules import Continuity, FiniteCheck, LadderSpike, Soup
from benchmarks.peers.sigma_rules import (
    LevanterSkip,
    LevanterUpdateClip,
    SkipStep,
    StabilityMonitor,
)
from benchmarks.peers.trainscope import (
    Crossing,
    Cusum,
    Explosion,
    FrozenCusum,
    Percentile,
    ZScore,
)

__all__ = ["PEERS", "UNFED"]

PEERS: tuple[Peer, ...] = (
    KillLossSpike(),
    SkipStep(name="olmo-core skip-step, loss only", uses=()),
    SkipStep(),
    SkipStep(name="maxtext skip-on-spikes", aborts=True),
    StabilityMonitor(),
    LevanterSkip(),
    LevanterUpdateClip(),
    MegatronLarge(),
    Lightning(),
    ZClip(),
    Cusum(),
    Cusum(name="trainscope cusum, up only", upward_only=True),
    ZScore(),
    ZScore(name="trainscope z-score, robust", robust=True),
    Percentile(),
    Crossing(),
    Explosion(),
    Metaseq(),
    FlagScale(),
    InternEvo(),
    AxLearn(),
    StabilityGuard(),
    MindFormers(),
    MindFormers(name="mindformers norm>=3", limit=3.0),
    Soup(),
    Entrenar(),
    FrozenCusum(),
    FrozenCusum(name="spc-sandbox, up only", upward_only=True),
    LadderSpike(),
    Continuity(),
    Cosmos(),
    FiniteCheck(),
)
"""Every rule that can run on what a log holds."""

UNFED: tuple[Unfed, ...] = (
    Unfed(name="palm manual restarts", why="a person saw the spikes; there is no rule to run"),
    Unfed(name="spam element clipping", why="needs each gradient element and its second moment"),
    Unfed(name="adagc", why="needs the gradient norm of each tensor"),
    Unfed(name="trainscope kurtosis", why="needs the outputs of each layer"),
    Unfed(name="trainscope expert drift", why="needs the routing of each expert"),
    Unfed(name="nvrx straggler", why="needs section times of each rank"),
    Unfed(name="dlrover straggler", why="needs check times of each node"),
    Unfed(name="axolotl loss watchdog", why="its threshold has no default: it is off"),
    Unfed(name="megatron-lm grad-norm skip", why="its threshold is infinite by default: it is off"),
    Unfed(name="metaseq ewm-ratio at its default", why="-1 switches it off; the table has 1.5"),
)
"""Rules left out, and why."""
