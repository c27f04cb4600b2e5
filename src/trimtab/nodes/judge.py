"""Each host against the checks, and against the others of its pool."""

import statistics
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from trimtab.nodes.facts import HostFacts, Value
from trimtab.text import number

__all__ = ["HostReport", "NodeCheck", "NodeFinding", "judge_pool", "load_checks"]

_MIN_POOL = 3
"""Hosts from which the others say what is usual."""
_SIGMA = 6.0
_SET = ("yes", "active", "enabled", "true", "on")
_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class NodeCheck:
    """A row of `checks.toml`."""

    id: str
    field: str
    test: str
    level: str
    says: str
    do: str
    limit: float = 0.0


@dataclass(frozen=True, kw_only=True)
class NodeFinding:
    """A check that does not hold on a host."""

    host: str
    check: str
    level: str
    says: str
    """The sentence of the check with what was found."""
    do: str
    field: str
    score: float
    """How far it is off: 1 at the limit of the check."""


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """What is known of one host."""

    host: str
    findings: tuple[NodeFinding, ...]
    num_checked: int
    """Facts that a check looked at; 0: nothing is known of it."""

    @property
    def state(self) -> str:
        """`fail`, `warn`, `ok`, or `unknown` where no check found a fact."""
        levels = {f.level for f in self.findings}
        if "fail" in levels or "warn" in levels:
            return "fail" if "fail" in levels else "warn"
        return "ok" if self.num_checked else "unknown"

    @property
    def score(self) -> float:
        """By which hosts are ranked: a fail counts 10, a warning 1, each more where far off."""
        return sum(
            (10.0 if f.level == "fail" else 1.0) * (1.0 + min(f.score, 10.0) / 10.0)
            for f in self.findings
        )


@cache
def load_checks() -> tuple[NodeCheck, ...]:
    """Return the rows of `checks.toml`, in order."""
    text = (files("trimtab.nodes") / "checks.toml").read_text("utf-8")
    return tuple(NodeCheck(**row) for row in tomllib.loads(text)["check"])


def judge_pool(
    pool: Mapping[str, HostFacts],
    *,
    baseline: Mapping[str, HostFacts] | None = None,
    num_gpus: int | None = None,
) -> tuple[HostReport, ...]:
    """Judge each host of a pool.

    Args:
        pool: Facts by host.
        baseline: The same of an earlier time; drops and rates need it.
        num_gpus: GPUs that each host must have; None: as many as the host that has most.

    Returns:
        One report a host, the worst first; hosts alike keep their order.

    Blind to: a fault that all hosts share, where the check compares them; with fewer than three
    hosts nothing is usual, and these checks are silent.
    """
    before = baseline or {}
    found: dict[str, list[NodeFinding]] = {host: [] for host in pool}
    checked: Counter[str] = Counter()
    for check in load_checks():
        for host, finding, seen in _apply(check, pool, before, num_gpus):
            checked[host] += seen
            if finding is not None:
                found[host].append(finding)
    reports = [
        HostReport(host=host, findings=tuple(found[host]), num_checked=checked[host])
        for host in pool
    ]
    return tuple(sorted(reports, key=lambda r: (-r.score, r.num_checked > 0)))


def _apply(
    check: NodeCheck,
    pool: Mapping[str, HostFacts],
    before: Mapping[str, HostFacts],
    num_gpus: int | None,
) -> Iterator[tuple[str, NodeFinding | None, int]]:
    """Yield (host, finding, facts looked at); of several GPUs the worst is told."""
    fields = {
        host: [n for n in facts if n == check.field or fnmatchcase(n, check.field)]
        for host, facts in pool.items()
    }
    usual = _usual(check, pool, fields, num_gpus)
    for host, names in fields.items():
        worst: tuple[float, str, str] | None = None
        for name in names:
            score, text = _off(check, pool[host], name, before.get(host, {}), usual)
            if score > 0 and (worst is None or score > worst[0]):
                worst = (score, name, text)
        finding = None
        if worst is not None:
            finding = NodeFinding(
                host=host,
                check=check.id,
                level=check.level,
                says=f"{check.says}: {worst[2]}",
                do=check.do,
                field=worst[1],
                score=worst[0],
            )
        yield host, finding, len(names)


