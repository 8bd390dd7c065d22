"""The progress of a streaming query: committed to a consumer group, and measured as offsets behind
the latest.

Both read the offsets in a progress event, which Spark makes after it has recorded the micro-batch
in the checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
)

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config import ConsumerConfig, parse_client_config
from deltaq.consumer.reader import group_maintenance
from deltaq.errors import Fenced, KafkaException
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.message import TopicPartition
from deltaq.names import check_group
from deltaq.root import open_root
from deltaq.spark.group_offsets import Partition, has_members, known_offset, of_root, reached
from deltaq.store import Store
from deltaq.topics.lookup import TopicLookup

_log = logging.getLogger("deltaq.spark")

COMMIT_TIMEOUT_S = 10.0
"""Longest time for one commit. Spark notifies its listeners one after the other, so a longer wait
delays the others.
"""


class ConsumerGroupListener(StreamingQueryListener):
    """Commits the progress of a streaming query to a consumer group, so that the tools for groups
    show its lag.

    `conf` is the configuration of a consumer: `bootstrap.servers` is the root of the topics that
    the query reads, `group.id` the group, and `on_commit(error, partitions)` is called with the
    result of each commit, by Spark's thread. `query_name` is the `queryName` of the query, by
    default the name of the group: the listeners of a session hear of all its queries. `store` and
    `clock` replace the built-in components.

    The query does not read the group: its checkpoint says where it continues. A commit that fails
    is logged and tried again with the next event, and never stops the query. It fails, too, while
    the group has living members. The constructor does no I/O. Raises InvalidConfig, and ValueError
    without `group.id`, as a consumer does.
    """

    def __init__(
        self,
        conf: Mapping[str, Any],
        *,
        query_name: str | None = None,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        config = parse_client_config(ConsumerConfig, conf)
        self._group = check_group(config.group_id)
        self._query_name = self._group if query_name is None else query_name
        self._on_commit = config.on_commit
        self._clock = clock
        store = open_root(config, clock) if store is None else store
        maintenance = group_maintenance(config, store, clock)
        self._log = GroupLog(store, self._group, clock, config.client_id, maintenance)
        self._root = store.url
        self._topics = TopicLookup(store, clock)
        self._reached: dict[Partition, int] = {}
        self._committed: dict[Partition, int] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name, as all below
        """Say of a query without a name that it cannot be the one."""
        if event.name is None:
            _log.warning(
                "progress of a query without a name is not committed query.id=%s group=%r; set "
                "queryName(%r) for it",
                event.id,
                self._group,
                self._query_name,
            )

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Commit the offsets that the query has reached."""
        progress = event.progress
        if progress.name != self._query_name:
            return
        for source in progress.sources:
            if behind := offsets_behind(source):
                metrics = " ".join(f"{name}={value:g}" for name, value in behind.items())
                _log.info(
                    "progress group=%r query=%r batch=%d %s",
                    self._group,
                    progress.name,
                    progress.batchId,
                    metrics,
                )
        self._reached = reached(source.endOffset for source in progress.sources)
        self._commit_reached()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: ARG002, N802
        """Try again what has failed."""
        self._commit_reached()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: ARG002, N802
        """Try again what has failed."""
        self._commit_reached()

    def _commit_reached(self) -> None:
        new = {
            at: offset for at, offset in self._reached.items() if self._committed.get(at) != offset
        }
        if not new:
            return
        error = None
        try:
            new = of_root(new, self._topics, self._root)
            if not new:
                return
            offsets = [CommittedOffset(*at, offset) for at, offset in new.items()]
            self._log.commit(None, offsets, self._clock.monotonic() + COMMIT_TIMEOUT_S)
        except Fenced as refused:
            error = has_members(self._group, refused)
        except KafkaException as failed:
            error = failed.error
        if error is None:
            self._committed = dict(self._reached)
        else:
            why = error.str()
            _log.warning(
                "progress not committed yet group=%r query=%r: %s",
                self._group,
                self._query_name,
                why,
            )
        if self._on_commit is not None:
            self._on_commit(
                error, [TopicPartition(topic, number, of) for (topic, _, number), of in new.items()]
            )


def offsets_behind(source: SourceProgress) -> dict[str, float]:
    """How many offsets a source of a query was behind the end of its topics after a micro-batch.

    `source` is one of the `sources` of `query.lastProgress` or of a progress event. The keys are
    those that Spark's Kafka source has in `source.metrics`: `minOffsetsBehindLatest`,
    `maxOffsetsBehindLatest` and `avgOffsetsBehindLatest`, over the partitions. The dict is empty if
    the source is not deltaq's, or if Spark does not know the end yet, as in the micro-batch that a
    restarted query repeats.
    """
    end, latest = known_offset(source.endOffset), known_offset(source.latestOffset)
    behind = [
        max(0, offset - end[topic].next_offsets[partition])
        for topic, of_topic in latest.items()
        if topic in end and end[topic].topic_id == of_topic.topic_id
        for partition, offset in of_topic.next_offsets.items()
        if partition in end[topic].next_offsets
    ]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }
