"""Resets of a group's committed offsets: planned first, then committed by the admin client."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltaq.admin import AdminClient, ConsumerGroupTopicPartitions
from deltaq.clock import Clock
from deltaq.errors import InvalidConfig, KafkaException, UnknownTopic
from deltaq.message import TopicPartition
from deltaq.store import Store
from deltaq.tools.positions import Place, offsets_at
from deltaq.topics.lookup import TopicLookup

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Shift:
    """So many offsets after the committed ones; before them if `by` is negative."""

    by: int


@dataclass(frozen=True, slots=True)
class PlannedReset:
    """A planned reset. `committed` is None where nothing is committed; `lag` is that after the
    reset.
    """

    topic: str
    partition: int
    committed: int | None
    target: int
    lag: int


def plan_resets(
    store: Store,
    clock: Clock,
    committed: Mapping[Partition, int],
    to: Place | Shift | Mapping[Partition, int],
    topics: Iterable[str] = (),
) -> list[PlannedReset]:
    """The resets of these topics, or of all partitions in `committed` for none. Commits nothing.

    `to` is one place for all partitions, a shift of the committed offsets, or an offset for each
    partition, which then says which partitions are reset. Offsets are moved into what a partition
    holds. Raises UnknownTopic (also for a partition), Corrupt, Incompatible, Unavailable.
    """
    lookup = TopicLookup(store, clock)
    named = sorted(
        set(topics) or {topic for topic, _ in (to if isinstance(to, Mapping) else committed)}
    )
    resets = []
    for topic in named:
        head = lookup.head(topic)
        places: dict[int, Place]
        if isinstance(to, Mapping):
            places = {
                partition: offset for (name, partition), offset in to.items() if name == topic
            }
        elif isinstance(to, Shift):
            places = {p: offset + to.by for (name, p), offset in committed.items() if name == topic}
        else:
            places = dict.fromkeys(range(head.partitions), to)
        for partition in places:
            if not 0 <= partition < head.partitions:
                raise UnknownTopic(topic, partition=partition)
        for partition, offset in sorted(offsets_at(lookup, topic, head, places).items()):
            lag = head.next_offsets[partition] - offset
            resets.append(
                PlannedReset(topic, partition, committed.get((topic, partition)), offset, lag)
            )
    return resets


def commit_resets(admin: AdminClient, group: str, resets: Sequence[PlannedReset]) -> None:
    """Commit planned resets in one commit. Raises KafkaException for the first partition that is
    refused.
    """
    wanted = [TopicPartition(reset.topic, reset.partition, reset.target) for reset in resets]
    request = ConsumerGroupTopicPartitions(group, wanted)
    answer = admin.alter_consumer_group_offsets([request])[group].result()
    for partition in answer.topic_partitions or ():
        if partition.error is not None:
            raise KafkaException(partition.error)


def committed_offsets(admin: AdminClient, group: str) -> dict[Partition, int]:
    """The committed offsets of a group. Raises as `AdminClient.list_consumer_group_offsets`."""
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[
        group
    ].result()
    return {(found.topic, found.partition): found.offset for found in answer.topic_partitions or ()}


def read_resets(path: Path) -> dict[Partition, int]:
    """Offsets from a file as `kafka-consumer-groups` writes it: topic,partition,offset. Raises
    InvalidConfig.
    """
    found: dict[Partition, int] = {}
    try:
        with path.open(newline="") as file:
            for row in csv.reader(file):
                if row:
                    topic, partition, offset = row
                    found[topic.strip(), int(partition)] = int(offset)
    except OSError as error:
        raise InvalidConfig(f"{path}: {error.strerror}", key="file") from None
    except (ValueError, csv.Error) as error:
        raise InvalidConfig(
            f"{path}: not lines of topic,partition,offset: {error}", key="file"
        ) from None
    return found


def write_resets(path: Path, resets: Iterable[PlannedReset]) -> None:
    """Write the targets of resets as `read_resets` reads them. Raises InvalidConfig if the file
    cannot be written.
    """
    try:
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [r.topic, r.partition, r.target] for r in resets
            )
    except OSError as error:
        raise InvalidConfig(f"{path}: {error}", key="file") from None
