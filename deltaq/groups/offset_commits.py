"""The offset committer of a consumer: synchronous, asynchronous and periodic (`auto.commit.interval.ms`) commits."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from deltaq.clock import Clock, Thread, this_thread
from deltaq.errors import KafkaError, KafkaException, UnknownTopic
from deltaq.groups.fencing import Claim
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.state import GroupHead
from deltaq.message import TopicPartition

_log = logging.getLogger("deltaq.groups")

HandOver: TypeAlias = "Callable[[GroupHead, Claim], GroupHead | None]"
"""A change of the membership on behalf of a member; None if nothing is left to do."""

COMMIT_TIMEOUT_S = 60.0

WAIT_MAX_S = 60.0
"""Longest uninterrupted wait. A finalizer that runs in the thread itself just before it waits cannot wake it."""


@dataclass(frozen=True, slots=True)
class ToCommit:
    """An offset to commit, with the id of its topic; None for the topic that has the name now."""

    wanted: TopicPartition
    topic_id: str | None


@dataclass(eq=False)
class OffsetCommitter:
    """Commits offsets for one consumer, in the order of the calls.

    `claim()` is None for a consumer that uses `assign`. `topic(name)` returns a topic's id and number of
    partitions, or None if it does not exist. `on_result(error, partitions)` gets the result of every asynchronous and
    periodic commit; `interval_s` is infinite without periodic commits.
    """

    _log: GroupLog
    _claim: Callable[[], Claim | None]
    _topic: Callable[[str], tuple[str, int] | None]
    _stored: Callable[[], list[ToCommit]]
    _on_result: Callable[[KafkaError | None, list[TopicPartition]], None]
    _interval_s: float
    _clock: Clock
    _queue: deque[tuple[Sequence[ToCommit], Claim | None]] = field(default_factory=deque)
    _last: dict[tuple[str, int], tuple[str | None, int]] = field(default_factory=dict)
    _closing: bool = False
    _own_thread: int | None = None
    _thread: Thread | None = None

    def __post_init__(self) -> None:
        self._changed = self._clock.condition()
        self._commit_lock = self._clock.lock()  # held while committing

    def begin(self) -> None:
        """Start the thread, unless it runs. The consumer must hold the committer before, to end it in any case."""
        if self._thread is None:
            self._thread = self._clock.start_thread(self._run, f"deltaq-commit-offsets-{self._log.group}")

    def commit(self, offsets: Sequence[ToCommit]) -> list[TopicPartition]:
        """Commit synchronously, after all queued commits. A result has its `error` set if its topic or partition does
        not exist. Raises UnknownTopic if none of them exists, Fenced, Unavailable, OutcomeUnknown."""
        with self._commit_lock:
            self._commit_queued()
            return self._commit(offsets, self._claim(), wait=True)

    def commit_later(self, offsets: Sequence[ToCommit]) -> None:
        """Queue a commit for the background thread."""
        with self._changed:
            self._queue.append((offsets, self._claim()))
            self._changed.notify_all()

    def commit_stored(self, *, wait: bool = False) -> None:
        """Commit the stored offsets not committed yet, synchronously, and report to `on_result`. `wait` is that of
        `GroupLog.commit`."""
        with self._commit_lock:
            self._commit_queued()
            if new := self.uncommitted():
                self._commit_and_report(new, self._claim(), wait=wait)

    def hand_over(self, operation: str, plan: HandOver, *, commit_stored: bool) -> None:
        """Change the group's membership on behalf of the consumer, after all queued commits. With `commit_stored`, the
        stored offsets not committed yet are in the same entry. Raises what `GroupLog.change` raises."""
        with self._commit_lock:
            self._commit_queued()
            claim = self._claim()
            if claim is None:
                return
            new = self.uncommitted() if commit_stored else []

            def change() -> list[TopicPartition]:
                results, known = self._located(new) if new else ([], [])
                self._log.change(operation, claim, lambda head: plan(head, claim), self._deadline(), known)
                self._note(new)
                return results

            self._report(change, new)

    def finish_queued(self) -> None:
        """Make all queued commits, synchronously."""
        with self._commit_lock:
            self._commit_queued()

    def uncommitted(self) -> list[ToCommit]:
        """The stored offsets that are not committed yet."""
        return [
            entry for entry in self._stored() if self._last.get(_key(entry)) != (entry.topic_id, entry.wanted.offset)
        ]

    def forget(self) -> None:
        """Forget which offsets were committed: another consumer may now own the partitions and commit others."""
        self._last.clear()

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

    def _commit(self, offsets: Sequence[ToCommit], claim: Claim | None, *, wait: bool) -> list[TopicPartition]:
        results, known = self._located(offsets)
        self._log.commit(claim, known, self._deadline(), wait=wait)
        self._note(offsets)
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
                known.append(CommittedOffset(wanted.topic, topic_id, wanted.partition, wanted.offset, wanted.metadata))
        if failure is not None and not known:
            raise failure
        return results, known

    def _note(self, offsets: Sequence[ToCommit]) -> None:
        self._last.update({_key(entry): (entry.topic_id, entry.wanted.offset) for entry in offsets})

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
        due_at = self._clock.monotonic() + self._interval_s
        while not self._closing or self._queue:
            with self._changed:
                left = due_at - self._clock.monotonic()
                if left > 0 and not self._queue and not self._closing:
                    self._changed.wait(min(left, WAIT_MAX_S))
                due = self._clock.monotonic() >= due_at and not self._closing
            if due:
                self.commit_stored()
                due_at = self._clock.monotonic() + self._interval_s
            else:
                self.finish_queued()


def _key(entry: ToCommit) -> tuple[str, int]:
    return entry.wanted.topic, entry.wanted.partition
