"""The dead-letter topic of a share group: records that are not delivered again are written to it
once.

The group's log says which records these are, and which of its entries has ended each. The newest of
these entries whose dead letters are in the topic is the version of an application transaction in
the topic's own log. So any member may write what is missing, and none writes it twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.config import topic_properties
from deltaq.errors import Corrupt, InvalidConfig, UnknownTopic
from deltaq.serde.columns import comment_of, members_of, table_field
from deltaq.serde.schema import TopicSchema
from deltaq.serde.source import schema_of
from deltaq.share_groups.exchange import PartitionId
from deltaq.share_groups.log import ShareGroup
from deltaq.share_groups.state import Failure, SharePartition
from deltaq.store import Store
from deltaq.topics.append_once import AppendedRow, append_once
from deltaq.topics.columns import Headers
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import (
    NewTopicPlan,
    TopicDefinition,
    create_topic,
    definition_of,
    evolve_topic,
)
from deltaq.topics.view import known_topic

_log = logging.getLogger("deltaq.share_consumer")

HEADER = "__dlq.errors."
"""What the names of the headers of dead letters begin with; those of KIP-1191."""

_REJECTED = "Offset rejected by client."
_TOO_OFTEN = "Offset delivery count exceeded the threshold."

LETTERS_AT_ONCE = 2_000
"""Dead letters of one entry of the topic, about: those of one entry of the group stay together."""


class DeadRecord(NamedTuple):
    """A record that is to be written to the dead-letter topic."""

    partition: PartitionId
    offset: int
    deliveries: int
    failure: Failure


class RecordContent(NamedTuple):
    """The key, headers and value of a record; the value of a typed topic is a dict."""

    key: bytes | None
    headers: Headers
    value: Any


_NO_CONTENT = RecordContent(None, None, None)

ReadContents = Callable[[Sequence[DeadRecord]], Mapping[tuple[PartitionId, int], RecordContent]]
"""The contents of records, by place, as far as they can be read."""

ReadSchemas = Callable[[Collection[str]], Mapping[str, TopicSchema | None]]
"""The schemas of those of the topics that exist, by name; None for one of bytes."""


def dead_records(
    partitions: Mapping[PartitionId, SharePartition], after: int = -1
) -> list[DeadRecord]:
    """The records that entries after the version `after` have ended, those of the first entries,
    in their order.
    """
    found = sorted(_dead(partitions, after), key=lambda record: (record.failure.since, record))
    if len(found) <= LETTERS_AT_ONCE:
        return found
    last = found[LETTERS_AT_ONCE - 1].failure.since
    return [record for record in found if record.failure.since <= last]


def _dead(partitions: Mapping[PartitionId, SharePartition], after: int) -> Iterator[DeadRecord]:
    for key, state in partitions.items():
        for span, failure in state.failures():
            if failure.since > after:
                for offset in range(span.first, span.end):
                    yield DeadRecord(key, offset, span.status.deliveries, failure)


@dataclass(eq=False)
class DeadLetters:
    """Writes the dead letters of a group. `read` reads records, `schemas` those of topics."""

    _store: Store
    _clock: Clock
    _group: str
    _read: ReadContents
    _schemas: ReadSchemas
    # Why the records of topics do not fit the dead-letter topic, as it was logged.
    _misfits: dict[str, str] = field(default_factory=dict)

    def publish(self, group: ShareGroup, deadline: float) -> int:
        """Write dead letters of the group. Returns up to which entry of the group they are written,
        -1 if there are none to be written. Raises Unavailable, OutcomeUnknown, and InvalidConfig if
        the topic cannot hold them.
        """
        partitions = group.partitions()
        settings = group.settings
        topic = settings.errors_deadletterqueue_topic_name
        pending = dead_records(partitions)
        if not pending or not topic:
            # Without a topic, which the group had before, nothing is to be written.
            return pending[-1].failure.since if pending else -1

        is_copied = settings.errors_deadletterqueue_copy_record_enable
        failed = {key.topic for key, state in partitions.items() if any(state.failures())}
        known = known_topic(self._store, topic, self._clock)
        log = TopicLog(self._store, topic, self._clock, known=known)

        def rows_after(definition: TopicDefinition, version: int) -> tuple[list[AppendedRow], int]:
            records = dead_records(partitions, version)
            if not records:
                return [], version
            contents = self._read([each for each in records if each.partition.topic in fitting])
            rows = [self._row(record, contents, definition.partitions) for record in records]
            return rows, records[-1].failure.since

        # A later log of this group, after its folder was removed, begins with version 0 again.
        app_id = f"deltaq.dead_letters/{self._group}/{group.created_ms}"
        try:
            fitting = self._prepare(log, self._origins(failed) if is_copied else {}, deadline)
            return append_once(log, self._store, self._clock, app_id, rows_after, deadline)
        except UnknownTopic:
            return -1  # it is deleted at this moment: the next call makes it anew

    def _origins(self, topics: Collection[str]) -> dict[str, TopicSchema | None]:
        """The schemas of topics. One whose log is damaged is left out: it must not stop a member
        that reads others.
        """
        found: dict[str, TopicSchema | None] = {}
        for topic in sorted(topics):
            with suppress(Corrupt):
                found |= self._schemas({topic})
        return found

    def _prepare(
        self, log: TopicLog, origins: Mapping[str, TopicSchema | None], deadline: float
    ) -> set[str]:
        """Create the dead-letter topic, if it does not exist, and have it take the columns of these
        topics. Returns those whose records fit it.
        """
        if not log.catch_up():
            # A topic with columns would take no bytes.
            schema = None if None in origins.values() else next(iter(origins.values()), None)
            columns = None if schema is None else _letter_schema(schema)
            plan = NewTopicPlan(1, columns, topic_properties({}))
            create_topic(log, plan, deadline, exist_ok=True)
        misfits = {
            topic: reason
            for topic, schema in origins.items()
            if (reason := _misfit(log, schema, deadline))
        }
        for topic, reason in sorted(misfits.items() - self._misfits.items()):
            about = "dead letters have headers only group=%r topic=%r: %s"
            _log.warning(about, self._group, topic, reason)
        self._misfits |= misfits
        return origins.keys() - misfits.keys()

    def _row(
        self,
        record: DeadRecord,
        contents: Mapping[tuple[PartitionId, int], RecordContent],
        partitions: int,
    ) -> AppendedRow:
        key, failure = record.partition, record.failure
        content = contents.get((key, record.offset), _NO_CONTENT)
        about = {
            "topic": key.topic,
            "topic.id": key.topic_id,
            "partition": str(key.partition),
            "offset": str(record.offset),
            "group": self._group,
            "delivery.count": str(record.deliveries),
            "message": _REJECTED if failure.is_rejected else _TOO_OFTEN,
            **({"exception": failure.error} if failure.error else {}),
        }
        headers = [
            *(content.headers or ()),
            *((HEADER + name, text.encode()) for name, text in about.items()),
        ]
        return AppendedRow(
            key.partition % partitions,
            self._clock.time_ms(),
            content.key,
            headers,
            content.value,
        )


def _misfit(log: TopicLog, schema: TopicSchema | None, deadline: float) -> str:
    """Why the dead-letter topic cannot take records of a topic with this schema; empty if it can.
    Columns that it lacks are added, as a producer with the schema adds them.
    """
    if schema is None:
        is_typed = definition_of(log).schema is not None
        return f"the records are bytes, and topic {log.topic!r} has columns" if is_typed else ""
    try:
        evolve_topic(log, _letter_schema(schema), deadline)
    except InvalidConfig as error:
        return error.error.str()
    return ""


@lru_cache(maxsize=64)
def _letter_schema(schema: TopicSchema) -> TopicSchema:
    """The schema without required columns: letters that have headers only, or are of topics with
    other columns, have none of them.
    """
    columns = [
        table_field(
            column.name,
            column.type,
            required=False,
            comment=comment_of(column),
            members=members_of(column),
        )
        for column in schema.arrow
    ]
    return schema_of(pa.schema(columns))
