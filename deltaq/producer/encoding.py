"""Encoding of records as columns: choose partitions, fill in timestamps, cut batches into segments,
and messages larger than `message.max.bytes` into pieces (`large.message.enabled`). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.errors import (
    InvalidValue,
    KafkaError,
    KafkaException,
    MessageTooLarge,
    UnknownTopic,
)
from deltaq.parquet.plain_segment import RECORD_BYTES, PlainRows, in_ms
from deltaq.parquet.segment import ROW_GROUP_PARTITION_BYTES, ROW_GROUP_ROWS_MAX
from deltaq.partitioner import PartitionChoice
from deltaq.producer.accumulator import RowBlock
from deltaq.serde.schema import TopicSchema
from deltaq.serde.widening import conformed_batch, holds
from deltaq.topics.columns import VALUE_SCHEMA, Columns, bounds_of, columns_of_rows, slice_columns
from deltaq.topics.metadata import TopicDefinition
from deltaq.topics.pieces import HEADER_ROOM, PIECE_HEADER, Piece

if TYPE_CHECKING:
    from deltaq.producer.topic_handle import TopicHandle

KERNEL_ROWS_MIN = 2000
"""Rows from which Arrow kernels are used. A call releases the GIL; getting it back costs smaller
batches more.
"""

PLAIN_BYTES_MAX = 8 * 1024 * 1024
"""Bytes up to which records are encoded without Arrow, which holds the GIL all the time: 10 ms for
each MiB.
"""

LARGE_MESSAGE_BYTES_MAX = 1024 * 1024 * 1024
"""Maximum size of a value that is written in pieces."""


@dataclass(frozen=True, slots=True)
class TopicToFit:
    """The topic that records are encoded for. `is_unchecked`: the records were produced before the
    topic was known, so the client could not check them against it.
    """

    name: str
    definition: TopicDefinition
    is_unchecked: bool = False

    def misfit(self) -> InvalidValue:
        """Values do not fit the columns of the topic."""
        schema = self.definition.schema
        wanted = VALUE_SCHEMA if schema is None else schema.arrow
        text = wanted.to_string(show_field_metadata=False)
        return InvalidValue(f"the topic holds {text}", topic=self.name)

    def keyless(self) -> KafkaException:
        """A message of a compacted topic lacks a key."""
        reason = f"topic {self.name!r} is compacted: every message needs a key"
        return KafkaException(KafkaError(KafkaError.INVALID_RECORD, reason))

    @property
    def needs_keys(self) -> bool:
        """Whether every message needs a key."""
        return "compact" in self.definition.settings.cleanup_policy

    @property
    def size_max(self) -> int:
        """Bytes of the largest message."""
        return self.definition.settings.max_message_bytes


# --- rows of `produce` ---


def row_refusals(
    records: RowBlock, partitions: Sequence[int], topic: TopicToFit, misfit: InvalidValue | None
) -> dict[int, KafkaException]:
    """The errors of rows, by row number, that `produce` could not know yet. `misfit`: why the topic
    does not take one of the client's schemas.
    """
    definition = topic.definition
    found: dict[int, KafkaException] = {}
    if max(partitions) >= (count := definition.partitions):
        code = KafkaError._UNKNOWN_PARTITION
        unknown = {
            n: UnknownTopic(topic.name, partition=n, code=code)
            for n in set(partitions)
            if n >= count
        }
        found = {
            at: unknown[partition]
            for at, partition in enumerate(partitions)
            if partition in unknown
        }
    if topic.needs_keys:
        error = topic.keyless()
        found |= {at: error for at, key in enumerate(records.keys) if key is None}
    if topic.is_unchecked:
        found |= _of_wrong_form(records, topic)
        found |= _too_large(records, topic)
    if misfit is not None:
        values = enumerate(records.values)
        found |= {at: misfit for at, value in values if not _is_taken(definition, value)}
    return found


def _of_wrong_form(records: RowBlock, topic: TopicToFit) -> dict[int, KafkaException]:
    """The errors of rows that have other columns than the topic."""
    schema = topic.definition.schema
    if schema is None:
        return {}
    columns, misfit = set(schema.arrow.names), topic.misfit()
    return {
        at: misfit
        for at, value in enumerate(records.values)
        if value is not None and not (isinstance(value, dict) and value.keys() <= columns)
    }


def _too_large(records: RowBlock, topic: TopicToFit) -> dict[int, KafkaException]:
    pairs = zip(records.keys, records.values, strict=True)
    sizes = [
        len(key or b"") + (len(value) if isinstance(value, bytes) else 0) for key, value in pairs
    ]
    return {
        at: MessageTooLarge(size=size, limit=topic.size_max, topic=topic.name)
        for at, size in enumerate(sizes)
        if size > topic.size_max
    }


def _is_taken(definition: TopicDefinition, value: object) -> bool:
    """Whether the topic takes a value, of whatever schema of the client."""
    if value is None or definition.schema is None:
        return value is None or isinstance(value, bytes)
    try:
        definition.schema.accept(value)
    except InvalidValue:
        return False
    return True


def encoded_rows(
    records: RowBlock,
    partitions: Sequence[int],
    epoch_ms: float,
    topic: TopicToFit,
    plain_size: int | None,
) -> Columns | PlainRows:
    """Rows as columns; as plain rows if they have about `plain_size` bytes and Arrow would not be
    faster. None: they must be columns. Raises InvalidValue.
    """
    if plain_size is not None:
        plain = plain_rows(records, partitions, epoch_ms, plain_size)
        # There are no plain rows with headers, null values, keys in some of them, or many bytes.
        if plain is not None:
            return plain
    return row_columns(records, partitions, epoch_ms, topic.definition.schema)


def row_columns(
    records: RowBlock, partitions: Sequence[int], epoch_ms: float, schema: TopicSchema | None
) -> Columns:
    """Rows as columns. A row without a timestamp gets the time at which it was produced: `epoch_ms`
    + monotonic time. Raises InvalidValue if a value does not fit the topic's schema.
    """
    times, time_bounds = _times(records, epoch_ms)
    try:
        columns = columns_of_rows(
            partitions, times, records.keys, records.headers, records.values, schema
        )
    except (pa.ArrowException, TypeError, AttributeError) as error:
        kind = "bytes" if schema is None else "dicts or model instances"
        raise InvalidValue(f"the topic holds {kind}: {error}") from error
    return replace(
        columns, partition_bounds=(min(partitions), max(partitions)), timestamp_bounds=time_bounds
    )


def plain_rows(
    records: RowBlock, partitions: Sequence[int], epoch_ms: float, size: int
) -> PlainRows | None:
    """Records of about `size` bytes as rows that can be encoded without Arrow, sorted by partition.
    None for records with headers, without a value, of which only some have a key, and for so many
    that Arrow is faster.
    """
    count = len(records)
    lowest = min(partitions)
    is_one_partition = lowest == max(partitions)
    # Many bytes of several partitions need row groups of their own.
    limit = PLAIN_BYTES_MAX if is_one_partition else ROW_GROUP_PARTITION_BYTES
    is_few = size + RECORD_BYTES * count <= limit and count <= ROW_GROUP_ROWS_MAX
    if not is_few or any(records.headers) or set(map(type, records.values)) != {bytes}:
        return None
    kinds = set(map(type, records.keys))
    if len(kinds) > 1:
        return None
    keys: list[Any] | None = records.keys if kinds == {bytes} else None
    times = timestamps_ms(records, epoch_ms)
    if is_one_partition:
        return PlainRows(records.values, keys, times, ((lowest, count),))
    # Stable: each partition keeps its order.
    order = sorted(range(count), key=partitions.__getitem__)
    partition_rows = tuple(sorted(Counter(partitions).items()))
    keys = None if keys is None else [keys[at] for at in order]
    return PlainRows(
        [records.values[at] for at in order], keys, [times[at] for at in order], partition_rows
    )


def _times(records: RowBlock, epoch_ms: float) -> tuple[pa.Array, tuple[int, int]]:
    """The timestamp of each row in milliseconds, with the minimum and the maximum."""
    if len(records) >= KERNEL_ROWS_MIN and not any(records.timestamps):
        since = pa.array(records.times, pa.float64())
        array = pc.add(pc.multiply(since, pa.scalar(1000.0)), pa.scalar(epoch_ms)).cast(
            pa.int64(), safe=False
        )
        return array, bounds_of(array)
    times = timestamps_ms(records, epoch_ms)
    return pa.array(times, pa.int64()), (min(times), max(times))


def timestamps_ms(records: RowBlock, epoch_ms: float) -> list[int]:
    """The timestamp of each row in milliseconds: the given one, or when it was produced."""
    if not any(records.timestamps):
        return in_ms(records.times, partial(produced_ms, epoch_ms=epoch_ms))
    given = zip(records.timestamps, records.times, strict=True)
    return [timestamp or produced_ms(produced, epoch_ms) for timestamp, produced in given]


def produced_ms(produced: float, epoch_ms: float) -> int:
    """When a row was produced, in milliseconds since 1970. `epoch_ms` is the wall-clock time of the
    monotonic zero.
    """
    return int(produced * 1000 + epoch_ms)


def chosen_partitions(records: RowBlock, choice: PartitionChoice) -> list[int]:
    """The partition of each row: the one it names, or the partitioner's choice."""
    named = records.partitions
    if min(named) >= 0:
        return named
    if choice.count == 1:
        return [0] * len(named) if max(named) <= 0 else [max(name, 0) for name in named]
    chosen = choice.of(records.keys)
    if max(named) < 0:
        return chosen
    return [choice if name < 0 else name for name, choice in zip(named, chosen, strict=True)]


