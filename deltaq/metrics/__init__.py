"""Metrics: what clients count about themselves, added up, and as text for Prometheus.

totals = Totals()
with listening(totals):
    ...  # produce, consume
    print(prometheus_text(totals.samples()))

Modules:

* `events`, `catalogue`: what clients count, for listeners of the process; all metrics
* `totals`, `consumers`, `view_groups`, `prometheus`: adding it up, the gauges of consumers and of
  groups of SQL views, and all of them as text for Prometheus
"""

from __future__ import annotations

from deltaq.metrics.catalogue import (
    BYTES_CONSUMED,
    BYTES_SENT,
    COMMITS_REFUSED,
    EXPIRED_UPLOADS,
    FETCH_LATENCY,
    HEARTBEATS_FAILED,
    JOINS,
    MEMBERS_REMOVED,
    METRICS,
    MISSING_FILES,
    OFFSET_COMMIT_LATENCY,
    PIPELINED_BATCHES,
    PRODUCERS_FENCED,
    REBALANCES,
    RECORD_ERRORS,
    RECORDS_CONSUMED,
    RECORDS_SENT,
    REQUEST_LATENCY,
    REVOCATIONS,
    ROOT_METRICS,
    SESSIONS_LOST,
    SHARE_ACKNOWLEDGEMENTS,
    SHARE_LOCKS_ENDED,
    STALE_REWRITES,
    STORE_REQUESTS,
    TRANSACTION_LATENCY,
    TRANSACTIONS,
    TRANSACTIONS_PUBLISHED,
    UNKNOWN_OUTCOMES,
    VIEW_BEHIND,
    VIEW_LAG,
    VIEW_MODE,
    VIEW_ROWS,
    VIEW_STATE,
    VIEW_TICK_LATENCY,
)
from deltaq.metrics.consumers import ObservedConsumer, consumer_samples
from deltaq.metrics.events import (
    Counter,
    Event,
    Gauge,
    Histogram,
    Listener,
    Metric,
    Total,
    listening,
)
from deltaq.metrics.prometheus import CONTENT_TYPE, prometheus_text
from deltaq.metrics.totals import Distribution, Sample, Totals
from deltaq.metrics.view_groups import ObservedViews, view_samples

__all__ = [
    "BYTES_CONSUMED",
    "BYTES_SENT",
    "COMMITS_REFUSED",
    "CONTENT_TYPE",
    "EXPIRED_UPLOADS",
    "FETCH_LATENCY",
    "HEARTBEATS_FAILED",
    "JOINS",
    "MEMBERS_REMOVED",
    "METRICS",
    "MISSING_FILES",
    "OFFSET_COMMIT_LATENCY",
    "PIPELINED_BATCHES",
    "PRODUCERS_FENCED",
    "REBALANCES",
    "RECORDS_CONSUMED",
    "RECORDS_SENT",
    "RECORD_ERRORS",
    "REQUEST_LATENCY",
    "REVOCATIONS",
    "ROOT_METRICS",
    "SESSIONS_LOST",
    "SHARE_ACKNOWLEDGEMENTS",
    "SHARE_LOCKS_ENDED",
    "STALE_REWRITES",
    "STORE_REQUESTS",
    "TRANSACTIONS",
    "TRANSACTIONS_PUBLISHED",
    "TRANSACTION_LATENCY",
    "UNKNOWN_OUTCOMES",
    "VIEW_BEHIND",
    "VIEW_LAG",
    "VIEW_MODE",
    "VIEW_ROWS",
    "VIEW_STATE",
    "VIEW_TICK_LATENCY",
    "Counter",
    "Distribution",
    "Event",
    "Gauge",
    "Histogram",
    "Listener",
    "Metric",
    "ObservedConsumer",
    "ObservedViews",
    "Sample",
    "Total",
    "Totals",
    "consumer_samples",
    "listening",
    "prometheus_text",
    "view_samples",
]
