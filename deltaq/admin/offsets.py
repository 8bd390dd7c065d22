"""Requests and results of `AdminClient.list_offsets`."""

from __future__ import annotations

from dataclasses import dataclass, field

from deltaq.admin.calls import OrderedEnum, check_partition
from deltaq.errors import UnknownTopic
from deltaq.store import Store
from deltaq.topics.log import TopicLog
from deltaq.topics.time_lookup import newest_time, offset_for_time, time_of_offset

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


class IsolationLevel(OrderedEnum):
    """Kafka's isolation levels. Both have the same effect: a deltaq topic never holds uncommitted
    records.
    """

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, order=True, slots=True)
class OffsetSpec:
    """The offset to look up. Use the class methods. A non-negative `index` is a time in ms since
    1970 UTC.
    """

    index: int

    def __post_init__(self) -> None:
        if self.index < MAX_TIMESTAMP:
            raise ValueError(
                f"{self.index} is not an offset spec: use earliest(), latest() or for_timestamp()"
            )

    @classmethod
    def earliest(cls) -> OffsetSpec:
        """The first offset that can be read."""
        return cls(EARLIEST)

    @classmethod
    def latest(cls) -> OffsetSpec:
        """The offset that the next record will get."""
        return cls(LATEST)

    @classmethod
    def max_timestamp(cls) -> OffsetSpec:
        """The offset of the record with the highest timestamp."""
        return cls(MAX_TIMESTAMP)

    @classmethod
    def for_timestamp(cls, timestamp: int) -> OffsetSpec:
        """The offset of the first record with this timestamp (ms since 1970 UTC) or a later one."""
        if timestamp < 0:
            raise ValueError(f"a timestamp is milliseconds since 1970, not {timestamp}")
        return cls(timestamp)


@dataclass(frozen=True, slots=True)
class ListOffsetsResultInfo:
    """An offset, and its record's timestamp in ms since 1970 UTC; both -1 if there is no such
    record.

    The timestamp is also -1 for the earliest and the latest offset. `leader_epoch` is 0, as in a
    Kafka partition whose leader has never changed, or None if there is no such record.
    """

    offset: int
    timestamp: int
    leader_epoch: int | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "leader_epoch", None if self.offset < 0 else 0)


def check_request(request: object) -> None:
    """Raise TypeError, ValueError for what is not a dict of TopicPartition to OffsetSpec."""
    if not isinstance(request, dict):
        raise TypeError(
            f"expected a dict of TopicPartition to OffsetSpec, not {type(request).__name__}"
        )
    for tp, spec in request.items():
        check_partition(tp)
        if not isinstance(spec, OffsetSpec):
            raise TypeError("Value must be a OffsetSpec")


def found_offset(
    store: Store, log: TopicLog, partition: int, spec: OffsetSpec
) -> ListOffsetsResultInfo:
    """Look up an offset in a topic as it is now. Raises UnknownTopic, Corrupt, Incompatible,
    Unavailable.
    """
    log.catch_up()
    head = log.live_head
    if partition >= head.partitions:
        raise UnknownTopic(log.topic, partition=partition)
    if spec.index == EARLIEST:
        return ListOffsetsResultInfo(head.start_offsets[partition], -1)
    if spec.index == LATEST:
        return ListOffsetsResultInfo(head.next_offsets[partition], -1)
    if spec.index == MAX_TIMESTAMP:
        return ListOffsetsResultInfo(*(newest_time(store, log, partition) or (-1, -1)))
    offset = offset_for_time(store, log, partition, spec.index)
    time_ms = None if offset is None else time_of_offset(store, log, partition, offset)
    return ListOffsetsResultInfo(
        -1 if offset is None else offset, -1 if time_ms is None else time_ms
    )
