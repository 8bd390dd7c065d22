"""The offset committer of a consumer: synchronous, asynchronous and periodic (`auto.commit.interval.ms`) commits."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from deltaq.clock import Clock, Thread, this_thread
from deltaq.delta.table_state import TableState
from deltaq.errors import KafkaError, KafkaException, UnknownTopic
from deltaq.groups.fencing import Claim
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.pending import PENDING_BYTES_MAX, PendingOffsets
from deltaq.groups.shown_offsets import ShownOffsets
from deltaq.groups.state import GroupHead
from deltaq.message import TopicPartition

_log = logging.getLogger("deltaq.groups")

HandOver: TypeAlias = "Callable[[GroupHead, Claim], GroupHead | None]"
"""A change of the membership on behalf of a member; None if nothing is left to do."""

_Result = TypeVar("_Result")

COMMIT_TIMEOUT_S = 60.0

WAIT_MAX_S = 60.0
"""Longest uninterrupted wait. A finalizer that runs in the thread itself just before it waits cannot wake it."""


@dataclass(frozen=True, slots=True)
class ToCommit:
    """An offset to commit, with the id of its topic; None for the topic that has the name now."""

    wanted: TopicPartition
    topic_id: str | None

    @property
    def key(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.wanted.topic, self.wanted.partition

    def located(self, topic_id: str) -> CommittedOffset:
        """The offset as the group's log has it."""
        wanted = self.wanted
        return CommittedOffset(wanted.topic, topic_id, wanted.partition, wanted.offset, wanted.metadata)


