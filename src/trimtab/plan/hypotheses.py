"""Why a run keeps failing: hypotheses that large public runs tested, ordered by cost and prior.

Each is a guided test: which run to launch, what each outcome means, and which hypotheses it
excludes. The order of BigScience's 104B series: other data, fp32, beta2, redesign. Costs and priors
are data; `edited` takes them from a table of the user's.

References:
    BigScience tr8-104B chronicles and lessons learned (bigscience-workshop/bigscience).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from trimtab.errors import ConfigError

__all__ = [
    "HYPOTHESES",
    "Guided",
    "Hypothesis",
    "Launch",
    "aspect_ratio",
    "edited",
    "guided_test",
    "in_cost_order",
    "still_open",
    "weighed",
]

Stage = Literal["mid-run", "from scratch", "either"]


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One thing that may be to blame."""

    id: str
    title: str
    cost: float
    """Of testing it, in runs of a few hundred steps. Ours."""
    prior: float
    """How often it was it, 0 to 1, before anything is known. Ours, read off the public runs."""
    probe: str
    """What to look at, or to run."""
    stage: Stage
    """Whether the test continues a checkpoint or needs a new run."""
    change: Mapping[str, str]
    """Setting by canonical name to what the test sets.

    `+1` counts up from the config's own, `x0.5` halves it.
    """
    heals: str
    """What it says where the changed run goes well and the unchanged one fails."""
    fails: str
    """What it says where both fail."""
    within: str = ""
    """Id of the hypothesis that it is a part of."""
    config: tuple[str, ...] = ()
    """What a check of the config says that speaks for it."""

    @property
    def order(self) -> float:
        """Cost for each chance of being right; smaller comes first."""
        return self.cost / self.prior


HYPOTHESES: tuple[Hypothesis, ...] = (
    Hypothesis(
        id="data",
        title="the data at that place",
        cost=1.0,
        prior=0.4,
        probe=(
            "the same checkpoint twice: with the run's own seed, and with another (which"
            " regenerates index files and shuffles anew)"
        ),
        stage="mid-run",
        change={"seed": "+1"},
        heals="the data of that place, under this state: leave the window out",
        fails="not the order of the data",
    ),
    Hypothesis(
        id="rate",
        title="the learning rate",
        cost=1.5,
        prior=0.3,
        probe="the same checkpoint at half the rate, beside the same steps at the full one",
        stage="mid-run",
        change={"lr": "x0.5"},
        heals="the rate: keep the lower one",
        fails="not the rate alone: a half is too high, too, or it is something else",
    ),
    Hypothesis(
        id="init",
        title="the scale of the initial weights",
        cost=3.0,
        prior=0.2,
        probe=(
            "the first few hundred steps from scratch with std sqrt(2 / (5 x hidden size)), and the"
            " grad norm of both"
        ),
        stage="from scratch",
        change={"init_std": "sqrt(2 / (5 x hidden size))"},
        heals="initialization: start again with the smaller one",
        fails="not initialization",
    ),
    Hypothesis(
        id="fp16",
        title="the number format",
        cost=1.5,
        prior=0.25,
        probe="the same checkpoint for 200 steps in fp32",
        stage="mid-run",
        change={"dtype": "fp32"},
        heals="fp16: then softmax, attention and loss scale, one by one; bf16 is the cure",
        fails="not fp16: no need to look at softmax, attention and loss scale",
    ),
    Hypothesis(
        id="softmax",
        title="softmax in half precision",
        cost=0.5,
        prior=0.1,
        within="fp16",
        probe=(
            "largest attention logit per layer, and one step with softmax in fp32"
            " (--attention-softmax-in-fp32)"
        ),
        stage="mid-run",
        change={"softmax_dtype": "fp32"},
        heals="softmax overflows: keep it in fp32",
        fails="not softmax",
    ),
    Hypothesis(
        id="attention",
        title="the implementation of attention",
        cost=0.6,
        prior=0.1,
        within="fp16",
        probe="logits of one batch with the fused and with the plain kernel, side by side",
        stage="mid-run",
        change={"attention_kernel": "plain"},
        heals="the fused kernel: use the plain one",
        fails="not the kernel",
    ),
    Hypothesis(
        id="loss-scale",
        title="the loss scale",
        cost=0.2,
        prior=0.1,
        within="fp16",
        probe=(
            "loss scale and skipped steps over the last thousand: a scale that sinks to its floor"
        ),
        stage="mid-run",
        change={"loss_scale_min": "1", "loss_scale_window": "100"},
        heals="the scaler: reset it, lower its floor",
        fails="not the scaler",
    ),
    Hypothesis(
        id="beta2",
        title="Adam's beta2: 0.999 or 0.95",
        cost=3.0,
        prior=0.3,
        probe=(
            "largest element of Adam's second moment over the warm-up; then the same steps at 0.95"
        ),
        stage="either",
        change={"beta2": "0.95"},
        heals=(
            "the second moment is too slow for this: train at 0.95, from scratch where it can"
            " be had"
        ),
        fails="not beta2",
    ),
    Hypothesis(
        id="design",
        title="the shape: width over depth",
        cost=100.0,
        prior=0.3,
        probe="aspect ratio beside 150 to 200, and a run of another shape",
        stage="from scratch",
        change={"hidden": "narrower", "layers": "more"},
        heals="the shape",
        fails="not the shape",
    ),
)
"""Which of them comes first is `in_cost_order`'s."""


