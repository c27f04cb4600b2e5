"""A rollback is a procedure to repeat: the same plan leaves the same folder, each time."""

import json
import shutil
from pathlib import Path

import pytest

from tests.surgery.cluster import OURS, age, log_events, save, tree
from trimtab.cli import main


@pytest.mark.covers("S246")
def test_one_plan_executed_twice_leaves_identical_pointers_and_archives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "first" / "run"
    for step in (3000, 6210, 7000):
        save(run, step)
    rows = [(at, {"lm-loss-training/lm loss": 3.0}) for at in range(6000, 7001, 100)]
    log_events(run / "tensorboard", rows, suffix="a")
    age(run)
    shutil.copytree(run, tmp_path / "second" / "run", symlinks=True)
    found = []
    for name in ("first", "second"):
        place = tmp_path / name / "run"
        assert main(["rollback", str(place), "--to", "6210", "--apply", "--json"]) == 0
        moves = json.loads(capsys.readouterr().out)["moves"]
        archives = {m["to"]: tree(place / m["to"]) for m in moves}
        found.append((tree(place, without=OURS), [(m["from"], m["to"]) for m in moves], archives))
    assert found[0] == found[1]
    assert any("latest" in path for path in found[0][0])
    assert "aside/global_step7000" in found[0][2]
