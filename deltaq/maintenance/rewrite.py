"""Rewrites data files: writes their records into new files, with the same offsets, and replaces the
old files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from deltaq import metrics, names
from deltaq.clock import Clock
from deltaq.config import TopicSettings
from deltaq.delta.actions import NOTHING_PREPARED, Prepared, prepared
from deltaq.delta.store_errors import raising_unavailable
from deltaq.errors import Unavailable
from deltaq.freed_memory import return_freed_memory
from deltaq.maintenance.file_compaction import (
    DECODED_BYTES_AT_ONCE,
    FileRewrite,
    Ranges,
    divided,
    halved,
)
from deltaq.maintenance.row_cache import RowCache
from deltaq.parquet.segment import (
    COMPACTED_ROW_GROUP_BYTES,
    EncodedSegment,
    codec_of,
    encode_by_row_groups,
)
from deltaq.serde.widening import conformed_batch
from deltaq.store import ObjectMissing, Store, StoreError, put_in_pieces
from deltaq.topics.log import StalePlan
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.metadata import definition_of
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.record_faults import name_faults
from deltaq.topics.scan import Fetched, FileGone, FileRead, plan_reads, read_file, read_known
from deltaq.topics.state import PendingSegment, RewrittenRecords
from deltaq.work import Work

_log = logging.getLogger("deltaq.maintenance")

COMMIT_TIMEOUT_S = 60.0

GENTLE_BYTES_AT_ONCE = 64 * 1024 * 1024
"""`DECODED_BYTES_AT_ONCE` for a client's process. Writing a file takes about four times as much of
its memory.
"""

RETURN_MEMORY_BYTES_MIN = 8 * 1024 * 1024
"""After a rewrite of files of this many bytes in all, freed memory returns to the system."""

PREPARED_AT_ONCE = 16
"""Actions of an entry that are encoded and verified in one piece of half a millisecond."""

KNOWN_AT_ONCE = 32
"""Number of small files whose cached rows are joined in one step of one or two milliseconds."""


class _RewriteTooLarge(Exception):
    """The records of one new file take too much memory and must be divided among two."""


class Rewriter:
    """Rewrites files of one topic. `log` keeps an index; plans must have been made from it.

    With `gently`, new files are small, and are written to a local disk in small pieces.
    """

    def __init__(
        self,
        store: Store,
        log: MaintenanceLog,
        clock: Clock,
        row_cache: RowCache | None = None,
        *,
        gently: bool = False,
    ) -> None:
        self._row_cache = row_cache or RowCache(clock)
        self._store = store
        self._log = log
        self._clock = clock
        self._is_gentle = gently
        self.bytes_max = GENTLE_BYTES_AT_ONCE if gently else DECODED_BYTES_AT_ONCE
        """The number of bytes that a new file decodes to is at most about this; more records make
        several files.
        """

    def rewrite(
        self,
        plan: FileRewrite,
        keep: Callable[[Fetched], pa.RecordBatch] = lambda fetched: fetched.rows,
        clean: int | None = None,
        planned_for: TopicSettings | None = None,
    ) -> Work[tuple[str, ...] | StalePlan]:
        """Carry out the plan with the rows that `keep` returns. Returns the paths of the new files,
        or StalePlan.

        There are more files than the plan has outputs if records take more memory than was known.
        `clean` is stored in the new files (`DataFile.clean`). With `planned_for`, the plan is stale
        unless these are still the topic's settings. A rewrite that is given up removes the files
        that it has written.

        Raises FileGone, if the plan is stale or a file is lost; Corrupt, Unavailable,
        OutcomeUnknown.
        """
        try:
            return (yield from self._rewrite(plan, keep, clean, planned_for))
        finally:
            if plan.bytes >= RETURN_MEMORY_BYTES_MIN:
                return_freed_memory()

    def _rewrite(
        self,
        plan: FileRewrite,
        keep: Callable[[Fetched], pa.RecordBatch],
        clean: int | None,
        planned_for: TopicSettings | None,
    ) -> Work[tuple[str, ...] | StalePlan]:
        as_of = self._log.version
        inputs = [file.path for file in plan.inputs]
        uploaded: list[PendingSegment] = []
        try:
            todo = [
                part
                for ranges in plan.outputs
                for part in divided(plan.inputs, ranges, self.bytes_max)
            ]
            todo.reverse()
            while todo:
                ranges = todo.pop()
                try:
                    uploaded.append((yield from self._write(plan, ranges, keep, clean, as_of)))
                except _RewriteTooLarge:
                    todo += reversed(halved(plan.inputs, ranges))
            self._catch_up()
            before = yield from self._prepare(inputs, uploaded)
        except BaseException:
            self._discard(uploaded)
            raise
        deadline = self._clock.monotonic() + COMMIT_TIMEOUT_S
        stale = self._log.rewrite(inputs, uploaded, deadline, before, planned_for)
        if stale is not None:
            metrics.STALE_REWRITES.add(topic=self._log.topic)
            # Otherwise readers may use the files: orphan removal deletes them later.
            if not stale.may_have_stood:
                self._discard(uploaded)
            return stale
        self._row_cache.forget(inputs)
        return tuple(segment.path for segment in uploaded)

    def _prepare(self, inputs: Sequence[str], uploaded: Sequence[PendingSegment]) -> Work[Prepared]:
        actions = self._log.rewrite_actions(inputs, uploaded)
        before = NOTHING_PREPARED
        for at in range(0, len(actions), PREPARED_AT_ONCE):
            before += prepared(actions[at : at + PREPARED_AT_ONCE])
            yield
        return before

    def _catch_up(self) -> None:
        """Read new entries now, so that the commit does not find its slot taken and has to read
        them all at once.
        """
        # The writer's log is at the newest version that this process knows.
        if not self._log.is_beside_writer:
            with suppress(Unavailable):  # the commit reports the error
                self._log.catch_up()

    def _write(
        self,
        plan: FileRewrite,
        ranges: Ranges,
        keep: Callable[[Fetched], pa.RecordBatch],
        clean: int | None,
        as_of: int,
    ) -> Work[PendingSegment]:
        path = names.data_file_name(self._clock.unique_id())
        # The rows are released once they are encoded, so that a slow upload does not keep both in
        # memory.
        partition_rows, encoded, decoded_bytes, times, offsets = yield from self._encoded(
            plan, ranges, keep
        )
        yield
        with raising_unavailable():
            if self._is_gentle:
                yield from put_in_pieces(self._store, self._log.folder + path, encoded.data)
            else:
                self._store.put(self._log.folder + path, encoded.data)
        yield
        newest = max(plan.inputs, key=lambda file: file.segment.version)
        records = RewrittenRecords(
            tuple(ranges[partition] for partition, _ in partition_rows),
            (offsets["min"].as_py() or 0, offsets["max"].as_py() or 0),
            newest.segment.version,
            newest.log_append_time,
            clean,
            decoded_bytes,
        )
        # A file without rows keeps the times of the newest file that it replaces.
        times_ms = newest.min_timestamp_ms, newest.max_timestamp_ms
        if encoded.rows:
            times_ms = times["min"].as_py() // 1000, times["max"].as_py() // 1000
        modified_ms = max(file.modified_ms for file in plan.inputs)
        return PendingSegment.of(
            path, encoded, partition_rows, times_ms, modified_ms, as_of=as_of, rewritten=records
        )

    def _encoded(
        self, plan: FileRewrite, ranges: Ranges, keep: Callable[[Fetched], pa.RecordBatch]
    ) -> Work[tuple[tuple[tuple[int, int], ...], EncodedSegment, int, pa.Scalar, pa.Scalar]]:
        """Encode a new file. Returns its rows by partition, its content, the number of bytes that
        it decodes to, and the minimum and maximum of its times (in µs) and of its offsets.
        """
        rows = yield from self._read(plan, ranges, keep)
        partition_rows = tuple(
            (partition, sum(part.num_rows for part in parts)) for partition, parts in rows.items()
        )
        table = pa.Table.from_batches([part for parts in rows.values() for part in parts])
        counts = [count for _, count in partition_rows]
        encoded = yield from encode_by_row_groups(
            table, counts, self._codec(plan), row_group_bytes=COMPACTED_ROW_GROUP_BYTES
        )
        times = pc.min_max(table.column("_timestamp").cast(pa.int64()))
        return partition_rows, encoded, table.nbytes, times, pc.min_max(table.column("_offset"))

    def _read(
        self, plan: FileRewrite, ranges: Ranges, keep: Callable[[Fetched], pa.RecordBatch]
    ) -> Work[dict[int, list[pa.RecordBatch]]]:
        """The rows by partition, in the order of partitions, and within each in the order of
        offsets.
        """
        index = OffsetIndex()
        for file in plan.inputs:
            index.add(file)
        rows: dict[int, list[pa.RecordBatch]] = {partition: [] for partition in sorted(ranges)}
        size = 0
        for several in self._fetched(plan_reads(index, ranges)):
            for fetched in several:
                name_faults(
                    fetched.rows,
                    self._log.topic,
                    _log,
                    "a value that cannot be returned is kept as it is stored",
                )
                rows[fetched.partition].append(kept := keep(fetched))
                size += kept.nbytes
            # This can happen when records decode to far more memory than was known of their files.
            if size > self.bytes_max and len(halved(plan.inputs, ranges)) > 1:
                raise _RewriteTooLarge
            yield
        return rows

    def _fetched(self, reads: Sequence[FileRead]) -> Iterator[list[Fetched]]:
        """The records of one file after another; of several at once if their rows are in the row
        cache.
        """
        known: list[tuple[FileRead, pa.RecordBatch]] = []
        # Of all files alike, though the topic may get others meanwhile.
        columns = definition_of(self._log).columns
        for read in reads:
            rows = self._row_cache.rows(read.file.path)
            if rows is not None:
                known.append((read, conformed_batch(rows, columns)))
            if known and (rows is None or len(known) == KNOWN_AT_ONCE):
                yield read_known(known)
                known = []
            if rows is None:
                yield read_file(self._store, read, columns)
        if known:
            yield read_known(known)

    def _codec(self, plan: FileRewrite) -> str:
        """The topic's compression; with `compression.type=producer`, that of the newest file of the
        plan.
        """
        wanted = self._log.settings.compression_type
        if wanted != "producer":
            return wanted
        newest = max(plan.inputs, key=lambda file: file.segment.version)
        segment = newest.segment
        with raising_unavailable():
            try:
                return codec_of(
                    segment, lambda start, length: self._store.get_range(segment.key, start, length)
                )
            except ObjectMissing:
                raise FileGone(newest) from None

    def _discard(self, uploaded: list[PendingSegment]) -> None:
        """Delete uploaded files that no log entry names or will ever name."""
        for segment in uploaded:
            try:
                self._store.delete(self._log.folder + segment.path)
            except StoreError as error:
                _log.info("a rewritten file is left to orphan removal: %s", error)
