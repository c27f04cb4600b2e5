"""Listen on an address until interrupted."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from trimtab.errors import ConfigError
from trimtab.serve.app import make_app

__all__ = ["serve_forever"]


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
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        limit_concurrency=256,
        timeout_graceful_shutdown=2,
    )
    ready(address)
    _Server(config, app.state.library.end).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends the streams of news when it is asked to end; it would wait for them else."""

    def __init__(self, config: uvicorn.Config, end: Callable[[], None]) -> None:
        super().__init__(config)
        self._end = end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        self._end()
        super().handle_exit(sig, frame)
