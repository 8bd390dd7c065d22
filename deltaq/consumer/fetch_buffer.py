"""Fetched records on their way to the application: the queue between the fetch thread and the
consumer, with a budget of bytes; the batches that the consumer has accepted from it, and what calls
have returned of them.

A signal handler may end any call with an exception between any two steps. No record is skipped even
then:

* A batch is accepted from the fetcher before the fetcher removes it.
* A call marks what it returns by one assignment to one attribute (`row` of a batch, `returned` of a
  `Fetch`), just before it returns. Everything else is derived from these attributes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

from deltaq.clock import Condition
from deltaq.consumer.decoding import DecodedRecords, JoinedRecords, Joining
from deltaq.errors import KafkaException, Unavailable
from deltaq.groups.membership import PollLease
from deltaq.groups.state import Key
from deltaq.message import OFFSET_STORED, FetchedMessage, Message
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


Position: TypeAlias = tuple[int, str | None]
"""An offset and the id of its topic; None for the topic that has the name now."""


@dataclass(slots=True)
class TopicPartitionState:
    """An assigned partition.

    `assigned_at` is the offset that `assign` was given, OFFSET_STORED by default. `position`
    follows the last record that a call has returned, without the batches that are still accepted:
    see `AcceptedBatches.positions`. `stored` is the offset that the application or an earlier
    position has stored, with metadata.
    """

    epoch: int
    assigned_at: int = OFFSET_STORED
    position: Position | None = None
    stored: tuple[Position, str | None] | None = None
    paused: bool = False
    resume_at: Position | None = None  # the first record that was dropped because of the pause
    joining: Joining | None = None  # of large messages; None unless they are joined


@dataclass(slots=True, eq=False)
class AcceptedBatch(ABC):
    """`count` accepted messages from the fetcher's `item`. `row` is the first one that no `poll`
    has returned.

    `taken` is the last `consume` that took messages, and the row after them. They are returned once
    that call returns.
    """

    item: object
    key: Key
    count: int
    row: int = field(default=0, init=False)
    taken: tuple[Fetch, int] | None = field(default=None, init=False)

    def rows_returned(self) -> int:
        """The number of rows that calls have returned."""
        taken = self.taken
        return taken[1] if taken is not None and taken[0].returned else self.row

    def rows_gone(self, fetch: Fetch) -> int:
        """The number of rows that are returned, or taken by the running call `fetch`."""
        taken = self.taken
        return taken[1] if taken is not None and taken[0] is fetch else self.rows_returned()

    @abstractmethod
    def message(self, row: int) -> Message:
        """The message of a row."""

    def messages(self, first: int, end: int) -> list[Message]:
        """The messages of the rows `[first, end)`."""
        return [self.message(row) for row in range(first, end)]

    def record_returned(self) -> None:
        """Record what was returned, so that the batch can be dropped."""
        if self.taken is not None and self.taken[0].returned:
            self.row = self.taken[1]
            self.taken = None


@dataclass(slots=True, eq=False)
class PositionedBatch(AcceptedBatch):
    """Messages of the partition `held`, whose position follows from what calls have returned."""

    held: TopicPartitionState

    @abstractmethod
    def position(self) -> Position | None:
        """The position after the last message that a call has returned; None before the first."""

    def record_returned(self) -> None:
        position = self.position()
        if position is not None:
            self.held.position = position
        AcceptedBatch.record_returned(self)


@dataclass(slots=True, eq=False)
class RecordBatch(PositionedBatch):
    """Records of one partition."""

    records: DecodedRecords | JoinedRecords

    def message(self, row: int) -> Message:
        return self.messages(row, row + 1)[0]

    def messages(self, first: int, end: int) -> list[Message]:
        return FetchedMessage.of(self.records, range(first, end))

    def position(self) -> Position | None:
        rows = self.rows_returned()
        return (self.records.position_after(rows - 1), self.records.topic_id) if rows else None


@dataclass(slots=True, eq=False)
class EventBatch(AcceptedBatch):
    """An event, such as an error, as a batch of one message."""

    event: Message

    def message(self, row: int) -> Message:  # noqa: ARG002 - there is one
        return self.event


@dataclass(slots=True, eq=False)
class SkippedRecords(PositionedBatch):
    """An event about records that were skipped. Reading continues after them at `after`."""

    event: Message
    after: Position

    def message(self, row: int) -> Message:  # noqa: ARG002 - there is one
        return self.event

    def position(self) -> Position | None:
        return self.after if self.rows_returned() else None


@dataclass(slots=True, eq=False)
class Fetch:
    """The messages that one call takes. All of them count as returned once `returned` is set."""

    returned: bool = False
    count: int = 0
    parts: list[tuple[AcceptedBatch, list[Message]]] = field(default_factory=list)
    # `AcceptedBatches._drops` when `parts` was last compared with the accepted batches.
    drops: int = 0
    # Number of accepted batches, from the first, that this call has taken completely.
    passed: int = 0
    # The topic ids of the records taken, by partition.
    topic_ids: dict[Key, str] = field(default_factory=dict)

    def messages(self) -> list[Message]:
        """All messages taken, in order."""
        return (
            self.parts[0][1]
            if len(self.parts) == 1
            else list(chain.from_iterable(part for _, part in self.parts))
        )


class AcceptedBatches:
    """The batches accepted from the fetcher's `queue`, in order. For the application's thread.

    `batch` is the batch that `poll` may return from, starting at its `row`, without a call of
    `first`.
    """

    def __init__(self, queue: FetchBuffer) -> None:
        self._queue = queue
        self.batch: RecordBatch | None = None
        self._batches: list[AcceptedBatch] = []
        self._drops = 0  # how often the list of batches was changed other than at its end

    def append(self, *batches: AcceptedBatch) -> None:
        """Accept all batches of one item, unless it is accepted already."""
        # An interrupted call may have accepted the item without removing it from the queue.
        if batches and (not self._batches or self._batches[-1].item is not batches[0].item):
            # One step, which no exception of a signal handler can split.
            self._batches.extend(batches)

    def put_first(self, event: Message) -> None:
        """Have an event returned before all accepted batches."""
        self.batch = None
        self._drops += 1  # so that a running `Fetch` starts again at the first accepted batch
        self._batches = [EventBatch(event, ("", -1), 1, event), *self._batches]

    def drop(self, is_dropped: Callable[[AcceptedBatch], bool]) -> None:
        """Drop some of the batches."""
        self.batch = None
        self._drops += 1
        for batch in self._batches:
            batch.record_returned()
        self._batches = [batch for batch in self._batches if not is_dropped(batch)]

    def positions(self) -> dict[int, Position]:
        """The positions of partitions, by the `id` of their `TopicPartitionState`, that follow from
        accepted batches.
        """
        found = {}
        for batch in tuple(self._batches):
            if isinstance(batch, PositionedBatch) and (position := batch.position()) is not None:
                found[id(batch.held)] = position
        return found

    def first_offsets(self) -> dict[Key, int]:
        """The offset of each partition's first accepted record that no call has returned. For any
        thread.
        """
        found: dict[Key, int] = {}
        for batch in tuple(self._batches):
            row = batch.rows_returned()
            if isinstance(batch, RecordBatch) and row < batch.count:
                found.setdefault(batch.key, batch.records.offset_at(row))
        return found

    def first_position(self, key: Key) -> Position | None:
        """The position of a partition's first record that no call has returned."""
        for batch in self._batches:
            row = batch.rows_returned()
            if isinstance(batch, RecordBatch) and batch.key == key and row < batch.count:
                return batch.records.offset_at(row), batch.records.topic_id
        return None

    def first(self) -> AcceptedBatch | None:
        """The batch whose `row` is to be returned next. The caller increments `row` to mark it as
        returned.
        """
        self._forget_returned()
        if not self._batches:
            return None
        found = self._batches[0]
        self.batch = found if isinstance(found, RecordBatch) else None
        return found

    def _forget_returned(self) -> None:
        """Drop batches that calls have returned completely."""
        if not self._batches:
            return
        # An interrupted call may have left the item in the fetcher's queue, where it would be
        # accepted again.
        self._queue.remove(self._batches[-1].item)
        self.batch = None
        for batch in self._batches:
            batch.record_returned()
        self._batches = [batch for batch in self._batches if batch.row < batch.count]

    def take(self, count: int, fetch: Fetch) -> bool | None:
        """Take the next messages, at most `count`: True if there were any, None if there are none
        yet. False if the call must end before them: their topic was created again since the
        messages that it has taken, and a commit that names a partition and an offset could be of
        either topic.
        """
        batch = self._untaken(fetch)
        if batch is None:
            return None
        if isinstance(batch, RecordBatch):
            topic_id = batch.records.topic_id
            if fetch.topic_ids.setdefault(batch.key, topic_id) != topic_id:
                return False
        first = batch.rows_gone(fetch)
        end = min(batch.count, first + count)
        fetch.parts.append((batch, batch.messages(first, end)))
        fetch.count += end - first
        batch.taken = fetch, end
        return True

    def take_arrow(self, count: int, fetch: Fetch) -> tuple[str, Any] | Message | None:
        """Take the next records of one partition, at most `count`, as (topic, record batch); or an
        event.
        """
        batch = self._untaken(fetch)
        if batch is None:
            return None
        first = batch.rows_gone(fetch)
        end = min(batch.count, first + count)
        taken: tuple[str, Any] | Message
        if isinstance(batch, RecordBatch):
            taken = batch.records.topic, batch.records.arrow(first, end - first)
        else:
            taken = batch.message(first)
        batch.taken = fetch, end
        return taken

    def _untaken(self, fetch: Fetch) -> AcceptedBatch | None:
        """The first accepted batch with messages that are neither returned nor taken."""
        self.drop_stale(fetch)
        if not fetch.passed:
            self._forget_returned()
        self.batch = None  # its `row` is no longer the next message
        while fetch.passed < len(self._batches):
            batch = self._batches[fetch.passed]
            if batch.rows_gone(fetch) < batch.count:
                return batch
            fetch.passed += 1
        return None

    def drop_stale(self, fetch: Fetch) -> None:
        """Drop messages that were taken from partitions that have been revoked, moved or paused
        since.

        They are not committed. The consumer that owns the partition later reads them, unless a seek
        has skipped them.
        """
        if fetch.drops != self._drops:
            accepted = set(map(id, self._batches))
            fetch.parts = [(batch, part) for batch, part in fetch.parts if id(batch) in accepted]
            fetch.count = sum(len(part) for _, part in fetch.parts)
            fetch.passed = 0
            fetch.topic_ids = {
                batch.key: batch.records.topic_id
                for batch, _ in fetch.parts
                if isinstance(batch, RecordBatch)
            }
            fetch.drops = self._drops
