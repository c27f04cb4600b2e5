"""What `Guard` is given: refused where it cannot work, and read where it is left open."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import UninitializedParameter
from torch.optim.lr_scheduler import ReduceLROnPlateau

from trimtab.errors import ChronicleError, ConfigError
from trimtab.guard.control import arguments
from trimtab.guard.recording.fault_barrier import to_stderr
from trimtab.guard.state.optimizers import SchedulerSet, optimizers_in
from trimtab.plan.policy import Policy
from trimtab.plan.skiplist import read_skip_list
from trimtab.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from trimtab.guard.data.streams import Order
    from trimtab.guard.distributed.process_group import Ranks

__all__ = [
    "check_arguments",
    "check_belonging",
    "check_objects",
    "count_tokens",
    "extra_parts",
    "resume_skip_list",
    "safe_counter",
    "safe_say",
]


def extra_parts(given: object) -> dict[str, Any]:
    """Return `Guard(extra=...)`: what is saved and restored with the run, by name.

    Raises:
        ConfigError: It is no mapping of names, or a part could not be saved: found now, and not at
            the first checkpoint.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(
            f"Guard(extra={given!r:.60}): expected a mapping of names to what has state_dict() and"
            " load_state_dict()"
        )
    for name, part in given.items():
        missing = [
            method
            for method in ("state_dict", "load_state_dict")
            if not callable(getattr(part, method, None))
        ]
        if missing:
            raise ConfigError(
                f"Guard(extra=...): {name!r} is a {type(part).__name__} without"
                f" {' and '.join(m + '()' for m in missing)}, so that it can be neither saved nor"
                " restored"
            )
    return dict(given)


def check_objects(
    model: object,
    optimizer: object,
    scheduler: object,
    policy: object,
    *,
    scaler: object = None,
    output_layer: object = None,
    say: object = None,
    count_tokens: object = None,
) -> None:
    """Refuse objects that are not what they are passed as.

    Raises:
        ConfigError: One is not; the message says which and what to do.
    """
    _check_object("model", model, "the torch.nn.Module that is trained", "parameters", "state_dict")
    if isinstance(model, torch.jit.ScriptModule):
        raise ConfigError(
            "model is a ScriptModule, which takes no hooks; give the plain module, compiled with"
            " torch.compile if at all"
        )
    named = model.named_parameters() if isinstance(model, torch.nn.Module) else ()
    lazy = [name for name, p in named if isinstance(p, UninitializedParameter)]
    if lazy:
        raise ConfigError(
            f"{lazy[0]} of the model has no shape yet (a lazy module): run one batch through the"
            " model before the optimizer and Guard(...)"
        )
    for one in _each(optimizer):
        _check_object(
            "optimizer", one, "a torch.optim optimizer", "step", "param_groups", "state_dict"
        )
    for one in _each(scheduler) if scheduler is not None else ():
        _check_object(
            "scheduler",
            one,
            "a learning-rate scheduler, or None",
            "step",
            "state_dict",
            "load_state_dict",
        )
    if scaler is not None:
        _check_object(
            "scaler", scaler, "a torch.amp.GradScaler, or None", "step", "update", "state_dict"
        )
    if output_layer is not None and not isinstance(output_layer, torch.nn.Module):
        raise ConfigError(
            f"output_layer is {arguments.shown(output_layer)}, expected the module of the model"
            " that gives the logits, or None"
        )
    for name, function in (("say", say), ("count_tokens", count_tokens)):
        if function is not None and not callable(function):
            raise ConfigError(
                f"{name} is {arguments.shown(function)}, expected a function, or None"
            )
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"policy is {arguments.shown(policy)}, expected a Policy: Policy(...),"
            " Policy.from_toml(path) or Policy.from_mapping(table)"
        )


def check_belonging(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: object
) -> None:
    """Refuse an optimizer of which nothing is the model's, and a scheduler of another optimizer.

    Parameters beside those of the model are allowed, as of a loss that learns, and so are copies of
    them in float32, partitions of an engine, and wrappers that share groups or parameters.

    Raises:
        ConfigError: One trains, or moves, something else; the message says which and what to do.
    """
    members = optimizers_in(optimizer)
    trained = [p for one in members for p in _parameters_of(one)]
    known = {id(p): p for p in model.parameters()}
    # what stands in for an engine's optimizer shows partitions of its own, and keeps no state
    if not all("state" in vars(member) for member in members):
        return
    masters = not {p.dtype for p in trained} <= {p.dtype for p in known.values()}
    if trained and known and not masters and not any(id(p) in known for p in trained):
        raise ConfigError(
            f"optimizer: none of the {len(trained)} parameters of {_names(members)} is one of the"
            f" {len(known)} of the model ({type(model).__name__}): guard.step() would train"
            " something else; build the optimizer from model.parameters() of the very model that"
            " Guard is given, after it was wrapped or copied"
        )
    ours = {id(x) for x in (*optimizer.param_groups, *trained)}
    for one in scheduler.members if isinstance(scheduler, SchedulerSet) else (scheduler,):
        other = getattr(one, "optimizer", None)
        if not isinstance(other, torch.optim.Optimizer) or other in members:
            continue
        if not ours & {id(x) for x in (*other.param_groups, *_parameters_of(other))}:
            raise ConfigError(
                f"scheduler: {type(one).__name__} moves the rates of another optimizer"
                f" ({type(other).__name__}) than the one that Guard is given ({_names(members)});"
                " build it with that one, or leave it out"
            )


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _names(optimizers: Sequence[torch.optim.Optimizer]) -> str:
    return " + ".join(type(one).__name__ for one in optimizers)


