"""Runs that are killed without warning, over and over, until they are done all the same.

One chain is one run directory and many lives. A life ends by SIGKILL: from outside after a random
time, or from inside at a random one of the places where something is being made to last (a write
that is cut in half, an fsync, a rename). What must hold is asserted after each life and at the end.
"""

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.trust.after_kill import (
    committed,
    events_so_far,
    findings_told,
    in_trouble,
    losses,
    newest_lost,
)
from tests.guard.inner import inner
from tests.guard.jobs import context
from tests.guard.tiny import differences, guard_of, make, state_of
from trimtab.guard import Guard
from trimtab.plan.policy import Policy

BAD = (100 * 4, 112 * 4)
"""Sample ids whose tokens are noise, where a variant has a fault: the steps 101 to 112."""


@dataclass(frozen=True)
class Variant:
    """What is trained, and how it is saved."""

    name: str
    settings: dict[str, Any]
    steps: int
    save_every: int = 2
    background: bool = False
    fault: bool = False
    """Whether some data is bad, so that the run is rolled back and goes on without it."""
    copies: bool = False
    left_alone_steps: int = 0
    """Steps at the start of each chain in which nothing is killed."""
    delay_s: float = 0.8
    """Longest time to an outside kill."""
    inside: float = 0.5
    """Share of the kills that come from inside."""
    places: int = 150
    """Writes among which an inside kill is drawn."""


HARD: dict[str, Any] = {"shuffle": True, "schedule": "onecycle", "dropout": 0.2}
VARIANTS = (
    Variant("fp16", {"precision": "fp16", **HARD}, 60),
    Variant("fp32 in the background, with copies", HARD, 60, background=True, copies=True),
    Variant(
        "rolled back",
        {"num_samples": 4000, "lr": 1e-2},
        135,
        save_every=5,
        fault=True,
        left_alone_steps=95,
        delay_s=1.2,
        inside=0.85,
        places=66,
    ),
)


def live(folder: Path, variant: Variant, log: str, die_at: int | None, until: int | None) -> None:
    """Go on with a run, to its end or to the place where it dies; `until`: leave the loop there."""
    torch.set_num_threads(1)
    s = make(**variant.settings)
    policy = Policy(
        checkpoint_every_steps=variant.save_every,
        checkpoint_in_background=variant.background,
        snapshot_every_steps=5,
        copy_to=str(folder / "copies") if variant.copies else "",
    )
    armed = [not variant.fault]
    if die_at is not None:
        _set_traps(die_at, armed)
    guard = guard_of(s, folder / "run", steps=variant.steps, mode="act", policy=policy)
    if variant.fault:  # from the moment at which the run goes back
        guard.on_restore(lambda _step: armed.__setitem__(0, True))
    (folder / log).touch()
    for batch in guard:
        guard.backward(s.loss(bad(guard, batch) if variant.fault else batch))
        guard.step()
        if guard.step_number == until:
            break
    guard.close()
    torch.save(state_of(s), folder / f"{log}.pt")


def bad(guard: Guard, batch: Tensor) -> Tensor:
    first = inner(guard).fed[0].first
    if not BAD[0] <= first < BAD[1]:
        return batch
    return torch.randint(0, 13, batch.shape, generator=torch.Generator().manual_seed(first))


def _set_traps(die_at: int, armed: list[bool]) -> None:
    """Die at the so-many-th place at which something is written for good, once `armed[0]`."""
    left = [die_at]
    write, fsync, rename, replace = os.write, os.fsync, Path.rename, Path.replace

    def due() -> bool:
        left[0] -= armed[0]
        return armed[0] and left[0] == 0

    def torn_write(fd: int, data: Any) -> int:
        if due():
            write(fd, bytes(data)[: len(data) // 2])
            _die()
        return write(fd, data)

    def at(work: Any) -> Any:
        def trapped(*arguments: Any, **named: Any) -> Any:
            if due():
                _die()
            return work(*arguments, **named)

        return trapped

    os.write, os.fsync = torn_write, at(fsync)
    Path.rename, Path.replace = at(rename), at(replace)  # type: ignore[method-assign]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Tally:
    """What was done to a variant."""

    kills: int = 0
    from_inside: int = 0
    in_trouble: int = 0
    """Kills in a probe or a trial."""
    chains: int = 0
    rolled_back: bool = False
    """Whether the unbroken run was."""


def torment(root: Path, variant: Variant, kills: int, seed: int) -> Tally:
    """Kill runs of a variant so many times; assert that nothing is lost.

    Raises:
        AssertionError: Something is.
    """
    tally, rng = Tally(), random.Random(seed)
    straight = root / "straight"
    straight.mkdir()
    assert _start(straight, variant, "log") == 0
    tally.rolled_back = any(e.event == "action" for e in events_so_far(straight / "run"))
    expected, end = losses(straight / "run"), torch.load(straight / "log.pt")
    while tally.kills < kills:
        folder = root / f"chain-{tally.chains}"
        folder.mkdir()
        logs: list[str] = []
        if variant.left_alone_steps:
            assert _start(folder, variant, "calm", until=variant.left_alone_steps) == 0
        code: int | None = -9
        while code != 0:
            last = tally.kills >= kills
            log = f"life-{len(logs)}"
            inside = rng.random() < variant.inside
            die_at = None if last or not inside else rng.randint(1, variant.places)
            delay = None if last or inside else rng.uniform(0.0, variant.delay_s)
            before = committed(folder / "run")
            code = _start(folder, variant, log, die_at=die_at, delay=delay)
            assert code in (0, -signal.SIGKILL), f"{folder / log}: exit code {code}"
            logs.append(log)
            tally.kills += code != 0
            tally.from_inside += code != 0 and inside
            tally.in_trouble += code != 0 and in_trouble(folder / "run")
            _assert_kept(folder / "run", before, variant)
        assert losses(folder / "run") == expected, f"{folder}: other losses than an unbroken run"
        assert differences(end, torch.load(folder / f"{logs[-1]}.pt")) == [], str(folder)
        _assert_told(folder / "run")
        tally.chains += 1
    return tally


def _start(
    folder: Path,
    variant: Variant,
    log: str,
    *,
    die_at: int | None = None,
    delay: float | None = None,
    until: int | None = None,
) -> int | None:
    process = context().Process(target=live, args=(folder, variant, log, die_at, until))
    process.start()
    if delay is not None:
        deadline = time.monotonic() + 120
        while not (folder / log).exists() and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(delay)  # a random moment, whatever it is
        process.kill()
    process.join(300)
    return process.exitcode


def _assert_kept(run: Path, before: bytes, variant: Variant) -> None:
    """What was committed before a life is there after it.

    So is the newest checkpoint it told of.
    """
    assert committed(run).startswith(before), f"{run}: the journal lost lines"
    # under a fault a checkpoint may be called suspect later, and moved aside
    assert variant.fault or not newest_lost(run), f"{run}: a checkpoint is lost"


def _assert_told(run: Path) -> None:
    """No fault of the guard's own, and the verdicts are those of the record."""
    assert [e for e in events_so_far(run) if e.event == "fault"] == []
    live_told, offline = findings_told(run)
    assert live_told == offline
