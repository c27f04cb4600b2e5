"""All probes of a run, run together: what is due at a step, and what it means over all ranks.

A probe that fails is left out from then on and named in a note: what only informs must not take the
guard down. The last hidden state, Adam's moments and the update are what recovery rests on; their
failure is a fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from trimtab.guard.probes.activations import BlockProbe, HiddenProbe, find_blocks, find_output_layer
from trimtab.guard.probes.attention import AttentionProbe
from trimtab.guard.probes.cadence import PROBES, Cadence
from trimtab.guard.probes.gradients import count_zeros, squared_norms, sums_by_group
from trimtab.guard.probes.host import host_memory_gib
from trimtab.guard.probes.moment_law import SecondMomentLaw, least_beta2
from trimtab.guard.probes.moments import (
    UpdateProbe,
    below_eps,
    checksum_of_copies,
    kept_of,
    read_moments,
    rms_ratio,
    settings,
    starved,
)
from trimtab.guard.probes.no_gradient import NoGradientProbe
from trimtab.guard.probes.output import LogZProbe
from trimtab.guard.probes.overflow import OverflowProbe
from trimtab.guard.probes.part_layout import PartLayout
from trimtab.guard.probes.router import RouterProbe, router_signals
from trimtab.guard.probes.samples import SampleProbe, outstanding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from trimtab.guard.distributed.holders import Holders
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.probes.moments import Kept, Moments
    from trimtab.guard.probes.trained import Trained

__all__ = ["Held", "Measured", "Probes"]

_MEANS = "mean"
_ADDED = "sum"
_TOPS = "max"
_LOWS = "min"

_WHOLE: tuple[tuple[str, str], ...] = (
    ("update_square", _ADDED),
    ("weight_square", _ADDED),
    ("adam_m_l1", _ADDED),
    ("adam_v_l1", _ADDED),
    ("adam_m_max", _TOPS),
    ("adam_v_max", _TOPS),
    ("adam_broken", _TOPS),
    ("weight_max", _TOPS),
    ("weight_jump", _TOPS),
    ("weight_scale", _MEANS),
    ("rms_ratio_max", _TOPS),
    ("num_zeros", _ADDED),
    ("embedding_square", _ADDED),
    ("activation_max", _TOPS),
    # Only what holds for the share of every rank.
    ("grad_zero_share", _LOWS),
    ("grad_zero_steps", _LOWS),
)
"""One number each, and how those of several ranks are one."""

_SIGNS: tuple[tuple[str, str], ...] = (
    ("output_log_z", _MEANS),
    ("attention_logit_max", _TOPS),
    ("attention_entropy", _LOWS),
    ("num_outputs", _TOPS),
)
"""The same, of what is read more often."""

_OF_GRADIENTS = ("grad_zero_share", "grad_zero_steps")
_NAMED_AT = {
    "adam_v_max": "adam_v_max_at",
    "adam_broken": "adam_broken_at",
    "rms_ratio_max": "rms_ratio_max_at",
    "grad_zero_steps": "grad_zero_at",
}
"""Labels that name where a number is largest."""

_NAMED = 8
"""Tensors that make no sense which are named in one row."""

_ROOTS = {
    "update_square": "update_norm",
    "weight_square": "weight_norm",
    "embedding_square": "embedding_grad_norm",
}

_BY_LAYER: tuple[tuple[str, str], ...] = (
    ("grad_square", _ADDED),
    ("activation_rms", _MEANS),
    ("activation_max", _TOPS),
    ("attention_logit_max", _TOPS),
    ("attention_entropy", _MEANS),
)
"""One number for each block."""


@dataclass
class Measured:
    """What the probes saw of one step."""

    values: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    layers: dict[str, list[float]] = field(default_factory=dict)
    """By block, in the model's order; empty where nothing was due."""


@dataclass
class Held:
    """What a quiet step has to be read later, still on the device."""

    numbers: list[torch.Tensor] = field(default_factory=list)
    """One-dimensional: the last hidden state's norm, then the losses of samples."""
    root: float | None = None
    """What that norm is divided by; None without one."""
    num_samples: int = 0

    def add_samples(self, losses: torch.Tensor | None) -> None:
        """Hold the losses of the step's samples too."""
        if losses is not None:
            self.numbers.append(losses)
            self.num_samples = len(losses)


