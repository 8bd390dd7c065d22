"""Topic handles: what a producer knows of a topic, and the checks of messages against it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from deltaq.errors import InvalidConfig, InvalidValue, KafkaError, MessageTooLarge, UnknownTopic
from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.names import check_topic
from deltaq.producer.accumulator import RecordAccumulator
from deltaq.producer.sender import Sender
from deltaq.serde.schema import TopicSchema
from deltaq.topic import Topic
from deltaq.topics.columns import Headers
from deltaq.topics.metadata import TopicDefinition
from deltaq.topics.schema_evolution import unregistered

HeadersInput: TypeAlias = (
    Mapping[str, str | bytes | None]
    | list[tuple[str, str | bytes | None]]
    | list[tuple[str, bytes | None]]
    | list[tuple[str, str]]
    | list[tuple[str, bytes]]
    | None
)
"""A dict, or a list of pairs. Lists of one value type are named too: `list` is invariant to a type
checker.
"""


class _NoPlainValue:
    """A type without instances: it marks topics whose every value must be converted."""


@dataclass(slots=True, eq=False)
class TopicHandle:
    """What one producer knows of one topic. Values of type `plain` need no conversion."""

    name: str
    sender: Sender
    buffer: RecordAccumulator
    client_limit: int
    client_schema: TopicSchema | None
    partitions: int | None = None
    keyed: bool = False
    size_max: int = field(init=False)
    plain: type[Any] = field(init=False)
    schema: TopicSchema | None = field(init=False)
    _refusal: InvalidConfig | None = None

    def __post_init__(self) -> None:
        self.size_max, self.schema = self.client_limit, self.client_schema
        self.plain = bytes if self.schema is None else _NoPlainValue

    def saw(self, definition: TopicDefinition) -> None:
        """Apply the topic's partitions, schema, size limit and clean-up policy."""
        self._refusal = self._conflict(definition)
        self.partitions = definition.partitions
        self.schema = self.client_schema or definition.schema
        self.plain = bytes if self.schema is None and self._refusal is None else _NoPlainValue
        self.size_max = min(self.client_limit, definition.settings.max_message_bytes)
        self.keyed = "compact" in definition.settings.cleanup_policy

    def _conflict(self, definition: TopicDefinition) -> InvalidConfig | None:
        """Why values of the client's schema do not fit the topic. The sender changes a schema that
        may be changed.
        """
        if self.client_schema is None:
            return None
        try:
            evolution = definition.evolution(self.name, self.client_schema)
        except InvalidConfig as error:
            return error
        if evolution is None or self.buffer.settings.register_schemas:
            return None
        return unregistered(self.name)

    def check(self) -> None:
        """Raises InvalidConfig if the client's schema does not fit the topic."""
        if self._refusal is not None:
            raise self._refusal

    def accepted(self, value: object) -> tuple[object, int]:
        """Convert a value that is not plain; with its size in bytes. Raises TypeError,
        InvalidValue, InvalidConfig.
        """
        self.check()
        if value is None:
            return None, 0
        if self.schema is not None:
            row = _as_row(value, self.schema, self.name)
            return row, _size(row)
        data = as_bytes(value, "value")
        return data, len(data)


def check_before_io(
    topic: str | Topic,
    value: object,
    key: object,
    partition: int,
    timestamp: int,
    headers: object,
    size_max: int,
) -> None:
    """Refuse what no topic accepts, before the first `produce` to a topic looks it up or creates
    it. Raises TypeError, MessageTooLarge above `size_max` bytes, UnknownTopic, InvalidValue.
    """
    if not isinstance(topic, str | Topic):
        raise TypeError(f"topic must be str or Topic, not {type(topic).__name__}")
    name = topic.name if isinstance(topic, Topic) else check_topic(topic)
    size = 0 if key is None else len(as_bytes(key, "key"))
    size += 0 if headers is None else accepted_headers(headers)[1]
    if isinstance(topic, Topic) and topic.schema is not None:
        size += 0 if value is None else _size(_as_row(value, topic.schema, name))
    elif (
        value is not None and not isinstance(value, dict) and not hasattr(value, "model_fields_set")
    ):
        size += len(as_bytes(value, "value"))  # only typed topics take dicts and models
    if size > size_max:
        raise MessageTooLarge(size=size, limit=size_max, topic=name)
    if operator.index(partition) < -1:
        raise UnknownTopic(name, partition=partition, code=KafkaError._UNKNOWN_PARTITION)
    check_timestamp(operator.index(timestamp), name)


def _as_row(value: object, schema: TopicSchema, topic: str) -> dict[str, object]:
    """The row of a typed topic's value. Bytes are refused with the name of the topic: a producer of
    bytes may not know that the topic is typed. Raises InvalidValue.
    """
    if isinstance(value, bytes | str):
        has, wanted = (
            ("schema", "") if schema.model is None else ("model", f"{schema.model.__name__} or ")
        )
        raise InvalidValue(
            f"topic {topic!r} has a {has}: expected {wanted}dict, got {type(value).__name__}",
            topic=topic,
        )
    return schema.accept(value)


def check_timestamp(timestamp: int, topic: str) -> None:
    """Raises InvalidValue for a time that the log cannot hold."""
    if not 0 <= timestamp <= TIMESTAMP_MS_MAX:
        raise InvalidValue(
            f"timestamp {timestamp} is outside 0..{TIMESTAMP_MS_MAX} ms (1970 to 2262); "
            "it counts milliseconds, 0 means now",
            field="timestamp",
            topic=topic,
        )


def as_bytes(data: object, what: str) -> bytes:
    """Text as UTF-8, bytes as they are. Raises TypeError, UnicodeEncodeError."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes):
        return bytes(data)
    raise TypeError(f"{what} must be bytes or str, not {type(data).__name__}")


def _size(value: object) -> int:
    """Approximate size of an accepted value in bytes: the length of text and bytes, 8 for other
    scalars.
    """
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 8


def accepted_headers(headers: object) -> tuple[Headers, int]:
    """Headers as a list of (str, bytes or None), and their size. TypeError for what `HeadersInput`
    does not allow.
    """
    if not isinstance(headers, Mapping | list):
        raise TypeError(
            f"headers must be a dict or a list of (name, value) pairs, not {type(headers).__name__}"
        )
    checked: list[tuple[str, bytes | None]] = []
    size = 0
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(
                f"a header must be a (str, bytes, str or None) pair, not {type(pair).__name__} "
                f"{pair!r:.60}"
            )
        name, content = pair
        data = None if content is None else as_bytes(content, f"header {name!r:.60}")
        checked.append((name, data))
        # Refuse a name that UTF-8 cannot hold here: at the upload it would fail its whole batch.
        size += (len(name) if name.isascii() else len(name.encode())) + len(data or b"")
    return checked or None, size
