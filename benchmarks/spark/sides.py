"""The two sides that are compared: the same program text, with another format and another
address.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from benchmarks.client import Client, deltaq_client, kafka_client
from benchmarks.suite import Place

_Writer = TypeVar("_Writer", "DataFrameWriter", "DataStreamWriter")

_KAFKA = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


class Side:
    """deltaq or Kafka: the client that fills and reads topics, and the name of Spark's format. Can
    be pickled.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = client.name
        self.format = client.name.lower()

    def reader(self, reader: DataFrameReader, topic: str) -> DataFrame:
        """All of a topic in a batch."""
        return reader.format(self.format).options(**self._options(subscribe=topic)).load()

    def stream(self, reader: DataStreamReader, topic: str) -> DataFrame:
        """All of a topic in a stream."""
        options = self._options(subscribe=topic, startingOffsets="earliest")
        return reader.format(self.format).options(**options).load()

    def sink(self, writer: _Writer, topic: str) -> _Writer:
        """A write to a topic."""
        return writer.format(self.format).options(**self._options(topic=topic))

    def _options(self, **more: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.client.bootstrap, **more}


def sides(place: Place) -> tuple[Side, Side]:
    """deltaq, then Kafka. The root is absolute: Spark's workers have folders of their own."""
    root = place.root if "://" in place.root else str(Path(place.root).resolve())
    return Side(deltaq_client(root)), Side(kafka_client(place.kafka))


def new_topic(side: Side, partitions: int = 1) -> str:
    """The name of a new topic."""
    topic = f"spark-{uuid4().hex[:12]}"
    side.client.create_topic(topic, partitions)
    return topic


def session(jars: str = "", conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session as `spark_session` makes it, on all cores; `jars` of `kafka_jars`."""
    from deltaq.spark import spark_session  # noqa: PLC0415  # a part of what a fresh session costs

    # Spark's workers could not keep the bytecode of what they import, and would compile it in each
    # process.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    more = {"spark.jars": jars} if jars else {}
    return spark_session("benchmark", conf={"spark.log.level": "OFF", **more, **(conf or {})})


def kafka_jars() -> str:
    """The jars of Spark's Kafka source, for `spark.jars`; runs in a process of its own.

    Spark fetches them from Maven Central, once. Those that Spark has itself are left out.
    """
    conf = {"spark.jars.packages": _KAFKA, "spark.jars.excludes": "org.apache.hadoop:*,org.slf4j:*"}
    spark = session(conf=conf)
    fetched = spark.conf.get("spark.jars") or ""
    spark.stop()
    own = {path.name for path in Path(pyspark.__file__).parent.joinpath("jars").glob("*.jar")}
    return ",".join(jar for jar in fetched.split(",") if _artifact(jar) not in own)


def _artifact(jar: str) -> str:
    """The file name of a jar without the group that Ivy puts before it."""
    return jar.rpartition("/")[2].partition("_")[2]
