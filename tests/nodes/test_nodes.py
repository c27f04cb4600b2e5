"""Hosts of a pool: each fault names its host and its check, and a fine pool is silent."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.nodes.smi import smi_text, smi_xml
from trimtab.cli import main
from trimtab.errors import ConfigError
from trimtab.nodes import (
    HostPool,
    decide,
    judge_pool,
    num_spares,
    plan_groups,
    read_pool,
    slow_groups,
)
from trimtab.nodes.facts import dmesg_facts

LINKS = "".join(f"\t Link {i}: 26.562 GB/s\n" for i in range(18))
OWN = {
    "kernel": "5.15.0",
    "num_cores": 96,
    "versions": {"torch": "2.13.0", "nvidia-nccl-cu12": "2.27.3"},
    "memory_bytes": 2.1e12,
    "bandwidth": {"disk_write_mb_s": 2000.0, "network_mb_s": 24000.0},
    "t": 1.8e9,
}
FLAP = (
    "[{}] mlx5_core 0000:5e:00.0 ens1np0: Link down\n[{}] mlx5_core 0000:5e:00.0 ens1np0: Link up\n"
)


def make_pool(root: Path, num: int = 6) -> Path:
    """Write the facts of hosts that are all fine."""
    for i in range(num):
        host = root / f"n{i:02d}"
        host.mkdir(parents=True)
        (host / "nvidia-smi.txt").write_text(smi_text())
        (host / "nvlink.txt").write_text("GPU 0: NVIDIA H100\n" + LINKS)
        (host / "dmesg.txt").write_text("[    1.0] Linux version 5.15.0\n")
        own = {**OWN, "memory_bytes": 2.1e12 + 1e9 * i}
        (host / "facts.json").write_text(json.dumps(own))
    return root


@pytest.fixture(scope="module")
def fine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a fine pool, which no test changes."""
    return make_pool(tmp_path_factory.mktemp("pool") / "pool")


FAULTS = {
    "gpu-count": ("nvidia-smi.txt", smi_text(7)),
    "ecc-uncorrectable": ("nvidia-smi.txt", smi_text(uncorrectable={5: "1"})),
    "remap-pending": ("nvidia-smi.txt", smi_text(pending={2: "Yes"})),
    "remap-failure": ("nvidia-smi.txt", smi_text(failure={2: "Yes"})),
    "hot": ("nvidia-smi.txt", smi_text(hot={1: "Active"})),
    "pcie-width": ("nvidia-smi.txt", smi_text(width={7: "8x"})),
    "driver": ("nvidia-smi.txt", smi_text(driver="535.1")),
    "nvlink-down": ("nvlink.txt", LINKS + "\t Link 18: <inactive>\n"),
    "xid": (
        "dmesg.txt",
        "[9.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n",
    ),
    "xid-unknown": ("dmesg.txt", "[9.1] NVRM: Xid (PCI:0000:3b:00): 999, pid=1, what is this\n"),
    "link-flaps": ("dmesg.txt", FLAP.format("10.0", "12.0") + FLAP.format("200.0", "201.0")),
    "oom-kill": ("dmesg.txt", "[9.1] Out of memory: Killed process 77 (python) total-vm:1kB\n"),
    "versions": ("facts.json", json.dumps({**OWN, "versions": {"torch": "2.12.0"}})),
    "memory": ("facts.json", json.dumps({**OWN, "memory_bytes": 1.9e12})),
    "disk-write": ("facts.json", json.dumps({**OWN, "bandwidth": {"disk_write_mb_s": 900.0}})),
    "allreduce-wrong": ("nccl-tests.txt", "# Out of bounds values : 3 FAILED\n"),
    "burn": ("facts.json", json.dumps({**OWN, "burn_mismatches": 1})),
}


