"""Segments of untyped records without Arrow, whose fixed costs are most of those of a small batch.

What `encode_plain` writes is what `encode_segment` would write, but for the footer's `created_by`
and the sizes of pages: the same schema, statistics and checksums. `docs/internals/format.md`
specifies it, in "Plain data files". Only records that are all values of bytes without headers are
encoded here, uncompressed and in one row group.

Sources: the Parquet format (`parquet.thrift`, Encodings.md), Thrift's compact protocol.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat, starmap

from deltaq.parquet.segment import EncodedSegment
from deltaq.version import __version__

RECORD_BYTES = 16
"""Bytes of a record besides its key and value: its time, and the lengths of key and value."""

RUN_MIN = 16
"""Fewest records in a millisecond, on average, for which times are converted by milliseconds
instead of one by one.
"""

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
"""Thrift's type numbers."""

_INT32, _INT64, _BYTE_ARRAY = 1, 2, 6
"""Parquet's types."""

_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8
"""Parquet's encodings."""

_OPTIONAL, _REPEATED = 1, 2
_UTF8, _LIST_OF, _TIMESTAMP_MICROS = 0, 3, 10
"""Parquet's converted types."""

_INT = struct.Struct("<i")
_LONG = struct.Struct("<q")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class PlainRows:
    """Records in runs of a partition. `keys` is None if no record has a key. `partition_rows` are
    (partition, rows), in the order of the rows; in a segment they are sorted. Unless `timed`, the
    times are not written, because the commit gives them.
    """

    values: Sequence[bytes]
    keys: Sequence[bytes] | None
    times_ms: Sequence[int]
    partition_rows: tuple[tuple[int, int], ...]
    timed: bool = True

    def __len__(self) -> int:
        return len(self.values)

    def of_partition(self, first: int, partition: int, count: int) -> PlainRows:
        """The rows of one partition, `count` from row `first` on."""
        part = slice(first, first + count)
        keys = None if self.keys is None else self.keys[part]
        return PlainRows(
            self.values[part], keys, self.times_ms[part], ((partition, count),), self.timed
        )


def joined_plain(parts: Sequence[PlainRows]) -> PlainRows:
    """The records of several parts, one after the other. All have keys or none has, and all are
    `timed` or none is.
    """
    if len(parts) == 1:
        return parts[0]
    keys = (
        None
        if parts[0].keys is None
        else list(chain.from_iterable(part.keys or () for part in parts))
    )
    values, times_ms, partition_rows = (
        list(chain.from_iterable(of_each))
        for of_each in zip(
            *((part.values, part.times_ms, part.partition_rows) for part in parts), strict=True
        )
    )
    return PlainRows(values, keys, times_ms, tuple(partition_rows), parts[0].timed)


def encode_plain(rows: PlainRows) -> EncodedSegment:
    """Encode at least one record as an uncompressed segment."""
    count = len(rows)
    all_null, no_header = _null_page(count), _null_page(count, 2)
    chunks = [
        _partition_chunk(rows.partition_rows, count),
        _Chunk((all_null,), _null_statistics(count)),
        _time_chunk(rows.times_ms) if rows.timed else _Chunk((all_null,), _null_statistics(count)),
        _Chunk((all_null,) if rows.keys is None else _bytes_page(rows.keys)),
        _Chunk((no_header,)),
        _Chunk((no_header,)),
        _Chunk(_bytes_page(rows.values)),
    ]
    footer = _footer(chunks, count)
    data = b"".join([_MAGIC, *chain.from_iterable(chunk.parts for chunk in chunks), footer])
    return EncodedSegment(
        memoryview(data), count, zlib.crc32(data), len(footer), zlib.crc32(footer), ()
    )


