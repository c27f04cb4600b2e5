"""What a launch is recorded with: machine, packages, commit, and the code as it lay there."""

import json
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from trimtab.chronicle.launch import write_launch
from trimtab.cli import main

SCRIPT = """
import json, sys
from importlib.metadata import distributions
from pathlib import Path
from trimtab.chronicle.journal import Journal
from trimtab.chronicle.launch import write_launch

run, number = Path(sys.argv[1]), sys.argv[2]
parent = {"parent": "1.0", "parent_step": 5} if number != "1.0" else {"parent": None}
told = write_launch(run, number)
journal = Journal(run / "journal.jsonl")
journal.append("resume" if number != "1.0" else "start", attempt=number, step=0, environment=told)
journal.append("attempt", attempt=number, step=0, number=number, settings={"lr": 1}, **parent)
"""


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *arguments],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.covers("S162", "S252")
def test_a_start_has_commit_and_diff_and_a_changed_file_shows_between_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, run = tmp_path / "code", tmp_path / "run"
    code.mkdir()
    run.mkdir()
    (code / "train.py").write_text(SCRIPT)
    git(code, "init", "--quiet")
    git(code, "add", ".")
    git(code, "commit", "--quiet", "-m", "first")
    subprocess.run([sys.executable, "train.py", str(run), "1.0"], cwd=code, check=True)
    (code / "train.py").write_text(SCRIPT + "# lr lowered, api_key=9f8e7d6c5b4a39281706\n")
    (code / "new.yaml").write_text("lr: 0.1\n")
    subprocess.run([sys.executable, "train.py", str(run), "1.1"], cwd=code, check=True)
    lines = (run / "journal.jsonl").read_text().splitlines()
    starts = [json.loads(line)["environment"] for line in lines if "hosts" in line]
    assert len(starts) == 2
    for told in starts:  # every start record has the fingerprint
        assert {"hosts", "packages", "numpy", "commit"} <= told.keys()
        assert told["commit"] == git(code, "rev-parse", "HEAD")
    diff = (run / "launch" / "1.1" / "code.diff").read_text()
    assert "+# lr lowered" in diff
    assert "+lr: 0.1" in diff
    assert "9f8e7d6c" not in diff  # secrets are masked
    assert not (run / "launch" / "1.0" / "code.diff").exists()
    assert "numpy==" in (run / "launch" / "1.0" / "packages.txt").read_text()
    assert main(["chronicle", str(run), "--diff", "1.0", "1.1"]) == 0
    out = capsys.readouterr().out
    assert "code/train.py  as committed → " in out
    assert "code/new.yaml  as committed → " in out


@pytest.mark.slow
@pytest.mark.covers("S162", "S252")
def test_write_launch_keeps_the_code_of_what_supervise_starts_each_time_it_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, run = tmp_path / "code", tmp_path / "run"
    code.mkdir()
    script = code / "train.py"
    crash = "import os, sys\nopen(__file__, 'a').write('# tried\\n')\nsys.exit(1)\n"
    script.write_text(crash)
    git(code, "init", "--quiet")
    git(code, "add", ".")
    git(code, "commit", "--quiet", "-m", "first")
    policy = tmp_path / "p.toml"
    policy.write_text("[supervise]\nfirst_backoff_s = 0.1\nlook_every_s = 0.05\n")
    own = [sys.executable, "-m", "trimtab", "supervise", "--run", str(run), "--policy", str(policy)]

    def launch(*options: str) -> None:
        argv = [*own, "--", sys.executable, str(script), *options]
        subprocess.run(argv, cwd=tmp_path, check=False, capture_output=True, timeout=60)

    launch("--lr", "0.1")  # its script changes before it is started again
    script.write_text("print('step 1 loss 2.0')\n")
    launch("--lr", "0.05")
    launches = sorted(p.name for p in (run / "launch").iterdir())
    assert launches[:2] == ["supervise-1", "supervise-2"]
    assert not (run / "launch" / "supervise-1" / "code.diff").exists()
    last = launches[-1]
    assert "+print('step 1 loss 2.0')" in (run / "launch" / last / "code.diff").read_text()
    assert main(["chronicle", str(run), "--diff", "supervise-1", last]) == 0
    out = capsys.readouterr().out
    assert "code/train.py  as committed → " in out
    assert "--lr 0.1 → " in out
    lines = (run / "journal.jsonl").read_text().splitlines()
    starts = [json.loads(x) for x in lines if json.loads(x)["event"] == "start"]
    assert [s["environment"]["commit"] for s in starts] == [git(code, "rev-parse", "HEAD")] * len(
        launches
    )


def test_a_launch_that_cannot_be_written_is_told_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "launch").write_text("in the way")
    assert "not written" in write_launch(tmp_path, "1.0")["launch_files"]


def test_write_launch_lists_the_packages_that_importlib_lists(tmp_path: Path) -> None:
    write_launch(tmp_path, "1.0")
    listed = (tmp_path / "launch" / "1.0" / "packages.txt").read_text().splitlines()
    known = {d.name.lower(): d.version for d in distributions() if d.metadata["Name"]}
    assert listed == [f"{name}=={known[name]}" for name in sorted(known)]
