"""What a writer sends together, in which order, and how far it has come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from deltaq.clock import Clock
from deltaq.errors import KafkaException
from deltaq.producer.accumulator import RecordAccumulator, Records
from deltaq.topics.columns import Columns
from deltaq.topics.shared_files import PendingSharedFiles
from deltaq.topics.state import PendingSegment

__all__ = [
    "BATCH_BYTES_MAX",
    "BATCH_ROWS_MAX",
    "BatchPart",
    "InFlightBatches",
    "ProduceBatch",
    "SharedFilePlace",
    "by_encoding",
]

BATCH_ROWS_MAX = 250_000
BATCH_BYTES_MAX = 256 * 1024 * 1024
"""About how much goes into one batch, far below what one Arrow array can hold."""


@dataclass(slots=True, eq=False)
class BatchPart:
    """Records of one buffer inside a batch; `partitions` (of rows) and `columns` are filled in by encoding them.

    `bytes` is their share of the client's budget, `epoch_ms` what the monotonic clock's zero was on the wall clock when
    they were encoded. `told` is set once the client knows what became of them.
    """

    buffer: RecordAccumulator
    records: Records
    bytes: int
    partitions: list[int] = field(default_factory=list)
    columns: Columns | None = None
    epoch_ms: float = 0.0
    told: bool = False


@dataclass(frozen=True, slots=True)
class SharedFilePlace:
    """The place of a batch among the offers of its writer, fixed before anybody can see it or what comes behind it.

    `follows`: what was taken before it was not settled then. `as_of`: a version that the log was known to have reached.
    """

    number: int
    follows: bool
    as_of: int


@dataclass(slots=True, eq=False)
class ProduceBatch:
    """Records that are uploaded together, taken at `taken_at`. `deadline` is that of its oldest record. Both on the
    monotonic clock.

    `segments` and `topic_id` are known once `is_uploaded`. With a `place` it is to be offered, so that any writer of
    the topic may commit it; it `is_offered` once somebody might. One that has a `failure` may be there or not. One that
    `is_late` was uploaded anew, perhaps after something behind it had been offered. `token` is that of the newest
    attempt to commit it, which goes on until `tried_until`: None before the first one.
    """

    parts: list[BatchPart]
    taken_at: float
    deadline: float
    place: SharedFilePlace | None = None
    segments: list[PendingSegment] = field(default_factory=list)
    topic_id: str = ""
    is_uploaded: bool = False
    is_offered: bool = False
    is_late: bool = False
    failure: KafkaException | None = None
    token: str | None = None
    tried_until: float = 0.0

    @property
    def is_unwanted(self) -> bool:
        """Whether nobody waits for any of it any more."""
        return all(part.told for part in self.parts)

    @property
    def others_will_see(self) -> bool:
        """Whether others see it in the log before what comes behind it, as far as can be said now."""
        return self.is_offered if self.is_uploaded else self.place is not None


class InFlightBatches:
    """The batches of one writer. Whoever calls or looks holds `changed`, and those who wait on it are told."""

    def __init__(self, clock: Clock, awaited: PendingSharedFiles) -> None:
        self.changed = clock.condition()
        self.buffers: list[RecordAccumulator] = []  # what they are taken from
        self.waiting: deque[ProduceBatch] = deque()  # for their upload or commit, in the order in which they were taken
        self.open: list[ProduceBatch] = []  # those and the ones in a commit: nobody knows yet what becomes of them
        self.under_way: dict[BatchPart, None] = {}  # in the order in which they were taken
        self.is_stopping = False
        self.is_committing = False  # the commit thread is at it: it may be so for batches that nobody wants any more
        self._awaited = awaited
        self._offers = 0

    def take(self, now: float, *, as_of: int, offering: bool) -> ProduceBatch:
        """A batch of what waits in the buffers, in its place among the others.

        `offering`: so that others may commit it; of no use behind what they cannot see.
        """
        parts = list(_oldest(self.buffers))
        batch = ProduceBatch(
            parts, now, min(part.records.produced_at + part.buffer.settings.timeout_s for part in parts)
        )
        if offering and all(other.others_will_see for other in self.open):
            batch.place = self.place(as_of, follows=bool(self.open))
        self.waiting.append(batch)
        self.open.append(batch)
        self.under_way.update(dict.fromkeys(parts))
        return batch

    def place(self, as_of: int, *, follows: bool) -> SharedFilePlace:
        """The next place. As long as they are given in the order of the records, the versions do not matter more than
        that each was reached before the next place was given."""
        self._offers += 1
        return SharedFilePlace(self._offers - 1, follows, as_of)

    def offer(self, batch: ProduceBatch, segment: PendingSegment) -> bool:
        """From now on others may commit a batch; False if its clients were told that it has failed."""
        with self.changed:
            if batch.is_unwanted:
                return False
            batch.segments, batch.is_offered = [segment], True
            return True

    def uploaded(self, batch: ProduceBatch) -> None:
        """Its upload has ended. Without segments nothing of it is there, and nothing will be."""
        if batch not in self.open:
            self.forget(batch)  # nobody waited for it any more
        elif batch.segments:
            batch.is_uploaded = True
        else:
            self.waiting.remove(batch)
            self.settled([batch])
        self.changed.notify_all()

    def front(self) -> ProduceBatch | None:
        """The batch that comes next, if it has been uploaded. Those that nobody wants are dropped."""
        while self.waiting and self.waiting[0].is_unwanted:
            self.settled([self.waiting.popleft()])
            self.changed.notify_all()
        return self.waiting[0] if self.waiting and self.waiting[0].is_uploaded else None

    def take_uploaded(self, topic_id: str) -> Iterator[ProduceBatch]:
        """Those in front that were uploaded for this topic, to be committed."""
        while (batch := self.front()) is not None and batch.topic_id == topic_id and batch.failure is None:
            yield self.waiting.popleft()
        self.changed.notify_all()

    def take_lost(self) -> Iterator[ProduceBatch]:
        """Those in front whose upload has failed, and that may be there all the same."""
        while (batch := self.front()) is not None and batch.failure is not None:
            yield self.waiting.popleft()
        self.changed.notify_all()  # there is room again for what waits in the buffers

    def put_back(self, batches: Sequence[ProduceBatch]) -> None:
        """To be tried again before all others."""
        self.waiting.extendleft(reversed(batches))
        self.changed.notify_all()

    def settled(self, batches: Sequence[ProduceBatch]) -> None:
        """Their clients know what became of them, or that nobody knows."""
        self.open = [batch for batch in self.open if batch not in batches]
        for batch in batches:
            self.forget(batch)

    def forget(self, batch: ProduceBatch) -> None:
        """Whether its files are in the log is not asked any more."""
        for segment in batch.segments:
            self._awaited.forget(segment.path)


def _oldest(buffers: Sequence[RecordAccumulator]) -> Iterator[BatchPart]:
    """The oldest records of each buffer. Those of one batch share a deadline: so they must be about equally old, and
    of clients with the same patience."""
    waiting = [(at, buffer) for buffer in buffers if (at := buffer.first_produced_at()) is not None]
    oldest_at, first = min(waiting, key=lambda entry: entry[0])
    timeout_s = first.settings.timeout_s
    rows_left, bytes_left = BATCH_ROWS_MAX, BATCH_BYTES_MAX
    for _, buffer in waiting:
        if buffer.settings.timeout_s == timeout_s and rows_left and bytes_left > 0:
            rows_max = min(rows_left, buffer.rows_within(bytes_left))
            taken = buffer.take(rows_max, oldest_at + timeout_s / 10)
            if taken is not None:
                rows_left = max(0, rows_left - len(taken[0]))
                bytes_left -= taken[1]
                yield BatchPart(buffer, *taken)


def by_encoding(parts: Sequence[BatchPart]) -> Iterator[list[BatchPart]]:
    """Parts that can share a segment: those whose clients want the same compression."""
    groups: dict[tuple[str, int | None], list[BatchPart]] = {}
    for part in parts:
        settings = part.buffer.settings
        groups.setdefault((settings.compression, settings.compression_level), []).append(part)
    yield from groups.values()
