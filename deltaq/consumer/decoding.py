"""Fetched records as messages: Python values, decoded column by column on first access, and pieces
joined to large messages (`large.message.enabled`). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.errors import KafkaError
from deltaq.message import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_NOT_AVAILABLE,
    Message,
    event,
)
from deltaq.serde.schema import TopicSchema, Unreadable, unreadable
from deltaq.topics.columns import VALUE_SCHEMA, header_pairs
from deltaq.topics.pieces import PIECE_HEADER, Piece
from deltaq.topics.scan import Fetched

_VALUE = VALUE_SCHEMA.names[0]

Found: TypeAlias = "JoinedRecords | Lost"


class DecodedRecords:
    """The records of one `Fetched`. The first access to a column decodes all its rows: a reader
    usually needs them all.

    Values are bytes without a `schema`, instances of the model if the schema has one, and otherwise
    dicts.
    """

    __slots__ = (
        "_fetched",
        "_headers",
        "_keys",
        "_offsets",
        "_schema",
        "_timestamps",
        "_values",
        "count",
        "partition",
        "plain_values",
        "topic",
        "topic_id",
    )

    def __init__(
        self, topic: str, topic_id: str, fetched: Fetched, schema: TopicSchema | None
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = fetched.partition
        self.count = len(fetched)
        self._fetched = fetched
        self._schema = schema
        self._offsets: list[int] | None = (
            fetched.rows.column("_offset").to_pylist() if fetched.sparse else None
        )
        self._values: list[Any] | None = None
        self.plain_values: list[Any] | None = None
        self._keys: list[bytes | None] | None = None
        self._headers: list[list[tuple[str, bytes | None]] | None] | None = None
        self._timestamps: list[int] | None = None
        if (plain := fetched.plain) is not None and schema is None:
            self._values = self.plain_values = list(plain.values)
            self._keys = [None] * self.count if plain.keys is None else list(plain.keys)
            self._headers = [None] * self.count
            self._timestamps = list(plain.times_ms)

    @property
    def next_offset(self) -> int:
        """The offset to continue at after all records."""
        return self._fetched.next_offset

    def column(self, name: str) -> pa.Array:
        """A column of the records, as it is stored."""
        return self._fetched.rows.column(name)

    def offset_at(self, row: int) -> int:
        """The offset of a row."""
        return self._fetched.first_offset + row if self._offsets is None else self._offsets[row]

    def position_after(self, row: int) -> int:
        """The offset to continue at after `row`."""
        return self._fetched.next_offset if row + 1 >= self.count else self.offset_at(row) + 1

    def value_at(self, row: int) -> Any:
        """The value of a row. Raises KafkaException (_VALUE_DESERIALIZATION), naming the record,
        for one that cannot be returned or that the model rejects.
        """
        values = self._values
        if values is None:
            rows = self._fetched.rows
            if self._schema is None:
                values = self.plain_values = rows.column(_VALUE).to_pylist()
            else:
                values = self._schema.to_python(rows)
            self._values = values
        value = values[row]
        if self._schema is None or value is None:
            return value
        if isinstance(value, Unreadable):
            raise unreadable(
                f"{value} (topic {self.topic!r}, partition {self.partition}, offset "
                f"{self.offset_at(row)})"
            )
        return self._schema.restore(value)

    def key_at(self, row: int) -> bytes | None:
        """The key of a row."""
        if self._keys is None:
            self._keys = self._fetched.rows.column("_key").to_pylist()
        return self._keys[row]

    def headers_at(self, row: int) -> list[tuple[str, bytes | None]] | None:
        """The headers of a row, in order; None if there are none."""
        if self._headers is None:
            self._headers = header_pairs(self._fetched.rows.column("_headers"))
        return self._headers[row]

    def timestamp_at(self, row: int) -> tuple[int, int]:
        """The timestamp of a row: its type (TIMESTAMP_ constant) and milliseconds since 1970 UTC. A
        stored time that no message can have is TIMESTAMP_NOT_AVAILABLE and -1, as for a message of
        Kafka without one.
        """
        if self._timestamps is None:
            stamps = self._fetched.rows.column("_timestamp").cast("int64")
            self._timestamps = [stamp // 1000 for stamp in stamps.to_pylist()]
        time_ms = self._timestamps[row]
        if not 0 <= time_ms <= TIMESTAMP_MS_MAX:
            return TIMESTAMP_NOT_AVAILABLE, -1
        return (
            TIMESTAMP_LOG_APPEND_TIME if self._fetched.log_append_time else TIMESTAMP_CREATE_TIME,
            time_ms,
        )

    def arrow(self, first: int, count: int) -> Any:
        """`count` rows from row `first` as a record batch with the columns of the topic's table."""
        return self._fetched.rows.slice(first, count)


