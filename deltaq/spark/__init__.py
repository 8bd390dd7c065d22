"""Spark: the data source `deltaq`, which Spark discovers automatically, and what a driver uses
beside it.

Modules:

* `data_source`, `session`, `interpreter`: what Spark finds, a session for small machines, the
  Python of its workers; pyspark is known only in `spark/`
* `options`, `bounds`, `given`, `java_client`: the options of reads and writes: their names and
  checks; where a read begins and ends; text as values; settings of Kafka's Java client
* `source`, `offsets`, `topics`, `tasks`, `columns`: reading: Spark's interface, on the driver and
  in tasks; which offsets a micro-batch reads, as pure functions; the topics of a query; tasks; the
  columns that Spark sees
* `planning`, `native`, `native_plan`, `native_paths`, `latest`: offsets and files of a query, from
  its topics; reading by Spark's own Parquet reader, with its tables and addresses of files; the
  newest record of each key
* `sink`, `sink_transactions`, `worker_memory`, `worker_daemon`: writing: executors upload files,
  the driver commits them; several topics and a group at once; what a worker's garbage collections
  look at; how workers end
* `progress`, `group_offsets`, `upsert`: a query's progress: committed to a group, and measured; the
  offsets of it that a group gets; changed rows of an aggregation as the newest records of their
  keys
* `kafka_columns`: the columns of Spark's Kafka source
* `views`, `view_plans`, `view_engine`, `view_state`: SQL views: run by Spark; how it evaluates each
  of them; them at work; the rows that their rules keep
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from deltaq.spark.latest import latest_by_key
    from deltaq.spark.native import read_topic
    from deltaq.spark.progress import ConsumerGroupListener, offsets_behind
    from deltaq.spark.session import spark_session
    from deltaq.spark.upsert import upsert_to_topic
    from deltaq.spark.views import run_views

__all__ = [
    "ConsumerGroupListener",
    "latest_by_key",
    "offsets_behind",
    "read_topic",
    "run_views",
    "spark_session",
    "upsert_to_topic",
]

# Loaded when first used: Spark's workers import this package, and need none of them.
_LOADED_WHEN_USED = {
    "ConsumerGroupListener": "progress",
    "latest_by_key": "latest",
    "offsets_behind": "progress",
    "read_topic": "native",
    "run_views": "views",
    "spark_session": "session",
    "upsert_to_topic": "upsert",
}


if not typing.TYPE_CHECKING:  # else a type checker accepts any name

    def __getattr__(name: str) -> object:
        if name not in _LOADED_WHEN_USED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(
            importlib.import_module("deltaq.spark." + _LOADED_WHEN_USED[name]), name
        )
        globals()[name] = value
        return value
