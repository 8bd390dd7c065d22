"""What a topic takes in its store, object by object, against what its records take by
themselves.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.history import Verdict, judge_partitions
from benchmarks.payload import TimedPayloads
from deltaq import OFFSET_BEGINNING, Consumer, TopicPartition, names
from deltaq.store import open_store
from deltaq.topics.log import TopicLog

KINDS = ("data", "data that left the topic", "log entries", "checkpoints", "other")

TIMEOUT_S = 10.0
"""How long to wait for the next record before the rest counts as lost."""


@dataclass(frozen=True, slots=True)
class ObjectCount:
    """The objects of one kind, and their bytes."""

    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a topic takes. `parts` by kind; `plain_bytes`: of one Parquet file with the same
    columns, rows and codec.
    """

    payload_bytes: int
    plain_bytes: int
    parts: dict[str, ObjectCount]

    @property
    def objects(self) -> int:
        return sum(part.objects for part in self.parts.values())

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts.values())


def measure_footprint(root: str, topic: str, payload_bytes: int, plain_bytes: int) -> Footprint:
    """List all that there is of a topic."""
    store, log = open_store(root), TopicLog(open_store(root), topic, indexed=True)
    log.load()
    live = {file.segment.key for file in log.index.files.values()}
    counts = {kind: [0, 0] for kind in KINDS}
    for entry in store.list(names.topic_folder(topic)):
        count = counts[_kind(entry.key, live, names.topic_folder(topic))]
        count[0] += 1
        count[1] += entry.size
    return Footprint(
        payload_bytes, plain_bytes, {kind: ObjectCount(*count) for kind, count in counts.items()}
    )


def _kind(key: str, live: set[str], folder: str) -> str:
    if key in live:
        return "data"
    if names.holds_data(key.removeprefix(folder)):
        return "data that left the topic"
    if names.entry_version(key) is not None:
        return "log entries"
    return "checkpoints" if names.checkpoint_version(key) is not None else "other"


def read_through(
    root: str, topic: str, partitions: int, sent: int, payloads: TimedPayloads
) -> tuple[Verdict, int]:
    """Read all of a topic and judge it; and the bytes of a plain Parquet file, not compressed, that
    has the same rows.

    Record n is to be in partition n modulo `partitions`, behind those before it.
    """
    arrivals = [array("q") for _ in range(partitions)]
    foreign = 0
    with TemporaryDirectory(dir=root) as folder:
        plain, writer = Path(folder, "plain.parquet"), None
        for batch in _batches(root, topic, partitions, sent):
            rows = batch.drop_columns(["_topic"])
            writer = writer or pq.ParquetWriter(plain, rows.schema, compression="none")
            writer.write_batch(rows)
            partition = rows.column("_partition")[0].as_py()
            for value in rows.column("value").to_pylist():
                content = payloads.read(value) if value is not None else None
                if content is None or content[1] % partitions != partition:
                    foreign += 1
                else:
                    arrivals[partition].append(content[1] // partitions)
        if writer is not None:
            writer.close()
        plain_bytes = plain.stat().st_size if writer is not None else 0
    return judge_partitions(sent, arrivals, foreign), plain_bytes


def _batches(root: str, topic: str, partitions: int, sent: int) -> Iterator[pa.RecordBatch]:
    conf = {"bootstrap.servers": root, "group.id": f"reader-{uuid4().hex[:12]}"}
    rows = 0
    with Consumer(conf) as consumer:
        consumer.assign(
            [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)]
        )
        while (
            batch := consumer.consume_arrow(timeout=TIMEOUT_S if rows < sent else 0.5)
        ) is not None:
            rows += batch.num_rows
            yield batch
