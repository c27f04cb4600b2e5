"""Branches that separate causes, on real training: what each fault looks like in the table."""

import dataclasses
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.guard import crowd, small_lab
from tests.guard.small_lab import SOUND, Outcome, bad_data, bad_lr, guarded
from tests.guard.tiny import events_of, rows_of
from trimtab.cli import main
from trimtab.guard import Guard
from trimtab.guard.recovery.values import JobNoise
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import Text
from trimtab.lab.train import Parts
from trimtab.plan.knobs import knob_ledger
from trimtab.plan.labels import METRICS
from trimtab.readers.rundir import read_run_directory

pytestmark = pytest.mark.torch

STEPS, FAULT = 190, 120


def short(scenario: Scenario, **changes: Any) -> Scenario:
    return dataclasses.replace(scenario, steps=STEPS, **changes)


@pytest.fixture(scope="module")
def text() -> Text:
    return small_lab.make_text()


def bisected(scenario: Scenario, text: Text, run: Path, **settings: Any) -> Outcome:
    policy = {
        "bisect": "always",
        "trial_steps": 24,
        "patience_steps": 4,
        "healing_steps": 0,
        "max_wasted_share": 4.0,
        "verify_steps": 16,
        "cooldown_steps": 16,
    }
    return guarded(scenario, text, run, **{**policy, **settings})


def table_of(run: Path) -> dict[str, Any]:
    """The comparison that the first incident ended with."""
    found = next(e for e in events_of(run, "decision") if e.data["what"] == "compare the trials")
    return dict(found.data)


