"""Commits a consumer's offsets: at once, in the background, and every `auto.commit.interval.ms`."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deltaq.clock import Clock, Thread, this_thread
from deltaq.errors import KafkaError, KafkaException, UnknownTopic
from deltaq.groups.log import GroupLog
from deltaq.groups.state import CommittedOffset
from deltaq.message import TopicPartition

__all__ = ["OffsetCommitter", "ToCommit"]

_log = logging.getLogger("deltaq.groups")

COMMIT_TIMEOUT_S = 60.0

LOOK_AGAIN_S = 60.0
"""Longest uninterrupted wait: a finalizer that runs in this very thread, just before it waits, cannot wake it."""


@dataclass(frozen=True, slots=True)
class ToCommit:
    """An offset to be committed, with the id of the topic it is of; None for the topic that has the name now."""

    wanted: TopicPartition
    topic_id: str | None


class OffsetCommitter:
    """Commits for one consumer, in the order in which it was asked to.

    `member_id()` is None for one that assigns its partitions itself. `topic(name)` looks up id and number of partitions
    of a topic; None if there is none. `told(error, partitions)` gets the outcome of every commit that nobody waits for.
    """

    def __init__(
        self,
        log: GroupLog,
        member_id: Callable[[], str | None],
        topic: Callable[[str], tuple[str, int] | None],
        stored: Callable[[], list[ToCommit]],
        told: Callable[[KafkaError | None, list[TopicPartition]], None],
        interval_s: float | None,
        clock: Clock,
    ) -> None:
        self._log = log
        self._member_id = member_id
        self._topic = topic
        self._stored = stored
        self._told = told
        self._interval_s = interval_s
        self._clock = clock
        self._changed = clock.condition()
        self._turn = clock.lock()  # held while committing
        self._queue: deque[tuple[Sequence[ToCommit], str | None]] = deque()
        self._last: dict[tuple[str, int], tuple[str | None, int]] = {}
        self._closing = False
        self._own_thread: int | None = None
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Start the thread that commits in the background, unless it was started. To be called once the consumer has
        this object: an interrupted start must not leave a thread that nothing ends."""
        if self._thread is None:
            self._thread = self._clock.start_thread(self._run, f"deltaq-commit-offsets-{self._log.group}")

    def commit(self, offsets: Sequence[ToCommit]) -> list[TopicPartition]:
        """Commit now. Each result carries an error if its topic or partition does not exist; if all do, it is raised.

        Raises UnknownTopic, Fenced, Unavailable, OutcomeUnknown.
        """
        with self._turn:
            self._commit_queued()
            return self._commit(offsets, self._member_id())

    def commit_later(self, offsets: Sequence[ToCommit]) -> None:
        """Commit in the background."""
        with self._changed:
            self._queue.append((offsets, self._member_id()))
            self._changed.notify_all()

    def commit_stored(self) -> None:
        """Commit, now, what is stored and not committed yet; the outcome is told."""
        with self._turn:
            self._commit_queued()
            new = self.uncommitted()
            if new:
                self._commit_and_tell(new, self._member_id())

    def finish_queued(self) -> None:
        """Commit, now, what was to be committed in the background."""
        with self._turn:
            self._commit_queued()

    def uncommitted(self) -> list[ToCommit]:
        """The stored offsets that are not committed yet."""
        return [
            entry for entry in self._stored() if self._last.get(_key(entry)) != (entry.topic_id, entry.wanted.offset)
        ]

    def forget(self) -> None:
        """The partitions belong to somebody else from now on: what was committed says nothing any more."""
        self._last.clear()

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        thread = self.abandon()
        if thread is not None:
            thread.join()

    def abandon(self) -> Thread | None:
        """Finish what is queued and end the thread, soon."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        return self._thread

    def _commit(self, offsets: Sequence[ToCommit], member_id: str | None) -> list[TopicPartition]:
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
        self._log.commit(member_id, known, self._clock.monotonic() + COMMIT_TIMEOUT_S)
        self._last.update({_key(entry): (entry.topic_id, entry.wanted.offset) for entry in offsets})
        return results

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
                self._commit_and_tell(*self._queue[0])
            except Exception:  # it was told
                self._queue.popleft()
                raise
            self._queue.popleft()  # last: what Ctrl-C has interrupted is committed once more

    def _commit_and_tell(self, offsets: Sequence[ToCommit], member_id: str | None) -> None:
        try:
            self._told(None, self._commit(offsets, member_id))
        except KafkaException as error:
            failed = [entry.wanted for entry in offsets]
            for partition in failed:
                partition.error = error.error
            self._told(error.error, failed)
        except Exception as error:  # not the store's: a defect, or what a signal handler has raised
            _log.exception("committing offsets failed group=%r", self._log.group)
            self._told(KafkaError(KafkaError._FAIL, f"unexpected {type(error).__name__}: {error}"), [])
            if this_thread() != self._own_thread:  # which a defect must not end
                raise

    def _run(self) -> None:
        with self._changed:
            if self._own_thread is not None:
                return  # an interrupted `begin` had started a thread already
            self._own_thread = this_thread()
        interval_s = float("inf") if self._interval_s is None else self._interval_s
        due_at = self._clock.monotonic() + interval_s
        while not self._closing or self._queue:
            with self._changed:
                left = due_at - self._clock.monotonic()
                if left > 0 and not self._queue and not self._closing:
                    self._changed.wait(min(left, LOOK_AGAIN_S))
                due = self._clock.monotonic() >= due_at and not self._closing
            if due:
                self.commit_stored()
                due_at = self._clock.monotonic() + interval_s
            else:
                self.finish_queued()


def _key(entry: ToCommit) -> tuple[str, int]:
    return entry.wanted.topic, entry.wanted.partition
