"""A receiver of messages can do what it likes: the watch goes on, and what is lost is told."""

import http.server
import json
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trimtab.errors import ConfigError
from trimtab.limits import MAX_WEBHOOK_QUEUE
from trimtab.monitor.notifier import parse_url
from trimtab.monitor.webhook import Webhook

Answer = Callable[[socket.socket, threading.Event], None]


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answers: list[Answer]) -> None:
        self.answers, self.got, self.over = answers, list[bytes](), threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, *_: object) -> None:
        pass

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class Handler(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.request.recv(1 << 16)
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = head.partition(b"\r\n\r\n")[2]
        while len(body) < size:
            body += self.request.recv(1 << 16)
        self.server.got.append(body)
        number = min(len(self.server.got), len(self.server.answers)) - 1
        self.server.answers[number](self.request, self.server.over)


def says(data: bytes) -> Answer:
    return lambda connection, _: connection.sendall(data)


def hangs(_: socket.socket, over: threading.Event) -> None:
    over.wait(20)


def drips(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while not over.wait(0.02):
        connection.sendall(b"y")


def continues(connection: socket.socket, over: threading.Event) -> None:
    while not over.wait(0.001):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


OK = says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
BUSY = says(b"HTTP/1.1 500 x\r\nContent-Length: 0\r\n\r\n")


@contextmanager
def serving(*answers: Answer) -> Iterator[Server]:
    with Server(list(answers)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


def hook(url: str, told: list[str], *, waits_s: tuple[float, ...] = (0.01, 0.02)) -> Webhook:
    return Webhook(url, say=told.append, deadline_s=0.3, waits_s=waits_s)


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("answer", [hangs, drips, continues])
def test_a_server_that_never_ends_is_given_up_in_time(answer: Answer) -> None:
    told: list[str] = []
    with serving(answer) as server:
        messages = hook(server.url, told)
        messages.send("{}")
        assert not told  # whoever sends does not wait
        wait_until(lambda: bool(told))
        messages.close()
        assert len(server.got) == 3
    assert told == ["not delivered (no whole answer within 0.3 s)"]


def test_an_error_of_the_server_is_tried_again() -> None:
    told: list[str] = []
    with serving(BUSY, BUSY, OK) as server:
        messages = hook(server.url, told)
        messages.send('{"n": 1}')
        messages.send('{"n": 2}')
        wait_until(lambda: len(server.got) == 4)
        messages.close()
        assert [json.loads(g)["n"] for g in server.got] == [1, 1, 1, 2]
    assert told == []


def test_a_failure_is_told_once_and_its_end_too() -> None:
    told: list[str] = []
    gone = says(b"HTTP/1.1 404 gone\x1b[2J\r\nContent-Length: 0\r\n\r\n")
    with serving(gone, gone, OK) as server:
        messages = hook(server.url, told)
        for n in range(3):
            messages.send(str(n))
        wait_until(lambda: len(told) == 2)
        messages.close()
        assert server.got == [b"0", b"1", b"2"]
    assert told == ["not delivered (HTTP Error 404: gone)", "messages arrive again; 2 did not"]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(code: int) -> None:
    told: list[str] = []
    with (
        serving(OK) as other,
        serving(says(f"HTTP/1.1 {code} x\r\nLocation: {other.url}\r\n\r\n".encode())) as server,
    ):
        messages = hook(server.url, told)
        messages.send("{}")
        messages.close()
        assert len(server.got) == 1
        assert other.got == []
    # The path of a webhook is often its secret: no more than the host is shown.
    assert told == ["not delivered (redirected to http://127.0.0.1; give the address it moved to)"]


def test_a_body_without_end_is_not_read() -> None:
    def endless(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while not over.is_set():
            connection.sendall(b"y" * 65536)

    told: list[str] = []
    with serving(endless) as server:
        messages = hook(server.url, told)
        messages.send("{}")
        messages.close()
    assert told == []


def test_the_end_waits_a_bounded_time_and_tells_what_is_left() -> None:
    told: list[str] = []
    with serving(hangs) as server:
        messages = Webhook(server.url, say=told.append, deadline_s=5, waits_s=(5,))
        messages.send("1")
        messages.send("2")
        start = time.monotonic()
        messages.close(wait_s=0.2)
        assert time.monotonic() - start < 4.5  # a deadline is 5 s
    assert told == ["2 messages not delivered within 0.2 s of the end"]


def test_the_queue_is_bounded() -> None:
    told: list[str] = []
    with serving(hangs) as server:
        messages = Webhook(server.url, say=told.append, deadline_s=5, waits_s=(5,))
        for n in range(3 * MAX_WEBHOOK_QUEUE):
            messages.send(str(n))
        messages.close(wait_s=0.1)
    assert told[0] == f"more than {MAX_WEBHOOK_QUEUE} messages wait; the oldest are dropped"
    left = int(told[1].partition(" messages not delivered")[0])
    assert left - MAX_WEBHOOK_QUEUE in (0, 1)  # the first may have been taken already
    assert len(told) == 2


def test_a_name_that_is_looked_up_for_ever_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def slow(*_: object, **__: object) -> list[object]:
        over.wait(10)
        raise OSError("late")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    told: list[str] = []
    messages = hook("http://somewhere.test/", told, waits_s=(0.01,))
    messages.send("{}")
    wait_until(lambda: bool(told))
    messages.close()
    over.set()
    assert told == ["not delivered (the name of the host is still looked up)"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext"
    subprocess.run(
        [*command.split(), "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    got: list[bytes] = []

    class Posted(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Posted)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate, key)
    server.socket = own.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    told: list[str] = []
    try:
        url = f"https://localhost:{server.server_address[1]}/"
        strict = hook(url, told)
        strict.send("1")
        strict.close()
        assert len(told) == 1
        assert "CERTIFICATE_VERIFY_FAILED" in told[0]
        trusting = ssl.create_default_context(cafile=str(certificate))
        messages = Webhook(url, say=told.append, deadline_s=5, waits_s=(), context=trusting)
        messages.send("2")
        messages.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert got == [b"2"]
    assert len(told) == 1


@pytest.mark.parametrize(
    "url", ["ftp://host/", "file:///etc/passwd", "https://me:pw@host/x", "https://me@host/", "//h"]
)
def test_another_kind_of_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--webhook") as caught:
        parse_url(url)
    assert "pw" not in str(caught.value).replace("passwd", "")
