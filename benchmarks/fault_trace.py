"""Fault traces of two published runs, played in virtual time through the supervisor's own decisions.

Nothing is trained and nobody waits: a virtual job makes steps, fails as the trace says, prints the
line that such a failure prints, and the real classifier and the real `update` of `trimtab
supervise` decide. The account of the hours is that of `trimtab goodput`. What is assumed stands in
`Trace` and `Costs`, and is printed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trimtab.goodput import GoodputAccount, Mark, account_for
from trimtab.nodes.pool import HostPool
from trimtab.supervise.ending import AttemptEnd, ending_of
from trimtab.supervise.settings import SuperviseSettings
from trimtab.supervise.state import (
    Alert,
    Begin,
    Begun,
    Command,
    Ended,
    JobState,
    NewStep,
    Numeric,
    Stop,
    Tick,
    WriteDown,
)
from trimtab.supervise.update import update
from trimtab.text import number

__all__ = ["TRACES", "Costs", "Played", "Trace", "best_interval_s", "play", "trace_text"]

_DAY_S = 86400.0
_REPAIR_S = 2 * _DAY_S
"""A host comes back from repair after two days. Ours."""


@dataclass(frozen=True, kw_only=True)
class TraceFailure:
    """A kind of failure."""

    name: str
    num: int
    lines: tuple[str, ...] = ()
    """What the job prints last; {host} is the host."""
    code: int | None = 1
    """Exit code; None: it does not end, it hangs."""
    numeric: bool = False
    """Whether it is the loss that breaks, and the judge that sees it."""
    heals: bool = True
    """Whether a restart can heal it; otherwise a person is right to be woken."""


_XID = "{host} kernel: NVRM: Xid (PCI:0000:3b:00): "
_NCCL = "[rank5]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, "
_LOST = (_XID + "79, pid=1, GPU has fallen off the bus.",)
_ECC = (_XID + "95, pid=1, Uncontained: LTC TAG", "CUDA error: uncorrectable ECC error encountered")
_SEGFAULT = ("Fatal Python error: Segmentation fault",)
_ILLEGAL = ("[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered",)
_BUG = ("Traceback (most recent call last):", "KeyError: 'attention_mask'")
_NODE = ("srun: error: Node failure on {host}",)
_RESET = (_NCCL + "ncclRemoteError: connection closed by remote peer",)
_TIMEOUT = (
    "[rank5]:[E ProcessGroupNCCL.cpp:632] [Rank 5] Watchdog caught collective operation timeout:"
    " WorkNCCL(OpType=ALLREDUCE) ran for 600031 milliseconds before timing out.",
)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A run, and what happened to it."""

    name: str
    days: float
    step_s: float
    """From model size, tokens a step and FLOP/s per GPU of its paper."""
    num_hosts: int
    num_spares: int
    failures: tuple[TraceFailure, ...]
    source: str


