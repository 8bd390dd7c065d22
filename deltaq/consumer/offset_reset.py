"""Where a partition is read from: the positions of the fetch thread, OFFSET_ constants as offsets,
and `auto.offset.reset`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from deltaq.consumer.fetch_buffer import PartitionError
from deltaq.errors import KafkaError, KafkaException, OffsetOutOfRange, UnknownTopic
from deltaq.message import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    OFFSET_TAIL_BASE,
)
from deltaq.topics.state import TopicHead

_log = logging.getLogger("deltaq.consumer")

FIRST_READ_BYTES = 512 * 1024
"""How much of a large file the first read from a new position fetches. It is less than an
uncompressed row group of a compacted file, so such a read fetches one row group. The size doubles
with each read up to `fetch.max.bytes`: the first record comes soon, and a long scan needs few
requests.
"""

StoredOffsets: TypeAlias = Callable[[str, str, Sequence[int]], Sequence[int | None]]
"""(topic, topic id, partitions) -> the committed offset of each; None where there is none."""


class FetchState(Enum):
    """What the fetcher does with a partition."""

    READING = "records are fetched from its offset, once that is known"
    MISSING = "the topic does not have it, and that was reported; it may be added later"
    STOPPED = "an error was reported; nothing is fetched until its position is set again"


@dataclass(slots=True)
class FetchPosition:
    """The fetch position of a partition. `offset` may be an OFFSET_ constant until it is
    resolved.
    """

    offset: int
    epoch: int
    paused: bool = False
    state: FetchState = FetchState.READING
    read_bytes: int = FIRST_READ_BYTES
    reported_end: int = -1
    # The number of polls begun when `offset` was found beyond the log's end.
    doubted_at: int | None = None


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What the reader of a log knows of its end.

    `poll` is the number of the poll that found the end, 0 if none has; `polls` is the number of
    polls begun so far. `is_open`: the end may be a gap. `is_known`: it was proven by a poll that
    began after the position was set.
    """

    poll: int
    polls: int
    is_open: bool
    is_known: bool


class OffsetReset:
    """Resolves the positions of one topic's partitions. `policy` is Kafka's `auto.offset.reset`."""

    def __init__(
        self,
        topic: str,
        policy: str,
        stored_offsets: StoredOffsets,
        report: Callable[[PartitionError], None],
    ) -> None:
        self._topic = topic
        self._policy = policy
        self._stored_offsets = stored_offsets
        self._report = report

    def resolve(
        self, positions: Mapping[int, FetchPosition], head: TopicHead, end: LogEnd, new_from: int
    ) -> None:
        """Resolve OFFSET_ constants, and apply `auto.offset.reset` to offsets that are not in the
        log.

        Partitions from `new_from` on were added after the consumer began to follow the topic, so
        they hold only new records. A position that depends on the end of the log waits until that
        is known.
        """
        positions = {
            p: position
            for p, position in positions.items()
            if position.state is not FetchState.STOPPED
        }
        for partition in [partition for partition in positions if partition >= head.partitions]:
            self._report_missing(partition, positions.pop(partition))
        asked = [
            partition
            for partition, position in positions.items()
            if position.offset in (OFFSET_STORED, OFFSET_INVALID)
        ]
        found = self._stored_offsets(self._topic, head.topic_id, asked) if asked else ()
        stored = dict(zip(asked, found, strict=True))
        for partition, position in positions.items():
            wanted = stored.get(partition, position.offset)
            if (
                wanted is not None
                and wanted > head.next_offsets[partition]
                and _is_new_doubt(position, end)
            ):
                continue
            if not end.is_known and self._depends_on_end(wanted):
                continue  # the known part of the log may be far from its end
            start = self._start(partition, wanted, head, is_new=partition >= new_from)
            if isinstance(start, int):
                position.offset = start
            else:
                self.stop(partition, position, start, wanted)

    def stop(
        self,
        partition: int,
        position: FetchPosition,
        error: KafkaException,
        offset: int | None = None,
    ) -> None:
        """Report an error, and fetch nothing from the partition until its position is set again."""
        if position.state is not FetchState.STOPPED:
            position.state = FetchState.STOPPED
            self._report(PartitionError(self._topic, partition, position.epoch, error, offset))

    def _report_missing(self, partition: int, position: FetchPosition) -> None:
        # Reported once. The partition may be added later, and is read then.
        if position.state is not FetchState.MISSING:
            position.state = FetchState.MISSING
            error = UnknownTopic(self._topic, partition=partition)
            self._report(PartitionError(self._topic, partition, position.epoch, error))

    def _depends_on_end(self, wanted: int | None) -> bool:
        """Whether `wanted` (None: nothing is committed) is relative to the end of the log."""
        if wanted is None:
            return self._policy == "latest"
        return wanted == OFFSET_END or wanted <= OFFSET_TAIL_BASE

    def _start(
        self, partition: int, wanted: int | None, head: TopicHead, *, is_new: bool
    ) -> int | KafkaException:
        """Resolve `wanted` (None: nothing is committed) to an offset."""
        earliest, latest = head.start_offsets[partition], head.next_offsets[partition]
        if wanted is None:
            return self._uncommitted_start(earliest, latest, is_new=is_new)
        if wanted <= OFFSET_TAIL_BASE:
            return max(earliest, latest - (OFFSET_TAIL_BASE - wanted))
        offset = {OFFSET_BEGINNING: earliest, OFFSET_END: latest}.get(wanted, wanted)
        return (
            offset
            if earliest <= offset <= latest
            else self._out_of_range(partition, offset, earliest, latest)
        )

    def _uncommitted_start(
        self, earliest: int, latest: int, *, is_new: bool
    ) -> int | KafkaException:
        if self._policy == "error":
            reason = "no committed offset, and auto.offset.reset is error"
            return KafkaException(KafkaError(KafkaError._AUTO_OFFSET_RESET, reason))
        return earliest if self._policy == "earliest" or is_new else latest

    def _out_of_range(
        self, partition: int, offset: int, earliest: int, latest: int
    ) -> int | KafkaException:
        error = OffsetOutOfRange(
            topic=self._topic,
            partition=partition,
            requested=offset,
            earliest=earliest,
            latest=latest,
        )
        if self._policy == "error":
            return KafkaException(KafkaError(KafkaError._AUTO_OFFSET_RESET, error.error.str()))
        _log.warning("offset reset to %s: %s", self._policy, error)
        return earliest if self._policy == "earliest" else latest


def _is_new_doubt(position: FetchPosition, end: LogEnd) -> bool:
    """Whether to wait for another read of the log's end before treating an offset beyond the end as
    out of range.

    A producer may have written the record, and the application may have asked for it, after the
    last read began.
    """
    if position.doubted_at is None or end.is_open:
        position.doubted_at = end.polls
    return end.poll <= position.doubted_at
