"""The web application: addresses, checks of each request, and live updates. Starlette is known only
here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from importlib.resources import files
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deltaq.console import security
from deltaq.console.changes import CHANGES
from deltaq.console.exposition import root_samples
from deltaq.console.pages import LIVE, PAGES, SLOW, roots_page
from deltaq.console.rendering import render, render_live
from deltaq.console.security import COOKIE, HEADERS, SESSION_S, ConsoleSession, Sessions
from deltaq.console.view import RootView
from deltaq.console.visits import Moved, Page, Root, Visit
from deltaq.errors import InvalidConfig, KafkaError, KafkaException, Unavailable, printable
from deltaq.metrics import CONTENT_TYPE, Totals, prometheus_text

_log = logging.getLogger("deltaq.console")

KEEP_ALIVE_S = 15.0
"""Seconds after which a stream of events sends a comment, so that a browser that is gone is
noticed.
"""

STREAMS_MAX = 500
"""Streams of events at one time."""

READING_MAX = 2
"""Pages that read messages, or plan maintenance, at one time: each takes memory. More of them
wait.
"""

WAITING_MAX = 20
"""Pages that read, or wait to do so."""

_STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
_NOT_FOUND = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.GROUP_ID_NOT_FOUND,
    KafkaError._UNKNOWN_TOPIC,
}


class Console:
    """What the application serves: roots, who may change them, and the metrics of this process.

    `hosts` are the names under which browsers reach it. With `is_open`, pages are shown without a
    token, as is right on loopback only.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        sessions: Sessions,
        totals: Totals,
        *,
        may_write: bool = False,
        is_open: bool = True,
        hosts: frozenset[str] = security.LOOPBACK,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        self.roots = roots
        self.sessions = sessions
        self.totals = totals
        self.may_write = may_write
        self.is_open = is_open
        self.hosts = hosts
        self.streams_max = streams_max
        # Of pages that are open; set when there may be something to do.
        self.streams: set[asyncio.Event] = set()
        self.is_ending = False
        self._live: dict[tuple[int, str], tuple[int, str]] = {}
        self._reading = asyncio.Semaphore(READING_MAX)
        self._waiting = 0

    def end_streams(self) -> None:
        """End the answers that go on for as long as a page is open: the server waits for them when
        it ends.
        """
        self.is_ending = True
        self._wake_streams()

    def sign_out(self, session: ConsoleSession) -> None:
        """End a session, and the streams of its pages."""
        self.sessions.sign_out(session)
        self._wake_streams()

    def _wake_streams(self) -> None:
        for changed in self.streams:
            changed.set()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Wait for the turn of a page that reads. Raises HTTPException where too many wait."""
        if self._waiting >= WAITING_MAX:
            raise HTTPException(503, "too many pages are being read: try again")
        self._waiting += 1
        try:
            async with self._reading:
                yield
        finally:
            self._waiting -= 1

    def common(self, root: Root | None, session: ConsoleSession | None) -> dict[str, object]:
        """The values of every page."""
        notice = ""
        if session is not None:
            notice, session.notice = session.notice, ""
        return {
            "root": root,
            "roots": self.roots,
            "may_write": self.may_write,
            "needs_token": self.may_write or not self.is_open,
            "session": session,
            "notice": notice,
        }

    def live_html(self, root: Root, path: str, view: RootView) -> str:
        """The live part of a page for a view; the same text for all browsers that show this
        page.
        """
        key = root.number, path
        number, html = self._live.get(key, (-1, ""))
        if number != view.number:
            html = self._render_live(root, path, view)
            if len(self._live) > STREAMS_MAX:
                self._live.clear()  # of pages that were closed
            self._live[key] = view.number, html
        return html

    def _render_live(self, root: Root, path: str, view: RootView) -> str:
        show, names = live_page(path)
        common = {"root": root, "roots": self.roots, "problem": view.problem}
        try:
            return render_live(show(Visit(root, names, view_now=view)), common)
        except KafkaException as error:  # the topic or group is gone
            return render_live(Page("", {"reason": error.error.str()}, live="_gone.html"), common)


def live_page(path: str) -> tuple[Callable[[Visit], Page], Mapping[str, str]]:
    """The live page at an address below a root, and the names in that. Raises KeyError."""
    parts = path.split("/")
    for pattern, show in LIVE.items():
        wanted = pattern.split("/")
        if len(wanted) == len(parts):
            pairs = list(zip(wanted, parts, strict=True))
            if all(want == part or (want.startswith("{") and part) for want, part in pairs):
                return show, {
                    want.strip("{}"): part for want, part in pairs if want.startswith("{")
                }
    raise KeyError(path)


def application(console: Console) -> ASGIApp:
    """The application for a server."""

    def page(show: Callable[[Visit], Page]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            root, session = _root_of(console, request), _session_of(console, request)
            visit = Visit(root, request.path_params, dict(request.query_params))
            async with console.reading() if show in SLOW else nullcontext():
                return await run_in_threadpool(
                    lambda: _shown(console, root, session, lambda: show(visit))
                )

        return answer

    def change(act: Callable[[Visit], Moved]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            root, session = _root_of(console, request), _session_of(console, request)
            form = await _form(request)
            if not console.may_write:
                raise HTTPException(403, "this console changes nothing: start it with --write")
            if session is None or not security.may_change(session, form.get("csrf", "")):
                raise HTTPException(403, "sign in again: this form is not of your session")
            visit = Visit(root, request.path_params, form)
            return await run_in_threadpool(lambda: _changed(console, visit, session, act))

        return answer

    async def home(request: Request) -> Response:
        if len(console.roots) == 1:
            return RedirectResponse(console.roots[0].home)
        session = _session_of(console, request)
        return await run_in_threadpool(
            lambda: _shown(console, None, session, lambda: roots_page(console.roots))
        )

    async def metrics(_: Request) -> Response:
        def text() -> str:
            return prometheus_text([*console.totals.samples(), *root_samples(console.roots)])

        return Response(await run_in_threadpool(text), media_type=CONTENT_TYPE)

    routes = [Route("/", home), Route("/static/{name}", _static), Route("/metrics", metrics)]
    routes += [Route("/sign-in", _sign_in(console), methods=["GET", "POST"])]
    routes += [Route("/sign-out", _sign_out(console), methods=["POST"])]
    routes += [Route("/roots/{root}/events", _live(console))]
    routes += [Route(f"/roots/{{root}}{path}", page(show)) for path, show in PAGES.items()]
    routes += [
        Route(f"/roots/{{root}}{path}", change(act), methods=["POST"])
        for path, act in CHANGES.items()
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused(console)})
    return _Guard(app, console)


# --- answers ---


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404, "there is no such file")
    content = files("deltaq.console").joinpath("static", name).read_bytes()
    return Response(content, media_type=_STATIC[name])


def _live(console: Console) -> Callable[[Request], Awaitable[Response]]:
    """The events of the pages that change while they are open."""

    async def events(request: Request) -> Response:
        root, path = _root_of(console, request), request.query_params.get("page", "")
        try:
            live_page(path)
        except KeyError:
            raise HTTPException(404, "there is no such live page") from None
        if len(console.streams) >= console.streams_max:
            raise HTTPException(503, "too many pages are open")
        stream = _events(console, root, path, _session_of(console, request))
        return StreamingResponse(stream, media_type="text/event-stream")

    return events


def _root_of(console: Console, request: Request) -> Root:
    # Compared as text: Python refuses to parse a number of some thousand digits.
    found = next(
        (root for root in console.roots if str(root.number) == request.path_params["root"]), None
    )
    if found is None:
        raise HTTPException(404, "there is no such root")
    return found


def _session_of(console: Console, request: Request) -> ConsoleSession | None:
    return console.sessions.find(request.headers.get("cookie", ""))


def _shown(
    console: Console, root: Root | None, session: ConsoleSession | None, show: Callable[[], Page]
) -> Response:
    try:
        page = show()
    except KafkaException as error:
        page = _error_page(error)
    return HTMLResponse(render(page, console.common(root, session)), page.status)


def _changed(
    console: Console, visit: Visit, session: ConsoleSession, act: Callable[[Visit], Moved]
) -> Response:
    try:
        moved = act(visit)
    except (KafkaException, TypeError, ValueError) as error:
        page = _error_page(error)
        return HTMLResponse(render(page, console.common(visit.root, session)), page.status)
    session.notice = moved.notice
    _log.info("changed root=%r by=%r", visit.root.url, act.__name__)
    return RedirectResponse(moved.to, 303)


def _error_page(error: Exception) -> Page:
    status, reason = 400, printable(str(error))
    if isinstance(error, KafkaException):
        reason = error.error.str()
        is_missing = error.error.code() in _NOT_FOUND
        status = 404 if is_missing else 503 if isinstance(error, Unavailable) else 400
        if not is_missing and not isinstance(error, InvalidConfig | Unavailable):
            status = 409
    return Page("error.html", {"reason": reason}, status=status)


def _refused(console: Console) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(_: Request, error: Exception) -> Response:
        status, reason = (
            (error.status_code, error.detail)
            if isinstance(error, HTTPException)
            else (500, "failed")
        )
        page = Page("error.html", {"reason": reason}, status=status)
        return HTMLResponse(render(page, console.common(None, None)), status)

    return answer


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form. Raises HTTPException for a body that is too large or no form."""
    if (
        request.headers.get("content-type", "").partition(";")[0]
        != "application/x-www-form-urlencoded"
    ):
        raise HTTPException(415, "send a form")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > security.BODY_MAX:
                raise HTTPException(413, "the form is too large")
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=50))
    except (ClientDisconnect, ValueError):
        raise HTTPException(400, "the form cannot be read") from None


