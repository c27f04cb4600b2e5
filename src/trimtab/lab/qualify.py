"""Tries out on this machine what the guard does to a run, and writes a certificate of it.

Small transformers are trained in the plain loop and under the guard, on one device, under torch's
deterministic algorithms. Where two plain runs still differ, that is the machine's noise, which is
stated, and the guard is held against it.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
import multiprocessing
import os
import signal
import statistics
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from trimtab.guard import Guard
from trimtab.guard.loop.certificate import Certificate, CertificateCheck, machine_of
from trimtab.lab.config import ModelConfig
from trimtab.lab.corruption import Corruption
from trimtab.lab.scenario import Scenario, healthy_twin
from trimtab.lab.text import load_text
from trimtab.lab.train import build, evaluate, forward, train, train_step
from trimtab.plan.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trimtab.lab.text import Text
    from trimtab.lab.train import Parts
    from trimtab.plan.policy import Mode

__all__ = ["CHECKS", "qualify"]

_STEPS = 40
_NOISE_FACTOR = 4.0
"""A guarded run may differ from a plain one by so many times what two plain ones differ by."""
_LIMIT_S = 480.0
"""After it nothing further is begun."""
_SIZE = Scenario(
    name="qualify",
    title="",
    expect="untouched",
    expected_minutes=1.0,
    steps=_STEPS,
    warmup_steps=10,
    batch_size=8,
    peak_lr=3e-3,
    model=ModelConfig(width=64, num_layers=2, context_tokens=64),
)
_BAD_STEP, _LONG = 150, 300
_FAULTY = dataclasses.replace(
    _SIZE,
    expect="recovers",
    steps=_LONG,
    model=ModelConfig(width=32, num_layers=1, num_heads=2, context_tokens=32),
    corruption=Corruption(kind="random", first_sample=(_BAD_STEP - 1) * 8, num_samples=12 * 8),
)


class _NotPossible(Exception):  # noqa: N818 (no error: it is an answer)
    """This machine cannot do it."""


class _Bench:
    """Where things are tried out."""

    def __init__(self, device: str, folder: Path, text: Text) -> None:
        self.device = device
        self.text = text
        self._folder = folder
        self._count = itertools.count()

    @property
    def on_cuda(self) -> bool:
        return self.device.startswith("cuda")

    def new_folder(self) -> Path:
        return self._folder / f"run-{next(self._count)}"

    def parts(self, scenario: Scenario = _SIZE) -> Parts:
        return build(scenario, 0, self.text, device=self.device)

    def wait(self) -> None:
        if self.on_cuda:
            torch.cuda.synchronize()

    def guard(self, parts: Parts, mode: Mode = "observe", **policy: Any) -> Guard:
        settings = {"act_uncertified": True, "checkpoint_in_background": False, **policy}
        return Guard(
            parts.module,
            parts.optimizer,
            data=parts.loader,
            scheduler=parts.scheduler,
            scaler=parts.scaler,
            clip=parts.scenario.clip_norm,
            steps=parts.scenario.steps,
            run=self.new_folder(),
            mode=mode,
            policy=Policy(**settings),
            say=lambda _line: None,
        )

    def guarded(
        self,
        parts: Parts,
        mode: Mode = "observe",
        *,
        spoil: Callable[[Guard, Parts], None] | None = None,
        **policy: Any,
    ) -> tuple[list[float], Guard]:
        """Train under a guard; `spoil` is called before each update."""
        guard, losses = self.guard(parts, mode, **policy), list[float]()
        for batch in guard:
            loss = forward(parts, batch)
            guard.backward(loss)
            probing = guard.phase == "probe"
            if spoil is not None and not probing:
                spoil(guard, parts)
            guard.step()
            if not probing:
                losses.append(float(loss.detach()))
        guard.close()
        return losses, guard


# -- what is tried out ----------------------------------------------------------------------


def _same(
    bench: _Bench, prepare: Callable[[Parts], Parts] = lambda p: p, scenario: Scenario = _SIZE
) -> CertificateCheck:
    """Hold an observed run against two plain ones, made by the same recipe."""
    runs = [train(prepare(bench.parts(scenario))) for _ in range(2)]
    seen, _ = bench.guarded(prepare(bench.parts(scenario)))
    return _against(runs[0], runs[1], seen, f"the plain loop over {scenario.steps} steps")


def _against(
    one: list[float], other: list[float], seen: list[float], what: str
) -> CertificateCheck:
    noise, off = _distance(one, other), _distance(one, seen)
    figures = {"noise": noise, "difference": off}
    if off == 0:
        return CertificateCheck(
            name="", state="passed", text=f"bit for bit {what}", figures=figures
        )
    text = f"differs from {what} by up to {off:.2g}; two runs without it differ by {noise:.2g}"
    good = off <= _NOISE_FACTOR * noise
    return CertificateCheck(
        name="", state="passed" if good else "failed", text=text, figures=figures
    )


def _distance(a: list[float], b: list[float]) -> float:
    if len(a) != len(b):
        return math.inf
    return max(
        (0.0 if x == y else abs(x - y) / max(abs(x), 1e-12) for x, y in zip(a, b, strict=True)),
        default=math.inf,
    )


def _good(text: str, **figures: Any) -> CertificateCheck:
    return CertificateCheck(name="", state="passed", text=text, figures=figures)


def _bad(text: str, **figures: Any) -> CertificateCheck:
    return CertificateCheck(name="", state="failed", text=text, figures=figures)


def _noise(bench: _Bench) -> CertificateCheck:
    with _deterministic(on=False):
        distance = _distance(*(train(bench.parts()) for _ in range(2)))
    words = "are the same bit for bit" if distance == 0 else f"differ by up to {distance:.2g}"
    return _good(f"two plain runs with torch's default kernels {words}", noise=distance)


def _overhead(bench: _Bench) -> CertificateCheck:
    size = dataclasses.replace(
        _SIZE, steps=2000, model=ModelConfig(width=256, num_layers=4, num_heads=8)
    )
    plain, watched = bench.parts(size), bench.parts(size)
    guard = bench.guard(watched, checkpoint_every_steps=10**9)
    bare, own = iter(plain.loader), iter(guard)

    def observed() -> None:
        before = guard.step_number
        while guard.step_number == before:
            guard.backward(forward(watched, next(own)))
            guard.step()

    ways = (lambda: train_step(plain, next(bare)), observed)
    blocks: tuple[list[float], list[float]] = ([], [])
    for block in range(14):
        for which in (0, 1) if block % 2 else (1, 0):
            bench.wait()
            began = time.perf_counter()
            for _ in range(10):
                ways[which]()
            bench.wait()
            blocks[which].append(time.perf_counter() - began)
    guard.close()
    ratio = statistics.median(b / a for a, b in zip(*(x[2:] for x in blocks), strict=True))
    step_ms = 100 * statistics.median(blocks[0])
    return _good(
        f"an observed step takes {ratio:.3f} of a plain one, {step_ms:.1f} ms, in a small model",
        ratio=ratio,
        step_ms=step_ms,
    )


def _snapshot(bench: _Bench) -> CertificateCheck:
    parts = bench.parts()
    guard = bench.guard(parts, "act", snapshot_every_steps=10)
    kept: dict[str, Tensor] = {}
    losses: dict[str, list[float]] = {"first": [], "again": []}
    when, wrong = "first", list[str]()
    for batch in guard:
        loss, probing = forward(parts, batch), guard.phase == "probe"
        guard.backward(loss)
        guard.step()
        if probing:
            continue
        if guard.step_number > 20:
            losses[when].append(float(loss.detach()))
        elif when == "first":
            kept = _state(parts)
        if when == "first" and guard.step_number == 27:
            guard.roll_back(20, why="qualification", confirm=True)
            when, state = "again", _state(parts)
            wrong = [name for name, t in kept.items() if not torch.equal(t, state[name])]
    guard.close()
    distance = _distance(losses["first"], losses["again"][: len(losses["first"])])
    if wrong or not kept:
        return _bad(f"after a rollback {len(wrong)} tensors differ: {', '.join(wrong[:3])}")
    if distance > 0:
        return _bad(f"the state came back, the steps after it differ by {distance:.2g}")
    return _good(f"{len(kept)} tensors and the {len(losses['first'])} steps after, bit for bit")


def _state(parts: Parts) -> dict[str, Tensor]:
    found = {f"model.{k}": v.detach().clone() for k, v in parts.model.state_dict().items()}
    for i, held in enumerate(parts.optimizer.state.values()):
        found |= {f"optimizer.{i}.{k}": v.clone() for k, v in held.items()}
    return found


def _poison(step: int) -> Callable[[Guard, Parts], None]:
    def spoil(guard: Guard, parts: Parts) -> None:
        gradient = parts.model.lm_head.weight.grad
        if guard.step_number + 1 == step and gradient is not None:
            gradient[0, 0] = math.nan

    return spoil


def _skip(bench: _Bench) -> CertificateCheck:
    parts = bench.parts()
    seen: list[dict[str, Tensor]] = []

    def spoil(guard: Guard, parts: Parts) -> None:
        _poison(20)(guard, parts)
        if guard.step_number in (19, 20):  # before step 20, and after it
            seen.append(_state(parts))

    losses, guard = bench.guarded(parts, "act", spoil=spoil)
    done = [a for a in guard.actions if a.get("remedy") == "skip-update"]
    wrong = [k for k, v in seen[0].items() if not torch.equal(v, seen[1][k])]
    if not done or wrong or not math.isfinite(losses[-1]):
        return _bad(f"{len(done)} updates left out, {len(wrong)} tensors changed in it")
    return _good("an update whose gradient was NaN was left out, and not one tensor changed")


def _rollback(bench: _Bench) -> CertificateCheck:
    twin_parts = bench.parts(healthy_twin(_FAULTY))
    train(twin_parts)
    twin = evaluate(twin_parts.model, bench.text, max_bytes=1 << 15)
    parts = bench.parts(_FAULTY)
    _, guard = bench.guarded(parts, "act", snapshot_every_steps=10, checkpoint_every_steps=60)
    found = evaluate(parts.model, bench.text, max_bytes=1 << 15)
    names = [str(a.get("remedy")) for a in guard.actions]
    figures = {"ratio": found / twin, "actions": names, "wasted": guard.wasted_steps}
    text = f"12 steps of random data; ends at {found / twin:.3f} of its healthy twin"
    if not names or not found <= 1.02 * twin:
        return _bad(f"{text}, by {', '.join(names) or 'no action'}", **figures)
    return _good(f"{text}, by {', '.join(names)}", **figures)


def _compiled(bench: _Bench, mode: str = "default") -> CertificateCheck:
    torch._dynamo.reset()
    if mode != "default" and not bench.on_cuda:
        raise _NotPossible("CUDA graphs need a CUDA device")

    def prepare(parts: Parts) -> Parts:
        module = cast("nn.Module", torch.compile(parts.model, mode=mode))
        return dataclasses.replace(parts, module=module)

    try:
        train(prepare(bench.parts(dataclasses.replace(_SIZE, steps=2, warmup_steps=1))))
    except Exception as error:
        raise _NotPossible(f"torch.compile fails without the guard: {_line(error)}") from error
    return _same(bench, prepare)


def _fp16(bench: _Bench) -> CertificateCheck:
    scenario = dataclasses.replace(_SIZE, precision="fp16")
    found = _same(bench, scenario=scenario)
    if found.state != "passed":
        return found

    def overflow(guard: Guard, parts: Parts) -> None:
        gradient = parts.model.lm_head.weight.grad
        if guard.step_number + 1 == 20 and gradient is not None:
            gradient[0, 0] = math.inf

    parts = bench.parts(scenario)
    assert parts.scaler is not None
    before = parts.scaler.get_scale()
    losses, _ = bench.guarded(parts, "act", spoil=overflow)
    after = parts.scaler.get_scale()
    if not (after < before and math.isfinite(losses[-1])):
        return _bad(f"an overflow left the loss scale at {after:g}, after {before:g}")
    text = f"{found.text}; an overflow halves the loss scale and is left out"
    return dataclasses.replace(found, text=text)


class _Float8Linear(nn.Linear):
    """A linear layer whose product is of 8-bit floats, scaled by the largest of the last steps."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__(like.in_features, like.out_features, bias=False, device=like.weight.device)
        self.weight = like.weight
        self.amax: Tensor
        self.register_buffer("amax", torch.zeros(16, device=like.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.amax.copy_(torch.roll(self.amax, 1))
                self.amax[0] = x.detach().abs().max()
        top = self.amax.max().clamp(min=1e-4)
        return cast("Tensor", _Float8Product.apply(x, self.weight, top))  # type: ignore[no-untyped-call]


class _Float8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, top: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        rows, kind = x.flatten(0, -2), torch.float8_e4m3fn
        most = torch.finfo(kind).max
        scales = [t.float() / most for t in (top, weight.detach().abs().max().clamp(min=1e-4))]
        x8, w8 = (
            (t / s).clamp(-most, most).to(kind)
            for t, s in zip((rows, weight.detach()), scales, strict=True)
        )
        product = torch._scaled_mm(
            x8, w8.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16
        )
        return product.to(x.dtype).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        return gradient @ weight, gradient.flatten(0, -2).t() @ x.flatten(0, -2), None


def _fp8(bench: _Bench) -> CertificateCheck:
    if not bench.on_cuda or torch.cuda.get_device_capability() < (8, 9):
        raise _NotPossible("8-bit products need a GPU of compute capability 8.9 or newer")

    def prepare(parts: Parts) -> Parts:
        for block in parts.model.blocks:
            for module in list(block.modules()):
                for name, child in list(module.named_children()):
                    if isinstance(child, nn.Linear):
                        setattr(module, name, _Float8Linear(child))
        return parts

    return _same(bench, prepare)


def _late_reads(bench: _Bench) -> CertificateCheck:
    def run(reads: str) -> tuple[list[float], list[str]]:
        parts = bench.parts()
        for group in parts.optimizer.param_groups:
            group["foreach"], group["fused"] = False, True
        parts.optimizer._step_supports_amp_scaling = True
        losses, guard = bench.guarded(parts, "act", spoil=_poison(20), reads=reads)
        return losses, [f"{a.get('remedy')} {a.get('step')}" for a in guard.actions]

    (now, did), (again, _), (late, did_late) = run("now"), run("now"), run("late")
    if did != did_late:
        return _bad(f"read late, the guard did {did_late}, and {did} when read at once")
    return _against(now, again, late, "what is read at once, an update left out on the device")


def _workers(bench: _Bench) -> CertificateCheck:
    def prepare(parts: Parts) -> Parts:
        loader: DataLoader[dict[str, Tensor]] = DataLoader(
            parts.loader.dataset,
            batch_size=parts.scenario.batch_size,
            num_workers=2,
            pin_memory=bench.on_cuda,
            generator=torch.Generator().manual_seed(0),
        )
        return dataclasses.replace(parts, loader=loader)

    found = _same(bench, prepare)
    pinned = "pinned memory" if bench.on_cuda else "no pinned memory, which needs a GPU"
    return dataclasses.replace(found, text=f"{found.text}; two workers, {pinned}")


def _kill(bench: _Bench) -> CertificateCheck:
    fresh = multiprocessing.get_context("spawn")
    ends, codes = [], []
    for name, lives in (("unbroken", (None,)), ("killed", (25, None))):
        folder = bench.new_folder().with_name(name)
        for die_at in lives:
            process = fresh.Process(target=_life, args=(bench.device, folder, die_at))
            process.start()
            process.join(150)
            if process.is_alive():
                process.kill()
            codes.append(process.exitcode)
        ends.append(torch.load(folder / "end.pt", weights_only=True) if codes[-1] == 0 else {})
    if codes != [0, -signal.SIGKILL, 0]:
        return _bad(f"the processes ended with {codes}")
    wrong = [k for k, v in ends[0].items() if not torch.equal(v, ends[1][k])]
    if wrong:
        return _bad(
            f"killed at step 25 and resumed, {len(wrong)} tensors differ from an unbroken run"
        )
    return _good("killed with SIGKILL at step 25 and resumed, it ends bit for bit as unbroken")


def _life(device: str, folder: Path, die_at: int | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with _deterministic(on=True):
        parts = build(_SIZE, 0, load_text(None), device=device)
        guard = Guard(
            parts.module,
            parts.optimizer,
            data=parts.loader,
            scheduler=parts.scheduler,
            clip=1.0,
            steps=_STEPS,
            run=folder / "run",
            mode="act",
            policy=Policy(act_uncertified=True, checkpoint_every_steps=10),
            say=lambda _line: None,
        )
        for batch in guard:
            guard.backward(forward(parts, batch))
            guard.step()
            if guard.step_number == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
        guard.close()
    torch.save({k: v.cpu() for k, v in _state(parts).items()}, folder / "end.pt")


def _memory(bench: _Bench) -> CertificateCheck:
    if not bench.on_cuda:
        raise _NotPossible("only a GPU tells how much of its memory was in use at most")
    size = dataclasses.replace(_SIZE, model=ModelConfig(width=512, num_layers=8, num_heads=8))
    peaks = []
    for watched in (False, True):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        parts = bench.parts(size)
        if watched:
            bench.guarded(parts, "act", snapshot_every_steps=10)
        else:
            train(parts)
        peaks.append(torch.cuda.max_memory_allocated() / 2**20)
        del parts
    share = peaks[1] / peaks[0] - 1
    return _good(
        f"{peaks[0]:.0f} MiB at most without the guard, {share:+.1%} in act",
        plain_mib=peaks[0],
        act_mib=peaks[1],
    )


CHECKS: dict[str, tuple[str, Callable[[_Bench], CertificateCheck]]] = {
    "noise": ("what two runs without a guard differ by", _noise),
    "observe": ("observe against two plain runs", _same),
    "snapshot": ("snapshot and rollback by hand", _snapshot),
    "skip": ("an update left out", _skip),
    "rollback": ("a planted fault recovered", _rollback),
    "kill": ("kill -9 and resume", _kill),
    "bf16": (
        "bf16 autocast",
        lambda b: _same(b, scenario=dataclasses.replace(_SIZE, precision="bf16")),
    ),
    "fp16": ("fp16 with GradScaler", _fp16),
    "fp8": ("fp8 products", _fp8),
    "late-reads": ('reads="late"', _late_reads),
    "workers": ("DataLoader workers", _workers),
    "compile": ("torch.compile", _compiled),
    "cuda-graphs": ("CUDA graphs", lambda b: _compiled(b, "reduce-overhead")),
    "overhead": ("time of a step", _overhead),
    "memory": ("memory of the device", _memory),
}
"""What is tried out: by name, in words, and how."""


def qualify(
    device: str,
    folder: Path,
    *,
    only: tuple[str, ...] = (),
    say: Callable[[CertificateCheck], None],
) -> Certificate:
    """Try everything out on a device, say each check as it is done, and return the certificate.

    Args:
        device: Where to train: cpu, cuda.
        folder: For runs; an empty one.
        only: Checks by name; empty: all.
        say: Called with each check.
    """
    bench, began = _Bench(device, folder, load_text(None)), time.monotonic()
    checks = []
    for name, (_, work) in CHECKS.items():
        if only and name not in only:
            continue
        started = time.monotonic()
        try:
            if started - began > _LIMIT_S:
                raise _NotPossible(f"{_LIMIT_S:.0f} s had passed")
            with _deterministic(on=True):
                found = work(bench)
        except _NotPossible as reason:
            found = CertificateCheck(name=name, state="not possible", text=str(reason))
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is the answer
            found = _bad(f"raised {_line(error)}")
        figures = {**found.figures, "seconds": round(time.monotonic() - started, 1)}
        checks.append(dataclasses.replace(found, name=name, figures=figures))
        say(checks[-1])
    return Certificate(
        machine=machine_of(torch.device(device)),
        model="dense transformer, AdamW",
        parallelism="one process",
        ranks=1,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        checks=tuple(checks),
    )


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


@contextmanager
def _deterministic(*, on: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(on, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn)
