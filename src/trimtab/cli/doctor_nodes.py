"""The part of `trimtab doctor` that looks at hosts: `--collect`, `--nodes`, `--groups`."""

import argparse
import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path

from trimtab.cli.output import print_json, tell
from trimtab.errors import ConfigError, ReadError
from trimtab.nodes import collect, decide, judge_pool, plan_groups, pool_text, read_pool
from trimtab.nodes.groups import GroupPlan

__all__ = ["add_options", "is_asked", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    nodes = parser.add_argument_group("hosts of a pool")
    nodes.add_argument(
        "--nodes",
        metavar="DIR|HOSTFILE",
        type=Path,
        help="judge the hosts whose facts lie in DIR, or beside a list of hosts",
    )
    nodes.add_argument(
        "--baseline", metavar="DIR", type=Path, help="facts of an earlier time, for --nodes"
    )
    nodes.add_argument(
        "--gpus", metavar="N", type=int, help="GPUs that each host must have, for --nodes"
    )
    nodes.add_argument(
        "--collect", metavar="DIR", type=Path, help="write the facts of this host into DIR/HOST"
    )
    nodes.add_argument(
        "--scratch", metavar="DIR", type=Path, help="with --collect: measure this disk"
    )
    nodes.add_argument(
        "--burn",
        metavar="S",
        type=float,
        default=0.0,
        help="with --collect: repeat a product for S seconds and compare, on a GPU if it can",
    )
    nodes.add_argument(
        "--groups",
        metavar="HOSTFILE",
        type=Path,
        help="print groups of hosts to run a test on; with --failed: which hosts are bad",
    )
    nodes.add_argument(
        "--failed", metavar="N,N", help="numbers of the groups on which the test failed"
    )


def is_asked(arguments: argparse.Namespace) -> bool:
    """Whether hosts are asked for."""
    return any(getattr(arguments, name) is not None for name in ("nodes", "collect", "groups"))


def run(arguments: argparse.Namespace) -> int:
    """Collect, judge or find; exit 1 where a host must be left out."""
    if arguments.collect is not None:
        if not 0 <= arguments.burn <= 3600:
            raise ConfigError(f"--burn is {arguments.burn:g}, expected 0 to 3600 seconds")
        multiply = _on_gpu() if arguments.burn else None
        folder = collect(
            arguments.collect,
            scratch=arguments.scratch,
            burn_s=arguments.burn,
            multiply=multiply,
        )
        if arguments.json:
            print_json({"schema": 1, "folder": str(folder)})
        else:
            tell(f"facts of this host: {folder}; judge all with trimtab doctor --nodes")
        return 0
    return _find(arguments) if arguments.groups is not None else _judge(arguments)


def _judge(arguments: argparse.Namespace) -> int:
    before = {} if arguments.baseline is None else read_pool(arguments.baseline)
    if arguments.gpus is not None and arguments.gpus < 0:
        raise ConfigError(f"--gpus is {arguments.gpus}, expected a count")
    reports = judge_pool(read_pool(arguments.nodes), baseline=before, num_gpus=arguments.gpus)
    if arguments.json:
        hosts = [
            {
                "host": r.host,
                "state": r.state,
                "facts_checked": r.num_checked,
                "findings": [dataclasses.asdict(f) for f in r.findings],
            }
            for r in reports
        ]
        print_json({"schema": 1, "path": str(arguments.nodes), "hosts": hosts})
    else:
        tell(pool_text(reports))
    return int(any(r.state == "fail" for r in reports))


def _find(arguments: argparse.Namespace) -> int:
    try:
        lines = arguments.groups.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ReadError(f"{arguments.groups}: is no list of hosts ({error})") from error
    plan = plan_groups([line.split()[0] for line in lines if line.split()])
    if arguments.failed is None:
        _tell_plan(plan, as_json=arguments.json)
        return 0
    try:
        failed = [int(word) for word in arguments.failed.split(",") if word.strip()]
    except ValueError as error:
        raise ConfigError(f"--failed is {arguments.failed!r}, expected such as 0,5") from error
    verdict = decide(plan, failed)
    if arguments.json:
        print_json({"schema": 1, **dataclasses.asdict(verdict)})
    else:
        tell(verdict.says)
        tell(f"  hosts: {','.join(verdict.bad) or 'none'}")
    return int(bool(verdict.bad))


def _tell_plan(plan: GroupPlan, *, as_json: bool) -> None:
    if as_json:
        print_json({"schema": 1, "rounds": [[list(g) for g in one] for one in plan.rounds]})
        return
    tell("run the test on all groups of a round at once, then the next round;")
    tell(
        "  do: trimtab doctor --groups HOSTFILE --failed with the numbers that failed or were slow"
    )
    number = 0
    for i, one in enumerate(plan.rounds, 1):
        tell(f"round {i}")
        for group in one:
            tell(f"  {number:>4}  {','.join(group)}")
            number += 1


def _on_gpu() -> Callable[[], bytes] | None:
    """Return a product on the first GPU; None where there is none."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    generator = torch.Generator(device="cuda").manual_seed(0)
    left = torch.randn(4096, 4096, device="cuda", generator=generator)

    def multiply() -> bytes:
        product: bytes = (left @ left.T).cpu().numpy().tobytes()
        return product

    return multiply
