"""Opens a page that trimtab wrote in the system's headless Chromium, through playwright.

Only files that trimtab wrote are opened; that is why the browser may run without its sandbox, which
containers often lack.
"""

import shutil
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trimtab.errors import ConfigError, MissingExtraError

__all__ = ["NAMES", "Browser", "find_chromium"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
"""Programs that are tried, in this order."""

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    # without a network each background request is one refused connection, many at a time
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def find_chromium() -> str | None:
    """Return the first of `NAMES` on the path; None where none is, or playwright is missing."""
    if not find_spec("playwright"):
        return None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one tab; keeps every request and every error that a page causes."""

    def __init__(self, *, timeout_s: float = 60.0) -> None:
        """Start it.

        Args:
            timeout_s: Longest wait for one answer.

        Raises:
            MissingExtraError: playwright is not installed.
            ConfigError: No browser is installed.
        """
        if not find_spec("playwright"):
            raise MissingExtraError("A browser for the benchmarks", "dev")
        program = find_chromium()
        if program is None:
            raise ConfigError(f"no browser found, looked for {', '.join(NAMES)}; install chromium")
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        self._page = self._browser.new_page()
        self._page.set_default_timeout(1000 * timeout_s)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._page.on("request", lambda request: self.requests.append(request.url))
        self._page.on("pageerror", lambda error: self.errors.append(str(error)[:500]))
        self._page.on(
            "console",
            lambda line: self.errors.append(line.text) if line.type == "error" else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._browser.close()
        self._playwright.stop()

    def open(
        self, path: Path, *, fragment: str = "", width: int = 1400, height: int = 1000
    ) -> None:
        """Open a file and wait for it to load; requests and errors of earlier pages are dropped."""
        self.visit(path.as_uri() + fragment, width=width, height=height)

    def visit(self, address: str, *, width: int = 1400, height: int = 1000) -> None:
        """Open an address as `open` does; of a page with a stream it does not await the end."""
        self.resize(width, height)
        self._page.goto("about:blank")
        self.requests.clear()
        self.errors.clear()
        self._page.goto(address)

    def wait(self, expression: str, *, timeout_s: float = 20.0) -> float:
        """Return the seconds until a JavaScript expression is true.

        Raises:
            TimeoutError: It did not become true in time.
        """
        from playwright.sync_api import Error

        started = time.perf_counter()
        while True:
            try:
                if self.evaluate(f"Boolean({expression})"):
                    break
            except Error as error:  # a page that is being left answers nothing
                if "context was destroyed" not in str(error):
                    raise
            if time.perf_counter() - started > timeout_s:
                raise TimeoutError(f"not true within {timeout_s:g} s: {expression}")
            time.sleep(0.02)
        return time.perf_counter() - started

    def hover(self, place: tuple[float, float]) -> None:
        """Move the mouse to a place, in CSS pixels."""
        self._page.mouse.move(*place)

    def screenshot(self, path: Path) -> None:
        """Write what is seen as PNG."""
        self._page.screenshot(path=str(path))

    def resize(self, width: int, height: int) -> None:
        """Give the window another size, in CSS pixels."""
        self._page.set_viewport_size({"width": width, "height": height})

    def opening_ms(self, path: Path) -> float:
        """Open a file and return the milliseconds until a frame is drawn after its script is done.

        Wall clock, from the call to navigate to the second animation frame after the load event;
        a file larger than the cache of the system is read from the disk again.
        """
        self._page.goto("about:blank")
        started = time.perf_counter()
        self._page.goto(path.as_uri())
        self.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>"
            " done(1))))"
        )
        return 1000 * (time.perf_counter() - started)

    def evaluate(self, expression: str) -> Any:
        """Return the JSON value of a JavaScript expression; of a promise, once it is kept."""
        return self._page.evaluate(expression)

    def key(self, key: str) -> None:
        """Press one key."""
        self._page.keyboard.press(key)

    def color_scheme(self, *, dark: bool) -> None:
        """Let the page believe that its reader prefers dark, or light, pages."""
        self._page.emulate_media(color_scheme="dark" if dark else "light")

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse at one place, move it, and release it at another."""
        self._page.mouse.move(*start)
        self._page.mouse.down()
        self._page.mouse.move(*end)
        self._page.mouse.up()
