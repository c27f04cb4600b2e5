"""The ledger of settings: what is in force, what changed, and whether somebody announced it.

What the guard itself changes during `step()`, its scheduler's values among it, is no change of the
user's: settings are compared between the end of one step and the beginning of the next. A setting
that moves again within `_SCHEDULE_STEPS` follows a schedule of its own and is not reported again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimtab.guard.settings.measured import BatchScales, LossCount, RatePeak, is_measured
from trimtab.plan.trials import SettingPutBack

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    import torch

    from trimtab.guard.settings.measured import Measured
    from trimtab.guard.settings.reader import SettingsReader, Values
    from trimtab.plan.expected import ExpectedChanges

__all__ = ["SettingChanged", "SettingsLedger"]

_SCHEDULE_STEPS = 20
"""Steps within which a second change of the same setting makes it a schedule. Ours."""
_STEEP = 4.0
"""Times the usual gradient, from which one that is not clipped may have written a matrix anew where
the update follows its size. Ours."""
_OWN_SCHEDULE = 3
"""Steps at which a setting changed from which on the script goes by a plan of its own, as one that
trains parts of a model in turn: it is neither told again nor put back. Ours."""
_RATE_RATIO = 1.5
"""Change of a rate that nobody's scheduler made, from one step to the next, ratio. Ours, as
`Policy.lr_jump_ratio`."""
_MOST_HISTORY = 1024
_MOST_KEPT = 64
"""Changes that are remembered for recovery; the oldest go first."""
_STILL_ROWS = 20
"""Rows at one batch size before another one is a change, as in `detectors.setting_change`."""
_HOLD_ROWS = 2
"""Rows of a new batch size: the last batch of an epoch is short for one."""

_MOST_FROZEN = 0.25
"""Share of the trained tensors that is left where most are frozen at once. Recipes freeze part of a
model in mid-run, or begin with all but the head frozen; to leave the head is a mistake. Ours."""
_EXPLAINS = 16
"""Steps after another change within which a loss that grew is not taken for a sum. Ours."""
_INSISTS = 3
"""Steps in a row in which a loop sets again what is held, as one that sets it in each step."""
_RETURNED = 8
"""Steps after those in which it does not, from which on it has put the setting back itself."""

_SIGNALS: Mapping[str, str] = {
    "weight_decay": "weight_decay",
    "beta1": "beta1",
    "beta2": "beta2",
    "eps": "adam_eps",
    "momentum": "momentum",
    "clip": "clip_limit",
}
"""Signal of a row by the optimizer's own name; the largest of the groups."""
_WEIGHTS = "weights"
"""No setting: a matrix that grew by no update. Going back puts it back, and nothing is held."""
_NOT_PUT_BACK = ("lr", "clip", "batch_size", "loss_scale")
"""Settings that the loop sets anew in each step; for the rate there are cuts."""
_DROPOUTS = ("p", "dropout", "dropout_p", "drop_prob", "attention_dropout", "attn_dropout")


