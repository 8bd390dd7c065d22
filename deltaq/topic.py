"""`Topic`, a handle on one topic: its schema, creating and deleting it, and reading it as a
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pyarrow as pa

from deltaq.clock import SYSTEM_CLOCK, Clock, checked_timeout
from deltaq.config import (
    TOPIC_SETTINGS,
    AdminConfig,
    check_topic_properties,
    parse_client_config,
    topic_properties,
)
from deltaq.errors import InvalidConfig, KafkaError, OffsetOutOfRange, UnknownTopic
from deltaq.metadata import TopicDescription, describe_topic
from deltaq.names import check_topic
from deltaq.root import open_root
from deltaq.serde.conversion import MessageDeserializers, MessageSerializers, checked_function
from deltaq.serde.schema import SchemaSource, TopicSchema
from deltaq.serde.serializers import DeserializerFunction, SerializerFunction
from deltaq.serde.source import schema_of
from deltaq.store import Store
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import NewTopicPlan, create_topic, definition_of, evolve_topic
from deltaq.topics.ranges import read_ranges
from deltaq.topics.time_lookup import offset_for_time

Position: TypeAlias = "int | datetime"
"""A place in a partition: an offset, or a datetime with a time zone for the first record of that
time or later.
"""

Bound: TypeAlias = "Position | Mapping[int, Position] | None"
"""A position for all partitions, or one for each partition."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Topic:
    """A topic by name, with the schema and the settings to create it with.

    `schema` (a pydantic model or an Arrow schema) makes a typed topic, with a table column for each
    field. Without a schema, values are bytes. `partitions` and `config` (Kafka's topic settings)
    apply only when the topic is created. `SerializingProducer` and `DeserializingConsumer` use the
    serializers; a typed topic can have them for the key only.

    That is all a producer or a consumer needs. The methods of this class also need the root: a
    configuration as a dict in `conf`, as keywords (`bootstrap_servers=`), or both. `store` and
    `clock` replace the built-in components.

    Immutable. Handles with equal name, schema, partitions, config, serializers and store are equal.
    The constructor does no I/O and raises InvalidConfig for invalid arguments.
    """

    def __init__(
        self,
        name: str,
        schema: SchemaSource | TopicSchema | None = None,
        *,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
        key_serializer: SerializerFunction | None = None,
        value_serializer: SerializerFunction | None = None,
        key_deserializer: DeserializerFunction | None = None,
        value_deserializer: DeserializerFunction | None = None,
        conf: Mapping[str, Any] | None = None,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        self._name = check_topic(name)
        if schema is not None and (value_serializer or value_deserializer):
            reason = (
                "value_serializer and value_deserializer are for topics of bytes; this one has a "
                "schema"
            )
            raise InvalidConfig(
                reason, key="value_serializer" if value_serializer else "value_deserializer"
            )
        self._serializers = MessageSerializers(
            checked_function(key_serializer, "key_serializer"),
            checked_function(value_serializer, "value_serializer"),
        )
        self._deserializers = MessageDeserializers(
            checked_function(key_deserializer, "key_deserializer"),
            checked_function(value_deserializer, "value_deserializer"),
        )
        self._schema = (
            schema if schema is None or isinstance(schema, TopicSchema) else schema_of(schema)
        )
        self._partitions = None if partitions is None else checked_partitions(partitions)
        self._properties = checked_properties(config)
        check_topic_properties(self._properties)
        self._clock = clock
        self._default_partitions = 1
        if conf is not None or keywords:
            client = parse_client_config(AdminConfig, conf, keywords)
            self._default_partitions = client.num_partitions
            store = store or open_root(client, clock)
        self._store = store
        # Computed once: a producer looks up its topics by hash for every message.
        serde = self._serializers, self._deserializers
        properties = tuple(sorted(self._properties.items()))
        self._identity = (self._name, self._schema, self._partitions, properties, store, serde)
        self._hash = hash(self._identity)

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._name

    @property
    def schema(self) -> TopicSchema | None:
        """The schema that was passed to this handle, with the model if it was a model; None if none
        was passed.
        """
        return self._schema

    @property
    def serializers(self) -> MessageSerializers:
        """The serializers that were passed to this handle."""
        return self._serializers

    @property
    def deserializers(self) -> MessageDeserializers:
        """The deserializers that were passed to this handle."""
        return self._deserializers

    @property
    def store(self) -> Store:
        """The store of the root. Raises InvalidConfig for a handle without a root."""
        if self._store is None:
            raise InvalidConfig(
                f"topic {self._name!r} has no root: pass bootstrap_servers= (or conf=) to Topic",
                key="bootstrap.servers",
            )
        return self._store

    @property
    def clock(self) -> Clock:
        """The clock that was passed to this handle, or the system's."""
        return self._clock

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Topic) and self._identity == other._identity)

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._hash = hash(self._identity)  # that of another process is another number

    def __repr__(self) -> str:
        place = "" if self._store is None else f" {self._store.url}"
        return f"<Topic {self._name}{place}>"

    # --- creating and deleting ---

    def plan(self, default_partitions: int) -> NewTopicPlan:
        """How to create the topic. `default_partitions` applies if this handle has no number of
        partitions.
        """
        return NewTopicPlan(self._partitions or default_partitions, self._schema, self._properties)

    def exists(self) -> bool:
        """Whether the topic exists. Raises Corrupt, Incompatible, Unavailable."""
        return TopicLog(self.store, self._name, self._clock).load()

    def create(self, timeout: float = 60.0, exist_ok: bool = False) -> Topic:
        """Create the topic within `timeout` seconds, and return this handle.

        With `exist_ok` an existing topic is accepted, whatever its partitions and settings, and its
        schema is changed as by `evolve`. Raises TopicExists, InvalidConfig for a schema that does
        not fit, UnsafeStore, OutcomeUnknown, Unavailable.
        """
        deadline = self._clock.monotonic() + checked_timeout(timeout)
        log = TopicLog(self.store, self._name, self._clock)
        create_topic(log, self.plan(self._default_partitions), deadline, exist_ok=exist_ok)
        if self._schema is not None:
            evolve_topic(log, self._schema, deadline)
        return self

    def evolve(self, timeout: float = 60.0) -> bool:
        """Change the topic's schema, within `timeout` seconds, to take values of this handle's;
        whether it had to be.

        A new field must have a default or allow None, a type may become wider, and a field may be
        left out; all columns stay in the table. A producer does the same with its first message,
        unless `auto.register.schemas` is false.

        Raises InvalidConfig, with the field and the remedy, for a schema that does not fit, and for
        a handle without a schema; UnknownTopic, OutcomeUnknown, Unavailable.
        """
        if self._schema is None:
            raise InvalidConfig(
                f"the handle of topic {self._name!r} has no schema: pass one to Topic", key="schema"
            )
        deadline = self._clock.monotonic() + checked_timeout(timeout)
        log = TopicLog(self.store, self._name, self._clock)
        log.load()
        before = definition_of(log)
        return evolve_topic(log, self._schema, deadline) != before

    def delete(self, timeout: float = 60.0) -> None:
        """Delete the topic and its records within `timeout` seconds. The name can then be used for
        a new topic.

        Raises UnknownTopic, OutcomeUnknown, Unavailable.
        """
        deadline = self._clock.monotonic() + checked_timeout(timeout)
        TopicLog(self.store, self._name, self._clock).delete(deadline)

    def describe(self) -> TopicDescription:
        """Read the topic's current description. Raises UnknownTopic, Corrupt, Incompatible,
        Unavailable.
        """
        return describe_topic(self.store, self._clock, self._name)

    # --- the topic as a table ---

    def to_arrow(
        self, partitions: Iterable[int] | None = None, start: Bound = None, end: Bound = None
    ) -> pa.Table:
        """The records from `start` (inclusive) to `end` (exclusive), ordered by partition and
        offset.

        `start` and `end` are offsets or datetimes with a time zone: one for all partitions, or a
        dict by partition. The defaults are the first and the last record. The columns are those of
        the topic's table; `_offset` and `_timestamp` are always filled in.

        Raises UnknownTopic (also for a partition), OffsetOutOfRange for an offset that the
        partition does not have, InvalidConfig for a time without a zone or an end before the start,
        Corrupt, Incompatible, Unavailable.
        """
        store, log, ranges = self._ranges(partitions, start, end)
        schema = definition_of(log).columns
        parts = sorted(
            read_ranges(store, log, ranges), key=lambda part: (part.partition, part.first_offset)
        )
        return pa.Table.from_batches([part.rows.cast(schema) for part in parts], schema)

    def to_batches(
        self, partitions: Iterable[int] | None = None, start: Bound = None, end: Bound = None
    ) -> Iterator[pa.RecordBatch]:
        """Like `to_arrow`, one file of the topic at a time, for topics larger than memory.

        A batch holds records of one partition. Batches of one partition come in offset order;
        batches of different partitions are interleaved.
        """
        store, log, ranges = self._ranges(partitions, start, end)
        schema = definition_of(log).columns
        return (
            part.rows.cast(schema) for part in read_ranges(store, log, ranges) if part.rows.num_rows
        )

    def _ranges(
        self, partitions: Iterable[int] | None, start: Bound, end: Bound
    ) -> tuple[Store, TopicLog, dict[int, tuple[int, int]]]:
        """The store, the loaded log, and the [start, end) offsets to read by partition."""
        store = self.store
        partitions = None if partitions is None else _partition_numbers(partitions, self._name)
        for bound, which in ((start, "start"), (end, "end")):
            for position in bound.values() if isinstance(bound, Mapping) else (bound,):
                _check_position(position, which)
        log = TopicLog(store, self._name, self._clock, indexed=True)
        log.load()
        head = log.live_head
        chosen = sorted(set(range(head.partitions) if partitions is None else partitions))
        for partition in chosen:
            if partition >= head.partitions:
                raise UnknownTopic(self._name, partition=partition)
        for bound in (start, end):
            for partition in bound if isinstance(bound, Mapping) else ():
                if partition not in chosen:
                    what = f"partition {partition!r} of topic {self._name!r} has a start or an end"
                    reason = f"{what} but is not among the partitions to read"
                    raise UnknownTopic(self._name, partition=partition, reason=reason)
        ranges = {}
        for partition in chosen:
            first = _offset(store, log, partition, _bound(start, partition), "start")
            last = _offset(store, log, partition, _bound(end, partition), "end")
            if first > last:
                raise InvalidConfig(
                    f"start {first} of partition {partition} is after end {last}", key="start"
                )
            ranges[partition] = (first, last)
        return store, log, ranges


