"""`trimtab compare`: on paper, as JSON, as a page."""

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import parse

Run = Callable[..., tuple[int, str, str]]


def write_run(path: Path, *, change: float | None = None, offset: float = 0.0) -> Path:
    rows = []
    for s in range(1, 2001):
        calm = change is not None and s >= change
        rows.append(
            {
                "step": s,
                "loss": 4 - 5e-4 * s + offset + 0.01 * (s * 37 % 11 - 5),
                "lr": 3e-5 if calm else 6e-5,
                "grad_norm": (0.2 if calm else 0.4) + 0.001 * (s % 7),
                "activation_norm": 15.0 if calm else 20.0,
            }
        )
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


@pytest.mark.covers("S265")
def test_compare_tells_how_much_less_of_better_data_gives_the_same_loss(
    run: Run, tmp_path: Path
) -> None:
    for name, pace in (("plain", 1.0), ("better", 2.0)):
        rows = [
            {"step": s, "tokens_seen": 1000 * s, "loss": 2 + 4 * (1 + pace * s / 100) ** -0.5}
            for s in range(1, 1001)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    pair = (tmp_path / "plain.jsonl", tmp_path / "better.jsonl", "--by", "tokens")
    told = parse(run("compare", *pair, "--json")[1])["to_target"]
    assert told["ratio"] == pytest.approx(0.5, abs=0.02)
    assert "needs 0.5 x the tokens" in " ".join(run("compare", *pair)[1].split())


def test_two_runs(run: Run, tmp_path: Path) -> None:
    small, large = write_run(tmp_path / "13b.jsonl"), write_run(tmp_path / "104b.jsonl", offset=1.8)
    for path, lr in ((tmp_path / "a.yaml", "1e-4"), (tmp_path / "b.yaml", "6e-5")):
        path.write_text(f"lr: {lr}\nseed: 1\n")
    configs = ("--configs", tmp_path / "a.yaml", tmp_path / "b.yaml")
    code, out, _ = run("compare", small, large, *configs, "--json")
    assert code == 0
    told = parse(out)
    assert told["end_gap"] == pytest.approx(1.8, abs=0.01)
    assert told["slope_ratio"] == pytest.approx(1.0, abs=0.01)
    assert told["changed"] == [{"key": "lr", "a": "1e-4", "b": "6e-5"}]
    assert "learning nothing useful" in told["warnings"][0]
    assert told["impact"] is None
    text = run("compare", small, large, *configs)[1]
    assert "ratio 1" in text
    assert "lr" in text


def test_compare_configs_refuses_an_alias_bomb_at_once(run: Run, tmp_path: Path) -> None:
    log, bomb = write_run(tmp_path / "run.jsonl"), tmp_path / "bomb.yaml"
    names = "abcdefghi"
    bomb.write_text(
        f"a: &a [{', '.join(['{x: 1}'] * 9)}]\n"
        + "".join(
            f"{name}: &{name} [{', '.join([f'*{of}'] * 9)}]\n"
            for of, name in itertools.pairwise(names)
        )
    )
    began = time.process_time()
    code, out, err = run("compare", log, log, "--configs", bomb, bomb)
    assert time.process_time() - began < 10
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "bomb.yaml" in err
    assert "aliases" in err


def test_compare_configs_of_two_frameworks_by_canonical_name(run: Run, tmp_path: Path) -> None:
    log, script, trainer = (tmp_path / n for n in ("run.jsonl", "run.sh", "train.yaml"))
    write_run(log)
    script.write_text("pretrain_gpt.py --num-layers 2 --hidden-size 64 --lr 6e-5 --seed 1\n")
    trainer.write_text("model_name_or_path: x/y\nlearning_rate: 3.0e-5\nseed: 1\n")
    told = parse(run("compare", log, log, "--configs", script, trainer, "--json")[1])
    assert {"key": "learning_rate", "a": None, "b": "3e-05"} in told["changed"]
    assert {"key": "lr", "a": "6e-05", "b": "3e-05"} in told["settings"]
    assert "seed" not in {c["key"] for c in told["settings"]}


@pytest.mark.covers("S93")
def test_before_and_after_as_a_table_and_a_picture(run: Run, tmp_path: Path) -> None:
    path, page = write_run(tmp_path / "run.jsonl", change=1000), tmp_path / "page.html"
    _, out, _ = run("compare", path, "--at", "1000", "--window", "300", "--html", page, "--json")
    impact = parse(out)["impact"]
    table = {(r["signal"], r["measure"].split(",")[0]): r for r in impact["table"]}
    assert table["grad_norm", "mean"]["before"] == pytest.approx(0.403, abs=1e-3)
    assert table["grad_norm", "mean"]["after"] == pytest.approx(0.203, abs=1e-3)
    assert table["activation_norm", "mean"]["after"] == pytest.approx(15.0)
    assert table["loss", "slope"]["before"] == pytest.approx(-0.5, abs=0.01)
    assert (impact["rows_before"], impact["rows_after"]) == (300, 300)
    html = page.read_text()
    for panel in ("loss", "grad_norm", "activation_norm"):
        assert f'data-panel="{panel}"' in html
    assert "changed at 1000" in html
    assert "<script" not in html
    assert "0.4029" in html or "0.403" in html
    assert "Signs of a calmer run" in html


def test_attempts_of_one_log(run: Run, tr8_log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    _, out, _ = run("compare", f"{tr8_log}@1.0", f"{tr8_log}@1.1", "--json", "--html", page)
    told = parse(out)
    assert told["changed"] == [{"key": "seed", "a": "42", "b": "43"}]
    assert told["common"] is None
    assert page.read_text().count("<tr>") == 2


def test_text_of_a_config_is_escaped(run: Run, tmp_path: Path) -> None:
    path, page = write_run(tmp_path / "run.jsonl"), tmp_path / "page.html"
    (tmp_path / "a.json").write_text('{"<script>alert(1)</script>": "<img onerror=x>"}')
    (tmp_path / "b.json").write_text('{"x": 1}')
    run(
        "compare", path, path, "--configs", tmp_path / "a.json", tmp_path / "b.json", "--html", page
    )
    assert "<script" not in page.read_text()
    assert "<img" not in page.read_text()


def test_wrong_questions(run: Run, tr8_log: Path) -> None:
    assert "--at STEP" in run("compare", tr8_log)[2]
    code, _, err = run("compare", f"{tr8_log}@7.7", tr8_log)
    assert code == 2
    assert "there are 1.0, 1.1" in err
    assert run("compare", tr8_log, "--at", "7000", "--window", "0")[0] == 2


@pytest.mark.parametrize("tokens", [False, True])
def test_the_page_gives_the_unit_of_the_loss_only_where_it_is_known(
    run: Run, tmp_path: Path, tokens: bool
) -> None:
    page = tmp_path / "page.html"
    for name, offset in (("a", 0.0), ("b", 0.3)):
        rows = [
            {"step": s, "loss": 2 + offset + 4 / s, **({"tokens_seen": 1000 * s} if tokens else {})}
            for s in range(1, 400)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    run("compare", tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--html", page)
    assert ("nats/token" in page.read_text()) is tokens
