"""Records that no producer accepts, as topics of earlier versions and of other programs hold
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from deltaq.clock import SYSTEM_CLOCK
from deltaq.store import Store
from deltaq.topics.columns import HEADERS, TIMESTAMP, VALUE_SCHEMA, Columns
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import definition_of
from deltaq.topics.upload import upload_segment

FAR_TIME = pa.scalar(576 * 10**15, pa.int64()).cast(TIMESTAMP)
"""A time in the year 20222."""


def text_of(*contents: bytes | None) -> pa.Array:
    """Bytes as text that Arrow has not checked."""
    return pa.Array.from_buffers(
        pa.string(), len(contents), pa.array(contents, pa.binary()).buffers()
    )


def headers_named(*names: bytes | None) -> pa.Array:
    """For each name a record with one header, whose name need not be text."""
    pairs = pa.StructArray.from_arrays(
        [text_of(*names), pa.array([b"x"] * len(names))], fields=list(HEADERS.value_type)
    )
    return pa.ListArray.from_arrays(
        pa.array(range(len(names) + 1), pa.int32()), pairs, type=HEADERS
    )


def append_unsound(
    store: Store,
    topic: str,
    values: pa.Table | Sequence[bytes],
    *,
    headers: pa.Array | None = None,
    keys: Sequence[bytes | None] | None = None,
    times_ms: Sequence[int] | None = None,
    partition: int = 0,
) -> None:
    """Commit records to a partition of a topic without any check of their values."""
    log = TopicLog(store, topic, SYSTEM_CLOCK, client_id="unsound")
    log.load()
    view = definition_of(log)
    schema = VALUE_SCHEMA if view.schema is None else view.schema.arrow
    table = (
        values
        if isinstance(values, pa.Table)
        else pa.table({"value": pa.array(values, pa.binary())})
    )
    rows = table.num_rows
    columns = Columns(
        pa.array([partition] * rows, pa.int32()),
        pa.array([SYSTEM_CLOCK.time_ms()] * rows if times_ms is None else times_ms, pa.int64()),
        pa.array([None] * rows if keys is None else keys, pa.binary()),
        pa.nulls(rows, HEADERS) if headers is None else headers,
        pa.RecordBatch.from_arrays([_column(table, field) for field in schema], schema=schema),
    )
    deadline = SYSTEM_CLOCK.monotonic() + 60
    segment, _ = upload_segment(
        store,
        topic,
        columns,
        view.settings,
        ("none", None),
        deadline=deadline,
        clock=SYSTEM_CLOCK,
        as_of=log.version,
    )
    log.append(lambda: [segment], view.topic_id, deadline)


def _column(table: pa.Table, field: pa.Field) -> Any:
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    return table.column(field.name).combine_chunks()
