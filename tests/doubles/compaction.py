"""The simplest compaction that the format allows: all files of a topic become one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.delta.actions import Add, CommitInfo, Remove
from deltaq.delta.log import DeltaLog, Draft
from deltaq.parquet.segment import encode_segment
from deltaq.store import Store
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import definition_of
from deltaq.topics.scan import FileRead, read_file

__all__ = ["compact"]


def compact(
    store: Store,
    topic: str,
    keep: Callable[[int, int], bool] = lambda partition, offset: True,
    clock: Clock = SYSTEM_CLOCK,
    *,
    discard: bool = True,
) -> None:
    """Rewrite a topic's files as one with `_offset` filled in, of the rows that `keep(partition,
    offset)` says.

    With `discard` the old files are deleted at once, so that a reader that still uses them finds
    nothing.
    """
    log = TopicLog(store, topic, clock, indexed=True)
    log.load()
    old = list(log.index.files.values())
    parts: dict[int, list[pa.RecordBatch]] = {}
    ends: dict[int, tuple[int, int]] = {}
    for file in old:
        everything = FileRead(
            file, tuple((batch, batch.base_offset, batch.next_offset) for batch in file.batches)
        )
        for part in read_file(store, everything, definition_of(log).columns):
            parts.setdefault(part.partition, []).append(part.rows)
            base, _ = ends.get(part.partition, (part.first_offset, 0))
            ends[part.partition] = (base, part.next_offset)
    tables, batches, first = [], [], 0
    for partition in sorted(parts):
        rows = pa.Table.from_batches(parts[partition]).sort_by("_offset")
        rows = rows.filter(
            pa.array(
                [keep(partition, offset) for offset in rows["_offset"].to_pylist()], pa.bool_()
            )
        )
        tables.append(rows)
        base, end = ends[partition]
        batches.append([partition, base, first, rows.num_rows, end])
        first += rows.num_rows
    whole = pa.concat_tables(tables).combine_chunks().to_batches()[0]
    encoded = encode_segment(whole, [batch[3] for batch in batches], "none")
    path = f"{clock.unique_id()}.parquet"
    store.put(log.folder + path, encoded.data)
    times = [time // 1000 for time in whole.column("_timestamp").cast(pa.int64()).to_pylist()]
    about: dict[str, Any] = {
        "version": log.version + 1,
        "rows": encoded.rows,
        "crc32": encoded.crc32,
        "footer": [encoded.footer_bytes, encoded.footer_crc32],
        "timestamps": [min(times), max(times)],
    }
    tags = {"deltaq.batches": json.dumps(batches), "deltaq.file": json.dumps(about)}
    add = Add(path, len(encoded.data), 0, False, json.dumps({"numRecords": encoded.rows}), tags)
    removes = [Remove(file.path, clock.time_ms(), False) for file in old]
    info = CommitInfo(clock.unique_id(), clock.time_ms(), "OPTIMIZE")
    delta = DeltaLog(store, log.folder, clock)
    delta.load()
    delta.commit(
        lambda state: Draft(info, [*removes, add, log.live_head.action()]), clock.monotonic() + 60
    )
    for file in old if discard else ():
        store.delete(file.segment.key)