@dataclass(frozen=True)
class SettingChanged:
    """One setting that changed between two steps."""

    step: int
    """The first step under the new value."""
    name: str
    before: Values
    after: Values
    expected: str = ""
    """What was announced; empty: nobody announced it."""
    names: tuple[str, ...] = ()
    """Of the places, where they have names: parameters."""

    @property
    def where(self) -> str:
        """How many places changed, of how many."""
        moved = sum(a != b for a, b in zip(self.before, self.after, strict=False))
        total = max(len(self.before), len(self.after))
        return "" if total < 2 or moved == total else f"{moved} of {total}"

    @property
    def sets_free(self) -> bool:
        """Whether more parameters are trained than before, and none is frozen that was not."""
        pairs = zip(self.before, self.after, strict=False)
        return self.name == "requires_grad" and all(b >= a for a, b in pairs)

    @property
    def trained_share(self) -> float:
        """How many tensors are trained still, share of those that were."""
        return sum(self.after) / max(sum(self.before), 1.0)

    @property
    def event(self) -> dict[str, object]:
        """Return it as an event of the journal holds it."""
        before, after = self.shown
        announced = self.expected or None
        return {
            "setting": self.name,
            "old": before,
            "new": after,
            "where": self.where,
            "announced": announced,
        }

    def text(self) -> str:
        """Return it in words, such as `weight_decay 0.1 → 100`."""
        if self.name == _WEIGHTS:
            grown = self.after[0]
            what = (
                f"{grown:.3g} times the norm it had" if math.isfinite(grown) else "no finite norm"
            )
            return f"a weight matrix has {what}, which its updates do not explain"
        before, after = self.shown
        where = f" ({self.where})" if self.where else ""
        return f"{self.name} {before} → {after}{where}{self._which}"

    @property
    def _which(self) -> str:
        """Name what is frozen and what is trained since, two of each."""
        if len(self.names) != len(self.before):
            return ""
        places = list(zip(self.names, self.before, self.after, strict=True))
        told = ""
        for what, found in (
            ("frozen", [name for name, a, b in places if b < a]),
            ("set free", [name for name, a, b in places if b > a]),
        ):
            more = f" and {len(found) - 2} more" if len(found) > 2 else ""
            told += f", {what}: {', '.join(found[:2])}{more}" if found else ""
        return told

    @property
    def shown(self) -> tuple[str, str]:
        """Return the values as people read them."""
        if self.name == "requires_grad":
            return f"{sum(self.before):g} trained", f"{sum(self.after):g} trained"
        if self.name.endswith(".training"):
            return _modes(self.before), _modes(self.after)
        if self.name.startswith("batch") and is_measured(self.name):
            return _spread(self.before), _spread(self.after)
        pairs = [(a, b) for a, b in zip(self.before, self.after, strict=False) if a != b]
        a, b = pairs[0] if pairs else (self.before[:1] or (0.0,), self.after[:1] or (0.0,))
        return _shown(a), _shown(b)