# --- tables of `produce_arrow` ---


def block_columns(columns: Columns, topic: TopicToFit, choice: PartitionChoice) -> Columns:
    """A table with the columns of the topic and chosen partitions, checked for what `produce_arrow`
    could not know yet. One bad row refuses the whole table. Raises InvalidValue, UnknownTopic,
    MessageTooLarge, KafkaException.
    """
    columns = _widened(columns, topic)
    check_block(columns, topic)
    return resolved_block(columns, choice)


def _widened(columns: Columns, topic: TopicToFit) -> Columns:
    """A table with the columns of the topic, which may have more or wider ones than when it was
    produced. Raises InvalidValue.
    """
    schema = topic.definition.schema
    wanted = VALUE_SCHEMA if schema is None else schema.arrow
    found = columns.values.schema
    if found == wanted:
        return columns
    known = [name for name in wanted.names if name in found.names]
    # In the order of the topic, further ones last.
    fields = [found.field(name) for name in known] + [
        field for field in found if field.name not in wanted.names
    ]
    if schema is None or not holds(pa.struct(list(wanted)), pa.struct(fields)):
        raise topic.misfit()
    return replace(columns, values=conformed_batch(columns.values, wanted))


def check_block(columns: Columns, topic: TopicToFit) -> None:
    """Check columns against the topic. Raises UnknownTopic, MessageTooLarge, KafkaException."""
    highest = pc.max(columns.partitions).as_py()
    if highest >= topic.definition.partitions:
        raise UnknownTopic(topic.name, partition=highest, code=KafkaError._UNKNOWN_PARTITION)
    if topic.needs_keys and columns.keys.null_count:
        raise topic.keyless()
    if topic.is_unchecked and (size := largest_record(columns)) > topic.size_max:
        raise MessageTooLarge(size=size, limit=topic.size_max, topic=topic.name)


