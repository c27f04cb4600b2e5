"""What an alarm sets off: a command of the user's, a web address; a failure is told and stops nothing."""

import json
import os
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        ConfigError: It is not one.
    """
    if not text.startswith(("http://", "https://")):
        raise ConfigError(f"--webhook {text!r}: not a web address; begin it with https://")
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
        try:
            with urllib.request.urlopen(request, timeout=WEBHOOK_TIMEOUT_S):
                pass
        except (urllib.error.URLError, OSError, ValueError) as error:
            _say(f"--webhook: not delivered ({error})")


def _one_line(value: object) -> str:
    return "" if value is None else str(value).replace("\0", "")


def _has_descriptor() -> bool:
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _say(text: str) -> None:
    print(f"trimtab: {text}; watching goes on", file=sys.stderr, flush=True)
