"""What the topic's log says, from its bytes alone: JSON, and Parquet read by pyarrow, without deltaq's readers."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from dataclasses import dataclass, replace

import pyarrow.parquet as pq

from deltaq.testing.history import Operation
from deltaq.testing.simulation.disk import Disk
from tests.simulation.script import TOPIC

__all__ = ["Place", "by_life", "life", "places"]

LOG = f"topics/{TOPIC}/_delta_log/"


@dataclass(frozen=True)
class Place:
    """Where a record is: in which life of the topic, which partition, which offset."""

    topic_id: str
    partition: int
    offset: int


def places(disk: Disk) -> dict[str, list[Place]]:
    """Where each value ever was, in the order of the log. AssertionError for a log that contradicts itself."""
    found: dict[str, list[Place]] = defaultdict(list)
    following: dict[tuple[str, int], int] = defaultdict(int)
    keys = sorted(key for key in disk.history if key.startswith(LOG) and key.endswith(".json"))
    assert [int(key.removeprefix(LOG)[:-5]) for key in keys] == list(range(len(keys))), "the log has a gap"
    for key in keys:
        # The first one counts: a slot that was cleaned up and filled again is below the log's start.
        actions = [json.loads(line) for line in disk.history[key][0].decode().splitlines()]
        heads = [action["domainMetadata"] for action in actions if "domainMetadata" in action]
        topic_id = next((json.loads(head["configuration"])["topic_id"] for head in heads), "")
        for add in (action["add"] for action in actions if "add" in action):
            (content,) = set(disk.history[f"topics/{TOPIC}/{add['path']}"])  # a put may be repeated, but not changed
            rows = pq.read_table(io.BytesIO(content)).select(["_partition", "value"]).to_pylist()
            for partition, base, first, count, *_ in json.loads(add["tags"]["deltaq.batches"]):
                assert base == following[topic_id, partition], f"{key}: offset {base} of partition {partition}"
                following[topic_id, partition] += count
                for number, row in enumerate(rows[first : first + count]):
                    assert row["_partition"] == partition, f"{key}: a row of another partition"
                    found[row["value"].decode()].append(Place(topic_id, partition, base + number))
    return dict(found)


def by_life(operations: list[Operation], truth: dict[str, list[Place]]) -> list[Operation]:
    """The history with each life of the topic under a name of its own, as the checker wants it.

    Polls and commits say themselves which life they mean. An assignment is good for all lives.
    """
    lives = sorted({life(place.topic_id) for stored in truth.values() for place in stored})

    def named(operation: Operation) -> Operation:
        records = tuple(
            record._replace(topic=life(truth[record.value][0].topic_id)) if record.value in truth else record
            for record in operation.records
        )
        positions = [
            ((name, number), offset)
            for (topic, number), offset in operation.positions
            for name in (lives if topic == TOPIC else [topic])
        ]
        return replace(operation, records=records, positions=tuple(positions))

    return [named(operation) for operation in operations]


def life(topic_id: str | None) -> str:
    """What one life of the topic is called in histories."""
    return f"{TOPIC}#{topic_id}"
