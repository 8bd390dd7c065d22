"""The live page of a demo on loopback: three files, a stream of server-sent events, and a button
that kills.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

KINDS: Mapping[str, str] = MappingProxyType(
    {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}
)
"""The files that there are, by their addresses."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
)
"""What a browser lets the page load: nothing from elsewhere, and no script or style inside of a
value.
"""

KEEP_ALIVE_S = 15.0


class LivePage(ThreadingHTTPServer):
    """Serves a page on loopback: `index.html` and `page.js` of `folder`, in the style of all demos.
    `publish` sends a state to all browsers; `kill` is called by the button.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int, kill: Callable[[], None]) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.kill = kill
        self.files = {
            "/": folder / "index.html",
            "/page.css": Path(__file__).with_name("_page.css"),
            "/page.js": folder / "page.js",
        }
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self._changed = threading.Condition()
        self._state = ""
        self._version = 0
        self._serving = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        self._serving.start()

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.server_port}/"

    def publish(self, state: Mapping[str, object]) -> None:
        """Show a state."""
        text = json.dumps(state)
        with self._changed:
            self._state, self._version = text, self._version + 1
            self._changed.notify_all()

    def wait(self, seen: int) -> tuple[int, str]:
        """The next state after the version `seen`, and its version; the same version if none comes
        for some time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._version > seen, KEEP_ALIVE_S)
            return self._version, self._state

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: LivePage
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:  # the name is given
        if not self._is_for_us():
            self._answer(HTTPStatus.FORBIDDEN)
        elif self.path == "/events":
            self._send_events()
        elif self.path in KINDS:
            file = self.server.files[self.path]
            self._answer(HTTPStatus.OK, file.read_bytes(), KINDS[self.path])
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:  # the name is given
        # A page of another site can post here too, but not under our origin.
        if (
            not self._is_for_us()
            or self.headers.get("Origin") != f"http://{self.headers.get('Host')}"
        ):
            self._answer(HTTPStatus.FORBIDDEN)
        elif self.path == "/kill":
            self.server.kill()
            self._answer(HTTPStatus.NO_CONTENT)
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def _is_for_us(self) -> bool:
        """Whether the browser asks for this server, and not for a site whose name leads here."""
        return self.headers.get("Host") in self.server.hosts

    def _answer(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> None:
        self.send_response(status)
        self._send_policy(kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_policy(self, kind: str) -> None:
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")

    def _send_events(self) -> None:
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self._send_policy("text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        seen = 0
        try:
            while True:
                version, state = self.server.wait(seen)
                event = f"data: {state}\n\n" if version > seen else ": nothing new\n\n"
                seen = version
                self.wfile.write(event.encode())
        except (BrokenPipeError, ConnectionResetError):
            return

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is given
        """Print nothing."""
