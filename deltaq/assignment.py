"""What a consumer holds: its partitions, where each stands, and the records that are ready to be handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from deltaq.clock import Clock
from deltaq.group.committer import ToCommit
from deltaq.log.decoding import DecodedRecords
from deltaq.log.fetcher import Fetcher, PartitionRecords
from deltaq.message import OFFSET_INVALID, OFFSET_STORED, FetchedMessage, Message, TopicPartition
from deltaq.serde.typed import TopicSchema

__all__ = ["Assignment"]


@dataclass(slots=True)
class _Held:
    """A partition that is held. `position` is the next offset to hand out, `stored` what may be committed.

    `stored` is (offset, topic id) in one value, since another thread reads it.

    `topic_id` is that of the topic whose records were handed out last: a topic created anew has offsets of its own.
    """

    epoch: int
    position: int = OFFSET_INVALID
    stored: tuple[int, str | None] | None = None
    metadata: str | None = None
    topic_id: str | None = None
    paused: bool = False
    taken: tuple[int, str] | None = None  # position and topic id after what was taken, but is not delivered yet
    resume_at: tuple[int, str] | None = None  # offset and topic id of what was ready first, but dropped for the pause


class Assignment:
    """The partitions of one consumer. Used on the application's thread; `stored` by the committer's as well."""

    def __init__(
        self, fetcher: Fetcher, schema_of: Callable[[str], TopicSchema | None], store_on_delivery: bool, clock: Clock
    ) -> None:
        self._fetcher = fetcher
        self._schema_of = schema_of
        self._store_on_delivery = store_on_delivery
        self._lock = clock.lock()
        self._held: dict[tuple[str, int], _Held] = {}
        self._records: DecodedRecords | None = None
        self._holder: _Held | None = None
        self._row = 0
        self._under_way: list[tuple[_Held, list[FetchedMessage]]] = []  # taken, and not delivered yet

    # --- which partitions ---

    def partitions(self) -> list[TopicPartition]:
        """What is held, sorted, as `confluent_kafka` shows it."""
        return [TopicPartition(topic, partition, OFFSET_STORED) for topic, partition in sorted(self._held)]

    def set(self, wanted: Iterable[TopicPartition]) -> None:
        """Hold exactly these, each from its offset (a real one, an OFFSET_ constant, or the committed one)."""
        start = {(tp.topic, tp.partition): tp.offset for tp in wanted}
        self._records = self._holder = None
        epochs = self._fetcher.assign(start)
        with self._lock:
            self._held = {key: _Held(epoch) for key, epoch in epochs.items()}

    def add(self, wanted: Iterable[TopicPartition]) -> None:
        """Hold these too."""
        for tp in wanted:
            epoch = self._fetcher.seek(tp.topic, tp.partition, tp.offset)
            with self._lock:
                self._held[tp.topic, tp.partition] = _Held(epoch)

    def remove(self, unwanted: Iterable[TopicPartition]) -> None:
        """Hold these no longer."""
        for tp in unwanted:
            self._release(tp.topic, tp.partition)
            self._fetcher.drop(tp.topic, tp.partition)
            with self._lock:
                self._held.pop((tp.topic, tp.partition), None)

    def follow(self, named: Set[str], matched: Set[str] = frozenset(), more: Iterable[str] = ()) -> None:
        """Follow the logs of these topics, and of all that are held or (`more`) are about to be. None that is only
        `matched` is ever created."""
        assigned = {topic for topic, _ in self._held} | set(more)
        self._fetcher.follow(named | matched | assigned, (named | assigned) - (matched - named))

    def holds(self, topic: str, partition: int) -> bool:
        """Whether a partition is held."""
        return (topic, partition) in self._held

    # --- where they stand ---

    def position(self, topic: str, partition: int) -> int:
        """The next offset to hand out; OFFSET_INVALID until something was."""
        held = self._held.get((topic, partition))
        return OFFSET_INVALID if held is None else held.position

    def topic_id(self, topic: str, partition: int) -> str | None:
        """The id of the topic whose records were handed out last from a partition; None if none were."""
        held = self._held.get((topic, partition))
        return None if held is None else held.topic_id

    def store(self, entry: ToCommit) -> None:
        """Note what may be committed of a partition that is held."""
        wanted = entry.wanted
        with self._lock:
            held = self._held[wanted.topic, wanted.partition]
            held.stored, held.metadata = (wanted.offset, entry.topic_id), wanted.metadata

    def stored(self) -> list[ToCommit]:
        """What may be committed."""
        with self._lock:
            return [
                ToCommit(TopicPartition(topic, partition, stored[0], held.metadata), stored[1])
                for (topic, partition), held in self._held.items()
                if (stored := held.stored) is not None
            ]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on at another offset."""
        self._release(topic, partition)
        epoch = self._fetcher.seek(topic, partition, offset)
        with self._lock:
            # Another object, so that what was taken before the seek can be told from what comes after it.
            held = replace(self._held[topic, partition], epoch=epoch, position=OFFSET_INVALID)
            held.taken = held.resume_at = None
            self._held[topic, partition] = held

    def pause(self, topic: str, partition: int) -> None:
        """Hand nothing out from a partition until it is resumed, not even what is ready."""
        held = self._held.get((topic, partition))
        if held is not None and not held.paused:
            held.paused = True
            self._release(topic, partition)
            self._fetcher.pause(topic, partition, True)

    def resume(self, topic: str, partition: int) -> None:
        """Go on where the partition was paused."""
        held = self._held.get((topic, partition))
        if held is not None and held.paused:
            held.paused = False
            if held.resume_at is not None:
                held.epoch = self._fetcher.seek(topic, partition, *held.resume_at)
                held.resume_at = None
            self._fetcher.pause(topic, partition, False)

    # --- handing out ---

    def is_current(self, topic: str, partition: int, epoch: int) -> bool:
        """Whether something that was fetched for a partition in `epoch` is still wanted."""
        held = self._held.get((topic, partition))
        return held is not None and held.epoch == epoch

    @property
    def ready(self) -> bool:
        """Whether there is a record to hand out."""
        return self._records is not None

    def accept(self, item: PartitionRecords) -> None:
        """Make fetched records the ones that are handed out next; stale ones are dropped."""
        held = self._held.get((item.topic, item.partition))
        if held is None or held.epoch != item.epoch:
            return
        if not held.paused:
            schema = self._schema_of(item.topic) or item.view.schema
            self._records = DecodedRecords(item.topic, item.view.topic_id, item.fetched, schema)
            self._holder = held
            self._row = 0
        elif held.resume_at is None:
            held.resume_at = item.fetched.first_offset, item.view.topic_id

    def take_one(self) -> FetchedMessage | None:
        """The next record."""
        records = self._records
        if records is None:
            return None
        row = self._row
        message = FetchedMessage(records, row)
        self._handed_out(records, row)
        return message

    def take(self, count: int) -> list[FetchedMessage]:
        """The next records, `count` at most. They count as delivered when `delivered` is called."""
        records, held = self._records, self._holder
        if records is None or held is None:
            return []
        first = self._row
        end = min(records.count, first + count)
        messages = list(map(FetchedMessage, repeat(records), range(first, end)))
        self._handed_out(records, end - 1, delivered=False)
        held.taken = held.position, records.topic_id
        self._under_way.append((held, messages))
        return messages

    def still_wanted(self, messages: list[Message]) -> list[Message]:
        """Without those taken from partitions that were given up, or given anew, or sought since they were taken."""
        held_now = set(map(id, self._held.values()))
        unwanted = {id(message) for held, taken in self._under_way if id(held) not in held_now for message in taken}
        return [message for message in messages if id(message) not in unwanted] if unwanted else messages

    def delivered(self) -> None:
        """What was taken reaches the application now, so it may be committed."""
        self._under_way.clear()
        with self._lock:
            for held in self._held.values():
                if held.taken is not None and self._store_on_delivery:
                    held.stored = held.taken
                held.taken = None

    def take_arrow(self, count: int) -> tuple[str, Any] | None:
        """The next records of one partition, `count` at most, as (topic, record batch)."""
        records = self._records
        if records is None:
            return None
        first = self._row
        end = min(records.count, first + count)
        self._handed_out(records, end - 1)
        return records.topic, records.arrow(first, end - first)

    def _handed_out(self, records: DecodedRecords, row: int, *, delivered: bool = True) -> None:
        held = self._holder
        assert held is not None  # noqa: S101 - set together with the records
        position = records.position_after(row)
        held.position, held.topic_id = position, records.topic_id
        if delivered and self._store_on_delivery:
            held.stored = position, records.topic_id
        self._row = row + 1
        if self._row >= records.count:
            self._records = self._holder = None

    def take_back(self, messages: Iterable[Message]) -> None:
        """Records that were taken but never reached the application are handed out again."""
        self._under_way.clear()
        firsts: dict[tuple[str, int], tuple[int, str]] = {}
        for message in messages:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            topic_id = message.topic_id if isinstance(message, FetchedMessage) else None
            if topic is not None and partition is not None and offset is not None and topic_id is not None:
                firsts.setdefault((topic, partition), (offset, topic_id))
        for (topic, partition), (offset, topic_id) in firsts.items():
            held = self._held.get((topic, partition))
            if held is not None:
                self._release(topic, partition)
                held.epoch = self._fetcher.seek(topic, partition, offset, topic_id)
                held.position, held.resume_at, held.taken = offset, None, None

    def _release(self, topic: str, partition: int) -> None:
        """Give records in hand back, if they are this partition's: they are fetched again when they are wanted."""
        records, held = self._records, self._holder
        if records is not None and held is not None and (records.topic, records.partition) == (topic, partition):
            self._records = self._holder = None
            held.epoch = self._fetcher.seek(topic, partition, records.offset_at(self._row), records.topic_id)
