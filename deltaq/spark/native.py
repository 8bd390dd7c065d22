"""Topics read by Spark's own Parquet reader. The driver plans files and offset ranges; no Python
runs on executors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import reduce
from types import MappingProxyType

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import (
    coalesce,
    col,
    get,
    lit,
    map_from_arrays,
    raise_error,
    split,
    timestamp_millis,
)
from pyspark.sql.types import StructType

from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import InvalidConfig, Unavailable
from deltaq.root import open_root
from deltaq.spark.columns import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    OF_TABLE,
    ReadColumns,
    is_of_table,
    quoted,
    table_columns,
)
from deltaq.spark.native_paths import file_path, hadoop_root, lacks_file_system
from deltaq.spark.native_plan import NativeFiles, native_files
from deltaq.spark.options import SourceOptions, parse_source_options
from deltaq.spark.planning import QueryPlans, batch_options
from deltaq.spark.source import columns_of
from deltaq.topics.metadata import TopicDefinition

_log = logging.getLogger("deltaq.spark")

READER: Mapping[str, str] = MappingProxyType(
    {
        # A missing or damaged file is an error, whatever the session says.
        "ignoreMissingFiles": "false",
        "ignoreCorruptFiles": "false",
        "parquet.page.verify-checksum.enabled": "true",
        # The files are those of the log: neither folders named like `day=1` nor other files matter.
        "recursiveFileLookup": "true",
        # Days and times of typed topics before 1900 mean what they say.
        "datetimeRebaseMode": "CORRECTED",
    }
)
"""Options of Spark's Parquet reader."""

_TIMESTAMP_TYPE = "_timestampType"
_OF_KAFKA: Mapping[str, str] = MappingProxyType(
    {**OF_TABLE, "topic": "_topic", "timestampType": _TIMESTAMP_TYPE}
)
"""The column of the table, or the computed one, of each column of Spark's Kafka source."""

_HASHED_FROM = "spark.sql.optimizer.mapLookupHashThreshold"
"""The number of entries from which Spark finds those of a constant map by hash, and no longer one
by one.
"""


def read_topic(
    spark: SparkSession, topic: str | None, path: str | None = None, **options: object
) -> DataFrame:
    """The records of a topic as a batch that Spark's own Parquet reader reads, with the columns of
    `format("deltaq")`.

    `topic` is one name or several separated by commas; None if `options` have `assign` or
    `subscribePattern`. `path` is the root URL. `options` are those of a batch read with
    `format("deltaq")`, such as `startingOffsets`, `columns` and `includeHeaders`; those that divide
    a read into tasks have no effect, since Spark divides the files.

    The records are those of this moment, for all actions on the frame. An action fails if
    maintenance has removed one of the files meanwhile: call `read_topic` again. Raises
    InvalidConfig, KafkaException.
    """
    given = {name: str(value) for name, value in options.items()}
    given |= {} if topic is None else {"subscribe": topic}
    given |= {} if path is None else {"path": path}
    parsed = batch_options(parse_source_options(given))
    _note_options_of_tasks(parsed)
    _check_file_source(spark)
    promised = columns_of(parsed)
    plans = QueryPlans(parsed, ReadColumns(parsed.columns, promised))
    root = hadoop_root(open_root(parsed.client, SYSTEM_CLOCK).url, parsed.client.store_options)
    failed: list[str] = []
    while True:
        files = _planned(plans)
        paths = [
            file_path(root, file.segment.key)
            for of_topic in files.values()
            for file in of_topic.files
        ]
        try:
            frames = [
                _frame(spark, plans.topics.view(name), name, root, files[name], promised)
                for name in files
            ]
        except AnalysisException as error:
            # A file may have been compacted away since the log was read.
            if error.getCondition() != "PATH_NOT_FOUND" or paths == failed:
                raise
            failed = paths
            continue
        return reduce(DataFrame.unionAll, frames) if frames else spark.createDataFrame([], promised)


def _planned(plans: QueryPlans) -> dict[str, NativeFiles]:
    reads = plans.topics.plan(plans.batch())
    return {topic: native_files(of_topic) for (topic, _), of_topic in reads.items() if of_topic}


def _note_options_of_tasks(options: SourceOptions) -> None:
    for name, is_given in (
        ("minPartitions", options.tasks.tasks_min > 1),
        ("maxRecordsPerPartition", options.tasks.offsets_max is not None),
    ):
        if is_given:
            _log.info("option has no effect in read_topic name=%s", name)


def _check_file_source(spark: SparkSession) -> None:
    name = "spark.sql.sources.useV1SourceList"
    if "parquet" not in (spark.conf.get(name) or "").split(","):
        raise InvalidConfig(
            f"{name} lacks parquet, and Spark's newer Parquet source does not number the rows of a"
            ' file: add it, or read with format("deltaq")',
            key=name,
        )


