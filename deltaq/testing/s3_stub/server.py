"""The server of an S3 stub: S3 over HTTP, spoilt by rules, and a control path on the same port.

Control (`/-/...`; no bucket has so short a name) speaks JSON and is not subject to rules:

    GET  /-/happened           what faults did, by fault     (?clear=1 forgets it)
    GET  /-/requests           what was asked, oldest first  (?clear=1 forgets it)
    PUT  /-/rules              the rules from now on
    GET  /-/objects/<bucket>   keys and contents in base64   (?prefix=)
    PUT, DELETE /-/objects/<bucket>/<key>   put there, or remove, past all rules
    PUT  /-/credentials        what `GET /-/credentials` gives from now on, as a container's credential endpoint would
"""

from __future__ import annotations

import base64
import json
import socket
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from deltaq.clock import SYSTEM_CLOCK
from deltaq.testing.s3_stub.bucket import Answer, Buckets, Request, error_answer
from deltaq.testing.s3_stub.rules import HttpRule, HttpRules

__all__ = ["S3StubServer"]

_REQUESTS_KEPT = 50_000
_LONGEST_HANG_S = 600.0


class S3StubServer(ThreadingHTTPServer):
    """Listens on a loopback address only: anybody who reaches it may do anything."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, buckets: Sequence[str], page_keys: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.buckets = Buckets(page_keys)
        for bucket in buckets:
            self.buckets.make(bucket)
        self.rules = HttpRules()
        self.asked: deque[dict[str, object]] = deque(maxlen=_REQUESTS_KEPT)
        self.credentials: object = {}

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what many faults are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: S3StubServer

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request.of(self.command, self.path, dict(self.headers.items()), body)
        if request.bucket == "-":
            self._send(self._control(request))
            return
        self.server.asked.append(
            {
                "operation": request.operation,
                "key": request.subject,
                "method": request.method,
                "target": request.target,
                "headers": dict(request.headers),
                "body_bytes": len(body),
            }
        )
        struck = self.server.rules.hit(request.operation, request.subject, request.access_key)
        if struck is None:
            self._send(self._do(request))
        else:
            self._spoil(request, *struck)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _respond  # noqa: N815 - the base class calls them so

    def log_message(self, *_args: object) -> None:
        """Keep quiet: what was asked can be had from the control path."""

    # --- faults ---

    def _spoil(self, request: Request, rule: HttpRule, number: int) -> None:
        fault = rule.fault
        if fault.endswith("_after"):
            done = self._do(request).status < 300
            # A condition may have stopped it, and then the answer that is lost is a refusal.
            self._count(fault if done else f"{fault}_refused")
        elif fault.endswith("_before"):
            self._count(fault)
        if fault.startswith("error"):
            self._send(_chosen(rule))
        elif fault.startswith("reset"):
            self._hang_up()
        elif fault.startswith("hang"):
            self._hang()
        elif fault == "late_apply":
            self._late(request, rule, number)
        elif fault == "slow":
            SYSTEM_CLOCK.sleep(rule.delay_s(number))
            self._count(fault)
            self._send(self._do(request))
        else:
            self._lie(request, rule)

    def _lie(self, request: Request, rule: HttpRule) -> None:
        """Answers that look right."""
        buckets, fault = self.server.buckets, rule.fault
        honest = request
        if fault == "ignore_condition":
            was_there = buckets.has(request)
            answer = self._do(request, conditional=False)
            self._count(f"{fault}_replaced" if was_there else f"{fault}_unneeded")
            self._send(answer)
            return
        if fault == "repeat_page":
            query = {name: value for name, value in request.query.items() if name != "continuation-token"}
            request = replace(request, query=query)
        answer = self._do(request, without_newest=rule.keys if fault == "stale_list" else 0)
        shown, announced = answer.body, len(answer.body)
        if fault in {"stale_list", "repeat_page"}:
            changed = shown != self._do(honest).body
        elif fault == "short_body":
            shown, announced, changed = shown[: len(shown) // 2], max(announced, 1), True
        elif fault == "truncate":
            shown, changed = shown[: len(shown) // 2], len(shown) > 0
            announced = len(shown)
        else:
            at = len(shown) // 2
            changed = len(shown) > 0
            shown = shown[:at] + bytes(byte ^ 0x10 for byte in shown[at : at + 1]) + shown[at + 1 :]
        if changed:
            self._count(fault)
        self._send(replace(answer, body=shown), announced)

    def _late(self, request: Request, rule: HttpRule, number: int) -> None:
        self.close_connection = True
        if rule.status:
            self._send(_chosen(rule))
            self.wfile.flush()
        else:
            self._hang_up()
        SYSTEM_CLOCK.sleep(rule.delay_s(number))
        landed = self._do(request).status < 300
        self._count("late_apply" if landed else "late_apply_refused")

    def _hang_up(self) -> None:
        """Close so that the client learns of it at once, and not in order."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RDWR)

    def _hang(self) -> None:
        """Until the client closes the connection."""
        self.close_connection = True
        self.connection.settimeout(_LONGEST_HANG_S)
        while self.rfile.read1(1 << 16):
            pass

    def _count(self, effect: str) -> None:
        self.server.rules.count(effect)

    # --- answers ---

    def _do(self, request: Request, *, conditional: bool = True, without_newest: int = 0) -> Answer:
        if not request.access_key:
            return error_answer(403, "AccessDenied", "Anonymous access is not allowed")
        return self.server.buckets.handle(request, conditional=conditional, without_newest=without_newest)

    def _send(self, answer: Answer, announced: int | None = None) -> None:
        length = len(answer.body) if announced is None else announced
        cut = self.command != "HEAD" and length != len(answer.body)
        self.close_connection = self.close_connection or cut
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        if answer.status != 204:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    # --- control ---

    def _control(self, request: Request) -> Answer:
        server = self.server
        what, _, rest = request.key.partition("/")
        clear = "clear" in request.query
        found: object = None
        if what == "rules":
            server.rules.replace([HttpRule.from_json(rule) for rule in json.loads(request.body)])
        elif what == "happened":
            found = server.rules.counts(clear=clear)
        elif what == "requests":
            found = [dict(asked) for asked in tuple(server.asked)]
            if clear:
                server.asked.clear()
        elif what == "credentials" and request.method == "PUT":
            server.credentials = json.loads(request.body)
        elif what == "credentials":
            found = server.credentials
        elif what == "objects":
            bucket, _, key = rest.partition("/")
            if request.method == "GET":
                objects = server.buckets.objects(bucket, request.query.get("prefix", ""))
                found = {name: base64.b64encode(data).decode() for name, data in objects.items()}
            else:
                server.buckets.change(bucket, key, request.body if request.method == "PUT" else None)
        else:
            return Answer(404)
        return Answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})


def _chosen(rule: HttpRule) -> Answer:
    answer = error_answer(rule.status, rule.code)
    if rule.body is not None:
        answer.body = rule.body.encode()
    answer.headers |= rule.headers
    return answer
