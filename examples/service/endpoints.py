"""Health checks and metrics over HTTP.

`/live` and `/ready` answer 200 or 503, `/health` with what the consumer knows as JSON, `/metrics`
in the text format of Prometheus. No answer waits for the store.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol

from deltaq import ConsumerHealth
from deltaq.metrics import CONTENT_TYPE, Sample, prometheus_text


class Observed(Protocol):
    """What the endpoints ask a service."""

    @property
    def settings(self) -> Address:
        """Where to listen."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What the service has done, by name."""

    def metrics(self) -> Iterator[Sample]:
        """The metrics of the clients."""

    def health(self) -> ConsumerHealth:
        """What the consumer knows of itself."""

    def is_alive(self) -> bool:
        """Whether to leave the instance alone."""

    def is_ready(self) -> bool:
        """Whether the instance works."""


class Address(Protocol):
    """A host and a port; 0 for any free one."""

    @property
    def host(self) -> str:
        """The host."""

    @property
    def port(self) -> int:
        """The port."""


class Endpoints:
    """The HTTP server of a service, in threads of its own, while the block runs."""

    def __init__(self, service: Observed) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, text = answer(service, self.path)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
                """Probes every few seconds are no news."""

        self._server = ThreadingHTTPServer((service.settings.host, service.settings.port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="endpoints", daemon=True
        )

    @property
    def url(self) -> str:
        """The address."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> Endpoints:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def answer(service: Observed, path: str) -> tuple[int, str, str]:
    """Status, content type and text for a path."""
    if path == "/live":
        return _probe(service.is_alive())
    if path == "/ready":
        return _probe(service.is_ready())
    if path == "/health":
        return 200, "application/json", json.dumps(dataclasses.asdict(service.health()))
    if path == "/metrics":
        return (
            200,
            CONTENT_TYPE,
            prometheus_text(service.metrics()) + "".join(_own_metrics(service)),
        )
    return 404, "text/plain", "/live /ready /health /metrics\n"


def _probe(is_ok: bool) -> tuple[int, str, str]:
    return (200, "text/plain", "ok\n") if is_ok else (503, "text/plain", "no\n")


def _own_metrics(service: Observed) -> Iterator[str]:
    for name, count in service.counts.items():
        yield f"# TYPE service_{name}_total counter\nservice_{name}_total {count}\n"