def resolved_block(columns: Columns, choice: PartitionChoice) -> Columns:
    """A table's columns with every partition of -1 replaced by the partitioner's choice. Each
    distinct key is hashed once, so the Python work does not grow with the rows, unless they are
    spread.
    """
    unset = pc.less(columns.partitions, 0)
    if not pc.any(unset).as_py():
        return columns
    chosen: pa.Array
    if choice.count > 1 and (choice.spread or choice.partitioner == "random"):
        chosen = pa.array(choice.of(columns.keys.to_pylist()), pa.int32())
    elif choice.count == 1 or columns.keys.null_count == len(columns):
        partition = 0 if choice.count == 1 else choice.of([None])[0]
        chosen = pa.repeat(pa.scalar(partition, pa.int32()), len(columns))
    else:
        encoded = columns.keys.dictionary_encode(null_encoding="encode")
        of_key = choice.of(encoded.dictionary.to_pylist())
        chosen = pa.array(of_key, pa.int32()).take(encoded.indices)
    return replace(columns, partitions=pc.if_else(unset, chosen, columns.partitions))


def largest_record(columns: Columns) -> int:
    """Bytes of the largest record: its key and its value columns of text or bytes."""
    lengths = [
        pc.binary_length(column).fill_null(0).cast(pa.int64())
        for column in (columns.keys, *columns.values.columns)
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    ]
    return int(pc.max(reduce(pc.add, lengths)).as_py())


def joined(parts: Sequence[Columns]) -> Columns:
    """Concatenate the columns of several parts."""
    if len(parts) == 1:
        return parts[0]
    return Columns(
        pa.concat_arrays([part.partitions for part in parts]),
        pa.concat_arrays([part.timestamps for part in parts]),
        pa.concat_arrays([part.keys for part in parts]),
        pa.concat_arrays([part.headers for part in parts]),
        pa.concat_batches([part.values for part in parts]),
    )


