"""The stored offsets of a consumer: which of them are not committed yet, and who commits them when.

By `enable.auto.commit` the consumer commits them every `auto.commit.interval.ms`. On an object
store the leader of the group does that for all members (`groups/offsets.py`): the heartbeats of a
member show it what to commit, and what the leader has not committed after `DELEGATED_BEATS`
heartbeats is due here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from deltaq.clock import Clock, Lock
from deltaq.delta.table_state import TableState
from deltaq.errors import KafkaError, KafkaException
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import (
    PENDING_BYTES_MAX,
    CommittedOffset,
    PendingOffsets,
    ToCommit,
    metadata_fault,
)
from deltaq.groups.state import GroupHead, Key, MemberIdentity
from deltaq.message import TopicPartition

_log = logging.getLogger("deltaq.groups")

OnResult: TypeAlias = "Callable[[KafkaError | None, list[TopicPartition]], None]"
"""Gets the error of a commit or None, and the partitions with their offsets and errors."""

DELEGATED_BEATS = 4
"""Heartbeat intervals for which a member waits for the leader to commit its offsets: one until the
next heartbeat, one until the leader reads it, one for the commit and the read of its entry, and one
to spare.
"""

RETRY_DELEGATION_S = 30.0
"""How long a member then commits its offsets itself before it delegates them to the leader again.
"""


@dataclass(eq=False)
class StoredOffsets:
    """`stored()` returns the offsets that may be committed, `on_result` gets those that the leader
    has committed. `interval_s` is infinite without periodic commits.

    `lock` is the offset committer's: `note_committed` and `forget` take it; the methods of periodic
    commits are called with it.
    """

    _log: GroupLog
    _stored: Callable[[], list[ToCommit]]
    _on_result: OnResult
    _interval_s: float
    _heartbeat_interval_s: float
    _clock: Clock
    _lock: Lock
    # Topic id and offset that are committed.
    _last: dict[Key, tuple[str | None, int]] = field(default_factory=dict)
    _read: tuple[TableState, GroupHead] | None = None  # the group as last read
    _due_at: float = float("inf")

    def __post_init__(self) -> None:
        self._delegated = DelegatedOffsets(self._interval_s, self._heartbeat_interval_s)

    def uncommitted(self) -> list[ToCommit]:
        """The stored offsets that are not committed yet, or of a partition of which the leader may
        still commit others that were shown to it.
        """
        return [
            entry
            for entry in self._stored()
            if self._last.get(entry.key) != (entry.topic_id, entry.wanted.offset)
            or (self._delegated and entry.located(entry.topic_id or "").app_id in self._delegated)
        ]

    def note_committed(
        self, offsets: Sequence[ToCommit], located: Sequence[CommittedOffset]
    ) -> None:
        """This consumer has committed these offsets; `located` are those of topics that exist."""
        with self._lock:
            self._last.update(
                {entry.key: (entry.topic_id, entry.wanted.offset) for entry in offsets}
            )
            self._delegated.drop(offset.app_id for offset in located)

    def forget(self) -> None:
        """Forget which offsets were committed: another consumer may now own the partitions and
        commit others.
        """
        with self._lock:
            self._last.clear()
            self._delegated.clear()

    # --- periodic commits ---

    def rest(self) -> None:
        """Begin the interval until the next periodic commit."""
        now = self._clock.monotonic()
        self._due_at = now + self._interval_s
        self._delegated.rest(now)

    def due_at(self) -> float:
        """When `is_due` may be true next, a time of `Clock.monotonic`."""
        return min(self._due_at, self._overdue_at())

    def is_due(self, identity: MemberIdentity | None) -> bool:
        """Whether this consumer commits its stored offsets itself: periodically, unless heartbeats
        show them to the leader, and if the leader does not commit them. `identity` is None while it
        commits, and if it uses `assign`.
        """
        if identity is not None:
            self._note_delegated(identity)
        now = self._clock.monotonic()
        if now >= self._overdue_at():
            _log.info(
                "the leader does not commit the offsets of this member group=%r", self._log.group
            )
            self._delegated.pause(now)
            return True
        if now < self._due_at:
            return False
        self._due_at = now + self._interval_s
        return not self._delegated.is_relied_upon(now)

    def to_delegate(self, identity: MemberIdentity) -> PendingOffsets | None:
        """What the next heartbeat of this member shows to the leader."""
        now = self._clock.monotonic()
        if not self._delegated.is_possible(now):
            return None
        read = self._note_delegated(identity)
        new = self.uncommitted()
        located = tuple(
            entry.located(entry.topic_id)
            for entry in new
            if entry.topic_id and metadata_fault(entry.wanted) is None
        )
        # The leader could not tell whether they are void: they need the version that was read, and
        # the ids of their topics. This consumer reports those that are refused.
        if read is None or len(located) < len(new):
            return None
        pending = PendingOffsets(identity.member_id, identity.generation, read.version, located)
        return (
            pending
            if len(pending.encoded()) <= PENDING_BYTES_MAX
            and self._delegated.delegate(pending, now)
            else None
        )

    def _overdue_at(self) -> float:
        """When this consumer commits itself what heartbeats show, if the leader does not; infinite
        if they show nothing.
        """
        return self._delegated.overdue_at(
            entry.located(entry.topic_id or "").app_id for entry in self._stored()
        )

    def _note_delegated(self, identity: MemberIdentity) -> TableState | None:
        """Note and report which of the offsets that heartbeats have shown are committed. Returns
        the table in which it looked: the newest that any client of this consumer has read, and
        never an older one than before.
        """
        try:
            read = self._log.newest_read()
        except KafkaException:  # the membership reads the same, and reports it
            read = None
        if read is not None and (self._read is None or read[0].version > self._read[0].version):
            self._read = read
        if self._read is None:
            return None
        if committed := self._delegated.take_committed(*self._read, identity, self._last):
            self._last |= {(of.topic, of.partition): (of.topic_id, of.offset) for of in committed}
            self._delegated.rest(self._clock.monotonic())
            self._on_result(
                None,
                [
                    TopicPartition(of.topic, of.partition, of.offset, of.metadata)
                    for of in committed
                ],
            )
        return self._read[0]


@dataclass(frozen=True, slots=True)
class _Delegated:
    """Heartbeats delegate offsets of a partition, the last of which is `newest`: the first one
    since `at` (`Clock.monotonic`), of `generation`, when the member had read the log up to version
    `after`.
    """

    newest: CommittedOffset
    at: float
    generation: int
    after: int


@dataclass(eq=False)
class DelegatedOffsets:
    """The partitions whose offsets heartbeats have delegated, and the log has not had since. Not
    thread-safe.

    The leader may still commit one of these offsets, even after the member has gone back to the
    offset committed before. So such a partition does not count as committed: the next offset in the
    log voids all that was delegated.

    Times are of `Clock.monotonic`, in seconds. `interval_s` is that of the periodic commits,
    infinite without any.
    """

    _interval_s: float
    _beat_s: float
    _delegated: dict[str, _Delegated] = field(default_factory=dict)  # by app id
    _delegate_from: float = float("-inf")
    _paused_until: float = float("-inf")
    _relied_until: float = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._delegated)

    def __contains__(self, app_id: str) -> bool:
        return app_id in self._delegated

    def is_possible(self, now: float) -> bool:
        """Whether heartbeats are frequent enough for the periodic commits, and the leader has not
        failed lately.
        """
        return self._beat_s <= self._interval_s < float("inf") and now >= self._paused_until

    def is_relied_upon(self, now: float) -> bool:
        """Whether the leader, and not the member itself, makes the periodic commits."""
        return now < self._relied_until

    def rest(self, now: float) -> None:
        """The member's offsets are committed: heartbeats delegate the next ones shortly before
        these are due.
        """
        self._delegate_from = now + self._interval_s - 2 * self._beat_s

    def delegate(self, pending: PendingOffsets, now: float) -> bool:
        """Whether the next heartbeat delegates these offsets."""
        self._relied_until = now + DELEGATED_BEATS * self._beat_s
        if not pending.offsets or (not self._delegated and now < self._delegate_from):
            return False
        for offset in pending.offsets:
            first = self._delegated.get(offset.app_id) or _Delegated(
                offset, now, pending.generation, pending.after
            )
            self._delegated[offset.app_id] = replace(first, newest=offset)
        return True

    def overdue_at(self, app_ids: Iterable[str]) -> float:
        """When the member has to commit these partitions itself; infinite if heartbeats delegate
        none of them.
        """
        first = min(
            (self._delegated[app_id].at for app_id in app_ids if app_id in self._delegated),
            default=float("inf"),
        )
        return first + DELEGATED_BEATS * self._beat_s if self._delegated else float("inf")

    def pause(self, now: float) -> None:
        """The leader does not commit what is delegated to it."""
        self._relied_until, self._paused_until = float("-inf"), now + RETRY_DELEGATION_S
        self._delegated = {
            app_id: replace(delegated, at=self._paused_until)
            for app_id, delegated in self._delegated.items()
        }

    def drop(self, app_ids: Iterable[str]) -> None:
        """The member itself has committed these partitions."""
        for app_id in app_ids:
            self._delegated.pop(app_id, None)

    def clear(self) -> None:
        """The assignment has ended: in the next generation all that was delegated is void."""
        self._delegated.clear()

    def take_committed(
        self,
        state: TableState,
        head: GroupHead,
        identity: MemberIdentity,
        last: Mapping[tuple[str, int], tuple[str | None, int]],
    ) -> list[CommittedOffset]:
        """Forget the partitions whose offsets the log has since, and return these offsets.

        All of them are this member's: it still owns the partition, as it did in the generation that
        was delegated. What was delegated of other partitions is void for ever, and forgotten too.
        `last` has the topic id and offset that this member has last seen committed of each
        partition, which tells new from old offsets of a checkpoint.
        """
        found = []
        for app_id, delegated in list(self._delegated.items()):
            key = delegated.newest.topic, delegated.newest.partition
            owner, txn = head.owners.get(key), state.txns.get(app_id)
            # This state says nothing of them: the member had read further as it delegated them.
            if state.version <= delegated.after:
                continue
            if (
                owner is None
                or owner.member_id != identity.member_id
                or owner.since > delegated.generation
            ):
                del self._delegated[app_id]
            elif txn is not None and _is_new(state, app_id, delegated, last.get(key)):
                del self._delegated[app_id]
                metadata = (
                    delegated.newest.metadata if txn.version == delegated.newest.offset else None
                )
                found.append(replace(delegated.newest, offset=txn.version, metadata=metadata))
        return found


def _is_new(
    state: TableState, app_id: str, delegated: _Delegated, last: tuple[str | None, int] | None
) -> bool:
    """Whether the committed offset of a partition is of an entry after `delegated.after`. Of one
    that comes from a checkpoint only the offset itself can say so, by not being the `last` one.
    """
    slot = state.txn_slots.get(app_id)
    if slot is not None:
        return slot > delegated.after
    return state.restored_version > delegated.after and last != (
        delegated.newest.topic_id,
        state.txns[app_id].version,
    )
