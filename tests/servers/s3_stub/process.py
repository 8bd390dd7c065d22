"""An S3 stub as a child process, controlled by a test."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from deltaq.testing.faults import Effect
from tests.servers.s3_stub.rules import HttpRule

__all__ = ["S3Stub", "StubRequest"]

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class StubRequest:
    """A request to the stub. The names of `headers` are in lower case; `target` is the quoted path
    and query.
    """

    operation: str
    key: str
    method: str
    target: str
    headers: Mapping[str, str]
    body_bytes: int


class S3Stub:
    """An S3 stub in a child process. Start it with `start` or `with`; it ends with `close` or with
    this process.

    Usable from any thread. It runs in a process of its own so that no lock of the tested program
    can delay its answers. `page_keys` is the maximum number of keys in one page of a listing.
    """

    def __init__(self, buckets: Sequence[str] = ("deltaq",), page_keys: int = 1000) -> None:
        self.buckets = tuple(buckets)
        self.page_keys = page_keys
        self.endpoint = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> S3Stub:
        """Serve on a free loopback port and set `endpoint`. Raises RuntimeError if the process ends
        at once.
        """
        buckets = [f"--bucket={bucket}" for bucket in self.buckets]
        command = [sys.executable, "-m", "tests.servers.s3_stub", "--until-stdin-closes", *buckets]
        self._process = subprocess.Popen(
            [*command, f"--page-keys={self.page_keys}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().strip()
        if not self.endpoint:
            raise RuntimeError(
                f"the S3 stub ended with {self._process.wait(_TIMEOUT_S)} before it served"
            )
        return self

    def close(self) -> None:
        """End the process and discard its objects. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            with process:  # closes the pipes, and waits
                process.kill()

    def __enter__(self) -> S3Stub:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def options(self, **more: object) -> dict[str, object]:
        """Options for `open_store`; `more` adds options or overrides the default credentials."""
        keys = {
            "access_key_id": "stub-access-key",
            "secret_access_key": "stub-secret-key",
            "region": "us-east-1",
        }
        return {"endpoint": self.endpoint, **keys, **more}

    def conf(self, prefix: str, bucket: str = "deltaq", **more: object) -> dict[str, object]:
        """The configuration of a client with root `s3://<bucket>/<prefix>`; `more` are further
        store options.
        """
        options = {f"store.{name}": str(value) for name, value in self.options(**more).items()}
        return {"bootstrap.servers": f"s3://{bucket}/{prefix}", **options}

    def set_rules(self, *rules: HttpRule) -> None:
        """Replace all rules. The first rule that strikes a request determines its fault."""
        self._ask("PUT", "rules", json.dumps([rule.as_json() for rule in rules]).encode())

    def effects(self, *, clear: bool = False) -> Counter[Effect]:
        """The counts of the faults that took effect; with `clear`, they are reset."""
        found = self._ask("GET", "effects?clear=1" if clear else "effects")
        return Counter({Effect(name): count for name, count in found.items()})

    def requests(self, *, clear: bool = False) -> list[StubRequest]:
        """The S3 requests so far, oldest first; with `clear`, they are forgotten."""
        return [
            StubRequest(**found)
            for found in self._ask("GET", "requests?clear=1" if clear else "requests")
        ]

    def objects(self, prefix: str = "", bucket: str = "deltaq") -> dict[str, bytes]:
        """Key and true content of the bucket's objects below `prefix`, in key order."""
        found = self._ask("GET", f"objects/{bucket}?{urlencode({'prefix': prefix})}")
        return {key: base64.b64decode(text) for key, text in found.items()}

    def change(self, key: str, data: bytes | None, bucket: str = "deltaq") -> None:
        """Put an object, or with None remove it, bypassing all rules."""
        self._ask(
            "DELETE" if data is None else "PUT", f"objects/{bucket}/{quote(key)}", data or b""
        )

    def give_credentials(self, access_key: str, expire_at: str) -> str:
        """Serve these credentials from now on, like a container's credential endpoint. Returns the
        endpoint's URL.

        `expire_at` is a time such as `2026-01-01T00:00:00Z`.
        """
        given = {
            "AccessKeyId": access_key,
            "SecretAccessKey": "stub-secret-key",
            "Token": "stub-token",
            "Expiration": expire_at,
        }
        self._ask("PUT", "credentials", json.dumps(given).encode())
        return f"{self.endpoint}/-/credentials"

    def _ask(self, method: str, path: str, body: bytes = b"") -> Any:
        connection = HTTPConnection(urlsplit(self.endpoint).netloc, timeout=_TIMEOUT_S)
        try:
            connection.request(method, f"/-/{path}", body)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the S3 stub answered {answer.status} to {method} {path}")
            return json.loads(content)
        finally:
            connection.close()
