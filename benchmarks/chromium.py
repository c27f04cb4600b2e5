"""A headless Chromium driven over its debugging pipe, with the standard library alone.

It opens pages that trimtab wrote, from files, and nothing else; that is why it may run without its
sandbox, which containers often lack.
"""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trimtab.errors import ConfigError

__all__ = ["NAMES", "Browser", "find_chromium"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""Programs that are tried, in this order."""

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    """Return the path of the first of `NAMES` that is installed; None where none is."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one tab; keeps every request and every error that a page causes."""

    def __init__(self, profile: Path, *, timeout_s: float = 60.0) -> None:
        """Start it.

        Args:
            profile: An empty folder of its own.
            timeout_s: Longest wait for one answer.

        Raises:
            ConfigError: None is installed.
        """
        program = find_chromium()
        if program is None:
            raise ConfigError(f"no browser found, looked for {', '.join(NAMES)}; install chromium")
        there, self._out = os.pipe()
        self._in, back = os.pipe()
        self._timeout_s = timeout_s
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{there} 4>&{back}',
                "browser",
                program,
                *_FLAGS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **params: Any) -> Any:
        """Call one method of the debugging protocol and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout_s
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("the browser does not answer")
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif message.get("method") == "Page.loadEventFired":
            self._loaded = True

    def open(
        self, path: Path, *, fragment: str = "", width: int = 1400, height: int = 1000
    ) -> None:
        """Open a file and wait for it to load; what earlier pages asked for is forgotten."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._go("about:blank")
        self.requests, self.errors = [], []
        self._go(path.as_uri() + fragment)

    def _go(self, url: str) -> None:
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._receive()

    def opening_ms(self, path: Path) -> float:
        """Open a file and return how long it took until a frame stood after its script was done.

        Wall clock, from the call to navigate to the second animation frame after the load event;
        a file larger than the cache of the system is read from the disk again.
        """
        self._go("about:blank")
        started = time.perf_counter()
        self._go(path.as_uri())
        self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>"
            " done(1))))"
        )
        return 1000 * (time.perf_counter() - started)

    def evaluate(self, expression: str) -> Any:
        """Return the JSON value of a JavaScript expression, of a promise once it is kept."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def key(self, key: str) -> None:
        """Press one key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse at one place, move, and let go at another."""
        for kind, (x, y) in (
            ("mouseMoved", start),
            ("mousePressed", start),
            ("mouseMoved", end),
            ("mouseReleased", end),
        ):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                buttons=1,
                clickCount=1,
            )
