"""Messages larger than `message.max.bytes`, which are written in pieces
(`large.message.enabled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltaq.errors import InvalidValue, MessageTooLarge
from deltaq.producer.accumulator import RowBlock
from deltaq.producer.encoding import row_columns, timestamps_ms
from deltaq.topics.columns import Columns
from deltaq.topics.metadata import TopicDefinition
from deltaq.topics.pieces import HEADER_ROOM, PIECE_HEADER, Piece

if TYPE_CHECKING:
    from deltaq.producer.topic_handle import TopicHandle

LARGE_MESSAGE_BYTES_MAX = 1024 * 1024 * 1024
"""Maximum size of a value that is written in pieces."""


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


def room_for_value(block: LargeBlock, definition: TopicDefinition, topic: str) -> int:
    """The bytes of a message's value that fit into each of its pieces. Raises InvalidValue if the
    topic takes no pieces, MessageTooLarge if key and headers leave no room.
    """
    if "compact" in definition.settings.cleanup_policy:
        raise _compacted(topic)
    if definition.schema is not None:
        raise InvalidValue("the topic holds dicts or model instances", topic=topic)
    limit = min(block.size_max, definition.settings.max_message_bytes)
    room = limit - block.overhead
    if room <= 0:
        raise MessageTooLarge(size=block.bytes, limit=limit, topic=topic)
    return room


def piece_columns(
    block: LargeBlock, partition: int, epoch_ms: float, definition: TopicDefinition, topic: str
) -> Columns:
    """The pieces of a message as columns. Raises what `room_for_value` raises."""
    room = room_for_value(block, definition, topic)
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
    return row_columns(rows, rows.partitions, epoch_ms, None)
