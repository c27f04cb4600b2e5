import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli import main
from trimtab.cli.stdin import kept_stdin
from trimtab.errors import ConfigError
from trimtab.report.overview import shortened_together

Run = Callable[..., tuple[int, str, str]]


def parse(text: str) -> dict[str, Any]:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} in JSON")

    document: dict[str, Any] = json.loads(text, parse_constant=refuse)
    assert document["schema"] == 1
    return document


@pytest.mark.parametrize("source", ["tr8_log", "tr8_chronicle"])
def test_tr8_as_the_foundation_asks(run: Run, source: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(source)
    code, out, _ = run("inspect", path, "--json")
    assert code == 0
    (told,) = parse(out)["runs"]
    assert told["path"] == str(path)
    assert told["rows"] == 8
    assert (told["first_step"], told["last_step"]) == (6900, 7220)
    first = next(i for i in told["incidents"] if i["attempt"] == told["attempts"][0]["number"])
    assert first["kind"] == "unrecovered-spike"
    assert 7000 <= first["onset"] <= 7010
    assert first["precursor"] == 7000
    assert first["end"] is None
    notes = " ".join(told["notes"])
    assert "multiplied by the loss scale" in notes
    assert "47.98" in notes
    second = next(i for i in told["incidents"] if i["attempt"] == told["attempts"][1]["number"])
    assert told["attempts"][1]["parent_step"] == 6210
    plan = {r["remedy"]: r for r in second["plan"]}
    assert plan["roll-back-further"]["values"]["before_step"] < 6210
    assert 0 < plan["lower-lr"]["values"]["lr"] < 6e-5
    assert "judged whole in hindsight" in second["headline"]
    assert "assumed" in json.dumps(second)


def test_confidences_sum_to_one(run: Run, tr8_log: Path) -> None:
    _, out, _ = run("inspect", tr8_log, "--json")
    for incident in parse(out)["runs"][0]["incidents"]:
        assert sum(c["confidence"] for c in incident["causes"]) == pytest.approx(1, abs=1e-6)


def test_people_read_what_to_do_second(run: Run, tr8_log: Path) -> None:
    code, out, _ = run("inspect", tr8_log)
    assert code == 0
    assert (
        out.index("loss spike that did not recover") < out.index("roll back") < out.index("because")
    )


def test_a_healthy_log_is_quiet(run: Run, healthy_log: Path) -> None:
    code, out, _ = run("inspect", healthy_log, "--json", "--fail-on", "warning")
    assert code == 0
    (told,) = parse(out)["runs"]
    assert told["rows"] == 400
    assert [i for i in told["incidents"] if i["severity"] != "info"] == []


def test_fail_on_sets_the_exit_code(run: Run, tr8_log: Path, healthy_log: Path) -> None:
    assert run("inspect", tr8_log, "--fail-on", "critical")[0] == 1
    assert run("inspect", healthy_log, "--fail-on", "critical")[0] == 0


def test_a_bad_path_does_not_stop_the_others(run: Run, tr8_log: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()
    code, out, err = run("inspect", tmp_path / "nothing.log", empty, tr8_log, "--json")
    assert code == 2
    document = parse(out)
    assert [r["path"] for r in document["runs"]] == [str(tr8_log)]
    assert [e["path"] for e in document["errors"]] == [str(tmp_path / "nothing.log"), str(empty)]
    assert len(err.strip().splitlines()) == 2
    assert "Traceback" not in err


def test_nan_and_inf_become_null(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "nan.jsonl"
    rows = [
        f'{{"step": {s}, "loss": {2 + 0.001 * (s % 5)}, "grad_norm": 0.5}}' for s in range(1, 200)
    ]
    rows += [f'{{"step": {s}, "loss": NaN, "grad_norm": Infinity}}' for s in range(200, 220)]
    path.write_text("\n".join(rows) + "\n")
    code, out, _ = run("inspect", path, "--json")
    assert code == 0
    (told,) = parse(out)["runs"]
    assert told["rows"] == 219
    worst = told["incidents"][0]
    assert (worst["kind"], worst["severity"], worst["onset"], worst["onset_row"]) == (
        "non-finite",
        "critical",
        200,
        199,
    )
    assert worst["end"] is None


def test_html_is_written(run: Run, tr8_log: Path, tmp_path: Path) -> None:
    page = tmp_path / "out" / "page.html"
    assert run("inspect", tr8_log, "--html", page)[0] == 0
    assert "loss spike that did not recover" in page.read_text()


def test_log_text_cannot_move_the_terminal(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31mred.jsonl"
    path.write_text("".join(f'{{"step": {s}, "loss": {3 - s / 100}}}\n' for s in range(50)))
    _, out, err = run("inspect", path)
    assert "\x1b" not in out + err


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(tr8_log: Path) -> None:
    command = f"{sys.executable} -m trimtab inspect {tr8_log} | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_status_counts_where_the_reader_goes_away(
    tr8_log: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    end, start = os.pipe()
    os.close(end)
    with os.fdopen(start, "w", encoding="utf-8") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        assert main(["inspect", str(tr8_log), "--fail-on", "warning", *form]) == 1
        assert main(["inspect", str(tr8_log), *form]) == 0


def test_several_logs_end_with_a_line_each_the_worst_last(
    run: Run, tr8_log: Path, healthy_log: Path, tmp_path: Path
) -> None:
    _, out, _ = run("inspect", tr8_log, healthy_log)
    told, last = out.rstrip().rsplit("\n\n", 1)
    healthy, *critical = last.splitlines()
    assert "ok" in healthy.split()
    assert "healthy" in healthy.split()
    assert "critical loss spike that did not recover" in " ".join(" ".join(critical).split())
    assert told.count(healthy_log.name) == told.count(tr8_log.name) == 1
    assert told.rstrip().endswith("trimtab explain unrecovered-spike learning-rate-too-high")
    assert [line for line in out.splitlines() if line != line.rstrip()] == []
    _, alone, _ = run("inspect", healthy_log)
    assert healthy_log.name in alone.split("○")[0]
    assert "trimtab explain" not in alone


@pytest.mark.slow
def test_a_log_is_read_from_a_pipe(healthy_log: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trimtab", "inspect", "-", "--json"],
        input=healthy_log.read_bytes(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (told,) = parse(done.stdout.decode())["runs"]
    assert told["path"] == "stdin"


def test_a_pipe_is_bounded_and_not_followed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.TextIOWrapper(io.BytesIO(b"x" * 100))
    monkeypatch.setattr(sys, "stdin", piped)
    with pytest.raises(ConfigError, match="save it and give its path"), kept_stdin(limit_bytes=99):
        pass
    code, _, err = run("inspect", "-", "--follow")
    assert code == 2
    assert "a pipe cannot be read twice" in err


def test_the_column_taken_as_loss_stands_under_the_first_line(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "critic.csv"
    rows = [f"{i % 7},{2 + 3 / (1 + i / 40) + 0.01 * ((i * 7919) % 13 - 6)}" for i in range(300)]
    path.write_text("reward,train/loss_critic\n" + "\n".join(rows) + "\n")
    out = run("inspect", path)[1].splitlines()
    at = next(i for i, line in enumerate(out) if "rows 0" in line)
    assert "loss is read from 'train/loss_critic'" in " ".join(out[at : at + 3])


def test_what_tells_names_apart_is_kept() -> None:
    paths = [f"/scratch/someone/a-long-project-name/lr-{n}e-4/logs/train.log" for n in (3, 6)]
    first, second = shortened_together(paths, limit=24)
    assert "lr-3e-4" in first
    assert "lr-6e-4" in second
    assert len(first) <= 24
    names = [f"seedstudy_adamw_unstable_with_a_long_name_seed_{n}.csv" for n in (1, 2)]
    one, two = shortened_together(names, limit=24)
    assert one != two
    assert one.startswith("seedstudy")


def cured_run(root: Path, *, verdict: str) -> Path:
    """Write a run that was killed at 215 with a NaN loss, met it again, and went back from it."""
    (root / "signals").mkdir(parents=True)

    def samples(attempt: str, first: int, last: int, *, bad: int) -> None:
        rows = (
            f'{{"step": {s}, "loss": {"NaN" if s >= bad else 2 + 0.001 * (s % 5)}, "grad_norm":'
            " 0.5}"
            for s in range(first, last)
        )
        (root / "signals" / f"{attempt}.jsonl").write_text("\n".join(rows) + "\n")

    samples("1.0", 1, 215, bad=200)
    samples("1.1", 151, 215, bad=200)
    samples("1.2", 181, 400, bad=999)
    incident = {"kind": "non-finite", "onset": 200.0, "severity": "critical", "headline": "NaN"}
    lines: list[tuple[str, str, int, dict[str, Any]]] = [
        ("attempt", "1.0", 0, {"number": "1.0"}),
        ("incident", "1.0", 208, {**incident, "state": "open"}),
        ("resume", "", 150, {}),
        ("attempt", "1.1", 150, {"number": "1.1", "parent": "1.0", "parent_step": 150}),
        ("incident", "1.1", 208, {**incident, "state": "open"}),
        (
            "attempt",
            "1.2",
            180,
            {"number": "1.2", "parent": "1.1", "parent_step": 180, "trial": True},
        ),
        ("action", "1.2", 228, {"remedy": "roll-back", "kept_attempt": "1.2", "values": {}}),
        ("incident", "1.2", 228, {**incident, "state": "explained"}),
        ("outcome", "1.2", 292, {"remedy": "roll-back", "verdict": verdict}),
    ]
    text = "".join(
        json.dumps({"t": "2026-01-01T00:00:00", "event": e, "attempt": a, "step": s, **d}) + "\n"
        for e, a, s, d in lines
    )
    (root / "journal.jsonl").write_text(text)
    return root


@pytest.mark.slow
def test_what_a_guard_cured_does_not_fail(run: Run, tmp_path: Path) -> None:
    cured = cured_run(tmp_path / "cured", verdict="worked")
    code, out, _ = run("inspect", cured, "--json", "--fail-on", "warning")
    assert code == 0
    alarms = [i for i in parse(out)["runs"][0]["incidents"] if i["severity_then"] != "info"]
    assert [i["attempt"] for i in alarms] == ["1.1", "1.0"]  # before and after the kill
    assert all(i["resolved"] and i["severity"] == "info" for i in alarms)
    assert "roll-back-further" not in out
    assert "dealt with:" in run("inspect", cured)[1]
    failed = cured_run(tmp_path / "failed", verdict="did not")
    code, out, _ = run("inspect", failed, "--json", "--fail-on", "warning")
    assert code == 1
    assert not any(i["resolved"] for i in parse(out)["runs"][0]["incidents"])
    assert "failed again" not in out


@pytest.mark.covers("S243")
def test_the_summary_has_the_final_loss_the_gap_to_the_reference_and_the_last_score(
    run: Run, tmp_path: Path
) -> None:
    def write(name: str, more: float) -> Path:
        rows = [
            {"step": i, "loss": 2 + more + (i + 1) ** -0.5 + 0.01 * (i * 7919 % 97 / 97)}
            | ({"eval/accuracy": i / 1000} if i % 100 == 50 else {})
            for i in range(400)
        ]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / name

    _, out, _ = run("inspect", write("large.jsonl", 0.0), "--against", write("small.jsonl", 0.25))
    out = " ".join(out.split())
    assert re.search(r"loss 2\.05\d* at step 399", out)
    assert "eval/accuracy 0.35 at step 350" in out
    assert "at their end its loss lies 0.25 below" in out


def test_numbers_beyond_a_million_have_three_digits(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    losses = [2.0 + 0.01 * (n % 7) for n in range(200)] + [3.2671e13 * 1.5**n for n in range(6)]
    path.write_text("".join(f"step {n} loss {x:.6g}\n" for n, x in enumerate(losses, 2_000_001)))
    _, out, _ = run("inspect", path)
    assert re.search(r"\d(?:\.\d\d?)?e1\d", out)
    assert not re.search(r"\d{9}", out)
    assert "step 2000201" in out