@pytest.mark.covers("S216", "S217", "S218", "S219", "S220", "S222")
def test_each_fault_names_its_host_and_check_and_nobody_else(
    fine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--nodes", str(fine)]) == 0
    assert "6 hosts: 0 to leave out, 0 to look at, 6 fine" in capsys.readouterr().out
    sound = read_pool(fine)
    for check, (file, text) in FAULTS.items():
        pool = dict(sound)
        bad = tmp_path / check / "n03"
        bad.mkdir(parents=True)
        for other in (fine / "n03").iterdir():
            (bad / other.name).write_text(other.read_text())
        (bad / file).write_text(text)
        pool["n03"] = read_pool(bad.parent)["n03"]
        found = [(f.host, f.check) for r in judge_pool(pool) for f in r.findings]
        assert found == [("n03", check)], check


@pytest.mark.covers("S223")
def test_the_table_names_each_host_and_a_host_without_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = make_pool(tmp_path / "pool", 3)
    (pool / "n01" / "nvidia-smi.txt").write_text(smi_text(uncorrectable={5: "2"}))
    hosts = pool / "hosts"
    hosts.write_text("n00 slots=8\nn01 slots=8\n# spare\nn02\nn09\n")
    assert main(["doctor", "--nodes", str(hosts)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "4 hosts: 1 to leave out, 0 to look at, 2 fine, 1 unknown"
    assert "leave out n01" in out[1]
    assert "--collect on n09" in out[2]
    told = [
        line
        for line in out
        if "gpu.5.ecc_errors.volatile.dram_uncorrectable = 2" in line and "fail" in line
    ]
    assert len(told) == 1
    main(["doctor", "--nodes", str(hosts), "--json"])
    told_hosts = json.loads(capsys.readouterr().out)["hosts"]
    assert [(h["host"], h["state"]) for h in told_hosts][:1] == [("n01", "fail")]


def test_the_xml_form_says_the_same_as_the_text(tmp_path: Path) -> None:
    for host, num in (("a", 0), ("b", 1)):
        (tmp_path / host).mkdir()
        (tmp_path / host / "nvidia-smi.xml").write_text(smi_xml(num))
    found = {r.host: [f.check for f in r.findings] for r in judge_pool(read_pool(tmp_path))}
    assert found == {"b": ["ecc-uncorrectable"], "a": []}
    (tmp_path / "a" / "nvidia-smi.xml").write_text("<nvidia_smi_log><gpu>")
    broken = {r.host: [f.check for f in r.findings] for r in judge_pool(read_pool(tmp_path))}
    assert broken == {"b": ["ecc-uncorrectable"], "a": ["unreadable"]}


@pytest.mark.covers("S253")
def test_a_bandwidth_30_percent_below_the_baseline_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    assert main(["doctor", "--collect", str(before), "--scratch", str(tmp_path)]) == 0
    host = next(before.iterdir()).name
    facts = json.loads((before / host / "facts.json").read_text())
    assert facts["bandwidth"]["disk_write_mb_s"] > 0
    for share, checks in ((0.72, []), (0.70, ["baseline"])):
        (now / host).mkdir(parents=True, exist_ok=True)
        bandwidth = {k: v * share for k, v in facts["bandwidth"].items()}
        (now / host / "facts.json").write_text(json.dumps({**facts, "bandwidth": bandwidth}))
        capsys.readouterr()
        main(["doctor", "--nodes", str(now), "--baseline", str(before), "--json"])
        told = json.loads(capsys.readouterr().out)["hosts"][0]["findings"]
        assert [f["check"] for f in told] == checks
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".trimtab")]


@pytest.mark.covers("S62", "S231")
def test_rising_memory_errors_with_slow_steps_rank_a_host_first() -> None:
    name = "gpu.0.ecc_errors.volatile.dram_correctable"
    rng = np.random.default_rng(100)
    pool = {
        f"n{i}": {name: 5.0, "t": 7200.0, "step_time_s": 6.0 + 0.01 * float(rng.standard_normal())}
        for i in range(20)
    }
    before = {host: {name: 5.0, "t": 0.0} for host in pool}
    assert not any(r.findings for r in judge_pool(pool, baseline=before))
    pool["n13"] |= {name: 505.0, "step_time_s": 6.9}
    pool["n4"] |= {name: 45.0}
    reports = judge_pool(pool, baseline=before)
    assert [r.host for r in reports if r.findings] == ["n13", "n4"]
    assert {f.check for f in reports[0].findings} == {"ecc-correctable-rate", "slow-steps"}


@pytest.mark.covers("S215")
def test_a_product_that_differs_in_one_bit_is_counted() -> None:
    from trimtab.nodes.collect import burn

    assert burn(0.01)[0] == 0
    results = itertools.chain([b"same"] * 5, [b"sbme"], itertools.repeat(b"same"))
    assert burn(0.01, lambda: next(results))[0] == 1


@pytest.mark.covers("S229")
@pytest.mark.parametrize("num", [4, 5, 9, 30, 64])
def test_groups_isolate_one_or_two_bad_hosts_of_any_pool(num: int) -> None:
    hosts = [f"n{i}" for i in range(num)]
    plan = plan_groups(hosts)
    for one in plan.rounds:
        assert sorted(h for group in one for h in group) == sorted(hosts)
    pairs = list(itertools.combinations(hosts, 2))
    for bad in [*((h,) for h in hosts), *pairs[:: max(len(pairs) // 60, 1)]]:
        failed = [i for i, group in enumerate(plan.groups) if set(group) & set(bad)]
        verdict = decide(plan, failed)
        # With four hosts in two by two, a third can hide behind two.
        assert set(bad) <= set(verdict.bad)
        if num > 5:
            assert (set(verdict.bad), verdict.sure) == (set(bad), True)
    slow = {i: 6.5 if hosts[0] in group else 6.0 for i, group in enumerate(plan.groups)}
    slow[len(plan.groups) - 1] = math.nan if hosts[0] in plan.groups[-1] else 6.0
    if num > 5:
        assert decide(plan, slow_groups(slow)).bad == (hosts[0],)


def test_a_bad_link_blames_no_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("\n".join(f"n{i}" for i in range(9)))
    assert main(["doctor", "--groups", str(hosts)]) == 0
    assert "0  n0,n1,n2" in capsys.readouterr().out
    assert main(["doctor", "--groups", str(hosts), "--failed", "1"]) == 0
    assert "link or switch" in capsys.readouterr().out
    assert main(["doctor", "--groups", str(hosts), "--failed", "1,99"]) == 2


@pytest.mark.covers("S133", "S224")
def test_a_failed_host_of_992_is_replaced_from_32_spares() -> None:
    pool = HostPool.of([f"n{i}" for i in range(992)], [f"s{i}" for i in range(32)])
    after = pool.replaced("n500")
    assert (len(after.active), len(after.spares), after.active[500]) == (992, 31, "s0")
    assert after.excluded == ("n500",)
    assert after.repaired("n500").spares[-1] == "n500"
    with pytest.raises(ConfigError, match="not active"):
        after.replaced("n500")
    assert num_spares(1024, failures_per_day=2.0, repair_days=2.0) >= 0.03 * 1024


def test_what_a_kernel_says_of_a_program_is_no_fault_of_the_node() -> None:
    facts = dmesg_facts("[5.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=9, name=python, MMU Fault\n")
    assert facts["xid.code"] == 1.0
    assert "xid.node" not in facts


def test_a_host_whose_facts_cannot_be_read_is_named_and_the_others_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (
        ("a1", '{"burn_mismatches": 0}'),
        ("a2", "[" * 100_000),
        ("a3", '{"burn_mismatches": Infinity}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "facts.json").write_text(text)
    main(["doctor", "--nodes", str(tmp_path), "--json"])
    said = capsys.readouterr().out
    found = {h["host"]: [c["check"] for c in h["findings"]] for h in json.loads(said)["hosts"]}
    assert found == {"a1": [], "a2": ["unreadable"], "a3": ["unreadable"]}
