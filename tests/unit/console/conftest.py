"""Consoles on roots in memory, asked without a network, and served for a browser."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from deltaq.console.app import Console, application
from deltaq.console.connections import ConnectionLimits
from deltaq.console.server import ServerSettings, console_of, http_server

TOKEN = "a-token-for-the-tests"
HOST = "http://localhost:8090"


@pytest.fixture
def console(memory_root: str) -> Console:
    """A console that only shows, on an empty root."""
    return made(memory_root)


def made(*roots: str, **settings: Any) -> Console:
    """A console of these roots."""
    return console_of([{"bootstrap.servers": root} for root in roots], ServerSettings(**settings))


def browser(console: Console) -> TestClient:
    """A client that follows no redirects by itself, and sends the `Origin` that a page of the
    console has.
    """
    return TestClient(application(console), HOST, headers={"Origin": HOST}, follow_redirects=False)


@pytest.fixture
def asked(console: Console) -> TestClient:
    """A client of the console."""
    return browser(console)


@pytest.fixture
def writer(memory_root: str) -> TestClient:
    """A signed-in client of a console that may write."""
    client = browser(made(memory_root, may_write=True, token=TOKEN))
    assert client.post("/sign-in", data={"token": TOKEN}).status_code == 303
    return client


@dataclass
class Stream:
    """A request for server-sent events that stays open until the end of the block."""

    status: int = 0
    text: str = ""
    headers: dict[str, str] = field(default_factory=dict)


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition is true."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - threads change what is waited for
            await asyncio.sleep(0.002)
    assert condition(), what


class Streams:
    """Opens streams of events on an application, without a server."""

    def __init__(self, console: Console) -> None:
        self._app = application(console)

    def open(
        self, path: str, query: str, cookie: str = ""
    ) -> tuple[Stream, asyncio.Event, asyncio.Future[None]]:
        """A stream, the event by which the browser leaves, and the task that answers it."""
        stream, gone = Stream(), asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(b"host", b"localhost:8090"), (b"cookie", cookie.encode())],
            "scheme": "http",
            "http_version": "1.1",
            "root_path": "",
        }
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                stream.status = message["status"]
                stream.headers = {
                    name.decode(): value.decode() for name, value in message["headers"]
                }
            else:
                stream.text += message.get("body", b"").decode()

        return stream, gone, asyncio.ensure_future(self._app(scope, receive, send))


@contextmanager
def served(console: Console, limits: ConnectionLimits | None = None) -> Iterator[str]:
    """The console behind a real server on loopback; its address."""
    with running(http_server(console, limits)) as url:
        yield url


@contextmanager
def running(server: uvicorn.Server) -> Iterator[str]:
    """A server on loopback; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        ready = threading.Event()
        while not server.started:
            assert thread.is_alive()
            ready.wait(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
