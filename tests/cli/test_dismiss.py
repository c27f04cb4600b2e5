"""`trimtab dismiss`, and `inspect` with a config and checkpoints."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import parse
from trimtab.chronicle.journal import read_journal

Run = Callable[..., tuple[int, str, str]]


def alarms(run: Run, path: Path) -> tuple[int, list[dict[str, object]]]:
    code, out, _ = run("inspect", path, "--json", "--fail-on", "warning")
    return code, parse(out)["runs"][0]["incidents"]


def test_a_dismissed_incident_is_no_alarm_and_comes_back(run: Run, tr8_log: Path) -> None:
    before = tr8_log.read_bytes()
    assert alarms(run, tr8_log)[0] == 1
    for letter in ("A", "A"):  # what is dismissed moves to the end
        code, out, _ = run("dismiss", tr8_log, letter, "--why", "a <drill>, not a fault")
        assert code == 0
        assert "dismissed: " in out
    code, told = alarms(run, tr8_log)
    assert code == 0
    assert {i["severity"] for i in told} == {"info"}
    assert {i["severity_then"] for i in told} == {"critical"}
    assert {i["dismissed"] for i in told} == {"a <drill>, not a fault"}
    text = run("inspect", tr8_log)[1]
    assert "dismissed:" in text
    assert "CRITICAL" not in text
    assert tr8_log.read_bytes() == before
    assert [p.name for p in tr8_log.parent.iterdir()] == [tr8_log.name]  # nothing beside the log
    assert run("dismiss", tr8_log, "A", "--undo")[0] == 0  # an undo needs no reason
    assert alarms(run, tr8_log)[0] == 1


def test_a_run_of_dismissed_alarms_alone_is_called_what_it_is_judged_to_be(
    run: Run, tmp_path: Path
) -> None:
    def log(name: str, rows: int, *, goes_on: bool) -> Path:
        """Return a log that has learned, with a rise that stays, and rows without a loss."""
        path, noise = tmp_path / name, np.random.default_rng(1).normal(0, 0.02, rows)
        with path.open("w") as out:
            for step in range(rows):
                loss = 2 + 2 * math.exp(-step / 60) + noise[step] + (step >= 450)
                out.write(f'{{"step": {step}, "loss": {loss:.4f}, "grad_norm": 1.0}}\n')
            for step in range(rows, rows + 300 if goes_on else rows):
                out.write(f'{{"step": {step}, "grad_norm": 1.0}}\n')
        return path

    known = log("a.jsonl", 600, goes_on=False)
    ended = log("b.jsonl", 600, goes_on=True)
    for path in (known, ended):
        while alarms(run, path)[0]:
            run("dismiss", path, "A", "--why", "other data from here on")
    for path, verdict in ((known, "healthy"), (ended, "not judged")):
        told = run("inspect", path)[1].splitlines()
        assert next(line for line in told if line.startswith("○")).startswith(f"○ {verdict}")
    both = run("inspect", known, ended, "--html", tmp_path / "page.html")[1].splitlines()
    assert [line.split()[1] for line in both[-8:] if "a.jsonl " in line] == ["ok"]
    assert [line.split()[1] for line in both[-8:] if "b.jsonl " in line] == ["?"]
    page = (tmp_path / "page-2.html").read_text()
    assert "Not judged: no loss is logged in the last 300 rows" in page


@pytest.mark.parametrize(("lasts", "size"), [(3, 4.0), (300, 0.4)], ids=["a spike", "a rise"])
def test_what_is_dismissed_says_not_that_anything_was_learned_before_it(
    run: Run, tmp_path: Path, lasts: int, size: float
) -> None:
    path, noise = tmp_path / "stands.jsonl", np.random.default_rng(0).normal(0, 0.02, 600)
    with path.open("w") as out:
        for step in range(600):
            loss = 2.5 + noise[step] + (size if 300 <= step < 300 + lasts else 0)
            out.write(f'{{"step": {step}, "loss": {loss:.4f}, "grad_norm": 1.0}}\n')
    while alarms(run, path)[0]:
        run("dismiss", path, "A", "--why", "known")
    told = parse(run("inspect", path, "--json")[1])["runs"][0]
    assert told["verdict"] == "not-judged"
    assert "the loss has stood at" in told["judged"]["why"]


def test_it_survives_a_move_and_growth(run: Run, tr8_log: Path) -> None:
    run("dismiss", tr8_log, "A", "--why", "known")
    moved = tr8_log.with_name("moved.log")
    tr8_log.rename(moved)
    with moved.open("a") as log:
        log.write("training finished\n")
    assert sum(bool(i["dismissed"]) for i in alarms(run, moved)[1]) == 1


def test_another_log_is_not_touched(run: Run, tr8_log: Path, tmp_path: Path) -> None:
    run("dismiss", tr8_log, "A", "--why", "known")
    other = tmp_path / "other.log"
    other.write_text("# another\n" + tr8_log.read_text())
    assert not any(i["dismissed"] for i in alarms(run, other)[1])


def test_in_a_run_directory_it_is_an_event_of_the_journal(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "run"
    (root / "signals").mkdir(parents=True)
    (root / "journal.jsonl").write_text(
        '{"t": "2026-01-01T00:00:00Z", "event": "attempt", "attempt": "1.0", "step": 0, "number":'
        ' "1.0"}\n'
    )
    rows = [
        f'{{"step": {s}, "loss": {9.0 if 300 <= s < 303 else 2 + 0.001 * (s * 37 % 11)}}}\n'
        for s in range(1, 400)
    ]
    (root / "signals" / "1.0.jsonl").write_text("".join(rows))
    code, told = alarms(run, root)
    assert code == 1
    onset = told[0]["onset"]
    assert run("dismiss", root, str(onset), "--why", "planned")[0] == 0
    events, torn = read_journal(root / "journal.jsonl")
    assert (events[-1].event, events[-1].data["why"], torn) == ("dismiss", "planned", 0)
    assert alarms(run, root)[0] == 0
    assert "dismissed: the " in run("chronicle", root)[1]
    assert "planned" in run("chronicle", root)[1]


def test_wrong_questions(run: Run, tr8_log: Path) -> None:
    assert "--reason" in run("dismiss", tr8_log, "A")[2]
    code, _, err = run("dismiss", tr8_log, "Z", "--why", "x")
    assert code == 2
    assert "unrecovered-spike@" in err
    assert "is not dismissed" in run("dismiss", tr8_log, "A", "--undo")[2]


def test_a_store_that_anybody_edited_does_no_harm(run: Run, tr8_log: Path) -> None:
    run("dismiss", tr8_log, "A", "--why", "known")
    store = Path(os.environ["XDG_STATE_HOME"]) / "trimtab" / "dismissed.jsonl"
    good = store.read_text()
    bad = (
        '[]\nnot json\n{"size_bytes": -1, "sha256": 3}\n{"size_bytes": 99999999999, "sha256":'
        ' "x"}\n'
    )
    store.write_text(bad + good + good.replace('"onset_row": ', '"onset_row": "x'))
    assert sum(bool(i["dismissed"]) for i in alarms(run, tr8_log)[1]) == 1


def test_checkpoints_name_the_one_to_go_back_to(run: Run, tr8_log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ck pt"
    for step in range(300, 7201, 300):
        (folder / f"iter_{step:07d}").mkdir(parents=True)
        (folder / f"iter_{step:07d}" / "common.pt").write_bytes(b"x")
    _, out, _ = run("inspect", tr8_log, "--checkpoints", folder, "--json")
    (told,) = parse(out)["runs"]
    back = {
        i["attempt"]: next(r for r in i["plan"] if "roll-back" in r["remedy"])
        for i in told["incidents"]
    }
    first, second = back[told["attempts"][0]["number"]], back[told["attempts"][1]["number"]]
    assert first["values"]["to_step"] == 6900
    assert first["values"]["checkpoint"] == str(folder / "iter_0006900")
    assert first["flags"] == f"--load '{folder}' --ckpt-step 6900"
    assert second["values"]["to_step"] < 6210 / 2 + 1500  # further back than what failed
    assert any("24 checkpoints (megatron)" in n for n in told["notes"])
    assert f"--load '{folder}'" in told["incidents"][0]["next_test_flags"]


def test_the_next_test_is_a_command_of_the_logs_framework(run: Run, tr8_log: Path) -> None:
    _, out, _ = run("inspect", tr8_log, "--json")
    incident = parse(out)["runs"][0]["incidents"][0]
    assert (
        incident["next_test_flags"]
        == "--load CHECKPOINTS --ckpt-step STEP --override-opt_param-scheduler --lr 3e-05  "
        "(STEP: the newest checkpoint before 6900)"
    )
    assert incident["next_test_flags"].split()[0] in run("inspect", tr8_log)[1]


def test_a_config_states_the_clip_in_force(run: Run, tr8_log: Path, tmp_path: Path) -> None:
    pytest.importorskip("trimtab.configs")
    config = tmp_path / "train.sh"
    config.write_text(
        "torchrun pretrain_gpt.py --num-layers 64 --hidden-size 11600 --num-attention-heads 80 "
        "--seq-length 2048 --lr 6e-5 --clip-grad 0.5 --init-method-std 0.02 --fp16\n"
    )
    _, out, _ = run("inspect", tr8_log, "--config", config, "--json")
    incident = parse(out)["runs"][0]["incidents"][0]
    evidence = " ".join(t for c in incident["causes"] for t in c["evidence"])
    assert "(clip 0.5)" in evidence
    std = next(r for r in incident["plan"] if r["remedy"] == "init-std")
    assert std["flags"] == "--init-method-std 0.00587"
