"""Decodes Parquet into Arrow within a limit of memory.

A data file may be hostile: a few bytes (compressed pages, runs of one value, one long dictionary
value to which every row refers) can decode to very many. So the decoded size is first computed from
the page headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from deltaq.parquet.file_parts import FileParts
from deltaq.parquet.footers import check_footer, footer_of
from deltaq.parquet.page_headers import ColumnContent
from deltaq.parquet.segment_file import DECODED_BYTES_MAX

VALUE_BITS = {"BOOLEAN": 1, "INT32": 32, "INT64": 64, "FLOAT": 32, "DOUBLE": 64, "BYTE_ARRAY": 64}
"""Bits that Arrow stores per value, by physical type: a number, or the end offset of a string."""

LIST_BITS = 40
"""Bits that Arrow stores per value for each enclosing list: an end offset and a validity flag."""

DICTIONARY_VALUE_BYTES = 16
"""Bytes per dictionary value that Arrow allocates during decoding, in addition to the value
itself.
"""

# Without Arrow's threads: a thread that holds Python bytes while Python finalizes aborts the
# process. `pre_buffer` uses such a thread, and reads the gaps between the fetched parts.
_OPTIONS = {"page_checksum_verification": True, "pre_buffer": False}


class DecodedTooLarge(Exception):
    """Records take more memory than their reader spends on one read, and are not decoded. `bytes`
    is their size.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes of memory")
        self.bytes = size


def open_footer(data: bytes) -> pq.ParquetFile:
    """Open a file, or a part that ends with its footer. ValueError if the footer would take too
    much memory.
    """
    check_footer(footer_of(data), DECODED_BYTES_MAX)
    return pq.ParquetFile(pa.BufferReader(data), **_OPTIONS)


def decode_row_groups(
    parquet: pq.ParquetFile,
    parts: FileParts,
    groups: Sequence[int],
    leaves: Sequence[int],
    decoded_max: int | None = None,
) -> pa.Table:
    """Decode columns of row groups. Raises, before the memory is allocated, as
    `check_row_groups`.
    """
    metadata = parquet.metadata
    check_row_groups(parts, metadata, groups, leaves, decoded_max)
    is_all = len(leaves) == metadata.num_columns
    names = None if is_all else [metadata.schema.column(leaf).path for leaf in leaves]
    return parquet.read_row_groups(groups, names, use_threads=False)


def check_row_groups(
    parts: FileParts,
    metadata: pq.FileMetaData,
    groups: Sequence[int],
    leaves: Sequence[int],
    decoded_max: int | None = None,
) -> None:
    """Raise ValueError if columns of row groups exceed `DECODED_BYTES_MAX` when they are decoded,
    and DecodedTooLarge if they exceed the reader's own limit `decoded_max`; None if it has none.

    The page headers give the decoded size except for dictionary references. If the worst case of
    these would exceed the limit, the columns are first read as references to compute the actual
    size.
    """
    size, worst, dictionaries = _decoded_bytes(parts, metadata, groups, leaves)
    decoded_max = DECODED_BYTES_MAX if decoded_max is None else decoded_max
    if size <= decoded_max < size + worst:
        referring = open_parts(parts, metadata, dictionaries)
        references = referring.read_row_groups(groups, sorted(dictionaries), use_threads=False)
        size += sum(_expanded(chunk) for column in references.columns for chunk in column.chunks)
    if size > DECODED_BYTES_MAX:
        raise ValueError(
            f"it would take {size} bytes of memory, more than the limit of {DECODED_BYTES_MAX}"
        )
    if size > decoded_max:
        raise DecodedTooLarge(size)


def open_parts(
    parts: FileParts, metadata: pq.FileMetaData, dictionaries: Iterable[str] = ()
) -> pq.ParquetFile:
    """Open the fetched parts of a file by its parsed footer. The columns `dictionaries` are read as
    references.
    """
    whole = parts.whole
    source = pa.PythonFile(parts, mode="r") if whole is None else pa.BufferReader(whole)
    return pq.ParquetFile(
        source, metadata=metadata, read_dictionary=list(dictionaries) or None, **_OPTIONS
    )


def _decoded_bytes(
    parts: FileParts, metadata: pq.FileMetaData, groups: Iterable[int], leaves: Iterable[int]
) -> tuple[int, int, set[str]]:
    """The decoded size of the columns in bytes without dictionary references, the maximum that the
    references add, and the names of the columns with references.
    """
    row_groups = [metadata.row_group(group) for group in groups]
    schema = metadata.schema
    size = worst = transient = 0
    dictionaries: set[str] = set()
    for leaf in leaves:
        column = schema.column(leaf)
        repetition, definition = column.max_repetition_level, column.max_definition_level
        content = ColumnContent()
        for group in row_groups:
            chunk, before = group.column(leaf), content.values
            content.add(parts.part(*chunk_place(chunk)))
            _check_values(column, content.values - before, chunk.num_values, group.num_rows)
        if column.physical_type in VALUE_BITS and column.converted_type != "DECIMAL":
            bits = VALUE_BITS[column.physical_type]
        else:
            bits = max(8 * int(column.length), 128)
        bits += LIST_BITS * repetition + definition
        size += content.values * bits // 8 + content.page_bytes
        levels = 2 * content.values * ((repetition > 0) + (definition > 0))
        transient = max(transient, levels + content.dictionary_values * DICTIONARY_VALUE_BYTES)
        if content.expanded_bytes and column.physical_type == "BYTE_ARRAY":
            worst += content.expanded_bytes
            dictionaries.add(column.path)
    return size + transient, worst, dictionaries


def _check_values(column: pq.ColumnSchema, values: int, in_footer: int, rows: int) -> None:
    """ValueError if the pages and the footer disagree on the number of values or rows."""
    if values != in_footer or values < rows or (values > rows and not column.max_repetition_level):
        raise ValueError(
            f"column {column.path!r} has {values} values in its pages and {in_footer} in the "
            f"footer, for {rows} rows"
        )


def _expanded(array: pa.Array) -> int:
    """Size in bytes of the strings that the array's dictionary references expand to."""
    if pa.types.is_dictionary(array.type):
        import pyarrow.compute as pc  # noqa: PLC0415 - takes 0.1 s, and few files need it

        lengths = pc.binary_length(array.dictionary)
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
    if pa.types.is_struct(array.type):
        return sum(map(_expanded, array.flatten()))
    # Every nested type other than a struct is a kind of list.
    return _expanded(array.values) if pa.types.is_nested(array.type) else 0


def chunk_place(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """(start, length) of a column chunk."""
    pages, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    return min(pages, dictionary) if dictionary else pages, chunk.total_compressed_size