Usual = tuple[Value, float]
"""What is usual, and the robust standard deviation; the share of hosts for texts."""


def _group(check: NodeCheck, name: str) -> str:
    """Return under which name a fact is compared: GPUs of a pool are compared with each other."""
    return check.field if check.field.startswith("gpu.") else name


def _usual(
    check: NodeCheck,
    pool: Mapping[str, HostFacts],
    fields: Mapping[str, list[str]],
    num_gpus: int | None,
) -> Mapping[str, Usual]:
    values: dict[str, list[Value]] = {}
    for host, names in fields.items():
        for name in names:
            values.setdefault(_group(check, name), []).append(pool[host][name])
    usual: dict[str, Usual] = {}
    for name, all_values in values.items():
        numbers = [v for v in all_values if isinstance(v, float)]
        if check.test == "most" and numbers:
            usual[name] = (float(num_gpus) if num_gpus is not None else max(numbers), 0.0)
        elif check.test == "same" and len(all_values) >= _MIN_POOL:
            value, count = Counter(all_values).most_common(1)[0]
            if count > len(all_values) / 2:
                usual[name] = (value, count / len(all_values))
        elif check.test in ("low", "high") and len(numbers) >= _MIN_POOL:
            level = statistics.median(numbers)
            spread = 1.4826 * statistics.median(abs(v - level) for v in numbers)
            usual[name] = (level, spread)
    return usual


def _off(
    check: NodeCheck, facts: HostFacts, name: str, before: HostFacts, usual: Mapping[str, Usual]
) -> tuple[float, str]:
    """Return how far a fact is off, 0 where it holds, and what was found."""
    value = facts[name]
    where = f"{name} = {_shown(value)}"
    if check.test == "no":
        is_set = isinstance(value, str) and value.strip().lower() in _SET
        return float(is_set), where
    if check.test == "same":
        known = usual.get(_group(check, name))
        other = known is not None and known[0] != value
        return float(other), f"{where}, others {_shown(known[0])}" if known else where
    if not isinstance(value, float):
        return 0.0, where
    if check.test == "zero":
        line = facts.get("xid_line." + name.partition(".")[2]) if name.startswith("xid.") else None
        return max(value, 0.0), where if line is None else f"{line}"
    if check.test == "at-most":
        return max(value / check.limit, 0.0) if value > check.limit else 0.0, where
    if check.test in ("drop", "rate"):
        return _since(check, facts, name, value, before)
    known = usual.get(_group(check, name))
    if known is None or not isinstance(known[0], float):
        return 0.0, where
    level, spread = known
    assert isinstance(level, float)
    text = f"{where}, others {_shown(level)}"
    if check.test == "most":
        return max(level - value, 0.0), text
    off = level - value if check.test == "low" else value - level
    least = max(_SIGMA * spread, check.limit * abs(level))
    return off / least if least > 0 and off > least else 0.0, text


def _since(
    check: NodeCheck, facts: HostFacts, name: str, value: float, before: HostFacts
) -> tuple[float, str]:
    """Compare a fact with the same one of the host's baseline."""
    old = before.get(name)
    if not isinstance(old, float):
        return 0.0, name
    if check.test == "drop":
        text = f"{name} = {_shown(value)}, baseline {_shown(old)}"
        share = 1.0 - value / old if old > 0 else 0.0
        return share / check.limit if share >= check.limit - 1e-12 else 0.0, text
    now, then = facts.get("t"), before.get("t")
    hours = 1.0
    if isinstance(now, float) and isinstance(then, float):
        hours = max((now - then) / _HOUR_S, 1.0 / 60.0)
    # A counter below its baseline began anew: the driver was loaded again.
    risen = value - old if value >= old else value
    text = f"{name} rose by {_shown(risen)} in {number(hours)} h"
    rate = risen / hours
    return rate / check.limit if rate > check.limit else 0.0, text


def _shown(value: Value) -> str:
    return number(value) if isinstance(value, float) else value
