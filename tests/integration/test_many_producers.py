"""Many producers at once on one topic: nothing lost, nothing doubled, order kept, and every report
true.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from deltaq import Consumer, Producer, Topic, TopicPartition

PARTITIONS = 6
KEYS = 50

# One producer process: keyed messages "<producer>:<sequence>", and its delivery reports as JSON
# lines.
PRODUCER_PROGRAM = """
import json, sys
from deltaq import Producer

root, topic, name, count, reports_path = sys.argv[1:]
reports = []

def reported(error, message):
    assert error is None, error
    reports.append((message.value().decode(), message.partition(), message.offset()))

with Producer({"bootstrap.servers": root, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}) as producer:
    for number in range(int(count)):
        producer.produce(topic, f"{name}:{number}", key=f"{name}-{number % %KEYS%}", on_delivery=reported)
        if number % 1000 == 0:
            producer.poll(0)
with open(reports_path, "w") as file:
    json.dump(reports, file)
""".replace("%KEYS%", str(KEYS))  # noqa: E501


def read_everything(root: str, topic: str, count: int) -> dict[int, list[tuple[int, str, str]]]:
    """Every record as (offset, key, value), by partition, through a consumer that starts at the
    beginning.
    """
    found: dict[Any, list[tuple[Any, str, str]]] = defaultdict(list)
    with Consumer({"bootstrap.servers": root, "group.id": uuid.uuid4().hex}) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        read = 0
        while read < count:
            messages = consumer.consume(min(50_000, count - read), 10.0)
            assert messages, f"only {read} of {count} records came"
            for message in messages:
                assert message.error() is None
                found[message.partition()].append(
                    (message.offset(), message.key().decode(), message.value().decode())
                )
            read += len(messages)
        assert consumer.consume(1, 0.2) == []
    return found


def check(
    found: dict[int, list[tuple[int, str, str]]],
    reports: list[tuple[str, int, int]],
    producers: int,
    count: int,
) -> None:
    """The whole history against what the producers say they did."""
    for partition, records in found.items():
        assert [offset for offset, _, _ in records] == list(range(len(records))), (
            f"offsets of partition {partition}"
        )
    where = {
        value: (partition, offset)
        for partition, records in found.items()
        for offset, _, value in records
    }
    total = sum(map(len, found.values()))
    assert total == producers * count
    assert len(where) == total, "a value is there twice"
    assert {value: (partition, offset) for value, partition, offset in reports} == where
    last: dict[tuple[str, str], int] = {}
    for records in found.values():
        for _, key, value in records:
            producer, sequence = value.split(":")
            assert last.get((producer, key), -1) < int(sequence), "order of a producer and key"
            last[producer, key] = int(sequence)
    assert len({key for records in found.values() for _, key, _ in records}) == producers * KEYS


def produce_in_processes(
    root: str, topic: str, producers: int, count: int, folder: Path
) -> list[tuple[str, int, int]]:
    paths = [folder / f"reports-{number}.json" for number in range(producers)]
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                PRODUCER_PROGRAM,
                root,
                topic,
                f"p{number}",
                str(count),
                str(path),
            ]
        )
        for number, path in enumerate(paths)
    ]
    assert [process.wait(timeout=110) for process in processes] == [0] * producers
    return [tuple(report) for path in paths for report in json.loads(path.read_text())]


@pytest.mark.fault("P11")
def test_four_processes_write_200_000_records_without_loss_duplicate_or_disorder(root, tmp_path):
    Topic("events", partitions=PARTITIONS, conf={"bootstrap.servers": root}).create()
    reports = produce_in_processes(root, "events", 4, 50_000, tmp_path)
    assert max(Counter(value for value, _, _ in reports).values()) == 1
    check(read_everything(root, "events", 200_000), reports, 4, 50_000)


@pytest.mark.fault("P11")
def test_sixteen_threads_write_to_memory_without_loss_duplicate_or_disorder(memory_root):
    root = memory_root
    count = 5_000
    Topic("events", partitions=PARTITIONS, conf={"bootstrap.servers": root}).create()
    reports: list[tuple[str, int, int]] = []

    def reported(error, message):
        assert error is None
        reports.append((message.value().decode(), message.partition(), message.offset()))

    def produce(name: str, producer: Producer) -> None:
        for number in range(count):
            producer.produce(
                "events", f"{name}:{number}", key=f"{name}-{number % KEYS}", on_delivery=reported
            )

    with Producer({"bootstrap.servers": root, "linger.ms": 5}) as shared:
        own = [Producer({"bootstrap.servers": root, "linger.ms": 5}) for _ in range(8)]
        threads = [
            threading.Thread(target=produce, args=(f"p{n}", shared if n < 8 else own[n - 8]))
            for n in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for producer in own:
            producer.close()
    check(read_everything(root, "events", 16 * count), reports, 16, count)
