"""A topic as its sender sees it: its log, its cached definition, and the maintenance beside the
writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.delta.table_state import TableState
from deltaq.errors import (
    InvalidConfig,
    InvalidValue,
    OutcomeUnknown,
    Unavailable,
    UnknownTopic,
)
from deltaq.parquet.plain_segment import PlainRows
from deltaq.producer.batches import BatchPart, InFlightBatches
from deltaq.serde.schema import TopicSchema
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import (
    NewTopicPlan,
    TopicDefinition,
    create_topic,
    definition_of,
    evolve_topic,
    mark_large_messages,
)
from deltaq.topics.schema_evolution import evolution, unregistered
from deltaq.topics.upload import pause_before_retry

FIND_TOPIC_S = 5.0
"""Seconds for which the first message to a topic tries to create or change it, before the sender's
threads do.
"""


class BackgroundMaintenance(Protocol):
    """Maintains the topic while it is written; see `deltaq/maintenance/background.py`."""

    def uploaded(self, path: str, rows: pa.RecordBatch | PlainRows) -> None: ...
    def committed(self, state: TableState) -> None: ...
    def due_in_s(self) -> float: ...
    def start_due(self) -> None: ...


@dataclass(eq=False)
class SenderTopic:
    """Looks the topic up, changes it for its producers, and notifies them of changes.

    `cached` is what the log was last seen to say; None before the first look, and if there is no
    such topic. For a batch it is read again `fresh_s` seconds after the last time. `maintenance`:
    None if this process does none.
    """

    name: str
    log: TopicLog
    _clock: Clock
    _batches: InFlightBatches
    maintenance: BackgroundMaintenance | None = None
    cached: TopicDefinition | None = None
    fresh_s: float = float("inf")
    _read_at: float = float("-inf")  # when the last `read` began

    # --- one look at the store ---

    def read(
        self, plan: NewTopicPlan | None = None, timeout_s: float = 0.0
    ) -> TopicDefinition | None:
        """The topic as it is now; None if it does not exist. With a `plan`, a missing topic is
        created within `timeout_s` seconds. Raises Unavailable, OutcomeUnknown, Corrupt,
        Incompatible, UnsafeStore.
        """
        definition = None
        with self.log.known.turn:
            log, began_at = self.log, self._clock.monotonic()
            if log.load() if self.cached is None else log.catch_up():
                definition = definition_of(log)
            elif plan is not None:
                deadline = self._clock.monotonic() + timeout_s
                definition = create_topic(log, plan, deadline, exist_ok=True)
            self.publish(definition)
            self._read_at = began_at
        return definition

    def read_for(
        self, plan: NewTopicPlan | None, schema: TopicSchema | None, *, register: bool
    ) -> TopicDefinition | None:
        """The topic for the first message of a client with this schema. With `register`, the topic
        is changed if it must be to take values of the schema; without, it is read anew before they
        are refused. While batches are under way it is not read: their commit does so, and would
        hold up this call.

        None if the topic does not exist, or if the store is temporarily unavailable. Raises
        InvalidConfig for a schema that does not fit, and what `read` raises.
        """
        deadline = self._clock.monotonic() + FIND_TOPIC_S
        try:
            definition = self.cached
            if definition is None or not (self._batches.open or self._batches.is_committing):
                definition = self.read(plan, FIND_TOPIC_S)
            if definition is None or schema is None:
                return definition
            if evolution(self.name, definition.schema, definition.history, schema) is None:
                return definition
            return self._evolved(schema, deadline) if register else self.read()
        # OutcomeUnknown is that of creating or changing the topic.
        except (OutcomeUnknown, Unavailable) as error:
            if isinstance(error, OutcomeUnknown) or error.error.retriable():
                return None
            raise

    def _evolved(self, schema: TopicSchema, deadline: float) -> TopicDefinition:
        return self._changed(lambda log: evolve_topic(log, schema, deadline))

    def _changed(self, change: Callable[[TopicLog], TopicDefinition]) -> TopicDefinition:
        with self.log.known.turn:
            definition = change(self.log)
            self.publish(definition)
        return definition

    # --- for a batch, with retries; all raise Unavailable, UnknownTopic ---

    def admit(self, parts: Sequence[BatchPart], deadline: float) -> TopicDefinition:
        """The topic, created, read or changed if it must be to take the records of a batch. What it
        cannot take is refused later, row by row.
        """
        return self._retried(lambda: self._admitted(parts, deadline), deadline)

    def was_read_since(self, time_s: float) -> bool:
        """Whether the topic was read, and that began later than this time of `Clock.monotonic`."""
        return self._read_at > time_s

    def confirm(self, known: TopicDefinition, deadline: float) -> None:
        """Read the topic. Raises UnknownTopic if it was deleted since it was `known`."""
        if self._retried(self.read, deadline).topic_id != known.topic_id:
            reason = f"topic {self.name!r} was deleted and created again before the messages came"
            raise UnknownTopic(self.name, reason=reason)

    def mark_large_messages(self, deadline: float) -> TopicDefinition:
        """The topic, whose table says now that it has messages in pieces."""
        return self._retried(
            lambda: self._changed(lambda log: mark_large_messages(log, deadline)), deadline
        )

    def _admitted(self, parts: Sequence[BatchPart], deadline: float) -> TopicDefinition | None:
        """The topic after one attempt; None if there is none."""
        definition = self.cached
        if definition is None:
            plan = next((part.buffer.plan for part in parts if part.buffer.plan is not None), None)
            definition = self.read(plan, max(0.0, deadline - self._clock.monotonic()))
        elif self._may_have_changed(parts, definition):
            definition = self.read()
        if definition is None:
            return None
        for part in parts:
            # Unless the topic, as it is now, was found to take the schemas of this client.
            if part.buffer.schemas and part.buffer.fits is not definition:
                definition = self._fitting(part, definition, deadline)
        return definition

    def _may_have_changed(self, parts: Sequence[BatchPart], known: TopicDefinition) -> bool:
        """Whether the topic may have been replaced, or have more partitions, since it was read."""
        highest = max(part.records.highest_partition for part in parts)
        is_old = self._clock.monotonic() - self._read_at > self.fresh_s
        return is_old or highest >= known.partitions

    def _fitting(
        self, part: BatchPart, definition: TopicDefinition, deadline: float
    ) -> TopicDefinition:
        """The topic changed to take the values of a part. Values of a schema that it cannot take
        are refused later, row by row: the part may have others.
        """
        buffer = part.buffer
        for schema in buffer.schemas.copy():
            try:
                held, history = definition.schema, definition.history
                if evolution(self.name, held, history, schema) is not None:
                    if not buffer.settings.register_schemas:
                        raise unregistered(self.name)
                    definition = self._evolved(schema, deadline)
            except InvalidConfig as error:
                part.misfit = InvalidValue(error.error.str(), topic=self.name)
        if part.misfit is None:
            buffer.fits = definition
        return definition

    def _retried(
        self, look: Callable[[], TopicDefinition | None], deadline: float
    ) -> TopicDefinition:
        failures = 0
        while True:
            try:
                if (definition := look()) is None:
                    raise UnknownTopic(self.name)
                return definition
            except OutcomeUnknown:
                # The unknown outcome is that of creating or changing the topic, not of the
                # messages.
                reason = "no answer yet whether the topic was created or changed"
            except Unavailable as error:
                if not error.error.retriable():
                    raise
                self.publish_failure(error)
                reason = error.error.str()
            failures += 1
            pause_before_retry(self._clock, self.name, failures, deadline, reason)

    # --- what producers are told ---

    def refresh(self) -> None:
        """Cache the topic as its log says, after another commit from this position."""
        log = self.log
        with log.known.turn:
            self.publish(definition_of(log) if log.head is not None else None)
            if self.maintenance is not None:
                self.maintenance.committed(log.state)

    def publish(self, definition: TopicDefinition | None) -> None:
        """Cache the topic, and notify the producers if it has changed."""
        before, self.cached = self.cached, definition
        if definition is not None and definition != before:
            with self._batches.lock:
                buffers = list(self._batches.buffers)
            for buffer in buffers:
                buffer.observe(definition)

    def publish_failure(self, error: Unavailable) -> None:
        """Notify the producers of a request that failed and will be repeated."""
        with self._batches.lock:
            buffers = list(self._batches.buffers)
        for buffer in buffers:
            buffer.store_failed(error.error)