class SettingsLedger:
    """Looks at the settings before each update, and remembers what nobody announced."""

    def __init__(
        self, reader: SettingsReader, expected: ExpectedChanges, *, reads_batches: bool = True
    ) -> None:
        """Begin with the settings of the first step.

        Args:
            reader: Reads and writes settings.
            expected: What was announced.
            reads_batches: Whether the scale of batches is looked at: each rank has others, and all
                must decide alike.
        """
        self._reads_batches = reads_batches
        self._scales = BatchScales()
        self._counts_as_before: int | None = None
        """Step whose weights, read again, show a measured factor to be over; None: nothing new."""
        self._scale_ratio = 1.0
        self._count = LossCount()
        self._peak = RatePeak()
        self._insisted: dict[str, tuple[int, int]] = {}
        """Steps in a row, and the newest one, in which a loop set again what is held."""
        self._reader = reader
        self._expected = expected
        self._fingerprint: tuple[object, ...] | None = None
        self._values: dict[str, Values] = {}
        self._rates: tuple[float, ...] = ()
        self._rate_moved = -_SCHEDULE_STEPS
        """Step at which the script last moved the rate by less than a jump."""
        self._rate_jumped = -_SCHEDULE_STEPS
        """Step of the newest jump of the rate, by a schedule or without one."""
        self._moved: dict[str, int] = {}
        """Step of the last change of each setting from outside."""
        self._steps: dict[str, set[int]] = {}
        """The first steps at which each changed; a replay makes no more of them."""
        self._held: dict[str, Values] = {}
        """Settings that are put back whenever they change."""
        self._signals: dict[str, float] = {}
        self._unannounced = 0
        self._changes: list[SettingChanged] = []
        self._history: deque[SettingChanged] = deque(maxlen=_MOST_HISTORY)
        """Every change of the script's that can be written, schedules among them."""
        self._undone: tuple[SettingChanged, ...] = ()
        """Those that going back has undone, and that have not come again."""
        self._told: dict[str, tuple[int, str]] = {}
        """Settings that were announced alone: until which step, and by what."""
        self._weighed = 0
        """Step of the last reading of the weights."""
        self._batch = _Steady()
        self._scale = 0.0

    # -- in each step -----------------------------------------------------------------------

    def before_update(self, step: int) -> tuple[SettingChanged, ...]:
        """Return what changed since the step before; nothing in all but a few steps.

        Args:
            step: The one that is under way, counted from 1.

        Cost: one fingerprint, some microseconds.
        """
        if self._undone:
            self._make_again(step)
        fingerprint = self._reader.fingerprint()
        if self._fingerprint is None:
            self._take(fingerprint)
            self._rates = self._reader.rates()
            return ()
        changed: list[SettingChanged] = []
        if fingerprint != self._fingerprint:
            before = self._values
            self._take(fingerprint)
            changed = [
                SettingChanged(
                    step,
                    name,
                    before.get(name, ()),
                    value,
                    names=tuple(self._reader.parameter_names if name == "requires_grad" else ()),
                )
                for name, value in self._values.items()
                # groups or modules that were added or lost are no change of a setting
                if before.get(name, value) != value and len(before[name]) == len(value)
            ]
            made = [c for c in changed if c.name not in self._held]
            self._history += [c for c in made if c not in self._history]
        rates = self._reader.rates()
        if rates != self._rates:
            changed += self._rate_change(step, rates)
        return self._sort(changed, step) if changed else ()

    def see_batch(self, batch: object, step: int) -> tuple[SettingChanged, ...]:
        """Take in a batch that is trained on; return what is of another scale now.

        Args:
            batch: As the loader gave it.
            step: The one that it is for.
        """
        if not self._reads_batches:
            return ()
        changed = _as_changes(self._scales.see(batch, step))
        if self._scales.ratio != self._scale_ratio and not self._expected.covers("batch", step):
            self._scale_ratio = self._scales.ratio
            self._signals["batch_scale"] = self._scale_ratio
        return self._sort(changed, step) if changed else ()

    def bring_back(self, batch: object) -> object:
        """Return the batch with what is held of its scale; itself where nothing is."""
        return self._scales.apply(batch)

    def recount(self, loss: torch.Tensor, step: int) -> torch.Tensor:
        """Return the loss by which the backward pass of a step begins as it used to be counted."""
        return self._count.apply(loss, step)

    def see_recount(self, factor: float, after: int) -> tuple[SettingChanged, ...]:
        """Take in by what the loop multiplies its loss now, as equal weights and batches show.

        Nothing where the size of the gradient does not matter to the update.

        Args:
            factor: Above 0.
            after: A step at which it did not.
        """
        if self._count.is_back(factor):
            self._counts_as_before = after
            return ()
        if not self._reader.sees_size(self._count.last_norm):
            return ()
        found = _as_changes(self._count.take_measured(factor, after))
        return self._sort(found, found[0].step, of_row=True) if found else ()

    def ended_holds(self, step: int) -> dict[str, str]:
        """End the holds of settings that the script manages itself; return why, by name.

        It does where it sets one to a value that it never had, or trains parts of the model in
        turn. That it has put one back is only known of a loop that had set it again and again, and
        of a factor on the loss that was measured anew.

        Args:
            step: The one that is under way.
        """
        if not self._held:
            return {}
        given, self._reader.overwritten = self._reader.overwritten, {}
        own, self._scales.corrected = given.keys() | self._scales.corrected, set()
        if self._count.corrected:
            own.add(LossCount.name)
        self._count.corrected = False
        planned = {n: values for n, values in given.items() if self._is_planned(n, values, step)}
        for name in own:
            rows, last = self._insisted.get(name, (0, step - 1))
            self._insisted[name] = (rows + 1 if step - last <= 1 else 1, max(step, last))
        ended = tuple(
            name
            for name in self._held
            if name in self._insisted
            and self._insisted[name][0] >= _INSISTS
            and step - self._insisted[name][1] >= _RETURNED
        )
        if ended or planned:
            self.release({**dict.fromkeys(ended, ()), **planned})
        back = "the script itself has put it back, which it had set again and again"
        why = dict.fromkeys(ended, back)
        read, self._counts_as_before = self._counts_as_before, None
        if read is not None and LossCount.name in self._held:
            self.release({LossCount.name: ()})
            why[LossCount.name] = (
                "the loop multiplies its loss no more: the weights of step"
                f" {read} show it on the same batches"
            )
        return why | dict.fromkeys(planned, "the script sets it anew, by a plan of its own")

    def _is_planned(self, name: str, values: Values, step: int) -> bool:
        """Whether the script goes on to another value of what is held, or comes back to one."""
        known = {v for c in self._changes if c.name == name for v in (c.before, c.after)}
        last = self._insisted.get(name, (0, step))[1]
        in_turn = name == "requires_grad" and step - last > _RETURNED
        return bool(known) and (values not in known or in_turn)

    def after_update(self) -> None:
        """Take what is in force now as the guard's own doing: schedules, remedies, restores."""
        fingerprint = self._reader.fingerprint()
        if fingerprint != self._fingerprint:
            self._take(fingerprint)
        self._rates = self._reader.rates()

    accept = after_update

    def went_back(self, step: int) -> None:
        """Put what is held in force again after a restore, which brings older settings."""
        self._count.forget_after(step)
        self._peak.forget_after(step)
        self._undo_after(step)
        for name, value in self._held.items():
            self._reader.write(name, value)
        self._make_again(step)  # it may have gone on to a later state
        self.accept()

    def _undo_after(self, step: int) -> None:
        """Bring back what the script had set at a step; it comes again when its step does.

        A snapshot holds tensors and options of the optimizer, but neither which parameters are
        trained nor a module's numbers.
        """
        undone = [c for c in self._history if c.step > step]
        if not undone and not self._undone:
            return
        self._history = deque((c for c in self._history if c.step <= step), maxlen=_MOST_HISTORY)
        for change in reversed(undone):  # the first of each name has the last word
            self._reader.write(change.name, change.before)
        before = [c for c in self._undone if c.step > step and c not in undone]
        self._undone = tuple(sorted((*before, *undone), key=lambda c: c.step))

    def _make_again(self, step: int) -> None:
        """Make changes again whose step has come, and that the script does not make again itself.

        A callback that has run once, or an epoch that is over, would be lost with the rollback.
        """
        due = [c for c in self._undone if c.step <= step]
        if not due:
            return
        self._undone = tuple(c for c in self._undone if c.step > step)
        now = self._reader.read()
        for change in due:
            name = change.name
            # of the lineage again, also where a trial holds it: going back undoes it once more
            self._history.append(change)
            if name not in self._held and now.get(name) == change.before:
                self._reader.write(name, change.after)
                now[name] = change.after

    def announce(self, name: str, step: int, what: str) -> None:
        """Take the next change of a setting as announced; other trouble stays trouble.

        Args:
            name: Of the setting.
            step: The last finished one; the change is in force within some steps after it.
            what: What announces it.
        """
        self._told[name] = (step + _SCHEDULE_STEPS, what)
        # told of one that was made already: it is suspected no more
        self._changes = [c for c in self._changes if c.name != name or c.step > step]

    def _told_of(self, name: str, step: int) -> str:
        until, what = self._told.get(name, (-1, ""))
        return what if step <= until else ""

    def add_to(self, values: dict[str, float], step: int) -> tuple[SettingChanged, ...]:
        """Add the settings to a row where they changed; return what its own values show changed.

        Args:
            values: Of the row, `batch_size` and `loss_scale` among them; added to.
            step: Of the row.
        """
        if self._signals:
            # what follows a schedule stands in the row as it was in force
            values |= {n: v for n, v in self._signals.items() if n not in values}
            self._signals = {}
        if self._unannounced:
            values["unannounced_changes"] = float(self._unannounced)
            self._unannounced = 0
        changed: list[SettingChanged] = []
        batch = values.get("batch_size", 0.0)
        if not self._batch.is_still(batch):
            before = self._batch.take(batch)
            if before is not None:
                changed.append(SettingChanged(step, "batch_size", (before,), (batch,)))
        scale = values.get("loss_scale", 0.0)
        if scale != self._scale:
            # a scaler doubles and halves by itself, by whole powers of two at its defaults
            if self._scale and scale and not _is_power_of_two(scale / self._scale):
                changed.append(SettingChanged(step, "loss_scale", (self._scale,), (scale,)))
            self._scale = scale
        loss, norm = values.get("loss", math.nan), values.get("grad_norm", math.nan)
        counts = self._reader.sees_size(norm)
        recounted = _as_changes(self._count.see(loss, norm, step, counts=counts))
        if any(c.name != LossCount.name and 0 <= step - c.step < _EXPLAINS for c in self._changes):
            # a loss and a norm that grow after another change are what it did
            recounted = [c for c in recounted if c.after[0] < 0]
        turned = any(c.after[0] < 0 for c in recounted)
        if turned and not self._expected.covers(LossCount.name, step):
            values["loss_factor"] = recounted[0].after[0]
        changed += recounted
        beyond = self._peak.see(values.get("lr", math.nan), step)
        if beyond is not None and not self._expected.covers("lr", step):
            values["rate_over_peak"] = beyond
        grown = self._grown(values, step) if "weight_jump" in values else ()
        return (*grown, *(self._sort(changed, step, of_row=True) if changed else ()))

    def _grown(self, values: dict[str, float], step: int) -> tuple[SettingChanged, ...]:
        """Return that a matrix grew by itself; not after a jump of the rate, which does it.

        Nor after a gradient that is not clipped, of a step whose size follows it: one of bad labels
        writes a matrix anew. The row keeps it only where it did.
        """
        jump = values["weight_jump"]
        first, self._weighed = self._weighed, step  # read before the update of its step
        rates = step - self._rate_jumped < _SCHEDULE_STEPS
        top, times = self._count.steepest(first) if jump != 1 else (0.0, 0.0)
        steep = times > _STEEP and self._reader.sees_size(top)
        if jump == 1 or rates or steep or first >= step:
            del values["weight_jump"]
            return ()
        return self._sort([SettingChanged(first, _WEIGHTS, (1.0,), (jump,))], first, of_row=True)

    # -- for recovery -----------------------------------------------------------------------

    def unannounced_since(self, step: int) -> tuple[SettingPutBack, ...]:
        """Return what changed after a step, nobody announced, and can be put back; oldest first."""
        found: dict[str, SettingPutBack] = {}
        for change in self._changes:
            if len(self._steps.get(change.name, ())) >= _OWN_SCHEDULE:
                continue
            if change.name in self._held or change.name in _NOT_PUT_BACK or not change.before:
                continue
            values = self._values_to_hold(change)
            known = values or change.name == _WEIGHTS
            if change.step > step and change.name not in found and known:
                found[change.name] = SettingPutBack(
                    name=change.name,
                    step=change.step,
                    values=values,
                    changed_to=change.after,
                    shown=self._shown_back(change),
                    ended=self._is_over(change),
                    moved=self._moved.get(change.name, 0) > change.step,
                )
        return tuple(found.values())

    def _is_over(self, change: SettingChanged) -> bool:
        """Whether the script itself has put a setting back; data comes again as it was."""
        if change.name == _WEIGHTS:
            return True
        if change.name == LossCount.name:
            return self._count.is_over
        # what going back has undone is in force again when its step comes
        undone = [c.after for c in self._undone if c.name == change.name]
        return (undone[-1] if undone else self._values.get(change.name)) == change.before

    def _values_to_hold(self, change: SettingChanged) -> Values:
        """Return what puts a setting back; empty where nothing does."""
        if change.name == _WEIGHTS:
            return ()
        if change.name == LossCount.name:
            return self._count.values_to_hold
        if is_measured(change.name):
            return self._scales.values_to_hold(change.name)
        return change.before

    def _shown_back(self, change: SettingChanged) -> str:
        if change.name == LossCount.name:
            return f"loss divided by {(self._count.values_to_hold or change.after)[0]:.3g}"
        if is_measured(change.name):
            return f"{change.name} brought back to {change.shown[0]}"
        return f"{change.name} back to {change.shown[0]}"

    def moves_rate(self, step: int) -> bool:
        """Whether the script moves the rate itself, step by step, as a schedule does."""
        return step - self._rate_moved < _SCHEDULE_STEPS

    def put_back(self, names: Mapping[str, Values]) -> tuple[str, ...]:
        """Put settings back and hold them there; return the names that could not be.

        Whenever one of them changes again it is put back before the next forward pass, or else
        before the next update.
        """
        failed = tuple(
            name
            for name, value in names.items()
            if not (is_measured(name) or self._reader.write(name, value))
        )
        self._held |= {name: value for name, value in names.items() if name not in failed}
        self._hold()
        self.accept()
        return failed

    def release(self, names: Mapping[str, Values]) -> None:
        """Hold settings no longer, and set them to these values where there are any."""
        for name, value in names.items():
            self._held.pop(name, None)
            self._insisted.pop(name, None)
            if value:
                self._reader.write(name, value)
        self._hold()
        self.accept()

    def _hold(self) -> None:
        self._reader.hold({n: v for n, v in self._held.items() if not is_measured(n)})
        self._scales.hold(self._held)
        self._count.hold(self._held)

    @property
    def divides_loss(self) -> bool:
        """Whether a measured factor is divided out: whether it is there still, readings show."""
        return self._count.is_measured

    @property
    def trained(self) -> Hashable:
        """Which parameters need a gradient, as of the last update that was due."""
        found = self._fingerprint
        return found[-1] if found is not None and len(found) > 1 else None

    @property
    def held(self) -> Mapping[str, Values]:
        """Settings that are held."""
        return dict(self._held)

    # -- inside -----------------------------------------------------------------------------

    def _take(self, fingerprint: tuple[object, ...]) -> None:
        if self._fingerprint is not None and fingerprint[0] != self._fingerprint[0]:
            self._reader.find()  # groups or modules were added or lost
            fingerprint = self._reader.fingerprint()
        self._fingerprint = fingerprint
        self._values = self._reader.read()
        self._signals |= _signals_of(self._values)

    def _rate_change(self, step: int, rates: tuple[float, ...]) -> list[SettingChanged]:
        before, self._rates = self._rates, rates
        known = len(before) == len(rates)
        jumped = known and any(
            a > 0 < b and max(a / b, b / a) >= _RATE_RATIO
            for a, b in zip(before, rates, strict=True)
        )
        if jumped:
            self._rate_jumped = step  # whether or not a schedule does it
            return [SettingChanged(step, "lr", before, rates)]
        self._moved["lr"] = self._rate_moved = step  # somebody's own schedule
        return []

    def _sort(
        self, changed: list[SettingChanged], step: int, *, of_row: bool = False
    ) -> tuple[SettingChanged, ...]:
        """Put back what is held, pass over schedules, and mark what was announced."""
        found: list[SettingChanged] = []
        for change in changed:
            name = change.name
            if name in self._held:
                self._reader.overwritten[name] = change.after
                self._reader.write(name, self._held[name])
                self.accept()
                continue
            last = self._moved.get(name)
            self._moved[name] = step
            if last is not None and step - last < _SCHEDULE_STEPS:
                continue
            steps = self._steps.setdefault(name, set())
            if len(steps) >= _OWN_SCHEDULE and step not in steps:
                if name == "requires_grad" and change.trained_share >= 1:
                    self._signals["trained_share"] = 1.0
                continue
            steps.add(step)
            known = "batch" if name.startswith("batch[") else name
            expected = self._expected.covers(known, step) or self._told_of(name, step)
            change = replace(change, step=step, name=name, expected=expected)
            found.append(change)
            # Parameters are set free on purpose by many a recipe, and to freeze them again
            # would end what they learn: it is written down, and neither suspected nor put back.
            if not expected and change.name == "requires_grad":
                share = change.trained_share
                if share >= 1 or share <= _MOST_FROZEN:
                    self._signals["trained_share"] = min(share, 1.0)
            if not expected and not change.sets_free:
                planned = len(steps) >= _OWN_SCHEDULE
                self._unannounced += not (of_row or planned or is_measured(name))
                self._changes = [*self._changes[-_MOST_KEPT + 1 :], change]
        return tuple(found)


