"""The stored offsets of a consumer: which of them are not committed yet, and who commits them when.

By `enable.auto.commit` the consumer commits them every `auto.commit.interval.ms`. On an object
store the leader of the group does that for all members (`groups/pending.py`): the heartbeats of a
member show it what to commit. What the leader has not committed after `SHARED_BEATS` heartbeats is
due here (`groups/delegated_offsets.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from deltaq.clock import Clock, Lock
from deltaq.delta.table_state import TableState
from deltaq.errors import KafkaError, KafkaException
from deltaq.groups.delegated_offsets import DelegatedOffsets
from deltaq.groups.fencing import Claim
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset, ToCommit
from deltaq.groups.pending import PENDING_BYTES_MAX, PendingOffsets
from deltaq.groups.state import GroupHead, Key
from deltaq.message import TopicPartition

_log = logging.getLogger("deltaq.groups")

OnResult: TypeAlias = "Callable[[KafkaError | None, list[TopicPartition]], None]"
"""Gets the error of a commit or None, and the partitions with their offsets and errors."""


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

    def is_due(self, claim: Claim | None) -> bool:
        """Whether this consumer commits its stored offsets itself: periodically, unless heartbeats
        show them to the leader, and if the leader does not commit them. `claim` is None while it
        commits, and if it uses `assign`.
        """
        if claim is not None:
            self._note_shared(claim)
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

    def to_show(self, claim: Claim) -> PendingOffsets | None:
        """What the next heartbeat of this member shows to the leader."""
        now = self._clock.monotonic()
        if not self._delegated.is_possible(now):
            return None
        read = self._note_shared(claim)
        new = self.uncommitted()
        located = tuple(entry.located(entry.topic_id) for entry in new if entry.topic_id)
        if read is None or len(located) < len(new):
            return None
        pending = PendingOffsets(claim.member_id, claim.generation, read.version, located)
        return (
            pending
            if len(pending.encoded()) <= PENDING_BYTES_MAX and self._delegated.show(pending, now)
            else None
        )

    def _overdue_at(self) -> float:
        """When this consumer commits itself what heartbeats show, if the leader does not; infinite
        if they show nothing.
        """
        return self._delegated.overdue_at(
            entry.located(entry.topic_id or "").app_id for entry in self._stored()
        )

    def _note_shared(self, claim: Claim) -> TableState | None:
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
        if committed := self._delegated.take_committed(*self._read, claim, self._last):
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