def checked_partitions(count: int) -> int:
    """`count` if a topic can have that many partitions. Raises InvalidConfig
    (INVALID_PARTITIONS).
    """
    value = TOPIC_SETTINGS["partitions"].parse(count, code=KafkaError.INVALID_PARTITIONS)
    assert isinstance(value, int)  # noqa: S101 - the table says so
    return value


def checked_properties(config: Mapping[str, object] | None) -> dict[str, str]:
    """Topic settings as table properties. Raises InvalidConfig (INVALID_CONFIG) for an unknown or
    invalid setting.
    """
    if config and "partitions" in config:
        reason = (
            "the number of partitions is not a setting in config: pass it as the argument for "
            "partitions"
        )
        raise InvalidConfig(reason, key="partitions", code=KafkaError.INVALID_CONFIG)
    return topic_properties(config or {})


def _bound(bound: Bound, partition: int) -> Position | None:
    return bound.get(partition) if isinstance(bound, Mapping) else bound


def _offset(
    store: Store, log: TopicLog, partition: int, position: Position | None, which: str
) -> int:
    """The offset of `position`; if None, the partition's `which` ("start" or "end"). Raises
    OffsetOutOfRange.
    """
    earliest, latest = log.live_head.start_offsets[partition], log.live_head.next_offsets[partition]
    if position is None:
        return earliest if which == "start" else latest
    if isinstance(position, datetime):
        time_ms = -((_EPOCH - position) // timedelta(milliseconds=1))  # rounded up
        found = offset_for_time(store, log, partition, time_ms)
        return latest if found is None else found
    if not earliest <= position <= latest:
        raise OffsetOutOfRange(
            topic=log.topic,
            partition=partition,
            requested=position,
            earliest=earliest,
            latest=latest,
        )
    return position


def _partition_numbers(partitions: Iterable[int], topic: str) -> list[int]:
    numbers = list(partitions)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"a partition must be an int, not {type(number).__name__}")
        if number < 0:
            raise UnknownTopic(topic, partition=number)
    return numbers


def _check_position(position: object, which: str) -> None:
    """Raise TypeError if `position` is not a Position, InvalidConfig for a datetime without a time
    zone.
    """
    if isinstance(position, datetime):
        if position.tzinfo is None:
            reason = (
                f"{which} {position} has no time zone: use, for example, datetime(..., tzinfo=UTC)"
            )
            raise InvalidConfig(reason, key=which)
    elif position is not None and (isinstance(position, bool) or not isinstance(position, int)):
        raise TypeError(
            f"{which} must be an offset (int) or a datetime, not {type(position).__name__}"
        )
