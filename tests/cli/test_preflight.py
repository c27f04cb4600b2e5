"""`trimtab preflight`, run as a person runs it."""

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli import main

_SCRIPT = """#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py \\
  --num-layers 64 --hidden-size 11600 --num-attention-heads 80 --seq-length 2048 --max-position-embeddings 2048 \\
  --lr 6.0e-5 --min-lr 6.0e-6 --lr-warmup-iters 2000 --train-iters 100000 --global-batch-size 2048 --micro-batch-size 1 \\
  --adam-beta1 0.9 --adam-beta2 {beta2} --adam-eps 1e-8 --weight-decay 0.1 --clip-grad 1.0 --init-method-std {std} \\
  --{dtype} --save-interval 300
"""


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "pretrain_104b.sh"
    path.write_text(_SCRIPT.format(beta2=0.999, std=0.02, dtype="fp16"))
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.sh"
    path.write_text(_SCRIPT.format(beta2=0.95, std=0.0055, dtype="bf16"))
    return path


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main(["preflight", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_json_of_a_bad_config(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = document(capsys, str(bad))
    assert code == 1
    assert told["schema"] == 1
    assert told["errors"] == []
    (config,) = told["configs"]
    assert config["path"].endswith("pretrain_104b.sh")
    assert config["settings"]["init_std"] == 0.02
    findings = {f["rule"]: f for f in config["findings"]}
    assert findings["L01"]["severity"] == "error"
    assert findings["L01"]["instead"] == "--init-method-std 0.00587"
    assert {
        "rule",
        "severity",
        "message",
        "values",
        "why",
        "source",
        "instead",
        "cost",
        "when",
    } <= set(findings["L01"])
    assert findings["L24"]["severity"] == findings["L09"]["severity"] == "warning"


def test_a_good_config_exits_0_and_an_unreadable_path_2(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = document(capsys, str(good))
    assert code == 0
    assert not [f for f in told["configs"][0]["findings"] if f["severity"] != "info"]
    code, told = document(capsys, str(good), str(tmp_path / "absent.yaml"))
    assert code == 2
    assert len(told["configs"]) == len(told["errors"]) == 1
    assert "absent.yaml" in told["errors"][0]["path"]


def test_what_a_person_sees(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", str(bad)]) == 1
    text = capsys.readouterr().out
    assert (
        text.index("✗ init std 0.02 is 3.4 × too big")
        < text.index("! fp16 at")
        < text.index("! β2 0.999")
    )
    assert "rules satisfied" in text
    assert "--init-method-std 0.00587" in text
    assert main(["preflight", str(bad), "--all"]) == 1
    text = capsys.readouterr().out
    assert "checked elsewhere" in text
    assert "L34" in text
    assert "Price:" in text


def test_text_of_a_config_is_not_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "[bold]a.sh"
    path.write_text(_SCRIPT.format(beta2=0.95, std=0.0055, dtype="bf16"))
    assert main(["preflight", str(path)]) == 0
    assert "[bold]a.sh" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.covers("S256")
def test_advise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "--advise", "--hidden", "14336"]) == 0
    text = capsys.readouterr().out
    assert "0.00482" in text
    assert "arXiv:2201.11990" in text.replace("\n", "")


def test_advise_by_phase(capsys: pytest.CaptureFixture[str]) -> None:
    names = {}
    for phase in ("start", "mid"):
        code, told = document(capsys, "--advise", "--hidden", "4096", "--phase", phase)
        assert code == 0
        names[phase] = {r["id"] for r in told["remedies"]} | {a["setting"] for a in told["advice"]}
    assert names["start"]
    assert names["mid"]
    assert names["start"].isdisjoint(names["mid"])


def test_machine_and_deadline(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = document(
        capsys,
        str(good),
        "--tokens-per-second",
        "1e5",
        "--deadline-days",
        "90",
        "--devices",
        "384",
        "--save-seconds",
        "60",
        "--device-gib",
        "80",
        "--corpus-tokens",
        "180B",
        "--train-tokens",
        "300B",
    )
    plan = told["configs"][0]["plan"]
    assert code == 0
    assert plan["eta"]["days"] == pytest.approx(300e9 / 1e5 / 86400, rel=0.05)
    assert plan["epochs"]["begin_at_step"] == [42916]
    assert plan["checkpoints"]["interval_steps"] > 10
    assert plan["memory"]["fits"] is False, "neither tensor nor pipeline parallel, nothing sharded"
    assert plan["memory"]["sharding"] == {"tensor": 1, "pipeline": 1, "data": 384, "zero_stage": 0}
    divided = good.with_name("divided.sh")
    divided.write_text(
        good.read_text().rstrip()
        + " --tensor-model-parallel-size 8 --pipeline-model-parallel-size 8"
        " --use-distributed-optimizer\n"
    )
    _, told = document(capsys, str(divided), "--devices", "384", "--device-gib", "80")
    kept = told["configs"][0]["plan"]["memory"]
    assert kept["sharding"] == {"tensor": 8, "pipeline": 8, "data": 6, "zero_stage": 1}
    assert kept["fits"] is True
    code, _ = document(capsys, str(good), "--tokens-per-second", "1e4", "--deadline-days", "90")
    assert code == 1, "too late is an alarm"


def test_like_and_against(good: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, told = document(capsys, str(bad), "--like", "bloom")
    differs = {d["setting"] for d in told["configs"][0]["difference"]["settings"]}
    assert {"init_std", "beta2", "dtype"} <= differs
    _, told = document(capsys, str(bad), "--against", str(good))
    differs = {d["setting"] for d in told["configs"][0]["difference"]["settings"]}
    assert {"init_std", "beta2", "dtype"} <= differs
    assert "lr" not in differs
    assert main(["preflight", str(bad), "--like", "nobody"]) == 2


@pytest.mark.covers("S264")
def test_settings_of_a_much_smaller_model_are_warned_of_with_the_ratio(
    bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for params, told in (("530e9", "! this model is 3.0 x"), ("1.76e12", "! this model is 10.0 x")):
        main(["preflight", str(bad), "--like", "bloom-176b", "--params", params])
        assert (told in capsys.readouterr().out) == (params == "1.76e12")


def test_every_rule_is_listed_with_where_it_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = document(capsys, "--all")
    assert code == 0
    where = {r["id"]: r["elsewhere"] for r in told["rules"]}
    assert where["L01"] is None
    assert where["L34"] == "guard"
    assert where["L38"] == "scan"
    assert main(["preflight", "--all"]) == 0
    assert "by smoke" in capsys.readouterr().out


def test_questions_without_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    code, told = document(capsys, "--points", "--params", "175e9")
    assert code == 0
    assert told["tables"][0]["at"] == pytest.approx(6e-5)
    code, told = document(
        capsys, "--gain", "125e6:0.06", "--gain", "1.3e9:0.03", "--gain", "13e9:0.0"
    )
    assert told["trend"]["adopt"] is False
    assert main(["preflight", "--consider", "double-batch"]) == 0
    assert "not much difference" in capsys.readouterr().out
    assert main(["preflight"]) == 2
    assert "nothing to check" in capsys.readouterr().err


def test_what_was_asked_and_cannot_be_reckoned_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.json"
    path.write_text(
        '{"learning_rate": 5e-4, "per_device_train_batch_size": 4, "max_seq_length": 2048, "bf16":'
        ' true, "max_steps": 10000}'
    )
    asked = ("--tokens-per-second", "1e5", "--deadline-days", "10", "--corpus-tokens", "1e9")
    _, told = document(capsys, str(path), *asked)
    (missing,) = told["configs"][0]["plan"]["missing"]
    assert missing.startswith(
        "time and epochs: 10000 steps are stated, but only one device's batch"
    )
    assert main(["preflight", str(path), *asked]) == 0
    assert "give --devices" in capsys.readouterr().out
    _, told = document(capsys, str(path), *asked, "--devices", "64", "--params", "7e9")
    plan = told["configs"][0]["plan"]
    assert "missing" not in plan
    assert plan["eta"]["tokens"] == 10_000 * 4 * 64 * 2048
    assert told["configs"][0]["settings"]["data_parallel"] == 64
    _, told = document(
        capsys, str(path), "--save-seconds", "60", "--deadline-days", "3", "--device-gib", "80"
    )
    assert [m.split(":")[0] for m in told["configs"][0]["plan"]["missing"]] == [
        "time",
        "checkpoints",
        "memory",
    ]


def test_the_same_rules_are_satisfied_in_either_phase(
    bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts, text = set(), ""
    for extra in ((), ("--phase", "start"), ("--phase", "mid")):
        main(["preflight", str(bad), "--params", "103e9", *extra])
        text = capsys.readouterr().out
        (line,) = [row for row in text.splitlines() if "rules satisfied" in row]
        counts.add(line.split("rules satisfied")[0])
    assert len(counts) == 1
    assert "of the other phase" in text


def test_codes_and_levels_explain_themselves(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["preflight", str(good)])
    text = " ".join(capsys.readouterr().out.split())
    assert "depth risk 2 of 5" in text
    assert "L16 batch ramp" in text
    main(["preflight", "--gain", "125e6:0.06", "--gain", "1.3e9:0.03", "--gain", "13e9:0.0"])
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "left at 130 B parameters (ten times the largest size given; --params sets another)" in text
    )
    assert "in the unit of the gains given" in text


@pytest.mark.covers("S58")
def test_the_plan_names_the_step_at_which_the_second_epoch_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # OPT, of which people said that the data comes again at about step 93k.
    path = tmp_path / "launch.sh"
    path.write_text("--global-batch-size 1024 --seq-length 2048 --train-iters 143000 --lr 6e-5\n")
    _, told = document(capsys, str(path), "--corpus-tokens", str(93_000 * 2**21))
    assert told["configs"][0]["plan"]["epochs"]["begin_at_step"] == [93_000]
