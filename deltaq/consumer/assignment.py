"""The assignment of a consumer: its partitions and their positions.

A change for the fetcher is recorded first (`_to_assign`, `_to_set`), then applied
(`apply_changes`). The next call applies what was left by a call that an exception of a signal
handler has ended: see `accepted`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass

from deltaq.consumer.decoding import (
    FRESH,
    BeginEarlier,
    DecodedRecords,
    JoinedRecords,
    Joining,
    joined,
)
from deltaq.consumer.fetch_buffer import (
    AcceptedBatch,
    AcceptedBatches,
    CompletedFetch,
    Position,
    RecordBatch,
    SkippedRecords,
    TopicPartitionState,
)
from deltaq.consumer.fetcher import Fetcher
from deltaq.errors import InvalidConfig, KafkaError, KafkaException, WrongState
from deltaq.groups.offsets import ToCommit
from deltaq.groups.state import Key
from deltaq.message import OFFSET_INVALID, OFFSET_STORED, TopicPartition
from deltaq.serde.schema import TopicSchema


@dataclass(frozen=True, slots=True)
class HeldProgress:
    """How far the application has come in a partition: the position after the last record that a
    call has returned, and the offset of the first accepted record that none has; each None if there
    is none.
    """

    position: Position | None
    first_accepted: int | None
    paused: bool
    epoch: int


class Assignment:
    """The partitions of one consumer. For the application's thread; the offset committer also calls
    `stored`.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        accepted: AcceptedBatches,
        schema_of: Callable[[str], TopicSchema | None],
        store_on_delivery: bool,
        join_bytes_max: int | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._accepted = accepted
        self._schema_of = schema_of
        self._store_on_delivery = store_on_delivery
        self._join_bytes_max = join_bytes_max
        self._held: dict[Key, TopicPartitionState] = {}
        self._to_assign: Mapping[Key, int] | None = None
        # Partitions to set in the fetcher, and where; None for the first record that was not
        # returned.
        self._to_set: dict[Key, Position | None] = {}
        self._paused: set[Key] = set()  # also partitions that are not assigned now
        self._had: set[str] = set()  # topics of which a partition was ever assigned
        # For transactions: where each partition was when its offset was sent last; where `seek` has
        # moved those that were further; and partitions that were removed when they were further.
        self._sent: dict[Key, Position] = {}
        self._moved: dict[Key, int] = {}
        self._unsent: set[Key] = set()

    # --- which partitions ---

    def partitions(self) -> list[TopicPartition]:
        """The assigned partitions, sorted, each with the offset that `assign` was given, as in
        `confluent_kafka`.
        """
        given = self._to_assign
        if given is None:
            given = {key: held.assigned_at for key, held in self._held.items()}
        return [TopicPartition(*key, _assigned_at(given[key])) for key in sorted(given)]

    def set(self, wanted: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions, each from its offset: a number or an OFFSET_
        constant.
        """
        to_assign = {(tp.topic, tp.partition): tp.offset for tp in wanted}
        self._had.update(topic for topic, _ in to_assign)
        self._note_removed(self._held)
        self._accepted.batch = None
        self._to_assign = to_assign
        self.apply_changes()

    def add(self, wanted: Iterable[TopicPartition]) -> None:
        """Add partitions, each from its offset."""
        self.apply_changes()
        for tp in wanted:
            key = tp.topic, tp.partition
            self._had.add(tp.topic)
            self._start(
                key,
                tp.offset,
                TopicPartitionState(-1, _assigned_at(tp.offset), paused=key in self._paused),
            )

    def remove(self, unwanted: Iterable[TopicPartition]) -> None:
        """Remove partitions."""
        self.apply_changes()
        for tp in unwanted:
            key = tp.topic, tp.partition
            self._note_removed([key])
            self._accepted.batch = None
            self._to_set[key] = None
            self._held.pop(key, None)
            self.apply_changes()

    def follow(
        self, named: Set[str], matched: Set[str] = frozenset(), more: Iterable[str] = ()
    ) -> None:
        """Follow the logs of these topics, of assigned topics, and of `more` topics that are about
        to be assigned.

        A topic that is only `matched` is never created.
        """
        self.apply_changes()
        assigned = {topic for topic, _ in self._held} | set(more)
        self._fetcher.follow(named | matched | assigned, (named | assigned) - (matched - named))

    def holds(self, topic: str, partition: int) -> bool:
        """Whether a partition is assigned."""
        self.apply_changes()
        return (topic, partition) in self._held

    def not_assigned(self, topic: str, partition: int) -> KafkaException:
        """The error about a partition whose offset cannot be stored, with the code that Kafka's
        client has for it.
        """
        reason = f"store_offsets: {topic}[{partition}] is not assigned to this consumer"
        if topic in self._had:
            return WrongState(reason)
        return KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, reason))

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
                reason = (
                    f"{tp.topic} [{tp.partition}] can't be unassigned since it is not in the "
                    "current assignment"
                )
                raise InvalidConfig(reason, key="partitions")

    # --- positions ---

    def position(self, topic: str, partition: int) -> int:
        """The offset after the last record that a call has returned; OFFSET_INVALID if none was
        returned.
        """
        position = self._position((topic, partition))
        return OFFSET_INVALID if position is None else position[0]

    def topic_id(self, topic: str, partition: int) -> str | None:
        """The id of the topic whose record the partition returned last; None if none was
        returned.
        """
        position = self._position((topic, partition))
        return None if position is None else position[1]

    def topic_ids(self) -> dict[Key, str]:
        """As `topic_id`, for each partition that has returned a record."""
        positions = ((key, of.position) for key, of in self.progress().items())
        return {
            key: position[1]
            for key, position in positions
            if position is not None and position[1] is not None
        }

    def _position(self, key: Key) -> Position | None:
        held = self._held.get(key)
        return None if held is None else self._accepted.positions().get(id(held), held.position)

    def _note_removed(self, keys: Iterable[Key]) -> None:
        """Note which of these partitions, about to be removed, have returned messages whose offsets
        were not sent.
        """
        for key in keys:
            if self._is_unsent(key):
                self._unsent.add(key)
            self._moved.pop(key, None)

    def _is_unsent(self, key: Key) -> bool:
        """Whether a partition has returned messages whose offsets were not sent."""
        position = self._position(key)
        return key in self._moved or (position is not None and position != self._sent.get(key))

    def unsent(self) -> list[TopicPartition]:
        """The partitions that were removed after they had returned messages whose offsets were not
        sent to a transaction.
        """
        return [TopicPartition(*key) for key in sorted(self._unsent)]

    def to_send(self) -> list[TopicPartition]:
        """For each partition the offset to send to a transaction: after the last message that it
        has returned, or what `seek` was given since, perhaps an OFFSET_ constant; OFFSET_INVALID if
        there is nothing to send.
        """
        at = {key: of.position for key, of in self.progress().items()}
        return [
            TopicPartition(
                *key, self._moved.get(key, OFFSET_INVALID) if position is None else position[0]
            )
            for key, position in sorted(at.items())
        ]

    def mark_sent(self) -> None:
        """Note that the offsets of all messages returned so far were sent, or that the messages
        will be returned again.
        """
        positions = ((key, self._position(key)) for key in self._held)
        self._sent = {key: position for key, position in positions if position is not None}
        self._moved, self._unsent = {}, set()

    def progress(self) -> dict[Key, HeldProgress]:
        """How far the application has come in each partition. For any thread; does no I/O."""
        held_now, first = tuple(self._held.items()), self._accepted.first_offsets()
        # Before `position` is read: dropping a batch moves its position there.
        positions = self._accepted.positions()
        return {
            key: HeldProgress(
                positions.get(id(held), held.position), first.get(key), held.paused, held.epoch
            )
            for key, held in held_now
        }

    def store(self, entry: ToCommit) -> None:
        """Store an offset to commit for an assigned partition."""
        wanted = entry.wanted
        self._held[wanted.topic, wanted.partition].stored = (
            (wanted.offset, entry.topic_id),
            wanted.metadata,
        )

    def stored(self) -> list[ToCommit]:
        """The offsets that may be committed."""
        held_now = tuple(self._held.items())
        # Before `position` is read: dropping a batch moves its position there.
        positions = self._accepted.positions()
        return [
            ToCommit(TopicPartition(topic, partition, offset, metadata), topic_id)
            for (topic, partition), held in held_now
            if (found := self._stored(held, positions)) is not None
            for (offset, topic_id), metadata in [found]
        ]

    def _stored(
        self, held: TopicPartitionState, positions: Mapping[int, Position]
    ) -> tuple[Position, str | None] | None:
        position = positions.get(id(held), held.position) if self._store_on_delivery else None
        return held.stored if position is None else (position, None)

    def with_others(self, committed: list[TopicPartition]) -> list[TopicPartition]:
        """The results of a commit, and the other assigned partitions with OFFSET_INVALID,
        sorted.
        """
        others = set(self._held) - {(tp.topic, tp.partition) for tp in committed}
        return sorted([*committed, *(TopicPartition(*key, OFFSET_INVALID) for key in others)])

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue at another offset: a number or an OFFSET_ constant. Raises WrongState if it is
        not assigned.
        """
        self.apply_changes()
        key = topic, partition
        old = self._held.get(key)
        if old is None:
            raise WrongState(f"seek: {topic}[{partition}] is not assigned to this consumer")
        # Else a transaction would commit the output of these messages without their offsets.
        if self._is_unsent(key):
            self._moved[key] = offset
        # A new object: messages taken before the seek must not move the position after it.
        stored = self._stored(old, self._accepted.positions())
        self._start(key, offset, TopicPartitionState(-1, old.assigned_at, None, stored, old.paused))

    def pause(self, topic: str, partition: int) -> None:
        """Return nothing from a partition until it is resumed, not even accepted records, nor after
        it was assigned again: a rebalance must not undo what the application has paused.
        """
        self.apply_changes()
        held = self._held.get((topic, partition))
        if held is not None:
            self._paused.add((topic, partition))
            self._accepted.batch = None
            self._to_set[topic, partition] = None
            held.paused = True
            self.apply_changes()

    def resume(self, topic: str, partition: int) -> None:
        """Continue where the partition was paused."""
        self._paused.discard((topic, partition))
        self.apply_changes()
        held = self._held.get((topic, partition))
        if held is not None and held.paused:
            self._accepted.batch = None
            self._to_set[topic, partition] = held.resume_at
            held.resume_at = None
            held.paused = False
            self.apply_changes()

    def _start(self, key: Key, offset: int, held: TopicPartitionState) -> None:
        self._accepted.batch = None
        self._to_set[key] = offset, None
        self._held[key] = held
        self.apply_changes()

    # --- changes for the fetcher ---

    def apply_changes(self) -> None:
        """Apply the recorded changes to the fetcher. Every step is idempotent: an interrupted one
        is repeated.
        """
        if self._to_assign is not None:
            given = self._to_assign
            epochs = self._fetcher.assign(given)
            # Events of a topic or of the group are kept.
            self._accepted.drop(lambda batch: batch.key[1] >= 0)
            paused = self._paused & given.keys()
            self._to_set = dict.fromkeys(paused)
            self._held = {
                key: TopicPartitionState(epoch, _assigned_at(given[key]), paused=key in paused)
                for key, epoch in epochs.items()
            }
            self._to_assign = None
        while self._to_set:
            key = next(iter(self._to_set))
            self._apply_change(key)
            del self._to_set[key]

    def _apply_change(self, key: Key) -> None:
        held = self._held.get(key)
        # The partition was removed: nothing of it may be fetched or returned any more.
        if held is None:
            self._fetcher.drop(*key)
            self._accepted.drop(lambda batch: batch.key == key)
            return
        position = self._to_set[key] or self._accepted.first_position(key)
        # None if nothing of the partition is accepted. The fetcher is then where reading continues,
        # and only the pause changes.
        if position is not None:
            offset, topic_id = position
            held.epoch = self._fetcher.seek(*key, offset, topic_id)
            held.joining = None
            self._accepted.drop(lambda batch: batch.key == key)
        self._fetcher.pause(*key, held.paused)

    # --- fetched records ---

    def is_current(self, topic: str, partition: int, epoch: int) -> bool:
        """Whether `epoch` is the current epoch of the partition, so that items of it are not
        stale.
        """
        held = self._held.get((topic, partition))
        return held is not None and held.epoch == epoch

    def accept(self, item: CompletedFetch) -> None:
        """Accept fetched records, unless they are accepted already. Stale records are dropped."""
        key = item.topic, item.partition
        held = self._held.get(key)
        # This can happen when the partition was revoked, assigned anew or moved by `seek` after the
        # fetch.
        if held is None or held.epoch != item.epoch:
            return
        if held.paused:
            # Only the first dropped record counts: reading continues there after `resume`.
            if held.resume_at is None:
                held.resume_at = item.fetched.first_offset, item.definition.topic_id
            return
        schema = self._schema_of(item.topic) or item.definition.schema
        records = DecodedRecords(item.topic, item.definition.topic_id, item.fetched, schema)
        # A typed topic has no pieces of large messages.
        if self._join_bytes_max is None or schema is not None:
            self._accepted.append(RecordBatch(item, key, records.count, held, records))
        else:
            self._accept_joined(item, held, records, self._join_bytes_max)

    def _accept_joined(
        self,
        item: CompletedFetch,
        held: TopicPartitionState,
        records: DecodedRecords,
        bytes_max: int,
    ) -> None:
        """Accept records with the pieces of large messages joined. Idempotent: an interrupted call
        is repeated.
        """
        key, state = (item.topic, item.partition), held.joining or FRESH
        # This can happen when a signal handler ended the call that accepted this item, before the
        # queue removed it.
        if state.position is not None and item.fetched.next_offset <= state.position:
            return
        found = joined(state, records, bytes_max)
        if isinstance(found, BeginEarlier):
            live = self._fetcher.seen(item.topic)
            # Read again from the first piece. If retention has removed it, the message is lost,
            # which is reported below.
            if live is not None and found.offset >= live.head.start_offsets[item.partition]:
                self._to_set[key] = found.offset, records.topic_id
                self.apply_changes()
                held.joining = Joining(moved_back=True)
                return
            state = Joining(moved_back=True)
            found = joined(state, records, bytes_max)
            assert not isinstance(found, BeginEarlier)  # noqa: S101 - the state says so
        after, parts = found
        batches: list[AcceptedBatch] = [
            (
                RecordBatch(item, key, part.count, held, part)
                if isinstance(part, JoinedRecords)
                else SkippedRecords(
                    item, key, 1, held, part.event, (part.position, records.topic_id)
                )
            )
            for part in parts
        ]
        self._accepted.append(*batches)
        held.joining = after


def _assigned_at(offset: int) -> int:
    """The offset that `partitions` shows for one given to `assign`: the default means the committed
    offset.
    """
    return OFFSET_STORED if offset == OFFSET_INVALID else offset
