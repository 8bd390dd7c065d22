"""Reading topics in Spark. The driver plans; a task reads the files of its plan without reading the log."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import InvalidConfig
from deltaq.root import open_root
from deltaq.spark.bounds import Edge, Limit
from deltaq.spark.columns import ReadColumns, kafka_columns, table_columns
from deltaq.spark.given import refuse
from deltaq.spark.offsets import (
    NOT_BEGUN,
    CommittedLookup,
    DataLoss,
    SourceOffset,
    TopicOffsets,
    as_json,
    at_bound,
    available,
    backlog,
    check_order,
    check_start,
    first_end,
    first_start,
    from_json,
    limited,
    same_place,
    to_read,
)
from deltaq.spark.options import SourceOptions
from deltaq.spark.tasks import TopicRead, in_tasks
from deltaq.spark.topics import QueryTopics, located
from deltaq.store import Store
from deltaq.store.parallel import REQUESTS_MAX, in_parallel
from deltaq.topics.log import TopicLog
from deltaq.topics.ranges import read_ranges
from deltaq.topics.scan import Fetched, FileGone, layout_of, read_file
from deltaq.topics.state import TopicHead

_log = logging.getLogger("deltaq.spark")

ROWS_AT_ONCE = 64 * 1024
"""Most rows in one record batch for Spark."""

_CLOCK = SYSTEM_CLOCK
_EARLIEST, _LATEST = (Limit("startingOffsets", Edge.EARLIEST), Limit("endingOffsets", Edge.LATEST))


@dataclass(frozen=True)
class _Task(InputPartition):
    """What one Spark task reads. `columns` are those to read of each topic's table, by topic name.

    Large files of the topics in `apart` are read column by column, because the query leaves out keys or values.
    """

    reads: tuple[TopicRead, ...]
    columns: Mapping[str, pa.Schema]
    apart: frozenset[str]


def columns_of(options: SourceOptions) -> StructType:
    """The columns of a read with these options. Raises InvalidConfig, UnknownTopic."""
    if options.columns == "kafka":
        return kafka_columns(headers=options.headers)
    topics = QueryTopics(options, _CLOCK)
    heads = topics.newest_heads()
    topics.check_complete(heads)
    if not heads:
        raise InvalidConfig(
            f"no topic matches {options.subscription.pattern!r}: create one first, or name the columns in .schema()",
            key="subscribePattern",
        )
    first = table_columns(topics.view(next(iter(heads))))
    for topic in heads:
        ReadColumns("table", first).check(topic, topics.view(topic))
    return first


class _Plans:
    """Planning on the driver, for batch and streaming reads."""

    def __init__(self, options: SourceOptions, columns: ReadColumns) -> None:
        self._options = options
        self._columns = columns
        self._checked: set[str] = set()
        self.topics = QueryTopics(options, _CLOCK)

    def begin(
        self, default: Limit, heads: dict[str, TopicHead] | None = None
    ) -> tuple[SourceOffset, dict[str, TopicHead]]:
        """Where the query begins, and the heads that this is seen from: newer ones than `heads` if a group says where.

        `default` applies without a starting option.
        """
        limit, group = self._options.starting or default, self._options.starting_group
        if group is None:
            heads = self.topics.newest_heads() if heads is None else heads
            return self._at(limit, heads), heads
        committed = self.topics.committed(group)
        heads = self.topics.newest_heads()  # after the offsets, which would otherwise be ahead of a busy topic's heads
        return self._at(limit, heads, committed), heads

    def end(self, default: Limit, heads: Mapping[str, TopicHead]) -> SourceOffset:
        """Where a batch ends. `default` applies without an ending option."""
        return self._at(self._options.ending or default, heads)

    def _at(self, limit: Limit, heads: Mapping[str, TopicHead], *committed: CommittedLookup) -> SourceOffset:
        self.topics.check_complete(heads)
        return at_bound(limit, heads, self._options.subscription, self.topics.offset_for_time, *committed)

    def tasks(self, start: SourceOffset, end: SourceOffset, heads: Mapping[str, TopicHead]) -> list[_Task]:
        """The tasks that read the offsets `[start, end)`."""
        ranges = to_read(start, end, heads, DataLoss(self._options.fail_on_data_loss))
        for topic in ranges:
            if heads[topic].topic_id not in self._checked:
                self._columns.check(topic, self.topics.view(topic))
                self._checked.add(heads[topic].topic_id)
        tables = {topic: self.topics.view(topic).columns for topic in ranges}
        columns = {topic: self._columns.in_files(table) for topic, table in tables.items()}
        apart = frozenset(topic for topic in tables if {*tables[topic].names} - {*columns[topic].names, "_headers"})
        return [
            _Task(reads, {topic: columns[topic] for topic in topics}, apart & topics)
            for reads in in_tasks(self.topics.plan(ranges), self._options.tasks)
            for topics in ({read.topic for read in reads},)
        ]


class DeltaqReader(DataSourceReader):
    """A batch read, from `startingOffsets` to `endingOffsets`, of the topics at the time of planning."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        _note_options_of_streams(options)
        _check_batch_edges(options)
        self._options = replace(options, client=located(options.client, _CLOCK))
        self._columns = ReadColumns(options.columns, schema)

    def partitions(self) -> list[InputPartition]:
        """One input partition for each task. Raises InvalidConfig, KafkaException."""
        plans = _Plans(self._options, self._columns)
        start, heads = plans.begin(_EARLIEST)
        end = plans.end(_LATEST, heads)
        check_order(start, end)
        return list(plans.tasks(start, end, heads))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return _records(self._options, self._columns, partition)


class DeltaqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Each micro-batch reads what was appended since the previous one."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.ending is not None:
            option = options.ending.option
            raise InvalidConfig(f"a stream has no end: omit {option}, or use spark.read", key=option)
        self._options = replace(options, client=located(options.client, _CLOCK))
        self._columns = ReadColumns(options.columns, schema)
        self._target: dict[str, TopicHead] | None = None
        self._triggered_at = float("-inf")

    @cached_property
    def _plans(self) -> _Plans:  # created when used: the copies on executors plan nothing
        return _Plans(self._options, self._columns)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name, as all below
        """`NOT_BEGUN`. The start of the query is chosen once, together with the end of its first micro-batch."""
        return dict(NOT_BEGUN)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxOffsetsPerTrigger` or `minOffsetsPerTrigger`; Spark has no limit for both."""
        trigger = self._options.trigger
        if trigger.offsets_max is not None:
            return ReadMaxRows(trigger.offsets_max)
        return ReadAllAvailable() if trigger.offsets_min is None else ReadMinRows(trigger.offsets_min)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the current end of the topics, at which the query ends."""
        self._target = self._plans.topics.newest_heads()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch. That of the first one also holds the start of the query."""
        if start == NOT_BEGUN:
            return self._first_end(limit)
        heads = self._plans.topics.newest_heads() if self._target is None else self._target
        newest = available(heads, self._options.subscription)
        begin = from_json(start)
        if not isinstance(limit, ReadAllAvailable) and self._waits_for_more(backlog(begin, newest, heads)):
            return start
        end = _within(limit, begin, newest, heads)
        return start if same_place(begin, end) else as_json(end)

    def _first_end(self, limit: ReadLimit) -> dict[str, Any]:
        begin, heads = self._plans.begin(_LATEST, self._target)
        if self._target is not None:
            self._target = heads
        newest = available(heads, self._options.subscription)
        check_start(begin, newest)
        self._triggered_at = _CLOCK.monotonic()
        return as_json(first_end(begin, _within(limit, begin, newest, heads)))

    def _waits_for_more(self, offsets: int) -> bool:
        """Whether fewer than `minOffsetsPerTrigger` offsets are new and the last micro-batch is younger than
        `maxTriggerDelay`.

        A query with Trigger.AvailableNow would end with the last offsets unread, so it never waits.
        """
        trigger, now = self._options.trigger, _CLOCK.monotonic()
        if trigger.offsets_min is None or self._target is not None:
            return False
        if offsets < trigger.offsets_min and now - self._triggered_at < trigger.delay_s:
            return True
        self._triggered_at = now
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end of the topics when they were last read, for the query's progress."""
        return as_json(available(self._plans.topics.known_heads(), self._options.subscription))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a micro-batch."""
        # The heads that latestOffset has read reach `end`. A restarted query that repeats a planned micro-batch has
        # not called latestOffset, and known_heads then reads the topics.
        heads = self._plans.topics.known_heads()
        until = from_json(end)
        begin = first_start(until) if start == NOT_BEGUN else from_json(start)
        return list(self._plans.tasks(begin, until, heads))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return _records(self._options, self._columns, partition)


def _within(limit: ReadLimit, start: SourceOffset, end: SourceOffset, heads: Mapping[str, TopicHead]) -> SourceOffset:
    """The end of a micro-batch that begins at `start`."""
    return limited(start, end, heads, limit.max_rows) if isinstance(limit, ReadMaxRows) else end


def _note_options_of_streams(options: SourceOptions) -> None:
    trigger = options.trigger
    for name, value in (
        ("maxOffsetsPerTrigger", trigger.offsets_max),
        ("minOffsetsPerTrigger", trigger.offsets_min),
    ):
        if value is not None:
            _log.info("option has no effect in a batch query name=%s", name)


def _check_batch_edges(options: SourceOptions) -> None:
    """Refuse a batch that starts at the end or ends at the beginning, as Spark's Kafka source does."""
    for limit, wrong in ((options.starting, Edge.LATEST), (options.ending, Edge.EARLIEST)):
        if limit is None:
            continue
        everywhere = isinstance(limit.bound, Edge) and limit.bound == wrong
        somewhere = isinstance(limit.bound, Mapping) and any(wrong in of.values() for of in limit.bound.values())
        if everywhere or somewhere:
            refuse(limit.option, wrong.name.lower(), "a batch query would read nothing")


# --- on executors ----------------------------------------------------------------------------------------------------


def _records(options: SourceOptions, columns: ReadColumns, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, _Task):  # Spark's placeholder when there is nothing to read
        return
    store = open_root(options.client, _CLOCK)
    loss = DataLoss(options.fail_on_data_loss)
    for first in range(0, len(partition.reads), REQUESTS_MAX):
        reads = partition.reads[first : first + REQUESTS_MAX]
        fetched = in_parallel(_CLOCK, lambda read: _fetched(store, read, partition, loss), reads)
        for read, parts in zip(reads, fetched, strict=True):
            for part in parts:
                batch = columns.of(read.topic, part)
                for row in range(0, batch.num_rows, ROWS_AT_ONCE):
                    yield batch.slice(row, ROWS_AT_ONCE)


def _fetched(store: Store, planned: TopicRead, task: _Task, loss: DataLoss) -> list[Fetched]:
    read = planned.read
    try:
        if planned.topic in task.apart:
            read = replace(read, layout=layout_of(store, read.file))
        return read_file(store, read, task.columns[planned.topic])
    except FileGone:
        return _fetched_elsewhere(store, planned, loss)


def _fetched_elsewhere(store: Store, planned: TopicRead, loss: DataLoss) -> list[Fetched]:
    """The records of a file that was compacted or removed after planning, read from the files that hold them now."""
    log = TopicLog(store, planned.topic, _CLOCK, indexed=True)
    log.load()
    heads = {} if log.head is None else {planned.topic: log.head}
    found: list[Fetched] = []
    for batch, start, end in planned.read.wanted:
        wanted_from, wanted_to = (
            {planned.topic: TopicOffsets(planned.topic_id, {batch.partition: offset})} for offset in (start, end)
        )
        ranges = to_read(wanted_from, wanted_to, heads, loss)
        found += read_ranges(store, log, ranges[planned.topic]) if ranges else ()
    return found
