"""Planners: what to launch next, and what the outcomes leave."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from trimtab.errors import ConfigError
from trimtab.plan.changes import Narrowing, change_set
from trimtab.plan.directions import Directions
from trimtab.plan.fake_sgd import check_fake_sgd
from trimtab.plan.fallback import plan_b
from trimtab.plan.hypotheses import (
    HYPOTHESES,
    aspect_ratio,
    edited,
    guided_test,
    in_cost_order,
    still_open,
)
from trimtab.plan.knobs import knob_ledger
from trimtab.plan.labels import METRICS, StepWindow, label_change
from trimtab.plan.machines import find_faulty
from trimtab.record import RecordBuilder, RunRecord

BY_ID = {h.id: h for h in HYPOTHESES}


# -- hypotheses -----------------------------------------------------------------------------


@pytest.mark.covers("S67")
def test_another_seed_is_two_launches_and_a_table() -> None:
    config = {"seed": "42", "lr": "6e-5"}
    test = guided_test(BY_ID["data"], config)
    control, other = test.launches
    assert (dict(control.settings), dict(control.changed)) == (config, {})
    assert dict(other.settings) == {"seed": "43", "lr": "6e-5"}
    assert dict(other.changed) == {"seed": ("42", "43")}
    said = {(a, b): text for a, b, text in test.verdicts}
    assert set(said) == set(itertools.product(("fails", "goes well"), repeat=2))
    assert "leave the window out" in said["fails", "goes well"]
    assert said["fails", "fails"] == "not the order of the data"


@pytest.mark.covers("S70")
@pytest.mark.covers("S71")
@pytest.mark.covers("S72")
def test_fp32_that_fails_too_takes_its_parts_off_the_list() -> None:
    assert guided_test(BY_ID["fp16"], {"dtype": "fp16"}).launches[1].settings["dtype"] == "fp32"
    parts = [h for h in in_cost_order() if h.within == "fp16"]
    assert {h.id for h in parts} == {"softmax", "attention", "loss-scale"}
    assert all(h.probe for h in parts)
    assert "not fp16" in BY_ID["fp16"].fails
    left = {h.id for h in still_open({"fp16": False})}
    assert not left & {"softmax", "attention", "loss-scale"}
    assert {h.id for h in still_open({"fp16": True})} >= {"softmax", "attention", "loss-scale"}


@pytest.mark.covers("S73")
def test_beta2_has_a_probe_and_says_when_it_can_be_changed() -> None:
    beta2 = BY_ID["beta2"]
    assert "second moment" in beta2.probe
    assert beta2.stage == "either"
    assert dict(beta2.change) == {"beta2": "0.95"}
    assert BY_ID["design"].stage == "from scratch"


@pytest.mark.covers("S74")
def test_aspect_ratio() -> None:
    assert aspect_ratio(11600, 64) == (181.25, "within 150 to 200")
    assert aspect_ratio(2048, 24)[1] == "below 150: deep"
    assert aspect_ratio(20480, 64)[1] == "above 200: wide"
    with pytest.raises(ConfigError):
        aspect_ratio(0, 4)


@pytest.mark.covers("S78")
def test_order_by_cost_and_prior_and_its_editing() -> None:
    whole = [h.id for h in in_cost_order() if not h.within]
    assert whole == ["data", "rate", "fp16", "beta2", "init", "design"]
    mine = edited({"beta2": {"cost": 0.1, "prior": 0.9}})
    assert next(h.id for h in in_cost_order(mine)) == "beta2"
    wrong: list[dict[str, dict[str, float]]] = [
        {"x": {}},
        {"data": {"prior": 2.0}},
        {"data": {"cost": 0}},
        {"data": {"c": 1.0}},
    ]
    for table in wrong:
        with pytest.raises(ConfigError):
            edited(table)


# -- machines -------------------------------------------------------------------------------


@pytest.mark.covers("S90")
def test_one_faulty_machine_of_124_is_found_in_7_probes_and_two_are_found() -> None:
    names = [f"n{i}" for i in range(124)]
    for bad in names:
        faulty, probes = find_faulty(names, lambda pool, bad=bad: bad in pool)  # type: ignore[misc]
        assert faulty == [bad]
        assert len(probes) - 1 <= 7  # the last one shows that the rest is sound
        assert not probes[-1][1]
    rng = np.random.default_rng(0)
    for _ in range(200):
        two = set(rng.choice(names, 2, replace=False).tolist())

        def fails(pool: Sequence[str], two: set[str] = two) -> bool:
            return not two.isdisjoint(pool)

        faulty, probes = find_faulty(names, fails)
        assert set(faulty) == two
        assert len(probes) <= 16


# -- changes --------------------------------------------------------------------------------


@pytest.mark.covers("S137")
def test_more_than_one_change_warns_and_one_does_not() -> None:
    parent = {"lr": "6e-5", "seed": "42", "clip": "1.0"}
    one = change_set(parent, {**parent, "seed": "43"})
    assert one.lints == ()
    two = change_set(parent, {**parent, "seed": "43", "clip": "0.3"})
    assert [x.id for x in two.lints] == ["several-changes"]
    assert "2 keys differ from the parent (clip, seed)" in two.lints[0].text


@pytest.mark.covers("S85")
def test_another_optimizer_at_the_same_rate_is_told() -> None:
    parent = {"optimizer": "adam", "lr": "1e-4"}
    assert [x.id for x in change_set(parent, {**parent, "optimizer": "sgd"}).lints] == [
        "optimizer-without-lr"
    ]
    both = change_set(parent, {"optimizer": "sgd", "lr": "0.1"})
    assert [x.id for x in both.lints] == ["several-changes"]


@pytest.mark.covers("S136")
def test_a_set_of_changes_gives_a_schedule_that_finds_those_to_blame() -> None:
    parent = {f"k{i}": "0" for i in range(9)}
    changes = change_set(parent, dict.fromkeys(parent, "1"))
    runs = changes.narrowing()
    assert [len(r) for r in runs.schedule()] == [4]
    assert changes.applied(runs.next_run) == {**parent, **dict.fromkeys(runs.next_run, "1")}
    for size in (1, 2, 3):
        for guilty in itertools.combinations(parent, size):
            runs = Narrowing(keys=tuple(parent))
            while runs.next_run:
                runs.report(failed=set(guilty) <= set(runs.next_run))
                assert runs.num_runs < 60
            assert set(runs.blamed) == set(guilty)
            if size == 1:
                assert runs.num_runs <= 5  # the last one confirms


# -- knobs and labels -----------------------------------------------------------------------


def run_with_toggles() -> RunRecord:
    rng = np.random.default_rng(0)
    builder = RecordBuilder("run", "trimtab")

    def attempt(
        number: str, settings: dict[str, str], level: float, norm: float, first: int
    ) -> None:
        builder.start_attempt(
            number=number,
            parent=None if first == 0 else "1.0",
            parent_step=None if first == 0 else float(first),
            settings=settings,
        )
        for step in range(first + 1, first + 101):
            builder.add(
                float(step),
                {
                    "loss": level + 0.01 * rng.normal(),
                    "grad_norm": norm * np.exp(0.1 * rng.normal()),
                },
            )

    base = {"clip": "1.0", "weight_decay": "0.1"}
    attempt("1.0", base, 2.0, 0.5, 0)
    attempt("1.1", {**base, "clip": "off"}, 2.3, 3.0, 100)
    attempt("1.2", {**base, "weight_decay": "0"}, 2.0, 0.5, 100)
    return builder.build()


@pytest.mark.covers("S92")
def test_the_ledger_holds_every_toggle_with_its_effect_on_four_metrics() -> None:
    clip, decay = knob_ledger(run_with_toggles())
    assert (clip.text, decay.text) == ("clip 1.0 to off", "weight_decay 0.1 to 0")
    assert set(clip.label.metrics) == set(decay.label.metrics) == set(METRICS)
    assert clip.label.overall == "worse"
    assert (clip.label.metrics["loss"], clip.label.metrics["grad norm"]) == ("worse", "worse")
    assert decay.label.overall == "unclear"
    assert clip.label.figures["grad norm"][1] == pytest.approx(3.0, rel=0.1)


@pytest.mark.covers("S262")
def test_labels() -> None:
    calm = StepWindow(losses=[2.0, 2.01] * 16, norms=[0.2] * 32)
    assert label_change(calm, calm).overall == "unclear"
    broken = dataclasses.replace(calm, losses=[float("nan")] * 32)
    assert label_change(calm, broken).overall == "worse"
    assert label_change(broken, calm).overall == "better"
    solved = StepWindow(losses=[2.0, 2.2] * 8, norms=[0.3] * 16)
    trouble = StepWindow(losses=[8.0, 8.1] * 8, norms=[9.0] * 16, alarms=1)
    assert label_change(trouble, solved).overall == "better"  # its spread alone is worse
    assert label_change(StepWindow(losses=[9.0] * 3, norms=[1.0] * 3), calm).overall == "unclear"
    louder = dataclasses.replace(calm, norms=[1.0] * 32)
    assert label_change(calm, louder).overall == "unclear"  # one metric alone, and not the loss
    assert label_change(calm, dataclasses.replace(louder, alarms=2)).overall == "worse"


# -- directions, plan B, fake SGD -----------------------------------------------------------


@pytest.mark.covers("S261")
def test_drastic_first_then_the_interval_is_halved() -> None:
    search = Directions("lr", 1e-3)
    assert [p.factor for p in search.next_probes] == [4.0, 0.25]
    best, rounds, widths = 1.9e-4, 0, []
    while search.next_probes:
        loss = {p.value: abs(np.log(p.value / best)) for p in search.next_probes}
        widths.append(search.next_probes[0].factor)
        search.report(loss, here=float(abs(np.log(search.value / best))))
        rounds += 1
    assert widths == pytest.approx([4.0, 2.0, 2**0.5])
    assert rounds == 3
    assert search.value == pytest.approx(best, rel=0.25)
    worse = Directions("warmup", 100.0)
    worse.report({400.0: float("nan"), 25.0: float("inf")}, here=2.0)
    assert worse.value == 100.0
    with pytest.raises(ConfigError):
        Directions("lr", 0.0)


@pytest.mark.covers("S134")
def test_the_deadline_triggers_the_published_settings() -> None:
    def advice(days: float, goodput: float) -> str:
        return plan_b(
            days_left=days,
            tokens_left=250e9,
            tokens_per_day=8e9,
            goodput=goodput,
            plan_b_tokens=300e9,
        ).advice

    assert advice(60, 0.9) == "go on"
    assert advice(60, 0.4) == "switch"
    assert advice(60, 0.0) == "switch"
    assert advice(30, 0.4) == "too late"
    found = plan_b(
        days_left=60, tokens_left=250e9, tokens_per_day=8e9, goodput=0.4, plan_b_tokens=300e9
    )
    assert found.switch_within_days == pytest.approx(54 - 300 / 7.2)
    assert "adopt them within 12 days" in found.text
    with pytest.raises(ConfigError):
        advice(float("nan"), 0.5)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.covers("S84")
def test_fake_sgd_takes_sgds_step_and_says_when_it_is_not_in_force() -> None:
    torch = pytest.importorskip("torch")
    wanted = {"beta1": 0.0, "eps": 100.0, "lr": 0.01 * 100}
    weights = torch.randn(64, generator=torch.Generator().manual_seed(0))
    gradient = 0.3 * torch.randn(64, generator=torch.Generator().manual_seed(1))

    def step(kind: object, **settings: object) -> object:
        parameter = torch.nn.Parameter(weights.clone())
        parameter.grad = gradient.clone()
        kind([parameter], **settings).step()  # type: ignore[operator]
        return parameter.detach() - weights

    adam = step(torch.optim.Adam, lr=wanted["lr"], betas=(0.0, 0.999), eps=wanted["eps"])
    sgd = step(torch.optim.SGD, lr=0.01)
    found = check_fake_sgd(wanted, wanted, grad_rms=float(gradient.square().mean().sqrt()))
    assert found.effective
    assert found.rate == pytest.approx(0.01)
    # bias correction leaves sqrt(v) = |g|: an element is off by |g| / (|g| + 100)
    off = float((adam - sgd).norm() / sgd.norm())  # type: ignore[operator,attr-defined]
    assert off <= 0.01
    assert found.gap <= 0.01
    loaded = {**wanted, "eps": 1e-8}  # a checkpoint brought the old eps back
    silent = check_fake_sgd(wanted, loaded, grad_rms=1.0)
    assert not silent.effective
    assert "not effective" in silent.warnings[0]
    with pytest.raises(ConfigError):
        check_fake_sgd({}, wanted, grad_rms=1.0)
