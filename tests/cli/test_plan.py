"""`trimtab plan`: each kind prints what to do next, and one JSON document when asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli import main

SCRIPT = "--seed 42 --lr 6e-5 --fp16 --hidden-size 11600 --num-layers 64 --adam-beta2 0.999\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "launch.sh"
    path.write_text(SCRIPT)
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["plan", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    found = json.loads(said(capsys, *arguments, "--json"))
    assert found["schema"] == 1
    return dict(found)


def failed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["plan", *map(str, arguments)]) == 2
    return capsys.readouterr().err


@pytest.mark.covers("S74")
@pytest.mark.covers("S78")
def test_causes_in_order_with_the_shape(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    found = document(capsys, "causes", config)
    assert [h["id"] for h in found["left"] if not h["within"]] == [
        "data",
        "fp16",
        "rate",
        "beta2",
        "init",
        "design",
    ]
    assert found["shape"] == "width / depth: 11600 / 64 = 181.2, within 150 to 200"
    costs = tmp_path / "costs.toml"
    costs.write_text("[design]\ncost = 0.1\n")
    found = document(capsys, "causes", config, "--costs", costs)
    assert found["left"][0]["id"] == "design"
    costs.write_text("design = 3\n")
    assert "is no table" in failed(capsys, "causes", config, "--costs", costs)


@pytest.mark.covers("S71")
def test_what_an_outcome_rules_out_is_left_out(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    text = said(capsys, "causes", config, "--outcome", "data=fails", "--outcome", "fp16=fails")
    assert "not fp16: no need to look at softmax, attention and loss scale" in text
    assert "softmax in half precision" not in text
    assert "expected NAME=well or NAME=fails" in failed(
        capsys, "causes", config, "--outcome", "data"
    )


@pytest.mark.covers("S67")
def test_a_guided_test_prints_two_configs_and_a_table(
    capsys: pytest.CaptureFixture[str], config: Path
) -> None:
    found = document(capsys, "causes", config, "--test", "data")
    control, other = found["launches"]
    assert (control["settings"]["seed"], other["settings"]["seed"]) == ("42", "43")
    assert len(found["verdicts"]) == 4
    beta2 = document(capsys, "causes", config, "--test", "beta2")["launches"][1]
    assert beta2["changed"] == {"adam-beta2": ["0.999", "0.95"]}
    assert "is none of" in failed(capsys, "causes", config, "--test", "x")


@pytest.mark.covers("S136")
@pytest.mark.covers("S137")
def test_changes_and_their_schedule(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    child = tmp_path / "child.sh"
    child.write_text(SCRIPT.replace("42", "43").replace("6e-5", "3e-5").replace("0.999", "0.95"))
    found = document(capsys, "changes", config, child)
    assert [c["key"] for c in found["changes"]] == ["adam-beta2", "lr", "seed"]
    assert [x["id"] for x in found["lints"]] == ["several-changes"]
    first = found["schedule"][0]
    found = document(capsys, "changes", config, child, "--outcome", f"{','.join(first)}=well")
    assert found["schedule"][0] != first
    assert "the next run of the schedule changes" in failed(
        capsys, "changes", config, child, "--outcome", "x=well"
    )
    assert "no key differs" in said(capsys, "changes", config, config)


@pytest.mark.covers("S135")
def test_a_config_that_matches_an_earlier_run_differs_in_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.toml").write_text('clip = 1.0\nseed = 3\ndata_order = "d4c5"\n')
    same = tmp_path / "same.yaml"
    same.write_text("seed: 3\ndata_order: d4c5\nclip: 1\n")
    assert document(capsys, "match", run, same) == {"schema": 1, "matches": True, "changes": []}
    assert "no key differs" in said(capsys, "match", run, same)
    same.write_text("seed: 4\nclip: 1\nlr: 1.0e-4\n")
    assert not document(capsys, "match", run, same)["matches"]
    text = said(capsys, "match", run, same)
    assert "set seed to 3, it is 4" in text
    assert "set data_order to d4c5, it is not stated" in text
    assert "take lr out, it is 0.0001" in text


@pytest.mark.covers("S90")
def test_machines_are_halved(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes: list[str] = []
    while True:
        found = document(capsys, "machines", "n0-n123", *outcomes)
        if not found["next_pool"]:
            break
        outcomes += ["--outcome", "fails" if "n77" in found["next_pool"] else "well"]
    assert found["faulty"] == ["n77"]
    assert found["num_probes"] <= 8
    assert "named twice" in failed(capsys, "machines", "a", "a")


def test_direction_fallback_and_fake_sgd(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "direction", "lr", "1e-4", "--round", "3.9,2.4,2.6")
    assert found["value"] == pytest.approx(2.5e-5)
    assert [p["factor"] for p in found["probes"]] == [2.0, 0.5]
    found = document(capsys, "direction", "lr", "1e-4", "--round", "nan,nan,2.6")
    assert found["value"] == pytest.approx(1e-4)
    assert "expected three losses" in failed(capsys, "direction", "lr", "1", "--round", "1,2")
    numbers = ["--days-left", 60, "--tokens-left", 250e9, "--tokens-per-day", 8e9, "--goodput", 0.4]
    found = document(capsys, "fallback", *numbers, "--plan-b-tokens", 300e9)
    assert found["advice"] == "switch"
    found = document(capsys, "fake-sgd", "--wanted", "0,100,1", "--grad-rms", 0.01)
    assert found["effective"]
    text = said(capsys, "fake-sgd", "--wanted", "0,100,1", "--held", "0,1e-8,1", "--grad-rms", 0.01)
    assert "not effective" in text


@pytest.mark.covers("S92")
def test_knobs_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "signals").mkdir(parents=True)
    events = []
    for number, clip, level in (("1.0", "1.0", 2.0), ("1.1", "off", 3.0)):
        parent = None if number == "1.0" else "1.0"
        first = 0 if parent is None else 40
        events.append(
            {
                "t": "2026-01-01T00:00:00",
                "event": "attempt",
                "attempt": number,
                "step": first,
                "number": number,
                "parent": parent,
                "parent_step": first or None,
                "why": "",
                "trial": False,
                "settings": {"clip": clip},
            }
        )
        rows = [
            {"step": s, "loss": level + 0.01 * (s % 3), "grad_norm": level}
            for s in range(first + 1, first + 41)
        ]
        (run / "signals" / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (run / "journal.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    (toggle,) = document(capsys, "knobs", run)["toggles"]
    assert toggle["changes"] == [{"key": "clip", "was": "1.0", "now": "off"}]
    assert set(toggle["metrics"]) == {"loss", "loss spread", "grad norm", "alarms"}
    assert toggle["label"] == "worse"
    assert "clip 1.0 to off" in said(capsys, "knobs", run)


def _run_of_attempts(run: Path, turned: list[tuple[str, int, dict[str, str], float]]) -> None:
    """Write a run: (attempt, step it went back to, settings, level of its loss), each the next's
    parent; every attempt has 40 steps."""
    (run / "signals").mkdir(parents=True)
    events: list[dict[str, object]] = []
    for number, back_to, settings, level in turned:
        parent = events[-1]["number"] if events else None
        event = {"t": "2026-01-01T00:00:00", "event": "attempt", "attempt": number, "step": back_to}
        events.append(
            event
            | {"number": number, "parent": parent, "parent_step": back_to or None, "why": ""}
            | {"trial": False, "settings": settings}
        )
        rows = [
            {"step": s, "loss": level + 0.01 * (s % 3), "grad_norm": level}
            for s in range(back_to + 1, back_to + 41)
        ]
        (run / "signals" / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (run / "journal.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")


@pytest.mark.covers("S228")
def test_knobs_are_five_each_with_its_last_outcome(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = {"lr": "1e-3", "max_grad_norm": "1.0", "optim.weight_decay": "0.1", "adam_beta2": ".99"}
    lower = first | {"lr": "5e-4"}
    decay = lower | {"optim.weight_decay": "0.01"}
    clip = decay | {"max_grad_norm": "0.5"}
    _run_of_attempts(
        tmp_path / "run",
        [
            ("1.0", 0, first, 3.0),
            ("1.1", 40, lower, 2.0),  # goes on where the first ended: no roll-back
            ("1.2", 80, decay, 3.0),
            ("1.3", 100, clip, 2.0),  # from the midst of its parent
            ("1.4", 140, clip | {"lr": "1e-4"}, 2.0),
        ],
    )
    menu = {k["knob"]: k for k in document(capsys, "knobs", tmp_path / "run")["menu"]}
    assert list(menu) == [
        *("roll-back", "learning-rate", "gradient-clip", "weight-decay", "adam-beta2")
    ]
    told = {k: (v["attempt"], v["label"], v["with_others"]) for k, v in menu.items()}
    assert told == {
        "roll-back": ("1.3", "better", True),
        "learning-rate": ("1.4", "unclear", False),
        "gradient-clip": ("1.3", "better", True),
        "weight-decay": ("1.2", "worse", False),
        "adam-beta2": (None, None, False),
    }
    assert menu["learning-rate"]["change"] == "lr 5e-4 to 1e-4"
    assert menu["adam-beta2"]["worked_elsewhere"] == ["BLOOM-176B"]
    text = said(capsys, "knobs", tmp_path / "run")
    assert "weight decay   worse: 1.2 against 1.1, optim.weight_decay 0.1 to 0.01;" in text
    assert "Adam's beta2   not turned; elsewhere it worked for BLOOM-176B" in text


def test_knobs_leave_out_a_resume_that_nobody_chose_and_an_attempt_that_is_its_own_parent(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    _run_of_attempts(run, [("1.0", 0, {}, 3.0), ("1.1", 20, {}, 2.0), ("1.2", 40, {}, 2.0)])
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    events[2] |= {"why": "resumed after a stop", "parent_step": 30}
    (run / "journal.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    (back, *_) = document(capsys, "knobs", run)["menu"]
    assert (back["knob"], back["attempt"], back["change"]) == ("roll-back", "1.1", "to step 20")
    events[1]["parent"] = "1.1"
    (run / "journal.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")
    (back, *_) = document(capsys, "knobs", run)["menu"]
    assert back["attempt"] is None


def test_knobs_of_a_run_of_one_attempt_tell_what_is_known_elsewhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _run_of_attempts(tmp_path / "run", [("1.0", 0, {}, 2.0)])
    assert [k["label"] for k in document(capsys, "knobs", tmp_path / "run")["menu"]] == [None] * 5
    assert said(capsys, "knobs", tmp_path / "run").count("not turned; elsewhere it") == 5


def test_what_a_guard_of_seven_billion_weights_holds(capsys: pytest.CaptureFixture[str]) -> None:
    size = ("guard", "--params", "7e9", "--optimizer", "adamw", "--world", "64")
    text = said(capsys, *size, "--step-seconds", "2")
    assert text.startswith("7e+09 weights, adamw, 64 ranks: 16 of 16 snapshots fit in host memory")
    assert "one snapshot      1.31 GB a rank" in text
    assert "0.72% of the time with steps of 2 s" in text
    assert "assumed: 2 numbers of 4 bytes of optimizer state" in text

    run = document(capsys, *size)["runs"][0]
    assert run["snapshot"] == pytest.approx(7e9 * 12 / 64, rel=1e-3)
    assert run["share_of_step"] is None
    half = document(capsys, *size, "--trainable", "0.5")["runs"][0]
    assert half["held_once"] == pytest.approx(3.5e9 * 2 / 64)
    assert half["snapshot"] == pytest.approx(run["snapshot"] / 2, rel=1e-3)


def test_fewer_snapshots_fit_a_smaller_host_and_none_a_tiny_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = document(capsys, "guard", "--host-free-gib", "200", "--world", "256")["runs"]
    assert [run["params"] for run in sizes] == [7e9, 70e9, 175e9]
    kept = [run["kept"] for run in sizes]
    assert kept[0] == 16 > kept[1] > kept[2] >= 1
    assert all(run["memory"] <= run["budget"] for run in sizes)
    none = said(capsys, "guard", "--params", "175e9", "--world", "8", "--replicated")
    assert "no snapshot fits: act refuses to start" in none
    assert "sharded over all ranks" not in none
    spilled = document(capsys, "guard", "--world", "256", "--host-free-gib", "200", "--spill")
    assert [run["kept"] for run in spilled["runs"]] == [16, 16, 16]


def test_a_guard_of_an_impossible_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "world is 0, expected" in failed(capsys, "guard", "--world", "0")
    assert "trainable is 2.0" in failed(capsys, "guard", "--trainable", "2")
    assert "--step-seconds is -1.0" in failed(capsys, "guard", "--step-seconds", "-1")


@pytest.mark.covers("S91")
def test_one_change_of_five_is_named_after_three_runs_and_an_interaction_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("lr", "seed", "clip_grad", "weight_decay", "warmup")
    for name, value in (("was", 1), ("now", 2)):
        (tmp_path / f"{name}.yaml").write_text("".join(f"{k}: {value}\n" for k in keys))
    paths = (tmp_path / "was.yaml", tmp_path / "now.yaml")
    for guilty in ({"lr"}, {"clip_grad"}, {"warmup"}, {"lr", "warmup"}):
        outcomes: list[str] = []
        named_after = None
        while (found := document(capsys, "changes", *paths, *outcomes))["schedule"]:
            if named_after is None and len(found["blamed"]) == 1:
                named_after = len(outcomes) // 2
            run = found["schedule"][0]
            went = "fails" if guilty <= set(run) else "well"
            outcomes += ["--outcome", f"{','.join(run)}={went}"]
        assert set(found["blamed"]) == guilty
        if len(guilty) == 1:
            assert (named_after or len(outcomes) // 2) <= 3
        else:
            assert "none does it alone" in said(capsys, "changes", *paths, *outcomes)
