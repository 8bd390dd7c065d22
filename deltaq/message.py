"""Messages and topic partitions, with the methods and attributes of `confluent_kafka`."""

from __future__ import annotations

import operator
from enum import IntEnum
from functools import total_ordering
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, Protocol

from deltaq.errors import KafkaError, KafkaException, printable

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:  # defaults are for type checkers: `Message` alone is `Message[Any, Any]`
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")

OFFSET_BEGINNING = -2
OFFSET_END = -1
OFFSET_STORED = -1000
OFFSET_INVALID = -1001
OFFSET_TAIL_BASE = -2000
"""`OFFSET_TAIL_BASE - n` stands for the last n records, as in librdkafka."""

TIMESTAMP_NOT_AVAILABLE = 0
TIMESTAMP_CREATE_TIME = 1
TIMESTAMP_LOG_APPEND_TIME = 2
TIMESTAMP_MS_MAX = 9_223_372_036_854
"""2262-04-11, the last time that fits 64 bits of nanoseconds, as some engines that read the table
store it.
"""


class AcknowledgeType(IntEnum):
    """What the member of a share group decides of a record."""

    ACCEPT = 1
    """It is processed."""
    RELEASE = 2
    """It is to be delivered again, to any member."""
    REJECT = 3
    """It cannot be processed, and is not delivered again."""
    RENEW = 4
    """Its lock begins anew: it is decided later (KIP-1222)."""


class Message(Generic[K, V]):
    """A record, a delivery report or an event. All fields are read by methods, as in
    `confluent_kafka`.

    `K` and `V` are what `key()` and `value()` return, for type checkers: include None where
    messages have no key, or where there are tombstones.

    `value()` is bytes or None (a tombstone); for a typed topic, a dict or an instance of the
    client's model. Check `error()` of each message that `poll` returns. Clients build messages; the
    constructor is for tests.
    """

    __slots__ = (
        "_error",
        "_headers",
        "_key",
        "_latency",
        "_leader_epoch",
        "_offset",
        "_partition",
        "_timestamp",
        "_topic",
        "_value",
    )

    def __init__(
        self,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        key: Any = None,
        value: Any = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        error: KafkaError | None = None,
        timestamp: tuple[int, int] = (TIMESTAMP_NOT_AVAILABLE, 0),
        latency: float | None = None,
        leader_epoch: int | None = None,
    ) -> None:
        self._topic = topic
        self._partition = None if partition is None or partition < 0 else partition
        self._offset = None if offset is None or offset < 0 else offset
        self._key: K = key
        self._value: V = value
        self._headers = headers
        self._error = error
        self._timestamp = timestamp
        self._latency = latency
        self._leader_epoch = leader_epoch

    def topic(self) -> str | None:
        """The topic's name."""
        return self._topic

    def partition(self) -> int | None:
        """The partition; None if it has none."""
        return self._partition

    def offset(self) -> int | None:
        """The offset; None for a message that was not written."""
        return self._offset

    def value(self) -> V:
        """The payload: bytes, None, or for a typed topic a dict or model instance."""
        return self._value

    def key(self) -> K:
        """The key: bytes or None."""
        return self._key

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """The headers in order, with repeats; None if there are none."""
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        """(type, milliseconds since 1970 UTC); the type is one of the TIMESTAMP_ constants."""
        return self._timestamp

    def error(self) -> KafkaError | None:
        """None for a record; otherwise the error or event that this message reports."""
        return self._error

    def latency(self) -> float | None:
        """Delivery reports: seconds from `produce` to the acknowledgement."""
        return self._latency

    def leader_epoch(self) -> int | None:
        """0 for a consumed record, as in a Kafka partition whose leader has never changed;
        otherwise None.
        """
        return self._leader_epoch

    def delivery_count(self) -> int | None:
        """How often a share group has delivered the record, this time counted; None for a message
        that does not come from a `ShareConsumer`.
        """
        return None

    def deserialized_key(self) -> Any:
        """Always None in messages from deltaq: use `key()`."""
        return None

    def deserialized_value(self) -> Any:
        """Always None in messages from deltaq: use `value()`, a model instance where the client has
        a model.
        """
        return None

    def set_headers(self, value: list[tuple[str, bytes | None]] | None) -> None:
        """Replace the headers."""
        self._materialise()
        self._headers = value

    def set_key(self, value: Any) -> None:
        """Replace the key, for instance by its deserialized form."""
        self._materialise()
        self._key = value

    def set_value(self, value: Any) -> None:
        """Replace the value, for instance by its deserialized form."""
        self._materialise()
        self._value = value

    def set_topic(self, value: str | None) -> None:
        """Replace the topic."""
        self._materialise()
        self._topic = value

    def set_error(self, value: KafkaError | None) -> None:
        """Replace the error."""
        self._materialise()
        self._error = value

    def _materialise(self) -> None:
        """Copy the fields into this object, so that they can be replaced."""

    def _fields(self) -> tuple[object, ...]:
        value, error = self._outcome()
        return (
            self.topic(),
            self.partition(),
            self.offset(),
            self.key(),
            value,
            self.headers(),
            error,
            self.timestamp(),
            self.latency(),
            self.leader_epoch(),
        )

    def _outcome(self) -> tuple[Any, KafkaError | None]:
        """The value and the error. A value that cannot be returned is None, and its error takes the
        place of none.
        """
        try:
            return self.value(), self.error()
        except KafkaException as unreadable:
            return None, unreadable.error

    def __len__(self) -> int:
        value = self.value()
        return len(value) if isinstance(value, bytes | str) else 0

    def __bool__(self) -> bool:
        # `if msg:` tests whether `poll` returned a message; without this, an empty value would
        # count as no message.
        return True

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, Message) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # messages are compared by content and can change

    def __reduce__(self) -> tuple[type[Message[Any, Any]], tuple[object, ...]]:
        return Message, self._fields()

    def __repr__(self) -> str:
        error = self.error()
        where = f"{printable(str(self.topic()))}[{self.partition()}]@{self.offset()}"
        return f"<Message {where}{'' if error is None else f' {error}'}>"


