"""Where an alarm goes: a command of the user's, a web address, people by chat, mail or pager.

A failed delivery is reported on stderr and stops nothing. Text of a log reaches a command in its
environment and its input only, in one harmless line each; no shell sees it.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from queue import Full, Queue
from typing import Any, Self
from urllib.parse import urlsplit

from trimtab.errors import ConfigError
from trimtab.limits import MAX_WEBHOOK_QUEUE
from trimtab.monitor.channels import Recipient, letter
from trimtab.monitor.webhook import Webhook
from trimtab.text import plain, visible

__all__ = ["Alarm", "parse_command", "parse_url"]

COMMAND_TIMEOUT_S = 60.0
_SLACK_S = 1.0


def parse_command(text: str) -> tuple[str, ...]:
    """Return a command as a list of arguments; no shell will see it.

    Raises:
        ConfigError: It is empty or a quote is left open.
    """
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--exec {text!r}: {error}; close the quotes") from error
    if not argv:
        raise ConfigError("--exec: empty; give a command")
    return argv


def parse_url(text: str) -> str:
    """Return a web address.

    Raises:
        ConfigError: It is not one, or names no host or no port that there is.
    """
    if not text.startswith(("http://", "https://")):
        raise ConfigError(f"--webhook {text!r}: not a web address; begin it with https://")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"--webhook {text!r}: {error}; correct the address") from error
    if not host or port == 0:
        raise ConfigError(f"--webhook {text!r}: names no host and port; correct the address")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "--webhook: names a user or password before its host, which is not sent; "
            "give an address without one"
        )
    if re.search(r"[^!-~]", text):
        raise ConfigError(
            f"--webhook {text!r}: has a space or another sign that no address has; "
            "write it as %20, and a host in its xn-- form"
        )
    return text


class Alarm:
    """Where to send an incident; `close` it, or use it in a `with` block."""

    def __init__(
        self, *, command: tuple[str, ...] = (), url: str = "", people: tuple[str, ...] = ()
    ) -> None:
        """Keep where to send.

        Args:
            command: The arguments of a command; () for none.
            url: A web address; "" for none.
            people: Addresses as Apprise writes them; () for none.

        Raises:
            ConfigError: Apprise is not installed, or an address is not one.
        """
        self.command = command
        self._waiting: Queue[tuple[str, Mapping[str, Any]] | None] = Queue(MAX_WEBHOOK_QUEUE)
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        """The command that runs now."""
        self._closing, self._over = False, False
        """Whether the end has come, and whether no command may be started any more."""
        self._webhook = (
            Webhook(url, say=lambda text: _say(f"--webhook: {text}", goes_on=not self._closing))
            if url
            else None
        )
        self._recipients = [
            Recipient(p, say=lambda text: _say(f"--notify {text}", goes_on=not self._closing))
            for p in people
        ]

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Give what is still to be run and posted a bounded time, and end what is not done then."""
        self._closing = True
        ends = [recipient.close for recipient in self._recipients]
        if self._webhook is not None:
            ends.append(self._webhook.close)
        closing = [threading.Thread(target=end, daemon=True) for end in ends]
        for thread in closing:  # all wait beside each other, not one after the other
            thread.start()
        if self._thread is not None:
            with contextlib.suppress(Full):
                self._waiting.put_nowait(None)
            try:
                # A little more than a command has: the one that hangs says so itself.
                self._thread.join(COMMAND_TIMEOUT_S + _SLACK_S)
            except KeyboardInterrupt:  # a second one: whoever sent it does not wait
                self._over = True
                if (process := self._process) is not None:
                    _end(process)
                raise
            self._over = True
            if self._thread.is_alive() and (process := self._process) is not None:
                _end(process)
                self._say_ended(f"ended, not done {COMMAND_TIMEOUT_S:g} s after the end")
        for thread in closing:
            thread.join()

    def raise_for(self, document: Mapping[str, Any]) -> None:
        """Have the command run, the document posted and the people told, in the background.

        Whoever watches never waits: a mail server that hangs holds no restart up. What failed is
        said on stderr.
        """
        text = json.dumps(document, allow_nan=False)
        if self.command:
            self._start(text, document["incident"])
        if self._webhook is not None:
            self._webhook.send(text)
        if self._recipients:
            subject, body = letter(document)
            for recipient in self._recipients:
                recipient.send(subject, body, document["incident"].get("severity", "info"))

    def _start(self, text: str, incident: Mapping[str, Any]) -> None:
        try:
            self._waiting.put_nowait((text, incident))
        except Full:
            _say(f"--exec {self.command[0]}: {MAX_WEBHOOK_QUEUE} alarms wait; one is dropped")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="alarm", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (told := self._waiting.get()) is not None and not self._over:
            self._run(*told)

    def _run(self, text: str, incident: Mapping[str, Any]) -> None:
        names = ("kind", "severity", "attempt", "onset", "headline")
        given = {f"TRIMTAB_{n.upper()}": plain(incident.get(n)) for n in names}
        try:
            with subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                text=True,
                env={**os.environ, **given},
                stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
                # What it starts can be ended with it; the session is ours, unlike that of a
                # supervised command.
                process_group=0,
            ) as self._process:
                self._wait_for(self._process, text)
        except (OSError, ValueError) as error:
            _say(f"--exec {self.command[0]}: cannot be run ({error})")
        self._process = None

    def _wait_for(self, process: "subprocess.Popen[str]", text: str) -> None:
        try:
            process.communicate(text, timeout=COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _end(process)
            self._over = self._closing
            self._say_ended(f"stopped after {COMMAND_TIMEOUT_S:g} s")
        else:
            if process.returncode and not self._over:
                _say(f"--exec {self.command[0]}: ended with {process.returncode}")

    def _say_ended(self, how: str) -> None:
        left = sum(told is not None for told in self._waiting.queue) if self._over else 0
        more = f", and {left} more alarms not handed to it" if left else ""
        _say(f"--exec {self.command[0]}: {how}{more}", goes_on=not self._closing)


def _end(process: "subprocess.Popen[str]") -> None:
    """Kill a command and all that it started."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


def _has_descriptor() -> bool:
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _say(text: str, *, goes_on: bool = True) -> None:
    if sys.stderr is not None:  # a process without a console has none
        sys.stderr.write(f"trimtab: {visible(text)}{'; watching continues' * goes_on}\n")
        sys.stderr.flush()