def decode_plain(data: bytes, partition_rows: tuple[tuple[int, int], ...]) -> PlainRows | None:
    """The records of a file that `encode_plain` has written, with these shares; None for any other
    file.

    Nothing that is found in the file is relied on: encoding the records again must give the same
    bytes.
    """
    count = sum(rows for _, rows in partition_rows)
    is_possible = 0 < count <= len(data) // _LENGTH.size  # each value has its length
    if not is_possible or not data.endswith(_FOOTER_END, 0, len(data) - _LENGTH.size - len(_MAGIC)):
        return None
    all_null, no_header = _null_page(count), _null_page(count, 2)
    at = len(_MAGIC) + _partition_chunk(partition_rows, count).size + len(all_null)
    try:
        times, at = _present(data, at, count, all_null)
        keys, at = _present(data, at, count, all_null)
        values, _ = _present(data, at + 2 * len(no_header), count, all_null)
        if values is None:
            return None
        micros = array("q", times or bytes(8 * count))
        if sys.byteorder == "big":
            micros.byteswap()
        times_ms = in_ms(micros.tolist(), _ms_of_micros)
        rows = PlainRows(
            _split(values, count),
            None if keys is None else _split(keys, count),
            times_ms,
            partition_rows,
            times is not None,
        )
        return rows if bytes(encode_plain(rows).data) == data else None
    except (IndexError, ValueError, struct.error):
        return None


def _present(data: bytes, at: int, count: int, all_null: bytes) -> tuple[bytes | None, int]:
    """The values of the page at `at`, None if all are null, and where the page ends."""
    if data.startswith(all_null, at):
        return None, at + len(all_null)
    size, at = _read_varint(data, at + 3)  # behind the type of the page
    _, at = _read_varint(data, at + 1)
    _, at = _read_varint(data, at + 1)
    at += len(_described(count, _PLAIN))
    size //= 2
    return data[at + len(_levels(count, 1)) : at + size], at + size


def _split(content: bytes, count: int) -> list[bytes]:
    """The values of a page, each behind its length."""
    width = _LENGTH.size
    step = width + _LENGTH.unpack_from(content)[0]
    if len(content) == count * step:
        return [content[at + width : at + step] for at in range(0, len(content), step)]
    found, at = [], 0
    while at < len(content):
        end = at + width + _LENGTH.unpack_from(content, at)[0]
        found.append(content[at + width : end])
        at = end
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[at]) > 127:
        number |= (byte & 127) << shift
        shift += 7
        at += 1
    return number | byte << shift, at + 1


@dataclass(slots=True)
class _Chunk:
    """The pages of a column, in parts that are copied once, into the file; its statistics as the
    field of its metadata, and the bytes of its dictionary page.
    """

    parts: tuple[bytes, ...]
    statistics: bytes = b""
    dictionary_bytes: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


# --- pages ---


def _partition_chunk(partition_rows: Sequence[tuple[int, int]], count: int) -> _Chunk:
    """A dictionary of the partitions, and a page that refers to it in runs."""
    dictionary = b"".join(_INT.pack(partition) for partition, _ in partition_rows)
    header = (
        _i32(1, 2)
        + _sizes((dictionary,))
        + _struct(3, _i32(1, len(partition_rows)) + _i32(1, _PLAIN))
        + _END
    )
    bits = max(1, (len(partition_rows) - 1).bit_length())
    width = (bits + 7) // 8
    runs = (
        _varint(rows << 1) + at.to_bytes(width, "little")
        for at, (_, rows) in enumerate(partition_rows)
    )
    page = _page(count, _RLE_DICTIONARY, _levels(count, 1) + bytes((bits,)) + b"".join(runs))
    bounds = _INT.pack(partition_rows[0][0]), _INT.pack(partition_rows[-1][0])
    return _Chunk((header, dictionary, *page), _bounds(*bounds), len(header) + len(dictionary))


def _time_chunk(times_ms: Sequence[int]) -> _Chunk:
    count = len(times_ms)
    if (runs := _runs_of_ms(times_ms, int)) is None:
        micros = array("q", [1000 * time_ms for time_ms in times_ms])
        low, high = min(times_ms), max(times_ms)
    else:
        micros = array("q")
        for time_ms, times in runs:
            micros += array("q", (1000 * time_ms,)) * times
        low, high = times_ms[0], times_ms[-1]
    if sys.byteorder == "big":
        micros.byteswap()
    page = _page(count, _PLAIN, _levels(count, 1), micros.tobytes())
    return _Chunk(page, _bounds(_LONG.pack(1000 * low), _LONG.pack(1000 * high)))


def in_ms(times: Sequence[float], ms_of: Callable[[float], int]) -> list[int]:
    """The milliseconds of `times`; `ms_of` never decreases with its argument."""
    runs = _runs_of_ms(times, ms_of)
    if runs is None:
        return list(map(ms_of, times))
    return list(chain.from_iterable(starmap(repeat, runs)))


