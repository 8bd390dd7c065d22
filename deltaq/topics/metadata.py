"""Topic definitions: what a client needs to know of a topic to write and read it; and the creation of topics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from deltaq.config import TopicSettings
from deltaq.delta.schema import arrow_schema, delta_schema
from deltaq.errors import Corrupt, TopicExists
from deltaq.parquet.file_statistics import STATISTICS_PROPERTY, statistics_property
from deltaq.serde.schema import TopicSchema, schema_of
from deltaq.topics.columns import VALUE_SCHEMA, table_schema
from deltaq.topics.log import TopicLog
from deltaq.topics.snapshot import ReadableTopic
from deltaq.topics.state import PARTITIONS_PROPERTY

_log = logging.getLogger("deltaq.topics")

TYPED_PROPERTY = "deltaq.typed"


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    """A topic at one version. `schema` is None for an untyped topic, whose values are bytes."""

    topic_id: str
    partitions: int
    schema: TopicSchema | None
    settings: TopicSettings

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
    metadata = log.metadata
    schema = (
        _schema(metadata.schema_string, log.folder) if metadata.configuration.get(TYPED_PROPERTY) == "true" else None
    )
    return TopicDefinition(log.live_head.topic_id, log.live_head.partitions, schema, log.settings)


@lru_cache(maxsize=256)
def _columns(schema: TopicSchema | None) -> pa.Schema:
    return table_schema(schema)


@lru_cache(maxsize=256)
def _schema(schema_string: str, folder: str) -> TopicSchema:
    try:
        columns = arrow_schema(schema_string)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"the table's schema cannot be parsed: {error}", path=folder) from error
    system = len(table_schema(None)) - len(VALUE_SCHEMA)
    return schema_of(pa.schema(list(columns)[system:]))


def create_topic(log: TopicLog, plan: NewTopicPlan, deadline: float, *, exist_ok: bool = False) -> TopicDefinition:
    """Create the topic. With `exist_ok`, an existing topic is no error. Raises what `TopicLog.create` raises."""
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
