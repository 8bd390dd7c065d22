"""Writing topics from Spark. Executors upload segments, and the driver commits them together.

A micro-batch is one commit for each topic, and one transaction if its rows name their topics, or if
it commits its offsets to a group. The commit carries the query's id and the batch number as a Delta
`txn`. If Spark repeats a micro-batch because it does not know that it was committed, the topic
refuses the second commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from deltaq.clock import SYSTEM_CLOCK
from deltaq.config import ProducerConfig
from deltaq.delta.actions import Txn
from deltaq.delta.checkpoint import CHECKPOINT_INTERVAL
from deltaq.errors import InvalidConfig, InvalidValue, Unavailable, UnknownTopic
from deltaq.names import check_topic, parse_staged_file
from deltaq.partitioner import PartitionChoice
from deltaq.producer.encoding import in_segments, joined, resolved_block
from deltaq.root import open_root
from deltaq.serde.schema import TopicSchema
from deltaq.serde.source import schema_of
from deltaq.serde.widening import is_wider
from deltaq.spark.group_offsets import open_checkpoint, reached, recorded_offsets
from deltaq.spark.options import SinkOptions, needs_table_columns
from deltaq.spark.sink_transactions import BatchTransaction, GroupProgress, staged_path
from deltaq.spark.topics import located
from deltaq.spark.worker_memory import freeze_loaded
from deltaq.store import Store
from deltaq.topics.arrow_input import columns_from_arrow
from deltaq.topics.columns import VALUE_SCHEMA, Columns
from deltaq.topics.log import AlreadyCommitted, TopicLog, UploadsExpired
from deltaq.topics.metadata import (
    NewTopicPlan,
    TopicDefinition,
    create_topic,
    definition_of,
    evolve_topic,
)
from deltaq.topics.state import PendingSegment
from deltaq.topics.upload import upload_segment
from deltaq.transactions.state import Application, StagedRecords

_log = logging.getLogger("deltaq.spark")

SEGMENT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of rows that a task buffers before an upload: large files are cheap to read, but workers
have little memory.
"""

_READ_ONLY = ("_offset",)
"""Columns of a read that a write drops, so that rows read from one typed topic can be written
unchanged to another.
"""

_OF_KAFKA = ("key", "value", "headers", "partition", "timestamp")
"""The columns of Spark's Kafka sink besides `topic`. It ignores all others, such as those that only
a read provides.
"""

QUERY_ID = "sql.streaming.queryId"
"""The local property with the id of a task's streaming query. Spark keeps the id in the
checkpoint.
"""

BATCH_ID = "streaming.sql.batchId"
"""The local property with the number of a task's micro-batch."""

_CLOCK = SYSTEM_CLOCK


@dataclass(frozen=True, slots=True)
class _Written:
    """The segments that a task has uploaded for one topic."""

    topic: str
    topic_id: str
    segments: tuple[PendingSegment, ...]


@dataclass(frozen=True)
class _TaskDone(WriterCommitMessage):
    """The result of a task, sent to the driver."""

    query_id: str | None
    written: tuple[_Written, ...]


