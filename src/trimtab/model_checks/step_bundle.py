"""One training step in a file: state, batch, random states and machine; computed again elsewhere.

A loss that one machine finds and no other, or once and not again, is the hardware's. A step that
gives the same everywhere is the model's, the data's or the code's.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import random
import zipfile
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.durable import move, sync_file
from trimtab.errors import ConfigError, ReadError
from trimtab.text import number, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Outcome", "Replays", "StepBundle", "export_step", "load_step", "replay"]

LossOf = Callable[[nn.Module, Any], object]
"""The loss of a batch under a model: a tensor of one number, with a graph."""

Verdict = Literal["reproduced", "not reproduced", "transient"]

_FORMAT = 1
_ROUNDING = {"float32": 1e-4, "float64": 1e-8}
"""Relative difference of the loss that other kernels and versions may make; 2e-2 for shorter
types. Ours."""
_SHORT_ROUNDING = 2e-2


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a forward and a backward pass gave."""

    loss: float
    """NaN and infinite ones are normal."""
    norm: float
    """Of all gradients."""
    digests: Mapping[str, str]
    """SHA-256 of each gradient, by parameter; "" where there is none."""
    failed: str = ""
    """The error that it ended in."""

    def same_bits(self, other: Outcome) -> bool:
        """Whether loss and gradients are equal in every bit; NaN equals NaN."""
        return not (self.failed or other.failed) and (
            (_bits(self.loss), dict(self.digests)) == (_bits(other.loss), dict(other.digests))
        )

    def text(self) -> str:
        """Return it as a clause."""
        return self.failed or f"loss {self.loss:.8g}, gradient norm {self.norm:.8g}"


@dataclass(frozen=True, kw_only=True)
class StepBundle:
    """What `export_step` wrote."""

    path: Path
    step: int | None
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any] | None
    batch: Any
    rng: Mapping[str, Any]
    training: Mapping[str, bool]
    dtype: str
    recorded: Outcome
    machine: Mapping[str, str]
    """Where it was recorded, and with what."""


@dataclass(frozen=True, kw_only=True)
class Replays:
    """What came of computing a step again."""

    verdict: Verdict
    outcomes: tuple[Outcome, ...]
    recorded: Outcome
    here: Mapping[str, str]
    there: Mapping[str, str]
    first_difference: str = ""
    """Parameter whose gradient differs first from the recorded one, in the order of the model."""

    @property
    def same_machine(self) -> bool:
        """Whether bits may be compared: the same device and versions."""
        return all(self.here[k] == self.there.get(k) for k in ("device", "torch"))

    def text(self) -> str:
        """Return what happened, what it says and what to do, a line each."""
        odd = sum(not self._is_as_most(o) for o in self.outcomes)
        count = len(self.outcomes)
        if self.verdict == "transient":
            return (
                f"transient: {odd} of {count} replays of one step differ from the others\n"
                "  says: this machine errs now and then, or the code is not deterministic\n"
                "  do: replay on another machine; if it agrees there each time, take this one out"
            )
        if self.verdict == "not reproduced":
            where = f"; first in the gradient of {self.first_difference}" * bool(
                self.first_difference
            )
            return (
                f"not reproduced: {count} of {count} replays agree, and the recorded step differs:"
                f" {self.recorded.text()} then, {self.outcomes[0].text()} now{where}\n"
                f"  says: a passing fault of {self.there.get('host') or 'the first machine'}, not"
                " of the model or its data\n"
                "  do: check that machine (trimtab doctor --nodes), leave it out, restart from"
                " before the step"
            )
        how = "in every bit" if self.same_machine else "within rounding"
        return (
            f"reproduced: {count} of {count} replays give what was recorded, {how}:"
            f" {self.outcomes[0].text()}\n"
            "  says: it lies in the state, the batch or the code; no passing hardware fault\n"
            "  do: look at the batch and the state; the same step can be debugged here"
        )

    def _is_as_most(self, outcome: Outcome) -> bool:
        return sum(outcome.same_bits(o) for o in self.outcomes) * 2 > len(self.outcomes)


