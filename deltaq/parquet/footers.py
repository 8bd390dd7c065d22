"""Bounds the memory that Arrow allocates when it parses a Parquet footer.

A footer is a Thrift struct in the compact protocol. Three bytes can encode a column chunk that
takes 700 bytes in memory, so a footer of 10 MB can take gigabytes. Only footers large enough to
exceed the limit are scanned.
"""

from __future__ import annotations

from deltaq.parquet.page_headers import varint

STRUCT_BYTES = 720
"""Memory of the largest struct of a footer, that of a column chunk."""

ELEMENT_BYTES = 32
"""Maximum memory of a list element, such as an empty string, in addition to its content."""

GROWTH = STRUCT_BYTES // 3
"""Maximum ratio of a footer's memory to its size: the smallest encoded column chunk has three
bytes.
"""

_DEPTH_MAX = 64
"""Thrift's own limit on nesting."""

_TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(
    1, 14
)
_FIXED_BYTES = {_I8: 1, _DOUBLE: 8, _UUID: 16}


def footer_of(data: bytes | memoryview) -> memoryview:
    """The footer of a Parquet file, or of a part of one that ends with the footer; empty if there
    is none.
    """
    length = int.from_bytes(data[-8:-4], "little")
    return memoryview(data)[max(0, len(data) - 8 - length) : max(0, len(data) - 8)]


def check_footer(footer: memoryview, bytes_max: int) -> None:
    """ValueError if the footer cannot be read, or if Arrow would need more than `bytes_max` bytes
    to parse it.
    """
    if len(footer) * GROWTH <= bytes_max:
        return
    try:
        _Walk(footer, bytes_max).struct(0, 1)
    except IndexError:
        raise ValueError("its footer is cut") from None


class _Walk:
    """Scans a footer and counts the memory it would take; ValueError beyond the limit."""

    def __init__(self, data: memoryview, bytes_max: int) -> None:
        self._data = data
        self._left = bytes_max

    def struct(self, at: int, depth: int) -> int:
        """The end of the struct that begins at `at`."""
        self._take(STRUCT_BYTES)
        if depth > _DEPTH_MAX:
            raise ValueError("its footer is nested too deeply")
        data = self._data
        while kind := (head := data[at]) & 15:
            at += 1
            if head < 16:
                _, at = varint(data, at, 64, "its footer")  # the field's number in long form
            if kind > _FALSE:  # boolean fields have no further bytes
                at = self._value(kind, at, depth)
        return at + 1

    def _value(self, kind: int, at: int, depth: int) -> int:
        data = self._data
        if kind in (_I16, _I32, _I64):
            return varint(data, at, 64, "its footer")[1]
        if kind == _BINARY:
            length, at = varint(data, at, 64, "its footer")
            self._take(length)
            return at + length
        if kind == _STRUCT:
            return self.struct(at, depth + 1)
        if kind in (_LIST, _SET):
            head = data[at]
            count, at = (
                varint(data, at + 1, 64, "its footer") if head >> 4 == 15 else (head >> 4, at + 1)
            )
            return self._elements(count, (head & 15,), at, depth)
        if kind == _MAP:
            count, at = varint(data, at, 64, "its footer")
            return (
                self._elements(count, (data[at] >> 4, data[at] & 15), at + 1, depth)
                if count
                else at
            )
        if kind in _FIXED_BYTES:
            return at + _FIXED_BYTES[kind]
        raise ValueError(f"its footer has a value of the type {kind}")

    def _elements(self, count: int, kinds: tuple[int, ...], at: int, depth: int) -> int:
        self._take(count * len(kinds) * ELEMENT_BYTES)
        if depth >= _DEPTH_MAX:
            raise ValueError("its footer is nested too deeply")
        for _ in range(count):
            for kind in kinds:
                at = at + 1 if kind <= _FALSE else self._value(kind, at, depth + 1)
        return at

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError("its footer would take more memory than allowed")