TRACES: Mapping[str, Trace] = {
    "llama3": Trace(
        name="llama3",
        days=54.0,
        step_s=6.0,
        num_hosts=2048,
        num_spares=64,
        source="Llama 3 paper, table 5: 419 unexpected interruptions in 54 days, 16,384 GPUs; how"
        " the software bugs and a tenth of the others (hangs: ByteRobust, 9.9 %) show is assumed",
        failures=(
            TraceFailure(name="faulty GPU", num=133, lines=_LOST),
            TraceFailure(name="faulty GPU, hangs", num=15, code=None),
            TraceFailure(name="GPU HBM3", num=72, lines=_ECC),
            TraceFailure(name="software: NCCL time-out", num=18, lines=_TIMEOUT, code=-6),
            TraceFailure(name="software: segfault", num=18, lines=_SEGFAULT, code=-11),
            TraceFailure(name="software: illegal access", num=17, lines=_ILLEGAL),
            TraceFailure(name="software: a bug", num=1, lines=_BUG, heals=False),
            TraceFailure(name="switch or cable", num=20, lines=_RESET),
            TraceFailure(name="switch or cable, hangs", num=15, code=None),
            TraceFailure(name="host maintenance", num=32, lines=_NODE),
            TraceFailure(name="GPU SRAM", num=19, lines=_ECC),
            TraceFailure(name="GSP", num=17, lines=(_XID + "119, pid=1, Timeout waiting for RPC",)),
            TraceFailure(name="NIC", num=7, lines=_RESET),
            TraceFailure(name="NCCL watchdog", num=7, lines=_TIMEOUT, code=-6),
            TraceFailure(name="silent corruption", num=6, numeric=True),
            TraceFailure(name="thermal", num=6, lines=(_XID + "94, pid=1, Contained: CE",)),
            TraceFailure(name="SSD", num=3, lines=("OSError: [Errno 5] Input/output error",)),
            TraceFailure(name="power supply", num=3, lines=_NODE),
            TraceFailure(name="chassis, board, CPU", num=6, lines=_NODE),
            TraceFailure(name="dependency", num=2, lines=_RESET),
            TraceFailure(name="host memory", num=2, lines=(), code=-9),
        ),
    ),
    "opt": Trace(
        name="opt",
        days=56.0,
        step_s=14.4,
        num_hosts=124,
        num_spares=14,
        source="OPT-175B paper and logbook: 35 manual and 70 automatic restarts in 2 months, 992"
        " GPUs, 12 to 18 spare hosts; the division into kinds is assumed",
        failures=(
            TraceFailure(name="GPU lost", num=28, lines=_LOST),
            TraceFailure(name="ECC", num=30, lines=_ECC),
            TraceFailure(name="NCCL or network", num=12, lines=_RESET),
            TraceFailure(name="hang", num=12, code=None),
            TraceFailure(name="host", num=8, lines=_NODE),
            TraceFailure(name="loss diverges", num=15, numeric=True),
        ),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one failure costs the job itself, and what the drill measured."""

    start_s: float = 120.0
    """From the launch to the first step: assumed, the job's own."""
    save_s: float = 2.0
    """Time that a save keeps the job from training: assumed, a save in the background."""
    detect_s: float = 0.5
    """From the end of a process to the decision, as the drill measures it."""
    stop_s: float = 15.0
    """Until a hung job is gone: the grace period, in full."""
    unseen_steps: int = 40
    """Steps from a numeric fault until the run is stopped: assumed."""


@dataclass
class Played:
    """What came of a trace."""

    trace: Trace
    costs: Costs
    found: GoodputAccount
    num_failures: int
    interval_s: float
    lost_steps: list[float] = field(default_factory=list)
    woken: dict[str, int] = field(default_factory=dict)
    """Why a person was woken -> how often."""
    rightly: int = 0
    """How many of those failures no restart can heal."""
    fewest_spares: int = 0


def best_interval_s(save_s: float, mtbf_s: float) -> float:
    """Return the time between saves that costs least, seconds: sqrt(2 save MTBF).

    References:
        Young (1974), A first order approximation to the optimum checkpoint interval, CACM 17(9).
    """
    return math.sqrt(2.0 * save_s * mtbf_s)


def play(trace: Trace, costs: Costs, *, seed: int = 100) -> Played:
    """Play a trace once.

    Failures come as a Poisson process of the trace's rate, in shuffled order.

    Cost: a few seconds.
    """
    return _Play(trace, costs, seed).run()


class _Play:
    """A virtual job under the real decisions."""

    def __init__(self, trace: Trace, costs: Costs, seed: int) -> None:
        rng = np.random.default_rng(seed)
        kinds = [f for f in trace.failures for _ in range(f.num)]
        rng.shuffle(kinds)
        self._kinds: list[TraceFailure] = kinds
        self._times = np.sort(rng.uniform(0, trace.days * _DAY_S, len(kinds))).tolist()
        self._hosts = rng.integers(0, trace.num_hosts, len(kinds)).tolist()
        self._trace, self._costs = trace, costs
        mtbf = trace.days * _DAY_S / len(kinds)
        # A whole number of steps between saves.
        self._every = max(round(best_interval_s(costs.save_s, mtbf) / trace.step_s), 1)
        self._settings = SuperviseSettings(restarts_without_progress=3)
        self._state = JobState()
        self._pool = HostPool.of(
            [f"n{i:04d}" for i in range(trace.num_hosts)],
            [f"s{i:04d}" for i in range(trace.num_spares)],
        )
        self._repairs: list[tuple[float, str]] = []
        self._now = 0.0
        self._marks: list[Mark] = []
        self._saved = 0.0
        self._step = 0.0
        self._played = Played(
            trace=trace,
            costs=costs,
            found=account_for(()),
            num_failures=len(kinds),
            interval_s=self._every * trace.step_s,
            fewest_spares=trace.num_spares,
        )

    def run(self) -> Played:
        """Play all failures, then train to the end of the trace."""
        self._start()
        for at, kind, host in zip(self._times, self._kinds, self._hosts, strict=True):
            # What would fall into a start comes with the first step after it.
            self._train(max(at, self._now + 2 * self._trace.step_s))
            self._fail(kind, self._pool.active[host])
        self._train(self._trace.days * _DAY_S)
        self._marks.append(Mark(at=self._now, kind="stop", cause="done"))
        self._played.found = account_for(self._marks)
        return self._played

    def _start(self) -> None:
        self._marks.append(Mark(at=self._now, kind="start", step=self._saved))
        loaded = (int(self._saved), f"step-{self._saved:g}")
        self._tell(Begun(at=self._now, loaded=loaded))
        self._step = self._saved
        self._now += self._costs.start_s
        self._one_step()

    def _one_step(self) -> None:
        self._now += self._trace.step_s
        self._step += 1
        self._marks.append(Mark(at=self._now, kind="step", step=self._step))
        self._tell(NewStep(at=self._now, step=self._step, position=self._step))

    def _train(self, until: float) -> None:
        """Train to a time; only steps next to saves are played, those between go in one stride."""
        step_s = self._trace.step_s
        while self._now + step_s <= until:
            ahead = self._every - self._step % self._every
            if ahead > 1:
                left = math.floor((until - self._now) / step_s)
                num = min(ahead - 1, left)
                self._now += num * step_s
                self._step += num
                self._marks.append(Mark(at=self._now, kind="step", step=self._step))
                self._tell(NewStep(at=self._now, step=self._step, position=self._step))
                if num == left:
                    return
            self._one_step()
            self._marks.append(Mark(at=self._now, kind="begin", cause="checkpoint"))
            self._now += self._costs.save_s
            self._marks.append(Mark(at=self._now, kind="end", cause="checkpoint"))
            self._saved = self._step

    def _fail(self, kind: TraceFailure, host: str) -> None:
        if kind.numeric:
            self._train(self._now + self._costs.unseen_steps * self._trace.step_s)
        reached = self._step
        if kind.numeric:
            commands = self._break_numbers(reached)
        elif kind.code is None:
            commands = self._hang()
        else:
            self._now += self._costs.detect_s
            lines = [line.format(host=host) for line in kind.lines]
            commands = self._tell(Ended(at=self._now, ending=ending_of(lines, kind.code)))
        self._went(kind, host, commands, reached)

    def _hang(self) -> tuple[Command, ...]:
        """Let time pass until the supervisor's own limit is over.

        The trace is played in strides; the job itself logs each step, and that is its pace.
        """
        steps = replace(self._state.pace, gaps=(self._trace.step_s,) * 50, long=())
        self._state = replace(self._state, pace=steps)
        limit = self._state.pace.limit_s(self._settings, "") or 0.0
        self._now += limit + self._settings.look_every_s
        commands = self._tell(Tick(at=self._now, heard=0.0))
        assert any(isinstance(c, Stop) for c in commands)
        self._now += self._costs.stop_s
        ended = AttemptEnd(crash_class="killed", who="transient", why="stopped", signum=15)
        return self._tell(Ended(at=self._now, ending=ended))

    def _break_numbers(self, reached: float) -> tuple[Command, ...]:
        onset = reached - self._costs.unseen_steps
        ending = AttemptEnd(crash_class="numeric", who="numeric", why="the loss diverges")
        before = Numeric(at=self._now, ending=ending, before=onset, rate_factor=1.0)
        self._tell(before)
        self._now += self._costs.stop_s
        self._saved = min(self._saved, max(onset // self._every * self._every, 0.0))
        ended = AttemptEnd(crash_class="killed", who="transient", why="stopped", signum=15)
        return self._tell(Ended(at=self._now, ending=ended))

    def _went(
        self, kind: TraceFailure, host: str, commands: Sequence[Command], reached: float
    ) -> None:
        cause = "numeric" if kind.numeric else "hang" if kind.code is None else "restart"
        self._marks.append(Mark(at=self._now, kind="stop", cause=cause))
        restart = next((c for c in commands if isinstance(c, WriteDown)), None)
        if any(isinstance(c, Alert) for c in commands):
            woken = self._played.woken
            woken[kind.name] = woken.get(kind.name, 0) + 1
            self._played.rightly += not kind.heals
            # A person starts it again; how long that takes is no matter of this table.
            self._state = replace(self._state, phase="idle")
        elif restart is not None and restart.event == "restart":
            self._now = self._state.resume_at
            begin = self._tell(Tick(at=self._now, heard=0.0))
            assert any(isinstance(c, Begin) for c in begin)
        if host in self._state.excluded:
            self._replace(host)
        self._played.lost_steps.append(reached - self._saved)
        self._start()

    def _replace(self, host: str) -> None:
        """Take a spare for a host that was left out, and bring back what is repaired."""
        for at, name in [r for r in self._repairs if r[0] <= self._now]:
            self._repairs.remove((at, name))
            self._pool = self._pool.repaired(name)
        self._pool = self._pool.replaced(host)
        self._repairs.append((self._now + _REPAIR_S, host))
        self._state = replace(self._state, excluded=())
        self._played.fewest_spares = min(self._played.fewest_spares, len(self._pool.spares))

    def _tell(self, event: Begun | NewStep | Tick | Numeric | Ended) -> tuple[Command, ...]:
        self._state, commands = update(self._settings, self._state, event)
        return commands


def trace_text(played: Played) -> str:
    """Return the account of a trace, with its arithmetic."""
    trace, costs, found = played.trace, played.costs, played.found
    num, wall = played.num_failures, found.wall_s
    mtbf = trace.days * _DAY_S / num
    share = 100 * (found.effective or 0.0)
    woken = sum(played.woken.values())
    lost = float(np.mean(played.lost_steps)) if played.lost_steps else 0.0
    lines = [
        f"{trace.name}: effective {share:.2f} % of {trace.days:g} days · {num} failures ·"
        f" {100 * woken / num:.2f} woken per 100, {played.rightly} of {woken} rightly",
        f"  trace    {trace.source}",
        f"  assumed  step {trace.step_s:g} s · start {costs.start_s:g} s · save {costs.save_s:g} s"
        f" · each step is logged · a hung job is gone after {costs.stop_s:g} s · numeric faults run"
        f" {costs.unseen_steps} steps",
        f"  measured by the drill: a dead process is seen after {number(costs.detect_s)} s",
        f"  MTBF     {trace.days:g} x 86400 / {num} = {number(mtbf)} s; saves every"
        f" {number(played.interval_s)} s = sqrt(2 x {costs.save_s:g} x {number(mtbf)})",
    ]
    for name, seconds in found.seconds.items():
        if seconds > 0 and name != "training":
            lines.append(
                f"  {name:<11}{100 * seconds / wall:5.2f} %  {number(seconds)} s ="
                f" {num} x {number(seconds / num)} s"
            )
    limit = found.seconds["training"] + max(_room(played), 0.0)
    lines += [
        f"  sum      100 - {100 - share:.2f} = {share:.2f} %; lost steps a failure: mean"
        f" {number(lost)}, one interval has {number(played.interval_s / trace.step_s)}",
        f"  97 %     holds up to a start of {number(_longest_start(played))} s"
        f" ({number(limit)} s of training)",
        f"  spares   fewest left: {played.fewest_spares} of {trace.num_spares}",
    ]
    lines += [f"  woken    {n} x {name}" for name, n in sorted(played.woken.items())]
    return "\n".join(lines)


def _room(played: Played) -> float:
    """Return the seconds by which training exceeds 97 % of the wall time."""
    return played.found.seconds["training"] - 0.97 * played.found.wall_s


def _longest_start(played: Played) -> float:
    """Return the start that would leave 97 %, all else as it is."""
    return played.costs.start_s + _room(played) / (played.num_failures + 1)