def export_step(
    path: str | Path,
    *,
    model: nn.Module,
    batch: object,
    loss_of: LossOf,
    optimizer: torch.optim.Optimizer | None = None,
    step: int | None = None,
) -> StepBundle:
    """Write a step that can be computed again elsewhere: state, batch, random states, machine.

    One forward and one backward pass are made for what is recorded. Parameters, buffers, gradients
    and random states are left as they were. Call it between two steps, at the batch in question;
    one process, no sharded model.

    Args:
        path: The file to write; it is never written over.
        model: In the state before the step.
        batch: Tensors, numbers and text in dicts, lists and tuples.
        loss_of: Gives the loss of (model, batch).
        optimizer: Its state goes along, for whoever looks at it.
        step: Its number.

    Raises:
        ConfigError: The file exists or cannot be written, or the batch holds something else.

    A loss or gradient that is not finite is recorded as it is. Costs one step, and a copy of the
    parameters' gradients.
    """
    path = Path(path)
    if path.exists():
        raise ConfigError(f"{path}: exists; give a new name")
    kept = _plain_batch(batch)
    state = {name: value.detach().clone() for name, value in _tensors(model).items()}
    rng = _random_states()
    training = {name: module.training for name, module in model.named_modules()}
    recorded = _compute(model, state, rng, batch, loss_of)
    dtypes = {str(p.dtype).removeprefix("torch.") for p in model.parameters()}
    document = {
        "trimtab_step": _FORMAT,
        "step": step,
        "model": {name: value.cpu() for name, value in state.items()},
        "optimizer": None if optimizer is None else _plain_batch(optimizer.state_dict()),
        "batch": kept,
        "rng": rng,
        "training": training,
        "dtype": min(dtypes, key=lambda d: torch.finfo(getattr(torch, d)).bits, default="float32"),
        "loss": recorded.loss,
        "norm": recorded.norm,
        "digests": dict(recorded.digests),
        "failed": recorded.failed,
        "machine": _machine(model),
    }
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(document, partial)
        sync_file(partial)
        move(partial, path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot be written ({plain(error, limit=200)})") from error
    return load_step(path)


def load_step(path: str | Path) -> StepBundle:
    """Read what `export_step` wrote; nothing in the file is executed.

    Raises:
        ReadError: There is no such file, or it is none of these.
    """
    path = Path(path)
    if not path.is_file():
        raise ReadError(f"{path}: there is no such file")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError,
            zipfile.BadZipFile) as error:  # fmt: skip
        said = plain(error, limit=200)
        if isinstance(error, pickle.UnpicklingError):  # torch's own text asks to trust the file
            said = "it is torn, or holds what would have to be executed"
        raise ReadError(f"{path}: no exported step ({said})") from error
    if not isinstance(found, dict) or found.get("trimtab_step") != _FORMAT:
        raise ReadError(
            f"{path}: no exported step; write one with trimtab.model_checks.export_step"
        )
    try:
        return StepBundle(
            path=path,
            step=found["step"],
            model=dict(found["model"]),
            optimizer=found["optimizer"],
            batch=found["batch"],
            rng=dict(found["rng"]),
            training=dict(found["training"]),
            dtype=str(found["dtype"]),
            recorded=Outcome(
                loss=float(found["loss"]),
                norm=float(found["norm"]),
                digests={str(k): str(v) for k, v in dict(found["digests"]).items()},
                failed=str(found["failed"]),
            ),
            machine={plain(k): plain(v) for k, v in dict(found["machine"]).items()},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ReadError(f"{path}: an exported step that is damaged ({plain(error)})") from error


def replay(
    bundle: StepBundle, *, model: nn.Module, loss_of: LossOf, times: int = 3, device: str = ""
) -> Replays:
    """Compute an exported step again, several times, each from the same state.

    `transient`: the replays do not agree among each other. `not reproduced`: they do, and differ
    from what was recorded: in a bit on the same device and torch version, else beyond rounding of
    the loss (relative 1e-4 in fp32, 1e-8 in fp64, 2e-2 in shorter types) or in what is finite.

    Args:
        bundle: From `load_step`.
        model: Of the same shape; its weights are overwritten.
        loss_of: As for `export_step`.
        times: Replays, 1 to 1,000; under 2 nothing can be called transient.
        device: Where; "": where the model is.

    Raises:
        ConfigError: The model has other tensors than the recorded one.
    """
    if not 1 <= times <= 1000:
        raise ConfigError(f"times={times}: expected 1 to 1,000 replays")
    if device:
        model = model.to(device)
    own = _tensors(model)
    wrong = sorted(
        name
        for name in {*own, *bundle.model}
        if name not in own
        or name not in bundle.model
        or own[name].shape != bundle.model[name].shape
    )
    if wrong:
        raise ConfigError(
            f"{bundle.path}: of another model: {', '.join(map(repr, wrong[:3]))} and"
            f" {number(max(len(wrong) - 3, 0))} more tensors are not in both, or differ in shape"
        )
    for name, module in model.named_modules():
        module.training = bundle.training.get(name, module.training)
    place = next((t.device for t in own.values()), torch.device("cpu"))
    batch = _to(bundle.batch, place)
    outcomes = tuple(
        _compute(model, bundle.model, bundle.rng, batch, loss_of) for _ in range(times)
    )
    there, here = bundle.machine, _machine(model)
    found = Replays(
        verdict="reproduced", outcomes=outcomes, recorded=bundle.recorded, here=here, there=there
    )
    first = outcomes[0]
    if not all(o.same_bits(first) for o in outcomes) and not all(o.failed for o in outcomes):
        verdict: Verdict = "transient"
    elif _agrees(first, bundle, bits=found.same_machine):
        verdict = "reproduced"
    else:
        verdict = "not reproduced"
    differing = ""
    if verdict == "not reproduced" and found.same_machine:
        recorded = bundle.recorded.digests
        differing = next((n for n, d in first.digests.items() if recorded.get(n) != d), "")
    return Replays(
        verdict=verdict,
        outcomes=outcomes,
        recorded=bundle.recorded,
        here=here,
        there=there,
        first_difference=differing,
    )


def _agrees(outcome: Outcome, bundle: StepBundle, *, bits: bool) -> bool:
    recorded = bundle.recorded
    if outcome.failed or recorded.failed:
        return bool(outcome.failed) == bool(recorded.failed)
    if bits:
        return outcome.same_bits(recorded)
    within = _ROUNDING.get(bundle.dtype, _SHORT_ROUNDING)
    return all(
        np.isclose(now, then, rtol=share, atol=0.0, equal_nan=True)
        for now, then, share in (
            (outcome.loss, recorded.loss, within),
            # a norm adds up the rounding of a whole backward pass
            (outcome.norm, recorded.norm, min(100 * within, 0.2)),
        )
    )


def _compute(
    model: nn.Module,
    state: Mapping[str, Any],
    rng: Mapping[str, Any],
    batch: object,
    loss_of: LossOf,
) -> Outcome:
    """Make both passes from a state, and leave model and random states as they were."""
    own = _tensors(model)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    before = {name: t.detach().clone() for name, t in own.items()}
    with _keeping_random_states(), torch.enable_grad():
        try:
            _set(own, state)
            _seed(rng)
            for p in model.parameters():
                p.grad = None
            loss = loss_of(model, batch)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise ConfigError("loss_of: expected a tensor of one number")
            loss.backward()  # type: ignore[no-untyped-call]
            return _outcome(model, float(loss.detach()))
        except (RuntimeError, FloatingPointError) as error:
            said = plain(f"{type(error).__name__}: {error}", limit=300)
            return Outcome(loss=np.nan, norm=np.nan, digests={}, failed=said)
        finally:
            for name, p in model.named_parameters():
                p.grad = gradients[name]
            _set(own, before)


def _outcome(model: nn.Module, loss: float) -> Outcome:
    digests, squares = {}, 0.0
    for name, p in model.named_parameters():
        if p.grad is None:
            digests[name] = ""
            continue
        dense = (p.grad.to_dense() if p.grad.is_sparse else p.grad).detach().cpu().contiguous()
        squares += float(dense.double().square().sum())
        data = dense.view(torch.uint8) if dense.ndim else dense.reshape(1).view(torch.uint8)
        digests[name] = hashlib.sha256(data.numpy().tobytes()).hexdigest()
    return Outcome(loss=loss, norm=float(np.sqrt(squares)), digests=digests)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and all buffers, also those that no checkpoint holds."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@torch.no_grad()
def _set(own: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    for name, tensor in own.items():
        tensor.copy_(values[name])


def _plain_batch(value: object) -> Any:
    """Return a copy on the CPU, of what can be read back without executing anything.

    Raises:
        ConfigError: It holds something else.
    """
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {_plain_batch(k): _plain_batch(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        items = [_plain_batch(v) for v in value]
        return items if isinstance(value, list) else tuple(items)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)  # a subclass would have to be executed to be read back
    if value is None:
        return None
    raise ConfigError(
        f"export_step: the batch holds {type(value).__name__}; give tensors, numbers and text in"
        " dicts, lists and tuples"
    )


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {k: _to(v, device) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_to(v, device) for v in value)
    return value


def _random_states() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - what a batch's code may use
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
    }


def _seed(rng: Mapping[str, Any]) -> None:
    torch.set_rng_state(rng["torch"])
    if torch.cuda.is_available() and len(rng["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(rng["cuda"])
    version, internal, gauss = rng["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = rng["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002


@contextmanager
def _keeping_random_states() -> Iterator[None]:
    before = _random_states()
    try:
        yield
    finally:
        _seed(before)


def _machine(model: nn.Module) -> dict[str, str]:
    place = next((t.device for t in _tensors(model).values()), torch.device("cpu"))
    device = torch.cuda.get_device_name(place) if place.type == "cuda" else _processor(place)
    return {
        "host": platform.node(),
        "device": device,
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "tf32": str(torch.backends.cuda.matmul.allow_tf32),
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
    }


def _processor(place: torch.device) -> str:
    features = torch.backends.cpu.get_cpu_capability()
    return f"{place.type} {platform.machine()} {features} x {torch.get_num_threads()}"


def _bits(value: float) -> bytes:
    return b"nan" if np.isnan(value) else np.float64(value).tobytes()
