"""A process that reads hostile messages, one after the other: one of them may end it or freeze
it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
from importlib import import_module
from types import TracebackType
from typing import Any

from deltaq.schema_registry import Schema, SchemaRegistryClient
from deltaq.store import MemoryStore
from tests.children import environment_of_child

DEADLINE_S = 60
"""A process that freezes is ended after this time."""
MEMORY_BYTES = 4 << 30


class ReaderProcess:
    """Starts with the first question, and again after a question that ended it. A context
    manager.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> ReaderProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child is not None:
            self._child.communicate()
            self._child = None

    def reads(
        self,
        deserializer: type,
        schema_type: str,
        schema: str,
        payload: bytes,
        reader: str | None = None,
    ) -> str:
        """What the process gets from a payload with a schema: the value, or the class and the text
        of an error.
        """
        about = [
            deserializer.__module__,
            deserializer.__name__,
            schema_type,
            schema,
            payload.hex(),
            reader,
        ]
        return self._answer("read", about)

    def compares(self, schema_type: str, old: Any, new: Any) -> str:
        """What the process gets when it registers a new version of a subject."""
        return self._answer("compare", [schema_type, json.dumps(old), json.dumps(new)])

    def _answer(self, what: str, about: list[Any]) -> str:
        child = self._child = self._child or _started()
        assert child.stdin is not None
        assert child.stdout is not None
        deadline = threading.Timer(DEADLINE_S, child.kill)
        deadline.start()
        try:
            child.stdin.write(json.dumps([what, about]) + "\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        finally:
            deadline.cancel()
        if not answer:
            self._child = None
            _, text = child.communicate()
            raise AssertionError(f"ended by {child.returncode}: {text[-500:]}")
        found: str = json.loads(answer)
        return found


def _started() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment_of_child(),
    )


# --- in the process ---


def _read(
    module: str, name: str, schema_type: str, schema: str, payload: str, reader: str | None
) -> str:
    client = SchemaRegistryClient({}, store=MemoryStore("hostile"))
    deserializer = getattr(import_module(module), name)
    schema_id = client.register_schema("t-value", Schema(schema, schema_type))
    about = (None, None, client) if schema_type == "JSON" else (client, reader)
    read = deserializer(*about)
    return repr(read(b"\0" + schema_id.to_bytes(4, "big") + bytes.fromhex(payload)))


def _compare(schema_type: str, old: str, new: str) -> str:
    client = SchemaRegistryClient({}, store=MemoryStore("hostile"))
    client.register_schema("s", Schema(old, schema_type))
    return str(client.register_schema("s", Schema(new, schema_type)))


def _serve() -> None:
    """Answers each line of the input with a line."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        what, about = json.loads(line)
        try:
            found = _read(*about) if what == "read" else _compare(*about)
        except Exception as error:  # noqa: BLE001 - which one it is, is the answer
            found = f"{type(error).__name__} {error}"
        print(json.dumps(found[:500]), flush=True)


if __name__ == "__main__":
    _serve()
