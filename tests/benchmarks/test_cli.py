import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.peers.table import PEERS, UNFED
from trimtab.cli import main
from trimtab.readers import read_run
from trimtab.testing.tr8_104b import print_log

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "labelled"
    folder.mkdir()
    (folder / "tr8.log").write_text(print_log(), encoding="utf-8")
    rows = read_run(folder / "tr8.log").num_loss_rows
    lines = [
        {
            "id": "tr8",
            "verdict": "ambiguous",
            "local_path": "tr8.log",
            "n_steps": rows,
            "n_records": rows,
        },
        {"id": "gone", "verdict": "clean", "local_path": "gone.log", "n_steps": 9},
    ]
    (folder / "manifest.jsonl").write_text(
        "".join(json.dumps(x) + "\n" for x in lines), encoding="utf-8"
    )
    return folder


def test_detect_prints_one_document_and_writes_lines(
    run: Run, corpus: Path, tmp_path: Path
) -> None:
    own, peers = tmp_path / "out" / "own.jsonl", tmp_path / "peers"
    code, out, err = run(
        "bench",
        "detect",
        "--corpus",
        corpus,
        "--json",
        "--write-predictions",
        own,
        "--write-peers",
        peers,
        "--cross-validate",
    )
    assert code == 0
    document = json.loads(out)
    assert document["schema"] == 1
    assert [s["name"] for s in document["systems"]] == ["trimtab", *(p.name for p in PEERS)]
    assert len(document["unfed"]) == len(UNFED)
    assert document["systems"][0]["figures"]["not_read"] == ["gone"]
    assert document["cross_validation"]["num_folds"] == 2
    written = [json.loads(x) for x in own.read_text(encoding="utf-8").splitlines()]
    assert written == document["predictions"]
    assert written[0]["id"] == "tr8"
    assert written[0]["incidents"]
    assert "gone.log" in written[1]["error"]
    assert len(list(peers.glob("*.jsonl"))) == len(PEERS)
    assert "1/2 tr8" in err


def test_detect_prints_a_table(run: Run, corpus: Path) -> None:
    code, out, _ = run("bench", "detect", "--corpus", corpus, "--cross-validate")
    assert code == 0
    assert out.startswith("2 labelled runs")
    for name in (*(p.name for p in PEERS), "trimtab", "left out"):
        assert f"\n{name} " in out
    assert "confidence    alarms" in out


def test_a_folder_without_a_manifest_is_named(run: Run, tmp_path: Path) -> None:
    code, out, err = run("bench", "detect", "--corpus", tmp_path / "nowhere", "--json")
    assert (code, out) == (2, "")
    assert "nowhere/manifest.jsonl: No such file" in err
    assert "docs/formats.md" in err


def test_noise_wants_a_number_of_seeds(run: Run) -> None:
    code, _, err = run("bench", "noise", "--seeds", "0")
    assert code == 2
    assert "--seeds 0: expected 1 to 1000" in err


@pytest.mark.slow
def test_noise_prints_a_table_per_law(run: Run) -> None:
    code, out, _ = run("bench", "noise", "--seeds", "1")
    assert code == 0
    assert [line.split(";")[0] for line in out.splitlines() if line.startswith("noise")] == [
        "noise: gaussian",
        "noise: ar1",
        "noise: t3",
    ]
    code, out, _ = run("bench", "noise", "--seeds", "1", "--json")
    rows = json.loads(out)["results"]
    assert rows[0]["system"] == "trimtab"
    assert set(rows[0]["events"]["-30 %"]) == {"num_runs", "num_caught", "delay_rows"}


def test_a_part_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench"])
    assert "PART" in capsys.readouterr().err
