"""Key compaction keeps only the newest record of each key, as Kafka's log cleaner does.

The files of a topic, in the order of the log, are a *clean* part, in which each key occurs once per
partition, and a *dirty* part behind it. Compaction loads the newest offset of each key in the dirty
part, drops older records from both parts, and marks the dirty part as clean. A tombstone is kept
for `delete.retention.ms` after the compaction that made it the only record of its key, so that
readers see it. Records without a key, from before the topic was compacted, are kept.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.clock import Clock
from deltaq.config import TopicSettings
from deltaq.maintenance.file_compaction import (
    MERGED_FILES_MAX,
    FileRewrite,
    cut,
    in_log_order,
    is_alike,
)
from deltaq.maintenance.retention import file_time_ms
from deltaq.maintenance.rewrite import Rewriter
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.store import Store
from deltaq.topics.holds import is_below
from deltaq.topics.log import StalePlan
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.metadata import definition_of
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.scan import Fetched, FileRead, read_file
from deltaq.topics.state import DataFile
from deltaq.work import Work

KEYS_BYTES_AT_ONCE = 256 * 1024 * 1024
"""Maximum bytes of keys, approximately, that one compaction loads."""

_SYSTEM_COLUMNS = 5  # partition, offset, timestamp, key, headers; the value's columns follow

_Unit: TypeAlias = tuple[DataFile, ...]  # the files of one entry or one merge


@dataclass(frozen=True, slots=True)
class KeyCleaning:
    """Files to be compacted: `clean` units, from which older values are dropped, and `dirty` ones
    that become clean. Tombstones of files with records at or after `held_ends` stay.
    """

    clean: tuple[_Unit, ...]
    dirty: tuple[_Unit, ...]
    held_ends: tuple[int, ...] | None = None

    @property
    def newest_version(self) -> int:
        """The version of the newest of the files."""
        return max(file.segment.version for unit in (*self.clean, *self.dirty) for file in unit)

    def __str__(self) -> str:
        dirty, clean = sum(map(len, self.dirty)), sum(map(len, self.clean))
        return f"compact by key: {dirty} dirty files and {clean} clean ones"


# --- rules ---


def plan_cleaning(
    index: OffsetIndex,
    topic: TopicSettings,
    settings: MaintenanceSettings,
    now_ms: int,
    damaged: Container[str] = (),
    held_ends: tuple[int, ...] | None = None,
) -> KeyCleaning | None:
    """The compaction that is due; None if the topic is not compacted, or too little of it is dirty.

    Files in `damaged` cannot be read, and may hold an older value of any key. So files behind a
    damaged file stay dirty, and if a clean file is damaged, all dirty files do. Files with records
    at or after `held_ends` (`HeldOffsets.ends`; None: no limit), and those behind them, stay as
    they are, as if they were too young.

    Source: Kafka's `min.cleanable.dirty.ratio`, `min.compaction.lag.ms`, `max.compaction.lag.ms`.
    """
    if "compact" not in topic.cleanup_policy:
        return None
    units = in_log_order(index)
    clean = list(takewhile(lambda unit: all(file.clean is not None for file in unit), units))
    sound = [unit for unit in clean if not _has_one_of(unit, damaged)]
    free = takewhile(lambda unit: _is_free(unit, held_ends), units[len(clean) :])
    dirty = _ripe(free, topic, now_ms, damaged) if len(sound) == len(clean) else []
    if dirty and _is_worth_it(clean, dirty, topic, now_ms):
        first = _first(dirty, settings.dirty_bytes_max)
        return KeyCleaning(tuple(clean), tuple(first), held_ends)
    expired = tuple(
        unit
        for unit in sound
        if 0 < max(file.clean or 0 for file in unit) <= now_ms and _is_free(unit, held_ends)
    )
    return KeyCleaning(expired, (), held_ends) if expired else None


def _is_free(unit: Iterable[DataFile], held_ends: Sequence[int] | None) -> bool:
    """Whether no record of the unit is held."""
    return held_ends is None or all(
        is_below(batch, held_ends) for file in unit for batch in file.batches
    )


def _ripe(
    units: Iterable[_Unit], topic: TopicSettings, now_ms: int, damaged: Container[str]
) -> list[_Unit]:
    """The dirty units before the first one that cannot be read or has records younger than
    `min.compaction.lag.ms`.
    """
    lag_ms = topic.min_compaction_lag_ms

    def is_ripe(unit: _Unit) -> bool:
        is_old = not lag_ms or all(file_time_ms(file) <= now_ms - lag_ms for file in unit)
        return is_old and not _has_one_of(unit, damaged)

    return list(takewhile(is_ripe, units))


def _has_one_of(unit: Iterable[DataFile], paths: Container[str]) -> bool:
    return any(file.path in paths for file in unit)


def _first(units: Iterable[_Unit], bytes_max: int) -> list[_Unit]:
    """The oldest of the units, at least one, with at most `bytes_max` bytes. Later compactions take
    the others.
    """
    taken: list[_Unit] = []
    size = 0
    for unit in units:
        size += _bytes([unit])
        # At least one unit, however large: otherwise it would never be compacted.
        if taken and size > bytes_max:
            break
        taken.append(unit)
    return taken


def _is_worth_it(
    clean: Sequence[_Unit], dirty: Sequence[_Unit], topic: TopicSettings, now_ms: int
) -> bool:
    ratio = _bytes(dirty) / max(1, _bytes(dirty) + _bytes(clean))
    oldest_ms = min(file.min_timestamp_ms for unit in dirty for file in unit)
    return (
        ratio >= topic.min_cleanable_dirty_ratio or now_ms - oldest_ms > topic.max_compaction_lag_ms
    )


def _bytes(units: Iterable[Sequence[DataFile]]) -> int:
    return sum(file.segment.size for unit in units for file in unit)


# --- acting ---


class KeyCleaner:
    """Compacts one topic. `log` keeps an index; plans must have been made from it."""

    def __init__(self, store: Store, log: MaintenanceLog, clock: Clock, rewriter: Rewriter) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._rewriter = rewriter

    def clean(self, plan: KeyCleaning, topic: TopicSettings) -> Work[int | StalePlan]:
        """Carry out the plan, oldest files first. Returns the number of records dropped, or
        StalePlan.

        `topic` are the settings that the plan was made for. Raises what `rewrite` raises.
        """
        newest, learned = yield from self._newest(plan.dirty)
        now_ms = self._clock.time_ms()
        horizon_ms = now_ms + topic.delete_retention_ms

        def is_expired(files: _Unit) -> bool:
            is_over = all((file.clean or 0) <= now_ms for file in files)
            return is_over and _is_free(files, plan.held_ends)

        clean = [(files, None, is_expired(files)) for unit in plan.clean for files in _alike(unit)]
        dirty = [
            (files, horizon_ms, False)
            for files in _groups(plan.dirty[:learned], topic.segment_bytes)
        ]
        total = 0
        # Only after older values were dropped from the clean part may the dirty files be marked as
        # clean.
        for files, until_ms, expired in (*clean, *dirty):
            dropped = yield from self._clean_unit(files, newest, until_ms, topic, expired=expired)
            if isinstance(dropped, StalePlan):
                return dropped
            total += dropped
        return total

    def _clean_unit(
        self,
        files: _Unit,
        newest: dict[int, pa.Table],
        horizon_ms: int | None,
        topic: TopicSettings,
        *,
        expired: bool,
    ) -> Work[int | StalePlan]:
        """Rewrite neighbouring files. Returns the number of records dropped.

        `horizon_ms` is given for dirty files: their tombstones are kept until then. Those of
        `expired` files are dropped.
        """
        until_ms = (
            max((file.clean or 0 for file in files), default=0)
            if horizon_ms is None
            else horizon_ms
        )
        dropped = tombstones = 0
        for file in files:
            for part in self._parts(file):
                kept = _kept(part, newest, drop_tombstones=expired)
                dropped += part.rows.num_rows - kept.num_rows
                tombstones += pc.sum(_is_tombstone(kept)).as_py() or 0
            yield
        # A clean file in which nothing changes. One whose last tombstone has gone is rewritten to
        # say so.
        if horizon_ms is None and not dropped and (tombstones or not until_ms):
            return 0
        plan = FileRewrite(files, cut(files, self._log.live_head, topic.segment_bytes))
        if plan.outputs:
            rewritten = yield from self._rewriter.rewrite(
                plan,
                lambda part: _kept(part, newest, drop_tombstones=expired),
                until_ms if tombstones else 0,
                topic,
            )
            if isinstance(rewritten, StalePlan):
                return rewritten
        return dropped

    def _newest(self, dirty: Sequence[_Unit]) -> Work[tuple[dict[int, pa.Table], int]]:
        """(for each partition, the keys in the dirty part with their newest offsets; the number of
        units read).

        Not all units are read if their keys, which may be well compressed, take too much memory.
        """
        keys: dict[int, _Keys] = {}
        learned = 0
        for unit in dirty:
            for file in unit:
                for part in self._parts(file):
                    keys.setdefault(part.partition, _Keys()).add(part)
                yield
            learned += 1
            if sum(of_partition.nbytes for of_partition in keys.values()) > KEYS_BYTES_AT_ONCE:
                break
        return {
            partition: of_partition.newest() for partition, of_partition in keys.items()
        }, learned

    def _parts(self, file: DataFile) -> Iterable[Fetched]:
        """The records of the file from the start offsets on."""
        head = self._log.live_head
        wanted = tuple(
            (batch, max(batch.base_offset, start), batch.next_offset)
            for batch in file.batches
            if batch.next_offset > (start := head.start_offsets[batch.partition])
        )
        if wanted:
            return read_file(self._store, FileRead(file, wanted), definition_of(self._log).columns)
        return ()


class _Keys:
    """The keys of a partition's records, with their newest offsets."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self._tables)

    def add(self, part: Fetched) -> None:
        table = pa.table({"key": part.rows.column("_key"), "offset": part.rows.column("_offset")})
        self._tables.append(_newest_of_each(table))
        # Merge once the new tables are as large as the first one, so that the cost per key is
        # logarithmic.
        if sum(len(table) for table in self._tables[1:]) >= len(self._tables[0]):
            self._tables = [self.newest()]

    def newest(self) -> pa.Table:
        if len(self._tables) == 1:
            return self._tables[0]
        return _newest_of_each(pa.concat_tables(self._tables))


