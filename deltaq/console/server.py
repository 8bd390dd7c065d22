"""Serves the console over HTTP until it is interrupted."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from deltaq.admin import AdminClient
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config import AdminConfig, parse_client_config
from deltaq.console.app import STREAMS_MAX, Console, application
from deltaq.console.connections import (
    ConnectionLimits,
    HttpConnection,
    LimitedState,
    connections_max,
)
from deltaq.console.poller import INTERVAL_S, Poller
from deltaq.console.security import LOOPBACK, Sessions, new_secret
from deltaq.console.visits import Root
from deltaq.errors import InvalidConfig
from deltaq.metrics import Totals, listening
from deltaq.root import open_root

_log = logging.getLogger("deltaq.console")

TOKEN_CHARS_MIN = 16
"""Shortest token that is taken."""

CLOSING_S = 2
"""Seconds for which open pages may hold up the end of the server."""


@dataclass(frozen=True)
class ServerSettings:
    """How to serve. `token` is that of people who may write, and of all where `host` is not
    loopback; one is made if it is needed and not given. `hosts` are more names under which browsers
    reach the server.
    """

    host: str = "127.0.0.1"
    port: int = 8090
    may_write: bool = False
    token: str | None = field(default=None, repr=False)
    hosts: Sequence[str] = ()
    interval_s: float = INTERVAL_S

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        return self.host in LOOPBACK


def console_of(
    confs: Sequence[Mapping[str, Any]],
    settings: ServerSettings,
    clock: Clock = SYSTEM_CLOCK,
    notify_token: Callable[[str], object] = lambda _: None,
) -> Console:
    """The console of these roots. `notify_token` is called with a token that was made, and never
    with a given one. Raises InvalidConfig for a root or a setting that cannot be used.
    """
    if not settings.is_loopback and settings.host in ("0.0.0.0", "::", "") and not settings.hosts:  # noqa: S104
        raise InvalidConfig("name the host names that lead to the server: --allow-host", key="host")
    token = settings.token
    if token is not None and (len(token) < TOKEN_CHARS_MIN or not token.isascii()):
        raise InvalidConfig(
            f"the token must have {TOKEN_CHARS_MIN} ASCII characters at least", key="token"
        )
    if token is None and (settings.may_write or not settings.is_loopback):
        token = new_secret(clock)
        notify_token(token)
    totals = Totals()
    roots = [_root(number, conf, settings, clock, totals) for number, conf in enumerate(confs)]
    hosts = LOOPBACK | {host.lower() for host in (settings.host, *settings.hosts)}
    return Console(
        roots,
        Sessions(token, clock),
        totals,
        may_write=settings.may_write,
        is_open=settings.is_loopback,
        hosts=hosts,
        streams_max=min(STREAMS_MAX, connections_max() // 2),
    )


def _root(
    number: int, conf: Mapping[str, Any], settings: ServerSettings, clock: Clock, totals: Totals
) -> Root:
    store = open_root(parse_client_config(AdminConfig, conf), clock)
    admin = AdminClient(conf, store=store, clock=clock)
    return Root(number, store, admin, Poller(store, clock, settings.interval_s, totals), clock)


def serve(console: Console, settings: ServerSettings, notify: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM. `notify` is called with the address. Raises InvalidConfig for
    a port in use.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with listener:
        try:
            listener.bind((settings.host, settings.port))
            listener.listen()  # from now on, connections wait for the server
        except OSError as error:
            raise InvalidConfig(
                f"{settings.host}:{settings.port}: {error.strerror}", key="port"
            ) from None
        host, port = listener.getsockname()[:2]
        notify(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
        # Uvicorn ends cleanly, then signals again.
        with listening(console.totals), suppress(KeyboardInterrupt):
            http_server(console).run([listener])


def http_server(console: Console, limits: ConnectionLimits | None = None) -> uvicorn.Server:
    """A server for the console, which listens at the sockets that its `run` is given."""
    config = uvicorn.Config(
        application(console),
        access_log=False,
        http=HttpConnection,
        ws="none",
        log_level="error",  # what is wrong with a request, its client is told
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=CLOSING_S,
        lifespan="off",
    )
    return _Server(config, console, limits or ConnectionLimits(connections_max()))


class _Server(uvicorn.Server):
    """A server that does not wait for pages which stay open: it would cancel their streams, with a
    traceback each.
    """

    def __init__(self, config: uvicorn.Config, console: Console, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self._console = console
        self.server_state = LimitedState(limits)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_log_shortly)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._console.end_streams()
        await super().shutdown(sockets)


def _log_shortly(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what a connection raises in one line: clients can make it happen as often as they
    like.
    """
    error = context.get("exception")
    if isinstance(error, OSError):
        _log.warning("%s: %s", context.get("message", "a connection failed"), error)
    else:
        loop.default_exception_handler(context)