@dataclass(frozen=True, slots=True)
class Joining:
    """The state between two fetched batches of a partition: the message that is not complete, if
    there is one.

    `last` is its last piece so far, `offset` that of its first one, and `parts` what they contain;
    None if it has been reported as lost. `position` is the next offset to be joined; None at the
    start. `moved_back`: reading began inside of a message, and was begun again at its first piece.
    """

    last: Piece | None = None
    offset: int = 0
    parts: tuple[bytes, ...] | None = ()
    position: int | None = None
    moved_back: bool = False


FRESH = Joining()
"""The state where reading begins."""


@dataclass(frozen=True, slots=True)
class BeginEarlier:
    """The records begin inside of a message, whose first piece is at `offset`: read again from
    there.
    """

    offset: int


class JoinedRecords:
    """Some of the records of one `Fetched` as messages: `rows` are their row numbers, the last one
    of a large message, and `values` the values of large messages. `plain_values` is None: see
    `FetchedRecords`.

    `position` is where to continue after the last of them.
    """

    __slots__ = (
        "_inner",
        "_position",
        "_rows",
        "_values",
        "count",
        "partition",
        "plain_values",
        "topic",
        "topic_id",
    )

    def __init__(
        self, inner: DecodedRecords, rows: Sequence[int], values: dict[int, bytes], position: int
    ) -> None:
        self.topic = inner.topic
        self.topic_id = inner.topic_id
        self.partition = inner.partition
        self.count = len(rows)
        self.plain_values: list[Any] | None = None
        self._inner = inner
        self._rows = rows
        self._values = values
        self._position = position

    def offset_at(self, row: int) -> int:
        """The offset of a message: that of its last piece."""
        return self._inner.offset_at(self._rows[row])

    def position_after(self, row: int) -> int:
        """The offset to continue at after a message."""
        return self._position if row + 1 >= self.count else self.offset_at(row) + 1

    def value_at(self, row: int) -> Any:
        """The value of a message."""
        at = self._rows[row]
        return self._values[at] if at in self._values else self._inner.value_at(at)

    def key_at(self, row: int) -> bytes | None:
        """The key of a message."""
        return self._inner.key_at(self._rows[row])

    def headers_at(self, row: int) -> list[tuple[str, bytes | None]] | None:
        """The headers of a message, without that of the piece."""
        headers = self._inner.headers_at(self._rows[row])
        if headers is None or self._rows[row] not in self._values:
            return headers
        return [pair for pair in headers if pair[0] != PIECE_HEADER] or None

    def timestamp_at(self, row: int) -> tuple[int, int]:
        """The timestamp of a message."""
        return self._inner.timestamp_at(self._rows[row])

    def arrow(self, first: int, count: int) -> pa.RecordBatch:
        """`count` messages from `first` on as rows of the topic's table."""
        chosen = range(first, first + count)
        rows: pa.RecordBatch = self._inner.arrow(0, self._inner.count).take(
            pa.array([self._rows[at] for at in chosen])
        )
        if self._values.keys().isdisjoint(self._rows[first : first + count]):
            return rows
        headers = [self.headers_at(at) or () for at in chosen]
        pairs = [
            [{"key": name, "value": content} for name, content in each] or None for each in headers
        ]
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        columns[_VALUE] = pa.array([self.value_at(at) for at in chosen], pa.binary())
        columns["_headers"] = pa.array(pairs, rows.schema.field("_headers").type)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema)


@dataclass(frozen=True, slots=True)
class Lost:
    """A message of which pieces are missing, as an event. Reading continues at `position` after
    it.
    """

    event: Message
    position: int


