"""Update mode: the changed rows of an aggregation become the newest records of their keys in a
compacted topic.

Spark refuses `outputMode("update")` for every sink in Python, but `foreachBatch` gets the changed
rows of a micro-batch. They are written with the query's id and the micro-batch's number, so a
repeated micro-batch has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import col, struct, to_json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType, VariantType

from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import InvalidConfig
from deltaq.root import open_root
from deltaq.spark.columns import quoted
from deltaq.spark.options import SinkOptions, parse_sink_options
from deltaq.spark.sink import QUERY_ID, new_schema
from deltaq.topic import Topic

_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})

_NESTED = (ArrayType, MapType, StructType, VariantType)


def upsert_to_topic(
    root: str,
    topic: str,
    key: str | Sequence[str] | None = None,
    options: Mapping[str, str] = _NO_OPTIONS,
) -> TopicUpsert:
    """A function for `foreachBatch` that writes each changed row as the newest record of its key,
    exactly once.

    `key` names the grouping columns. One column is the record's key as text; several, or a nested
    one such as a window, are a JSON object. The value is the whole row as JSON. With the option
    `columns` = `table`, the columns of the row are those of a typed topic. Without `key`, the rows
    have the columns of the sink already: `key` and `value`, or `_key` and those of the topic.
    `options` are those of the sink.

    A topic that does not exist is created compacted, unless `kafka.auto.create.topics.enable` is
    `false`. One that is not compacted would keep every version of a row: InvalidConfig, here if it
    exists already, otherwise in the first micro-batch. Several functions of one query that write
    the same topic need a `txnAppId` each: its writes have numbers only per micro-batch. Raises
    InvalidConfig, Unavailable, Corrupt, Incompatible.
    """
    given = {**options, "path": root, "topic": topic}
    parsed = parse_sink_options(given)
    if parsed.txn_version is not None:
        raise InvalidConfig("the micro-batch numbers the write: omit the option", key="txnVersion")
    keys = None if key is None else (key,) if isinstance(key, str) else tuple(key)
    if keys == ():
        raise InvalidConfig("name at least one grouping column, or omit key", key="key")
    upsert = TopicUpsert(topic, keys, given, parsed)
    upsert.check()
    return upsert


@dataclass(eq=False)
class TopicUpsert:
    """Writes micro-batches; see `upsert_to_topic`."""

    topic: str
    _keys: tuple[str, ...] | None
    _given: Mapping[str, str]
    _options: SinkOptions
    _is_ready: bool = field(default=False, init=False)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write the rows of a micro-batch, unless that is done already."""
        rows = frame if self._keys is None else self._records(frame, self._keys)
        if not self._is_ready:
            self._create(rows.schema)
            self._is_ready = True
        writer = rows.write.format("deltaq").options(**self._given).mode("append")
        writer.options(txnAppId=self._app_id(frame), txnVersion=str(batch_id)).save()

    def check(self) -> None:
        """Raise InvalidConfig if the topic exists and is not compacted."""
        self._refuse_uncompacted(self._handle(None))

    def _create(self, schema: StructType) -> None:
        """Create the topic if it does not exist."""
        handle = self._handle(to_arrow_schema(schema, timezone="UTC"))
        if not handle.exists() and self._options.client.auto_create_topics_enable:
            handle.create(exist_ok=True)
        self._refuse_uncompacted(handle)

    def _handle(self, columns: pa.Schema | None) -> Topic:
        client = self._options.client
        schema = (
            None if columns is None or self._options.columns == "kafka" else new_schema(columns)
        )
        compacted = {"cleanup.policy": "compact"}
        store = open_root(client, SYSTEM_CLOCK)
        return Topic(
            self.topic, schema, partitions=client.num_partitions, config=compacted, store=store
        )

    def _refuse_uncompacted(self, handle: Topic) -> None:
        if handle.exists() and "compact" not in (
            policy := handle.describe().settings.cleanup_policy
        ):
            raise InvalidConfig(
                f"topic {self.topic!r} has cleanup.policy {','.join(policy)!r} and would keep every"
                " version of a row: alter cleanup.policy to compact with "
                "AdminClient.incremental_alter_configs, or choose another topic",
                key="cleanup.policy",
            )

    def _records(self, frame: DataFrame, keys: tuple[str, ...]) -> DataFrame:
        if missing := [name for name in keys if name not in frame.columns]:
            raise InvalidConfig(
                f"the rows have no column {missing[0]!r}, but {', '.join(frame.columns)}: name "
                "grouping columns",
                key="key",
            )
        if self._options.columns == "table":
            return frame.withColumn("_key", _key(frame, keys))
        return frame.select(_key(frame, keys).alias("key"), to_json(struct("*")).alias("value"))

    def _app_id(self, frame: DataFrame) -> str:
        """The id of the writes: that of the streaming sink, unless the option `txnAppId` names
        another.
        """
        if self._options.txn_app_id is not None:
            return self._options.txn_app_id
        query_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query_id is None:
            raise InvalidConfig(
                'Spark does not provide the id of the query: set option "txnAppId"', key="txnAppId"
            )
        return f"spark:{query_id}"


def _key(frame: DataFrame, names: tuple[str, ...]) -> Column:
    """The key of each row, as bytes. Several columns are an object: put together as text, two keys
    could be equal.
    """
    columns = [col(quoted(name)) for name in names]
    if len(columns) > 1:
        return to_json(struct(*columns), {"ignoreNullFields": "false"}).cast("binary")
    kind = frame.schema[names[0]].dataType
    if isinstance(kind, BinaryType):
        return columns[0]
    return (to_json(columns[0]) if isinstance(kind, _NESTED) else columns[0].cast("string")).cast(
        "binary"
    )