def _sign_in(console: Console) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if request.method != "POST":
            page = Page("sign_in.html", {"problem": ""})
            return HTMLResponse(render(page, console.common(None, _session_of(console, request))))
        session = console.sessions.sign_in((await _form(request)).get("token", ""))
        if session is None:
            page = Page("sign_in.html", {"problem": "That is not the token."}, status=403)
            return HTMLResponse(render(page, console.common(None, None)), page.status)
        moved = RedirectResponse("/", 303)
        is_https = request.url.scheme == "https"
        moved.set_cookie(
            COOKIE, session.id, int(SESSION_S), httponly=True, samesite="strict", secure=is_https
        )
        return moved

    return answer


def _sign_out(console: Console) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        session = _session_of(console, request)
        form = await _form(request)
        if session is not None and security.may_change(session, form.get("csrf", "")):
            console.sign_out(session)
        return RedirectResponse("/", 303)

    return answer


# --- live updates ---


_SIGNED_OUT = "event: signed-out\ndata:\n\n"


async def _events(
    console: Console, root: Root, path: str, session: ConsoleSession | None
) -> AsyncIterator[str]:
    """The live part of a page as server-sent events: one with each view, while the browser listens,
    and until the session ends in which it asked.
    """
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    newest: list[RootView] = []

    def notify(view: RootView) -> None:
        newest[:] = [view]
        try:
            loop.call_soon_threadsafe(changed.set)
        except RuntimeError:
            pass  # the server has ended

    console.streams.add(changed)
    try:
        with root.poller.subscribed(notify):
            yield "retry: 2000\n\n"
            while True:
                left_s = KEEP_ALIVE_S if session is None else console.sessions.left_s(session)
                is_woken = await _is_set_within(changed, min(KEEP_ALIVE_S, max(0.0, left_s)))
                if console.is_ending:
                    return
                if session is not None and not console.sessions.is_live(session):
                    yield _SIGNED_OUT
                    return
                if not is_woken:
                    yield ": nothing new\n\n"
                elif newest:
                    yield f"data: {json.dumps(console.live_html(root, path, newest.pop()))}\n\n"
    finally:
        console.streams.remove(changed)


