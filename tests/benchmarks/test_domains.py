"""Trouble beyond language-model pre-training, through `trimtab inspect` and `watch`."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.domains.courses import BASES
from benchmarks.domains.formats import FORMATS, file_name, log_text
from benchmarks.domains.measure import make_log
from benchmarks.domains.nouns import noun_rows
from benchmarks.domains.pathologies import PATHOLOGIES, Pathology
from benchmarks.domains.twins import TWINS, Twin
from trimtab.cli import main
from trimtab.detectors.domain_signs import DOMAIN_SIGNS, SIGN_BY_ID
from trimtab.diagnosis.causes import CAUSE_BY_ID
from trimtab.kinds import KIND_BY_NAME
from trimtab.readers import read_run
from trimtab.vocabulary import SIGNAL_BY_NAME

SEED = 102
"""200 rows, the shortest that the benchmark makes."""
SIGN_KINDS = {k.name for k in KIND_BY_NAME.values() if k.topic == "signals"}
FORMAT_CASES = [(base, name) for base, formats in FORMATS.items() for name in formats]


def inspected(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    """Return the first run of `trimtab inspect --json`."""
    main(["inspect", str(path), "--json", *options])
    document = json.loads(capsys.readouterr().out)
    run: dict[str, object] = document["runs"][0]
    return run


def alarms(run: dict[str, object]) -> list[dict[str, object]]:
    incidents = run["incidents"]
    assert isinstance(incidents, list)
    return [i for i in incidents if i["severity"] != "info"]


@pytest.mark.usefixtures("incidents_alone")
@pytest.mark.parametrize("case", PATHOLOGIES, ids=lambda p: p.id)
def test_a_pathology_is_told(
    case: Pathology, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _, what = make_log(case, SEED, tmp_path)
    run = inspected(path, capsys)
    told = [i for i in alarms(run) if {i["kind"], *i["also"]} & set(case.kinds)]  # type: ignore[misc]
    assert told, f"{what}: {alarms(run)}"
    assert run["verdict"] == "incident"
    causes = told[0]["causes"]
    assert isinstance(causes, list)
    assert causes[0]["cause"] in case.causes


@pytest.mark.usefixtures("incidents_alone")
@pytest.mark.parametrize("case", TWINS, ids=lambda t: t.id)
def test_a_twin_is_silent(case: Twin, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _, what = make_log(case, SEED, tmp_path)
    found = [i for i in alarms(inspected(path, capsys)) if i["kind"] in SIGN_KINDS]
    assert not found, f"{what}: {found}"


@pytest.mark.parametrize(("base", "name"), FORMAT_CASES, ids=lambda x: str(x))
def test_a_format_is_read(base: str, name: str, tmp_path: Path) -> None:
    courses = BASES[base](np.random.default_rng(SEED), 60)
    path = tmp_path / file_name(base, name)
    path.write_text(log_text(courses, base, name), encoding="utf-8")
    record = read_run(path)
    assert record.num_rows == 60
    loads = {"expert_load_max", "dead_experts"}
    wanted = {loads.pop() if n.startswith("load:") and loads else n for n in courses}
    wanted = {n for n in wanted if not n.startswith("load:")}
    # A console line names the critic's loss by its path alone: it may be the loss of the run.
    assert wanted <= set(record.columns), wanted - set(record.columns)


@pytest.mark.slow
def test_a_run_that_is_watched_is_told_as_one_that_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = next(p for p in PATHOLOGIES if p.id == "entropy-collapse")
    path, _, _ = make_log(case, SEED, tmp_path)
    main(["watch", str(path), "--json", "--until-idle", "0.01", "--interval", "0.01"])
    said = capsys.readouterr().out
    assert "policy-collapse" in said
    assert "entropy-collapse" in json.dumps(inspected(path, capsys))


def test_the_load_of_single_experts_is_judged_by_layer(tmp_path: Path) -> None:
    courses = BASES["moe-loads"](np.random.default_rng(1), 40)
    courses["load:2:5"][:] = 0.0
    path = tmp_path / "run.jsonl"
    path.write_text(log_text(courses, "moe-loads", "jsonl"), encoding="utf-8")
    record = read_run(path)
    assert (record.columns["dead_experts"].values == 1).all()
    loads = np.array([courses[f"load:2:{e}"] for e in range(16)])
    largest = loads.max(axis=0) / loads.mean(axis=0)
    other = np.array([courses[f"load:1:{e}"] for e in range(16)])
    worst = np.maximum(largest, other.max(axis=0) / other.mean(axis=0))
    assert record.columns["expert_load_max"].values == pytest.approx(worst, rel=1e-4)


def test_the_worst_layer_is_the_signal(tmp_path: Path) -> None:
    rows = [
        {
            "step": k,
            "loss": 2.0,
            **{f"moe/layer_{i}/router_entropy": 2.0 - 0.1 * i for i in range(5)},
        }
        for k in range(1, 30)
    ]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    record = read_run(path)
    assert record.columns["router_entropy"].values == pytest.approx(1.6)
    assert any("router_entropy is the worst of 5" in note for note in record.notes)


def test_a_log_without_a_loss_is_judged_by_its_signals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(SEED)
    courses = BASES["rl"](rng, 200)
    del courses["loss"]
    courses["policy_entropy"][100:] *= 0.02
    path = tmp_path / "run.jsonl"
    path.write_text(log_text(courses, "rl", "nemo-rl"), encoding="utf-8")
    (found,) = alarms(inspected(path, capsys))
    assert found["kind"] == "policy-collapse"


def test_every_sign_reads_signals_and_names_causes_that_there_are() -> None:
    assert len(SIGN_BY_ID) == sum(map(len, DOMAIN_SIGNS.values()))
    for sign in SIGN_BY_ID.values():
        assert set(sign.signals) <= set(SIGNAL_BY_NAME)
        assert sign.kind in KIND_BY_NAME
        assert sign.causes
        assert set(sign.causes) <= set(CAUSE_BY_ID)
        assert sign.way in ("up", "down")


def test_every_row_of_the_table_has_a_rule_and_a_test(capsys: pytest.CaptureFixture[str]) -> None:
    rows = noun_rows()
    assert all(row.tests and row.signals and row.source for row in rows)
    assert all(row.rules for row in rows if not row.noun.startswith("keys of"))
    ids = {f"test_a_pathology_is_told[{p.id}]" for p in PATHOLOGIES}
    ids |= {f"test_a_format_is_read[{b}-{n}]" for b, n in FORMAT_CASES}
    assert {t.partition("::")[2] for row in rows for t in row.tests} <= ids
