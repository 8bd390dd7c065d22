"""Planning on the driver: which offsets and files of its topics a query reads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from deltaq.clock import SYSTEM_CLOCK
from deltaq.serde.schema import TopicSchema
from deltaq.spark.bounds import Edge, Limit
from deltaq.spark.columns import ReadColumns
from deltaq.spark.given import refuse
from deltaq.spark.offsets import (
    CommittedLookup,
    DataLoss,
    Ranges,
    SourceOffset,
    at_bound,
    check_order,
    to_read,
)
from deltaq.spark.options import SourceOptions, no_pieces
from deltaq.spark.topics import QueryTopics, located
from deltaq.topics.state import TopicHead

_log = logging.getLogger("deltaq.spark")

_CLOCK = SYSTEM_CLOCK

EARLIEST = Limit("startingOffsets", Edge.EARLIEST)
LATEST = Limit("startingOffsets", Edge.LATEST)
_END = Limit("endingOffsets", Edge.LATEST)


class QueryPlans:
    """Plans of one query, batch or streaming. `columns` are those promised to Spark."""

    def __init__(self, options: SourceOptions, columns: ReadColumns) -> None:
        self._options = options
        self._columns = columns
        self._checked: dict[str, tuple[str, TopicSchema | None]] = {}  # topic -> its id and schema
        self.topics = QueryTopics(options, _CLOCK)

    def batch(self) -> Ranges:
        """The offsets that a batch reads, of the topics at this moment. Raises InvalidConfig,
        KafkaException.
        """
        start, heads = self.begin(EARLIEST)
        end = self._at(self._options.ending or _END, heads)
        check_order(start, end)
        return self.ranges(start, end, heads)

    def begin(
        self, default: Limit, heads: dict[str, TopicHead] | None = None
    ) -> tuple[SourceOffset, dict[str, TopicHead]]:
        """Where the query begins, and the heads that this is seen from: newer ones than `heads` if
        a group says where.

        `default` applies without a starting option.
        """
        limit, group = self._options.starting or default, self._options.starting_group
        if group is None:
            heads = self.topics.newest_heads() if heads is None else heads
            return self._at(limit, heads), heads
        committed = self.topics.committed(group)
        # After the offsets, which would otherwise be ahead of a busy topic's heads.
        heads = self.topics.newest_heads()
        return self._at(limit, heads, committed), heads

    def _at(
        self, limit: Limit, heads: Mapping[str, TopicHead], *committed: CommittedLookup
    ) -> SourceOffset:
        self.topics.check_complete(heads)
        return at_bound(
            limit, heads, self._options.subscription, self.topics.offset_for_time, *committed
        )

    def ranges(
        self, start: SourceOffset, end: SourceOffset, heads: Mapping[str, TopicHead]
    ) -> Ranges:
        """The offsets in `[start, end)` that the topics still hold. Raises InvalidConfig for topics
        that lack a promised column, KafkaException for lost records.
        """
        ranges = to_read(start, end, heads, DataLoss(self._options.fail_on_data_loss))
        for topic in ranges:
            view = self.topics.view(topic)
            if view.has_large_messages:
                raise no_pieces(topic)
            if self._checked.get(topic) != (view.topic_id, view.schema):
                self._columns.check(topic, view)
                self._checked[topic] = view.topic_id, view.schema
        return ranges


def batch_options(options: SourceOptions) -> SourceOptions:
    """The options of a batch read, valid in every process. Raises InvalidConfig for a batch that
    would read nothing.
    """
    _note_options_of_streams(options)
    _check_batch_edges(options)
    return replace(options, client=located(options.client, _CLOCK))


def _note_options_of_streams(options: SourceOptions) -> None:
    trigger = options.trigger
    for name, value in (
        ("maxOffsetsPerTrigger", trigger.offsets_max),
        ("minOffsetsPerTrigger", trigger.offsets_min),
    ):
        if value is not None:
            _log.info("option has no effect in a batch query name=%s", name)


def _check_batch_edges(options: SourceOptions) -> None:
    """Refuse a batch that starts at the end or ends at the beginning, as Spark's Kafka source
    does.
    """
    for limit, wrong in ((options.starting, Edge.LATEST), (options.ending, Edge.EARLIEST)):
        if limit is None:
            continue
        everywhere = isinstance(limit.bound, Edge) and limit.bound == wrong
        somewhere = isinstance(limit.bound, Mapping) and any(
            wrong in of.values() for of in limit.bound.values()
        )
        if everywhere or somewhere:
            refuse(limit.option, wrong.name.lower(), "a batch query would read nothing")
