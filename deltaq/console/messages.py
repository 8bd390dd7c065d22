"""Messages as a page shows them: a few, of bounded size, decoded where their schema is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.errors import KafkaException, printable
from deltaq.schema_registry import SchemaRegistryClient
from deltaq.schema_registry.avro import AvroDeserializer
from deltaq.schema_registry.json_schema import JSONDeserializer
from deltaq.schema_registry.protobuf import fields_of
from deltaq.serde.schema import Unreadable
from deltaq.store import Store
from deltaq.tools.positions import Place, Ranges, offset_ranges
from deltaq.tools.reading import BY_TIME, first, last, matching, newest, read
from deltaq.tools.records import Record, plain, records_of
from deltaq.topic import Topic
from deltaq.topics.columns import table_schema

MESSAGES_MAX = 100
"""Messages on one page."""

SEARCHED_MAX = 200_000
"""Messages that one search reads."""

BYTES_MAX = 32 * 1024 * 1024
"""Bytes in memory of the batches that one page reads; the page ends with the batch that exceeds it."""

KEY_CHARS, VALUE_CHARS, HEADERS_MAX, HEADER_CHARS = 200, 2_000, 20, 200
"""What is shown of a message."""

LINE_CHARS = 100
"""Longest JSON that is shown on one line."""

_DUMPED = 128
"""Bytes shown of a value that is no text."""

_KINDS = {"AVRO": "Avro", "PROTOBUF": "Protobuf"}
_MAGIC = 0
_ID_END = 5

_UNKNOWN_MAX = 3
"""Ids that are not in the registry after which the values of a page are taken for other bytes: each is a request."""

_BY_OFFSET = [("_offset", "ascending")]


@dataclass(frozen=True, slots=True)
class Shown:
    """A piece of a message: its text, how it was decoded, its size in bytes, and whether all of it is shown."""

    text: str
    kind: str
    bytes: int = 0
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """A message on a page."""

    partition: int
    offset: int
    timestamp: int | None
    key: Shown
    value: Shown
    headers: Sequence[tuple[str, Shown]]
    headers_left_out: int


@dataclass(frozen=True, slots=True)
class Found:
    """The messages of a page. `searched` counts those that were looked at, `is_all` says whether none is left."""

    rows: Sequence[Row]
    searched: int
    is_all: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a page asks for: the partitions (None for all), where reading begins (None: the newest messages), and a
    regular expression that keys or values match."""

    partition: int | None = None
    start: Place = None
    is_newest: bool = True
    pattern: str = ""
    count: int = 50


