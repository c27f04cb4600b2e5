"""`verdict` in `verdict.json`: that of a run that is done is what its directory gets offline."""

import json
import math
from pathlib import Path

import pytest
from torch import Tensor

import trimtab
from tests.guard.tiny import guard_of, make, train_guarded
from trimtab.analysis.assemble import events_of, make_account
from trimtab.readers import read_run

pytestmark = pytest.mark.torch


def verdict_of(run: Path) -> str:
    return str(json.loads((run / "verdict.json").read_text(encoding="utf-8"))["verdict"])


@pytest.mark.parametrize("mode", [pytest.param("observe", marks=pytest.mark.slow), "act"])
def test_verdict_of_a_calm_run_is_that_of_its_directory(tmp_path: Path, mode: str) -> None:
    s = make()
    train_guarded(s, guard_of(s, tmp_path / "run", steps=360, mode=mode))
    assert verdict_of(tmp_path / "run") == trimtab.analyze(tmp_path / "run").verdict == "healthy"


def test_verdict_of_a_run_whose_weights_end_as_nan_is_that_it_ended_badly(tmp_path: Path) -> None:
    s = make()

    def spoil(_: object, batch: Tensor) -> None:
        del batch
        if guard.step_number >= 30:
            with_nan = next(iter(s.model.parameters()))
            with_nan.data.fill_(math.nan)

    guard = guard_of(s, tmp_path / "run", steps=60, mode="observe")
    train_guarded(s, guard, on_batch=spoil)
    analysis = trimtab.analyze(tmp_path / "run")
    assert verdict_of(tmp_path / "run") == analysis.verdict == "ended-badly"
    assert [i.kind for i in analysis.incidents if i.severity == "critical"] == ["non-finite"]


def test_verdict_of_a_few_steps_is_not_judged(tmp_path: Path) -> None:
    s = make()
    train_guarded(s, guard_of(s, tmp_path / "run", steps=5, mode="observe"))
    assert verdict_of(tmp_path / "run") == trimtab.analyze(tmp_path / "run").verdict
    assert verdict_of(tmp_path / "run") == "not-judged"


def test_the_last_line_the_verdict_and_the_directory_tell_of_the_same(tmp_path: Path) -> None:
    run, s, said = tmp_path / "run", make(num_samples=800), list[str]()
    guard = guard_of(s, run, steps=160, mode="observe", say=said.append)
    for batch in guard:
        step = guard.step_number + 1
        if step == 40:
            s.model.hidden.requires_grad_(requires_grad=False)
        s.optimizer.param_groups[0]["lr"] = 0.3 if 80 <= step < 90 else 0.01
        guard.backward(s.loss(batch))
        guard.step()
    document = json.loads((run / "verdict.json").read_text(encoding="utf-8"))
    account = trimtab.analyze(run)
    open_ones = [i for i in account.incidents if i.is_open_alarm]
    assert open_ones
    assert document["verdict"] == account.verdict == "incident"
    assert [i["headline"] for i in document["incidents"]] == [i.headline for i in open_ones]
    assert document["incidents"][0].keys() == {"kind", "step", "headline"}
    assert f" {len(open_ones)} incident" in said[-1]
    (frozen,) = [told for told in document["unannounced"] if told.startswith("requires_grad")]
    assert frozen.endswith("at step 40")
    assert frozen in said[-1]
    told = make_account(read_run(run), events=events_of(run), self_test=False).notes
    assert any(frozen in note for note in told)
