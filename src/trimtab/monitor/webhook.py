"""Messages posted to a web address, in the background: whoever sends one never waits for it.

An exchange has one deadline for all of it, name lookup, TLS and a reply that drips included. A
redirect is not followed: a post loses its content there, or goes to another host. Certificates are
verified.
"""

import contextlib
import http.client
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import IO
from urllib.parse import urlsplit

from trimtab.limits import WEBHOOK_CLOSE_S, WEBHOOK_DEADLINE_S, WEBHOOK_WAITS_S
from trimtab.monitor.delivery import Delivery, FinalError
from trimtab.text import plain

__all__ = ["Webhook"]

_LATER = (408, 425, 429)
"""Answers below 500 that ask for another try."""


class Webhook:
    """Posts JSON documents to one address."""

    def __init__(
        self,
        url: str,
        *,
        say: Callable[[str], None],
        deadline_s: float = WEBHOOK_DEADLINE_S,
        waits_s: Sequence[float] = WEBHOOK_WAITS_S,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Keep the address; nothing is sent, and no thread runs, before the first message.

        Args:
            url: An http or https address.
            say: Told what was not delivered and why, and when messages arrive again.
            deadline_s: Seconds for one try, all of it.
            waits_s: Seconds before the second try, the third, and so on.
            context: What certificates are checked against; None: those that the system trusts.
        """
        self._url, self._deadline_s = url, deadline_s
        self._context = context or ssl.create_default_context()
        self._delivery = Delivery(
            self._post,
            say=say,
            deadline_s=deadline_s,
            waits_s=waits_s,
            stuck="the name of the host is still looked up",
        )

    def send(self, text: str) -> None:
        """Post a message later; of more than the queue holds, the oldest is dropped."""
        self._delivery.send(text)

    def close(self, *, wait_s: float = WEBHOOK_CLOSE_S) -> None:
        """Try what waits once more, for at most `wait_s` seconds; say what is left."""
        self._delivery.close(wait_s=wait_s)

    def _post(self, text: str) -> "_Exchange":
        return _Exchange(self._url, text.encode(), self._deadline_s, self._context)


class _Exchange:
    """One post: its connection, and what came of it."""

    def __init__(
        self, url: str, message: bytes, deadline_s: float, context: ssl.SSLContext
    ) -> None:
        self._url, self._message, self._deadline_s = url, message, deadline_s
        self._context = context
        self._sockets: list[socket.socket] = []
        self._aborted = False
        self.error: Exception | None = None

    def run(self) -> None:
        """Post; the body of the answer is not read."""
        request = urllib.request.Request(
            self._url, data=self._message, headers={"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(_NoRedirect, *_handlers(self._context, self._keep))
        try:
            # whoever waits gives up first; this only ends a thread that nobody waits for any more
            with opener.open(request, timeout=2 * self._deadline_s):
                pass
        except urllib.error.HTTPError as error:
            with error:
                self.error = _told(error)
        except ssl.SSLCertVerificationError as error:
            self.error = FinalError(f"not delivered ({plain(error, limit=200)})")
        except urllib.error.URLError as error:
            self.error = error
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                self.error = FinalError(f"not delivered ({plain(error.reason, limit=200)})")
        except (OSError, ValueError) as error:
            self.error = error
        except http.client.HTTPException as error:  # what answers is no web server
            why = plain(error, limit=200) or type(error).__name__
            self.error = FinalError(f"not delivered ({why})")
        finally:
            for opened in self._sockets:
                opened.close()

    def abort(self) -> None:
        """End the exchange from outside, whatever it waits for."""
        self._aborted = True
        for opened in tuple(self._sockets):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def _keep(self, opened: socket.socket) -> None:
        self._sockets.append(opened.dup())  # TLS takes the first one over
        if self._aborted:
            self.abort()


def _told(error: urllib.error.HTTPError) -> Exception:
    """Return the error of an answer, for good or not."""
    if 300 <= error.code < 400:
        # No more than the host: the path of a webhook is often its secret.
        to = urlsplit(error.headers.get("Location") or "")
        where = plain(f"{to.scheme}://{to.hostname}" if to.hostname else "another path", limit=200)
        return FinalError(f"not delivered (redirected to {where}; give the address it moved to)")
    why = plain(error, limit=200)
    if error.code >= 500 or error.code in _LATER:
        return OSError(why)
    return FinalError(f"not delivered ({why})")


def _handlers(
    context: ssl.SSLContext, keep: Callable[[socket.socket], None]
) -> tuple[urllib.request.BaseHandler, ...]:
    """Return what opens connections and hands each of their sockets to `keep`."""

    class Kept(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            keep(self.sock)

    class KeptSecure(http.client.HTTPSConnection, Kept):  # its `connect` calls that of Kept
        pass

    class Plain(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Kept, req)

    class Secure(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(KeptSecure, req, context=context)

    return Plain(), Secure(context=context)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as the error that it is for a post."""

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