def find(store: Store, clock: Clock, topic: str, wanted: Wanted) -> Found:
    """The messages that a page wants. Raises UnknownTopic, InvalidConfig, Corrupt, Incompatible, Unavailable."""
    handle = Topic(topic, store=store, clock=clock)
    partitions = None if wanted.partition is None else [wanted.partition]
    count = max(1, min(wanted.count, MESSAGES_MAX))
    ranges = offset_ranges(handle, None if wanted.is_newest else wanted.start, None, partitions)
    total = sum(end - start for start, end in ranges.values())
    if not wanted.is_newest:
        table, searched = _oldest(handle, ranges, count, wanted.pattern)
    elif wanted.pattern:
        each = max(1, SEARCHED_MAX // max(1, len(ranges)))
        window = {partition: (max(start, end - each), end) for partition, (start, end) in ranges.items()}
        table, searched = _newest(handle, window, count, wanted.pattern)
    else:
        table = last(handle, ranges, count)
        searched = table.num_rows
    schema, decode = handle.describe().schema, SchemaDecoder(store, clock)
    rows = [row(record, decode) for batch in table.to_batches() for record in records_of(batch, schema)]
    return Found(rows[::-1] if wanted.is_newest else rows, searched, searched >= total)


def _oldest(topic: Topic, ranges: Ranges, count: int, pattern: str) -> tuple[pa.Table, int]:
    """The first records in `ranges`, and how many were searched."""
    found, searched, size = _columns(topic).empty_table(), 0, 0
    for batch in read(topic, ranges) if pattern else first(topic, ranges, count):
        hits = matching(batch, pattern) if pattern else batch
        found = pa.concat_tables([found, pa.Table.from_batches([hits], found.schema)])
        searched, size = searched + batch.num_rows, size + hits.nbytes
        if found.num_rows >= count or searched >= SEARCHED_MAX or size >= BYTES_MAX:
            break
    # Pages of one partition follow each other by offset, whatever the timestamps are.
    return found.sort_by(_BY_OFFSET if len(ranges) == 1 else BY_TIME).slice(0, count), searched


def _newest(topic: Topic, ranges: Ranges, count: int, pattern: str) -> tuple[pa.Table, int]:
    """The newest records in `ranges` that match, by their timestamps, and how many were searched."""
    searched = 0

    def hits() -> Iterator[pa.RecordBatch]:
        nonlocal searched
        for batch in read(topic, ranges):
            searched += batch.num_rows
            yield matching(batch, pattern)

    return newest(hits(), _columns(topic), count), searched


def _columns(topic: Topic) -> pa.Schema:
    return table_schema(topic.describe().schema)


def row(record: Record, decode: Callable[[bytes], Shown | None]) -> Row:
    """A record as a row, with limits for each part."""
    headers = [(printable(name[:HEADER_CHARS]), shown(value, HEADER_CHARS)) for name, value in record.headers]
    if isinstance(record.value, Unreadable):
        value = Shown(printable(str(record.value)), "unreadable")
    elif isinstance(record.value, dict):
        text = json_text(plain(record.value))
        value = _cut(text, "typed", len(text.encode()), VALUE_CHARS)
    else:
        value = (record.value and decode(record.value)) or shown(record.value, VALUE_CHARS)
    key, left_out = shown(record.key, KEY_CHARS), max(0, len(headers) - HEADERS_MAX)
    time_ms = record.timestamp if record.timestamp >= 0 else None
    return Row(record.partition, record.offset, time_ms, key, value, headers[:HEADERS_MAX], left_out)


def json_text(value: object) -> str:
    """A value as JSON: on one line if that is short."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LINE_CHARS else json.dumps(value, ensure_ascii=False, indent=2)


def shown(content: bytes | None, chars: int) -> Shown:
    """A key, value or header: as JSON, text or hexadecimal digits, whatever it is."""
    if content is None:
        return Shown("", "null")
    head = content[: 4 * chars]  # a character of UTF-8 has four bytes at most
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if len(head) == len(content) or error.start < len(head) - 3:
            return _cut(content[:_DUMPED].hex(" "), "bytes", len(content), chars, is_whole=len(content) <= _DUMPED)
        text = head[: error.start].decode()
    kind = "text"
    if len(content) <= len(head) and text[:1] in ("{", "["):
        try:
            text, kind = json_text(json.loads(text)), "JSON"
        except (ValueError, RecursionError):
            pass  # text that begins like JSON
    return _cut(text, kind, len(content), chars, is_whole=len(head) == len(content))


def _cut(text: str, kind: str, size: int, chars: int, *, is_whole: bool = True) -> Shown:
    lines = "\n".join(printable(line) for line in text[:chars].split("\n"))
    return Shown(lines, kind, size, is_whole and len(text) <= chars)


class SchemaDecoder:
    """Decodes values that begin with the id of a schema in the registry of the root: Avro, JSON Schema and Protobuf.

    A value that cannot be decoded is None, and is shown as any other: the page is for looking, and raises nothing.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._client = SchemaRegistryClient({"url": store.url}, store=store, clock=clock)
        self._deserializers: dict[str, Callable[[bytes], object]] = {}
        self._unknown: set[int] = set()

    def __call__(self, value: bytes) -> Shown | None:
        if len(value) < _ID_END or value[0] != _MAGIC:
            return None
        number = int.from_bytes(value[1:_ID_END], "big")
        if number in self._unknown or len(self._unknown) >= _UNKNOWN_MAX:
            return None
        try:
            kind = self._client.get_schema(number).schema_type or "AVRO"
            text = json_text(plain(self._deserializer(kind)(value)))
        except (KafkaException, ValueError, TypeError, KeyError, ImportError, RecursionError):
            self._unknown.add(number)
            return None
        return _cut(text, f"{_KINDS.get(kind, kind)} schema {number}", len(value), VALUE_CHARS)

    def _deserializer(self, kind: str) -> Callable[[bytes], object]:
        if kind not in self._deserializers:
            if kind == "AVRO":
                self._deserializers[kind] = AvroDeserializer(self._client)
            elif kind == "JSON":
                lenient = {"validate": False}
                self._deserializers[kind] = JSONDeserializer(None, None, self._client, lenient)
            else:
                self._deserializers[kind] = partial(fields_of, client=self._client)
        return self._deserializers[kind]