class Records(Protocol):
    """Records of one topic that were fetched or delivered together, by row, decoded on access."""

    topic: str

    def offset_at(self, row: int) -> int | None: ...
    def value_at(self, row: int) -> Any: ...
    def key_at(self, row: int) -> bytes | None: ...
    def headers_at(self, row: int) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp_at(self, row: int) -> tuple[int, int]: ...


class FetchedRecords(Records, Protocol):
    """Records of one partition. `plain_values` are their values, once they are decoded, unless a
    value is made anew for each access.
    """

    topic_id: str
    partition: int
    plain_values: list[Any] | None


class DeliveredRecords(Records, Protocol):
    """Records that were written together, and their outcome."""

    error: KafkaError | None

    def partition_at(self, row: int) -> int | None: ...
    def latency_at(self, row: int) -> float: ...


R = TypeVar("R", bound=Records)


class _RowMessage(Message[Any, Any], Generic[R]):
    """A message that refers to a row of `records`, so that messages that are not looked into cost
    little.
    """

    __slots__ = ("_records", "_row")

    _records: R | None
    _row: int

    @classmethod
    def of(cls, records: R, rows: range) -> list[Message[Any, Any]]:
        """The messages of these rows."""
        # Without `__init__`, whose call takes as long as all the rest.
        messages: list[Any] = list(map(object.__new__, repeat(cls, len(rows))))
        for message, row in zip(messages, rows, strict=True):
            message._records = records
            message._row = row
        return messages

    def topic(self) -> str | None:
        return self._topic if self._records is None else self._records.topic

    def offset(self) -> int | None:
        return self._offset if self._records is None else self._records.offset_at(self._row)

    def value(self) -> Any:
        return self._value if self._records is None else self._records.value_at(self._row)

    def key(self) -> Any:
        return self._key if self._records is None else self._records.key_at(self._row)

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers if self._records is None else self._records.headers_at(self._row)

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp if self._records is None else self._records.timestamp_at(self._row)

    def _materialise(self) -> None:
        if self._records is not None:
            fields = self._fields()
            self._records = None
            Message.__init__(self, *fields)  # type: ignore[arg-type]  # the fields in the constructor's order


