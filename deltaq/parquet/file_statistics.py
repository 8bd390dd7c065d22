"""The statistics of a data file's columns: which columns have them, and their bounds, from Arrow
data and from what a Parquet footer says. Pure functions. The rules of bounds are in
`parquet/column_bounds.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import date
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.parquet.column_bounds import OWN_COLUMNS, Bound, ColumnStatistics, delta_time

INDEXED_COLUMNS_MAX = 32
"""Maximum number of columns with statistics, including deltaq's own: Delta's default. It keeps log
entries small.
"""

TEXT_CHARS_MAX = 32
"""Maximum characters of a string in a bound: Delta's default."""

_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
"""Names that need no quotes in the property. Engines differ in how they read quoted names."""

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_SURROGATES = range(0xD800, 0xE000)
_CODE_POINT_MAX = 0x1FFFF
"""The highest code point in a bound. Arrow's JSON reader in Rust, with which delta-rs, DuckDB and
Polars read the log, decodes the JSON escapes of higher code points wrongly.
"""


def indexable_fields(schema: pa.Schema) -> list[pa.Field]:
    """The value columns of a topic's table that get statistics: the first ones of types by which
    engines skip files.
    """
    fields = [
        field for field in schema if _PLAIN_NAME.fullmatch(field.name) and _is_indexable(field.type)
    ]
    return fields[: INDEXED_COLUMNS_MAX - len(OWN_COLUMNS)]


def _is_indexable(kind: pa.DataType) -> bool:
    types = pa.types
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return bool(
        is_number or types.is_string(kind) or types.is_date32(kind) or types.is_timestamp(kind)
    )


def statistics_property(schema: pa.Schema | None = None) -> str:
    """The value of `STATISTICS_PROPERTY` for a table with this schema; without a schema, deltaq's
    own columns only.
    """
    fields = [] if schema is None else indexable_fields(schema)
    return ",".join([*OWN_COLUMNS, *(field.name for field in fields)])


def integer_statistics(
    field: pa.Field, nulls: int, low: int | None, high: int | None
) -> ColumnStatistics:
    """Statistics of an integer, boolean, date or timestamp column. Bounds as in Parquet: in days or
    microseconds.
    """
    if low is None or high is None:
        return ColumnStatistics(field.name, nulls)
    bounds: tuple[Bound, Bound] = low, high
    try:
        if pa.types.is_date32(field.type):
            bounds = (
                date.fromordinal(_EPOCH_DAY + low).isoformat(),
                date.fromordinal(_EPOCH_DAY + high).isoformat(),
            )
        elif pa.types.is_timestamp(field.type):
            # Delta's bounds are in milliseconds, so round outwards to include every microsecond.
            bounds = delta_time(low // 1000), delta_time(-(-high // 1000))
    except (ValueError, OverflowError):  # a year outside 1 to 9999
        return ColumnStatistics(field.name, nulls)
    return ColumnStatistics(field.name, nulls, *bounds)


def text_statistics(
    name: str, nulls: int, low: bytes | None, high: bytes | None
) -> ColumnStatistics:
    """Statistics of a string column: its lowest and highest value, cut to `TEXT_CHARS_MAX`, the
    highest rounded up.
    """
    try:
        below, above = _cut((low or b"").decode()), _rounded_up((high or b"").decode())
    except UnicodeDecodeError:  # Arrow does not validate strings that a caller passes as Arrow data
        above = None
    if low is None or high is None or above is None:
        return ColumnStatistics(name, nulls)
    return ColumnStatistics(name, nulls, below, above)


def _rounded_up(text: str) -> str | None:
    """A short string that is not less than `text`; None if there is none. Engines compare strings
    by code points.
    """
    cut = _cut(text)
    if len(cut) == len(text):
        return text
    for last in range(len(cut) - 1, -1, -1):
        following = ord(cut[last]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _CODE_POINT_MAX:
            return cut[:last] + chr(following)
    return None


def _cut(text: str) -> str:
    """The longest prefix of `text` that is allowed in a bound."""
    return "".join(
        takewhile(lambda character: ord(character) <= _CODE_POINT_MAX, text[:TEXT_CHARS_MAX])
    )


def float_statistics(name: str, column: pa.Array | pa.ChunkedArray) -> ColumnStatistics:
    """Statistics of a floating-point column.

    A column with a NaN or infinite value has no bounds: JSON cannot express these values, and
    engines order NaN differently (above all numbers in Spark and DuckDB, unordered in Arrow).
    """
    if not math.isfinite(pc.sum(column).as_py() or 0.0):
        return ColumnStatistics(name, column.null_count)
    bounds = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    # Some engines order -0.0 below 0.0, and Arrow's kernel returns either of them.
    if low == 0.0:
        low = -0.0 if _has_zero(column, negative=True) else 0.0
    if high == 0.0:
        high = 0.0 if _has_zero(column, negative=False) else -0.0
    return ColumnStatistics(name, column.null_count, low, high)


def _has_zero(column: pa.Array | pa.ChunkedArray, *, negative: bool) -> bool:
    bits = pa.int64() if pa.types.is_float64(column.type) else pa.int32()
    zero = pa.scalar(-(2 ** (bits.bit_width - 1)) if negative else 0, bits)
    chunks: Iterable[pa.Array] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return any(pc.any(pc.equal(chunk.view(bits), zero)).as_py() for chunk in chunks)
