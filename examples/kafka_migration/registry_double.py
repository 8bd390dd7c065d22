"""A stand-in for Confluent's Schema Registry: the part of its REST API that `avro_service.py`
needs.

It answers from deltaq's own registry in memory. So a program that runs with confluent-kafka's
client on it shows that the clients, the serializers and their bytes agree; it does not show that
the registries do.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from deltaq.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError


class _Handler(BaseHTTPRequestHandler):
    registry: SchemaRegistryClient

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name in the base class
        """Log nothing."""

    def _answer(self, body: Any) -> None:
        path = [unquote(part) for part in urlsplit(self.path).path.split("/")[1:]]
        try:
            status, answer = 200, _route(self.registry, path, body)
        except SchemaRegistryError as error:
            status = error.http_status_code
            answer = {"error_code": error.error_code, "message": error.error_message}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _route(registry: SchemaRegistryClient, path: list[str], body: Any) -> Any:  # noqa: PLR0911 - one for each path
    match path:
        case ["subjects"]:
            return registry.get_subjects()
        case ["subjects", subject] if body is not None:
            return _registered(registry.lookup_schema(subject, _schema(body)))
        case ["subjects", subject, "versions"] if body is not None:
            return {"id": registry.register_schema(subject, _schema(body))}
        case ["subjects", subject, "versions"]:
            return registry.get_versions(subject)
        case ["subjects", subject, "versions", version]:
            return _registered(
                registry.get_version(subject, version if version == "latest" else int(version))
            )
        case ["schemas", "ids", number]:
            return {"schema": registry.get_schema(int(number)).schema_str}
        case ["compatibility", "subjects", subject, "versions", version]:
            return {"is_compatible": registry.test_compatibility(subject, _schema(body), version)}
    raise SchemaRegistryError(404, 404, "HTTP 404 Not Found")


def _schema(body: Any) -> Schema:
    return Schema(body["schema"], body.get("schemaType", "AVRO"))


def _registered(found: Any) -> dict[str, Any]:
    text = found.schema.schema_str
    return {
        "subject": found.subject,
        "version": found.version,
        "id": found.schema_id,
        "schema": text,
    }


@contextmanager
def registry_double(root: str) -> Iterator[str]:
    """The URL of a stand-in that keeps its schemas under `root`, until the end of the block."""
    handler: Callable[..., BaseHTTPRequestHandler] = type(
        "Handler", (_Handler,), {"registry": SchemaRegistryClient({"url": root})}
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
