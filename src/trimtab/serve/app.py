"""The web application: pages, what they ask for, and who may ask. Nothing is ever changed by it."""

import asyncio
import contextlib
import hmac
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trimtab.report.html import static_text
from trimtab.report.sections import text
from trimtab.serve.curves import CurvesMeta
from trimtab.serve.library import MAX_RUNS, Library, Run
from trimtab.serve.overlay import overlay
from trimtab.version import __version__

__all__ = ["make_app"]

MAX_OVERLAID = 64
"""Runs in one picture; nobody tells more lines apart."""
MAX_COLUMNS = 4_000
MAX_LISTENERS = 64
HEARTBEAT_S = 15.0
_EVENTS_HELD = 256
_LARGEST_SHORT = 1e38
"""Above it a number of four bytes overflows."""
_COOKIE = "trimtab_token"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_STATIC = {
    "uplot.min.js": "text/javascript",
    "uplot.min.css": "text/css",
    "list.js": "text/javascript",
    "overlay.js": "text/javascript",
    "news.js": "text/javascript",
    "serve.css": "text/css",
}


def make_app(
    roots: Sequence[Path], *, token: str = "", hosts: Sequence[str] = (), cache: Path | None = None
) -> Starlette:
    """Return the application over the runs below some directories.

    Args:
        roots: Run directories, logs, or directories of them.
        token: What a caller must give, as `?token=`, a cookie or a bearer; empty: nothing.
        hosts: Names under which the server answers; empty: any. A loopback server names its own,
            so that no page of another site reaches it by a name that it makes point here.
        cache: Where rows are kept; None: a temporary directory.
    """
    library = Library(roots, cache=cache)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await library.start()
        try:
            yield
        finally:
            await library.stop()

    pages = _Pages(library)
    app = Starlette(
        routes=[
            Route("/", pages.list_page),
            Route("/overlay", pages.overlay_page),
            Route("/run/{id}", pages.run),
            Route("/run/{id}/panels", pages.panels),
            Route("/run/{id}/incident/{letter}", pages.incident),
            Route("/api/runs", pages.runs),
            Route("/api/curves", pages.curves),
            Route("/events", pages.events),
            Route("/static/{name}", pages.static),
        ],
        lifespan=lifespan,
    )
    app.state.library = library
    app.add_middleware(_Gate, token=token, hosts=tuple(hosts))
    return app


