"""What a consumer holds: its partitions, where each stands, and what is in hand to be returned.

A signal handler may end any call with an exception, between any two steps. Still nothing is skipped:

* A batch is taken over from the fetcher before the fetcher removes it.
* What a call has taken counts as returned by one assignment to one attribute (`row` of a batch, `returned` of a
  `Taking`), which the caller makes just before it returns. All else is derived from these.
* What is to change in the fetcher is noted first (`_to_assign`, `_untold`), then made (`_settle`). What an interrupted
  call leaves there, the next one does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, TypeAlias

from deltaq.consumer.decoding import DecodedRecords
from deltaq.consumer.fetcher import Fetcher, PartitionRecords
from deltaq.groups.offset_commits import ToCommit
from deltaq.message import OFFSET_INVALID, OFFSET_STORED, FetchedMessage, Message, TopicPartition
from deltaq.serde.typed import TopicSchema

__all__ = ["Assignment", "Batch", "RecordBatch", "Taking"]

_Key: TypeAlias = tuple[str, int]
_Place: TypeAlias = tuple[int, str | None]
"""An offset, and the id of the topic that it is one of; None for the topic that has the name now."""


@dataclass(slots=True)
class _Held:
    """A partition that is held.

    `place` is behind its last record that a call has returned, as far as known from batches that are not in hand any
    more. `stored` is what else may be committed, with its metadata.
    """

    epoch: int
    place: _Place | None = None
    stored: tuple[_Place, str | None] | None = None
    paused: bool = False
    resume_at: _Place | None = None  # what was ready first, but dropped for the pause


@dataclass(slots=True, eq=False)
class Batch(ABC):
    """`count` messages in hand; `item` is what the fetcher gave. `row` is the first that no `poll` has returned.

    `taken` is how far the last call that takes many has come: up to that row they are returned if that call is.
    """

    item: object
    key: _Key
    count: int
    row: int = field(default=0, init=False)
    taken: tuple[Taking, int] | None = field(default=None, init=False)

    def rows_returned(self) -> int:
        """How many rows calls have returned."""
        taken = self.taken
        return taken[1] if taken is not None and taken[0].returned else self.row

    def rows_gone(self, taking: Taking) -> int:
        """How many rows are returned, or taken by a call that is under way."""
        taken = self.taken
        return taken[1] if taken is not None and taken[0] is taking else self.rows_returned()

    @abstractmethod
    def message(self, row: int) -> Message:
        """The message in a row."""

    def messages(self, first: int, end: int) -> list[Message]:
        """The messages in the rows from `first` up to `end`."""
        return [self.message(row) for row in range(first, end)]

    def fold(self) -> None:
        """Note what was returned where it is looked for once the batch is not in hand any more."""
        if self.taken is not None and self.taken[0].returned:
            self.row = self.taken[1]
            self.taken = None


@dataclass(slots=True, eq=False)
class RecordBatch(Batch):
    """Records of one partition."""

    held: _Held
    records: DecodedRecords

    def message(self, row: int) -> Message:
        return FetchedMessage(self.records, row)

    def messages(self, first: int, end: int) -> list[Message]:
        return list(map(FetchedMessage, repeat(self.records), range(first, end)))

    def place(self) -> _Place | None:
        """Behind the last record that a call has returned; None if none has been."""
        rows = self.rows_returned()
        return (self.records.position_after(rows - 1), self.records.topic_id) if rows else None

    def fold(self) -> None:
        place = self.place()
        if place is not None:
            self.held.place = place
        Batch.fold(self)


@dataclass(slots=True, eq=False)
class EventBatch(Batch):
    """An event."""

    event: Message

    def message(self, row: int) -> Message:  # noqa: ARG002 - there is one
        return self.event


@dataclass(slots=True, eq=False)
class Taking:
    """What one call takes. All of it counts as returned once `returned` is set."""

    returned: bool = False
    count: int = 0
    parts: list[tuple[Batch, list[Message]]] = field(default_factory=list)
    drops: int = 0  # of the assignment, when `parts` was last compared with what is in hand
    passed: int = 0  # batches in hand, from the first, of which this call has taken all

    def messages(self) -> list[Message]:
        """The messages that were taken."""
        return self.parts[0][1] if len(self.parts) == 1 else list(chain.from_iterable(part for _, part in self.parts))


class Assignment:
    """The partitions of one consumer. Used on the application's thread; `stored` by the committer's as well.

    `batch` is what `poll` may return from without asking `first`: records that are wanted, from their `row` on.
    """

    def __init__(
        self, fetcher: Fetcher, schema_of: Callable[[str], TopicSchema | None], store_on_delivery: bool
    ) -> None:
        self._fetcher = fetcher
        self._schema_of = schema_of
        self._store_on_delivery = store_on_delivery
        self._held: dict[_Key, _Held] = {}
        self.batch: RecordBatch | None = None
        self._in_hand: list[Batch] = []
        self._drops = 0  # how often batches in hand were given back
        self._to_assign: Mapping[_Key, int] | None = None
        self._untold: dict[_Key, _Place | None] = {}  # partitions to be set anew, and where; None: where they stand

    # --- which partitions ---

    def partitions(self) -> list[TopicPartition]:
        """What is held, sorted, as `confluent_kafka` shows it."""
        held = self._held if self._to_assign is None else self._to_assign
        return [TopicPartition(topic, partition, OFFSET_STORED) for topic, partition in sorted(held)]

    def set(self, wanted: Iterable[TopicPartition]) -> None:
        """Hold exactly these, each from its offset (a real one, an OFFSET_ constant, or the committed one)."""
        to_assign = {(tp.topic, tp.partition): tp.offset for tp in wanted}
        self.batch = None
        self._to_assign = to_assign
        self._settle()

    def add(self, wanted: Iterable[TopicPartition]) -> None:
        """Hold these too."""
        self._settle()
        for tp in wanted:
            self._start((tp.topic, tp.partition), tp.offset, _Held(-1))

    def remove(self, unwanted: Iterable[TopicPartition]) -> None:
        """Hold these no longer."""
        self._settle()
        for tp in unwanted:
            key = tp.topic, tp.partition
            self.batch = None
            self._untold[key] = None
            self._held.pop(key, None)
            self._settle()

    def follow(self, named: Set[str], matched: Set[str] = frozenset(), more: Iterable[str] = ()) -> None:
        """Follow the logs of these topics, and of all that are held or (`more`) are about to be. None that is only
        `matched` is ever created."""
        self._settle()
        assigned = {topic for topic, _ in self._held} | set(more)
        self._fetcher.follow(named | matched | assigned, (named | assigned) - (matched - named))

    def holds(self, topic: str, partition: int) -> bool:
        """Whether a partition is held."""
        self._settle()
        return (topic, partition) in self._held

    # --- where they stand ---

    def position(self, topic: str, partition: int) -> int:
        """The offset behind the last record that a call has returned; OFFSET_INVALID where there was none."""
        place = self._place((topic, partition))
        return OFFSET_INVALID if place is None else place[0]

    def topic_id(self, topic: str, partition: int) -> str | None:
        """The id of the topic whose records were returned last from a partition; None if none were."""
        place = self._place((topic, partition))
        return None if place is None else place[1]

    def _place(self, key: _Key) -> _Place | None:
        held = self._held.get(key)
        return None if held is None else self._places().get(id(held), held.place)

    def _places(self) -> dict[int, _Place]:
        """Where the partitions (by the `id` of their `_Held`) stand whose place a batch in hand tells."""
        found = {}
        for batch in tuple(self._in_hand):
            if isinstance(batch, RecordBatch) and (place := batch.place()) is not None:
                found[id(batch.held)] = place
        return found

    def store(self, entry: ToCommit) -> None:
        """Note what may be committed of a partition that is held."""
        wanted = entry.wanted
        self._held[wanted.topic, wanted.partition].stored = (wanted.offset, entry.topic_id), wanted.metadata

    def stored(self) -> list[ToCommit]:
        """What may be committed."""
        held_now = tuple(self._held.items())
        places = self._places()  # before `place` is looked at, which has what leaves the hand
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
        """Go on at another offset."""
        self._settle()
        key = topic, partition
        held = self._held[key]
        # Another object: what was taken before the seek must not move what comes after it.
        self._start(key, offset, _Held(-1, None, self._stored(held, self._places()), held.paused))

    def pause(self, topic: str, partition: int) -> None:
        """Return nothing from a partition until it is resumed, not even what is in hand."""
        self._settle()
        held = self._held.get((topic, partition))
        if held is not None:
            self.batch = None
            self._untold[topic, partition] = None
            held.paused = True
            self._settle()

    def resume(self, topic: str, partition: int) -> None:
        """Go on where the partition was paused."""
        self._settle()
        held = self._held.get((topic, partition))
        if held is not None and held.paused:
            self.batch = None
            self._untold[topic, partition] = held.resume_at
            held.resume_at = None
            held.paused = False
            self._settle()

    def _start(self, key: _Key, offset: int, held: _Held) -> None:
        self.batch = None
        self._untold[key] = offset, None
        self._held[key] = held
        self._settle()

    # --- what the fetcher is to be told ---

    def _settle(self) -> None:
        """Tell the fetcher what was noted. Each step may be done twice: an interrupted one is."""
        if self._to_assign is not None:
            epochs = self._fetcher.assign(self._to_assign)
            self._drop(lambda batch: batch.key[1] >= 0)  # not what is told of a topic, or of the group
            self._untold = {}
            self._held = {key: _Held(epoch) for key, epoch in epochs.items()}
            self._to_assign = None
        while self._untold:
            key = next(iter(self._untold))
            self._tell(key)
            del self._untold[key]

    def _tell(self, key: _Key) -> None:
        held = self._held.get(key)
        if held is None:
            self._fetcher.drop(*key)
            self._drop(lambda batch: batch.key == key)
            return
        place = self._untold[key] or self._first_in_hand(key)
        if place is not None:
            offset, topic_id = place
            held.epoch = self._fetcher.seek(*key, offset, topic_id)
            self._drop(lambda batch: batch.key == key)
        self._fetcher.pause(*key, held.paused)

    def _first_in_hand(self, key: _Key) -> _Place | None:
        """Where the first record in hand of a partition is that no call has returned."""
        for batch in self._in_hand:
            row = batch.rows_returned()
            if isinstance(batch, RecordBatch) and batch.key == key and row < batch.count:
                return batch.records.offset_at(row), batch.records.topic_id
        return None

    def _drop(self, is_dropped: Callable[[Batch], bool]) -> None:
        self.batch = None
        self._drops += 1
        for batch in self._in_hand:
            batch.fold()
        self._in_hand = [batch for batch in self._in_hand if not is_dropped(batch)]

    # --- what is in hand ---

    def is_current(self, topic: str, partition: int, epoch: int) -> bool:
        """Whether something that was fetched for a partition in `epoch` is still wanted."""
        held = self._held.get((topic, partition))
        return held is not None and held.epoch == epoch

    def accept(self, item: PartitionRecords) -> None:
        """Take over fetched records, unless they are in hand already; stale ones are dropped."""
        key = item.topic, item.partition
        held = self._held.get(key)
        if held is None or held.epoch != item.epoch:
            return
        if held.paused:
            if held.resume_at is None:
                held.resume_at = item.fetched.first_offset, item.view.topic_id
            return
        schema = self._schema_of(item.topic) or item.view.schema
        records = DecodedRecords(item.topic, item.view.topic_id, item.fetched, schema)
        self._accept(RecordBatch(item, key, records.count, held, records))

    def accept_event(self, item: object, topic: str, partition: int, event: Message) -> None:
        """Take over an event, unless it is in hand already. `item` is what told it."""
        self._accept(EventBatch(item, (topic, partition), 1, event))

    def put_first(self, event: Message) -> None:
        """Have an event returned before all that is in hand."""
        self.batch = None
        self._drops += 1  # so that a call that is taking looks at all that is in hand anew
        self._in_hand = [EventBatch(event, ("", -1), 1, event), *self._in_hand]

    def _accept(self, batch: Batch) -> None:
        if not self._in_hand or self._in_hand[-1].item is not batch.item:
            self._in_hand.append(batch)

    def first(self) -> Batch | None:
        """The batch whose `row` is to be returned next, with which it then counts as returned."""
        self._settle()
        self._forget_returned()
        if not self._in_hand:
            return None
        found = self._in_hand[0]
        self.batch = found if isinstance(found, RecordBatch) else None
        return found

    def _forget_returned(self) -> None:
        """Let go of what calls have returned."""
        if not self._in_hand:
            return
        # An interrupted call may have left it in the fetcher's queue too, where it must not be found a second time.
        self._fetcher.remove(self._in_hand[-1].item)
        self.batch = None
        for batch in self._in_hand:
            batch.fold()
        self._in_hand = [batch for batch in self._in_hand if batch.row < batch.count]

    def take(self, count: int, taking: Taking) -> bool:
        """Take the next messages, `count` at most; whether there were any."""
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
        """Take the next records of one partition, `count` at most, as (topic, record batch); or an event."""
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

    def _untaken(self, taking: Taking) -> Batch | None:
        """The first batch in hand of which not all is gone."""
        self.leave_out_unwanted(taking)
        if not taking.passed:
            self._forget_returned()
        self.batch = None  # its `row` does not tell any more where to go on
        while taking.passed < len(self._in_hand):
            batch = self._in_hand[taking.passed]
            if batch.rows_gone(taking) < batch.count:
                return batch
            taking.passed += 1
        return None

    def leave_out_unwanted(self, taking: Taking) -> None:
        """Forget what was taken from partitions that were given up, set anew or paused since: it comes again to the
        consumer that has the partition then, if it is to come."""
        self._settle()
        if taking.drops != self._drops:
            in_hand = set(map(id, self._in_hand))
            taking.parts = [(batch, part) for batch, part in taking.parts if id(batch) in in_hand]
            taking.count = sum(len(part) for _, part in taking.parts)
            taking.passed = 0
            taking.drops = self._drops
