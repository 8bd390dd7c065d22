"""Append rows to a topic once, by an application transaction of its log: each try of any process
knows what is in the topic already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.delta.actions import Txn
from deltaq.errors import InvalidConfig
from deltaq.store import Store
from deltaq.topics.columns import Columns, Headers, columns_of_rows
from deltaq.topics.log import AlreadyCommitted, Appended, TopicLog
from deltaq.topics.metadata import TopicDefinition, definition_of
from deltaq.topics.state import PendingSegment
from deltaq.topics.upload import upload_segment

_ROWS_AT_ONCE = 500
"""Rows of a file."""

_CODEC = "zstd", None


class AppendedRow(NamedTuple):
    """A record to append. `value` is bytes, or for a typed topic an accepted dict."""

    partition: int
    timestamp_ms: int
    key: bytes | None
    headers: Headers
    value: Any


RowsAfter: TypeAlias = "Callable[[TopicDefinition, int], tuple[Sequence[AppendedRow], int]]"
"""`rows_after(definition, version)`: the rows to append that follow what the version says, and the
version that they lead to; the same one if there are none.
"""


def append_once(
    log: TopicLog,
    store: Store,
    clock: Clock,
    app_id: str,
    rows_after: RowsAfter,
    deadline: float,
) -> int:
    """Append to the topic what its log does not say that it has. Returns the version of the
    application transaction `app_id` that it has then, -1 without one.

    Raises UnknownTopic if the topic does not exist or is deleted meanwhile, Unavailable,
    OutcomeUnknown, InvalidConfig if the rows do not fit it.
    """
    while True:
        version = _append(log, store, clock, app_id, rows_after, deadline)
        if version is not None:
            return version


def _append(
    log: TopicLog,
    store: Store,
    clock: Clock,
    app_id: str,
    rows_after: RowsAfter,
    deadline: float,
) -> int | None:
    """`append_once`, but None if another process has appended meanwhile what was among the rows, or
    the uploads waited for too long.
    """
    with log.known.turn:
        log.catch_up()
        definition = definition_of(log)
        before, as_of = _version(log, app_id, definition), log.version
    rows, after = rows_after(definition, before)
    if after <= before:
        return before
    columns = [
        _columns(log.topic, rows[at : at + _ROWS_AT_ONCE], definition)
        for at in range(0, len(rows), _ROWS_AT_ONCE)
    ]
    segments = [
        upload_segment(
            store,
            log.topic,
            part,
            definition.settings,
            _CODEC,
            deadline=deadline,
            clock=clock,
            as_of=as_of,
        )[0]
        for part in columns
    ]

    def take() -> list[PendingSegment] | None:
        return segments if _version(log, app_id, definition) == before else None

    with log.known.turn:
        outcome = log.append(
            take, definition.topic_id, deadline, Txn(app_id, after, clock.time_ms())
        )
    return after if isinstance(outcome, Appended | AlreadyCommitted) else None


def appended_version(log: TopicLog, app_id: str) -> int:
    """The version of the application transaction `app_id` that a topic has now, -1 without one.
    Raises UnknownTopic, Unavailable, Corrupt.
    """
    with log.known.turn:
        log.catch_up()
        return _version(log, app_id, definition_of(log))


def _version(log: TopicLog, app_id: str, definition: TopicDefinition) -> int:
    done = log.state.txns.get(f"{app_id}/{definition.topic_id}")
    return -1 if done is None else done.version


def _columns(topic: str, rows: Sequence[AppendedRow], definition: TopicDefinition) -> Columns:
    if "compact" in definition.settings.cleanup_policy and any(row.key is None for row in rows):
        raise InvalidConfig(f"topic {topic!r} is compacted: every message needs a key", key="topic")
    try:
        return columns_of_rows(
            [row.partition for row in rows],
            pa.array([row.timestamp_ms for row in rows], pa.int64()),
            [row.key for row in rows],
            [row.headers for row in rows],
            [row.value for row in rows],
            definition.schema,
        )
    except (pa.ArrowException, TypeError, AttributeError) as error:
        raise InvalidConfig(
            f"the records do not fit topic {topic!r}: {error}", key="topic"
        ) from error
