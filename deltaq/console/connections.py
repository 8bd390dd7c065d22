"""Connections of browsers, each with deadlines, and not too many of them.

A connection that owes something costs as much as one that is of use: half a request, or an answer
that is not taken. So each has a deadline for its next request, head and body, and one for taking
what was sent. When there are too many, a new one takes the place of the one that has kept the
server waiting for longest. Uvicorn is known here and in `server` only.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

CONNECTIONS_MAX = 1_000
"""Connections at one time; fewer where the process may open fewer than twice as many files."""

REQUEST_S = 20.0
"""Seconds in which a connection sends a whole request, counted from its opening or from the answer
before.
"""

ANSWER_S = 60.0
"""Seconds in which a client takes all that was sent to it so far."""

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def connections_max() -> int:
    """How many connections this process has at one time: half of the files that it may open are for
    other things.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS_MAX if files == resource.RLIM_INFINITY else min(CONNECTIONS_MAX, files // 2)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a connection may take: see the constants of this module."""

    connections: int
    request_s: float = REQUEST_S
    answer_s: float = ANSWER_S


class LimitedState(ServerState):
    """What the connections of a server share, with their limits."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__()
        self.limits = limits


class HttpConnection(H11Protocol):
    """A connection with deadlines. `free_since` is when it was opened or its last request was
    answered, as the time of the event loop.
    """

    server_state: LimitedState
    free_since = 0.0
    _sent_at: float | None = None  # since when something waits to be taken
    _check: asyncio.TimerHandle | None = None

    @property
    def owes_request(self) -> bool:
        """Whether a request, or the rest of one, is awaited."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete or cycle.more_body

    @property
    def waits_since(self) -> float | None:
        """Since when a request is awaited, or what was sent is not taken; None if neither is so."""
        if self.owes_request:
            return self.free_since
        return self._sent_at if self.transport.get_write_buffer_size() else None

    def connection_made(self, transport: Any) -> None:
        """Take a connection, in the place of another one where there are too many."""
        limits, others = self.server_state.limits, self.server_state.connections
        super().connection_made(transport)
        self.free_since = self.loop.time()
        self._check_later()
        if len(others) > limits.connections:
            waiting = [
                found
                for found in others
                if isinstance(found, HttpConnection) and found.waits_since is not None
            ]
            longest = min(waiting, key=attrgetter("waits_since"))
            if longest is self:  # all others are being answered
                transport.write(_BUSY)
            longest.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._check is not None:
            self._check.cancel()
        try:
            super().connection_lost(exc)
        except h11.LocalProtocolError:
            pass  # it was lost amidst what the protocol does not allow

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        try:
            super().data_received(data)
        except h11.LocalProtocolError:
            self.end()  # what is wrong in a body cannot be answered after the answer

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.free_since = self.loop.time()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """End a connection without requests."""
        self.end()

    def shutdown(self) -> None:
        """End with the server."""
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            self.end()

    def end(self) -> None:
        """End the connection now: at once if it owes a request, or takes no answer."""
        self.server_state.connections.discard(self)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    # --- deadlines ---

    def _check_later(self) -> None:
        limits = self.server_state.limits
        self._check = self.loop.call_later(
            min(1.0, limits.request_s, limits.answer_s), self._check_deadlines
        )

    def _check_deadlines(self) -> None:
        now, limits = self.loop.time(), self.server_state.limits
        if not self.transport.get_write_buffer_size():
            self._sent_at = None
        elif self._sent_at is None:
            self._sent_at = now
        is_unasked = self.owes_request and now > self.free_since + limits.request_s
        if is_unasked or (self._sent_at is not None and now > self._sent_at + limits.answer_s):
            self.end()
        else:
            self._check_later()
