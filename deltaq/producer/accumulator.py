"""Record accumulators: the records that wait between `produce` and their upload, one buffer per
client and topic.

`produce` appends to `queue` without a lock: extending a list by a tuple is atomic, and code that
removes entries holds the sender's lock. Two thresholds wake the sender; two more limit what is
added before the client's limits are checked.

The fields of a record are `FIELDS` consecutive entries of the queue, from which columns are cut. An
object for each record would cost more than the rest of `produce`, above all in the garbage
collector.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow.compute as pc

from deltaq.config import ProducerConfig
from deltaq.errors import KafkaError, KafkaException
from deltaq.parquet.plain_segment import PlainRows
from deltaq.partitioner import PartitionChoice
from deltaq.serde.schema import TopicSchema
from deltaq.topics.columns import Columns, Headers
from deltaq.topics.metadata import NewTopicPlan, TopicDefinition

FIELDS = 7
"""Entries of the queue for each record: the fields of `RowBlock`, in their order."""

_PRODUCED_AT = 5

CLOSED = "Producer has been closed"

_NEVER = 2**63


@dataclass(frozen=True, slots=True)
class AccumulatorSettings:
    """A client's settings for writing a topic. Fields that end in `_s` are seconds. With `sticky_s`
    0, records without a key are spread over the partitions. With `group_commit`, processes may
    commit each other's uploads. With `register_schemas`, the schema of a typed topic may be changed
    to the client's.
    """

    linger_s: float
    batch_bytes: int
    batch_rows: int
    timeout_s: float
    compression: str
    compression_level: int | None
    partitioner: str
    sticky_s: float = 0.01
    group_commit: bool = False
    register_schemas: bool = True

    @classmethod
    def of(cls, config: ProducerConfig, *, is_remote: bool) -> AccumulatorSettings:
        """The settings of a client's configuration. `is_remote`: whether the store is reached over
        a network.
        """
        is_transactional = config.transactional_id is not None
        return cls(
            linger_s=config.linger_ms / 1000,
            batch_bytes=config.batch_size,
            batch_rows=config.batch_num_messages,
            timeout_s=config.message_timeout_ms / 1000
            if config.message_timeout_ms
            else float("inf"),
            compression=config.compression_type,
            compression_level=config.compression_level,
            partitioner=config.partitioner,
            sticky_s=config.sticky_partitioning_linger_ms / 1000,
            # On a local disk a lost race costs a millisecond, so group commit gains nothing.
            group_commit=not is_transactional
            and {"true": True, "false": False}.get(config.deltaq_group_commit, is_remote),
            # A transaction that is aborted must leave no trace.
            register_schemas=config.auto_register_schemas and not is_transactional,
        )


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Records of `produce` calls, as columns.

    `partitions` are -1 where none was named, `timestamps` milliseconds or 0, `times` the monotonic
    times at which the records were produced. `callbacks` are None where there is none.
    """

    values: list[Any]
    keys: list[bytes | None]
    partitions: list[int]
    timestamps: list[int]
    headers: list[Headers]
    times: list[float]
    callbacks: list[object]

    @classmethod
    def of(cls, queue: list[Any], count: int) -> RowBlock:
        """The oldest `count` records of a queue, or all if it has fewer."""
        end = FIELDS * count
        return cls(*(queue[first:end:FIELDS] for first in range(FIELDS)))

    def __len__(self) -> int:
        return len(self.times)

    @property
    def produced_at(self) -> float:
        """When the oldest was produced, in seconds on the monotonic clock."""
        return self.times[0]

    @property
    def highest_partition(self) -> int:
        """The highest partition that a record names; -1 if none does."""
        return max(self.partitions)

    def __getitem__(self, part: slice) -> RowBlock:
        return RowBlock(*(column[part] for column in self._columns))

    def picked(self, numbers: Iterable[int]) -> RowBlock:
        """The rows with these numbers."""
        numbers = tuple(numbers)
        return RowBlock(*([column[at] for at in numbers] for column in self._columns))

    @property
    def _columns(self) -> tuple[list[Any], ...]:
        return (
            self.values,
            self.keys,
            self.partitions,
            self.timestamps,
            self.headers,
            self.times,
            self.callbacks,
        )


@dataclass(frozen=True, slots=True)
class ArrowBlock:
    """A table of `produce_arrow`, whose records are committed together. Partition -1 in `columns`:
    not chosen yet.
    """

    columns: Columns
    callback: object
    produced_at: float

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def highest_partition(self) -> int:
        """The highest partition that a record names; -1 if none does."""
        return int(pc.max(self.columns.partitions).as_py())