def _kept(part: Fetched, newest: dict[int, pa.Table], *, drop_tombstones: bool) -> pa.RecordBatch:
    """The records that are the newest of their key, or have no key; without tombstones if
    `drop_tombstones`.
    """
    rows = part.rows
    known = newest.get(part.partition)
    if known is not None:
        at = pc.index_in(
            rows.column("_key"), value_set=known.column("key").combine_chunks(), skip_nulls=True
        )
        latest = known.column("offset").combine_chunks().take(at)
        is_old = pc.fill_null(pc.less(rows.column("_offset"), latest), False)
        rows = rows.filter(pc.invert(is_old))
    if drop_tombstones:
        rows = rows.filter(pc.invert(_is_tombstone(rows)))
    return rows


def _is_tombstone(rows: pa.RecordBatch) -> pa.BooleanArray:
    found = pc.is_valid(rows.column("_key"))
    for column in rows.columns[_SYSTEM_COLUMNS:]:
        found = pc.and_(found, pc.is_null(column))
    return found


def _newest_of_each(table: pa.Table) -> pa.Table:
    grouped = table.filter(pc.is_valid(table["key"])).group_by("key").aggregate([("offset", "max")])
    return pa.table({"key": grouped["key"], "offset": grouped["offset_max"]})


def _groups(units: Iterable[_Unit], target_bytes: int) -> Iterable[_Unit]:
    """Neighbouring units with the same kind of timestamps, as many as make one file or as one merge
    may take.

    Each file of an entry with both kinds is a group of its own: their order is unknown once some
    were rewritten.
    """
    group: list[DataFile] = []
    for unit in units:
        full = len(group) + len(unit) > MERGED_FILES_MAX or _bytes([group, unit]) > target_bytes
        if group and (full or not is_alike((group[0], *unit))):
            yield tuple(group)
            group = []
        if is_alike(unit):
            group += unit
        else:
            yield from _alike(unit)
    if group:
        yield tuple(group)


def _alike(unit: _Unit) -> Iterable[_Unit]:
    """The unit itself, or each of its files alone if they must not be merged."""
    return [unit] if is_alike(unit) else [(file,) for file in unit]
