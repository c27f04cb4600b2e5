"""Runs killed with SIGKILL, over and over, until they are done all the same.

One chain is one run directory and several lives. A life ends at a chosen change on disk (a write
that is cut in half, a rename, an fsync, just before or just after it) or after a random time. After
each life nothing that was committed may be missing; at the end, losses and the whole state are bit
for bit those of an unbroken run.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist

from benchmarks.trust.after_kill import (
    committed,
    events_so_far,
    findings_told,
    in_trouble,
    losses,
    newest_lost,
)
from benchmarks.trust.calls import Kill, Layer
from benchmarks.trust.forks import Ended, Result, run_alone, run_cases
from benchmarks.trust.training import Outcome, Plan, train
from trimtab.errors import TrimtabError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["CLASSES", "FAILURES", "PLANS", "Chain", "KillPlan", "measure", "prepare", "summary"]

PLANS = {
    plan.name: plan
    for plan in (
        Plan(name="guard", steps=45, mode="observe", save_every=20, bad_steps=(30, 36)),
        Plan(name="save", steps=40, save_every=2, precision="fp16"),
        Plan(name="rollback", steps=85, save_every=5, bad_steps=(46, 53)),
        Plan(name="second-place", steps=40, save_every=3, background=True, copies=True),
        Plan(name="two-ranks", steps=30, save_every=4, ranks=2, background=True),
    )
}
LIVES = 6
"""Kills of a chain, where it does not come to its end before."""
CLASSES = ("as-unbroken", "other-end", "lost", "told-wrong", "refused", "hang")
FAILURES = frozenset(CLASSES[1:])


@dataclass(frozen=True)
class Chain:
    """One run directory and the seed of its kills."""

    kind: str
    number: int
    seed: int

    @property
    def name(self) -> str:
        """What results are kept under."""
        return f"{self.kind} | chain {self.number} | seed {self.seed}"


@dataclass(frozen=True)
class _Straight:
    """A kind of run as it goes unbroken."""

    plan: Plan
    changes: int
    seconds: float
    losses: dict[float, float]
    weights: str


@dataclass
class KillPlan:
    """The kinds of runs, each trained once unbroken."""

    kinds: dict[str, _Straight]
    root: Path

    def cases(self, kills: int, seed: int) -> list[Chain]:
        """Return chains enough for so many kills: a chain takes four to five on average."""
        names = list(self.kinds)
        number = math.ceil(kills / 3.8)
        return [Chain(names[i % len(names)], i // len(names), seed) for i in range(number)]


def prepare(root: Path, device: str = "cpu") -> KillPlan:
    """Train each kind of run once on a device, unbroken.

    Kinds of several ranks are left out on a GPU, which is one.

    Raises:
        AssertionError: One does not end as it must.
    """
    kinds = {}
    for name, plan in PLANS.items():
        if device != "cpu" and plan.ranks > 1:
            continue
        plan = replace(plan, device=device)
        folder = root / f"straight-{name}"
        ended = run_alone(lambda f, p=plan: _live(p, f, None), folder)  # type: ignore[misc]
        assert ended.result is not None, ended.err
        assert ended.result["ended"] == "done", ended.err
        kinds[name] = _Straight(
            plan,
            cast("int", ended.result["changes"]),
            ended.seconds,
            losses(folder / "run"),
            str(ended.result["weights"]),
        )
    return KillPlan(kinds, root)


def measure(
    kill_plan: KillPlan, chains: Sequence[Chain], *, jobs: int
) -> Iterator[tuple[Chain, dict[str, object]]]:
    """Run chains; give a row for each as it ends."""

    def work(chain: Chain, folder: Path) -> Result:
        return _chain(kill_plan.kinds[chain.kind], chain, folder)

    for chain, ended in run_cases(chains, work, root=kill_plan.root, jobs=jobs, timeout_s=300):
        row = ended.result or {"class": "hang", "why": ended.err[-300:], "kills": 0}
        yield chain, {"case": chain.name, "kind": chain.kind, "seed": chain.seed, **row}


def summary(rows: Sequence[dict[str, object]]) -> str:
    """Return the table: kills and how the runs ended, by kind."""
    columns = ("kills", "in mid-write", "gone back", "runs", *CLASSES)
    lines = [f"{'':<14}" + "".join(f"{c:>13}" for c in columns)]
    groups = [(k, [r for r in rows if r["kind"] == k]) for k in PLANS] + [("all", list(rows))]
    for name, group in groups:
        sums = [
            sum(cast("int", row.get(key, 0)) for row in group)
            for key in ("kills", "mid_write", "gone_back")
        ]
        ends = Counter(row["class"] for row in group)
        numbers = [*sums, len(group), *(ends[c] for c in CLASSES)]
        lines.append(f"{name:<14}" + "".join(f"{n:>13}" for n in numbers))
    return "\n".join(lines)


# -- one chain ------------------------------------------------------------------------------


def _chain(straight: _Straight, chain: Chain, folder: Path) -> Result:
    draw = random.Random(f"{chain.name}")
    row: Result = {"kills": 0, "mid_write": 0, "gone_back": 0, "class": "as-unbroken", "why": ""}
    place = folder / "chain"  # apart from what the harness keeps of this process
    run, span = place / "run", straight.changes
    for life in range(LIVES + 1):
        kill, after_s = None, None
        if life < LIVES and draw.random() < 0.25:
            after_s = draw.uniform(0.0, straight.seconds / (1 + life))
        elif life < LIVES:
            reach = span if life == 0 else max(span // 6, 20)
            kill = Kill(ordinal=draw.randrange(reach), torn=draw.random() < 0.5)
        before = committed(run)
        ended = _one_life(straight.plan, place, kill, after_s, draw)
        row["kills"] = cast("int", row["kills"]) + (ended.status != 0)
        row["mid_write"] = cast("int", row["mid_write"]) + (ended.status != 0 and kill is not None)
        row["gone_back"] = cast("int", row["gone_back"]) + (ended.status != 0 and in_trouble(run))
        found = _after_life(run, before, ended)
        if found is None and ended.status == 0:
            found = _at_end(straight, run, ended)
            if found is None:
                return row
        if found is not None:
            where = f"life {life}, {kill or after_s}"
            return row | {"class": found[0], "why": f"{where}: {found[1]}"}
    return row | {"class": "hang", "why": "the last life did not end"}


def _one_life(
    plan: Plan, folder: Path, kill: Kill | None, after_s: float | None, draw: random.Random
) -> Ended:
    victim = draw.randrange(plan.ranks)
    return run_alone(
        lambda f: _live(plan, f, kill, victim),
        folder,
        timeout_s=60 if after_s is None else after_s,
    )


def _live(plan: Plan, folder: Path, kill: Kill | None, victim: int = 0) -> Result:
    if plan.ranks > 1:
        return _live_together(plan, folder, kill, victim)
    return _live_alone(plan, folder, kill, 0)


def _live_alone(plan: Plan, folder: Path, kill: Kill | None, rank: int) -> Result:
    outcome, layer = Outcome(), Layer(folder, kill=kill, recording=kill is None)
    layer.install()
    truth: Result = {"ended": "done", "error": ""}
    try:
        train(plan, folder, outcome, rank=rank)
    except TrimtabError as error:
        truth = {"ended": "refused", "error": str(error)}
    layer.paused = True
    return truth | {"changes": layer.num_changes, "weights": outcome.weights}


def _live_together(plan: Plan, folder: Path, kill: Kill | None, victim: int) -> Result:
    """Live as several ranks; where one dies the others are killed, as torchrun does."""
    store = tempfile.mktemp(prefix="store-", dir=folder)
    ranks: dict[int, int] = {}
    for rank in range(plan.ranks):
        pid = os.fork()
        if not pid:
            _be_rank(plan, folder, kill if rank == victim else None, rank, store)
        ranks[pid] = rank
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            for other in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            if code == -signal.SIGKILL:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(f"rank {rank} ended with status {code}")
    truths = [_result(folder / f"rank-{rank}.txt") for rank in range(plan.ranks)]
    changes = int(truths[0][0])
    weights = "|".join(t[1] for t in truths)
    return {"ended": "done", "error": "", "changes": changes, "weights": weights}


def _be_rank(plan: Plan, folder: Path, kill: Kill | None, rank: int, store: str) -> None:
    code = 70
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=plan.ranks
        )
        truth = _live_alone(plan, folder, kill, rank)
        text = f"{truth['changes']} {truth['weights']} {truth['error']}"
        (folder / f"rank-{rank}.txt").write_text(text)
        dist.barrier()
        code = 0 if truth["ended"] == "done" else 71
    finally:
        os._exit(code)


def _result(path: Path) -> list[str]:
    return path.read_text().split(" ", 2)


# -- what must hold -------------------------------------------------------------------------


def _after_life(run: Path, before: bytes, ended: Ended) -> tuple[str, str] | None:
    """Return what is wrong after a life; None: nothing is."""
    if ended.status not in (0, -signal.SIGKILL):
        return "told-wrong", f"status {ended.status}: {ended.err[-200:]}"
    if ended.result is not None and ended.result["ended"] == "refused":
        return "refused", str(ended.result["error"])
    if not committed(run).startswith(before):
        return "lost", "journal lines"
    return None


def _at_end(straight: _Straight, run: Path, ended: Ended) -> tuple[str, str] | None:
    """Return in what a run that came to its end is not as an unbroken one."""
    truth = cast("dict[str, Any]", ended.result)
    now = losses(run)
    if now != straight.losses:
        first = next(
            (s for s in straight.losses if now.get(s) != straight.losses[s]), "more than there are"
        )
        return "other-end", f"losses from step {first}"
    if truth["weights"] and truth["weights"] != straight.weights:
        return "other-end", "the state at the end"
    events = events_so_far(run)
    peers = ("gloo", "onnection") if straight.plan.ranks > 1 else ()  # the other rank was killed
    faults = [
        e
        for e in events
        if e.event == "fault" and not any(p in str(e.data.get("error")) for p in peers)
    ]
    if faults:
        return "told-wrong", f"a fault of its own: {dict(faults[0].data)}"
    if straight.plan.bad_steps is None and newest_lost(run):
        return "lost", "the newest checkpoint that was told of"
    live, offline = findings_told(run)
    if live != offline:
        return "told-wrong", f"findings {len(live)} told, {len(offline)} in the record"
    return None