Records: TypeAlias = "RowBlock | ArrowBlock"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of records of one buffer: offsets, or `error`.

    `next_offsets[p]` is the offset of the first of these records in partition p; the others follow
    in the order of `records`. It is empty for records of a transaction, which have none yet.
    `columns` is what was written, if they were encoded. A row without a timestamp has the time at
    which it was produced, counted from `epoch_ms`. `append_time_ms` is set where the topic uses log
    append time.
    """

    records: Records
    partitions: Sequence[int]
    columns: Columns | PlainRows | None
    next_offsets: Mapping[int, int]
    append_time_ms: int | None
    error: KafkaException | None
    finished_at: float
    topic: str
    bytes: int
    epoch_ms: float

    def __len__(self) -> int:
        return len(self.records)


@dataclass(slots=True, eq=False)
class Flush:
    """A call of `flush`. One assignment ends it: no exception can leave it active, and records
    without lingering.
    """

    is_over: bool = False


@dataclass(slots=True, eq=False)
class RecordAccumulator:
    """Records of one client for one topic that wait to be written, and the count of those that are
    being written.

    `on_result(buffer, result)` is called with the result of records, `observe(definition)` whenever
    the topic has changed, `store_failed(error)` when the store does not answer, and `wake_sender()`
    when a threshold is crossed. `plan` says how to create a missing topic; None if not allowed.
    `unchecked` is set when records were accepted before the topic's schema and limits were known.
    `schemas` are those of the client's handles; `fits` is the topic as known when it was last found
    to take their values.
    """

    settings: AccumulatorSettings
    on_result: Callable[[RecordAccumulator, BatchResult], None]
    wake_sender: Callable[[], None]
    observe: Callable[[TopicDefinition], None]
    store_failed: Callable[[KafkaError], None] = lambda _: None
    plan: NewTopicPlan | None = None
    flushes: list[Flush] = field(default_factory=list)
    unchecked: bool = False
    schemas: set[TopicSchema] = field(default_factory=set)
    fits: TopicDefinition | None = None
    abandoned: bool = False  # the client adds no more records
    # It has none left either: records that a `produce` still adds are refused, and not written.
    is_closed: bool = False
    queue: list[Any] = field(default_factory=list)  # `FIELDS` entries for each record
    # Of `queue`, approximate: an update lost between threads is corrected when the rows are taken.
    bytes: int = 0
    wake_length: int = 1  # lengths are those of `queue`
    wake_bytes: int = _NEVER
    room_length: int = 0
    room_bytes: int = 0
    # The sender's lock guards taken_*, the client's reported_*: separate counters, so that no
    # update is lost.
    taken_rows: int = 0
    taken_bytes: int = 0
    reported_rows: int = 0
    reported_bytes: int = 0
    _sealed: deque[tuple[Records, int]] = field(default_factory=deque)
    _sticky: int = -1
    _sticky_until: float = 0.0

    def __len__(self) -> int:
        """The number of records waiting to be taken."""
        return len(self.queue) // FIELDS + sum(len(records) for records, _ in tuple(self._sealed))

    @property
    def is_in_use(self) -> bool:
        """Whether records wait or may come."""
        return not self.is_closed and (not self.abandoned or len(self) > 0)

    @property
    def pending_rows(self) -> int:
        """The number of records waiting or being written."""
        return len(self) + self.taken_rows - self.reported_rows

    @property
    def pending_bytes(self) -> int:
        """The bytes that they take of the client's budget."""
        return (
            self.bytes
            + sum(size for _, size in tuple(self._sealed))
            + self.taken_bytes
            - self.reported_bytes
        )

    @property
    def flushing(self) -> bool:
        """Whether records must be written without lingering."""
        return self.abandoned or any(not flush.is_over for flush in self.flushes)

    def wake(self) -> None:
        """Wake the sender, once until it has checked the buffer. Raises RuntimeError for records
        added after the close: `produce` has passed its check, and the client was closed before it
        added its record.
        """
        if not self.abandoned:
            self.wake_length = self.wake_bytes = _NEVER
        try:
            self.wake_sender()
        except BaseException:  # from a signal handler: the sender may not have been woken
            self.wake_length, self.wake_bytes = 1, _NEVER
            raise
        # `wake_sender` has waited for the sender's lock, and so for a close under way when the
        # record was added.
        if self.is_closed:
            self.wake_length = 0
            if self.queue:
                raise RuntimeError(CLOSED)

    def due_in(self, now: float, linger_of: Callable[[float, float], float]) -> float | None:
        """Seconds until the records, of which the oldest may linger `linger_of(produced_at,
        linger_s)`, should be taken; None while there are none. Sets the wake thresholds first, so
        that a later change wakes the sender.
        """
        self.wake_length, self.wake_bytes = 1, _NEVER
        produced_at = self.first_produced_at()
        if produced_at is None:
            return None
        self.wake_length, self.wake_bytes = (
            FIELDS * self.settings.batch_rows,
            self.settings.batch_bytes,
        )
        linger_s = 0.0 if self.flushing or self.is_full else self.settings.linger_s
        return (
            produced_at + min(linger_of(produced_at, linger_s), self.settings.timeout_s / 2) - now
        )

    def first_produced_at(self) -> float | None:
        """When the oldest waiting record was produced; None if there is none."""
        if self._sealed:
            return self._sealed[0][0].produced_at
        queue = self.queue
        return queue[_PRODUCED_AT] if queue else None

    @property
    def is_full(self) -> bool:
        """Whether a full batch waits, so that lingering gains nothing."""
        if self._sealed:
            return True
        # Bytes without rows belong to a message that was taken before `produce` counted its bytes.
        length = len(self.queue)
        return length >= FIELDS * self.settings.batch_rows or (
            length > 0 and self.bytes >= self.settings.batch_bytes
        )

    # --- adding and taking, under the sender's lock ---

    def close(self) -> bool:
        """Refuse further records; False, without effect, if some are not reported yet."""
        # First: a record that is added from here on is either counted below or calls `wake`.
        self.abandoned, self.wake_length = True, 0
        try:
            self.is_closed = self.is_closed or not self.pending_rows
        finally:
            if not self.is_closed:
                self.abandoned, self.wake_length = False, 1
        return self.is_closed

    def append_block(self, block: Records, size: int) -> None:
        """Add records of `size` bytes, which stay together, behind the waiting rows. RuntimeError
        after the close.
        """
        if self.is_closed:
            raise RuntimeError(CLOSED)
        if count := len(self.queue) // FIELDS:
            self._sealed.append((RowBlock.of(self.queue, count), self.bytes))
            self.bytes = 0
            del self.queue[: FIELDS * count]
        self._sealed.append((block, size))

    def rows_within(self, bytes_max: int) -> int:
        """How many of the oldest records have about `bytes_max` bytes; at least one."""
        count, size = len(self.queue) // FIELDS, self.bytes
        if self._sealed:
            records, size = self._sealed[0]
            count = len(records)
        return count if size <= bytes_max else max(1, count * bytes_max // size)

    def take(self, rows_max: int, until: float) -> tuple[Records, int] | None:
        """Take one table, or up to `rows_max` rows produced no later than `until`, oldest first;
        with their bytes.
        """
        if self.is_closed:
            return None
        self.wake_length, self.wake_bytes = (
            FIELDS * self.settings.batch_rows,
            self.settings.batch_bytes,
        )
        self.room_length = self.room_bytes = 0
        produced_at = self.first_produced_at()
        # All are younger than those asked for: the records of a batch share its deadline.
        if produced_at is None or produced_at > until:
            return None
        records, size = (
            self._take_sealed(rows_max, until) if self._sealed else self._take_rows(rows_max, until)
        )
        self.taken_bytes += size
        return records, size

    def _take_sealed(self, rows_max: int, until: float) -> tuple[Records, int]:
        # Count them as taken before removing them: a concurrent count may be too high, never too
        # low.
        records, size = self._sealed[0]
        if isinstance(records, ArrowBlock) or (
            count := _ready(records.times, rows_max, until)
        ) == len(records):
            self.taken_rows += len(records)
            self._sealed.popleft()
            return records, size
        pro_rata = size * count // len(records)
        self.taken_rows += count
        self._sealed[0] = records[count:], size - pro_rata
        return records[:count], pro_rata

    def _take_rows(self, rows_max: int, until: float) -> tuple[Records, int]:
        whole = len(self.queue) // FIELDS
        end = FIELDS * min(whole, rows_max)
        count = _ready(self.queue[_PRODUCED_AT:end:FIELDS], rows_max, until)
        taken = RowBlock.of(self.queue, count)
        size = self.bytes if count == whole else self.bytes * count // whole
        self.taken_rows += count
        self.bytes -= size
        del self.queue[: FIELDS * count]
        return taken, size

    def sticky(self, partitions: int, now: float, chance: float) -> int:
        """The current sticky partition; `chance` in [0, 1) picks the next one when `sticky_s` is
        over.
        """
        if now >= self._sticky_until or not 0 <= self._sticky < partitions:
            self._sticky = int(chance * partitions)
            self._sticky_until = now + self.settings.sticky_s
        return self._sticky

    def choice(self, partitions: int, now: float, chance: float) -> PartitionChoice:
        """How the partitions of the next batch are chosen among `partitions`. Arguments as for
        `sticky`.
        """
        settings = self.settings
        sticky = self.sticky(partitions, now, chance)
        return PartitionChoice(settings.partitioner, partitions, sticky, settings.sticky_s == 0)


def _ready(times: list[float], rows_max: int, until: float) -> int:
    """The number of records in front that were produced no later than `until`; at least one."""
    count = min(len(times), rows_max)
    if times[count - 1] <= until:
        return count
    return max(1, next(at for at, produced in enumerate(times) if produced > until))