def _each(given: object) -> list[object]:
    """Return what a list or tuple holds, or the one thing itself.

    An empty list is left for the one who takes several together to refuse.
    """
    return list(given) if isinstance(given, list | tuple) else [given]


def _check_object(name: str, given: object, what: str, *needed: str) -> None:
    if isinstance(given, type) or not all(hasattr(given, part) for part in needed):
        raise ConfigError(f"{name} is {arguments.shown(given)}, expected {what}")


class CallbackErrors:
    """Errors of the user's functions, kept until there is somebody to tell them to."""

    def __init__(self) -> None:
        """Keep none."""
        self._early: list[tuple[str, Exception, str]] = []
        self._tell: Callable[[str, Exception, str], None] | None = None

    def note(self, name: str, error: Exception, after: str) -> None:
        """Take in what a function raised; `after`: what follows from it."""
        if self._tell is not None:
            self._tell(name, error, after)
        elif not self._early:
            self._early.append((name, error, after))

    def pass_to(self, tell: Callable[[str, Exception, str], None]) -> None:
        """From now on call `tell(name, error, what follows)`."""
        early, self._early, self._tell = self._early, [], tell
        for name, error, after in early:
            tell(name, error, after)


def safe_say(say: Callable[[str], None], errors: CallbackErrors) -> Callable[[str], None]:
    """Return a `say` that cannot stop a run.

    Control characters are written out, and a line on which `say` fails goes to standard error.
    """

    def said(line: str) -> None:
        line = visible(line)
        try:
            say(line)
        except Exception as error:  # noqa: BLE001 - the guard's edge: somebody else's display
            to_stderr(line)
            errors.note("say", error, "its lines go to standard error")

    return said


def check_arguments(
    optimizer: torch.optim.Optimizer,
    clip: float | None,
    steps: int | None,
    scheduler: object,
    accumulate: int = 1,
    *,
    check_resume: int = 0,
    loaded_step: int | None = None,
) -> None:
    """Refuse impossible arguments.

    Raises:
        ConfigError: One is impossible; the message says which and what to do.
    """
    number: object = clip  # the annotations do not bind a caller
    whole: object = steps
    if clip is not None and (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or not (math.isfinite(number) and number > 0)
    ):
        raise ConfigError(f"clip is {clip!r}, expected a positive number, or None for no clipping")
    if steps is not None and (isinstance(whole, bool) or not isinstance(whole, int) or whole < 1):
        raise ConfigError(
            f"steps is {steps!r}, expected a whole number of at least 1, or None for one epoch"
        )
    batches: object = accumulate
    if isinstance(batches, bool) or not isinstance(batches, int) or batches < 1:
        raise ConfigError(
            f"accumulate is {accumulate!r}, expected how many batches make one step, at least 1"
        )
    counts: dict[str, object] = {"check_resume": check_resume}
    if loaded_step is not None:
        counts["loaded_step"] = loaded_step
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ConfigError(f"{name} is {count!r:.60}, expected a whole number of at least 0")
    for one in optimizers_in(optimizer):
        closure = inspect.signature(type(one).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ConfigError(
                f"optimizer is {type(one).__name__}, whose step needs a closure; the guard runs "
                "the loop's own forward pass once per step: use an optimizer without one"
            )
    schedulers = scheduler.members if isinstance(scheduler, SchedulerSet) else (scheduler,)
    if any(isinstance(one, ReduceLROnPlateau) for one in schedulers):
        raise ConfigError(
            "scheduler is ReduceLROnPlateau, which needs a validation loss at each step; "
            "pass scheduler=None and step it in your own loop"
        )


def count_tokens(batch: object) -> int:
    """Return the elements of the first integer tensor with at least two dimensions, or 0."""
    if isinstance(batch, torch.Tensor):
        return batch.numel() if batch.dim() >= 2 and not batch.is_floating_point() else 0
    values = (
        batch.values()
        if isinstance(batch, dict)
        else batch
        if isinstance(batch, list | tuple)
        else ()
    )
    for value in values:
        count = count_tokens(value)
        if count:
            return count
    return 0


def safe_counter(count: Callable[[Any], int], errors: CallbackErrors) -> Callable[[Any], int]:
    """Return a counter that gives 0 for a batch that `count` fails on: counting stops no run."""

    def counted(batch: object) -> int:
        try:
            return int(count(batch))
        except Exception as error:  # noqa: BLE001 - the guard's edge, for a part that only informs
            errors.note("count_tokens", error, "such a batch counts as 0 tokens")
            return 0

    return counted


@contextlib.contextmanager
def disk_errors_named(root: Path, copy_to: str) -> Iterator[None]:
    """Say in one sentence which file of a run the disk refuses at the start.

    A file elsewhere is the user's, whose error stays as it is.

    Raises:
        ChronicleError: The disk refuses a file of the run directory or of the second place.
    """
    try:
        yield
    except OSError as error:
        name = str(error.filename or "")
        if not name.startswith((str(root), copy_to or str(root))):
            raise
        raise ChronicleError(
            f"{name}: cannot be read or written ({error.strerror}); look at the disk, then start"
            " the same script again"
        ) from error


def resume_skip_list(order: Order, ranks: Ranks, place: Path) -> None:
    """Withhold again what a skip list of this run named."""
    kept = ranks.agree(lambda: read_skip_list(place) if place.exists() else None)
    if kept is not None:
        order.withhold(kept.ranges, of=kept.size)