def in_cost_order(hypotheses: Iterable[Hypothesis] = HYPOTHESES) -> tuple[Hypothesis, ...]:
    """Return whole hypotheses, cheapest for their prior first; each followed by its parts.

    Example:
        >>> [h.id for h in in_cost_order() if not h.within]
        ['data', 'rate', 'fp16', 'beta2', 'init', 'design']
    """
    known = tuple(hypotheses)
    found: list[Hypothesis] = []
    # Cheapest per chance first minimizes the expected cost where each is tested until one is right.
    for whole in sorted((h for h in known if not h.within), key=lambda h: h.order):
        found.append(whole)
        found += sorted((h for h in known if h.within == whole.id), key=lambda h: h.order)
    return tuple(found)


def weighed(
    hypotheses: Sequence[Hypothesis], found: Mapping[str, Sequence[tuple[str, str]]]
) -> tuple[Hypothesis, ...]:
    """Return the hypotheses with what a check of the config found for them.

    Args:
        hypotheses: All of them.
        found: (severity, message) of the findings, by the id of the hypothesis they speak for.

    Example:
        >>> flagged = weighed(HYPOTHESES, {"rate": [("error", "7 x that of GPT-3")]})
        >>> in_cost_order(flagged)[0].id
        'rate'
    """
    return tuple(
        replace(
            h,
            prior=max(h.prior, max(_FLAGGED.get(severity, 0.0) for severity, _ in found[h.id])),
            config=tuple(message for _, message in found[h.id]),
        )
        if found.get(h.id)
        else h
        for h in hypotheses
    )


_FLAGGED = {"error": 0.8, "warning": 0.6}
"""Prior of a hypothesis that the config speaks for, by severity. Ours."""


