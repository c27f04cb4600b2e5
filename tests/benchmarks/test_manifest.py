from pathlib import Path
from typing import Any

import pytest

from benchmarks.manifest import CORE, EXTRA, family_of_kind, read_manifest
from tests.benchmarks.labelled import label, line, runs_of, write_manifest
from trimtab.errors import ReadError
from trimtab.kinds import KINDS


def test_a_line_becomes_a_run(tmp_path: Path) -> None:
    spike = label("loss_spike_fast", 40, peak=50, recovery=80, onset_row=4, end_row=8)
    more = label("level_shift", 900, also=[10, [20, 30]], same_event=True, confidence="low")
    run, bare = runs_of(
        tmp_path,
        line("a", "incident", incidents=[spike, more], repo="x/y", group="g", rows_accept=[5, 7]),
        {"id": "b", "verdict": "clean", "local_path": "b.log", "n_steps": 50, "incidents": None},
    )
    assert [run.records, run.unit, run.last] == [1000, 10, 10000]
    assert [run.slack_rows, run.slack] == [10, 100]
    assert run.rows_accept == (5, 7)
    assert run.labels[0].span == (40.0, 80.0)
    assert run.labels[0].rows == (4.0, 8.0)
    assert run.labels[0].counts
    assert run.labels[1].also == ((10.0, 10.0), (20.0, 30.0))
    assert run.labels[1].repeats_another
    assert run.labels[1].open_ended
    assert not run.labels[1].counts
    assert (bare.records, bare.unit, bare.last, bare.slack_rows) == (50, 1.0, 50.0, 3.0)
    assert (bare.repo, bare.group, bare.rows_accept) == ("b", "b", (50,))


def test_labels_may_use_the_kinds_of_trimtab(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, line("a", "incident", incidents=[label("grad-drift", 1)]))
    assert run.labels[0].family == "grad"
    assert {family_of_kind(k.name) for k in KINDS} <= {*CORE, *EXTRA, "other"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "fine"}, "manifest.jsonl:1: verdict 'fine' is unknown"),
        ({"id": 3}, "manifest.jsonl:1: id is 3, expected text"),
        ({"n_records": "many"}, "n_records is 'many', expected a finite number"),
        ({"local_path": "../elsewhere.log"}, "leaves the folder"),
        ({"incidents": [{"kind": "spike"}]}, "incident 0: onset is missing"),
        ({"incidents": [label("wobble", 1)]}, "incident 0: kind 'wobble' is unknown"),
        ({"incidents": [label("spike", 1, confidence="sure")]}, "confidence 'sure'"),
        ({"incidents": [label("spike", 1, also=["x"])]}, "place 'x'"),
        ({"incidents": ["spike"]}, "incident 0: expected an object"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ReadError) as caught:
        runs_of(tmp_path, line("a", "clean") | change)
    assert message in str(caught.value)


def test_a_manifest_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"give a folder with manifest\.jsonl"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(ReadError, match="no runs in it"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.jsonl").write_text("{'id'\n", encoding="utf-8")
    with pytest.raises(ReadError, match=r":1: no JSON"):
        read_manifest(tmp_path)
    with pytest.raises(ReadError, match="id 'a' was there before"):
        read_manifest(write_manifest(tmp_path, line("a", "clean"), line("a", "clean")))