@dataclass(eq=False)
class OffsetCommitter:
    """Commits offsets for one consumer, in the order of the calls.

    `claim()` is None for a consumer that uses `assign`. `topic(name)` returns a topic's id and number of
    partitions, or None if it does not exist. `on_result(error, partitions)` gets the result of every asynchronous and
    periodic commit; `interval_s` is infinite without periodic commits.

    The leader of a group makes the periodic commits of all members (`groups/pending.py`): the membership's thread calls
    `pending` for each heartbeat, and `commit_pending` in the leader. What the leader has not committed after
    `SHARED_BEATS` heartbeats is committed here (`groups/shown_offsets.py`).
    """

    _log: GroupLog
    _claim: Callable[[], Claim | None]
    _topic: Callable[[str], tuple[str, int] | None]
    _stored: Callable[[], list[ToCommit]]
    _on_result: Callable[[KafkaError | None, list[TopicPartition]], None]
    _interval_s: float
    _clock: Clock
    _heartbeat_interval_s: float = float("inf")
    _queue: deque[tuple[Sequence[ToCommit], Claim | None]] = field(default_factory=deque)
    _last: dict[tuple[str, int], tuple[str | None, int]] = field(default_factory=dict)
    _read: tuple[TableState, GroupHead] | None = None  # the group as last read
    _to_lead: dict[str, PendingOffsets] = field(default_factory=dict)  # by member
    _is_to_lead: bool = False
    _is_committing: bool = False
    _due_at: float = float("inf")
    _closing: bool = False
    _own_thread: int | None = None
    _thread: Thread | None = None

    def __post_init__(self) -> None:
        self._changed = self._clock.condition()  # its lock guards what heartbeats show
        self._shown = ShownOffsets(self._interval_s, self._heartbeat_interval_s)
        self._commit_lock = self._clock.lock()  # held while committing

    def begin(self) -> None:
        """Start the thread, unless it runs. The consumer must hold the committer before, to end it in any case."""
        if self._thread is None:
            self._thread = self._clock.start_thread(self._run, f"deltaq-commit-offsets-{self._log.group}")

    def commit(self, offsets: Sequence[ToCommit]) -> list[TopicPartition]:
        """Commit synchronously, after all queued commits. A result has its `error` set if its topic or partition does
        not exist. Raises UnknownTopic if none of them exists, Fenced, Unavailable, OutcomeUnknown."""
        return self._in_turn(lambda: self._commit(offsets, self._claim(), wait=True))

    def commit_later(self, offsets: Sequence[ToCommit]) -> None:
        """Queue a commit for the background thread."""
        with self._changed:
            self._queue.append((offsets, self._claim()))
            self._changed.notify_all()

    def commit_stored(self, *, wait: bool = False) -> None:
        """Commit the stored offsets not committed yet, synchronously, and report to `on_result`. `wait` is that of
        `GroupLog.commit`."""

        def commit() -> None:
            if new := self.uncommitted():
                self._commit_and_report(new, self._claim(), wait=wait)

        self._in_turn(commit)

    def hand_over(self, operation: str, plan: HandOver, *, commit_stored: bool) -> None:
        """Change the group's membership on behalf of the consumer, after all queued commits. With `commit_stored`, the
        stored offsets not committed yet are in the same entry. Raises what `GroupLog.change` raises."""

        def change(claim: Claim, new: Sequence[ToCommit]) -> list[TopicPartition]:
            results, known = self._located(new) if new else ([], [])
            self._log.change(operation, claim, lambda head: plan(head, claim), self._deadline(), known)
            self._note(new, known)
            return results

        def hand_over() -> None:
            if (claim := self._claim()) is not None:
                new = self.uncommitted() if commit_stored else []
                self._report(lambda: change(claim, new), new)

        self._in_turn(hand_over)

    def finish_queued(self) -> None:
        """Make all queued commits, synchronously."""
        self._in_turn(lambda: None)

    def uncommitted(self) -> list[ToCommit]:
        """The stored offsets that are not committed yet, or of a partition of which the leader may still commit others
        that were shown to it."""
        return [
            entry
            for entry in self._stored()
            if self._last.get(entry.key) != (entry.topic_id, entry.wanted.offset)
            or (self._shown and entry.located(entry.topic_id or "").app_id in self._shown)
        ]

    def forget(self) -> None:
        """Forget which offsets were committed: another consumer may now own the partitions and commit others."""
        with self._changed:
            self._last.clear()
            self._shown.clear()

    def close(self) -> None:
        """Make all queued commits, end the thread and wait for it."""
        if (thread := self.abandon()) is not None:
            thread.join()

    def abandon(self) -> Thread | None:
        """Let the thread make all queued commits and end soon, and return it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        return self._thread

    # --- offsets that the leader of the group commits ---

    def pending(self, member_id: str) -> PendingOffsets | None:
        """The offsets that the next heartbeat of this member shows to the leader. None while an own commit is under
        way: its order relative to theirs would be open."""
        with self._changed:
            if self._is_committing or self._queue or self._closing:
                return None
            return self._to_show(member_id)

    def commit_pending(self, pending: Sequence[PendingOffsets]) -> None:
        """Let the thread commit these offsets of other members, and those of this consumer, in one entry."""
        with self._changed:
            self._to_lead |= {of_member.member_id: of_member for of_member in pending}
            self._is_to_lead = True
            self._changed.notify_all()

    def _to_show(self, member_id: str) -> PendingOffsets | None:
        now, claim = self._clock.monotonic(), self._claim()
        if claim is None or claim.member_id != member_id or not self._shown.is_possible(now):
            return None
        read = self._note_shared(claim)
        new = self.uncommitted()
        located = tuple(entry.located(entry.topic_id) for entry in new if entry.topic_id)
        if read is None or len(located) < len(new):
            return None
        pending = PendingOffsets(member_id, claim.generation, read.version, located)
        if len(pending.encoded()) > PENDING_BYTES_MAX or not self._shown.show(pending, now):
            return None
        self._changed.notify_all()  # the thread has to commit in time what the leader does not
        return pending

    def _note_shared(self, claim: Claim) -> TableState | None:
        """Note and report which of the offsets that heartbeats have shown are committed. Returns the table in which it
        looked: the newest that any client of this consumer has read, and never an older one than before."""
        try:
            read = self._log.newest_read()
        except KafkaException:  # the membership reads the same, and reports it
            read = None
        if read is not None and (self._read is None or read[0].version > self._read[0].version):
            self._read = read
        if self._read is None:
            return None
        if committed := self._shown.take_committed(*self._read, claim, self._last):
            self._last |= {(of.topic, of.partition): (of.topic_id, of.offset) for of in committed}
            self._shown.rest(self._clock.monotonic())
            self._on_result(None, [TopicPartition(of.topic, of.partition, of.offset, of.metadata) for of in committed])
        return self._read[0]

    def _lead(self) -> None:
        claim = self._claim()
        with self._changed:
            pending, self._to_lead, self._is_to_lead = list(self._to_lead.values()), {}, False
            own = None if claim is None else self._to_show(claim.member_id)
        if claim is None or not (pending or own):
            return
        try:
            deadline = self._clock.monotonic() + self._heartbeat_interval_s
            self._log.commit_pending(claim, [*pending, *([own] if own else [])], deadline)
        except KafkaException as error:  # the next heartbeats show these offsets again
            _log.info("offsets of members not committed group=%r reason=%s", self._log.group, error)
        except Exception:  # noqa: BLE001 - a bug must not end the thread
            _log.exception("committing offsets of members failed group=%r", self._log.group)

    def _overdue_at(self) -> float:
        """When this consumer commits itself what heartbeats show, if the leader does not; infinite if they show
        nothing."""
        return self._shown.overdue_at(entry.located(entry.topic_id or "").app_id for entry in self._stored())

    def _is_due(self) -> bool:
        """Whether this consumer commits its stored offsets itself: periodically, unless heartbeats show them to the
        leader, and if the leader does not commit them."""
        with self._changed:
            claim = self._claim()
            if claim is not None and not self._is_committing:
                self._note_shared(claim)
            now = self._clock.monotonic()
            if now >= self._overdue_at():
                _log.info("the leader does not commit the offsets of this member group=%r", self._log.group)
                self._shown.pause(now)
                return True
            if now < self._due_at:
                return False
            self._due_at = now + self._interval_s
            return not self._shown.is_relied_upon(now)

    # --- own commits ---

    def _in_turn(self, call: Callable[[], _Result]) -> _Result:
        """Run `call` after all queued commits, and no other commit beside it.

        A context manager written in Python would keep the lock if a signal handler raised between its `__enter__` and
        the block.
        """
        with self._commit_lock:
            try:
                with self._changed:
                    self._is_committing = True
                self._commit_queued()
                return call()
            finally:
                with self._changed:
                    self._is_committing = False

    def _commit(self, offsets: Sequence[ToCommit], claim: Claim | None, *, wait: bool) -> list[TopicPartition]:
        results, known = self._located(offsets)
        self._log.commit(claim, known, self._deadline(), wait=wait)
        self._note(offsets, known)
        return results

    def _located(self, offsets: Sequence[ToCommit]) -> tuple[list[TopicPartition], list[CommittedOffset]]:
        """The results of a commit, and the offsets of the topics that exist. Raises UnknownTopic if none does."""
        results, known = [], []
        failure: UnknownTopic | None = None
        for entry in offsets:
            wanted = entry.wanted
            result = TopicPartition(wanted.topic, wanted.partition, wanted.offset, wanted.metadata)
            results.append(result)
            try:
                topic_id = entry.topic_id or self._id_now(wanted)
            except UnknownTopic as error:
                failure, result.error = error, error.error
            else:
                known.append(entry.located(topic_id))
        if failure is not None and not known:
            raise failure
        return results, known

    def _note(self, offsets: Sequence[ToCommit], known: Sequence[CommittedOffset]) -> None:
        with self._changed:
            self._last.update({entry.key: (entry.topic_id, entry.wanted.offset) for entry in offsets})
            self._shown.drop(offset.app_id for offset in known)

    def _deadline(self) -> float:
        return self._clock.monotonic() + COMMIT_TIMEOUT_S

    def _id_now(self, wanted: TopicPartition) -> str:
        found = self._topic(wanted.topic)
        if found is None:
            raise UnknownTopic(wanted.topic)
        topic_id, partitions = found
        if not 0 <= wanted.partition < partitions:
            raise UnknownTopic(wanted.topic, partition=wanted.partition)
        return topic_id

    def _commit_queued(self) -> None:
        while self._queue:
            try:
                self._commit_and_report(*self._queue[0])
            except Exception:  # reported already
                self._queue.popleft()
                raise
            self._queue.popleft()  # last: a commit that Ctrl-C interrupts is made again

    def _commit_and_report(self, offsets: Sequence[ToCommit], claim: Claim | None, *, wait: bool = False) -> None:
        try:
            self._report(lambda: self._commit(offsets, claim, wait=wait), offsets)
        except KafkaException:
            pass  # reported

    def _report(self, commit: Callable[[], list[TopicPartition]], offsets: Sequence[ToCommit]) -> None:
        """Report the result of a commit to `on_result`. Raises the error, unless a bug would end the own thread."""
        try:
            results = commit()
            if offsets:
                self._on_result(None, results)
        except KafkaException as error:
            failed = [entry.wanted for entry in offsets]
            for partition in failed:
                partition.error = error.error
            if failed:
                self._on_result(error.error, failed)
            raise
        except Exception as error:  # a bug, or an exception of a signal handler
            _log.exception("committing offsets failed group=%r", self._log.group)
            self._on_result(KafkaError(KafkaError._FAIL, f"unexpected {type(error).__name__}: {error}"), [])
            if this_thread() != self._own_thread:  # a bug must not end the background thread
                raise

    def _run(self) -> None:
        with self._changed:
            if self._own_thread is not None:
                return  # an interrupted `begin` has already started a thread
            self._own_thread = this_thread()
        self._rest()
        while not self._closing or self._queue:
            with self._changed:
                left = min(self._due_at, self._overdue_at()) - self._clock.monotonic()
                if left > 0 and not self._queue and not self._is_to_lead and not self._closing:
                    self._changed.wait(min(left, WAIT_MAX_S))
            if self._is_to_lead and not self._closing:
                self._in_turn(self._lead)
            if not self._closing and self._is_due():
                self.commit_stored()
                self._rest()
            elif self._queue:
                self.finish_queued()

    def _rest(self) -> None:
        """Begin the interval until the next periodic commit."""
        now = self._clock.monotonic()
        self._due_at = now + self._interval_s
        self._shown.rest(now)
