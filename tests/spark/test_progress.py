"""The progress of a query in a consumer group, while a real Spark runs the query."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from deltaq import KafkaError, TopicPartition
from deltaq.admin import AdminClient
from deltaq.spark import ConsumerGroupListener
from tests.doubles.produced_tables import Produce

pytestmark = pytest.mark.spark


class QueryEnd(StreamingQueryListener):
    """Hears of the end of a query after all listeners that were added before."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self.event.set()


def test_only_what_the_checkpoint_has_recorded_is_committed(
    spark: SparkSession, root: str, produce: Produce, tmp_path: Path
) -> None:
    produce("orders", [b"x"] * 10)
    commits = tmp_path / "checkpoint/commits"
    recorded: list[tuple[int, int]] = []

    def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        batches = [int(file.name) for file in commits.iterdir() if file.name.isdigit()]
        recorded.extend((partition.offset, max(batches)) for partition in partitions)
        raise RuntimeError("which must not end the query")

    listener = ConsumerGroupListener(
        {"bootstrap.servers": root, "group.id": "billing", "on_commit": on_commit}
    )
    orders = spark.readStream.format("deltaq").options(
        subscribe="orders", startingOffsets="earliest"
    )
    frame = orders.option("maxOffsetsPerTrigger", "4").load(root)

    def run(last: int) -> None:
        """Run the query until the micro-batch `last` fails, and the listener has heard of all."""

        def process(frame: DataFrame, batch_id: int) -> None:
            assert batch_id < last

        ended = QueryEnd()
        spark.streams.addListener(ended)
        query = (
            frame.writeStream.foreachBatch(process).queryName("billing").trigger(availableNow=True)
        )
        try:
            query.option("checkpointLocation", str(commits.parent)).start().awaitTermination()
        finally:
            assert ended.event.wait(60)
            spark.streams.removeListener(ended)

    spark.streams.addListener(listener)
    try:
        with pytest.raises(StreamingQueryException):
            run(last=2)
        (lag,) = AdminClient({"bootstrap.servers": root}).consumer_group_lag(["billing"]).values()
        assert [(of.committed, of.lag) for of in lag.result().partitions] == [(8, 2)]
        run(last=9)
    finally:
        spark.streams.removeListener(listener)
    assert [offset for offset, _ in recorded] == [4, 8, 10]
    assert all(offset <= 4 * (batch + 1) for offset, batch in recorded)