def _ms_of_micros(micros: float) -> int:
    return int(micros) // 1000


def _runs_of_ms(
    times: Sequence[float], ms_of: Callable[[float], int]
) -> list[tuple[int, int]] | None:
    """The milliseconds of `times` in runs of (millisecond, how many times), for `in_ms`.

    None unless the times never decrease and runs have `RUN_MIN` of them and more on average: then
    they take a tenth of the time that a list of all takes.
    """
    count = len(times)
    if (
        count < RUN_MIN
        or (ms_of(times[-1]) - ms_of(times[0]) + 1) * RUN_MIN > count
        or times != sorted(times)
    ):
        return None
    runs, at = [], 0
    while at < count:
        time_ms = ms_of(times[at])
        end = bisect_right(times, time_ms, at, key=ms_of)
        runs.append((time_ms, end - at))
        at = end
    return runs


def _bytes_page(values: Sequence[bytes]) -> tuple[bytes, ...]:
    """Each value behind its length."""
    length = len(values[0])
    if set(map(len, values)) == {length}:
        prefix = _LENGTH.pack(length)
        content = prefix.join((b"", *values))
    else:
        content = b"".join(
            chain.from_iterable(zip(map(_LENGTH.pack, map(len, values)), values, strict=True))
        )
    return _page(len(values), _PLAIN, _levels(len(values), 1), content)


@lru_cache(maxsize=256)
def _levels(count: int, level: int) -> bytes:
    """`count` times the same level of repetition or definition, as one run."""
    run = _varint(count << 1) + bytes((level,))
    return _LENGTH.pack(len(run)) + run


@lru_cache(maxsize=256)
def _null_page(count: int, levels: int = 1) -> bytes:
    """A page of nulls, which has levels of definition, and before them, with 2 `levels`, of
    repetition.
    """
    return b"".join(_page(count, _PLAIN, _levels(count, 0) * levels))


def _page(count: int, encoding: int, *content: bytes) -> tuple[bytes, ...]:
    """The header of a page, and its content in parts."""
    return _i32(1, 0) + _sizes(content) + _described(count, encoding), *content


@lru_cache(maxsize=256)
def _described(count: int, encoding: int) -> bytes:
    """The end of a page's header."""
    return _struct(1, _i32(1, count) + _i32(1, encoding) + _i32(1, _RLE) + _i32(1, _RLE)) + _END


def _sizes(content: Sequence[bytes]) -> bytes:
    """The uncompressed size of a page, its compressed size and its checksum; the next field is 1
    further.
    """
    size = crc32 = 0
    for part in content:
        size += len(part)
        crc32 = zlib.crc32(part, crc32)
    signed = crc32 - (1 << 32) if crc32 >> 31 else crc32
    return _i32(1, size) + _i32(1, size) + _i32(1, signed)


# --- Thrift's compact protocol. `step` is the difference between the numbers of a field and of the
# one before ------


_END = b"\0"


_I32_FIELDS = tuple(bytes((step << 4 | _I32,)) for step in range(5))
_I64_FIELDS = tuple(bytes((step << 4 | _I64,)) for step in range(5))


def _varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


@lru_cache(maxsize=4096)  # segments of the same size have the same numbers in them
def _zigzag(number: int) -> bytes:
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _i32(step: int, number: int) -> bytes:
    return _I32_FIELDS[step] + _zigzag(number)


def _i64(step: int, number: int) -> bytes:
    return _I64_FIELDS[step] + _zigzag(number)


def _binary(step: int, content: bytes) -> bytes:
    return bytes((step << 4 | _BINARY,)) + _varint(len(content)) + content


def _list(step: int, kind: int, items: Sequence[bytes]) -> bytes:
    if len(items) > 14:
        raise ValueError("a longer list has another header")
    return bytes((step << 4 | _LIST, len(items) << 4 | kind)) + b"".join(items)


def _struct(step: int, fields: bytes) -> bytes:
    return bytes((step << 4 | _STRUCT,)) + fields + _END


# --- footer ---


def _null_statistics(count: int) -> bytes:
    return _struct(1, _i64(3, count))


def _bounds(low: bytes, high: bytes) -> bytes:
    """Statistics of a column without nulls: null count, then highest and lowest value."""
    return _struct(1, _i64(3, 0) + _binary(2, high) + _binary(1, low))


