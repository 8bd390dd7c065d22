"""What the console exports of roots for Prometheus, as Kafka's exporters do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from deltaq.console.visits import Root
from deltaq.metrics import Sample
from deltaq.metrics.catalogue import (
    COST_PER_DAY,
    GROUP_LAG,
    GROUP_MEMBERS,
    GROUP_TOPIC_LAG,
    SHARE_GROUP_ACQUIRED,
    SHARE_GROUP_AVAILABLE,
    SHARE_GROUP_OLDEST,
    TOPIC_BYTES,
    TOPIC_COMMITS,
    TOPIC_FILES,
    TOPIC_FILES_TO_COMPACT,
    TOPIC_MESSAGES,
    TOPIC_PARTITIONS,
    TOPIC_PRODUCED,
    UNREADABLE,
)
from deltaq.metrics.events import Gauge


def root_samples(roots: Sequence[Root]) -> Iterator[Sample]:
    """The values of roots. Looks at a root if no page has done so within the interval."""
    for root in roots:
        view, at = root.poller.view(), {"root": root.url}
        if view.problem:
            # Values of an earlier look would seem to be those of now, and no alert would see that a
            # lag grows.
            yield Sample(UNREADABLE, at, 1)
            continue
        for name, topic in view.topics.items():
            labels = {**at, "topic": name}
            yield Sample(TOPIC_PARTITIONS, labels, len(topic.ranges))
            yield Sample(TOPIC_MESSAGES, labels, topic.messages)
            yield Sample(TOPIC_PRODUCED, labels, topic.produced)
            yield Sample(TOPIC_COMMITS, labels, topic.version)
            yield Sample(TOPIC_BYTES, labels, topic.bytes)
            yield Sample(TOPIC_FILES, labels, topic.files)
            yield Sample(TOPIC_FILES_TO_COMPACT, labels, topic.files_to_compact)
        for name, group in view.groups.items():
            labels = {**at, "group": name}
            yield from _lag(GROUP_LAG, labels, group.lag)
            yield Sample(GROUP_MEMBERS, labels, len(group.members))
            for topic_name in group.topics:
                yield from _lag(
                    GROUP_TOPIC_LAG, {**labels, "topic": topic_name}, group.lag_in(topic_name)
                )
        for name, queue in view.queues.items():
            labels = {**at, "group": name}
            yield Sample(GROUP_LAG, labels, queue.lag)
            yield Sample(GROUP_MEMBERS, labels, len(queue.members))
            parts = queue.partitions
            yield Sample(SHARE_GROUP_ACQUIRED, labels, sum(part.acquired for part in parts))
            yield Sample(SHARE_GROUP_AVAILABLE, labels, sum(part.available for part in parts))
            if queue.oldest_ms is not None:
                age_ms = max(0, root.clock.time_ms() - queue.oldest_ms)
                yield Sample(SHARE_GROUP_OLDEST, labels, age_ms / 1000)
        yield Sample(UNREADABLE, at, len(view.errors))
        yield Sample(COST_PER_DAY, at, view.cost.dollars)


def _lag(metric: Gauge, labels: Mapping[str, str], lag: int | None) -> Iterator[Sample]:
    """The sample of a lag; none for one that is not known, which an alert would take for a group
    that is not behind.
    """
    if lag is not None:
        yield Sample(metric, labels, lag)