class Probes:
    """See the module."""

    def __init__(
        self,
        training: Trained,
        parameters: Sequence[torch.Tensor],
        *,
        ranks: Ranks,
        holders: Holders,
        output_layer: torch.nn.Module | None,
        cadence: Cadence | None = None,
    ) -> None:
        """Hook the model; nothing is measured before `arm`.

        Args:
            training: The run's objects.
            parameters: The trained ones, in the model's order.
            ranks: Those that train together.
            holders: Which of them hold which part of the model.
            output_layer: Layer whose input is the last hidden state; default: found.
            cadence: Which run, and when; default: all.
        """
        model = training.bare_model
        self.cadence = cadence or Cadence()
        self.due = False
        """Whether everything is read at this step."""
        self.signs_due = False
        """Whether at least the early signs are."""
        self.notes: list[str] = []
        self._has_told_small = False
        """Probes that failed and are left out from now on, for the journal; taken by the guard."""
        self._training = training
        self._parameters = list(parameters)
        self._ranks = ranks
        self._holders = holders
        self._names = {id(p): n for n, p in model.named_parameters()}
        self._off = set(PROBES) - set(self.cadence.probes)
        self._seen: dict[str, float] = {}
        blocks = find_blocks(model, is_part=holders.may_differ)
        self.num_layers = len(blocks)
        """Of this rank's part of the model."""
        self.gives_loss = True
        """Whether this rank's part of the model ends in the loss of the step under way."""
        self._groups = _groups(self._parameters, self._names, list(blocks))
        layer = output_layer or find_output_layer(model)
        self.hidden = HiddenProbe(model, layer)
        self.hidden.enabled = self.runs("hidden")
        self.update = UpdateProbe(
            self._parameters,
            holders,
            lambda: max(float(g["lr"]) for g in training.optimizer.param_groups),
        )
        self._no_gradient = NoGradientProbe(model, self._parameters, self._names)
        self._half_without = False
        """Whether most parameters had no gradient when all was read last: every step is looked at
        until some have."""
        self._step = 0
        self._blocks = BlockProbe(list(blocks.values()))
        self._attention = AttentionProbe(training.model)
        self._log_z = LogZProbe(layer)
        self._router = RouterProbe(model)
        self._layout = PartLayout(ranks, holders, blocks=list(blocks), routers=self._router.sizes)
        self.samples = SampleProbe()
        self._overflow = OverflowProbe(model)
        self._broken = False
        self._watched = False
        """Whether the forward pass of the step under way is watched for what is not finite."""
        self._layers: dict[str, list[float]] = {}
        self._broken_state: list[str] = []
        self._ratio_at = ""
        self._zero_at = ""
        self._may_differ_then = holders.may_differ
        """Whether ranks might hold different parts before the step under way."""
        self._law = SecondMomentLaw()
        self._moments: Moments | None = None
        self._kept: Kept | None = None
        """What the optimizer keeps, of the update just done."""

    @property
    def parts_differ(self) -> bool:
        """Whether ranks hold different parts of the model."""
        return self._holders.differ

    @property
    def is_staged(self) -> bool:
        """Whether the ranks are stages of a pipeline."""
        return self._holders.num_stages > 1

    def runs(self, name: str) -> bool:
        """Whether a probe is switched on and has not failed."""
        return name not in self._off

    def arm(self, step: int, *, closely: bool = False) -> None:
        """Make ready for the forward pass of a step: what is due now, and what is not.

        Args:
            step: The step to come, counted from 1.
            closely: Something is wrong: read the early signs more often.
        """
        self._step = step
        self.due = self.cadence.reads_all(step)
        self.signs_due = self.cadence.reads_signs(step, closely=closely)
        self._seen, self._layers, self._broken_state, self._kept = {}, {}, [], None
        self.samples.forget()
        self._blocks.armed = self.due and self.runs("blocks")
        self._attention.armed = self.signs_due and self.runs("attention")
        self._log_z.armed = self.signs_due and self.runs("log_z")
        self._router.armed = self.signs_due and self.runs("router")
        self._router.forget()
        self._watched = self._broken and "overflow" in self.cadence.probes
        if self._watched and self.runs("overflow"):
            self._overflow.arm()
        self._may_differ_then = self._holders.may_differ
        # Whether ranks hold different parts may be known only once this step has gradients.
        known = self._holders.is_settled or self._holders.differ or not self._holders.may_differ
        if self.due and self.runs("update") and known:
            self.update.before(step)

    @property
    def quiet(self) -> bool:
        """Whether what is seen of the step under way can be read later: it is only held then."""
        watching = self._broken and self.runs("overflow")
        # An error of the hook is raised by `take`, which a quiet step does not call.
        looking = self.due or self.signs_due or watching or self._half_without
        return not looking and self.hidden.error is None

    def hold(self) -> Held:
        """Return what a quiet step has for `read`, and forget it; the host reads nothing."""
        hidden, held = self.hidden.hold(), Held()
        if hidden is not None:
            held.root = hidden[1]
            held.numbers.append(hidden[0].detach().reshape(1))
        self._softly("samples", lambda: held.add_samples(self.samples.hold()))
        return held

    def read(self, held: Held, numbers: NDArray[np.float64]) -> Measured:
        """Return what `take` would have given of a quiet step; `numbers`: `held.numbers`, read."""
        found, start = Measured(), 0
        if held.root is not None:
            found.values["activation_norm"] = float(numbers[0]) / held.root
            start = 1
        if held.num_samples:
            losses = torch.from_numpy(numbers[start : start + held.num_samples].copy())
            self._softly("samples", lambda: _note_samples(found, outstanding(losses)))
        return found

    def drop(self) -> None:
        """Forget what was seen of a step that is thrown away."""
        self.hidden.hold()
        self.samples.forget()
        self._blocks.forget()
        self._attention.seen.clear()
        self._log_z.value = None
        self._router.forget()
        self._overflow.take()

    def call_off(self) -> None:
        """Read nothing of this step that all ranks must read together."""
        self.due = self.signs_due = self._watched = False

    def note_loss(self, loss: float) -> None:
        """Take in the loss of the step just done.

        After a loss that is not finite, the next forward pass is watched for the first module whose
        output is not finite.
        """
        self._broken = not math.isfinite(loss)

    def at_gradients(self, norm: float, limit: float | None) -> None:
        """Look at the gradients, clipped already; `norm`: as it was before."""
        if self.due:
            # The factor by which clipping has scaled the gradients, to undo it in the figures.
            clipped = 1.0 if limit is None or not norm > limit else limit / (norm + 1e-6)
            self._softly("gradients", lambda: self._look_at_gradients(clipped**-2))
        elif self._half_without:
            self._softly("gradients", lambda: self._no_gradient.look(self._step))

    def _look_at_gradients(self, rescale: float) -> None:
        pairs = [
            (p, p.grad, g)
            for p, g in zip(self._parameters, self._groups, strict=True)
            if p.grad is not None
        ]
        grads, groups = [g for _, g, _ in pairs], [g for *_, g in pairs]
        squares = squared_norms(grads) if pairs else torch.zeros(0)
        by_id = {id(p): s for (p, *_), s in zip(pairs, squares.tolist(), strict=True)}
        self._no_gradient.look(self._step, by_id)
        without = self._no_gradient.num_steps()
        if without is not None:
            self._seen["grad_zero_share"], self._seen["grad_zero_steps"] = without
        if not pairs:
            if self._holders.may_differ:  # the other parts have some
                self._layers["grad_square"] = [0.0] * self.num_layers
                self._seen |= {"embedding_square": 0.0, "num_zeros": 0.0}
            return
        held = [self._holders.of(p) for p, *_ in pairs]
        sums = sums_by_group(squares * rescale, grads, groups, held)
        sums += [0.0] * (self.num_layers + 2 - len(sums))
        self._layers["grad_square"] = sums[: self.num_layers]
        self._seen["embedding_square"] = sums[self.num_layers]
        self._seen["num_zeros"] = count_zeros(grads, held)
        # An embedding's rows get rare gradients, so that g / sqrt(v) is large in sound runs too.
        dense = [
            p
            for p, g in zip(self._parameters, self._groups, strict=True)
            if g != self.num_layers  # not an embedding
        ]
        found = rms_ratio(self._training.optimizer, dense)
        if found is not None:
            self._seen["rms_ratio_max"] = found[0] * math.sqrt(rescale)
            self._ratio_at = self._names.get(id(dense[found[1]]), "?")

    def at_update(self) -> None:
        """Look at the optimizer's state right after an update, with its gradients still there."""
        if self.due and self.runs("moments"):
            self._kept = kept_of(self._training.optimizer, self._names, self._holders)
            self._broken_state += starved(self._training.optimizer, self._kept)
            self._tell_of_small_updates()

    def _tell_of_small_updates(self) -> None:
        found = None if self._has_told_small else below_eps(self._training.optimizer, self._names)
        if found is None:
            return
        self._has_told_small = True
        count, total, name, share = found
        self.notes.append(
            f"Muon's updates of {count} of {total} matrices are smaller than their rate says, least"
            f" of all {name}, {share:.2g} of it: the gradient is below Muon's eps, where its size"
            " is no longer taken out. Clip higher, or do not clip what Muon trains"
        )

    def take(self) -> Measured:
        """Return what is due of the step just done; all ranks must call it where it is.

        Raises:
            ActError: The last hidden state, the moments or the update cannot be measured.
        """
        found = Measured()
        # First, as the ranks come together for it, and what follows may fail on one of them.
        broken = [r for r in self._overflow.take() if r.overflows]
        self._softly("overflow", self._overflow.kept.raise_once)
        # behind the first one NaN is only passed on
        left = next((r for r in broken if r.inputs_finite), broken[0] if broken else None)
        name = "" if left is None else left.name
        if self._watched and self._ranks.count > 1:
            name = next(filter(None, self._ranks.collect(name)), "")
        if name:
            found.labels["nonfinite_module"] = name
        hidden = self.hidden.take()
        if hidden is not None and self.gives_loss:
            found.values["activation_norm"] = hidden
        self._softly("samples", lambda: self._take_samples(found))
        if not self.due:
            if self.signs_due:
                self._take_signs()
                numbers, there = self._numbers(_SIGNS)
                # `signs_due` is the same on all ranks, so that all of them come to this gather.
                table = self._ranks.gather([*numbers, *there])
                self._note_whole(table, _SIGNS, found, there=table[:, len(_SIGNS) :])
                self._take_router(found)
            return found
        checksum = 0.0
        try:
            self._take_moments(found)
            squares = self.update.after() if self.runs("update") else None
            if squares is not None and self._may_differ_then == self._holders.may_differ:
                for name, value in zip(
                    ("update_square", "weight_square", "weight_max"), squares, strict=True
                ):
                    self._seen[name] = value
                self._seen["weight_jump"] = self.update.jump
                if self.update.scale is not None:
                    self._seen["weight_scale"] = self.update.scale
            self._take_softly()
            if self._ranks.count > 1:
                checksum = checksum_of_copies(self._holders.shared(self._parameters))
        finally:  # the other ranks wait for this one's share, whatever failed here
            table = self._ranks.gather(self._vector(checksum))
            self._take_router(found)
            self._share_labels(table, found)
        self._add_up(table, found)
        self._look_for_loss(found)
        return found

    def _take_router(self, found: Measured) -> None:
        """Take what the routers did; all ranks must call it where signs are due."""
        before, here, behind = self._layout.routers()
        sizes = [*before, *here, *behind]
        if not sizes or "router" not in self.cadence.probes:
            return
        first, own, last = (sum(2 * n + 2 for n in some) for some in (before, here, behind))
        mine = [math.nan] * (own + 1)

        def look() -> None:
            mine[:] = self._router.take()

        if here:
            self._softly("router", look)
        mine = [*[0.0] * first, *mine[:own], *[0.0] * last, mine[own]]
        found.values |= router_signals(self._ranks.gather(mine), sizes)

    def _share_labels(self, table: NDArray[np.float64], found: Measured) -> None:
        """Take the names of what stands out from the rank that knows; all come, or none does."""
        columns = {name: table[:, i] for i, (name, _) in enumerate((*_SIGNS, *_WHOLE))}
        if not self._holders.may_differ:
            if self._ranks.count > 1 and (columns["adam_broken"] > 0).any():
                label = found.labels.get("adam_broken_at", "")
                named = next(filter(None, self._ranks.collect(label)), "")
                found.labels |= {"adam_broken_at": named} if named else {}
            return
        zero = self._no_gradient.named() if "grad_zero_steps" in self._seen else ""
        mine = found.labels | {"rms_ratio_max_at": self._ratio_at, "grad_zero_at": zero}
        everyone = self._ranks.collect(mine)
        for name, label in _NAMED_AT.items():
            known = np.nan_to_num(columns[name], nan=-np.inf, posinf=np.inf)
            named = everyone[int(known.argmax())].get(label, "")
            found.labels |= {label: named} if named and known.max() > -np.inf else {}
        self._ratio_at = found.labels.pop("rms_ratio_max_at", "")
        self._zero_at = found.labels.pop("grad_zero_at", "")

    def _take_samples(self, found: Measured) -> None:
        taken = self.samples.take()
        if taken is not None:
            _note_samples(found, taken)

    def _take_moments(self, found: Measured) -> None:
        if not self.runs("moments"):
            return
        optimizer = self._training.optimizer
        kept, self._kept = self._kept, None
        if kept is None:  # no update was done
            kept = kept_of(optimizer, self._names, self._holders)
        moment = read_moments(optimizer, kept)
        self._moments = moment
        if moment is None:
            return
        self._broken_state = [*moment.broken, *self._broken_state]
        if moment.v_max_at:
            found.labels["adam_v_max_at"] = moment.v_max_at
        if self._broken_state:
            found.labels["adam_broken_at"] = "; ".join(self._broken_state[:_NAMED])
        read = {
            "adam_m_l1": moment.m_l1,
            "adam_v_l1": moment.v_l1,
            "adam_m_max": moment.m_max,
            "adam_v_max": moment.v_max,
            "adam_broken": float(len(self._broken_state)),
        }
        self._seen |= {name: value for name, value in read.items() if value is not None}

    def _look_for_loss(self, found: Measured) -> None:
        """Note second moments of which less is left than updates leave."""
        moments, self._moments = self._moments, None
        if moments is None:
            return
        total = found.values.get("adam_v_l1", math.nan)
        left = self._law.left(moments, total, least_beta2(self._training.optimizer))
        if left < 1:
            found.values["adam_v_left"] = left
            self.notes.append(
                f"Adam's second moments have shrunk to {left:.2g} of the least that updates alone"
                " can leave: they were lost, set or loaded otherwise by something else"
            )

    def _take_softly(self) -> None:
        n = self.num_layers

        def blocks() -> None:
            rms, top = self._blocks.take(n)
            self._layers |= {"activation_rms": rms, "activation_max": top}

        self._softly("blocks", blocks)
        self._take_signs()
        self._see("activation_max", self._layers.get("activation_max", []), max)

    def _take_signs(self) -> None:
        n = self.num_layers

        def attention() -> None:
            if self._attention.error is not None:
                raise self._attention.error
            # a model whose blocks were not found is one layer
            top, entropy = self._attention.take(max(n, 1))
            self._layers |= {"attention_logit_max": top[:n], "attention_entropy": entropy[:n]}
            self._see("attention_logit_max", top, max)
            self._see("attention_entropy", entropy, min)

        def log_z() -> None:
            value = self._log_z.take()
            if value is not None and self.gives_loss:
                self._seen["output_log_z"] = value
                self._seen["num_outputs"] = float(self._log_z.num_outputs)

        self._softly("attention", attention)
        self._softly("log_z", log_z)

    def _see(
        self, name: str, by_layer: Sequence[float], pick: Callable[[Sequence[float]], float]
    ) -> None:
        """Note the extreme of what the layers gave; those that were not run gave NaN."""
        known = [v for v in by_layer if not math.isnan(v)]
        if known:
            self._seen[name] = pick(known)

    def _softly(self, name: str, look: Callable[[], None]) -> None:
        """Run one probe; where it fails it is left out from now on."""
        if name in self._off:
            return
        try:
            look()
        except Exception as error:  # noqa: BLE001 - what only informs takes nothing down
            # Off on this rank only: it sends NaN from now on, and the vector keeps its length.
            self._off.add(name)
            text = f"probe {name} is left out from now on: {type(error).__name__}: {error}"
            self.notes.append(text)

    def take_notes(self) -> list[str]:
        """Return what failed since the last call."""
        notes, self.notes = self.notes, []
        return notes

    # -- over all ranks ---------------------------------------------------------------------

    def _vector(self, checksum: float) -> list[float]:
        """Return this rank's share as numbers in a fixed order; NaN where there is none.

        Of the blocks of other stages its share of a sum is 0. Last come the checksum and, where
        ranks may hold different parts, for each number whether it is there: NaN is a value.
        """
        none = [math.nan] * self.num_layers
        numbers, there = self._numbers((*_SIGNS, *_WHOLE))
        for name, how in _BY_LAYER:
            left = 0.0 if how == _ADDED else math.nan
            numbers += self._layout.spread(self._layers.get(name, none), left)
        return [*numbers, checksum, *there]

    def _numbers(self, names: Sequence[tuple[str, str]]) -> tuple[list[float], list[float]]:
        """Return what was seen by these names, and whether it was, where that is to be sent."""
        numbers = [self._seen.get(name, math.nan) for name, _ in names]
        asked = names if self._holders.may_differ else ()
        return numbers, [float(name in self._seen) for name, _ in asked]

    def _add_up(self, table: NDArray[np.float64], found: Measured) -> None:
        whole = (*_SIGNS, *_WHOLE)
        start, n = len(whole), self._layout.blocks()[1]
        end = start + n * len(_BY_LAYER)
        checksums = table[:, end]
        self._note_whole(table, whole, found, there=table[:, end + 1 :])
        for i, (name, how) in enumerate(_BY_LAYER):
            by_layer = _together(table[:, start + i * n : start + (i + 1) * n], how)
            if name in self._layers or not np.isnan(by_layer).all():
                key = "grad_norm" if name == "grad_square" else name
                rooted = np.sqrt(by_layer) if name == "grad_square" else by_layer
                found.layers[key] = rooted.tolist()
        known = found.values
        # As all ranks have it, even one without gradients: a quiet step is quiet for all of them.
        place = [name for name, _ in whole].index("grad_zero_steps")
        how = _TOPS if self.is_staged else _LOWS
        self._half_without = bool(_together(table[:, place : place + 1], how)[0] > 0)
        if self._half_without:
            found.labels["grad_zero_at"] = self._zero_at or self._no_gradient.named()
        norms = found.layers.get("grad_norm", [])
        if len(norms) > 1 and norms[-1] > 0:
            known["grad_norm_ratio"] = norms[0] / norms[-1]
        for square, root in _ROOTS.items():
            if square in known:
                known[root] = math.sqrt(known.pop(square))
        if known.get("weight_norm", 0.0) > 0:
            known["update_ratio"] = known["update_norm"] / known["weight_norm"]
        if "rms_ratio_max" in known and self._ratio_at:
            found.labels["rms_ratio_max_at"] = self._ratio_at
        found.values |= settings(self._training.optimizer)
        memory = host_memory_gib()
        if memory is not None:
            found.values["host_memory_gib"] = memory
        like = checksums[self._holders.firsts()]
        odd = np.flatnonzero((checksums != like) & np.isfinite(checksums))
        if len(odd):
            found.labels["odd_ranks"] = " ".join(map(str, odd))

    def _note_whole(
        self,
        table: NDArray[np.float64],
        names: Sequence[tuple[str, str]],
        found: Measured,
        *,
        there: NDArray[np.float64],
    ) -> None:
        """Note the first columns of all ranks' table [ranks, n], one number for each name.

        `there`: where ranks may hold different parts, which of them have each, [ranks, n]; else
        [ranks, 0], and all have what this one has.
        """
        for i, (name, how) in enumerate(names):
            column = table[:, i : i + 1]
            if self.is_staged and name in _OF_GRADIENTS:  # of one stage it says something, too
                how = _TOPS
            if there.shape[1]:
                column = column[there[:, i] > 0]
            elif name not in self._seen:
                continue
            if len(column):  # NaN is a value here
                found.values[name] = float(_together(column, how)[0])

    def close(self) -> None:
        """Remove all hooks."""
        for probe in (self.hidden, self._blocks, self._attention, self._log_z, self._router):
            probe.close()