async def _is_set_within(changed: asyncio.Event, seconds: float) -> bool:
    """Wait for an event and clear it; False if it does not come in this time."""
    try:
        await asyncio.wait_for(changed.wait(), seconds)
    except TimeoutError:
        return False
    changed.clear()
    return True


# --- checks of every request ---


class _Guard:
    """Refuses requests that are not for this server or not by its pages, and adds the headers of
    every answer.
    """

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_raw_headers(message["headers"])]
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if not security.is_known_host(host, self._console.hosts):
            return PlainTextResponse("this host name is not known here: see --allow-host\n", 421)
        if security.is_of_another_site(request.headers):
            page = Page(
                "error.html",
                {"reason": "another site has led here: go on with the link below"},
                status=403,
            )
            return HTMLResponse(render(page, self._console.common(None, None)), page.status)
        if len(request.scope["query_string"]) > security.QUERY_MAX:
            return PlainTextResponse("the address is too long\n", 414)
        is_post = request.method == "POST"
        if is_post and not security.is_own_origin(
            request.headers.get("origin"), host, request.url.scheme
        ):
            return PlainTextResponse("this form is not of a page of the console\n", 403)
        return None if self._console.is_open else self._refusal_without_token(request)

    def _refusal_without_token(self, request: Request) -> Response | None:
        is_public = request.url.path == "/sign-in" or request.url.path.startswith("/static/")
        if is_public or self._is_signed_in(request):
            return None
        if request.url.path == "/metrics":
            return PlainTextResponse("send the token: Authorization: Bearer\n", 401)
        return RedirectResponse("/sign-in", 303)

    def _is_signed_in(self, request: Request) -> bool:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        is_bearer = kind.lower() == "bearer" and self._console.sessions.is_token(token)
        return is_bearer or _session_of(self._console, request) is not None


def _raw_headers(present: Sequence[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    names = {name.lower() for name, _ in present}
    for name, value in HEADERS.items():
        if name.lower().encode() not in names:
            yield name.lower().encode(), value.encode()
