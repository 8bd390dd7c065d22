"""Parquet files that are no segments, such as checkpoints: whole tables."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from deltaq.errors import Corrupt
from deltaq.parquet.bounded_decoding import decode_row_groups, open_footer
from deltaq.parquet.file_parts import FileParts


def read_table(data: bytes, key: str) -> pa.Table:
    """The table in a Parquet file, of the object `key`. Raises Corrupt."""
    try:
        parquet = open_footer(data)
        groups, leaves = range(parquet.metadata.num_row_groups), range(parquet.metadata.num_columns)
        return decode_row_groups(parquet, FileParts(len(data), [(0, data)]), groups, leaves)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Corrupt(f"cannot be read as Parquet: {error}", path=key) from error


def encode_table(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """A Parquet file with the rows of `batches`, compressed with Snappy, which every reader of
    Parquet has.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema,
        version="2.6",
        compression="snappy",
        use_dictionary=False,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(pa.Table.from_batches(batches, schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data
