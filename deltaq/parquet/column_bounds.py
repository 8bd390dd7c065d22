"""Delta's per-file statistics (`add.stats`), by which other engines skip files in a query: as
values, and as JSON.

An engine skips a file whose bounds exclude the rows of a query. A bound that is too narrow, or that
an engine reads as narrower than it is, therefore loses rows without an error. Two rules follow:

* The table property `delta.dataSkippingStatsColumns` names the columns that have statistics. If the
  property includes a column that `minValues` lacks, delta-rs evaluates `column >= null`, which is
  true for no row.
* A file has bounds for all of these columns or for none. delta-rs and Spark skip no file whose
  `stats` lack `minValues` and `maxValues`. Spark also answers `min` and `max` queries from the
  bounds. So a bound must be a value of the column, or of a kind that Spark does not use for that
  (truncated strings, rounded timestamps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from deltaq.serde.json_text import compact_json

STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
"""Delta's table property: the columns with statistics, separated by commas."""

OWN_COLUMNS = ("_partition", "_offset", "_timestamp")
"""deltaq's own columns with statistics."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Bound: TypeAlias = "bool | int | float | str | None"


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column in a file: the number of nulls, and the bounds as values in Delta's
    JSON.

    The bounds are None if all values are null, if JSON cannot express them, or if some engine would
    misread them.
    """

    name: str
    nulls: int
    low: Bound = None
    high: Bound = None


def indexed_columns(configuration: Mapping[str, str]) -> tuple[str, ...]:
    """The value columns with statistics, from the properties of a topic's table."""
    names = configuration.get(STATISTICS_PROPERTY, "").split(",")
    return tuple(name for name in names if name and name not in OWN_COLUMNS)


def delta_time(epoch_ms: int) -> str:
    """A time in the format of Delta's statistics. OverflowError outside the years 1 to 9999."""
    return (
        (_EPOCH + timedelta(milliseconds=epoch_ms))
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def file_stats(
    rows: int,
    own: Sequence[ColumnStatistics],
    values: Sequence[ColumnStatistics],
    indexed: Sequence[str],
) -> str:
    """The JSON text of `add.stats`: of deltaq's `own` columns, and of the value columns that the
    property names.

    Unless all of these columns have bounds, the file gets no bounds, so that no engine skips it.
    """
    known = {column.name: column for column in values}
    columns = [*own, *(known[name] for name in indexed if name in known)]
    stats: dict[str, object] = {"numRecords": rows}
    is_complete = len(columns) == len(own) + len(indexed)
    if (
        rows
        and is_complete
        and all(column.low is not None or column.nulls == rows for column in columns)
    ):
        bounded = [column for column in columns if column.low is not None]
        stats["minValues"] = {column.name: column.low for column in bounded}
        stats["maxValues"] = {column.name: column.high for column in bounded}
    if rows:
        stats["nullCount"] = {column.name: column.nulls for column in columns}
    return compact_json(stats)
