"""Reads and writes what is in force: options of the optimizer, modules, parameters, the clip.

A fingerprint is taken in each step; all is read by name only where that differs. Rates are read
apart, since schedules move them in each step. Options that are tensors are left out: to read one
would wait for the device.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch.utils.hooks import RemovableHandle

    from trimtab.guard.state.training_state import Training

__all__ = ["SettingsReader", "Values"]

Values = tuple[float, ...]
"""One value per group, module or parameter that has the setting."""

_NOT_SETTINGS = ("params", "lr", "initial_lr", "param_names")
"""Keys of a group that are no settings, or are read apart."""
_MODULE_NUMBERS = (
    "p",
    "dropout",
    "dropout_p",
    "drop_prob",
    "attention_dropout",
    "attn_dropout",
    "hidden_dropout",
    "momentum",
)
"""Plain numbers on modules that training depends on: dropout under its usual names, and BatchNorm's
momentum."""
_BETAS = ("beta1", "beta2", "beta3")

_is_training = attrgetter("training")
_needs_gradient = attrgetter("requires_grad")


class SettingsReader:
    """Knows where each setting of a model and its optimizer stands."""

    def __init__(self, training: Training, *, clip: Callable[[], float | None]) -> None:
        """Find the settings.

        Args:
            training: Model and optimizer.
            clip: Gives the largest gradient norm as launched; None: no clipping.
        """
        self._training = training
        self._clip = clip
        self._modules: list[torch.nn.Module] = []
        self._numbers: list[tuple[torch.nn.Module, str]] = []
        self._parameters: list[torch.Tensor] = []
        self.parameter_names: list[str] = []
        """Of the parameters, in the order of the values of `requires_grad`."""
        self._options: list[itemgetter[object] | None] = []
        """What reads the settings of each group; a restore puts other groups in their place."""
        self._held: dict[str, Values] = {}
        self._holding: tuple[object, ...] = ()
        """Fingerprint with all that is held in force."""
        self.overwritten: dict[str, Values] = {}
        """Of what is held, to what the loop has set it since this was last emptied."""
        self._hook: RemovableHandle | None = None
        self.find()

    def find(self) -> None:
        """Find the settings anew: groups or modules were added."""
        model = self._training.model
        self._modules = list(model.modules())
        self._numbers = [
            (m, name)
            for m in self._modules
            for name in _MODULE_NUMBERS
            if type(vars(m).get(name)) in (int, float)
        ]
        self.parameter_names, self._parameters = _named(model)
        self._options = []
        for group in self._training.optimizer.param_groups:
            names = [k for k, v in group.items() if k not in _NOT_SETTINGS and _is_plain(v)]
            self._options.append(itemgetter(*names) if names else None)

    # -- in each step -----------------------------------------------------------------------

    def fingerprint(self) -> tuple[object, ...]:
        """Return what is equal as long as no setting changed; some microseconds.

        A setting that is missing now, and a group that was added, differ from all before.
        """
        groups = self._training.optimizer.param_groups
        try:
            return (
                len(groups),
                self._clip(),
                tuple(
                    [
                        None if get is None else get(group)
                        for group, get in zip(groups, self._options, strict=False)
                    ]
                ),
                tuple(map(_is_training, self._modules)),
                tuple([getattr(m, name) for m, name in self._numbers]),
                tuple(map(_needs_gradient, self._parameters)),
            )
        except (AttributeError, KeyError):
            return (object(),)

    def rates(self) -> tuple[float, ...]:
        """Return the rates of the groups as they stand, those that are tensors left out."""
        groups = self._training.optimizer.param_groups
        return tuple([g["lr"] for g in groups if type(g["lr"]) is float])

    def sees_size(self, norm: float) -> bool:
        """Whether a gradient of this norm that is larger makes a larger update.

        Not to Adam and what divides by a running size, nor where it is clipped to one size.
        """
        clip = self._clip()
        plain = type(self._training.optimizer).__name__.lower() == "sgd"
        return plain and (clip is None or norm < clip)

    # -- where something changed ------------------------------------------------------------

    def read(self) -> dict[str, Values]:
        """Return all settings by name, such as `weight_decay`, `Dropout.p` or `Linear.training`."""
        found: dict[str, list[float]] = {}

        def put(name: str, value: object) -> None:
            if isinstance(value, bool | int | float):
                found.setdefault(name, []).append(float(value))

        for group in self._training.optimizer.param_groups:
            for key, value in group.items():
                if key in _NOT_SETTINGS:
                    continue
                if isinstance(value, tuple | list):
                    for name, part in zip(_names(key, value), value, strict=True):
                        put(name, part)
                else:
                    put(key, value)
        for module, name in self._numbers:
            put(f"{type(module).__name__}.{name}", getattr(module, name, None))
        for module in self._modules:
            put(f"{type(module).__name__}.training", module.training)
        for parameter in self._parameters:
            put("requires_grad", parameter.requires_grad)
        clip = self._clip()
        if clip is not None:
            found["clip"] = [float(clip)]
        return {name: tuple(values) for name, values in found.items()}

    def write(self, name: str, values: Sequence[float]) -> bool:
        """Put a setting back; return whether it could be: not the clip, which a caller passes on.

        Groups, modules and parameters that are more or fewer than the values are left alone.
        """
        places = self._places(name)
        if not places or len(places) != len(values):
            return False
        for put, value in zip(places, values, strict=True):
            put(value)
        return True

    def hold(self, held: Mapping[str, Values]) -> None:
        """Write these settings before each forward pass from now on; none: no longer.

        What a loop sets between a batch and its forward pass would count in that pass. Train mode
        is left alone: an evaluation between two steps is in eval mode for good reason.
        """
        self._held = {n: v for n, v in held.items() if not n.endswith(".training")}
        self._holding = self.fingerprint()
        if self._held and self._hook is None:
            self._hook = self._training.model.register_forward_pre_hook(self._write_held)
        elif not self._held and self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _write_held(self, *_: object) -> None:
        if self.fingerprint() == self._holding:
            return
        now = self.read()
        for name, values in self._held.items():
            if now.get(name) != values:
                self.overwritten[name] = now.get(name, ())
                self.write(name, values)
        self._holding = self.fingerprint()

    def _places(self, name: str) -> list[Callable[[float], None]]:
        kind, dot, attribute = name.rpartition(".")
        if name == "requires_grad":
            return [partial(_require, p) for p in self._parameters]
        if dot and attribute == "training":
            return [
                lambda v, m=m: setattr(m, "training", bool(v))  # type: ignore[misc]
                for m in self._modules
                if type(m).__name__ == kind
            ]
        if dot:
            return [
                lambda v, m=m: setattr(m, attribute, v)  # type: ignore[misc]
                for m, own in self._numbers
                if own == attribute and type(m).__name__ == kind
            ]
        return [
            put
            for group in self._training.optimizer.param_groups
            if (put := _place_in(group, name)) is not None
        ]


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(type(v) in (int, float) for v in value)
    return type(value) in (bool, int, float)


def _names(key: str, values: Sequence[object]) -> list[str]:
    if key == "betas" and len(values) <= len(_BETAS):
        return list(_BETAS[: len(values)])
    return [f"{key}{i + 1}" for i in range(len(values))]


def _place_in(group: dict[str, object], name: str) -> Callable[[float], None] | None:
    for key, value in group.items():
        if isinstance(value, tuple | list) and key not in _NOT_SETTINGS:
            names = _names(key, value)
            if name in names:
                return _writer(group, key, names.index(name))
        elif key == name and _is_plain(value):
            return _writer(group, key, None)
    return None


def _writer(group: dict[str, object], key: str, index: int | None) -> Callable[[float], None]:
    def put(value: float) -> None:
        now = group[key]
        if index is not None and isinstance(now, tuple | list):
            held = list(now)
            held[index] = value
            group[key] = tuple(held)
        else:
            group[key] = bool(value) if isinstance(now, bool) else value

    return put


def _named(model: torch.nn.Module) -> tuple[list[str], list[torch.Tensor]]:
    named = list(model.named_parameters())
    return [name for name, _ in named], [parameter for _, parameter in named]


def _require(parameter: torch.Tensor, value: float) -> None:
    parameter.requires_grad_(bool(value))
