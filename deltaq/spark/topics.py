"""The topics of a query, followed on the driver from micro-batch to micro-batch."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from deltaq.clock import Clock
from deltaq.config import ClientConfig
from deltaq.errors import InvalidConfig, UnknownTopic
from deltaq.root import open_root
from deltaq.spark.offsets import CommittedLookup, Ranges
from deltaq.spark.options import SourceOptions
from deltaq.store.parallel import in_parallel
from deltaq.topics.follower import TopicReader, topic_reader
from deltaq.topics.listing import topic_names
from deltaq.topics.metadata import TopicDefinition, definition_of
from deltaq.topics.scan import FileRead, plan_reads
from deltaq.topics.state import TopicHead
from deltaq.topics.time_lookup import offset_for_time

_log = logging.getLogger("deltaq.spark")

ClientT = TypeVar("ClientT", bound=ClientConfig)

LIST_INTERVAL_S = 10.0
"""Seconds between listings of the topics by a query with a pattern. The cost of a listing grows
with the root.
"""


def located(client: ClientT, clock: Clock) -> ClientT:
    """The configuration with a root URL that is valid in every process. Raises InvalidConfig for
    `memory://`.
    """
    url = open_root(client, clock).url
    if url.startswith("memory:"):
        raise InvalidConfig(
            f"{url} exists in one process only, and Spark uses several: use a folder or an object "
            "store",
            key="path",
        )
    return replace(client, root=url)


class QueryTopics:
    """The topics of a query. Each log is loaded once, and then only new entries are read. Not
    thread-safe.
    """

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self._subscription = options.subscription
        self._store = open_root(options.client, clock)
        self._clock = clock
        self._logs: dict[str, TopicReader] = {}
        self._listed_at = float("-inf")

    def newest_heads(self) -> dict[str, TopicHead]:
        """Read the heads of the topics that exist, by name. Raises Unavailable, Corrupt,
        Incompatible.
        """
        logs = self._followed()
        in_parallel(self._clock, TopicReader.catch_up, logs)
        return {log.topic: log.head for log in logs if log.head is not None}

    def known_heads(self) -> dict[str, TopicHead]:
        """The heads of the topics as last read. Reads them only if a topic has never been read."""
        if any(log.version < 0 for log in self._followed()):
            return self.newest_heads()
        return {log.topic: log.head for log in self._logs.values() if log.head is not None}

    def check_complete(self, heads: Mapping[str, TopicHead]) -> None:
        """Raise UnknownTopic if a topic or partition that the options name does not exist."""
        for topic in self._subscription.names:
            if topic not in heads:
                raise UnknownTopic(
                    topic, reason=f"topic {topic!r} does not exist: create it, or correct the name"
                )
            for partition in (self._subscription.assigned or {}).get(topic, ()):
                if partition >= heads[topic].partitions:
                    raise UnknownTopic(topic, partition=partition)

    def view(self, topic: str) -> TopicDefinition:
        """The definition of a topic as last read. Raises UnknownTopic."""
        return definition_of(self._logs[topic])

    def offset_for_time(self, topic: str, partition: int, time_ms: int) -> int | None:
        """The first offset with this timestamp (ms since 1970 UTC) or a later one; None if there is
        none.
        """
        return offset_for_time(self._store, self._logs[topic], partition, time_ms)

    def committed(self, group: str) -> CommittedLookup:
        """Look up what a group has committed until now, of the topics as last read.

        A partition without a committed offset is logged. Raises Unavailable, Corrupt, Incompatible.
        """
        from deltaq.groups.log import GroupLog  # noqa: PLC0415 - executors read no groups
        from deltaq.groups.offsets import committed_offset  # noqa: PLC0415

        state = GroupLog(self._store, group, self._clock).state()

        def look_up(topic: str, partition: int) -> int | None:
            found = committed_offset(state, topic, self._logs[topic].live_head.topic_id, partition)
            if found is None:
                _log.warning(
                    "no committed offset group=%r topic=%r partition=%d", group, topic, partition
                )
            return None if found is None else found.offset

        return look_up

    def plan(self, ranges: Ranges) -> dict[tuple[str, str], list[FileRead]]:
        """The reads of files that hold these offsets, by (topic name, topic id)."""
        return {
            (topic, self._logs[topic].live_head.topic_id): plan_reads(
                self._logs[topic].index, of_topic
            )
            for topic, of_topic in ranges.items()
        }

    def _followed(self) -> list[TopicReader]:
        for topic in self._names():
            if topic not in self._logs:
                self._logs[topic] = topic_reader(self._store, topic, self._clock)
        return list(self._logs.values())

    def _names(self) -> Iterable[str]:
        """Topics to follow besides those that are; none while the last listing is recent. Raises
        Unavailable.
        """
        if (pattern := self._subscription.pattern) is None:
            return self._subscription.names
        now = self._clock.monotonic()
        if now - self._listed_at < LIST_INTERVAL_S:
            return ()
        found = [name for name in topic_names(self._store) if re.fullmatch(pattern, name)]
        self._listed_at = now
        return found
