"""The options of `format("deltaq")`, with the names of Spark's Kafka source and sink. Parsing and
checks, no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from deltaq.config import AdminConfig, ProducerConfig, parse_client_config
from deltaq.errors import InvalidConfig
from deltaq.names import check_group, check_topic
from deltaq.spark.bounds import Limit, parse_bound
from deltaq.spark.given import GivenOptions, json_object, refuse

SOURCE_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsetsByGroup",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "failOnDataLoss",
    "columns",
)
SINK_OPTIONS = ("topic", "columns", "mergeSchema", "txnAppId", "txnVersion", "group.id")

_MAX_TRIGGER_DELAY = "15m"

ColumnSet: TypeAlias = Literal["kafka", "table"]
_COLUMN_SETS: tuple[ColumnSet, ...] = ("kafka", "table")


@dataclass(frozen=True, slots=True)
class SourceTopics:
    """The topics to read: those of `names`, or all whose full name matches `pattern`.

    With `assigned` (topic -> partitions) only these partitions of `names` are read, and none that
    is added later.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, frozenset[int]] | None = None

    def covers(self, topic: str, partition: int) -> bool:
        """Whether to read this partition of a topic in the subscription."""
        return self.assigned is None or partition in self.assigned[topic]


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """How a read is divided into tasks: at least `tasks_min` of them, each of at most `offsets_max`
    offsets.
    """

    tasks_min: int = 1
    offsets_max: int | None = None


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How many offsets a micro-batch has: at most `offsets_max`, and `offsets_min` unless it waits
    for `delay_s`.
    """

    offsets_max: int | None = None
    offsets_min: int | None = None
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of a read. `starting` and `ending` are None if the options were not given.

    `starting_group` is the group at whose committed offsets the read begins; None for no group.
    """

    client: AdminConfig
    subscription: SourceTopics
    starting_group: str | None
    starting: Limit | None
    ending: Limit | None
    trigger: TriggerLimits
    tasks: TaskLimits
    headers: bool
    fail_on_data_loss: bool
    columns: ColumnSet


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of a write. Without `topic` each row names its topic. `txn_*` make a write
    idempotent.

    With `merge_schema`, typed topics gain the columns that rows have, and wider types. `group` is
    the consumer group that gets the offsets which a stream has reached, and `checkpoint` the
    address of the stream's checkpoint, if an option names it.
    """

    client: ProducerConfig
    topic: str | None
    columns: ColumnSet
    merge_schema: bool
    txn_app_id: str | None
    txn_version: int | None
    group: str | None
    checkpoint: str | None


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a batch or streaming read. Raises InvalidConfig with the option and the
    remedy.
    """
    given = GivenOptions(options, "source", SOURCE_OPTIONS, SINK_OPTIONS)
    return SourceOptions(
        client=parse_client_config(AdminConfig, given.client()),
        subscription=_subscription(given),
        starting_group=_group(given, "startingOffsetsByGroup"),
        starting=parse_bound(given, "starting"),
        ending=parse_bound(given, "ending"),
        trigger=_trigger(given),
        tasks=TaskLimits(
            given.number("minPartitions", low=1) or 1, given.number("maxRecordsPerPartition", low=1)
        ),
        headers=given.flag("includeHeaders", default=False),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        columns=_column_set(given),
    )


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a batch or streaming write. Raises InvalidConfig with the option and the
    remedy.
    """
    given = GivenOptions(options, "sink", SINK_OPTIONS, SOURCE_OPTIONS)
    topic, columns, merge = (
        given.text("topic"),
        _column_set(given),
        given.flag("mergeSchema", default=False),
    )
    if merge and columns == "kafka":
        refuse(
            "mergeSchema",
            "true",
            'it is for columns of typed topics: set option "columns" to "table"',
        )
    return SinkOptions(
        client=parse_client_config(ProducerConfig, given.client()),
        topic=None if topic is None else check_topic(topic.strip()),
        columns=columns,
        merge_schema=merge,
        txn_app_id=given.text("txnAppId"),
        txn_version=given.number("txnVersion", low=0),
        group=_group(given, "group.id"),
        checkpoint=given.text("checkpointLocation"),
    )


def no_pieces(topic: str) -> InvalidConfig:
    """The error for a topic with large messages, whose pieces Spark would return as rows."""
    reason = (
        f"topic {topic!r} has messages in pieces (large.message.enabled), which Spark does not "
        "join: use Consumer"
    )
    return InvalidConfig(reason, key="subscribe")


def needs_table_columns(topic: str) -> InvalidConfig:
    """The error for a typed topic that is read or written as Kafka's key and value."""
    return InvalidConfig(
        f'topic {topic!r} is typed: it has its own columns instead of a value; set option "columns"'
        ' to "table"',
        key="columns",
    )


def _column_set(given: GivenOptions) -> ColumnSet:
    text = (given.text("columns") or "kafka").lower()
    for columns in _COLUMN_SETS:
        if text == columns:
            return columns
    return refuse("columns", text, f"use {' or '.join(_COLUMN_SETS)}")


def _group(given: GivenOptions, name: str) -> str | None:
    text = given.text(name)
    return None if text is None else check_group(text.strip())


def _trigger(given: GivenOptions) -> TriggerLimits:
    most, least = (
        given.number(name, low=1) for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger")
    )
    if least is not None and most is not None and least > most:
        refuse("minOffsetsPerTrigger", least, f"it is above maxOffsetsPerTrigger, which is {most}")
    return TriggerLimits(most, least, given.seconds("maxTriggerDelay", default=_MAX_TRIGGER_DELAY))


def _subscription(given: GivenOptions) -> SourceTopics:
    ways = [
        way for way in ("subscribe", "subscribePattern", "assign") if given.text(way) is not None
    ]
    if len(ways) != 1:
        found = " and ".join(ways) or "none"
        raise InvalidConfig(
            'set exactly one of the options "subscribe", "subscribePattern" and "assign", not'
            f" {found}",
            key="subscribe",
        )
    text = given.text(ways[0]) or ""
    if ways[0] == "subscribe":
        names = [name.strip() for name in text.split(",") if name.strip()]
        if not names:
            refuse("subscribe", text, "name one topic, or several separated by commas")
        return SourceTopics(tuple(dict.fromkeys(map(check_topic, names))))
    if ways[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            refuse("subscribePattern", text, f"it is not a regular expression: {error}")
        return SourceTopics(pattern=text)
    return _assigned(text)


def _assigned(text: str) -> SourceTopics:
    example = 'use JSON such as {"orders":[0,1],"payments":[2]}'
    body = json_object("assign", text, example)
    assigned: dict[str, frozenset[int]] = {}
    for topic, partitions in body.items():
        if not isinstance(partitions, list) or not partitions:
            refuse("assign", text, example)
        if not all(type(number) is int and number >= 0 for number in partitions):
            refuse("assign", text, example)
        assigned[check_topic(topic)] = frozenset(partitions)
    return SourceTopics(tuple(assigned), assigned=assigned)
