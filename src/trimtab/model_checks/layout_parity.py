"""The same model and batch in every layout: the first tensor that differs is named.

One process trains a few steps; then several gloo processes do the same steps in each layout. All of
it in float64 on the CPU, where round-off is far below any mistake.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trimtab.errors import ConfigError
from trimtab.model_checks.anatomy import local
from trimtab.model_checks.book import found
from trimtab.model_checks.layouts import (
    LAYOUTS,
    LayoutCase,
    check_replicas,
    part_of,
    place,
    plain_names,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trimtab.config_rules.lint import ConfigFinding

__all__ = ["LayoutCase", "LayoutResult", "Parity", "TensorDifference", "clip_whole", "parity"]

_PHASES = ("loss", "gradient", "clipped gradient", "replicas", "update")
_TOLERANCE = {
    torch.float64: {
        "loss": 1e-6,
        "gradient": 1e-5,
        "clipped gradient": 1e-5,
        # Equal bit for bit: an all-reduce gives every rank the same sum.
        "replicas": 0.0,
        "update": 1e-4,
    },
    torch.float32: {
        "loss": 1e-4,
        "gradient": 1e-3,
        "clipped gradient": 1e-3,
        "replicas": 0.0,
        "update": 2e-2,
    },
}
"""Relative. Wide enough for a loss that computes in fp32 within a float64 model."""
_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """Where a layout first departs from one process."""

    step: int
    """Counted from 1."""
    phase: str
    """loss, gradient, clipped gradient, replicas (ranks differ from each other), update (new minus
    first weights)."""
    tensor: str
    """Parameter, in the model's order; "" for the loss."""
    rank: int
    error: float
    """‖ours − one process‖ / ‖one process‖; Inf where only one of them is finite or there is none.
    """
    tolerance: float
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class LayoutResult:
    """How one layout did."""

    layout: str
    ranks: int
    status: str
    """`agrees`, `differs`, `left out` or `failed`."""
    first: TensorDifference | None = None
    largest: dict[str, float] | None = None
    """Largest error of each phase, over all steps and tensors."""
    why: str = ""
    """Why it was left out, or failed."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Parity:
    """What every layout did."""

    layouts: tuple[LayoutResult, ...]
    findings: tuple[ConfigFinding, ...]
    steps: int

    @property
    def passed(self) -> bool:
        """Whether at least one layout ran, and none differs or failed."""
        states = {r.status for r in self.layouts}
        return "agrees" in states and not states & {"differs", "failed"}

    def to_json(self) -> dict[str, object]:
        """Return it as JSON can hold it."""
        return {
            "passed": self.passed,
            "steps": self.steps,
            "layouts": [asdict(r) for r in self.layouts],
            "findings": [asdict(f) for f in self.findings],
        }


def parity(
    build: Callable[[], LayoutCase],
    layouts: Sequence[str] = ("ddp", "fsdp", "tp"),
    *,
    ranks: int = 2,
    steps: int = 3,
    dtype: torch.dtype = torch.float64,
    timeout_s: float = _TIMEOUT_S,
) -> Parity:
    """Compare each layout on gloo ranks with one process.

    Loss, gradients, clipped gradients, replicas, updates.

    Args:
        build: Gives a fresh case, the same each time. A function at the top of a module that can
            be imported (ranks are processes of their own); a script needs `if __name__ ==
            "__main__":`.
        layouts: Of `LAYOUTS`.
        ranks: Processes; 2 or more.
        steps: Updates; 2 show a wrong clip under Adam, 3 a wrong decay or reduced gradient.
        dtype: float64, or float32 for a model that cannot compute in it.
        timeout_s: For each layout; then its ranks are ended.

    Returns:
        Per layout the first difference in the order step, phase, parameter; a layout without a plan
        is left out and says so.

    Raises:
        ConfigError: An argument is impossible.

    Cost: starts `ranks` processes per layout; each also trains the reference itself.
    Blind to what only appears on more ranks, on devices, or in low precision.
    """
    if ranks < 2 or steps < 1:
        raise ConfigError(f"ranks is {ranks} and steps is {steps}; give 2 or more, and 1 or more")
    if dtype not in _TOLERANCE:
        raise ConfigError(f"dtype is {dtype}; choose torch.float64 or torch.float32")
    unknown = [name for name in layouts if name not in LAYOUTS]
    if unknown or not layouts:
        raise ConfigError(f"layouts are {list(layouts)}; choose of {', '.join(LAYOUTS)}")
    results = tuple(_run(build, name, ranks, steps, dtype, timeout_s) for name in layouts)
    return Parity(layouts=results, findings=tuple(_findings(results)), steps=steps)


def _findings(results: Sequence[LayoutResult]) -> Iterator[ConfigFinding]:
    for result in results:
        first = result.first
        if first is not None:
            rule = (
                "REPLICA"
                if first.phase == "replicas"
                else "L14"
                if first.phase == "clipped gradient"
                else "PARITY"
            )
            yield found(
                rule,
                "error",
                f"{result.layout} on {result.ranks} ranks: {first.message}",
                values={
                    "layout": result.layout,
                    **{k: v for k, v in asdict(first).items() if k != "message"},
                },
                instead=_ADVICE[first.phase],
            )
        elif result.status == "failed":
            yield found(
                "PARITY",
                "error",
                f"{result.layout} on {result.ranks} ranks failed: {result.why}",
                values={"layout": result.layout},
            )


_ADVICE = {
    "loss": (
        "compare the forward pass module by module: a missing reduction, a mean over unequal parts,"
        " a wrong mask"
    ),
    "gradient": "reduce this gradient over the ranks that share the parameter, once",
    "clipped gradient": (
        "clip by the norm over all ranks, replicated parameters counted once, the same factor on"
        " every rank"
    ),
    "replicas": "reduce the gradient over the ranks that hold a copy, and update all copies alike",
    "update": (
        "the same optimizer settings and parameter groups on every rank; states of the right shards"
    ),
}


# ---------------------------------------------------------------- the parent's side


def _run(
    build: Callable[[], LayoutCase],
    layout: str,
    ranks: int,
    steps: int,
    dtype: torch.dtype,
    timeout_s: float,
) -> LayoutResult:
    begin = time.monotonic()
    # Ranks begin without the parent's threads, and torch is imported once, in the server.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trimtab.model_checks.layout_parity"])
    with tempfile.TemporaryDirectory(prefix="trimtab-parity-") as folder:
        crew = [
            context.Process(target=_work, args=(rank, ranks, folder, build, layout, steps, dtype))
            for rank in range(ranks)
        ]
        try:
            for process in crew:
                process.start()
        except (AttributeError, TypeError) as error:  # pickle's own complaints
            raise ConfigError(
                f"build cannot be sent to another process ({error}); define it at the top of a"
                " module"
            ) from error
        while any(p.is_alive() for p in crew) and time.monotonic() < begin + timeout_s:
            if any(p.exitcode not in (None, 0) for p in crew):
                break
            time.sleep(0.02)
        late = all(p.exitcode is None for p in crew)
        for process in crew:
            # Time to write its answer; a rank that is stuck in a collective is killed.
            process.join(0.5)
            if process.is_alive():
                process.kill()
                process.join()
        seconds = time.monotonic() - begin
        told = [json.loads(p.read_text("utf-8")) for p in sorted(Path(folder).glob("*.json"))]
        # What cannot be compared is that on every rank; of several that failed the first one: the
        # others lost their peer.
        order = {"left out": 0, "failed": 1}
        told.sort(key=lambda t: (order.get(t["status"], 2), t.pop("at")))
        said = next(iter(told), None)
    if said is None:
        codes = [p.exitcode for p in crew]
        why = (
            f"no rank ended within {timeout_s:.0f} s"
            if late
            else f"a rank died; exit codes {codes}"
        )
        if not late and not any(codes):
            why = (
                "the ranks ended without a word and with exit code 0; does your function, or what"
                " it imports, end the process?"
            )
        return LayoutResult(layout=layout, ranks=ranks, status="failed", why=why, seconds=seconds)
    first = said.pop("first", None)
    return LayoutResult(
        layout=layout,
        ranks=ranks,
        first=TensorDifference(**first) if first else None,
        seconds=seconds,
        **said,
    )


# ---------------------------------------------------------------- one rank


def _work(
    rank: int,
    ranks: int,
    folder: str,
    build: Callable[[], LayoutCase],
    layout: str,
    steps: int,
    dtype: torch.dtype,
) -> None:
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)  # remarks on speed
    answer: dict[str, object]
    try:
        # Each rank trains the reference itself: no tensor has to be sent, and all have it.
        reference = _train(build(), None, steps, dtype, {})
        _check_reference(reference)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
        )
        trace = _train(build(), layout, steps, dtype, reference)
        answer = _compare(trace, reference, _TOLERANCE[dtype])
    except ConfigError as error:
        answer = {"status": "left out", "why": str(error)}
    except _NotFiniteError as error:
        answer = {"status": "failed", "why": str(error)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 (any error of the user's code)
        answer = {"status": "failed", "why": f"{type(error).__name__}: {str(error)[:400]}"}
    # Ranks of one machine share this clock, and the earliest failure is the cause.
    answer["at"] = time.monotonic()
    if answer["status"] == "failed" or rank == 0:
        Path(folder, f"{rank}.json").write_text(json.dumps(answer), encoding="utf-8")
    # After a failure a peer may be gone, and a barrier would wait for it.
    if dist.is_initialized() and answer["status"] in ("agrees", "differs"):
        dist.barrier()
        dist.destroy_process_group()
    if answer["status"] == "failed":
        raise SystemExit(1)


class _Difference(TypedDict):
    """Fields of a `TensorDifference`, as one rank writes them for the parent."""

    step: int
    phase: str
    tensor: str
    rank: int
    error: float
    tolerance: float
    message: str


class _NotFiniteError(Exception):
    """One process alone runs into NaN or Inf."""


def _check_reference(reference: Trace) -> None:
    """Refuse to compare with what is not finite: any layout would differ from it, and rightly so.

    Raises:
        _NotFiniteError: Names the first step and what it is.
    """
    for (step, phase, name), value in reference.items():
        if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
            what = "NaN" if bool(torch.isnan(value).any()) else "Inf"
            where = f"the {_PHASES[phase]}{' of ' + name if name else ''}"
            raise _NotFiniteError(
                f"{where} of one process alone is {what} at step {step}; correct that first,"
                " layouts were not compared"
            )


Traced: TypeAlias = "Tensor | str | None"
Trace = dict[tuple[int, int, str], Traced]
"""(step, phase, parameter) → the whole tensor, None without a gradient; a message under `replicas`.
"""


def _train(
    case: LayoutCase, layout: str | None, steps: int, dtype: torch.dtype, reference: Trace
) -> Trace:
    """Do the steps and note every tensor; all ranks of a layout must call."""
    if not isinstance(case, LayoutCase):
        raise ConfigError(
            f"build gives {type(case).__name__}; give trimtab.model_checks.LayoutCase(model=…,"
            " optimizer=…, loss=…, batch=…)"
        )
    case.model.to(dtype)
    case.model.train()
    torch.manual_seed(0)
    batch = _cast(case.batch, dtype)
    model, ways, mine = (case.model, 1, 0) if layout is None else place(case, layout)
    own, trace = part_of(batch, ways, mine), dict[tuple[int, int, str], Traced]()
    # Updates are compared, not weights: an update is far smaller, and errors would vanish in those.
    start = {n: whole(w) for n, w in plain_names(model)}
    for step in range(1, steps + 1):
        case.optimizer.zero_grad(set_to_none=True)
        loss = case.loss(model, own)
        loss.backward()  # type: ignore[no-untyped-call]
        if case.after_backward is not None:
            case.after_backward(model)
        trace[step, 0, ""] = _mean(loss, ways)
        _note(trace, step, 1, model)
        _clip(case, model)
        _note(trace, step, 2, model)
        case.optimizer.step()
        if case.after_step is not None:
            case.after_step(model)
        if reference:
            wrong = check_replicas(model, step)
            if wrong:
                trace[step, 3, str(wrong[0].values["first"])] = wrong[0].message
        for name, weight in plain_names(model):
            trace[step, 4, name] = whole(weight) - start[name]
    return trace


def _cast(batch: object, dtype: torch.dtype) -> object:
    if isinstance(batch, Tensor):
        return batch.to(dtype) if batch.dtype.is_floating_point else batch
    if isinstance(batch, dict):
        return {k: _cast(v, dtype) for k, v in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(_cast(v, dtype) for v in batch)
    return batch


def _mean(loss: Tensor, ways: int) -> Tensor:
    value = whole(loss).double().reshape(())
    if ways > 1:
        dist.all_reduce(value)  # ranks of one tensor-parallel group hold the same loss
        value /= dist.get_world_size()
    return value


def _note(trace: Trace, step: int, phase: int, model: nn.Module) -> None:
    for name, weight in plain_names(model):
        trace[step, phase, name] = None if weight.grad is None else whole(weight.grad)


def _clip(case: LayoutCase, model: nn.Module) -> None:
    if callable(case.clip):
        case.clip(model)
    elif case.clip is not None:
        clip_whole(model, case.clip)


def clip_whole(model: nn.Module, limit: float) -> float:
    """Clip by the norm of the whole gradient, the same in every layout; return that norm.

    Works where plain and sharded gradients are mixed, which `clip_grad_norm_` refuses; gathers each
    gradient, so for tests only.
    """
    grads = [w.grad for w in model.parameters() if w.grad is not None]
    norm = float(torch.stack([whole(g).double().norm() for g in grads]).norm())
    # 1e-6 as `clip_grad_norm_` has it, so that both clip alike.
    factor = min(1.0, limit / (norm + 1e-6))
    for grad in grads:
        local(grad).mul_(factor)
    return norm


def _compare(trace: Trace, reference: Trace, tolerance: dict[str, float]) -> dict[str, object]:
    """Compare this rank's trace with the reference; return the first difference of all ranks."""
    largest = dict.fromkeys(_PHASES, 0.0)
    first: _Difference | None = None
    scale = {s: _norm_of(reference, s) for s in {key[0] for key in reference}}
    names = {n: i for i, n in enumerate(dict.fromkeys(k[2] for k in reference))}
    for key in sorted(trace, key=lambda k: (k[0], k[1], names[k[2]])):
        step, phase, tensor = key[0], _PHASES[key[1]], key[2]
        error = (
            float("inf")
            if phase == "replicas"
            else _error(trace[key], reference.get(key), scale[step])
        )
        largest[phase] = max(largest[phase], error)
        # Not `>`: a NaN error is a difference.
        if first is None and not error <= tolerance[phase]:
            where = f"{phase} of {tensor}" if tensor else phase
            told = (
                str(trace[key])
                if phase == "replicas"
                else f"step {step}: {where} differs by {error:.2g} (tolerance {tolerance[phase]:g})"
            )
            first = {
                "step": step,
                "phase": phase,
                "tensor": tensor,
                "rank": dist.get_rank(),
                "error": error,
                "tolerance": tolerance[phase],
                "message": told,
            }
    every: list[tuple[_Difference | None, dict[str, float]]]
    every = [(None, {})] * dist.get_world_size()
    # Every rank, since a shard that only one of them holds may be the first to differ.
    dist.all_gather_object(every, (first, largest))
    firsts = [f for f, _ in every if f is not None]
    worst = {p: max(mine[p] for _, mine in every) for p in _PHASES}
    if not firsts:
        return {"status": "agrees", "largest": worst}
    earliest = min(
        firsts,
        key=lambda f: (f["step"], _PHASES.index(f["phase"]), names.get(f["tensor"], 0), f["rank"]),
    )
    if earliest["phase"] != "replicas":
        earliest["message"] += f" on rank {earliest['rank']}"
    return {"status": "differs", "first": earliest, "largest": worst}


def _norm_of(reference: Trace, step: int) -> float:
    grads = [
        v.double().norm()
        for (s, phase, _), v in reference.items()
        if s == step and phase == 1 and isinstance(v, Tensor)
    ]
    return float(torch.stack(grads).norm()) if grads else 0.0


def _error(ours: Traced, theirs: Traced, scale: float) -> float:
    """Return the relative difference; what is 1e-9 of the whole gradient, or less, counts as 0."""
    if not isinstance(ours, Tensor) or not isinstance(theirs, Tensor):
        return 0.0 if ours is theirs else float("inf")
    if isinstance(ours, DTensor) or ours.shape != theirs.shape:
        return float("inf")
    gap = float((ours.double() - theirs.double()).norm())
    # A gradient that is 0 but for round-off has no relative error.
    size = max(float(theirs.double().norm()), 1e-9 * scale, 1e-30)
    same = torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())
    if gap != gap:  # NaN on both sides, at the same places, is agreement
        return 0.0 if same else float("inf")
    return gap / size
