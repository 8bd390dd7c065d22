"""Reading topics in Spark. The driver plans; a task reads the files of its plan without reading the
log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter
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
from deltaq.spark.columns import ReadColumns, in_batches, table_columns
from deltaq.spark.kafka_columns import kafka_columns
from deltaq.spark.offsets import (
    NOT_BEGUN,
    DataLoss,
    Ranges,
    SourceOffset,
    TopicOffsets,
    as_json,
    available,
    backlog,
    check_start,
    first_end,
    first_start,
    from_json,
    limited,
    same_place,
    to_read,
)
from deltaq.spark.options import SourceOptions
from deltaq.spark.planning import LATEST, QueryPlans, batch_options
from deltaq.spark.tasks import TopicRead, in_tasks
from deltaq.spark.topics import QueryTopics, located
from deltaq.spark.worker_memory import freeze_loaded
from deltaq.store import Store
from deltaq.store.parallel import REQUESTS_MAX, in_parallel
from deltaq.topics.log import TopicLog
from deltaq.topics.ranges import read_ranges
from deltaq.topics.scan import Fetched, FileGone, layout_of, read_file
from deltaq.topics.state import TopicHead

_log = logging.getLogger("deltaq.spark")

ROWS_AT_ONCE = 64 * 1024
"""Most rows in one record batch for Spark."""

BYTES_AT_ONCE = 4 * 1024 * 1024
"""Most bytes of small record batches that are joined for Spark."""

_CLOCK = SYSTEM_CLOCK


@dataclass(frozen=True)
class _Task(InputPartition):
    """What one Spark task reads. `columns` are those to read of each topic's table, by topic name.

    Large files of the topics in `apart` are read column by column, because the query leaves out
    keys or values.
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
            f"no topic matches {options.subscription.pattern!r}: create one first, or name the "
            "columns in .schema()",
            key="subscribePattern",
        )
    first = table_columns(topics.view(next(iter(heads))))
    for topic in heads:
        ReadColumns("table", first).check(topic, topics.view(topic))
    return first


def _tasks(
    topics: QueryTopics, ranges: Ranges, options: SourceOptions, promised: ReadColumns
) -> list[_Task]:
    """The tasks that read these offsets."""
    tables = {topic: topics.view(topic).columns for topic in ranges}
    columns = {topic: promised.in_files(table) for topic, table in tables.items()}
    apart = frozenset(
        topic for topic in tables if {*tables[topic].names} - {*columns[topic].names, "_headers"}
    )
    return [
        _Task(reads, {topic: columns[topic] for topic in names}, apart & names)
        for reads in in_tasks(topics.plan(ranges), options.tasks)
        for names in ({read.topic for read in reads},)
    ]