class FetchedMessage(_RowMessage[FetchedRecords]):
    """A consumed record."""

    __slots__ = ()

    def partition(self) -> int | None:
        return self._partition if self._records is None else self._records.partition

    def value(self) -> Any:
        records = self._records
        if records is None:
            return self._value
        values = records.plain_values
        return records.value_at(self._row) if values is None else values[self._row]

    def error(self) -> KafkaError | None:
        return self._error if self._records is None else None

    def latency(self) -> float | None:
        return None

    def leader_epoch(self) -> int | None:
        return 0

    @property
    def topic_id(self) -> str | None:
        """The id of the topic: a topic created again under the same name has another. None if
        fields were replaced.
        """
        return None if self._records is None else self._records.topic_id


class SharedMessage(FetchedMessage):
    """A record that a share group has delivered."""

    __slots__ = ("_deliveries",)

    _deliveries: int

    @classmethod
    def delivered(cls, records: FetchedRecords, row: int, deliveries: int) -> SharedMessage:
        """The message of a row, in its delivery of this number."""
        message = object.__new__(cls)
        message._records = records
        message._row = row
        message._deliveries = deliveries
        return message

    def delivery_count(self) -> int | None:
        return self._deliveries


class DeliveredMessage(_RowMessage[DeliveredRecords]):
    """The message of a delivery callback."""

    __slots__ = ()

    def partition(self) -> int | None:
        return self._partition if self._records is None else self._records.partition_at(self._row)

    def error(self) -> KafkaError | None:
        return self._error if self._records is None else self._records.error

    def latency(self) -> float | None:
        return self._latency if self._records is None else self._records.latency_at(self._row)

    def leader_epoch(self) -> int | None:
        return None


def event(
    error: KafkaError,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
) -> Message:
    """An event as `poll` returns it: its value is the error's text."""
    no_time = TIMESTAMP_NOT_AVAILABLE, -1
    text = error.str().encode(errors="backslashreplace")  # it may quote a damaged file
    return Message(topic, partition, offset, None, text, error=error, timestamp=no_time)


@total_ordering
class TopicPartition:
    """A partition of a topic, with an offset. Compared, ordered and hashed by (topic, partition)
    only.

    `offset` may be one of the OFFSET_ constants. `error` is set in results if an operation failed
    for this partition.
    """

    __slots__ = ("_metadata", "error", "leader_epoch", "offset", "partition", "topic")

    def __init__(
        self,
        topic: str,
        partition: int = -1,
        offset: int = OFFSET_INVALID,
        metadata: str | None = None,
        leader_epoch: int | None = None,
        error: KafkaError | None = None,
    ) -> None:
        if not isinstance(topic, str):
            raise TypeError(f"topic must be str, not {type(topic).__name__}")
        if "\0" in topic:
            raise ValueError(f"topic {printable(topic[:60])} has an embedded null character")
        self.topic = topic
        self.partition = operator.index(partition)
        self.offset = operator.index(offset)
        self.metadata = metadata
        self.leader_epoch = leader_epoch
        self.error = error

    @property
    def metadata(self) -> str | None:
        """The text that is committed with the offset. Setting it raises TypeError for what is not
        text, ValueError for text with a NUL character or without UTF-8.
        """
        return self._metadata

    @metadata.setter
    def metadata(self, text: str | None) -> None:
        if text is not None:
            if not isinstance(text, str):
                raise TypeError(f"metadata must be str, not {type(text).__name__}")
            if "\0" in text:
                raise ValueError(f"metadata {printable(text[:60])} has an embedded null character")
            text.encode()
        self._metadata = text

    def _key(self) -> tuple[str, int]:
        return self.topic, self.partition

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, TopicPartition) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._key() < other._key() if isinstance(other, TopicPartition) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return (
            f"TopicPartition{{topic={printable(self.topic)},partition={self.partition},offset={self.offset},"
            f"leader_epoch={self.leader_epoch},error={self.error}}}"
        )

    __repr__ = __str__
