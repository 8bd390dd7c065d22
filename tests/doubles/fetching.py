"""A fetcher of one topic with what it has fetched, and topics for it to read."""

from __future__ import annotations

import time
import uuid

from deltaq import Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.consumer.fetch_buffer import CompletedFetch, PartitionError
from deltaq.consumer.fetcher import Fetcher, FetchSettings
from deltaq.consumer.offset_reset import FetchPosition
from deltaq.consumer.topic_fetcher import TopicFetcher
from deltaq.store import MemoryStore, Store
from deltaq.testing import FaultyStore
from deltaq.topics.follower import Progress, TopicFollower, TopicReader
from deltaq.topics.log import TopicLog
from deltaq.topics.lookup import TopicLookup
from tests.doubles.reading import TIMEOUT_S


def a_store() -> MemoryStore:
    return MemoryStore(uuid.uuid4().hex)


def fill(store: Store, commits: int, rows: int = 1, size: int = 10, partitions: int = 1) -> None:
    """Commit by commit, `rows` records for each partition; a value tells partition and offset."""
    Topic("t", partitions=partitions, store=store).create(exist_ok=True)
    conf = {
        "bootstrap.servers": "memory://unused",
        "linger.ms": 60_000,
        "batch.size": 10**9,
        "batch.num.messages": 10**6,
    }
    with Producer(conf, store=store) as producer:
        for commit in range(commits):
            for row in range(rows):
                for partition in range(partitions):
                    value = f"{partition}:{commit * rows + row}".encode()
                    producer.produce("t", value.ljust(size), partition=partition)
            assert producer.flush(TIMEOUT_S) == 0


class Fetching:
    """A fetcher of topic `t`, and what it has handed out."""

    def __init__(
        self, store: Store, *, stored: dict[int, int] | None = None, **settings: object
    ) -> None:
        base: dict[str, object] = {
            "bytes_max": 2**30,
            "read_bytes_max": 2**30,
            "reset": "earliest",
            "wait_max_s": 0.01,
            "report_end": False,
        }
        self.asked: list[list[int]] = []
        self.stored = stored or {}
        wanted = FetchSettings(**base | settings)  # type: ignore[arg-type]  # chosen by each test
        lookup = TopicLookup(store, SYSTEM_CLOCK)
        self.fetcher = Fetcher(store, wanted, self._stored, SYSTEM_CLOCK, "test", lookup)
        self.fetcher.begin()
        self.fetcher.follow(["t"])

    def _stored(self, topic: str, topic_id: str, partitions) -> list[int | None]:
        self.asked.append(sorted(partitions))
        return [self.stored.get(partition) for partition in partitions]

    def __enter__(self) -> Fetching:
        return self

    def __exit__(self, *_: object) -> None:
        self.fetcher.close()

    def assign(self, *offsets: int) -> None:
        self.fetcher.assign({("t", partition): offset for partition, offset in enumerate(offsets)})

    def next(self):
        deadline = time.monotonic() + TIMEOUT_S
        while (item := self.fetcher.queue.first(0.1)) is None:
            assert time.monotonic() < deadline, "nothing comes"
        self.fetcher.queue.remove(item)
        return item

    def records(self, count: int) -> dict[int, list[int]]:
        """Offsets by partition of the next `count` records, each checked against its value."""
        found: dict[int, list[int]] = {}
        while sum(map(len, found.values())) < count:
            item = self.next()
            assert isinstance(item, CompletedFetch), item
            rows = item.fetched.rows
            offsets = rows.column("_offset").to_pylist()
            values = [value.decode().strip() for value in rows.column("value").to_pylist()]
            assert values == [f"{item.partition}:{offset}" for offset in offsets]
            found.setdefault(item.partition, []).extend(offsets)
        assert sum(map(len, found.values())) == count
        return found

    def error(self) -> PartitionError:
        item = self.next()
        assert isinstance(item, PartitionError), item
        return item


class FarStore(FaultyStore):
    is_remote = True


class NotedLog(TopicLog):
    """A log that remembers how many entries it was asked for at once."""

    asked: list[int]

    def read_following(self, count):
        self.asked.append(count)
        return super().read_following(count)


def reader_of(log: TopicLog) -> TopicReader:
    """A reader at the position of `log`, which reads on by it."""
    follower = TopicFollower(log._store, log.topic, SYSTEM_CLOCK)
    follower._log, follower.progress = log, Progress(log.view)
    return TopicReader(follower)


def topic_fetcher(fetching: Fetching, log: TopicLog, position: FetchPosition) -> TopicFetcher:
    """A fetcher of the topic at the position of `log`, with one partition, and without a thread."""
    found = fetching.fetcher._topic_fetcher("t", None)
    found.tail.log, found.tail._is_open = reader_of(log), True
    found.tail.ask_anew()
    found.positions = {0: position}
    found._publish()
    return found
