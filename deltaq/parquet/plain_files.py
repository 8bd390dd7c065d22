"""Parquet files that are no data files of topics: those that people load into topics.

Such a file comes from outside, so its footer and each of its row groups are measured before Arrow
decodes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from deltaq.parquet.bounded_decoding import check_row_groups
from deltaq.parquet.file_parts import FileParts
from deltaq.parquet.footers import check_footer
from deltaq.parquet.segment_file import DECODED_BYTES_MAX

ROWS_AT_ONCE = 65_536

_TAIL_BYTES = 8  # the length of the footer, and `PAR1`


def read_batches(path: Path, columns_max: int) -> Iterator[pa.RecordBatch]:
    """The rows of a file, a part at a time. Times of the old type INT96 are microseconds in UTC, as
    Spark reads them.

    Raises ValueError for more than `columns_max` columns, and for a footer or a row group that
    would take more memory than `DECODED_BYTES_MAX`; OSError, pa.ArrowException.
    """
    with path.open("rb") as file:
        parts = _FileOnDisk(file)
        check_footer(parts.footer(), DECODED_BYTES_MAX)
        # INT96 would become nanoseconds, which end in 2262 and wrap around.
        options = {
            "coerce_int96_timestamp_unit": "us",
            "page_checksum_verification": True,
            "pre_buffer": False,
        }
        with pq.ParquetFile(file, **options) as parquet:
            metadata = parquet.metadata
            if metadata.num_columns > columns_max:
                raise ValueError(
                    f"it has {metadata.num_columns:,} columns, and {columns_max:,} are the limit"
                )
            columns = _in_utc(parquet.schema, parquet.schema_arrow)
            for group in range(metadata.num_row_groups):
                try:
                    check_row_groups(parts, metadata, [group], range(metadata.num_columns))
                except ValueError as error:
                    raise ValueError(f"row group {group}: {error}") from None
                for batch in parquet.iter_batches(ROWS_AT_ONCE, row_groups=[group]):
                    yield batch if batch.schema == columns else batch.cast(columns)


class _FileOnDisk(FileParts):
    """A file whose parts are read when they are asked for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file.fileno()
        super().__init__(os.fstat(self._file).st_size, [])

    def footer(self) -> memoryview:
        """The footer; empty if there is none."""
        tail = os.pread(self._file, _TAIL_BYTES, max(0, self._size - _TAIL_BYTES))
        length = min(int.from_bytes(tail[:4], "little"), max(0, self._size - _TAIL_BYTES))
        return memoryview(os.pread(self._file, length, self._size - _TAIL_BYTES - length))

    def part(self, start: int, length: int) -> memoryview:
        """`length` bytes from `start`. OSError if the file does not have them."""
        if not 0 <= start <= start + length <= self._size:
            raise OSError(
                f"the file has {self._size} bytes, and its footer names bytes {start} to "
                f"{start + length}"
            )
        return memoryview(os.pread(self._file, length, start))


def _in_utc(schema: pq.ParquetSchema, columns: pa.Schema) -> pa.Schema:
    """The columns with times of INT96, which has no place for a time zone, as times in UTC."""
    at = 0
    fields = []
    for field in columns:
        leaves = _leaves(field.type)
        old = [schema.column(leaf).physical_type == "INT96" for leaf in range(at, at + leaves)]
        at += leaves
        fields.append(field.with_type(_with_zone(field.type, iter(old))) if any(old) else field)
    return pa.schema(fields, columns.metadata)


def _leaves(kind: pa.DataType) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _leaves(kind.storage_type)
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields))


def _with_zone(kind: pa.DataType, is_old: Iterator[bool]) -> pa.DataType:
    """The type with a time zone in its leaves of INT96, which `is_old` names in order."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_zone(field.type, is_old)) for field in kind])
    if pa.types.is_map(kind):
        key, item = (
            field.with_type(_with_zone(field.type, is_old))
            for field in (kind.key_field, kind.item_field)
        )
        return pa.map_(key, item)
    if pa.types.is_nested(kind):
        return pa.list_(kind.value_field.with_type(_with_zone(kind.value_type, is_old)))
    return pa.timestamp("us", "UTC") if next(is_old) else kind
