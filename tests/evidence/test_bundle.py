"""The bundle of evidence: what is in it, what is not, and how large it may be."""

import json
import os
import zipfile
from pathlib import Path

import pytest

from trimtab.chronicle.journal import Journal
from trimtab.cli import main

TOKEN = "hf_" + "a1B2" * 9
XID = "n17 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a supervisor's folder after a crash, with secrets and links in it."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "notes.txt").write_text("weights")
    journal = Journal(run / "journal.jsonl")
    journal.append("start", attempt="0.0", step=0, argv=["train.py", "--hub-token", TOKEN])
    stacks = [{"pid": 7, "rank": 1, "frames": ["wait (train.py:3)"], "odd": True}]
    journal.append("note", attempt="1.0", step=7, author="supervisor", text="x", stacks=stacks)
    why = "GPU has fallen off the bus"
    journal.append("gave-up", attempt="1.0", step=7, **{"class": "lost_gpu"}, host="n17", why=why)
    journal.close()
    noise = "".join(f"step {i} loss 2.5\n" for i in range(60_000))
    (run / "output.log").write_text(f"beginning\n{noise}export HF_TOKEN={TOKEN}\n{XID}\n")
    (run / "run.toml").write_text(f'[env]\nwandb_api_key = "{TOKEN}"\nlr = 1e-4\n')
    (run / "weights.log").write_bytes(b"\0\1\2" * 99)
    secret = tmp_path / "secret.txt"
    secret.write_text("outside")
    (run / "link.txt").symlink_to(secret)
    (run / "folder").symlink_to(tmp_path)
    return run


@pytest.mark.slow
@pytest.mark.covers("S257")
def test_a_bundle_has_host_xid_times_and_counters_and_no_secret(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts, target = tmp_path / "facts", tmp_path / "b.zip"
    (facts / "n17").mkdir(parents=True)
    (facts / "n17" / "nvidia-smi.txt").write_text("DRAM Uncorrectable            : 3\n")
    assert main(["bundle", str(run), "-o", str(target), "--facts", str(facts)]) == 0
    out = capsys.readouterr().out
    with zipfile.ZipFile(target) as archive:
        texts = {n: archive.read(n).decode() for n in archive.namelist()}
    summary = texts["summary.txt"]
    assert summary.startswith("what:  lost_gpu")
    assert "host n17" in summary
    assert XID in summary
    assert "gave-up" in summary
    assert "(UTC)" in summary
    assert "DRAM Uncorrectable            : 3" in texts["hosts/n17/nvidia-smi.txt"]
    assert "train.py:3" in texts["stacks.json"]
    assert json.loads(texts["versions.json"])["python"]
    assert not [name for name, text in texts.items() if TOKEN in text]
    assert "lr = 1e-4" in texts["run/run.toml"]
    names = " ".join(texts)
    assert "checkpoints" not in names
    assert "link.txt" not in names
    assert not [name for name, text in texts.items() if "outside" in text]
    assert "link.txt: a link, which is not followed" in out
    # The end of a long log, not its beginning.
    assert len(texts["run/output.log"]) <= 1 << 20
    assert "beginning" not in texts["run/output.log"]


def test_a_bundle_of_nothing_or_in_the_run_itself_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "train.log").write_text("step 1 loss 2.5\n")
    assert main(["bundle", str(tmp_path / "none")]) == 2
    assert main(["bundle", str(run), "-o", str(run / "b.zip")]) == 2
    assert "inside the run" in capsys.readouterr().err
    os.mkfifo(run / "pipe.log")  # nobody writes: reading it would wait for ever
    assert main(["bundle", str(run), "-o", str(tmp_path / "b.zip"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"][-1] == "run/train.log"
