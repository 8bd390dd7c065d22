"""Upload of a produce batch, in three steps: the topic is created or changed for it, its rows are
checked and encoded, and the segments are put into the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TypeAlias

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.errors import KafkaException
from deltaq.parquet.plain_segment import PlainRows
from deltaq.producer.accumulator import ArrowBlock
from deltaq.producer.batches import (
    BatchPart,
    InFlightBatches,
    ProduceBatch,
    SharedFilePlace,
    Uploaded,
)
from deltaq.producer.delivery_reports import DeliveryReports
from deltaq.producer.encoding import (
    LargeBlock,
    TopicToFit,
    block_columns,
    chosen_partitions,
    encoded_rows,
    in_segments,
    joined,
    piece_columns,
    row_refusals,
)
from deltaq.producer.sender_topic import SenderTopic
from deltaq.store import Store
from deltaq.topics.columns import Columns
from deltaq.topics.metadata import TopicDefinition
from deltaq.topics.shared_files import SharedFileId, shared_file_path
from deltaq.topics.state import PendingSegment
from deltaq.topics.upload import NothingSent, upload_segment

SEGMENT_BYTES_MAX = 64 * 1024 * 1024

Uploading: TypeAlias = "tuple[PendingSegment, pa.RecordBatch | PlainRows]"


@dataclass(eq=False)
class BatchUpload:
    """Uploads batches of one topic, from any thread."""

    _store: Store
    _topic: SenderTopic
    _clock: Clock
    _batches: InFlightBatches
    _reports: DeliveryReports
    _named: Callable[[PendingSegment], str | None] = lambda _: None
    """Another path for a file that is not shared, as `upload_segment` has it."""
    _stored: Callable[[PendingSegment], None] = lambda _: None
    """Called when such a file is in the store."""
    _must_confirm: bool = False
    """Whether the topic is read before the upload: no commit of the batch will find out that it was
    deleted before.
    """

    def first(self, batch: ProduceBatch) -> Uploaded | None:
        """Upload a new batch; None if no row can be written. Raises what `put` raises."""
        taken_at = self._clock.monotonic()
        definition = self._topic.admit(batch.parts, batch.deadline)
        # In the order of their segments, in which offsets are assigned.
        batch.parts = list(chain.from_iterable(_by_encoding(self._encoded(batch, definition))))
        has_pieces = any(isinstance(part.records, LargeBlock) for part in batch.parts)
        if has_pieces and not definition.has_large_messages:
            definition = self._topic.mark_large_messages(batch.deadline)
        if self._must_confirm and not self._topic.was_read_since(taken_at):
            self._topic.confirm(definition, batch.deadline)
        segments = self.put(batch, definition, batch.deadline)
        if not segments:
            return None
        return Uploaded(definition.topic_id, segments, batch.place, batch.is_shared)

    # --- encoding: pure, but for the reports of rows that are refused ---

    def _encoded(self, batch: ProduceBatch, definition: TopicDefinition) -> list[BatchPart]:
        """The parts of a batch as columns, without those that are reported: refusals of their rows
        could not be reported any more.
        """
        is_plain = definition.schema is None and len(batch.parts) == 1
        return [
            part
            for part in batch.parts
            if not part.is_reported and self._encode(part, definition, is_plain=is_plain)
        ]

    def _encode(self, part: BatchPart, definition: TopicDefinition, *, is_plain: bool) -> bool:
        """Turn a part into columns, or with `is_plain` perhaps into plain rows, and report rows
        that cannot be written. Whether any rows are left.
        """
        clock, buffer, records = self._clock, part.buffer, part.records
        choice = buffer.choice(definition.partitions, clock.monotonic(), clock.random())
        topic = TopicToFit(self._topic.name, definition, is_unchecked=buffer.unchecked)
        try:
            if isinstance(records, ArrowBlock):
                part.columns = block_columns(records.columns, topic, choice)
                return True
            part.partitions = chosen_partitions(records, choice)
            part.epoch_ms = clock.time_ms() - clock.monotonic() * 1000
            if isinstance(records, LargeBlock):
                part.columns = piece_columns(records, part.partitions[0], part.epoch_ms, topic)
                return True
            if refusals := row_refusals(records, part.partitions, topic, part.misfit):
                records = self._reports.refused(part, records, refusals)
            if not len(records):
                return False
            size = part.bytes if is_plain else None
            part.columns = encoded_rows(records, part.partitions, part.epoch_ms, topic, size)
        except KafkaException as error:
            # This part only: the others belong to other clients.
            self._reports.failed([part], error)
            return False
        return True

    # --- upload ---

    def put(
        self, batch: ProduceBatch, definition: TopicDefinition, deadline: float
    ) -> tuple[PendingSegment, ...]:
        """Upload an encoded batch: as a shared file if it has a place and fits one file. Raises
        Unavailable and what a codec raises: unless the batch `is_shared` then, nothing of this
        upload is in the store.
        """
        segments: list[PendingSegment] = []
        groups = _by_encoding(batch.parts)
        for group in groups:
            settings = group[0].buffer.settings
            # Read before the upload, since orphan removal compares it.
            as_of = self._topic.log.version
            pieces = self._pieces(group, definition)
            codec = settings.compression, settings.compression_level
            alone = len(pieces) == len(groups) == 1
            for piece in pieces:
                upload = partial(
                    upload_segment,
                    self._store,
                    self._topic.name,
                    piece,
                    definition.settings,
                    codec,
                    deadline=deadline,
                    clock=self._clock,
                    failed=self._topic.publish_failure,
                )
                # Other writers commit a shared file as a whole, so the batch must fit into one.
                if alone and batch.place is not None:
                    segment, rows = self._put_shared(batch, batch.place, definition, upload)
                else:
                    segment, rows = upload(as_of=as_of, named=self._named)
                    self._stored(segment)
                segments.append(segment)
                if self._topic.maintenance is not None:
                    self._topic.maintenance.uploaded(segment.path, rows)
        return tuple(segments)

    def _pieces(
        self, group: Sequence[BatchPart], definition: TopicDefinition
    ) -> Sequence[Columns | PlainRows]:
        """The records of parts that share a segment, unless they are too large for one."""
        if isinstance(plain := group[0].columns, PlainRows):
            return [plain]
        whole = joined([part.columns for part in group if isinstance(part.columns, Columns)])
        # For bytes without headers, the sizes that `produce` counted are exact; columns need not be
        # measured.
        is_plain = definition.schema is None and whole.headers.null_count == len(whole)
        if is_plain and sum(part.bytes for part in group) < SEGMENT_BYTES_MAX // 8:
            return [whole]
        return list(in_segments(whole, SEGMENT_BYTES_MAX))

    def _put_shared(
        self,
        batch: ProduceBatch,
        place: SharedFilePlace,
        definition: TopicDefinition,
        upload: Callable[..., Uploading],
    ) -> Uploading:
        log = self._topic.log

        def shared_name(segment: PendingSegment) -> str | None:
            mine = SharedFileId(log.writer, place.number)
            path = shared_file_path(mine, segment, definition.topic_id, follows=place.follows)
            if path is not None:
                # Before other processes can see the file.
                log.pending_shared.expect(path, place.as_of)
                if place.as_of < log.view.history.followed:
                    # This can happen when a checkpoint was taken over since the batch was taken:
                    # what becomes of the file could not be told from entries that were skipped.
                    log.pending_shared.forget(path)
                    return None
                if not self._batches.share(batch, replace(segment, path=path)):
                    log.pending_shared.forget(path)
                    raise NothingSent("these messages have been reported as failed")
            return path

        try:
            return upload(as_of=place.as_of, named=shared_name)
        except NothingSent:
            self._batches.not_shared(batch)
            raise


def _by_encoding(parts: Sequence[BatchPart]) -> list[list[BatchPart]]:
    """Group parts that can share a segment: those with the same compression settings."""
    groups: dict[tuple[str, int | None], list[BatchPart]] = {}
    for part in parts:
        settings = part.buffer.settings
        groups.setdefault((settings.compression, settings.compression_level), []).append(part)
    return list(groups.values())
