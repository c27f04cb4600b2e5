"""Connections that do not ask: they shut nobody out, and are closed."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn.server

from trimtab.serve import listen
from trimtab.serve.listen import MAX_SILENT, connection_config


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"yes"})


def test_connections_that_do_not_ask_shut_nobody_out_and_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listen, "ASK_WITHIN_S", 0.5)

    async def ask() -> None:
        config = connection_config(answer)
        config.load()
        state = uvicorn.server.ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
            "127.0.0.1",
            0,
        )
        port = server.sockets[0].getsockname()[1]
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        assert await asyncio.wait_for(silent[0][0].read(), 10) == b""  # the oldest makes room
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 200 OK")
        silent[-1][1].write(b"GET / HTTP/1.1\r\nX: half a he")
        for one, _ in silent[-MAX_SILENT:]:
            assert await asyncio.wait_for(one.read(), 10) == b""
        for _, sends in (*silent, (reader, writer)):
            sends.close()
        server.close()
        await asyncio.sleep(0.1)

    asyncio.run(ask())