class DeltaqReader(DataSourceReader):
    """A batch read, from `startingOffsets` to `endingOffsets`, of the topics at the time of
    planning.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = batch_options(options)
        self._columns = ReadColumns(options.columns, schema)

    def partitions(self) -> list[InputPartition]:
        """One input partition for each task. Raises InvalidConfig, KafkaException."""
        plans = QueryPlans(self._options, self._columns)
        return list(_tasks(plans.topics, plans.batch(), self._options, self._columns))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return _records(self._options, self._columns, partition)


class DeltaqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Each micro-batch reads what was appended since the previous one."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.ending is not None:
            option = options.ending.option
            raise InvalidConfig(
                f"a stream has no end: omit {option}, or use spark.read", key=option
            )
        self._options = replace(options, client=located(options.client, _CLOCK))
        self._columns = ReadColumns(options.columns, schema)
        self._target: dict[str, TopicHead] | None = None
        self._triggered_at = float("-inf")

    @cached_property
    def _plans(self) -> QueryPlans:  # created when used: the copies on executors plan nothing
        return QueryPlans(self._options, self._columns)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name, as all below
        """`NOT_BEGUN`. The start of the query is chosen once, together with the end of its first
        micro-batch.
        """
        return dict(NOT_BEGUN)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxOffsetsPerTrigger` or `minOffsetsPerTrigger`; Spark has no limit for both."""
        trigger = self._options.trigger
        if trigger.offsets_max is not None:
            return ReadMaxRows(trigger.offsets_max)
        return (
            ReadAllAvailable() if trigger.offsets_min is None else ReadMinRows(trigger.offsets_min)
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the current end of the topics, at which the query ends."""
        self._target = self._plans.topics.newest_heads()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next micro-batch. That of the first one also holds the start of the
        query.
        """
        if start == NOT_BEGUN:
            return self._first_end(limit)
        heads = self._plans.topics.newest_heads() if self._target is None else self._target
        newest = available(heads, self._options.subscription)
        begin = from_json(start)
        if not isinstance(limit, ReadAllAvailable) and self._waits_for_more(
            backlog(begin, newest, heads)
        ):
            return start
        end = _within(limit, begin, newest, heads)
        return start if same_place(begin, end) else as_json(end)

    def _first_end(self, limit: ReadLimit) -> dict[str, Any]:
        begin, heads = self._plans.begin(LATEST, self._target)
        if self._target is not None:
            self._target = heads
        newest = available(heads, self._options.subscription)
        check_start(begin, newest)
        self._triggered_at = _CLOCK.monotonic()
        return as_json(first_end(begin, _within(limit, begin, newest, heads)))

    def _waits_for_more(self, offsets: int) -> bool:
        """Whether fewer than `minOffsetsPerTrigger` offsets are new and the last micro-batch is
        younger than `maxTriggerDelay`.

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
        # The heads that latestOffset has read reach `end`. A restarted query that repeats a planned
        # micro-batch has not called latestOffset, and known_heads then reads the topics.
        heads = self._plans.topics.known_heads()
        until = from_json(end)
        begin = first_start(until) if start == NOT_BEGUN else from_json(start)
        ranges = self._plans.ranges(begin, until, heads)
        return list(_tasks(self._plans.topics, ranges, self._options, self._columns))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return _records(self._options, self._columns, partition)


def _within(
    limit: ReadLimit, start: SourceOffset, end: SourceOffset, heads: Mapping[str, TopicHead]
) -> SourceOffset:
    """The end of a micro-batch that begins at `start`."""
    return limited(start, end, heads, limit.max_rows) if isinstance(limit, ReadMaxRows) else end


# --- on executors
# --------------------------------------------------------------------------------------------------


def _records(
    options: SourceOptions, columns: ReadColumns, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, _Task):  # Spark's placeholder when there is nothing to read
        return
    store = open_root(options.client, _CLOCK)
    parts = _parts(store, partition, DataLoss(options.fail_on_data_loss))
    converted = (
        columns.of(topic, (part for _, part in run), BYTES_AT_ONCE)
        for topic, run in groupby(parts, itemgetter(0))
    )
    yield from in_batches(chain.from_iterable(converted), ROWS_AT_ONCE, BYTES_AT_ONCE)
    freeze_loaded()


def _parts(store: Store, task: _Task, loss: DataLoss) -> Iterator[tuple[str, Fetched]]:
    """The records of a task, each part with its topic."""
    # Small local files are read faster than threads are started.
    at_once = REQUESTS_MAX if store.is_remote else 1
    for first in range(0, len(task.reads), at_once):
        reads = task.reads[first : first + at_once]
        fetched = in_parallel(_CLOCK, lambda read: _fetched(store, read, task, loss), reads)
        yield from (
            (read.topic, part) for read, parts in zip(reads, fetched, strict=True) for part in parts
        )


def _fetched(store: Store, planned: TopicRead, task: _Task, loss: DataLoss) -> list[Fetched]:
    read = planned.read
    try:
        if planned.topic in task.apart:
            read = replace(read, layout=layout_of(store, read.file))
        return read_file(store, read, task.columns[planned.topic], plain=True)
    except FileGone:
        return _fetched_elsewhere(store, planned, loss)


def _fetched_elsewhere(store: Store, planned: TopicRead, loss: DataLoss) -> list[Fetched]:
    """The records of a file that was compacted or removed after planning, read from the files that
    hold them now.
    """
    log = TopicLog(store, planned.topic, _CLOCK, indexed=True)
    log.load()
    heads = {} if log.head is None else {planned.topic: log.head}
    found: list[Fetched] = []
    for batch, start, end in planned.read.wanted:
        wanted_from, wanted_to = (
            {planned.topic: TopicOffsets(planned.topic_id, {batch.partition: offset})}
            for offset in (start, end)
        )
        ranges = to_read(wanted_from, wanted_to, heads, loss)
        found += read_ranges(store, log, ranges[planned.topic]) if ranges else ()
    return found