def _frame(
    spark: SparkSession,
    view: TopicDefinition,
    topic: str,
    root: str,
    files: NativeFiles,
    promised: StructType,
) -> DataFrame:
    """The records of one topic."""
    rows = _rows_of_files(spark, root, files, StructType(table_columns(view).fields[1:]))
    table = _FileTable(files, int(spark.conf.get(_HASHED_FROM) or 0))
    rows = table.wanted(rows)
    computed = {
        "_topic": lit(topic),
        "_offset": table.offset(),
        "_timestamp": table.timestamp(),
        _TIMESTAMP_TYPE: table.timestamp_type(),
    }
    # The columns of a typed topic may have the names of Kafka's.
    sources = {name: name if is_of_table(promised) else _OF_KAFKA[name] for name in promised.names}
    return rows.select(
        *(computed.get(of, col(quoted(of))).alias(name) for name, of in sources.items())
    )


def _rows_of_files(
    spark: SparkSession, root: str, files: NativeFiles, columns: StructType
) -> DataFrame:
    """All rows of the files. Raises InvalidConfig if the session cannot read the root."""
    paths = [file_path(root, file.segment.key) for file in files.files]
    try:
        frame = spark.read.schema(columns).options(**READER).parquet(*paths)
    except Exception as error:
        lacking = lacks_file_system(root, error)
        if lacking is None:
            raise
        raise lacking from error
    if (found := len(frame.inputFiles())) != len(paths):  # Spark hides some files without an error
        raise Unavailable(
            f"Spark lists {found} of the {len(paths)} files of a topic: call read_topic again"
        )
    return frame


class _FileTable:
    """Columns that look up, for each row, what the log says of its file. Spark evaluates only those
    that a query uses.

    The tables are constants of the plan. A join would be evaluated by every query, whether it needs
    offsets or not.
    """

    def __init__(self, files: NativeFiles, hashed_from: int) -> None:
        self._files = files
        names = [file.segment.key.rpartition("/")[2] for file in files.files]
        self._partial = names[: files.partial]
        # No file has such a name.
        filled = [*names, *(f"/{number}" for number in range(hashed_from - len(names)))]
        numbers = _numbers(range(len(filled)), "int")
        self._name = col("_metadata.file_name")
        self._number = map_from_arrays(split(lit(",".join(filled)), ","), numbers)[self._name]
        self._place = self._number * lit(files.stride) + col("_partition")

    def offset(self) -> Column:
        """The offset of a row. An action fails on a row to which the log gives none, which must be
        damaged.
        """
        shift = get(_numbers(self._files.shifts, "bigint"), self._place)
        unknown = raise_error(
            lit(
                'data file is damaged: a row has no offset; read with format("deltaq") to see which'
            )
        )
        return coalesce(col("_offset"), col("_metadata.row_index") + shift, unknown.cast("bigint"))

    def wanted(self, rows: DataFrame) -> DataFrame:
        """The rows to be returned. Rows of files that are returned whole are not compared with
        anything.
        """
        if self._files.partitions is not None:
            rows = rows.where(col("_partition").isin(*self._files.partitions))
        if self._partial:
            lows, highs = zip(*self._files.wanted, strict=True)
            offset = self.offset()
            within = (offset >= get(_numbers(lows, "bigint"), self._place)) & (
                offset < get(_numbers(highs, "bigint"), self._place)
            )
            rows = rows.where(
                within
                if len(self._partial) == len(self._files.files)
                else self._is_whole() | within
            )
        return rows

    def _is_whole(self) -> Column:
        return ~self._name.isin(*self._partial)

    def timestamp(self) -> Column:
        """The timestamp of a row: that of its append, where the topic uses log append time."""
        times = self._files.append_times_ms
        if not any(time is not None for time in times):
            return col("_timestamp")
        return coalesce(
            timestamp_millis(get(_numbers(times, "bigint"), self._number)), col("_timestamp")
        )

    def timestamp_type(self) -> Column:
        """Kafka's number of the type of a timestamp."""
        kinds = [
            LOG_APPEND_TIME if is_append else CREATE_TIME
            for is_append in self._files.log_append_times
        ]
        return lit(kinds[0]) if len(set(kinds)) == 1 else get(_numbers(kinds, "int"), self._number)


def _numbers(numbers: Iterable[int | None], kind: str) -> Column:
    """A constant array. Spark evaluates the text once, when it optimizes a plan; as a list of
    constants it would take a call of the JVM for each number.
    """
    return split(
        lit(",".join("" if number is None else str(number) for number in numbers)), ","
    ).try_cast(f"array<{kind}>")
