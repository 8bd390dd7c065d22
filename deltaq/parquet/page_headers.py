"""Reads the page headers of a Parquet column chunk to compute its decoded size.

Arrow allocates memory by these headers, whatever the footer says. They are in Thrift's compact
protocol (source: the Parquet format, `parquet.thrift`). Headers that Thrift parsers may read
differently (fields repeated or out of order) are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

_Fields: TypeAlias = "dict[int, int | _Fields]"

# Thrift's type numbers.
_TRUE, _FALSE, _I32, _I64, _BINARY, _STRUCT = 1, 2, 5, 6, 8, 12
_DEPTH_MAX = 3  # page header, header of its kind of page, statistics

# Fields of a page header: the kind of page, its uncompressed size and its compressed size.
_KIND, _UNCOMPRESSED, _COMPRESSED = 1, 2, 3
_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_VALUES = 1
_ENCODING_AT: Final = {_DATA: (5, 2), _DICTIONARY: (7, 2), _DATA_V2: (8, 4)}
"""Kind of page -> (the field with the header of that kind, the field with the encoding in that
header).
"""

_BY_DICTIONARY = frozenset({2, 8})
_ENCODINGS = {
    0: "PLAIN",
    2: "PLAIN_DICTIONARY",
    3: "RLE",
    5: "DELTA_BINARY_PACKED",
    8: "RLE_DICTIONARY",
    9: "BYTE_STREAM_SPLIT",
}
"""Encodings whose decoded size follows from the headers. DELTA_LENGTH_BYTE_ARRAY and
DELTA_BYTE_ARRAY are refused: a page of a few hundred bytes can decode to gigabytes.
"""


@dataclass(slots=True)
class ColumnContent:
    """The content of a column's pages according to their headers."""

    values: int = 0  # with nulls
    page_bytes: int = 0  # uncompressed size of all pages
    dictionary_values: int = 0  # of the largest dictionary
    # Maximum size of all references: each may refer to a value as large as the dictionary.
    expanded_bytes: int = 0

    def add(self, chunk: memoryview) -> None:
        """Count the pages of a column chunk. ValueError for an unreadable header or an encoding
        that is not allowed.
        """
        at = references = dictionary_bytes = 0
        try:
            while at < len(chunk):
                fields, at = _struct(chunk, at, 1)
                kind, size = _number(fields, _KIND), _number(fields, _UNCOMPRESSED)
                at += _number(fields, _COMPRESSED)
                self.page_bytes += size
                if kind == _INDEX:
                    continue
                count, encoding = _described(fields, kind)
                if kind == _DICTIONARY:
                    dictionary_bytes += size
                    self.dictionary_values = max(self.dictionary_values, count)
                else:
                    self.values += count
                    references += count if encoding in _BY_DICTIONARY else 0
        except IndexError:
            at = len(chunk) + 1
        if at > len(chunk):
            raise ValueError("a page does not end where its column ends")
        self.expanded_bytes += references * dictionary_bytes


def _described(fields: _Fields, kind: int) -> tuple[int, int]:
    """The number of values in a page, and their encoding."""
    described_at, encoding_at = _ENCODING_AT.get(kind, (0, 0))
    description = fields.get(described_at)
    if not isinstance(description, dict):
        raise ValueError(f"a page of kind {kind} has no description")
    encoding = _number(description, encoding_at)
    if encoding not in _ENCODINGS:
        allowed = ", ".join(_ENCODINGS.values())
        raise ValueError(
            f"a page has the Parquet encoding number {encoding}; only {allowed} are read"
        )
    return _number(description, _VALUES), encoding


def _number(fields: _Fields, field: int) -> int:
    number = fields.get(field)
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"field {field} of a page header is not a valid size")
    return number


def _struct(data: memoryview, at: int, depth: int) -> tuple[_Fields, int]:
    """The 32-bit numbers and structs of the struct at `at`, by field, and its end. IndexError if it
    is truncated.
    """
    if depth > _DEPTH_MAX:
        raise ValueError("a page header is nested too deeply")
    fields: _Fields = {}
    field = 0
    while head := data[at]:
        at += 1
        if head < 16:
            raise ValueError("the fields of a page header are out of order")
        field += head >> 4
        kind = head & 15
        if kind == _I32:
            if (number := data[at]) < 128:  # as most are: a call would cost more than the rest
                at += 1
            else:
                number, at = varint(data, at, 32, "a page header")
            fields[field] = (number >> 1) ^ -(number & 1)
        elif kind == _STRUCT:
            fields[field], at = _struct(data, at, depth + 1)
        elif kind == _BINARY:
            if (length := data[at]) < 128:
                at += 1
            else:
                length, at = varint(data, at, 32, "a page header")
            at += length
        elif kind == _I64:
            _, at = varint(data, at, 64, "a page header")
        elif kind not in (_TRUE, _FALSE):
            raise ValueError(f"a page header has a field of the type {kind}")
    return fields, at + 1


def varint(data: memoryview, at: int, bits: int, place: str) -> tuple[int, int]:
    """The unsigned number at `at`, and its end. ValueError, with its `place`, if it has more than
    `bits` bits.
    """
    if (number := data[at]) < 128:
        return number, at + 1
    number, shift, more = 0, 0, 128
    while more > 127 and shift < bits:
        more = data[at]
        at += 1
        number |= (more & 127) << shift
        shift += 7
    if more > 127 or number >> bits:
        raise ValueError(f"{place} has a number of more than {bits} bits")
    return number, at
