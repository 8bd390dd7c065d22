"""Offsets of a Spark source: their form in a checkpoint, and which ones the next micro-batch reads.
Pure functions.

A checkpoint holds the id of each topic and the next offset of each partition: `{"orders":
{"topic_id": "…", "next_offsets": {"0": 5, "1": 7}}}`. The id distinguishes a topic that was deleted
and created again from the one that the query has read.

Spark records the end of each micro-batch before running it. It does not record the start of the
first one, but calls `initialOffset` again when it needs it, and a second answer could differ. So
the start of a query is `NOT_BEGUN`, and the end of the first micro-batch also holds where the query
begins: `"first_offsets"` beside `"next_offsets"`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from deltaq.errors import InvalidConfig, KafkaError, KafkaException, OffsetOutOfRange, UnknownTopic
from deltaq.spark.bounds import STRATEGY, Edge, Limit, Moment
from deltaq.spark.options import SourceTopics
from deltaq.topics.state import TopicHead

_log = logging.getLogger("deltaq.spark")

NOT_BEGUN: Mapping[str, Mapping[str, object]] = {"<startingOffsets>": {}}
"""The start of a query's first micro-batch, as passed to Spark. No topic can have this name."""

TimeLookup: TypeAlias = Callable[[str, int, int], "int | None"]
"""(topic, partition, ms since 1970 UTC) -> the first offset with that timestamp or a later one, or
None.
"""

CommittedLookup: TypeAlias = Callable[[str, int], "int | None"]
"""(topic, partition) -> the offset that a consumer group has committed, or None."""

Ranges: TypeAlias = "dict[str, dict[int, tuple[int, int]]]"
"""Topic -> partition -> offsets `[start, end)`. No range is empty."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The next offset of each partition of the topic with this id.

    `first_offsets` is set only in the end of a query's first micro-batch: the offsets at which the
    query begins.
    """

    topic_id: str
    next_offsets: Mapping[int, int]
    first_offsets: Mapping[int, int] | None = None


SourceOffset: TypeAlias = "Mapping[str, TopicOffsets]"


def as_json(offset: SourceOffset) -> dict[str, object]:
    """The offset as Spark stores it. Equal offsets give equal text, because Spark compares the
    text.
    """
    bodies: dict[str, dict[str, object]] = {}
    for topic, of_topic in sorted(offset.items()):
        body = bodies[topic] = {
            "topic_id": of_topic.topic_id,
            "next_offsets": _by_number(of_topic.next_offsets),
        }
        if of_topic.first_offsets is not None:
            body["first_offsets"] = _by_number(of_topic.first_offsets)
    return dict(bodies)


def _by_number(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): of for partition, of in sorted(offsets.items())}


def from_json(body: Mapping[str, object]) -> SourceOffset:
    """The offset in a checkpoint. Raises InvalidConfig if another source wrote it."""
    try:
        return {topic: _topic_offsets(kept) for topic, kept in body.items()}
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _not_ours() from error


def _not_ours() -> InvalidConfig:
    return InvalidConfig(
        "the offsets in the checkpoint are not those of a deltaq source: set another "
        "checkpointLocation for the query",
        key="checkpointLocation",
    )


def _topic_offsets(kept: object) -> TopicOffsets:
    if not isinstance(kept, dict):
        raise TypeError("not an object")
    first = kept.get("first_offsets")
    return TopicOffsets(
        str(kept["topic_id"]),
        _numbered(kept["next_offsets"]),
        None if first is None else _numbered(first),
    )


def _numbered(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(number): int(of) for number, of in offsets.items()}


def first_end(start: SourceOffset, end: SourceOffset) -> SourceOffset:
    """The end of a query's first micro-batch, which also records that the query begins at
    `start`.
    """
    return {
        topic: TopicOffsets(of_topic.topic_id, of_topic.next_offsets, start[topic].next_offsets)
        for topic, of_topic in end.items()
    }


def first_start(end: SourceOffset) -> SourceOffset:
    """The start of the query, from the end of its first micro-batch. Raises InvalidConfig if it is
    not recorded.
    """
    start = {}
    for topic, of_topic in end.items():
        if of_topic.first_offsets is None:
            raise _not_ours()
        start[topic] = TopicOffsets(of_topic.topic_id, of_topic.first_offsets)
    return start


def same_place(one: SourceOffset, other: SourceOffset) -> bool:
    """Whether both have the same topics and next offsets."""
    places = [
        {topic: (of.topic_id, of.next_offsets) for topic, of in offset.items()}
        for offset in (one, other)
    ]
    return places[0] == places[1]


