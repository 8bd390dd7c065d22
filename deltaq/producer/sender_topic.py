"""A topic as its sender sees it: its log, its cached definition, and the maintenance beside the
writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.delta.table_state import TableState
from deltaq.errors import OutcomeUnknown, Unavailable, UnknownTopic
from deltaq.parquet.plain_segment import PlainRows
from deltaq.producer.batches import InFlightBatches
from deltaq.serde.schema import TopicSchema
from deltaq.topics.log import SharedTopicLog
from deltaq.topics.metadata import (
    NewTopicPlan,
    TopicDefinition,
    create_topic,
    definition_of,
    evolve_topic,
    mark_large_messages,
)
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
    """Looks the topic up, and notifies its producers of changes. `maintenance`: None if this
    process does none.
    """

    name: str
    log: SharedTopicLog
    _clock: Clock
    _batches: InFlightBatches
    maintenance: BackgroundMaintenance | None = None
    _newest: TopicDefinition | None = None

    def get(
        self, plan: NewTopicPlan | None = None, timeout_s: float = 60.0, *, anew: bool = False
    ) -> TopicDefinition | None:
        """The cached definition of the topic; None if the topic does not exist.

        The first call reads it from the store, and creates a missing topic by `plan` within
        `timeout_s` seconds. `anew` reads it again, unless batches are under way: their commit
        refreshes the cache too, and would hold up this call. Raises Unavailable, Corrupt,
        Incompatible, UnsafeStore.
        """
        definition = self._newest
        if definition is None or (anew and not (self._batches.open or self._batches.is_committing)):
            return self._read(plan, timeout_s)
        return definition

    def found(
        self, plan: NewTopicPlan | None, schema: TopicSchema | None, *, register: bool
    ) -> TopicDefinition | None:
        """The topic for the first message of a client with this schema. With `register`, the topic
        is changed if it must be to take values of the schema; without, it is read anew before they
        are refused.

        None if the topic does not exist, or if the store is temporarily unavailable. Raises
        InvalidConfig for a schema that does not fit, and what `get` raises.
        """
        deadline = self._clock.monotonic() + FIND_TOPIC_S
        try:
            definition = self.get(plan, FIND_TOPIC_S, anew=True)
            if (
                definition is None
                or schema is None
                or definition.evolution(self.name, schema) is None
            ):
                return definition
            return self._evolved(schema, deadline) if register else self._read(None, 0.0)
        # OutcomeUnknown is that of creating or changing the topic.
        except (OutcomeUnknown, Unavailable) as error:
            if isinstance(error, OutcomeUnknown) or error.error.retriable():
                return None
            raise

    def _read(self, plan: NewTopicPlan | None, timeout_s: float) -> TopicDefinition | None:
        definition = None
        with self.log.lock:
            log = self.log.log
            if log.load() if self._newest is None else log.catch_up():
                definition = definition_of(log)
            elif plan is not None:
                definition = create_topic(
                    log, plan, self._clock.monotonic() + timeout_s, exist_ok=True
                )
            self.saw(definition)
        return definition

    def saw(self, definition: TopicDefinition | None) -> None:
        """Store the definition, and notify the producers if it has changed."""
        before, self._newest = self._newest, definition
        if definition is not None and definition != before:
            with self._batches.lock:
                buffers = list(self._batches.buffers)
            for buffer in buffers:
                buffer.seen(definition)

    def store_failed(self, error: Unavailable) -> None:
        """Notify the producers of a request that failed and will be repeated."""
        with self._batches.lock:
            buffers = list(self._batches.buffers)
        for buffer in buffers:
            buffer.store_failed(error.error)

    def known(self, plan: NewTopicPlan | None, deadline: float) -> TopicDefinition:
        """The cached topic; its first lookup is retried until the deadline. Raises Unavailable,
        UnknownTopic.
        """
        return self._asked_again(
            lambda: self.get(plan, max(0.0, deadline - self._clock.monotonic())), deadline
        )

    def evolved(self, schema: TopicSchema, deadline: float) -> TopicDefinition:
        """The topic, changed if it must be to take values of this schema. Retries until the
        deadline.

        Raises InvalidConfig for a schema that does not fit, Unavailable, UnknownTopic.
        """
        return self._asked_again(lambda: self._evolved(schema, deadline), deadline)

    def mark_large_messages(self, deadline: float) -> None:
        """Say in the topic's table that it has messages in pieces. Retries until the deadline.

        Raises Unavailable, UnknownTopic.
        """

        def mark() -> TopicDefinition:
            with self.log.lock:
                definition = mark_large_messages(self.log.log, deadline)
                self.saw(definition)
            return definition

        self._asked_again(mark, deadline)

    def _evolved(self, schema: TopicSchema, deadline: float) -> TopicDefinition:
        with self.log.lock:
            definition = evolve_topic(self.log.log, schema, deadline)
            self.saw(definition)
        return definition

    def newest(self, deadline: float) -> TopicDefinition:
        """The topic read anew, with retries until the deadline. Raises Unavailable,
        UnknownTopic.
        """
        return self._asked_again(lambda: self._read(None, 0.0), deadline)

    def _asked_again(
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
                self.store_failed(error)
                reason = error.error.str()
            failures += 1
            pause_before_retry(self._clock, self.name, failures, deadline, reason)
