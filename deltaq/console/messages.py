"""Messages as a page shows them: a few, of bounded size, decoded where their schema is known.

Records are read one row group at a time. Of each that may be shown, only what is shown is kept, and
of a value with a schema as much as is decoded, so that a page takes the memory of a row group
whatever the records are.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.clock import Clock
from deltaq.console.decoder_process import json_text
from deltaq.console.decoding import Decoded, Undecodable, ValueDecoder
from deltaq.errors import InvalidConfig, KafkaException, printable
from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.serde.schema import TopicSchema, Unreadable
from deltaq.store import Store
from deltaq.tools.positions import Place, Ranges, offset_ranges
from deltaq.tools.reading import BY_TIME, matching
from deltaq.tools.records import plain
from deltaq.topic import Topic
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import definition_of
from deltaq.topics.ranges import TooLarge, read_in_pieces
from deltaq.topics.scan import Fetched

MESSAGES_MAX = 100
"""Messages on one page."""

SEARCHED_MAX = 200_000
"""Messages that one search reads."""

PIECE_BYTES_MAX = 256 * 1024 * 1024
"""Bytes in memory of the row group that a page reads; records in larger ones are not shown."""

VALUE_BYTES_MAX = 256 * 1024
"""Bytes of a value that is decoded, or of a row of a typed topic that is shown."""

READ_S = 20.0
"""Seconds after which a page shows what it has found so far."""

KEY_CHARS, VALUE_CHARS, HEADERS_MAX, HEADER_CHARS = 200, 2_000, 20, 200
"""What is shown of a message."""

_DUMPED = 128
"""Bytes shown of a value that is no text."""

_SEARCHED_BYTES = 1024 * 1024
"""Bytes of records that are searched at a time."""

_WIDER = 4
"""By which factor the range grows that is read where key compaction has left gaps."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A piece of a message: its text, how it was decoded, its size in bytes, and whether all of it
    is shown.
    """

    text: str
    kind: str
    bytes: int = 0
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """A message on a page. `timestamp` is None where the stored time is none that a message can
    have.
    """

    partition: int
    offset: int
    timestamp: int | None
    key: Shown
    value: Shown
    headers: Sequence[tuple[str, Shown]]
    headers_left_out: int


@dataclass(frozen=True, slots=True)
class Found:
    """The messages of a page. `searched` counts those that were looked at, `is_all` says whether
    none is left. `left_out` are records that are too large to be read here, and `is_late` says that
    the time was over.
    """

    rows: Sequence[Row]
    searched: int
    is_all: bool
    left_out: Sequence[TooLarge] = ()
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a page asks for: the partitions (None for all), where reading begins (None: the newest
    messages), and a regular expression that keys or values match.
    """

    partition: int | None = None
    start: Place = None
    is_newest: bool = True
    pattern: str = ""
    count: int = 50


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a key, a value or a header, and the size of all of it in bytes."""

    content: bytes
    size: int

    @property
    def is_whole(self) -> bool:
        """Whether it is all of it."""
        return len(self.content) == self.size


@dataclass(frozen=True, slots=True, order=True)
class Kept:
    """What a page keeps of a record, ordered by time. A typed value is a batch of one row; None if
    it is too large.
    """

    timestamp_us: int
    partition: int
    offset: int
    key: Head | None = field(compare=False)
    value: Head | pa.RecordBatch | None = field(compare=False)
    headers: Sequence[tuple[Head, Head | None]] = field(compare=False)
    headers_left_out: int = field(compare=False)
    row_bytes: int = field(compare=False)


Decode: TypeAlias = Callable[[bytes, int], "Decoded | Undecodable | None"]


def find(store: Store, clock: Clock, topic: str, wanted: Wanted) -> Found:
    """The messages that a page wants. Raises UnknownTopic, InvalidConfig, Corrupt, Incompatible,
    Unavailable.
    """
    handle = Topic(topic, store=store, clock=clock)
    partitions = None if wanted.partition is None else [wanted.partition]
    count = max(1, min(wanted.count, MESSAGES_MAX))
    ranges = offset_ranges(handle, None if wanted.is_newest else wanted.start, None, partitions)
    total = sum(end - start for start, end in ranges.values())
    log = TopicLog(store, topic, clock, indexed=True)
    log.load()
    with ValueDecoder(store, clock) as decode:
        search = _Search(store, log, clock, count, wanted, decode)
        if not wanted.is_newest:
            search.oldest(ranges)
        elif wanted.pattern:
            each = max(1, SEARCHED_MAX // max(1, len(ranges)))
            search.newest(
                {
                    partition: (max(start, end - each), end)
                    for partition, (start, end) in ranges.items()
                }
            )
        else:
            search.last(ranges)
        rows = [row(kept, definition_of(log).schema, decode) for kept in search.found()]
    return Found(
        rows[::-1] if wanted.is_newest else rows,
        search.searched,
        search.searched >= total,
        search.left_out,
        search.late,
    )


class _Search:
    """Looks at records piece by piece and keeps those that a page shows."""

    def __init__(
        self,
        store: Store,
        log: TopicLog,
        clock: Clock,
        count: int,
        wanted: Wanted,
        decode: ValueDecoder,
    ) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._count = count
        self._pattern = wanted.pattern
        self._is_by_offset = False
        self._decode = decode
        self._deadline = clock.monotonic() + READ_S
        self._kept: list[Kept] = []
        self.searched = 0
        self.left_out: list[TooLarge] = []
        self.late = False

    def found(self) -> list[Kept]:
        """The records to show, in order."""
        # Pages of one partition follow each other by offset, whatever the timestamps are.
        return sorted(self._kept, key=(lambda kept: kept.offset) if self._is_by_offset else None)

    def oldest(self, ranges: Ranges) -> None:
        """Find the first records in `ranges`."""
        self._is_by_offset = len(ranges) == 1
        window = SEARCHED_MAX if self._pattern else self._count
        while any(start < end for start, end in ranges.values()) and not self._is_done():
            until = {
                partition: min(start + window, end) for partition, (start, end) in ranges.items()
            }
            for rows in self._pieces(
                {partition: (ranges[partition][0], until[partition]) for partition in ranges}
            ):
                chosen = range(rows.num_rows)[: self._count - len(self._kept)]
                self._kept += [self._keep(rows, row) for row in chosen]
                if self._is_done():
                    return
            ranges = {partition: (until[partition], end) for partition, (_, end) in ranges.items()}
            window *= _WIDER

    def last(self, ranges: Ranges) -> None:
        """Find the newest records in `ranges`, which gaps may precede."""
        window = self._count
        while True:
            starts = {
                partition: max(start, end - window) for partition, (start, end) in ranges.items()
            }
            self._kept, self.searched, self.left_out = [], 0, []
            self.newest(
                {partition: (starts[partition], end) for partition, (_, end) in ranges.items()}
            )
            is_all = all(starts[partition] == ranges[partition][0] for partition in ranges)
            if len(self._kept) >= self._count or is_all or self.left_out or self.late:
                return
            window *= _WIDER

    def newest(self, ranges: Ranges) -> None:
        """Find the newest records in `ranges` by their timestamps."""
        for rows in self._pieces(ranges):
            places = pa.table(
                [rows.column(name) for name, _ in BY_TIME], names=[name for name, _ in BY_TIME]
            )
            latest = pc.sort_indices(places, sort_keys=BY_TIME)[-self._count :].to_pylist()
            self._kept = heapq.nlargest(
                self._count, [*self._kept, *(self._keep(rows, row) for row in latest)]
            )

    def _is_done(self) -> bool:
        return (
            self.late
            or len(self._kept) >= self._count
            or (bool(self._pattern) and self.searched >= SEARCHED_MAX)
        )

    def _pieces(self, ranges: Ranges) -> Iterator[pa.RecordBatch]:
        """The records in `ranges` that match, in small batches, until the time is over."""
        columns = definition_of(self._log).columns
        for part in read_in_pieces(self._store, self._log, ranges, PIECE_BYTES_MAX):
            if isinstance(part, TooLarge):
                self.left_out.append(part)
            else:
                yield from self._matching(part, columns)
            self.late = self.late or self._clock.monotonic() > self._deadline
            if self.late:
                return

    def _matching(self, part: Fetched, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        rows = part.rows.cast(columns)
        if not self._pattern:
            self.searched += rows.num_rows
            yield rows
            return
        for some in halved(rows, _SEARCHED_BYTES):
            self.searched += some.num_rows
            yield self._hits(some)
            self.late = self.late or self._clock.monotonic() > self._deadline
            if self.late:
                return

    def _hits(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that match. Typed ones become Python's values for it: of those that cannot, and
        of large ones, no other row suffers.
        """
        is_typed = definition_of(self._log).schema is not None
        if is_typed and rows.num_rows == 1 and rows.nbytes > _SEARCHED_BYTES:
            partition, offset = _place_of(rows)
            self.left_out.append(TooLarge(partition, offset, offset + 1, rows.nbytes))
            return rows.slice(0, 0)
        try:
            return matching(rows, self._pattern)
        except InvalidConfig:
            raise
        except KafkaException:
            if rows.num_rows < 2:
                return rows.slice(0, 0)
            half = rows.num_rows // 2
            return pa.concat_batches(
                [self._hits(rows.slice(0, half)), self._hits(rows.slice(half))]
            )

    def _keep(self, rows: pa.RecordBatch, number: int) -> Kept:
        """What is shown of a record, copied: a slice would keep the whole piece in memory."""
        one = rows.slice(number, 1)
        value: Head | pa.RecordBatch | None
        if definition_of(self._log).schema is not None:
            value = one.take(pa.array([0])) if one.nbytes <= VALUE_BYTES_MAX else None
        else:
            value = head_of(one.column("value")[0], 4 * VALUE_CHARS)
            if value is not None and self._decode.has_schema(value.content):
                value = head_of(one.column("value")[0], VALUE_BYTES_MAX)
        headers = one.column("_headers")[0].values or ()
        shown_headers = [
            (
                head_of(pair["key"], 4 * HEADER_CHARS) or Head(b"", 0),
                head_of(pair["value"], 4 * HEADER_CHARS),
            )
            for pair in (headers[at] for at in range(min(len(headers), HEADERS_MAX)))
        ]
        time = one.column("_timestamp").cast(pa.int64())[0].as_py()
        partition, offset = _place_of(one)
        key = head_of(one.column("_key")[0], 4 * KEY_CHARS)
        left_out = len(headers) - len(shown_headers)
        return Kept(time, partition, offset, key, value, shown_headers, left_out, one.nbytes)


