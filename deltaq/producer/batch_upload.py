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
import pyarrow.compute as pc

from deltaq.clock import Clock
from deltaq.errors import (
    InvalidConfig,
    InvalidValue,
    KafkaError,
    KafkaException,
    MessageTooLarge,
    UnknownTopic,
)
from deltaq.parquet.plain_segment import PlainRows
from deltaq.producer.accumulator import ArrowBlock, RowBlock
from deltaq.producer.batches import (
    BatchPart,
    InFlightBatches,
    ProduceBatch,
    SharedFilePlace,
    Uploaded,
    by_encoding,
)
from deltaq.producer.delivery_reports import DeliveryReports
from deltaq.producer.encoding import (
    LargeBlock,
    chosen_partitions,
    in_segments,
    joined,
    largest_record,
    piece_columns,
    plain_rows,
    resolved_block,
    room_for_value,
    row_columns,
)
from deltaq.producer.sender_topic import SenderTopic
from deltaq.serde.widening import conformed_batch, holds
from deltaq.store import Store
from deltaq.topics.columns import VALUE_SCHEMA, Columns
from deltaq.topics.metadata import TopicDefinition
from deltaq.topics.schema_evolution import unregistered
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

    def first(self, batch: ProduceBatch) -> Uploaded | None:
        """Upload a new batch; None if no row can be written. Raises what `put` raises."""
        definition = self._admitted(batch)
        # In the order of their segments, in which offsets are assigned.
        batch.parts = list(chain.from_iterable(by_encoding(self._encoded(batch, definition))))
        segments = self.put(batch, definition, batch.deadline)
        if not segments:
            return None
        return Uploaded(definition.topic_id, segments, batch.place, batch.is_shared)

    # --- admission: the topic as the batch needs it ---

    def _admitted(self, batch: ProduceBatch) -> TopicDefinition:
        """The topic, created or changed if it must be to take the records of a batch. What it
        cannot take is refused later, row by row. Raises Unavailable, UnknownTopic.
        """
        parts = batch.parts
        plan = next((part.buffer.plan for part in parts if part.buffer.plan is not None), None)
        definition = self._topic.ensure(plan, batch.deadline)
        # The topic may have got more partitions since this process has read it.
        if max(part.records.highest_partition for part in parts) >= definition.partitions:
            definition = self._topic.ensure_newest(batch.deadline)
        for part in parts:
            # Unless the topic, as it is now, was found to take the schemas of this client.
            if part.buffer.schemas and part.buffer.fits is not definition:
                definition = self._fitting(part, definition, batch.deadline)
        is_new = not definition.has_large_messages
        if is_new and any(self._is_large(part, definition) for part in parts):
            definition = self._topic.ensure_large_messages(batch.deadline)
        return definition

    def _fitting(
        self, part: BatchPart, definition: TopicDefinition, deadline: float
    ) -> TopicDefinition:
        """The topic changed to take the values of a part. Values of a schema that it cannot take
        are refused later, row by row: the part may have others. Raises Unavailable.
        """
        buffer, name = part.buffer, self._topic.name
        for schema in buffer.schemas.copy():
            try:
                if definition.evolution(name, schema) is not None:
                    if not buffer.settings.register_schemas:
                        raise unregistered(name)
                    definition = self._topic.ensure_schema(schema, deadline)
            except InvalidConfig as error:
                part.misfit = InvalidValue(error.error.str(), topic=name)
        if part.misfit is None:
            buffer.fits = definition
        return definition

    def _is_large(self, part: BatchPart, definition: TopicDefinition) -> bool:
        """Whether a part is a large message that can be written in pieces."""
        records = part.records
        if not isinstance(records, LargeBlock) or part.is_reported:
            return False
        try:
            room_for_value(records, definition, self._topic.name)
        except KafkaException:
            return False
        return records.partitions[0] < definition.partitions

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
        settings = part.buffer.settings
        sticky = part.buffer.sticky(
            definition.partitions, self._clock.monotonic(), self._clock.random()
        )
        spread = settings.sticky_s == 0
        choice = settings.partitioner, definition.partitions, sticky
        records = part.records
        try:
            if isinstance(records, ArrowBlock):
                columns = self._widened_block(records.columns, definition)
                self._check_block(columns, definition, unchecked=part.buffer.unchecked)
                part.columns = resolved_block(columns, *choice, spread=spread)
                return True
            part.partitions = chosen_partitions(records, *choice, spread=spread)
            part.epoch_ms = self._clock.time_ms() - self._clock.monotonic() * 1000
            if isinstance(records, LargeBlock):
                place, name = part.partitions[0], self._topic.name
                columns = piece_columns(records, place, part.epoch_ms, definition, name)
                self._check_block(columns, definition, unchecked=False)
                part.columns = columns
                return True
            refusals = self._refusals(
                records, part.partitions, definition, unchecked=part.buffer.unchecked
            )
            if (misfit := part.misfit) is not None:
                refusals |= {
                    at: misfit
                    for at, value in enumerate(records.values)
                    if not _is_taken(definition, value)
                }
            if refusals:
                records = self._reports.refused(part, records, refusals)
            if not len(records):
                return False
            if is_plain:
                part.columns = plain_rows(records, part.partitions, part.epoch_ms, part.bytes)
            # There are no plain rows with headers, null values, keys in some of them, or many
            # bytes.
            if part.columns is None:
                part.columns = row_columns(
                    records, part.partitions, part.epoch_ms, definition.schema
                )
        except KafkaException as error:
            # This part only: the others belong to other clients.
            self._reports.failed([part], error)
            return False
        return True

    def _widened_block(self, columns: Columns, definition: TopicDefinition) -> Columns:
        """A table with the columns of the topic, which may have more or wider ones than when it was
        produced. Raises InvalidValue.
        """
        wanted = VALUE_SCHEMA if definition.schema is None else definition.schema.arrow
        found = columns.values.schema
        if found == wanted:
            return columns
        if definition.schema is None or not holds(
            pa.struct(list(wanted)), pa.struct(_in_order(found, wanted))
        ):
            raise self._misfit(wanted)
        return replace(columns, values=conformed_batch(columns.values, wanted))

    def _check_block(
        self, columns: Columns, definition: TopicDefinition, *, unchecked: bool
    ) -> None:
        """Check a table for what `produce_arrow` could not know yet. One bad row refuses the whole
        table. Raises InvalidValue, UnknownTopic, MessageTooLarge, KafkaException.
        """
        highest = pc.max(columns.partitions).as_py()
        if highest >= definition.partitions:
            raise UnknownTopic(
                self._topic.name, partition=highest, code=KafkaError._UNKNOWN_PARTITION
            )
        if "compact" in definition.settings.cleanup_policy and columns.keys.null_count:
            raise self._keyless()
        limit = definition.settings.max_message_bytes
        if unchecked and (size := largest_record(columns)) > limit:
            raise MessageTooLarge(size=size, limit=limit, topic=self._topic.name)

    def _misfit(self, wanted: pa.Schema) -> InvalidValue:
        return InvalidValue(
            f"the topic holds {wanted.to_string(show_field_metadata=False)}", topic=self._topic.name
        )

    def _keyless(self) -> KafkaException:
        reason = f"topic {self._topic.name!r} is compacted: every message needs a key"
        return KafkaException(KafkaError(KafkaError.INVALID_RECORD, reason))

    def _refusals(
        self,
        records: RowBlock,
        partitions: list[int],
        definition: TopicDefinition,
        *,
        unchecked: bool,
    ) -> dict[int, KafkaException]:
        """The errors of rows, by row number, that `produce` could not know yet."""
        found: dict[int, KafkaException] = {}
        if max(partitions) >= (count := definition.partitions):
            code = KafkaError._UNKNOWN_PARTITION
            unknown = {
                n: UnknownTopic(self._topic.name, partition=n, code=code)
                for n in set(partitions)
                if n >= count
            }
            found = {
                at: unknown[partition]
                for at, partition in enumerate(partitions)
                if partition in unknown
            }
        if "compact" in definition.settings.cleanup_policy:
            error = self._keyless()
            found |= {at: error for at, key in enumerate(records.keys) if key is None}
        if unchecked and definition.schema is not None:
            columns = set(definition.schema.arrow.names)
            fits = [
                value is None or (isinstance(value, dict) and value.keys() <= columns)
                for value in records.values
            ]
            misfit = self._misfit(definition.schema.arrow)
            found |= {at: misfit for at, value_fits in enumerate(fits) if not value_fits}
        if unchecked:
            limit = definition.settings.max_message_bytes
            pairs = zip(records.keys, records.values, strict=True)
            sizes = [
                len(key or b"") + (len(value) if isinstance(value, bytes) else 0)
                for key, value in pairs
            ]
            found |= {
                at: MessageTooLarge(size=size, limit=limit, topic=self._topic.name)
                for at, size in enumerate(sizes)
                if size > limit
            }
        return found

    # --- upload ---

    def put(
        self, batch: ProduceBatch, definition: TopicDefinition, deadline: float
    ) -> tuple[PendingSegment, ...]:
        """Upload an encoded batch: as a shared file if it has a place and fits one file. Raises
        Unavailable and what a codec raises: unless the batch `is_shared` then, nothing of this
        upload is in the store.
        """
        segments: list[PendingSegment] = []
        groups = list(by_encoding(batch.parts))
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
                    segment, rows = upload(as_of=as_of)
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
                if not self._batches.share(batch, replace(segment, path=path)):
                    log.pending_shared.forget(path)
                    raise NothingSent("these messages have been reported as failed")
            return path

        try:
            return upload(as_of=place.as_of, named=shared_name)
        except NothingSent:
            self._batches.not_shared(batch)
            raise


def _is_taken(definition: TopicDefinition, value: object) -> bool:
    """Whether the topic takes a value, of whatever schema of the client."""
    if value is None or definition.schema is None:
        return value is None or isinstance(value, bytes)
    try:
        definition.schema.accept(value)
    except InvalidValue:
        return False
    return True


def _in_order(found: pa.Schema, wanted: pa.Schema) -> list[pa.Field]:
    """The fields of a schema, those of another one first and in its order."""
    known = [name for name in wanted.names if name in found.names]
    return [found.field(name) for name in known] + [
        field for field in found if field.name not in wanted.names
    ]
