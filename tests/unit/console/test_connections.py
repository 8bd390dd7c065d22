"""Connections that owe something: half requests, answers that are not taken, and too many of
them.
"""

from __future__ import annotations

import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from deltaq import Topic
from deltaq.console.connections import CONNECTIONS_MAX, ConnectionLimits, connections_max
from deltaq.console.server import http_server
from tests.doubles.reading import eventually
from tests.unit.console.conftest import made, running, served

NEVER = 3600.0
HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "
FORM = (
    b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Length:"
    b" 50\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\n"
)


@contextmanager
def connected(url: str, sent: bytes = b"") -> Iterator[socket.socket]:
    """A connection that has sent these bytes."""
    with closing(
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=30)
    ) as found:
        found.sendall(sent)
        yield found


def status(url: str, path: str = "/static/icon.svg") -> int:
    """The status of the answer to an ordinary request on a connection of its own."""
    with closing(HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=30)) as client:
        client.request("GET", path)
        return client.getresponse().status


def until_end(found: socket.socket) -> bytes:
    """All that a connection gets until it is ended."""
    parts = []
    try:
        while part := found.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def test_connections_that_send_half_a_head_shut_no_other_out(memory_root: str) -> None:
    with (
        served(made(memory_root), ConnectionLimits(20, NEVER, NEVER)) as url,
        ExitStack() as opened,
    ):
        halves = [opened.enter_context(connected(url, HALF)) for _ in range(150)]
        assert [status(url) for _ in range(20)] == [200] * 20
        assert until_end(halves[0]) == b"", "the oldest has given way"


def test_a_connection_too_many_is_refused_where_all_others_are_answered(memory_root: str) -> None:
    stream = b"GET /roots/0/events?page= HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(made(memory_root), ConnectionLimits(3, NEVER, NEVER)) as url, ExitStack() as opened:
        streams = [opened.enter_context(connected(url, stream)) for _ in range(3)]
        assert all(found.recv(15) == b"HTTP/1.1 200 OK" for found in streams)
        with connected(url) as more:
            assert until_end(more).startswith(b"HTTP/1.1 503 ")


def test_connections_that_take_no_answer_shut_no_other_out(memory_root: str) -> None:
    for number in range(20):
        Topic(f"{'n' * 200}{number}", bootstrap_servers=memory_root).create()
    # More than the machine's buffers hold.
    pages = b"GET /roots/0 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000
    server = http_server(made(memory_root, interval_s=NEVER), ConnectionLimits(3, NEVER, NEVER))
    with running(server) as url, ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(connected(url, pages))
        connections: set[Any] = server.server_state.connections
        eventually(
            lambda: len(connections) == 3 and all(found._sent_at for found in list(connections)),
            "pages that nothing takes",
        )
        assert status(url) == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HALF,
        FORM + b"token=",
        (
            b"POST /sign-in HTTP/1.1\r\nHost: elsewhere\r\nTransfer-Encoding:"
            b" chunked\r\n\r\n5\r\nhello\r\n"
        ),
        b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n" + HALF,
    ],
    ids=[
        "nothing",
        "half a head",
        "half a body",
        "a body after its answer",
        "half a head after an answer",
    ],
)
def test_a_connection_that_owes_a_request_is_ended(memory_root: str, sent: bytes) -> None:
    with (
        served(made(memory_root), ConnectionLimits(100, 0.05, NEVER)) as url,
        connected(url, sent) as found,
    ):
        answers = until_end(found)
    assert answers.count(b"HTTP/1.1 200") == sent.count(b"icon.svg")


def test_a_stream_outlives_the_deadline_for_requests(memory_root: str) -> None:
    console = made(memory_root, interval_s=0.1)
    stream = b"GET /roots/0/events?page= HTTP/1.1\r\nHost: localhost\r\n\r\n"
    # The second request comes before the first is answered, and is taken up without further bytes.
    first = b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with (
        served(console, ConnectionLimits(100, 0.05, NEVER)) as url,
        connected(url, first + stream) as found,
    ):
        seen = b""
        while seen.count(b"data: ") < 5:
            part = found.recv(65_536)
            assert part, "the stream has ended"
            seen += part


def test_a_client_that_takes_no_answer_is_ended(memory_root: str) -> None:
    for number in range(20):
        Topic(f"{'n' * 200}{number}", bootstrap_servers=memory_root).create()
    server = http_server(made(memory_root, interval_s=NEVER), ConnectionLimits(100, NEVER, 0.05))
    # More than the machine's buffers hold.
    pages = b"GET /roots/0 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000
    with running(server) as url, connected(url, pages):
        eventually(lambda: server.server_state.total_requests, "the first answer")
        eventually(lambda: not server.server_state.connections, "the end of the connection")
        assert server.server_state.total_requests < 1_000


@pytest.mark.parametrize(
    "sent",
    [
        HALF,
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000,
        b"GET /roots/0/events?page= HTTP/1.1\r\nHost: localhost\r\n\r\nnonsense\r\n\r\n",
        (
            b"POST /sign-in HTTP/1.1\r\nHost: elsewhere\r\nTransfer-Encoding:"
            b" chunked\r\n\r\nnonsense\r\n"
        ),
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100,
    ],
    ids=[
        "half",
        "TLS",
        "flood of headers",
        "amidst a stream",
        "bad chunk after the answer",
        "upgrade",
        "pipelined",
    ],
)
def test_clients_that_break_off_leave_no_trace_in_the_log(
    memory_root: str, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with served(made(memory_root)) as url:
        for _ in range(3):
            with connected(url, sent) as found:
                # Closing with a linger of zero is a reset.
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            with connected(url, sent) as found:
                if sent != HALF:
                    assert found.recv(100)
        assert status(url) == 200
    assert [
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    ] == []


def test_a_process_that_may_open_few_files_takes_fewer_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def may_open(count: int) -> Any:
        return lambda _: (count, count)

    monkeypatch.setattr("resource.getrlimit", may_open(256))
    assert connections_max() == 128
    assert made("memory://few").streams_max == 64
    for many in (10**6, resource.RLIM_INFINITY):
        monkeypatch.setattr("resource.getrlimit", may_open(many))
        assert connections_max() == CONNECTIONS_MAX
