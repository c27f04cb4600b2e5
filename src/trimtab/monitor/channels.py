"""Alarms to people by chat, mail and pager: every service that Apprise knows, one address each.

Apprise is an extra (`trimtab[alerts]`). What a log said reaches it as plain text alone. Addresses
hold passwords and tokens: no more of one is shown than its service, and of some the host.
"""

import contextlib
import io
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trimtab.diagnosis.causes import UNKNOWN
from trimtab.errors import ConfigError
from trimtab.limits import WEBHOOK_DEADLINE_S, WEBHOOK_WAITS_S
from trimtab.monitor.delivery import Delivery
from trimtab.plan.remedy_table import REMEDY_BY_ID
from trimtab.text import plain, values_text

__all__ = ["Recipient", "letter", "parse_channels"]

_MAX_ADDRESSES_BYTES = 64 * 1024
_NUM_CAUSES = 2
_KEPT_SAID = 400
_SHOWS_HOST = ("mailto", "mailtos", "json", "jsons", "xml", "xmls", "form", "forms")
"""Services whose host is no secret; of others even that may be a token, as the topic of ntfy is."""


class Recipient:
    """One person or room that alarms are sent to."""

    def __init__(
        self,
        address: str,
        *,
        say: Callable[[str], None],
        deadline_s: float = WEBHOOK_DEADLINE_S,
        waits_s: Sequence[float] = WEBHOOK_WAITS_S,
    ) -> None:
        """Keep the address; nothing is sent before the first letter.

        Args:
            address: As Apprise writes it, `mailto://…`, `slack://…`.
            say: Told what was not delivered and why, with the address masked.
            deadline_s: Seconds for one try.
            waits_s: Seconds before the second try, the third, and so on.

        Raises:
            ConfigError: Apprise is not installed, or knows no such address.
        """
        self._service, self.shown = _service(address)
        self._delivery = Delivery(
            lambda text: _Letter(self._service, text),
            say=lambda why: say(f"{self.shown}: {why}"),
            deadline_s=deadline_s,
            waits_s=waits_s,
            name="notify",
            stuck="no answer in time, and the try has not ended yet",
        )

    def send(self, subject: str, body: str, severity: str = "info") -> None:
        """Send later; of more than the queue holds, the oldest is dropped.

        Args:
            subject: One line.
            body: Lines of plain text.
            severity: critical, warning or info; services route and color by it.
        """
        kind = {"critical": "failure", "warning": "warning"}.get(severity, "info")
        self._delivery.send(f"{kind}\n{plain(subject)}\n{body}")

    def close(self) -> None:
        """Try what waits once more, for a bounded time; say what is left."""
        self._delivery.close()


class _Letter:
    """One try to send one text: its first lines are the kind and the subject."""

    def __init__(self, service: Any, text: str) -> None:
        self._service, self._text = service, text
        self.error: Exception | None = None

    def run(self) -> None:
        """Send; what Apprise logs meanwhile says why it failed."""
        kind, subject, body = self._text.split("\n", 2)
        said = io.StringIO()
        # A logger of its own: that of Apprise is shared by all recipients.
        logger = logging.Logger("apprise", logging.WARNING)
        logger.addHandler(logging.StreamHandler(said))
        self._service[0].logger = logger
        try:
            sent = self._service.notify(
                title=subject, body=body, body_format="text", notify_type=kind
            )
            if not sent:
                self.error = OSError(plain(said.getvalue(), limit=_KEPT_SAID) or "refused")
        except Exception as error:  # noqa: BLE001 - a service of another's making: anything
            self.error = OSError(plain(error, limit=_KEPT_SAID) or type(error).__name__)

    def abort(self) -> None:
        """Nothing: Apprise gives its sockets time limits, and nobody waits for this thread."""


def parse_channels(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses that `--notify` names; `@FILE` holds one a line, `#` begins a comment.

    Raises:
        ConfigError: A file cannot be read, an address is not one, or Apprise is not installed.
    """
    found: dict[str, str] = {}
    for text in texts:
        if not text.startswith("@"):
            found.setdefault(text, "")
            continue
        try:
            with Path(text[1:]).open("rb") as file:
                data = file.read(_MAX_ADDRESSES_BYTES + 1)
            if len(data) > _MAX_ADDRESSES_BYTES:
                raise ConfigError(
                    f"--notify {text}: more than {_MAX_ADDRESSES_BYTES // 1024} KiB; "
                    "give a file with one address a line"
                )
            lines = [line.strip() for line in data.decode("utf-8-sig").splitlines()]
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--notify {text}: cannot be read ({error}); give a text file with one address a"
                " line"
            ) from error
        addresses = {s: i for i, s in enumerate(lines, 1) if s and not s.startswith("#")}
        if not addresses:
            raise ConfigError(f"--notify {text}: holds no address; write one a line")
        for address, line in addresses.items():
            found.setdefault(address, f"{text}:{line}: ")
    for address, place in found.items():
        _service(address, place)
    return tuple(found)


def letter(document: Mapping[str, Any]) -> tuple[str, str]:
    """Return subject and body of an alarm: what happened, what to do, then the evidence.

    Args:
        document: As `watch --json` prints it, or as a supervisor tells it.
    """
    incident = document["incident"]
    headline = plain(incident.get("headline") or document.get("text") or incident.get("kind"))
    lines = [headline]
    if plan := incident.get("plan"):
        lines.append(f"What to do: {_step(plan[0])}")
    causes = [c for c in incident.get("causes") or () if c["cause"] != UNKNOWN]
    for cause in causes[:_NUM_CAUSES]:
        evidence = "; ".join(plain(e) for e in cause["evidence"])
        lines.append(f"Perhaps: {plain(cause['title'])}" + (f" ({evidence})" if evidence else ""))
    if test := plain(incident.get("next_test") or ""):
        lines.append(f"To tell: {test}")
    if path := plain(document.get("path") or ""):
        lines.append(f"Run: {path}")
    return f"trimtab: {plain(incident.get('severity'))}: {headline}", "\n".join(lines)


def _step(remedy: Mapping[str, Any]) -> str:
    known = REMEDY_BY_ID.get(remedy["remedy"])
    text = known.title if known is not None else plain(remedy["remedy"]).replace("-", " ")
    values = values_text(remedy["values"])
    return f"{text}: {values}" if values else text


def _service(address: str, place: str = "") -> tuple[Any, str]:
    """Return what Apprise sends with, and the address without its secrets."""
    try:
        import apprise
    except ImportError as error:
        raise ConfigError(
            "--notify needs Apprise, which is not installed: pip install 'trimtab[alerts]'"
        ) from error
    scheme = re.match(r"[A-Za-z0-9+.-]{1,32}(?=://)", address)
    shown = f"{scheme.group()}://…" if scheme else "…"
    service = apprise.Apprise()
    if not scheme or not service.add(address) or len(service) != 1:
        raise ConfigError(
            f"--notify {place}{shown}: no address that Apprise knows; "
            "write it as https://appriseit.com/services/ says, e.g. mailto://user:password@host"
        )
    if scheme.group().lower() in _SHOWS_HOST:
        with contextlib.suppress(ValueError):
            parts = urlsplit(address)
            shown = f"{scheme.group()}://{parts.hostname or ''}"
            shown += f":{parts.port}" if parts.port else ""
    return service, plain(shown, limit=120)
