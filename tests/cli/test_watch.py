"""`trimtab watch` and `inspect --follow`: a log that grows under our eyes."""

import contextlib
import errno
import http.server
import io
import itertools
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.few_faults import FEW_FAULTS
from trimtab.analysis.source import Beside, account_of
from trimtab.cli import main, watch
from trimtab.readers import read_run

NO_ADDRESSES = (
    "file:///etc/passwd",
    "http://127.0.0.1:abc/",
    "http://exa mple/",
    "http://[::1",
    "http://",
    "http://a:99999/",
)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module", autouse=True)
def few_faults_at_a_look() -> Iterator[None]:
    """Have the first look at a log inject only what its verdict rests on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trimtab.analysis.self_test.INJECTED_FAULTS", FEW_FAULTS)
        yield


def line(step: int, loss: float) -> str:
    return (
        f'{{"step": {step}, "loss": {loss:.4f}, "grad_norm": {0.5 + 0.001 * (step % 7):.3f},'
        ' "step_time_s": 1.0}\n'
    )


def log_text(spikes: tuple[int, ...] = (), num_steps: int = 600) -> str:
    noise = np.random.default_rng(0).normal(0, 0.01, num_steps + 1)
    return "".join(
        line(s, 2.5 + noise[s] + (4.0 if any(p <= s < p + 60 for p in spikes) else 0.0))
        for s in range(1, num_steps + 1)
    )


class Scene:
    """Time that passes when it is slept through, and things that happen meanwhile."""

    def __init__(self, *happenings: Callable[[], None], start: float) -> None:
        self.now = start
        self.happenings = list(happenings)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if not self.happenings:
            raise KeyboardInterrupt
        self.now += seconds
        self.happenings.pop(0)()

    def wait(self, seconds: float) -> Callable[[], None]:
        def pass_time() -> None:
            self.now += seconds

        return pass_time


def follow(path: Path, scene: Scene, *options: str) -> int:
    from trimtab.cli import build_parser

    arguments = build_parser().parse_args(["watch", str(path), "--json", *options])
    return watch.follow(str(path), arguments, Beside(), clock=scene.clock, sleep=scene.sleep)


def notices_of(printed: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in printed.splitlines()]


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return notices_of(capsys.readouterr().out)


def appending(path: Path, text: str) -> Callable[[], None]:
    def append() -> None:
        with path.open("a") as file:
            file.write(text)

    return append


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
def test_piece_by_piece_comes_to_the_verdict_of_the_whole(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = log_text((200, 420))
    whole = tmp_path / "whole.jsonl"
    whole.write_text(text)
    cuts = np.sort(np.random.default_rng(seed).integers(1, len(text), 12))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    path = tmp_path / "growing.jsonl"
    scene = Scene(*(appending(path, p) for p in pieces), start=0.0)
    assert follow(path, scene) == 0
    notices = said(capsys)
    assert notices[0]["event"] == "waiting"
    stopped = notices[-1]
    assert stopped["event"] == "stopped"
    offline = account_of(read_run(whole), str(whole))
    wanted = {(ia.incident.kind, ia.incident.onset_row) for ia in offline.incidents}
    assert {(i["kind"], i["onset_row"]) for i in stopped["incidents"]} == wanted
    assert len(wanted) >= 2
    found = [n["id"] for n in notices if n["event"] == "found"]
    assert found == sorted(set(found))
    assert {i["id"] for i in stopped["incidents"]} <= set(found)
    assert (stopped["rows"], stopped["step"]) == (600, 600)


@pytest.mark.slow
def test_each_alarm_runs_the_command_once_for_each_severity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, calls = tmp_path / "call.py", tmp_path / "calls.jsonl"
    script.write_text(
        "import json, os, sys\n"
        "told = json.load(sys.stdin)\n"
        "told['env'] = os.environ['TRIMTAB_KIND'] + '@' + os.environ['TRIMTAB_ONSET']\n"
        "told['argv'] = sys.argv[2:]\n"
        "open(sys.argv[1], 'a').write(json.dumps(told) + '\\n')\n"
    )
    path = tmp_path / "train.jsonl"
    text = log_text((200, 420))
    rows = text.splitlines(keepends=True)
    command = f"{sys.executable} {script} {calls} 'a b' $(reboot)"
    scene = Scene(
        *(appending(path, "".join(rows[i : i + 50])) for i in range(0, 600, 50)), start=0.0
    )
    assert follow(path, scene, "--exec", command, "--fail-on", "warning") == 1
    called = [json.loads(text) for text in calls.read_text().splitlines()]
    assert [(c["incident"]["onset"], c["incident"]["severity"]) for c in called] == [
        (200, "warning"),
        (200, "critical"),
        (420, "warning"),
    ]
    assert called[0]["env"] == "spike@200"
    assert called[0]["argv"] == ["a b", "$(reboot)"]  # no shell has seen it
    assert called[0]["incident"]["causes"]


def clipped_divergence() -> list[str]:
    """A loss that climbs from step 800 on while the norm, logged after clipping, reads 1.0."""
    noise = np.random.default_rng(1).normal(0, 0.03, 1300)
    rows = []
    for s in range(1, 1300):
        loss = 2 + 4 * np.exp(-s / 200) + noise[s] + min(4.0, max(0, s - 800) * 0.1)
        norm = 1.0 if s >= 800 else 0.55 + noise[s]
        rows.append(f'{{"step": {s}, "loss": {loss:.5f}, "grad_norm": {norm:.5f}, "lr": 3e-4}}\n')
    return rows


def grow(path: Path, rows: list[str], *options: str) -> None:
    """Follow a log that is there up to a moment before the trouble, then grows by ten rows a look."""
    path.write_text("".join(rows[:780]))
    looks = [*range(780, 900, 10), *range(900, 1000, 25), *range(1000, len(rows), 100), len(rows)]
    pieces = [appending(path, "".join(rows[a:b])) for a, b in itertools.pairwise(looks)]
    follow(path, Scene(*pieces, start=0.0), *options)


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str]:
    """What is said of the divergence, and the severities that the command was called with."""
    folder, shown = tmp_path_factory.mktemp("diverged"), io.StringIO()
    calls = folder / "calls"
    tee = (
        f"{sys.executable} -c \"import os; open('{calls}',"
        " 'a').write(os.environ['TRIMTAB_SEVERITY'] + ' ')\""
    )
    with contextlib.redirect_stdout(shown):
        grow(folder / "train.jsonl", clipped_divergence(), "--exec", tee)
    return notices_of(shown.getvalue()), calls.read_text()


@pytest.mark.slow
def test_a_frozen_norm_beside_a_divergence_takes_nothing_of_it(
    diverged: tuple[list[dict[str, Any]], str],
) -> None:
    notices, _ = diverged
    loss = [n["incident"] for n in notices if n["id"] == 1]
    assert all("loss" in i["signals"] for i in loss)
    ranks = [["info", "warning", "critical"].index(i["severity"]) for i in loss]
    assert ranks == sorted(ranks)
    assert ranks[-1] == 2
    stopped = {i["id"]: i["kind"] for i in notices[-1]["incidents"]}
    assert stopped[1] in ("unrecovered-spike", "divergence")
    assert [k for k in stopped.values() if k == "frozen-signal"] == ["frozen-signal"]
    assert len(stopped) == 2
    assert not any(n["event"] == "withdrawn" for n in notices)


@pytest.mark.slow
def test_the_headline_keeps_up_with_the_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grow(tmp_path / "train.jsonl", clipped_divergence()[:986])
    notices = said(capsys)
    assert "→ 6." in notices[-1]["incidents"][0]["headline"]
    told = [n["text"] for n in notices if n["id"] == 1]
    assert any(t.startswith("worse") for t in told)
    assert len(told) <= 6


def test_an_alarm_that_turns_critical_calls_again(
    diverged: tuple[list[dict[str, Any]], str],
) -> None:
    assert diverged[1] == "warning critical "


def test_a_hang_does_not_put_off_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(log_text(num_steps=300))
    scene = Scene(start=path.stat().st_mtime)
    scene.happenings = [scene.wait(40)] * 10
    follow(path, scene, "--until-idle", "100", "--interval", "5")
    hang = next(n for n in said(capsys) if (n.get("incident") or {}).get("kind") == "hang")
    assert "usually one every 1 s" in hang["text"]
    assert scene.now - path.stat().st_mtime < 160


@pytest.mark.slow
def test_the_pace_in_a_hang_is_not_that_of_the_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.jsonl"
    text = log_text(num_steps=300).replace(', "step_time_s": 1.0', "")
    rows = text.splitlines(keepends=True)
    pieces = [appending(path, "".join(rows[i : i + 50])) for i in range(0, 300, 50)]
    scene = Scene(*pieces, start=0.0)
    scene.happenings += [scene.wait(200)]
    follow(path, scene)
    hang = next(n for n in said(capsys) if (n.get("incident") or {}).get("kind") == "hang")
    assert "one every" not in hang["text"]
    assert "rows came within 5 s" in hang["text"]


def test_what_was_there_before_can_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = tmp_path / "calls"
    path = tmp_path / "train.jsonl"
    rows = log_text((200, 420)).splitlines(keepends=True)
    path.write_text("".join(rows[:300]))
    scene = Scene(appending(path, "".join(rows[300:])), start=0.0)
    tee = (
        f"{sys.executable} -c \"import os; open('{calls}', 'a').write(os.environ['TRIMTAB_ONSET'] +"
        " ' ')\""
    )
    follow(path, scene, "--exec", tee, "--new-only")
    assert calls.read_text() == "420 "


def test_a_command_that_fails_or_a_dead_webhook_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(log_text((200,)))
    scene = Scene(start=0.0)
    code = follow(path, scene, "--exec", "/no/such/command", "--webhook", "http://127.0.0.1:9/x")
    out, err = capsys.readouterr()
    assert code == 0
    assert "cannot be run" in err
    assert "not delivered" in err
    assert err.count("watching continues") >= 1  # not where the watch is over
    assert json.loads(out.splitlines()[-1])["event"] == "stopped"


def test_the_webhook_gets_the_incident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    got: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    path = tmp_path / "train.jsonl"
    path.write_text(log_text((200,)))
    try:
        scene = Scene(start=0.0)
        follow(path, scene, "--webhook", f"http://127.0.0.1:{server.server_port}/hook")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [g["incident"]["kind"] for g in got] == ["spike"]
    assert got[0]["event"] == "found"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"SSH-2.0-Open\r\n\r\n", "not delivered (SSH"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n", "not delivered (got more"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", "not delivered (got more"),
        (b"HTTP/1.1 302 x\r\nLocation: http://a:b/\r\n\r\n", "redirected to http://a;"),
        (b"HTTP/1.1 307 x\r\nLocation: /there\r\n\r\n", "redirected to another path;"),
    ],
)
def test_what_a_webhook_answers_stops_nothing_and_is_not_followed(
    answer: bytes, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[bytes] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked.append(self.connection.recv(1 << 16)[:4])
            self.wfile.write(answer)

    path = tmp_path / "train.jsonl"
    path.write_text(log_text((200,)))
    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.server_address[1]
            code = follow(path, Scene(start=0.0), "--webhook", f"http://127.0.0.1:{port}/")
        finally:
            server.shutdown()
            thread.join()
    assert code == 0
    assert told in capsys.readouterr().err
    assert asked == [b"POST"]


def test_a_pipe_in_place_of_the_log_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(log_text())

    def replace() -> None:
        path.unlink()
        os.mkfifo(path)

    lines: list[str] = []
    assert follow(path, Scene(replace, lambda: lines.append("on"), start=0.0)) == 0
    assert lines == ["on"]


def test_a_silence_is_a_hang_once_and_its_end_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(log_text(num_steps=300))
    start = path.stat().st_mtime
    scene = Scene(start=start)
    scene.happenings = [
        scene.wait(30),
        scene.wait(20),
        scene.wait(60),
        scene.wait(600),
        appending(path, line(301, 2.5)),
    ]
    assert follow(path, scene, "--fail-on", "critical") == 1
    told = [(n["event"], (n.get("incident") or {}).get("kind")) for n in said(capsys)]
    assert told.count(("found", "hang")) == 1
    assert told.index(("found", "hang")) < told.index(("goes-on", None))


def test_a_pace_of_an_hour_a_row_is_no_hang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(log_text(num_steps=100).replace('"step_time_s": 1.0', '"step_time_s": 3600'))
    scene = Scene(start=path.stat().st_mtime)
    scene.happenings = [scene.wait(3600 * 10)]
    follow(path, scene)
    assert not any(n["event"] == "found" for n in said(capsys))


def test_another_log_at_the_path_is_judged_from_its_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(log_text((200,)))

    def rotate() -> None:
        path.rename(tmp_path / "train.jsonl.1")
        path.write_text(log_text((300,)).replace('"loss": 2', '"loss":  2'))

    def truncate() -> None:
        path.write_text("")

    scene = Scene(rotate, truncate, appending(path, log_text()), start=0.0)
    follow(path, scene)
    notices = said(capsys)
    events = [n["event"] for n in notices]
    assert events.count("anew") == 2
    assert "withdrawn" not in events  # what stood in the other log was true of it
    assert [n["incident"]["onset"] for n in notices if n["event"] == "found"] == [200, 300]
    assert notices[-1]["incidents"] == []


@pytest.mark.parametrize("cut", [False, True])
def test_fail_on_remembers_what_was_not_over_in_rows_that_are_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, cut: bool
) -> None:
    path = tmp_path / "train.jsonl"
    rows = [line(i, 2.0 + 0.02 * (i % 7) + 4.0 * (i >= 300)) for i in range(1, 501)]
    path.write_text("".join(rows))

    def replace() -> None:
        path.write_text("".join(rows[:250]) if cut else log_text().replace("loss", "train_loss"))

    assert follow(path, Scene(replace, start=0.0), "--fail-on", "critical") == 1
    notices = said(capsys)
    headline = next(n["text"] for n in notices if n["event"] == "found")
    (told,) = [n for n in notices[1:-1] if headline in n["text"] and n["event"] != "found"]
    assert told["event"] == ("changed" if cut else "anew")
    assert ("the log became shorter (500 rows, now 250)" in told["text"]) is cut
    assert "withdrawn" not in [n["event"] for n in notices]
    assert "not over in rows that are gone" in notices[-1]["text"]


def test_fail_on_counts_a_critical_alarm_that_hindsight_lowered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, u = tmp_path / "train.jsonl", np.arange(1000) % 500 / 500
    rate = (1 + np.cos(np.pi * u)) / 2
    rise = rate * np.where(np.arange(1000) < 500, 1.0, np.minimum(1.0, u / 0.3))
    noise = np.random.default_rng(0).normal(0, 0.02, 1000)
    loss = 2 + 6 * np.exp(-np.arange(1000) / 60) + rise + noise
    rows = [
        json.dumps({"step": i + 1, "loss": float(y), "lr": 1e-3 * float(0.01 + r)}) + "\n"
        for i, (y, r) in enumerate(zip(loss, rate, strict=True))
    ]
    path.write_text("".join(rows[:600]))
    assert follow(path, Scene(appending(path, "".join(rows[600:])), start=0.0)) == 0
    told = said(capsys)
    assert [n["incident"]["severity"] for n in told if n.get("incident")][:2] == [
        "critical",
        "info",
    ]
    assert "1 told as more severe before" in told[-1]["text"]
    path.write_text("".join(rows[:600]))
    scene = Scene(appending(path, "".join(rows[600:])), start=0.0)
    assert follow(path, scene, "--fail-on", "critical") == 1


def test_a_copy_that_replaces_the_log_is_the_same_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, copy = tmp_path / "train.jsonl", tmp_path / "copy"
    rows = log_text((200,)).splitlines(keepends=True)
    path.write_text("".join(rows[:400]))

    def sync() -> None:  # as rsync does
        copy.write_text("".join(rows))
        copy.replace(path)

    follow(path, Scene(sync, start=0.0))
    events = [n["event"] for n in said(capsys)]
    assert "anew" not in events
    assert events.count("found") == 1


def test_a_path_that_cannot_be_looked_at_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    path.symlink_to(path)
    follow(path, Scene(start=0.0))
    (waiting,) = [n for n in said(capsys) if n["event"] == "waiting"]
    assert "cannot be looked at (Too many levels of symbolic links)" in waiting["text"]


def test_a_folder_that_cannot_be_listed_for_a_moment_is_said_and_followed_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "run" / "train.jsonl"
    log.parent.mkdir()
    rows = log_text((200,)).splitlines(keepends=True)
    log.write_text("".join(rows[:150]))
    lists = Path.iterdir

    def failing(path: Path) -> Iterator[Path]:
        if path == log.parent:
            raise OSError(errno.EIO, "Input/output error")
        return lists(path)

    scene = Scene(
        lambda: monkeypatch.setattr(Path, "iterdir", failing),
        lambda: monkeypatch.setattr(Path, "iterdir", lists),
        appending(log, "".join(rows[150:])),
        start=0.0,
    )
    follow(log.parent, scene)
    notices = said(capsys)
    (unseen,) = [n for n in notices if n["event"] == "unreadable"]
    assert "cannot be looked at (Input/output error)" in unseen["text"]
    assert [n["event"] for n in notices].count("found") == 1


def test_a_log_that_cannot_be_read_any_more_is_not_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.jsonl"
    rows = log_text().splitlines(keepends=True)
    log.write_text("".join(rows[:400]))
    others = "".join(str(json.loads(row)) + "\n" for row in rows[400:])
    follow(log, Scene(appending(log, others), start=0.0))
    last = said(capsys)[-1]
    assert last["event"] == "stopped"
    assert last["verdict"] == "not-judged"
    assert "not a JSON object" in last["judged"]["why"]


def test_half_a_number_at_the_end_is_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.csv"
    noise = np.random.default_rng(0).normal(0, 0.03, 401)
    rows = [f"{s},{2.5 + noise[s]:.6f}\n" for s in range(1, 401)]
    rows[300] = "301,25000000.1\n"
    path.write_text("step,loss\n" + "".join(rows[:300]))
    last = rows[399].strip()
    scene = Scene(
        appending(path, "301,2500"),
        appending(path, "0000.1\n"),
        appending(path, "".join(rows[301:399]) + last),
        start=0.0,
    )
    follow(path, scene)
    found = [n for n in said(capsys) if n["event"] == "found"]
    assert len(found) == 1
    assert found[0]["incident"]["onset"] == 301
    assert "2.5e+07" in found[0]["text"]


@pytest.mark.parametrize("wait_s", [0.0, 60.0])
def test_a_last_line_that_never_ends_is_taken_at_last(
    wait_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.csv"
    path.write_text("step,loss\n" + "".join(f"{s},2.5\n" for s in range(1, 100)) + "100,2.5")
    scene = Scene(start=path.stat().st_mtime)
    scene.happenings = [scene.wait(wait_s)]
    follow(path, scene)
    assert said(capsys)[-1]["rows"] == 100


def test_nothing_is_read_again_while_nothing_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(log_text())
    reads = []

    def counting(given: Any) -> Any:
        reads.append(given)
        return read_run(given)

    monkeypatch.setattr("trimtab.monitor.follow.read_newest", counting)
    scene = Scene(start=path.stat().st_mtime)
    scene.happenings = [scene.wait(1)] * 10
    follow(path, scene)
    assert len(reads) == 2  # and once as a log that stands still


def test_inspect_follow_stops_when_idle(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(log_text((200,)))
    code, out, _ = run("inspect", path, "--follow", "--interval", "0.05", "--until-idle", "0.2")
    assert code == 0
    lines = out.strip().splitlines()
    assert lines[0].startswith("○ started  600 rows so far, jsonl")
    assert lines[1].startswith("● found #1  warning  loss spike")
    assert lines[-1].startswith("stopped at step 600, loss 2.4")


@pytest.mark.parametrize(
    "options",
    [
        *(["--interval", text] for text in ("0", "nan", "inf", "1e20")),
        *(["--hang", text] for text in ("nan", "-1")),
        *(["--webhook", text] for text in NO_ADDRESSES),
        ["--exec", "'open"],
        ["--exec", ""],
    ],
)
def test_impossible_options(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(tmp_path / "x.log"), *options, "--until-idle", "0"]) == 2
    assert capsys.readouterr().err.startswith("trimtab: ")


@pytest.mark.slow
def test_ctrl_c_ends_it_with_the_state(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(log_text())
    arguments = [sys.executable, "-m", "trimtab", "watch", str(path), "--interval", "0.05"]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "started" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.startswith("stopped at step 600")
    assert err == ""


def test_standard_input_is_followed_to_its_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    end, begin = os.pipe()

    def write() -> None:
        with os.fdopen(begin, "w") as pipe:
            pipe.write(log_text((300,), 400))

    writer = threading.Thread(target=write)
    writer.start()
    with os.fdopen(end, encoding="utf-8") as piped:
        monkeypatch.setattr(sys, "stdin", piped)
        code, out, _ = run("watch", "-", "--interval", "0.05", "--json")
    writer.join()
    told = [json.loads(text) for text in out.splitlines()]
    assert code == 0
    assert {t["path"] for t in told} == {"-"}
    assert [t["rows"] for t in told if t["event"] == "stopped"] == [400]
    assert any(t["event"] == "found" and t["incident"]["kind"] for t in told)


@pytest.mark.slow
def test_watch_ends_by_sigterm_as_by_ctrl_c_and_leaves_no_command(tmp_path: Path) -> None:
    path, marker = tmp_path / "train.jsonl", tmp_path / "ran"
    path.write_text(log_text((200,)))
    sleeper = (
        f"{sys.executable} -c 'import sys, time; open(sys.argv[1], \"w\"); time.sleep(3)' {marker}"
    )
    argv = [sys.executable, "-m", "trimtab", "watch", str(path), "--interval", "0.1"]
    with subprocess.Popen(
        [*argv, "--exec", sleeper], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not marker.exists():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "stopped at step 600" in out
    assert "Traceback" not in err


def test_a_log_that_ended_long_ago_is_no_hang_at_the_first_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(log_text(num_steps=300))
    scene = Scene(start=path.stat().st_mtime + 5000.0)
    scene.happenings = [scene.wait(5)] * 3
    assert follow(path, scene, "--until-idle", "10", "--fail-on", "critical") == 0
    assert not any((n.get("incident") or {}).get("kind") == "hang" for n in said(capsys))
    scene = Scene(start=path.stat().st_mtime + 5000.0)
    scene.happenings = [scene.wait(40)] * 3
    assert follow(path, scene, "--fail-on", "critical") == 1
    assert any((n.get("incident") or {}).get("kind") == "hang" for n in said(capsys))