def _element(
    name: str,
    kind: int | None = None,
    repetition: int | None = None,
    children: int = 0,
    rest: bytes = b"",
) -> bytes:
    """An element of the schema; `rest` are its converted and its logical type."""
    fields = b"" if kind is None else _i32(1, kind)
    step = 3 if kind is None else 2
    fields += _i32(step, 0 if repetition is None else repetition) + _binary(1, name.encode())
    fields += _i32(1, children) if children else b""
    return fields + rest + _END


def _leaf_types(converted: int, logical: int, content: bytes = b"") -> bytes:
    """The converted and the logical type of a column without children."""
    return _i32(2, converted) + _struct(4, _struct(logical, content))


_UTC_MICROS = bytes((1 << 4 | 1,)) + _struct(1, _struct(2, b""))  # adjusted to UTC, in microseconds
_LIST_TYPES = _i32(1, _LIST_OF) + _struct(4, _struct(3, b""))

_SCHEMA = [
    _element("schema", children=6),
    _element("_partition", _INT32, _OPTIONAL),
    _element("_offset", _INT64, _OPTIONAL),
    _element("_timestamp", _INT64, _OPTIONAL, rest=_leaf_types(_TIMESTAMP_MICROS, 8, _UTC_MICROS)),
    _element("_key", _BYTE_ARRAY, _OPTIONAL),
    _element("_headers", None, _OPTIONAL, children=1, rest=_LIST_TYPES),
    _element("list", None, _REPEATED, children=1),
    _element("element", None, _OPTIONAL, children=2),
    _element("key", _BYTE_ARRAY, _OPTIONAL, rest=_leaf_types(_UTF8, 1)),
    _element("value", _BYTE_ARRAY, _OPTIONAL),
    _element("value", _BYTE_ARRAY, _OPTIONAL),
]


def _column(kind: int, path: str, encodings: Iterable[int] = (_PLAIN, _RLE)) -> bytes:
    """The start of a column's metadata: its type, encodings, path and codec, which is none."""
    names = [_varint(len(name)) + name.encode() for name in path.split(".")]
    return (
        _i32(1, kind)
        + _list(1, _I32, [*map(_zigzag, encodings)])
        + _list(1, _BINARY, names)
        + _i32(1, 0)
    )


_COLUMNS = [
    _column(_INT32, "_partition", (_PLAIN, _RLE, _RLE_DICTIONARY)),
    _column(_INT64, "_offset"),
    _column(_INT64, "_timestamp"),
    _column(_BYTE_ARRAY, "_key"),
    _column(_BYTE_ARRAY, "_headers.list.element.key"),
    _column(_BYTE_ARRAY, "_headers.list.element.value"),
    _column(_BYTE_ARRAY, "value"),
]

_MAGIC = b"PAR1"
_FOOTER_START = _i32(1, 2) + _list(1, _STRUCT, _SCHEMA)
_BY_TYPE = _struct(1, b"") + _END  # the bounds of a column are ordered as its type says
_FOOTER_END = (
    _binary(2, f"deltaq version {__version__}".encode()) + _list(1, _STRUCT, [_BY_TYPE] * 7) + _END
)


def _footer(chunks: Sequence[_Chunk], count: int) -> bytes:
    """The footer with its length and magic number."""
    columns = []
    at = len(_MAGIC)
    for start, chunk in zip(_COLUMNS, chunks, strict=True):
        size = chunk.size
        pages = _i64(2, at + chunk.dictionary_bytes)
        if chunk.dictionary_bytes:
            pages += _i64(2, at) + chunk.statistics
        elif chunk.statistics:
            pages += bytes((3 << 4 | _STRUCT,)) + chunk.statistics[1:]
        fields = start + _i64(1, count) + _i64(1, size) + _i64(1, size) + pages
        columns.append(_i64(2, 0) + _struct(1, fields) + _END)
        at += size
    total = at - len(_MAGIC)
    group = (
        _list(1, _STRUCT, columns)
        + _i64(1, total)
        + _i64(1, count)
        + _i64(2, len(_MAGIC))
        + _i64(1, total)
        + _END
    )
    fields = _FOOTER_START + _i64(1, count) + _list(1, _STRUCT, [group]) + _FOOTER_END
    return fields + _LENGTH.pack(len(fields)) + _MAGIC