def edited(table: Mapping[str, Mapping[str, Any]]) -> tuple[Hypothesis, ...]:
    """Return the hypotheses with costs and priors of the user's own, by id.

    Raises:
        ConfigError: An id or a key is unknown, or a value is no cost or no prior.

    Example:
        >>> [h.id for h in in_cost_order(edited({"design": {"cost": 0.1}})) if not h.within][0]
        'design'
    """
    by_id = {h.id: h for h in HYPOTHESES}
    for name, values in table.items():
        if name not in by_id:
            raise ConfigError(f"hypothesis {name!r} is none of {', '.join(by_id)}")
        for key, value in values.items():
            top = 1.0 if key == "prior" else float("inf")
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if key not in ("cost", "prior") or not number or not 0 < value <= top:
                raise ConfigError(
                    f"{name}.{key} is {value!r}, expected cost above 0 or prior above 0 and at"
                    " most 1"
                )
            held = by_id[name]
            cost, prior = (
                float(value) if key == k else getattr(held, k) for k in ("cost", "prior")
            )
            by_id[name] = replace(held, cost=cost, prior=prior)
    return tuple(by_id.values())


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One run of a guided test."""

    name: str
    settings: Mapping[str, str]
    """The whole config."""
    changed: Mapping[str, tuple[str, str]]
    """Key to what it was and is; the reason it is launched."""


@dataclass(frozen=True, kw_only=True)
class Guided:
    """A test with its two launches and what their outcomes say."""

    hypothesis: Hypothesis
    launches: tuple[Launch, Launch]
    """The control, which changes nothing, and the test."""
    verdicts: tuple[tuple[str, str, str], ...]
    """(the control, the test, what it says)."""


def guided_test(
    hypothesis: Hypothesis, config: Mapping[str, str], keys: Mapping[str, str] | None = None
) -> Guided:
    """Return the two configs to launch and the table of verdicts.

    Args:
        hypothesis: What is asked.
        config: The run's settings by its own keys.
        keys: Canonical name to the config's own key, where they differ.

    Example:
        >>> data = next(h for h in HYPOTHESES if h.id == "data")
        >>> [dict(run.settings) for run in guided_test(data, {"seed": "42", "lr": "6e-5"}).launches]
        [{'seed': '42', 'lr': '6e-5'}, {'seed': '43', 'lr': '6e-5'}]
    """
    names = keys or {}
    changed = {}
    for name, value in hypothesis.change.items():
        key = names.get(name, name)
        was = config.get(key, "not stated")
        changed[key] = (was, _tested(was, value))
    control = Launch(name="control: no change", settings=dict(config), changed={})
    test = Launch(
        name=f"test: {', '.join(f'{k} {a} to {b}' for k, (a, b) in changed.items())}",
        settings={**config, **{k: b for k, (_, b) in changed.items()}},
        changed=changed,
    )
    return Guided(
        hypothesis=hypothesis,
        launches=(control, test),
        verdicts=(
            ("fails", "goes well", hypothesis.heals),
            ("fails", "fails", hypothesis.fails),
            ("goes well", "goes well", "it did not come back: a transient fault; nothing is shown"),
            ("goes well", "fails", "the change itself does harm; inconclusive"),
        ),
    )


def _tested(was: str, value: str) -> str:
    if value == "+1":
        return _counted(was)
    if value.startswith("x"):
        try:
            return f"{float(was) * float(value[1:]):.4g}"
        except ValueError:
            return f"{value[1:]} x the present one"
    return value


def _counted(was: str) -> str:
    try:
        # Via float: some configs print a seed as 42.0.
        return str(int(float(was)) + 1)
    except ValueError:
        # No number to count from; any seed that is stated differs from one that is not.
        return "1"


def still_open(
    outcomes: Mapping[str, bool], hypotheses: Sequence[Hypothesis] = HYPOTHESES
) -> tuple[Hypothesis, ...]:
    """Return the untested hypotheses, in order.

    Tested ones are left out, and so are the parts of excluded ones.

    Args:
        outcomes: By id, whether the changed run went well.
        hypotheses: All of them.

    Example:
        >>> [h.id for h in still_open({"data": False, "fp16": False})]
        ['rate', 'beta2', 'init', 'design']
        >>> [h.id for h in still_open({"data": False, "fp16": True})]
        ['rate', 'loss-scale', 'softmax', 'attention', 'beta2', 'init', 'design']
    """
    return tuple(
        h
        for h in in_cost_order(hypotheses)
        if h.id not in outcomes and not (h.within and outcomes.get(h.within) is False)
    )


def aspect_ratio(hidden: float, layers: float) -> tuple[float, str]:
    """Return width over depth, and how it compares with the usual 150 to 200 of 100 B models.

    Example:
        >>> aspect_ratio(11600, 64)
        (181.25, 'within 150 to 200')
        >>> aspect_ratio(12288, 96)[1], aspect_ratio(16384, 32)[1]
        ('below 150: deep', 'above 200: wide')

    Raises:
        ConfigError: A size is not above 0.
    """
    if not (hidden > 0 and layers > 0):
        raise ConfigError(f"hidden {hidden:g}, layers {layers:g}: expected both above 0")
    ratio = hidden / layers
    if ratio < 150:
        return ratio, "below 150: deep"
    return ratio, "above 200: wide" if ratio > 200 else "within 150 to 200"
