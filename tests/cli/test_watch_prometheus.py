"""`trimtab watch --prometheus` and `--digest`: through a port, a file, and the files that ship."""

import json
import re
import socket
import urllib.request
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

from trimtab.analysis.source import Beside
from trimtab.chronicle.journal import Journal
from trimtab.cli import build_parser, main
from trimtab.cli.watch import follow
from trimtab.monitor.follow import Watch
from trimtab.monitor.prometheus import METRICS, Exporter

SAMPLE = re.compile(r'^([a-z_]+)\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)+)\} (\S+)$')


def make_log(path: Path, *, bad: bool = False) -> Path:
    """Write a log that is calm, or that ends in NaN."""
    rows = [{"step": i, "loss": 3 - i / 160, "grad_norm": 0.5 + i % 7 / 100} for i in range(80)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text + ('{"step": 80, "loss": NaN}\n' * bad))
    return path


def samples(text: str) -> dict[tuple[str, str], float]:
    """Return the samples of an exposition; every line must be one, or a comment."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# "):
            continue
        told = SAMPLE.match(line)
        assert told is not None, line
        found[(told[1], told[2].split(",", 1)[-1])] = float(told[3])
    return found


def test_a_textfile_has_signals_state_and_the_time_of_the_last_look(tmp_path: Path) -> None:
    log, target = make_log(tmp_path / 'a"b.jsonl', bad=True), tmp_path / "run.prom"
    argv = ["watch", str(log), "--until-idle", "0", "--prometheus", str(target)]
    options = build_parser("watch").parse_args(argv)
    assert follow(str(log), options, Beside(), sleep=lambda _: None) == 0
    found = samples(target.read_text())
    assert found["trimtab_rows", next(k for n, k in found if n == "trimtab_rows")] == 81
    assert found["trimtab_verdict", 'verdict="healthy"'] == 0
    assert sum(v for (n, _), v in found.items() if n == "trimtab_verdict") == 1
    assert found["trimtab_open_alarms", 'severity="critical"'] >= 1
    assert found["trimtab_signal", 'signal="loss"'] != found["trimtab_signal", 'signal="loss"']
    assert {name for name, _ in found} == set(METRICS)
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_a_port_on_the_loopback_address_answers_and_an_old_time_stays_old(
    tmp_path: Path,
) -> None:
    log = make_log(tmp_path / "a.jsonl")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    exporter = Exporter(port, str(log), lambda: 1000.0)
    try:
        watch = Watch(str(log), until_idle_s=0.0, sleep=lambda _: None)
        list(watch)
        exporter.tell(watch)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    finally:
        exporter.close()
    found = samples(text)
    assert next(v for (n, _), v in found.items() if n == "trimtab_look_time_seconds") == 1000.0
    assert found["trimtab_verdict", 'verdict="incident"'] == 0


@pytest.mark.parametrize("target", ["0", "99999", "run.txt", "/none/there/run.prom"])
def test_an_impossible_target_is_one_clear_error(
    tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = make_log(tmp_path / "a.jsonl")
    assert main(["watch", str(log), "--until-idle", "0", "--prometheus", target]) == 2
    assert target in capsys.readouterr().err


def test_dashboard_and_alert_rules_ask_for_metrics_that_there_are() -> None:
    folder = files("trimtab.monitor") / "prometheus_files"
    rules = yaml.safe_load((folder / "alerts.yaml").read_text())["groups"][0]["rules"]
    board = json.loads((folder / "dashboard.json").read_text())
    asked = [rule["expr"] for rule in rules]
    asked += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    names = {name for text in asked for name in re.findall(r"trimtab_\w+", text)}
    assert names <= set(METRICS)
    assert any("absent(" in text for text in asked)  # the dead-man switch


@pytest.mark.covers("S227")
def test_the_digest_says_first_whether_somebody_must_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = make_log(tmp_path / "calm.jsonl")
    assert main(["watch", str(calm), "--digest"]) == 0
    assert capsys.readouterr().out.startswith(f"{calm}: nobody need look")
    run = tmp_path / "run"
    run.mkdir()
    make_log(run / "output.log", bad=True)
    journal = Journal(run / "journal.jsonl")
    journal.append("start", attempt="0.0", step=0)
    for _ in range(3):
        journal.append("restart", attempt="1.0", step=7, **{"class": "killed"}, wait_s=1.0)
    journal.append("gave-up", attempt="4.0", step=80, why="the same numbers would come again")
    journal.close()
    assert main(["watch", str(run), "--digest"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{run}: somebody must act\n  do: start it again: the same numbers")
    assert "3 restarts" in out
    assert "open: critical" in out
    assert main(["watch", str(tmp_path / "none"), "--digest"]) == 2
