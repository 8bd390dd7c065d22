"""The content of a topic's log, read from its bytes as JSON and Parquet (by pyarrow), without
deltaq's readers.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from deltaq import names
from tests.simulation.scenario import TOPIC
from tests.simulator.disk import Disk

__all__ = [
    "VALUE_HEADER",
    "LogEntry",
    "LoggedFile",
    "Place",
    "WrittenRecord",
    "data_files",
    "logged_actions",
    "read_log",
    "rows_of",
    "shared_file_of",
    "values_in",
]

VALUE_HEADER = "value"
"""Where a tombstone has what tells it from all other records."""


@dataclass(frozen=True)
class Place:
    """Where a record is: topic id, partition and offset."""

    topic_id: str
    partition: int
    offset: int


@dataclass(frozen=True)
class WrittenRecord:
    """A record, with its time in microseconds. `value` is like no other's, also that of a
    tombstone.
    """

    place: Place
    value: str
    key: bytes | None
    time_us: int
    is_tombstone: bool


@dataclass(frozen=True)
class LoggedFile:
    """A file as an entry adds it. `batches` are (partition, first offset, end); `is_rewrite` if it
    adds no records.

    `time_ms`: that of its newest record, but no younger than the newest upload of those that it was
    made from, whatever it says itself. `clean_ms`: until when its tombstones stay, if key
    compaction has written it.
    """

    path: str
    size: int
    batches: tuple[tuple[int, int, int], ...]
    records: Mapping[Place, WrittenRecord]
    is_rewrite: bool
    time_ms: int
    clean_ms: int | None

    def bytes_of(self, partition: int, start: int, end: int) -> float:
        """About how much of it are the records of a partition with offsets [start, end)."""
        wanted = sum(
            place.partition == partition and start <= place.offset < end for place in self.records
        )
        return self.size * wanted / max(1, len(self.records))


@dataclass(frozen=True)
class LogEntry:
    """An entry of the log; `landed` is when it came to be, and `time_ms` what it says about
    that.
    """

    version: int
    landed: float
    time_ms: int
    operation: str
    head: Mapping[str, Any] | None
    properties: Mapping[str, str] | None
    adds: tuple[LoggedFile, ...]
    removes: tuple[str, ...]
    has_data_change: bool
    writer: str


def logged_actions(disk: Disk, folder: str) -> Iterator[tuple[float, list[dict[str, Any]]]]:
    """The actions of all entries that ever were in the log of the table at `folder`, and when each
    came to be. The first entry in a slot counts: one that was filled again lies below the log's
    start.
    """
    log = f"{folder}_delta_log/"
    keys = sorted(
        key for key in disk.history if re.fullmatch(r"[0-9]{20}\.json", key.removeprefix(log))
    )
    assert [int(key.removeprefix(log)[:-5]) for key in keys] == list(range(len(keys))), (
        "the log has a gap"
    )
    for key in keys:
        content = disk.history[key][0].decode()
        yield disk.written[key][0], [json.loads(line) for line in content.splitlines()]


def read_log(disk: Disk, topic: str = TOPIC) -> Iterator[LogEntry]:
    """All entries of a topic that ever were."""
    folder = names.topic_folder(topic)
    topic_id = ""
    uploaded_ms: dict[str, int] = {}
    for version, (landed, actions) in enumerate(logged_actions(disk, folder)):
        heads = [
            json.loads(action["domainMetadata"]["configuration"])
            for action in _of(actions, "domainMetadata")
        ]
        topic_id = heads[0]["topic_id"] if heads else topic_id
        (info,) = (action["commitInfo"] for action in _of(actions, "commitInfo"))
        adds = [action["add"] for action in _of(actions, "add")]
        removes = [action["remove"] for action in _of(actions, "remove")]
        for add in adds:
            uploaded_ms[add["path"]] = (
                add["modificationTime"]
                if add["dataChange"]
                else max(uploaded_ms[gone["path"]] for gone in removes)
            )
        yield LogEntry(
            version,
            landed,
            info["timestamp"],
            info["operation"],
            heads[0] if heads else None,
            next(
                (action["metaData"]["configuration"] for action in _of(actions, "metaData")), None
            ),
            tuple(_file(disk, folder, topic_id, add, uploaded_ms[add["path"]]) for add in adds),
            tuple(remove["path"] for remove in removes),
            any(action["dataChange"] for action in (*adds, *removes)),
            info["txnId"][:16],
        )


def data_files(disk: Disk, topic: str = TOPIC) -> set[str]:
    """The paths of all data files that ever were, also of those that no entry names."""
    folder = names.topic_folder(topic)
    return {
        key.removeprefix(folder)
        for key in disk.history
        if key.startswith(folder) and key.endswith(".parquet") and "/_" not in key
    }


def shared_file_of(path: str) -> tuple[str, int] | None:
    """Writer and number of a file that others might commit."""
    found = re.fullmatch(
        r"shared/[0-9]{20}/[0-9]{20}-([0-9a-f]{16})-([0-9]+)f?-[A-Za-z0-9_-]+\.parquet", path
    )
    return None if found is None else (found[1], int(found[2]))


def values_in(disk: Disk, key: str) -> tuple[bool, frozenset[str]]:
    """Whether the rows of a data file have their offsets, and their values."""
    content = disk.history[key][0]
    rows = rows_of(content) if content.startswith(b"PAR1") else []
    return any(row["_offset"] is not None for row in rows), frozenset(_value(row) for row in rows)


def _of(actions: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [action for action in actions if kind in action]


def _file(
    disk: Disk, folder: str, topic_id: str, add: dict[str, Any], uploaded_ms: int
) -> LoggedFile:
    (content,) = set(disk.history[folder + add["path"]])  # a put may be repeated, but not changed
    rows = rows_of(content)
    about = json.loads(add["tags"]["deltaq.file"])
    batches = json.loads(add["tags"]["deltaq.batches"])
    records = {}
    for partition, base, first, count, *end in batches:
        for number, row in enumerate(rows[first : first + count]):
            where = f"row {first + number} of {add['path']}"
            assert row["_partition"] == partition, f"{where}: another partition"
            offset = row["_offset"]
            assert end or offset in (None, base + number), f"{where}: another offset"
            assert offset is None or base <= offset < (end[0] if end else base + count), (
                f"{where}: another offset"
            )
            place = Place(topic_id, partition, base + number if offset is None else offset)
            assert place not in records, f"{where}: an offset for the second time"
            time_us = (
                row["_timestamp"]
                if about.get("append_time") is None
                else about["append_time"] * 1000
            )
            records[place] = WrittenRecord(
                place, _value(row), row["_key"], time_us, row["value"] is None
            )
    return LoggedFile(
        add["path"],
        add["size"],
        tuple(
            (partition, base, end[0] if end else base + count)
            for partition, base, _, count, *end in batches
        ),
        records,
        not add["dataChange"],
        min(
            max(
                (record.time_us // 1000 for record in records.values()),
                default=about["timestamps"][1],
            ),
            uploaded_ms,
        ),
        about.get("clean"),
    )


@lru_cache(maxsize=4096)
def rows_of(content: bytes) -> list[dict[str, Any]]:
    """The rows of a data file, with times in microseconds."""
    table = pq.read_table(io.BytesIO(content), use_threads=False)
    times = table.schema.get_field_index("_timestamp")
    table = table.set_column(times, "_timestamp", table.column("_timestamp").cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _value(row: dict[str, Any]) -> str:
    if row["value"] is not None:
        return bytes(row["value"]).decode()
    return next(
        bytes(header["value"]).decode()
        for header in row["_headers"]
        if header["key"] == VALUE_HEADER
    )
