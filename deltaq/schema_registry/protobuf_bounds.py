"""How much memory a payload of Protobuf takes when it is decoded: a message without fields is two
bytes in a payload and has a place for each field of its type in memory, so a megabyte can become
gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from deltaq.schema_registry.work import OutOfBounds, TooMuchWork, limited_work, spend

MESSAGE_BYTES_MAX = 512 * 2**20
"""Memory of the messages in one payload, apart from their repeated fields and texts."""
CHECKED_FIELDS_MAX = 1_000_000
"""Fields of one payload that is walked through: a few seconds."""
_EMPTY_BYTES, _FIELD_BYTES = 32, 16
_GROUP, _MESSAGE = 10, 11
_VARINT, _EIGHT, _SIZED, _GROUP_START, _GROUP_END, _FOUR = range(6)


@lru_cache(maxsize=1000)
def _types(message: Any) -> tuple[int, bool]:
    """The size of the largest type of message in a message, and whether a type is in itself."""
    sizes, finished, open_types = [_size(message)], set(), {message.full_name}
    waiting: list[tuple[Any, Iterator[Any]]] = [(message, iter(message.fields))]
    is_recursive = False
    while waiting:
        around, fields = waiting[-1]
        found = next(
            (field.message_type for field in fields if field.type in (_GROUP, _MESSAGE)), None
        )
        if found is None:
            waiting.pop()
            open_types.discard(around.full_name)
            finished.add(around.full_name)
        elif found.full_name in open_types:
            is_recursive = True
        elif found.full_name not in finished:
            open_types.add(found.full_name)
            sizes.append(_size(found))
            waiting.append((found, iter(found.fields)))
    return max(sizes), is_recursive


def _size(message: Any) -> int:
    return _EMPTY_BYTES + _FIELD_BYTES * len(message.fields)


@lru_cache(maxsize=10_000)
def _has_parts(message: Any) -> bool:
    """Whether messages can be in a message. Of others, each of which is a small part of an
    ordinary payload, only the own size counts.
    """
    return any(field.type in (_GROUP, _MESSAGE) for field in message.fields)


def is_recursive(message: Any) -> bool:
    """Whether the type does not bound how deeply messages are nested."""
    return _types(message)[1]


def check_payload(data: bytes, message: Any) -> None:
    """Raises OutOfBounds for a payload whose messages would take too much memory. The decoder
    refuses what is no message of this type. Nothing is read unless the length of the payload allows
    so much.
    """
    if len(data) // 2 * _types(message)[0] <= MESSAGE_BYTES_MAX:
        return
    total, waiting = 0, [(message, 0, len(data))]
    position = 0
    try:
        with limited_work(CHECKED_FIELDS_MAX):
            while waiting:
                kind, position, end = waiting.pop()
                total += _size(kind)
                if total > MESSAGE_BYTES_MAX:
                    raise OutOfBounds(
                        f"byte {position}: its messages take more than {MESSAGE_BYTES_MAX} bytes "
                        "of memory"
                    )
                if _has_parts(kind):
                    waiting += _parts(data, kind, position, end)
    except TooMuchWork:
        raise OutOfBounds(
            f"byte {position}: a payload of this type has to be checked, and more than "
            f"{CHECKED_FIELDS_MAX} fields are in it"
        ) from None


def _parts(data: bytes, kind: Any, position: int, end: int) -> Iterator[tuple[Any, int, int]]:
    """The messages in a message, each with its place. Groups are read as a part of what is around
    them.
    """
    groups: list[Any] = []
    while position < end:
        spend()
        tag, position = _number(data, position, end)
        number, wire = tag >> 3, tag & 7
        field = None if kind is None else kind.fields_by_number.get(number)
        inner = (
            field.message_type if field is not None and field.type in (_GROUP, _MESSAGE) else None
        )
        if wire == _GROUP_START:
            groups.append(kind)
            kind = inner
            if inner is not None:
                yield inner, position, position  # its memory; its fields follow here
        elif wire == _GROUP_END and groups:
            kind = groups.pop()
        elif wire == _SIZED:
            length, position = _number(data, position, end)
            if inner is not None and position + length <= end:
                yield inner, position, position + length
            position += length
        elif wire == _VARINT:
            _, position = _number(data, position, end)
        elif wire in (_EIGHT, _FOUR):
            position += 8 if wire == _EIGHT else 4
        else:
            return


def _number(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A varint, and where it ends; at the end of what is no varint."""
    if position < end and data[position] < 0x80:
        return data[position], position + 1
    number = 0
    for index in range(position, min(end, position + 10)):
        number |= (data[index] & 0x7F) << 7 * (index - position)
        if data[index] < 0x80:
            return number, index + 1
    return 0, end