def _as_changes(measured: list[Measured]) -> list[SettingChanged]:
    return [SettingChanged(step, name, before, after) for name, step, before, after in measured]


class _Steady:
    """A value of rows that stands still, and what it was before it changed for good."""

    def __init__(self) -> None:
        self._value = 0.0
        self._rows = 0
        self._new = 0.0
        self._new_rows = 0

    def is_still(self, value: float) -> bool:
        if value == self._value:
            self._rows += 1
            self._new_rows = 0
            return True
        return False

    def take(self, value: float) -> float | None:
        """Return the value before, once the new one has held."""
        self._new_rows = self._new_rows + 1 if value == self._new else 1
        self._new = value
        if self._rows and self._new_rows < _HOLD_ROWS:
            return None
        before, rows = self._value, self._rows
        self._value, self._rows, self._new_rows = value, 1, 0
        return before if rows >= _STILL_ROWS else None


def _signals_of(values: Mapping[str, Values]) -> dict[str, float]:
    """Return the settings that a row has: the largest of each, and counts."""
    found = {signal: max(values[name]) for name, signal in _SIGNALS.items() if values.get(name)}
    dropout = [max(v) for name, v in values.items() if v and name.rpartition(".")[2] in _DROPOUTS]
    if dropout:
        found["dropout"] = max(dropout)
    found["trainable_parameters"] = sum(values.get("requires_grad", ()))
    found["eval_modules"] = float(
        sum(v.count(0.0) for name, v in values.items() if name.endswith(".training"))
    )
    return found


def _is_power_of_two(ratio: float) -> bool:
    while ratio >= 2:
        ratio /= 2
    while 0 < ratio < 1:
        ratio *= 2
    return ratio == 1


def _modes(values: Values) -> str:
    on = sum(values)
    return "train" if on == len(values) else "eval" if not on else f"{on:g} of {len(values)} train"


def _spread(values: Values) -> str:
    mean, spread, *_ = values
    return f"mean {mean:.3g}, spread {spread:.3g}"


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
