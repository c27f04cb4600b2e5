"""Messages posted to a web address, in the background: whoever sends one never waits for it.

One thread posts, oldest first. An exchange has one deadline for all of it, name lookup, TLS and a
reply that drips included; it is tried again with growing waits. A redirect is not followed: a post
loses its content there, or goes to another host. Certificates are verified.
"""

import contextlib
import http.client
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO

from trimtab.limits import MAX_WEBHOOK_QUEUE, WEBHOOK_CLOSE_S, WEBHOOK_DEADLINE_S, WEBHOOK_WAITS_S
from trimtab.text import plain

__all__ = ["Webhook"]

_LATER = (408, 425, 429)
"""Answers below 500 that ask for another try."""


class _FinalError(Exception):
    """A failure that another try would only repeat."""


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
        self._url, self._say, self._deadline_s, self._waits_s = url, say, deadline_s, waits_s
        self._context = context or ssl.create_default_context()
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._try: threading.Thread | None = None
        self._closing = self._closed = self._busy = False
        self._num_lost = 0
        self._why_lost = ""

    def send(self, text: str) -> None:
        """Post a message later; of more than the queue holds, the oldest is dropped."""
        with self._changed:
            self._waiting.append(text.encode())
            dropped = len(self._waiting) > MAX_WEBHOOK_QUEUE
            if dropped:
                self._waiting.popleft()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="webhook", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if dropped:
            self._lose(f"more than {MAX_WEBHOOK_QUEUE} messages wait; the oldest are dropped")

    def close(self, *, wait_s: float = WEBHOOK_CLOSE_S) -> None:
        """Try what waits once more, for at most `wait_s` seconds; say what is left."""
        end = time.monotonic() + wait_s
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while self._waiting or self._busy:
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            num_left = len(self._waiting) + self._busy
            self._waiting.clear()
            self._closed = True
        if num_left:
            messages = "message" if num_left == 1 else "messages"
            self._say(f"{num_left} {messages} not delivered within {wait_s:g} s of the end")

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closing:
                        return
                    self._changed.wait()
                message = self._waiting.popleft()
                self._busy = True
            try:
                self._deliver(message)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _deliver(self, message: bytes) -> None:
        """Post one message, several times if need be."""
        for wait_s in (*self._waits_s, None):
            last = wait_s is None or self._closing
            try:
                self._post_in_time(message)
            except _FinalError as error:
                self._lose(str(error))
            except (OSError, ValueError, http.client.HTTPException) as error:
                why = plain(error, limit=200) or type(error).__name__
                if not last:
                    self._pause(wait_s or 0.0)
                    continue
                self._lose(f"not delivered ({why})")
            else:
                self._found()
            return

    def _pause(self, wait_s: float) -> None:
        """Wait before the next try; the end of the watch cuts it short."""
        end = time.monotonic() + wait_s
        with self._changed:
            while not self._closing and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def _lose(self, why: str) -> None:
        """Count a message that did not arrive; say so, once for each reason in a row."""
        self._num_lost += 1
        if why != self._why_lost and not self._closed:  # a try that outlasts its watch is silent
            self._why_lost = why
            self._say(why)

    def _found(self) -> None:
        if self._num_lost:
            self._say(f"messages arrive again; {self._num_lost} did not")
        self._num_lost, self._why_lost = 0, ""

    def _post_in_time(self, message: bytes) -> None:
        """Post once, in a thread of its own: the lookup of a name cannot be given a deadline.

        Raises:
            OSError: It failed, or took too long.
            _FinalError: It failed for good.
        """
        if self._try is not None and self._try.is_alive():
            raise TimeoutError("the name of the host is still looked up")
        exchange = _Exchange(self._url, message, self._deadline_s, self._context)
        self._try = threading.Thread(target=exchange.run, name="webhook-post", daemon=True)
        self._try.start()
        self._try.join(self._deadline_s)
        if self._try.is_alive():
            exchange.abort()
            raise TimeoutError(f"no whole answer within {self._deadline_s:g} s")
        if exchange.error is not None:
            raise exchange.error


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
            with opener.open(request, timeout=self._deadline_s):
                pass
        except urllib.error.HTTPError as error:
            with error:
                self.error = _told(error)
        except ssl.SSLCertVerificationError as error:
            self.error = _FinalError(f"not delivered ({plain(error, limit=200)})")
        except urllib.error.URLError as error:
            self.error = error
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                self.error = _FinalError(f"not delivered ({plain(error.reason, limit=200)})")
        except (OSError, ValueError) as error:
            self.error = error
        except http.client.HTTPException as error:  # what answers is no web server
            why = plain(error, limit=200) or type(error).__name__
            self.error = _FinalError(f"not delivered ({why})")
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
        to = plain(error.headers.get("Location") or "", limit=200)
        return _FinalError(f"not delivered (redirected to {to!r}; give that address)")
    why = plain(error, limit=200)
    if error.code >= 500 or error.code in _LATER:
        return OSError(why)
    return _FinalError(f"not delivered ({why})")


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