@dataclass(frozen=True, slots=True)
class DataLoss:
    """The option `failOnDataLoss`: whether missing records fail the query or are logged as a
    warning.
    """

    fail: bool

    def met(self, loss: KafkaException) -> None:
        """Report missing records: raises KafkaException if `fail`, otherwise logs a warning."""
        if self.fail:
            remedy = (
                'set the option "failOnDataLoss" to false to continue with the records that exist'
            )
            raise KafkaException(
                KafkaError(loss.error.code(), f"{loss.error.str()}; {remedy}")
            ) from loss
        _log.warning("data loss, continuing with the records that exist: %s", loss.error.str())


def available(heads: Mapping[str, TopicHead], subscription: SourceTopics) -> SourceOffset:
    """The next offset of every partition in the subscription."""
    return {
        topic: TopicOffsets(
            head.topic_id,
            {
                number: of
                for number, of in enumerate(head.next_offsets)
                if subscription.covers(topic, number)
            },
        )
        for topic, head in heads.items()
    }


def _none_committed(topic: str, partition: int) -> None:  # noqa: ARG001  # a `CommittedLookup` without a group
    return None


def at_bound(
    limit: Limit,
    heads: Mapping[str, TopicHead],
    subscription: SourceTopics,
    look_up: TimeLookup,
    committed: CommittedLookup = _none_committed,
) -> SourceOffset:
    """The offsets of a limit for every partition, or what is `committed` of it. Raises
    InvalidConfig, UnknownTopic.
    """
    ends = available(heads, subscription)
    _check_complete(limit, ends)
    offsets = {}
    for topic, end in ends.items():
        start_offsets = heads[topic].start_offsets
        wanted = {}
        for partition, next_offset in end.next_offsets.items():
            offset = committed(topic, partition)
            if offset is None:
                offset = _wanted(limit, topic, partition, look_up)
            if offset == Edge.LATEST:
                offset = next_offset
            wanted[partition] = start_offsets[partition] if offset == Edge.EARLIEST else offset
        offsets[topic] = TopicOffsets(end.topic_id, wanted)
    return offsets


def _wanted(limit: Limit, topic: str, partition: int, look_up: TimeLookup) -> int:
    match limit.bound:
        case Edge() as edge:
            return int(edge)
        case Moment() as moment:
            offset = look_up(topic, partition, moment.time_ms(topic, partition))
            if offset is None and not moment.or_latest:
                raise _no_record(limit.option, topic, partition, moment.time_ms(topic, partition))
            return Edge.LATEST if offset is None else offset
        case offsets:
            return offsets[topic][partition]


def _no_record(option: str, topic: str, partition: int, time_ms: int) -> InvalidConfig:
    return InvalidConfig(
        f'option "{option}": topic {topic!r} partition {partition} has no record with the timestamp'
        f' {time_ms} ms or a later one; choose an earlier time, or set the option "{STRATEGY}" to'
        " latest to begin such a partition at its end",
        key=option,
    )


def _check_complete(limit: Limit, ends: SourceOffset) -> None:
    """Raise InvalidConfig unless the limit names exactly the partitions to read: one that is
    missing would silently begin elsewhere.
    """
    is_time = isinstance(limit.bound, Moment)
    numbers = limit.bound.times_ms if isinstance(limit.bound, Moment) else limit.bound
    if isinstance(numbers, int):  # for all partitions alike
        return
    values = "a time in milliseconds" if is_time else "an offset, -2 or -1"
    read = {(topic, partition) for topic, end in ends.items() for partition in end.next_offsets}
    named = {(topic, partition) for topic, of_topic in numbers.items() for partition in of_topic}
    if read != named:
        missing, unknown = (
            ", ".join(f"{t}/{p}" for t, p in sorted(part)) for part in (read - named, named - read)
        )
        what = f"lacks {missing}" if missing else f"names {unknown}, which is not read"
        raise InvalidConfig(
            f'option "{limit.option}" {what}: give {values} for each partition', key=limit.option
        )


def check_order(start: SourceOffset, end: SourceOffset) -> None:
    """Raise InvalidConfig if a partition ends before it begins."""
    for topic, of_topic in end.items():
        for partition, until in of_topic.next_offsets.items():
            begin = start[topic].next_offsets[partition]
            if until < begin:
                raise InvalidConfig(
                    f"topic {topic!r} partition {partition}: its start {begin} is after its "
                    f"endingOffsets {until}",
                    key="endingOffsets",
                )


def check_start(start: SourceOffset, end: SourceOffset) -> None:
    """Raise InvalidConfig if a stream begins after the end of a partition."""
    for topic, of_topic in start.items():
        for partition, begin in of_topic.next_offsets.items():
            if begin > (until := end[topic].next_offsets[partition]):
                raise InvalidConfig(
                    f"topic {topic!r} partition {partition}: its start {begin} is after its end "
                    f"{until}; correct startingOffsets, or use -1 to begin at the end",
                    key="startingOffsets",
                )


def backlog(start: SourceOffset, end: SourceOffset, heads: Mapping[str, TopicHead]) -> int:
    """How many offsets there are between `start` and `end`."""
    return sum(_lags(_begins(start, end, heads), end).values())


