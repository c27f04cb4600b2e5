"""The harness of faults, kills and damage: its parts, and a sample of each measurement."""

import errno
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.trust.calls import Fault, Kill, Layer
from benchmarks.trust.forks import run_alone, run_cases
from benchmarks.trust.totals import Totals, spread
from trimtab.durable import write_whole

ROOT = Path(__file__).parents[2]


def _sites(folder: Path) -> list[str]:
    layer = Layer(folder, recording=True)
    layer.install()
    write_whole(folder / "a.txt", b"new")
    layer.paused = True
    return [c.site for c in layer.calls]


def _under_fault(folder: Path, site: str, error: str) -> dict[str, object]:
    (folder / "a.txt").write_bytes(b"old")
    layer = Layer(folder, fault=Fault(site=site, ordinal=0, error=error, lasting="once"))
    layer.install()
    raised = 0
    try:
        write_whole(folder / "a.txt", b"new")
    except OSError as failure:
        raised = failure.errno or -1
    layer.paused = True
    return {"raised": raised, "left": (folder / "a.txt").read_text(), "hit": sorted(layer.hit)}


def test_layer_counts_the_calls_of_trimtab_by_function_and_line(tmp_path: Path) -> None:
    ended = run_alone(lambda f: {"sites": _sites(f)}, tmp_path / "case")
    assert ended.result is not None, ended.err
    sites = ended.result["sites"]
    assert isinstance(sites, list)
    functions = [site.partition(" ")[0] for site in sites]
    assert functions == [
        "open",
        "file.write",
        "os.fsync",
        "os.replace",
        "os.open",
        "os.fsync",
    ]
    assert all(" durable.py:" in site for site in sites)


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS"])
def test_layer_makes_the_chosen_call_fail_and_no_other(tmp_path: Path, error: str) -> None:
    recorded = run_alone(lambda f: {"sites": _sites(f)}, tmp_path / "record").result
    assert recorded is not None
    site = next(s for s in recorded["sites"] if s.startswith("os.replace"))  # type: ignore[attr-defined]
    found = run_alone(lambda f: _under_fault(f, site, error), tmp_path / "case").result
    assert found == {"raised": getattr(errno, error), "left": "old", "hit": [site]}


def test_a_short_write_is_taken_up_by_the_buffer(tmp_path: Path) -> None:
    recorded = run_alone(lambda f: {"sites": _sites(f)}, tmp_path / "record").result
    assert recorded is not None
    site = next(s for s in recorded["sites"] if s.startswith("file.write"))  # type: ignore[attr-defined]
    found = run_alone(lambda f: _under_fault(f, site, "SHORT"), tmp_path / "case").result
    assert found == {"raised": 0, "left": "new", "hit": [site]}


def _killed(folder: Path, ordinal: int) -> dict[str, object]:
    (folder / "a.txt").write_bytes(b"old")
    Layer(folder, kill=Kill(ordinal=ordinal, torn=False)).install()
    write_whole(folder / "a.txt", b"new")
    return {}


@pytest.mark.parametrize(("ordinal", "left"), [(0, "old"), (1, "old"), (2, "new"), (3, "new")])
def test_layer_kills_at_a_change_on_disk(tmp_path: Path, ordinal: int, left: str) -> None:
    ended = run_alone(lambda f: _killed(f, ordinal), tmp_path / "case")
    assert ended.status == -9
    assert (tmp_path / "case" / "a.txt").read_text() == left


@pytest.mark.slow
def test_cases_run_apart_and_a_late_one_is_ended(tmp_path: Path) -> None:
    def work(case: int, _folder: Path) -> dict[str, object]:
        sys.stderr.write(f"case {case}\n")
        while case == 2:
            pass
        return {"pid": os.getpid(), "case": case}

    ended = dict(run_cases([0, 1, 2], work, root=tmp_path, jobs=2, timeout_s=1))
    assert ended[0].result is not None
    assert ended[0].result["pid"] != os.getpid()
    assert ended[1].err == "case 1\n"
    assert ended[2].timed_out
    assert ended[2].result is None


def test_totals_go_on_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    Totals(path).add({"case": "a", "class": "absorbed"})
    with path.open("ab") as file:
        file.write(b'{"case": "b", "cl')
    totals = Totals(path)
    totals.add({"case": "c", "class": "absorbed"})
    assert list(Totals(path).rows) == ["a", "c"]


def test_results_of_other_sources_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"case": "a", "class": "absorbed", "code": "other"}) + "\n")
    assert Totals(path).rows == {}


def test_a_sample_takes_of_each_group_in_turn() -> None:
    cases = [(group, i) for group in range(10) for i in range(100 if group else 2)]
    chosen = spread(cases, 35, 1, of=lambda case: case[0])
    counts = Counter(group for group, _ in chosen)
    assert counts[0] == 2
    assert set(counts.values()) <= {2, 3, 4}
    assert chosen == spread(cases, 35, 1, of=lambda case: case[0])
    assert chosen != spread(cases, 35, 2, of=lambda case: case[0])
    assert spread(cases, None, 1, of=lambda case: case[0]) == cases


def _measured(out: Path, *arguments: str) -> tuple[int, str, list[dict[str, object]]]:
    """Run one measurement in a process of its own: one that has trained cannot be forked."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments, "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode in (0, 1), done.stderr
    rows = [json.loads(s) for s in (out / f"{arguments[0]}.jsonl").read_text().splitlines()]
    return done.returncode, done.stdout, rows


@pytest.mark.torch
@pytest.mark.slow
def test_faults_are_told_and_nothing_is_lost(tmp_path: Path) -> None:
    code, text, rows = _measured(tmp_path, "faults", "--sample", "90", "--clean", "4")
    assert len(rows) == 94
    clean = [row["class"] for row in rows if "site" not in row]
    assert clean == ["absorbed"] * 4
    counts = Counter(str(row["class"]) for row in rows)
    assert not counts["crashed-training"] + counts["hang"], text
    assert not counts["silent"] + counts["lost"] + counts["traceback"], text
    assert code == 0, text
    share_told = re.search(r"recovered from in \d+ of \d+ \(([\d.]+)%\)", text)
    assert share_told is not None, text
    assert float(share_told[1]) >= 95, text


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.covers("S236")
def test_killed_runs_end_as_unbroken_ones(tmp_path: Path) -> None:
    code, text, rows = _measured(tmp_path, "kills", "--num", "25")
    assert code == 0, text
    assert sum(int(str(row["kills"])) for row in rows) >= 25
    assert {str(row["kind"]) for row in rows} == {
        "guard",
        "save",
        "rollback",
        "second-place",
        "two-ranks",
    }


@pytest.mark.torch
@pytest.mark.slow
def test_a_damaged_run_goes_on_as_unbroken_or_is_refused(tmp_path: Path) -> None:
    code, text, rows = _measured(tmp_path, "damage", "--sample", "50")
    assert len(rows) == 50
    assert code == 0, text
