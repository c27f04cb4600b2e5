"""The command's path on a folder of logs that are made here."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cross_validate import SETTINGS, cross_validate
from benchmarks.detect import detect
from benchmarks.live_replay import LiveReplay, replay_live
from benchmarks.manifest import read_manifest
from benchmarks.peers.ratio_rules import InternEvo
from benchmarks.peers.sigma_rules import LevanterUpdateClip, SkipStep
from benchmarks.predictions import predict
from tests.benchmarks.labelled import label, write_manifest
from trimtab.analysis.assemble import make_account
from trimtab.analysis.json_form import run_to_json
from trimtab.detectors.sensitivity import Sensitivity
from trimtab.record import RunRecord
from trimtab.testing.curves import Fault, simulate_run

PEERS = (InternEvo(), SkipStep(), LevanterUpdateClip())


def write_log(path: Path, record: RunRecord) -> None:
    columns = {n: record.columns[n].values for n in ("loss", "grad_norm", "lr")}
    with path.open("w", encoding="utf-8") as file:
        for i, step in enumerate(record.step.tolist()):
            row = {"step": int(step), **{n: float(v[i]) for n, v in columns.items()}}
            file.write(json.dumps(row) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A healthy run, one with a spike at step 900, and a file that is no log."""
    write_log(tmp_path / "quiet.jsonl", simulate_run(num_steps=1500, seed=1))
    spike = Fault(kind="slow-spike", step=900, size=3.0)
    write_log(tmp_path / "spiky.jsonl", simulate_run(num_steps=1500, seed=2, faults=(spike,)))
    (tmp_path / "none.log").write_bytes(b"\x00\x01" * 50)
    common = {"n_records": 1500, "n_steps": 1500, "x_first": 1, "x_last": 1500}
    found = label("loss_spike_slow", 900, peak=900, recovery=1100)
    return write_manifest(
        tmp_path,
        {"id": "quiet", "verdict": "clean", "local_path": "quiet.jsonl", "repo": "a", **common},
        {
            "id": "spiky",
            "verdict": "incident",
            "local_path": "spiky.jsonl",
            "repo": "b",
            "incidents": [found],
            **common,
        },
        {
            "id": "none",
            "verdict": "clean",
            "local_path": "none.log",
            "n_records": 10,
            "n_steps": 10,
        },
    )


def test_every_system_is_scored_on_the_same_logs(folder: Path) -> None:
    lines: list[str] = []
    found = detect(folder, say=lines.append, peers=PEERS)
    assert [s.name for s in found.systems] == ["trimtab", *(p.name for p in PEERS)]
    assert [line.split()[0] for line in lines] == ["1/3", "2/3", "3/3"]
    own = found.own.figures
    assert (own["recall"], own["precision"], own["false_per_10k"]) == (1, 1, 0)
    assert own["not_read"] == ["none"]
    assert own["onset_error"] <= 2
    skips = found.systems[2].figures
    assert skips["recall"] == 1
    assert skips["not_read"] == ["none"]
    clips = found.systems[3]
    assert clips.unfed == {"quiet", "spiky"}
    assert clips.figures["recall"] == 0
    assert clips.figures_fed["labels"] == 0
    assert "none.log" in str(found.own.predictions[2].error)


def test_predictions_are_what_inspect_says() -> None:
    record = simulate_run(
        num_steps=1500, seed=3, faults=(Fault(kind="slow-spike", step=900, size=3.0),)
    )
    told = run_to_json(make_account(record), path="x")
    line = predict("x", record).to_json()
    assert line["rows"] == told["rows"] == 1500
    assert len({i["alarm"] for i in line["incidents"]}) == len(told["incidents"]) > 0
    assert len(line["incidents"]) == sum(len(i["kinds"]) for i in told["incidents"])
    for ours in line["incidents"]:
        theirs = told["incidents"][ours["alarm"]]
        place = next(k for k in theirs["kinds"] if k["kind"] == ours["kind"])
        whole = {**theirs, **place, "alarm": ours["alarm"], "severity": theirs["severity"]}
        assert ours == {k: whole[k] for k in ours} or ours["onset"] != place["onset"]


@pytest.mark.slow
def test_a_high_bar_silences_and_the_settings_run_through(folder: Path) -> None:
    record = simulate_run(
        num_steps=1500, seed=3, faults=(Fault(kind="slow-spike", step=900, size=0.6),)
    )
    off = frozenset(("swell_findings", "with_excess"))  # their bars are those of its own past
    deaf = Sensitivity(spike=1e6, lasting=1e6, hindsight=1e6, off=off)
    assert any(c.alarms for c in predict("x", record).claims)
    assert not any(c.alarms for c in predict("x", record, sensitivity=deaf).claims)
    runs = detect(folder, say=lambda _line: None, peers=()).runs
    found = cross_validate(folder, runs, say=lambda _line: None)
    assert list(found.settings) == list(SETTINGS)
    assert found.best == "as built"
    assert found.left_out["recall"] == 1
    assert found.num_folds == 3
    assert np.isclose(sum(found.chosen.values()), 3)


def test_a_replay_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    loss = [3.0 / (1 + i) ** 0.1 + 0.01 * (i % 3) + 4.0 * (40 <= i < 48) for i in range(60)]
    rows = (f'{{"step": {i}, "loss": {x}}}\n' for i, x in enumerate(loss))
    (tmp_path / "run.jsonl").write_text("".join(rows))
    span = {"n_records": 60, "n_steps": 60, "x_first": 0, "x_last": 59}
    found = label("loss_spike_slow", 40, peak=40, recovery=48)
    line = {"id": "run", "verdict": "incident", "local_path": "run.jsonl", "repo": "a", **span}
    runs = read_manifest(write_manifest(tmp_path, {**line, "incidents": [found]}))
    kept, said = tmp_path / "out.jsonl", list[str]()

    def replayed() -> LiveReplay:
        return replay_live(tmp_path, runs, say=said.append, most_rows=1000, results=kept)

    first = replayed()
    assert first.figures["live, all"]["recall_same_family"] == 1.0
    with kept.open("a") as file:
        file.write('{"id": "torn')
    assert replayed() == first
    assert len(said) == 1