def rows_by_name(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {r["name"]: r for r in table["table"]}


def remedies(o: Outcome) -> list[object]:
    return [a["remedy"] for a in o.guard.actions]


@pytest.mark.slow
@pytest.mark.covers("S76")
@pytest.mark.covers("S258")
def test_bad_data_fails_from_an_older_state_too_and_nothing_else(
    tmp_path: Path, text: Text, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    o = bisected(short(bad_data(FAULT, 10)), text, run)
    table = table_of(run)
    assert table["cells"] == {
        "same data, same state": False,
        "other data, same state": True,
        "same data, other state": False,
        "other data, other state": True,
    }
    assert (table["suspect"], table["repeat"]) == ("bad data", "bit-equal")
    rows = rows_by_name(table)
    control = table["table"][0]
    assert (control["name"], control["arms"], control["effect"]) == ("as it was", ["replay"], None)
    skip = next(r for r in rows.values() if r["arms"] == ["other-data"])
    assert skip["label"] == "better"
    assert skip["low"] <= skip["effect"] <= skip["high"] < 0
    assert table["kept"] == skip["name"]
    assert remedies(o)[0] == "roll-back+skip-data"
    assert o.guard.lr_factor == 1.0
    assert main(["chronicle", str(run)]) == 0
    page = capsys.readouterr().out
    assert "decided: compare the trials" in page
    assert ": bad data" in page
    assert "  - evidence: as it was: failed; loss" in page


@pytest.fixture(scope="module")
def wrong_rate(text: Text, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    run = tmp_path_factory.mktemp("rate") / "run"
    return bisected(short(bad_lr(FAULT, 30.0)), text, run), run


@pytest.mark.slow
def test_a_wrong_rate_is_the_state_and_a_lower_one_is_kept(
    wrong_rate: tuple[Outcome, Path],
) -> None:
    o, run = wrong_rate
    table = table_of(run)
    assert (table["suspect"], table["repeat"]) == ("state", "bit-equal")
    kept = rows_by_name(table)[table["kept"]]
    assert kept["arms"] == ["lower-lr"]
    assert (kept["held"], kept["label"]) == (True, "better")
    assert remedies(o) == ["roll-back+lower-lr"]
    assert o.guard.skipped_samples == ()


class Planted:
    """A fault in the model that knows at which step of which guard it is."""

    def __init__(self, step: int) -> None:
        self.step, self.done = step, False
        self.guard: Guard | None = None

    def know(self, guard: Guard, loss: Tensor) -> Tensor:
        self.guard = guard
        return loss

    @property
    def now(self) -> int:
        return 0 if self.guard is None else self.guard.step_number + 1


class BitFlip(Planted):
    """One weight set to a huge value, once: in the run, and not in a replay."""

    def prepare(self, parts: Parts) -> None:
        parts.model.register_forward_pre_hook(self.flip)

    def flip(self, module: torch.nn.Module, _inputs: Any) -> None:
        if self.now == self.step and not self.done:
            self.done = True
            with torch.no_grad():
                dict(module.named_parameters())["blocks.0.up.weight"][0, 0] = 1e4


class Overflow(Planted):
    """From a step on an activation is scaled up and down: the same in fp32, too much for fp16."""

    def prepare(self, parts: Parts) -> None:
        linear = next(m for m in parts.model.modules() if isinstance(m, torch.nn.Linear))
        linear.register_forward_hook(self.scale)

    def scale(self, _module: Any, _inputs: Any, output: Tensor) -> Tensor:
        return output * 6e4 * 1e3 / 6e4 / 1e3 if self.now >= self.step else output


@pytest.mark.slow
@pytest.mark.parametrize("bisect", ["when-stuck", "always"])
def test_a_flipped_bit_does_not_come_back_and_nothing_is_changed(
    tmp_path: Path, text: Text, bisect: str
) -> None:
    run = tmp_path / "run"
    fault = BitFlip(FAULT)
    o = bisected(short(SOUND), text, run, prepare=fault.prepare, spoil=fault.know, bisect=bisect)
    table = table_of(run)
    assert (table["suspect"], table["repeat"]) == ("transient", "different")
    assert table["kept"] == "as it was"
    assert remedies(o) == ["roll-back"]
    assert (o.guard.skipped_samples, o.guard.lr_factor) == ((), 1.0)
    explained = next(e for e in events_of(run, "incident") if e.data["state"] == "explained")
    (first, *_) = explained.data["causes"]
    assert first["cause"] == "happened-once"  # no rank differs: the script may have done it
    assert first["confidence"] < 0.9
    clean = bisected(short(SOUND), text, tmp_path / "clean")
    assert o.validation == clean.validation  # bit for bit as if it had not happened


class Blurred(BitFlip):
    """The same in a job that repeats no step: its weights are shaken from outside of all states."""

    def __init__(self, step: int, size: float) -> None:
        super().__init__(step)
        self.size, self.dice = size, random.SystemRandom()

    def flip(self, module: torch.nn.Module, inputs: Any) -> None:
        super().flip(module, inputs)
        with torch.no_grad():
            bias = module.get_parameter("blocks.0.up.weight")
            bias.add_(self.size * self.dice.random())


@pytest.mark.slow
def test_replay_counts_against_the_noise_of_the_job(tmp_path: Path, text: Text) -> None:
    run = tmp_path / "run"
    fault = Blurred(FAULT, 1e-6)
    o = bisected(
        short(SOUND), text, run, prepare=fault.prepare, spoil=fault.know, bisect="when-stuck"
    )
    decisions = [e.data for e in events_of(run, "decision")]
    measured = [d for d in decisions if d["what"].startswith("measure how far")]
    assert len(measured) == 1  # once in a process
    assert measured[0]["why"].startswith("3 replays of")
    assert measured[0]["why"].endswith("far less than the trouble")
    assert table_of(run)["suspect"] == "transient"
    assert remedies(o) == ["roll-back"]
    noise = JobNoise(spread=1e-3, apart=0.5)  # what is gone back to is not the whole state
    assert [noise.is_far_below(size) for size in (1.0, 5.0)] == [False, True]
    tried = next(d for d in decisions if d["what"] == "try as it was")
    assert tried["why"].startswith("expected steps lost: ")
    assert {"name", "chance", "otherwise", "lost"} <= tried["sum"][0].keys()
    assert tried["sum"][-1]["name"] == "leave it"


@pytest.mark.covers("S70")
@pytest.mark.slow
def test_what_overflows_in_fp16_goes_well_in_fp32_and_bf16_is_kept(
    tmp_path: Path, text: Text
) -> None:
    run = tmp_path / "run"
    fault = Overflow(FAULT)
    o = bisected(
        short(SOUND, precision="fp16"),
        text,
        run,
        prepare=fault.prepare,
        spoil=fault.know,
        bisect="when-stuck",
    )
    table = table_of(run)
    rows = rows_by_name(table)
    assert table["precision"] == "fp16"
    assert (rows["in fp32"]["held"], rows["in bf16"]["held"]) == (True, True)
    assert rows["in fp32"]["label"] == "better"
    assert not table["table"][0]["held"]
    assert table["kept"] == "in bf16"  # the cheaper of the two
    assert remedies(o) == ["skip-update", "roll-back+bf16"]
    last = rows_of(run, table_attempt(run))[-1]
    assert last["step"] == STEPS
    assert "loss_scale" not in last
    assert last["loss"] < 2.5


def table_attempt(run: Path) -> str:
    return str(events_of(run, "action")[-1].data["kept_attempt"])


@pytest.mark.slow
@pytest.mark.covers("S70")
@pytest.mark.covers("S71")
def test_a_wrong_rate_fails_in_fp32_too_and_numerics_are_not_looked_at(
    tmp_path: Path, text: Text
) -> None:
    run = tmp_path / "run"
    bisected(short(bad_lr(FAULT, 30.0), precision="fp16"), text, run)
    table = table_of(run)
    assert table["precision"] == "not fp16"
    assert table["pruned"] == ["softmax", "attention", "loss scale"]
    assert "not fp16; no need to look at softmax, attention, loss scale" in table["why"]
    tried = [r["arms"] for r in table["table"]]
    assert ["fp32"] in tried
    assert ["bf16"] not in tried


@pytest.mark.slow
@pytest.mark.covers("S77")
def test_data_that_is_bad_to_the_end_is_told_as_inconclusive(tmp_path: Path, text: Text) -> None:
    run = tmp_path / "run"
    # The batches that the yardstick would take from the end of the data are bad, too.
    o = bisected(
        short(bad_data(FAULT, 400)),
        text,
        run,
        max_rollbacks=1,
        lr_factors=(0.5,),
        yardstick_share=0,
    )
    table = table_of(run)
    assert table["suspect"] == "inconclusive"
    assert table["kept"] is None
    labels = {r["label"] for r in table["table"] if r["effect"] is not None}
    assert "inconclusive" in labels
    for row in table["table"]:
        if row["label"] == "inconclusive":
            assert not row["low"] > 0
            assert not row["high"] < 0
    assert o.guard.lr_factor == 1.0


@pytest.mark.covers("S267")
def test_branches_have_parent_and_tag_and_are_not_in_the_main_lineage(
    wrong_rate: tuple[Outcome, Path],
) -> None:
    _, run = wrong_rate
    kept = table_attempt(run)
    trials = [e for e in events_of(run, "attempt") if e.data["trial"]]
    assert {e.data["tag"] for e in trials} >= {"replay", "other-data", "other-state", "lower-lr"}
    assert all(e.data["parent"] for e in trials)
    record = read_run_directory(run)
    names = [record.attempts[i].number for i in record.attempt[record.lineage_rows()]]
    assert set(names) == {"1.0", kept}
    steps = record.step[record.lineage_rows()]
    assert list(steps) == list(range(1, STEPS + 1))  # each step once


@pytest.mark.covers("S92")
def test_the_trials_of_a_run_are_toggles_with_their_effect_on_four_metrics(
    wrong_rate: tuple[Outcome, Path],
) -> None:
    toggles = knob_ledger(read_run_directory(wrong_rate[1]))
    by_key = {t.keys: t for t in toggles}
    assert set(by_key) >= {("skip_samples",), ("lr_limit",)}
    assert all(set(t.label.metrics) == set(METRICS) for t in toggles)
    losses = {key: t.label.figures["loss"] for key, t in by_key.items()}
    before, after = losses["lr_limit",]
    assert after < 0.8 * before  # the parent, at the same steps, had begun to fail
    assert losses["skip_samples",][1] > after  # leaving data out did less


def flip_on_every_rank(crew: crowd.Crew, step: int) -> None:
    """The same weight of all ranks, once; a replay finds it as it was."""
    if step == 90 and not getattr(crew, "flipped", False):
        crew.flipped = True  # type: ignore[attr-defined]
        with torch.no_grad():
            crew.model.module.output.weight[0, 0] = 1e4  # type: ignore[union-attr,operator]


def spoil_from(first: int, count: int, crew: crowd.Crew, sample: int, batch: Tensor) -> Tensor:
    """Random tokens on the last rank only, in `count` samples from `first` on."""
    if first <= sample < first + count and crew.rank == torch.distributed.get_world_size() - 1:
        generator = torch.Generator().manual_seed(sample)
        return torch.randint(0, 13, batch.shape, generator=generator)
    return batch


@pytest.mark.slow
def test_bad_data_on_one_of_two_sharded_ranks_makes_one_table(tmp_path: Path) -> None:
    job = crowd.Job(
        layout="fsdp",
        steps=270,
        mode="act",
        spoil_batch=partial(spoil_from, 220 * 8, 20 * 8),
        lr=1e-2,
        policy={"bisect": "always", "checkpoint_every_steps": 50, "max_wasted_share": 4.0},
    )
    assert crowd.run_crowd(tmp_path, 2, job, timeout_s=600) == [0, 0]
    table = table_of(tmp_path / "run")
    assert (table["suspect"], table["repeat"]) == ("bad data", "bit-equal")
    first, second = crowd.outcome(tmp_path, 0), crowd.outcome(tmp_path, 1)
    assert first["actions"] == second["actions"] == ["roll-back+skip-data"]
    assert first["skips"] == second["skips"]
    assert events_of(tmp_path / "run", "fault") == []


@pytest.mark.slow
def test_two_ranks_reach_one_verdict_over_the_same_table(tmp_path: Path) -> None:
    job = crowd.Job(
        layout="ddp",
        steps=140,
        mode="act",
        spoil=flip_on_every_rank,
        policy={"bisect": "always", "trial_steps": 24, "patience_steps": 4, "healing_steps": 0},
    )
    assert crowd.run_crowd(tmp_path, 2, job, timeout_s=600) == [0, 0]
    table = table_of(tmp_path / "run")
    assert (table["suspect"], table["kept"]) == ("transient", "as it was")
    first, second = crowd.outcome(tmp_path, 0), crowd.outcome(tmp_path, 1)
    assert first["actions"] == second["actions"] == ["roll-back"]
    assert events_of(tmp_path / "run", "fault") == []
    assert all(torch.equal(a, second["model"][name]) for name, a in first["model"].items())