def _note_samples(found: Measured, taken: tuple[float, tuple[int, ...]]) -> None:
    found.values["sample_loss_max"] = taken[0]
    if taken[1]:
        found.labels["outlier_samples"] = " ".join(map(str, taken[1]))


def _together(table: NDArray[np.float64], how: str) -> NDArray[np.float64]:
    """Return the values [n] of all ranks [ranks, n] as one; NaN where no rank has one."""
    if len(table) == 1:
        alone: NDArray[np.float64] = table[0]
        return alone
    missing = np.isnan(table)
    fill = {_MEANS: 0.0, _TOPS: -np.inf, _LOWS: np.inf}.get(how, np.nan)
    filled = np.where(missing, fill, table)
    together: NDArray[np.float64]
    if how == _ADDED:
        together = table.sum(axis=0)
    elif how == _MEANS:
        together = filled.sum(axis=0) / np.maximum((~missing).sum(axis=0), 1)
    else:
        together = filled.max(axis=0) if how == _TOPS else filled.min(axis=0)
    together[missing.all(axis=0)] = np.nan
    return together


def _groups(
    parameters: Sequence[torch.Tensor], names: dict[int, str], blocks: Sequence[str]
) -> list[int]:
    """Return the block of each parameter; after the blocks come embeddings, then all others."""
    groups = []
    for p in parameters:
        name = names.get(id(p), "")
        block = next((i for i, b in enumerate(blocks) if name.startswith(b + ".")), None)
        if block is not None:
            groups.append(block)
        elif "embed" in name.lower() or "wte" in name or "wpe" in name:
            groups.append(len(blocks))
        else:
            groups.append(len(blocks) + 1)
    return groups
