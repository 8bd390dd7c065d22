"""The assignment of a consumer: its partitions, their positions, and the batches accepted from the fetcher.

A signal handler may end any call with an exception between any two steps. No record is skipped even then:

* A batch is accepted from the fetcher before the fetcher removes it.
* A call marks what it returns by one assignment to one attribute (`row` of a batch, `returned` of a `Taking`), just
  before it returns. Everything else is derived from these attributes.
* A change for the fetcher is recorded first (`_to_assign`, `_to_set`), then applied (`_apply_changes`). The next call
  applies what an interrupted call has left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, TypeAlias

from deltaq.consumer.decoding import DecodedRecords
from deltaq.consumer.fetch_queue import PartitionRecords
from deltaq.consumer.fetcher import Fetcher
from deltaq.errors import InvalidConfig, KafkaError, KafkaException
from deltaq.groups.offset_commits import ToCommit
from deltaq.message import OFFSET_INVALID, OFFSET_STORED, FetchedMessage, Message, TopicPartition
from deltaq.serde.schema import TopicSchema

_Key: TypeAlias = tuple[str, int]
_Place: TypeAlias = tuple[int, str | None]
"""An offset and the id of its topic; None for the topic that has the name now."""


@dataclass(slots=True)
class _Held:
    """An assigned partition.

    `place` follows the last record that a call has returned, without the batches that are still accepted: see
    `Assignment._places`. `stored` is the offset that the application or an earlier position has stored, with metadata.
    """

    epoch: int
    place: _Place | None = None
    stored: tuple[_Place, str | None] | None = None
    paused: bool = False
    resume_at: _Place | None = None  # the first record that was dropped because of the pause


@dataclass(slots=True, eq=False)
class AcceptedBatch(ABC):
    """`count` accepted messages from the fetcher's `item`. `row` is the first one that no `poll` has returned.

    `taken` is the last `consume` that took messages, and the row after them. They are returned once that call returns.
    """

    item: object
    key: _Key
    count: int
    row: int = field(default=0, init=False)
    taken: tuple[Taking, int] | None = field(default=None, init=False)

    def rows_returned(self) -> int:
        """The number of rows that calls have returned."""
        taken = self.taken
        return taken[1] if taken is not None and taken[0].returned else self.row

    def rows_gone(self, taking: Taking) -> int:
        """The number of rows that are returned, or taken by the running call `taking`."""
        taken = self.taken
        return taken[1] if taken is not None and taken[0] is taking else self.rows_returned()

    @abstractmethod
    def message(self, row: int) -> Message:
        """The message of a row."""

    def messages(self, first: int, end: int) -> list[Message]:
        """The messages of the rows `[first, end)`."""
        return [self.message(row) for row in range(first, end)]

    def fold(self) -> None:
        """Record what was returned, so that the batch can be dropped."""
        if self.taken is not None and self.taken[0].returned:
            self.row = self.taken[1]
            self.taken = None


@dataclass(slots=True, eq=False)
class RecordBatch(AcceptedBatch):
    """Records of one partition."""

    held: _Held
    records: DecodedRecords

    def message(self, row: int) -> Message:
        return FetchedMessage(self.records, row)

    def messages(self, first: int, end: int) -> list[Message]:
        return list(map(FetchedMessage, repeat(self.records), range(first, end)))

    def place(self) -> _Place | None:
        """The place after the last record that a call has returned; None if none was returned."""
        rows = self.rows_returned()
        return (self.records.position_after(rows - 1), self.records.topic_id) if rows else None

    def fold(self) -> None:
        place = self.place()
        if place is not None:
            self.held.place = place
        AcceptedBatch.fold(self)


@dataclass(slots=True, eq=False)
class EventBatch(AcceptedBatch):
    """An event, such as an error, as a batch of one message."""

    event: Message

    def message(self, row: int) -> Message:  # noqa: ARG002 - there is one
        return self.event


@dataclass(slots=True, eq=False)
class Taking:
    """The messages that one call takes. All of them count as returned once `returned` is set."""

    returned: bool = False
    count: int = 0
    parts: list[tuple[AcceptedBatch, list[Message]]] = field(default_factory=list)
    drops: int = 0  # the assignment's `_drops` when `parts` was last compared with the accepted batches
    passed: int = 0  # number of accepted batches, from the first, that this call has taken completely

    def messages(self) -> list[Message]:
        """All messages taken, in order."""
        return self.parts[0][1] if len(self.parts) == 1 else list(chain.from_iterable(part for _, part in self.parts))


class Assignment:
    """The partitions of one consumer. For the application's thread; the offset committer also calls `stored`.

    `batch` is the batch that `poll` may return from, starting at its `row`, without a call of `first`.
    """

    def __init__(
        self, fetcher: Fetcher, schema_of: Callable[[str], TopicSchema | None], store_on_delivery: bool
    ) -> None:
        self._fetcher = fetcher
        self._schema_of = schema_of
        self._store_on_delivery = store_on_delivery
        self._held: dict[_Key, _Held] = {}
        self.batch: RecordBatch | None = None
        self._accepted: list[AcceptedBatch] = []
        self._drops = 0  # how often the list of accepted batches was changed other than at its end
        self._to_assign: Mapping[_Key, int] | None = None
        # Partitions to set in the fetcher, and where; None for the first record that was not returned.
        self._to_set: dict[_Key, _Place | None] = {}

    # --- which partitions ---

    def partitions(self) -> list[TopicPartition]:
        """The assigned partitions, sorted, with OFFSET_STORED as the offset as in `confluent_kafka`."""
        held = self._held if self._to_assign is None else self._to_assign
        return [TopicPartition(topic, partition, OFFSET_STORED) for topic, partition in sorted(held)]

    def set(self, wanted: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions, each from its offset: a number or an OFFSET_ constant."""
        to_assign = {(tp.topic, tp.partition): tp.offset for tp in wanted}
        self.batch = None
        self._to_assign = to_assign
        self._apply_changes()

    def add(self, wanted: Iterable[TopicPartition]) -> None:
        """Add partitions, each from its offset."""
        self._apply_changes()
        for tp in wanted:
            self._start((tp.topic, tp.partition), tp.offset, _Held(-1))

    def remove(self, unwanted: Iterable[TopicPartition]) -> None:
        """Remove partitions."""
        self._apply_changes()
        for tp in unwanted:
            key = tp.topic, tp.partition
            self.batch = None
            self._to_set[key] = None
            self._held.pop(key, None)
            self._apply_changes()

    def follow(self, named: Set[str], matched: Set[str] = frozenset(), more: Iterable[str] = ()) -> None:
        """Follow the logs of these topics, of assigned topics, and of `more` topics that are about to be assigned.

        A topic that is only `matched` is never created.
        """
        self._apply_changes()
        assigned = {topic for topic, _ in self._held} | set(more)
        self._fetcher.follow(named | matched | assigned, (named | assigned) - (matched - named))

    def holds(self, topic: str, partition: int) -> bool:
        """Whether a partition is assigned."""
        self._apply_changes()
        return (topic, partition) in self._held

    def check_new(self, wanted: Iterable[TopicPartition]) -> None:
        """Raise KafkaException (_CONFLICT) for a partition that is assigned already."""
        for tp in wanted:
            if self.holds(tp.topic, tp.partition):
                reason = f"{tp.topic} [{tp.partition}] is already part of the current assignment"
                raise KafkaException(KafkaError(KafkaError._CONFLICT, reason))

    def check_assigned(self, unwanted: Iterable[TopicPartition]) -> None:
        """Raise InvalidConfig for a partition that is not assigned."""
        for tp in unwanted:
            if not self.holds(tp.topic, tp.partition):
                reason = f"{tp.topic} [{tp.partition}] can't be unassigned since it is not in the current assignment"
                raise InvalidConfig(reason, key="partitions")

    # --- positions ---

    def position(self, topic: str, partition: int) -> int:
        """The offset after the last record that a call has returned; OFFSET_INVALID if none was returned."""
        place = self._place((topic, partition))
        return OFFSET_INVALID if place is None else place[0]

    def topic_id(self, topic: str, partition: int) -> str | None:
        """The id of the topic whose record the partition returned last; None if none was returned."""
        place = self._place((topic, partition))
        return None if place is None else place[1]

    def _place(self, key: _Key) -> _Place | None:
        held = self._held.get(key)
        return None if held is None else self._places().get(id(held), held.place)

    def _places(self) -> dict[int, _Place]:
        """The places of partitions, by the `id` of their `_Held`, that follow from accepted batches."""
        found = {}
        for batch in tuple(self._accepted):
            if isinstance(batch, RecordBatch) and (place := batch.place()) is not None:
                found[id(batch.held)] = place
        return found

    def store(self, entry: ToCommit) -> None:
        """Store an offset to commit for an assigned partition."""
        wanted = entry.wanted
        self._held[wanted.topic, wanted.partition].stored = (wanted.offset, entry.topic_id), wanted.metadata

    def stored(self) -> list[ToCommit]:
        """The offsets that may be committed."""
        held_now = tuple(self._held.items())
        places = self._places()  # before `place` is read: dropping a batch moves its place there
        return [
            ToCommit(TopicPartition(topic, partition, offset, metadata), topic_id)
            for (topic, partition), held in held_now
            if (found := self._stored(held, places)) is not None
            for (offset, topic_id), metadata in [found]
        ]

    def _stored(self, held: _Held, places: Mapping[int, _Place]) -> tuple[_Place, str | None] | None:
        place = places.get(id(held), held.place) if self._store_on_delivery else None
        return held.stored if place is None else (place, None)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue at another offset: a number or an OFFSET_ constant."""
        self._apply_changes()
        key = topic, partition
        held = self._held[key]
        # A new object: messages taken before the seek must not move the position after it.
        self._start(key, offset, _Held(-1, None, self._stored(held, self._places()), held.paused))

    def pause(self, topic: str, partition: int) -> None:
        """Return nothing from a partition until it is resumed, not even accepted records."""
        self._apply_changes()
        held = self._held.get((topic, partition))
        if held is not None:
            self.batch = None
            self._to_set[topic, partition] = None
            held.paused = True
            self._apply_changes()

    def resume(self, topic: str, partition: int) -> None:
        """Continue where the partition was paused."""
        self._apply_changes()
        held = self._held.get((topic, partition))
        if held is not None and held.paused:
            self.batch = None
            self._to_set[topic, partition] = held.resume_at
            held.resume_at = None
            held.paused = False
            self._apply_changes()

    def _start(self, key: _Key, offset: int, held: _Held) -> None:
        self.batch = None
        self._to_set[key] = offset, None
        self._held[key] = held
        self._apply_changes()

    # --- changes for the fetcher ---

    def _apply_changes(self) -> None:
        """Apply the recorded changes to the fetcher. Every step is idempotent: an interrupted one is repeated."""
        if self._to_assign is not None:
            epochs = self._fetcher.assign(self._to_assign)
            self._drop(lambda batch: batch.key[1] >= 0)  # events of a topic or of the group are kept
            self._to_set = {}
            self._held = {key: _Held(epoch) for key, epoch in epochs.items()}
            self._to_assign = None
        while self._to_set:
            key = next(iter(self._to_set))
            self._apply_change(key)
            del self._to_set[key]

    def _apply_change(self, key: _Key) -> None:
        held = self._held.get(key)
        if held is None:
            self._fetcher.drop(*key)
            self._drop(lambda batch: batch.key == key)
            return
        place = self._to_set[key] or self._first_accepted(key)
        if place is not None:
            offset, topic_id = place
            held.epoch = self._fetcher.seek(*key, offset, topic_id)
            self._drop(lambda batch: batch.key == key)
        self._fetcher.pause(*key, held.paused)

    def _first_accepted(self, key: _Key) -> _Place | None:
        """The place of a partition's first accepted record that no call has returned."""
        for batch in self._accepted:
            row = batch.rows_returned()
            if isinstance(batch, RecordBatch) and batch.key == key and row < batch.count:
                return batch.records.offset_at(row), batch.records.topic_id
        return None

    def _drop(self, is_dropped: Callable[[AcceptedBatch], bool]) -> None:
        self.batch = None
        self._drops += 1
        for batch in self._accepted:
            batch.fold()
        self._accepted = [batch for batch in self._accepted if not is_dropped(batch)]

    # --- accepted batches ---

    def is_current(self, topic: str, partition: int, epoch: int) -> bool:
        """Whether `epoch` is the current epoch of the partition, so that items of it are not stale."""
        held = self._held.get((topic, partition))
        return held is not None and held.epoch == epoch

    def accept(self, item: PartitionRecords) -> None:
        """Accept fetched records, unless they are accepted already. Stale records are dropped."""
        key = item.topic, item.partition
        held = self._held.get(key)
        if held is None or held.epoch != item.epoch:
            return
        if held.paused:
            if held.resume_at is None:
                held.resume_at = item.fetched.first_offset, item.definition.topic_id
            return
        schema = self._schema_of(item.topic) or item.definition.schema
        records = DecodedRecords(item.topic, item.definition.topic_id, item.fetched, schema)
        self._accept(RecordBatch(item, key, records.count, held, records))

    def accept_event(self, item: object, topic: str, partition: int, event: Message) -> None:
        """Accept an event from the fetcher's `item`, unless it is accepted already."""
        self._accept(EventBatch(item, (topic, partition), 1, event))

    def put_first(self, event: Message) -> None:
        """Have an event returned before all accepted batches."""
        self.batch = None
        self._drops += 1  # so that a running `Taking` starts again at the first accepted batch
        self._accepted = [EventBatch(event, ("", -1), 1, event), *self._accepted]

    def _accept(self, batch: AcceptedBatch) -> None:
        if not self._accepted or self._accepted[-1].item is not batch.item:
            self._accepted.append(batch)

    def first(self) -> AcceptedBatch | None:
        """The batch whose `row` is to be returned next. The caller increments `row` to mark it as returned."""
        self._apply_changes()
        self._forget_returned()
        if not self._accepted:
            return None
        found = self._accepted[0]
        self.batch = found if isinstance(found, RecordBatch) else None
        return found

    def _forget_returned(self) -> None:
        """Drop batches that calls have returned completely."""
        if not self._accepted:
            return
        # An interrupted call may have left the item in the fetcher's queue, where it would be accepted again.
        self._fetcher.queue.remove(self._accepted[-1].item)
        self.batch = None
        for batch in self._accepted:
            batch.fold()
        self._accepted = [batch for batch in self._accepted if batch.row < batch.count]

    def take(self, count: int, taking: Taking) -> bool:
        """Take the next messages, at most `count`. Returns whether there were any."""
        batch = self._untaken(taking)
        if batch is None:
            return False
        first = batch.rows_gone(taking)
        end = min(batch.count, first + count)
        taking.parts.append((batch, batch.messages(first, end)))
        taking.count += end - first
        batch.taken = taking, end
        return True

    def take_arrow(self, count: int, taking: Taking) -> tuple[str, Any] | Message | None:
        """Take the next records of one partition, at most `count`, as (topic, record batch); or an event."""
        batch = self._untaken(taking)
        if batch is None:
            return None
        first = batch.rows_gone(taking)
        end = min(batch.count, first + count)
        taken: tuple[str, Any] | Message = batch.message(0)
        if isinstance(batch, RecordBatch):
            taken = batch.records.topic, batch.records.arrow(first, end - first)
        batch.taken = taking, end
        return taken

    def _untaken(self, taking: Taking) -> AcceptedBatch | None:
        """The first accepted batch with messages that are neither returned nor taken."""
        self.drop_stale(taking)
        if not taking.passed:
            self._forget_returned()
        self.batch = None  # its `row` is no longer the next message
        while taking.passed < len(self._accepted):
            batch = self._accepted[taking.passed]
            if batch.rows_gone(taking) < batch.count:
                return batch
            taking.passed += 1
        return None

    def drop_stale(self, taking: Taking) -> None:
        """Drop messages that were taken from partitions that have been revoked, moved or paused since.

        They are not committed. The consumer that owns the partition later reads them, unless a seek has skipped them.
        """
        self._apply_changes()
        if taking.drops != self._drops:
            accepted = set(map(id, self._accepted))
            taking.parts = [(batch, part) for batch, part in taking.parts if id(batch) in accepted]
            taking.count = sum(len(part) for _, part in taking.parts)
            taking.passed = 0
            taking.drops = self._drops