class DeltaqWriter(DataSourceArrowWriter):
    """A batch write. `txnAppId` and `txnVersion` make it idempotent: a repeated write has no
    effect.
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidConfig(
                'a topic can only be appended to: use mode("append"), or delete and create the'
                " topic first",
                key="mode",
            )
        if (options.txn_app_id is None) != (options.txn_version is None):
            raise InvalidConfig(
                "txnAppId and txnVersion belong together: set both or neither", key="txnAppId"
            )
        if options.group is not None:
            raise InvalidConfig(
                'option "group.id" is for streams, a batch write has no progress: omit it',
                key="group.id",
            )
        self._rows = _RowWriter(options, schema)
        self._txn = (
            None if options.txn_app_id is None else (options.txn_app_id, options.txn_version or 0)
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the rows of a task."""
        return self._rows.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the segments of all tasks, which gives their rows offsets."""
        self._rows.commit(messages, self._txn)


class DeltaqStreamWriter(DataSourceStreamArrowWriter):
    """A streaming sink. In complete mode each micro-batch appends the whole result, as Spark's
    Kafka sink does.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        if options.txn_version is not None:
            raise InvalidConfig(
                "a stream numbers its batches itself: omit the option", key="txnVersion"
            )
        if options.group is not None:
            if options.checkpoint is None:
                raise InvalidConfig(
                    'option "group.id" needs the option "checkpointLocation" of the same stream: '
                    "the setting of the session does not reach the sink",
                    key="checkpointLocation",
                )
            open_checkpoint(options.checkpoint, options.client, _CLOCK)  # refuses a wrong one early
        self._app_id = options.txn_app_id
        self._rows = _RowWriter(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the rows of a task."""
        return self._rows.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit the segments of the micro-batch, unless it is committed already."""
        app_id = self._app_id or _app_id(messages)
        self._rows.commit(messages, None if app_id is None else (app_id, batchId))


def _app_id(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    """The `txn` app id of a query's micro-batches; None if no task has run."""
    query_ids = {message.query_id for message in messages if isinstance(message, _TaskDone)}
    if None in query_ids:
        raise InvalidConfig(
            'Spark does not provide the id of the query: set option "txnAppId"', key="txnAppId"
        )
    return f"spark:{query_ids.pop()}" if query_ids else None


class _RowWriter:
    """The common part of batch and streaming writes. Created on the driver; executors get
    copies.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = replace(options, client=located(options.client, _CLOCK))
        self._topic_column = "topic" if options.columns == "kafka" else "_topic"
        self._check_columns(schema)
        freeze_loaded()

    def _check_columns(self, schema: StructType) -> None:
        """Refuse columns that no task can write, before any task starts. Raises InvalidConfig,
        InvalidValue.
        """
        if self._options.topic is None and self._topic_column not in schema.names:
            raise InvalidConfig(
                'rows do not name their topic: set option "topic", or add a column'
                f' "{self._topic_column}"',
                key="topic",
            )
        if self._options.columns == "kafka":
            if ignored := [
                name for name in schema.names if name not in (*_OF_KAFKA, self._topic_column)
            ]:
                _log.info("columns have no effect in a write names=%s", ",".join(ignored))
            empty = self._own_columns(to_arrow_schema(schema, timezone="UTC").empty_table())
            columns_from_arrow(
                empty, self._options.topic or "?", None, None, 0, keyed=False, now_ms=0
            )

    def _own_columns(self, rows: pa.Table) -> pa.Table:
        if self._options.columns == "kafka":
            return rows.select([name for name in _OF_KAFKA if name in rows.column_names])
        return rows.drop_columns(
            [name for name in (self._topic_column, *_READ_ONLY) if name in rows.column_names]
        )

    # --- on executors ---

    def write(self, batches: Iterator[pa.RecordBatch]) -> _TaskDone:
        context = TaskContext.get()
        task = _TaskWriter(self._options, self._application(context))
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for topic, of_topic in self._by_topic(rows):
                task.add(topic, self._own_columns(of_topic))
        done = _TaskDone(
            None if context is None else context.getLocalProperty(QUERY_ID), task.finish()
        )
        freeze_loaded()
        return done

    def _application(self, context: TaskContext | None) -> Application | None:
        """The micro-batch that a task belongs to, if it becomes a transaction; None if that is not
        known.
        """
        options = self._options
        if options.topic is not None and options.group is None:
            return None
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        batch = None if context is None else context.getLocalProperty(BATCH_ID)
        app_id = options.txn_app_id or (query and f"spark:{query}")
        version = batch if options.txn_version is None else options.txn_version
        return None if app_id is None or version is None else Application(app_id, int(version))

    def _by_topic(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if self._options.topic is not None:
            yield self._options.topic, rows
            return
        topics = rows.column(self._topic_column)
        for topic in pc.unique(topics).to_pylist():
            if topic is None:
                raise InvalidValue("is null, so the row has no topic", field=self._topic_column)
            yield check_topic(topic), rows.filter(pc.equal(topics, topic))

    # --- on the driver ---

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], txn: tuple[str, int] | None
    ) -> None:
        """Make one commit for each topic. Raises what `TopicLog.append` raises; Unavailable also if
        files expired.
        """
        written: dict[str, list[_Written]] = {}
        for message in messages:
            for part in message.written if isinstance(message, _TaskDone) else ():
                written.setdefault(part.topic, []).append(part)
        for topic, parts in written.items():
            # Checked before the first commit: after a partial commit, a repeated batch would skip
            # the other topics.
            if len({part.topic_id for part in parts}) > 1:
                raise UnknownTopic(
                    topic, reason=f"topic {topic!r} was deleted and created again during the write"
                )
        group, is_staged = self._options.group, _are_staged(written)
        if group is not None and (txn is None or not is_staged):
            raise InvalidConfig(
                "Spark does not provide the number of the micro-batch to its tasks: omit the option"
                ' "group.id"',
                key="group.id",
            )
        names_topics = bool(written) and self._options.topic is None
        if txn is not None and is_staged and (names_topics or group is not None):
            self._commit_together(written, Application(*txn))
        else:
            for topic, parts in written.items():
                self._append(topic, parts, txn)
        freeze_loaded()

    def _commit_together(
        self, written: Mapping[str, Sequence[_Written]], application: Application
    ) -> None:
        """Make one transaction for all topics, and for the group."""
        client = self._options.client
        store = open_root(client, _CLOCK)
        key = store, application.app_id, client.client_id
        if key not in _TRANSACTIONS:
            _TRANSACTIONS[key] = BatchTransaction(
                store,
                _CLOCK,
                application.app_id,
                client.client_id,
                lambda topic: _log_of(store, topic, client.client_id),
            )
        records = [
            StagedRecords(topic, parts[0].topic_id, _segments(parts))
            for topic, parts in sorted(written.items())
        ]
        progress = self._progress(application.version)
        transaction = _TRANSACTIONS[key]
        if not transaction.commit(application.version, records, _deadline(client), progress):
            _log.info("batch is committed already txn=%s", application)
            return
        for topic in written:
            self._checkpoint(store, _log_of(store, topic, client.client_id))

    def _progress(self, batch: int) -> GroupProgress | None:
        """The offsets that the micro-batch has reached, for the group; None without a group."""
        options = self._options
        if options.group is None or options.checkpoint is None:
            return None
        checkpoint = open_checkpoint(options.checkpoint, options.client, _CLOCK)
        return GroupProgress(options.group, reached(recorded_offsets(checkpoint, batch)))

    def _append(self, topic: str, parts: Sequence[_Written], txn: tuple[str, int] | None) -> None:
        client = self._options.client
        store = open_root(client, _CLOCK)
        log = _log_of(store, topic, client.client_id)
        if not log.catch_up():
            raise UnknownTopic(topic, reason=f"topic {topic!r} was deleted during the write")
        segments = list(_segments(parts))
        action = None if txn is None else Txn(txn[0], txn[1], last_updated=_CLOCK.time_ms())
        outcome = log.append(segments.copy, parts[0].topic_id, _deadline(client), action)
        if isinstance(outcome, AlreadyCommitted):
            _log.info("batch is committed already topic=%s txn=%s", topic, txn)
        elif isinstance(outcome, UploadsExpired):
            raise Unavailable(
                f"{len(outcome.paths)} files for topic {topic!r} waited for their commit longer "
                "than file.delete.delay.ms and may have been removed: run the batch again"
            )
        else:
            self._checkpoint(store, log)

    def _checkpoint(self, store: Store, log: TopicLog) -> None:
        """Write a checkpoint of a topic after a commit from time to time."""
        if self._options.client.maintenance_enable and log.version % CHECKPOINT_INTERVAL == 0:
            from deltaq.maintenance.background import (  # noqa: PLC0415 - one commit in a hundred
                checkpoint_if_due,
            )

            checkpoint_if_due(store, log)


def _deadline(client: ProducerConfig) -> float:
    """The deadline of an upload or commit that begins now: `message.timeout.ms` from now; 0 means
    no limit.
    """
    return _CLOCK.monotonic() + (client.message_timeout_ms / 1000 or float("inf"))


@dataclass(slots=True)
class _Waiting:
    """A task's rows for one topic that are not uploaded yet, and its uploaded segments. `as_of`:
    the view's version.
    """

    view: TopicDefinition
    as_of: int
    parts: list[Columns] = field(default_factory=list)
    segments: list[PendingSegment] = field(default_factory=list)


class _TaskWriter:
    """Buffers the rows of one task and uploads them in segments. Uploads that are never committed
    are orphan files.
    """

    def __init__(self, options: SinkOptions, application: Application | None) -> None:
        self._options = options
        self._application = application
        self._store = open_root(options.client, _CLOCK)
        self._topics: dict[str, _Waiting] = {}
        self._bytes = 0

    def add(self, topic: str, rows: pa.Table) -> None:
        """Buffer rows for a topic. Raises InvalidValue, MessageTooLarge, UnknownTopic."""
        if topic not in self._topics:
            self._topics[topic] = _Waiting(*self._view(topic, rows.schema))
        waiting = self._topics[topic]
        view = waiting.view
        waiting.parts.append(
            columns_from_arrow(
                rows,
                topic,
                view.schema,
                view.partitions,
                min(self._options.client.message_max_bytes, view.settings.max_message_bytes),
                keyed="compact" in view.settings.cleanup_policy,
                now_ms=_CLOCK.time_ms(),
            )
        )
        self._bytes += rows.nbytes
        if self._bytes >= SEGMENT_BYTES_MAX:
            self._upload()

    def finish(self) -> tuple[_Written, ...]:
        """Upload the remaining rows, and return all segments."""
        self._upload()
        return tuple(
            _Written(topic, waiting.view.topic_id, tuple(waiting.segments))
            for topic, waiting in self._topics.items()
            if waiting.segments
        )

    def _upload(self) -> None:
        client = self._options.client
        for topic, waiting in self._topics.items():
            parts = [part for part in waiting.parts if len(part)]
            if not parts:
                continue
            partitions = waiting.view.partitions
            sticky = int(_CLOCK.random() * partitions)
            choice = PartitionChoice(client.partitioner, partitions, sticky)
            columns = resolved_block(joined(parts), choice)
            codec = client.compression_type, client.compression_level
            for piece in in_segments(columns, SEGMENT_BYTES_MAX):
                segment, _ = upload_segment(
                    self._store,
                    topic,
                    piece,
                    waiting.view.settings,
                    codec,
                    deadline=_deadline(client),
                    clock=_CLOCK,
                    as_of=waiting.as_of,
                    named=self._named,
                )
                waiting.segments.append(segment)
            waiting.parts.clear()
        self._bytes = 0

    def _named(self, segment: PendingSegment) -> str | None:
        return None if self._application is None else staged_path(self._application, segment)

    def _view(self, topic: str, columns: pa.Schema) -> tuple[TopicDefinition, int]:
        """The current definition of the topic, and its version. Creates the topic if the client may
        create topics.
        """
        client = self._options.client
        log = _log_of(self._store, topic, client.client_id)
        if log.catch_up():
            view = definition_of(log)
        elif client.auto_create_topics_enable:
            schema = None if self._options.columns == "kafka" else new_schema(columns)
            plan = NewTopicPlan(client.num_partitions, schema)
            view = create_topic(log, plan, _deadline(client), exist_ok=True)
        else:
            raise UnknownTopic(
                topic,
                reason=f"topic {topic!r} does not exist, and auto.create.topics.enable is false",
            )
        held = view.schema
        if held is None:
            return view, log.version
        if self._options.columns == "kafka":
            raise needs_table_columns(topic)
        if self._options.merge_schema:
            view = evolve_topic(log, merged_schema(held, columns), _deadline(client))
        elif unknown := [
            name for name in _value_columns(columns).names if name not in held.arrow.names
        ]:
            remedy = 'drop it, or set option "mergeSchema" to "true"'
            raise InvalidValue(f"topic {topic!r} has no such column: {remedy}", field=unknown[0])
        return view, log.version


def new_schema(columns: pa.Schema) -> TopicSchema | None:
    """The schema for a topic that is created for rows with these columns; None if the rows hold
    only bytes.
    """
    own = _value_columns(columns)
    return None if own == VALUE_SCHEMA else schema_of(own)


def merged_schema(held: TopicSchema, columns: pa.Schema) -> TopicSchema:
    """The schema `held` of a topic with the columns that only the rows have, and types that hold
    the values of both.

    As with Delta's option `mergeSchema`, a column that rows lack stays, and so does what it
    requires.
    """
    own = _value_columns(columns)
    known = [
        (
            column.with_type(_merged_type(column.type, own.field(column.name).type))
            if column.name in own.names
            else column
        )
        for column in held.arrow
    ]
    return schema_of(
        pa.schema([*known, *(column for column in own if column.name not in held.arrow.names)])
    )


def _merged_type(held: pa.DataType, given: pa.DataType) -> pa.DataType:
    """The wider one of two types; a struct with the fields of both. `held` if the topic cannot take
    the other.
    """
    if pa.types.is_struct(held) and pa.types.is_struct(given):
        theirs = {field.name: field for field in given}
        known = [
            (
                field.with_type(_merged_type(field.type, other.type))
                if (other := theirs.pop(field.name, None))
                else field
            )
            for field in held
        ]
        return pa.struct([*known, *(field.with_nullable(True) for field in theirs.values())])
    if pa.types.is_list(held) and pa.types.is_list(given):
        item = held.value_field
        return pa.list_(item.with_type(_merged_type(item.type, given.value_type)))
    if pa.types.is_map(held) and pa.types.is_map(given):
        item = held.item_field
        return pa.map_(held.key_field, item.with_type(_merged_type(item.type, given.item_type)))
    return given if is_wider(given, held) else held


def _value_columns(columns: pa.Schema) -> pa.Schema:
    """The columns of rows that belong to their values, all of which can be null in Spark."""
    return pa.schema(
        [column.with_nullable(True) for column in columns if not column.name.startswith("_")]
    )


_LOGS: dict[tuple[Store, str, str], TopicLog] = {}
_TRANSACTIONS: dict[tuple[Store, str, str], BatchTransaction] = {}


def _segments(parts: Sequence[_Written]) -> tuple[PendingSegment, ...]:
    """The segments of all tasks for one topic, in the order of the tasks."""
    return tuple(segment for part in parts for segment in part.segments)


def _are_staged(written: Mapping[str, Sequence[_Written]]) -> bool:
    """Whether the tasks knew the transaction of their files, so that orphan removal does, too."""
    return all(
        parse_staged_file(segment.path) is not None
        for parts in written.values()
        for segment in _segments(parts)
    )


def _log_of(store: Store, topic: str, client_id: str) -> TopicLog:
    """The topic's log, kept loaded: Spark reuses processes but makes a new writer for every
    micro-batch.

    Not thread-safe: a worker has one thread.
    """
    key = store, topic, client_id
    if key not in _LOGS:
        _LOGS[key] = TopicLog(store, topic, _CLOCK, client_id=client_id)
    return _LOGS[key]
