"""How much memory a Parquet footer takes once Arrow has parsed it.

A footer is a Thrift struct in the compact protocol. Three bytes of it can stand for a column chunk of some 700 bytes in
memory, so a footer of ten megabytes can take gigabytes. Only footers that large are looked through, value by value.
"""

from __future__ import annotations

__all__ = ["check_footer", "footer_of"]

STRUCT_BYTES = 720
"""What the largest of the structs of a footer, that of a column chunk, takes in memory."""

ELEMENT_BYTES = 32
"""What an element of a list, such as an empty text, takes at most beside what it holds."""

GROWTH = STRUCT_BYTES // 3
"""How many times its size a footer takes at most: the smallest column chunk has three bytes."""

_DEPTH_MAX = 64
"""As in Thrift."""

_TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)
_FIXED_BYTES = {_I8: 1, _DOUBLE: 8, _UUID: 16}


def footer_of(data: bytes | memoryview) -> memoryview:
    """The footer at the end of a Parquet file, or of a part of one; empty if there is none."""
    length = int.from_bytes(data[-8:-4], "little")
    return memoryview(data)[max(0, len(data) - 8 - length) : max(0, len(data) - 8)]


def check_footer(footer: memoryview, bytes_max: int) -> None:
    """Raises ValueError, before Arrow parses it, if a footer would take more memory, or cannot be read."""
    if len(footer) * GROWTH <= bytes_max:
        return
    try:
        _Walk(footer, bytes_max).struct(0, 1)
    except IndexError:
        raise ValueError("its footer is cut") from None


class _Walk:
    """A walk through a footer that ends when too much memory would have been taken."""

    def __init__(self, data: memoryview, bytes_max: int) -> None:
        self._data = data
        self._left = bytes_max

    def struct(self, at: int, depth: int) -> int:
        """Where the struct that begins at `at` ends."""
        self._take(STRUCT_BYTES)
        if depth > _DEPTH_MAX:
            raise ValueError("its footer is nested too deeply")
        data = self._data
        while kind := (head := data[at]) & 15:
            at += 1
            if head < 16:
                _, at = self._varint(at)  # the field's number, written out
            if kind > _FALSE:  # as a field, these have no further bytes
                at = self._value(kind, at, depth)
        return at + 1

    def _value(self, kind: int, at: int, depth: int) -> int:
        if kind in (_I16, _I32, _I64):
            return self._varint(at)[1]
        if kind == _BINARY:
            length, at = self._varint(at)
            self._take(length)
            return at + length
        if kind == _STRUCT:
            return self.struct(at, depth + 1)
        if kind in (_LIST, _SET):
            head = self._data[at]
            count, at = self._varint(at + 1) if head >> 4 == 15 else (head >> 4, at + 1)
            return self._elements(count, (head & 15,), at, depth)
        if kind == _MAP:
            count, at = self._varint(at)
            return self._elements(count, (self._data[at] >> 4, self._data[at] & 15), at + 1, depth) if count else at
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

    def _varint(self, at: int) -> tuple[int, int]:
        """The number at `at`, without sign, and where it ends."""
        data = self._data
        if (number := data[at]) < 128:
            return number, at + 1
        number, shift, more = 0, 0, 128
        while more > 127:
            if shift > 63:
                raise ValueError("its footer has a number of more than 64 bits")
            more = data[at]
            at += 1
            number |= (more & 127) << shift
            shift += 7
        return number, at

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ValueError("its footer would take more memory than any file of a table may")