class _Gate:
    """Lets in who may ask, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: tuple[str, ...]) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                had = {name.lower() for name, _ in message["headers"]}
                more = {**_HEADERS, "Content-Security-Policy": _POLICY}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (k.lower().encode(), v.encode())
                        for k, v in more.items()
                        if k.lower().encode() not in had
                    ),
                ]
            await send(message)

        refusal = self._refusal(request)
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return _plain("this server only reads: GET", 405)
        if self._hosts and _host_name(request.headers.get("host", "")) not in self._hosts:
            return _plain("unknown host; open the address that `trimtab serve` printed", 421)
        if not self._token:
            return None
        asked = request.query_params.get("token", "")
        if self._same(asked):
            left = request.url.remove_query_params("token")
            answer = RedirectResponse(f"{left.path}{'?' + left.query if left.query else ''}")
            answer.set_cookie(_COOKIE, asked, httponly=True, samesite="strict")
            return answer
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._same(bearer) or self._same(request.cookies.get(_COOKIE, "")):
            return None
        return _plain("a token is needed: open /?token=… once in this browser", 401)

    def _same(self, given: str) -> bool:
        return bool(given) and hmac.compare_digest(given.encode(), self._token.encode())


def _host_name(host: str) -> str:
    return re.sub(r":\d+$", "", host).strip("[]").lower()


def _plain(said: str, status: int) -> Response:
    return Response(said + "\n", status, media_type="text/plain")


def _json(value: object) -> Response:
    raw = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(raw, media_type="application/json")


class _Pages:
    """What is answered at each address."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._listeners = 0

    async def list_page(self, _: Request) -> Response:
        return _page("runs", "list", '<div id="list"></div>', script="list")

    async def overlay_page(self, _: Request) -> Response:
        return _page("overlay", "overlay", '<div id="overlay"></div>', script="overlay", plot=True)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "colours.css":
            return Response(static_text("colours.css"), media_type="text/css")
        if name == "page.css":
            return Response(static_text("page.css"), media_type="text/css")
        if name not in _STATIC:
            return _plain("no such file", 404)
        content = (files("trimtab.serve") / "static" / name).read_bytes()
        return Response(content, media_type=_STATIC[name])

    async def runs(self, _: Request) -> Response:
        library = self._library
        left = f"only the first {MAX_RUNS} are listed; {library.left_out} more" * bool(
            library.left_out
        )
        return _json({"runs": library.listed(), "left_out": left})

    def _run(self, request: Request) -> Run | None:
        return self._library.runs.get(request.path_params["id"])

    async def run(self, request: Request) -> Response:
        run = self._run(request)
        if run is None:
            return _missing("no such run; it may have been moved")
        if run.judged is None or not run.judged.folder:
            return RedirectResponse(f"/overlay?runs={run.id}")
        content = await asyncio.to_thread(_read_text, Path(run.judged.folder) / "page.html")
        if content is None:
            return _missing("the page is being written; reload in a moment")
        # its own policy, in the page, allows its one script by hash; both hold
        return HTMLResponse(content, headers={"Content-Security-Policy": "frame-ancestors 'none'"})

    async def incident(self, request: Request) -> Response:
        run, letter = self._run(request), request.path_params["letter"]
        if run is None or not re.fullmatch(r"[A-Z]{1,4}", letter):
            return _missing("no such run")
        if run.judged is None or not run.judged.folder:
            return RedirectResponse(f"/overlay?runs={run.id}")
        folder = Path(run.judged.folder)
        inside = await asyncio.to_thread(_read_text, folder / f"incident-{letter}.html")
        if inside is None:
            return _missing(f"no incident {letter} in this run now")
        letters = [told[0] for told in run.judged.incidents]
        at = letters.index(letter) if letter in letters else -1
        links = [f'<a href="/run/{run.id}#incident={letter}">see it in the plots</a>']
        if at > 0:
            links.append(f'<a href="/run/{run.id}/incident/{letters[at - 1]}">worse</a>')
        if 0 <= at < len(letters) - 1:
            links.append(f'<a href="/run/{run.id}/incident/{letters[at + 1]}">next</a>')
        head = (
            f'<p class="facts"><strong>{text(run.title)}</strong>'
            f"<span>{text(run.judged.state)}</span></p>"
            f'<p class="links">{" · ".join(links)}</p>'
        )
        back = f'<a href="/run/{run.id}">this run</a>'
        body = f'{head}<div class="below incident">{inside}</div>'
        return _page(f"incident {letter}", "incident", body, more=back)

    async def panels(self, request: Request) -> Response:
        run = self._run(request)
        curves = None if run is None else self._library.curves(run)
        if run is None or curves is None:
            return _plain("the rows are being read", 503)
        low, high = curves.range
        first, last = _number(request, "from", low), _number(request, "to", high)
        columns = int(min(max(_number(request, "width", 1_000.0), 50), MAX_COLUMNS))
        panels = await asyncio.to_thread(curves.panels, (first, last), columns=columns)
        return _json(
            {
                "range": [low, high],
                "attempts": curves.meta["attempts"],
                "panels": panels,
                "version": run.rows_version,
            }
        )

    async def curves(self, request: Request) -> Response:
        asked = request.query_params.get("runs", "").split(",")[:MAX_OVERLAID]
        runs = [self._library.runs[i] for i in dict.fromkeys(asked) if i in self._library.runs]
        opened = {run.id: self._library.curves(run) for run in runs}
        held = {i: c for i, c in opened.items() if c is not None}
        signals: dict[str, str] = {}
        for c in held.values():
            signals |= c.signals
        axes = [a for a in ("step", "tokens", "time") if any(a in c.axes() for c in held.values())]
        signal = request.query_params.get("signal", "loss")
        by = request.query_params.get("by", "step")
        found = await asyncio.to_thread(
            overlay,
            held,
            signal,
            by=by if by in axes else "step",
            first=_limit(request, "from"),
            last=_limit(request, "to"),
            columns=int(min(max(_number(request, "width", 1_000.0), 50), MAX_COLUMNS)),
            smooth_rows=int(min(max(_number(request, "smooth", 0.0), 0), 100_000)),
        )
        told = [
            {
                "id": run.id,
                "title": run.title,
                "state": run.listed()["state"],
                "verdict": run.judged.verdict if run.judged else "",
                "standing": run.judged.standing if run.judged else "",
                "y": _short(found.y.get(run.id)),
            }
            for run in runs
        ]
        return _json(
            {
                "x": found.x,
                "runs": told,
                "whole": found.whole,
                "limits": found.limits,
                "range": found.range,
                "signals": signals,
                "axes": axes,
                "unit": next((u for c in held.values() if (u := _unit(c.meta, signal))), ""),
            }
        )

    async def events(self, _: Request) -> Response:
        if self._listeners >= MAX_LISTENERS:
            return _plain(f"{MAX_LISTENERS} pages listen already; close one", 503)
        queue: asyncio.Queue[dict[str, object]] = asyncio.Queue(_EVENTS_HELD)

        def put(event: dict[str, object]) -> None:
            if queue.full():  # a page that slept asks for everything anew
                while not queue.empty():
                    queue.get_nowait()
                event = {"kind": "list"}
            queue.put_nowait(event)

        return StreamingResponse(self._stream(queue, put), media_type="text/event-stream")

    async def _stream(
        self, queue: "asyncio.Queue[dict[str, object]]", put: Callable[[dict[str, object]], None]
    ) -> AsyncIterator[bytes]:
        self._listeners += 1
        leave = self._library.listen(put)
        try:
            yield b"retry: 1000\n\n"
            while True:
                try:
                    event = await asyncio.wait_for(queue.get(), HEARTBEAT_S)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if event["kind"] == "end":
                    return
                yield b"data: " + orjson.dumps(event) + b"\n\n"
        finally:
            leave()
            self._listeners -= 1


