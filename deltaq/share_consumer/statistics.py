"""What a share consumer counts: events for the metrics of the process, and the text for
`stats_cb`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deltaq import metrics
from deltaq.clock import Clock
from deltaq.config import ShareConsumerConfig
from deltaq.errors import KafkaError
from deltaq.message import Message, SharedMessage
from deltaq.share_consumer.returned import DecidedRecords
from deltaq.share_groups.exchange import PartitionId
from deltaq.share_groups.transaction_acknowledgements import TransactionOutcome
from deltaq.statistics import ClientFields

REFUSED = "refused"
"""The type under which acknowledgements are counted that do not count: they came too late, or their
transaction was not committed.
"""


class ShareStatistics:
    """Counts what one share consumer returns and acknowledges. Not thread-safe."""

    def __init__(self, config: ShareConsumerConfig, clock: Clock) -> None:
        self._clock = clock
        self._group = config.group_id
        self._callback = config.stats_cb if config.statistics_interval_ms else None
        self._interval_s = config.statistics_interval_ms / 1000
        self._fields = ClientFields("consumer", config.client_id, clock)
        self._due_at = clock.monotonic() + self._interval_s
        self._returned: Counter[tuple[str, int]] = Counter()
        self._acknowledged: Counter[str] = Counter()

    def returned(self, messages: Iterable[Message[Any, Any]]) -> None:
        """Count messages that the application gets, but not the events among them."""
        found: Counter[tuple[str, int]] = Counter(
            (message.topic() or "", message.partition() or 0)
            for message in messages
            if isinstance(message, SharedMessage)
        )
        for (topic, _), records in found.items():
            metrics.RECORDS_CONSUMED.add(records, topic=topic)
        self._returned += found

    def acknowledged(
        self, decided: DecidedRecords, applied: Mapping[PartitionId, Sequence[range]]
    ) -> None:
        """Count acknowledgements that were written, of which those of the `applied` offsets count.
        Of the others, those of records are `REFUSED` that the application has got. What it has not
        got is not counted.
        """
        found: Counter[str] = Counter()
        for key, acknowledgements in decided.acknowledgements.items():
            counting = {offset for each in applied.get(key, ()) for offset in each}
            for each in acknowledgements:
                if each.unseen:
                    continue
                found[each.type.name.lower()] += sum(
                    offset in counting for offset in range(each.first, each.end)
                )
            found[REFUSED] += len(decided.offsets.get(key, frozenset()) - counting)
        for name, records in found.items():
            if records:
                self._count(name, records)

    def decided_by_transaction(self, outcome: TransactionOutcome) -> None:
        """Count acknowledgements of a transaction that has ended, but not of one whose outcome is
        not known. The process that has published a commit has counted them for its metrics.
        """
        error = outcome.error
        if error is not None and error.error.code() == KafkaError._TIMED_OUT:
            return
        for each in (each for of in outcome.by_partition.values() for each in of):
            records = each.end - each.first
            if error is None:
                self._acknowledged[each.type.name.lower()] += records
            else:
                self._count(REFUSED, records)

    def _count(self, type_: str, records: int) -> None:
        self._acknowledged[type_] += records
        metrics.SHARE_ACKNOWLEDGEMENTS.add(records, group=self._group, type=type_)

    def emit_if_due(self) -> None:
        """Call `stats_cb` if `statistics.interval.ms` has passed since the last call. Raises what
        it raises.
        """
        now = self._clock.monotonic()
        if self._callback is not None and now >= self._due_at:
            self._due_at = now + self._interval_s
            self._callback(json.dumps(self._read()))

    def _read(self) -> dict[str, Any]:
        topics: dict[str, Any] = {}
        for (topic, partition), records in sorted(self._returned.items()):
            of_topic = topics.setdefault(topic, {"topic": topic, "partitions": {}})
            of_topic["partitions"][str(partition)] = {"partition": partition, "rxmsgs": records}
        return {
            **self._fields.now(),
            "metadata_cache_cnt": len(topics),
            "brokers": {},
            "topics": topics,
            "rxmsgs": self._returned.total(),
            "acknowledgements": dict(self._acknowledged),
        }
