"""The offset committer of a consumer: synchronous, asynchronous and periodic
(`auto.commit.interval.ms`) commits, each one entry of the group's log.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from deltaq.clock import Clock, Thread
from deltaq.errors import KafkaError, KafkaException, UnknownTopic
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset, PendingOffsets, ToCommit, metadata_fault
from deltaq.groups.state import GroupHead, MemberIdentity
from deltaq.groups.stored_offsets import OnResult, StoredOffsets
from deltaq.message import TopicPartition

R = TypeVar("R")

WAIT_MAX_S = 60.0
"""Longest uninterrupted wait. A finalizer that runs in the thread itself just before it waits
cannot wake it.
"""

_log = logging.getLogger("deltaq.groups")

HandOver: TypeAlias = "Callable[[GroupHead, MemberIdentity], GroupHead | None]"
"""A change of the membership on behalf of a member; None if nothing is left to do."""

COMMIT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class _CommitRequest:
    """Offsets to commit on behalf of a member, or of a consumer that uses `assign`: then `identity`
    is None. `wait` is that of `GroupLog.commit`.
    """

    offsets: Sequence[ToCommit]
    identity: MemberIdentity | None
    wait: bool = False


class OffsetCommitter:
    """Commits offsets for one consumer, in the order of the calls, and on its own thread what is
    queued or due.

    `identity()` is None for a consumer that uses `assign`. `topic(name)` returns a topic's id and
    number of partitions, or None if it does not exist. `on_result(error, partitions)` gets the
    result of every asynchronous and periodic commit; `interval_s` is infinite without periodic
    commits. `stored` are the stored offsets, and which of them are not committed.

    The membership's thread calls `pending` for each heartbeat, and `commit_pending` in the leader
    of a group, which makes the periodic commits of all members.
    """

    def __init__(
        self,
        log: GroupLog,
        identity: Callable[[], MemberIdentity | None],
        topic: Callable[[str], tuple[str, int] | None],
        stored: Callable[[], list[ToCommit]],
        on_result: OnResult,
        interval_s: float,
        clock: Clock,
        heartbeat_interval_s: float = float("inf"),
    ) -> None:
        self._log = log
        self._group = log.group
        self._identity = identity
        self._topic = topic
        self._on_result = on_result
        self._heartbeat_interval_s = heartbeat_interval_s
        self._clock = clock
        self._commit_lock = clock.lock()  # held while committing
        # Its lock guards what heartbeats show, and the flags and queues below.
        self._changed = clock.condition()
        self.stored = StoredOffsets(
            log, stored, on_result, interval_s, heartbeat_interval_s, clock, self._changed
        )
        self._queue: deque[_CommitRequest] = deque()
        # By member; None if the leader has nothing to do.
        self._to_lead: dict[str, PendingOffsets] | None = None
        self._is_committing = False
        self._closing = False
        self._is_running = False
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Start the thread, unless it runs. The consumer must hold the committer before, to end it
        in any case.
        """
        if self._thread is None:
            self._thread = self._clock.start_thread(
                self._run, f"deltaq-commit-offsets-{self._group}"
            )

    def commit(self, offsets: Sequence[ToCommit]) -> list[TopicPartition]:
        """Commit synchronously, after all queued commits. Returns the partitions, each with its
        `error` set if its topic or partition does not exist, or if its metadata is too long. Raises
        the last of these errors if each has one, Fenced, Unavailable, OutcomeUnknown.
        """
        return self._in_turn(
            lambda: self._send(_CommitRequest(offsets, self._identity(), wait=True))
        )

    def commit_later(self, offsets: Sequence[ToCommit]) -> None:
        """Queue a commit for the background thread."""
        with self._changed:
            self._queue.append(_CommitRequest(offsets, self._identity()))
            self._changed.notify_all()

    def commit_stored(self, *, wait: bool = False) -> None:
        """Commit the stored offsets not committed yet, synchronously, and report to `on_result`.
        `wait` is that of `GroupLog.commit`.
        """

        def commit() -> None:
            if new := self.stored.uncommitted():
                self._send_and_report(_CommitRequest(new, self._identity(), wait))

        self._in_turn(commit)

    def hand_over(self, operation: str, plan: HandOver, *, commit_stored: bool) -> None:
        """Change the group's membership on behalf of the consumer, after all queued commits. With
        `commit_stored`, the stored offsets not committed yet are in the same entry. Raises what
        `GroupLog.change` raises.
        """

        def hand_over() -> None:
            if (identity := self._identity()) is not None:
                new = self.stored.uncommitted() if commit_stored else []
                self._change(operation, plan, identity, new)

        self._in_turn(hand_over)

    def finish_queued(self) -> None:
        """Make all queued commits, synchronously."""
        self._in_turn(lambda: None)

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

    # --- what the membership's thread calls ---

    def pending(self, member_id: str) -> PendingOffsets | None:
        """The offsets that the next heartbeat of this member shows to the leader. None while an own
        commit is under way: its order relative to theirs would be open.
        """
        with self._changed:
            identity = self._identity()
            if (
                self._is_committing
                or self._queue
                or self._closing
                or identity is None
                or identity.member_id != member_id
            ):
                return None
            if (pending := self.stored.to_delegate(identity)) is not None:
                # The thread has to commit in time what the leader does not.
                self._changed.notify_all()
            return pending

    def commit_pending(self, pending: Sequence[PendingOffsets]) -> None:
        """Let the thread commit these offsets of other members, and those of this consumer, in one
        entry.
        """
        with self._changed:
            self._to_lead = (self._to_lead or {}) | {
                of_member.member_id: of_member for of_member in pending
            }
            self._changed.notify_all()

    # --- one commit after the other ---

    def _in_turn(self, call: Callable[[], R]) -> R:
        """Run `call` after all queued commits, and no other commit beside it.

        A context manager written in Python would keep the lock if a signal handler raised between
        its `__enter__` and the block.
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

    def _commit_queued(self) -> None:
        while self._queue:
            try:
                self._send_and_report(self._queue[0])
            except Exception:  # reported already
                self._queue.popleft()
                raise
            self._queue.popleft()  # last: a commit that Ctrl-C interrupts is made again

    # --- one commit ---

    def _send(self, request: _CommitRequest) -> list[TopicPartition]:
        """Commit; returns and raises as `commit`."""
        results, located = self._located(request.offsets)
        self._log.commit(request.identity, located, self._deadline(), wait=request.wait)
        self.stored.note_committed(request.offsets, located)
        return results

    def _send_and_report(self, request: _CommitRequest) -> None:
        """Commit, and report the result. Raises nothing but the exception of a bug or of a signal
        handler.
        """
        try:
            self._report(request.offsets, lambda: self._send(request))
        except KafkaException:
            pass  # reported

    def _change(
        self, operation: str, plan: HandOver, identity: MemberIdentity, offsets: Sequence[ToCommit]
    ) -> None:
        """Change the membership, commit these offsets in the same entry, and report their result.
        Raises what `GroupLog.change` raises.
        """

        def change() -> list[TopicPartition]:
            results, located = self._located(offsets) if offsets else ([], [])
            self._log.change(
                operation, identity, lambda head: plan(head, identity), self._deadline(), located
            )
            self.stored.note_committed(offsets, located)
            return results

        self._report(offsets, change)

    def _located(
        self, offsets: Sequence[ToCommit]
    ) -> tuple[list[TopicPartition], list[CommittedOffset]]:
        """The results of a commit, and the offsets that can be committed. Raises what refuses the
        last one if none can.
        """
        results, known = [], []
        failure: KafkaException | None = None
        for entry in offsets:
            wanted = entry.wanted
            result = TopicPartition(wanted.topic, wanted.partition, wanted.offset, wanted.metadata)
            results.append(result)
            fault = metadata_fault(wanted)
            if fault is None:
                try:
                    known.append(entry.located(entry.topic_id or self._id_now(wanted)))
                except UnknownTopic as error:
                    fault = error
            if fault is not None:
                failure, result.error = fault, fault.error
        if failure is not None and not known:
            raise failure
        return results, known

    def _id_now(self, wanted: TopicPartition) -> str:
        found = self._topic(wanted.topic)
        if found is None:
            raise UnknownTopic(wanted.topic)
        topic_id, partitions = found
        if not 0 <= wanted.partition < partitions:
            raise UnknownTopic(wanted.topic, partition=wanted.partition)
        return topic_id

    def _report(
        self, offsets: Sequence[ToCommit], commit: Callable[[], list[TopicPartition]]
    ) -> None:
        """Report the result of a commit to `on_result`, also if it raises."""
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
            _log.exception("committing offsets failed group=%r", self._group)
            self._on_result(
                KafkaError(KafkaError._FAIL, f"unexpected {type(error).__name__}: {error}"), []
            )
            raise

    def _deadline(self) -> float:
        return self._clock.monotonic() + COMMIT_TIMEOUT_S

    # --- the thread ---

    def _run(self) -> None:
        """Commit what is queued or due. A bug, which was reported already, must not end the
        thread.
        """
        with self._changed:
            if self._is_running:
                return  # an interrupted `begin` has already started a thread
            self._is_running = True
        self.stored.rest()
        while not self._closing or self._queue:
            with self._changed:
                left = self.stored.due_at() - self._clock.monotonic()
                if left > 0 and not self._queue and self._to_lead is None and not self._closing:
                    self._changed.wait(min(left, WAIT_MAX_S))
            if self._to_lead is not None and not self._closing:
                with suppress(Exception):
                    self._in_turn(self._lead)
            if not self._closing and self._is_due():
                with suppress(Exception):
                    self.commit_stored()
                self.stored.rest()
            elif self._queue:
                with suppress(Exception):
                    self.finish_queued()

    def _is_due(self) -> bool:
        with self._changed:
            return self.stored.is_due(None if self._is_committing else self._identity())

    def _lead(self) -> None:
        """Commit, as the leader, what heartbeats have shown, and the own offsets."""
        identity = self._identity()
        with self._changed:
            pending, self._to_lead = list((self._to_lead or {}).values()), None
            own = None if identity is None else self.stored.to_delegate(identity)
        if own is not None:
            pending.append(own)
        if identity is not None and pending:
            self._send_pending(identity, pending)

    def _send_pending(self, identity: MemberIdentity, pending: Sequence[PendingOffsets]) -> None:
        """Commit what heartbeats show, as the leader that `identity` names. An error is only
        logged: the next heartbeats show the offsets again.
        """
        try:
            deadline = self._clock.monotonic() + self._heartbeat_interval_s
            self._log.commit_pending(identity, pending, deadline)
        except KafkaException as error:
            _log.info("offsets of members not committed group=%r reason=%s", self._group, error)
        except Exception:  # noqa: BLE001 - a bug must not end the committer's thread
            _log.exception("committing offsets of members failed group=%r", self._group)
