"""Listen on an address until interrupted."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trimtab.errors import ConfigError
from trimtab.serve.app import make_app

__all__ = ["serve_forever"]

ASK_WITHIN_S = 10.0
"""A connection whose request is not whole by then is closed."""
MAX_SILENT = 64
"""Connections that have not asked; of more the oldest is closed, so that they shut nobody out."""


def serve_forever(
    roots: Sequence[Path],
    *,
    host: str,
    port: int,
    token: str = "",
    hosts: Sequence[str] = (),
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve the runs below some directories until the process is interrupted.

    Args:
        roots: Run directories, logs, or directories of them.
        host: Address to listen on.
        port: Port; 0: one that is free.
        token: See `make_app`.
        hosts: See `make_app`.
        ready: Called once with the address, when connections are taken.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(128)  # who connects from now on waits, and is not refused
    except OSError as error:
        raise ConfigError(
            f"{host}:{port}: cannot be listened on ({error.strerror or error}); give another --port"
        ) from error
    named = f"[{host}]" if ":" in host else host
    address = f"http://{named}:{listener.getsockname()[1]}/"
    app = make_app(roots, token=token, hosts=hosts)
    ready(address)
    _Server(connection_config(app, lifespan="on"), app.state.library.end).run(sockets=[listener])


def connection_config(app: Callable[..., Any], **how: Any) -> uvicorn.Config:
    """Return how connections are taken, and what answers them."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=_Connection,
        limit_concurrency=256,
        timeout_graceful_shutdown=2,
        **how,
    )


class _Connection(H11Protocol):
    """Is closed where it does not ask: after a time, or when many others wait like it."""

    _silent: ClassVar[dict["_Connection", asyncio.TimerHandle]] = {}
    """Those that have not asked, the oldest first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait on where the request is not whole."""
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request, whatever its type says
        if cycle is not None and not cycle.response_complete:
            self._no_more_wait()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._no_more_wait()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self in self._silent or self.transport.is_closing():
            return
        if len(self._silent) >= MAX_SILENT:
            oldest = next(iter(self._silent))
            oldest._no_more_wait()
            oldest.transport.close()
        self._silent[self] = self.loop.call_later(ASK_WITHIN_S, self.transport.close)

    def _no_more_wait(self) -> None:
        if (timer := self._silent.pop(self, None)) is not None:
            timer.cancel()


class _Server(uvicorn.Server):
    """Ends the streams of news when it is asked to end; it would wait for them else."""

    def __init__(self, config: uvicorn.Config, end: Callable[[], None]) -> None:
        super().__init__(config)
        self._end = end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        self._end()
        super().handle_exit(sig, frame)
