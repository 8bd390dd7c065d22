"""Topic definitions: what a client needs to know of a topic to write and read it; and the creation
of topics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from deltaq.config import TopicSettings
from deltaq.delta.actions import Metadata
from deltaq.delta.schema import arrow_schema, delta_schema
from deltaq.errors import Corrupt, TopicExists
from deltaq.parquet.column_bounds import STATISTICS_PROPERTY
from deltaq.parquet.file_statistics import statistics_property
from deltaq.serde.schema import TopicSchema
from deltaq.serde.source import schema_of
from deltaq.topics.columns import VALUE_SCHEMA, table_schema
from deltaq.topics.log import TopicLog
from deltaq.topics.readable import ReadableTopic
from deltaq.topics.schema_evolution import HISTORY_PROPERTY, SchemaHistory, evolution
from deltaq.topics.state import PARTITIONS_PROPERTY, TopicChange, TopicHead

_log = logging.getLogger("deltaq.topics")

TYPED_PROPERTY = "deltaq.typed"

LARGE_MESSAGES_PROPERTY = "deltaq.large.messages"
"""The table property of a topic in which records may be pieces of messages: `true`."""

_NO_HISTORY = SchemaHistory()


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    """A topic at one version. `schema` is None for an untyped topic, whose values are bytes.
    `has_large_messages`: some of its records may be pieces of messages.
    """

    topic_id: str
    partitions: int
    schema: TopicSchema | None
    settings: TopicSettings
    history: SchemaHistory = _NO_HISTORY
    has_large_messages: bool = False

    @property
    def columns(self) -> pa.Schema:
        """The columns of the topic's table."""
        return _columns(self.schema)


@dataclass(frozen=True, slots=True)
class NewTopicPlan:
    """A topic to be created. `properties` are table properties, with their `deltaq.` prefix."""

    partitions: int
    schema: TopicSchema | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def definition_of(log: ReadableTopic) -> TopicDefinition:
    """The definition of the topic at the log's position. Raises UnknownTopic."""
    head, metadata = log.live_head, log.metadata
    if metadata.configuration.get(TYPED_PROPERTY) != "true":
        has_large = LARGE_MESSAGES_PROPERTY in metadata.configuration
        return TopicDefinition(
            head.topic_id, head.partitions, None, log.settings, has_large_messages=has_large
        )
    schema = _schema(metadata.schema_string, log.folder)
    history = _history(metadata.configuration.get(HISTORY_PROPERTY), log.folder)
    return TopicDefinition(head.topic_id, head.partitions, schema, log.settings, history)


@lru_cache(maxsize=256)
def _columns(schema: TopicSchema | None) -> pa.Schema:
    return table_schema(schema)


@lru_cache(maxsize=256)
def _schema(schema_string: str, folder: str) -> TopicSchema:
    try:
        columns = arrow_schema(schema_string)
        system = len(table_schema(None)) - len(VALUE_SCHEMA)
        return schema_of(pa.schema(list(columns)[system:]))
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"the table's schema cannot be parsed: {error}", path=folder) from error


@lru_cache(maxsize=256)
def _history(text: str | None, folder: str) -> SchemaHistory:
    try:
        return SchemaHistory.parsed(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"the history of the table's schema cannot be parsed: {error}", path=folder
        ) from error


def create_topic(
    log: TopicLog, plan: NewTopicPlan, deadline: float, *, exist_ok: bool = False
) -> TopicDefinition:
    """Create the topic. With `exist_ok`, an existing topic is no error. Raises what
    `TopicLog.create` raises.
    """
    columns = table_schema(plan.schema)
    properties = {
        **plan.properties,
        PARTITIONS_PROPERTY: str(plan.partitions),
        STATISTICS_PROPERTY: statistics_property(columns),
    }
    if plan.schema is not None:
        properties[TYPED_PROPERTY] = "true"
    try:
        log.create(plan.partitions, delta_schema(columns), properties, deadline)
    except TopicExists:
        if not exist_ok:
            raise
    else:
        _log.info("topic created topic=%r partitions=%d", log.topic, plan.partitions)
    return definition_of(log)


def evolve_topic(log: TopicLog, wanted: TopicSchema, deadline: float) -> TopicDefinition:
    """Change the schema of a topic, if it must, to take values of the schema `wanted`; the
    definition after it.

    The change is one entry. If another process changes the topic at the same time, the schema is
    judged again by the result. Raises InvalidConfig for a schema that does not fit, and what
    `TopicLog.change` raises.
    """

    def decide(head: TopicHead, _: Metadata) -> TopicChange | None:
        now = definition_of(log)
        found = evolution(log.topic, now.schema, now.history, wanted)
        if found is None:
            return None
        columns = table_schema(schema_of(found.columns))
        properties = {HISTORY_PROPERTY: found.history.text()}
        return TopicChange(head.partitions, properties, delta_schema(columns))

    if not log.delta_log.is_whole:  # after a failed attempt the table may seem to be missing
        log.load()
    before = definition_of(log)
    if evolution(log.topic, before.schema, before.history, wanted) is None:
        return before
    log.change(decide, deadline)
    after = definition_of(log)
    _log.info("schema changed topic=%r columns=%d", log.topic, len(after.columns))
    return after


def mark_large_messages(log: TopicLog, deadline: float) -> TopicDefinition:
    """Say in the topic's table that it has messages in pieces, unless it does; the definition after
    it.

    Raises what `TopicLog.change` raises.
    """

    def decide(head: TopicHead, metadata: Metadata) -> TopicChange | None:
        if LARGE_MESSAGES_PROPERTY in metadata.configuration:
            return None
        return TopicChange(head.partitions, {LARGE_MESSAGES_PROPERTY: "true"})

    log.change(decide, deadline)
    return definition_of(log)
