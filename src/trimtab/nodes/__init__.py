"""Checks of the hosts of a pool, from facts that each host collects about itself.

`collect` writes the facts of one host; `read_pool` reads them all; `judge_pool` holds each host
against the rows of `checks.toml` and against the others; `plan_groups` and `decide` find one or two
bad hosts by running any test on groups. No torch.
"""

from trimtab.nodes.collect import collect
from trimtab.nodes.facts import read_host, read_pool
from trimtab.nodes.groups import decide, plan_groups, slow_groups
from trimtab.nodes.judge import HostReport, NodeFinding, judge_pool, load_checks
from trimtab.nodes.pool import HostPool, num_spares
from trimtab.nodes.wording import pool_text

__all__ = [
    "HostPool",
    "HostReport",
    "NodeFinding",
    "collect",
    "decide",
    "judge_pool",
    "load_checks",
    "num_spares",
    "plan_groups",
    "pool_text",
    "read_host",
    "read_pool",
    "slow_groups",
]
