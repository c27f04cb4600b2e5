"""Text from outside steers no terminal, page, Markdown or command, by whichever door it comes."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.chronicle.journal import Journal
from trimtab.cli import main
from trimtab.masking import MASK

SECRET = "hf_" + "Zx9secretQ7vaLue4Zx9secretQ7"
EVIL = (
    "\x1b[31mred\x1b[2J\x1b]8;;http://evil.test\x07link\x1b]8;;\x07\x1b]52;c;ZXZpbA==\x07"
    "\x9b31m\x9d0;t\x9c\rover\x08\x7f\u202egnp.\u2066x\u2069\u200bz\ufeff\u2028\u0085"
    "</script><img src=x onerror=alert(1)><script>alert(2)</script>"
    "[click](javascript:alert(3)) ![i](http://evil.test/i) `tick` | pipe | $(touch pwned) ${{ x }}"
)
STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
KEY = EVIL.replace("\r", "").replace("\u2028", "").replace("\u0085", "")


def harmless(text: str) -> str:
    found = STEERING.search(text)
    assert found is None, text[max(0, found.start() - 60) : found.end() + 60].encode()
    assert "Zx9secret" not in text
    return text


def harmless_page(text: str) -> str:
    harmless(text)
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    assert text.count("<script") == text.count("</script>")
    return text


def harmless_markdown(text: str) -> str:
    harmless(text)
    assert not re.search(r"(?<!\\)<(?:img|script|/script)", text)
    assert not re.search(r"(?<!\\)\]\((?:javascript|http)", text)
    return text


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command; return what it printed, checked."""

    def run(*arguments: object, code: tuple[int, ...] = (0,)) -> str:
        assert main([str(a) for a in arguments]) in code
        out, err = capsys.readouterr()
        harmless(err)
        return harmless(out)

    return run