def limited(
    start: SourceOffset, end: SourceOffset, heads: Mapping[str, TopicHead], rows_max: int
) -> SourceOffset:
    """The end of a micro-batch of at most `rows_max` offsets between `start` and `end`.

    Each partition with new records gets at least one offset; the rest is divided in proportion to
    the lag. If there are fewer offsets than such partitions, the partitions alternate. So a busy
    partition cannot starve another one.
    """
    begins = _begins(start, end, heads)
    lags = _lags(begins, end)
    if sum(lags.values()) <= rows_max:
        return end
    rows = _rows_of_each(
        {at: lag for at, lag in lags.items() if lag}, rows_max, sum(begins.values())
    )
    # An end before the start (of a log that has lost its end) is kept: `to_read` reports it.
    return {
        topic: TopicOffsets(
            of_topic.topic_id,
            {
                partition: (
                    begins[topic, partition] + rows.get((topic, partition), 0)
                    if lags[topic, partition]
                    else offset
                )
                for partition, offset in of_topic.next_offsets.items()
            },
        )
        for topic, of_topic in end.items()
    }


def _begins(
    start: SourceOffset, end: SourceOffset, heads: Mapping[str, TopicHead]
) -> dict[tuple[str, int], int]:
    """By topic and partition of `end`, the offset at which a micro-batch begins."""
    return {
        (topic, partition): _begin(start, topic, of_topic.topic_id, partition, heads)
        for topic, of_topic in end.items()
        for partition in of_topic.next_offsets
    }


def _lags(begins: Mapping[tuple[str, int], int], end: SourceOffset) -> dict[tuple[str, int], int]:
    """How many offsets each partition is behind `end`."""
    return {
        at: max(0, end[at[0]].next_offsets[at[1]] - begin) for at, begin in sorted(begins.items())
    }


def _rows_of_each(
    lags: Mapping[tuple[str, int], int], rows_max: int, offsets_read: int
) -> dict[tuple[str, int], int]:
    """Divide `rows_max` offsets among the partitions. Requires that the sum of the lags is larger
    than `rows_max`.
    """
    order = list(lags)
    if rows_max < len(order):
        # The sum of all offsets grows with every micro-batch, so it rotates the partitions without
        # stored state.
        first = offsets_read % len(order)
        return dict.fromkeys((order[first:] + order[:first])[:rows_max], 1)
    spare, waiting = rows_max - len(order), sum(lags.values()) - len(order)
    rows = {at: 1 + spare * (lag - 1) // waiting for at, lag in lags.items()}
    # Lost by rounding down: less than one offset for each partition.
    left = rows_max - sum(rows.values())
    for at in order:
        if left and rows[at] < lags[at]:
            rows[at] += 1
            left -= 1
    return rows


def to_read(
    start: SourceOffset, end: SourceOffset, heads: Mapping[str, TopicHead], loss: DataLoss
) -> Ranges:
    """The offsets in `[start, end)` of each partition that the topics still hold. Missing ones are
    reported to `loss`.

    Partitions and topics that are not in `start` are read from their beginning.
    """
    ranges: Ranges = {}
    for topic in start.keys() - end.keys():
        loss.met(
            UnknownTopic(
                topic,
                reason=f"topic {topic!r} was deleted, or the query no longer subscribes to it",
            )
        )
    for topic, of_topic in end.items():
        head = heads.get(topic)
        if topic in start and start[topic].topic_id != of_topic.topic_id:
            loss.met(UnknownTopic(topic, reason=f"topic {topic!r} was deleted and created again"))
        if head is None or head.topic_id != of_topic.topic_id:
            loss.met(UnknownTopic(topic, reason=f"topic {topic!r} was deleted before it was read"))
            continue
        for partition, until in of_topic.next_offsets.items():
            earliest, latest = head.start_offsets[partition], head.next_offsets[partition]
            begin = _begin(start, topic, of_topic.topic_id, partition, heads)
            if begin < earliest or until < begin or until > latest:
                lost = until if earliest <= begin <= until else begin
                loss.met(
                    OffsetOutOfRange(
                        topic=topic,
                        partition=partition,
                        requested=lost,
                        earliest=earliest,
                        latest=latest,
                    )
                )
            begin, until = max(begin, earliest), min(until, latest)
            if begin < until:
                ranges.setdefault(topic, {})[partition] = begin, until
    return ranges


def _begin(
    start: SourceOffset, topic: str, topic_id: str, partition: int, heads: Mapping[str, TopicHead]
) -> int:
    known = start.get(topic)
    if known is not None and known.topic_id == topic_id and partition in known.next_offsets:
        return known.next_offsets[partition]
    head = heads.get(topic)
    return 0 if head is None or head.topic_id != topic_id else head.start_offsets[partition]
