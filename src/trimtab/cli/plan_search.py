"""The searches of `trimtab plan`: a faulty machine, and the direction of a setting."""

import argparse
import math
from collections.abc import Callable
from typing import TypeAlias

from trimtab.errors import ConfigError
from trimtab.plan.directions import Directions
from trimtab.plan.machines import Search

__all__ = ["add_direction", "add_machines", "outcome"]

Kinds: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run = Callable[[argparse.Namespace], int]


def outcome(text: str) -> tuple[str, bool]:
    """Return the name and whether it went well, from NAME=well or NAME=fails."""
    name, _, how = text.rpartition("=")
    if not name or how not in ("well", "fails"):
        raise ConfigError(f"--outcome {text!r}: expected NAME=well or NAME=fails")
    return name, how == "well"


def add_machines(kinds: Kinds, run: Run) -> None:
    """Add `plan machines`."""
    parser = kinds.add_parser(
        "machines", help="halve a pool of machines until the faulty one is found"
    )
    parser.add_argument(
        "machines", metavar="NAME", nargs="+", help="their names; n0-n123 counts them up"
    )
    parser.add_argument(
        "--outcome",
        choices=("well", "fails"),
        action="append",
        default=[],
        help="how the probes so far went, in their order",
    )
    parser.set_defaults(run=run, plan=_machines)


def _machines(arguments: argparse.Namespace) -> tuple[list[str], dict[str, object]]:
    names = tuple(name for given in arguments.machines for name in _counted(given))
    if len(set(names)) < len(names):
        raise ConfigError("a machine is named twice; name each once")
    search = Search(machines=names)
    for how in arguments.outcome:
        if not search.next_pool:
            raise ConfigError(f"{len(arguments.outcome)} outcomes, but the search is over")
        search.report(failed=how == "fails")
    lines = [f"faulty: {name}" for name in search.faulty]
    if search.next_pool:
        most = (
            f", at most {search.most_left} more to the next faulty one" if search.most_left else ""
        )
        lines.append(f"probe {search.num_probes + 1}{most}: {' '.join(search.next_pool)}")
    else:
        lines.append(f"all others are sound, after {search.num_probes} probes")
    document = {
        "faulty": list(search.faulty),
        "next_pool": list(search.next_pool),
        "num_probes": search.num_probes,
        "most_left": search.most_left,
    }
    return lines, document


def _counted(text: str) -> list[str]:
    """Return the names that n0-n123 counts up; a text that is no such range stands for itself."""
    first, _, last = text.partition("-")
    stem = first.rstrip("0123456789")
    numbers = first[len(stem) :], last.removeprefix(stem)
    if not (last and all(n.isdecimal() for n in numbers) and last.startswith(stem)):
        return [text]
    low, high = int(numbers[0]), int(numbers[1])
    if high - low >= 1_000_000:
        raise ConfigError(f"{text}: more than a million machines")
    return [f"{stem}{n}" for n in range(low, high + 1)]


def add_direction(kinds: Kinds, run: Run) -> None:
    """Add `plan direction`."""
    parser = kinds.add_parser(
        "direction",
        help="find a value by side runs: times and by 4 first, then the interval halved",
    )
    parser.add_argument("name", metavar="NAME", help="such as lr or warmup_steps")
    parser.add_argument("value", metavar="VALUE", type=float, help="where the run stands")
    parser.add_argument(
        "--round",
        metavar="UP,DOWN,HERE",
        action="append",
        default=[],
        help="losses of a round: at the larger value, the smaller one, and where it stood",
    )
    parser.set_defaults(run=run, plan=_direction)


def _direction(arguments: argparse.Namespace) -> tuple[list[str], dict[str, object]]:
    search = Directions(arguments.name, arguments.value)
    for given in arguments.round:
        try:
            up, down, here = (float(x) for x in given.split(","))
        except ValueError as error:
            raise ConfigError(f"--round {given!r}: expected three losses, UP,DOWN,HERE") from error
        probes = search.next_probes
        if not probes:
            raise ConfigError(f"--round {given!r}: the interval is fine enough already")
        search.report({probes[0].value: up, probes[1].value: down}, here=here)
    lines = [
        f"{search.name} stands at {search.value:.4g}"
        + ("" if math.isnan(search.loss) else f" (loss {search.loss:.4g})")
    ]
    lines += [
        f"side run: {search.name} {p.value:.4g} (x {p.factor:.3g})" for p in search.next_probes
    ]
    if not search.next_probes:
        lines.append("fine enough")
    document = {
        "name": search.name,
        "value": search.value,
        "loss": search.loss,
        "probes": [{"value": p.value, "factor": p.factor} for p in search.next_probes],
    }
    return lines, document
