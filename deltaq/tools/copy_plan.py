"""What is to be copied of a topic: plans as pure functions of the source and the copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.config.topic import PROPERTY_PREFIX
from deltaq.delta.schema import delta_schema
from deltaq.errors import KafkaError, KafkaException
from deltaq.serde.schema import TopicSchema
from deltaq.serde.widening import holds
from deltaq.topics.columns import table_schema
from deltaq.topics.metadata import TYPED_PROPERTY
from deltaq.topics.scan import Fetched
from deltaq.topics.state import PARTITIONS_PROPERTY, TopicChange

ORIGIN_PROPERTY = "deltaq.copy.of"
"""The table property of a copy: the id of the topic whose records it has."""

_OWN = (ORIGIN_PROPERTY, PARTITIONS_PROPERTY, TYPED_PROPERTY)


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic at one version, as far as a plan needs it. `properties` are those of its table."""

    topic_id: str
    schema: TopicSchema | None
    properties: Mapping[str, str]
    start_offsets: Sequence[int]
    next_offsets: Sequence[int]

    @property
    def settings(self) -> dict[str, str]:
        """The properties that are settings of the topic."""
        return {
            name: v
            for name, v in self.properties.items()
            if name.startswith(PROPERTY_PREFIX) and name not in _OWN
        }


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What makes a topic a copy of another one.

    `change` is its new number of partitions and settings, None if they are right. `ranges` are the
    offsets that it lacks, by partition, and `starts` its new start offsets, where they differ.
    """

    change: TopicChange | None
    ranges: Mapping[int, tuple[int, int]]
    starts: Mapping[int, int]


def plan_copy(topic: str, source: TopicImage, copy: TopicImage) -> CopyPlan:
    """What `copy`, made by an earlier copy or just created, lacks of `source`.

    Raises KafkaException (_INCONSISTENT) for a topic that is no copy of this source, or has records
    of its own.
    """
    if copy.properties.get(ORIGIN_PROPERTY) != source.topic_id:
        raise not_a_copy(f"topic {topic!r} exists at the target and is no copy of this source")
    schema_string = _new_schema(topic, source.schema, copy.schema)
    count = len(source.next_offsets)
    if len(copy.next_offsets) > count:
        raise not_a_copy(f"topic {topic!r} has more partitions at the target")
    added = (0,) * (count - len(copy.next_offsets))
    ends, starts = (*copy.next_offsets, *added), (*copy.start_offsets, *added)
    for partition, (end, source_end) in enumerate(zip(ends, source.next_offsets, strict=True)):
        if end > source_end:
            where = f"partition {partition} of topic {topic!r}"
            raise not_a_copy(
                f"{where} ends at {end} at the target, and at {source_end} at the source"
            )
    names = source.settings.keys() | copy.settings.keys()
    settings = {
        n: source.settings.get(n)
        for n in sorted(names)
        if source.settings.get(n) != copy.settings.get(n)
    }
    return CopyPlan(
        TopicChange(count, settings, schema_string) if settings or added or schema_string else None,
        {
            p: (end, source.next_offsets[p])
            for p, end in enumerate(ends)
            if end < source.next_offsets[p]
        },
        {
            p: source.start_offsets[p]
            for p, start in enumerate(starts)
            if start < source.start_offsets[p]
        },
    )


def _new_schema(topic: str, source: TopicSchema | None, copy: TopicSchema | None) -> str | None:
    """The schema of the copy's table where that of the source has changed since; None where it is
    the same.
    """
    if source == copy:
        return None
    before, after = ([] if schema is None else list(schema.arrow) for schema in (copy, source))
    if not before or not after or not holds(pa.struct(after), pa.struct(before)):
        raise not_a_copy(f"topic {topic!r} has other columns at the target")
    return delta_schema(table_schema(source))


def not_a_copy(reason: str) -> KafkaException:
    """The error for a target that cannot be continued."""
    remedy = "delete it there, or copy to another root"
    return KafkaException(KafkaError(KafkaError._INCONSISTENT, f"{reason}: {remedy}"))


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """Rows for one segment of a copy, sorted by partition and offset. `partition_rows` are
    (partition, rows), and `ranges` the offsets [base, end) of each, gaps included.
    """

    table: pa.Table
    partition_rows: tuple[tuple[int, int], ...]
    ranges: tuple[tuple[int, int], ...]
    log_append_time: bool

    def bounds(self, column: str) -> tuple[int, int]:
        """The lowest and the highest value of a column of numbers or times; zeros without rows."""
        found = pc.min_max(self.table.column(column).cast(pa.int64()))
        return found["min"].as_py() or 0, found["max"].as_py() or 0


class RowGathering:
    """Collects the rows of the next segment. `ends` are the offsets where the copy ends, by
    partition.
    """

    def __init__(self, columns: pa.Schema, ends: Mapping[int, int]) -> None:
        self._columns = columns
        self._bases = dict(ends)
        self._ends = dict(ends)
        self._parts: dict[int, list[pa.RecordBatch]] = {}
        self._log_append_time: bool | None = None
        self.bytes = 0

    def takes(self, fetched: Fetched) -> bool:
        """Whether the records can be in the same segment: all of one have the same kind of
        timestamp.
        """
        return self._log_append_time in (None, fetched.log_append_time)

    def add(self, fetched: Fetched) -> None:
        """Add the next records of their partition."""
        self._log_append_time = fetched.log_append_time
        self._parts.setdefault(fetched.partition, []).append(fetched.rows)
        self._ends[fetched.partition] = fetched.next_offset
        self.bytes += fetched.rows.nbytes

    def cover(self, ends: Mapping[int, int]) -> None:
        """Extend partitions to these ends: behind the rows are no further records."""
        self._ends |= ends

    def take(self) -> CopiedRows | None:
        """The rows so far, and begin anew behind them; None if there is nothing to commit."""
        changed = [
            partition
            for partition in sorted(self._ends)
            if self._ends[partition] > self._bases[partition]
        ]
        if not changed:
            return None
        batches = [
            batch.cast(self._columns)
            for partition in changed
            for batch in self._parts.get(partition, ())
        ]
        partition_rows = tuple(
            (p, sum(batch.num_rows for batch in self._parts.get(p, ()))) for p in changed
        )
        ranges = tuple((self._bases[partition], self._ends[partition]) for partition in changed)
        rows = CopiedRows(
            pa.Table.from_batches(batches, self._columns),
            partition_rows,
            ranges,
            self._log_append_time or False,
        )
        self._bases, self._parts, self._log_append_time, self.bytes = dict(self._ends), {}, None, 0
        return rows