def joined(
    state: Joining, records: DecodedRecords, bytes_max: int
) -> tuple[Joining, list[Found]] | BeginEarlier:
    """The records as messages and events in order, and the state after them.

    A message larger than `bytes_max` is lost. The result is BeginEarlier if the first record that
    is read of a partition is a piece, but not the first one of its message.
    """
    if state.last is None and not _may_be_pieces(records.column("_headers")):
        after = replace(state, position=records.next_offset)
        return after, [JoinedRecords(records, range(records.count), {}, records.next_offset)]
    first = _piece(records.headers_at(0)) if records.count else None
    if first is not None and first.index and state.position is None and not state.moved_back:
        return BeginEarlier(records.offset_at(0) - first.index)
    join = _Join(
        records,
        bytes_max,
        state.last,
        state.offset,
        None if state.parts is None else [*state.parts],
    )
    for row in range(records.count):
        join.add(row, _piece(records.headers_at(row)))
    parts = None if join.parts is None else tuple(join.parts)
    return Joining(
        join.last, join.offset, parts, records.next_offset, state.moved_back
    ), join.finished()


@dataclass(slots=True)
class _Join:
    """Messages on the way. `last`, `offset` and `parts` are as in `Joining`."""

    records: DecodedRecords
    bytes_max: int
    last: Piece | None
    offset: int
    parts: list[bytes] | None
    _found: list[Found] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)
    _values: dict[int, bytes] = field(default_factory=dict)

    def add(self, row: int, piece: Piece | None) -> None:
        """Take the next record, which is a piece or a message of its own."""
        offset, last = self.records.offset_at(row), self.last
        if last is not None and (piece is None or not piece.follows(last)):
            self._lose(f"only {last.index + 1} of {last.count} pieces are there", offset)
            self.last = None
        if piece is None:
            self._rows.append(row)
            return
        if self.last is None:
            self.offset, self.parts = offset, []
            if piece.index:
                self._lose(
                    f"the first {piece.index} of {piece.count} pieces are missing", offset + 1
                )
            elif piece.size > self.bytes_max:
                limit = (
                    f"the consumer joins up to {self.bytes_max} bytes (queued.max.messages.kbytes)"
                )
                self._lose(f"it has {piece.size} bytes, and {limit}", offset + 1)
        self.last = piece
        if self.parts is not None:
            self.parts.append(self.records.value_at(row) or b"")
        if piece.index + 1 == piece.count:
            self._complete(row, piece, offset)

    def _complete(self, row: int, piece: Piece, offset: int) -> None:
        if self.parts is not None:
            value = b"".join(self.parts)
            if len(value) == piece.size:
                self._rows.append(row)
                self._values[row] = value
            else:
                self._lose(
                    f"its pieces have {len(value)} instead of {piece.size} bytes", offset + 1
                )
        self.last, self.parts = None, []

    def _lose(self, reason: str, position: int) -> None:
        """Report the message under way, once."""
        if self.parts is None:
            return
        self.parts = None
        self._flush(None)
        records = self.records
        error = KafkaError(KafkaError._PARTIAL, f"a large message cannot be read: {reason}")
        self._found.append(
            Lost(event(error, records.topic, records.partition, self.offset), position)
        )

    def _flush(self, position: int | None) -> None:
        if self._rows:
            after = self.records.offset_at(self._rows[-1]) + 1 if position is None else position
            self._found.append(JoinedRecords(self.records, self._rows, self._values, after))
            self._rows, self._values = [], {}

    def finished(self) -> list[Found]:
        """All that was found."""
        self._flush(self.records.next_offset if self.last is None else None)
        return self._found


def _may_be_pieces(headers: pa.Array) -> bool:
    if headers.null_count == len(headers):
        return False
    return bool(pc.any(pc.equal(pc.list_flatten(headers).field("key"), PIECE_HEADER)).as_py())


def _piece(headers: list[tuple[str, bytes | None]] | None) -> Piece | None:
    if headers is None:
        return None
    return next(
        (Piece.parsed(content) for name, content in reversed(headers) if name == PIECE_HEADER), None
    )
