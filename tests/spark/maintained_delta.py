"""What Spark's own Delta makes of topics that are maintained, as a program: its jars must be there when the JVM starts.

Plays a fixed, random story with two topics: rounds of writing, deleting and maintenance. After each round Spark reads
all, and a stream of each topic that has run from the beginning takes what is new. Writes to the file it is given a JSON
object: topic -> {"rounds": [{...}], "streamed": [...], "written": [...]}, rows as `partition/key/value`.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.ageing import BackdatedStore
from deltaq.log.rewrites import Trimmed
from deltaq.log.topic_log import TopicLog
from deltaq.maintenance.retention import plan_deletion
from deltaq.spark import spark_session
from deltaq.testing import ManualClock
from tests.doubles.written_topic import SMALL, Row, WrittenTopic, seen_by_consumers

ROUNDS = {"delete": 3, "compact": 2}
PARTITIONS = 2
HOUR_MS = 3600 * 1000
UPKEEP = replace(SMALL, merge_files=3, in_flight_ms=0, keep_entries_min=18)
"""Entries stay that a stream may want: restarted, it looks at those of its last batch once more."""


def text(partition: int, key: bytes | None, value: bytes | None) -> str:
    return f"{partition}/{None if key is None else key.decode()}/{None if value is None else value.decode()}"


def rows(frame: DataFrame) -> list[str]:
    found = frame.select("_partition", "_key", "value").collect()
    return sorted(
        text(row[0], None if row[1] is None else bytes(row[1]), None if row[2] is None else bytes(row[2]))
        for row in found
    )


def take_what_is_new(spark: SparkSession, table: str, scratch: str) -> None:
    """Go on with the stream of a table, which is kept as files."""
    stream = spark.readStream.format("delta").option("ignoreDeletes", "true").load(table)
    started = stream.writeStream.format("parquet").option("checkpointLocation", f"{scratch}/checkpoint")
    started.trigger(availableNow=True).start(f"{scratch}/rows").awaitTermination()


def expire(topic: WrittenTopic, offset: int) -> None:
    """Delete what is below an offset of partition 0, as an administrator does."""
    log = TopicLog(topic.store, "t", topic.clock, indexed=True)
    log.load()

    def decide(head: object) -> Trimmed:
        return plan_deletion(log.index, log.live_head, {0: min(offset, log.live_head.next_offsets[0])})

    log.retain(decide, topic.clock.monotonic() + 60)


def play(spark: SparkSession, root: Path, policy: str) -> dict[str, object]:
    """The story of one topic."""
    clock = ManualClock(auto_advance=True)
    chance = random.Random(policy)
    topic = WrittenTopic(
        BackdatedStore(str(root), clock),
        clock,
        PARTITIONS,
        cleanup_policy=policy,
        retention_ms=50 * HOUR_MS,
        delete_retention_ms=HOUR_MS,
        min_cleanable_dirty_ratio=0,
    )
    table, scratch = str(root / "topics" / "t"), str(root / "scratch")
    written: list[str] = []
    rounds: list[dict[str, object]] = []
    done: Counter[str] = Counter()
    for number in range(ROUNDS[policy]):
        for commit in range(7):
            some = [
                Row(
                    None if chance.random() < 0.2 else b"%d.%d.%d" % (number, commit, n),
                    b"%d" % chance.randrange(5),
                    chance.randrange(PARTITIONS),
                )
                for n in range(chance.randrange(1, 5))
            ]
            topic.append(*some)
            written += [text(row.partition, row.key, row.value) for row in some]
        take_what_is_new(spark, table, scratch)  # in time: what has left the topic for a day is gone
        if policy == "delete" and number == 1:
            expire(topic, 9)
        work = topic.maintenance(UPKEEP)
        for _ in range(2):
            done.update(work.run())
            clock.advance(26 * 3600)
        seen = sorted(text(found[0], found[3], found[4]) for found in seen_by_consumers(topic.store))
        rounds.append({"native": rows(spark.read.format("delta").load(table)), "consumer": seen, "done": dict(done)})
    topic.append(Row(b"last", b"last"))
    written.append("0/last/last")
    take_what_is_new(spark, table, scratch)
    streamed = rows(spark.read.parquet(f"{scratch}/rows"))
    return {"rounds": rounds, "streamed": streamed, "written": sorted(written)}


def main(folder: str, answer: str) -> None:
    """Play all stories, and tell."""
    spark = spark_session("maintained topics", native_delta=True, conf={"spark.log.level": "OFF"})
    found = {policy: play(spark, Path(folder, policy), policy) for policy in ROUNDS}
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
