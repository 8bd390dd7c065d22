"""The topics under a root, with their size: what a list of them shows. Reads logs alone, without
Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.store_errors import reading
from deltaq.errors import KafkaException
from deltaq.store import Store
from deltaq.store.parallel import in_parallel_if_remote
from deltaq.topics.log import TopicLog

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic as a list shows it, at the newest version of its log.

    `offsets` counts the offsets that can be read; key compaction leaves gaps, so there may be fewer
    records. `bytes` is the size of the data files that readers use.
    """

    partitions: int
    offsets: int
    bytes: int


def topic_names(store: Store) -> list[str]:
    """The sorted names of all topics under the root, and of deleted topics that maintenance has not
    removed yet.

    Only lists folders and reads no topic. Raises Unavailable.
    """
    return [
        folder
        for folder in reading(lambda: store.list_folders(names.TOPICS_FOLDER))
        if names.is_name(folder)
    ]


def topic_listing(store: Store, clock: Clock, topic: str) -> TopicListing:
    """A topic for a list. Raises InvalidConfig (invalid name), UnknownTopic, Corrupt, Incompatible,
    Unavailable.
    """
    position = TopicLog(store, topic, clock, indexed=True)
    position.load()
    head = position.live_head
    size = sum(file.segment.size for file in position.index.files.values())
    return TopicListing(head.partitions, sum(head.next_offsets) - sum(head.start_offsets), size)


def topic_listings(
    store: Store, clock: Clock, topics: Sequence[str]
) -> dict[str, TopicListing | KafkaException]:
    """Topics for a list, by name; in place of a topic, the error that `topic_listing` raises."""
    return of_each(store, clock, topics, topic_listing)


def of_each(
    store: Store, clock: Clock, topics: Sequence[str], ask: Callable[[Store, Clock, str], T]
) -> dict[str, T | KafkaException]:
    """What `ask` returns for each topic, by name; in place of an answer, the KafkaException that it
    raises.
    """

    def answer(topic: str) -> T | KafkaException:
        try:
            return ask(store, clock, topic)
        except KafkaException as error:
            return error

    return dict(zip(topics, in_parallel_if_remote(store, clock, answer, topics), strict=True))
