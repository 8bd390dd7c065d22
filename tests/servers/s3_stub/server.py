"""The server of an S3 stub: S3 over HTTP with fault rules, and a control path on the same port.

The control path (`/-/...`; bucket names are never that short) uses JSON and is not subject to
rules:

    GET  /-/effects            counts of effects of faults   (?clear=1 resets them)
    GET  /-/requests           requests, oldest first        (?clear=1 forgets them)
    PUT  /-/rules              replace the rules
    GET  /-/objects/<bucket>   keys and contents in base64   (?prefix=)
    PUT, DELETE /-/objects/<bucket>/<key>   put or remove an object, bypassing all rules
    PUT  /-/credentials        the answer of `GET /-/credentials`, like a container's endpoint
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
from deltaq.testing.faults import Effect
from tests.servers.s3_stub.bucket import Answer, Buckets, Request, error_answer
from tests.servers.s3_stub.rules import HttpRule, HttpRules

__all__ = ["S3StubServer"]

_REQUESTS_KEPT = 50_000
_LONGEST_HANG_S = 600.0


class S3StubServer(ThreadingHTTPServer):
    """Listens on a loopback address only, since it does not authenticate its clients."""

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
        """Ignore clients that disconnect: many faults cause that."""


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
        """Do not log: the control path returns the requests."""

    # --- faults ---

    def _spoil(self, request: Request, rule: HttpRule, number: int) -> None:
        fault = rule.fault
        if fault.endswith("_after"):
            done = self._do(request).status < 300
            self._count(Effect.ANSWER_LOST if done else Effect.REFUSAL_LOST)
        elif fault.endswith("_before"):
            self._count(Effect.HUNG if fault == "hang_before" else Effect.ERROR_BEFORE)
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
            self._count(Effect.DELAYED)
            self._send(self._do(request))
        else:
            self._lie(request, rule)

    def _lie(self, request: Request, rule: HttpRule) -> None:
        """Faults whose answers look correct."""
        fault, honest = rule.fault, request
        if fault == "ignored_condition":
            was_there = self.server.buckets.has(request)
            answer = self._do(request, conditional=False)
            if was_there and request.operation == "create" and answer.status < 300:
                self._count(Effect.CONDITION_IGNORED)
            self._send(answer)
        elif fault in {"stale_list", "repeated_page"}:
            if fault == "repeated_page":
                query = {
                    name: value
                    for name, value in request.query.items()
                    if name != "continuation-token"
                }
                request = replace(request, query=query)
            answer = self._do(request, without_newest=rule.keys if fault == "stale_list" else 0)
            if answer.body != self._do(honest).body:
                self._count(Effect.KEYS_HIDDEN if fault == "stale_list" else Effect.PAGE_REPEATED)
            self._send(answer)
        else:
            self._damage(self._do(request), fault)

    def _damage(self, answer: Answer, fault: str) -> None:
        body, middle = answer.body, len(answer.body) // 2
        if fault == "flip_bit":
            spoilt = (
                body[:middle]
                + bytes(byte ^ 0x10 for byte in body[middle : middle + 1])
                + body[middle + 1 :]
            )
        else:
            spoilt = body[:middle]
        cut_short = fault == "short_body"
        if spoilt != body or cut_short:
            self._count(Effect.BIT_FLIPPED if fault == "flip_bit" else Effect.TRUNCATED)
        self._send(replace(answer, body=spoilt), max(len(body), 1) if cut_short else None)

    def _late(self, request: Request, rule: HttpRule, number: int) -> None:
        self.close_connection = True
        if rule.status:
            self._send(_chosen(rule))
            self.wfile.flush()
        else:
            self._hang_up()
        SYSTEM_CLOCK.sleep(rule.delay_s(number))
        landed = self._do(request).status < 300
        self._count(Effect.LATE_WRITE_LANDED if landed else Effect.LATE_WRITE_REFUSED)

    def _hang_up(self) -> None:
        """Reset the connection, so that the client notices it at once."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RDWR)

    def _hang(self) -> None:
        """Wait until the client closes the connection."""
        self.close_connection = True
        self.connection.settimeout(_LONGEST_HANG_S)
        while self.rfile.read1(1 << 16):
            pass

    def _count(self, effect: Effect) -> None:
        self.server.rules.count(effect)

    # --- answers ---

    def _do(self, request: Request, *, conditional: bool = True, without_newest: int = 0) -> Answer:
        if not request.access_key:
            return error_answer(403, "AccessDenied", "Anonymous access is not allowed")
        return self.server.buckets.handle(
            request, conditional=conditional, without_newest=without_newest
        )

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
        elif what == "effects":
            found = server.rules.effects(clear=clear)
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
                server.buckets.change(
                    bucket, key, request.body if request.method == "PUT" else None
                )
        else:
            return Answer(404)
        return Answer(200, json.dumps(found).encode(), {"Content-Type": "application/json"})


def _chosen(rule: HttpRule) -> Answer:
    answer = error_answer(rule.status, rule.code)
    if rule.body is not None:
        answer.body = rule.body.encode()
    answer.headers |= rule.headers
    return answer
