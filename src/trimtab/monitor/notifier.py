"""Where an alarm goes: a command of the user's, a web address.

A failed delivery is reported on stderr and stops nothing.
"""

import http.client
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlsplit

from trimtab.errors import ConfigError

__all__ = ["Alarm", "parse_command", "parse_url"]

COMMAND_TIMEOUT_S = 60.0
WEBHOOK_TIMEOUT_S = 10.0


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
    if re.search(r"[^!-~]", text):
        raise ConfigError(
            f"--webhook {text!r}: has a space or another sign that no address has; "
            "write it as %20, and a host in its xn-- form"
        )
    return text


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """Where to send an incident."""

    command: tuple[str, ...] = ()
    url: str = ""

    def raise_for(self, document: Mapping[str, Any]) -> None:
        """Run the command and post to the address, each once; say on stderr what failed."""
        text = json.dumps(document, allow_nan=False)
        if self.command:
            self._run(text, document["incident"])
        if self.url:
            self._post(text)

    def _run(self, text: str, incident: Mapping[str, Any]) -> None:
        names = ("kind", "severity", "attempt", "onset", "headline")
        given = {f"TRIMTAB_{n.upper()}": _one_line(incident.get(n)) for n in names}
        try:
            done = subprocess.run(
                self.command,
                input=text,
                text=True,
                env={**os.environ, **given},
                stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            _say(f"--exec {self.command[0]}: stopped after {COMMAND_TIMEOUT_S:g} s")
        except (OSError, ValueError) as error:
            _say(f"--exec {self.command[0]}: cannot be run ({error})")
        else:
            if done.returncode:
                _say(f"--exec {self.command[0]}: ended with {done.returncode}")

    def _post(self, text: str) -> None:
        request = urllib.request.Request(
            self.url, data=text.encode(), headers={"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(_NoRedirect)
        try:
            with opener.open(request, timeout=WEBHOOK_TIMEOUT_S):
                pass
        except urllib.error.HTTPError as error:
            with error:
                to = error.headers.get("Location") if 300 <= error.code < 400 else None
            why = f"{error}" if to is None else f"redirected to {to[:200]!r}; give that address"
            _say(f"--webhook: not delivered ({why})")
        except (OSError, ValueError, http.client.HTTPException) as error:
            _say(f"--webhook: not delivered ({str(error)[:200] or type(error).__name__})")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as the error that it is for a post: followed, it loses what was posted."""

    def http_error_302(
        self,
        req: urllib.request.Request,  # noqa: ARG002
        fp: IO[bytes],  # noqa: ARG002
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: http.client.HTTPMessage,  # noqa: ARG002
    ) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _one_line(value: object) -> str:
    return "" if value is None else str(value).replace("\0", "")


def _has_descriptor() -> bool:
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _say(text: str) -> None:
    if sys.stderr is not None:  # a process without a console has none
        sys.stderr.write(f"trimtab: {text}; watching continues\n")
        sys.stderr.flush()
