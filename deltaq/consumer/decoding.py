"""Fetched records as Python values, decoded column by column on first access."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from deltaq.message import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_NOT_AVAILABLE,
)
from deltaq.serde.schema import TopicSchema, Unreadable, unreadable
from deltaq.topics.columns import VALUE_SCHEMA, header_pairs
from deltaq.topics.scan import Fetched

_VALUE = VALUE_SCHEMA.names[0]


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
