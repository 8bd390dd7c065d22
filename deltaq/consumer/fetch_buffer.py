"""The queue between the fetch thread and the consumer, with a budget of bytes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from deltaq.clock import Condition
from deltaq.errors import KafkaException, Unavailable
from deltaq.groups.poll_lease import PollLease
from deltaq.topics.metadata import TopicDefinition
from deltaq.topics.scan import Fetched


@dataclass(frozen=True, slots=True)
class CompletedFetch:
    """Fetched records of one partition."""

    topic: str
    epoch: int
    fetched: Fetched
    definition: TopicDefinition

    @property
    def partition(self) -> int:
        return self.fetched.partition


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """The fetcher reached the end of the partition. The next record will have `offset`."""

    topic: str
    partition: int
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class PartitionError:
    """An error to report to the application about a partition; with partition -1, about the
    topic.
    """

    topic: str
    partition: int
    epoch: int
    error: KafkaException
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class StoreOutage:
    """The store is temporarily unavailable while reading a topic. The fetcher retries."""

    topic: str
    error: Unavailable


FetchItem: TypeAlias = CompletedFetch | PartitionEnd | PartitionError | StoreOutage


@dataclass(frozen=True, slots=True)
class _Queued:
    """An item of the queue, with the total bytes of records ever queued before it, and including
    it.
    """

    item: FetchItem
    bytes_before: int
    bytes_after: int


class FetchBuffer:
    """Items in the order in which the fetch thread found them. Thread-safe, but `first` and
    `remove` are for one thread at a time.

    `changed` is the lock of the whole fetcher; it is notified of every change that a thread may
    wait for. `lease` is what a subscribed consumer polls by; `wake` ends it.
    """

    def __init__(self, bytes_max: int, changed: Condition) -> None:
        self._bytes_max = bytes_max
        self._changed = changed
        self._items: deque[_Queued] = deque()
        self._put_bytes = 0  # total size of all records ever queued
        self._put_records = 0
        self.lease = PollLease(0.0, 0.0)

    def put(self, *items: FetchItem) -> None:
        """Append items. The budget is not checked: see `room`."""
        with self._changed:
            for item in items:
                before = self._put_bytes
                if isinstance(item, CompletedFetch):
                    self._put_bytes += item.fetched.bytes
                    self._put_records += len(item.fetched)
                self._items.append(_Queued(item, before, self._put_bytes))
            self._changed.notify_all()

    def put_until_fixed(self, report: PartitionError) -> None:
        """Append an error that needs intervention, unless the same error is still queued. So `poll`
        returns it again and again until it is fixed.
        """
        with self._changed:
            waiting = (
                queued.item
                for queued in self._items
                if isinstance(queued.item, PartitionError) and queued.item.topic == report.topic
            )
            if all(
                item.partition >= 0 or item.error.error.code() != report.error.error.code()
                for item in waiting
            ):
                self.put(report)

    def put_outage(self, report: StoreOutage) -> None:
        """Append an outage, unless one of its topic is still queued."""
        with self._changed:
            waiting = {
                queued.item.topic for queued in self._items if isinstance(queued.item, StoreOutage)
            }
            if report.topic not in waiting:
                self.put(report)

    def first(self, timeout_s: float) -> FetchItem | None:
        """The first item, waiting up to `timeout_s` seconds for one. It stays queued until
        `remove`.
        """
        if not self._items and timeout_s > 0:
            with self._changed:
                if not self._items:
                    self._changed.wait(timeout_s)
        # No lock is needed: only the caller's thread removes items.
        return self._items[0].item if self._items else None

    def remove(self, item: object) -> None:
        """Remove `item`, which the consumer has accepted. No effect if it is not the first item."""
        if not self._items or self._items[0].item is not item:
            return
        with self._changed:
            was_full = self.room <= 0
            self._items.popleft()
            if was_full:
                self._changed.notify_all()

    def first_offsets(self) -> dict[tuple[str, int, int], int]:
        """The offset of the first queued record of each (topic, partition, epoch)."""
        with self._changed:
            queued = tuple(self._items)
        found = [entry.item for entry in reversed(queued) if isinstance(entry.item, CompletedFetch)]
        return {
            (item.topic, item.partition, item.epoch): item.fetched.first_offset for item in found
        }

    def totals(self) -> tuple[int, int]:
        """The number of records ever queued, and their bytes."""
        with self._changed:
            return self._put_records, self._put_bytes

    def wake(self) -> None:
        """Wake a thread that waits in `first`: there is something else to do for it. Call it after
        that has changed.
        """
        self.lease.end()
        with self._changed:
            self._changed.notify_all()

    @property
    def room(self) -> int:
        """Bytes of the budget that are left; the last item put may have exceeded it."""
        # Derived from the queue: an interrupted `remove` would leave a separate counter wrong for
        # good.
        with self._changed:
            queued = self._items[-1].bytes_after - self._items[0].bytes_before if self._items else 0
        return self._bytes_max - queued
