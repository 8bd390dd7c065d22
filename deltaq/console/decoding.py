"""Values with a schema of the registry as text, decoded in a process of their own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from deltaq.clock import Clock
from deltaq.errors import KafkaException
from deltaq.schema_registry import SchemaRegistryClient
from deltaq.store import Store
from deltaq.tools.registry_values import UNKNOWN_MAX, schema_id_of

VALUE_S = 5.0
"""Seconds that the decoding of one value may take."""

FAILURES_MAX = 3
"""Values of one page that may end their process; the others of the page are then shown as bytes."""

SCHEMA_CHARS_MAX = 4_000_000
"""Characters of a schema with all that it refers to."""

_START_S = 60.0  # a busy machine loads the libraries slowly
_ANSWER_BYTES_MAX = 1_000_000
_COMMAND = (sys.executable, "-P", "-m", "deltaq.console.decoder_process")
_ENVIRONMENT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH")
_KINDS = {"AVRO": "Avro", "PROTOBUF": "Protobuf"}


@dataclass(frozen=True, slots=True)
class Decoded:
    """The text of a value, its format and schema, and whether the text is whole."""

    text: str
    kind: str
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Why a value that has a schema cannot be shown as such."""

    reason: str


class ProcessFailed(Exception):
    """The decoding process has ended, or did not answer in time. The message says which."""


class DecoderProcess:
    """A process that decodes values, started with the first one. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._sent: set[int] = set()  # ids of schemas that the process has
        self._rest = b""

    def ask(
        self, schema_id: int, schema: Mapping[str, Any], value: bytes, chars: int
    ) -> dict[str, Any]:
        """The answer for a value with this schema: at most `chars` characters of its text, or an
        error. Raises ProcessFailed; the next value gets a new process.
        """
        try:
            if self._process is None:
                self._start(schema["type"])
            about = {} if schema_id in self._sent else schema
            request = {
                "id": schema_id,
                "bytes": len(value),
                "chars": chars,
                "type": schema["type"],
                **about,
            }
            self._write(json.dumps(request).encode() + b"\n" + value)
            self._sent.add(schema_id)
            return self._answer(VALUE_S)
        except ProcessFailed:
            self.end()
            raise

    def end(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        self._rest, self._sent = b"", set()
        if process is not None:
            process.kill()
            with process:  # closes the pipes, and waits
                pass

    def _start(self, schema_type: str) -> None:
        # No token, no keys of a store.
        env = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [*_COMMAND, schema_type],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=env,
        )
        self._answer(_START_S)

    def _write(self, data: bytes) -> None:
        assert self._process is not None  # noqa: S101 - it was started
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        view = memoryview(data)
        try:
            while view:
                view = view[self._process.stdin.write(view) :]
        except BrokenPipeError:
            raise ProcessFailed("its decoding has crashed") from None

    def _answer(self, seconds: float) -> dict[str, Any]:
        """The next line of the process."""
        assert self._process is not None  # noqa: S101 - it was started
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        deadline, pipe = self._clock.monotonic() + seconds, self._process.stdout.fileno()
        while b"\n" not in self._rest:
            left = deadline - self._clock.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise ProcessFailed(f"its decoding takes more than {seconds:g} s")
            part = os.read(pipe, 65_536)
            self._rest += part
            if not part or len(self._rest) > _ANSWER_BYTES_MAX:
                raise ProcessFailed("its decoding has crashed")
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


class ValueDecoder:
    """Decodes values that begin with the id of a schema in the registry of the root: Avro, JSON
    Schema and Protobuf.

    It is for one page, and raises nothing. Its process ends with the block.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._client = SchemaRegistryClient({"url": store.url}, store=store, clock=clock)
        self._process = DecoderProcess(clock)
        self._schemas: dict[int, Mapping[str, Any]] = {}
        self._unknown: set[int] = set()
        self._failures = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.end()

    def has_schema(self, value: bytes) -> bool:
        """Whether a value begins with the id of a schema in the registry. After `UNKNOWN_MAX` ids
        that are not there, no more are asked for: each costs a request.
        """
        return self._schema(value) is not None

    def __call__(self, value: bytes, chars: int) -> Decoded | Undecodable | None:
        """At most `chars` characters of the value; None for one without a schema."""
        found = self._schema(value)
        if found is None:
            return None
        number, schema = found
        if self._failures >= FAILURES_MAX:
            return Undecodable("other values of this page have ended their decoding")
        if (
            len(schema["schema"]) + sum(len(text) for _, text in schema["references"])
            > SCHEMA_CHARS_MAX
        ):
            return Undecodable(f"its schema has more than {SCHEMA_CHARS_MAX:,} characters")
        try:
            answer = self._process.ask(number, schema, value, chars)
        except ProcessFailed as error:
            self._failures += 1
            return Undecodable(str(error))
        if "error" in answer:
            return Undecodable(str(answer["error"]))
        kind = schema["type"]
        return Decoded(
            answer["text"], f"{_KINDS.get(kind, kind)} schema {number}", answer["is_whole"]
        )

    def _schema(self, value: bytes) -> tuple[int, Mapping[str, Any]] | None:
        number = schema_id_of(value)
        if number is None or number in self._unknown:
            return None
        if number not in self._schemas:
            if len(self._unknown) >= UNKNOWN_MAX:
                return None
            try:
                schema = self._client.get_schema(number)
                texts = self._client.references_of(schema)
            except KafkaException:
                self._unknown.add(number)
                return None
            about = {
                "schema": schema.schema_str,
                "references": [(name, text) for name, text in texts],
            }
            self._schemas[number] = {"type": schema.schema_type or "AVRO", **about}
        return number, self._schemas[number]
