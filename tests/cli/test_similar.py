"""`trimtab similar`: the scripted twin of an incident, found among other runs."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import parse
from trimtab.testing.curves import Fault, FaultKind, simulate_run

Run = Callable[..., tuple[int, str, str]]


def store(
    path: Path, fault: Fault, *, seed: int, level: float = 2.5, num_steps: int = 1500
) -> Path:
    record = simulate_run(num_steps=num_steps, seed=seed, faults=[fault], level=level)
    names = [n for n in record.columns if n != "skipped"]
    with path.open("w") as file:
        for _, step, values, present in record.rows(names):
            cells = {n: float(v) for n, v, p in zip(names, values, present, strict=True) if p}
            known = {n: v for n, v in cells.items() if np.isfinite(v)}
            file.write(json.dumps({"step": step, **known}) + "\n")
    return path


KINDS: tuple[FaultKind, ...] = ("unrecovered-spike", "scale-collapse", "slow-spike")


@pytest.mark.slow
@pytest.mark.covers("S245")
@pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS[1:])]
)
def test_among_three_runs_the_twin_comes_first(run: Run, kind: FaultKind, tmp_path: Path) -> None:
    def fault(k: FaultKind, step: int) -> Fault:
        long = {"slow-spike": 150, "scale-collapse": 8}.get(k, 5)
        return Fault(kind=k, step=step, size=2.0, duration_steps=long)

    stored = [
        store(tmp_path / f"{n}.jsonl", fault(k, 700 + 90 * n), seed=20 + n, level=3.0 + n)
        for n, k in enumerate(KINDS)
    ]
    new = store(tmp_path / "new.jsonl", fault(kind, 500), seed=7)
    told = parse(run("inspect", new, "--json")[1])["runs"][0]["incidents"]
    onset = next(i["onset"] for i in told if abs(i["onset"] - 500) <= 20)
    code, out, _ = run("similar", new, str(onset), "--among", *stored, "--json")
    assert code == 0
    found = parse(out)["similar"]
    twin = KINDS.index(kind)
    assert found[0]["path"] == str(stored[twin])
    assert abs(found[0]["incident"]["onset"] - (700 + 90 * twin)) <= 20
    others = [f["distance"] for f in found if f["path"] != str(stored[twin])]
    assert not others or found[0]["distance"] < min(others) - 0.02
    text = run("similar", new, str(onset), "--among", *stored)[1]
    assert "alike: " in text


def test_an_incident_is_not_compared_with_itself(run: Run, tr8_log: Path) -> None:
    _, out, _ = run("similar", tr8_log, "A", "--among", tr8_log, "--json")
    (found,) = parse(out)["similar"]  # the other attempt's
    assert found["incident"]["kind"] == "unrecovered-spike"
    assert 0 < found["distance"] < 0.5


def test_a_folder_with_bad_files_is_still_searched(run: Run, tr8_log: Path) -> None:
    (tr8_log.parent / "empty.log").touch()
    code, out, err = run("similar", tr8_log, "A", "--among", tr8_log.parent, "--json")
    assert code == 2
    assert "empty.log" in err
    assert parse(out)["similar"]


def test_a_copy_of_the_run_is_the_run_itself_and_advice_is_printed(
    run: Run, tr8_log: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy" / "other-name.log"
    copy.parent.mkdir()
    copy.write_bytes(tr8_log.read_bytes())
    found = parse(run("similar", tr8_log, "A", "--among", copy, "--json")[1])["similar"]
    assert [f["incident"]["attempt"] for f in found] == ["1.0"]  # not A itself, of attempt 2.0
    assert found[0]["likeness"] == pytest.approx(1 - found[0]["distance"])
    text = run("similar", tr8_log, "A", "--among", copy)[1]
    assert f"likeness {found[0]['likeness']:.2f}" in text
    assert "nothing on record was done; advised: roll back" in " ".join(text.split())


def test_what_both_lack_is_not_called_alike(run: Run, tmp_path: Path) -> None:
    paths = [
        store(
            tmp_path / f"{n}.jsonl",
            Fault(kind="spike", step=700, size=2.0, duration_steps=5),
            seed=n,
        )
        for n in (1, 2)
    ]
    told = parse(run("inspect", paths[0], "--json")[1])["runs"][0]["incidents"]
    onset = next(i["onset"] for i in told if abs(i["onset"] - 700) <= 20)
    found = parse(run("similar", paths[0], str(onset), "--among", paths[1], "--json")[1])["similar"]
    assert found
    assert "what was not finite first" not in found[0]["alike"]
    assert "a restart just before" not in found[0]["alike"]
