"""What the optimizer holds and does: its moments, the update, the settings in force."""

from __future__ import annotations

import bisect
import math
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

import torch

from trimtab.guard.distributed.sharding import copies, local
from trimtab.guard.probes.packs import (
    SMALL,
    Pack,
    absolute_sums,
    largest,
    pack,
    spread_sample,
    sums,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trimtab.guard.distributed.holders import Holders

__all__ = [
    "MOST_COPIED",
    "Kept",
    "Moments",
    "UpdateProbe",
    "below_eps",
    "checksum_of_copies",
    "kept_of",
    "kept_tensors",
    "read_moments",
    "rms_ratio",
    "settings",
    "starved",
]


FIRST = ("exp_avg", "momentum_buffer", "momentum")
"""First moments by the names under which optimizers keep them: Adam and Lion, SGD and Muon."""

SECOND = (
    "exp_avg_sq",
    "square_avg",
    "variance",
    "row_var",
    "col_var",
    "exp_avg_sq_row",
    "exp_avg_sq_col",
)
"""Running means of squares: Adam, RMSprop, Adafactor of torch and of transformers."""

_OTHER = ("max_exp_avg_sq", "exp_inf", "sum", "acc_delta")
"""What else must be finite, and none of it negative: AMSGrad, Adamax, Adagrad, Adadelta."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """The optimizer's moments of one step; of several ranks this rank's shares of the sums."""

    m_l1: float | None
    """None without first moments."""
    m_max: float | None
    """Largest absolute element of the first moment."""
    v_l1: float | None
    """None without second moments."""
    v_max: float | None
    v_max_at: str
    """Tensor that holds it; empty without."""
    broken: tuple[str, ...]
    """What makes no sense, as "NAME: what": a moment that is not finite, a second that is negative,
    a factor of a preconditioner that is not finite. In the optimizer's order."""
    v_elements: int = 0
    """Numbers in the second moments of this rank."""
    updates: float | None = None
    """Updates that the first of them has had, by the optimizer's count; None where it does not say,
    or where some are no plain means of squares, as Adam's are."""


def kept_tensors(
    parameter: torch.Tensor, held: Mapping[str, object]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) of what an optimizer keeps of a parameter and must be sound.

    By what it holds, not by its class: moments by their names, what has the parameter's shape, and
    square matrices as long as one of its sides, which Shampoo and SOAP keep. The rest may be
    scratch space.
    """
    for key, value in held.items():
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
                continue
            shape = tuple(tensor.shape)
            square = len(shape) == 2 and shape[0] == shape[1] and shape[0] in parameter.shape
            if tensor.shape == parameter.shape or key in (*FIRST, *SECOND, *_OTHER) or square:
                yield key, tensor


@dataclass(frozen=True)
class Kept:
    """What an optimizer keeps, as it was right after an update."""

    tensors: tuple[tuple[str, str, torch.Tensor], ...]
    """Parameter's name, key and tensor, in the optimizer's order."""
    seconds: tuple[tuple[str, torch.Tensor], ...]
    """Name and tensor of the second moments."""
    second: tuple[Pack, ...]
    """The second moments; empty shards left out."""
    ranges: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """Least and largest element of each pack of them, still on the device."""
    copied: Mapping[int, int]
    """How many ranks hold the same of each tensor, by its `id`."""


def kept_of(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], holders: Holders
) -> Kept | None:
    """Return what an optimizer of any class, or several as one, keeps; None where that is nothing.

    One pass over the second moments; the host reads nothing.

    Args:
        optimizer: Whose state it is.
        names: Parameter names by `id(parameter)`.
        holders: How many ranks hold the same of each parameter.
    """
    kept, copied = list[tuple[str, str, torch.Tensor]](), dict[int, int]()
    for p, state in optimizer.state.items():
        for key, tensor in kept_tensors(p, state) if isinstance(state, dict) else ():
            kept.append((names.get(id(p), "?"), key, tensor))
            copied[id(tensor)] = copies(tensor, holders.of(p))
    if not kept:
        return None
    seconds = tuple((name, t) for name, key, t in kept if key in SECOND)
    second = tuple(_packed(seconds, copied))
    ranges = tuple(torch.aminmax(p.flat) for p in second)
    return Kept(tuple(kept), seconds, second, ranges, copied)


def _packed(found: Sequence[tuple[str, torch.Tensor]], copied: Mapping[int, int]) -> list[Pack]:
    return pack([local(t) for _, t in found], [1.0 / copied[id(t)] for _, t in found])


def read_moments(optimizer: torch.optim.Optimizer, whole: Kept | None) -> Moments | None:
    """Return the moments; None for an optimizer that keeps none (yet).

    The sum of a large first moment is estimated from an even sample; extremes are exact.

    Args:
        optimizer: Counts its updates.
        whole: What it keeps; not changed since.
    """
    if whole is None:
        return None
    kept, seconds, second, ranges = whole.tensors, whole.seconds, whole.second, whole.ranges
    firsts = [(name, t) for name, key, t in kept if key in FIRST]
    others = [local(t) for _, key, t in kept if key not in FIRST and key not in SECOND]
    others = [t for t in others if t.numel()]
    first = _packed(firsts, whole.copied)
    read = [
        *absolute_sums([p.flat for p in first]),
        *largest([p.flat for p in first]),
        *sums([p.flat for p in second]),  # negative elements are reported on their own
        *(high for _, high in ranges),
        *(low for low, _ in ranges),
        *largest(others),
    ]
    counted = _count_of_updates(optimizer, kept)
    if read and isinstance(counted, torch.Tensor):
        read.append(counted)
    if not read:  # empty shards only
        return Moments(
            m_l1=0.0 if firsts else None,
            m_max=0.0 if firsts else None,
            v_l1=0.0 if seconds else None,
            v_max=0.0 if seconds else None,
            v_max_at=seconds[0][0] if seconds else "",
            broken=(),
        )
    numbers = torch.stack([t.float().to(read[0].device) for t in read]).tolist()  # one read
    updates = numbers.pop() if isinstance(counted, torch.Tensor) else counted
    rest = iter(numbers)
    m_sums, m_tops = (list(islice(rest, len(first))) for _ in range(2))
    v_sums, v_tops, v_lows = (list(islice(rest, len(second))) for _ in range(3))
    sound = all(map(math.isfinite, (*m_sums, *v_sums, *rest))) and min(v_lows, default=0.0) >= 0
    largest_at = seconds[0][0] if seconds else ""
    if v_tops:
        where = max(
            range(len(v_tops)), key=lambda i: math.inf if math.isnan(v_tops[i]) else v_tops[i]
        )
        at = second[where]
        member = bisect.bisect_right(at.ends, int(at.flat.argmax())) if len(at.members) > 1 else 0
        largest_at = seconds[at.members[member]][0]
    return Moments(
        m_l1=_share_sum(first, m_sums) if firsts else None,
        m_max=_top(m_tops) if firsts else None,
        v_l1=_share_sum(second, v_sums) if seconds else None,
        v_max=_top(v_tops) if seconds else None,
        v_max_at=largest_at,
        broken=() if sound else _broken(kept),
        v_elements=sum(len(p.flat) for p in second),
        updates=updates,
    )


def _count_of_updates(
    optimizer: torch.optim.Optimizer, kept: Sequence[tuple[str, str, torch.Tensor]]
) -> torch.Tensor | float | None:
    """Return how many updates the first state has had, a scalar tensor where it is kept as one."""
    seconds = {key for _, key, _ in kept if key in SECOND}
    if seconds != {"exp_avg_sq"}:
        return None
    count = next((s.get("step") for s in optimizer.state.values() if "exp_avg_sq" in s), None)
    if isinstance(count, torch.Tensor):
        return count.detach().reshape(()) if count.numel() == 1 else None
    return float(count) if isinstance(count, int | float) else None


def _share_sum(packs: Sequence[Pack], sums: Sequence[float]) -> float:
    return sum(p.share * x for p, x in zip(packs, sums, strict=True))


def _top(values: Sequence[float]) -> float:
    """Return the largest; NaN where there is one."""
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)


def _broken(kept: Sequence[tuple[str, str, torch.Tensor]]) -> tuple[str, ...]:
    """Name what makes no sense, tensor by tensor."""
    broken = []
    for name, key, tensor in kept:
        mine = local(tensor)
        if not bool(mine.isfinite().all()):
            broken.append(f"{name}: {key} is not finite")
        if key in (*SECOND, *_OTHER) and bool((mine < 0).any()):
            broken.append(f"{name}: {key} is negative")
    return tuple(broken)


def starved(optimizer: torch.optim.Optimizer, kept: Kept | None) -> tuple[str, ...]:
    """Return the tensors whose second moment is 0 where the gradient just used is not, by name.

    Call it after the update and before the gradients are cleared. A gradient counts only where
    (1 - beta2) g^2 is a normal number of the moment's type, which no sound update loses. One read
    of the device; only what holds a zero is looked at tensor by tensor.
    """
    if kept is None or not kept.second:
        return ()
    lowest = torch.stack([low.float().to(kept.ranges[0][0].device) for low, _ in kept.ranges])
    names = {
        id(kept.seconds[k][1]): kept.seconds[k][0]
        for p, low in zip(kept.second, lowest.tolist(), strict=True)
        if low <= 0  # NaN is told as not finite
        for k in p.members
    }
    return tuple(_starved(optimizer, names)) if names else ()


def _starved(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Iterator[str]:
    for group in optimizer.param_groups:
        betas = group.get("betas")
        if not isinstance(betas, tuple | list) or len(betas) < 2:
            continue
        for p in group["params"]:
            state: dict[str, torch.Tensor] | None = optimizer.state.get(p)
            if p.grad is None or p.grad.is_sparse or not state or "exp_avg_sq" not in state:
                continue
            name = names.get(id(state["exp_avg_sq"]))
            v, g = local(state["exp_avg_sq"]), local(p.grad)
            if name is not None and v.shape == g.shape:
                # no normal number of v's type is lost above this
                least = 2 * (torch.finfo(v.dtype).tiny / (1.0 - float(betas[1]))) ** 0.5
                if bool(((v == 0) & (g.abs().float() > least)).any()):
                    yield f"{name}: exp_avg_sq is 0 where the gradient is not"


def below_eps(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str]
) -> tuple[int, int, str, float] | None:
    """Return (how many, of how many, name, share) of Muon's matrices whose updates are too small.

    Muon divides its momentum by its norm, so that clipping does not change the size of an update;
    but only down to `eps`. Below it the update has only that share of the size that its rate
    stands for, and nothing shows it. The smallest is named; None where all are above.
    """
    found = [
        (names.get(id(p), "?"), local(held["momentum_buffer"]), float(group["eps"]))
        for group in optimizer.param_groups
        if "ns_steps" in group and isinstance(group.get("eps"), int | float)
        for p in group["params"]
        if isinstance(held := optimizer.state.get(p), dict) and "momentum_buffer" in held
    ]
    found = [(name, buffer, eps) for name, buffer, eps in found if buffer.numel() and eps > 0]
    if not found:
        return None
    norms = torch.stack([n.float() for n in torch._foreach_norm([b for _, b, _ in found])]).tolist()
    low = [
        (norm / eps, name)
        for (name, _, eps), norm in zip(found, norms, strict=True)
        if 0 < norm < eps
    ]
    if not low:
        return None
    share, name = min(low)
    return len(low), len(found), name, share


MOST_COPIED = 1 << 21
"""Elements of the weights that are kept to see an update by, of all tensors: 8 MiB in fp32."""
_JUMP = 1.5
"""Growth of a norm between two readings that counts: what prunes, swaps in an average or clips
weights lets norms shrink, or moves them by less. Ours."""
_MOST_GROWTH = 5.0
"""Times the sum of updates as large as the usual one. Ours."""
_FEWEST_UPDATES, _MOST_UPDATES = 4, 8
_FEWEST_MATRICES = 4
"""Of a model that is more than one or two layers. Ours."""
_SAMPLED = 1024
"""Elements of a tensor that its RMS ratio is read from, evenly spread."""
_MEDIAN_OF_SQUARE = 0.4549
"""Median of the square of a standard normal number."""


def rms_ratio(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> tuple[float, int] | None:
    """Return the largest typical g / sqrt(v) of a matrix, and its index in `parameters`.

    Of each tensor sqrt(median(g^2 / v) / 0.4549) over a sample of its elements, v without its bias:
    1 where g is normal with variance v. Above about 2 in one tensor Adam's second moment is behind
    the gradient, which precedes spikes (StableAdamW, 2023). That work takes the mean, which single
    elements with hardly any past rule: it reaches 1e3 in sound runs.
    Needs gradients as they are before the step; of several ranks: what is largest here.

    Args:
        optimizer: One of any class; None where it keeps no second moments yet.
        parameters: Those to look at; embeddings, whose rows are rare, left out.
    """
    beta2 = {
        id(p): float(g["betas"][1])
        for g in optimizer.param_groups
        if isinstance(g.get("betas"), tuple | list) and len(g["betas"]) > 1
        for p in g["params"]
    }
    samples, places, steps, betas = [], [], [], []
    for i, p in enumerate(parameters):
        state: dict[str, torch.Tensor] | None = optimizer.state.get(p)
        if p.grad is None or not state or "exp_avg_sq" not in state:
            continue
        if p.dim() < 2 or p.is_complex():
            continue
        g, v = local(p.grad).reshape(-1), local(state["exp_avg_sq"]).reshape(-1)
        if not g.numel() or id(p) not in beta2:
            continue
        every = max(g.numel() // _SAMPLED, 1) | 1  # odd: no column of a matrix by itself
        samples.append((g[::every], v[::every]))
        steps.append(torch.as_tensor(state.get("step", 0.0), dtype=torch.float32))
        betas.append(beta2[id(p)])
        places.append(i)
    if not samples:
        return None
    # Fused optimizers count on the device: to read each count would be to wait for it each time.
    medians = _median_squares(samples)
    counts = torch.stack([s.to(medians.device, non_blocking=True) for s in steps]).clamp(min=1.0)
    bias = 1 - torch.tensor(betas, dtype=torch.float64).to(medians.device, torch.float32) ** counts
    ratio, at = (medians * bias / _MEDIAN_OF_SQUARE).sqrt().max(dim=0)
    return float(ratio), places[int(at)]


def _median_squares(samples: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the median of g^2 / v of each sample, float32 [n]; those that are as long at once."""
    device = samples[0][0].device
    medians = torch.empty(len(samples), device=device)
    alike: dict[tuple[int, torch.dtype, torch.device], list[int]] = {}
    for i, (g, _) in enumerate(samples):
        alike.setdefault((len(g), g.dtype, g.device), []).append(i)
    for places in alike.values():
        g = torch.stack([samples[i][0] for i in places]).float()
        v = torch.stack([samples[i][1].float() for i in places])
        found = (g.square_().div_(v.add_(1e-30))).median(dim=1).values
        medians[torch.tensor(places, device=device)] = found.to(device)
    return medians


def settings(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return betas, eps and the largest weight decay as the optimizer has them now."""
    groups = optimizer.param_groups
    found: dict[str, float] = {}
    # of several optimizers the first that has betas: Muon has none, and its eps means another thing
    adam = next((g for g in groups if isinstance(g.get("betas"), tuple | list)), groups[0])
    betas = adam.get("betas")
    if isinstance(betas, tuple | list) and len(betas) >= 2:
        found["beta1"], found["beta2"] = float(betas[0]), float(betas[1])
    if isinstance(adam.get("eps"), int | float) and "ns_steps" not in adam:
        found["adam_eps"] = float(adam["eps"])
    decays = [g["weight_decay"] for g in groups if isinstance(g.get("weight_decay"), int | float)]
    if decays:
        found["weight_decay"] = float(max(decays))
    return found


def checksum_of_copies(shared: Sequence[torch.Tensor]) -> float:
    """Return a number that is the same on all ranks as long as what they hold alike is alike.

    The sum of the norms of such parameters: what a float32 norm can see of a difference. 0 where
    there are none.
    """
    if not shared:
        return 0.0
    norms = torch._foreach_norm([p.detach() for p in shared])
    return float(torch.stack([n.double() for n in norms]).sum())


class UpdateProbe:
    """L2 norm of what an optimizer step really changed, and matrices that others changed."""

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        holders: Holders,
        rate: Callable[[], float] = lambda: math.nan,
    ) -> None:
        """Watch these parameters, of which so many ranks hold the same, trained at a rate."""
        self._rate = rate
        self._parameters = [p for p in parameters if p.requires_grad]
        self._holders = holders
        self._shares: list[float] = []
        """What this rank's part of each counts in a sum over all ranks; as of `before`."""
        self._before: list[Pack] | None = None
        self._matrices = [p for p in self._parameters if p.dim() > 1]
        self._norms: list[tuple[int, torch.Tensor]] = []
        """Of the matrices at the last two readings, with the step."""
        self._rates = (math.nan, math.nan)
        """Learning rates of these readings."""
        self._updates: deque[tuple[float, float]] = deque(maxlen=_MOST_UPDATES)
        """Norm of what this rank saw of each update, and its learning rate."""
        self.scale: float | None = None
        """Norm of the matrices by that of weights of variance 1 / fan-in, read at the first step;
        None at others, and of models of few matrices."""
        self.jump = 1.0
        """By what the norm of a matrix has grown since the last reading, far more than updates
        do; 1: by no more."""

    def before(self, step: int = 0) -> None:
        """Remember the parameters as they are, this rank's shards of them."""
        if self._matrices:
            norms = torch._foreach_norm([local(p.detach()) for p in self._matrices])
            self._norms = [*self._norms[-1:], (step, torch.stack([n.float() for n in norms]))]
            self._rates = (self._rates[1], self._rate())
            self.scale = self._scale_at_first() if step == 1 else None
        self._shares = [1.0 / copies(p, self._holders.of(p)) for p in self._parameters]
        self._before = [
            p if len(p.members) > 1 else replace(p, flat=p.flat.clone())
            for p in self._thinned(self._packed())
        ]

    def _scale_at_first(self) -> float | None:
        if len(self._matrices) < _FEWEST_MATRICES:
            return None
        natural = sum(local(p).numel() / max(p[0].numel(), 1) for p in self._matrices)
        norm = float(self._norms[-1][1].double().square().sum().sqrt())
        return norm / math.sqrt(natural) if natural > 0 else None

    def _packed(self) -> list[Pack]:
        return pack([local(p) for p in self._parameters], self._shares)

    @staticmethod
    def _thinned(packs: list[Pack]) -> list[Pack]:
        """Return the packs with a sample of the large ones, each element counting n times.

        So the copy does not grow with the model, on a device whose memory is the model's.
        """
        total = sum(len(p.flat) for p in packs)
        if total <= MOST_COPIED:
            return packs
        thin = []
        for p in packs:
            flat = p.flat
            if len(p.members) < 2:
                flat = spread_sample(flat, max(MOST_COPIED * len(flat) // total, SMALL))
            thin.append(replace(p, flat=flat, share=p.share * len(p.flat) / flat.numel()))
        return thin

    def after(self) -> tuple[float, float, float] | None:
        """Return the squared norms of the update and of the weights before it, and the top weight.

        Of more than `MOST_COPIED` elements the norms are read from an even sample.

        The update is the change since `before`; None when that was not called. Of several ranks:
        this rank's shares, which add up, and the largest absolute weight that it holds.
        """
        packs, self._before = self._before, None
        if not packs:
            return None
        whole = self._packed()
        before, now = [p.flat for p in packs], [p.flat for p in self._thinned(whole)]
        weights_before = torch._foreach_norm(before)
        torch._foreach_sub_(before, now)  # in place: fresh memory takes longer than the sum
        read = [*torch._foreach_norm(before), *weights_before, *largest([p.flat for p in whole])]
        numbers = torch.stack([t.float() for t in read]).double().tolist()
        n = len(packs)
        changed, weights = (
            sum(p.share * x * x for p, x in zip(packs, numbers[i : i + n], strict=True))
            for i in (0, n)
        )
        # its own, whoever holds the same: the norms of the matrices are this rank's, too
        own = (p.share / w.share * x * x for p, w, x in zip(packs, whole, numbers, strict=False))
        self._look_for_jump(math.sqrt(sum(own)))
        return changed, weights, _top(numbers[2 * n :])

    def _look_for_jump(self, update: float) -> None:
        """Compare the growth of each matrix between two readings with what updates amount to.

        An update moves no norm by more than its own. One that is damaged shows in one reading of
        two, so the smaller of the two counts, or the usual one; each as it would be at the largest
        rate of these two readings, where that is larger than its own was.
        """
        rate = max((r for r in self._rates if r > 0), default=math.nan)
        usual = [
            u * (max(rate / then, 1.0) if then > 0 and rate > 0 else 1.0)
            for u, then in self._updates
            if math.isfinite(u)
        ]
        before = usual[-1] if usual else 0.0
        self._updates.append((update, self._rates[1]))
        self.jump = 1.0
        if len(self._norms) < 2 or len(usual) < _FEWEST_UPDATES:
            return
        (since, old), (now, new) = self._norms
        most = _MOST_GROWTH * (now - since) * max(median(usual), min(before, update))
        if not since < now or not most > 0:  # the run went back in between
            return
        grown = torch.where(new - old > most, new / old.clamp(min=1e-12), 0.0)
        top = float(grown.max())
        if top >= _JUMP:
            self.jump = top