def _unit(meta: CurvesMeta, signal: str) -> str:
    unit = next((p["unit"] for p in meta["panels"] if p["name"] == signal), "")
    return unit.split(" · ")[0]


def _short(y: NDArray[np.float64] | None) -> NDArray[np.floating] | None:
    """Return values with the seven digits that a picture needs: half the bytes to send."""
    if y is None or not len(y) or float(np.nanmax(np.abs(y), initial=0.0)) > _LARGEST_SHORT:
        return y
    return y.astype(np.float32)


def _limit(request: Request, name: str) -> float | None:
    value = _number(request, name, math.nan)
    return None if math.isnan(value) else value


def _number(request: Request, name: str, default: float) -> float:
    try:
        value = float(request.query_params[name])
    except (KeyError, ValueError):
        return default
    return value if math.isfinite(value) else default


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def _missing(said: str) -> Response:
    body = f'<h1 class="unknown">Not here</h1><p class="lead">{text(said)}</p>'
    answer = _page("not here", "missing", body)
    answer.status_code = 404
    return answer


def _page(
    title: str, name: str, body: str, *, script: str = "", more: str = "", plot: bool = False
) -> Response:
    scripts = ["uplot.min.js"] if plot else []
    scripts += ["news.js", f"{script}.js"] if script else []
    styles = ["colours.css", "page.css", "serve.css", *(["uplot.min.css"] if plot else [])]
    filled = Template(
        (files("trimtab.serve") / "static" / "shell.html").read_text(encoding="utf-8")
    ).substitute(
        title=text(title),
        name=name,
        body=body,
        more=more,
        version=__version__,
        styles="".join(f'<link rel="stylesheet" href="/static/{s}">' for s in styles),
        scripts="".join(f'<script defer src="/static/{s}"></script>' for s in scripts),
    )
    return HTMLResponse(filled)
