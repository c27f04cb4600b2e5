"""Alarms to people: a real mail server receives them, and one that is dead holds nothing up."""

import json
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from trimtab.errors import ConfigError
from trimtab.monitor.channels import Recipient, letter, parse_channels

apprise = pytest.importorskip("apprise")


class Mailbox:
    """Keeps what a mail server receives."""

    def __init__(self) -> None:
        self.letters: list[EmailMessage] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        self.letters.append(BytesParser(policy=default).parsebytes(envelope.content))
        return "250 taken"


@pytest.fixture
def mails() -> Iterator[tuple[Mailbox, str]]:
    controller = pytest.importorskip("aiosmtpd.controller")
    mailbox = Mailbox()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = controller.Controller(mailbox, hostname="127.0.0.1", port=port)
    server.start()
    try:
        yield mailbox, f"mailto://127.0.0.1:{port}?from=run@example.com&to=me@example.com"
    finally:
        server.stop()


class Refuses(BaseHTTPRequestHandler):
    """Answers late, so that both are under way together, and says no."""

    def do_POST(self) -> None:
        time.sleep(0.3)
        self.send_error(500)

    def log_message(self, *_: object) -> None:
        pass


def spiked(path: Path) -> Path:
    rows = [
        {"step": s, "loss": 2 + math.exp(-s / 150) + 0.01 * math.sin(7.3 * s) + 3 * (s > 450)}
        for s in range(600)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def watch(log: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "trimtab", "watch", str(log), "--until-idle", "0.5"]
    return subprocess.run(
        [*argv, "--interval", "0.1", *more],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def body_of(message: EmailMessage) -> str:
    part = message.get_body(("plain",))
    assert part is not None
    return str(part.get_content())


def test_recipient_of_mail_carries_what_happened_what_to_do_and_the_evidence(
    tmp_path: Path, mails: tuple[Mailbox, str]
) -> None:
    mailbox, address = mails
    done = watch(spiked(tmp_path / "train.jsonl"), "--notify", address)
    assert done.returncode == 0, done.stderr
    (told,) = mailbox.letters
    assert str(told["Subject"]).startswith("trimtab: critical: ")
    lines = body_of(told).splitlines()
    assert "since step 451" in lines[0]
    assert lines[1].startswith("What to do: roll back to a healthy checkpoint")
    assert any(line.startswith("Perhaps: ") for line in lines)
    assert lines[-1] == f"Run: {tmp_path / 'train.jsonl'}"


def test_recipient_tells_who_was_not_reached_without_the_password(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    addresses = tmp_path / "people"
    addresses.write_text(
        f"# on call\n\nmailto://ann:s3cret@127.0.0.1:{port}?from=run@example.com&to=me@example.com\n"
    )
    log = spiked(tmp_path / "train.jsonl")
    began = time.monotonic()
    done = watch(log, "--notify", f"@{addresses}")
    assert done.returncode == 0
    assert "stopped at step 599" in done.stdout
    assert f"--notify mailto://127.0.0.1:{port}: not delivered" in done.stderr
    assert "ann" not in done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 60


def test_recipient_that_hangs_holds_nothing_up() -> None:
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, says nothing
        port = silent.getsockname()[1]
        address = f"mailto://127.0.0.1:{port}?from=a@example.com&to=b@example.com"
        channel = Recipient(address, say=told.append, deadline_s=0.2, waits_s=(0.01,))
        began = time.monotonic()
        channel.send("subject", "body")
        assert time.monotonic() - began < 0.2
        channel.close()
    assert len(told) == 1
    assert "not delivered" in told[0]


def test_parse_channels_names_what_is_wrong_and_shows_no_secret(tmp_path: Path) -> None:
    for text in ("nonsense://tok3n", "tok3n", "mailto://", ""):
        with pytest.raises(ConfigError, match="no address that Apprise knows") as error:
            parse_channels([text])
        assert "tok3n" not in str(error.value)
    (tmp_path / "empty").write_text("# nobody\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_bytes(b"#" * 100_000)
    for name, what in (
        ("none", "cannot be read"),
        ("empty", "no address"),
        ("binary", "cannot be read"),
        ("long", "more than 64 KiB"),
    ):
        with pytest.raises(ConfigError, match=what):
            parse_channels([f"@{tmp_path / name}"])
    assert parse_channels(["json://a.example", "json://a.example"]) == ("json://a.example",)
    (tmp_path / "people").write_bytes(b"\xef\xbb\xbfjson://a.example\n# x\nnonsense://tok3n\n")
    with pytest.raises(ConfigError, match=r"people:3: nonsense://…: no address") as error:
        parse_channels([f"@{tmp_path / 'people'}"])
    assert "tok3n" not in str(error.value)
    with pytest.raises(ConfigError, match="no address"):  # two in one would be told as one
        parse_channels(["json://a.example/x,json://b.example/y"])


def test_recipient_shows_no_part_of_an_address_that_may_be_a_secret() -> None:
    shown = [
        Recipient(address, say=print).shown
        for address in (
            "ntfy://S3CRET",
            "json://me:S3CRET@host.example:81/S3CRET?x=S3CRET",
            "mailto://me:S3CRET@mail.example?to=S3CRET@b.example",
            "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#S3CRET",
        )
    ]
    assert shown == ["ntfy://…", "json://host.example:81", "mailto://mail.example", "slack://…"]


def test_recipients_told_at_once_name_their_own_failure_only() -> None:
    told: dict[int, list[str]] = {0: [], 1: []}
    with (
        socket.create_server(("127.0.0.1", 0)) as closed,
        HTTPServer(("127.0.0.1", 0), Refuses) as s,
    ):
        port = closed.getsockname()[1]
        closed.close()
        threading.Thread(target=s.serve_forever, args=(0.01,), daemon=True).start()
        pair = [
            Recipient(f"json://127.0.0.1:{p}/", say=told[i].append, waits_s=())
            for i, p in enumerate((s.server_address[1], port))
        ]
        for recipient in pair:
            recipient.send("subject", "body")
        for recipient in pair:
            recipient.close()
        s.shutdown()
    assert "500" in told[0][0]
    assert "500" not in told[1][0]
    assert "onnection" in told[1][0]
    assert "onnection" not in told[0][0]


def test_letter_keeps_hostile_text_on_its_line() -> None:
    incident = {
        "kind": "spike",
        "severity": "warning",
        "headline": "loss\r\nBcc: all@example.com\x1b[31m",
        "plan": [{"remedy": "not-known\nhere", "values": {}}],
        "causes": [{"cause": "x", "title": "a\nb", "evidence": ["c\nd"]}],
    }
    subject, body = letter({"incident": incident, "path": "p\nq"})
    assert "\n" not in subject
    assert "\r" not in subject
    assert "\x1b" not in subject + body
    assert len(body.splitlines()) == 4


def test_recipient_threads_end_with_it(mails: tuple[Mailbox, str]) -> None:
    mailbox, address = mails
    told: list[str] = []
    channel = Recipient(address, say=told.append)
    for i in range(3):
        channel.send(f"number {i}", "body")
    channel.close()
    assert told == []
    assert [str(m["Subject"]) for m in mailbox.letters] == ["number 0", "number 1", "number 2"]
    end = time.monotonic() + 5
    while any(t.name.startswith("notify") for t in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.01)