def _place_of(row: pa.RecordBatch) -> tuple[int, int]:
    return row.column("_partition")[0].as_py(), row.column("_offset")[0].as_py()


def halved(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The rows in batches of at most so many bytes, or of one larger row."""
    if rows.num_rows < 2 or rows.nbytes <= bytes_max:
        yield rows
        return
    half = rows.num_rows // 2
    yield from halved(rows.slice(0, half), bytes_max)
    yield from halved(rows.slice(half), bytes_max)


def head_of(scalar: pa.Scalar, bytes_max: int) -> Head | None:
    """The beginning of bytes or of a text; None for null. A character of UTF-8 has four bytes at
    most.
    """
    if not scalar.is_valid:
        return None
    content = scalar.as_buffer()
    return Head(bytes(memoryview(content)[:bytes_max]), content.size)


def row(kept: Kept, schema: TopicSchema | None, decode: Decode) -> Row:
    """A record as a row, with limits for each part."""
    headers = [
        (
            printable(name.content.decode(errors="replace")[:HEADER_CHARS]),
            shown(value, HEADER_CHARS),
        )
        for name, value in kept.headers
    ]
    value = _value(kept.value, decode) if schema is None else _typed(kept, schema)
    time_ms = kept.timestamp_us // 1000
    stamp = time_ms if 0 <= time_ms <= TIMESTAMP_MS_MAX else None
    return Row(
        kept.partition,
        kept.offset,
        stamp,
        shown(kept.key, KEY_CHARS),
        value,
        headers,
        kept.headers_left_out,
    )


def _value(value: Head | None, decode: Decode) -> Shown:
    found = decode(value.content, VALUE_CHARS) if value is not None and value.is_whole else None
    plainly = shown(value, VALUE_CHARS)
    if isinstance(found, Decoded):
        return _cut(found.text, found.kind, plainly.bytes, VALUE_CHARS, is_whole=found.is_whole)
    if isinstance(found, Undecodable):
        reason = f"{plainly.kind}, cannot be decoded: {printable(found.reason)}"
        return Shown(plainly.text, reason, plainly.bytes, plainly.is_whole)
    return plainly


def _typed(kept: Kept, schema: TopicSchema) -> Shown:
    if kept.value is None:
        return Shown(
            "",
            f"too large to be shown here: more than {VALUE_BYTES_MAX // 1024} KiB",
            kept.row_bytes,
            False,
        )
    try:
        (value,) = schema.to_python(kept.value)
    except (
        KafkaException,
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
        pa.ArrowException,
    ) as error:
        return Shown("", f"cannot be shown: {printable(str(error)[:200])}", kept.row_bytes, False)
    if value is None:
        return Shown("", "null")
    if isinstance(value, Unreadable):
        return Shown(printable(str(value)[:VALUE_CHARS]), "unreadable", kept.row_bytes)
    text = json_text(plain(value))
    return _cut(text, "typed", len(text.encode()), VALUE_CHARS)


def shown(content: Head | None, chars: int) -> Shown:
    """A key, value or header: as JSON, text or hexadecimal digits, whatever it is."""
    if content is None:
        return Shown("", "null")
    head, size = content.content[: 4 * chars], content.size
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if len(head) == size or error.start < len(head) - 3:
            return _cut(head[:_DUMPED].hex(" "), "bytes", size, chars, is_whole=size <= _DUMPED)
        text = head[: error.start].decode()
    kind = "text"
    if size <= len(head) and text[:1] in ("{", "["):
        try:
            text, kind = json_text(json.loads(text)), "JSON"
        except (ValueError, RecursionError):
            pass  # text that begins like JSON
    return _cut(text, kind, size, chars, is_whole=len(head) == size)


def _cut(text: str, kind: str, size: int, chars: int, *, is_whole: bool = True) -> Shown:
    lines = "\n".join(printable(line) for line in text[:chars].split("\n"))
    return Shown(lines, kind, size, is_whole and len(text) <= chars)
