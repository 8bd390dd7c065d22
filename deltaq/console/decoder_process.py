"""The process that decodes values for the console: `python -m deltaq.console.decoder_process`.

Values and schemas come from elsewhere, and a decoder that one of them crashes, freezes or fills
takes its process with it. This process has limits of memory and time, no store and no secrets: it
is sent a value and its schema, and answers with the text to show. Its console ends it when it takes
too long.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from deltaq.errors import KafkaException
from deltaq.schema_registry import Schema, SchemaRegistryClient
from deltaq.schema_registry.formats import NamedText, load_format
from deltaq.store import MemoryStore
from deltaq.tools.records import plain
from deltaq.tools.registry_values import RegistryDecoder

MEMORY_BYTES = 1024 * 1024 * 1024
"""Address space of the process, with that of its libraries."""

CPU_S = 30
"""Seconds of processor time in its life, for all values of one page."""

LINE_CHARS = 100
"""Longest JSON that is shown on one line."""

_REASON_CHARS = 200


class GivenSchemas(SchemaRegistryClient):
    """A client of a registry that has only the schemas which were sent here."""

    def __init__(self) -> None:
        super().__init__({"url": "memory://given"}, store=MemoryStore("given"))
        self.given: dict[int, tuple[Schema, tuple[NamedText, ...]]] = {}

    def get_schema(self, schema_id: int, *_: Any, **__: Any) -> Schema:
        """The schema with this id."""
        return self.given[schema_id][0]

    def references_of(self, schema: Schema) -> tuple[Any, ...]:
        """The texts of all schemas that a schema refers to."""
        return next(texts for known, texts in self.given.values() if known is schema)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer each request until there are no more. A request is a line of JSON, and the bytes of a
    value.
    """
    client = GivenSchemas()
    decoder = RegistryDecoder(client)
    answers.write(b"{}\n")  # ready
    answers.flush()
    while line := requests.readline():
        request = json.loads(line)
        value = requests.read(request["bytes"])
        answers.write(json.dumps(_answer(client, decoder, request, value)).encode() + b"\n")
        answers.flush()


def _answer(
    client: GivenSchemas, decoder: RegistryDecoder, request: Mapping[str, Any], value: bytes
) -> dict[str, object]:
    number, kind, chars = request["id"], request["type"], request["chars"]
    if "schema" in request:
        texts = tuple(NamedText(name, text) for name, text in request["references"])
        client.given[number] = Schema(request["schema"], kind), texts
    try:
        text = json_text(plain(decoder.decoded(value, number, kind).value))
    except MemoryError:
        return {"error": f"it takes more than {MEMORY_BYTES // 2**20} MiB of memory"}
    except (KafkaException, ValueError, TypeError, KeyError, ImportError, RecursionError) as error:
        return {"error": f"{error!s:.{_REASON_CHARS}}" or type(error).__name__}
    return {"text": text[:chars], "is_whole": len(text) <= chars}


def json_text(value: object) -> str:
    """A value as JSON: on one line if that is short."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LINE_CHARS else json.dumps(value, ensure_ascii=False, indent=2)


def _limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    load_format(sys.argv[1])  # before the time of the first value begins
    _limit_resources()
    serve(sys.stdin.buffer, sys.stdout.buffer)