def rows(n: int = 120, *, spike: int = 80) -> list[dict[str, object]]:
    return [
        {"step": i, "loss": 9.5 if i == spike else 2.5 - i * 0.002, "lr": 1e-4} for i in range(1, n)
    ]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log whose name and keys are hostile."""
    path = tmp_path / f"{'x' + EVIL[:8] + EVIL[-60:].replace('/', '')}.jsonl"
    lines = [{**row, f"{KEY} loss": 1.0, f"token={SECRET}": 1, KEY: KEY} for row in rows()]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """A run whose journal and settings are hostile, written as another program would."""
    run = tmp_path / "run\u202eevil"
    (run / "signals").mkdir(parents=True)
    (run / "signals" / "1.0.jsonl").write_text("\n".join(json.dumps(r) for r in rows()) + "\n")
    settings = {"api_key": SECRET, "name": EVIL, "url": f"https://me:{SECRET}@host/x", EVIL: EVIL}
    events: list[tuple[str, dict[str, object]]] = [
        ("start", {"settings": settings, "environment": {"HF_TOKEN": SECRET, "x": EVIL}}),
        ("attempt", {"number": "1.0", "why": EVIL, "settings": settings}),
        ("incident", {"state": "opened", "kind": EVIL, "onset": 80, "headline": EVIL}),
        ("decision", {"what": EVIL, "why": EVIL, "evidence": [EVIL]}),
        ("action", {"remedy": EVIL, "values": {"to_step": EVIL, EVIL: EVIL}, "why": EVIL}),
        ("outcome", {"remedy": EVIL, "verdict": EVIL, "text": EVIL, "figures": {EVIL: EVIL}}),
        ("fault", {"where": EVIL, "error": EVIL}),
        ("note", {"author": EVIL, "text": f"{EVIL} password={SECRET}"}),
        ("end", {"reason": EVIL, "final_step": 119}),
    ]
    lines = [
        {"t": f"2025-01-01T00:00:{i:02}Z{EVIL}", "event": e, "attempt": "1.0", "step": i, **data}
        for i, (e, data) in enumerate(events)
    ]
    (run / "journal.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    (run / "run.toml").write_text(
        f'lr = 1e-4\napi_key = "{SECRET}"\nname = {json.dumps(EVIL)}\n', encoding="utf-8"
    )
    return run


def test_inspect(log: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    page = tmp_path / "page.html"
    said("inspect", log, "--all", "--html", page, code=(0, 1))
    harmless_page(page.read_text(encoding="utf-8"))
    json.loads(said("inspect", log, "--json", code=(0, 1)))


def test_a_file_that_cannot_be_read(tmp_path: Path, said: Callable[..., str]) -> None:
    path = tmp_path / "bad\x1b[31m\u202e.jsonl"
    path.write_text(f'{{"step": 1, "loss": "{SECRET}"}}\n{EVIL}\n{EVIL}\n')
    said("inspect", path, code=(2,))
    said("inspect", path, "--json", code=(2,))
    said("similar", path, path, "--among", path, code=(2,))
    said("watch", path, "--until-idle", "0", "--interval", "0.01", code=(0, 2))


@pytest.mark.slow
def test_a_run_directory(run_directory: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    logbook = harmless_markdown(said("chronicle", run_directory))
    assert "api key \\*\\*\\*" in logbook
    assert "https://me:\\*\\*\\*@host/x" in logbook
    out = tmp_path / "logbook.md"
    said("chronicle", run_directory, "--out", out)
    harmless_markdown(out.read_text(encoding="utf-8"))
    events = json.loads(said("chronicle", run_directory, "--json"))["events"]
    assert events[0]["settings"]["api_key"] == MASK
    page = tmp_path / "page.html"
    said("report", run_directory, "--out", page, "--title", EVIL)
    harmless_page(page.read_text(encoding="utf-8"))
    said("inspect", run_directory, "--all", code=(0, 1))
    said("journal", "check", run_directory, code=(0, 1))
    said("journal", "check", run_directory, "--json", code=(0, 1))
    said("inspect", run_directory, "--json", code=(0, 1))


def test_compare(run_directory: Path, log: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    a, b = tmp_path / "a.toml", tmp_path / "b.yaml"
    a.write_text(f'lr = 1e-4\napi_key = "{SECRET}"\nname = {json.dumps(EVIL)}\n', encoding="utf-8")
    b.write_text(f'lr: 2e-4\napi_key: "other{SECRET}"\nname: x\n"{"k" + "e"}": 1\n')
    page = tmp_path / "page.html"
    told = said("compare", run_directory, log, "--configs", a, b, "--html", page)
    assert "api_key" in told
    assert MASK in told
    harmless_page(page.read_text(encoding="utf-8"))
    document = said("compare", run_directory, log, "--configs", a, b, "--json")
    assert "api_key" in document
    assert MASK in document


def test_watch_and_its_command(log: Path, tmp_path: Path, said: Callable[..., str]) -> None:
    seen, script = tmp_path / "seen.json", tmp_path / "tell.py"
    script.write_text(
        "import json, os, sys\nenv = {k: v for k, v in os.environ.items() if k[:8] == 'TRIMTAB_'}\n"
        f"json.dump([env, json.load(sys.stdin)], open({str(seen)!r}, 'w'))\n"
    )
    options = ("--until-idle", "0", "--interval", "0.01", "--on", "info")
    said("watch", log, *options, "--exec", f"{sys.executable} {script}", code=(0, 1))
    environment, document = json.loads(seen.read_text())
    assert environment["TRIMTAB_KIND"] == "spike"
    assert document["incident"]["kind"] == "spike"
    for value in environment.values():
        harmless(value)
    for line in said("watch", log, *options, "--json", code=(0, 1)).splitlines():
        json.loads(line)
    assert not (Path.cwd() / "pwned").exists()
    assert not (tmp_path / "pwned").exists()


def test_preflight_and_plan(tmp_path: Path, said: Callable[..., str]) -> None:
    config = tmp_path / "c\u202e\x1b[31m.yaml"
    text = {"learning_rate": 9.0, "api_key": SECRET, KEY: KEY, "optim": EVIL, "model_name": EVIL}
    config.write_text(json.dumps({**text, "hub": {"token": SECRET}, "lr_scheduler_type": EVIL}))
    said("preflight", config, code=(0, 1, 2))
    said("preflight", config, "--json", code=(0, 1, 2))
    said("preflight", tmp_path / f"no{EVIL[:8]}\u202e token={SECRET}", code=(2,))
    said("explain", f"{EVIL} token={SECRET}", code=(2,))


def test_scan(tmp_path: Path, said: Callable[..., str]) -> None:
    data = tmp_path / "data\u202e\x1b[31m.jsonl"
    documents = [{"text": f"{EVIL} {i % 3} api_key={SECRET}", EVIL: EVIL} for i in range(50)]
    data.write_text("\n".join(json.dumps(d) for d in documents) + "\n")
    said("scan", data, code=(0, 1))
    said("scan", data, "--json", code=(0, 1))


def test_the_journal_holds_no_secret(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    settings = {"api_key": SECRET, "argv": ["train.py", "--hub-token", "abc123"], "lr": 1e-4}
    journal.append("start", attempt="", step=0, settings=settings)
    journal.append("note", attempt="", step=0, text=f"pushed with {SECRET}", num_tokens=4096)
    journal.close()
    first, second = (json.loads(x) for x in journal.path.read_text().splitlines())
    assert first["settings"] == {
        "api_key": MASK,
        "argv": ["train.py", "--hub-token", MASK],
        "lr": 1e-4,
    }
    assert second["text"] == f"pushed with {MASK}"
    assert second["num_tokens"] == 4096
