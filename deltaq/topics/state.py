"""What a log entry says about a topic, and the actions that change a topic. Pure; `topics/log.py`
does the I/O.

The specification is `docs/internals/format.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from deltaq.delta.actions import FORMAT, Action, Add, DomainMetadata, Entry, Metadata, Remove
from deltaq.delta.table_state import DELTAQ_DOMAIN, PROTOCOL
from deltaq.errors import Corrupt, Incompatible
from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.names import data_key
from deltaq.parquet.column_bounds import ColumnStatistics, delta_time, file_stats
from deltaq.parquet.segment_file import DECODED_BYTES_MAX, SegmentFile
from deltaq.serde.json_text import compact_json, strict_json

if TYPE_CHECKING:
    # It needs Arrow, without which logs are read.
    from deltaq.parquet.segment import EncodedSegment

BATCHES_TAG = "deltaq.batches"
FILE_TAG = "deltaq.file"
PARTITIONS_PROPERTY = "deltaq.partitions"


@dataclass(frozen=True, slots=True)
class TopicHead:
    """A topic at one version. Offsets are indexed by partition; `time_ms` never decreases from
    entry to entry.

    `min_upload_version`: uploads that began at a known version below this one are void, since their
    files may be gone.
    """

    topic_id: str
    next_offsets: tuple[int, ...]
    start_offsets: tuple[int, ...]
    time_ms: int
    deleted: bool = False
    min_upload_version: int = 0

    @property
    def partitions(self) -> int:
        return len(self.next_offsets)

    def action(self) -> DomainMetadata:
        """This head as the domain metadata that every entry of a topic carries."""
        body: dict[str, object] = {
            "format": FORMAT,
            "topic_id": self.topic_id,
            "next_offsets": self.next_offsets,
            "start_offsets": self.start_offsets,
            "time": self.time_ms,
        }
        if self.deleted:
            body["deleted"] = True
        if self.min_upload_version:
            body["min_upload_version"] = self.min_upload_version
        return DomainMetadata(DELTAQ_DOMAIN, compact_json(body))


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A change of a topic: the new number of partitions (never lower), table properties (None
    removes one), and the schema of its table (None keeps it).
    """

    partitions: int
    properties: Mapping[str, str | None]
    schema_string: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A run of records of one partition in one file: offsets `[base_offset, next_offset)` in rows
    `[first_row, +rows)`.

    Dense (offset = base + row) unless `sparse`: then the file's `_offset` column has the offsets.
    """

    partition: int
    base_offset: int
    next_offset: int
    first_row: int
    rows: int
    sparse: bool
    path: str


@dataclass(frozen=True, slots=True)
class DataFile:
    """A segment of a topic. Times are in milliseconds.

    `modified_ms`: when its newest records were uploaded. `append_time_ms`: the timestamp of all
    records where the topic uses log append time; None in a compacted file, whose records have their
    own. `log_append_time`: timestamps are log append times. `clean`: for a file written by key
    compaction, the time until which its tombstones stay, 0 without any; else None. `decoded_bytes`:
    approximate memory of its records, for a file written by maintenance; else 0.
    """

    path: str
    segment: SegmentFile
    batches: tuple[Batch, ...]
    min_timestamp_ms: int
    max_timestamp_ms: int
    modified_ms: int
    append_time_ms: int | None
    log_append_time: bool
    clean: int | None
    decoded_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RewrittenRecords:
    """What the records of a rewritten segment keep: their offsets, and the rest that the files
    before it say of them.

    `ranges` are the offsets `[base, next)` of each partition's rows; `offsets` are the lowest and
    the highest offset of a record. `version` is that of the newest entry whose records are in the
    segment. `log_append_time`, `clean` and `decoded_bytes` are as in `DataFile`.
    """

    ranges: tuple[tuple[int, int], ...]
    offsets: tuple[int, int]
    version: int
    log_append_time: bool
    clean: int | None = None
    decoded_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PendingSegment:
    """An uploaded segment that no log entry names yet. `partition_rows` are (partition, rows), in
    the order of the rows.

    `modified_ms`: when its newest records were uploaded. Unless `timed`, its records take the time
    of the commit as their timestamp. `as_of`: a version that the log was known to have reached
    before the upload began. `statistics`: of the value columns, as far as known. `rewritten`: for a
    segment that replaces files; None for new records, to which the commit gives offsets.
    """

    path: str
    size: int
    rows: int
    crc32: int
    footer_bytes: int
    footer_crc32: int
    partition_rows: tuple[tuple[int, int], ...]
    min_timestamp_ms: int
    max_timestamp_ms: int
    modified_ms: int
    timed: bool = True
    as_of: int = 0
    statistics: tuple[ColumnStatistics, ...] = ()
    rewritten: RewrittenRecords | None = None

    @classmethod
    def of(
        cls,
        path: str,
        encoded: EncodedSegment,
        partition_rows: Sequence[tuple[int, int]],
        times_ms: tuple[int, int],
        modified_ms: int,
        *,
        as_of: int,
        timed: bool = True,
        rewritten: RewrittenRecords | None = None,
    ) -> PendingSegment:
        """The segment of a file of this content. `times_ms`: the minimum and maximum of its
        records' timestamps.
        """
        return cls(
            path=path,
            size=len(encoded.data),
            rows=encoded.rows,
            crc32=encoded.crc32,
            footer_bytes=encoded.footer_bytes,
            footer_crc32=encoded.footer_crc32,
            partition_rows=tuple(partition_rows),
            min_timestamp_ms=times_ms[0],
            max_timestamp_ms=times_ms[1],
            modified_ms=modified_ms,
            timed=timed,
            as_of=as_of,
            statistics=encoded.statistics,
            rewritten=rewritten,
        )


# --- reading
# --------------------------------------------------------------------------------------------------


def parse_head(configuration: str, path: str, version: int) -> TopicHead:
    """Parse the head from its domain metadata. Raises Corrupt, Incompatible."""
    try:
        body = strict_json(configuration)
        if not isinstance(body, dict):
            raise TypeError("not an object")
        if body.get("format") != FORMAT:
            raise Incompatible(
                f"topic at {path!r} has format {body.get('format')!r}; this deltaq reads {FORMAT}. "
                "Upgrade deltaq."
            )
        head = TopicHead(
            str(body["topic_id"]),
            _offsets(body["next_offsets"]),
            _offsets(body["start_offsets"]),
            _time(body["time"]),
            body.get("deleted") is True,
            _whole(body.get("min_upload_version", 0)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"the topic's offsets cannot be parsed: {error}", path=path, version=version
        ) from error
    sound = len(head.next_offsets) == len(head.start_offsets) and all(
        0 <= start <= end for start, end in zip(head.start_offsets, head.next_offsets, strict=False)
    )
    if not sound:
        raise Corrupt(
            "the topic's start offsets and next offsets contradict each other",
            path=path,
            version=version,
        )
    return head


def _offsets(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError("offsets must be a list")
    # Most entries have several for each partition, so the types are checked together.
    return tuple(value) if set(map(type, value)) <= {int} else tuple(map(_whole, value))


def _time(value: object) -> int:
    ms = _whole(value)
    if not 0 <= ms <= TIMESTAMP_MS_MAX:
        raise ValueError(f"{ms} is not a time in milliseconds")
    return ms


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r:.40} is not an integer")
    return value


def data_file(add: Add, folder: str) -> DataFile:
    """The segment that an `add` describes. Raises Incompatible for a file that deltaq did not add,
    Corrupt for bad tags.
    """
    if BATCHES_TAG not in add.tags or FILE_TAG not in add.tags:
        raise Incompatible(
            f"{folder + add.path!r} was added by another writer: it has no offsets. "
            "Only deltaq may write a topic; move the data out of the table and produce it instead."
        )
    try:
        return _data_file(
            add.path,
            add.size,
            add.modification_time,
            add.tags[FILE_TAG],
            add.tags[BATCHES_TAG],
            folder,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"the file's tags cannot be parsed: {error}", path=folder + add.path
        ) from error


@lru_cache(maxsize=64)  # applying an entry asks for its files several times
def _data_file(
    path: str, size: int, modified_ms: int, file_tag: str, batches_tag: str, folder: str
) -> DataFile:
    about = strict_json(file_tag)
    batches = strict_json(batches_tag)
    if not isinstance(about, dict) or not isinstance(batches, list):
        raise TypeError("tags must be an object and a list")
    footer_bytes, footer_crc32 = _offsets(about["footer"])
    low_ms, high_ms = _offsets(about["timestamps"])
    append_time = about.get("append_time")
    clean = about.get("clean")
    rows = _whole(about["rows"])
    if not 0 < footer_bytes <= size <= DECODED_BYTES_MAX:
        raise ValueError(f"a footer of {footer_bytes} bytes in a file of {size}")
    segment = SegmentFile(
        data_key(folder, path),
        _whole(about["version"]),
        size,
        rows,
        _whole(about["crc32"]),
        footer_bytes,
        footer_crc32,
    )
    return DataFile(
        path,
        segment,
        _tiled([_batch(_offsets(batch), path) for batch in batches], rows),
        low_ms,
        high_ms,
        modified_ms,
        None if append_time is None else _time(append_time),
        append_time is not None or about.get("log_append_time") is True,
        None if clean is None else _whole(clean),
        _whole(about.get("decoded", 0)),
    )


def _batch(numbers: tuple[int, ...], path: str) -> Batch:
    partition, base, first, rows, *sparse_end = numbers
    if len(sparse_end) > 1:
        raise ValueError("a batch has four numbers, or five where its offsets have gaps")
    if min(numbers) < 0:
        raise ValueError(f"a batch has the negative number {min(numbers)}")
    return Batch(
        partition,
        base,
        sparse_end[0] if sparse_end else base + rows,
        first,
        rows,
        bool(sparse_end),
        path,
    )


def _tiled(batches: Sequence[Batch], rows: int) -> tuple[Batch, ...]:
    """Check that the batches cover all rows of the file in order, once each. Raises ValueError."""
    after = 0
    for batch in batches:
        if batch.first_row != after or batch.next_offset < batch.base_offset + batch.rows:
            raise ValueError(f"the batches do not cover the file's {rows} rows in order")
        after += batch.rows
    if after != rows:
        raise ValueError(f"the batches have {after} rows and the file {rows}")
    return tuple(batches)


def check_entry(before: TopicHead | None, entry: Entry, folder: str, path: str) -> TopicHead:
    """Check that `entry` continues `before` as the format demands; the head after it.

    Raises Corrupt if offsets do not continue where they ended: a reader must stop rather than
    return a record with a wrong offset.
    """
    domains = [
        a for a in entry.actions if isinstance(a, DomainMetadata) and a.domain == DELTAQ_DOMAIN
    ]
    if not domains:
        if before is None or any(isinstance(a, Add | Remove | Metadata) for a in entry.actions):
            raise Corrupt(
                "the entry changes a topic but has no deltaq domain with its offsets",
                path=path,
                version=entry.version,
            )
        return before  # an entry without effect, see `delta/resolve.py`
    after = parse_head(domains[0].configuration, path, entry.version)
    expected = (
        list(before.next_offsets)
        if before is not None and before.topic_id == after.topic_id
        else [0] * after.partitions
    )
    expected += [0] * (after.partitions - len(expected))
    for add in (a for a in entry.actions if isinstance(a, Add) and a.data_change):
        for batch in data_file(add, folder).batches:
            if batch.partition >= len(expected) or batch.base_offset != expected[batch.partition]:
                raise Corrupt(
                    "a batch does not start where its partition ended",
                    path=path,
                    version=entry.version,
                )
            expected[batch.partition] = batch.next_offset
    if tuple(expected) != after.next_offsets:
        raise Corrupt(
            "the entry's batches do not add up to its next offsets",
            path=path,
            version=entry.version,
        )
    if before is not None and before.topic_id == after.topic_id and _goes_back(before, after):
        raise Corrupt(
            "the entry lowers a start offset or min_upload_version of the entry before it",
            path=path,
            version=entry.version,
        )
    if after.min_upload_version > entry.version:
        raise Corrupt(
            "min_upload_version is above the version of the entry", path=path, version=entry.version
        )
    return after


def _goes_back(before: TopicHead, after: TopicHead) -> bool:
    starts = zip(before.start_offsets, after.start_offsets, strict=False)
    return (
        any(new < old for old, new in starts)
        or after.min_upload_version < before.min_upload_version
    )


# --- writing
# --------------------------------------------------------------------------------------------------


def create_actions(
    topic: str,
    topic_id: str,
    partitions: int,
    schema_string: str,
    configuration: Mapping[str, str],
    now_ms: int,
    first: bool,
) -> list[Action]:
    """The actions that create a topic, in a new table (`first`) or in that of a deleted topic."""
    head = TopicHead(topic_id, (0,) * partitions, (0,) * partitions, now_ms)
    actions: list[Action] = [
        Metadata(topic_id, schema_string, configuration, now_ms, name=topic),
        head.action(),
    ]
    return [PROTOCOL, *actions] if first else actions


def delete_actions(head: TopicHead, files: Sequence[str], now_ms: int) -> list[Action]:
    """The actions that delete a topic: remove every file, and mark the head as deleted."""
    ended = replace(
        head, start_offsets=head.next_offsets, time_ms=max(now_ms, head.time_ms), deleted=True
    )
    return [*(Remove(path, ended.time_ms, data_change=True) for path in files), ended.action()]


def changed(head: TopicHead, metadata: Metadata, change: TopicChange, now_ms: int) -> list[Action]:
    """The actions of a change of a topic."""
    added = (0,) * (change.partitions - head.partitions)
    after = replace(
        head,
        next_offsets=head.next_offsets + added,
        start_offsets=head.start_offsets + added,
        time_ms=max(now_ms, head.time_ms),
    )
    kept = {
        key: value for key, value in metadata.configuration.items() if key not in change.properties
    }
    new = {key: value for key, value in change.properties.items() if value is not None}
    new[PARTITIONS_PROPERTY] = str(after.partitions)
    schema_string = metadata.schema_string if change.schema_string is None else change.schema_string
    return [
        replace(metadata, schema_string=schema_string, configuration=kept | new),
        after.action(),
    ]


def appended(
    head: TopicHead,
    version: int,
    segments: Sequence[PendingSegment],
    now_ms: int,
    log_append_time: bool,
    indexed: Sequence[str] = (),
) -> tuple[TopicHead, list[Action]]:
    """Assign offsets to the rows of `segments`, new records, in entry `version`; the head after it
    and the actions.

    `indexed` are the value columns that have statistics in this table.
    """
    offsets = list(head.next_offsets)
    time_ms = max(now_ms, head.time_ms)
    actions: list[Action] = []
    for segment in segments:
        batches = []
        first = 0
        for partition, rows in segment.partition_rows:
            batches.append([partition, offsets[partition], first, rows])
            offsets[partition] += rows
            first += rows
        # The topic's timestamp type may have changed since the upload. Records without times take
        # the commit's.
        stamped = log_append_time or not segment.timed
        actions.append(add_action(segment, batches, version, indexed, time_ms if stamped else None))
    after = replace(head, next_offsets=tuple(offsets), time_ms=time_ms)
    return after, [*actions, after.action()]


def copied(
    head: TopicHead, version: int, segment: PendingSegment, now_ms: int, indexed: Sequence[str] = ()
) -> list[Action]:
    """The actions that append records of a source topic, with the offsets that they have there, in
    entry `version`.

    Each partition's rows begin where the partition ends in `head`; gaps belong to them.
    `indexed` is as in `appended`.
    """
    batches = placed_batches(segment)
    ends = {batch[0]: batch[4] if len(batch) == 5 else batch[1] + batch[3] for batch in batches}
    offsets = tuple(ends.get(partition, end) for partition, end in enumerate(head.next_offsets))
    after = replace(head, next_offsets=offsets, time_ms=max(now_ms, head.time_ms))
    return [add_action(segment, batches, version, indexed, data_change=True), after.action()]


def placed_batches(segment: PendingSegment) -> list[list[int]]:
    """The batches, as the format writes them, of a segment whose records have offsets already."""
    records = segment.rewritten
    if records is None:
        raise ValueError(f"{segment.path!r} has new records, which only an append can commit")
    first, batches = 0, []
    for (partition, rows), (base, end) in zip(segment.partition_rows, records.ranges, strict=True):
        dense = [partition, base, first, rows]
        batches.append(dense if rows == end - base else [*dense, end])
        first += rows
    return batches


def add_action(
    segment: PendingSegment,
    batches: list[list[int]],
    version: int,
    indexed: Sequence[str],
    append_time_ms: int | None = None,
    *,
    data_change: bool | None = None,
) -> Add:
    """The action that adds a segment with these batches, as the format writes them, of records up
    to entry `version`.

    `append_time_ms`: the timestamp that the commit gives to all of its records. `data_change`:
    whether the records are new in this table; None where only those without offsets are.
    """
    low, high = (
        (append_time_ms, append_time_ms)
        if append_time_ms is not None
        else (segment.min_timestamp_ms, segment.max_timestamp_ms)
    )
    about: dict[str, object] = {
        "version": version,
        "rows": segment.rows,
        "crc32": segment.crc32,
        "footer": [segment.footer_bytes, segment.footer_crc32],
        "timestamps": [low, high],
    }
    if append_time_ms is not None:
        about["append_time"] = append_time_ms
    if segment.rewritten is not None:
        about |= _kept(segment.rewritten)
    return Add(
        path=segment.path,
        size=segment.size,
        modification_time=segment.modified_ms,
        data_change=segment.rewritten is None if data_change is None else data_change,
        stats=file_stats(
            segment.rows, _own_statistics(segment, batches), segment.statistics, indexed
        ),
        tags={BATCHES_TAG: compact_json(batches), FILE_TAG: compact_json(about)},
    )


def _kept(records: RewrittenRecords) -> dict[str, object]:
    about: dict[str, object] = {}
    if records.log_append_time:
        about["log_append_time"] = True
    if records.clean is not None:
        about["clean"] = records.clean
    if records.decoded_bytes:
        about["decoded"] = records.decoded_bytes
    return about


def _own_statistics(segment: PendingSegment, batches: list[list[int]]) -> list[ColumnStatistics]:
    """Statistics of the columns in the file. Offsets and times that the commit assigns are null
    there.
    """
    if not segment.rows:
        return []
    offsets = None
    if segment.rewritten is not None:
        offsets = segment.rewritten.offsets
    return [
        ColumnStatistics("_partition", 0, batches[0][0], batches[-1][0]),
        (
            ColumnStatistics("_offset", segment.rows)
            if offsets is None
            else ColumnStatistics("_offset", 0, *offsets)
        ),
        _time_statistics(segment),
    ]


def _time_statistics(segment: PendingSegment) -> ColumnStatistics:
    if not segment.timed:
        return ColumnStatistics("_timestamp", segment.rows)
    # A rewritten or copied record of another program may have a time outside the years 1 to 9999.
    try:
        bounds = delta_time(segment.min_timestamp_ms), delta_time(segment.max_timestamp_ms)
    except OverflowError:
        return ColumnStatistics("_timestamp", 0)
    return ColumnStatistics("_timestamp", 0, *bounds)