def in_segments(columns: Columns, bytes_max: int) -> Iterator[Columns]:
    """Cut columns into pieces of at most about `bytes_max` bytes (a single row may exceed it)."""
    left, limit = [columns], bytes_max
    while left:
        piece = left.pop()
        rows = piece.values, piece.keys, piece.headers
        size = sum(column.nbytes for column in rows) + 12 * len(piece)
        if size <= limit or len(piece) == 1:
            yield piece
            continue
        step = -(-len(piece) // -(-size // bytes_max))
        cuts = range(0, len(piece), step)
        left += [slice_columns(piece, at, min(step, len(piece) - at)) for at in reversed(cuts)]
        limit = (
            2 * bytes_max
        )  # this can happen when rows are uneven: a piece is still far too large


@dataclass(frozen=True, slots=True)
class LargeBlock(RowBlock):
    """One message, whose pieces are committed together. `size_max` limits the size of a piece with
    key and headers.
    """

    id: str
    size_max: int
    bytes: int

    @property
    def overhead(self) -> int:
        """The size of a piece besides its part of the value."""
        headers = self.headers[0] or []
        size = sum(len(name.encode()) + len(content or b"") for name, content in headers)
        return len(self.keys[0] or b"") + size + HEADER_ROOM


def large_block(row: Sequence[Any], size: int, unique_id: str, handle: TopicHandle) -> LargeBlock:
    """A message of `size` bytes, with the fields of a row, as a block.

    Raises MessageTooLarge if key and headers leave no room for a part of the value, or the value is
    too large for pieces or none of bytes, InvalidValue if the topic is compacted.
    """
    value, topic = row[0], handle.name
    if handle.keyed:
        raise _compacted(topic)
    if not isinstance(value, bytes):
        raise MessageTooLarge(size=size, limit=handle.size_max, topic=topic)
    if len(value) > LARGE_MESSAGE_BYTES_MAX:
        raise MessageTooLarge(size=size, limit=LARGE_MESSAGE_BYTES_MAX, topic=topic)
    _, key, partition, timestamp, headers, time, callback = row
    columns = [value], [key], [partition], [timestamp], [headers], [time], [callback]
    block = LargeBlock(*columns, unique_id, handle.size_max, size)
    if block.overhead >= block.size_max:
        raise MessageTooLarge(size=size, limit=block.size_max, topic=topic)
    return block


def _compacted(topic: str) -> InvalidValue:
    reason = (
        f"topic {topic!r} is compacted, which would keep only the last piece of a large message"
    )
    return InvalidValue(f"{reason}: use a topic without compaction", topic=topic)


def room_for_value(block: LargeBlock, topic: TopicToFit) -> int:
    """The bytes of a message's value that fit into each of its pieces. Raises InvalidValue if the
    topic takes no pieces, MessageTooLarge if key and headers leave no room.
    """
    if topic.needs_keys:
        raise _compacted(topic.name)
    if topic.definition.schema is not None:
        raise InvalidValue("the topic holds dicts or model instances", topic=topic.name)
    limit = min(block.size_max, topic.size_max)
    room = limit - block.overhead
    if room <= 0:
        raise MessageTooLarge(size=block.bytes, limit=limit, topic=topic.name)
    return room


def piece_columns(block: LargeBlock, partition: int, epoch_ms: float, topic: TopicToFit) -> Columns:
    """The pieces of a message as columns. Raises what `room_for_value` raises, and UnknownTopic for
    a partition that the topic lacks.
    """
    room = room_for_value(block, topic)
    value: bytes = block.values[0]
    parts = [value[first : first + room] for first in range(0, len(value), room)]
    count = len(parts)
    headers = block.headers[0] or []
    pieces = [Piece(block.id, index, count, len(value)) for index in range(count)]
    time_ms = timestamps_ms(block, epoch_ms)[0]
    rows = RowBlock(
        values=parts,
        keys=block.keys * count,
        partitions=[partition] * count,
        timestamps=[time_ms] * count,
        headers=[[*headers, (PIECE_HEADER, piece.text())] for piece in pieces],
        times=block.times * count,
        callbacks=[None] * count,
    )
    columns = row_columns(rows, rows.partitions, epoch_ms, None)
    check_block(columns, replace(topic, is_unchecked=False))
    return columns
