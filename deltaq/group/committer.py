"""Commits a consumer's offsets: at once, in the background, and every `auto.commit.interval.ms`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException, UnknownTopic
from deltaq.group.group_log import GroupLog
from deltaq.group.group_state import CommittedOffset
from deltaq.message import TopicPartition

__all__ = ["OffsetCommitter"]

COMMIT_TIMEOUT_S = 60.0


class OffsetCommitter:
    """Commits for one consumer. `member_id()` is None for one that assigns its partitions itself.

    `topic_id(topic)` looks up the id of a topic; None if there is none. `committed(error, partitions)` is told the outcome
    of every commit that nobody waits for.
    """

    def __init__(
        self,
        log: GroupLog,
        member_id: Callable[[], str | None],
        topic_id: Callable[[str], str | None],
        stored: Callable[[], list[TopicPartition]],
        committed: Callable[[KafkaError | None, list[TopicPartition]], None],
        interval_s: float | None,
        clock: Clock,
    ) -> None:
        self._log = log
        self._member_id = member_id
        self._topic_id = topic_id
        self._stored = stored
        self._committed = committed
        self._interval_s = interval_s
        self._clock = clock
        self._changed = clock.condition()
        self._queue: deque[list[TopicPartition]] = deque()
        self._last: dict[tuple[str, int], int] = {}
        self._closing = False
        self._thread = clock.start_thread(self._run, f"deltaq-commit-offsets-{log.group}")

    def commit(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Commit now. Each result carries an error if its topic does not exist. Raises Fenced, Unavailable, OutcomeUnknown."""
        results, offsets = [], []
        for wanted in partitions:
            topic_id = self._topic_id(wanted.topic)
            error = UnknownTopic(wanted.topic).args[0] if topic_id is None else None
            results.append(TopicPartition(wanted.topic, wanted.partition, wanted.offset, wanted.metadata, error=error))
            if topic_id is not None:
                offsets.append(CommittedOffset(wanted.topic, topic_id, wanted.partition, wanted.offset, wanted.metadata))
        if offsets:
            self._log.commit(self._member_id(), offsets, self._clock.monotonic() + COMMIT_TIMEOUT_S)
            with self._changed:
                self._last.update({(offset.topic, offset.partition): offset.offset for offset in offsets})
        return results

    def commit_later(self, partitions: list[TopicPartition]) -> None:
        """Commit in the background."""
        with self._changed:
            self._queue.append(partitions)
            self._changed.notify_all()

    def commit_stored(self) -> None:
        """Commit, now, the stored offsets that are not committed yet; the outcome is told, nothing is raised."""
        with self._changed:
            new = [tp for tp in self._stored() if self._last.get((tp.topic, tp.partition)) != tp.offset]
        if new:
            self._commit_and_tell(new)

    def forget(self) -> None:
        """The partitions belong to somebody else from now on: what was committed says nothing any more."""
        with self._changed:
            self._last.clear()

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _commit_and_tell(self, partitions: list[TopicPartition]) -> None:
        try:
            self._committed(None, self.commit(partitions))
        except KafkaException as error:
            for partition in partitions:
                partition.error = error.args[0]
            self._committed(error.args[0], partitions)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._queue and not self._closing:
                    self._changed.wait(self._interval_s)
                queued = self._queue.popleft() if self._queue else None
                if queued is None and self._closing:
                    return
            if queued is not None:
                self._commit_and_tell(queued)
            elif self._interval_s is not None:
                self.commit_stored()
